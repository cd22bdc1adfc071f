"""The training loop: epochs of batches over one or more processes, validation, checkpoints, and exact resume.

Every random draw of a step comes from the seed, the step and the process's number, so that a run stopped anywhere and
resumed ends with the weights and the log of one that was never stopped (same device, same number of processes).
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from pipeline.core.errors import UserError
from pipeline.core.seeds import seed_of
from pipeline.models.batch import Batch
from pipeline.models.build import AnyNetwork
from pipeline.models.config import Recipe
from pipeline.models.gather import Gather, ProcessGather, one_process
from pipeline.models.losses import DrawnNegatives
from pipeline.models.network import Losses
from pipeline.models.optimiser import adamw, lr_factor
from pipeline.training.batches import Collated, EpochOrder, Preparing, Unreadable, collated, loader_of
from pipeline.training.evaluate import Evaluation
from pipeline.training.state import (
    STATE,
    TrainingState,
    load_state,
    optimiser_tensors,
    recovered,
    restore_optimiser,
    save_state,
    write_log,
)

LOSSES = ("itc", "itm", "mlm")


@dataclass(frozen=True)
class LoopSettings:
    """How the loop runs; what is trained is the recipe's business.

    accumulate: batches an optimiser step. precision: "no" or "bf16". save_every: optimiser steps between two saved
    states inside an epoch (0: only at its end). workers: processes that decode pictures.
    """

    seed: int = 42
    accumulate: int = 1
    precision: str = "no"
    compile: bool = False
    gradient_checkpointing: bool = False
    save_every: int = 0
    workers: int = 0


class Clock:
    """Where the time of this process goes, seconds by what was done; not in the log, which is the same every time."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = time.perf_counter()

    def lap(self, what: str) -> None:
        """All time since the last lap went into `what`."""
        now = time.perf_counter()
        self.seconds[what] = self.seconds.get(what, 0.0) + now - self._since
        self._since = now


@dataclass
class Observers:
    """Whom the loop tells what. step: (optimiser steps done, of how many, losses). epoch: the line of the log.

    unreadable: (id, why) of a sample of any process, each time that it is left out. saved: a state was saved.
    """

    step: Callable[[int, int, Mapping[str, float]], None] = lambda *_: None
    epoch: Callable[[Mapping[str, Any]], None] = lambda _: None
    unreadable: Callable[[str, str], None] = lambda *_: None
    saved: Callable[[], None] = lambda: None
    clock: Clock = field(default_factory=Clock)


@dataclass
class Trained:
    """What a run came to: the log's lines, and whether each of last and best was written."""

    log: list[Mapping[str, Any]] = field(default_factory=list)
    best_epoch: int | None = None
    left_out: int = 0


def train(
    network: AnyNetwork,
    recipe: Recipe,
    preparer: Preparing,
    folder: Path,
    settings: LoopSettings,
    validate: Callable[[], Evaluation | None],
    save_weights: Callable[[str], None],
    observers: Observers | None = None,
) -> Trained:
    """Train a network over the preparer's samples, going on from what the folder holds.

    validate: evaluates the network as it stands, or gives None where there is nothing to validate on; called once an
    epoch, in every process. save_weights: writes the network under a name ("last", "best"); called in the first
    process alone. Raises UserError where an epoch has no batch, or where a loss or a weight is not a number (the last
    good state stays).
    """
    from accelerate import Accelerator

    watch = observers or Observers()
    folder.mkdir(parents=True, exist_ok=True)
    accelerator = Accelerator(
        cpu=not torch.cuda.is_available(),  # unless it is told so, Accelerate takes processes on CPUs for runs apart
        mixed_precision=settings.precision,
        gradient_accumulation_steps=settings.accumulate,
    )
    if accelerator.device.type == "cuda":
        # Sums in another order each time would end a resumed run in other weights; what has no such form only warns.
        torch.use_deterministic_algorithms(True, warn_only=True)
    processes, rank = accelerator.num_processes, accelerator.process_index
    order = EpochOrder(len(preparer), recipe.batch_size, settings.seed, processes, rank)
    if not len(order):
        raise UserError(
            f"{len(preparer)} training samples make no batch of two: use more data, or fewer processes than {processes}"
        )
    network.to(accelerator.device)
    if settings.gradient_checkpointing:
        network.gradient_checkpointing()
    optimiser = adamw(network, recipe.optimiser)
    base_rates = [group["lr"] for group in optimiser.param_groups]
    steps_an_epoch = math.ceil(len(order) / settings.accumulate)
    total = steps_an_epoch * recipe.epochs
    if accelerator.is_main_process:
        recovered(folder / STATE)
    accelerator.wait_for_everyone()
    progress = _restored(network, optimiser, folder)
    wrapped = accelerator.prepare_model(torch.compile(network) if settings.compile else network)
    optimiser = accelerator.prepare_optimizer(optimiser)
    gather: Gather = ProcessGather(recipe.model.gather_gradients) if processes > 1 else one_process
    trained = Trained(list(progress.log))
    step, best = progress.step, progress.best
    sums = dict(progress.sums)
    log = list(progress.log)

    def remember(epoch: int, batch: int) -> None:
        _check_weights(network, step, folder)
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            tensors = {f"network.{name}": each for name, each in network.state_dict().items()}
            tensors |= optimiser_tensors(optimiser.optimizer)
            save_state(folder, TrainingState(epoch, batch, step, tensors, tuple(log), dict(sums), best))
            watch.saved()
        accelerator.wait_for_everyone()

    loader = loader_of(preparer, order, settings.workers, functools.partial(collated, fill=processes > 1))
    for epoch in range(progress.epoch, recipe.epochs):
        order.epoch, order.start = epoch, progress.batch if epoch == progress.epoch else 0
        network.train()
        if order.start == 0:
            network.begin_epoch(epoch)
        unreadable: tuple[Unreadable, ...] = ()
        watch.clock.lap("starting" if epoch == progress.epoch else "saving")
        for number, made in enumerate(loader, order.start):
            watch.clock.lap("batches")
            usable, unreadable = _agreed(accelerator, made)
            for each in unreadable:
                watch.unreadable(each.id, each.why)
            sums["left_out"] = sums.get("left_out", 0) + len(unreadable)
            is_last = number + 1 == len(order)
            full = (number + 1) % settings.accumulate == 0 or is_last
            if usable:
                torch.manual_seed(seed_of("step", settings.seed, epoch, number, rank))
                choose = DrawnNegatives(
                    torch.Generator().manual_seed(seed_of("negatives", settings.seed, epoch, number, rank))
                )
                group_size = _group_size(number, len(order), settings.accumulate)
                try:
                    losses = _backward(accelerator, wrapped, made.batch, gather, choose, group_size)
                except UserError as error:
                    raise UserError(f"epoch {epoch}, batch {number}: {error}; {_where_good(folder)}") from None
                values = _mean_over_processes(accelerator, losses)
                _check_finite(values, epoch, number, folder)
                for name, value in values.items():
                    sums[name] = sums.get(name, 0.0) + value
                sums["batches"] = sums.get("batches", 0) + 1
            if full:
                for group, rate in zip(optimiser.param_groups, base_rates, strict=True):
                    group["lr"] = rate * lr_factor(recipe.optimiser, step, total)
                optimiser.step()
                optimiser.zero_grad()
                step += 1
                count = max(1, sums.get("batches", 0))
                watch.step(step, total, {name: sums.get(name, 0.0) / count for name in LOSSES})
                watch.clock.lap("steps")
                if settings.save_every and step % settings.save_every == 0 and not is_last:
                    remember(epoch, number + 1)
                    watch.clock.lap("saving")
            watch.clock.lap("steps")
        if not sums.get("batches"):
            raise UserError(
                f"epoch {epoch}: none of its {len(order)} batches had two different samples whose pictures can be read"
                f"{f' (e.g. {unreadable[0].why})' if unreadable else ''}; mend the data, or use a larger batch"
            )
        _check_weights(network, step, folder)
        _share_buffers(network, processes)
        line = _line(epoch, step, sums, base_rates[0] * lr_factor(recipe.optimiser, step, total))
        watch.clock.lap("steps")
        found = validate()
        watch.clock.lap("validation")
        if found is not None:
            line |= {f"validation_{name}": value for name, value in figures_of(found).items()}
        measure = (line.get("validation_R@1", 0.0), line.get("validation_mAP", 0.0)) if found is not None else None
        if measure is not None and (best is None or measure > best):
            best = measure
            line["best"] = True
            if accelerator.is_main_process:
                save_weights("best")
        log.append(line)
        sums = {}
        if accelerator.is_main_process:
            save_weights("last")
            write_log(folder, tuple(log))
        watch.epoch(line)
        remember(epoch + 1, 0)
    watch.clock.lap("saving")
    trained.log = log
    trained.best_epoch = next((line["epoch"] for line in reversed(log) if line.get("best")), None)
    trained.left_out = int(sum(line["left_out"] for line in log))
    return trained


def _restored(network: AnyNetwork, optimiser: torch.optim.Optimizer, folder: Path) -> TrainingState:
    state = load_state(folder)
    if state is None:
        return TrainingState(0, 0, 0, {}, (), {}, None)
    own = {name.removeprefix("network."): each for name, each in state.tensors.items() if name.startswith("network.")}
    try:
        network.load_state_dict(own)
    except RuntimeError as error:
        raise UserError(f"{folder}: its state is of another network ({str(error).splitlines()[0]})") from None
    restore_optimiser(optimiser, state.tensors)
    return state


def _agreed(accelerator: Any, made: Collated) -> tuple[bool, tuple[Unreadable, ...]]:
    """Whether all processes have a batch (one that any of them lacks is done by none), and what they could not read."""
    if accelerator.num_processes == 1:
        return made.batch is not None, made.unreadable
    from accelerate.utils import gather_object

    own = torch.tensor([[int(made.batch is not None), len(made.unreadable)]], device=accelerator.device)
    every = accelerator.gather(own)
    unreadable = tuple(gather_object(list(made.unreadable))) if int(every[:, 1].sum()) else ()
    return bool(every[:, 0].all()), unreadable


def _group_size(number: int, batches: int, accumulate: int) -> int:
    """How many batches share the optimiser step of batch `number`; the last step of an epoch may have fewer."""
    first = number // accumulate * accumulate
    return min(accumulate, batches - first)


def _backward(
    accelerator: Any, wrapped: Any, batch: Batch, gather: Gather, choose: DrawnNegatives, group_size: int
) -> Losses:
    """The losses of a batch, with gradients added.

    Processes bring their gradients together at every batch, not at the last of an optimiser step alone: the last may
    turn out to be one that no process can do.
    """
    with accelerator.autocast():
        losses: Losses = wrapped(batch.to(accelerator.device), gather, choose)
    accelerator.backward(losses.total * (accelerator.gradient_accumulation_steps / group_size))
    return losses


def _mean_over_processes(accelerator: Any, losses: Losses) -> dict[str, float]:
    """The losses by name, the same in every process."""
    values = torch.stack([getattr(losses, name).detach().float() for name in LOSSES])
    return dict(zip(LOSSES, accelerator.reduce(values, "mean").tolist(), strict=True))


def _share_buffers(network: AnyNetwork, processes: int) -> None:
    """Give every process the first one's running statistics, so that all validate one network."""
    if processes > 1:
        for buffer in network.buffers():
            torch.distributed.broadcast(buffer, 0)


def _check_finite(values: Mapping[str, float], epoch: int, number: int, folder: Path) -> None:
    wrong = [name for name, value in values.items() if not math.isfinite(value)]
    if wrong:
        raise UserError(
            f"the loss {' and '.join(wrong)} is not a number at epoch {epoch}, batch {number}: lower the learning rate "
            f"(--set optimiser.lr=...) in another --out; {_where_good(folder)}"
        )


def _check_weights(network: AnyNetwork, step: int, folder: Path) -> None:
    """Raises UserError rather than let weights that are not numbers take the place of good ones."""
    for name, weights in network.named_parameters():
        if not bool(torch.isfinite(weights).all()):
            raise UserError(
                f"after step {step} the weights {name} are not numbers, training has diverged: lower the learning rate "
                f"(--set optimiser.lr=...) in another --out; {_where_good(folder)}"
            )


def _where_good(folder: Path) -> str:
    place = folder / STATE
    return f"the last good state is in {place}" if place.is_dir() else "no state was saved yet"


def _line(epoch: int, step: int, sums: Mapping[str, float], rate: float) -> dict[str, Any]:
    count = max(1, sums.get("batches", 0))
    losses = {f"loss_{name}": sums.get(name, 0.0) / count for name in LOSSES}
    return {
        "epoch": epoch,
        "step": step,
        "lr": rate,
        **losses,
        "loss": sum(losses.values()),
        "batches": int(sums.get("batches", 0)),
        "left_out": int(sums.get("left_out", 0)),
    }


def figures_of(found: Evaluation) -> dict[str, float]:
    """The figures of an evaluation by short names: R@K, mAP, mINP, identity R@1, pair accuracy (percent)."""
    metrics = found.metrics["PAB behaviour"]
    figures = {f"R@{k}": value for k, value in metrics.recall.items()}
    figures |= {"mAP": metrics.mean_ap, "mINP": metrics.mean_inp}
    if "PAB identity" in found.metrics:
        figures["identity R@1"] = found.metrics["PAB identity"].recall[1]
    if found.pairs.queries:
        figures["pair accuracy"] = 100 * found.pairs.share
    return figures


__all__ = ["Clock", "LoopSettings", "Observers", "Trained", "figures_of", "train"]
