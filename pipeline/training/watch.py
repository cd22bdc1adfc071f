"""What a person sees of a training run while it goes, and what it leaves beside its weights: the epochs' lines,
TensorBoard's file, samples that could not be read, costs and times."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from pipeline.core.store import write_atomically
from pipeline.training.costs import Costs, peak_memory, write_costs
from pipeline.training.samples import SampleSet
from pipeline.training.trainer import Clock, Observers

UNREADABLE = "unreadable.jsonl"
TIMES = "times.json"


class Bar(Protocol):
    """A bar of the command line: called with (steps done, of how many)."""

    def __call__(self, done: int, total: int) -> None: ...

    def close(self) -> None: ...


class Watch:
    """A bar with ETA on a terminal, a line an epoch, and TensorBoard's file.

    shown: whether this process is the one that tells. costs: those of the run so far, which are added to.
    """

    def __init__(self, folder: Path, epochs: int, shown: bool, clock: Clock, costs: Costs, bar: Bar) -> None:
        self._folder, self._epochs, self._shown, self._clock = folder, epochs, shown, clock
        self._costs, self._seconds_before = costs, costs.seconds
        self._bar = bar
        self._board: Any = None
        self._told: set[str] | None = None

    def observers(self) -> Observers | None:
        """Whom the loop tells; None in a process that tells nothing."""
        if not self._shown:
            return None
        return Observers(step=self._step, epoch=self._epoch, unreadable=self._unreadable, saved=self.tell_costs,
                         clock=self._clock)  # fmt: skip

    def close(self) -> None:
        """Close the bar and TensorBoard's file."""
        self._bar.close()
        if self._board is not None:
            self._board.close()

    def tell_costs(self) -> None:
        """Write down what training cost so far; a process that did no step adds nothing."""
        costs = self._costs
        costs.device = costs.device or (torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu")
        if "steps" in self._clock.seconds:
            own = sum(spent for what, spent in self._clock.seconds.items() if what != "analysis")
            costs.seconds = round(self._seconds_before + own, 3)
            costs.peak_memory = max(costs.peak_memory or 0, round(peak_memory() or 0, 1)) or None
            if torch.cuda.is_available():
                allocated = round(torch.cuda.max_memory_allocated() / 2**20, 1)
                costs.peak_gpu_memory = max(costs.peak_gpu_memory or 0, allocated)
            costs.threads = sorted({*costs.threads, torch.get_num_threads()})
        write_costs(self._folder, costs)

    def _step(self, done: int, total: int, losses: Mapping[str, float]) -> None:
        self._bar(done, total)
        if done == 1 or done % 10 == 0:
            board = self._tensorboard(done)
            for name, value in losses.items():
                board.add_scalar(f"loss/{name}", value, done)

    def _epoch(self, line: Mapping[str, Any]) -> None:
        figures = "".join(
            f"  {name.removeprefix('validation_')} {line[name]:.1f}"
            for name in ("validation_R@1", "validation_mAP", "validation_pair accuracy")
            if name in line
        )
        best = "  best so far" if line.get("best") else ""
        print(f"epoch {line['epoch'] + 1:>3} of {self._epochs}  loss {line['loss']:.3f}{figures}{best}", flush=True)
        for name, value in line.items():
            if name.startswith("validation_"):
                board = self._tensorboard(line["step"])
                board.add_scalar(f"validation/{name.removeprefix('validation_')}", value, line["step"])

    def _unreadable(self, name: str, why: str) -> None:
        """A line a sample, however many epochs leave it out and however often the run is stopped."""
        path = self._folder / UNREADABLE
        if self._told is None:
            self._told = set(path.read_text("utf-8").splitlines(keepends=True)) if path.is_file() else set()
        line = json.dumps({"id": name, "why": why}) + "\n"
        if line not in self._told:
            self._told.add(line)
            with path.open("a", encoding="utf-8") as file:
                file.write(line)

    def _tensorboard(self, step: int) -> Any:
        if self._board is None:
            from torch.utils.tensorboard import SummaryWriter

            # What a killed run had told of steps that are now done again is taken back.
            self._board = SummaryWriter(str(self._folder / "tensorboard"), purge_step=step)
        return self._board


def looked_into(
    observers: Observers | None, network: Any, held: SampleSet, words: Any, folder: Path, clock: Clock
) -> Observers | None:
    """The observers; for a network with anchors they also measure a few held-out pairs at the start and after each
    epoch (`analysis/epochs.jsonl`). Training is the same with it and without."""
    if observers is None or getattr(network, "offload", None) is None or not len(held):
        return observers
    from pipeline.training.mechanisms import Snapshots

    snapshots, tell = Snapshots(network, held, words, folder), observers.epoch

    def epoch(line: Mapping[str, Any]) -> None:
        tell(line)
        clock.lap("saving")
        snapshots.take(line["epoch"] + 1)
        clock.lap("analysis")

    snapshots.begin()
    observers.epoch = epoch
    return observers


def tell_times(folder: Path, seconds: Mapping[str, float]) -> None:
    """Where this process's time went, in words and in the run's folder. A run that was resumed counts from there."""
    parts = ", ".join(f"{what} {100 * spent / sum(seconds.values()):.0f} %" for what, spent in seconds.items())
    print(f"\n{sum(seconds.values()):.0f} s: {parts}")
    if "steps" not in seconds:
        return  # a finished run that was only evaluated again keeps the times of its training
    told = {what: round(spent, 3) for what, spent in seconds.items()}
    write_atomically(folder / TIMES, (json.dumps(told, indent=1) + "\n").encode())
