import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import UserError
from pipeline.core.runner import content_key
from pipeline.review import STAGE, Decision, Verdict, decisions_digest, read_decisions, verdict_of
from schemas.records import Attributes, ImageRecord, PromptUsed, Recaption
from tests.stage_helpers import ENGINE, context, dropped, image_record, kept, put, run

GOAL, WRONG = "p1_goal_frame", "p1_wentrong_frame"


def said(reviewer: str, keep: bool = True, pair: str = "p1", **captions: str) -> Decision:
    return Decision(pair_id=pair, reviewer=reviewer, keep=keep, captions=captions)


def verdict(decisions: list[Decision], reviewers: int) -> Verdict:
    found = verdict_of(decisions, reviewers)
    assert found is not None
    return found


def test_no_decision_is_no_verdict():
    assert verdict_of([], 3) is None


def test_a_pair_is_kept_when_as_many_reviewers_as_asked_for_keep_it():
    three = [said(name) for name in ("ann", "bob", "cy")]
    assert verdict(three, 3).reason is None
    assert verdict(three[:2], 3).reason == "too_few_reviewers"
    assert verdict(three[:2], 2).reason is None


@given(st.lists(st.booleans(), min_size=1, max_size=6), st.integers(1, 4))
def test_one_reviewer_who_drops_a_pair_drops_it_whatever_the_others_say(words, reviewers):
    found = verdict([said(f"r{n}", keep) for n, keep in enumerate(words)], reviewers)
    expected = "reviewers_dropped" if not all(words) else "too_few_reviewers" if len(words) < reviewers else None
    assert (found.reason, found.votes) == (expected, len(words))


def test_a_reviewers_last_word_counts_once():
    found = verdict([said("ann", False), said("bob"), said("ann", True)], 3)
    assert (found.reason, found.votes) == ("too_few_reviewers", 2)


def test_the_commonest_correction_stands_else_that_of_the_first_name():
    by = {"zoe": "a man slips", "bob": "he slips", "cy": "a man  slips "}
    assert verdict([said(name, x=text) for name, text in by.items()], 3).captions == {"x": "a man slips"}
    by = {"zoe": "first written", "ann": "first by name"}
    assert verdict([said(name, x=text) for name, text in by.items()], 2).captions == {"x": "first by name"}


def test_an_empty_correction_is_none():
    assert verdict([said("ann", x=" "), said("bob", x=""), said("cy", x="real")], 3).captions == {"x": "real"}


def test_decisions_are_read_line_by_line(tmp_path):
    path = tmp_path / "decisions.jsonl"
    lines = [
        '{"pair_id": "p1", "reviewer": "ann", "keep": true}',
        "",
        '{"pair_id": "p2", "reviewer": "b\u2028b", "keep": false}',
    ]
    path.write_text("\ufeff" + "\r\n".join(lines) + "\n", "utf-8")
    assert read_decisions(path) == [said("ann"), said("b\u2028b", False, "p2")]


@pytest.mark.parametrize(
    ("content", "where"),
    [
        (b'{"pair_id": "p1", "reviewer": "a", "keep": true}\n{"pair_id": 1', "line 2"),
        (b'{"pair_id": "p1", "keep": true}', "line 1: 'reviewer'"),
        (b'{"pair_id": "p1", "reviewer": "a", "keep": "perhaps"}', "line 1: 'keep'"),
        (b'{"pair_id": "p1", "reviewer": "a", "keep": true, "caption": "x"}', "line 1: 'caption'"),
        (b"[1]", "line 1"),
        (b"\xff\xfe", "cannot be read"),
    ],
)
def test_what_cannot_be_read_is_one_line_that_says_where(tmp_path, content, where):
    path = tmp_path / "decisions.jsonl"
    path.write_bytes(content)
    with pytest.raises(UserError, match=where) as caught:
        read_decisions(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_an_error_for_a_person(tmp_path):
    with pytest.raises(UserError, match=r"review\.file"):
        read_decisions(tmp_path / "none.jsonl")


def reviewed(folder, decisions=None, *overrides):
    if decisions is not None:
        path = folder / "decisions.jsonl"
        path.write_text("\n".join(json.dumps(decision) for decision in decisions), "utf-8")
        overrides = (f"review.file={path}", *overrides)
    where = context(folder, "test-000", *overrides)
    names = [(f"p{n}_{kind}_frame", kind) for n in (1, 2, 3) for kind in ("goal", "wentrong")]
    put(where, "frames", [image_record(name, kind) for name, kind in names], ImageRecord)
    used = PromptUsed(id="caption", sha256="0")
    captions = [Recaption(id=name, caption=f"caption of {name}", captioner=ENGINE, prompt=used) for name, _ in names]
    put(where, "recaption", captions, Recaption)
    nothing: dict[str, Any] = {
        "action": None,
        "anomaly": None,
        "scene": "x",
        "raw": "{}",
        "asked_with": "re-caption",
        "prompts": (),
    }
    put(where, "attributes", [Attributes(id=name, labeller=ENGINE, **nothing) for name, _ in names], Attributes)
    return where


def decision(pair: str, reviewer: str, keep: bool = True, captions: dict[str, str] | None = None) -> dict[str, Any]:
    return {"pair_id": pair, "reviewer": reviewer, "keep": keep, "captions": captions or {}}


def test_without_a_file_every_caption_stands_and_is_marked_unreviewed(tmp_path):
    where = reviewed(tmp_path)
    run(STAGE, where)
    records = kept(STAGE, where)
    assert len(records) == 6
    assert records[GOAL].caption == f"caption of {GOAL}"
    assert not any(record.reviewed or record.corrected or record.votes for record in records.values())


def test_reviewers_keep_drop_and_correct(tmp_path):
    decisions = [decision("p1", name, captions={WRONG: "a man slips"}) for name in ("ann", "bob", "cy")]
    decisions += [decision("p2", "ann", keep=False)]
    where = reviewed(tmp_path, decisions)
    run(STAGE, where)
    records = kept(STAGE, where)
    assert set(records) == {GOAL, WRONG, "p3_goal_frame", "p3_wentrong_frame"}
    assert (records[WRONG].caption, records[WRONG].corrected, records[WRONG].reviewed, records[WRONG].votes) == (
        "a man slips",
        True,
        True,
        3,
    )
    assert (records[GOAL].corrected, records[GOAL].reviewed) == (False, True)
    assert not records["p3_goal_frame"].reviewed
    assert set(dropped(STAGE, where).values()) == {"rejected: reviewers_dropped"}


def test_too_few_reviewers_drop_a_pair_for_that_reason(tmp_path):
    where = reviewed(tmp_path, [decision("p1", "ann")])
    run(STAGE, where)
    assert dropped(STAGE, where) == {GOAL: "rejected: too_few_reviewers", WRONG: "rejected: too_few_reviewers"}


def test_a_new_decision_changes_the_key_and_the_place_of_the_file_does_not(tmp_path):
    keys = []
    for folder, decisions in (("a", [decision("p1", "ann")]), ("b", [decision("p1", "ann")]), ("c", [])):
        (tmp_path / folder).mkdir()
        where = reviewed(tmp_path / folder, decisions)
        keys.append(content_key(STAGE, where.profile, where.store, where.shard, {}))
    assert keys[0] == keys[1] != keys[2]


def test_no_file_has_no_digest(tmp_path):
    assert decisions_digest(context(tmp_path, "test-000").profile, "test-000") == {}
