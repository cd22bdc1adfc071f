"""Times a few items of every stage on this machine with a profile's own engines: a build in miniature, in a folder of
its own, over the processes that a build would have.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from pipeline import footage, gpu_stages, stages, tiny_models
from pipeline.core.gpus import Gpu, visible_gpus
from pipeline.core.planning import CPU, ESTIMATE, MEASURED, Device, Rates, Speed, load_rates
from pipeline.core.profile import FootageSection, OopsSection, Profile, oops_root
from pipeline.core.workers import Workers
from pipeline.workload import engine_settings, oops_is_there

BUILD = "measure"
_NUMBERS = 2
"""Images a caption, so shards: two processes work side by side, as in a build, and stand in each other's way."""
_CLIPS_A_CAPTION = 2
"""Footage filmed to measure with: a clip gives two or three captions."""


@dataclass(frozen=True)
class ShardTimes:
    """What one shard took: (records, seconds) of every part in order, in which process, and the most images that fit
    its engine's memory at once, where it can tell.
    """

    process: int
    parts: tuple[tuple[int, float], ...]
    largest_batch: int | None = None


@dataclass(frozen=True)
class Timed:
    """Seconds an item at the least and the most, over the shards, and until the engine first answered."""

    low: float
    high: float
    load_s: float


def miniature(profile: Profile, items: int, folder: Path) -> Profile:
    """The profile with about so many items a stage, in a folder of its own, taking nothing over."""
    sources = max(1, math.ceil(items / _NUMBERS))
    clips = max(2, items // 2)
    changes: dict[str, Any] = {
        "work": folder / "work",
        "out": folder / "out",
        "take_from": (),
        "batch_records": max(2, items // 8),
        "generate": profile.generate.model_copy(update={"sources": sources, "images_per_caption": _NUMBERS}),
        "frames": profile.frames.model_copy(update={"clips": clips, "clips_per_shard": max(1, clips // 2)}),
    }
    if oops_is_there(profile):
        changes["oops"] = OopsSection(root=oops_root(profile))
    elif profile.footage is not None:
        train = max(1, math.ceil(sources / _CLIPS_A_CAPTION))
        changes["footage"] = FootageSection(train_clips=train, val_clips=clips, size=profile.footage.size)
    if any(gpu_stages.gpu_engine(stage, profile) for stage in stages.all_stages()):
        # A GPU is fed in batches: two parts, one to get warm and one that is timed.
        changes["batch_records"] = max(2, items // _NUMBERS // 2)
    return profile.model_copy(update=changes)


def time_shard(profile: Profile, stage: str, shard: str, on_gpu: bool) -> ShardTimes:
    """Run one shard and note when each part was done; runs in a worker process."""
    marks: list[tuple[int, float]] = []
    stages.run_stage_shard(
        stage, shard, profile, BUILD, progress=lambda done, _total: marks.append((done, time.monotonic()))
    )
    parts = [(after[0] - before[0], after[1] - before[1]) for before, after in pairwise(marks)]
    largest = None
    if stage == "generate" and on_gpu:
        engine = stages.engine_of("generate", profile, BUILD)
        if hasattr(engine, "largest_batch"):
            largest = engine.largest_batch()
    return ShardTimes(os.getpid(), tuple(parts), largest)


def time_film(profile: Profile, task: int) -> ShardTimes:
    """Film one task's clips; runs in a worker process."""
    start = time.monotonic()
    clips = footage.film_task(profile, task)
    return ShardTimes(os.getpid(), ((clips, time.monotonic() - start),))


def timed(shards: Sequence[ShardTimes]) -> Timed | None:
    """What the shards of one stage say together; None where there was no record.

    The first part of a process holds the loading of its engine: it is not counted where others are.
    """
    started: set[int] = set()
    steady: list[tuple[int, float]] = []
    first: list[tuple[int, float]] = []
    rates: list[float] = []
    for shard in shards:
        own = [part for part in shard.parts if part[0]]
        if own and shard.process not in started:
            started.add(shard.process)
            first.append(own.pop(0))
        if own:
            rates.append(sum(seconds for _, seconds in own) / sum(records for records, _ in own))
            steady += own
    if not first:
        return None
    if not steady:
        each = sum(seconds for _, seconds in first) / sum(records for records, _ in first)
        return Timed(each, each, 0.0)
    each = sum(seconds for _, seconds in steady) / sum(records for records, _ in steady)
    load = max(0.0, max(seconds - records * each for records, seconds in first))
    return Timed(min(rates), max(rates), load)


def measure(profile: Profile, items: int, folder: Path, tell: Callable[[str], None]) -> Rates:
    """Rates of this machine for the profile's engines, with the largest batch of the stage on the GPU that can tell.

    tell: gets a line as each stage is done. Raises UserError where a stage cannot run.
    """
    small = miniature(profile, items, folder)
    here = visible_gpus()
    device = gpu_key(here[0].name) if here else CPU
    known = {} if device in (CPU, *load_rates().devices) else {device: _unknown_gpu(here[0])}
    speeds: list[Speed] = []
    batches: dict[str, int] = {}
    with Workers(profile.workers) as workers:
        state = footage.footage_state(small)
        if state.simulated and not state.ready:
            footage.prepare(small)
            done = _results([workers.submit(time_film, small, task) for task in range(state.tasks)])
            footage.finish(small)
            tiny_models.write_reviews(small)
            # Nothing is loaded that takes long, and a task is one part: the first counts as well.
            clips, seconds = sum(each.parts[0][0] for each in done), sum(each.parts[0][1] for each in done)
            speeds.append(_speed("footage", None, {}, CPU, Timed(seconds / clips, seconds / clips, 0.0)))
            tell(f"footage      {clips:>4} clips, {seconds / clips:.4g} s each")
        for engine, group in gpu_stages.by_gpu_engine(stages.all_stages(), small):
            for stage in group:
                shards = stages.shard_names(stage, small)
                on_gpu = engine is not None and workers.gpus > 0
                calls = [(time_shard, small, stage.name, shard, on_gpu) for shard in shards]
                done = _results([workers.submit(*call, engine=engine) for call in calls])
                found = timed(done)
                if found is None:
                    tell(f"{stage.name:<12} nothing to time: no record came so far")
                    continue
                records = sum(records for each in done for records, _ in each.parts)
                name = getattr(small, stage.engines[0]).backend if stage.engines else None
                settings = engine_settings(stage.name, small) if stage.engines else {}
                speeds.append(_speed(stage.name, name, settings, device if on_gpu else CPU, found))
                tell(
                    f"{stage.name:<12} {records:>4} records, {found.low:.4g} to {found.high:.4g} s each, "
                    f"{found.load_s:.1f} s to start"
                )
                sizes = [each.largest_batch for each in done if each.largest_batch is not None]
                if sizes:
                    batches[stage.name] = min(sizes)
            workers.release_gpus()
    return Rates(devices=known, speeds=tuple(speeds), batch_sizes=batches)


def _results(futures: Sequence[Future[ShardTimes]]) -> list[ShardTimes]:
    return [future.result() for future in futures]


def _speed(stage: str, engine: str | None, settings: dict[str, Any], device: str, found: Timed) -> Speed:
    return Speed(
        stage=stage,
        engine=engine,
        settings=settings,
        device=device,
        seconds=(float(f"{found.low:.4g}"), float(f"{found.high:.4g}")),
        load_s=round(found.load_s, 2),
        origin=MEASURED,
    )


def _unknown_gpu(gpu: Gpu) -> Device:
    # Its own rates are there; what is taken from another GPU's is scaled by nothing, and is an estimate for that.
    return Device(memory_gib=gpu.memory_gib or 1.0, speed=1.0, origin=ESTIMATE, called=gpu.name or None)


def gpu_key(name: str) -> str:
    """The table's key for a GPU that nvidia-smi calls `name`; its name in small letters where the table has none."""
    for key, device in load_rates().devices.items():
        if device.called and device.called.lower() in name.lower():
            return key
    return "-".join(name.lower().split())
