"""A training run's folder: what it was started with, its latest state, and its weights; never half a file of either.

run.json   state.safetensors + state.json (the latest, swapped in whole as `state/`)   best/  last/   log.jsonl
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.core.errors import UserError
from pipeline.core.store import write_atomically

STATE, SETTINGS, LOG = "state", "run.json", "log.jsonl"
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
    """Note what a run was started with, or raise UserError where the folder holds a run of other settings."""
    path = folder / SETTINGS
    text = json.dumps(settings, indent=1, sort_keys=True, default=str)
    if path.is_file():
        known = json.loads(path.read_text("utf-8"))
        wanted = json.loads(text)
        other = sorted(name for name in {*known, *wanted} if known.get(name) != wanted.get(name))
        if other:
            shown = ", ".join(
                f"{name} ({_short(known.get(name))} there, {_short(wanted.get(name))} here)" for name in other[:3]
            )
            raise UserError(f"{folder} holds a run with other settings: {shown}; use another --out, or delete it")
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.encode())


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
