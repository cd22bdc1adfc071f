import json
import shutil
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import UserError
from pipeline.formats.oops import (
    OopsCaption,
    OopsVideo,
    TransitionLabel,
    median_valid_time,
    name_flaw,
    official_quality,
    official_time,
    parse_name_list,
    read_oops,
    repair_key,
    video_key,
)

CASES = Path(__file__).parents[1] / "cases"
MINI = CASES / "oops_mini"
REAL = Path(__file__).parents[3] / "shared" / "real_oops"
EXPECTED = json.loads((CASES / "oops_expected.json").read_text("utf-8"))


def label_of(*times: float, len_s: float = 4.0) -> TransitionLabel:
    return TransitionLabel(times, len_s, sum(t < 0 for t in times), tuple(t / len_s for t in times))


def entry_of(*times: float, len_s: float = 4.0) -> dict:
    label = label_of(*times, len_s=len_s)
    return {"t": list(label.t), "len": len_s, "n_notfound": label.n_notfound, "rel_t": list(label.rel_t)}


def record(goal: str = "a man runs", wentwrong: str = "he falls") -> dict:
    return {"goal": goal, "wentwrong": wentwrong, "kgoalsvos": [], "kwentwrongsvos": []}


@pytest.fixture
def mini(tmp_path: Path) -> Path:
    return Path(shutil.copytree(MINI, tmp_path / "oops"))


def write(root: Path, relative: str, value: object) -> None:
    (root / relative).write_text(json.dumps(value), "utf-8")


def change(root: Path, relative: str, **entries: object) -> None:
    write(root, relative, json.loads((root / relative).read_text("utf-8")) | entries)


def by_name(root: Path, split: str = "train") -> dict[str, OopsVideo]:
    return {video.name: video for video in read_oops(root, [split]).videos(split)}


@pytest.mark.parametrize("case", EXPECTED, ids=[case["id"] for case in EXPECTED])
def test_each_record_of_the_small_folder_reads_as_its_case_says(case):
    expected = case["expected"]
    folder = read_oops(MINI, ["train", "val"])
    (video,) = [v for split in folder.splits for v in folder.videos(split) if v.name == case["record"]]
    assert video.split == expected["split"]
    assert (video.path is not None) == expected["video_file"]
    assert (video.label is not None) == expected["labelled"]
    assert bool(video.captions) == expected["captions"]
    if video.path is not None:
        assert video.path.name == video.name + ".mp4"
    if video.label is not None:
        assert official_time(video.label) == expected["official_t"]
        assert median_valid_time(video.label) == pytest.approx(expected["median_of_valid"])
        assert video.label.n_notfound == expected["n_notfound"]
        assert official_quality(video.label) == expected["official_quality_ok"]


def test_the_small_folder_has_every_record_once_sorted_and_no_problem():
    folder = read_oops(MINI, ["train", "val"])
    assert [len(folder.videos(split)) for split in ("train", "val")] == [8, 1]
    names = [video.name for video in folder.videos("train")]
    assert names == sorted(set(names))
    assert folder.problems == ()
    assert folder.orphan_labels == ()
    left_out = [video.name for video in folder.videos("train") if not video.passed_quality_list]
    assert left_out == ["Starts With The Fall0"]


def test_a_garbled_caption_key_finds_its_video_and_an_empty_sentence_is_kept():
    videos = by_name(MINI)
    assert videos["Kids’ Garden Day … What Now_7"].captions[1] == OopsCaption(
        "kids play in a garden", "a kid falls on the grass"
    )
    assert videos["Starts With The Fall0"].captions[1] == OopsCaption("", "he fell")


@given(st.lists(st.one_of(st.just(-1.0), st.floats(0, 100)), min_size=1, max_size=7))
def test_the_official_time_is_the_value_with_half_of_the_values_below_it(times):
    rest, middle = list(times), 0.0
    for _ in range(len(times) // 2 + 1):
        middle = min(rest)
        rest.remove(middle)
    assert official_time(label_of(*times)) == (None if middle < 0 else middle)


@given(st.lists(st.one_of(st.just(-1.0), st.floats(0, 100)), min_size=1, max_size=7))
def test_the_median_of_the_valid_has_as_many_valid_times_above_as_below(times):
    median = median_valid_time(label_of(*times))
    valid = [time for time in times if time >= 0]
    if not valid:
        assert median is None
    else:
        assert sum(time < median for time in valid) <= len(valid) / 2
        assert sum(time > median for time in valid) <= len(valid) / 2


@pytest.mark.parametrize(
    ("times", "len_s", "good"),
    [
        ((1.0, 1.0, 1.0), 3.2, True),
        ((1.0, 1.0, 1.0), 3.19, False),
        ((1.0, 1.0, 1.0), 30.0, True),
        ((1.0, 1.0, 1.0), 30.1, False),
        ((0.1, 0.1, 0.1), 10.0, True),
        ((0.09, 0.09, 0.09), 10.0, False),
        ((9.95, 9.95, 9.95), 10.0, False),
        ((-1.0, -1.0, 5.0), 10.0, False),
        ((-1.0, 4.0, 5.0), 10.0, True),
    ],
)
def test_the_official_quality_rule_holds_at_its_edges(times, len_s, good):
    assert official_quality(label_of(*times, len_s=len_s)) is good


@given(st.text(max_size=40))
def test_a_key_garbled_through_cp1252_is_repaired(name):
    # As a browser or Windows reads it: the five bytes cp1252 leaves open become control characters.
    garbled = "".join(
        bytes([byte]).decode("cp1252") if byte not in (0x81, 0x8D, 0x8F, 0x90, 0x9D) else chr(byte)
        for byte in name.encode("utf-8")
    )
    assert repair_key(garbled) == name


@pytest.mark.parametrize("key", ["Café 3", "Kids’ Garden 7", "Plain Name 1", "снег0", "Mixed Ã© and ’é", "雪3", ""])
def test_a_key_that_is_right_already_or_cannot_be_repaired_stays(key):
    assert repair_key(key) == key


def test_a_key_that_is_a_known_name_as_it_stands_is_not_repaired(mini):
    name = "Really Called Ã© Like This4"
    assert repair_key(name) != name
    with (mini / "annotations/train.txt").open("a", encoding="utf-8") as file:
        file.write(f"\n{name}\n")
    change(mini, "svos/train.json", **{name: [record()]})
    assert by_name(mini)[name].captions == (OopsCaption("a man runs", "he falls"),)


def test_a_name_that_starts_another_name_and_a_name_with_blanks_at_its_ends_stay_apart(tmp_path):
    names = ["Fails (2017)1", "Fails (2017)10", " Fails (2017)1", "Fails (2017)1 ", "Wait.. What.mp43"]
    (tmp_path / "oops_video/train").mkdir(parents=True)
    (tmp_path / "annotations").mkdir()
    (tmp_path / "svos").mkdir()
    for name in names:
        (tmp_path / "oops_video/train" / (name + ".mp4")).write_bytes(b"x")
    (tmp_path / "annotations/train.txt").write_bytes("\r\n".join(names).encode() + b"\r\n")
    write(tmp_path, "annotations/transition_times.json", {n: entry_of(k, k, k) for k, n in enumerate(names)})
    write(tmp_path, "svos/train.json", {n: [record(goal=n)] for n in names})
    videos = by_name(tmp_path)
    assert sorted(videos) == sorted(names)
    for k, name in enumerate(names):
        assert videos[name].path == tmp_path / "oops_video/train" / (name + ".mp4")
        assert videos[name].label.t == (k, k, k)
        assert videos[name].captions[0].goal == name


def test_a_list_is_split_at_line_feeds_only():
    assert parse_name_list("a\u2028b\nc \r\n\n d") == ["a\u2028b", "c ", " d"]


def test_a_file_named_in_decomposed_letters_is_the_listed_clip(mini):
    name = "Café Mishaps – Résumé of the Week (May 2017)12"
    folder = mini / "oops_video/train"
    decomposed = unicodedata.normalize("NFD", name)
    (folder / (name + ".mp4")).rename(folder / (decomposed + ".mp4"))
    assert by_name(mini)[name].path == folder / (decomposed + ".mp4")
    assert video_key(decomposed) == video_key(name) == "3b520ea2bf"


@pytest.mark.parametrize(
    "entry",
    [
        None,
        [],
        {},
        entry_of(1, 1, 1) | {"t": "1"},
        entry_of(1, 1, 1) | {"t": []},
        entry_of(1, 1, 1) | {"t": [1, "2", 3]},
        entry_of(1, 1, 1) | {"t": [1, True, 3]},
        entry_of(1, 1, 1) | {"t": [1, float("nan"), 3]},
        entry_of(1, 1, 1) | {"t": [1, 10**400, 3]},
        entry_of(1, 1, 1) | {"len": 0},
        entry_of(1, 1, 1) | {"len": None},
        entry_of(1, 1, 1) | {"rel_t": [0.1]},
        entry_of(1, 1, 1) | {"n_notfound": 1.5},
    ],
    ids=repr,
)
def test_a_malformed_label_costs_that_label_only_and_is_told(mini, entry):
    change(mini, "annotations/transition_times.json", **{"Too Short Clip5": entry})
    folder = read_oops(mini, ["train"])
    labelled = [video.name for video in folder.videos("train") if video.label]
    assert len(labelled) == 6
    assert "Too Short Clip5" not in labelled
    ((where, what),) = folder.problems
    assert "Too Short Clip5" in where
    assert "transition_times" in where
    assert what


@pytest.mark.parametrize(
    "broken", [None, "text", {"goal": "x"}, {"goal": "x", "wentrong": "y"}, {"goal": 1, "wentwrong": "y"}], ids=repr
)
def test_a_malformed_caption_record_costs_that_record_only_and_is_told(mini, broken):
    change(mini, "svos/train.json", **{"Too Short Clip5": [broken, record()]})
    folder = read_oops(mini, ["train"])
    (video,) = [video for video in folder.videos("train") if video.name == "Too Short Clip5"]
    assert video.captions == (OopsCaption("a man runs", "he falls"),)
    ((where, _),) = folder.problems
    assert where == "svos/train.json: Too Short Clip5: record 0"


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "/etc/passwd", "a/b", "a\\b", "nul\0", "line\nbreak", "\ud800x", "x" * 300]
)
def test_a_name_that_is_no_file_name_is_left_out_and_told(mini, name):
    assert name_flaw(name)
    change(mini, "svos/train.json", **{name: [record()]})
    change(mini, "annotations/transition_times.json", **{name: entry_of(1, 1, 1)})
    folder = read_oops(mini, ["train"])
    assert len(folder.videos("train")) == 8
    assert folder.orphan_labels == ()
    assert len(folder.problems) == 2
    for where, what in folder.problems:
        assert (where + what).isprintable()


def test_dots_never_lead_out_of_the_folder(mini):
    (mini / "oops_video/outside.mp4").write_bytes(b"x")
    with (mini / "annotations/train.txt").open("a", encoding="utf-8") as file:
        file.write("\n../outside\n..\n")
    videos = by_name(mini)
    assert "../outside" not in videos
    assert videos[".."].path is None  # its file would be "...mp4", in the folder


def test_a_video_that_links_out_of_the_folder_is_refused_and_one_that_links_within_is_read(mini, tmp_path):
    outside = tmp_path / "secret.mp4"
    outside.write_bytes(b"x")
    train = mini / "oops_video/train"
    (train / "In The List But No File9.mp4").symlink_to(outside)
    (train / "Within.mp4").symlink_to(train / "Too Short Clip5.mp4")
    folder = read_oops(mini, ["train"])
    videos = {video.name: video for video in folder.videos("train")}
    assert videos["In The List But No File9"].path is None
    assert videos["Within"].path == train / "Within.mp4"
    ((where, what),) = folder.problems
    assert "No File9" in where
    assert "leads out" in what


@pytest.mark.parametrize("relative", ["annotations/train.txt", "svos/train.json", "oops_video/train"])
def test_a_part_that_links_out_of_the_folder_is_an_error(mini, tmp_path, relative):
    target = (mini / relative).rename(tmp_path / "elsewhere")
    (mini / relative).symlink_to(target)
    with pytest.raises(UserError, match="leads out"):
        read_oops(mini, ["train"])


def test_a_label_that_belongs_to_no_clip_is_given_back_and_one_of_the_other_split_is_not(mini):
    change(mini, "annotations/transition_times.json", Nowhere1=entry_of(1, 2, 3))
    folder = read_oops(mini, ["train"])
    assert [(name, label.t) for name, label in folder.orphan_labels] == [("Nowhere1", (1, 2, 3))]
    assert "Nowhere1" not in {video.name for video in folder.videos("train")}


def test_a_caption_of_a_clip_of_the_other_split_stays_out_and_is_told(mini):
    change(mini, "svos/train.json", **{"Winter Sled Run (January 2018)10": [record()]}, OnlyCaption2=[record()])
    folder = read_oops(mini, ["train"])
    names = [video.name for video in folder.videos("train")]
    assert "Winter Sled Run (January 2018)10" not in names
    assert "OnlyCaption2" in names
    assert [what for _, what in folder.problems] == ["the name belongs to another split"]


def test_two_keys_of_one_name_keep_the_first_and_tell(mini):
    captions = json.loads((mini / "svos/train.json").read_text("utf-8"))
    name = "Café Mishaps – Résumé of the Week (May 2017)12"
    write(mini, "svos/train.json", {name: [record(goal="first")]} | captions)
    folder = read_oops(mini, ["train"])
    assert [v.captions[0].goal for v in folder.videos("train") if v.name == name] == ["first"]
    assert [what for _, what in folder.problems] == ["two keys give this name; the first is used"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda root: shutil.rmtree(root),
        lambda root: (root / "annotations/transition_times.json").unlink(),
        lambda root: (root / "annotations/transition_times.json").write_text('{"a": '),
        lambda root: (root / "annotations/transition_times.json").write_text("[1]"),
        lambda root: (root / "annotations/transition_times.json").write_text('{"a": ' + "[" * 100_000),
        lambda root: (root / "svos/train.json").unlink(),
        lambda root: (root / "svos/train.json").write_bytes(b"\xff\xfe"),
        lambda root: shutil.rmtree(root / "oops_video/train"),
    ],
)
def test_a_missing_or_unreadable_part_is_one_line_for_the_person_with_the_place(mini, damage):
    damage(mini)
    with pytest.raises(UserError) as error:
        read_oops(mini, ["train"])
    assert str(mini) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_part_that_is_not_needed_may_be_missing_and_is_told(mini):
    (mini / "svos/train.json").unlink()
    folder = read_oops(mini, ["train"], needs=("videos", "times"))
    assert len(folder.videos("train")) == 8
    assert folder.problems == (("svos/train.json", "missing"),)


def test_a_split_that_oops_does_not_have_is_an_error():
    with pytest.raises(UserError, match="test"):
        read_oops(MINI, ["test"])


def test_reading_twice_gives_the_same():
    assert read_oops(MINI, ["train", "val"]) == read_oops(MINI, ["train", "val"])


@pytest.mark.skipif(not REAL.is_dir(), reason="NOT CHECKED: no real clips beside this checkout (../shared/real_oops)")
def test_the_real_folder_reads_without_a_problem():
    folder = read_oops(REAL, ["val"])
    videos = folder.videos("val")
    assert len(videos) == 4
    assert folder.problems == ()
    assert all(video.path and video.label and len(video.captions) == 2 for video in videos)
    assert [video.name for video in videos if not official_quality(video.label)] == [
        "Friends Meet Again - Lab Clips (2019)1"
    ]
