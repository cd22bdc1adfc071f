from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

from pipeline import report
from pipeline.core.errors import UserError
from tests.synthetic_build import TEST_VIDEOS, TRAIN_VIDEOS, frame_id, publish_build, train_id, write_build

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
