"""Films the simulator's OOPS! folder where a profile names no real one. Not a stage: it stands in for the download."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.cli import DONE, Bar, common_parser, guarded, profile_and_build
from pipeline.core.profile import Profile, oops_root
from pipeline.core.runner import Progress
from pipeline.core.store import write_atomically
from pipeline.core.workers import use_one_thread
from pipeline.formats.oops_shards import FOOTAGE_MARKER

CLIPS_PER_TASK = 10


@dataclass(frozen=True)
class FootageState:
    """Whether a profile films footage at all, whether it is there, and in how many tasks it is filmed."""

    simulated: bool
    ready: bool
    tasks: int


def footage_state(profile: Profile) -> FootageState:
    """How things stand, without touching the simulator."""
    if profile.oops.root is not None or profile.footage is None:
        return FootageState(simulated=False, ready=True, tasks=0)
    clips = profile.footage.train_clips + profile.footage.val_clips
    return FootageState(True, _marker_text(profile) == _marked(profile), -(-clips // CLIPS_PER_TASK))


def prepare(profile: Profile) -> None:
    """Make the folder. Clips of another simulator or size are removed: a clip that is there is not filmed again."""
    root, started = oops_root(profile), oops_root(profile) / ".filming"
    if started.exists() and started.read_text("utf-8") == _marked(profile):
        return
    if started.exists() or (root / FOOTAGE_MARKER).exists():
        shutil.rmtree(root)
    root.mkdir(parents=True, exist_ok=True)
    write_atomically(started, _marked(profile).encode())


def film_task(profile: Profile, task: int, progress: Progress | None = None) -> int:
    """Film the clips of one task; those that are there already stay as they are. Returns how many clips it has."""
    from pipeline.backends.simulator import footage as simulator

    assert profile.footage is not None
    root = oops_root(profile)
    plans = simulator.plan_footage(
        profile.footage.train_clips, profile.footage.val_clips, profile.seed, size=profile.footage.size
    )
    mine = plans[task * CLIPS_PER_TASK : (task + 1) * CLIPS_PER_TASK]
    for done, plan in enumerate(mine, start=1):
        if not (root / "oops_video" / plan.split / f"{plan.name}.mp4").exists():
            simulator.write_clip(root, plan)
        if progress:
            progress(done, len(mine))
    return len(mine)


def finish(profile: Profile) -> None:
    """Write annotations and captions, then the marker that says the folder is whole."""
    from pipeline.backends.simulator import footage as simulator

    assert profile.footage is not None
    root = oops_root(profile)
    plans = simulator.plan_footage(profile.footage.train_clips, profile.footage.val_clips, profile.seed)
    simulator.write_annotations(root, plans)
    write_atomically(root / FOOTAGE_MARKER, _marked(profile).encode())


def film_all(profile: Profile) -> None:
    """Film what is missing, in this process."""
    prepare(profile)
    for task in range(footage_state(profile).tasks):
        film_task(profile, task, Bar(f"footage {task}"))
    finish(profile)


def _marked(profile: Profile) -> str:
    from pipeline.backends.simulator import REVISION

    assert profile.footage is not None
    what = {"simulator": REVISION, "seed": profile.seed, **profile.footage.model_dump(mode="json")}
    return json.dumps(what, sort_keys=True)


def _marker_text(profile: Profile) -> str | None:
    marker = oops_root(profile) / FOOTAGE_MARKER
    return marker.read_text("utf-8") if marker.exists() else None


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m pipeline.footage`."""
    use_one_thread()
    parser = common_parser("pipeline.footage", "Film the simulator's OOPS! folder (where no real one is named).")
    options = parser.parse_args(argv)

    def run() -> int:
        profile, _ = profile_and_build(options)
        state = footage_state(profile)
        if not state.simulated:
            print(f"nothing to film: the profile reads {oops_root(profile)}")
        elif state.ready:
            print(f"up to date: {oops_root(profile)}")
        else:
            film_all(profile)
            print(f"filmed {oops_root(profile)}")
        return DONE

    return guarded(run)


if __name__ == "__main__":
    raise SystemExit(main())
