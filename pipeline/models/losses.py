"""The losses that the networks share, and how negatives are drawn for them.

B pairs in this process, N in all of them, D feature width.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.core.errors import UserError
from pipeline.models.masking import IGNORED_LABEL

MATCH, NO_MATCH = 1, 0
"""Classes of the matching head."""


class NegativeChooser(Protocol):
    """Draws one column for each row."""

    def __call__(self, weights: Tensor) -> Tensor:
        """int64 (B,): a column of each row of weights (B, B), which are not negative and have a positive one a row."""


class DrawnNegatives:
    """Draws columns by their weights, from its own generator (one call draws all rows, in order)."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def __call__(self, weights: Tensor) -> Tensor:
        """int64 (B,): the drawn columns, on the device of the weights."""
        drawn = torch.multinomial(weights.to(self.generator.device), 1, generator=self.generator)
        return drawn.squeeze(1).to(weights.device)


class HardestNegatives:
    """Takes the largest weight of each row, the first of equals."""

    def __call__(self, weights: Tensor) -> Tensor:
        """int64 (B,): the columns of the largest weights."""
        return weights.argmax(dim=1)


def identity_targets(identities: Tensor, label_smooth: float) -> Tensor:
    """float (N, N): each row spread evenly over the pairs of its identity, then smoothed over all N."""
    same = (identities[:, None] == identities[None, :]).float()
    targets = same / same.sum(dim=1, keepdim=True)
    return (1 - label_smooth) * targets + label_smooth / len(identities)


def contrastive_loss(
    images: Tensor, texts: Tensor, identities: Tensor, temperature: Tensor, label_smooth: float
) -> Tensor:
    """Mean of image-to-text and text-to-image cross-entropy over all pairs of the step (CMP, L_itc).

    images, texts: (N, D), rows of length 1. identities: int64 (N,).
    """
    return similarity_loss(similarities(images, texts), identities, temperature, label_smooth)


def similarity_loss(similarity: Tensor, identities: Tensor, temperature: Tensor, label_smooth: float) -> Tensor:
    """`contrastive_loss` over similarities (N, N), images down and texts across, however they were made."""
    logits = similarity / temperature
    targets = identity_targets(identities, label_smooth)
    return (_soft_cross_entropy(logits, targets) + _soft_cross_entropy(logits.t(), targets)) / 2


def anchor_loss(factors: Tensor, anchors: Tensor, tau: float) -> Tensor:
    """InfoNCE from each anchor over the factors of all pairs, one direction (SeDA, L_FD).

    factors, anchors: (N, D), rows of length 1; row i of one belongs to row i of the other.
    """
    logits = similarities(anchors, factors) / tau
    return functional.cross_entropy(logits, torch.arange(len(logits), device=logits.device))


def matching_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of the matching head over P pairs (CMP, L_itm); 0 with a gradient of 0 when there is no pair.

    logits: (P, 2). labels: int64 (P,).
    """
    return functional.cross_entropy(logits, labels, reduction="sum") / max(len(labels), 1)


def masked_language_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy over the hidden tokens (CMP, L_mlm); 0 with a gradient of 0 when none is hidden.

    logits: (P, V). labels: int64 (P,), `IGNORED_LABEL` where nothing is predicted.
    """
    total = functional.cross_entropy(logits, labels, ignore_index=IGNORED_LABEL, reduction="sum")
    return total / (labels != IGNORED_LABEL).sum().clamp(min=1)


@torch.no_grad()
def draw_negatives(
    similarity: Tensor, identities: Tensor, temperature: Tensor, choose: NegativeChooser
) -> tuple[Tensor, Tensor]:
    """For each text an image and for each image a text of another identity, the more similar the likelier (CMP, ITM).

    similarity: (B, B), images down and texts across. identities: int64 (B,). Images are drawn first. Returns the rows
    of the images (B,) and of the texts (B,). UserError when the batch has one identity only or the similarities are not
    finite.
    """
    other = identities[:, None] != identities[None, :]
    if not bool(other.any(dim=1).all()):
        raise UserError(
            f"a batch of {len(identities)} pairs has one identity only, so there are no negatives to match against: "
            "use a larger batch or more sources"
        )
    similarity = similarity / temperature
    if not bool(torch.isfinite(similarity).all()):
        raise UserError("features are not finite, training has diverged: lower the learning rate or resume earlier")
    of_texts = (similarity.t().softmax(dim=1) + 1e-5).masked_fill(~other, 0)
    of_images = (similarity.softmax(dim=1) + 1e-5).masked_fill(~other, 0)
    return choose(of_texts), choose(of_images)


def similarities(rows: Tensor, columns: Tensor) -> Tensor:
    """(N, D), (M, D) -> inner products (N, M) in float32, under autocast too: divided by a small temperature, rounding
    would show."""
    with torch.autocast(rows.device.type, enabled=False):
        return rows.float() @ columns.float().t()


def _soft_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return -(targets * logits.log_softmax(dim=1)).sum(dim=1).mean()
