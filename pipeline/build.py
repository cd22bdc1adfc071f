"""The whole build, stage after stage, over worker processes: `python -m pipeline.build --profile demo`.

The flow does the same through Prefect; both run `shard_task`, and the store alone decides what is left to do.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

from pipeline import footage, gpu_stages, preflight, stages, tiny_models
from pipeline import report as reports
from pipeline.cli import DONE, SOME_FAILED, WRONG, common_parser, guarded, profile_and_build
from pipeline.core.errors import UserError
from pipeline.core.profile import Profile, oops_root
from pipeline.core.workers import Workers, report, use_one_thread


@dataclass(frozen=True)
class ShardOutcome:
    """What a worker tells of one shard."""

    stage: str
    shard: str
    counts: dict[str, int]
    built: bool


def shard_task(profile: Profile, build: str, stage: str, shard: str, force: bool = False) -> ShardOutcome:
    """Bring one shard up to date; runs in a worker process."""
    label = f"{stage}/{shard}"
    result = stages.run_stage_shard(
        stage, shard, profile, build, force=force, progress=lambda done, total: report(label, done, total)
    )
    return ShardOutcome(stage, shard, result.manifest["counts"], result.built)


def film_task(profile: Profile, task: int) -> tuple[str, int]:
    """Film one task's clips; runs in a worker process. Returns the task's label and how many clips it has."""
    label = f"footage/{task}"
    return label, footage.film_task(profile, task, progress=lambda done, total: report(label, done, total))


def tiny_models_task(profile: Profile) -> int:
    """Write the profile's tiny models; runs in a worker process. Returns how many there are."""
    return tiny_models.write(profile, progress=lambda done, total: report("tiny models/all", done, total))


def build_all(profile: Profile, build: str, force: bool = False) -> bool:
    """Run every stage over every shard. Returns whether anything had to be built.

    Raises UserError for bad input, and the first error a worker met.
    """
    if everything_stands(profile, build) and not force:
        return False
    bars = Progress()
    with Workers(profile.workers, bars.update) as workers:
        state = footage.footage_state(profile)
        if state.simulated and not state.ready:
            footage.prepare(profile)
            clips = (profile.footage.train_clips + profile.footage.val_clips) if profile.footage else 0
            with bars.stage("footage", clips, "clips", state.tasks):
                for label, filmed in _finished(
                    [workers.submit(film_task, profile, task) for task in range(state.tasks)]
                ):
                    bars.update(label, filmed, filmed)
            footage.finish(profile)
        if tiny_models.wanting(profile):
            with bars.stage("tiny models", 0, "models", 1):
                for count in _finished([workers.submit(tiny_models_task, profile)]):
                    bars.update("tiny models/all", count, count)
        tiny_models.write_reviews(profile)
        for engine, stages_of_engine in gpu_stages.by_gpu_engine(stages.all_stages(), profile):
            for stage in stages_of_engine:
                names = stages.shard_names(stage, profile)
                calls = [(shard_task, profile, build, stage.name, name, force) for name in names]
                with bars.stage(stage.name, 0, "records", len(names)):
                    for made in _finished([workers.submit(*call, engine=engine) for call in calls]):
                        bars.update(f"{made.stage}/{made.shard}", made.counts["in"], made.counts["in"])
            workers.release_gpus()
    return True


def everything_stands(profile: Profile, build: str) -> bool:
    """Whether every shard of every stage is up to date and the dataset is in its place. Starts no worker."""
    from pipeline.core.runner import MissingUpstreamError, content_key
    from pipeline.core.store import Store
    from pipeline.publish import delivery_stands

    if not footage.footage_state(profile).ready or tiny_models.wanting(profile):
        return False
    store = Store(stages.build_dir(profile, build))
    for stage in stages.all_stages():
        fingerprints = stages.fingerprints(stage, profile)
        for shard in stages.shard_names(stage, profile):
            try:
                key = content_key(stage, profile, store, shard, fingerprints)
            except MissingUpstreamError:
                return False
            manifest = store.manifest(stage.name, shard)
            if manifest is None or manifest["key"] != key:
                return False
    return delivery_stands(profile, store)


def _finished(futures: list[Future[Any]]) -> Iterator[Any]:
    """What the tasks give, as they finish; the first error ends it, and the tasks that have not started."""
    for future in as_completed(futures):
        error = future.exception()
        if error is None:
            yield future.result()
            continue
        for other in futures:
            other.cancel()
        if isinstance(error, BrokenProcessPool):
            raise UserError(
                "a worker process was killed, most likely for want of memory: run the same command again to go on from "
                "here, with --set workers=1 if it happens again"
            ) from error
        raise error


class Progress:
    """A bar with ETA a stage where somebody looks at a terminal; a line a stage where the output goes to a file."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._bar: Any = None
        self._name, self._unit, self._start = "", "", 0.0
        self._total, self._tasks = 0, 1
        self._seen: dict[str, tuple[int, int]] = {}

    def stage(self, name: str, total: int, unit: str, tasks: int) -> Progress:
        """Turn to a stage of `total` units (0: not known yet) in so many tasks."""
        self._name, self._unit, self._total, self._tasks = name, unit, total, tasks
        return self

    def __enter__(self) -> Progress:
        self._seen, self._start = {}, time.monotonic()
        if self._live:
            from tqdm import tqdm

            self._bar = tqdm(total=self._total, desc=f"{self._name:<11}", unit=f" {self._unit}", smoothing=0.1)
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        elif error_type is None:
            done = sum(done for done, _ in self._seen.values())
            print(f"{self._name:<11} {done:>6} {self._unit} in {time.monotonic() - self._start:.1f} s", file=sys.stderr)

    def update(self, task: str, done: int, total: int) -> None:
        """Take in how far one task is; called from the pool's listening thread."""
        if not task.startswith(f"{self._name}/"):
            return
        self._seen[task] = max(self._seen.get(task, (0, 0)), (done, total))  # a worker's word may come after its end
        if self._bar is not None:
            # Shards that have not begun are taken to be like those that have, so that the ETA is that of the stage.
            known = sum(total for _, total in self._seen.values())
            self._bar.total = self._total or round(known * max(1, self._tasks / len(self._seen)))
            self._bar.n = sum(done for done, _ in self._seen.values())
            self._bar.refresh()


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m pipeline.build`."""
    use_one_thread()
    parser = common_parser("pipeline.build", "Build the whole dataset, stage after stage, resuming what is there.")
    parser.add_argument("--force", action="store_true", help="build every shard again")
    parser.add_argument("--dry-run", action="store_true", help="say what would run and what is missing; build nothing")
    options = parser.parse_args(argv)
    return guarded(lambda: _run_build(options))


def _run_build(options: argparse.Namespace) -> int:
    profile, name = profile_and_build(options)
    stages.build_dir(profile, name)  # refuses a name that is no name before anything runs
    missing = preflight.missing_pieces(profile, name)
    if options.dry_run:
        _print_plan(profile, name)
        for piece in missing:
            print(f"missing: {piece}")
        return WRONG if missing else DONE
    if missing:
        raise UserError(preflight.explain(options.profile, missing))
    start = time.monotonic()
    built = build_all(profile, name, options.force)
    sheets = reports.write_sheets(profile, name)
    summary = reports.summary(profile, name)
    print(reports.format_summary(summary))
    print()
    print(f"{'built' if built else 'up to date'} in {time.monotonic() - start:.0f} s: {profile.out}")
    for sheet in sheets:
        print(f"look at   {sheet}")
    # "./" keeps the name of a folder from being taken for one on a hub.
    out = profile.out if profile.out.is_absolute() else f"./{profile.out}"
    print(f"load it   python -c \"import datasets; print(datasets.load_dataset('{out}'))\"")
    print("audit it  python -m pipeline.audit finds near-duplicates, leaks and imbalance, and adds them to the card")
    print("go on     python -m pipeline lists the stages; python -m pipeline.decompose --shard 3 runs one")
    return SOME_FAILED if summary.failed else DONE


def _print_plan(profile: Profile, name: str) -> None:
    state = footage.footage_state(profile)
    if state.simulated:
        print(f"footage      {'up to date' if state.ready else 'to be filmed'}: {oops_root(profile)}")
    if profile.tiny_models is not None:
        state_of_models = "to be written" if tiny_models.wanting(profile) else "up to date"
        print(f"tiny models  {state_of_models}: {profile.tiny_models.folder}")
    if not state.ready or oops_root(profile).is_dir():
        for made in stages.all_stages():
            names = stages.shard_names(made, profile)
            print(f"{made.name:<12} {len(names):>3} shards  {made.summary}")
    print(f"work in {stages.build_dir(profile, name)}, dataset in {profile.out}, {profile.workers} workers")


if __name__ == "__main__":
    raise SystemExit(main())
