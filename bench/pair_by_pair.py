"""CMP and SeDA computed the way of the published code: every pair of text and image on its own.

The same weights and the same losses. What the published code does for each pair is done for each pair: the image's keys
and values in every layer, the first self-attention, and all positions of the last layer, of which only some are read;
the image encoder runs once for each group of pictures. It stands beside the project's networks in measurements.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from pipeline.models.batch import Batch
from pipeline.models.cmp import CMP
from pipeline.models.encoders import CrossEncoder, KeysValues
from pipeline.models.losses import masked_language_loss, matching_loss
from pipeline.models.network import MatchingTerm, PairNetwork, Texts
from pipeline.models.seda import SeDA


class _OfPairs(KeysValues):
    """Keys and values that already have a row for each pair."""

    def of(self, rows: Tensor) -> KeysValues:
        """All of them."""
        return self


def crossed_pairs(
    encoder: CrossEncoder, hidden: Tensor, mask: Tensor, image_tokens: Tensor, text_rows: Tensor, image_rows: Tensor
) -> Tensor:
    """(P, L, D): every position of every pair, through every layer.

    hidden, mask: (T, L, D) and (T, L). image_tokens: (B, N, W). text_rows, image_rows: int64 (P,).
    """
    crossed, tokens = hidden.index_select(0, text_rows), image_tokens.index_select(0, image_rows)
    visible = mask.bool()[:, None, None, :].index_select(0, text_rows)
    layers: Iterable[Any] = encoder.layer
    for layer in layers:
        keys_values = _OfPairs(*layer.crossattention.self.keys_values(tokens))
        crossed = layer(crossed, visible, keys_values, image_rows, None, None)
    return crossed


class _PairByPair(PairNetwork):
    def fused_images(self, images: Sequence[Tensor], poses: Sequence[Tensor | None]) -> list[Tensor]:
        """Each group of images and each of pose maps in a pass of its own."""
        return [
            super(_PairByPair, self).fused_images([group], [maps])[0] for group, maps in zip(images, poses, strict=True)
        ]

    def keys_values(self, image_tokens: Tensor) -> Any:
        """The tokens as they are: each pair projects them again."""
        return image_tokens

    def match(
        self,
        hidden: Tensor,
        mask: Tensor,
        images: Any,
        text_rows: Tensor,
        image_rows: Tensor,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Logits (P, 2) of pairs; weights: of networks with streams, which these are not."""
        crossed = crossed_pairs(self.cross_encoder, hidden, mask, images, text_rows, image_rows)
        logits: Tensor = self.matching_head(crossed[:, 0])
        return logits

    def matching_losses(
        self, terms: Iterable[MatchingTerm], texts: Texts, images: Any
    ) -> dict[str, tuple[float, Tensor]]:
        """Weight and mean loss of each term, a pass of the cross encoder for each."""
        return {
            each.name: (
                each.weight,
                matching_loss(
                    self.match(texts.hidden, texts.mask, images, each.text_rows, each.image_rows), each.labels
                ),
            )
            for each in terms
        }

    def language_loss(self, batch: Batch, texts: Texts, images: Any) -> Tensor:
        """Loss of the hidden tokens, read out of all positions."""
        assert batch.masked is not None
        own = torch.arange(len(batch.images))
        hidden, mask = texts.hidden_of("masked"), texts.mask_of("masked")
        crossed = crossed_pairs(self.cross_encoder, hidden, mask, images, own, own)
        read = crossed.gather(1, batch.masked.positions[:, :, None].expand(-1, -1, crossed.shape[2]))
        logits = self.language_head(read.flatten(0, 1), self.text_encoder.word_embeddings)
        return masked_language_loss(logits, batch.masked.labels.flatten())


class _PairByPairCMP(_PairByPair, CMP):
    pass


class _PairByPairSeDA(_PairByPair, SeDA):
    pass


_WAYS: dict[type[PairNetwork], type[PairNetwork]] = {CMP: _PairByPairCMP, SeDA: _PairByPairSeDA}


def pair_by_pair(network: PairNetwork) -> PairNetwork:
    """The network, with its own weights and not a copy of them, computing each pair by itself."""
    twin = copy.copy(network)
    twin.__class__ = _WAYS[type(network)]
    return twin
