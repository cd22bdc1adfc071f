import json
import shutil
from pathlib import Path

import pytest

from pipeline.core.errors import UserError
from pipeline.formats.tipr import SETS, read_tipr

CASES = Path(__file__).parents[1] / "cases" / "tipr"


def folder(tmp_path: Path, name: str, file: str, leave_out: str | None = None) -> Path:
    """A set's annotation with an empty file for every picture it names."""
    shutil.copy(CASES / file, tmp_path / file)
    for row in json.loads((CASES / file).read_text()):
        told = row.get("file_path", row.get("img_path"))
        if told != leave_out:
            path = tmp_path / "imgs" / told
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    return tmp_path


def written(tmp_path: Path, name: str, rows: object) -> Path:
    (tmp_path / SETS[name].files[0]).write_text(json.dumps(rows))
    return tmp_path


def test_cuhk_pedes_keeps_persons_with_holes_and_each_picture_once(tmp_path):
    expected = json.loads((CASES / "expected.json").read_text())["CUHK-PEDES"]
    root = folder(tmp_path, "CUHK-PEDES", "CUHK-PEDES_reid_raw.json")
    train, test = read_tipr("CUHK-PEDES", root, "train"), read_tipr("cuhk-pedes", root, "test")
    assert sum(len(each.captions) for each in train.rows) == expected["train_pairs"]
    assert [int(each.person) for each in train.rows] == expected["ids_need_remap"]
    assert len(test.rows) == expected["test_images"]
    assert sum(len(each.captions) for each in test.rows) == expected["test_queries"]
    assert len({each.person for each in test.rows}) == 1
    assert [len(each.captions) for each in read_tipr("CUHK-PEDES", root, "val").rows] == [3]


def test_icfg_pedes_has_one_caption_a_picture_and_no_val(tmp_path):
    root = folder(tmp_path, "ICFG-PEDES", "ICFG-PEDES.json")
    assert len(read_tipr("ICFG-PEDES", root, "train").rows) == 1
    assert len(read_tipr("ICFG-PEDES", root, "test").rows) == 1
    with pytest.raises(UserError, match="has no val split"):
        read_tipr("ICFG-PEDES", root, "val")


def test_rstpreid_names_its_pictures_otherwise_and_an_empty_caption_is_no_query(tmp_path):
    root = folder(tmp_path, "RSTPReid", "RSTPReid_data_captions.json")
    found = read_tipr("RSTPReid", root, "test")
    assert [each.captions for each in found.rows] == [("A boy.",)]
    assert found.left_out == 1
    assert "1 captions of test are empty" in found.problems[0]


def test_a_picture_that_is_not_there_costs_itself_and_is_named(tmp_path):
    gone = "test_query/p10001_s10002.jpg"
    root = folder(tmp_path, "CUHK-PEDES", "CUHK-PEDES_reid_raw.json", leave_out=gone)
    found = read_tipr("CUHK-PEDES", root, "test")
    assert len(found.rows) == found.left_out == 1
    assert gone in found.problems[0]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({"no": "array"}, "is not an array"),
        (["text"], "row 1: is not an object"),
        ([{"split": "test", "file_path": "../a.jpg", "captions": ["a"], "id": 1}], "leads out of the folder"),
        ([{"split": "test", "file_path": "a.jpg", "captions": "a", "id": 1}], "no list of texts"),
        ([{"split": "test", "file_path": "a.jpg", "captions": ["a"], "id": None}], "id is NoneType"),
        ([{"split": "test", "img_path": "a.jpg", "captions": ["a"], "id": 1}], "file_path is missing"),
        ([{"split": "test", "file_path": "a.jpg", "captions": ["a"], "id": 1}] * 2, "stands there twice"),
        ([], "no usable test row"),
    ],
)
def test_what_is_wrong_with_an_annotation_is_named(tmp_path, rows, said):
    root = written(tmp_path, "UFine3C", rows)
    with pytest.raises(UserError, match=said):
        read_tipr("UFine3C", root, "test")


def test_a_set_or_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match=r"no such set; there are CUHK-PEDES"):
        read_tipr("Market", tmp_path, "test")
    with pytest.raises(UserError, match=r"UFine3C_Annotations\.json is not there"):
        read_tipr("UFine3C", tmp_path, "test")
