"""What each of two processes does for test_processes.py; also run there in one process, to be compared with."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.models.cmp import CMP
from pipeline.models.config import CmpOptions, OptimiserOptions, Recipe
from pipeline.models.network import Losses
from pipeline.training.batches import EpochOrder, Preparer
from pipeline.training.samples import SampleSet
from pipeline.training.state import LOG
from pipeline.training.texts import vocabulary
from pipeline.training.trainer import LoopSettings, Observers, train
from tests.training.tiny_run import network, recipe, sample_set

PROCESSES, BATCH, COUNT, SEED = 2, 4, 24, 3


class StoppedError(Exception):
    """Ends a run in the middle."""


class OnlyContrast(CMP):
    """Learns by the contrastive loss alone, without dropout and without batch statistics.

    The matching loss draws its negatives in each process, and batch norm counts in each: neither is the same in one
    process and in two.
    """

    def train(self, mode: bool = True) -> OnlyContrast:
        super().train(False)
        return self

    @staticmethod
    def sum_up(
        contrast: Mapping[str, tuple[float, Tensor]], matching: Mapping[str, tuple[float, Tensor]], language: Tensor
    ) -> Losses:
        losses = CMP.sum_up(contrast, matching, language)
        return Losses(losses.itc, losses.itm * 0, losses.mlm * 0, losses.terms)


def contrast(folder: Path, batch_size: int) -> dict[str, Tensor]:
    """The weights after three steps over batches of 8 samples in all, and the log in the folder."""
    of = recipe_of(batch_size)
    torch.manual_seed(0)
    assert isinstance(of.model, CmpOptions)
    net = OnlyContrast(of.model)
    _train(net, of, sample_set(COUNT), folder, LoopSettings(seed=SEED), Observers())
    return net.state_dict()


def accumulated(folder: Path, stop_at: int | None = None, start: int = 0) -> dict[str, Any]:
    """A run whose second batch, the last of an optimiser step, the second process cannot do.

    stop_at: the step before whose end it is stopped (StoppedError). start: seed of the weights it starts with.
    """
    of = recipe_of(BATCH)
    net = network(of, start)
    told: list[str] = []

    def step(done: int, *_: Any) -> None:
        if done == stop_at:
            raise StoppedError

    settings = LoopSettings(seed=SEED, accumulate=2, save_every=1)
    observers = Observers(step=step, unreadable=lambda name, _: told.append(name))
    _train(net, of, sample_set(COUNT, unreadable()), folder, settings, observers)
    return {"weights": net.state_dict(), "told": sorted(told)}


def resumed(folder: Path) -> dict[str, Tensor]:
    """The same, stopped after its first step; every weight that it goes on with must come from the state."""
    from accelerate.state import AcceleratorState

    with contextlib.suppress(StoppedError):
        accumulated(folder, stop_at=2)
    AcceleratorState._reset_state(True)
    weights: dict[str, Tensor] = accumulated(folder, start=1)["weights"]
    return weights


def unreadable() -> tuple[int, ...]:
    """All but one of the samples in the second process's second batch."""
    order = EpochOrder(COUNT, BATCH, SEED, PROCESSES, rank=1)
    return tuple(number for _, number in list(order)[1][:-1])


def recipe_of(batch_size: int) -> Recipe:
    """One epoch."""
    # With eps far above the gradients' noise a step is proportional to the gradient, so that weights tell gradients.
    return recipe(epochs=1, batch_size=batch_size, ihnm="off").model_copy(
        update={"optimiser": OptimiserOptions(lr=1e-2, eps=1.0, warmup=0)}
    )


def _train(net: CMP, of: Recipe, data: SampleSet, folder: Path, settings: LoopSettings, observers: Observers) -> None:
    preparer = Preparer(data, of.model, of.augmentation, vocabulary(of.model.size.max_tokens), None, frozenset(), 5)
    train(net, of, preparer, folder, settings, lambda: None, lambda _: None, observers)


def main(folder: Path) -> None:
    """All of it, in this process's share; what came out goes into a file of its own."""
    from accelerate.state import AcceleratorState

    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    weights = contrast(folder / "contrast", BATCH)
    AcceleratorState._reset_state(True)
    found = accumulated(folder / "accumulated")
    AcceleratorState._reset_state(True)
    again = resumed(folder / "resumed")
    torch.save({"contrast": weights, "resumed": again, **found}, folder / f"rank{rank}.pt")


def log_of(folder: Path) -> list[dict[str, Any]]:
    """The log's lines."""
    return [json.loads(line) for line in (folder / LOG).read_text("utf-8").splitlines()]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
