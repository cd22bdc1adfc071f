"""`pilot` is a part of `full`: what it drew, `full` does not draw again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline import stages
from pipeline.backends.protocols import BackendContext
from pipeline.backends.simulator.text_to_image import SimulatorTextToImage
from pipeline.core.profile import Profile, load_profile
from pipeline.core.runner import run_shard
from pipeline.core.stage import StageContext
from pipeline.core.store import Store
from pipeline.workload import taken_over
from tests.core.toy_stages import digests
from tests.stage_helpers import MINI, FakeEngine

EMBEDDED = {"size": 64, "bad_share": 0.25}
DREW = {"pilot": (2, 1), "full": (4, 2)}
"""Source captions and images a caption of the two builds here."""


class Simulator(SimulatorTextToImage):
    """The embedded engine; notes what it was asked for."""

    def __init__(self, folder: Path) -> None:
        super().__init__(BackendContext(settings=EMBEDDED, build_dir=folder, truth_dir=folder / "truth"))
        self.asked: list[str] = []

    def generate(self, requests: Any) -> Any:
        self.asked += [request.id for request in requests]
        return super().generate(requests)


def profile_of(name: str, folder: Path, *overrides: str) -> Profile:
    """A shipped profile with the embedded engine and few images."""
    sources, numbers = DREW[name]
    return load_profile(
        name,
        [
            f"work={folder}",
            f"oops.root={MINI}",
            "batch_records=4",
            "generate.backend=simulator",
            f"generate.settings={EMBEDDED}",
            f"generate.images_per_caption={numbers}",
            f"generate.sources={sources or 'null'}",
            *overrides,
        ],
    )


def draw(profile: Profile, build: str, engine: Simulator) -> Path:
    """Sources and images of a build; the captions' subjects are all taken for people."""
    reader = FakeEngine("subjects_are_people", lambda captions: [bool(caption) for caption in captions])
    engines = {"sources": reader, "generate": engine}
    folder = stages.build_dir(profile, build)
    for name in ("sources", "generate"):
        stage = stages.stage(name)
        shards = ["train-000"] if name == "sources" else stages.shard_names(stage, profile)
        marks = {"sources": {"reader": "all"}, "generate": stages.fingerprints(stages.stage("generate"), profile)}
        for shard in shards:
            run_shard(stage, StageContext(profile, Store(folder), shard, engines.__getitem__), marks[name])
    return folder


def test_full_asks_for_the_images_that_the_pilot_has_not_made_and_ends_as_if_there_had_been_no_pilot(tmp_path):
    first, second, alone = (Simulator(tmp_path / name) for name in ("a", "b", "c"))
    pilot, full = profile_of("pilot", tmp_path), profile_of("full", tmp_path)
    draw(pilot, "pilot", first)
    assert len(set(first.asked)) == 2
    assert taken_over(full, Store(tmp_path / "full")) == 2
    grown = draw(full, "full", second)
    fresh = draw(profile_of("full", tmp_path, "take_from=[]"), "fresh", alone)
    assert len(set(alone.asked)) == 8
    assert set(second.asked) == set(alone.asked) - set(first.asked)
    assert set(first.asked) < set(alone.asked)
    assert digests(grown / "generate") == digests(fresh / "generate")
    # The other way round as well: a pilot that comes after `full` draws nothing.
    late = Simulator(tmp_path / "d")
    draw(pilot, "late", late)
    assert late.asked == []


@pytest.mark.parametrize(
    "override",
    ["seed=5", "generate.settings.bad_share=0.5", "generate.jpeg_quality=90"],
)
def test_what_makes_another_image_is_drawn_again(tmp_path, override):
    draw(profile_of("pilot", tmp_path), "pilot", Simulator(tmp_path / "a"))
    again = Simulator(tmp_path / "b")
    draw(profile_of("full", tmp_path, override, "generate.sources=2", "generate.images_per_caption=1"), "full", again)
    assert len(again.asked) == 2


def test_all_that_makes_an_image_is_the_same_in_both_profiles():
    pilot, full = load_profile("pilot"), load_profile("full")
    for path in ("seed", "sources", "generate.backend", "generate.settings", "generate.jpeg_quality", "oops"):
        assert pilot.section(path) == full.section(path), path
    assert full.take_from == ("pilot",)
    assert (pilot.generate.sources, pilot.generate.images_per_caption) == (100, 8)
    assert pilot.work == full.work
    assert pilot.out != full.out


def test_the_pilot_has_the_engines_and_thresholds_of_full():
    pilot, full = load_profile("pilot"), load_profile("full")
    for name in ("keypoints", "similarity", "recaption", "attributes", "decompose", "review", "publish", "audit"):
        assert pilot.section(name) == full.section(name), name
    sdxl = load_profile("full-sdxl")
    for name in ("seed", "sources", "frames", "keypoints", "similarity", "recaption", "attributes", "decompose"):
        assert sdxl.section(name) == full.section(name), name
    assert sdxl.generate.settings["preset"] == "realvisxl-v4"
