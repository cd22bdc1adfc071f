"""Rows of all processes in one tensor, for losses that compare a pair with every other pair of the step."""

from __future__ import annotations

from typing import Any, Literal, Protocol

import torch
import torch.distributed
from torch import Tensor


class Gather(Protocol):
    """Puts the rows of all processes under each other, in the order of their ranks."""

    def __call__(self, rows: Tensor) -> Tensor:
        """(B, ...) -> (B * processes, ...)."""


def one_process(rows: Tensor) -> Tensor:
    """The rows themselves: there are no others."""
    return rows


def first_row(gather: Gather, rows: int) -> int:
    """Where this process's rows begin among all that are gathered, every process bringing as many."""
    return torch.distributed.get_rank() * rows if isinstance(gather, ProcessGather) else 0


class ProcessGather:
    """Gathers over `torch.distributed`'s default group; every process must bring as many rows.

    With gradients `summed`, a row's gradient is the sum over all processes, so that training in several processes,
    whose gradients are averaged, equals training in one with the whole batch. With `local` a process keeps only what it
    computed itself, as the published code does: the contrastive gradient is then smaller by the number of processes.
    """

    def __init__(self, gradients: Literal["summed", "local"] = "summed") -> None:
        self.gradients = gradients

    def __call__(self, rows: Tensor) -> Tensor:
        """(B, ...) -> (B * processes, ...)."""
        gathered: Tensor = _AllGather.apply(rows, self.gradients == "summed")  # type: ignore[no-untyped-call]
        return gathered


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, summed: bool) -> Tensor:
        ctx.summed = summed
        ctx.count = len(rows)
        world = torch.distributed.get_world_size()
        parts = [torch.empty_like(rows) for _ in range(world)]
        torch.distributed.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        gradient = gradients[0].contiguous()
        if ctx.summed:
            gradient = gradient.clone()
            torch.distributed.all_reduce(gradient)
        start = torch.distributed.get_rank() * ctx.count
        return gradient[start : start + ctx.count], None
