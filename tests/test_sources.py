import json
import shutil
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.formats.oops import video_key
from pipeline.sources import STAGE, choose_captions
from tests.stage_helpers import MINI, FakeEngine, context, dropped, kept, run

REASONS = set(STAGE.reasons)


def word_reader() -> FakeEngine:
    """A reader for whom the subject is a person where the sentence does not begin with a thing."""
    things = ("the ladder", "the boat", "the sled", "the cups", "boat", "ball", "the band")
    return FakeEngine(
        "subjects_are_people", lambda texts: [bool(t) and not t.lower().startswith(things) for t in texts]
    )


def test_the_first_worker_whose_subject_is_a_person_gives_the_caption():
    records = [("the dog runs", "a man falls"), ("a man runs", "the dog falls")]
    assert choose_captions(records, [(False, True), (True, False)]) == {
        "goal": ("a man runs", 1),
        "wentrong": ("a man falls", 0),
        "full": "goal_or_wentrong_missing",
    }


def test_full_joins_both_sentences_of_the_first_worker_of_whom_both_survive():
    records = [("the dog runs", "he falls"), ("A man runs.", "He falls."), ("she runs", "she falls")]
    chosen = choose_captions(records, [(False, True), (True, True), (True, True)])
    assert chosen["full"] == ("A man runs. He falls.", 1)


@pytest.mark.parametrize(
    ("goal", "joined"),
    [
        ("he runs", "he runs. he falls"),
        ("he runs.", "he runs. he falls"),
        ("he runs...", "he runs. he falls"),
        ("he runs!", "he runs! he falls"),
        (" he runs . ", "he runs. he falls"),
    ],
)
def test_the_joined_sentences_are_parted_by_one_full_stop(goal, joined):
    assert choose_captions([(goal, " he falls ")], [(True, True)])["full"] == (joined, 0)


def test_a_missing_caption_says_why():
    assert set(choose_captions([], []).values()) == {"no_caption"}
    assert choose_captions([("", "he falls")], [(False, True)]) == {
        "goal": "empty_caption",
        "wentrong": ("he falls", 0),
        "full": "goal_or_wentrong_missing",
    }
    assert choose_captions([("the dog", " ")], [(False, False)])["goal"] == "subject_not_a_person"
    assert choose_captions([("the dog", " ")], [(False, False)])["wentrong"] == "empty_caption"


sentences = st.sampled_from(["", " ", "a man runs", "the dog runs.", "he falls!"])
video_records = st.lists(
    st.tuples(st.tuples(sentences, sentences), st.tuples(st.booleans(), st.booleans())), max_size=4
)


@given(video_records)
def test_every_kind_has_a_caption_that_was_written_or_a_reason_of_the_list(rows):
    records, people = [row[0] for row in rows], [row[1] for row in rows]
    chosen: dict[Any, Any] = choose_captions(records, people)
    assert list(chosen) == ["goal", "wentrong", "full"]
    for position, kind in enumerate(("goal", "wentrong")):
        if isinstance(chosen[kind], str):
            assert chosen[kind] in REASONS
        else:
            caption, worker = chosen[kind]
            assert caption == records[worker][position].strip() != ""
            assert people[worker][position]
            assert not any(people[w][position] and records[w][position].strip() for w in range(worker))
    if isinstance(chosen["full"], tuple):
        worker = chosen["full"][1]
        assert all(people[worker])
        assert all(sentence.strip() for sentence in records[worker])


def test_the_small_folder_gives_each_video_its_three_kinds_or_reasons(tmp_path):
    where = context(tmp_path, "train-000", sources=word_reader())
    result = run(STAGE, where)
    ladder, boat = video_key("Weekend Ladder Trouble - Home Clips (March 2016)3"), video_key("In The List But No File9")
    records = kept(STAGE, where)
    assert {kind: records[f"{ladder}_{kind}"].caption for kind in ("goal", "wentrong", "full")} == {
        "goal": "A man wanted to climb a ladder to the roof.",
        "wentrong": "he loses balance and drops down",
        "full": "he tries to reach the roof. he loses balance and drops down",
    }
    assert [records[f"{ladder}_{kind}"].worker for kind in ("goal", "wentrong", "full")] == [0, 1, 1]
    assert [records[f"{ladder}_{kind}"].behavior for kind in ("goal", "full")] == ["normal", "anomaly"]
    assert records[f"{boat}_goal"].caption == "A man was rowing."
    assert dropped(STAGE, where)[f"{boat}_wentrong"] == "rejected: subject_not_a_person"
    assert dropped(STAGE, where)[f"{boat}_full"] == "rejected: goal_or_wentrong_missing"
    unlabelled = video_key("File But No Label6")
    assert {dropped(STAGE, where)[f"{unlabelled}_{kind}"] for kind in ("goal", "wentrong", "full")} == {
        "rejected: no_caption"
    }
    counts = result.manifest["counts"]
    assert counts["in"] == 3 * 8 == counts["kept"] + counts["rejected"]


def test_a_garbled_key_of_the_archive_is_read_as_the_videos_name(tmp_path):
    where = context(tmp_path, "train-000", sources=word_reader())
    run(STAGE, where)
    record = kept(STAGE, where)[f"{video_key('Café Mishaps – Résumé of the Week (May 2017)12')}_goal"]
    assert record.caption == "A waitress was carrying a tray of cups."
    assert record.video.startswith("Café")


def test_a_video_with_an_empty_sentence_uses_the_other_worker(tmp_path):
    where = context(tmp_path, "train-000", sources=word_reader())
    run(STAGE, where)
    key = video_key("Starts With The Fall0")
    assert kept(STAGE, where)[f"{key}_full"].caption == "A skater was riding down a ramp. The skater fell at once."


def test_test_shards_read_the_captions_of_the_tested_split(tmp_path):
    where = context(tmp_path, "test-000", sources=word_reader())
    run(STAGE, where)
    assert {record.video for record in kept(STAGE, where).values()} == {"Winter Sled Run (January 2018)10"}
    assert {record.oops_split for record in kept(STAGE, where).values()} == {"val"}


def test_a_clip_listed_in_two_splits_is_one_clip(tmp_path):
    root = shutil.copytree(MINI, tmp_path / "oops")
    name = "Weekend Ladder Trouble - Home Clips (March 2016)3"
    with (root / "annotations" / "val.txt").open("a", encoding="utf-8") as file:
        file.write(f"{name}\n")
    overrides = (f"oops.root={root}", "sources.splits=[train,val]")
    where = context(tmp_path, "train-000", *overrides, sources=word_reader())
    assert run(STAGE, where).manifest["counts"]["in"] == 3 * 9


def test_a_sentence_that_is_no_valid_text_costs_its_video_only(tmp_path):
    root = shutil.copytree(MINI, tmp_path / "oops")
    captions = json.loads((root / "svos" / "train.json").read_text("utf-8"))
    name = next(iter(captions))
    captions[name][0]["goal"] = "a man \ud800 runs"
    captions[name][0]["wentwrong"] = "the ladder \ud800 slid"
    del captions[name][1]
    (root / "svos" / "train.json").write_text(json.dumps(captions), "utf-8")
    where = context(tmp_path, "train-000", f"oops.root={root}", sources=word_reader())
    counts = run(STAGE, where).manifest["counts"]
    assert {each: dropped(STAGE, where)[f"{video_key(name)}_{each}"] for each in ("goal", "full")} == {
        "goal": "failed: ValidationError",
        "full": "failed: ValidationError",
    }
    assert (counts["in"], counts["failed"]) == (24, 3)
