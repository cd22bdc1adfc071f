"""A drawn person with known joints and clothes: what the readers of pixels are tried on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from pipeline.backends.protocols import Person
from pipeline.core.pose import COCO_INDEX

SKIN = (224, 172, 140)
HAIR = (70, 45, 30)

# Joints of somebody who stands facing us, in heights of the body, the middle of the feet at 0; y upwards.
STANDING = {
    "nose": (0.0, 0.92),
    "left_eye": (0.02, 0.94),
    "right_eye": (-0.02, 0.94),
    "left_ear": (0.045, 0.93),
    "right_ear": (-0.045, 0.93),
    "left_shoulder": (0.115, 0.81),
    "right_shoulder": (-0.115, 0.81),
    "left_elbow": (0.16, 0.64),
    "right_elbow": (-0.16, 0.64),
    "left_wrist": (0.18, 0.50),
    "right_wrist": (-0.18, 0.50),
    "left_hip": (0.07, 0.52),
    "right_hip": (-0.07, 0.52),
    "left_knee": (0.08, 0.28),
    "right_knee": (-0.08, 0.28),
    "left_ankle": (0.085, 0.04),
    "right_ankle": (-0.085, 0.04),
}


@dataclass(frozen=True)
class Clothes:
    """Colours (RGB) and cut: sleeves long | short | none; legs trousers | shorts."""

    top: tuple[int, int, int] = (200, 30, 40)
    bottom: tuple[int, int, int] = (30, 50, 160)
    sleeves: str = "long"
    legs: str = "trousers"


def joints(
    pose: dict[str, tuple[float, float]], height: float, feet: tuple[float, float], turn: float = 0.0
) -> np.ndarray:
    """float32 (17, 3): the pose at `height` pixels, its feet at `feet`, turned by `turn` degrees about its middle."""
    out = np.ones((17, 3), dtype=np.float32)
    angle = np.radians(turn)
    for name, (x, y) in pose.items():
        dx, dy = x, -(y - 0.5)
        rx, ry = dx * np.cos(angle) - dy * np.sin(angle), dx * np.sin(angle) + dy * np.cos(angle)
        out[COCO_INDEX[name], :2] = (feet[0] + rx * height, feet[1] - 0.5 * height + ry * height)
    return out


def person(keypoints: np.ndarray, score: float = 0.9) -> Person:
    seen = keypoints[keypoints[:, 2] > 0.3, :2] if (keypoints[:, 2] > 0.3).any() else keypoints[:, :2]
    (x0, y0), (x1, y1) = seen.min(axis=0), seen.max(axis=0)
    margin = 0.05 * max(x1 - x0, y1 - y0)
    box = (float(x0 - margin), float(y0 - margin), float(x1 + margin), float(y1 + margin))
    return Person(keypoints=keypoints, box=box, score=score)


def draw(keypoints: np.ndarray, clothes: Clothes, background: np.ndarray) -> np.ndarray:
    """The background (H, W, 3) with the person on it, softly edged and shaded."""
    height = max(np.ptp(keypoints[:, 0]), np.ptp(keypoints[:, 1])) * 1.08
    big = Image.fromarray(background).resize((background.shape[1] * 2, background.shape[0] * 2))
    pen = ImageDraw.Draw(big)
    at = {name: tuple(2 * keypoints[index, :2]) for name, index in COCO_INDEX.items()}
    unit = 2 * height

    def capsule(a, b, radius, color):
        pen.line([a, b], fill=color, width=max(1, round(2 * radius * unit)))
        for x, y in (a, b):
            r = radius * unit
            pen.ellipse([x - r, y - r, x + r, y + r], fill=color)

    def between(a, b, share):
        return (a[0] + share * (b[0] - a[0]), a[1] + share * (b[1] - a[1]))

    def middle(part):
        return between(at[f"left_{part}"], at[f"right_{part}"], 0.5)

    for side in ("left", "right"):
        knee, ankle, hip = at[f"{side}_knee"], at[f"{side}_ankle"], at[f"{side}_hip"]
        capsule(knee, ankle, 0.032, clothes.bottom if clothes.legs == "trousers" else SKIN)
        capsule(ankle, between(knee, ankle, 1.1), 0.035, (40, 40, 40))
        capsule(hip, between(hip, knee, 0.95), 0.045, clothes.bottom)
    neck, waist = middle("shoulder"), middle("hip")
    capsule(neck, between(neck, at["nose"], 0.7), 0.03, SKIN)
    corners = [at["left_shoulder"], at["right_shoulder"], at["right_hip"], at["left_hip"]]
    pen.polygon(corners, fill=clothes.top)
    capsule(at["left_shoulder"], at["right_shoulder"], 0.04, clothes.top)
    capsule(between(neck, waist, 0.2), between(neck, waist, 0.9), 0.075, clothes.top)
    for side in ("left", "right"):
        shoulder, elbow, wrist = at[f"{side}_shoulder"], at[f"{side}_elbow"], at[f"{side}_wrist"]
        capsule(elbow, wrist, 0.025, clothes.top if clothes.sleeves == "long" else SKIN)
        capsule(wrist, between(elbow, wrist, 1.2), 0.024, SKIN)
        capsule(shoulder, elbow, 0.03, SKIN if clothes.sleeves == "none" else clothes.top)
    crown = between(neck, at["nose"], 1.18)
    capsule(between(neck, crown, 0.98), between(neck, crown, 1.02), 0.068, HAIR)
    capsule(between(neck, at["nose"], 0.95), crown, 0.058, SKIN)
    for side in ("left", "right"):
        x, y = at[f"{side}_eye"]
        pen.ellipse([x - 0.008 * unit, y - 0.006 * unit, x + 0.008 * unit, y + 0.006 * unit], fill=(50, 40, 40))
    mouth = between(at["nose"], neck, 0.25)
    capsule(
        between(mouth, between(mouth, at["left_ear"], 1), 0.2),
        between(mouth, at["right_ear"], 0.2),
        0.004,
        (150, 70, 70),
    )
    small = big.resize((background.shape[1], background.shape[0]), Image.Resampling.LANCZOS)
    return np.array(small.filter(ImageFilter.GaussianBlur(0.6)))


def room(width: int = 320, height: int = 320, wall=(205, 200, 190), floor=(120, 100, 80)) -> np.ndarray:
    """A wall above a floor with a little grain."""
    image = np.empty((height, width, 3), dtype=np.float64)
    image[: int(0.72 * height)] = wall
    image[int(0.72 * height) :] = floor
    grain = np.random.default_rng(7).normal(0, 2.0, (height, width, 1))
    return np.clip(image + grain, 0, 255).astype(np.uint8)
