from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import verify
from pipeline.backends.simulator.failures import FAILURES
from pipeline.backends.simulator.motions import ACTIONS
from pipeline.backends.simulator.person import CLOTH_COLOURS
from pipeline.backends.simulator.scenes import PLACES
from pipeline.core.errors import UserError
from pipeline.core.profile import Profile, oops_root
from pipeline.core.store import Store, file_digest
from pipeline.verify import Case, Figure, Frame, Truth
from schemas.records import PersonKeypoints, PoseRecord
from tests import synthetic_build
from tests.synthetic_build import TEST_VIDEOS, TRAIN_VIDEOS, frame_id, publish_build, train_id, write_build

TERMS = verify.load_terms()
CLOTHES = {"top": "red", "bottom": "blue"}
BODY = [[100 + 5 * number, 100 + 10 * number, 1] for number in range(17)]
CAPTION = (
    "A person in a red short-sleeved top and blue shorts stands upright with both arms raised and the legs straight. "
    "The scene shows green grass below a blue sky."
)


def options(profile: Profile) -> list[str]:
    values = (
        f"work={profile.work}", f"out={profile.out}", "footage.val_clips=4", "footage.train_clips=3",
        "frames.clips_per_shard=2", "generate.images_per_caption=2", "publish.rows_per_file=7",
        "publish.rows_per_group=3",
    )  # fmt: skip
    return ["--build", "small", *(f"--set={value}" for value in values)]


# --- checks -------------------------------------------------------------------------------------------------------


LOST = {train_id(TRAIN_VIDEOS[0], "full", 0): "keypoints", frame_id(TEST_VIDEOS[2], "goal"): "attributes"}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("verify")
    publish_build(*write_build(root, LOST))
    return root


@pytest.fixture
def built(sound: Path, tmp_path: Path) -> tuple[Profile, Store]:
    """A copy of the build to damage; the note of what was delivered follows it to its new place."""
    root = tmp_path / "copy"
    shutil.copytree(sound, root)
    profile = synthetic_build.small_profile(root)
    store = Store(profile.work / "small")
    publish_build(profile, store)
    return profile, store


def rewrite(store: Store, stage: str, shard: str, change: Any) -> None:
    """Change a shard's first part as rows, and let its manifest say that this is how it should be."""
    folder = store.shard_dir(stage, shard)
    path = folder / "part-00000.parquet"
    table = pq.read_table(path)
    rows = table.to_pylist()
    rows = change(rows) or rows
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)
    manifest = json.loads((folder / "stage.json").read_text("utf-8"))
    manifest["files"][path.name] = file_digest(path)
    (folder / "stage.json").write_text(json.dumps(manifest), "utf-8")


def problems(profile: Profile) -> dict[str, list[str]]:
    return {check.name: check.problems for check in verify.check_build(profile, "small") if check.problems}


def test_a_sound_build_passes_every_check_and_every_check_looks_at_something(built, capsys):
    profile, _ = built
    checks = verify.check_build(profile, "small")
    assert [check for check in checks if check.problems] == []
    assert all(check.cases for check in checks)
    counted = {check.name: check.cases for check in checks}
    assert counted["images have their sha256"] == 18 + 8
    assert counted["factors are of the caption that stands"] == 17 + 7
    assert verify.main(options(profile)) == 0
    assert "WRONG" not in capsys.readouterr().out


def test_a_shard_that_is_missing_is_named(built):
    profile, store = built
    shutil.rmtree(store.shard_dir("attributes", "train-001"))
    assert problems(profile)["every shard is there"] == [
        "attributes train-001 is not built or damaged: run python -m pipeline.attributes"
    ]


@pytest.mark.parametrize("text", ["", '{"counts": {"in"', "{}", "[]", '{"counts": {}, "files": {}}'])
def test_a_manifest_that_cannot_be_read_is_a_finding_and_no_crash(built, text):
    profile, store = built
    (store.shard_dir("recaption", "train-001") / "stage.json").write_text(text, "utf-8")
    assert problems(profile)["every shard is there"] == [
        "recaption train-001 is not built or damaged: run python -m pipeline.recaption"
    ]


def test_a_changed_a_lost_and_a_foreign_file_are_named(built, capsys):
    profile, store = built
    changed = store.shard_dir("recaption", "train-000") / "part-00000.parquet"
    data = bytearray(changed.read_bytes())
    data[len(data) // 2] ^= 1
    changed.write_bytes(bytes(data))
    (store.shard_dir("review", "test-000") / "part-00001.parquet").unlink()
    shutil.copy(changed, store.shard_dir("generate", "train-000") / "part-00009.parquet")
    found = problems(profile)["files are those of stage.json"]
    assert len(found) == 3
    assert "generate train-000: part-00009.parquet is not of this shard" in found[0]
    assert "recaption train-000: part-00000.parquet is not what was written" in found[1]
    assert "review test-000: part-00001.parquet is gone" in found[2]
    assert verify.main(options(profile)) == 1
    assert "is not what was written" in capsys.readouterr().out


def test_a_shard_without_its_files_spoils_only_what_is_said_of_it(built):
    profile, store = built
    for path in store.shard_dir("recaption", "train-000").glob("*.parquet"):
        path.write_bytes(b"")
    assert list(problems(profile)) == ["files are those of stage.json"]


def test_counts_that_do_not_add_up_are_named(built):
    profile, store = built
    path = store.shard_dir("generate", "train-000") / "stage.json"
    manifest = json.loads(path.read_text("utf-8"))
    manifest["counts"]["in"] += 1
    path.write_text(json.dumps(manifest), "utf-8")
    assert problems(profile)["in = kept + rejected + failed"] == [
        "generate train-000: 10 went in, 9 kept, 0 rejected, 0 failed by stage.json, "
        "9 kept, 0 rejected, 0 failed in the files"
    ]


def test_counts_that_add_up_and_are_not_those_of_the_files_are_named(built):
    profile, store = built
    path = store.shard_dir("keypoints", "train-000") / "stage.json"
    manifest = json.loads(path.read_text("utf-8"))
    manifest["counts"] |= {"rejected": 0, "failed": 1}
    path.write_text(json.dumps(manifest), "utf-8")
    assert len(problems(profile)["in = kept + rejected + failed"]) == 1


def test_an_id_that_vanished_between_two_stages_is_named(built):
    profile, store = built
    lost = []
    rewrite(store, "recaption", "train-000", lambda rows: lost.append(rows[0]["id"]) or rows[1:])
    found = problems(profile)
    assert f"recaption train-000: 1 ids do not match, e.g. {lost[0]}" in found["ids in are those of the stage before"]
    assert any("recaption train-000" in each for each in found["in = kept + rejected + failed"])


def test_an_image_that_is_not_that_of_its_sha256_is_named(built):
    profile, store = built

    def swap(rows: list[dict[str, Any]]) -> None:
        rows[0]["image"], rows[1]["image"] = rows[1]["image"], rows[0]["image"]

    rewrite(store, "frames", "test-000", swap)
    assert len(problems(profile)["images have their sha256"]) == 2


@pytest.mark.parametrize(("stage", "shard"), [("recaption", "train-000"), ("review", "test-001")])
def test_factors_of_a_caption_that_no_longer_stands_are_named(built, stage, shard):
    profile, store = built
    changed = []

    def correct(rows: list[dict[str, Any]]) -> None:
        rows[0]["caption"] = "A woman in a green coat."
        changed.append(rows[0]["id"])

    rewrite(store, stage, shard, correct)
    found = problems(profile)["factors are of the caption that stands"]
    assert found == [f"decompose {shard}: the factors of {changed[0]} are of another caption than {stage}'s"]


def test_factors_with_a_sha256_of_another_caption_are_named(built):
    profile, store = built

    def forget(rows: list[dict[str, Any]]) -> None:
        rows[0]["caption_sha256"] = "0" * 64

    rewrite(store, "decompose", "train-001", forget)
    assert len(problems(profile)["factors are of the caption that stands"]) == 1


def test_factors_that_carry_another_caption_are_named(built):
    profile, store = built

    def retell(rows: list[dict[str, Any]]) -> None:
        rows[0]["caption"] = "A woman in a green coat."

    rewrite(store, "decompose", "test-000", retell)
    assert len(problems(profile)["factors are of the caption that stands"]) == 1


def test_a_dataset_folder_that_lost_a_file_is_named(built):
    profile, _ = built
    next((profile.out / "data").glob("test-*.parquet")).unlink()
    assert "does not hold this build's dataset" in problems(profile)["the dataset folder is this build's"][0]


@pytest.mark.parametrize("more", [[], ["--truth"]])
def test_a_build_that_is_not_there_is_one_clear_line(tmp_path, capsys, more):
    assert verify.main([*more, "--build", "nowhere", f"--set=work={tmp_path}"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "python -m pipeline.build" in error


# --- truth of a build ---------------------------------------------------------------------------------------------


def scores(sure: bool) -> str:
    joints = [[0.3, 0.3, 0.9 if sure else 0.0]] * 17
    return json.dumps(
        {"width": 320, "height": 320, "people": [{"score": 0.9 if sure else 0.1, "area_share": 0.2, "joints": joints}]}
    )


def seen(pose: PoseRecord) -> PoseRecord:
    """The record with the body of the truth in it, surely found."""
    joints = tuple(float(value) for joint in BODY for value in joint)
    person = PersonKeypoints(keypoints=joints, box=(100.0, 100.0, 180.0, 260.0), score=0.9)
    return pose.model_copy(update={"persons": (person,), "scores": scores(True)})


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Profile, Store]:
    """A finished build with the truth of its clips and images beside it."""
    plain = synthetic_build._pose
    monkeypatch.setattr(synthetic_build, "_pose", lambda record_id: seen(plain(record_id)))
    profile, store = write_build(tmp_path)
    publish_build(profile, store)
    folder = oops_root(profile) / "truth" / "val"
    folder.mkdir(parents=True)
    for video in TEST_VIDEOS:
        (folder / f"{video}.json").write_text(json.dumps(clip(video)), "utf-8")
    rows = [
        image_row(train_id(video, kind, number), kind)
        for video in TRAIN_VIDEOS
        for kind in ("goal", "wentrong", "full")
        for number in (0, 1)
    ]
    folder = store.build_dir / "truth" / "generate"
    folder.mkdir(parents=True)
    for start in (0, 10):
        text = "".join(json.dumps(row) + "\n" for row in rows[start : start + 10])
        (folder / f"{rows[start]['id']}.jsonl").write_text(text, "utf-8")
    return profile, store


def clip(video: str) -> dict[str, Any]:
    """A clip of the truth in which the failure comes before the frame that every synthetic image claims to show."""
    frames = [
        {"time": number / 10, "state": "before" if number < 10 else "after", "posture": "upright", "keypoints": BODY}
        for number in range(40)
    ]
    return {
        "name": video, "duration": 4.0, "frame_rate": 10, "odd": None, "clothes": CLOTHES, "scene": "park",
        "action": "walking", "failure": "trip", "frames": frames,
    }  # fmt: skip


def image_row(record_id: str, kind: str) -> dict[str, Any]:
    return {
        "id": record_id, "bad": None, "joints": BODY, "clothes": CLOTHES, "scene": "park", "action": "walking",
        "failure": None if kind == "goal" else "trip", "posture": "upright",
    }  # fmt: skip


def test_the_figures_of_a_build_are_printed_and_written_and_a_miss_is_exit_code_1(known, capsys):
    profile, store = known
    assert verify.main(["--truth", *options(profile)]) == 1
    printed = capsys.readouterr().out
    written = json.loads((store.build_dir / "truth_report.json").read_text("utf-8"))
    figures = {(each["group"], each["name"].strip()): each for each in written["figures"]}
    # All synthetic frames claim to be shown at 1.24 s, where the clips' truth says `after`.
    states = figures["frames", "the person's state is before / after"]
    assert (states["value"], states["of"], states["met"]) == (0.5, 8, False)
    due = figures["frames", "shown within a frame of the middle by the truth's duration"]
    assert (due["value"], due["of"]) == (0.5, 8)
    assert figures["pose", "joints within 10 % of the person's height"]["value"] == 1
    assert figures["pose", "joints within 10 % of the person's height"]["of"] == 17 * 26
    assert figures["colours", "bottom"]["value"] == 0  # "A man in a red jacket of ..." names none
    assert figures["colours", "top"]["value"] == 1
    assert figures["labels", "scene"]["value"] == 1
    assert figures["labels", "action"]["of"] == 6 + 4
    assert figures["labels", "anomaly"]["value"] == 0  # "falling" is true of a trip, and not what happened
    assert figures["labels", "anomaly, any fall counted as right"]["value"] == 1
    assert figures["keep rates", "goal"]["value"] == 1
    assert "colours: bottom" in written["missed"]
    assert written["missed"] == [
        f"{each['group']}: {each['name'].strip()}" for each in written["figures"] if each["met"] is False
    ]
    assert f"{len(written['missed'])} of" in printed
    assert "MISSED" in printed


def test_the_report_is_the_same_bytes_again(known):
    profile, store = known
    verify.main(["--truth", *options(profile)])
    first = (store.build_dir / "truth_report.json").read_bytes()
    verify.main(["--truth", *options(profile)])
    assert (store.build_dir / "truth_report.json").read_bytes() == first


def test_targets_that_are_all_met_are_exit_code_0(known, monkeypatch):
    profile, _ = known
    monkeypatch.setattr(verify, "truth_figures", lambda *_: [Figure("pose", "joints", 0.9, 10, 0.85)])
    assert verify.main(["--truth", *options(profile)]) == 0


def test_a_build_on_real_footage_has_no_truth_and_says_so(known, tmp_path, capsys):
    profile, _ = known
    assert verify.main(["--truth", *options(profile), f"--set=oops.root={tmp_path}"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "real footage" in error


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda profile, store: shutil.rmtree(store.build_dir / "truth"), "the truth of .* is not in"),
        (lambda profile, store: shutil.rmtree(oops_root(profile) / "truth"), "the truth of clip .* is not in"),
        (lambda profile, store: (store.build_dir / "publish" / "all" / "stage.json").unlink(), "is not finished"),
    ],
)
def test_a_truth_or_a_stage_that_is_missing_is_an_error(known, damage, message):
    profile, store = known
    damage(profile, store)
    with pytest.raises(UserError, match=message):
        verify.read_cases(profile, "small")


def test_two_truths_of_one_image_and_half_a_line_are_errors(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"id": "x", "bad": null}\n', "utf-8")
    (tmp_path / "b.jsonl").write_text('{"id": "x", "bad": null}\n', "utf-8")
    assert verify.image_truths(tmp_path) == {"x": {"id": "x", "bad": None}}
    (tmp_path / "b.jsonl").write_text('{"id": "x", "bad": "torn"}\n', "utf-8")
    with pytest.raises(UserError, match="two truths of x"):
        verify.image_truths(tmp_path)
    (tmp_path / "b.jsonl").write_text('{"id": "x', "utf-8")
    with pytest.raises(UserError, match="is damaged"):
        verify.image_truths(tmp_path)


# --- figures from cases -------------------------------------------------------------------------------------------


def case(number: int, **changes: Any) -> Case:
    truth = {name: changes.pop(name) for name in list(changes) if name in {f.name for f in dataclasses.fields(Truth)}}
    whole = Truth(
        joints=BODY, posture="upright", top="red", bottom="blue", scene="park", action="walking", failure=None
    )
    made = Case(
        id=f"{number:010x}_goal_000",
        kind="goal",
        pair=f"{number:010x}",
        truth=dataclasses.replace(whole, **truth),
        judged=True,
        scores=json.loads(scores(True)),
        kept=True,
        joints=np.array(BODY, dtype=float),
        caption=CAPTION,
    )
    return dataclasses.replace(made, **changes)


def figures(cases: list[Case]) -> dict[tuple[str, str], Figure]:
    from pipeline.core.profile import load_profile

    return {(each.group, each.name.strip()): each for each in verify.truth_figures(load_profile(), cases, TERMS)}


def test_the_structure_filter_is_measured_by_defect_as_a_count_by_hand_does():
    rejected = [("no_person", "no_person")] * 3 + [("no_person", "cut_off")] + [("no_person", None)] * 2
    rejected += [("cut_off", "cut_off")] * 4 + [("broken_body", "torn")] + [(None, "torn")] * 3 + [(None, "no_person")]
    cases = [case(number, reason=reason, bad=bad, kept=reason is None) for number, (reason, bad) in enumerate(rejected)]
    cases += [case(100 + number) for number in range(5)]
    found = figures(cases)
    group = "structure filter"
    assert found[group, "no person, precision"].value == pytest.approx(3 / 6)
    assert found[group, "no person, precision"].note == "2 of 6 are sound images"
    assert found[group, "no person, recall"].value == pytest.approx(3 / 4)
    assert found[group, "cut off, precision"].value == 1
    assert found[group, "cut off, recall"].value == pytest.approx(4 / 5)
    assert found[group, "cut off, dropped for any reason"].value == 1
    assert (found[group, "torn, recall"].value, found[group, "torn, recall"].at_least) == (0.25, None)
    assert found[group, "sound and upright, kept"].value == pytest.approx(5 / 7)


def test_the_people_filter_is_measured_by_posture_and_on_images_without_a_person():
    doubted = json.loads(scores(False))
    cases = [case(number, posture="fallen") for number in range(3)]
    cases += [case(10, posture="fallen", scores=doubted), case(11), case(12, bad="no_person", posture=None)]
    found = figures(cases)
    assert found["people filter", "recall fallen, generated images"].value == 0.75
    assert found["people filter", "recall upright, generated images"].value == 1
    assert found["people filter", "recall upright, frames"].value is None
    assert found["people filter", "precision"].value == pytest.approx(4 / 5)


def test_only_pairs_that_the_pair_filter_judged_count():
    def pair(number: int, odd: str | None, too_alike: bool | None) -> Case:
        return case(number, frame=Frame(1.0, 1.0, 1.0, 0.1, True, odd), too_alike=too_alike)

    cases = [pair(0, "static", True), pair(1, "static", False), pair(2, "static", None), pair(3, "tiny", True)]
    cases += [pair(number, None, number == 4) for number in range(4, 8)]
    cases += cases[:1]  # both frames of a pair are one pair
    found = figures(cases)
    assert (found["pair filter", "static clips dropped"].value, found["pair filter", "static clips dropped"].of) == (
        0.5,
        2,
    )
    assert (found["pair filter", "real failures kept"].value, found["pair filter", "real failures kept"].of) == (
        0.75,
        4,
    )


def test_frames_are_on_time_within_one_frame_and_no_more():
    def shown(number: int, wanted: float, at: float) -> Case:
        return case(number, frame=Frame(wanted, wanted, at, 0.1, True, None))

    found = figures([shown(0, 1.05, 1.0), shown(1, 1.1, 1.0), shown(2, 1.21, 1.0), shown(3, 0.8, 1.0)])
    assert found["frames", "shown within a frame of the time asked for"].value == 0.5


def test_a_colour_that_is_not_named_is_wrong_and_so_is_any_where_nobody_can_be_seen():
    cases = [
        case(0),
        case(1, caption="A person stands on green grass."),
        case(2, bad="no_person"),
        case(3, top="green"),
    ]
    cases += [case(4, caption=None)]
    found = figures(cases)
    assert (found["colours", "top"].value, found["colours", "top"].of) == (0.2, 5)
    assert found["colours", "top"].note == "2 not named"
    assert found["colours", "top where one is named"].of == 3
    assert found["colours", "bottom"].value == 0.4


@pytest.mark.parametrize(
    ("caption", "posture"),
    [
        ("A person in a red top stands upright with straight legs.", "upright"),
        ("A person leans to one side with one arm raised.", "upright"),
        ("A person crouches, the hips held low.", "upright"),
        ("A person has the body almost horizontal.", "fallen"),
        ("A woman is lying on the grass, upright trees behind.", "fallen"),
        ("A boy tumbles off the bike and falls.", "fallen"),
        ("A man is upside down, the head below the hips.", "upside_down"),
        ("A man is head down with the legs up.", "upside_down"),
        ("The body is visible from the head down to the feet.", None),
        ("A person can be seen with the knees bent.", None),
    ],
)
def test_the_posture_is_read_from_the_words(caption, posture):
    found = figures([case(0, caption=caption, posture=posture or "upright")])
    assert found["posture", "upright / fallen / upside down"].value == (posture is not None)


@pytest.mark.parametrize("caption", [CAPTION, "Nobody can be made out here."])
def test_a_kept_image_without_a_person_has_no_right_posture(caption):
    cases = [case(0, posture=None, bad="no_person", caption=caption)]
    assert figures(cases)["posture", "upright / fallen / upside down"].value == 0


def test_torn_bodies_are_left_out_of_the_joints_and_counted():
    off = np.add(BODY, [500.0, 0.0, 0.0])
    found = figures([case(0), case(1, bad="torn", joints=off), case(2, joints=off)])
    assert found["pose", "joints within 10 % of the person's height"].value == 0.5
    assert found["pose", "with the torn bodies"].value == pytest.approx(1 / 3, abs=1e-6)
    assert found["pose", "joints within 10 % of the person's height"].note == "1 torn bodies left out"


def test_what_captions_name_is_counted_apart_and_together():
    cases = [case(0), case(1, caption="A person in a red top can be seen."), case(2, caption="It stands on the grass.")]
    found = figures(cases)
    assert [found["captions", f"naming {each}"].value for each in ("appearance", "action", "place", "all three")] == [
        pytest.approx(2 / 3, abs=1e-6), pytest.approx(2 / 3, abs=1e-6), pytest.approx(2 / 3, abs=1e-6),
        pytest.approx(1 / 3, abs=1e-6),
    ]  # fmt: skip
    assert found["captions", "25 to 56 words"].value == pytest.approx(1 / 3, abs=1e-6)
    assert figures([case(0), case(1)])["captions", "distinct"].value == 0.5


def test_a_target_without_a_case_is_neither_met_nor_missed():
    assert Figure("pose", "joints", None, 0, 0.85).met is None
    assert Figure("pose", "joints", 0.85, 9, 0.85).met is True
    assert Figure("pose", "joints", 0.84, 9, 0.85).met is False
    assert "no case" in verify.format_figures([Figure("pose", "joints", None, 0, 0.85)])


def test_the_terms_know_every_name_of_the_simulators_truth_and_no_other():
    assert set(TERMS.actions) == set(ACTIONS)
    assert set(TERMS.failures) == set(FAILURES)
    assert set(TERMS.scenes) == set(PLACES)
    assert set(CLOTH_COLOURS) <= set(TERMS.colours)
    assert set(TERMS.posture) == {"upright", "fallen", "upside_down"}


def test_no_word_names_two_colours_or_two_garments():
    words = [word for row in TERMS.colours.values() for word in row]
    assert len(words) == len(set(words))
    assert not set(TERMS.garments["top"]) & set(TERMS.garments["bottom"])


def test_a_name_without_terms_is_one_clear_line():
    with pytest.raises(UserError, match="has no words for 'moon'"):
        figures([case(0, scene="moon")])


def test_help_is_quick_and_loads_nothing_heavy():
    code = (
        "import sys; from pipeline import verify\n"
        "try: verify.main(['--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'datasets', 'torch', 'pyarrow', 'pandas', 'cv2'} & set(sys.modules)))"
    )
    start = time.monotonic()
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run([sys.executable, "-c", code], check=True, cwd=root, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "--truth" in done.stdout
    assert time.monotonic() - start < 10
