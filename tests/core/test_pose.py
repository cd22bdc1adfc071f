"""Joints, pose maps and the two filters."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pipeline.core.pose import (
    COCO_17,
    COCO_INDEX,
    OPENPOSE_18,
    OPENPOSE_COLORS,
    OPENPOSE_LIMBS,
    PEOPLE_REASONS,
    STRUCTURE_REASONS,
    PeopleThresholds,
    StructureThresholds,
    as_keypoints,
    asymmetry,
    decide_people,
    decide_structure,
    doubled_joints,
    draw_pose_map,
    limbs_seen,
    measure_people,
    openpose_18,
    outside_share,
    people_filter,
    stretch,
    structure_filter,
)

CASES = Path(__file__).parent.parent / "cases" / "pose"
DETECTIONS = {case["id"]: case for case in json.loads((CASES / "detections.json").read_text())}
GOLDEN = CASES / "pose_map_golden.png"


@dataclass(frozen=True)
class Body:
    keypoints: np.ndarray
    box: tuple[float, float, float, float]
    score: float | None


def standing(width: float = 128, height: float = 192, score: float = 0.9) -> Body:
    """The whole person of case K01, scaled from 128 x 192."""
    joints = np.array(DETECTIONS["K01"]["persons"][0]["keypoints"], dtype=float)
    joints = joints * np.array([width / 128, height / 192, 1.0])
    box = (30 * width / 128, 15 * height / 192, 98 * width / 128, 188 * height / 192)
    return Body(joints, box, score)


def moved(body: Body, dx: float, dy: float) -> Body:
    box = (body.box[0] + dx, body.box[1] + dy, body.box[2] + dx, body.box[3] + dy)
    return Body(body.keypoints + np.array([dx, dy, 0.0]), box, body.score)


@pytest.mark.parametrize("case", list(DETECTIONS.values()), ids=list(DETECTIONS))
def test_detections_are_judged_as_the_case_says(case):
    persons = [Body(np.array(p["keypoints"]), tuple(p["bbox"]), p["score"]) for p in case["persons"]]
    width, height = case["image_size"]
    reason, detail = people_filter(persons, width, height)
    assert (reason or "person") == case["expect"]
    reason, _ = structure_filter(persons, width, height)
    assert (reason or "person") == case["expect"]
    assert len(detail["people"]) == len(persons)


def test_a_person_far_away_is_too_small():
    body = standing(12, 18)
    assert people_filter([body], 640, 480)[0] == "person_too_small"
    assert structure_filter([body], 640, 480)[0] == "person_too_small"


def test_a_body_whose_engine_doubts_it_is_of_low_confidence():
    assert people_filter([standing(score=0.2)], 128, 192)[0] == "low_confidence"
    few = standing().keypoints.copy()
    few[5:, 2] = 0.1
    assert people_filter([Body(few, (30, 15, 98, 60), 0.9)], 128, 192)[0] == "low_confidence"


def test_a_generated_body_that_is_found_but_doubted_is_of_low_confidence_and_a_trace_of_one_is_nobody():
    assert structure_filter([standing(score=0.2)], 128, 192)[0] == "low_confidence"
    assert structure_filter([standing(score=0.02)], 128, 192)[0] == "no_person"
    assert people_filter([standing(score=0.02)], 128, 192)[0] == "no_person"
    assert structure_filter([], 128, 192)[0] == "no_person"
    few = standing().keypoints.copy()
    few[5:, 2] = 0.1
    assert structure_filter([Body(few, (30, 15, 98, 60), 0.9)], 128, 192)[0] == "low_confidence"


def test_one_good_person_is_enough_whatever_stands_beside():
    assert people_filter([standing(score=0.1), standing()], 128, 192)[0] is None


def test_a_body_largely_outside_the_image_is_cut_off():
    assert structure_filter([moved(standing(), 0, 95)], 128, 192)[0] == "cut_off"
    assert structure_filter([moved(standing(), -70, 0)], 128, 192)[0] == "cut_off"


def test_a_body_without_its_feet_passes_and_one_without_its_head_does_not():
    assert structure_filter([moved(standing(), 0, 45)], 128, 192)[0] is None
    assert structure_filter([moved(standing(), 0, -55)], 128, 192)[0] == "cut_off"


def test_a_doubted_body_that_is_cut_is_cut_off_and_a_trace_of_one_is_nobody():
    assert structure_filter([moved(standing(score=0.1), 0, 95)], 128, 192)[0] == "cut_off"
    assert structure_filter([moved(standing(score=0.02), 0, 95)], 128, 192)[0] == "no_person"


def test_a_body_of_which_no_joint_is_left_inside_is_cut_off_and_one_that_is_nowhere_seen_is_nobody():
    gone = moved(standing(score=0.1), 0, 190).keypoints.copy()
    gone[:, 2] = 0
    assert structure_filter([Body(gone, (30, 180, 98, 192), 0.1)], 128, 192)[0] == "cut_off"
    unseen = standing().keypoints.copy()
    unseen[:, 2] = 0
    assert structure_filter([Body(unseen, (30, 15, 98, 188), 0.1)], 128, 192)[0] == "no_person"


def test_unseen_joints_at_the_border_count_as_cut_and_unseen_joints_inside_do_not():
    at_border = standing().keypoints.copy()
    at_border[[9, 10, 13, 14, 15, 16], 1] = 191
    at_border[[9, 10, 13, 14, 15, 16], 2] = 0.05
    assert structure_filter([Body(at_border, (30, 15, 98, 188), 0.9)], 128, 192)[0] == "cut_off"
    hidden = standing().keypoints.copy()
    hidden[[9, 10, 13, 14, 15, 16], 2] = 0.05
    assert structure_filter([Body(hidden, (30, 15, 98, 188), 0.9)], 128, 192)[0] is None


def test_a_limb_torn_from_the_body_is_a_broken_body():
    torn = standing().keypoints.copy()
    torn[COCO_INDEX["left_wrist"], :2] = (8, 8)
    assert structure_filter([Body(torn, (5, 5, 98, 188), 0.9)], 128, 192)[0] == "broken_body"


def test_a_foreshortened_limb_is_no_broken_body():
    pointing = standing().keypoints.copy()
    pointing[COCO_INDEX["left_wrist"], :2] = pointing[COCO_INDEX["left_elbow"], :2] + 1
    assert structure_filter([Body(pointing, (30, 15, 98, 188), 0.9)], 128, 192)[0] is None


@settings(max_examples=50, deadline=None)
@given(st.floats(0, 360), st.floats(0.3, 1.0))
def test_no_turn_of_the_body_changes_the_people_filter(angle, size):
    body = standing()
    centre = np.array([64.0, 100.0])
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    joints = body.keypoints.copy()
    joints[:, :2] = (joints[:, :2] - centre) @ turn.T * size + 200
    low, high = joints[:, :2].min(axis=0), joints[:, :2].max(axis=0)
    assert (
        people_filter([Body(joints, (*low, *high), 0.9)], 400, 400, PeopleThresholds(min_area_share=0.001))[0] is None
    )


joint = st.tuples(st.floats(-300, 500), st.floats(-300, 500), st.floats(0, 1))
person = st.builds(
    Body,
    st.lists(joint, min_size=17, max_size=17).map(np.array),
    st.tuples(*[st.floats(-100, 400)] * 4),
    st.one_of(st.none(), st.floats(0, 1)),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(person, max_size=3))
def test_the_detail_alone_repeats_the_decision_after_a_round_through_json(persons):
    reason, detail = people_filter(persons, 200, 100)
    assert reason is None or reason in PEOPLE_REASONS
    assert decide_people(json.loads(json.dumps(detail)), PeopleThresholds()) == reason
    reason, detail = structure_filter(persons, 200, 100)
    assert reason is None or reason in STRUCTURE_REASONS
    assert decide_structure(json.loads(json.dumps(detail)), StructureThresholds()) == reason


def test_thresholds_can_be_swept_from_the_detail():
    _, detail = people_filter([standing(score=0.5)], 128, 192)
    assert decide_people(detail, PeopleThresholds(min_person_score=0.49)) is None
    assert decide_people(detail, PeopleThresholds(min_person_score=0.51)) == "low_confidence"
    assert decide_people(detail, PeopleThresholds(min_area_share=0.99)) == "person_too_small"
    assert decide_people(detail, PeopleThresholds(min_found_score=0.51)) == "no_person"
    _, detail = structure_filter([moved(standing(score=0.5), 0, 45)], 128, 192)
    assert decide_structure(detail, StructureThresholds()) is None
    assert decide_structure(detail, StructureThresholds(max_cut_share=0.1)) == "cut_off"
    assert decide_structure(detail, StructureThresholds(min_person_score=0.51)) == "low_confidence"
    assert decide_structure(detail, StructureThresholds(min_found_score=0.51)) == "no_person"


def test_a_nan_joint_is_not_seen_and_a_wrong_shape_is_an_error():
    joints = standing().keypoints.copy()
    joints[0] = (np.nan, 3, 0.9)
    assert as_keypoints(joints)[0].tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match=r"\(17, 3\)"):
        as_keypoints(np.zeros((33, 3)))


def test_proportion_of_a_whole_body_is_near_one_and_unknown_without_bones():
    body = standing()
    shares = body.keypoints / np.array([128, 192, 1])
    assert 1 <= stretch(shares, 128, 192) < 1.5
    assert stretch(np.zeros((17, 3)), 128, 192) == 0


# ------------------------------------------------------------------------------------------------ pose maps


def test_openpose_joints_are_those_of_coco_and_the_neck_between_the_shoulders():
    coco = standing().keypoints
    joints = openpose_18(coco)
    for index, name in enumerate(OPENPOSE_18):
        if name != "neck":
            assert joints[index].tolist() == coco[COCO_17.index(name)].tolist()
    assert joints[1].tolist() == [64, 60, 0.92]


def test_the_neck_is_absent_where_either_shoulder_is():
    coco = standing().keypoints.copy()
    coco[COCO_INDEX["right_shoulder"], 2] = 0.1
    assert openpose_18(coco, min_score=0.3)[1].tolist() == [0, 0, 0]


def test_the_hues_are_eighteen_spread_evenly_from_red():
    assert len(set(OPENPOSE_COLORS)) == len(OPENPOSE_18) == 18
    assert OPENPOSE_COLORS[:4] == ((255, 0, 0), (255, 85, 0), (255, 170, 0), (255, 255, 0))
    assert OPENPOSE_COLORS[-1] == (255, 0, 85)
    assert len(OPENPOSE_LIMBS) == 17


def test_the_pose_map_is_the_golden_picture():
    drawn = draw_pose_map([standing(256, 384).keypoints, moved(standing(100, 150), 190, 200).keypoints], 320, 400)
    assert np.array_equal(drawn, np.asarray(Image.open(GOLDEN)))


def test_joints_are_painted_in_full_and_limbs_at_their_strength():
    drawn = draw_pose_map([standing(512, 512).keypoints], 512, 512)
    assert drawn.shape == (512, 512, 3)
    assert drawn.dtype == np.uint8
    nose = standing(512, 512).keypoints[0]
    assert tuple(drawn[int(nose[1]), int(nose[0])]) == (255, 0, 0)
    hip, knee = standing(512, 512).keypoints[[COCO_INDEX["left_hip"], COCO_INDEX["left_knee"]], :2]
    middle = (hip + knee) / 2
    limb = OPENPOSE_LIMBS.index(("left_hip", "left_knee"))
    assert np.abs(drawn[int(middle[1]), int(middle[0])] - 0.6 * np.array(OPENPOSE_COLORS[limb])).max() <= 0.5


def test_a_limb_is_four_pixels_wide_at_512_and_eight_at_1024():
    for side, width in ((512, 4), (1024, 8)):
        joints = np.zeros((17, 3))
        joints[COCO_INDEX["left_hip"]] = (side / 2, side / 4, 1)
        joints[COCO_INDEX["left_knee"]] = (side / 2, 3 * side / 4, 1)
        drawn = draw_pose_map([joints], side, side)
        assert (drawn[side // 2].max(axis=1) > 0).sum() == width


def test_joints_below_the_score_leave_no_trace():
    joints = standing().keypoints.copy()
    joints[:, 2] = 0.29
    assert not draw_pose_map([joints], 128, 192, min_score=0.3).any()
    assert draw_pose_map([joints], 128, 192, min_score=0.2).any()
    assert not draw_pose_map([], 128, 192).any()


@settings(max_examples=60, deadline=None)
@given(st.lists(joint, min_size=17, max_size=17), st.integers(1, 40), st.integers(1, 40))
def test_any_joints_draw_in_any_size(joints, width, height):
    assert draw_pose_map([np.array(joints)], width, height).shape == (height, width, 3)


@settings(max_examples=30, deadline=None)
@given(st.lists(joint, min_size=17, max_size=17))
def test_painting_agrees_with_the_distance_to_the_nearest_joint_or_limb(joints):
    """Brute force: a pixel is painted exactly where its centre is near enough to a seen joint or limb."""
    drawn = draw_pose_map([np.array(joints)], 24, 20, min_score=0.5, line_width=60, joint_radius=60)
    scale = 24 / 512
    body = openpose_18(np.array(joints), 0.5)
    ys, xs = np.mgrid[0:20, 0:24] + 0.5
    painted = np.zeros((20, 24), dtype=bool)
    for x, y, score in body:
        if score >= 0.5:
            painted |= (xs - x) ** 2 + (ys - y) ** 2 <= (60 * scale) ** 2
    for start, end in OPENPOSE_LIMBS:
        a, b = body[OPENPOSE_18.index(start)], body[OPENPOSE_18.index(end)]
        if min(a[2], b[2]) >= 0.5:
            d = b[:2] - a[:2]
            length = max(float(d @ d), 1e-300)
            t = np.clip(((xs - a[0]) * d[0] + (ys - a[1]) * d[1]) / length, 0, 1) if d @ d > 0 else 0
            painted |= (xs - a[0] - t * d[0]) ** 2 + (ys - a[1] - t * d[1]) ** 2 <= (30 * scale) ** 2
    assert np.array_equal(drawn.any(axis=2), painted)


ALL_RULES = StructureThresholds(min_limbs=3, max_doubled_joints=0, max_asymmetry=6.0, max_outside_share=0.2)


def with_joint(body: Body, name: str, x: float, y: float, score: float = 0.9) -> Body:
    joints = body.keypoints.copy()
    joints[COCO_INDEX[name]] = (x, y, score)
    return Body(joints, body.box, body.score)


def without(body: Body, *names: str) -> Body:
    joints = body.keypoints.copy()
    joints[[COCO_INDEX[name] for name in names], 2] = 0.05
    return Body(joints, body.box, body.score)


def entries(*bodies: Body, width: int = 128, height: int = 192) -> list:
    return measure_people(bodies, width, height, boxes=True)["people"]


def test_a_whole_body_passes_every_rule_and_each_rule_that_is_off_is_not_asked():
    assert structure_filter([standing()], 128, 192, ALL_RULES)[0] is None
    broken = without(standing(), "left_wrist", "right_elbow")
    assert structure_filter([broken], 128, 192, ALL_RULES)[0] == "missing_limb"
    assert structure_filter([broken], 128, 192)[0] is None


@pytest.mark.parametrize(
    ("hidden", "limbs"),
    [
        ((), 4),
        (("nose", "left_ear"), 4),
        (("left_wrist",), 3),
        (("left_hip", "left_knee"), 3),
        (("right_shoulder",), 3),
    ],
)
def test_a_limb_counts_where_all_three_of_its_joints_are_seen(hidden, limbs):
    assert limbs_seen(entries(without(standing(), *hidden))[0]["joints"]) == limbs


def test_a_second_arm_on_the_same_torso_is_a_doubled_limb():
    twice = with_joint(standing(score=0.5), "left_wrist", 20, 20)
    assert structure_filter([standing(), twice], 128, 192, ALL_RULES)[0] == "doubled_limb"
    assert structure_filter([standing(), twice], 128, 192)[0] is None
    body, other = (entry["joints"] for entry in entries(standing(), twice))
    assert doubled_joints(body, [other], 128, 192) == 1
    third = with_joint(with_joint(twice, "left_elbow", 20, 50), "right_ankle", 120, 100)
    assert doubled_joints(body, [other, entries(third)[0]["joints"]], 128, 192) == 3


def test_the_same_body_found_twice_and_somebody_beside_it_are_no_doubled_limbs():
    close = moved(standing(score=0.5), 2, 1)
    beside = moved(with_joint(standing(score=0.5), "left_wrist", 20, 20), 30, 0)
    assert structure_filter([standing(), close], 128, 192, ALL_RULES)[0] is None
    assert structure_filter([standing(), beside], 128, 192, ALL_RULES)[0] is None
    names = [name.replace("left", "right") if "left" in name else name.replace("right", "left") for name in COCO_17]
    mirrored = Body(standing().keypoints[[COCO_INDEX[name] for name in names]], standing().box, 0.5)
    assert structure_filter([standing(), mirrored], 128, 192, ALL_RULES)[0] is None
    third_arm = with_joint(mirrored, "left_wrist", 20, 20)
    assert structure_filter([standing(), third_arm], 128, 192, ALL_RULES)[0] == "doubled_limb"
    doubted = with_joint(standing(score=0.5), "left_wrist", 20, 20, score=0.1)
    assert structure_filter([standing(), doubted], 128, 192, ALL_RULES)[0] is None


def test_a_bone_much_longer_than_its_twin_breaks_the_body():
    body = standing()
    elbow = body.keypoints[COCO_INDEX["left_elbow"], :2]
    stump = with_joint(body, "left_wrist", elbow[0] + 1, elbow[1])
    joints = entries(stump)[0]["joints"]
    right = body.keypoints[COCO_INDEX["right_wrist"], :2] - body.keypoints[COCO_INDEX["right_elbow"], :2]
    assert asymmetry(joints, 128, 192) == pytest.approx(np.hypot(*right), rel=0.02)
    assert structure_filter([stump], 128, 192, ALL_RULES)[0] == "broken_body"
    assert structure_filter([stump], 128, 192)[0] is None
    assert asymmetry(entries(without(stump, "left_wrist"))[0]["joints"], 128, 192) < 2
    flat = with_joint(body, "left_wrist", *elbow)
    assert asymmetry(entries(flat)[0]["joints"], 128, 192) == 1000


def test_seen_joints_outside_the_box_break_the_body_and_unseen_ones_do_not():
    body = standing()
    half = Body(body.keypoints, (body.box[0], body.box[1], body.box[2], 100), body.score)
    share = outside_share(entries(half)[0])
    below = (body.keypoints[:, 1] > 100 + 0.1 * (100 - body.box[1])).sum()
    assert share == pytest.approx(below / 17)
    assert structure_filter([half], 128, 192, ALL_RULES)[0] == "broken_body"
    assert structure_filter([half], 128, 192)[0] is None
    legless = without(half, *(name for name in COCO_17 if "knee" in name or "ankle" in name or "hip" in name))
    assert outside_share(entries(legless)[0]) < share
    assert outside_share(entries(without(half, *COCO_17))[0]) == 0


@settings(max_examples=100, deadline=None)
@given(st.lists(person, max_size=3), st.sampled_from(["min_limbs", "max_doubled_joints", "max_asymmetry"]))
def test_a_rule_more_only_drops_more_and_the_measured_detail_repeats_it(persons, rule):
    lax = StructureThresholds(max_stretch=1e9)
    strict = replace(lax, **{rule: getattr(ALL_RULES, rule)})
    first, detail = structure_filter(persons, 200, 100, strict)
    assert decide_structure(json.loads(json.dumps(detail)), strict) == first
    if structure_filter(persons, 200, 100, lax)[0] is not None:
        assert first is not None
    for entry in detail["people"]:
        assert "box" not in entry
        assert 0 <= limbs_seen(entry["joints"]) <= 4
        assert 0 <= asymmetry(entry["joints"], 200, 100) <= 1000
        assert doubled_joints(entry["joints"], [entry["joints"]], 200, 100) == 0
