"""SeDA: semantic decoupling and alignment of appearance, action and background, on top of CMP."""

from __future__ import annotations

import torch
from torch import Tensor

from pipeline.core.errors import UserError
from pipeline.models.batch import Batch, Tokens
from pipeline.models.config import FACTORS, Factor, SedaOptions
from pipeline.models.factors import FactorTokens
from pipeline.models.gather import Gather
from pipeline.models.layers import Projection, unit
from pipeline.models.losses import NegativeChooser, anchor_loss, similarities
from pipeline.models.network import Losses, MatchingTerm, PairNetwork, Texts

DRAWN_ORDER: tuple[Factor, ...] = ("action", "appearance", "background")
"""The order in which negatives are drawn for the caption parts, that of the published code."""


class SeDA(PairNetwork):
    """Features made of factor tokens, each tied to the part of the caption it should hold.

    Caption parts are needed in training only.
    """

    options_type = SedaOptions
    options: SedaOptions

    def __init__(self, options: SedaOptions) -> None:
        super().__init__(options)
        size, count = options.size, len(options.factors)
        width, text_width = size.image.width, size.text.width
        self.image_factors = FactorTokens(width, width, options.stp)
        self.text_factors = FactorTokens(text_width, width, options.stp)
        self.image_projection = Projection(count * width, size.feature_width, options.projection_dropout)
        self.text_projection = Projection(text_width + count * width, size.feature_width, options.projection_dropout)
        self._kept = [FACTORS.index(factor) for factor in options.factors]

    def image_feature(self, tokens: Tensor) -> Tensor:
        """(B, 1 + patches, W) -> (B, F), not yet of length 1."""
        return self._image_feature(self.image_factors(tokens))

    def text_feature(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """(B, L, D), (B, L) -> (B, F), not yet of length 1."""
        feature: Tensor = self.text_projection(self._joined(hidden, self.text_factors(hidden, mask)))
        return feature

    @property
    def padding_counts(self) -> bool:
        """Whether a text's feature depends on its padding."""
        return not self.options.stp.mask_pad

    def _image_feature(self, factors: Tensor) -> Tensor:
        feature: Tensor = self.image_projection(factors[:, self._kept].flatten(1))
        return feature

    def _joined(self, hidden: Tensor, factors: Tensor) -> Tensor:
        return torch.cat([hidden[:, 0], factors[:, self._kept].flatten(1)], dim=1)

    def forward(self, batch: Batch, gather: Gather, choose: NegativeChooser) -> Losses:
        """CMP's losses, and over the caption parts L_FD (in `itc`) and L_ITM-sem (in `itm`)."""
        options = self.options
        tokens = self.step_images(batch)
        parts = self._parts(batch)
        texts = self.step_texts(batch, {factor: parts[factor] for factor in parts})
        identities = gather(batch.identities)

        image_factors = self.image_factors(tokens[0])
        image = unit(self._image_feature(image_factors))
        all_images = gather(image)
        hidden, mask = texts.hidden_of("caption"), texts.mask_of("caption")
        text_factors = self.text_factors(hidden, mask)
        text = unit(self.text_projection(self._joined(hidden, text_factors)))
        contrast = {"itc": (1.0, self.contrast(all_images, gather(text), identities))}
        terms = [self.global_term("itm", 1.0, texts, "caption", similarities(image, text), batch, choose)]

        anchors = self._anchors(texts, parts)
        images_by_factor, texts_by_factor = unit(image_factors), unit(text_factors)
        if options.fd.enabled:
            contrast |= self._factor_losses(images_by_factor, texts_by_factor, anchors, identities, gather)
        if options.itm_sem.enabled:
            terms += self._factor_terms(images_by_factor, texts_by_factor, anchors, texts, batch, choose)
        if "eda" in texts:
            weight = options.eda_weight
            augmented = unit(self.text_feature(texts.hidden_of("eda"), texts.mask_of("eda")))
            contrast["itc_eda"] = (weight, self.contrast(all_images, gather(augmented), identities))
            terms.append(
                self.global_term("itm_eda", weight, texts, "eda", similarities(image, augmented), batch, choose)
            )
        hard = self.hard_term(texts, batch)
        images = self.keys_values_of(tokens)
        matching = self.matching_losses([*terms, *([hard] if hard else [])], texts, images)
        return self.sum_up(contrast, matching, self.language_loss(batch, texts, images))

    def _parts(self, batch: Batch) -> dict[Factor, Tokens]:
        """The caption parts that some loss needs."""
        options = self.options
        if not (options.fd.enabled or options.itm_sem.enabled):
            return {}
        missing = [factor for factor in options.factors if factor not in (batch.parts or {})]
        if batch.parts is None or missing:
            raise UserError(
                f"training SeDA needs caption parts, and the data has no {', '.join(missing)}: decompose the captions "
                "first, or switch off fd and itm_sem"
            )
        return {factor: batch.parts[factor] for factor in options.factors}

    def _anchors(self, texts: Texts, parts: dict[Factor, Tokens]) -> dict[Factor, Tensor]:
        """(B, W) of length 1 for each caption part: of its factor tokens the one it stands for."""
        anchors = {}
        for factor in parts:
            hidden = texts.hidden_of(factor)
            factors = self.text_factors(hidden, texts.mask_of(factor))
            anchors[factor] = unit(factors[:, FACTORS.index(factor)])
            if self.options.stp.bn_on_subcaptions and self.training:
                with torch.no_grad():
                    self.text_projection.norm(self._joined(hidden, factors))
        return anchors

    def _factor_losses(
        self,
        images: Tensor,
        texts: Tensor,
        anchors: dict[Factor, Tensor],
        identities: Tensor,
        gather: Gather,
    ) -> dict[str, tuple[float, Tensor]]:
        """Image's and text's factor against the anchor, two losses a factor (SeDA, L_FD)."""
        losses = {}
        for factor, anchor in anchors.items():
            all_anchors = gather(anchor)
            for side, factors in (("img", images), ("txt", texts)):
                rows = gather(factors[:, FACTORS.index(factor)])
                if self.options.fd.form == "clip":
                    loss = self.contrast(rows, all_anchors, identities)
                else:
                    loss = anchor_loss(rows, all_anchors, self.options.fd.tau)
                losses[f"fd_{side}_{factor}"] = (1.0, loss)
        return losses

    def _factor_terms(
        self,
        images: Tensor,
        texts: Tensor,
        anchors: dict[Factor, Tensor],
        all_texts: Texts,
        batch: Batch,
        choose: NegativeChooser,
    ) -> list[MatchingTerm]:
        """Matching of the image with each caption part (SeDA, L_ITM-sem)."""
        terms = []
        for factor in DRAWN_ORDER:
            if factor in anchors:
                index = FACTORS.index(factor)
                by_anchor = self.options.itm_sem.mine == "anchor"
                text = anchors[factor] if by_anchor else texts[:, index]
                similarity = similarities(images[:, index], text)
                terms.append(self.in_batch_term(f"itm_{factor}", 1.0, all_texts, factor, similarity, batch, choose))
        return terms
