"""Keypoints as plain arrays: COCO-17 and OpenPose-18 joints, pose maps, and the two filters that judge bodies.

Pure numpy, no engine. Keypoints are (17, 3) in COCO order: x and y in pixels of the image (0 at its left and upper
edge; a joint outside the image keeps its coordinates), score 0..1 (0: not seen).

Each filter measures first and decides afterwards: everything it judged is in the returned detail, and `decide_people`
and `decide_structure` repeat the decision from the detail alone, so that thresholds can be swept without the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

COCO_17 = (
    "nose",
    "left_eye",
    "right_eye",
    "left_ear",
    "right_ear",
    "left_shoulder",
    "right_shoulder",
    "left_elbow",
    "right_elbow",
    "left_wrist",
    "right_wrist",
    "left_hip",
    "right_hip",
    "left_knee",
    "right_knee",
    "left_ankle",
    "right_ankle",
)
OPENPOSE_18 = (
    "nose",
    "neck",
    "right_shoulder",
    "right_elbow",
    "right_wrist",
    "left_shoulder",
    "left_elbow",
    "left_wrist",
    "right_hip",
    "right_knee",
    "right_ankle",
    "left_hip",
    "left_knee",
    "left_ankle",
    "right_eye",
    "left_eye",
    "right_ear",
    "left_ear",
)
OPENPOSE_LIMBS = (
    ("neck", "right_shoulder"),
    ("neck", "left_shoulder"),
    ("right_shoulder", "right_elbow"),
    ("right_elbow", "right_wrist"),
    ("left_shoulder", "left_elbow"),
    ("left_elbow", "left_wrist"),
    ("neck", "right_hip"),
    ("right_hip", "right_knee"),
    ("right_knee", "right_ankle"),
    ("neck", "left_hip"),
    ("left_hip", "left_knee"),
    ("left_knee", "left_ankle"),
    ("neck", "nose"),
    ("nose", "right_eye"),
    ("right_eye", "right_ear"),
    ("nose", "left_eye"),
    ("left_eye", "left_ear"),
)
"""The 17 limbs in drawing order; the i-th takes the i-th hue."""

# 18 hues spread evenly over the colour circle, in the eight-bit values OpenPose prints.
OPENPOSE_COLORS = (
    (255, 0, 0),
    (255, 85, 0),
    (255, 170, 0),
    (255, 255, 0),
    (170, 255, 0),
    (85, 255, 0),
    (0, 255, 0),
    (0, 255, 85),
    (0, 255, 170),
    (0, 255, 255),
    (0, 170, 255),
    (0, 85, 255),
    (0, 0, 255),
    (85, 0, 255),
    (170, 0, 255),
    (255, 0, 255),
    (255, 0, 170),
    (255, 0, 85),
)
POSE_MAP_REFERENCE_SIDE = 512
"""The longer side, in pixels, at which `line_width` and `joint_radius` of a pose map are given."""

COCO_INDEX = {name: index for index, name in enumerate(COCO_17)}

# What share of the body's height each bone has when it is seen from the side (Winter, Biomechanics, after Drillis and
# Contini). Perspective and foreshortening make a bone shorter, hardly ever longer.
_BONE_SHARES = (
    ("left_shoulder", "left_elbow", 0.186),
    ("right_shoulder", "right_elbow", 0.186),
    ("left_elbow", "left_wrist", 0.146),
    ("right_elbow", "right_wrist", 0.146),
    ("left_hip", "left_knee", 0.245),
    ("right_hip", "right_knee", 0.245),
    ("left_knee", "left_ankle", 0.246),
    ("right_knee", "right_ankle", 0.246),
    ("left_shoulder", "left_hip", 0.288),
    ("right_shoulder", "right_hip", 0.288),
)


class PersonLike(Protocol):
    """What the filters read of a person: the value `pipeline.backends.protocols.Person` has these."""

    @property
    def keypoints(self) -> np.ndarray: ...

    @property
    def box(self) -> tuple[float, float, float, float]: ...

    @property
    def score(self) -> float | None: ...


def as_keypoints(keypoints: Any) -> np.ndarray:
    """The keypoints as float64 (17, 3), with NaN and infinite joints marked as not seen.

    Raises ValueError for another shape.
    """
    array = np.array(keypoints, dtype=np.float64)
    if array.shape != (17, 3):
        raise ValueError(f"keypoints of one person have shape (17, 3), COCO order; got {array.shape}")
    array[~np.isfinite(array).all(axis=1)] = 0.0
    return array


def openpose_18(keypoints: Any, min_score: float = 0.3) -> np.ndarray:
    """float64 (18, 3) in OpenPose order from COCO-17.

    The neck is the midpoint of the shoulders with the lower of their scores; its score is 0 where either shoulder's is
    below min_score.
    """
    coco = as_keypoints(keypoints)
    left, right = coco[COCO_INDEX["left_shoulder"]], coco[COCO_INDEX["right_shoulder"]]
    neck = np.zeros(3)
    if min(left[2], right[2]) >= min_score:
        neck = np.array([(left[0] + right[0]) / 2, (left[1] + right[1]) / 2, min(left[2], right[2])])
    return np.stack([neck if name == "neck" else coco[COCO_INDEX[name]] for name in OPENPOSE_18])


def draw_pose_map(
    persons_keypoints: Sequence[Any],
    width: int,
    height: int,
    *,
    min_score: float = 0.3,
    line_width: float = 4.0,
    joint_radius: float = 4.0,
    limb_strength: float = 0.6,
    background: tuple[int, int, int] = (0, 0, 0),
) -> np.ndarray:
    """The OpenPose rendering of the given people: uint8 (height, width, 3) RGB.

    persons_keypoints: one (17, 3) COCO array a person. line_width and joint_radius are in pixels at a longer side of
    512 and scale with the image. Limbs are painted at limb_strength, then all joints in full; a joint below min_score
    and the limbs that touch it are left out. Drawn by numpy alone, so that the bytes do not hang on a drawing
    library's version.
    """
    if width < 1 or height < 1:
        raise ValueError(f"a pose map needs at least one pixel, got {width} x {height}")
    canvas = np.empty((height, width, 3), dtype=np.uint8)
    canvas[:] = background
    scale = max(width, height) / POSE_MAP_REFERENCE_SIDE
    half_width = max(0.5, line_width * scale / 2)
    radius = max(0.5, joint_radius * scale)
    bodies = [openpose_18(keypoints, min_score) for keypoints in persons_keypoints]
    index = {name: i for i, name in enumerate(OPENPOSE_18)}
    ground = np.array(background, dtype=np.float64)
    for body in bodies:
        for limb, (start, end) in enumerate(OPENPOSE_LIMBS):
            a, b = body[index[start]], body[index[end]]
            if min(a[2], b[2]) >= min_score:
                color = limb_strength * np.array(OPENPOSE_COLORS[limb]) + (1 - limb_strength) * ground
                _paint_capsule(canvas, a[:2], b[:2], half_width, np.rint(color).astype(np.uint8))
    for body in bodies:
        for joint, point in enumerate(body):
            if point[2] >= min_score:
                color = np.array(OPENPOSE_COLORS[joint], dtype=np.uint8)
                _paint_capsule(canvas, point[:2], point[:2], radius, color)
    return canvas


def _paint_capsule(canvas: np.ndarray, start: np.ndarray, end: np.ndarray, radius: float, color: np.ndarray) -> None:
    """Paint the pixels whose centre lies within radius of the segment; what lies outside the canvas is left out."""
    height, width = canvas.shape[:2]
    x0 = max(0, int(np.floor(min(start[0], end[0]) - radius)))
    x1 = min(width, int(np.ceil(max(start[0], end[0]) + radius)) + 1)
    y0 = max(0, int(np.floor(min(start[1], end[1]) - radius)))
    y1 = min(height, int(np.ceil(max(start[1], end[1]) + radius)) + 1)
    if x0 >= x1 or y0 >= y1:
        return
    dx = np.arange(x0, x1) + 0.5 - start[0]
    dy = (np.arange(y0, y1) + 0.5 - start[1])[:, None]
    along_x, along_y = end - start
    length_squared = along_x**2 + along_y**2
    share = np.clip((dx * along_x + dy * along_y) / length_squared, 0, 1) if length_squared > 0 else 0.0
    near = (dx - share * along_x) ** 2 + (dy - share * along_y) ** 2 <= radius**2
    canvas[y0:y1, x0:x1][near] = color


@dataclass(frozen=True)
class PeopleThresholds:
    """When a real frame shows a person. The paper publishes no values (PAB, section on the test split): these are ours.

    min_joint_score: a joint counts as seen from this score on (0..1). min_joints: so many of the 17 must be seen.
    min_found_score: the engine's own score of the person from which there is anybody at all; below it, nobody is there.
    min_person_score: the score from which the person is sure. min_area_share: the person's box, cut at the image's
    edges, as a share of the image's area.
    """

    min_joint_score: float = 0.3
    min_joints: int = 6
    min_found_score: float = 0.055
    min_person_score: float = 0.4
    min_area_share: float = 0.01


@dataclass(frozen=True)
class StructureThresholds:
    """When a generated image shows a whole body. The paper publishes no values: these are ours.

    min_joint_score, min_joints, min_found_score, min_person_score, min_area_share: as in `PeopleThresholds`; a
    generated image is made for its person, so that more of it is asked for, but in a fallen body the engine is less
    sure. max_cut_share: of the 17 joints, the share that may lie outside the image, or unseen within border_share (of
    the shorter side) of its edge; 0.15 lets a body pass whose ankles alone are cut. max_stretch: how many times longer
    than the body's median bone says a bone may be.

    The others are off where they are None. min_limbs: so many of the two arms and two legs must be seen whole.
    max_doubled_joints: of the eight joints of the limbs, how many another body on the same torso may have elsewhere.
    max_asymmetry: how many times longer a bone may be than the same one of the other side. max_outside_share: the share
    of the seen joints that may lie outside the person's box, with a tenth of its size around it.
    """

    min_joint_score: float = 0.3
    min_joints: int = 8
    min_found_score: float = 0.055
    min_person_score: float = 0.29
    min_area_share: float = 0.015
    max_cut_share: float = 0.15
    border_share: float = 0.03
    max_stretch: float = 2.6
    min_limbs: int | None = None
    max_doubled_joints: int | None = None
    max_asymmetry: float | None = None
    max_outside_share: float | None = None


PEOPLE_REASONS = ("no_person", "person_too_small", "low_confidence")
STRUCTURE_REASONS = (
    *("no_person", "cut_off", "low_confidence", "broken_body", "person_too_small"),
    *("missing_limb", "doubled_limb"),
)


def people_filter(
    persons: Sequence[PersonLike], width: int, height: int, thresholds: PeopleThresholds | None = None
) -> tuple[str | None, dict[str, Any]]:
    """Whether a real frame shows a person: (None or one of PEOPLE_REASONS, everything that was judged).

    One good person is enough. No rule looks at which way up the body is: somebody who falls head first is a person.
    The reason is that of the person who came nearest. Source: PAB, test split, keypoint filter.
    """
    detail = measure_people(persons, width, height)
    return decide_people(detail, thresholds or PeopleThresholds()), detail


def structure_filter(
    persons: Sequence[PersonLike], width: int, height: int, thresholds: StructureThresholds | None = None
) -> tuple[str | None, dict[str, Any]]:
    """Whether a generated image shows a whole body: (None or one of STRUCTURE_REASONS, everything that was judged).

    The surest person is judged: a generator that draws one whole body beside half a one is forgiven, no more.
    Bone lengths are weak evidence (foreshortening hides much), so that only gross tears are caught.
    Source: PAB, training split, keypoint filter on structural errors.
    """
    thresholds = thresholds or StructureThresholds()
    detail = measure_people(persons, width, height, boxes=thresholds.max_outside_share is not None)
    return decide_structure(detail, thresholds), detail


def measure_people(persons: Sequence[PersonLike], width: int, height: int, boxes: bool = False) -> dict[str, Any]:
    """What the filters judge, free of thresholds and ready for JSON: image size and one entry a person.

    An entry has `score` (0..1; the mean joint score where the engine gives none), `area_share` (0..1) and `joints`,
    17 of [x, y, score] as shares of width and height, each rounded to 4 digits; with `boxes` also the `box`, as shares,
    which only the rule on joints outside it asks for.
    """
    if width < 1 or height < 1:
        raise ValueError(f"an image has at least one pixel, got {width} x {height}")
    return {
        "width": int(width),
        "height": int(height),
        "people": [_measure_person(person, width, height, boxes) for person in persons],
    }


def _measure_person(person: PersonLike, width: int, height: int, boxes: bool) -> dict[str, Any]:
    joints = as_keypoints(person.keypoints)
    score = person.score if person.score is not None else joints[:, 2].mean()
    x0, x1 = np.clip(np.array([person.box[0], person.box[2]], dtype=np.float64), 0, width)
    y0, y1 = np.clip(np.array([person.box[1], person.box[3]], dtype=np.float64), 0, height)
    area_share = max(0.0, x1 - x0) * max(0.0, y1 - y0) / (width * height)
    entry = {
        "score": round(float(score), 4),
        "area_share": round(float(area_share), 4),
        "joints": [[round(float(x / width), 4), round(float(y / height), 4), round(float(s), 4)] for x, y, s in joints],
    }
    if boxes:
        sides = zip(person.box, (width, height, width, height), strict=True)
        entry["box"] = [round(float(value / side), 4) for value, side in sides]
    return entry


def _joints_seen(entry: Mapping[str, Any], min_joint_score: float) -> int:
    return sum(1 for _, _, score in entry["joints"] if score >= min_joint_score)


def decide_people(detail: Mapping[str, Any], thresholds: PeopleThresholds) -> str | None:
    """The people filter's decision from a measured detail."""
    nearest = "no_person"
    rank = {"no_person": 0, "low_confidence": 1, "person_too_small": 2}
    for entry in detail["people"]:
        seen = _joints_seen(entry, thresholds.min_joint_score)
        if seen == 0 or entry["score"] < thresholds.min_found_score:
            reason = "no_person"  # an engine that was made to answer: joints or a body it does not believe in
        elif seen < thresholds.min_joints or entry["score"] < thresholds.min_person_score:
            reason = "low_confidence"
        elif entry["area_share"] < thresholds.min_area_share:
            reason = "person_too_small"
        else:
            return None
        nearest = max(nearest, reason, key=rank.__getitem__)
    return nearest


def decide_structure(detail: Mapping[str, Any], thresholds: StructureThresholds) -> str | None:
    """The structure filter's decision from a measured detail."""
    size = detail["width"], detail["height"]
    found = [
        entry
        for entry in detail["people"]
        if entry["score"] >= thresholds.min_found_score
        and (_joints_seen(entry, thresholds.min_joint_score) or _cut_share(entry, *size, thresholds))
    ]
    if not found:
        return "no_person"
    main = max(found, key=lambda entry: entry["score"])
    # A cut body is doubted by the engine and has few seen joints, so the cut is looked for before either.
    if _cut_share(main, *size, thresholds) > thresholds.max_cut_share:
        return "cut_off"
    enough = _joints_seen(main, thresholds.min_joint_score) >= thresholds.min_joints
    if main["score"] < thresholds.min_person_score or not enough:
        return "low_confidence"
    if main["area_share"] < thresholds.min_area_share:
        return "person_too_small"
    least = thresholds.min_joint_score
    if thresholds.min_limbs is not None and limbs_seen(main["joints"], least) < thresholds.min_limbs:
        return "missing_limb"
    if thresholds.max_doubled_joints is not None:
        others = [entry["joints"] for entry in found if entry is not main]
        if doubled_joints(main["joints"], others, *size, least) > thresholds.max_doubled_joints:
            return "doubled_limb"
    broken = (
        stretch(main["joints"], *size, least) > thresholds.max_stretch
        or (thresholds.max_asymmetry is not None and asymmetry(main["joints"], *size, least) > thresholds.max_asymmetry)
        or (thresholds.max_outside_share is not None and outside_share(main, least) > thresholds.max_outside_share)
    )
    return "broken_body" if broken else None


def _cut_share(entry: Mapping[str, Any], width: int, height: int, thresholds: StructureThresholds) -> float:
    """The share of the joints that the image's edge has cut off."""
    margin = thresholds.border_share * min(width, height)
    cut = 0
    for x, y, score in entry["joints"]:
        x, y = x * width, y * height
        outside = not (0 <= x <= width and 0 <= y <= height)
        at_border = min(x, y, width - x, height - y) < margin
        cut += outside or (at_border and score < thresholds.min_joint_score)
    return cut / len(entry["joints"])


def stretch(joints: Sequence[Sequence[float]], width: int, height: int, min_joint_score: float = 0.3) -> float:
    """How many times longer the body's longest bone is than its median bone lets one expect; 1 = in proportion.

    joints: 17 of [x, y, score], x and y as shares of width and height. Each bone between seen joints gives a guess of
    the body's height; the largest guess is divided by the median one. 0 where fewer than four bones are seen.
    """
    points = np.array(joints, dtype=np.float64) * np.array([width, height, 1.0])
    guesses = []
    for start, end, share in _BONE_SHARES:
        a, b = points[COCO_INDEX[start]], points[COCO_INDEX[end]]
        if min(a[2], b[2]) >= min_joint_score:
            guesses.append(float(np.hypot(*(a - b)[:2])) / share)
    if len(guesses) < 4:
        return 0.0
    middle = float(np.median(guesses))
    return max(guesses) / middle if middle > 0 else float("inf")


# --- the rules of the structure filter that a profile may leave off -----------------------------------------------

Joints = Sequence[Sequence[float]]
"""17 of [x, y, score], x and y as shares of the image's width and height."""

_LIMBS = tuple(
    tuple(COCO_INDEX[f"{side}_{joint}"] for joint in joints)
    for joints in (("shoulder", "elbow", "wrist"), ("hip", "knee", "ankle"))
    for side in ("left", "right")
)
_TORSO = [COCO_INDEX[name] for name in ("left_shoulder", "right_shoulder", "left_hip", "right_hip")]
_LIMB_JOINTS = [index for limb in _LIMBS for index in limb[1:]]
_MIRRORED = [
    COCO_INDEX[name.replace("left", "right") if "left" in name else name.replace("right", "left")] for name in COCO_17
]
_SAME_TORSO = 0.25
"""Mean distance of shoulders and hips, in lengths of the torso, up to which two bodies stand on one torso."""
_ELSEWHERE = 0.5
"""Distance in lengths of the torso from which a joint is another one."""
_BOX_MARGIN = 0.1
_MOST_ASYMMETRY = 1000.0


def limbs_seen(joints: Joints, min_joint_score: float = 0.3) -> int:
    """How many of the two arms and two legs have all three joints seen; 0 to 4."""
    return sum(all(joints[index][2] >= min_joint_score for index in limb) for limb in _LIMBS)


def doubled_joints(
    joints: Joints, others: Sequence[Joints], width: int, height: int, min_joint_score: float = 0.3
) -> int:
    """How many elbows, wrists, knees and ankles another body has elsewhere on the same torso: a third arm is seen as a
    second person in the same place. Of several others the worst counts; 0 to 8, 0 where a torso is not seen whole.

    A second person is somebody else where shoulders and hips are elsewhere, and the same one seen twice where the
    limbs are where they were. Left and right may be exchanged.
    """
    size = np.array([width, height, 1.0])
    body = np.array(joints, dtype=np.float64) * size
    shoulders, hips = body[_TORSO[:2], :2].mean(axis=0), body[_TORSO[2:], :2].mean(axis=0)
    length = float(np.hypot(*(shoulders - hips)))
    if length <= 0 or (body[_TORSO, 2] < min_joint_score).any():
        return 0
    worst = 0
    for each in others:
        other = np.array(each, dtype=np.float64) * size
        if (other[_TORSO, 2] < min_joint_score).any():
            continue
        distances = {}
        for way in (other, other[_MIRRORED]):
            apart = np.hypot(*(way - body)[:, :2].T) / length
            both_seen = np.minimum(way[:, 2], body[:, 2]) >= min_joint_score
            distances[float(apart[_TORSO].mean())] = int(((apart > _ELSEWHERE) & both_seen)[_LIMB_JOINTS].sum())
        nearest = min(distances)
        if nearest <= _SAME_TORSO:
            worst = max(worst, distances[nearest])
    return worst


def asymmetry(joints: Joints, width: int, height: int, min_joint_score: float = 0.3) -> float:
    """How many times longer a bone of arms and legs is than the same one of the other side, the worst of them; 1000 at
    most, 0 where no bone is seen on both sides. Foreshortening alone reaches 3 easily.
    """
    points = np.array(joints, dtype=np.float64) * np.array([width, height, 1.0])
    worst = 0.0
    for left, right in zip(_LIMBS[::2], _LIMBS[1::2], strict=True):
        for part in (slice(0, 2), slice(1, 3)):
            bones = points[list(left[part])], points[list(right[part])]
            if min(bone[:, 2].min() for bone in bones) >= min_joint_score:
                short, long = sorted(float(np.hypot(*(bone[0] - bone[1])[:2])) for bone in bones)
                worst = max(worst, min(long / short, _MOST_ASYMMETRY) if short > 0 else _MOST_ASYMMETRY)
    return worst


def outside_share(entry: Mapping[str, Any], min_joint_score: float = 0.3) -> float:
    """The share of a measured person's seen joints that lie outside its box and a tenth of its size around it; 0 where
    none is seen. The entry must have been measured with its box.
    """
    x0, y0, x1, y1 = entry["box"]
    across, down = _BOX_MARGIN * (x1 - x0), _BOX_MARGIN * (y1 - y0)
    seen = [(x, y) for x, y, score in entry["joints"] if score >= min_joint_score]
    inside = [x0 - across <= x <= x1 + across and y0 - down <= y <= y1 + down for x, y in seen]
    return 1 - sum(inside) / len(inside) if inside else 0.0
