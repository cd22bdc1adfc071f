import hashlib
import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from pipeline.core.dataset_folder import is_ours, read_split, split_files
from pipeline.core.images import encode_jpeg, encode_png, read_image
from pipeline.core.imported import SPLITS, picture_fields, write_imported
from pipeline.core.weather import CONDITIONS, weathered
from pipeline.weather import JPEG_QUALITY, main, split_of
from schemas.records import ImportedRow, PublishedImage
from tests.builds import digests

ROOT = Path(__file__).parents[1]


def picture(number: int) -> np.ndarray:
    rows, columns = np.mgrid[0:64, 0:48]
    return np.stack((rows * 3, columns * 4, np.full_like(rows, 40 * number)), 2).astype(np.uint8)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Three rows of a test split; the second is a PNG without a pose map."""
    folder = tmp_path_factory.mktemp("data") / "pab"
    rows = []
    for number in range(3):
        encoded = encode_png(picture(number)) if number == 1 else encode_jpeg(picture(number))
        pose = None if number == 1 else PublishedImage(bytes=encode_png(picture(number) // 2), path="pose.png")
        rows.append(
            ImportedRow(
                **picture_fields(encoded, f"{number}.{'png' if number == 1 else 'jpg'}"),
                caption=f"caption {number}",
                captions=(f"caption {number}", "another"),
                image_id=f"image {number}",
                match_id="pair",
                behavior="anomaly",
                pose=pose,
            )
        )
    write_imported(folder, {"test": rows}, "Made up.")
    return folder


def read(folder: Path, split: str) -> list[dict]:
    return list(read_split(split_files(folder)[split]))


@pytest.fixture(scope="module")
def made(data, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("out") / "weather"
    assert main(["--data", str(data), "--out", str(out)]) == 0
    return out


def test_the_splits_are_those_of_the_published_sets_with_all_rows_in_each(data, made):
    assert set(split_files(made)) == {split_of(each) for each in CONDITIONS} == set(SPLITS) - {"train", "ucc"}
    assert is_ours(made)
    before = read(data, "test")
    assert read(made, "test") == before
    of_the_picture = {"image", "width", "height", "sha256"}
    for condition in CONDITIONS[1:]:
        after = read(made, split_of(condition))
        for old, new in zip(before, after, strict=True):
            assert {k: v for k, v in old.items() if k not in of_the_picture} == {
                k: v for k, v in new.items() if k not in of_the_picture
            }
            assert new["sha256"] == hashlib.sha256(new["image"]["bytes"]).hexdigest()


def test_each_picture_is_the_condition_drawn_by_the_images_id(data, made):
    for condition in CONDITIONS[1:]:
        for old, new in zip(read(data, "test"), read(made, split_of(condition)), strict=True):
            drawn = weathered(read_image(old["image"]["bytes"], ""), condition, old["image_id"])
            assert new["image"]["bytes"] == encode_jpeg(drawn, JPEG_QUALITY)
            assert (new["width"], new["height"]) == (48, 64)


def test_the_same_data_give_the_same_bytes_by_the_command_line(data, made, tmp_path):
    command = [sys.executable, "-m", "pipeline.weather", "--data", str(data), "--out", str(tmp_path / "weather")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "weather_dark_snow 3" in done.stdout
    assert digests(tmp_path / "weather") == digests(made)


def test_the_card_says_that_the_pictures_are_not_the_published_ones(made):
    assert "not with published ones" in " ".join((made / "README.md").read_text("utf-8").split())


def test_a_sheet_of_any_picture_shows_all_ten_conditions(tmp_path, capsys):
    source = tmp_path / "street.jpg"
    source.write_bytes(encode_jpeg(picture(2)))
    assert main(["--image", str(source), "--sheet", str(tmp_path / "new" / "sheet.png")]) == 0
    sheet = Image.open(tmp_path / "new" / "sheet.png")
    assert sheet.format == "PNG"
    assert sheet.width > 5 * 320
    # Of the ten cells none looks like another.
    pixels = np.asarray(sheet)
    tops = np.linspace(60, sheet.height - 330, 2).astype(int)
    cells = {
        pixels[top : top + 250, 10 + left * 330 + 60 : left * 330 + 260].tobytes() for top in tops for left in range(5)
    }
    assert len(cells) == 10


def test_a_dry_run_writes_nothing(data, tmp_path, capsys):
    arguments = ["--data", str(data), "--out", str(tmp_path / "o"), "--sheet", str(tmp_path / "s.png"), "--dry-run"]
    assert main(arguments) == 0
    assert "30 rows" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_bad_input_is_one_line_and_exit_code_2(data, tmp_path, capsys):
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "thesis.txt").write_text("years of work")
    small = tmp_path / "small.png"
    small.write_bytes(encode_png(picture(0)[:20, :20]))
    text = tmp_path / "text.jpg"
    text.write_text("no picture")
    sheet = ["--sheet", str(tmp_path / "s.png")]
    for arguments, says in (
        (["--data", str(tmp_path / "gone")], "no dataset of this project"),
        (["--data", str(data), "--split", "ucc"], "has test"),
        (["--data", str(data), "--out", str(taken)], "something else"),
        (["--data", str(data), "--out", str(data)], "lie in each other"),
        (["--image", str(text)], "--sheet"),
        (["--image", str(text), *sheet], "not an image"),
        (["--image", str(small), *sheet], "28 a side"),
        (["--image", str(tmp_path / "gone.jpg"), *sheet], "cannot be read"),
        (["--image", str(text), "--sheet", "a.gif"], "ends in .png"),
    ):
        assert main(arguments) == 2, arguments
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert error.count("\n") == 1
        assert says in error, arguments
    assert (taken / "thesis.txt").read_text() == "years of work"


def test_rows_are_read_a_few_at_a_time(data, made):
    groups = pq.ParquetFile(split_files(made)["weather_rain"][0]).metadata
    assert groups.num_rows == 3
    assert Image.open(io.BytesIO(read(made, "weather_light")[0]["image"]["bytes"])).format == "JPEG"
