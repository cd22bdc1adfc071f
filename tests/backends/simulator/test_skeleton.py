import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.backends.simulator.skeleton import (
    FOREARM,
    INDEX,
    SHIN,
    STANDING_HEIGHT,
    THIGH,
    UPPER_ARM,
    about,
    forward,
    keypoints,
    matrices,
    multiply,
    posed,
    posture,
    quaternion,
    reach,
)

angle = st.floats(-3.0, 3.0)
quaternions = st.tuples(angle, angle, angle).map(
    lambda turn: multiply(about("x", turn[0]), multiply(about("y", turn[1]), about("z", turn[2])))
)


@given(quaternions)
def test_a_quaternion_survives_its_matrix(turn):
    again = quaternion(matrices(turn[None])[0])
    assert abs(float(again @ turn)) == pytest.approx(1, abs=1e-6)


@given(quaternions, quaternions)
def test_quaternion_products_are_matrix_products(first, second):
    product = matrices(multiply(first, second)[None])[0]
    assert np.allclose(product, matrices(first[None])[0] @ matrices(second[None])[0], atol=1e-9)


@settings(max_examples=60)
@given(
    st.sampled_from(["right_arm", "left_arm", "right_leg", "left_leg"]),
    st.tuples(st.floats(-0.3, 0.3), st.floats(-0.3, -0.05), st.floats(-0.3, 0.3)),
)
def test_a_reaching_limb_ends_at_its_target_and_keeps_its_length(limb, offset):
    side, part = limb.split("_")
    first, second = (f"{side}_shoulder", f"{side}_elbow") if part == "arm" else (f"{side}_hip", f"{side}_knee")
    upper, lower = (UPPER_ARM, FOREARM) if part == "arm" else (THIGH, SHIN)
    pose = posed(chest=(-0.2, 0.1, 0.3))
    target = forward(pose).at(first) + np.array(offset) * (1.0 if part == "arm" else 1.5)
    frames = forward(reach(pose, limb, target, (0.3, -1.0, 0.2)))
    assert np.linalg.norm(frames.at(second) - frames.at(first)) == pytest.approx(upper, abs=1e-6)
    assert np.allclose(frames.at(second, (0.0, -lower, 0.0)), target, atol=1e-4)


def test_coco_keypoints_of_somebody_standing_are_where_they_belong():
    points = dict(zip(range(17), keypoints(forward(posed())), strict=True))
    nose, left_shoulder, right_shoulder, left_ankle, right_ankle = (points[n] for n in (0, 5, 6, 15, 16))
    assert nose[0] > 0.05  # he faces +x
    assert right_shoulder[2] > 0 > left_shoulder[2]  # his right is +z
    assert right_ankle[2] > 0 > left_ankle[2]
    assert nose[1] > left_shoulder[1] > points[11][1] > points[13][1] > left_ankle[1] > 0


@pytest.mark.parametrize(
    ("turn", "expected"), [(0.0, "upright"), (np.pi / 2, "fallen"), (np.pi, "upside_down"), (-np.pi / 2, "fallen")]
)
def test_posture_follows_the_trunk(turn, expected):
    assert posture(forward(posed(root=about("z", turn)))) == expected


def bent_over(angle: float, legs: tuple[float, float], height: float = STANDING_HEIGHT) -> str:
    """The posture with the trunk turned forwards by an angle and each leg (right, left) hanging that far from it."""
    right, left = legs
    return posture(forward(posed(height, about("z", -angle), right_hip=(right, 0, 0), left_hip=(left, 0, 0))))


def test_who_stands_on_a_leg_has_not_fallen_however_level_the_trunk():
    level = np.pi / 2
    assert bent_over(level, (level, level)) == "upright"  # bent at the hips, both feet on the ground
    assert bent_over(level, (level, 0.0)) == "upright"  # a balance: one leg stretched out behind
    assert bent_over(level, (0.0, 0.0)) == "fallen"
    assert bent_over(level, (level, level), height=2.0) == "fallen"  # in the air the legs carry nobody
    crawling = posed(
        0.45, about("z", -level), right_hip=(level, 0, 0), left_hip=(level, 0, 0), right_knee=level, left_knee=level
    )
    assert posture(forward(crawling)) == "fallen"


def test_a_lowered_head_is_upside_down_unless_both_feet_stand_on_the_ground():
    assert bent_over(2.2, (2.2, 2.2)) == "upright"  # touching the toes
    assert bent_over(2.2, (2.2, 0.3)) == "upside_down"  # turning a cartwheel


def test_turning_a_pose_keeps_its_height_and_turns_its_way():
    pose = posed().moved(x=1.0)
    turned = pose.turned(np.pi / 2)
    assert np.allclose(turned.position, [0.0, pose.position[1], -1.0], atol=1e-9)
    assert forward(turned).at("neck", (1.0, 0, 0))[2] < forward(turned).points[INDEX["neck"], 2] - 0.9
