"""The image side of X2-VLM: BEiT-v2, whose patch tokens stand behind their mean (LightAIR and GradCO)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BeitConfig, BeitModel

from pipeline.models.config import BeitSize

LAYER_NORM_EPS = 1e-6


class BeitEncoder(nn.Module):
    """BEiT-v2; the learnt [CLS] is read inside and dropped, the mean of the normed patch tokens takes its place."""

    def __init__(self, size: BeitSize) -> None:
        super().__init__()
        config = BeitConfig(
            image_size=size.image_size,
            patch_size=size.patch_size,
            hidden_size=size.width,
            num_hidden_layers=size.layers,
            num_attention_heads=size.heads,
            intermediate_size=size.ffn_width,
            layer_scale_init_value=size.layer_scale,
            drop_path_rate=size.drop_path,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            layer_norm_eps=LAYER_NORM_EPS,
            use_mask_token=False,
            use_absolute_position_embeddings=False,
            use_relative_position_bias=True,
            use_shared_relative_position_bias=False,
            use_mean_pooling=True,
        )
        self.size = size
        self.beit = BeitModel(config, add_pooling_layer=False)
        self.norm = nn.LayerNorm(size.width, eps=LAYER_NORM_EPS)

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, S, S) -> (B, 1 + patches, W)."""
        patches = self.norm(self.beit(images).last_hidden_state[:, 1:])
        return torch.cat([patches.mean(dim=1, keepdim=True), patches], dim=1)

    def gradient_checkpointing(self, enabled: bool) -> None:
        """Whether activations are computed again in the backward pass instead of being kept."""
        if enabled:
            self.beit.gradient_checkpointing_enable({"use_reentrant": False})
        else:
            self.beit.gradient_checkpointing_disable()

    @property
    def blocks(self) -> Iterable[Any]:
        """The transformer blocks, first to last."""
        return self.beit.layers
