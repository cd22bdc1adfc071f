"""A dataset goes out in the layouts of others, through the command people run, and comes back as it was."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from bench.importing import make_folder, picture
from pipeline import export, import_pab
from pipeline.core.dataset_folder import read_split, split_files
from pipeline.core.imported import picture_fields, write_imported
from schemas.records import Engine, Factors, ImportedRow
from tests.synthetic_build import TRAIN_VIDEOS, publish_build, train_id, write_build

datasets = pytest.importorskip("datasets")
ROOT = Path(__file__).parents[1]
FACTORS = ("appearance", "action", "background")
LICENCE = "--real-frames-licence-confirmed"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A published dataset; both goals of one video are lost, so its other images have no hard negative."""
    root = tmp_path_factory.mktemp("built")
    lost = {train_id(TRAIN_VIDEOS[0], "goal", number): "keypoints" for number in (0, 1)}
    publish_build(*write_build(root, lost))
    return root / "out" / "pab"


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """A released folder, and the dataset that it became."""
    root = tmp_path_factory.mktemp("imported")
    make_folder(root / "pab", 12, 4, rows_per_folder=6)
    ucc = [{"image": f"test/{n}.jpg", "image_id": n // 2 + 7, "caption": ["a", "b"]} for n in range(4)]
    (root / "pab/annotation/test/ucc.json").write_text("".join(json.dumps(row) + "\n" for row in ucc), "utf-8")
    assert import_pab.main([str(root / "pab"), "--out", str(root / "out")]) == 0
    return root / "pab", root / "out"


def run(*words: object) -> int:
    return export.main([str(word) for word in words])


def rows_in(out: Path, split: str) -> list[dict[str, Any]]:
    return list(read_split(split_files(out)[split]))


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").split("\n") if line]


def digest(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def loaded_as_published(folder: Path, decoupled: bool) -> tuple[list[tuple], list[tuple]]:
    """What a loader of the published kind makes of a folder: every line is JSON, keys are asked for without a default.

    Train: (image, pose, hard image, hard pose, captions, class, factors); test: (image, captions, number).
    """
    train, test = [], []
    for number in range(len(list((folder / "annotation/train").glob("attr_*.json")))):
        kind = "train_decouple" if decoupled else "train"
        with (folder / f"annotation/{kind}/attr_{number}.json").open(encoding="utf-8") as file:
            rows = [json.loads(line.strip()) for line in file]
        for row in rows:
            pictures = [
                Image.open(path).convert("RGB").size
                for path in (
                    folder / row["image"],
                    folder / "pose" / row["image"],
                    folder / "train" / row["hard_i"],
                    folder / "pose/train" / row["hard_i"],
                )
            ]
            factors = row["decoupled_caption"][0] if decoupled else []
            assert all(
                isinstance(each[name], str) for each in factors for name in ("appearance", "action", "background")
            )
            train.append(
                (row["image_id"], *pictures, row["caption"], row["hard_c"], 0 if "normal" in row else 1, factors)
            )
            assert ("normal" in row) != ("anomaly" in row)
    for line in (folder / "annotation/test/attr.json").read_text("utf-8").splitlines():
        row = json.loads(line.strip())
        Image.open(folder / "pose" / row["image"]).convert("RGB")
        for caption in row["caption"]:
            assert len(caption) > 1
            test.append((Image.open(folder / row["image"]).convert("RGB").size, caption, row["image_id"]))
    return train, test


@pytest.mark.parametrize("decoupled", [False, True])
def test_loaders_of_the_published_kind_read_the_pab_layout_as_it_is(built, tmp_path, decoupled):
    import torch

    assert run("--format", "pab", "--data", built, tmp_path / "x") == 0
    train, test = loaded_as_published(tmp_path / "x", decoupled)
    assert len(train) == 12
    assert torch.tensor([row[2] for row in test]).dtype == torch.int64
    assert len(test) == len({row[2] for row in test}) == 8
    assert {row[7] for row in train} == {0, 1}


def test_paths_and_ids_are_those_of_the_release(built, tmp_path):
    assert run("--format", "pab", "--data", built, tmp_path / "x") == 0
    for folder in (0, 1):
        lines = lines_of(tmp_path / f"x/annotation/train/attr_{folder}.json")
        assert [line["image_id"] for line in lines] == [f"{folder}_{number}" for number in range(6)]
        kinds = [line["image"].split("/")[2] for line in lines]
        assert kinds == sorted(kinds, key=["goal", "wentrong", "full"].index)
        known = {line["image_id"]: line for line in lines}
        for line, kind in zip(lines, kinds, strict=True):
            number = int(line["image"].rpartition("/")[2].removesuffix(".jpg"))
            assert line["image"] == f"train/imgs_{folder}/{kind}/{number}.jpg"
            assert line["source_id"] == f"{number}_{['goal', 'wentrong', 'full'].index(kind)}"
            hard = known[line["hard_i_id"]]
            assert f"train/{line['hard_i']}" == hard["image"]
            assert line["hard_c"] == hard["caption"]
            assert ("normal" in hard) != ("normal" in line)
            assert hard["source_id"].split("_")[0] == str(number)


def test_rows_without_a_hard_negative_are_left_out_and_counted_or_kept_on_request(built, tmp_path, capsys):
    assert run("--format", "pab", "--data", built, tmp_path / "x") == 0
    assert "train: 4 left out, no_hard_negative" in capsys.readouterr().out
    assert run("--format", "pab", "--data", built, tmp_path / "x", "--keep-without-hard") == 0
    lines = [line for path in (tmp_path / "x/annotation/train").iterdir() for line in lines_of(path)]
    assert len(lines) == 16
    assert sum("hard_i" not in line for line in lines) == 4


SAME_NAME = ("caption", "source_caption", "kind", "behavior", "action", "anomaly", "scene", "hard_caption", "sha256",
             "width", "height")  # fmt: skip


def same(row: dict[str, Any], back: dict[str, Any], split: str) -> None:
    """Whether the fields that both sides have are equal."""
    for name in SAME_NAME:
        assert back[name] == row[name] or (name == "hard_caption" and split != "train"), name
    assert back["image"]["bytes"] == row["image"]["bytes"]
    assert back["pose"]["bytes"] == row["pose"]["bytes"]
    for name in ("factors", "hard_factors")[: 2 if split == "train" else 1]:
        mine, theirs = row[name] or {}, back[name] or {}
        assert {key: mine.get(key) for key in FACTORS} == {key: theirs.get(key) for key in FACTORS}


def test_a_built_dataset_that_went_out_and_came_back_is_what_it_was(built, tmp_path):
    assert run("--format", "pab", "--data", built, tmp_path / "x") == 0
    assert import_pab.main([str(tmp_path / "x"), "--out", str(tmp_path / "back")]) == 0
    names = {(line["split"], line["dataset_image_id"]): line["image_id"]
             for line in lines_of(tmp_path / "x/annotation/image_ids.jsonl")}  # fmt: skip
    pairs: dict[str, str] = {}
    for split, count in (("train", 12), ("test", 8)):
        back = {row["image_id"]: row for row in rows_in(tmp_path / "back", split)}
        rows = [row for row in rows_in(built, split) if (split, row["image_id"]) in names]
        assert len(rows) == len(back) == count
        for row in rows:
            found = back[names[split, row["image_id"]]]
            same(row, found, split)
            assert pairs.setdefault(f"{split} {row['pair_id']}", found["pair_id"]) == found["pair_id"]
            assert pairs.setdefault(f"video {row['video']}", found["video"]) == found["video"]
            if split == "train":
                assert found["hard_image_id"] == names[split, row["hard_image_id"]]
    assert len({(key[:5], value) for key, value in pairs.items()}) == len(pairs)


def test_an_imported_folder_that_goes_out_again_is_the_folder(imported, tmp_path):
    released, out = imported
    assert run("--format", "pab", "--data", out, tmp_path / "x", LICENCE) == 0
    for path in sorted((released / "annotation").rglob("*.json")):
        there = tmp_path / "x" / path.relative_to(released)
        if path.name != "ucc.json":
            assert sorted(map(str, lines_of(there))) == sorted(map(str, lines_of(path)))
    for top in ("train", "test", "pose"):
        assert digest(tmp_path / "x" / top) == digest(released / top)
    assert import_pab.main([str(tmp_path / "x"), "--out", str(tmp_path / "back")]) == 0
    for split in ("train", "test", "ucc"):
        rows, back = ({row["image_id"]: row for row in rows_in(each, split)} for each in (out, tmp_path / "back"))
        assert back == rows


def various(split: str) -> Iterator[ImportedRow]:
    """Rows of a dataset that neither this project nor the release made."""
    for number in range(6):
        normal = number % 2 == 0
        yield ImportedRow(
            **picture_fields(picture(number), f"../../etc/{number}.jpg"),
            pose=picture_fields(picture(number + 1), "p.jpg")["image"],
            caption=f"caption {number}",
            captions=(f"caption {number}", "second") if split != "train" else None,
            image_id=f"{split}/x {number}" if split != "weather_rain" else f"test/x {number}",
            behavior="normal" if normal else "anomaly",
            action=None,
            factors=Factors(appearance="a", action=None, background=None) if number else None,
            hard_image_id=f"train/x {number ^ 1}",
            hard_caption="hard",
            video=f"video {number // 2 % 2}",
            generator=Engine(name="drawn", revision="1"),
        )


def test_rows_with_any_ids_and_paths_get_places_in_the_layout(tmp_path):
    data = tmp_path / "data"
    write_imported(data, {split: various(split) for split in ("train", "test", "weather_rain", "ucc")}, "Made up.")
    assert run("--format", "pab", "--data", data, tmp_path / "x") == 0
    assert import_pab.main([str(tmp_path / "x"), "--out", str(tmp_path / "back")]) == 0
    assert {split: len(rows_in(tmp_path / "back", split)) for split in split_files(tmp_path / "back")} == {
        "train": 6,
        "test": 6,
        "ucc": 6,
        "weather_rain": 6,
    }
    # Three persons' worth of images of two videos: the second image of a video and kind goes to the next folder.
    assert sorted(path.name for path in (tmp_path / "x/annotation/train").iterdir()) == ["attr_0.json", "attr_1.json"]
    test = {line["image_id"]: line for line in lines_of(tmp_path / "x/annotation/test/attr.json")}
    for line in lines_of(tmp_path / "x/annotation/multi-weather/multi-weather_rain.json"):
        assert test[line["image_id"]]["caption"] == line["caption"] == [line["caption"][0], "second"]
        assert line["image"].rpartition("/")[2] == test[line["image_id"]]["image"].rpartition("/")[2]
    assert not (tmp_path / "etc").exists()
    loaded_as_published(tmp_path / "x", decoupled=True)


def test_frames_that_may_show_real_people_stay_unless_their_licence_is_confirmed(imported, tmp_path, capsys):
    _, out = imported
    assert run("--format", "jsonl", "--data", out, tmp_path / "x") == 2
    assert LICENCE in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
    real = tmp_path / "real"
    made = Engine(name="diffusers", revision="1")
    frames = Engine(name="oops", revision="frame 3")
    rows = [row.model_copy(update={"generator": engine}) for row, engine in
            zip(various("train"), (made, made, frames, made, made, made), strict=True)]  # fmt: skip
    write_imported(real, {"train": rows, "test": [row.model_copy(update={"generator": frames}) for row in rows]}, "")
    assert run("--format", "pab", "--data", real, tmp_path / "x") == 0
    said = capsys.readouterr().out
    assert "test: 6 left out, may_show_real_people" in said
    assert "train: 1 left out, may_show_real_people" in said
    assert "train: 1 left out, no_hard_negative" in said  # the one whose hard negative it is
    assert not (tmp_path / "x/test").exists()
    assert run("--format", "pab", "--data", real, tmp_path / "x", LICENCE) == 0
    assert len(lines_of(tmp_path / "x/annotation/test/attr.json")) == 6


def test_webdataset_shards_hold_the_pictures_as_they_are_and_all_other_columns(built, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "SHARD_SAMPLES", 7)
    assert run("--format", "webdataset", "--data", built, tmp_path / "x") == 0
    names = [path.name for path in sorted((tmp_path / "x").glob("*.tar"))]
    assert names == ["test-000000.tar", "test-000001.tar", "train-000000.tar", "train-000001.tar", "train-000002.tar"]
    rows = rows_in(built, "train")
    found = []
    for path in sorted((tmp_path / "x").glob("train-*.tar")):
        with tarfile.open(path) as tar:
            members = tar.getmembers()
            for jpg, pose, told in zip(*[iter(members)] * 3, strict=True):
                key = jpg.name.removesuffix(".jpg")
                assert (pose.name, told.name) == (f"{key}.pose.jpg", f"{key}.json")
                assert (jpg.mtime, jpg.uid) == (0, 0)
                found.append([tar.extractfile(each).read() for each in (jpg, pose, told)])  # type: ignore[union-attr]
    assert len(found) == len(rows) == 16
    for (jpg, pose, told), row in zip(found, rows, strict=True):
        assert (jpg, pose) == (row["image"]["bytes"], row["pose"]["bytes"])
        assert json.loads(told) == {name: value for name, value in row.items() if name not in ("image", "pose")}
        assert Image.open(io.BytesIO(pose)).size
    loaded = datasets.load_dataset("webdataset", data_files={"train": str(tmp_path / "x/train-*.tar")},
                                   split="train", cache_dir=str(tmp_path / "cache"))  # fmt: skip
    assert loaded.num_rows == 16
    assert loaded[0]["json"]["image_id"] == rows[0]["image_id"]


def test_the_image_folder_is_read_by_load_dataset_with_pose_maps_and_columns(built, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "FILES_PER_FOLDER", 10)
    assert run("--format", "jsonl", "--data", built, tmp_path / "x") == 0
    found = datasets.load_dataset(str(tmp_path / "x"), cache_dir=str(tmp_path / "cache"))
    assert {name: split.num_rows for name, split in found.items()} == {"train": 16, "test": 8}
    rows = rows_in(built, "train")
    by_id = {row["image_id"]: row for row in rows}
    for row in found["train"]:
        known = by_id[row["image_id"]]
        assert row["image"].size == row["pose"].size == (known["width"], known["height"])
        assert (row["caption"], row["factors"]["action"]) == (known["caption"], known["factors"]["action"] or "")
        assert json.loads(row["record"]) == {name: known[name] for name in known if name not in ("image", "pose")}
    assert max(len(list(path.iterdir())) for path in (tmp_path / "x/train/images").iterdir()) <= 10


@pytest.mark.parametrize("form", export.FORMATS)
def test_the_same_dataset_gives_the_same_bytes_and_is_not_written_twice(built, tmp_path, capsys, form):
    for name in ("one", "two"):
        assert run("--format", form, "--data", built, tmp_path / name) == 0
    assert digest(tmp_path / "one") == digest(tmp_path / "two")
    capsys.readouterr()
    assert run("--format", form, "--data", built, tmp_path / "one") == 0
    assert "nothing to do" in capsys.readouterr().out
    (tmp_path / "one" / "notes.txt").write_text("mine", "utf-8")
    assert run("--format", form, "--data", built, tmp_path / "one", "--force") == 0
    assert (tmp_path / "one" / "notes.txt").read_text("utf-8") == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


def test_an_error_half_way_leaves_the_earlier_export_whole(built, tmp_path, monkeypatch):
    assert run("--format", "jsonl", "--data", built, tmp_path / "x") == 0
    before = digest(tmp_path / "x")

    def broken(*_):
        raise OSError("the disk is full")

    monkeypatch.setitem(export._WRITERS, "jsonl", broken)
    with pytest.raises(OSError, match="the disk is full"):
        run("--format", "jsonl", "--data", built, tmp_path / "x", "--force")
    assert digest(tmp_path / "x") == before
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_dry_run_counts_and_writes_nothing(built, tmp_path, capsys):
    assert run("--format", "pab", "--data", built, tmp_path / "x", "--dry-run", "--splits", "train") == 0
    said = capsys.readouterr().out
    assert "train: 12 rows go out" in said
    assert "test" not in said.replace("this was", "")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["x", "--data", "nowhere"], "no dataset of this project is there"),
        (["x", "--data", "pab", "--splits", "fog"], "no such split"),
        (["mine", "--data", "pab"], "holds something else"),
        (["pab/x", "--data", "pab"], "lie in each other"),
    ],
)
def test_a_wrong_command_is_one_line_and_exit_code_2(built, tmp_path, monkeypatch, capsys, words, said):
    shutil.copytree(built, tmp_path / "pab")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "x").touch()
    monkeypatch.chdir(tmp_path)
    assert run("--format", "pab", *words) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert said in error


def test_the_real_command_runs(built, tmp_path):
    words = [sys.executable, "-m", "pipeline.export", "--format", "jsonl", "--data", str(built), str(tmp_path / "x")]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "train 16, test 8" in done.stdout
