"""Pictures as the networks see them: decoded near their final size, resized, mirrored, erased, normalised.

Sizes and draws are those of CMP's published pipeline. Its transforms were drawn anew for an image and its pose map, so
that half of the pairs were misaligned; here one draw of the flip serves both, and only the image is erased. A mirrored
pose map also changes the colours of left and right limbs, since they say which side a limb is of.
"""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass

import numpy as np

from pipeline.core.images import read_image
from pipeline.core.pose import OPENPOSE_18, OPENPOSE_COLORS, OPENPOSE_LIMBS

MEAN = np.array([0.48145466, 0.4578275, 0.40821073], dtype=np.float32)
STD = np.array([0.26862954, 0.26130258, 0.27577711], dtype=np.float32)

_NORMALISED = ((np.arange(256, dtype=np.float32)[:, None] / 255 - MEAN) / STD).T.copy()
"""(3, 256): what each value of each channel becomes."""

_ERASE_TRIES = 100

_SATURATED = 40
"""Of 255, between a pixel's largest and smallest channel: less is no limb's colour."""
_JOINT_VALUE = 0.8
"""Of full strength: limbs are painted at 0.6, joints at 1."""


def read_square(data: bytes, name: str, side: int) -> np.ndarray:
    """The picture as uint8 (side, side, 3) RGB, bicubic, its aspect ignored (CMP). Raises ImageError as `read_image`.

    A JPEG is decoded at the smallest of its scales whose shorter side is not below `side`.
    """
    image = read_image(data, name, least_side=side)
    return image if image.shape[:2] == (side, side) else resized(image, side)


def resized(image: np.ndarray, side: int) -> np.ndarray:
    """uint8 (side, side, 3) of a uint8 (H, W, 3): Pillow's bicubic, rows first, within 2 of 255, several times faster.

    torch rounds its weights to fewer bits. Pillow itself may take columns first, which differs where an overshoot is
    cut off between the two. In memory the three colours lie behind each other, the way `normalised` wants them.
    """
    import torch
    from torch.nn.functional import interpolate

    planes = torch.from_numpy(image).permute(2, 0, 1)[None]
    found = interpolate(planes, (side, side), mode="bicubic", antialias=True)
    return found[0].permute(1, 2, 0).numpy()


@dataclass(frozen=True)
class Draw:
    """What is done to one picture. erase: top, left, bottom, right in pixels, or None."""

    flip: bool = False
    erase: tuple[int, int, int, int] | None = None


def draw_erased_box(
    rng: random.Random,
    side: int,
    chance: float = 0.6,
    area: tuple[float, float] = (0.02, 0.4),
    aspect: float = 0.3,
) -> tuple[int, int, int, int] | None:
    """The box that is erased (top, left, bottom, right), strictly smaller than the picture, or None.

    area: shares of the picture's; aspect: height over width is uniform between it and its inverse (random erasing; the
    defaults are CMP's).
    """
    if rng.uniform(0, 1) > chance:
        return None
    for _ in range(_ERASE_TRIES):
        pixels = rng.uniform(*area) * side * side
        shape = rng.uniform(aspect, 1 / aspect)
        height, width = round((pixels * shape) ** 0.5), round((pixels / shape) ** 0.5)
        if width < side and height < side:
            top, left = rng.randint(0, side - height), rng.randint(0, side - width)
            return top, left, top + height, left + width
    return None


def normalised(image: np.ndarray, draw: Draw = Draw()) -> np.ndarray:
    """float32 (3, side, side) of a uint8 picture, after its draw; what is erased is 0, the mean colour."""
    shown = image[:, ::-1] if draw.flip else image
    array = np.stack([np.take(_NORMALISED[channel], shown[:, :, channel]) for channel in range(3)])
    if draw.erase is not None:
        top, left, bottom, right = draw.erase
        array[:, top:bottom, left:right] = 0
    return array


def mirrored_pose_map(pose_map: np.ndarray) -> np.ndarray:
    """The pose map (uint8 RGB) with the colours of left and right changed, not yet flipped.

    Each saturated pixel is taken for the nearest of OpenPose's 18 hues, of a joint where it is bright and of a limb
    where it is not, and gets the hue of the other side at its own strength. Exact inside limbs and joints; at the
    blurred edge of a joint, where strength says nothing, a pixel may get a limb's hue.
    """
    found = pose_map.copy()
    pixels = pose_map.reshape(-1, 3)
    red, green, blue = pixels[:, 0], pixels[:, 1], pixels[:, 2]
    largest = np.maximum(np.maximum(red, green), blue)
    painted = np.flatnonzero(largest - np.minimum(np.minimum(red, green), blue) >= _SATURATED)
    if not len(painted):
        return found
    hues, joints, limbs = _swapped_hues()
    own = pixels[painted].astype(np.float32) / largest[painted, None]
    nearest = np.argmin(((own[:, None] - hues[None]) ** 2).sum(axis=2), axis=1)
    other = np.where(largest[painted] > 255 * _JOINT_VALUE, joints[nearest], limbs[nearest])
    changed = other != nearest
    value = largest[painted][changed, None]
    found.reshape(-1, 3)[painted[changed]] = np.rint(hues[other[changed]] * value).astype(np.uint8)
    return found


@functools.cache
def _swapped_hues() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The hues (18, 3) at full strength, and for joints and for limbs which hue each becomes."""
    hues = np.array(OPENPOSE_COLORS, dtype=np.float32) / 255
    names = list(OPENPOSE_18)
    joints = np.array([names.index(_other(name)) for name in names])
    limbs = [tuple(limb) for limb in OPENPOSE_LIMBS]
    swapped = [limbs.index((_other(start), _other(end))) for start, end in limbs]
    return hues, joints, np.array([*swapped, len(limbs)])  # no limb has the eighteenth hue


def _other(joint: str) -> str:
    side, _, rest = joint.partition("_")
    return {"left": f"right_{rest}", "right": f"left_{rest}"}.get(side, joint)
