import contextlib
import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from pipeline.core.errors import UserError
from pipeline.formats.pab import annotation_files, read_pab, read_rows

CASES = Path(__file__).parents[1] / "cases" / "pab"


def folder_with(tmp_path: Path, case: str | list[dict], split: str = "train", poses: bool = True) -> Path:
    """A PAB folder whose annotations are a case or these rows, with a picture for every path they name."""
    target = tmp_path / "annotation" / split / ("attr_0.json" if split == "train" else "attr.json")
    target.parent.mkdir(parents=True)
    if isinstance(case, str):
        shutil.copy(CASES / f"{case}.json", target)
    else:
        target.write_text("".join(json.dumps(row) + "\n" for row in case), "utf-8")
    rows, _ = read_rows(target)
    names = [row["image"] for row in rows] + [f"train/{row['hard_i']}" for row in rows if "hard_i" in row]
    for name in names:
        for path in (tmp_path / name, *([tmp_path / "pose" / name] if poses else [])):
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (4, 4)).save(path)
    return tmp_path


@pytest.mark.parametrize("case", ["pab_train_ok", "no_final_newline", "blank_lines", "bom", "crlf"])
def test_json_lines_are_read_however_they_end(tmp_path, case):
    found = read_pab(folder_with(tmp_path, case), "train")
    assert (len(found.rows), found.left_out, found.problems) == (6, 0, [])


def test_a_row_has_what_the_release_says(tmp_path):
    row = read_pab(folder_with(tmp_path, "pab_train_ok"), "train").rows[0]
    assert (row.id, row.source_id, row.person, row.normal) == ("0_0", "0_0", "0", True)
    assert row.image == tmp_path / "train/imgs_0/goal/0.jpg"
    assert row.pose == tmp_path / "pose/train/imgs_0/goal/0.jpg"
    assert row.hard is not None
    assert row.hard.image == tmp_path / "train/imgs_0/wentrong/1.jpg"
    assert row.hard.pose == tmp_path / "pose/train/imgs_0/wentrong/1.jpg"


def test_a_last_line_cut_by_a_crash_costs_its_row_and_is_told(tmp_path):
    found = read_pab(folder_with(tmp_path, "torn_last_line"), "train")
    assert (len(found.rows), found.left_out) == (5, 1)
    assert found.problems == ["annotation/train/attr_0.json: left out row 6: the line is cut off"]


def test_a_row_without_a_hard_negative_is_named_where_one_is_wanted_and_fine_where_not(tmp_path):
    folder = folder_with(tmp_path, "missing_hard")
    with pytest.raises(UserError, match=r"attr_0\.json, row 1: no hard negative"):
        read_pab(folder, "train")
    assert read_pab(folder, "train", hard=False).rows[0].hard is None


def test_an_empty_or_missing_part_of_a_decoupled_caption_is_none(tmp_path):
    rows = read_pab(folder_with(tmp_path, "seda_decoupled"), "train").rows
    assert rows[0].factors == ("a man in a red shirt", "walks", "street")
    assert rows[0].hard is not None
    assert rows[0].hard.factors == ("a man", None, "street")
    assert rows[1].factors == ("a man", "falls", None)
    assert rows[2].factors == (None, None, None)


def test_test_rows_have_a_list_of_captions_and_number_ids(tmp_path):
    rows = read_pab(folder_with(tmp_path, "pab_test_ok", "test"), "test").rows
    assert len(rows) == 4
    assert sum(len(row.captions) for row in rows) == 4
    assert rows[1].id == "1"


def test_a_plain_text_as_test_caption_is_one_query_not_one_a_letter(tmp_path):
    folder = folder_with(tmp_path, [{"image": "test/0.jpg", "image_id": 0, "caption": "A man falls."}], "test")
    assert read_pab(folder, "test").rows[0].captions == ("A man falls.",)


def test_a_json_array_under_the_same_name_is_read_too(tmp_path):
    rows, _ = read_rows(CASES / "pab_train_ok.json")
    path = tmp_path / "attr_0.json"
    path.write_text(json.dumps(rows), "utf-8")
    assert read_rows(path) == (rows, None)


def test_rows_without_their_picture_or_pose_map_are_left_out_and_counted(tmp_path):
    folder = folder_with(tmp_path, "pab_train_ok")
    (folder / "train/imgs_0/goal/0.jpg").unlink()
    found = read_pab(folder, "train")
    assert found.left_out == 2  # its own row, and the one whose hard negative it is
    assert found.problems == [
        "annotation/train/attr_0.json: left out row 1: train/imgs_0/goal/0.jpg is not there and 1 more"
    ]
    shutil.rmtree(folder / "pose" / "train" / "imgs_0" / "wentrong")
    with pytest.raises(UserError, match="no usable train row"):
        read_pab(folder, "train")


def test_a_folder_without_pose_maps_has_rows_without_them(tmp_path):
    rows = read_pab(folder_with(tmp_path, "pab_train_ok", poses=False), "train").rows
    assert len(rows) == 6
    assert rows[0].pose is None


@pytest.mark.parametrize("name", ["../out.jpg", "/etc/passwd", "train/../../out.jpg", "a\0b.jpg"])
def test_a_path_that_leads_out_of_the_folder_is_refused(tmp_path, name):
    folder = folder_with(tmp_path, "pab_train_ok")
    path = folder / "annotation/train/attr_0.json"
    rows, _ = read_rows(path)
    path.write_text(json.dumps({**rows[0], "image": name}) + "\n", "utf-8")
    with pytest.raises(UserError, match="leads out of the folder"):
        read_pab(folder, "train")


def test_a_link_out_of_the_folder_is_not_followed(tmp_path):
    outside = tmp_path / "secret.jpg"
    Image.new("RGB", (4, 4)).save(outside)
    folder = folder_with(tmp_path / "pab", "pab_train_ok")
    (folder / "train/imgs_0/goal/0.jpg").unlink()
    (folder / "train/imgs_0/goal/0.jpg").symlink_to(outside)
    assert read_pab(folder, "train").left_out == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"image": 1}\n{"image": "a"}\n', "row 1: image is missing or no text"),
        ("[1]\n", "row 1: is not an object"),
        ('nonsense\n{"a": 1}\n', "line 1: is no JSON"),
        ('{"image": "train/a.jpg", "caption": 7}\n', "caption is int, not text"),
        ('{"image": "train/a.jpg", "caption": "a", "decoupled_caption": "b"}\n', "no usable|decoupled_caption is str"),
    ],
)
def test_fields_that_are_not_what_they_should_be_are_named_with_their_row(tmp_path, text, said):
    path = tmp_path / "annotation/train/attr_0.json"
    path.parent.mkdir(parents=True)
    path.write_text(text, "utf-8")
    with pytest.raises(UserError, match=said):
        read_pab(tmp_path, "train")


@given(st.binary(max_size=80))
def test_whatever_the_bytes_rows_are_objects_or_there_is_an_error_for_a_person(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("bytes") / "attr_0.json"
    path.write_bytes(data)
    with contextlib.suppress(UserError):
        rows, _ = read_rows(path)
        assert all(isinstance(row, dict) for row in rows)


def test_files_come_in_the_order_of_their_numbers_and_the_decoupled_ones_first(tmp_path):
    for name in ("train/attr_2.json", "train/attr_10.json", "train/attr_1.json"):
        (tmp_path / "annotation" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "annotation" / name).touch()
    assert [path.name for path in annotation_files(tmp_path, "train")] == ["attr_1.json", "attr_2.json", "attr_10.json"]
    (tmp_path / "annotation/train_decouple").mkdir()
    (tmp_path / "annotation/train_decouple/attr_0.json").touch()
    assert [path.parent.name for path in annotation_files(tmp_path, "train")] == ["train_decouple"]
    with pytest.raises(UserError, match="released PAB folder"):
        annotation_files(tmp_path, "test")
