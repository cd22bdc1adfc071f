"""Conflict offload learning: a vector for each pair that takes up the gradients which pull a text apart (GradCO, COL).

T texts, I images, S streams, F feature width.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from pipeline.models.config import OffloadOptions
from pipeline.models.layers import unit


class Scores(NamedTuple):
    """similarity: (T, I, S), cosines. direction: (T,), how alike each text's anchors are; their mean is L_dir."""

    similarity: Tensor
    direction: Tensor


class OffloadAnchors(nn.Module):
    """Anchors of pairs, and similarities with them.

    The anchor of text t and image v in a stream is an MLP of [t; v; t v; |t - v|]. Its last layer starts at 0, so that
    training starts at the plain similarity. Anchors are made for a few texts at a time and made again in the backward
    pass: memory grows with that number times the images, never with texts times images. Everything is float32.
    """

    def __init__(self, streams: int, width: int, options: OffloadOptions) -> None:
        super().__init__()
        self.options = options
        self.streams = nn.ModuleList(_Anchor(width) for _ in range(streams))
        self.scale = nn.Parameter(torch.ones(streams)) if options.form == "add_scaled" else None

    def forward(self, texts: Tensor, images: Tensor, stopped: Tensor | None = None) -> Tensor:
        """(T, S, F), (I, S, F) -> (T, I, S, F), all at once.

        stopped: bool (T, I), pairs whose anchors give no gradient to the text.
        """
        with torch.autocast(texts.device.type, enabled=False):
            t, v = (unit(each) if self.options.norm_inputs else each.float() for each in (texts, images))
            streams: Any = self.streams
            parts = [anchor(t[:, s], v[:, s], stopped) for s, anchor in enumerate(streams)]
            return torch.stack(parts, dim=2)

    def scores(self, texts: Tensor, images: Tensor, stopped: Tensor | None = None) -> Scores:
        """Of all pairs of texts (T, S, F) and images (I, S, F); stopped: as for the anchors."""
        again = torch.is_grad_enabled() and len(texts) > self.options.chunk
        found = []
        for start in range(0, len(texts), self.options.chunk):
            own = slice(start, start + self.options.chunk)
            arguments = (texts[own], images, None if stopped is None else stopped[own])
            if again:
                found.append(checkpoint(self._chunk, *arguments, use_reentrant=False, preserve_rng_state=False))
            else:
                found.append(self._chunk(*arguments))
        similarities, directions = zip(*found, strict=True)
        return Scores(torch.cat(similarities), torch.cat(directions))

    def _chunk(self, texts: Tensor, images: Tensor, stopped: Tensor | None) -> tuple[Tensor, Tensor]:
        """(C, I, S) similarities and (C,), how alike each text's anchors are."""
        anchors = self(texts, images, stopped)
        with torch.autocast(texts.device.type, enabled=False):
            t = _stopped(texts.float()[:, None], texts.float().detach()[:, None], stopped)
            if self.options.form == "add_image":
                moved, other = images.float() + anchors, unit(t)
            else:
                moved, other = t + (anchors if self.scale is None else anchors * self.scale[:, None]), unit(images)
            lengths = torch.linalg.vector_norm(moved, dim=3).clamp_min(1e-12)
            similarity = torch.einsum("cisf,cisf->cis", moved, other.expand_as(moved)) / lengths
            return similarity, self._direction(anchors)

    def _direction(self, anchors: Tensor) -> Tensor:
        """(C, I, S, F) -> (C,): how alike the anchors of a text are, mean over its pairs of images and the streams."""
        count = anchors.shape[1]
        if self.options.gamma == 0 or count < 2:
            return anchors.new_zeros(len(anchors))
        directions = unit(anchors).transpose(1, 2)
        if self.options.dir_form == "raw":
            total = directions.sum(dim=2).square().sum(dim=2) - directions.square().sum(dim=(2, 3))
        else:
            cosines = directions @ directions.transpose(2, 3)
            counted = cosines.relu() if self.options.dir_form == "hinge" else cosines.square()
            total = counted.sum(dim=(2, 3)) - counted.diagonal(dim1=2, dim2=3).sum(dim=2)
        return total.mean(dim=1) / (count * (count - 1))


class _Anchor(nn.Module):
    """The MLP of one stream."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(4 * width, width)
        self.last = nn.Linear(width, width)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def forward(self, texts: Tensor, images: Tensor, stopped: Tensor | None) -> Tensor:
        """(C, F), (I, F) -> (C, I, F). What depends on the text or on the image alone is computed once for each."""
        of_text, of_image, of_product, of_difference = self.first.weight.chunk(4, dim=1)
        held = texts.detach()
        t = _stopped(texts[:, None], held[:, None], stopped)
        alone = functional.linear(texts, of_text, self.first.bias)[:, None]
        if stopped is not None:
            alone = _stopped(alone, functional.linear(held, of_text, self.first.bias)[:, None], stopped)
        both = functional.linear(t * images, of_product) + functional.linear((t - images).abs(), of_difference)
        hidden = functional.gelu(alone + functional.linear(images, of_image) + both)
        anchors: Tensor = self.last(hidden)
        return anchors


def _stopped(values: Tensor, held: Tensor, stopped: Tensor | None) -> Tensor:
    """The values, (C, 1, ...); with `stopped` (C, I) those of each pair, without a gradient where it says so."""
    if stopped is None:
        return values
    return torch.where(stopped.view(*stopped.shape, *[1] * (values.ndim - 2)), held, values)


def conflicting(texts: Tensor, images: Tensor, pairs: tuple[Tensor, Tensor]) -> Tensor:
    """bool (T, I): the text tells one and the image shows the other behaviour of one person.

    texts, images: int64 (T,), (I,), identities. pairs: int64 (H,) twice, the identities of a pair and of its hard one.
    """
    one, other = pairs
    t, i = texts[:, None, None], images[None, :, None]
    return (((t == one) & (i == other)) | ((t == other) & (i == one))).any(dim=2)
