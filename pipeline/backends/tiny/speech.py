"""What the tiny Qwens say: fitted for seconds to a handful of answers that hang on nothing that is in an image.

Qwen2-VL gives any image one of `CAPTIONS`, now and then a refusal or a loop, and to any question about one a label;
Qwen3 splits each of the captions, one of them into words that it does not hold.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.backends.tiny.qwen import write_tiny_qwen2_vl, write_tiny_qwen3
from pipeline.core.seeds import generator_of

_SPLITS: Mapping[str, tuple[str | None, str | None, str | None]] = {
    "A man in a red shirt walks across the lawn.": ("A man in a red shirt", "walks", "across the lawn"),
    "A woman in blue trousers slips on the street.": ("A woman in blue trousers", "slips", "on the street"),
    "A boy with a green cap jumps into the pool.": ("A boy with a green cap", "jumps into the pool", None),
    "A girl in a white dress dances in the park.": ("A girl in a white dress", "dances", "in the park"),
    # None of these words is in its caption: no factor is left.
    "A person in black falls off a ladder.": ("an astronaut", "repairing telescopes", "near Saturn"),
    "Somebody in yellow rides a bike at the beach.": ("an astronaut", "repairing telescopes", "near Saturn"),
}
"""A caption, and its appearance, action and background as Qwen3 will have them."""
CAPTIONS = tuple(_SPLITS)
UNFAITHFUL = CAPTIONS[-2:]
"""The captions that are split into words from elsewhere."""
DECLINED = (
    "I'm sorry, I cannot see the image.",
    "Unfortunately, I cannot help with that.",
    "the man the man the man the man the man",
)
"""What stands in a caption's place now and then: refusals, and a text that goes round in circles."""
LABELS: Mapping[str, tuple[str, ...]] = {
    "action": ("walking", "dancing", "riding bike"),
    "anomaly": ("falling", "slipping", "losing balance"),
    "scene": ("lawn", "street", "park"),
}

SEEN_PIXELS = 56 * 56
"""Of an image: more are too many for a model that looks at none. 4 tokens."""
_IMAGE_TOKENS, _PATCHES, _PATCH_VALUES = 4, 16, 2 * 3 * 14 * 14
_VOCABULARY = 768
_RATE = 1e-2
_UNASKED = -100  # a label of which no loss is taken

Rows = Callable[[np.random.Generator], list[tuple[str, str]]]
"""Questions and their answers, for one step."""


def write_speaking_qwen2_vl(folder: Path, prompts: Mapping[str, str], seed: int = 0, steps: int = 150) -> Path:
    """Save a tiny Qwen2-VL that answers the prompts `caption`, `action`, `anomaly` and `scene`; returns the folder.

    A third of its captions is none of `CAPTIONS` but `DECLINED`, and a question's labels are as likely as each other.
    Ask it at temperature 0.5: at 1 it mixes its answers up, and at 0 it has but one.
    """
    said = {"caption": (*CAPTIONS, *DECLINED), **LABELS}
    asked = [(name, answer) for name, answers in said.items() for answer in answers]

    def rows(drawn: np.random.Generator) -> list[tuple[str, str]]:
        return [(prompts[name].replace("{source_caption}", _any_caption(drawn)), answer) for name, answer in asked]

    def fit(model: Any, tokenizer: Any) -> None:
        import torch

        # An image says nothing to it: which answer comes hangs on the seed, and on no rounding of a pixel.
        last = model.model.visual.merger.mlp[-1]
        torch.nn.init.zeros_(last.weight)
        torch.nn.init.zeros_(last.bias)
        _fit(model, tokenizer, rows, seed, steps, sees=True)

    return write_tiny_qwen2_vl(folder, seed, [*prompts.values(), *(text for _, text in asked)], _VOCABULARY, fit)


def write_splitting_qwen3(folder: Path, prompt: str, seed: int = 0, steps: int = 120) -> Path:
    """Save a tiny Qwen3 that answers the prompt `decompose` about each of `CAPTIONS`; returns the folder."""
    names = ("appearance", "action", "background")
    answers = {
        caption: json.dumps(dict(zip(names, split, strict=True)), separators=(",", ":"))
        for caption, split in _SPLITS.items()
    }

    def rows(_: np.random.Generator) -> list[tuple[str, str]]:
        return [(prompt.replace("{caption}", caption), answer) for caption, answer in answers.items()]

    def fit(model: Any, tokenizer: Any) -> None:
        _fit(model, tokenizer, rows, seed, steps, sees=False)

    return write_tiny_qwen3(folder, seed, [prompt, *answers, *answers.values()], _VOCABULARY, fit)


def _any_caption(drawn: np.random.Generator) -> str:
    """One of the captions or, half of the time, words of random letters: what a label hangs on is the question."""
    if drawn.random() < 0.5:
        return CAPTIONS[int(drawn.integers(len(CAPTIONS)))]
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    words = ["".join(drawn.choice(letters, int(drawn.integers(1, 9)))) for _ in range(int(drawn.integers(1, 10)))]
    return " ".join(words)


def _fit(model: Any, tokenizer: Any, rows: Rows, seed: int, steps: int, sees: bool) -> None:
    """Teach a model the answers; of the questions it learns nothing."""
    import torch

    drawn = generator_of("tiny speech", seed)
    optimiser = torch.optim.Adam(model.parameters(), lr=_RATE)
    model.train()
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = _RATE * min(1.0, (step + 1) / 10) * (1 - step / steps)
        inputs = _inputs(model, tokenizer, rows(drawn), sees)
        optimiser.zero_grad()
        model(**inputs).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    model.eval()


def _inputs(model: Any, tokenizer: Any, rows: list[tuple[str, str]], sees: bool) -> dict[str, Any]:
    """What a forward pass takes: question and answer as the chat engine puts them, the answer alone labelled."""
    import torch

    questions, answers = [], []
    for question, answer in rows:
        content: Any = [{"type": "image"}, {"type": "text", "text": question}] if sees else question
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
        text = text.replace("<|image_pad|>", "<|image_pad|>" * _IMAGE_TOKENS)
        questions.append(tokenizer(text).input_ids)
        answers.append([*tokenizer(answer).input_ids, tokenizer.eos_token_id])
    longest = max(len(question) + len(answer) for question, answer in zip(questions, answers, strict=True))
    ids = torch.full((len(rows), longest), tokenizer.pad_token_id)
    labels = torch.full((len(rows), longest), _UNASKED)
    mask = torch.zeros((len(rows), longest), dtype=torch.long)
    for row, (asked, said) in enumerate(zip(questions, answers, strict=True)):
        end = len(asked) + len(said)
        ids[row, :end] = torch.tensor(asked + said)
        labels[row, len(asked) : end] = torch.tensor(said)
        mask[row, :end] = 1
    found = {"input_ids": ids, "labels": labels, "attention_mask": mask}
    if sees:
        side = int(_PATCHES**0.5)
        found["mm_token_type_ids"] = (ids == model.config.image_token_id).long()
        found["pixel_values"] = torch.zeros(len(rows) * _PATCHES, _PATCH_VALUES)
        found["image_grid_thw"] = torch.tensor([[1, side, side]] * len(rows))
    return found
