"""What somebody does: twenty-two actions, from motion capture or posed, each with its props.

An action is told in the person's own axes: the walk goes along +x from the origin, the ground is at height 0.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pipeline.backends.simulator.render import Blob, Limb, Shape, ball, box
from pipeline.backends.simulator.skeleton import (
    FOREARM,
    INDEX,
    JOINTS,
    STANDING_HEIGHT,
    Frames,
    Pose,
    about,
    between,
    forward,
    multiply,
    posed,
    reach,
)

WOOD, METAL, RUBBER = (172, 122, 72), (176, 180, 186), (42, 42, 46)


@dataclass(frozen=True)
class Solid:
    """A box that bodies collide with: centre and half sizes in metres, in the person's axes."""

    centre: tuple[float, float, float]
    half: tuple[float, float, float]


@dataclass(frozen=True)
class Action:
    """Something a person does.

    pose: seconds -> Pose. falls: names of the failures that suit. scenes: where it happens (None: anywhere).
    things: (seconds, joints) -> what he holds, rides or uses, drawn with him. stays: props that stand still and stay
    where they are when he falls. solids: what he can fall onto or off. moment: the span of seconds in which it is seen
    best. cycle: seconds after which it begins again, where it has to fail at the same point of it. drops: what falls
    with him (THINGS of `failures`, or skis, which stay on). turned: headings it is filmed at, radians.
    """

    name: str
    words: tuple[str, ...]
    pose: Callable[[float], Pose]
    falls: tuple[str, ...]
    scenes: tuple[str, ...] | None = None
    things: Callable[[float, Frames], list[Shape]] | None = None
    stays: Callable[[], list[Shape]] | None = None
    solids: tuple[Solid, ...] = ()
    moment: tuple[float, float] = (0.3, 2.0)
    cycle: float | None = None
    drops: str | None = None
    turned: tuple[float, float] = field(default=(-0.6, 0.6))


FLAT = ("lawn", "street", "gym", "parking lot", "playground", "pool side", "park", "living room", "beach")
PAVED = ("street", "parking lot", "park", "playground")


@functools.cache
def _capture(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, bool]:
    """Frame times (N,), root positions (N, 3), joint turns (N, 13, 4) and whether the clip loops."""
    import pybullet_data

    path = Path(pybullet_data.getDataPath()) / "data" / "motions" / f"humanoid3d_{name}.txt"
    clip = json.loads(path.read_text(encoding="utf-8"))
    rows = np.array(clip["Frames"], dtype=float)
    times = np.concatenate([[0.0], np.cumsum(rows[:-1, 0])])
    turns = np.empty((len(rows), len(JOINTS), 4))
    column = 4
    for number, joint in enumerate(JOINTS):
        if joint.endswith(("knee", "elbow")):
            turns[:, number] = np.array([about("z", angle) for angle in rows[:, column]])
            column += 1
        else:
            w = rows[:, column : column + 4]
            turns[:, number] = np.concatenate([w[:, 1:], w[:, :1]], 1)
            turns[:, number] /= np.linalg.norm(turns[:, number], axis=1, keepdims=True)
            column += 4
    positions = rows[:, 1:4].copy()
    lowest = min(lowest_point(forward(Pose(positions[i], turns[i]))) for i in range(0, len(rows), 2))
    positions[:, 1] -= lowest
    positions[:, [0, 2]] -= positions[0, [0, 2]]
    return times, positions, turns, clip["Loop"] == "wrap"


def lowest_point(frames: Frames) -> float:
    """Height of the lowest part of the body above the ground, metres."""
    heights = [frames.at("neck", (0.0, 0.18, 0.0))[1] - 0.11, frames.points[0][1] - 0.12]
    for side in ("right", "left"):
        heights += [frames.at(f"{side}_ankle", (x, -0.04, 0.0))[1] - 0.04 for x in (-0.045, 0.135)]
        heights += [
            frames.points[INDEX[f"{side}_knee"]][1] - 0.06,
            frames.at(f"{side}_elbow", (0, -FOREARM - 0.08, 0))[1] - 0.03,
        ]
    return float(min(heights))


def captured(name: str, speed: float = 1.0, start: float = 0.0, travel: float = 1.0) -> Callable[[float], Pose]:
    """The motion-capture clip as a function of seconds, looping with its travel (scaled by `travel`)."""

    def pose(seconds: float) -> Pose:
        times, positions, turns, loops = _capture(name)
        at = start + max(seconds, 0.0) * speed
        length = float(times[-1])
        rounds = int(at // length) if loops else 0
        at = at - rounds * length if loops else min(at, length)
        after = min(int(np.searchsorted(times, at, side="right")), len(times) - 1)
        before = max(after - 1, 0)
        share = (at - times[before]) / max(times[after] - times[before], 1e-6)
        share = float(np.clip(share, 0, 1))
        place = positions[before] + share * (positions[after] - positions[before])
        step = positions[-1] - positions[0]
        place = place + rounds * np.array([step[0], 0.0, step[2]])
        place = place * np.array([travel, 1.0, travel])
        return Pose(place, between(turns[before], turns[after], share))

    return pose


def _grounded(pose: Pose, lift: float = 0.0) -> Pose:
    return pose.moved(y=lift - lowest_point(forward(pose)))


# --- posed actions ------------------------------------------------------------------------------------------------


def _skateboard(t: float) -> Pose:
    sway = np.sin(2.2 * t)
    pose = posed(
        0.80,
        root=multiply(about("y", 1.15), about("z", 0.12)),
        chest=(-0.45, 0.0, -0.35),
        neck=(0.3, 0.0, -0.6),
        right_hip=(0.5, 0.45, 0.0),
        left_hip=(0.5, 0.42, 0.0),
        right_knee=0.75,
        left_knee=0.75,
        right_ankle=(0.25, 0.0, 0.0),
        left_ankle=(0.25, 0.0, 0.0),
        right_shoulder=(0.25, 1.05 + 0.25 * sway, 0.0),
        left_shoulder=(0.25, 1.05 - 0.25 * sway, 0.0),
        right_elbow=0.4,
        left_elbow=0.4,
    )
    return _grounded(pose, 0.105).moved(x=1.2 * t)


def _board(t: float, frames: Frames) -> list[Shape]:
    middle = 0.5 * (frames.at("right_ankle") + frames.at("left_ankle"))
    return board_shapes(np.array([middle[0], 0.0, middle[2]]), np.eye(3))


def board_shapes(place: np.ndarray, basis: np.ndarray) -> list[Shape]:
    """A skateboard standing at `place` on the ground."""
    shapes: list[Shape] = list(
        box(place + basis @ np.array([0.0, 0.09, 0.0]), np.array([0.4, 0.014, 0.1]), (205, 70, 40), basis)
    )
    for x in (-0.26, 0.26):
        a, b = place + basis @ np.array([x, 0.038, -0.09]), place + basis @ np.array([x, 0.038, 0.09])
        shapes.append(Limb(a, b, 0.038, 0.038, (235, 225, 190)))
    return shapes


def _scooter(t: float) -> Pose:
    push = np.sin(5.0 * t)
    pose = posed(
        STANDING_HEIGHT - 0.08,
        chest=(-0.28, 0.0, 0.0),
        neck=(0.2, 0.0, 0.0),
        right_hip=(0.3, 0.0, 0.0),
        right_knee=0.4,
        right_ankle=(0.1, 0.0, 0.0),
        left_hip=(-0.25 + 0.5 * push, 0.14, 0.0),
        left_knee=0.45 - 0.2 * push,
    )
    pose = _grounded(pose, 0.02).moved(x=1.3 * t)
    base = pose.position
    for side, z in (("right", 0.17), ("left", -0.17)):
        pose = reach(pose, f"{side}_arm", np.array([base[0] + 0.44, 1.02, z]), (-0.6, -0.8, 0.5 if z > 0 else -0.5))
    return pose


def _scooter_things(t: float, frames: Frames) -> list[Shape]:
    foot = frames.at("right_ankle")
    return scooter_shapes(
        np.array([foot[0] + 0.03, 0.0, foot[2]]), np.eye(3), frames.points[0][0] + 0.44 - foot[0] - 0.03
    )


def scooter_shapes(place: np.ndarray, basis: np.ndarray, bar: float = 0.42) -> list[Shape]:
    """A kick scooter whose deck is at `place`."""

    def at(x: float, y: float, z: float) -> np.ndarray:
        return place + basis @ np.array([x, y, z])

    shapes: list[Shape] = list(box(at(0.0, 0.1, 0.0), np.array([0.36, 0.016, 0.065]), (40, 150, 190), basis))
    shapes += [
        Limb(at(bar - 0.02, 0.1, 0.0), at(bar, 1.0, 0.0), 0.018, 0.018, METAL),
        Limb(at(bar, 1.0, -0.24), at(bar, 1.0, 0.24), 0.02, 0.02, RUBBER),
        Limb(at(bar, 0.08, -0.02), at(bar, 0.08, 0.02), 0.085, 0.085, RUBBER),
        Limb(at(-0.37, 0.08, -0.02), at(-0.37, 0.08, 0.02), 0.08, 0.08, RUBBER),
    ]
    return shapes


LADDER_FOOT, LADDER_TOP, RUNG = np.array([0.28, 0.0, 0.0]), np.array([1.02, 2.55, 0.0]), 0.285


def _rung(number: int) -> np.ndarray:
    direction = (LADDER_TOP - LADDER_FOOT) / np.linalg.norm(LADDER_TOP - LADDER_FOOT)
    return LADDER_FOOT + direction * RUNG * number


def _climb(t: float) -> Pose:
    steps = min(t * 1.25, 2.6) + 1.0
    base = int(steps)
    share = float(np.clip((steps - base) * 1.6, 0, 1))
    share = share * share * (3 - 2 * share)

    def foot(side: int) -> np.ndarray:
        current = base if (base + side) % 2 == 0 else base - 1
        if (base + 1 + side) % 2 == 0:
            here, there = _rung(current), _rung(current + 2)
            return here + share * (there - here) + np.array([-0.1 * np.sin(np.pi * share), 0.0, 0.0])
        return _rung(current)

    right, left = foot(0), foot(1)
    low = min(right[1], left[1]) * 0.55 + max(right[1], left[1]) * 0.45
    x = float(np.interp(low, [LADDER_FOOT[1], LADDER_TOP[1]], [LADDER_FOOT[0], LADDER_TOP[0]]))
    pose = posed(low + 0.76, chest=(-0.12, 0.0, 0.0), neck=(0.2, 0.0, 0.0), root=about("z", -0.15)).moved(x=x - 0.17)
    pose = reach(pose, "right_leg", right + np.array([-0.06, 0.1, 0.11]), (1.0, 0.2, 0.5))
    pose = reach(pose, "left_leg", left + np.array([-0.06, 0.1, -0.11]), (1.0, 0.2, -0.5))
    pose = reach(pose, "right_arm", _rung(base + 4 + (base % 2)) + np.array([-0.03, 0.0, 0.2]), (-0.5, -0.8, 0.6))
    return reach(pose, "left_arm", _rung(base + 5 - (base % 2)) + np.array([-0.03, 0.0, -0.2]), (-0.5, -0.8, -0.6))


def ladder_shapes(
    foot: np.ndarray | None = None, top: np.ndarray | None = None, side: np.ndarray | None = None
) -> list[Shape]:
    """A ladder from foot to top; its rungs run along `side`."""
    foot, top = (LADDER_FOOT if foot is None else foot), (LADDER_TOP if top is None else top)
    side = np.array([0.0, 0.0, 0.23]) if side is None else side
    steel = (200, 196, 184)
    shapes: list[Shape] = [Limb(foot + sign * side, top + sign * side, 0.028, 0.028, steel) for sign in (1, -1)]
    length = float(np.linalg.norm(top - foot))
    for number in range(1, int(length / RUNG) + 1):
        middle = foot + (top - foot) / length * RUNG * number
        shapes.append(Limb(middle - side, middle + side, 0.017, 0.017, steel))
    return shapes


def _ladder(t: float, frames: Frames) -> list[Shape]:
    return ladder_shapes()


_walk = captured("walk", speed=0.9)


def _carry(t: float) -> Pose:
    pose = _walk(t)
    frames = forward(pose)
    chest = frames.at("chest")
    for side, z in (("right", 0.19), ("left", -0.19)):
        pose = reach(
            pose,
            f"{side}_arm",
            np.array([chest[0] + 0.36, chest[1] - 0.12, chest[2] + z]),
            (-0.4, -0.9, 0.4 * np.sign(z)),
        )
    return pose


def _carried(t: float, frames: Frames) -> list[Shape]:
    chest = frames.at("chest")
    return parcel_shapes(chest + np.array([0.42, 0.03, 0.0]), np.eye(3))


def parcel_shapes(place: np.ndarray, basis: np.ndarray) -> list[Shape]:
    """A cardboard box with a strip of tape, its middle at `place`."""
    shapes: list[Shape] = list(box(place, np.array([0.19, 0.17, 0.22]), (190, 148, 98), basis))
    shapes += box(place, np.array([0.192, 0.172, 0.035]), (214, 190, 150), basis)
    return shapes


def _lift_bar(t: float) -> Pose:
    up = 0.5 - 0.5 * np.cos(min(t, 2.2) * np.pi / 2.2 * 1.0)
    wobble = 0.05 * np.sin(9 * t) * up
    knees = 0.5 * (1 - up) + 0.1
    pose = posed(
        STANDING_HEIGHT,
        chest=(-0.1 + wobble, 0.0, 0.0),
        right_hip=(0.5 * knees + 0.1, 0.22, 0.0),
        left_hip=(0.5 * knees + 0.1, 0.22, 0.0),
        right_knee=knees,
        left_knee=knees,
        right_ankle=(0.4 * knees, 0.0, 0.0),
        left_ankle=(0.4 * knees, 0.0, 0.0),
    )
    pose = _grounded(pose)
    shoulder = forward(pose).at("chest", (0.0, 0.24, 0.0))
    height = shoulder[1] + 0.02 + 0.46 * up
    for side, z in (("right", 0.34), ("left", -0.34)):
        pose = reach(
            pose, f"{side}_arm", np.array([shoulder[0] + 0.12 - 0.08 * up, height, z]), (0.5, -1.0, np.sign(z) * 0.6)
        )
    return pose


def _bar(t: float, frames: Frames) -> list[Shape]:
    hands = [frames.at(f"{side}_elbow", (0.0, -FOREARM - 0.05, 0.0)) for side in ("right", "left")]
    along = hands[0] - hands[1]
    return barbell_shapes(0.5 * (hands[0] + hands[1]), along / np.linalg.norm(along))


def barbell_shapes(place: np.ndarray, along: np.ndarray) -> list[Shape]:
    """A barbell with two pairs of plates, its bar along a unit vector."""
    shapes: list[Shape] = [Limb(place - 0.85 * along, place + 0.85 * along, 0.017, 0.017, METAL)]
    across = np.cross(along, [0.0, 1.0, 0.0])
    across = across / max(float(np.linalg.norm(across)), 1e-6)
    basis = np.stack([across, np.cross(along, across), along], 1)
    for offset in (0.68, -0.68):
        shapes.append(Blob(place + offset * along, basis * np.array([0.21, 0.21, 0.04]), (50, 50, 56)))
        shapes.append(Blob(place + 1.08 * offset * along, basis * np.array([0.14, 0.14, 0.04]), (190, 40, 40)))
    return shapes


def _sit(t: float) -> Pose:
    rock = 0.5 - 0.5 * np.cos(2.4 * t)
    lean = 0.12 + 0.14 * rock
    return posed(
        0.60,
        root=about("z", lean),
        chest=(0.05, 0.0, 0.0),
        neck=(-0.1, 0.3 * np.sin(1.3 * t), 0.0),
        right_hip=(1.45 - 0.3 * lean, 0.12, 0.0),
        left_hip=(1.45 - 0.3 * lean, 0.12, 0.0),
        right_knee=1.35 - lean,
        left_knee=1.35 - lean,
        right_shoulder=(0.35 + 0.3 * rock, 0.2, 0.0),
        left_shoulder=(0.3, 0.25, 0.0),
        right_elbow=1.0 + 0.4 * rock,
        left_elbow=1.0,
    )


def chair_shapes(place: np.ndarray, basis: np.ndarray, broken: bool = False) -> list[Shape]:
    """A wooden chair standing at `place`, its back towards -x of `basis`; `broken` leaves it without two legs."""

    def at(x: float, y: float, z: float) -> np.ndarray:
        return place + basis @ np.array([x, y, z])

    paint = (150, 92, 48)
    shapes: list[Shape] = list(box(at(0.0, 0.45, 0.0), np.array([0.23, 0.022, 0.23]), paint, basis))
    shapes += box(at(-0.22, 0.83, 0.0), np.array([0.018, 0.16, 0.22]), paint, basis)
    for x, z in ((0.2, 0.2), (0.2, -0.2), (-0.21, 0.2), (-0.21, -0.2)):
        if broken and x > 0:
            continue
        shapes.append(Limb(at(x, 0.02, z), at(x, 0.45, z), 0.02, 0.022, paint))
        if x < 0:
            shapes.append(Limb(at(x, 0.45, z), at(x - 0.02, 0.95, z), 0.02, 0.02, paint))
    return shapes


def _chair_things(t: float, frames: Frames) -> list[Shape]:
    rock = 0.5 - 0.5 * np.cos(2.4 * t)
    return chair_shapes(np.array([0.04, 0.0, 0.0]), _pitch(0.05 + 0.12 * rock))


def _pitch(angle: float) -> np.ndarray:
    c, s = np.cos(angle), np.sin(angle)
    return np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])


def _throw(t: float) -> Pose:
    phase = (t % 1.9) / 1.9
    swing = float(np.interp(phase, [0, 0.35, 0.55, 0.7, 1.0], [0.3, -1.0, 2.6, 1.2, 0.3]))
    step = float(np.interp(phase, [0, 0.35, 0.6, 1.0], [0.0, 0.35, 0.45, 0.0]))
    twist = float(np.interp(phase, [0, 0.35, 0.6, 1.0], [0.0, -0.5, 0.6, 0.0]))
    pose = posed(
        STANDING_HEIGHT,
        chest=(-0.08 - 0.2 * max(twist, 0), 0.0, twist),
        right_hip=(-0.4 * step, 0.08, 0.0),
        left_hip=(1.1 * step, 0.08, 0.0),
        right_knee=0.15,
        left_knee=0.3 + 0.3 * step,
        right_shoulder=(swing, 0.55, 0.0),
        right_elbow=1.1 if phase < 0.45 else 0.3,
        left_shoulder=(0.9 - 0.5 * phase, 0.5, 0.0),
        left_elbow=0.4,
    )
    return _grounded(pose)


def _thrown(t: float, frames: Frames) -> list[Shape]:
    phase = (t % 1.9) / 1.9
    hand = frames.at("right_elbow", (0.02, -FOREARM - 0.11, 0.0))
    if phase < 0.52:
        return [ball(hand, 0.1, (232, 120, 40))]
    flown = (phase - 0.52) * 1.9
    return [ball(np.array([0.6 + 5.0 * flown, 1.75 + 1.6 * flown - 4.9 * flown**2, 0.2]), 0.1, (232, 120, 40))]


def _on_table(t: float) -> Pose:
    sway = np.sin(2.6 * t)
    pose = posed(
        STANDING_HEIGHT,
        chest=(0.02, 0.1 * sway, 0.2 * sway),
        right_hip=(0.1 + 0.15 * max(sway, 0), 0.08, 0.0),
        left_hip=(0.1 + 0.15 * max(-sway, 0), 0.08, 0.0),
        right_knee=0.15 + 0.3 * max(sway, 0),
        left_knee=0.15 + 0.3 * max(-sway, 0),
        right_shoulder=(2.3 + 0.4 * sway, 0.35, 0.0),
        left_shoulder=(1.1 - 0.5 * sway, 0.6, 0.0),
        right_elbow=0.35,
        left_elbow=0.5,
    )
    return _grounded(pose, 0.72)


def table_shapes() -> list[Shape]:
    """A wooden table under the origin."""
    shapes: list[Shape] = list(box(np.array([0.0, 0.69, 0.0]), np.array([0.5, 0.03, 0.42]), WOOD))
    for x in (-0.43, 0.43):
        for z in (-0.35, 0.35):
            shapes += box(np.array([x, 0.33, z]), np.array([0.03, 0.33, 0.03]), (138, 94, 52))
    return shapes


def _ski(t: float) -> Pose:
    sway = np.sin(1.9 * t)
    pose = posed(
        0.8,
        root=about("z", -0.15),
        chest=(-0.45, 0.12 * sway, 0.0),
        neck=(0.4, 0.0, 0.0),
        right_hip=(1.0 + 0.1 * sway, 0.1, 0.0),
        left_hip=(1.0 - 0.1 * sway, 0.1, 0.0),
        right_knee=1.1,
        left_knee=1.1,
        right_ankle=(0.25, 0.0, 0.0),
        left_ankle=(0.25, 0.0, 0.0),
        right_shoulder=(0.35, 0.45, 0.0),
        left_shoulder=(0.35, 0.45, 0.0),
        right_elbow=1.2,
        left_elbow=1.2,
    )
    return _grounded(pose, 0.03).moved(x=1.3 * t)


def _skis(t: float, frames: Frames) -> list[Shape]:
    shapes: list[Shape] = []
    for side in ("right", "left"):
        foot, hand = frames.at(f"{side}_ankle"), frames.at(f"{side}_elbow", (0.0, -FOREARM - 0.06, 0.0))
        base = frames.bases[INDEX[f"{side}_ankle"]]
        shapes += box(foot + base @ np.array([0.1, -0.075, 0.0]), np.array([0.78, 0.012, 0.05]), (220, 50, 70), base)
        arm = frames.bases[INDEX[f"{side}_elbow"]]
        shapes.append(
            Limb(
                hand + arm @ np.array([0.1, 0.0, 0.0]),
                hand + arm @ np.array([-0.95, -0.15, 0.0]),
                0.014,
                0.01,
                (60, 60, 70),
            )
        )
    return shapes


BEAM = 0.42


def _beam(t: float) -> Pose:
    sway = np.sin(3.1 * t)
    phase = 3.6 * t
    pose = posed(
        STANDING_HEIGHT,
        root=about("x", 0.06 * sway),
        chest=(0.0, 0.0, 0.1 * np.sin(phase)),
        right_hip=(0.1 + 0.3 * np.sin(phase), -0.05, 0.0),
        left_hip=(0.1 - 0.3 * np.sin(phase), -0.05, 0.0),
        right_knee=0.2 + 0.35 * max(np.cos(phase), 0),
        left_knee=0.2 + 0.35 * max(-np.cos(phase), 0),
        right_shoulder=(0.0, 1.4 + 0.3 * sway, 0.0),
        left_shoulder=(0.0, 1.4 - 0.3 * sway, 0.0),
        right_elbow=0.15,
        left_elbow=0.15,
    )
    return _grounded(pose, BEAM).moved(x=0.45 * t)


def _beam_shapes() -> list[Shape]:
    shapes: list[Shape] = [
        Limb(np.array([-1.1, BEAM - 0.12, 0.0]), np.array([2.1, BEAM - 0.12, 0.0]), 0.12, 0.12, (128, 88, 54))
    ]
    for x in (-0.8, 1.8):
        shapes += box(np.array([x, 0.1, 0.0]), np.array([0.09, 0.12, 0.22]), (105, 72, 44))
    return shapes


def _bike(t: float) -> Pose:
    place = np.array([1.5 * t, 0.0, 0.0])
    pose = posed(0.98, root=about("z", -0.35), chest=(-0.35, 0.0, 0.0), neck=(0.55, 0.0, 0.0)).moved(x=1.5 * t - 0.16)
    spin = 7.0 * t
    for side, z, turn in (("right", 0.12, 0.0), ("left", -0.12, np.pi)):
        pedal = np.array([0.02 + 0.16 * np.cos(spin + turn), 0.4 - 0.16 * np.sin(spin + turn), z])
        pose = reach(pose, f"{side}_leg", place + pedal, (1.0, 0.3, 0.1 * np.sign(z)))
        pose = reach(pose, f"{side}_arm", place + np.array([0.46, 1.02, 2.0 * z]), (-0.4, -0.8, np.sign(z)))
    return pose


def _bicycle(t: float, frames: Frames) -> list[Shape]:
    return bicycle_shapes(np.array([1.5 * t, 0.0, 0.0]), np.eye(3))


def bicycle_shapes(place: np.ndarray, basis: np.ndarray) -> list[Shape]:
    """A bicycle, its cranks above `place`."""

    def at(x: float, y: float, z: float = 0.0) -> np.ndarray:
        return place + basis @ np.array([x, y, z])

    paint = (30, 120, 70)
    shapes: list[Shape] = []
    for x in (-0.5, 0.58):
        rim = [at(x + 0.32 * np.cos(a), 0.34 + 0.32 * np.sin(a)) for a in np.linspace(0, 2 * np.pi, 15)]
        shapes += [Limb(p, q, 0.022, 0.022, RUBBER) for p, q in itertools.pairwise(rim)]
        shapes += [Limb(at(x, 0.34), rim[i], 0.007, 0.005, METAL) for i in (0, 4, 8, 12)]
    for p, q in (
        (at(-0.5, 0.34), at(-0.18, 0.78)),
        (at(-0.5, 0.34), at(0.02, 0.34)),
        (at(0.02, 0.34), at(-0.2, 0.86)),
        (at(-0.17, 0.76), at(0.42, 0.8)),
        (at(0.02, 0.34), at(0.43, 0.76)),
        (at(0.58, 0.34), at(0.4, 0.98)),
        (at(0.44, 1.0, -0.26), at(0.44, 1.0, 0.26)),
    ):
        shapes.append(Limb(p, q, 0.02, 0.02, paint))
    shapes.append(Limb(at(-0.32, 0.88), at(-0.08, 0.88), 0.05, 0.025, RUBBER))
    return shapes


def _kicked(t: float, frames: Frames) -> list[Shape]:
    moment = 0.72
    flown = max(0.0, t - moment)
    place = np.array([0.95 + 5.5 * flown, 0.11 + max(0.0, 2.0 * flown - 4.9 * flown**2), 0.05])
    return football_shapes(place)


def football_shapes(place: np.ndarray, radius: float = 0.11) -> list[Shape]:
    """A white football with dark patches."""
    shapes: list[Shape] = [ball(place, radius, (242, 242, 240))]
    for direction in (
        (1, 0, 0.2),
        (-0.4, 0.8, 0.5),
        (0.1, -0.2, 1),
        (0.2, 0.9, -0.5),
        (0.7, 0.4, 0.8),
        (-0.8, 0.1, 0.6),
    ):
        unit = np.array(direction) / np.linalg.norm(direction)
        shapes.append(ball(place + unit * radius * 0.72, radius * 0.36, (34, 34, 38)))
    return shapes


def _bag() -> list[Shape]:
    return [
        Limb(np.array([0.75, 0.75, 0.0]), np.array([0.75, 1.6, 0.0]), 0.17, 0.17, (150, 30, 34)),
        Limb(np.array([0.75, 1.6, 0.0]), np.array([0.75, 2.7, 0.0]), 0.012, 0.012, (90, 90, 94)),
    ]


EVERYWHERE_FALLS = ("trip", "slip", "ball", "balance", "dog", "pole")

ACTIONS: dict[str, Action] = {
    action.name: action
    for action in (
        Action(
            "walking", ("walk", "stroll", "step"), captured("walk"), (*EVERYWHERE_FALLS, "water"), moment=(0.2, 2.5)
        ),
        Action(
            "running",
            ("run", "jog", "sprint", "race", "chas"),
            captured("run", 0.85, travel=0.62),
            (*EVERYWHERE_FALLS, "water"),
            FLAT,
            moment=(0.1, 1.6),
        ),
        Action(
            "jumping",
            ("jump", "leap", "hop"),
            captured("jump"),
            ("trip", "balance", "slip", "water", "pole"),
            FLAT,
            moment=(0.92, 1.14),
        ),
        Action("crawling", ("crawl",), captured("crawl", 1.1), ("ball", "dog", "balance"), FLAT, moment=(0.3, 2.5)),
        Action(
            "dancing",
            ("danc", "moves"),
            captured("dance_a"),
            ("slip", "balance", "ball", "dog", "trip"),
            FLAT,
            moment=(0.2, 1.6),
            turned=(-2.2, -0.9),
        ),
        Action(
            "kicking a ball",
            ("kick", "soccer", "football"),
            captured("kick"),
            ("slip", "balance", "ball"),
            FLAT,
            _kicked,
            moment=(0.6, 0.95),
        ),
        Action(
            "boxing",
            ("punch", "box ", "boxing", "hit the bag", "hits the bag"),
            captured("punch"),
            ("slip", "balance", "ball", "backward"),
            ("gym", "lawn", "parking lot", "park"),
            None,
            _bag,
            moment=(0.4, 1.6),
            turned=(0.0, 0.5),
        ),
        Action(
            "doing a cartwheel",
            ("cartwheel", "handstand"),
            captured("cartwheel", 1.6),
            ("head", "balance"),
            FLAT,
            moment=(0.68, 1.05),
            cycle=2.71656 / 1.6,
        ),
        Action(
            "doing a backflip",
            ("backflip", "back flip", "flip"),
            captured("backflip", 1.35),
            ("head", "balance"),
            FLAT,
            moment=(0.62, 0.84),
            cycle=1.75 / 1.35,
        ),
        Action(
            "doing a somersault",
            ("somersault", "roll"),
            captured("roll", 1.15),
            ("balance", "dog", "ball"),
            FLAT,
            moment=(0.45, 0.75),
        ),
        Action(
            "doing a karate kick",
            ("karate", "spin kick", "martial"),
            captured("spinkick"),
            ("slip", "balance", "backward"),
            FLAT,
            moment=(0.35, 0.8),
        ),
        Action(
            "skateboarding",
            ("skateboard", "skate", "board"),
            _skateboard,
            ("slip", "off", "pole", "balance", "dog"),
            PAVED,
            _board,
            moment=(0.2, 2.2),
            drops="board",
        ),
        Action(
            "riding a scooter",
            ("scooter",),
            _scooter,
            ("off", "pole", "trip", "dog"),
            PAVED,
            _scooter_things,
            moment=(0.2, 2.2),
            drops="scooter",
        ),
        Action(
            "riding a bike",
            ("bike", "bicycle", "cycl", "pedal"),
            _bike,
            ("off", "pole", "dog", "trip"),
            PAVED,
            _bicycle,
            moment=(0.2, 2.0),
            drops="bicycle",
        ),
        Action(
            "climbing a ladder",
            ("ladder", "climb"),
            _climb,
            ("off", "balance"),
            ("street", "lawn", "gym", "living room", "parking lot", "kitchen"),
            _ladder,
            None,
            moment=(0.9, 2.4),
            drops="ladder",
            turned=(-0.5, 0.5),
        ),
        Action(
            "carrying a box",
            ("carry", "box", "parcel", "package", "moving"),
            _carry,
            ("trip", "slip", "drop", "balance", "dog"),
            ("street", "parking lot", "living room", "kitchen", "lawn", "park", "gym"),
            _carried,
            moment=(0.2, 2.5),
            drops="parcel",
        ),
        Action(
            "lifting a barbell",
            ("lift", "barbell", "weight"),
            _lift_bar,
            ("drop", "backward"),
            ("gym", "living room", "lawn"),
            _bar,
            moment=(0.9, 2.2),
            drops="barbell",
            turned=(-2.0, -1.1),
        ),
        Action(
            "sitting on a chair",
            ("sit", "chair", "sat "),
            _sit,
            ("chair", "backward"),
            ("living room", "kitchen", "gym", "lawn", "park", "pool side", "street"),
            _chair_things,
            moment=(0.2, 2.4),
            drops="chair",
        ),
        Action(
            "throwing a ball",
            ("throw", "toss", "basketball", "pitch"),
            _throw,
            ("ball", "slip", "balance", "dog"),
            FLAT,
            _thrown,
            moment=(0.4, 0.95),
        ),
        Action(
            "standing on a table",
            ("table", "stand"),
            _on_table,
            ("off", "balance"),
            ("living room", "kitchen", "gym", "lawn", "park", "pool side", "beach"),
            None,
            table_shapes,
            (Solid((0.0, 0.36, 0.0), (0.5, 0.36, 0.42)),),
            moment=(0.2, 2.4),
            turned=(-1.9, -0.9),
        ),
        Action(
            "skiing",
            ("ski", "slope"),
            _ski,
            ("off", "trip", "pole", "balance"),
            ("snow slope",),
            _skis,
            moment=(0.2, 2.2),
            drops="skis",
        ),
        Action(
            "balancing on a beam",
            ("beam", "log", "rail", "balanc"),
            _beam,
            ("off", "balance"),
            ("lawn", "playground", "park", "gym", "beach"),
            None,
            _beam_shapes,
            (Solid((0.5, BEAM / 2, 0.0), (1.6, BEAM / 2, 0.12)),),
            moment=(0.2, 2.4),
            turned=(-1.25, -0.6),
        ),
    )
}
