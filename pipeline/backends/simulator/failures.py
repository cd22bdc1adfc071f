"""How it goes wrong: twelve failures, each a push, what is in the way, and a fall by PyBullet's physics.

Everything is told in the person's own axes (he goes along +x, the ground is at height 0), metres and seconds.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.backends.simulator.motions import (
    LADDER_FOOT,
    LADDER_TOP,
    Action,
    Solid,
    barbell_shapes,
    bicycle_shapes,
    board_shapes,
    chair_shapes,
    football_shapes,
    ladder_shapes,
    parcel_shapes,
    scooter_shapes,
)
from pipeline.backends.simulator.render import Blob, Colour, Face, Limb, Shape, ball, box
from pipeline.backends.simulator.skeleton import (
    HINGES,
    JOINTS,
    OFFSETS,
    PARENTS,
    Frames,
    Pose,
    about,
    forward,
    matrices,
    posed,
    quaternion,
)
from pipeline.core.quiet import silent_output

STEP = 1 / 160
WATER_FLOOR = -0.11


@dataclass(frozen=True)
class Thing:
    """A loose prop: a body of boxes (centre, half sizes) in its own axes, and how it is drawn at a place and turn."""

    parts: tuple[tuple[tuple[float, float, float], tuple[float, float, float]], ...]
    mass: float
    draw: Callable[[np.ndarray, np.ndarray], list[Shape]]
    radius: float | None = None


def _draw_ladder(place: np.ndarray, basis: np.ndarray) -> list[Shape]:
    up, side = basis[:, 1], basis[:, 2]
    return ladder_shapes(place - 1.33 * up, place + 1.33 * up, 0.23 * side)


THINGS: dict[str, Thing] = {
    "board": Thing((((0.0, 0.055, 0.0), (0.4, 0.05, 0.09)),), 3.0, board_shapes),
    "scooter": Thing(
        (((0.0, 0.08, 0.0), (0.42, 0.06, 0.06)), ((0.41, 0.6, 0.0), (0.02, 0.42, 0.2))), 4.0, scooter_shapes
    ),
    "bicycle": Thing(
        (((0.04, 0.4, 0.0), (0.8, 0.38, 0.05)), ((0.42, 0.95, 0.0), (0.03, 0.05, 0.25))), 11.0, bicycle_shapes
    ),
    "ladder": Thing((((0.0, 0.0, 0.0), (0.03, 1.33, 0.23)),), 6.0, _draw_ladder),
    "parcel": Thing((((0.0, 0.0, 0.0), (0.19, 0.17, 0.22)),), 5.0, parcel_shapes),
    "barbell": Thing(
        (
            ((0.0, 0.0, 0.0), (0.02, 0.02, 0.8)),
            ((0.0, 0.0, 0.7), (0.15, 0.15, 0.05)),
            ((0.0, 0.0, -0.7), (0.15, 0.15, 0.05)),
        ),
        25.0,
        lambda place, basis: barbell_shapes(place, basis[:, 2]),
    ),
    "chair": Thing((((0.0, 0.24, 0.0), (0.21, 0.23, 0.21)), ((-0.21, 0.7, 0.0), (0.02, 0.25, 0.2))), 4.0, chair_shapes),
    "broken chair": Thing(
        (((0.0, 0.45, 0.0), (0.21, 0.03, 0.21)), ((-0.21, 0.5, 0.0), (0.02, 0.45, 0.2))),
        4.0,
        lambda p, b: chair_shapes(p, b, True),
    ),
    "ball": Thing((), 0.5, lambda place, basis: football_shapes(place, 0.15), radius=0.15),
}


@dataclass(frozen=True)
class Loose:
    """A loose prop at the moment of the failure: which, where, how turned (3, 3), how fast (and spinning)."""

    thing: str
    place: np.ndarray
    basis: np.ndarray
    speed: tuple[float, float, float] = (0.0, 0.0, 0.0)
    spin: tuple[float, float, float] = (0.0, 0.0, 0.0)


@dataclass
class Mishap:
    """One failure made ready: the push (metres and radians a second), and all that stands, flies or lies about.

    before and after: moving shapes by seconds to (negative) or since the transition. water: x from which on the ground
    is water. hold: how stiffly he keeps his pose while falling, 0 limp .. 1.
    """

    linear: tuple[float, float, float]
    angular: tuple[float, float, float]
    static: list[Shape] = field(default_factory=list)
    solids: list[Solid] = field(default_factory=list)
    loose: list[Loose] = field(default_factory=list)
    moving: Callable[[float], list[Shape]] | None = None
    water: float | None = None
    hold: float = 0.5
    keep_speed: float = 1.0


@dataclass(frozen=True)
class Failure:
    """A way to fail: its name, the words a caption may use for it, and how it is made ready.

    `away` in prepare is the sign of z that lies away from the camera.
    """

    name: str
    words: tuple[str, ...]
    prepare: Callable[[Pose, Action, np.random.Generator, float], Mishap]


def _spread(rng: np.random.Generator, low: float, high: float) -> float:
    return float(rng.uniform(low, high))


def _sign(rng: np.random.Generator) -> float:
    return 1.0 if rng.random() < 0.5 else -1.0


def _trip(pose: Pose, action: Action, rng: np.random.Generator, away: float) -> Mishap:
    x, z = pose.position[0] + 0.22, pose.position[2]
    kind = int(rng.integers(4))
    static: list[Shape]
    if kind == 0:
        static = [Blob(np.array([x, 0.05, z]), np.diag([0.2, 0.16, 0.26]), (132, 128, 122))]
    elif kind == 1:
        static = [Limb(np.array([x, 0.09, z - 0.5]), np.array([x + 0.1, 0.09, z + 0.5]), 0.1, 0.09, (110, 74, 44))]
    elif kind == 2:
        static = list(box(np.array([x, 0.09, z]), np.array([0.16, 0.09, 0.3]), (210, 160, 40)))
    else:
        points = [np.array([x + 0.12 * np.sin(3.1 * i), 0.025, z - 1.2 + 0.2 * i]) for i in range(13)]
        static = [Limb(p, q, 0.025, 0.025, (40, 150, 60)) for p, q in itertools.pairwise(points)]
    tip = _spread(rng, 3.0, 4.4)
    return Mishap(
        (0.8 * tip, 0.4, _spread(rng, -0.4, 0.4)),
        (_spread(rng, -1.2, 1.2), 0.0, -tip),
        static=static,
        hold=0.55,
        keep_speed=0.4,
    )


def _slip(pose: Pose, action: Action, rng: np.random.Generator, away: float) -> Mishap:
    x, z = pose.position[0] + 0.12, pose.position[2]
    static: list[Shape] = []
    if action.drops is None:
        if rng.random() < 0.5:
            static = [Blob(np.array([x, 0.0, z]), np.diag([0.55, 0.012, 0.4]), (120, 165, 205))]
        else:
            static = [
                Limb(np.array([x, 0.03, z]), np.array([x + 0.13 * c, 0.02, z + 0.13 * s]), 0.035, 0.015, (245, 215, 50))
                for c, s in ((1, 0), (-0.5, 0.8), (-0.5, -0.8))
            ]
    tip = _spread(rng, 3.2, 4.6)
    return Mishap(
        (0.3, _spread(rng, 0.4, 1.0), _spread(rng, -0.3, 0.3)),
        (_spread(rng, -1.0, 1.0), 0.0, tip),
        static=static,
        hold=0.5,
        keep_speed=0.6,
    )


def _ball(pose: Pose, action: Action, rng: np.random.Generator, away: float) -> Mishap:
    head = forward(pose).at("neck", (0.06, 0.14, 0.0))
    side = _sign(rng)
    coming = np.array([-5.5, -0.6, -3.5 * side])

    def moving(seconds: float) -> list[Shape]:
        return football_shapes(head + coming * seconds, 0.15) if seconds < 0 else []

    tip = _spread(rng, 2.4, 3.6)
    back = np.array([1.9, 2.2, 1.4 * side])
    return Mishap(
        (-0.7 * tip, 0.2, -0.8 * side),
        (1.2 * side * -1.0, 0.0, tip),
        loose=[Loose("ball", head + np.array([0.22, 0.0, 0.12 * side]), np.eye(3), tuple(back))],
        moving=moving,
        hold=0.4,
        keep_speed=0.3,
    )


def _balance(pose: Pose, action: Action, rng: np.random.Generator, away: float) -> Mishap:
    # Behind the beam he would be hidden.
    side = -away if action.name == "balancing on a beam" else _sign(rng)
    tip = _spread(rng, 2.6, 3.8)
    return Mishap((0.2, 0.2, 0.75 * tip * side), (tip * side, 0.0, _spread(rng, -1.4, 1.4)), hold=0.5, keep_speed=0.5)


def _off(pose: Pose, action: Action, rng: np.random.Generator, away: float) -> Mishap:
    side = -away if action.name == "balancing on a beam" else _sign(rng)
    if action.name == "climbing a ladder":
        return Mishap((-1.5, 0.1, 0.5 * side), (0.6 * side, 0.0, _spread(rng, 1.0, 1.9)), hold=0.4, keep_speed=0.0)
    if action.name == "standing on a table":
        return Mishap(
            (_spread(rng, 0.9, 1.4), 0.3, 1.9 * side),
            (2.2 * side, 0.0, _spread(rng, -0.8, 0.8)),
            hold=0.45,
        )
    if action.name == "balancing on a beam":
        return Mishap((0.2, 0.0, 1.7 * side), (2.4 * side, 0.0, _spread(rng, -0.8, 0.8)), hold=0.5)
    tip = _spread(rng, 2.2, 3.4)
    return Mishap((0.5, 1.0, 1.1 * side), (1.4 * side, 0.0, -tip), hold=0.45, keep_speed=0.7)


def dog_shapes(place: np.ndarray, basis: np.ndarray, gait: float, colour: Colour = (150, 104, 60)) -> list[Shape]:
    """A running dog whose belly is above `place`, facing +x of `basis`; gait in radians."""

    def at(x: float, y: float, z: float) -> np.ndarray:
        return place + basis @ np.array([x, y, z])

    shapes: list[Shape] = [
        Limb(at(-0.3, 0.46, 0), at(0.25, 0.48, 0), 0.12, 0.14, colour),
        Limb(at(0.28, 0.52, 0), at(0.43, 0.66, 0), 0.09, 0.08, colour),
        ball(at(0.46, 0.7, 0), 0.105, colour),
        Limb(at(0.5, 0.68, 0), at(0.66, 0.64, 0), 0.06, 0.045, colour),
        ball(at(0.71, 0.65, 0), 0.025, (25, 22, 22)),
        Limb(at(-0.38, 0.5, 0), at(-0.6, 0.66, 0.05 * np.sin(gait)), 0.035, 0.02, colour),
    ]
    for z in (0.075, -0.075):
        shapes.append(Limb(at(0.42, 0.77, z), at(0.37, 0.66, 1.4 * z), 0.035, 0.03, (88, 58, 34)))
        for x, turn in ((0.24, 0.0), (-0.3, 2.0)):
            swing = 0.22 * np.sin(gait + turn + (0.7 if z > 0 else 0.0))
            shapes.append(Limb(at(x, 0.42, z), at(x + swing, 0.04, z), 0.05, 0.035, colour))
    return shapes


def _dog(pose: Pose, action: Action, rng: np.random.Generator, away: float) -> Mishap:
    side = away  # from behind, so that the dog does not hide him
    meeting = np.array([pose.position[0] - 0.1, 0.0, pose.position[2] + 0.42 * side])
    heading = np.array([0.35, 0.0, -side])
    heading /= np.linalg.norm(heading)
    basis = np.stack([heading, np.array([0.0, 1.0, 0.0]), np.cross(heading, [0.0, 1.0, 0.0])], 1)
    coat = [(150, 104, 60), (60, 52, 48), (214, 190, 150)][int(rng.integers(3))]

    def moving(seconds: float) -> list[Shape]:
        travelled = 3.2 * seconds if seconds < 0 else 0.9 * (1 - np.exp(-2.2 * seconds))
        stride = 14 * travelled / 3.2 * 1.2
        away = np.array([-0.5, 0.0, 0.0]) * max(0.0, travelled)
        return dog_shapes(meeting - basis[:, 0] * 0.5 + basis[:, 0] * min(travelled, 0.0) + away, basis, stride, coat)

    tip = _spread(rng, 2.6, 3.6)
    return Mishap((0.5, 0.7, -0.6 * side), (-tip * side * 0.9, 0.0, -1.2), moving=moving, hold=0.45, keep_speed=0.5)


def _pole(pose: Pose, action: Action, rng: np.random.Generator, away: float) -> Mishap:
    reach = 0.36 if action.drops is None else 0.62
    x, z = pose.position[0] + reach, pose.position[2]
    if rng.random() < 0.6:
        static: list[Shape] = [Limb(np.array([x, -0.05, z]), np.array([x, 2.9, z]), 0.075, 0.065, (96, 100, 104))]
        static.append(Limb(np.array([x, 2.1, z]), np.array([x, 2.7, z]), 0.09, 0.09, (214, 180, 40)))
        solids = [Solid((x, 1.5, z), (0.06, 1.5, 0.06))]
    else:
        static = list(box(np.array([x + 0.1, 0.7, z]), np.array([0.09, 0.7, 0.8]), (178, 92, 66)))
        static += box(np.array([x + 0.1, 1.43, z]), np.array([0.12, 0.04, 0.85]), (196, 192, 184))
        solids = [Solid((x + 0.1, 0.7, z), (0.09, 0.7, 0.8))]
    tip = _spread(rng, 2.4, 3.4)
    return Mishap(
        (-0.95 * tip, 0.3, _spread(rng, -0.5, 0.5)),
        (_spread(rng, -1.0, 1.0), 0.0, tip),
        static=static,
        solids=solids,
        hold=0.35,
        keep_speed=0.0,
    )


def _backward(pose: Pose, action: Action, rng: np.random.Generator, away: float) -> Mishap:
    tip = _spread(rng, 2.6, 3.6)
    return Mishap(
        (-0.75 * tip, 0.2, _spread(rng, -0.3, 0.3)), (_spread(rng, -0.8, 0.8), 0.0, tip), hold=0.45, keep_speed=0.0
    )


def _drop(pose: Pose, action: Action, rng: np.random.Generator, away: float) -> Mishap:
    tip = _spread(rng, 2.3, 3.2)
    if action.name == "lifting a barbell":
        return Mishap((-0.75 * tip, 0.0, 0.0), (_spread(rng, -0.8, 0.8), 0.0, tip), hold=0.35, keep_speed=0.0)
    return Mishap((0.6 * tip, 0.1, 0.2), (0.9 * _sign(rng), 0.0, -tip), hold=0.4, keep_speed=0.3)


def _chair(pose: Pose, action: Action, rng: np.random.Generator, away: float) -> Mishap:
    return Mishap(
        (-0.6, 0.1, 0.3 * _sign(rng)), (0.8 * _sign(rng), 0.0, _spread(rng, 1.8, 2.8)), hold=0.4, keep_speed=0.0
    )


def _water(pose: Pose, action: Action, rng: np.random.Generator, away: float) -> Mishap:
    x = pose.position[0] + 0.28
    tip = _spread(rng, 2.4, 3.4)
    drops = rng.uniform(-1, 1, (46, 3))

    def moving(seconds: float) -> list[Shape]:
        shapes: list[Shape] = []
        since = seconds - 0.42
        if 0 < since < 0.75:
            for drop in drops:
                start = np.array([x + 0.75, 0.0, pose.position[2]]) + drop * np.array([0.65, 0.0, 0.45])
                speed = np.array([0.9 * drop[0], 2.2 + 1.5 * drop[1], 1.1 * drop[2]])
                at = start + speed * since - np.array([0.0, 4.9 * since**2, 0.0])
                if at[1] > 0:
                    shapes.append(ball(at, 0.035 + 0.02 * drop[0], (226, 240, 250)))
        return shapes

    z = pose.position[2]
    corners = np.array([[x, 0.012, z - 4.5], [x, 0.012, z + 4.5], [x + 7.0, 0.012, z + 4.5], [x + 7.0, 0.012, z - 4.5]])
    edge = box(np.array([x - 0.09, 0.012, z]), np.array([0.09, 0.02, 4.5]), (226, 224, 216))
    static: list[Shape] = [Face(corners, (58, 150, 196), texture="water", repeat=1.8), *edge]  # type: ignore[arg-type]
    return Mishap(
        (0.7 * tip + 0.7, 0.9, _spread(rng, -0.3, 0.3)),
        (_spread(rng, -0.9, 0.9), 0.0, -tip),
        static=static,
        moving=moving,
        water=x,
        hold=0.45,
        keep_speed=0.6,
    )


def _head(pose: Pose, action: Action, rng: np.random.Generator, away: float) -> Mishap:
    return Mishap(
        (_spread(rng, -0.3, 0.5), -1.2, _spread(rng, -0.6, 0.6)),
        (_spread(rng, -1.2, 1.2), 0.0, _spread(rng, -0.8, 0.8)),
        hold=0.4,
        keep_speed=0.3,
    )


FAILURES: dict[str, Failure] = {
    failure.name: failure
    for failure in (
        Failure("trip", ("trip", "stumbl", "over a", "face plant", "faceplant"), _trip),
        Failure("slip", ("slip", "slid", "wet", "ice", "banana"), _slip),
        Failure("ball", ("hit by", "hit in", "hits him", "ball to", "in the face", "in the head"), _ball),
        Failure("balance", ("balance", "wobbl", "tip", "falls over", "fell over", "sideways"), _balance),
        Failure("off", ("off", "fell from", "falls from", "thrown"), _off),
        Failure("dog", ("dog", "knock", "animal"), _dog),
        Failure("pole", ("pole", "wall", "crash", "runs into", "ran into", "collid", "smash", "bump"), _pole),
        Failure("backward", ("backward", "on his back", "on her back", "falls back"), _backward),
        Failure("drop", ("drop", "on himself", "on herself", "too heavy", "lets go"), _drop),
        Failure("chair", ("chair", "break", "broke", "collapse"), _chair),
        Failure("water", ("water", "pool", "pond", "splash", "lake", "sea"), _water),
        Failure("head", ("head", "neck", "upside"), _head),
    )
}


# --- physics ------------------------------------------------------------------------------------------------------

_LINKS: dict[str, tuple[float, str, tuple[float, float, float], tuple[float, float, float]]] = {
    # mass kg, shape, size (radius and length, or box sides), centre
    "root": (11.0, "sphere", (0.115, 0.0, 0.0), (0.0, 0.04, 0.0)),
    "chest": (20.0, "sphere", (0.135, 0.0, 0.0), (0.0, 0.1, 0.0)),
    "neck": (5.0, "sphere", (0.105, 0.0, 0.0), (0.0, 0.17, 0.0)),
    "hip": (7.5, "capsule", (0.068, 0.3, 0.0), (0.0, -0.21, 0.0)),
    "knee": (3.6, "capsule", (0.05, 0.3, 0.0), (0.0, -0.2, 0.0)),
    "ankle": (1.2, "box", (0.22, 0.07, 0.09), (0.045, -0.045, 0.0)),
    "shoulder": (2.2, "capsule", (0.047, 0.19, 0.0), (0.0, -0.14, 0.0)),
    "elbow": (1.7, "capsule", (0.038, 0.26, 0.0), (0.0, -0.17, 0.0)),
}
_STRENGTH = {"chest": 70.0, "neck": 18.0, "hip": 34.0, "knee": 26.0, "ankle": 9.0, "shoulder": 16.0, "elbow": 9.0}


def _urdf() -> str:
    """The humanoid as URDF, y up, with collision shapes as thick as the body that is drawn."""
    parts = ['<robot name="person">']
    for joint in JOINTS:
        mass, shape, size, centre = _LINKS[joint.split("_")[-1]]
        turn = ' rpy="1.5707963 0 0"' if shape == "capsule" else ""
        geometry = {
            "sphere": f'<sphere radius="{size[0]}"/>',
            "capsule": f'<capsule radius="{size[0]}" length="{size[1]}"/>',
            "box": f'<box size="{size[0]} {size[1]} {size[2]}"/>',
        }[shape]
        xyz = " ".join(str(value) for value in centre)
        inertia = mass * 0.012
        parts.append(
            f'<link name="{joint}"><inertial><origin xyz="{xyz}"/><mass value="{mass}"/>'
            f'<inertia ixx="{inertia}" ixy="0" ixz="0" iyy="{inertia}" iyz="0" izz="{inertia}"/></inertial>'
            f'<collision><origin xyz="{xyz}"{turn}/><geometry>{geometry}</geometry></collision></link>'
        )
    for number, joint in enumerate(JOINTS[1:], start=1):
        xyz = " ".join(str(value) for value in OFFSETS[number])
        if joint in HINGES:
            low, high = (0.0, 2.6) if joint.endswith("elbow") else (-2.5, 0.0)
            kind, rest = (
                "revolute",
                f'<axis xyz="0 0 1"/><limit effort="100" lower="{low}" upper="{high}" velocity="30"/>',
            )
        else:
            kind, rest = "spherical", '<axis xyz="1 0 0"/>'
        parts.append(
            f'<joint name="{joint}" type="{kind}"><parent link="{JOINTS[PARENTS[number]]}"/><child link="{joint}"/>'
            f'<origin xyz="{xyz}"/>{rest}</joint>'
        )
    return "".join(parts) + "</robot>"


class World:
    """One PyBullet client, emptied before every fall so that no fall knows the one before."""

    def __init__(self) -> None:
        with silent_output(1, 2):  # Bullet tells when it was built and what it connects to
            import pybullet
            from pybullet_utils.bullet_client import BulletClient

            self.bullet: Any = BulletClient(connection_mode=pybullet.DIRECT)
        self._folder = tempfile.TemporaryDirectory(prefix="humanoid-")
        self._file = Path(self._folder.name) / "humanoid.urdf"
        self._file.write_text(_urdf(), encoding="utf-8")

    def fall(
        self,
        pose: Pose,
        speed: np.ndarray,
        mishap: Mishap,
        solids: tuple[Solid, ...],
        seconds: float,
        rate: float,
        rng: np.random.Generator,
    ) -> tuple[list[Pose], list[list[tuple[np.ndarray, np.ndarray]]]]:
        """The poses at `rate` a second from the transition on, and with each the loose things' places, turns."""
        p = self.bullet
        p.resetSimulation()
        p.setGravity(0, -9.81, 0)
        p.setPhysicsEngineParameter(fixedTimeStep=STEP, numSolverIterations=12, deterministicOverlappingPairs=1)
        self._ground(mishap)
        for solid in (*solids, *mishap.solids):
            shape = p.createCollisionShape(p.GEOM_BOX, halfExtents=list(solid.half))
            p.createMultiBody(0, shape, basePosition=list(solid.centre))
        person = p.loadURDF(str(self._file), flags=p.URDF_MAINTAIN_LINK_ORDER)
        self._set_pose(person, pose, speed, mishap)
        things = [self._thing(loose) for loose in mishap.loose]
        target = _brace(pose, rng)
        count = round(seconds * rate) + 1
        poses, places = [], []
        done = 0
        for number in range(count):
            until = round(number / rate / STEP)
            while done < until:
                if done % 9 == 0:
                    self._motors(person, target, mishap.hold * (1.0 if done * STEP < 0.55 else 0.42))
                p.stepSimulation()
                done += 1
            poses.append(self._read(person))
            places.append([self._place(body) for body in things])
        return poses, places

    def _ground(self, mishap: Mishap) -> None:
        p = self.bullet
        if mishap.water is None:
            plane = p.createCollisionShape(p.GEOM_PLANE, planeNormal=[0, 1, 0])
            ground = p.createMultiBody(0, plane)
            p.changeDynamics(ground, -1, lateralFriction=0.9, restitution=0.1)
            return
        floor = p.createCollisionShape(p.GEOM_BOX, halfExtents=[10, 0.5, 10])
        p.createMultiBody(0, floor, basePosition=[mishap.water - 10, -0.5, 0])
        p.createMultiBody(0, floor, basePosition=[mishap.water + 10, WATER_FLOOR - 0.5, 0])

    def _set_pose(self, person: int, pose: Pose, speed: np.ndarray, mishap: Mishap) -> None:
        p = self.bullet
        # The base frame of Bullet sits at the centre of mass of the root link, not at its joint.
        centre = np.array(_LINKS["root"][3])
        place = pose.position + matrices(pose.turns[:1])[0] @ centre
        p.resetBasePositionAndOrientation(person, place.tolist(), pose.turns[0].tolist())
        for number, joint in enumerate(JOINTS[1:], start=1):
            turn = pose.turns[number]
            if joint in HINGES:
                p.resetJointState(person, number - 1, float(2 * np.arctan2(turn[2], turn[3])))
            else:
                p.resetJointStateMultiDof(person, number - 1, turn.tolist(), [0, 0, 0])
        linear = np.asarray(mishap.linear) + speed * mishap.keep_speed
        p.resetBaseVelocity(person, linear.tolist(), list(mishap.angular))
        for link in range(-1, len(JOINTS) - 1):
            p.changeDynamics(
                person, link, lateralFriction=0.75, restitution=0.05, linearDamping=0.02, angularDamping=0.15
            )

    def _motors(self, person: int, target: Pose, hold: float) -> None:
        p = self.bullet
        for number, joint in enumerate(JOINTS[1:], start=1):
            force = _STRENGTH[joint.split("_")[-1]] * hold
            turn = target.turns[number]
            if joint in HINGES:
                angle = float(2 * np.arctan2(turn[2], turn[3]))
                p.setJointMotorControl2(
                    person, number - 1, p.POSITION_CONTROL, angle, positionGain=0.12, velocityGain=0.6, force=force
                )
            else:
                p.setJointMotorControlMultiDof(
                    person,
                    number - 1,
                    p.POSITION_CONTROL,
                    targetPosition=turn.tolist(),
                    positionGain=0.12,
                    velocityGain=0.6,
                    force=[force] * 3,
                )

    def _read(self, person: int) -> Pose:
        p = self.bullet
        place, turn = p.getBasePositionAndOrientation(person)
        turns = np.empty((len(JOINTS), 4))
        turns[0] = turn
        for number, joint in enumerate(JOINTS[1:], start=1):
            if joint in HINGES:
                turns[number] = about("z", p.getJointState(person, number - 1)[0])
            else:
                turns[number] = p.getJointStateMultiDof(person, number - 1)[0]
        centre = np.array(_LINKS["root"][3])
        return Pose(np.array(place) - matrices(turns[:1])[0] @ centre, turns)

    def _thing(self, loose: Loose) -> int:
        p = self.bullet
        thing = THINGS[loose.thing]
        if thing.radius is not None:
            shape = p.createCollisionShape(p.GEOM_SPHERE, radius=thing.radius)
        else:
            shape = p.createCollisionShapeArray(
                shapeTypes=[p.GEOM_BOX] * len(thing.parts),
                halfExtents=[list(half) for _, half in thing.parts],
                collisionFramePositions=[list(centre) for centre, _ in thing.parts],
            )
        body = p.createMultiBody(
            thing.mass, shape, basePosition=loose.place.tolist(), baseOrientation=quaternion(loose.basis).tolist()
        )
        p.changeDynamics(
            body,
            -1,
            restitution=0.45 if thing.radius else 0.15,
            rollingFriction=0.004 if thing.radius else 0.0,
            lateralFriction=0.5,
            angularDamping=0.3,
        )
        p.resetBaseVelocity(body, list(loose.speed), list(loose.spin))
        return int(body)

    def _place(self, body: int) -> tuple[np.ndarray, np.ndarray]:
        place, turn = self.bullet.getBasePositionAndOrientation(body)
        return np.array(place), matrices(np.array(turn)[None])[0]


def _brace(pose: Pose, rng: np.random.Generator) -> Pose:
    """The pose a falling person drifts to: arms thrown out, knees bent, each a little differently."""
    jitter = rng.normal(0, 0.22, 12)
    spread = rng.uniform(0.35, 1.0, 2)
    return posed(
        chest=(0.08 + 0.3 * jitter[0], 0.2 * jitter[1], 0.2 * jitter[2]),
        neck=(0.1 * jitter[3], 0.0, 0.0),
        right_hip=(0.45 + jitter[4], 0.3, 0.0),
        left_hip=(0.35 + jitter[5], 0.3, 0.0),
        right_knee=max(0.1, 0.65 + 1.2 * jitter[6]),
        left_knee=max(0.1, 0.55 + 1.2 * jitter[7]),
        right_ankle=(-0.15, 0.0, 0.0),
        left_ankle=(-0.15, 0.0, 0.0),
        right_shoulder=(0.8 + 2 * jitter[8], spread[0], 0.0),
        left_shoulder=(0.8 + 2 * jitter[9], spread[1], 0.0),
        right_elbow=max(0.1, 0.6 + jitter[10]),
        left_elbow=max(0.1, 0.6 + jitter[11]),
    )


def dropped(action: Action, failure: str, frames: Frames, seconds: float, rng: np.random.Generator) -> list[Loose]:
    """What falls out of his hands or from under him at the transition, with its place and speed."""
    kind = action.drops
    if kind is None or kind == "skis":
        return []
    x = frames.points[0]
    if kind == "board":
        middle = 0.5 * (frames.at("right_ankle") + frames.at("left_ankle"))
        return [
            Loose(
                "board",
                np.array([middle[0], 0.0, middle[2]]),
                np.eye(3),
                (2.6 if failure == "slip" else 0.6, 0.4, 0.4),
                (0.0, 1.5, 0.0),
            )
        ]
    if kind == "scooter":
        foot = frames.at("right_ankle")
        return [Loose("scooter", np.array([foot[0] + 0.03, 0.0, foot[2]]), np.eye(3), (0.5, 0.0, 0.0), (1.6, 0.5, 0.0))]
    if kind == "bicycle":
        return [Loose("bicycle", np.array([1.5 * seconds, 0.0, 0.0]), np.eye(3), (0.7, 0.0, 0.0), (1.3, 0.3, 0.0))]
    if kind == "ladder":
        up = (LADDER_TOP - LADDER_FOOT) / np.linalg.norm(LADDER_TOP - LADDER_FOOT)
        side = np.array([0.0, 0.0, 1.0])
        basis = np.stack([np.cross(up, side), up, side], 1)
        return [
            Loose(
                "ladder",
                0.5 * (LADDER_FOOT + LADDER_TOP) + np.array([0.0, 0.03, 0.0]),
                basis,
                (0.0, 0.0, 0.0),
                (0.5, 0.0, 0.3),
            )
        ]
    if kind == "parcel":
        place = frames.at("chest") + np.array([0.42, 0.03, 0.0])
        return [Loose("parcel", place, np.eye(3), (1.2, 1.0, _spread(rng, -0.5, 0.5)), (1.0, 0.5, -2.0))]
    if kind == "barbell":
        hands = [frames.at(f"{side}_elbow", (0.0, -0.31, 0.0)) for side in ("right", "left")]
        along = (hands[0] - hands[1]) / np.linalg.norm(hands[0] - hands[1])
        across = np.cross([0.0, 1.0, 0.0], along)
        across /= np.linalg.norm(across)
        basis = np.stack([across, np.cross(along, across), along], 1)
        return [
            Loose(
                "barbell",
                0.5 * (hands[0] + hands[1]) + np.array([0.05, 0.02, 0.0]),
                basis,
                (-1.1, 0.0, 0.0),
                (0.3, 0.0, 0.0),
            )
        ]
    broken = failure == "chair"
    return [
        Loose(
            "broken chair" if broken else "chair",
            np.array([x[0] + 0.0, 0.02, 0.0]),
            np.eye(3),
            (0.6, 0.3, 0.3),
            (0.6, 0.4, 1.8),
        )
    ]
