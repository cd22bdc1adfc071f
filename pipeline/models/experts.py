"""Behaviour-aware mixture of experts: one modality's tokens as several streams (GradCO, B-MoE).

B samples, S streams, K sub-experts a stream, N tokens of width W, h hidden width.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.models.config import ExpertOptions
from pipeline.models.encoders import KeysValues


class ExpertStreams(nn.Module):
    """The streams of one modality. Nothing tells a stream its role: they differ by their random start alone."""

    def __init__(self, width: int, options: ExpertOptions) -> None:
        super().__init__()
        self.streams = nn.ModuleList(_Stream(width, options) for _ in options.streams)

    def routing(self, tokens: Tensor) -> Tensor:
        """(B, N, W) -> (B, S, K) in float32: the share of each sub-expert, told from the first token."""
        streams: Any = self.streams
        return torch.stack([stream.routing(tokens[:, 0]) for stream in streams], dim=1)

    def forward(self, tokens: Tensor, routing: Tensor | None = None) -> Tensor:
        """(B, N, W) -> (B, S, N, W); routing: that of the whole sequences where `tokens` are only some of theirs."""
        shares = (self.routing(tokens) if routing is None else routing).unbind(1)
        streams: Any = self.streams
        return torch.stack([stream(tokens, each) for stream, each in zip(streams, shares, strict=True)], dim=1)

    def imbalance(self, tokens: Tensor) -> Tensor:
        """(B, N, W) -> the divergence (nats) of each stream's mean routing from an even one, mean over the streams."""
        mean = self.routing(tokens).mean(dim=0)
        mean = mean / mean.sum(dim=1, keepdim=True)
        return (mean * (mean.clamp_min(1e-12) * mean.shape[1]).log()).sum(dim=1).mean()


class _Stream(nn.Module):
    """LN(X + sum of r_k E_k(X)), E_k being two linear layers with a GELU between, the second of which starts at 0.

    The sub-experts lie side by side in two matrices: the shares scale the hidden units between them.
    """

    def __init__(self, width: int, options: ExpertOptions) -> None:
        super().__init__()
        self.count, self.hidden = options.experts, options.hidden
        self.top1, self.tau = options.routing == "top1", options.tau
        self.router = nn.Linear(width, self.count)
        self.up = nn.Linear(width, self.count * self.hidden)
        self.down = nn.Linear(self.count * self.hidden, width, bias=False)
        self.down_bias = nn.Parameter(torch.zeros(self.count, width))
        self.norm = nn.LayerNorm(width)
        nn.init.zeros_(self.down.weight)

    def routing(self, first: Tensor) -> Tensor:
        shares = (self.router(first).float() / self.tau).softmax(dim=1)
        if self.top1:
            shares = shares * functional.one_hot(shares.argmax(dim=1), self.count)
        return shares

    def forward(self, tokens: Tensor, routing: Tensor) -> Tensor:
        hidden = functional.gelu(self.up(tokens)).unflatten(2, (self.count, self.hidden))
        shared = (hidden * routing[:, None, :, None].to(hidden.dtype)).flatten(2)
        mixture = self.down(shared) + (routing @ self.down_bias.float())[:, None]
        stream: Tensor = self.norm(tokens + mixture)
        return stream


class StreamKeysValues(NamedTuple):
    """Keys and values of all streams of images, and the weights with which each pair reads them.

    keys, values: (B S, heads, N, D / heads), the streams of an image under each other. weights: (P, S), which sum to 1:
    keys and values being linear in the tokens, those of the weighted tokens are the weighted sums of the streams' own.
    """

    keys: Tensor
    values: Tensor
    weights: Tensor

    def of(self, rows: Tensor) -> KeysValues:
        """(P, heads, N, D / heads) each: those of the pairs whose images these are."""
        return KeysValues(weighted_rows(self.keys, self.weights, rows), weighted_rows(self.values, self.weights, rows))


def weighted_rows(stored: Tensor, weights: Tensor, rows: Tensor) -> Tensor:
    """(B S, ...), (P, S), int64 (P,) -> (P, ...): the sum over s of weights[p, s] stored[rows[p] S + s].

    Only the arguments are kept for the backward pass, never the S gathered copies.
    """
    found: Tensor = _WeightedRows.apply(stored, weights, rows)  # type: ignore[no-untyped-call]
    return found


class _WeightedRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, stored: Tensor, weights: Tensor, rows: Tensor) -> Tensor:
        ctx.save_for_backward(stored, weights, rows)
        found = None
        for part, factor, _ in _parts(stored, weights, rows):
            scaled = part.mul_(factor)
            found = scaled if found is None else found.add_(scaled)
        assert found is not None
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        stored, weights, rows = ctx.saved_tensors
        (gradient,) = gradients
        of_stored, of_weights = torch.zeros_like(stored), torch.empty_like(weights)
        for stream, (part, factor, index) in enumerate(_parts(stored, weights, rows)):
            of_weights[:, stream] = part.mul_(gradient).flatten(1).sum(dim=1, dtype=weights.dtype)
            of_stored.index_add_(0, index, gradient * factor)
        return of_stored, of_weights, None


def _parts(stored: Tensor, weights: Tensor, rows: Tensor) -> Any:
    """Of each stream: the pairs' rows (a copy), their weights in a shape to multiply with, and where the rows lie."""
    count = weights.shape[1]
    for stream in range(count):
        index = rows * count + stream
        factor = weights[:, stream].to(stored.dtype).view(-1, *[1] * (stored.ndim - 1))
        yield stored.index_select(0, index), factor, index
