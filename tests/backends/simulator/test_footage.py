import json

import numpy as np
import pytest

pytest.importorskip("pybullet")
pytest.importorskip("cv2")
pytest.importorskip("av")

from pipeline.backends.simulator.captions import _DOING, _FAILING
from pipeline.backends.simulator.failures import FAILURES
from pipeline.backends.simulator.footage import _film, plan_footage, write_annotations, write_clip
from pipeline.backends.simulator.motions import ACTIONS


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("oops")
    plans = plan_footage(2, 2, seed=4, size=96)
    for plan in plans:
        write_clip(root, plan)
    write_annotations(root, plans)
    return root, plans


def test_a_folder_has_every_file_of_the_layout(folder):
    root, plans = folder
    for plan in plans:
        assert (root / "oops_video" / plan.split / f"{plan.name}.mp4").is_file()
        assert (root / "truth" / plan.split / f"{plan.name}.json").is_file()
    names = {path.name for path in (root / "annotations").iterdir()}
    assert names == {
        "train.txt", "val.txt", "filtered_vids.txt", "train_filtered.txt", "val_filtered.txt",
        "transition_times.json", "heldout_transition_times.json",
    }  # fmt: skip
    assert {path.name for path in (root / "svos").iterdir()} == {
        "train.json",
        "val.json",
        "vocab.json",
        "corrections.json",
    }
    listed = (root / "annotations" / "val.txt").read_text("utf-8").splitlines()
    assert listed == [plan.name for plan in plans if plan.split == "val"]


def test_no_temporary_file_is_left(folder):
    assert [path for path in folder[0].rglob("*") if ".part" in path.name] == []


def test_a_clip_starts_at_zero_without_an_edit_list_and_lasts_as_planned(folder):
    root, plans = folder
    for plan in plans:
        path = root / "oops_video" / plan.split / f"{plan.name}.mp4"
        assert b"elst" not in path.read_bytes()
        import av

        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            assert stream.codec_context.name == "h264"
            assert stream.codec_context.pix_fmt == "yuv420p"
            frames = list(container.decode(stream))
        assert frames[0].pts == 0
        assert len(frames) == plan.frames
        assert 3.2 < plan.duration < 30


def test_the_same_clip_is_the_same_bytes_whatever_was_filmed_before(folder, tmp_path):
    root, plans = folder
    for plan in reversed(plans):
        again = write_clip(tmp_path, plan)
        assert again.read_bytes() == (root / "oops_video" / plan.split / again.name).read_bytes()
        truth = f"{plan.name}.json"
        first = (root / "truth" / plan.split / truth).read_bytes()
        assert first == (tmp_path / "truth" / plan.split / truth).read_bytes()


def test_the_truth_tells_before_from_after_at_the_transition(folder):
    root, plans = folder
    for plan in plans:
        truth = json.loads((root / "truth" / plan.split / f"{plan.name}.json").read_text("utf-8"))
        assert len(truth["frames"]) == plan.frames
        if plan.odd == "static":
            continue
        for frame in truth["frames"]:
            assert frame["state"] == ("before" if frame["time"] < plan.turn - 1e-6 else "after")
            joints = np.array(frame["keypoints"])
            assert joints.shape == (17, 3)
            seen = joints[joints[:, 2] > 0, :2]
            assert seen.size == 0 or (seen.min() >= 0 and seen.max() <= plan.size)


def test_the_person_is_seen_before_and_after(folder):
    root, plans = folder
    for plan in plans:
        if plan.odd is not None:
            continue
        truth = json.loads((root / "truth" / plan.split / f"{plan.name}.json").read_text("utf-8"))
        for time in (plan.turn / 2, (plan.turn + plan.duration) / 2):
            frame = max((f for f in truth["frames"] if f["time"] <= time + 1e-6), key=lambda f: f["time"])
            assert sum(joint[2] for joint in frame["keypoints"]) >= 5


def test_plans_are_pure_and_names_unique():
    plans = plan_footage(300, 120, 9)
    assert plans == plan_footage(300, 120, 9)
    assert plans != plan_footage(300, 120, 10)
    names = [plan.name for plan in plans]
    assert len(set(names)) == len(names)
    assert not any("/" in name or name.startswith(".") for name in names)
    assert any(name.encode("utf-8") != name.encode("ascii", "ignore") for name in names)


def test_a_longer_folder_begins_with_the_shorter_one():
    assert plan_footage(50, 0, 9)[:20] == plan_footage(20, 0, 9)


def test_captions_show_no_template():
    texts = [
        text
        for plan in plan_footage(300, 0, 9)
        for caption in plan.captions or ()
        for text in (caption.goal, caption.wentwrong)
        if text
    ]
    assert len(set(texts)) / len(texts) >= 0.9


def test_the_times_are_read_as_the_annotators_gave_them(tmp_path):
    plans = plan_footage(0, 200, 3)
    write_annotations(tmp_path, plans)
    times = json.loads((tmp_path / "annotations" / "transition_times.json").read_text("utf-8"))
    assert set(times) == {plan.name for plan in plans}
    missing = 0
    for plan in plans:
        entry = times[plan.name]
        assert entry["len"] == plan.duration
        assert entry["stdev"] == pytest.approx(np.std(entry["t"]))
        assert entry["rel_t"] == pytest.approx([t / plan.duration for t in entry["t"]])
        assert entry["n_notfound"] == sum(t == -1 for t in entry["t"])
        missing += entry["n_notfound"] >= 2
        valid = [t for t in entry["t"] if t >= 0]
        assert all(abs(t - plan.turn) < 1.2 for t in valid)
    assert 0.01 <= missing / len(plans) <= 0.12
    heldout = json.loads((tmp_path / "annotations" / "heldout_transition_times.json").read_text("utf-8"))
    assert all(len(entry["t"]) == 1 for entry in heldout.values())


def test_caption_keys_are_garbled_as_in_the_archive(tmp_path):
    plans = plan_footage(200, 0, 3)
    write_annotations(tmp_path, plans)
    archive = json.loads((tmp_path / "svos" / "train.json").read_text("utf-8"))
    repaired = {key.encode("cp1252").decode("utf-8") for key in archive}
    assert repaired == {plan.name for plan in plans if plan.captions is not None}
    assert any("Ã" in key for key in archive)
    assert all(len(records) == 2 for records in archive.values())
    assert set(next(iter(archive.values()))[0]) == {"goal", "wentwrong", "kgoalsvos", "kwentwrongsvos"}


@pytest.mark.parametrize("arguments", [(-1, 0, 1), (0, -1, 1)])
def test_a_negative_number_of_clips_is_refused(arguments):
    with pytest.raises(ValueError, match="0 or more"):
        plan_footage(*arguments)


def test_every_action_and_failure_has_its_captions_and_is_filmed():
    plans = plan_footage(400, 0, 2)
    assert {plan.action for plan in plans} == set(ACTIONS) == set(_DOING)
    assert {plan.failure for plan in plans} == set(FAILURES) == set(_FAILING)


def test_a_flip_that_lands_on_the_head_fails_off_its_feet():
    plans = [plan for plan in plan_footage(400, 0, 2, size=64) if plan.failure == "head" and plan.odd is None][:3]
    assert plans
    for plan in plans:
        rows = _film(plan)[1]
        first_after = next(row for row in rows if row["state"] == "after")
        assert first_after["posture"] != "upright"
