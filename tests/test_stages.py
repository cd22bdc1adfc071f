import json
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import stages
from pipeline.core.errors import UserError
from pipeline.core.runner import MissingUpstreamError
from pipeline.core.store import Store
from tests.core.toy_stages import SHARD, lengths_stage, toy_profile, words_stage


@pytest.fixture
def toys(monkeypatch):
    made = {"words": words_stage(), "lengths": lengths_stage()}
    monkeypatch.setattr(stages, "stage", made.__getitem__)


def test_a_stage_whose_input_is_missing_is_stopped(toys, tmp_path):
    with pytest.raises(MissingUpstreamError):
        stages.run_stage_shard("lengths", SHARD, toy_profile(f"work={tmp_path}"), "trial")


def test_with_upstream_builds_what_is_missing_first_and_only_that(toys, tmp_path):
    profile = toy_profile(f"work={tmp_path}")
    assert stages.run_stage_shard("lengths", SHARD, profile, "trial", with_upstream=True).built
    part = Store(tmp_path / "trial").shard_dir("words", SHARD) / "part-00000.parquet"
    before = part.stat().st_mtime_ns
    assert stages.run_stage_shard("lengths", SHARD, profile, "trial", with_upstream=True, force=True).built
    assert part.stat().st_mtime_ns == before


def test_the_ten_stages_are_there_in_order_each_under_its_own_name():
    made = list(stages.all_stages())
    assert tuple(stage.name for stage in made) == stages.STAGE_NAMES
    assert len(made) == 10


def test_every_stage_reads_only_stages_before_it():
    mini = Path(__file__).parent / "cases" / "oops_mini"
    profile = toy_profile(f"oops.root={mini}", "generate.images_per_caption=2")
    for number, stage in enumerate(stages.all_stages()):
        for shard in stages.shard_names(stage, profile):
            for name, upstream_shard in stage.upstream(profile, shard):
                assert name in stages.STAGE_NAMES[:number], f"{stage.name} {shard} reads {name}"
                assert upstream_shard in stages.shard_names(stages.stage(name), profile)


def test_shards_follow_the_images_a_caption_and_the_clips():
    mini = Path(__file__).parent / "cases" / "oops_mini"
    sizes = ("generate.images_per_caption=3", "frames.clips_per_shard=4", "frames.splits=[train,val]")
    profile = toy_profile(f"oops.root={mini}", *sizes)
    assert stages.shard_names(stages.stage("generate"), profile) == ["train-000", "train-001", "train-002"]
    assert stages.shard_names(stages.stage("frames"), profile) == ["test-000", "test-001", "test-002"]
    assert stages.shard_names(stages.stage("sources"), profile) == ["train-000", "test-000"]
    assert stages.shard_names(stages.stage("publish"), profile) == ["all"]
    assert len(stages.shard_names(stages.stage("recaption"), profile)) == 6


def test_the_number_of_test_shards_is_known_before_the_footage_is_filmed(tmp_path):
    profile = toy_profile(f"work={tmp_path}", "footage.val_clips=51", "frames.clips_per_shard=25")
    assert stages.shard_names(stages.stage("frames"), profile) == ["test-000", "test-001", "test-002"]


@pytest.mark.parametrize("name", ["", "a/b", "../up", ".hidden", ".."])
def test_a_build_has_a_plain_name(name):
    with pytest.raises(UserError, match="use a plain name"):
        stages.build_dir(toy_profile(), name)


FINGERPRINTS = """
import json, sys
from pipeline import stages
from pipeline.core.profile import load_profile
profile = load_profile()
found = {stage.name: stages.fingerprints(stage, profile) for stage in stages.all_stages()}
heavy = {"torch", "spacy", "mediapipe", "pybullet", "cv2", "transformers", "av"} & set(sys.modules)
print(json.dumps({"found": found, "heavy": sorted(heavy)}))
"""


def test_the_engines_of_the_demo_are_told_apart_without_loading_one():
    # Else every command, and a build that is up to date, would load them all.
    told = json.loads(subprocess.check_output([sys.executable, "-c", FINGERPRINTS], cwd=Path(__file__).parents[1]))
    for stage in stages.all_stages():
        assert set(told["found"][stage.name]) == set(stage.engines)
        assert all(each["name"] and each["revision"] for each in told["found"][stage.name].values())
    assert told["heavy"] == []
