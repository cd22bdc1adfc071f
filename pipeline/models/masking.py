"""Masked language modelling: which tokens of a caption are hidden and what stands in their place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from pipeline.core.errors import UserError
from pipeline.models.config import MaskingOptions

CLS_ID, SEP_ID, PAD_ID, MASK_ID = 101, 102, 0, 103
"""Special tokens of the bert-base-uncased vocabulary."""
IGNORED_LABEL = -100
"""The label of a position that is no prediction."""


class Draws(Protocol):
    """What masking asks of chance; `random.Random` is one, `NumpyDraws` another."""

    def random(self) -> float:
        """A number in [0, 1)."""

    def randint(self, a: int, b: int) -> int:
        """A whole number from a to b, both included."""

    def shuffle(self, x: list[int]) -> None:
        """The list in random order, in place."""


class NumpyDraws:
    """Draws from a numpy generator."""

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator

    def random(self) -> float:
        """A number in [0, 1)."""
        return float(self._generator.random())

    def randint(self, a: int, b: int) -> int:
        """A whole number from a to b, both included."""
        return int(self._generator.integers(a, b, endpoint=True))

    def shuffle(self, x: list[int]) -> None:
        """The list in random order, in place."""
        x[:] = [x[index] for index in self._generator.permutation(len(x))]


@dataclass(frozen=True)
class MaskedCaption:
    """A caption with hidden tokens.

    ids: int64 (L,), the ids with [MASK] and replacements. positions: int64 (M,), where a token was hidden, filled up
    with 0. labels: int64 (M,), the ids that were there, filled up with `IGNORED_LABEL`.
    """

    ids: np.ndarray
    positions: np.ndarray
    labels: np.ndarray


def continuations(tokens: Sequence[str]) -> np.ndarray:
    """bool (V,): which entries of a vocabulary, in the order of their ids, go on a word ("##ing")."""
    return np.array([token.startswith("##") for token in tokens], dtype=bool)


def masks_per_caption(options: MaskingOptions, length: int) -> int:
    """How many positions the arrays of a caption of at most `length` tokens hold."""
    share = max(1, round(length * options.mask_prob))
    return share if options.max_masks is None else min(options.max_masks, share)


def mask_caption(
    ids: Sequence[int] | np.ndarray,
    real_tokens: int,
    options: MaskingOptions,
    is_continuation: np.ndarray,
    draws: Draws | np.random.Generator,
) -> MaskedCaption:
    """Hides tokens as X-VLM's generator does, which CMP and SeDA use: whole words and short runs of them; of the hidden
    tokens 80 % become [MASK], 10 % a random entry of the vocabulary, 10 % stay.

    ids: (L,) padded, [CLS] first. real_tokens: how many are no padding, [CLS] and [SEP] counted. is_continuation: bool
    (V,) of `continuations`. With `options.mask_pad` every position but the first may be hidden and the share is taken
    of L (the published code); without it only words are, and the share is of the tokens between [CLS] and [SEP].
    """
    if isinstance(draws, np.random.Generator):
        draws = NumpyDraws(draws)
    masked = np.array(ids, dtype=np.int64)
    length = len(masked)
    if length < 2 or int(masked[0]) != CLS_ID:
        raise UserError(
            f"cannot mask {length} ids beginning with {masked[:1].tolist()}: [CLS] ({CLS_ID}) must be first"
        )
    last = length - 1 if options.mask_pad else real_tokens - 2
    counted = length if options.mask_pad else max(real_tokens - 2, 0)
    wanted = max(1, round(counted * options.mask_prob))
    if options.max_masks is not None:
        wanted = min(options.max_masks, wanted)
    positions = _positions(masked, last, wanted, options, is_continuation, draws)
    labels = masked[positions]
    for position in positions:
        if draws.random() < 0.8:
            masked[position] = MASK_ID
        elif draws.random() < 0.5:
            masked[position] = draws.randint(0, len(is_continuation) - 1)
    room = masks_per_caption(options, length)
    missing = room - len(positions)
    return MaskedCaption(
        ids=masked,
        positions=np.array(positions + [0] * missing, dtype=np.int64),
        labels=np.concatenate([labels, np.full(missing, IGNORED_LABEL, dtype=np.int64)]),
    )


def _positions(
    ids: np.ndarray, last: int, wanted: int, options: MaskingOptions, is_continuation: np.ndarray, draws: Draws
) -> list[int]:
    """Positions 1..last to hide, at most `wanted`.

    The order is that of a set of small whole numbers, the same in every process; it decides which draw replaces which.
    """
    candidates = list(range(1, last + 1))
    draws.shuffle(candidates)
    collected: set[int] = set()
    for position in candidates:
        if len(collected) >= wanted:
            break
        if position in collected:
            continue
        end = position + 1
        if options.skipgram_prob > 0 and draws.random() < options.skipgram_prob:
            end = position + draws.randint(2, options.skipgram_size)
        start = position
        if options.whole_word:
            while is_continuation[ids[start]]:
                start -= 1
            while end < len(ids) and is_continuation[ids[end]]:
                end += 1
        for each in range(start, end):
            if not 0 < each <= last:
                break
            collected.add(each)
    positions = list(collected)
    if len(positions) > wanted:
        draws.shuffle(positions)
        positions = positions[:wanted]
    return positions
