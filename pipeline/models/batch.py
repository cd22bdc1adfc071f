"""What a network is given in one training step, as tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from pipeline.models.config import Factor

_T = TypeVar("_T", bound="Moving")


class Moving:
    """Tensors that go to a device together."""

    def to(self: _T, device: torch.device | str, non_blocking: bool = False) -> _T:
        """A copy with every tensor on the device."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]
        return replace(self, **{name: _moved(value, device, non_blocking) for name, value in values.items()})  # type: ignore[type-var]


def _moved(value: Any, device: torch.device | str, non_blocking: bool) -> Any:
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=non_blocking)
    if isinstance(value, Moving):
        return value.to(device, non_blocking)
    if isinstance(value, Mapping):
        return {name: _moved(each, device, non_blocking) for name, each in value.items()}
    return value


@dataclass(frozen=True)
class Tokens(Moving):
    """Texts as padded ids. ids, mask: int64 (B, L); the mask is 1 for real tokens, [CLS] and [SEP] among them."""

    ids: Tensor
    mask: Tensor


@dataclass(frozen=True)
class MaskedTokens(Moving):
    """Captions with hidden tokens. ids: int64 (B, L). positions, labels: int64 (B, M) of `masking.MaskedCaption`."""

    ids: Tensor
    positions: Tensor
    labels: Tensor


@dataclass(frozen=True)
class HardPairs(Moving):
    """The counterparts of the batch's pairs: same source, opposite behaviour (CMP, IHNM).

    rows: int64 (H,), which pair of the batch each belongs to; pairs without a counterpart are absent. images, poses:
    float (H, 3, S, S). captions: H texts. identities: int64 (H,), numbered as those of the batch.
    """

    rows: Tensor
    images: Tensor
    captions: Tokens
    poses: Tensor | None = None
    identities: Tensor | None = None


@dataclass(frozen=True)
class Batch(Moving):
    """B pairs of image and caption.

    images, poses: float (B, 3, S, S), normalised. captions: B texts. identities: int64 (B,), equal for pairs that are
    positives of each other; the same numbers in every process. augmented: the EDA captions. masked: the captions with
    hidden tokens, with the mask of `captions`. parts: the caption parts of SeDA, B texts each. actions: int64 (B,),
    which phrase of LightAIR's codebook a pair's label is, -1 where none.
    """

    images: Tensor
    captions: Tokens
    identities: Tensor
    poses: Tensor | None = None
    augmented: Tokens | None = None
    masked: MaskedTokens | None = None
    hard: HardPairs | None = None
    parts: Mapping[Factor, Tokens] | None = None
    actions: Tensor | None = None
