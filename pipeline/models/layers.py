"""Small parts of the networks: pose encoding, pooling, projections and heads."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

POSE_CONV_WIDTH = 96


class PoseConv(nn.Module):
    """Two convolutions that turn a drawn skeleton into a picture for the image encoder; outputs are not negative."""

    def __init__(self) -> None:
        super().__init__()
        self.expand = _convolution(3, POSE_CONV_WIDTH)
        self.reduce = _convolution(POSE_CONV_WIDTH, 3)

    def forward(self, poses: Tensor) -> Tensor:
        """(B, 3, S, S) -> (B, 3, S, S)."""
        picture: Tensor = self.reduce(self.expand(poses))
        return picture


def _convolution(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())


class PoseBlock(nn.Module):
    """Adds to image tokens what the pose's tokens ask of them: f_I + CA(q = f_P, k = v = f_I) (CMP, equation 2).

    One layer norm serves both streams.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attn = _PoseAttention(width, heads)

    def forward(self, image_tokens: Tensor, pose_tokens: Tensor) -> Tensor:
        """(B, N, W), (B, N, W) -> (B, N, W)."""
        fused: Tensor = image_tokens + self.attn(self.norm(pose_tokens), self.norm(image_tokens))
        return fused


class _PoseAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(width, width)
        self.v = nn.Linear(width, width)
        self.proj = nn.Linear(width, width)

    def forward(self, queries: Tensor, tokens: Tensor) -> Tensor:
        q, k, v = (
            projected.unflatten(2, (self.heads, -1)).transpose(1, 2)
            for projected in (self.q(queries), self.k(tokens), self.v(tokens))
        )
        attended: Tensor = self.proj(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return attended


class Projection(nn.Module):
    """Batch norm, dropout, linear: from pooled tokens to a feature, not yet of length 1."""

    def __init__(self, inputs: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(inputs)
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(inputs, outputs)
        nn.init.normal_(self.linear.weight, std=1e-5)
        nn.init.zeros_(self.linear.bias)

    def forward(self, pooled: Tensor) -> Tensor:
        """(B, inputs) -> (B, outputs)."""
        feature: Tensor = self.linear(self.dropout(self.norm(pooled)))
        return feature


class MatchingHead(nn.Module):
    """Two logits from a pair's [CLS]: no match, match."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, 2 * width)
        self.norm = nn.LayerNorm(2 * width)
        self.output = nn.Linear(2 * width, 2)

    def forward(self, hidden: Tensor) -> Tensor:
        """(P, D) -> (P, 2)."""
        logits: Tensor = self.output(functional.gelu(self.norm(self.dense(hidden))))
        return logits


class LanguageHead(nn.Module):
    """BERT's head over the vocabulary; its decoder is the word embedding, or a matrix of its own (`tied` false)."""

    def __init__(self, width: int, vocab_size: int, tied: bool) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.bias = nn.Parameter(torch.zeros(vocab_size))
        nn.init.normal_(self.dense.weight, std=0.02)
        nn.init.zeros_(self.dense.bias)
        self.decoder = None if tied else nn.Parameter(torch.empty(vocab_size, width).normal_(std=0.02))

    def forward(self, hidden: Tensor, word_embeddings: Tensor) -> Tensor:
        """(P, D), (V, D) -> (P, V)."""
        weight = word_embeddings if self.decoder is None else self.decoder
        return functional.linear(self.norm(functional.gelu(self.dense(hidden))), weight, self.bias)


def three_bins(tokens: Tensor) -> Tensor:
    """(B, L, D) -> (B, 3 D): means over three overlapping thirds, each from floor(i L / 3) to ceil((i + 1) L / 3)."""
    return functional.adaptive_avg_pool1d(tokens.transpose(1, 2), 3).transpose(1, 2).flatten(1)


def masked_mean(tokens: Tensor, mask: Tensor) -> Tensor:
    """(B, L, D), (B, L) -> (B, D): the mean over the tokens that the mask keeps; 0 where it keeps none."""
    weights = mask[:, :, None].to(tokens.dtype)
    return (tokens * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)


def unit(rows: Tensor) -> Tensor:
    """(..., D) in float32 of length 1."""
    return functional.normalize(rows.float(), dim=-1)
