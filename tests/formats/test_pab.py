import contextlib
import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from pipeline.core.errors import UserError
from pipeline.formats import pab
from pipeline.formats.pab import (
    REASONS,
    BrokenRow,
    PabRow,
    annotation_files,
    read_pab,
    read_rows,
    splits_in,
    stream_pab,
)

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


def test_ucc_rows_that_share_an_image_id_have_ids_of_their_own_and_one_match(tmp_path):
    folder = tmp_path / "pab"
    rows = [{"image": f"ucc/{n}.jpg", "image_id": match, "caption": ["a", "b"]} for n, match in enumerate((5, 5, 7, 5))]
    write_split(folder, "annotation/test/ucc.json", rows)
    found = read_pab(folder, "ucc").rows
    assert [(row.id, row.match_id) for row in found] == [("5", "5"), ("5#2", "5"), ("7", "7"), ("5#3", "5")]
    assert found[0].captions == ("a", "b")


def test_a_duplicate_id_in_train_and_test_is_left_out_and_told(tmp_path):
    folder = folder_with(tmp_path, "pab_train_ok")
    path = folder / "annotation/train/attr_0.json"
    path.write_text(path.read_text("utf-8") + path.read_text("utf-8").split("\n")[2] + "\n", "utf-8")
    found = read_pab(folder, "train")
    assert (len(found.rows), found.left_out) == (6, 1)
    assert found.problems == ["annotation/train/attr_0.json: left out row 7: an earlier row has the image_id 0_2"]


def test_pictures_of_other_weather_take_the_pose_maps_of_the_ordinary_ones(tmp_path):
    folder = tmp_path / "pab"
    write_split(folder, "annotation/test/attr.json", [{"image": "test/0.jpg", "image_id": 0, "caption": ["a"]}])
    rows = [{"image": "test/multi-weather/rain/0.jpg", "image_id": 0, "caption": ["a"]}]
    write_split(folder, "annotation/multi-weather/multi-weather_dark_rain.json", rows, poses=False)
    assert splits_in(folder) == ["test", "weather_dark_rain"]
    assert read_pab(folder, "weather_dark_rain").rows[0].pose == folder / "pose/test/0.jpg"
    with pytest.raises(UserError, match=r"multi-weather_wind\.json is not there"):
        read_pab(folder, "weather_wind")
    with pytest.raises(UserError, match="no split fog"):
        read_pab(folder, "fog")


def test_the_kind_and_the_number_of_the_folder_are_read_off_the_path_or_the_source(tmp_path):
    row = read_pab(folder_with(tmp_path, "pab_train_ok"), "train").rows[1]
    assert (row.kind, row.shard, row.match_id, row.source_caption) == ("wentrong", 0, "0_1", "a man was walking")
    assert PabRow("1", Path("test/1.jpg"), None, ("a",), source_id="17_2").kind == "full"
    assert PabRow("1", Path("test/1.jpg"), None, ("a",)).kind is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"image": None}, "wrong_type"),
        ({"image": 7}, "wrong_type"),
        ({"image": ["a"]}, "wrong_type"),
        ({"image": "train/nowhere.jpg"}, "image_missing"),
        ({"image": "train"}, "image_missing"),
        ({"image": "x" * 5000}, "image_missing"),
        ({"image": "../x.jpg"}, "path_leads_out"),
        ({"image_id": None}, None),
        ({"image_id": 1.5}, "wrong_type"),
        ({"image_id": True}, "wrong_type"),
        ({"caption": None}, "wrong_type"),
        ({"caption": ["a list"]}, "wrong_type"),
        ({"caption": "  "}, "no_caption"),
        ({"caption": "half a pair \ud800"}, "wrong_type"),
        ({"hard_i": None}, "no_hard_negative"),
        ({"hard_c": None}, "no_hard_negative"),
        ({"hard_c": 3}, "wrong_type"),
        ({"hard_i": "imgs_0/full/none.jpg"}, "hard_image_missing"),
        ({"hard_i": "../../x.jpg"}, "path_leads_out"),
        ({"anomaly": "falling"}, "two_labels"),
        ({"anomaly": None}, None),
        ({"decoupled_caption": "text"}, "wrong_type"),
        ({"decoupled_caption": [["text", 7]]}, None),
        ({"scene": {"deep": [1]}}, None),
    ],
)
def test_what_is_wrong_with_a_row_has_a_reason_of_the_list(tmp_path, change, reason):
    folder = folder_with(tmp_path, "pab_train_ok")
    path = folder / "annotation/train/attr_0.json"
    rows, _ = read_rows(path)
    path.write_text(json.dumps({**rows[0], **change}) + "\n", "utf-8")
    (found,) = stream_pab(folder, "train")
    if reason is None:
        assert isinstance(found, PabRow)
    else:
        assert isinstance(found, BrokenRow)
        assert found.reason == reason in REASONS
        assert (found.where.file, found.where.line, found.where.row) == ("annotation/train/attr_0.json", 1, 1)


def test_a_row_without_a_hard_negative_may_be_kept(tmp_path):
    folder = folder_with(tmp_path, "pab_train_ok")
    (folder / "train/imgs_0/wentrong/1.jpg").unlink()
    reasons = [
        each.reason if isinstance(each, BrokenRow) else each.hard is None for each in stream_pab(folder, "train")
    ]
    assert reasons[:3] == ["hard_image_missing", "image_missing", False]
    kept = [isinstance(each, PabRow) and each.hard is None for each in stream_pab(folder, "train", hard="kept")]
    assert kept[:3] == [True, False, False]


def test_lines_that_are_no_rows_are_told_by_line_and_the_rest_is_read(tmp_path):
    folder = folder_with(tmp_path, "pab_train_ok")
    path = folder / "annotation/train/attr_0.json"
    lines = path.read_bytes().splitlines()
    wrong = [b"\xef\xbb\xbf" + lines[0], b"", b"no json", lines[1], b"[1]", b'{"image": "\xff"}', b"9" * 5000, lines[2]]
    path.write_bytes(b"\r\n".join([*wrong, lines[3][:50]]))
    found = [(each.where.line, each.where.row, each.reason if isinstance(each, BrokenRow) else each.id)
             for each in stream_pab(folder, "train")]  # fmt: skip
    assert found == [
        *[(1, 1, "0_0"), (3, 2, "bad_json"), (4, 3, "0_1"), (5, 4, "not_an_object"), (6, 5, "not_utf8")],
        *[(7, 6, "bad_json"), (8, 7, "0_2"), (9, 8, "torn_line")],
    ]


def test_a_line_without_end_is_not_held_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(pab, "_MOST_CHARACTERS", 100)
    path = tmp_path / "attr_0.json"
    path.write_text('{"a": 1}\n{"b": "' + "x" * 1000 + '"}\n{"c": 3}\n', "utf-8")
    kinds = [value if isinstance(value, dict) else value.reason for _, _, value, _ in pab._objects(path)]
    assert kinds == [{"a": 1}, "line_too_long", {"c": 3}]
    path.write_text('[{"a": 1}, {"b": "' + "x" * 1000 + '"}]', "utf-8")
    monkeypatch.setattr(pab, "_CHUNK", 20)
    kinds = [value if isinstance(value, dict) else value.reason for _, _, value, _ in pab._objects(path)]
    assert kinds == [{"a": 1}, "line_too_long"]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(JSON_VALUES, max_size=6), st.integers(1, 40), st.booleans(), st.sampled_from([None, 1]))
def test_an_array_is_read_the_same_in_chunks_of_any_size(tmp_path_factory, values, chunk, ascii_only, indent):
    path = tmp_path_factory.mktemp("array") / "attr_0.json"
    path.write_text(json.dumps(values, ensure_ascii=ascii_only, indent=indent), "utf-8", errors="surrogatepass")
    if not ascii_only and any("\ud800" <= letter <= "\udfff" for letter in json.dumps(values, ensure_ascii=False)):
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pab, "_CHUNK", chunk)
        found = [value if isinstance(value, dict) else value.reason for _, _, value, _ in pab._objects(path)]
    assert found == [value if isinstance(value, dict) else "not_an_object" for value in values]


@given(st.integers(1, 30), st.integers(0, 200))
def test_an_array_that_was_cut_off_gives_its_whole_rows_and_one_that_is_torn(tmp_path_factory, chunk, cut):
    rows = [{"a": number, "b": f"text {number}", "c": [1, {"d": None}]} for number in range(4)]
    text = json.dumps(rows)
    cut = min(cut, len(text) - 1)
    path = tmp_path_factory.mktemp("cut") / "attr_0.json"
    path.write_text(text[:cut], "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pab, "_CHUNK", chunk)
        found = [value for _, _, value, _ in pab._objects(path)]
    whole = [value for value in found if isinstance(value, dict)]
    assert whole == rows[: len(whole)]
    assert len(whole) == text[:cut].count("]}")
    assert [value.reason for value in found[len(whole) :]] == (["torn_line"] if cut else [])


def test_an_array_with_rubbish_in_it_is_read_up_to_there(tmp_path):
    path = tmp_path / "attr_0.json"
    path.write_text('[{"a": 1}, rubbish, {"b": 2}]' + " " * 100, "utf-8")
    found = [value if isinstance(value, dict) else value.reason for _, _, value, _ in pab._objects(path)]
    assert found == [{"a": 1}, "bad_json"]


def test_a_byte_that_is_no_text_costs_an_array_the_row_alone_in_which_it_stands(tmp_path):
    folder = folder_with(tmp_path, "pab_train_ok")
    path = folder / "annotation/train/attr_0.json"
    rows, _ = read_rows(path)
    path.write_bytes(json.dumps(rows).encode().replace(b"a man was walking", b"a man \xff", 1))
    found = list(stream_pab(folder, "train"))
    assert [isinstance(each, PabRow) for each in found] == [False, *[True] * 5]
    assert found[0].reason == "wrong_type"


def write_split(folder: Path, annotations: str, rows: list[dict], poses: bool = True) -> None:
    (folder / annotations).parent.mkdir(parents=True, exist_ok=True)
    (folder / annotations).write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    for row in rows:
        for path in (folder / row["image"], *([folder / "pose" / row["image"]] if poses else [])):
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (4, 4)).save(path)
