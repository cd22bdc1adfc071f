from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.measures import (
    Share,
    body_size,
    colour_of,
    first_said,
    joints_found,
    opening,
    precision_recall,
    says,
    share,
    shown_index,
)

COLOURS = {"red": ["red", "scarlet"], "blue": ["blue", "navy"], "grey": ["grey", "gray"], "white": ["white"]}
TOP, BOTTOM = ["top", "shirt"], ["shorts", "pants"]
POSTURES = {"upside_down": ["upside down"], "fallen": ["lying", "fall*"], "upright": ["upright", "stand*"]}


@given(st.lists(st.tuples(st.booleans(), st.booleans())))
def test_precision_and_recall_are_those_of_the_counted_table(cases):
    both = sum(1 for said, true in cases if said and true)
    false_alarms = sum(1 for said, true in cases if said and not true)
    missed = sum(1 for said, true in cases if true and not said)
    precision, recall = precision_recall(cases)
    assert (precision.right, precision.of) == (both, both + false_alarms)
    assert (recall.right, recall.of) == (both, both + missed)


def test_a_share_of_nothing_has_no_value():
    assert share([]).value is None
    assert share([True, False, True, True]).value == 0.75
    assert Share(1, 2) + Share(3, 4) == Share(4, 6)


def brute_joints_found(found, truth, reach):
    right = of = 0
    for (x, y, score), (tx, ty, visible) in zip(found, truth, strict=True):
        if visible:
            of += 1
            if score > 0 and ((x - tx) ** 2 + (y - ty) ** 2) ** 0.5 <= reach:
                right += 1
    return Share(right, of)


@given(st.integers(0, 2**32 - 1), st.floats(0, 60))
def test_joints_found_are_those_a_loop_over_the_joints_finds(seed, reach):
    rng = np.random.default_rng(seed)
    truth = np.column_stack([rng.uniform(0, 100, (17, 2)), rng.integers(0, 2, 17)])
    found = np.column_stack([truth[:, :2] + rng.normal(0, 30, (17, 2)), rng.integers(0, 2, 17) * rng.random(17)])
    assert joints_found(found, truth, reach) == brute_joints_found(found, truth, reach)


def test_where_no_person_was_found_every_joint_in_sight_is_missed():
    truth = np.column_stack([np.zeros((17, 2)), [1] * 5 + [0] * 12])
    assert joints_found(None, truth, 10) == Share(0, 5)


def test_a_bodys_size_is_the_larger_side_of_its_box():
    assert body_size([(10, 20, 1), (40, 200, 0), (25, 50, 1)]) == 180
    assert body_size([(10, 20, 1), (240, 30, 1)]) == 230


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(0, 2000))
def test_the_frame_shown_is_the_last_that_has_started(steps, at):
    times = [sum(steps[:number]) / 10 for number in range(len(steps))]
    time = at / 10
    expected = max(number for number, start in enumerate(times) if start <= time + 1e-6)
    assert shown_index(times, time) == expected


def test_nothing_is_shown_before_the_first_frame():
    with pytest.raises(ValueError, match="nothing is shown"):
        shown_index([0.5, 1.0], 0.2)
    with pytest.raises(ValueError, match="nothing is shown"):
        shown_index([], 0.2)


@pytest.mark.parametrize(
    ("caption", "top", "bottom"),
    [
        ("A man in a red short-sleeved top and blue shorts runs.", "red", "blue"),
        ("A man in a scarlet T-shirt and navy pants.", "red", "blue"),
        ("A man in a red top and shorts.", "red", None),
        ("The shorts are short. A dark gray pair of pants.", None, "grey"),
        ("A person on top of a hill wears a white shirt.", "white", None),
        ("A person with red hair and a top.", None, None),
        ("The wall is red. The shirt has stripes.", None, None),
        ("A red and white shirt.", "white", None),
        ("Reddish shirt, bluer pants.", None, None),
        ("A brown shirt, or a red one?", None, None),
        ("", None, None),
    ],
)
def test_a_garments_colour_is_the_nearest_before_it_and_of_nothing_else(caption, top, bottom):
    assert colour_of(caption, TOP, COLOURS, [*BOTTOM, "hair", "wall"]) == top
    assert colour_of(caption, BOTTOM, COLOURS, [*TOP, "hair", "wall"]) == bottom


@given(st.permutations(["a", "red", "blue", "top", "shorts", "hair", "in"]))
def test_the_colour_is_found_as_by_going_backwards_from_the_garment(words):
    expected = None
    for word in reversed(words[: words.index("top")]):
        if word in ("shorts", "hair"):
            break
        if word in ("red", "blue"):
            expected = word
            break
    assert colour_of(" ".join(words), ["top"], COLOURS, ["shorts", "hair"]) == expected


def test_phrases_are_found_as_whole_words_and_a_star_is_any_ending():
    assert says("He is Upside-down.", ["upside down"])
    assert says("She stands.", ["stand*"])
    assert not says("He understands a standstill", ["stands", "stand"])
    assert not says("", ["stand*"])


def test_the_first_row_of_the_table_wins():
    assert first_said("standing, then lying upside down", POSTURES) == "upside_down"
    assert first_said("stands upright", POSTURES) == "upright"
    assert first_said("can be seen", POSTURES) is None


def test_an_opening_is_the_first_words():
    assert opening("In the image, a person runs.") == "in the image"
    assert opening("Yes") == "yes"
