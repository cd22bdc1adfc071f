"""The joint tree of pybullet_data's humanoid: poses, forward and inverse kinematics, COCO-17 keypoints.

World axes: y up, the person faces +x, the person's right is +z. Lengths in metres, angles in radians.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

JOINTS = (
    "root",
    "chest",
    "neck",
    "right_hip",
    "right_knee",
    "right_ankle",
    "right_shoulder",
    "right_elbow",
    "left_hip",
    "left_knee",
    "left_ankle",
    "left_shoulder",
    "left_elbow",
)
INDEX = {name: number for number, name in enumerate(JOINTS)}
PARENTS = (-1, 0, 1, 0, 3, 4, 1, 6, 0, 8, 9, 1, 11)
HINGES = frozenset({"right_knee", "right_elbow", "left_knee", "left_elbow"})
THIGH, SHIN, UPPER_ARM, FOREARM = 0.421546, 0.40987, 0.274788, 0.258947
OFFSETS = np.array(
    [
        (0.0, 0.0, 0.0),
        (0.0, 0.236151, 0.0),
        (0.0, 0.223894, 0.0),
        (0.0, 0.0, 0.084887),
        (0.0, -THIGH, 0.0),
        (0.0, -SHIN, 0.0),
        (-0.02405, 0.2435, 0.18311),
        (0.0, -UPPER_ARM, 0.0),
        (0.0, 0.0, -0.084887),
        (0.0, -THIGH, 0.0),
        (0.0, -SHIN, 0.0),
        (-0.02405, 0.2435, -0.18311),
        (0.0, -UPPER_ARM, 0.0),
    ]
)
STANDING_HEIGHT = THIGH + SHIN + 0.075  # of the root above the ground, straight legs on shoe soles

# Of the head, from the neck joint, before the person's own size: forward, up, right.
NOSE, EYE, EAR = (0.112, 0.148, 0.0), (0.088, 0.178, 0.034), (0.0, 0.155, 0.082)


@dataclass(frozen=True)
class Pose:
    """Where the pelvis is (metres) and how each of the 13 joints is turned: quaternions (13, 4), x y z w, the root's in
    the world, every other joint's in its parent."""

    position: np.ndarray
    turns: np.ndarray

    def moved(self, x: float = 0.0, y: float = 0.0, z: float = 0.0) -> Pose:
        """The same pose elsewhere."""
        return replace(self, position=self.position + np.array([x, y, z]))

    def turned(self, angle: float) -> Pose:
        """The pose turned about the world's vertical axis through the origin."""
        spin = about("y", angle)
        turns = self.turns.copy()
        turns[0] = multiply(spin, turns[0])
        return Pose(matrices(spin[None])[0] @ self.position, turns)


@dataclass(frozen=True)
class Frames:
    """World positions (13, 3) and rotation matrices (13, 3, 3) of the joints."""

    points: np.ndarray
    bases: np.ndarray

    def at(self, joint: str, offset: tuple[float, float, float] = (0.0, 0.0, 0.0)) -> np.ndarray:
        """The world position of a point fixed to a joint's own frame."""
        number = INDEX[joint]
        return self.points[number] + self.bases[number] @ np.asarray(offset)


def multiply(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Quaternion product: the turn `second`, then `first`."""
    x1, y1, z1, w1 = first
    x2, y2, z2, w2 = second
    return np.array(
        [
            w1 * x2 + x1 * w2 + y1 * z2 - z1 * y2,
            w1 * y2 - x1 * z2 + y1 * w2 + z1 * x2,
            w1 * z2 + x1 * y2 - y1 * x2 + z1 * w2,
            w1 * w2 - x1 * x2 - y1 * y2 - z1 * z2,
        ]
    )


def about(axis: str, angle: float) -> np.ndarray:
    """The quaternion of a turn about one axis."""
    turn = np.zeros(4)
    turn["xyz".index(axis)] = np.sin(angle / 2)
    turn[3] = np.cos(angle / 2)
    return turn


def matrices(turns: np.ndarray) -> np.ndarray:
    """Rotation matrices (N, 3, 3) of quaternions (N, 4)."""
    x, y, z, w = turns.T
    return np.stack(
        [
            np.stack([1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)], -1),
            np.stack([2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)], -1),
            np.stack([2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)], -1),
        ],
        -2,
    )


def quaternion(basis: np.ndarray) -> np.ndarray:
    """The quaternion of a rotation matrix, by its largest component."""
    m = basis
    squares = np.array(
        [
            1 + m[0, 0] - m[1, 1] - m[2, 2],
            1 - m[0, 0] + m[1, 1] - m[2, 2],
            1 - m[0, 0] - m[1, 1] + m[2, 2],
            1 + m[0, 0] + m[1, 1] + m[2, 2],
        ]
    )
    largest = int(np.argmax(squares))
    rows = {
        0: (squares[0], m[0, 1] + m[1, 0], m[0, 2] + m[2, 0], m[2, 1] - m[1, 2]),
        1: (m[0, 1] + m[1, 0], squares[1], m[1, 2] + m[2, 1], m[0, 2] - m[2, 0]),
        2: (m[0, 2] + m[2, 0], m[1, 2] + m[2, 1], squares[2], m[1, 0] - m[0, 1]),
        3: (m[2, 1] - m[1, 2], m[0, 2] - m[2, 0], m[1, 0] - m[0, 1], squares[3]),
    }
    turn = np.array(rows[largest])
    return turn / np.linalg.norm(turn)


def between(first: np.ndarray, second: np.ndarray, share: float) -> np.ndarray:
    """Quaternions (N, 4) part of the way from `first` to `second` along the shorter arc."""
    near = np.where(np.sum(first * second, -1, keepdims=True) < 0, -second, second)
    mixed = first + share * (near - first)
    return mixed / np.linalg.norm(mixed, axis=-1, keepdims=True)


def forward(pose: Pose) -> Frames:
    """World positions and rotations of all joints of a pose."""
    local = matrices(pose.turns)
    points = np.empty((len(JOINTS), 3))
    bases = np.empty((len(JOINTS), 3, 3))
    points[0], bases[0] = pose.position, local[0]
    for joint in range(1, len(JOINTS)):
        parent = PARENTS[joint]
        points[joint] = points[parent] + bases[parent] @ OFFSETS[joint]
        bases[joint] = bases[parent] @ local[joint]
    return Frames(points, bases)


def posed(
    height: float = STANDING_HEIGHT,
    root: np.ndarray | None = None,
    **turns: tuple[float, float, float] | float,
) -> Pose:
    """A pose from angles by joint name, the pelvis `height` metres up.

    A ball joint takes (flex, spread, twist): flex about z (positive brings the limb, or for chest and neck leans back
    when positive), spread about x away from the body on either side, twist about y. A hinge takes its bend, 0 or more.
    """
    quaternions = np.tile(np.array([0.0, 0.0, 0.0, 1.0]), (len(JOINTS), 1))
    if root is not None:
        quaternions[0] = root
    for name, angles in turns.items():
        number = INDEX[name]
        if name in HINGES:
            bend = float(angles)  # type: ignore[arg-type]
            quaternions[number] = about("z", bend if name.endswith("elbow") else -bend)
            continue
        flex, spread, twist = angles  # type: ignore[misc]
        outward = -spread if name.startswith("right") else spread
        quaternions[number] = multiply(about("x", outward), multiply(about("z", flex), about("y", twist)))
    return Pose(np.array([0.0, height, 0.0]), quaternions)


def reach(pose: Pose, limb: str, target: np.ndarray, pole: tuple[float, float, float]) -> Pose:
    """The pose with one limb bent so that its end meets a world point, as near as it can.

    limb: right_arm, left_arm, right_leg or left_leg. pole: the world direction into which elbow or knee points.
    """
    side, part = limb.split("_")
    names = (f"{side}_shoulder", f"{side}_elbow") if part == "arm" else (f"{side}_hip", f"{side}_knee")
    upper, lower = (UPPER_ARM, FOREARM) if part == "arm" else (THIGH, SHIN)
    frames = forward(pose)
    start = frames.points[INDEX[names[0]]]
    gap = np.asarray(target, dtype=float) - start
    distance = float(np.clip(np.linalg.norm(gap), abs(upper - lower) + 0.02, upper + lower - 1e-3))
    along = gap / max(float(np.linalg.norm(gap)), 1e-6)
    aside = np.asarray(pole, dtype=float) - along * float(np.dot(pole, along))
    aside /= max(float(np.linalg.norm(aside)), 1e-6)
    cosine = (upper**2 + distance**2 - lower**2) / (2 * upper * distance)
    middle = upper * (cosine * along + np.sqrt(max(0.0, 1 - cosine**2)) * aside)
    first = middle / upper
    second = (along * distance - middle) / lower
    sideways = second - first * float(np.dot(second, first))
    length = float(np.linalg.norm(sideways))
    sideways = sideways / length if length > 1e-6 else -aside
    x_axis = sideways if part == "arm" else -sideways
    basis = np.stack([x_axis, -first, np.cross(x_axis, -first)], axis=1)
    bend = float(np.arccos(np.clip(np.dot(first, second), -1, 1)))
    turns = pose.turns.copy()
    parent = frames.bases[PARENTS[INDEX[names[0]]]]
    turns[INDEX[names[0]]] = quaternion(parent.T @ basis)
    turns[INDEX[names[1]]] = about("z", bend if part == "arm" else -bend)
    return Pose(pose.position, turns)


def keypoints(frames: Frames) -> np.ndarray:
    """World positions (17, 3) of the COCO joints of a posed skeleton."""
    head = [
        frames.at("neck", NOSE),
        frames.at("neck", (EYE[0], EYE[1], -EYE[2])),
        frames.at("neck", EYE),
        frames.at("neck", (EAR[0], EAR[1], -EAR[2])),
        frames.at("neck", EAR),
    ]
    pairs = [
        [frames.at(f"left_{name}", offset), frames.at(f"right_{name}", offset)]
        for name, offset in (
            ("shoulder", (0.0, 0.0, 0.0)),
            ("elbow", (0.0, 0.0, 0.0)),
            ("elbow", (0.0, -FOREARM, 0.0)),
            ("hip", (0.0, 0.0, 0.0)),
            ("knee", (0.0, 0.0, 0.0)),
            ("ankle", (0.0, 0.0, 0.0)),
        )
    ]
    return np.array(head + [point for pair in pairs for point in pair])


def posture(frames: Frames) -> str:
    """upright, fallen or upside_down, as somebody would say who looks: by how high the head is above the pelvis, and
    whether feet on the ground (height 0) carry the body.

    Who leans back level for a kick stands on one leg, and who touches the toes stands on two: neither has fallen.
    """
    head, pelvis = frames.at("neck", (0.0, 0.12, 0.0)), frames.points[0]
    rise = float(head[1] - pelvis[1]) / float(np.linalg.norm(head - pelvis))
    if rise > 0.6:
        return "upright"
    carrying = [_carries(frames.at(f"{side}_ankle"), pelvis) for side in ("right", "left")]
    if rise < -0.35:
        return "upright" if all(carrying) else "upside_down"
    return "upright" if any(carrying) else "fallen"


def _carries(ankle: np.ndarray, pelvis: np.ndarray) -> bool:
    """Whether a foot is on the ground, the pelvis above it by most of the leg's length."""
    return bool(ankle[1] < 0.25 and pelvis[1] - ankle[1] > 0.75 * (THIGH + SHIN))
