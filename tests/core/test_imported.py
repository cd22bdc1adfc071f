import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from bench.importing import picture
from pipeline.core.dataset_folder import is_ours, may_show_real_people, read_split, split_files
from pipeline.core.errors import UserError
from pipeline.core.images import ImageError
from pipeline.core.imported import picture_fields, read_note, write_imported
from pipeline.core.seen import SeenNames
from schemas.records import Engine, ImportedRejection, ImportedRow

datasets = pytest.importorskip("datasets")


def rows(count: int, first: str = "a", **fields: object) -> Iterator[ImportedRow]:
    for number in range(count):
        yield ImportedRow(
            **picture_fields(picture(number % 5), f"{first}/{number}.jpg"),
            caption=f"caption {number}",
            image_id=f"{first}{number}",
            **fields,
        )


def every_file(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_is_written_is_read_by_load_dataset_split_by_split(tmp_path):
    several = {"captions": ("caption 0", "another"), "match_id": "m"}
    made = write_imported(
        tmp_path / "out",
        {"train": rows(25), "test": rows(1, "t", **several), "weather_rain_snow": rows(2, "w"), "ucc": iter(())},
        "Made up.",
        rows_per_file=10,
    )
    assert made.rows == {"train": 25, "test": 1, "weather_rain_snow": 2}
    found = datasets.load_dataset(str(tmp_path / "out"), cache_dir=str(tmp_path / "cache"))
    assert {name: split.num_rows for name, split in found.items()} == made.rows
    assert found["train"]["image_id"] == [f"a{number}" for number in range(25)]
    row = found["test"][0]
    assert (row["captions"], row["match_id"], row["pose"]) == (["caption 0", "another"], "m", None)
    assert row["image"].size == (row["width"], row["height"]) == (96, 96)


def test_files_are_bounded_by_rows_and_by_bytes_and_named_by_how_many_they_are(tmp_path):
    write_imported(tmp_path / "rows", {"train": rows(25)}, "", rows_per_file=10)
    files = split_files(tmp_path / "rows")["train"]
    assert [path.name for path in files] == [f"train-0000{n}-of-00003.parquet" for n in range(3)]
    assert [pq.read_metadata(path).num_rows for path in files] == [10, 10, 5]
    write_imported(tmp_path / "bytes", {"train": rows(25)}, "", bytes_per_file=4 * len(picture(0)))
    assert len(split_files(tmp_path / "bytes")["train"]) >= 5
    assert [row["image_id"] for row in read_split(split_files(tmp_path / "bytes")["train"], ["image_id"])] == [
        f"a{number}" for number in range(25)
    ]


def test_rows_are_taken_as_they_are_written_and_not_gathered_first(tmp_path):
    behind = []

    def watched() -> Iterator[ImportedRow]:
        for number, row in enumerate(rows(450)):
            if number in (150, 350):
                half_made = next(tmp_path.glob(".out.building-*"))
                behind.append(sum(path.stat().st_size for path in half_made.rglob("*.part")))
            yield row

    write_imported(tmp_path / "out", {"train": watched()}, "")
    assert 0 < behind[0] < behind[1]


def test_the_same_rows_give_the_same_bytes_wherever_they_are_written(tmp_path):
    for name in ("one", "two"):
        write_imported(tmp_path / name / "pab", {"train": rows(12), "test": rows(3, "t")}, "Made up.", rows_per_file=5)
    assert every_file(tmp_path / "one") == every_file(tmp_path / "two")


def test_an_error_half_way_leaves_the_old_dataset_whole_and_nothing_beside_it(tmp_path):
    out = tmp_path / "out"
    write_imported(out, {"train": rows(3)}, "The old one.")
    (out / "notes.txt").write_text("mine", "utf-8")
    before = every_file(out)

    def broken() -> Iterator[ImportedRow]:
        yield from rows(250)
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        write_imported(out, {"train": broken()}, "The new one.")
    assert every_file(out) == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    write_imported(out, {"test": rows(2)}, "The new one.")
    assert set(every_file(out)) == {"README.md", "import.json", "data/test-00000-of-00001.parquet", "notes.txt"}


def test_an_id_that_comes_twice_in_a_split_is_an_error_that_names_it(tmp_path):
    with pytest.raises(UserError, match="train: two rows have the image_id a0"):
        write_imported(tmp_path / "out", {"train": itertools.chain(rows(2), rows(1))}, "")
    assert not (tmp_path / "out").exists()
    assert write_imported(tmp_path / "out", {"train": rows(2), "test": rows(2)}, "").rows == {"train": 2, "test": 2}


def test_a_folder_of_others_is_not_touched_and_no_rows_are_an_error(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work", "utf-8")
    with pytest.raises(UserError, match="holds something else"):
        write_imported(tmp_path / "mine", {"train": rows(1)}, "")
    with pytest.raises(UserError, match="no row came"):
        write_imported(tmp_path / "out", {"train": iter(())}, "")


def test_the_card_has_the_tag_the_counts_and_the_note_which_may_wait_for_the_rows(tmp_path):
    seen = []

    def counted() -> Iterator[ImportedRow]:
        for row in rows(7):
            seen.append(row)
            yield row

    dropped = [
        ImportedRejection(split="train", file="a.json", line=3, row=2, image_id=None, reason="bad_json", detail="")
    ]
    write_imported(
        tmp_path / "out",
        {"train": counted()},
        lambda: f"All {len(seen)} came.",
        rejected=dropped,
        facts={"inputs": "x"},
    )
    assert is_ours(tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text("utf-8")
    head = yaml.safe_load(card.split("---")[1])
    assert head["configs"][0]["data_files"] == [{"split": "train", "path": "data/train-*-of-00001.parquet"}]
    assert head["dataset_info"][0]["splits"][0]["num_examples"] == 7
    assert head["license_name"] == "terms-of-the-source"
    assert "All 7 came." in card
    rejected = datasets.load_dataset(str(tmp_path / "out"), "rejected", cache_dir=str(tmp_path / "cache"))["rejected"]
    assert rejected[0]["line"] == 3
    assert str(tmp_path) not in card
    known = read_note(tmp_path / "out")
    assert known is not None
    assert (known["inputs"], known["rejected"]) == ("x", 1)
    next((tmp_path / "out" / "data").iterdir()).write_bytes(b"")
    assert read_note(tmp_path / "out") is None


def test_a_pictures_columns_are_read_off_its_head_and_what_is_no_picture_is_named():
    fields = picture_fields(picture(1), "imgs/a.jpg")
    assert (fields["width"], fields["height"], fields["image"].path) == (96, 96, "imgs/a.jpg")
    assert picture_fields(picture(1), "a.b")["image"].path == "a.b.jpg"
    with pytest.raises(ImageError, match=r"x\.jpg: not an image"):
        picture_fields(b"nothing", "x.jpg")


def test_images_that_may_show_real_people_are_frames_of_real_videos_and_those_of_unknown_origin(tmp_path):
    frame, drawn = {"name": "oops", "revision": "1"}, {"name": "simulator", "revision": "2"}
    write_imported(tmp_path / "a", {"test": rows(1)}, "", licence="apache-2.0")
    write_imported(tmp_path / "b", {"test": rows(1)}, "")
    simulated, real = may_show_real_people(tmp_path / "a"), may_show_real_people(tmp_path / "b")
    assert [simulated({"generator": each}) for each in (frame, drawn, None)] == [False, False, True]
    assert [real({"generator": each}) for each in (frame, drawn, None)] == [True, False, True]
    assert Engine(**drawn).name == "simulator"


def test_seen_names_are_a_set_of_any_text():
    names = SeenNames()
    assert [names.add(name) for name in ("a", "ä", "a", "", "A", "")] == [True, True, False, True, True, False]
    assert len(names) == 4
    assert "ä" in names
    assert "b" not in names
    assert list(names) == ["", "A", "a", "ä"]


def test_the_first_of_several_captions_is_the_caption():
    fields = picture_fields(picture(0), "a.jpg")
    with pytest.raises(ValueError, match="first of captions"):
        ImportedRow(**fields, caption="a", captions=("b", "a"), image_id="x")
    assert json.loads(ImportedRejection(split="ucc", file="f", line=None, row=1, image_id="7", reason="r",
                                        detail="d").model_dump_json())["line"] is None  # fmt: skip
