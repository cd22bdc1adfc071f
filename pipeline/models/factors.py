"""Semantic token projection: the factor tokens of an image or a text (SeDA, STP)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.models.config import StpOptions

ATTENTION_HEADS = 8


class FactorTokens(nn.Module):
    """Three queries out of the first token gather the other tokens, one a factor: z_k = W_m [q_k; sum_i a_i x_i].

    The weights a_i are sigmoid(x_i . q_k), so that they do not compete; `weighting` has the paper's two other forms.
    All factors share W_m.
    """

    def __init__(self, width: int, factor_width: int, options: StpOptions) -> None:
        super().__init__()
        self.options = options
        self.queries = nn.Linear(width, 3 * width)
        self.attention = _FactorAttention(width) if options.weighting == "cross_attention" else None
        self.merge = nn.Linear(2 * width, factor_width)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, 1 + L, width) -> (B, 3, factor_width): appearance, action, background.

        mask: (B, 1 + L), which tokens may be gathered; all without one.
        """
        queries, others = self._queries(tokens), tokens[:, 1:]
        visible = self._visible(mask)
        if self.attention is not None:
            gathered = self.attention(queries, others, visible)
        else:
            gathered = self.weights(tokens, mask) @ others
        factors: Tensor = self.merge(torch.cat([queries, gathered], dim=2))
        return factors

    def weights(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, 3, L): how much of each token after the first a factor gathers; not for cross-attention."""
        if self.attention is not None:
            raise ValueError("cross-attention has weights for each head, not one for each token")
        scores = self._queries(tokens) @ tokens[:, 1:].transpose(1, 2)
        visible = self._visible(mask)
        if visible is not None:
            scores = scores.masked_fill(~visible[:, None], torch.finfo(scores.dtype).min)
        return scores.sigmoid() if self.options.weighting == "sigmoid" else scores.softmax(dim=2)

    def _queries(self, tokens: Tensor) -> Tensor:
        queries: Tensor = self.queries(tokens[:, 0]).unflatten(1, (3, -1))
        return queries

    def _visible(self, mask: Tensor | None) -> Tensor | None:
        return mask[:, 1:].bool() if mask is not None and self.options.mask_pad else None


class _FactorAttention(nn.Module):
    """Multi-head attention of the factor queries to the tokens, without norm or residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.wq = nn.Linear(width, width, bias=False)
        self.wkv = nn.Linear(width, 2 * width, bias=False)
        self.proj = nn.Linear(width, width)

    def forward(self, queries: Tensor, tokens: Tensor, visible: Tensor | None) -> Tensor:
        keys, values = self.wkv(tokens).chunk(2, dim=2)
        q, k, v = (
            each.unflatten(2, (ATTENTION_HEADS, -1)).transpose(1, 2) for each in (self.wq(queries), keys, values)
        )
        mask = None if visible is None else visible[:, None, None]
        attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        gathered: Tensor = self.proj(attended.transpose(1, 2).flatten(2))
        return gathered
