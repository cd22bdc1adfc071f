import hashlib
import json
import shutil
from pathlib import Path

import pytest

from pipeline.core.images import read_image
from pipeline.core.profile import load_profile
from pipeline.core.runner import content_key
from pipeline.formats.oops import TransitionLabel, video_key
from pipeline.frames import JUDGED, STAGE, transition_time
from tests.stage_helpers import MINI, context, dropped, kept, run

EXPECTED = json.loads((MINI.parent / "oops_expected.json").read_text("utf-8"))
TRAIN = "frames.splits=[train,val]"


def frames_section(*overrides: str):
    return load_profile("demo", list(overrides)).frames


def label(*times: float, length: float = 4.0) -> TransitionLabel:
    return TransitionLabel(times, length, sum(t < 0 for t in times), tuple(t / length for t in times))


def test_no_label_and_no_failure_seen_are_reasons():
    assert transition_time(None, frames_section()) == (None, "no_transition_label")
    assert transition_time(label(-1, -1, 2), frames_section()) == (None, "no_failure_seen")


def test_the_official_time_is_the_middle_one_and_the_median_of_the_valid_an_option():
    votes = label(1.0, -1, 1.4)
    assert transition_time(votes, frames_section()) == (1.0, "")
    time_s, reason = transition_time(votes, frames_section("frames.transition=median_valid"))
    assert (time_s, reason) == (pytest.approx(1.2), "")


def test_the_quality_rule_can_be_switched_off():
    short = label(1, 1, 1, length=2.0)
    assert transition_time(short, frames_section()) == (None, "quality_rule")
    assert transition_time(short, frames_section("frames.quality_rule=false")) == (1, "")


def framed(folder: Path, *overrides: str, root: Path = MINI):
    where = context(folder, "test-000", TRAIN, f"oops.root={root}", *overrides)
    result = run(STAGE, where)
    return where, result


@pytest.fixture(scope="module")
def mini(tmp_path_factory):
    """The small folder with the quality rule off, so that as many clips as can be are decoded."""
    return framed(tmp_path_factory.mktemp("frames"), "frames.quality_rule=false")


@pytest.mark.parametrize("case", EXPECTED, ids=lambda case: case["id"])
def test_each_clip_of_the_small_folder_gives_the_frames_of_its_case_or_the_reason(mini, case):
    where, _ = mini
    key, expected = video_key(case["record"]), case["expected"]
    ids = [f"{key}_goal_frame", f"{key}_wentrong_frame"]
    records, gone = kept(STAGE, where), dropped(STAGE, where)
    if expected.get("before_frame") is not None:
        before, after = (records[each] for each in ids)
        assert before.generator.revision.startswith(f"frame {expected['before_frame']} ")
        assert after.generator.revision.startswith(f"frame {expected['after_frame']} ")
        assert before.wanted_time_s == pytest.approx(expected["before_mid_s"], abs=1e-6)
        assert after.wanted_time_s == pytest.approx(expected["after_mid_s"], abs=1e-6)
        assert before.transition_time_s == after.transition_time_s == expected["official_t"]
        assert before.shown_time_s <= before.wanted_time_s < after.shown_time_s + 1
        assert (before.kind, before.behavior, after.kind, after.behavior) == ("goal", "normal", "wentrong", "anomaly")
        assert before.pair_id == after.pair_id == key
        assert before.source_id == f"{key}_goal"
    elif not expected["video_file"]:
        assert [gone[each] for each in ids] == ["failed: missing_video"] * 2
    elif not expected["labelled"]:
        assert [gone[each] for each in ids] == ["rejected: no_transition_label"] * 2
    elif expected["official_t"] is None:
        assert [gone[each] for each in ids] == ["rejected: no_failure_seen"] * 2
    else:
        assert [gone[each] for each in ids] == ["rejected: nothing_before_transition"] * 2


def test_frames_are_whole_pictures_with_their_digest(mini):
    where, result = mini
    for record in kept(STAGE, where).values():
        assert read_image(record.image, record.id).shape == (record.height, record.width, 3)
        assert record.sha256 == hashlib.sha256(record.image).hexdigest()
        assert record.seed is record.prompt is record.source_caption is None
    assert result.manifest["counts"] == {"in": 18, "kept": 8, "rejected": 8, "failed": 2}


def test_the_quality_rule_drops_what_it_should_for_that_reason(tmp_path):
    where, _ = framed(tmp_path)
    for name, reason in (("Too Short Clip5", "quality_rule"), ("Starts With The Fall0", "quality_rule")):
        assert dropped(STAGE, where)[f"{video_key(name)}_goal_frame"] == f"rejected: {reason}"
    assert len(kept(STAGE, where)) == 6


def test_a_file_that_is_no_video_fails_and_the_run_goes_on(tmp_path):
    root = shutil.copytree(MINI, tmp_path / "oops")
    broken = root / "oops_video" / "val" / "Winter Sled Run (January 2018)10.mp4"
    broken.write_bytes(b"this is no video" * 40)
    where, result = framed(tmp_path, root=root)
    key = video_key("Winter Sled Run (January 2018)10")
    assert dropped(STAGE, where)[f"{key}_goal_frame"] == "failed: unreadable_video"
    assert result.manifest["counts"]["kept"] == 4


def test_a_label_without_any_video_is_counted_as_failed(tmp_path):
    root = shutil.copytree(MINI, tmp_path / "oops")
    path = root / "annotations" / "transition_times.json"
    labels = json.loads(path.read_text("utf-8"))
    labels["Label Of Nothing1"] = labels["In The List But No File9"]
    path.write_text(json.dumps(labels), "utf-8")
    where, result = framed(tmp_path, root=root)
    assert dropped(STAGE, where)[f"{video_key('Label Of Nothing1')}_goal_frame"] == "failed: missing_video"
    assert result.manifest["counts"]["failed"] == 4


def test_clips_are_cut_into_shards_and_each_is_in_one(tmp_path):
    seen = []
    for shard in ("test-000", "test-001", "test-002"):
        where = context(tmp_path, shard, TRAIN, "frames.clips_per_shard=4")
        seen += [item.id for item in STAGE.items(where)]
    assert len(seen) == len(set(seen)) == 18


def test_a_video_that_changes_makes_its_shard_new_and_no_other(tmp_path):
    root = shutil.copytree(MINI, tmp_path / "oops")

    def keys():
        found = []
        for shard in ("test-000", "test-001", "test-002"):
            where = context(tmp_path, shard, TRAIN, "frames.clips_per_shard=4", f"oops.root={root}")
            found.append(content_key(STAGE, where.profile, where.store, shard, {}))
        return found

    before = keys()
    with (root / "oops_video" / "val" / "Winter Sled Run (January 2018)10.mp4").open("ab") as file:
        file.write(b"more")
    assert [old == new for old, new in zip(before, keys(), strict=True)] == [True, True, False]


def test_what_a_decoder_says_of_the_clip_itself_is_a_reason_of_the_stage():
    assert set(JUDGED) <= set(STAGE.reasons)
