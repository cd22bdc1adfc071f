"""The ten stages in order, what their shards are called, and how one shard of one is run.

The one place that knows all stages; the stages know nothing of each other.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.backends import registry
from pipeline.backends.protocols import BackendContext
from pipeline.core.errors import UserError
from pipeline.core.profile import Profile
from pipeline.core.runner import MissingUpstreamError, Progress, ShardResult, run_shard
from pipeline.core.stage import Stage, StageContext, shard_name
from pipeline.core.store import Store

STAGE_NAMES = (
    "frames",
    "sources",
    "generate",
    "keypoints",
    "similarity",
    "recaption",
    "attributes",
    "review",
    "decompose",
    "publish",
)


def stage(name: str) -> Stage:
    """The stage of that name."""
    return importlib.import_module(f"pipeline.{name}").STAGE


def all_stages() -> Iterator[Stage]:
    """All stages, in the order in which they run."""
    for name in STAGE_NAMES:
        yield stage(name)


def shard_names(made: Stage, profile: Profile) -> list[str]:
    """The shards a stage has under a profile: train-000 .. by images a caption, test-000 .. by clips."""
    from pipeline.formats.oops_shards import test_shard_count

    if not made.shard_kinds:
        return ["all"]
    names: list[str] = []
    if "train" in made.shard_kinds:
        count = 1 if made.name == "sources" else profile.generate.images_per_caption
        names += [shard_name("train", number) for number in range(count)]
    if "test" in made.shard_kinds:
        count = 1 if made.name == "sources" else test_shard_count(profile)
        names += [shard_name("test", number) for number in range(count)]
    return names


def build_dir(profile: Profile, build: str) -> Path:
    """Where a build keeps its shards."""
    if not build or "/" in build or build.startswith("."):
        raise UserError(f"--build {build!r}: use a plain name without slashes, e.g. --build trial")
    return profile.work / build


def fingerprints(made: Stage, profile: Profile) -> dict[str, Any]:
    """The fingerprint of every engine a stage uses under a profile."""
    found = {}
    for section in made.engines:
        chosen = getattr(profile, section)
        found[section] = registry.fingerprint(section, chosen.backend, chosen.settings)
    return found


@functools.lru_cache(maxsize=16)
def _engine(section: str, name: str, settings: str, folder: Path) -> Any:
    import json

    context = BackendContext(settings=json.loads(settings), build_dir=folder, truth_dir=folder / "truth" / section)
    return registry.create(section, name, context)


def engine_of(section: str, profile: Profile, build: str) -> Any:
    """The engine that a section of the profile names, as `run_stage_shard` uses it; loaded once a process."""
    import json

    chosen = getattr(profile, section)
    return _engine(section, chosen.backend, json.dumps(chosen.settings, sort_keys=True), build_dir(profile, build))


def run_stage_shard(
    name: str,
    shard: str,
    profile: Profile,
    build: str,
    *,
    force: bool = False,
    with_upstream: bool = False,
    progress: Progress | None = None,
) -> ShardResult:
    """Bring one shard of one stage up to date, and with `with_upstream` what it reads before it.

    Raises MissingUpstreamError where its inputs are not there and with_upstream is not given.
    """
    made = stage(name)
    folder = build_dir(profile, build)

    def engines(section: str) -> Any:
        return engine_of(section, profile, build)

    if with_upstream:
        for upstream_name, upstream_shard in made.upstream(profile, shard):
            run_stage_shard(upstream_name, upstream_shard, profile, build, with_upstream=True)
    context = StageContext(profile, Store(folder), shard, engines)
    return run_shard(made, context, fingerprints(made, profile), progress, force)


__all__ = ["STAGE_NAMES", "MissingUpstreamError", "all_stages", "build_dir", "run_stage_shard", "shard_names", "stage"]
