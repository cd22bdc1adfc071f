"""CMP: cross-modal pose-aware matching (PAB, section 4)."""

from __future__ import annotations

from torch import Tensor

from pipeline.models.batch import Batch
from pipeline.models.config import CmpOptions
from pipeline.models.gather import Gather
from pipeline.models.layers import Projection, unit
from pipeline.models.losses import NegativeChooser, similarities
from pipeline.models.network import Losses, PairNetwork, pooled, pooled_width


class CMP(PairNetwork):
    """Features pooled from tokens; contrastive, matching and masked language losses; hard negatives by identity.

    The baseline and M1, M2 of the paper are this network with `pose` or `ihnm` off.
    """

    options_type = CmpOptions
    options: CmpOptions

    def __init__(self, options: CmpOptions) -> None:
        super().__init__(options)
        size, pool = options.size, options.pool
        self.image_projection = Projection(
            pooled_width(size.image.width, pool, False), size.feature_width, options.projection_dropout
        )
        self.text_projection = Projection(
            pooled_width(size.text.width, pool, True), size.feature_width, options.projection_dropout
        )

    def image_feature(self, tokens: Tensor) -> Tensor:
        """(B, 1 + patches, W) -> (B, F), not yet of length 1."""
        feature: Tensor = self.image_projection(pooled(tokens, None, self.options.pool, False))
        return feature

    def text_feature(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """(B, L, D), (B, L) -> (B, F), not yet of length 1."""
        feature: Tensor = self.text_projection(pooled(hidden, mask, self.options.pool, True))
        return feature

    @property
    def padding_counts(self) -> bool:
        """Whether a text's feature depends on its padding."""
        return self.options.pool == "p3"

    def forward(self, batch: Batch, gather: Gather, choose: NegativeChooser) -> Losses:
        """L = L_itc + L_itm + L_mlm of one step, augmented captions weighted by `eda_weight`."""
        tokens = self.step_images(batch)
        texts = self.step_texts(batch)
        identities = gather(batch.identities)
        image = unit(self.image_feature(tokens[0]))
        all_images = gather(image)
        contrast: dict[str, tuple[float, Tensor]] = {}
        terms = []
        for group, suffix, weight in (("caption", "", 1.0), ("eda", "_eda", self.options.eda_weight)):
            if group not in texts:
                continue
            text = unit(self.text_feature(texts.hidden_of(group), texts.mask_of(group)))
            contrast[f"itc{suffix}"] = (weight, self.contrast(all_images, gather(text), identities))
            terms.append(
                self.global_term(f"itm{suffix}", weight, texts, group, similarities(image, text), batch, choose)
            )
        hard = self.hard_term(texts, batch)
        images = self.keys_values_of(tokens)
        matching = self.matching_losses([*terms, *([hard] if hard else [])], texts, images)
        return self.sum_up(contrast, matching, self.language_loss(batch, texts, images))
