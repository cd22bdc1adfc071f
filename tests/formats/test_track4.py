import json
from pathlib import Path

import pytest

from pipeline.core.errors import UserError
from pipeline.formats.track4 import answer_text, read_track4


def write_set(root: Path, queries=(("7", "a man falls"), ("2", "a girl runs")), order=("2", "7"), truth=None) -> Path:
    (root / "gallery").mkdir()
    for name in ("b.jpg", "a.jpg", "c.png", "notes.txt"):
        (root / "gallery" / name).touch()
    lines = [json.dumps({"query_index": index, "caption": caption, "change": 0}) for index, caption in queries]
    (root / "query_text.json").write_text("\n".join(lines) + "\n\n")
    (root / "query_index.txt").write_text("\n".join(order) + "\n")
    if truth is not None:
        (root / "ground_truth.txt").write_text(truth)
    return root


def test_queries_come_in_the_order_of_the_answer_and_pictures_by_name(tmp_path):
    found = read_track4(write_set(tmp_path, truth="7 a.jpg\n7 c.png\n"))
    assert [(each.index, each.caption) for each in found.queries] == [("2", "a girl runs"), ("7", "a man falls")]
    assert [path.name for path in found.gallery] == ["a.jpg", "b.jpg", "c.png"]
    assert [each.right for each in found.queries] == [(), ("a.jpg", "c.png")]
    assert found.poses == (None, None, None)


def test_without_ground_truth_nobody_tells_what_is_right(tmp_path):
    assert [each.right for each in read_track4(write_set(tmp_path)).queries] == [None, None]


def test_an_answer_is_a_line_a_query_of_ten_names(tmp_path):
    names = [f"{number}.jpg" for number in range(12)]
    assert answer_text([names, ["a.jpg"]]) == " ".join(names[:10]) + "\na.jpg\n"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"order": ("2", "7", "9")}, "has no query 9, which query_index.txt names"),
        ({"order": ("2", "2")}, "query 2 stands there twice"),
        ({"order": ()}, "names no query"),
        ({"queries": (("2", "a"), ("2", "b"))}, "line 2: query 2 stands there twice"),
        ({"queries": (("2", " "),)}, "line 1: the caption of query 2 is empty"),
        ({"queries": ((None, "a"),)}, "needs query_index and caption"),
        ({"truth": "7 d.jpg"}, "line 1: d.jpg is not in the gallery"),
        ({"truth": "7"}, "wants a query index and a picture's name"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path, change, said):
    with pytest.raises(UserError, match=said):
        read_track4(write_set(tmp_path, **change))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"query_text\.json: is not there"):
        read_track4(tmp_path)
