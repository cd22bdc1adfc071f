"""The training loop: epochs of batches over one or more processes, validation, checkpoints, and exact resume.

Every random draw of a step comes from the seed, the step and the process's number, so that a run stopped anywhere and
resumed ends with the weights and the log of one that was never stopped (same device, same number of processes).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from pipeline.core.errors import UserError
from pipeline.core.seeds import seed_of
from pipeline.models.batch import Batch
from pipeline.models.config import Recipe
from pipeline.models.gather import Gather, ProcessGather, one_process
from pipeline.models.losses import DrawnNegatives
from pipeline.models.network import Losses, PairNetwork
from pipeline.models.optimiser import adamw, lr_factor
from pipeline.training.batches import EpochOrder, Preparer, collated, loader_of
from pipeline.training.evaluate import Evaluation
from pipeline.training.state import (
    TrainingState,
    load_state,
    optimiser_tensors,
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


@dataclass
class Observers:
    """Whom the loop tells what. step: (optimiser steps done, of how many, losses). epoch: the line of the log."""

    step: Callable[[int, int, Mapping[str, float]], None] = lambda *_: None
    epoch: Callable[[Mapping[str, Any]], None] = lambda _: None
    unreadable: Callable[[str, str], None] = lambda *_: None


@dataclass
class Trained:
    """What a run came to: the log's lines, and whether each of last and best was written."""

    log: list[Mapping[str, Any]] = field(default_factory=list)
    best_epoch: int | None = None
    left_out: int = 0


def train(
    network: PairNetwork,
    recipe: Recipe,
    preparer: Preparer,
    folder: Path,
    settings: LoopSettings,
    validate: Callable[[], Evaluation | None],
    save_weights: Callable[[str], None],
    observers: Observers | None = None,
) -> Trained:
    """Train a network over the preparer's samples, going on from what the folder holds.

    validate: evaluates the network as it stands, or gives None where there is nothing to validate on; called once an
    epoch, in every process. save_weights: writes the network under a name ("last", "best"); called in the first
    process alone. Raises UserError where an epoch has no batch or a loss is not a number (the last good state stays).
    """
    from accelerate import Accelerator
    from accelerate.utils import DistributedDataParallelKwargs

    watch = observers or Observers()
    folder.mkdir(parents=True, exist_ok=True)
    accelerator = Accelerator(
        mixed_precision=settings.precision,
        gradient_accumulation_steps=settings.accumulate,
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)],
    )
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
    progress = _restored(network, optimiser, folder)
    wrapped = accelerator.prepare_model(torch.compile(network) if settings.compile else network)
    optimiser = accelerator.prepare_optimizer(optimiser)
    gather: Gather = ProcessGather(recipe.model.gather_gradients) if processes > 1 else one_process
    trained = Trained(list(progress.log))
    step, best = progress.step, progress.best
    sums = dict(progress.sums)
    log = list(progress.log)

    def remember(epoch: int, batch: int) -> None:
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            tensors = {f"network.{name}": each for name, each in network.state_dict().items()}
            tensors |= optimiser_tensors(optimiser.optimizer)
            save_state(folder, TrainingState(epoch, batch, step, tensors, tuple(log), dict(sums), best))
        accelerator.wait_for_everyone()

    loader = loader_of(preparer, order, settings.workers, functools.partial(collated, fill=processes > 1))
    for epoch in range(progress.epoch, recipe.epochs):
        order.epoch, order.start = epoch, progress.batch if epoch == progress.epoch else 0
        network.train()
        for number, made in enumerate(loader, order.start):
            for each in made.unreadable:
                watch.unreadable(each.id, each.why)
            sums["left_out"] = sums.get("left_out", 0) + len(made.unreadable)
            is_last = number + 1 == len(order)
            full = (number + 1) % settings.accumulate == 0 or is_last
            if _in_every_process(accelerator, made.batch is not None):
                torch.manual_seed(seed_of("step", settings.seed, epoch, number, rank))
                choose = DrawnNegatives(
                    torch.Generator().manual_seed(seed_of("negatives", settings.seed, epoch, number, rank))
                )
                group_size = _group_size(number, len(order), settings.accumulate)
                losses = _backward(accelerator, wrapped, made.batch, gather, choose, group_size, full)
                _check_finite(losses, epoch, number, folder)
                for name in LOSSES:
                    sums[name] = sums.get(name, 0.0) + float(getattr(losses, name).detach())
                sums["batches"] = sums.get("batches", 0) + 1
            if full:
                for group, rate in zip(optimiser.param_groups, base_rates, strict=True):
                    group["lr"] = rate * lr_factor(recipe.optimiser, step, total)
                optimiser.step()
                optimiser.zero_grad()
                step += 1
                count = max(1, sums.get("batches", 0))
                watch.step(step, total, {name: sums.get(name, 0.0) / count for name in LOSSES})
                if settings.save_every and step % settings.save_every == 0 and not is_last:
                    remember(epoch, number + 1)
        line = _line(epoch, step, sums, base_rates[0] * lr_factor(recipe.optimiser, step, total))
        found = validate()
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
    trained.log = log
    trained.best_epoch = next((line["epoch"] for line in reversed(log) if line.get("best")), None)
    trained.left_out = int(sum(line["left_out"] for line in log))
    return trained


def _restored(network: PairNetwork, optimiser: torch.optim.Optimizer, folder: Path) -> TrainingState:
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


def _in_every_process(accelerator: Any, holds: bool) -> bool:
    """Whether something holds in all processes: a batch that one of them lacks is done by none."""
    if accelerator.num_processes == 1:
        return holds
    return bool(accelerator.gather(torch.tensor([holds], device=accelerator.device)).all())


def _group_size(number: int, batches: int, accumulate: int) -> int:
    """How many batches share the optimiser step of batch `number`; the last step of an epoch may have fewer."""
    first = number // accumulate * accumulate
    return min(accumulate, batches - first)


def _backward(
    accelerator: Any, wrapped: Any, batch: Batch, gather: Gather, choose: DrawnNegatives, group_size: int, full: bool
) -> Losses:
    """The losses of a batch, with gradients added; processes are brought together at the last batch of a step."""
    import contextlib

    context = contextlib.nullcontext() if full else accelerator.no_sync(wrapped)
    with context:
        with accelerator.autocast():
            losses: Losses = wrapped(batch.to(accelerator.device), gather, choose)
        accelerator.backward(losses.total * (accelerator.gradient_accumulation_steps / group_size))
    return losses


def _check_finite(losses: Losses, epoch: int, number: int, folder: Path) -> None:
    wrong = [name for name in LOSSES if not bool(torch.isfinite(getattr(losses, name)))]
    if wrong:
        raise UserError(
            f"the loss {' and '.join(wrong)} is not a number at epoch {epoch}, batch {number}: lower the learning rate "
            f"(optimiser.lr); the last good state is in {folder}"
        )


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


__all__ = ["LoopSettings", "Observers", "Trained", "figures_of", "train"]
