"""What the benches of the networks measure with: multiply-adds, seconds of one thread, memory, and targets."""

from __future__ import annotations

import contextlib
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

_T = TypeVar("_T")


@dataclass
class Cost:
    """What a piece of work cost. multiply_adds: of its matrix products and convolutions. seconds: of the processor."""

    multiply_adds: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.multiply_adds + other.multiply_adds, self.seconds + other.seconds)

    def per(self, count: float) -> Cost:
        """A share of it."""
        return Cost(self.multiply_adds / count, self.seconds / count)


@dataclass(frozen=True)
class Target:
    """A figure with a bound. at_most, at_least: one of the two."""

    name: str
    value: float
    at_most: float | None = None
    at_least: float | None = None
    digits: str = ".3f"

    @property
    def met(self) -> bool:
        if self.at_most is not None:
            return self.value <= self.at_most
        return self.at_least is not None and self.value >= self.at_least

    def __str__(self) -> str:
        bound, side = (self.at_most, "at most") if self.at_most is not None else (self.at_least, "at least")
        return f"{self.name}: {self.value:{self.digits}} ({side} {bound:g}: {'met' if self.met else 'MISSED'})"


def measured(work: Callable[[], _T]) -> tuple[_T, Cost]:
    """What the work returns, and its cost.

    Multiply-adds are counted where torch dispatches an operation, backward passes included: matrix products,
    convolutions and fused attention; what is done element by element is not counted. Seconds are those that the
    processor spent on this process, so that other programs on the machine count little.
    """
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False, custom_mapping=_cpu_attention()) as counter:
        start = time.process_time()
        result = work()
        seconds = time.process_time() - start
    return result, Cost(counter.get_total_flops() / 2, seconds)


def _cpu_attention() -> dict[Any, Any]:
    """Formulas of the fused attention of CPUs, which torch's own counter passes over."""
    import torch
    from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

    def forward(query: Any, key: Any, value: Any, *_: Any, out_val: Any = None, **__: Any) -> int:
        return sdpa_flop_count(query, key, value)

    def backward(grad: Any, query: Any, key: Any, value: Any, *_: Any, out_val: Any = None, **__: Any) -> int:
        return sdpa_backward_flop_count(grad, query, key, value)

    aten = torch.ops.aten
    return {
        aten._scaled_dot_product_flash_attention_for_cpu: forward,
        aten._scaled_dot_product_flash_attention_for_cpu_backward: backward,
    }


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Torch computes in one thread inside, and in as many as before afterwards."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def fastest(costs: Sequence[Cost]) -> Cost:
    """Of one piece of work done several times the run that took least: what disturbed the others is not its own."""
    return min(costs, key=lambda each: each.seconds)


def largest_memory() -> int:
    """The most memory this process has held so far, bytes.

    On Linux it is read where a parent's memory does not count.
    """
    status = Path("/proc/self/status")
    if status.is_file():
        for line in status.read_text("ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows under each other; the first column to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            text.rjust(width) if column else text.ljust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def billions(multiply_adds: float) -> str:
    """As the tables print multiply-adds."""
    return f"{multiply_adds / 1e9:,.2f} G"


def judged(targets: Sequence[Target]) -> int:
    """Print targets; the exit code: 1 where one is missed."""
    for each in targets:
        print(each)
    return 0 if all(each.met for each in targets) else 1
