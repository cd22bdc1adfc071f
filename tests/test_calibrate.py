from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from pipeline import calibrate, filters, verify
from pipeline.calibrate import Known, Sweep, Wish, edited_profile
from pipeline.core.errors import UserError
from pipeline.core.pose import PeopleThresholds, decide_people
from pipeline.core.profile import PROFILES_DIR, load_profile
from pipeline.filters import Judged
from pipeline.verify import Case, Frame, Truth
from tests.core.test_thresholds import image_of, standing
from tests.stage_helpers import MINI
from tests.test_filters import PINNED, frame_ids, judged_build

PROFILE = load_profile("demo", ["keypoints.people.min_person_score=0.4"])
RULES = filters.rules_for(PROFILE, "keypoints.people")


def records(scores: list[float], sound: list[bool | None]) -> tuple[list[Judged], dict[str, Known]]:
    """Bodies that differ in nothing but the engine's score, and what is known of them."""
    judged = [
        Judged(f"r{number:03d}", "test-000", ("goal", "wentrong")[number % 2], (f"r{number:03d}",), detail)
        for number, detail in enumerate(image_of(standing(score=score)) for score in scores)
    ]
    return judged, {each.id: Known(is_sound, str(is_sound)) for each, is_sound in zip(judged, sound, strict=True)}


def swept(scores: list[float], sound: list[bool | None] | None = None, wish: Wish | None = None) -> Sweep:
    judged, known = records(scores, sound or [None] * len(scores))
    return calibrate.sweep(RULES, "min_person_score", judged, known if sound else {}, wish or Wish())


GOOD, BAD = [0.7, 0.75, 0.8, 0.85, 0.9] * 8, [0.45, 0.5, 0.52, 0.55] * 10


def test_what_is_proposed_parts_good_from_bad_in_the_middle_between_them():
    found = swept(GOOD + BAD, [True] * 40 + [False] * 40)
    assert found.proposed is not None
    assert 0.55 < found.proposed <= 0.7
    row = found.row(found.proposed)
    assert (row.precision, row.recall, row.f1) == (1, 1, 1)
    assert found.row(found.present).f1 == pytest.approx(2 * 40 / (2 * 40 + 40))


def test_the_figures_of_every_row_are_those_of_deciding_anew():
    judged, known = records(GOOD + BAD, [True] * 40 + [False] * 40)
    found = swept(GOOD + BAD, [True] * 40 + [False] * 40)
    base = PROFILE.keypoints.people.model_dump()
    for row in found.rows[:: max(1, len(found.rows) // 8)]:
        values = PeopleThresholds(**{**base, "min_person_score": row.value})
        kept = [each for each in judged if decide_people(each.detail, values) is None]
        right = sum(known[each.id].sound is True for each in kept)
        assert sum(row.kept.values()) == len(kept)
        assert row.kept == {kind: sum(each.kind == kind for each in kept) for kind in ("goal", "wentrong")}
        assert row.recall == right / 40
        assert row.precision == (right / len(kept) if kept else None)


def test_a_value_that_is_not_clearly_better_leaves_the_present_one():
    found = swept([0.9] * 50 + [0.41], [True] * 50 + [False])
    assert found.row(0.42 if any(row.value == 0.42 for row in found.rows) else found.rows[-1].value)
    assert found.proposed == found.present == 0.4
    assert "stands" in calibrate.format_sweep(found)


def test_the_least_recall_bounds_what_is_proposed():
    scores, sound = [0.9] * 20 + [0.5] * 10 + [0.45] * 60, [True] * 30 + [False] * 60
    free, bound = swept(scores, sound), swept(scores, sound, Wish(min_recall=1.0))
    assert free.proposed is not None
    assert bound.proposed is not None
    assert free.row(free.proposed).f1 == 1
    overlapping = [0.9] * 20 + [0.42] * 5 + [0.45] * 60
    wish = Wish(min_recall=0.99)
    assert swept(overlapping, [True] * 25 + [False] * 60).proposed > 0.45
    assert swept(overlapping, [True] * 25 + [False] * 60, wish).proposed <= 0.42
    # Losing a single good record is not clearly worse, but it is less than was asked for.
    one_lower = swept([0.9] * 50 + [0.6] + [0.55] * 40, [True] * 51 + [False] * 40, Wish(min_recall=1.0))
    assert one_lower.row(one_lower.proposed).recall == 1
    assert one_lower.proposed > 0.55
    nobody = [Judged("x", "test-000", "goal", ("x",), image_of())]
    none = calibrate.sweep(RULES, "min_person_score", nobody, {"x": Known(True, "lost")}, wish)
    assert none.proposed is None
    assert "nothing is proposed" in none.why


def test_records_of_which_nothing_is_known_do_not_count():
    with_unknown = swept(GOOD + BAD + [0.1] * 30, [True] * 40 + [False] * 40 + [None] * 30)
    row = with_unknown.row(0.4)
    assert row.recall == 1
    assert sum(row.of.values()) == 110


def test_without_knowledge_the_valley_is_proposed_and_of_a_single_hill_nothing():
    found = swept(GOOD + [0.1, 0.12, 0.15, 0.2] * 10)
    assert found.proposed is not None
    assert 0.2 < found.proposed < 0.7
    assert found.rows[0].f1 is None
    single = swept(np.random.Generator(np.random.PCG64(3)).normal(0.6, 0.05, 300).round(4).tolist())
    assert single.proposed is None
    assert "single hill" in calibrate.format_sweep(single)


def test_the_keep_rate_is_reached_or_said_to_be_out_of_reach():
    scores = [round(0.3 + 0.006 * number, 4) for number in range(100)]
    found = swept(scores, wish=Wish(keep_rate=0.75))
    assert found.proposed is not None
    assert found.row(found.proposed).keep_rate == pytest.approx(0.75, abs=0.02)
    judged, _ = records([0.9] * 2, [True] * 2)
    lost = [Judged(f"x{number}", "test-000", "goal", (f"x{number}",), image_of()) for number in range(8)]
    bounded = calibrate.sweep(RULES, "min_person_score", [*judged, *lost], {}, Wish(keep_rate=0.75))
    assert "no value reaches" in bounded.why


def test_a_least_recall_without_knowledge_is_an_error():
    with pytest.raises(UserError, match="--min-recall"):
        swept(GOOD, wish=Wish(min_recall=0.9))


def test_no_record_at_all_is_a_table_without_figures():
    found = calibrate.sweep(RULES, "min_person_score", [], {}, Wish())
    assert found.proposed is None
    assert "no record" in calibrate.format_sweep(found)
    assert calibrate.draw_histogram(found) is None


def test_of_proposals_that_spoil_each_other_the_one_that_gains_less_is_left_out():
    """Either threshold alone drops most of the bad ones; both together would drop good ones twice over."""
    good = [standing(score=0.9, area_share=0.9)] * 60
    few_low = [standing(score=0.5, area_share=0.9)] * 8  # good, lost to a higher score
    few_small = [standing(score=0.9, area_share=0.05)] * 8  # good, lost to a higher area
    bad = [standing(score=0.45, area_share=0.04)] * 60
    bodies = [*good, *few_low, *few_small, *bad]
    judged = [Judged(f"r{n}", "test-000", "goal", (f"r{n}",), image_of(body)) for n, body in enumerate(bodies)]
    known = {each.id: Known(number < 76, "x") for number, each in enumerate(judged)}
    sweeps = [calibrate.sweep(RULES, name, judged, known, Wish()) for name in ("min_person_score", "min_area_share")]
    strict = []
    for each, value in zip(sweeps, (0.6, 0.1), strict=True):
        row = calibrate.together(RULES, each.cases, {each.name: value}, value)
        strict.append(replace(each, rows=(*each.rows, row), proposed=value))
    values, left_out, row = calibrate.chosen_values(strict, Wish())
    assert len(values) == len(left_out) == 1
    assert row.f1 == calibrate.together(RULES, strict[0].cases, values).f1
    both = calibrate.together(RULES, strict[0].cases, {"min_person_score": 0.6, "min_area_share": 0.1})
    assert both.f1 < row.f1


def test_what_was_wished_for_is_chosen_though_f1_falls():
    scores, sound = [0.9] * 20 + [0.42] * 5 + [0.3] * 5 + [0.35] * 60, [True] * 30 + [False] * 60
    for wish in (Wish(keep_rate=1.0), Wish(min_recall=1.0)):
        found = swept(scores, sound, wish)
        assert found.proposed is not None
        assert found.proposed <= 0.3
        values, left_out, row = calibrate.chosen_values([found], wish)
        assert values == {"min_person_score": found.proposed}
        assert not left_out
        assert row.recall == 1
        assert row.f1 < found.row(found.present).f1


def test_the_table_marks_the_present_and_the_proposed_value_and_is_short():
    found = swept(GOOD + BAD, [True] * 40 + [False] * 40)
    text = calibrate.format_sweep(found)
    lines = text.splitlines()
    assert lines[0].startswith("keypoints.people.min_person_score (dropped below; 40 goal, 40 wentrong)")
    assert next(line for line in lines if line.endswith("  present")).split()[0] == "0.4"
    assert next(line for line in lines if line.endswith("  proposed")).split()[0] == f"{found.proposed:g}"
    assert lines[1].split()[-3:] == ["precision", "recall", "F1"]
    assert len(lines) <= 28


def test_the_same_records_give_the_same_picture(tmp_path):
    found = swept(GOOD + BAD, [True] * 40 + [False] * 40)
    first = calibrate.write_histogram(tmp_path / "a", found)
    second = calibrate.write_histogram(tmp_path / "b", swept(GOOD + BAD, [True] * 40 + [False] * 40))
    assert first is not None
    assert second is not None
    assert first.name == "keypoints.people.min_person_score.png"
    assert first.read_bytes() == second.read_bytes()


# --- the profile --------------------------------------------------------------------------------------------------

TEXT = """# kept
keypoints:   # the filter
  people: {min_joints: 6, min_person_score: 0.4}  # in one line
  structure:
    min_person_score: 0.40   # why 0.4
similarity: {max_cosine: 0.95}
"""


def test_only_the_values_change_and_comments_stay():
    values = {
        "keypoints.people.min_joints": 9.0,
        "keypoints.structure.min_person_score": 0.123,
        "similarity.max_cosine": 1.0,
    }
    edited = edited_profile(TEXT, values, "x.yaml")
    assert edited == TEXT.replace("min_joints: 6", "min_joints: 9").replace("0.40 ", "0.123 ").replace("0.95", "1")


def test_a_small_value_stays_a_number():
    assert (
        yaml.safe_load(edited_profile(TEXT, {"similarity.max_cosine": 0.00002}, "x"))["similarity"]["max_cosine"]
        == 2e-5
    )


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("keypoints: {people: {min_joints: 6}}", "no value at keypoints.people.min_person_score"),
        ("a: &v {min_person_score: 0.4}\nkeypoints: {people: *v}", "alias"),
        ("", "no value at"),
    ],
)
def test_a_text_whose_value_is_missing_or_shared_is_left_alone(text, what):
    with pytest.raises(UserError, match=what):
        edited_profile(text, {"keypoints.people.min_person_score": 0.5}, "x.yaml")


# --- the command --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("calibrate")
    judged_build(root)
    return root


def command(folder: Path, *words: str) -> list[str]:
    own = (
        f"work={folder}",
        f"oops.root={MINI}",
        "generate.images_per_caption=1",
        "frames.clips_per_shard=100",
        *PINNED,
    )
    return [*words, "--build", "build", *(f"--set={each}" for each in own)]


def test_real_footage_has_no_truth_and_the_sweep_does_without(folder, capsys):
    assert calibrate.main(command(folder, "keypoints", "--threshold", "structure.min_person_score")) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"note: {MINI} is real footage")
    assert "F1" not in printed
    assert "5 goal" in printed
    path = folder / "build" / "calibration" / "keypoints.structure.min_person_score.png"
    assert f"look at {path}" in printed
    with Image.open(path) as page:
        assert min(page.size) > 300


def test_all_thresholds_of_a_stage_are_swept(folder, capsys):
    assert calibrate.main(command(folder, "keypoints")) == 0
    printed = capsys.readouterr().out
    for section in ("people", "structure"):
        for name in (name for name, value in getattr(PROFILE.keypoints, section) if value is not None):
            assert f"keypoints.{section}.{name} (" in printed
            assert (folder / "build" / "calibration" / f"keypoints.{section}.{name}.png").is_file()
    structure, people = printed.split("keypoints.people.min_joint_score (")
    assert structure.count("PAB kept goal 75 %\n") == len(PROFILE.keypoints.structure.model_dump())
    assert "PAB kept" not in people
    assert "off, and so not swept: keypoints.structure.min_limbs, " in printed
    assert calibrate.main(command(folder, "similarity")) == 0
    assert "2 pair)" in capsys.readouterr().out


def test_a_rule_that_is_off_is_swept_from_the_value_that_it_is_given(folder, capsys, tmp_path):
    words = ("keypoints", "--threshold", "max_outside_share")
    assert calibrate.main(command(folder, *words)) == 2
    assert "the rule is off; give it a value to start from with --set keypoints.structure.max_outside_share=" in (
        capsys.readouterr().err
    )
    profile, target = tmp_path / "own.yaml", tmp_path / "new.yaml"
    text = (PROFILES_DIR / "demo.yaml").read_text()
    profile.write_text(text.replace("max_stretch: 2.6", "max_stretch: 2.6\n    max_outside_share: null"))
    on = "--set=keypoints.structure.max_outside_share=0.5"
    assert calibrate.main([*command(folder, *words), on]) == 0
    assert "keypoints.structure.max_outside_share (dropped above; 5 goal" in capsys.readouterr().out
    other = ("keypoints", "--threshold", "structure.min_person_score", "--keep-rate", "0.4")
    rest = ("--write", str(target), "--profile", str(profile))
    assert calibrate.main([*command(folder, *other, *rest), on]) == 0
    assert load_profile(str(target)).keypoints.structure.max_outside_share == 0.5


def test_what_the_simulator_knows_tells_precision_and_recall(folder, capsys, monkeypatch):
    def case(record_id: str, bad: str | None, frame: Frame | None) -> Case:
        seen = [[0, 0, 0 if bad == "no_person" else 1]] * 17
        posture = None if bad == "no_person" else "upright"
        truth = Truth(seen, posture, "red", "blue", "park", "walk", None, bad)
        return Case(record_id, "goal", record_id.split("_")[0], truth, frame)

    defects = (None, None, "torn", "cut_off", "no_person")
    cases = [case(f"v{number}_goal_000", bad, None) for number, bad in enumerate(defects)]
    for record_id in frame_ids():
        odd = "static" if record_id.startswith("k1") else None
        cases.append(case(record_id, None, Frame(1, 1, 1, 0.04, True, odd)))
    monkeypatch.setattr(verify, "read_cases", lambda *_: cases)
    manifest = calibrate.Store.manifest
    monkeypatch.setattr(
        calibrate.Store,
        "manifest",
        lambda store, stage, shard: {} if stage == "publish" else manifest(store, stage, shard),
    )
    own = [f"work={folder}", "generate.images_per_caption=1", "frames.clips_per_shard=100", *PINNED]
    profile = load_profile("demo", own)
    sweeps, why = calibrate.calibrate(profile, "build", "keypoints", "structure.min_person_score", Wish())
    assert why == ""
    row = sweeps[0].row(profile.keypoints.structure.min_person_score)
    assert (row.precision, row.recall) == (pytest.approx(2 / 3), 1)
    names = {case.judged.id: case.known.name for case in sweeps[0].cases}
    assert [names[f"v{number}_goal_000"] for number in range(5)] == ["sound", "sound", "torn", "cut off", "no person"]
    people = calibrate.calibrate(profile, "build", "keypoints", "people.min_person_score", Wish())[0][0]
    assert people.rows[0].of == {"goal": 3, "wentrong": 3, "generated": 5}
    pairs = calibrate.calibrate(profile, "build", "similarity", None, Wish())[0][0]
    assert (pairs.row(0.95).precision, pairs.row(0.95).recall) == (1, 1)


def test_a_copy_of_the_profile_is_written_with_the_proposed_value_and_what_was_set(folder, tmp_path, capsys):
    target = tmp_path / "new.yaml"
    words = ("keypoints", "--threshold", "structure.min_person_score", "--keep-rate", "0.4", "--write", str(target))
    shipped = (PROFILES_DIR / "demo.yaml").read_bytes()
    assert calibrate.main([*command(folder, *words), "--set=keypoints.structure.min_joints=7"]) == 0
    written = load_profile(str(target))
    assert 0.35 < written.keypoints.structure.min_person_score <= 0.6
    assert written.keypoints.structure.min_joints == 7
    before = load_profile("demo").model_dump()
    after = written.model_dump()
    for name in ("min_person_score", "min_joints"):
        before["keypoints"]["structure"].pop(name)
        after["keypoints"]["structure"].pop(name)
    assert before == after
    assert (PROFILES_DIR / "demo.yaml").read_bytes() == shipped
    assert target.read_text("utf-8").startswith(shipped.decode().splitlines()[0])
    assert f"written to {target}" in capsys.readouterr().out
    first = target.read_bytes()
    assert calibrate.main(command(folder, *words)) == 2
    assert "--force" in capsys.readouterr().err
    assert target.read_bytes() == first
    assert calibrate.main(command(folder, *words, "--force")) == 0
    assert target.read_bytes() != first  # without --set min_joints=7


def test_without_a_name_the_copy_goes_into_the_builds_folder(folder, capsys):
    words = ("keypoints", "--threshold", "people.min_person_score", "--keep-rate", "0.9", "--write", "--force")
    assert calibrate.main(command(folder, *words)) in (0, 2)
    told = capsys.readouterr()
    target = folder / "build" / "calibration" / "demo.yaml"
    assert target.is_file() == (f"written to {target}" in told.out)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("frames",), "frames has no thresholds: the filters are keypoints and similarity"),
        (("keypoints", "--threshold", "min_person_score"), "keypoints.structure.min_person_score or keypoints.people"),
        (("keypoints", "--threshold", "nonsense"), "no such threshold"),
        (("keypoints", "--threshold", "similarity.max_cosine"), "no such threshold"),
        (("keypoints", "--keep-rate", "0.7", "--write"), "name the one to change"),
        (("similarity", "--min-recall", "0.9"), "--min-recall"),
        (("similarity", "--keep-rate", "0.5", "--threshold", "max_cosine", "--write", "/nowhere/x.yaml"), "not there"),
    ],
)
def test_a_wrong_command_is_one_clear_line(folder, capsys, words, said):
    assert calibrate.main(command(folder, *words)) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert said in error


@pytest.mark.parametrize(
    "words", [("--keep-rate", "1.5"), ("--keep-rate", "much"), ("--records", "0"), ("--min-recall", "0")]
)
def test_a_share_or_a_number_that_is_none_is_refused(folder, words):
    with pytest.raises(SystemExit) as stopped:
        calibrate.main(command(folder, "keypoints", *words))
    assert stopped.value.code == 2


def test_a_build_that_is_not_there_is_one_clear_line(tmp_path, capsys):
    assert calibrate.main(command(tmp_path, "keypoints")) == 2
    assert "is not built" in capsys.readouterr().err


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from pipeline import calibrate\n"
        "try: calibrate.main(['--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'datasets', 'torch', 'pyarrow', 'pandas', 'cv2', 'matplotlib'} & set(sys.modules)))"
    )
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run([sys.executable, "-c", code], check=True, cwd=root, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"
