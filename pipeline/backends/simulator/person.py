"""Who is filmed: looks drawn from a seed, and the closed body that hangs on a posed skeleton."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.backends.simulator.render import Blob, Colour, Face, Limb, Shape, ball
from pipeline.backends.simulator.skeleton import FOREARM, INDEX, Frames

CLOTH_COLOURS: dict[str, Colour] = {
    "red": (205, 38, 38),
    "blue": (38, 82, 200),
    "green": (38, 145, 62),
    "yellow": (238, 205, 45),
    "orange": (240, 125, 25),
    "purple": (125, 50, 165),
    "pink": (242, 135, 175),
    "white": (240, 240, 236),
    "black": (32, 32, 36),
    "grey": (128, 130, 134),
}
SKIN: tuple[Colour, ...] = ((247, 208, 178), (232, 184, 146), (205, 152, 112), (160, 108, 74), (108, 70, 48))
HAIR: dict[str, Colour] = {
    "blond": (222, 188, 110),
    "brown": (98, 62, 38),
    "black": (32, 27, 26),
    "red": (150, 70, 34),
    "grey": (160, 158, 154),
}


@dataclass(frozen=True)
class Looks:
    """What somebody looks like. Colours by name (CLOTH_COLOURS, HAIR); skin is an index of SKIN; build scales width."""

    gender: str
    age: str
    top: str
    sleeves: str
    bottom: str
    bottom_kind: str
    hair: str
    hair_length: str
    skin: int
    shoes: str
    hat: str | None
    build: float


def draw_looks(rng: np.random.Generator, who: str | None = None) -> Looks:
    """Looks from a generator; `who` (man, woman, boy, girl) is kept where the caption names it."""
    colours = list(CLOTH_COLOURS)
    drawn = ("man", "woman", "boy", "girl")[int(rng.choice(4, p=[0.42, 0.34, 0.14, 0.1]))]
    who = who or drawn
    gender = "female" if who in ("woman", "girl") else "male"
    top, bottom = rng.choice(len(colours), 2, replace=False)
    kind = rng.random()
    bottom_kind = "trousers" if kind < 0.55 else "shorts"
    if gender == "female" and kind > 0.8:
        bottom_kind = "skirt"
    sleeves = "short" if rng.random() < 0.6 else "long"
    hair = list(HAIR)[int(rng.choice(len(HAIR), p=[0.24, 0.34, 0.24, 0.1, 0.08]))]
    long_hair = rng.random() < (0.75 if gender == "female" else 0.04)
    hat = colours[int(rng.integers(len(colours)))] if rng.random() < 0.16 else None
    return Looks(
        gender=gender,
        age="child" if who in ("boy", "girl") else "adult",
        top=colours[top],
        sleeves=sleeves,
        bottom=colours[bottom],
        bottom_kind=bottom_kind,
        hair=hair,
        hair_length="long" if long_hair else "short",
        skin=int(rng.choice(len(SKIN), p=[0.3, 0.26, 0.18, 0.14, 0.12])),
        shoes=("white", "black", "red", "grey", "blue")[int(rng.integers(5))],
        hat=hat,
        build=float(rng.uniform(0.93, 1.08)) * (0.95 if gender == "female" else 1.0),
    )


def _darker(colour: Colour, factor: float) -> Colour:
    return (colour[0] * factor, colour[1] * factor, colour[2] * factor)


def _in(
    frames: Frames, joint: str, offset: tuple[float, float, float], half: tuple[float, float, float], colour: Colour
) -> Blob:
    basis = frames.bases[INDEX[joint]]
    return Blob(frames.at(joint, offset), basis * np.asarray(half), colour)


def body(frames: Frames, looks: Looks, torn: bool = False) -> list[Shape]:
    """The shapes of a dressed person on a posed skeleton; `torn` pulls the limbs off the body."""
    skin, hair = SKIN[looks.skin], HAIR[looks.hair]
    top, bottom, shoes = CLOTH_COLOURS[looks.top], CLOTH_COLOURS[looks.bottom], CLOTH_COLOURS[looks.shoes]
    wide = looks.build
    female = looks.gender == "female"
    shapes: list[Shape] = []
    shapes += _trunk(frames, looks, wide, skin, top, bottom, female)
    shapes += _head(frames, looks, skin, hair)
    for side in ("right", "left"):
        shapes += _arm(frames, looks, side, wide, skin, top, _pull(frames, side, "arm") if torn else np.zeros(3))
        shapes += _leg(
            frames, looks, side, wide, skin, bottom, shoes, _pull(frames, side, "leg") if torn else np.zeros(3)
        )
    return shapes


def _pull(frames: Frames, side: str, part: str) -> np.ndarray:
    """Where a torn limb is moved, metres: away from the trunk along the line from the chest, an odd bit beyond."""
    joint = frames.at(f"{side}_{'elbow' if part == 'arm' else 'knee'}")
    away = joint - frames.at("root", (0.0, 0.15, 0.0))
    away = away / max(float(np.linalg.norm(away)), 1e-6)
    return away * (0.24 if part == "arm" else 0.3)


def _trunk(
    frames: Frames, looks: Looks, wide: float, skin: Colour, top: Colour, bottom: Colour, female: bool
) -> list[Shape]:
    shoulder, waist, hip = (0.142, 0.118, 0.158) if female else (0.165, 0.142, 0.146)
    shapes: list[Shape] = [
        _in(frames, "chest", (-0.004, 0.1, 0.0), (0.118 * wide, 0.235, shoulder * wide), top),
        _in(frames, "root", (0.0, 0.2, 0.0), (0.104 * wide, 0.21, waist * wide), top),
        _in(frames, "root", (0.0, 0.085, 0.0), (0.113 * wide, 0.115, (hip + 0.002) * wide), top),
        _in(frames, "root", (0.0, -0.005, 0.0), (0.113 * wide, 0.125, hip * wide), bottom),
        _in(frames, "chest", (-0.012, 0.222, 0.0), (0.088 * wide, 0.062, 0.185 * wide), top),
        Limb(frames.at("chest", (-0.015, 0.2, 0.0)), frames.at("neck", (0.008, 0.06, 0.0)), 0.062, 0.05, skin),
        Limb(
            frames.at("chest", (-0.02, 0.252, 0.035)),
            frames.at("right_shoulder", (0.0, 0.008, -0.02)),
            0.05,
            0.058 * wide,
            top,
        ),
        Limb(
            frames.at("chest", (-0.02, 0.252, -0.035)),
            frames.at("left_shoulder", (0.0, 0.008, 0.02)),
            0.05,
            0.058 * wide,
            top,
        ),
    ]
    if female:
        for sign in (-1, 1):
            shapes.append(_in(frames, "chest", (0.075 * wide, 0.115, 0.062 * sign), (0.058, 0.06, 0.06), top))
    if looks.bottom_kind == "skirt":
        shapes += _skirt(frames, wide, bottom)
    return shapes


def _skirt(frames: Frames, wide: float, bottom: Colour) -> list[Shape]:
    """A pleated skirt: a ring at the waist joined to a wider one that goes round both thighs."""
    thighs = [frames.at(f"{side}_hip", (0.0, -0.34, 0.0)) for side in ("right", "left")]
    waist, hem = frames.at("root", (0.0, 0.07, 0.0)), 0.5 * (thighs[0] + thighs[1])
    across, ahead = (
        frames.at("root", (0.0, 0.0, 1.0)) - frames.points[0],
        frames.at("root", (1.0, 0.0, 0.0)) - frames.points[0],
    )
    apart = thighs[0] - thighs[1]
    half_across = 0.15 + 0.5 * abs(float(apart @ across))
    half_ahead = 0.15 + 0.5 * abs(float(apart @ ahead))
    rings = []
    for turn in np.linspace(0, 2 * np.pi, 19):
        c, s = np.cos(turn), np.sin(turn)
        upper = waist + wide * (0.118 * c * ahead + 0.148 * s * across)
        rings.append((upper, hem + half_ahead * c * ahead + half_across * s * across))
    shapes: list[Shape] = []
    for (upper, lower), (next_upper, next_lower) in itertools.pairwise(rings):
        shapes += [
            Face(np.array([upper, next_upper, lower]), bottom),
            Face(np.array([next_upper, next_lower, lower]), bottom),
        ]
    return shapes


def _head(frames: Frames, looks: Looks, skin: Colour, hair: Colour) -> Sequence[Shape]:
    dark = _darker(skin, 0.72)
    shapes: list[Blob] = [
        _in(frames, "neck", (0.006, 0.175, 0.0), (0.096, 0.112, 0.078), skin),
        _in(frames, "neck", (0.03, 0.105, 0.0), (0.066, 0.065, 0.056), skin),
        _in(frames, "neck", (0.1, 0.145, 0.0), (0.022, 0.02, 0.013), _darker(skin, 0.93)),
        _in(frames, "neck", (0.091, 0.158, 0.0), (0.018, 0.028, 0.01), skin),
        _in(frames, "neck", (0.083, 0.094, 0.0), (0.012, 0.009, 0.026), (165, 70, 70)),
    ]
    for sign in (1, -1):
        shapes += [
            _in(frames, "neck", (0.084, 0.178, 0.034 * sign), (0.014, 0.011, 0.016), (245, 245, 242)),
            _in(frames, "neck", (0.0925, 0.178, 0.034 * sign), (0.0085, 0.009, 0.0085), (38, 30, 26)),
            _in(frames, "neck", (0.088, 0.203, 0.034 * sign), (0.011, 0.0055, 0.02), _darker(hair, 0.75)),
            _in(frames, "neck", (0.0, 0.158, 0.08 * sign), (0.02, 0.03, 0.011), dark),
        ]
    if looks.hat is not None:
        cap = CLOTH_COLOURS[looks.hat]
        shapes.append(_in(frames, "neck", (-0.004, 0.222, 0.0), (0.106, 0.086, 0.089), cap))
        shapes.append(_in(frames, "neck", (0.105, 0.222, 0.0), (0.072, 0.012, 0.066), _darker(cap, 0.85)))
    else:
        shapes.append(_in(frames, "neck", (-0.014, 0.218, 0.0), (0.1, 0.088, 0.088), hair))
    shapes.append(_in(frames, "neck", (-0.034, 0.175, 0.0), (0.082, 0.11, 0.086), hair))
    if looks.hair_length == "long":
        shapes.append(_in(frames, "neck", (-0.058, 0.1, 0.0), (0.055, 0.15, 0.085), hair))
        for sign in (1, -1):
            shapes.append(_in(frames, "neck", (-0.012, 0.13, 0.076 * sign), (0.045, 0.115, 0.026), hair))
    if looks.age == "child":
        # A child's head is large beside the body.
        neck = frames.points[INDEX["neck"]]
        return [Blob(neck + 1.22 * (part.centre - neck), 1.22 * part.axes, part.colour) for part in shapes]
    return shapes


def _arm(
    frames: Frames, looks: Looks, side: str, wide: float, skin: Colour, top: Colour, away: np.ndarray
) -> list[Shape]:
    shoulder, elbow = frames.at(f"{side}_shoulder") + away, frames.at(f"{side}_elbow") + away
    wrist = frames.at(f"{side}_elbow", (0.0, -FOREARM, 0.0)) + away
    down = (wrist - elbow) / FOREARM
    palm = wrist + 0.055 * down
    long_sleeves = looks.sleeves == "long"
    cloth = top if long_sleeves else skin
    thick = 0.054 * wide
    shapes: list[Shape] = [
        ball(shoulder, 0.066 * wide, top),
        Limb(shoulder, elbow, thick, 0.042 * wide, cloth),
        Limb(elbow, wrist, 0.042 * wide, 0.031, cloth),
        Limb(wrist, palm, 0.029, 0.036, skin),
        Limb(palm, palm + 0.075 * down, 0.034, 0.019, skin),
    ]
    if not long_sleeves:
        middle = shoulder + 0.58 * (elbow - shoulder)
        shapes.append(Limb(shoulder, middle, thick + 0.008, 0.058 * wide, top))
    thumb = frames.at(f"{side}_elbow", (0.045, -FOREARM - 0.075, 0.0)) + away
    shapes.append(Limb(wrist + 0.03 * down, thumb, 0.017, 0.013, skin))
    return shapes


def _leg(
    frames: Frames, looks: Looks, side: str, wide: float, skin: Colour, bottom: Colour, shoes: Colour, away: np.ndarray
) -> list[Shape]:
    hip, knee, ankle = (frames.at(f"{side}_{part}") + away for part in ("hip", "knee", "ankle"))
    covered = looks.bottom_kind == "trousers"
    cloth = bottom if covered else skin
    shapes: list[Shape] = [
        ball(hip, 0.092 * wide, bottom),
        Limb(hip, knee, 0.088 * wide, 0.06 * wide, cloth),
        Limb(knee, ankle, 0.06 * wide, 0.05 if covered else 0.039, cloth),
        Limb(knee + 0.22 * (ankle - knee), knee + 0.55 * (ankle - knee), 0.058 * wide, 0.046 * wide, cloth),
    ]
    if looks.bottom_kind == "shorts":
        shapes.append(Limb(hip, hip + 0.72 * (knee - hip), 0.095 * wide, 0.084 * wide, bottom))
    heel = frames.at(f"{side}_ankle", (-0.045, -0.03, 0.0)) + away
    toe = frames.at(f"{side}_ankle", (0.135, -0.042, 0.0)) + away
    shapes += [
        Limb(ankle, frames.at(f"{side}_ankle", (0.02, -0.025, 0.0)) + away, 0.043, 0.045, shoes),
        Limb(heel, toe, 0.042, 0.034, shoes),
        Limb(heel + np.array([0.0, -0.0, 0.0]), toe, 0.043, 0.035, shoes),
    ]
    return shapes
