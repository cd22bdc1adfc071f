"""Scores, margins and proposals: each held against the filters' own decisions."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipeline.core.profile import Section, load_profile
from pipeline.core.thresholds import (
    PRECISION,
    Margin,
    Rules,
    as_good,
    f1_of,
    kept_at,
    margin,
    middle_of_widest,
    nearest_keep_rate,
    own_scores,
    people_rules,
    rules_of,
    score,
    spreads_of,
    structure_rules,
    valley,
    values_to_try,
)

PROFILE = load_profile("demo")
EVERY_RULE = {"min_limbs": 2, "max_doubled_joints": 1, "max_asymmetry": 6.0, "max_outside_share": 0.2}
FILTERS = {
    "people": people_rules(PROFILE.keypoints.people),
    "structure": structure_rules(PROFILE.keypoints.structure),
    "every structure rule": structure_rules(PROFILE.keypoints.structure.model_copy(update=EVERY_RULE)),
}
EVERY = [(kind, name) for kind, rules in FILTERS.items() for name in rules.thresholds]
OWN = [(kind, name) for kind, name in EVERY if not FILTERS[kind].thresholds[name].steering]

shares = st.integers(0, 10_000).map(lambda number: number / 10_000)
places = st.integers(-1_000, 11_000).map(lambda number: number / 10_000)
few = settings(max_examples=20)  # a detail is large, and a score takes some twenty decisions


def standing(score: float = 0.9, area_share: float = 0.2, joint_score: float = 0.9) -> dict[str, Any]:
    """A whole body in the middle of the image."""
    flat = [
        *((0.5, 0.2), (0.51, 0.19), (0.49, 0.19), (0.52, 0.2), (0.48, 0.2), (0.56, 0.3), (0.44, 0.3), (0.58, 0.42)),
        *((0.42, 0.42), (0.59, 0.52), (0.41, 0.52), (0.54, 0.52), (0.46, 0.52), (0.54, 0.66), (0.46, 0.66)),
        *((0.54, 0.8), (0.46, 0.8)),
    ]
    joints = [[x, y, joint_score] for x, y in flat]
    return {"score": score, "area_share": area_share, "joints": joints, "box": [0.4, 0.15, 0.6, 0.85]}


def image_of(*bodies: dict[str, Any]) -> dict[str, Any]:
    return {"width": 320, "height": 320, "people": list(bodies)}


@st.composite
def bodies(draw: st.DrawFn) -> dict[str, Any]:
    """A whole body of which some joints were moved or are not sure; now and then one that is nowhere near whole."""
    body = standing(draw(shares), draw(shares), draw(shares))
    for number in draw(st.lists(st.integers(0, 16), max_size=17)):
        body["joints"][number] = [draw(places), draw(places), draw(shares)]
    return body


details = st.builds(
    lambda side, people: {"width": side, "height": side, "people": people},
    st.integers(1, 400),
    st.lists(bodies(), max_size=3),
)


@pytest.mark.parametrize(("kind", "name"), EVERY)
@few
@given(detail=details)
def test_just_stricter_than_the_score_the_rule_drops_and_at_the_score_it_does_not(kind, name, detail):
    rules = FILTERS[kind]
    threshold = rules.thresholds[name]
    alone = rules.alone(name)
    strictest = threshold.lowest if threshold.at_most else threshold.highest
    found = score(rules, detail, name)
    if found is None:
        assert rules.decide(detail, {**alone, name: threshold.lax}) is not None
        return
    assert rules.decide(detail, {**alone, name: found}) is None
    step = 1 if threshold.whole else PRECISION
    stricter = found - step if threshold.at_most else found + step
    if found != strictest:
        assert rules.decide(detail, {**alone, name: stricter}) is not None


def test_the_scores_are_what_was_measured():
    rules = FILTERS["people"]
    seen = image_of(standing(score=0.4321, area_share=0.1234, joint_score=0.7654))
    assert score(rules, seen, "min_person_score") == 0.4321
    assert score(rules, seen, "min_area_share") == 0.1234
    assert score(rules, seen, "min_joint_score") == 0.7654
    assert score(rules, seen, "min_joints") == 17
    assert score(rules, image_of(), "min_person_score") is None
    stretched = score(FILTERS["structure"], seen, "max_stretch")
    assert stretched is not None
    assert 1 < stretched < 1.5


@given(number=st.integers(0, 10_000))
def test_a_score_is_the_very_number_that_was_measured(number):
    assert (
        score(FILTERS["people"], image_of(standing(score=0.5, area_share=number / 10_000)), "min_area_share")
        == number / 10_000
    )


def test_of_several_people_the_best_gives_the_score():
    detail = image_of(standing(score=0.2), standing(score=0.7, area_share=0.001))
    assert score(FILTERS["people"], detail, "min_person_score") == 0.7
    assert score(FILTERS["people"], detail, "min_area_share") == 0.2


@pytest.mark.parametrize(("kind", "name"), EVERY)
@few
@given(detail=details)
def test_a_sweep_comes_to_what_deciding_at_every_value_comes_to(kind, name, detail):
    rules = FILTERS[kind]
    values = values_to_try(rules, name, [0.1, 0.5, 0.9, score(rules, detail, name)], most=10)
    assert kept_at(rules, detail, name, values) == [rules.verdict(detail, {name: value}) is None for value in values]


def test_a_sweep_turns_where_the_body_does():
    rules = FILTERS["structure"]
    long_arm = standing()
    long_arm["joints"][9] = [0.9, 0.9, 0.5]  # a wrist far from its elbow
    values = [1.05, 1.5, 2.0, 5.0, 50.0]
    found = kept_at(rules, image_of(long_arm), "max_stretch", values)
    assert found == sorted(found)
    assert set(found) == {False, True}
    assert kept_at(rules, image_of(standing(score=0.5)), "min_person_score", [0.2, 0.4, 0.6]) == [True, True, False]
    # An arm that is not seen cannot be too long; where nothing is seen, nobody is there.
    assert kept_at(rules, image_of(long_arm), "min_joint_score", [0.3, 0.6, 0.95]) == [False, True, False]


def moved(rules: Rules, spreads: dict[str, float], by: float) -> dict[str, float]:
    """All thresholds that have a rule made stricter by so many spreads; laxer below 0."""
    own = [each for each in rules.thresholds.values() if not each.steering]
    return {each.name: each.value + (-by if each.at_most else by) * spreads[each.name] for each in own}


@pytest.mark.parametrize("kind", FILTERS)
@few
@given(detail=details, scale=st.floats(0.05, 20))
def test_the_margin_is_how_far_all_thresholds_have_to_move_for_the_other_verdict(kind, detail, scale):
    rules = FILTERS[kind]
    scores = own_scores(rules, detail)
    spreads = {name: scale * (1 + number) for number, (_, name) in enumerate(OWN)}
    found = margin(rules, detail, scores, spreads)
    if found == Margin(math.inf):
        assert rules.verdict(detail, moved(rules, spreads, -1e9)) is not None
        return
    near = max(1.0, 2 * PRECISION) / min(spreads.values())  # a whole step of an integer
    kept = rules.verdict(detail) is None
    assume(all(rules.thresholds[name].lowest < each[name] for each in scores for name in each) or not kept)
    assert (rules.verdict(detail, moved(rules, spreads, (found.distance + near) * (1 if kept else -1))) is None) != kept
    nearer = found.distance - near
    if nearer > 0:
        assert (rules.verdict(detail, moved(rules, spreads, nearer * (1 if kept else -1))) is None) == kept


def test_the_margin_names_the_threshold_of_the_reason_and_those_that_drop_the_record_as_well():
    rules = FILTERS["people"]
    spreads = dict.fromkeys(rules.thresholds, 0.1)
    detail = image_of(standing(score=0.3, area_share=0.005))
    assert rules.verdict(detail) == "low_confidence"
    found = margin(rules, detail, own_scores(rules, detail), spreads)
    assert (found.threshold, found.score, found.others) == ("min_person_score", 0.3, ("min_area_share",))
    assert found.distance == pytest.approx(1)
    kept = image_of(standing(score=0.45, area_share=0.3))
    found = margin(rules, kept, own_scores(rules, kept), spreads)
    assert (found.threshold, found.score) == ("min_person_score", 0.45)
    assert found.distance == pytest.approx(0.5)


def test_of_two_thresholds_that_drop_a_body_the_one_of_the_reason_is_named_though_the_other_is_farther():
    rules = FILTERS["structure"]
    cut = standing(score=rules.values["min_found_score"] + 0.01)
    for number in range(11, 17):  # hips to ankles
        cut["joints"][number] = [0.5, 1.05, 0.1]
    detail = image_of(cut)
    assert rules.verdict(detail) == "cut_off"
    spreads = {**dict.fromkeys(rules.thresholds, 1.0), "min_person_score": 0.001}
    found = margin(rules, detail, own_scores(rules, detail), spreads)
    assert found.threshold == "max_cut_share"
    assert "min_person_score" in found.others
    assert found.distance > 10


def test_where_nobody_is_there_no_threshold_is_near():
    for rules in FILTERS.values():
        assert margin(rules, image_of(), own_scores(rules, image_of()), {}) == Margin(math.inf)


def test_a_spread_is_the_standard_deviation_and_all_but_nothing_where_all_scores_are_alike():
    assert spreads_of([{"a": 1.0, "b": 5.0}, {"a": 3.0, "b": 5.0}]) == {"a": 1.0, "b": PRECISION}


class Odd(Section):
    """A section whose number is neither the least nor the most."""

    blur: float = 0.5


def test_a_number_that_is_neither_the_least_nor_the_most_is_an_error():
    with pytest.raises(ValueError, match=r"odd\.blur"):
        rules_of("odd", Odd(), lambda *_: None)


@pytest.mark.parametrize("kind", FILTERS)
def test_the_bounds_are_those_of_the_profile_and_every_number_of_a_section_is_a_threshold(kind):
    rules = FILTERS[kind]
    assert set(rules.thresholds) == {name for name, value in rules.section if value is not None}
    assert (rules.thresholds["min_joints"].lowest, rules.thresholds["min_joints"].highest) == (0, 17)
    assert rules.thresholds["min_joints"].whole
    assert (rules.thresholds["min_area_share"].lowest, rules.thresholds["min_area_share"].highest) == (0, 1)
    assert not rules.allows("min_area_share", 1.5)
    for each in rules.thresholds.values():
        assert each.at_most == each.name.startswith("max_")
    if kind == "structure":
        assert math.isinf(rules.thresholds["max_stretch"].highest)
        assert not rules.allows("max_stretch", 1.0)


@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_the_value_as_it_stands_is_among_those_that_are_tried_and_all_are_allowed(kind, name):
    rules = FILTERS[kind]
    values = values_to_try(rules, name, [None, 1.2, 0.3333, 0.5, 7.0])
    assert rules.thresholds[name].value in values
    assert values == sorted(set(values))
    assert all(rules.allows(name, value) for value in values)
    assert values_to_try(rules, name, [])


matrices = st.integers(1, 8).flatmap(
    lambda records: st.tuples(
        st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=records, max_size=records),
        st.lists(st.booleans(), min_size=records, max_size=records),
    )
)


@given(matrices)
def test_f1_is_the_harmonic_mean_of_precision_and_recall(case):
    kept, sound = np.array(case[0], dtype=bool), np.array(case[1], dtype=bool)
    for column, found in enumerate(f1_of(kept, sound)):
        right = sum(k and s for k, s in zip(kept[:, column], sound, strict=True))
        if not right:
            assert found == 0
            continue
        precision, recall = right / kept[:, column].sum(), right / sound.sum()
        assert found == pytest.approx(2 * precision * recall / (precision + recall))


def test_a_value_is_worse_where_the_best_is_right_on_clearly_more_of_the_records_that_differ():
    sound = np.ones(100, dtype=bool)
    best = np.ones(100, dtype=bool)
    one_less, ten_less = best.copy(), best.copy()
    one_less[:1], ten_less[:10] = False, False
    assert as_good(np.stack([best, one_less, ten_less], axis=1), sound, 0).tolist() == [True, True, False]


def test_of_equally_good_values_the_middle_of_the_widest_run_is_taken_and_there_the_roundest():
    values = [0.1, 0.2, 0.31, 0.4, 0.45, 0.5, 0.55, 0.61]
    assert middle_of_widest(values, [True, True, False, True, True, True, True, True]) == 0.5
    assert middle_of_widest(values, [False, False, True, False, False, False, False, False]) == 0.31
    assert middle_of_widest(values, [False] * 8) is None
    assert middle_of_widest([], []) is None


def test_the_keep_rate_that_is_nearest_is_taken():
    assert nearest_keep_rate([0.1, 0.2, 0.3, 0.4], [0.9, 0.8, 0.7, 0.1], 0.75) in (0.2, 0.3)
    assert nearest_keep_rate([0.1, 0.2, 0.3, 0.4], [0.9, 0.8, 0.7, 0.1], 0.05) == 0.4
    assert nearest_keep_rate([], [], 0.5) is None


def hills(*centres: float, each: int = 300) -> list[float]:
    rng = np.random.Generator(np.random.PCG64(5))
    return np.concatenate([rng.normal(centre, 0.06, each) for centre in centres]).tolist()


def test_the_valley_lies_between_two_hills():
    found = valley(hills(0.2, 0.8))
    assert found is not None
    assert 0.35 < found < 0.65
    assert valley([*[2.0] * 40, *[3.0] * 30, *[9.0] * 40], whole=True) in (5, 6, 7)


def test_a_single_hill_a_handful_of_scores_and_one_far_away_have_no_valley():
    assert valley(hills(0.5)) is None
    assert valley([0.1, 0.1, 0.9, 0.9]) is None
    assert valley([0.5] * 50) is None
    assert valley([*hills(0.2), 0.9]) is None


def test_decisions_use_the_values_they_are_given_and_keep_what_no_value_names():
    base = FILTERS["structure"]
    section = base.section.model_copy(update={"min_person_score": 0.95})
    strict = structure_rules(section)
    assert base.verdict(image_of(standing())) is None
    assert strict.verdict(image_of(standing())) is not None
    assert strict.verdict(image_of(standing()), {"min_person_score": 0.5}) is None
    assert dataclasses.replace(base, name="x").values == base.values


def test_a_rule_that_is_off_is_no_threshold_and_one_that_is_on_is():
    assert not set(EVERY_RULE) & set(FILTERS["structure"].thresholds)
    rules = FILTERS["every structure rule"]
    assert set(EVERY_RULE) <= set(rules.thresholds)
    assert rules.thresholds["max_doubled_joints"].whole
    assert rules.thresholds["min_limbs"].whole
    assert not rules.thresholds["max_outside_share"].whole
    one_leg = standing()
    for number in (13, 15):
        one_leg["joints"][number][2] = 0.0
    assert score(rules, image_of(one_leg), "min_limbs") == 3
    assert rules.verdict(image_of(one_leg)) is None
    assert rules.verdict(image_of(one_leg), {"min_limbs": 4}) == "missing_limb"
