import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.labelled import (
    HALVES,
    box_overlap,
    joint_box,
    marked_words,
    matching_person,
    plain_caption,
    read_labels,
    score_splits,
)
from pipeline.backends.protocols import FactorTexts, Person
from pipeline.core.measures import Share
from pipeline.core.text import words_of

MARKED = "The image shows A{a tall man in a red shirt} V{falling off a chair} B{in a kitchen}."


def test_marks_come_off_and_the_words_under_them_are_counted():
    assert plain_caption(MARKED) == "The image shows a tall man in a red shirt falling off a chair in a kitchen."
    assert marked_words(MARKED) == {
        "appearance": Counter(["tall", "man", "red", "shirt"]),
        "action": Counter(["falling", "chair"]),
        "background": Counter(["kitchen"]),
    }


def test_the_split_of_the_marks_themselves_is_wholly_right():
    split = FactorTexts("a tall man in a red shirt", "falling off a chair", "in a kitchen")
    score = score_splits([MARKED], [split])
    assert (score.right, score.somewhere, score.doubled, score.added) == (Share(7, 7), Share(7, 7), 0, 0)
    assert score.wrong == ()


def test_each_way_to_be_wrong_is_counted_on_its_own():
    moved = FactorTexts("a tall man in a red shirt falling", "off a chair", "in a kitchen")
    lost = FactorTexts("a tall man", "falling off a chair", None)
    doubled = FactorTexts("a tall man in a red shirt", "falling off a chair in a kitchen", "in a kitchen")
    added = FactorTexts("a tall man in a red shirt", "falling off a chair", "in a kitchen with a dog")
    score = score_splits([MARKED] * 4, [moved, lost, doubled, added])
    assert score.right == Share(6 + 4 + 7 + 7, 28)
    assert score.somewhere == Share(7 + 4 + 7 + 7, 28)
    assert score.factors["action"] == Share(1 + 2 + 2 + 2, 8)
    assert (score.doubled, score.added) == (1, 1)
    assert [line.partition(":")[0] for line in score.wrong] == [
        "falling (action)",
        "red (appearance), shirt (appearance), kitchen (background)",
    ]


@pytest.mark.parametrize("row", read_labels("factors_60"), ids=lambda row: row["id"])
def test_a_marked_caption_has_all_factors_and_40_to_60_words(row):
    assert all(marked_words(row["marked"]).values())
    assert 40 <= len(words_of(plain_caption(row["marked"]).replace("-", ""))) <= 60
    assert not set("{}") & set(plain_caption(row["marked"]))


def test_the_halves_are_as_large_as_they_should_be_and_no_label_stands_twice():
    for name, half in (("factors_60", 30), ("subject_100", 50)):
        rows = read_labels(name)
        assert Counter(row["half"] for row in rows) == dict.fromkeys(HALVES, half)
        assert len({row["id"] for row in rows}) == len(rows) == 2 * half
        assert len({json.dumps(row.get("caption", row.get("marked"))).lower() for row in rows}) == len(rows)
    older = {row["caption"].lower() for row in read_labels("subject_sentences")}
    assert not older & {row["caption"].lower() for row in read_labels("subject_100")}


def test_twenty_people_are_labelled_and_no_picture_of_them_is_in_the_project():
    rows = read_labels("real_people_20")
    assert len({row["id"] for row in rows}) == 20
    for row in rows:
        x0, y0, x1, y1 = row["box"]
        assert 0 <= x0 < x1, row["id"]
        assert 0 <= y0 < y1, row["id"]
        assert row["people_in_image"] >= 1
        assert not list(Path(__file__).parents[2].glob(f"tests/**/{Path(row['file']).name}"))


cells = st.tuples(st.integers(0, 8), st.integers(0, 8)).map(sorted).filter(lambda pair: pair[0] < pair[1])
boxes = st.tuples(cells, cells).map(lambda each: (each[0][0], each[1][0], each[0][1], each[1][1]))


@given(boxes, boxes)
def test_the_overlap_of_two_boxes_is_shared_cells_over_all_cells(one, other):
    first, second = ({(x, y) for x in range(b[0], b[2]) for y in range(b[1], b[3])} for b in (one, other))
    assert box_overlap(one, other) == pytest.approx(len(first & second) / len(first | second))


def person(x0: float, y0: float, x1: float, y1: float) -> Person:
    joints = np.zeros((17, 3), dtype=np.float32)
    joints[0], joints[1] = (x0, y0, 0.9), (x1, y1, 0.9)
    return Person(joints, (0.0, 0.0, 1.0, 1.0), 0.5)


def test_a_persons_box_is_that_of_the_joints_that_were_seen():
    assert joint_box(person(10, 20, 30, 80)) == (10, 20, 30, 80)


def test_a_label_belongs_to_the_person_who_fills_its_box_best_or_to_nobody():
    persons = [person(50, 50, 60, 60), person(12, 22, 30, 80), person(10, 20, 25, 60)]
    assert matching_person((10, 20, 30, 80), persons) == 1
    assert matching_person((70, 70, 90, 90), persons) is None
    assert matching_person((10, 20, 30, 80), []) is None
