from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pipeline import report
from pipeline.core.errors import UserError
from pipeline.core.profile import load_profile
from pipeline.core.sheet import contact_sheet
from pipeline.keypoints import stored
from tests.stage_helpers import MINI
from tests.synthetic_build import TEST_VIDEOS, TRAIN_VIDEOS, frame_id, publish_build, train_id, write_build
from tests.test_filters import PINNED, judged_build
from tests.test_keypoints import SIZE, person

LOST = {
    train_id(TRAIN_VIDEOS[0], "full", 0): "keypoints",
    train_id(TRAIN_VIDEOS[1], "goal", 0): "generate",
    frame_id(TEST_VIDEOS[2], "goal"): "attributes",
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory):
    profile, store = write_build(tmp_path_factory.mktemp("report"), LOST)
    publish_build(profile, store)
    return profile, store


def test_every_row_says_in_kept_rejected_and_that_ids_in_are_ids_out(built):
    profile, _ = built
    found = report.summary(profile, "small")
    rows = {(row.count.stage, row.count.split): row for row in found.rows}
    keypoints = rows["keypoints", "train"]
    assert (keypoints.count.went_in, keypoints.count.kept) == (17, 16)
    assert keypoints.count.rejected == {"bad_for_keypoints": 1}
    assert (keypoints.shards, keypoints.of, keypoints.seconds) == (2, 2, 3.0)
    assert rows["publish", "all"].count.rejected == {"partner_missing": 1}
    assert all(row.count.adds_up for row in found.rows)
    assert (found.failed, found.warnings) == (0, ())
    assert list(dict.fromkeys(row.count.stage for row in found.rows)) == [
        "frames", "sources", "generate", "keypoints", "similarity", "recaption", "attributes", "review", "decompose",
        "publish",
    ]  # fmt: skip


def test_pairs_are_counted_by_the_kinds_that_came_through(built):
    profile, _ = built
    pairs = {pair.split: pair.kinds for pair in report.summary(profile, "small").pairs}
    assert pairs == {
        "train": {"goal + wentrong + full": 4, "goal + wentrong": 1, "wentrong + full": 1},
        "test": {"goal + wentrong": 3},
    }


def test_the_keep_rates_by_kind_count_from_the_generator_to_the_dataset(built):
    profile, _ = built
    kinds = {kind.kind: kind for kind in report.summary(profile, "small").kinds}
    assert [(kinds[name].generated, kinds[name].filtered, kinds[name].published) for name in kinds] == [
        (6, 5, 5),
        (6, 6, 6),
        (6, 5, 5),
    ]


def test_the_text_is_a_table_with_reasons_and_the_rates(built):
    profile, _ = built
    text = report.format_summary(report.summary(profile, "small"))
    line = next(line for line in text.splitlines() if line.startswith("keypoints") and "train" in line)
    assert line.split() == ["keypoints", "train", "17", "16", "1", "0", "yes", "3.0", "s", "bad_for_keypoints", "1"]
    assert "goal 83.3 % (PAB 75%)" in text
    assert "test  hard negatives  in the same shard: 6, in another: 0, none: 0" in text


def test_a_row_whose_ids_do_not_add_up_is_marked_and_warned_of(tmp_path):
    import json

    profile, store = write_build(tmp_path)
    path = store.shard_dir("generate", "train-000") / "stage.json"
    manifest = json.loads(path.read_text("utf-8"))
    manifest["counts"]["in"] += 1
    path.write_text(json.dumps(manifest), "utf-8")
    found = report.summary(profile, "small")
    assert any("generate train: 19 went in" in warning for warning in found.warnings)
    line = next(line for line in report.format_summary(found).splitlines() if line.startswith("generate"))
    assert "NO" in line.split()


def test_a_build_that_is_not_finished_says_what_is_missing_and_has_no_sheets(tmp_path):
    profile, _ = write_build(tmp_path)
    found = report.summary(profile, "small")
    assert "not built yet: publish (all)" in found.warnings
    with pytest.raises(UserError, match="publish has not run"):
        report.write_sheets(profile, "small")


def test_a_dataset_that_is_gone_is_noticed(tmp_path):
    profile, store = write_build(tmp_path)
    publish_build(profile, store)
    (profile.out / "data" / "test-00000-of-00002.parquet").unlink()
    assert any("does not hold this build's dataset" in each for each in report.summary(profile, "small").warnings)


def test_the_sheets_are_drawn_once_and_again_where_one_is_damaged(built):
    profile, _ = built
    paths = report.write_sheets(profile, "small")
    assert [path.name for path in paths] == ["contact_sheet.png", "rejected_sheet.png"]
    for path in paths:
        with Image.open(path) as page:
            assert min(page.size) > 300
    before = [path.stat().st_mtime_ns for path in paths]
    assert report.write_sheets(profile, "small") == paths
    assert [path.stat().st_mtime_ns for path in paths] == before
    drawn = paths[0].read_bytes()
    paths[0].write_bytes(drawn[:100])
    assert report.write_sheets(profile, "small") == paths
    assert paths[0].read_bytes() == drawn


def test_scores_are_shown_as_words_and_numbers_and_other_details_as_they_are():
    scores = '{"width": 320, "people": [{"score": 0.18861, "joints": [[1, 2]]}, {"score": 0.1}], "cosine": 0.98}'
    assert report.readable(scores) == "width 320, people: 2, score 0.189, cosine 0.98"
    assert report.readable("[1, 2]") == "[1, 2]"
    assert report.readable("a broken {clip") == "a broken {clip"


def test_nothing_rejected_leaves_no_sheet_of_rejected(tmp_path):
    profile, store = write_build(tmp_path)
    publish_build(profile, store)
    assert [path.name for path in report.write_sheets(profile, "small")] == ["contact_sheet.png"]


def test_the_command_prints_the_table_and_the_sheets(built, capsys):
    profile, _ = built
    override = [f"--set={each}" for each in (f"work={profile.work}", f"out={profile.out}", "footage.val_clips=4",
                                              "frames.clips_per_shard=2", "generate.images_per_caption=2")]  # fmt: skip
    assert report.main(["--build", "small", *override]) == 0
    printed = capsys.readouterr().out
    assert "in = out" in printed
    assert str(profile.work / "small" / "contact_sheet.png") in printed


def test_a_build_that_is_not_there_is_one_clear_line(tmp_path, capsys):
    assert report.main(["--build", "nowhere", f"--set=work={tmp_path}"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "nothing is built" in error


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from pipeline import report\n"
        "try: report.main(['--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'datasets', 'torch', 'pyarrow', 'pandas', 'cv2'} & set(sys.modules)))"
    )
    root = Path(__file__).resolve().parent.parent
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], check=True, cwd=root, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert time.monotonic() - start < 10


def test_a_reviewers_decision_on_a_pair_that_is_not_there_is_told(built, tmp_path):
    profile, _ = built
    file = tmp_path / "decisions.jsonl"
    known = frame_id(TEST_VIDEOS[0], "goal").split("_")[0]
    lines = [f'{{"pair_id": "{pair}", "reviewer": "ann", "keep": true}}' for pair in (known, "mistyped00")]
    file.write_text("\n".join(lines), "utf-8")
    reviewed = profile.model_copy(update={"review": profile.review.model_copy(update={"file": file})})
    told = [warning for warning in report.summary(reviewed, "small").warnings if str(file) in warning]
    assert told == [f"{file}: 1 of its pairs are not in this build: mistyped00"]


# --- the sheets of one filter -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sheets")
    judged_build(folder)
    return folder


def filter_options(folder: Path, *words: str) -> list[str]:
    own = (
        f"work={folder}",
        f"oops.root={MINI}",
        "generate.images_per_caption=1",
        "frames.clips_per_shard=100",
        *PINNED,
    )
    return [*words, "--build", "build", *(f"--set={each}" for each in own)]


def filter_profile(folder: Path):
    own = [
        f"work={folder}",
        f"oops.root={MINI}",
        "generate.images_per_caption=1",
        "frames.clips_per_shard=100",
        *PINNED,
    ]
    return load_profile("demo", own)


def drawn_cells(monkeypatch, folder: Path, stage: str, cells: int = 24):
    """The sheets of a stage, by file name: title, headings and lines of each page."""
    pages = []

    def noted(found, columns, size, title, text_lines):
        pages.append((title, [(cell.heading, cell.lines, cell.pose is not None) for cell in found]))
        return contact_sheet(found, columns, size, title, text_lines)

    monkeypatch.setattr("pipeline.core.sheet.contact_sheet", noted)
    paths = report.write_filter_sheets(filter_profile(folder), "build", stage, cells)
    return [path.name for path in paths], pages


def test_a_filters_sheets_show_every_reason_and_what_was_kept_the_borderline_first(judged, monkeypatch):
    names, pages = drawn_cells(monkeypatch, judged, "keypoints")
    assert names == ["keypoints-kept.png", "keypoints-low_confidence.png", "keypoints-no_person.png"]
    titles = [title for title, _ in pages]
    assert titles[0] == "keypoints, generated images: 3 kept, nearest to the other verdict first"
    assert titles[1] == "keypoints, real frames: 5 kept, nearest to the other verdict first"
    generated = pages[0][1]
    assert [heading for heading, _, _ in generated] == ["v2_goal_000", "v1_goal_000", "v0_goal_000"]
    assert generated[0][1][0] == "0.35 ≥ min_person_score 0.3"
    assert "spreads from being dropped" in generated[0][1][1]
    assert all(with_people for _, _, with_people in generated)
    (cell,) = next(cells for title, cells in pages if "generated images: 1 dropped for low_confidence" in title)
    assert cell[0] == "v3_goal_000"
    assert cell[1][:2] == ("low_confidence", "0.2 < min_person_score 0.3")
    nobody = next(cells for title, cells in pages if "generated images: 1 dropped for no_person" in title)
    assert nobody[0][1] == ("no_person", "nobody to judge: no threshold would keep it")


def test_a_pairs_sheet_has_both_frames_and_the_cosine(judged, monkeypatch):
    names, pages = drawn_cells(monkeypatch, judged, "similarity")
    assert names == ["similarity-kept.png", "similarity-pair_too_alike.png", "similarity-partner_rejected.png"]
    by_title = {title.split(": ")[1].split(",")[0]: cells for title, cells in pages}
    (kept,) = by_title["1 kept"]
    assert kept[0] == "k2"
    assert "≤ max_cosine 0.95" in kept[1][0]
    (alike,) = by_title["1 dropped for pair_too_alike"]
    assert alike[0] == "k1"
    assert "> max_cosine 0.95" in alike[1][1]
    (alone,) = by_title["1 dropped for partner_rejected"]
    assert alone[:2] == ("k3", ("partner_rejected", "goal_frame: no_person"))
    assert all(cell[2] for cell in (kept, alike, alone))


def test_the_cells_are_so_many_at_most_and_shared_out_between_the_filters(judged, monkeypatch):
    _, pages = drawn_cells(monkeypatch, judged, "keypoints", cells=4)
    assert [len(cells) for _, cells in pages[:2]] == [2, 2]
    assert [len(cells) for _, cells in pages[2:]] == [1] * len(pages[2:])
    assert report._shared_out(24, [100, 3]) == [21, 3]
    assert report._shared_out(24, [100, 100]) == [12, 12]
    assert report._shared_out(1, [5]) == [1]


def test_the_same_build_gives_the_same_sheets_and_those_of_a_reason_that_is_no_more_go(judged):
    paths = report.write_filter_sheets(filter_profile(judged), "build", "keypoints")
    before = {path.name: path.read_bytes() for path in paths}
    stale = paths[0].with_name("keypoints-of_before.png")
    stale.write_bytes(b"old")
    other = paths[0].with_name("similarity-of_before.png")
    other.write_bytes(b"another stage's")
    again = report.write_filter_sheets(filter_profile(judged), "build", "keypoints")
    assert {path.name: path.read_bytes() for path in again} == before
    assert not stale.exists()
    assert other.exists()
    other.unlink()


def test_a_record_that_the_profile_would_judge_otherwise_by_now_says_so(judged, monkeypatch):
    pages = []
    monkeypatch.setattr(
        "pipeline.core.sheet.contact_sheet",
        lambda found, columns, size, title, text_lines: (
            pages.append((title, found)) or contact_sheet(found, columns, size, title, text_lines)
        ),
    )
    keypoints = filter_profile(judged).keypoints
    strict = keypoints.structure.model_copy(update={"min_person_score": 0.5})
    changed = filter_profile(judged).model_copy(
        update={"keypoints": keypoints.model_copy(update={"structure": strict})}
    )
    report.write_filter_sheets(changed, "build", "keypoints")
    title, cells = next((title, cells) for title, cells in pages if "generated images: 3 kept" in title)
    assert title.endswith("1 judged otherwise by the profile as it is now")
    assert [cell.lines[-1] for cell in cells if cell.heading == "v2_goal_000"] == [
        "by the profile as it is now: low_confidence"
    ]


def test_stages_without_thresholds_have_sheets_too(built):
    profile, store = built
    paths = report.write_filter_sheets(profile, "small", "attributes")
    assert [path.name for path in paths] == ["attributes-bad_for_attributes.png", "attributes-kept.png"]
    paths = report.write_filter_sheets(profile, "small", "publish")
    assert [path.name for path in paths] == ["publish-kept.png", "publish-partner_missing.png"]
    assert all(path.parent == store.build_dir / "sheets" for path in paths)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--filter", "frames"), "what it drops has no image"),
        (("--filter", "nonsense"), "no such stage"),
        (("--filter", "recaption"), "recaption train-000 is not built"),
        (("--filter", "keypoints", "--cells", "0"), "--cells 0"),
    ],
)
def test_a_filter_that_cannot_be_shown_is_one_clear_line(judged, capsys, words, said):
    assert report.main(filter_options(judged, *words)) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert said in error


def test_the_command_names_the_sheets_of_a_filter(judged, capsys):
    assert report.main(filter_options(judged, "--filter", "similarity", "--cells", "3")) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [Path(line.split()[-1]).name for line in printed] == [
        "similarity-kept.png", "similarity-pair_too_alike.png", "similarity-partner_rejected.png",
    ]  # fmt: skip


def test_joints_that_do_not_count_are_drawn_faint():
    def drawn(joint_score: float) -> int:
        people = [stored(person(scores=joint_score)).model_dump()]
        black = Image.new("RGB", (SIZE, SIZE))
        return int(
            np.asarray(report._with_people(black, {"width": SIZE, "height": SIZE, "persons": people}, 0.3)).max()
        )

    assert drawn(0.9) == 255
    assert 50 < drawn(0.1) < 130
    assert drawn(0.0) == 0
