"""Which stages want a GPU, and which of them share an engine on it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from pipeline.backends import registry
from pipeline.core.gpus import visible_gpus
from pipeline.core.profile import Profile
from pipeline.core.stage import Stage


def wants_gpu(entry: registry.BackendEntry, settings: Mapping[str, Any]) -> bool:
    """Whether an engine with these settings must have a GPU of this machine: as its `device` says, else as it does."""
    device = str(settings.get("device") or "auto")
    return device.startswith("cuda") or (entry.gpu_gib is not None and device != "cpu")


def works_on_gpu(entry: registry.BackendEntry, settings: Mapping[str, Any]) -> bool:
    """Whether an engine works on a GPU here: one that must, and one that takes what there is where there is one."""
    takes_any = "device" in entry.settings and (settings.get("device") or "auto") == "auto"
    return wants_gpu(entry, settings) or (takes_any and bool(visible_gpus()))


def gpu_engine(stage: Stage, profile: Profile) -> str | None:
    """What a stage loads onto a GPU, as a text that is the same for stages with the same engine and settings; None for
    a stage that needs no GPU.
    """
    chosen = [getattr(profile, section) for section in stage.engines]
    loaded = [
        [section.backend, section.settings]
        for name, section in zip(stage.engines, chosen, strict=True)
        if works_on_gpu(registry.entry(name, section.backend), section.settings)
    ]
    return json.dumps(loaded, sort_keys=True) if loaded else None


def by_gpu_engine(made: Iterable[Stage], profile: Profile) -> Iterator[tuple[str | None, list[Stage]]]:
    """The stages in their order, those that follow each other with the same engine on the GPU together."""
    for engine, group in groupby(made, key=lambda stage: gpu_engine(stage, profile)):
        yield engine, list(group)
