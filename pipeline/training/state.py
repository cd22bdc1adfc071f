"""A training run's folder: what it was started with, its latest state, and its weights; never half a file of either.

run.json   state.safetensors + state.json (the latest, swapped in whole as `state/`)   best/  last/   log.jsonl
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.core.errors import UserError
from pipeline.core.store import write_atomically

STATE, SETTINGS, LOG, LOCK = "state", "run.json", "log.jsonl", ".lock"
_TENSORS, _NUMBERS = "state.safetensors", "state.json"


@dataclass(frozen=True)
class TrainingState:
    """Everything a resumed run needs to end as one that was never stopped.

    epoch, batch: the next to be done. step: optimiser steps done. tensors: network (`network.`) and optimiser
    (`optimiser.N.`) tensors by name. log: the lines of finished epochs. sums: what the unfinished epoch has added up.
    best: the measure of the best epoch so far, None before the first.
    """

    epoch: int
    batch: int
    step: int
    tensors: Mapping[str, Tensor]
    log: tuple[Mapping[str, Any], ...]
    sums: Mapping[str, float]
    best: tuple[float, ...] | None


def swapped_in(place: Path, write: Any) -> None:
    """Make a folder whole beside its place (`write` fills the path it is given), then swap it in.

    A kill leaves the old folder, the new one, or the old one under a name that `recovered` puts back.
    """
    new, old = place.with_name(f".{place.name}.new"), place.with_name(f".{place.name}.old")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    write(new)
    recovered(place)
    if place.exists():
        place.rename(old)
    new.rename(place)
    shutil.rmtree(old, ignore_errors=True)


def recovered(place: Path) -> None:
    """Finish or undo a swap that a kill cut short."""
    old = place.with_name(f".{place.name}.old")
    if old.exists():
        if place.exists():
            shutil.rmtree(old)
        else:
            old.rename(place)


def save_state(folder: Path, state: TrainingState) -> None:
    """Write the state; the one before stays until the new one is whole."""
    from safetensors.torch import save_file

    numbers = {
        "epoch": state.epoch,
        "batch": state.batch,
        "step": state.step,
        "log": list(state.log),
        "sums": dict(state.sums),
        "best": state.best,
    }

    def write(place: Path) -> None:
        save_file({name: each.detach().cpu().contiguous() for name, each in state.tensors.items()}, place / _TENSORS)
        write_atomically(place / _NUMBERS, json.dumps(numbers).encode())

    swapped_in(folder / STATE, write)


def load_state(folder: Path) -> TrainingState | None:
    """The latest state, or None where there is none. Raises UserError where it is damaged."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    place = folder / STATE
    recovered(place)
    if not place.is_dir():
        return None
    try:
        numbers = json.loads((place / _NUMBERS).read_text("utf-8"))
        tensors = load_file(place / _TENSORS)
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(f"{place} is damaged ({error}): delete it to begin anew") from None
    best = tuple(numbers["best"]) if numbers["best"] is not None else None
    return TrainingState(
        numbers["epoch"],
        numbers["batch"],
        numbers["step"],
        tensors,
        tuple(numbers["log"]),
        numbers["sums"],
        best,
    )


def optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state as tensors: `optimiser.<number of the parameter>.<name>`."""
    found = {}
    for number, values in optimiser.state_dict()["state"].items():
        for name, value in values.items():
            found[f"optimiser.{number}.{name}"] = value if isinstance(value, Tensor) else torch.tensor(value)
    return found


def restore_optimiser(optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put `optimiser_tensors` back."""
    own = optimiser.state_dict()
    states: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        head, _, rest = name.partition(".")
        if head == "optimiser":
            number, _, key = rest.partition(".")
            states.setdefault(int(number), {})[key] = value
    optimiser.load_state_dict({"state": states, "param_groups": own["param_groups"]})


def write_log(folder: Path, lines: tuple[Mapping[str, Any], ...]) -> None:
    """The lines of all finished epochs, as JSON lines."""
    write_atomically(folder / LOG, "".join(json.dumps(line) + "\n" for line in lines).encode())


def check_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    """Note what a run was started with; the same settings may come again.

    Raises UserError where the folder holds a run of other settings, or cannot be made.
    """
    path = folder / SETTINGS
    text = json.dumps(settings, indent=1, sort_keys=True, default=str)
    if path.is_file():
        known = read_settings(folder)
        wanted = json.loads(text)
        other = sorted(name for name in {*known, *wanted} if known.get(name) != wanted.get(name))
        if other:
            shown = ", ".join(
                f"{name} ({_short(known.get(name))} there, {_short(wanted.get(name))} here)" for name in other[:3]
            )
            raise UserError(f"{folder} holds a run with other settings: {shown}; use another --out, or delete it")
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode())
    except OSError as error:
        raise UserError(f"--out {folder}: cannot be written ({error.strerror})") from None


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold a run's folder. Raises UserError where another process does; one that was killed holds it no longer."""
    from filelock import FileLock, Timeout

    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise UserError(f"{folder}: another process trains there now; wait for it, or use another --out") from None
    try:
        yield
    finally:
        lock.release()


def read_settings(folder: Path) -> dict[str, Any]:
    """What the run in a folder was started with. Raises UserError where its run.json is damaged."""
    path = folder / SETTINGS
    try:
        known = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is damaged ({error}): delete the folder to begin anew") from None
    if not isinstance(known, dict):
        raise UserError(f"{path} is damaged (holds no settings by name): delete the folder to begin anew")
    return known


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
