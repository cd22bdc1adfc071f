"""A released folder becomes a dataset of this project, through the command people run."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from PIL import Image

from bench.importing import make_folder
from pipeline import import_pab
from pipeline.core.dataset_folder import read_split, split_files
from pipeline.formats.pab import read_rows

pytest.importorskip("datasets")
ROOT = Path(__file__).parents[1]
CASES = ROOT / "tests" / "cases" / "pab"


STALLED = """
import sys, time
from pipeline import import_pab

real = import_pab._picture

def slow(path, name, check):
    if name == "test/2.jpg":
        print("half way", flush=True)
        time.sleep(60)
    return real(path, name, check)

import_pab._picture = slow
import_pab.main(sys.argv[1:])
"""
"""An import that stands still with half of its rows written."""


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """A released folder with two `imgs_` folders and a test split."""
    folder = tmp_path_factory.mktemp("released") / "pab"
    make_folder(folder, 12, 4, rows_per_folder=6)
    return folder


@pytest.fixture
def folder(released, tmp_path):
    """A copy to break."""
    return Path(shutil.copytree(released, tmp_path / "pab"))


def run(*words: object) -> int:
    return import_pab.main([str(word) for word in words])


def rows_in(out: Path, split: str) -> list[dict]:
    return list(read_split(split_files(out)[split]))


def rejected_in(out: Path) -> list[dict]:
    return [row for path in sorted((out / "rejected").glob("*.parquet")) for row in pq.read_table(path).to_pylist()]


def every_file(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        path.relative_to(folder).as_posix(): (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_every_field_of_the_release_is_in_the_dataset_and_ids_come_out_as_they_went_in(released, tmp_path, capsys):
    assert run(released, "--out", tmp_path / "out") == 0
    rows = rows_in(tmp_path / "out", "train")
    lines = [json.loads(line) for path in sorted((released / "annotation/train_decouple").iterdir())
             for line in path.read_text("utf-8").splitlines()]  # fmt: skip
    assert [row["image_id"] for row in rows] == [line["image_id"] for line in lines]
    for row, line in zip(rows, lines, strict=True):
        assert row["image"] == {"bytes": (released / line["image"]).read_bytes(), "path": line["image"]}
        assert row["pose"]["bytes"] == (released / "pose" / line["image"]).read_bytes()
        assert row["action" if "normal" in line else "anomaly"] == line.get("normal", line.get("anomaly"))
        assert row["behavior"] == ("normal" if "normal" in line else "anomaly")
        assert row["kind"] == line["image"].split("/")[2]
        assert (row["hard_image_id"], row["hard_caption"]) == (line["hard_i_id"], line["hard_c"])
        assert [row["factors"], row["hard_factors"]] == line["decoupled_caption"][0]
        for name in ("caption", "source_id", "source_caption", "scene"):
            assert row[name] == line[name]
        assert row["generator"] is None
    test = rows_in(tmp_path / "out", "test")
    assert [(row["image_id"], row["captions"]) for row in test] == [
        (str(n), [row["caption"]]) for n, row in enumerate(test)
    ]
    assert "train 12, test 4" in capsys.readouterr().out


def test_an_imported_folder_trains_as_the_folder_itself_does(released, tmp_path):
    from pipeline.training.samples import load_samples

    assert run(released, "--out", tmp_path / "out") == 0
    for split in ("train", "test"):
        one, other = load_samples(str(tmp_path / "out"), split), load_samples(f"pab:{released}", split)
        assert [each.id for each in one.samples] == [each.id for each in other.samples]
        for mine, theirs in zip(one.samples, other.samples, strict=True):
            assert (mine.captions, mine.factors, mine.label) == (theirs.captions, theirs.factors, theirs.label)
            assert one.picture(mine.image, "image") == other.picture(theirs.image, "image")
            assert one.picture(mine.pose, "pose") == other.picture(theirs.pose, "pose")
            assert (mine.hard is None) == (theirs.hard is None)
            if mine.hard is not None and theirs.hard is not None:
                assert (mine.hard.id, mine.hard.factors) == (theirs.hard.id, theirs.hard.factors)
                assert one.picture(mine.hard.image, "image") == other.picture(theirs.hard.image, "image")


@pytest.mark.parametrize(
    ("case", "rows", "broken"),
    [
        ("pab_train_ok", 6, {}),
        ("no_final_newline", 6, {}),
        ("blank_lines", 6, {}),
        ("bom", 6, {}),
        ("crlf", 6, {}),
        ("torn_last_line", 5, {"torn_line": 1}),
        ("missing_hard", 1, {"no_hard_negative": 1}),
        ("seda_decoupled", 3, {}),
    ],
)
def test_the_odd_files_of_the_field_are_read_and_what_is_lost_is_counted(tmp_path, case, rows, broken):
    target = tmp_path / "pab/annotation/train/attr_0.json"
    target.parent.mkdir(parents=True)
    shutil.copy(CASES / f"{case}.json", target)
    known, _ = read_rows(target)
    for name in {name for row in known for name in (row["image"], f"train/{row.get('hard_i', '')}")} - {"train/"}:
        (tmp_path / "pab" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(tmp_path / "pab" / name)
    assert run(tmp_path / "pab", "--out", tmp_path / "out") == 0
    assert len(rows_in(tmp_path / "out", "train")) == rows
    reasons: dict[str, int] = {}
    for row in rejected_in(tmp_path / "out"):
        reasons[row["reason"]] = reasons.get(row["reason"], 0) + 1
    assert reasons == broken


def test_broken_rows_are_counted_by_reason_and_listed_with_file_line_and_row(folder, tmp_path, capsys):
    path = folder / "annotation/train_decouple/attr_0.json"
    lines = path.read_text("utf-8").splitlines()
    (folder / json.loads(lines[0])["image"]).unlink()
    (folder / "pose" / json.loads(lines[5])["image"]).write_bytes(b"no picture")
    lines.insert(2, "{no json")
    lines.append(lines[1])
    path.write_text("\n".join(lines) + "\n", "utf-8")
    test = folder / "annotation/test/attr.json"
    test.write_text('{"image": "test/0.jpg", "image_id": 0, "caption": "text"}\n' + test.read_text("utf-8"), "utf-8")
    assert run(folder, "--out", tmp_path / "out") == 0
    found = [(row["split"], row["line"], row["row"], row["reason"]) for row in rejected_in(tmp_path / "out")]
    assert found == [
        ("train", 1, 1, "image_missing"),
        ("train", 2, 2, "hard_image_missing"),
        ("train", 3, 3, "bad_json"),
        ("train", 4, 4, "hard_image_missing"),
        ("train", 7, 7, "pose_unreadable"),
        ("train", 8, 8, "hard_image_missing"),
        ("test", 1, 1, "text_caption_in_test"),
    ]
    said = capsys.readouterr().out
    assert re.search(r"\| train \| hard_image_missing +\| 3 ", said)
    assert "| test  | 5    | 4      | 1      |" in said
    assert len(rows_in(tmp_path / "out", "train")) == 14 - 6
    card = (tmp_path / "out" / "README.md").read_text("utf-8")
    assert "pose_unreadable" in card


def test_a_row_whose_hard_negative_is_no_row_is_told_and_may_be_kept_without_one(folder, tmp_path, capsys):
    path = folder / "annotation/train_decouple/attr_1.json"
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    del lines[0]["hard_i"]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    assert run(folder, "--out", tmp_path / "out") == 0
    assert "1 images are hard negatives of others, but no rows themselves" in capsys.readouterr().out
    assert run(folder, "--out", tmp_path / "out", "--keep-without-hard") == 0
    said = capsys.readouterr().out
    assert "1 training rows have no hard negative" in said
    assert len(rows_in(tmp_path / "out", "train")) == 12


def test_a_finished_import_is_done_again_only_where_something_changed(folder, tmp_path, capsys):
    out = tmp_path / "out"
    assert run(folder, "--out", out) == 0
    before = every_file(out)
    capsys.readouterr()
    assert run(folder, "--out", out) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert every_file(out) == before
    assert run(folder, "--out", out, "--force") == 0
    assert {name: data for name, (_, data) in every_file(out).items()} == {
        name: data for name, (_, data) in before.items()
    }
    (folder / "test/0.jpg").write_bytes((folder / "test/1.jpg").read_bytes() + b"x")
    capsys.readouterr()
    assert run(folder, "--out", out) == 0
    assert "rows a second" in capsys.readouterr().out
    assert rows_in(out, "test")[0]["image"]["bytes"].endswith(b"x")


def test_a_kill_half_way_leaves_the_old_dataset_whole_and_the_next_run_goes_through(folder, tmp_path):
    out = tmp_path / "out"
    assert run(folder, "--out", out) == 0
    before = every_file(out)
    (folder / "test/3.jpg").unlink()
    (folder / "test/3.jpg").write_bytes(b"another")
    with subprocess.Popen(
        [sys.executable, "-c", STALLED, str(folder), "--out", str(out)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "half way\n"
        child.send_signal(signal.SIGKILL)
    assert every_file(out) == before
    assert run(folder, "--out", out) == 0
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []
    assert [row["reason"] for row in rejected_in(out)] == ["image_unreadable"]


def test_a_dry_run_says_what_would_come_and_writes_nothing(folder, tmp_path, capsys):
    assert run(folder, "--out", tmp_path / "out", "--dry-run", "--splits", "test") == 0
    said = capsys.readouterr().out
    assert "| test  | 4    | 4      | 0      |" in said
    assert "train" not in said
    assert not (tmp_path / "out").exists()


def test_checked_pictures_must_be_whole(folder, tmp_path):
    path = folder / "test/0.jpg"
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[: len(data) // 2])
    assert run(folder, "--out", tmp_path / "out") == 0
    assert not (tmp_path / "out" / "rejected").exists()
    assert run(folder, "--out", tmp_path / "out", "--check-pictures") == 0
    assert [row["reason"] for row in rejected_in(tmp_path / "out")] == ["image_unreadable"]


def test_ucc_and_other_weather_are_imported_with_what_their_images_share(folder, tmp_path):
    rows = [{"image": f"test/{n}.jpg", "image_id": n // 2, "caption": [f"a {n}", f"b {n}"]} for n in range(4)]
    (folder / "annotation/test/ucc.json").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    (folder / "annotation/multi-weather").mkdir()
    (folder / "annotation/multi-weather/multi-weather_snow.json").write_text(json.dumps(rows[:1]), "utf-8")
    assert run(folder, "--out", tmp_path / "out") == 0
    ucc = rows_in(tmp_path / "out", "ucc")
    assert [(row["image_id"], row["match_id"]) for row in ucc] == [("0", "0"), ("0#2", "0"), ("1", "1"), ("1#2", "1")]
    assert ucc[1]["captions"] == ["a 1", "b 1"]
    assert len(rows_in(tmp_path / "out", "weather_snow")) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "the folder is not there"),
        (["."], "is this the released PAB folder"),
        (["pab", "--splits", "fog"], "no such split"),
        (["pab", "--splits", "ucc"], r"ucc\.json is not there"),
        (["pab", "--out", "pab/out"], "lie in each other"),
        (["pab", "--out", "mine"], "holds something else"),
    ],
)
def test_a_wrong_command_is_one_line_and_exit_code_2(folder, tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "x").touch()
    assert run(*words) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(said, error)


def test_help_of_the_real_command_names_its_options():
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.import_pab", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert all(word in done.stdout for word in ("--splits", "--dry-run", "--keep-without-hard", "weather_dark_snow"))
