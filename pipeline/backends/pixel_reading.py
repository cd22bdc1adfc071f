"""What pixels and keypoints tell about the people in an image and the place, in plain words. Pure numpy.

Everything here is a reading with its evidence: colours are the nearest named colour in CIELAB under the joints, posture
is the geometry of joints that are seen, the place is the colour and grain of the ground and of what lies behind. What
the evidence does not carry is left out: a missing word is no error, a wrong one is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from pipeline.backends.protocols import Person
from pipeline.core.pose import COCO_INDEX

JOINT_SEEN = 0.5
"""Score from which a joint is good enough to look for cloth or skin there."""

PERSON_SURE = 0.4
"""Score from which a person is counted."""

# Several shades a name, sRGB. Achromatic colours are told by lightness alone (see name_colors).
_SHADES: dict[str, tuple[tuple[int, int, int], ...]] = {
    "red": ((200, 25, 35), (150, 20, 30), (235, 50, 55), (120, 15, 25), (190, 60, 60)),
    "orange": ((250, 130, 20), (225, 100, 25), (255, 165, 60), (235, 120, 60)),
    "yellow": ((250, 220, 30), (230, 195, 40), (255, 240, 130), (205, 175, 30)),
    "green": ((30, 130, 50), (20, 80, 40), (120, 190, 70), (0, 160, 110), (95, 115, 50), (150, 205, 150), (60, 95, 70)),
    "blue": (
        (30, 60, 180),
        (20, 30, 90),
        (60, 120, 210),
        (120, 170, 225),
        (30, 150, 200),
        (70, 95, 140),
        (0, 130, 150),
        (150, 175, 205),
        (25, 25, 112),
        (0, 0, 255),
        (0, 0, 205),
    ),
    "purple": ((110, 50, 150), (75, 40, 105), (160, 110, 200), (125, 80, 130), (138, 43, 226)),
    "pink": ((240, 130, 170), (230, 60, 140), (250, 190, 205), (215, 125, 150)),
    "brown": ((110, 65, 35), (75, 45, 25), (150, 100, 60), (95, 70, 55), (130, 95, 75), (190, 125, 70)),
    "beige": ((215, 195, 160), (235, 220, 190), (195, 175, 140), (225, 205, 185)),
}
_ACHROMATIC = ("black", "dark", "dark gray", "gray", "white")
COLOR_NAMES = (*_ACHROMATIC, *_SHADES)


def as_rgb(image: np.ndarray) -> np.ndarray:
    """The image as uint8 (H, W, 3): gray repeated, transparency on white. Raises ValueError for other arrays."""
    if image.dtype != np.uint8 or image.ndim not in (2, 3) or 0 in image.shape:
        raise ValueError(f"an image is a uint8 array (H, W, 3), got {image.dtype} {image.shape}")
    if image.ndim == 2:
        image = image[:, :, None]
    channels = image.shape[2]
    if channels in (2, 4):
        alpha = image[:, :, -1:].astype(np.uint16)
        image = ((image[:, :, :-1] * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)
        channels -= 1
    if channels == 1:
        return np.repeat(image, 3, axis=2)
    if channels == 3:
        return image
    raise ValueError(f"an image has 1 to 4 channels, got {channels}")


def lab_from_rgb(pixels: np.ndarray) -> np.ndarray:
    """float64 (..., 3): CIELAB (D65) of sRGB values 0..255, L 0..100."""
    rgb = np.asarray(pixels, dtype=np.float64) / 255.0
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array(
        [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    )
    # Each row of the matrix sums to the white point's value: neutral gray has a = b = 0 exactly.
    xyz = linear @ to_xyz.T / to_xyz.sum(axis=1)
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.stack([116 * f[..., 1] - 16, 500 * (f[..., 0] - f[..., 1]), 200 * (f[..., 1] - f[..., 2])], axis=-1)


_SHADE_LAB = lab_from_rgb(np.array([shade for shades in _SHADES.values() for shade in shades]))
_SHADE_NAME = np.array([COLOR_NAMES.index(name) for name, shades in _SHADES.items() for _ in shades])


def name_colors(lab: np.ndarray) -> np.ndarray:
    """int64 (N,): the index in COLOR_NAMES of each CIELAB colour (N, 3).

    Little chroma is black, gray or white by lightness; else the nearest shade, lightness counting half, since light
    and shade change it most. "dark" is what is too dark to tell black from a faint dark tint.
    """
    weight = np.array([0.5, 1.0, 1.0])
    distance = ((lab[:, None, :] - _SHADE_LAB[None]) * weight) ** 2
    names = _SHADE_NAME[distance.sum(axis=2).argmin(axis=1)]
    lightness, chroma = lab[:, 0], np.hypot(lab[:, 1], lab[:, 2])
    # Bluish light is what shade and cameras make of gray: the eye takes more of it for neutral than of other tints.
    bluish = (_hue(lab) >= 200) & (_hue(lab) <= 300)
    neutral = chroma < np.where(lightness > 88, 10.0, np.where(bluish, 13.0, 8.0))
    names = np.where(neutral, np.digitize(lightness, [21.0, 21.0, 42.0, 78.0]), names)
    faint = ~neutral & (lightness < 28) & (chroma < 14)
    names = np.where(faint, COLOR_NAMES.index("dark"), names)
    return np.where(lightness < 8, COLOR_NAMES.index("black"), names)


def is_colorless(image: np.ndarray) -> bool:
    """Whether the image is a black-and-white picture."""
    lab = lab_from_rgb(_small(image, 96).reshape(-1, 3))
    return bool(np.percentile(np.hypot(lab[:, 1], lab[:, 2]), 98) < 5.0)


_FEWEST_PIXELS = 20
"""Of a patch whose colour can be told."""


@dataclass(frozen=True)
class Cloth:
    """The colour of a patch: its one or two names, the first the larger, with the share of the patch they cover
    (0..1), and the median CIELAB of the first."""

    names: tuple[str, ...]
    share: float
    lab: tuple[float, float, float]


def describe_patch(pixels: np.ndarray, colorless: bool = False) -> Cloth | None:
    """The colour of sampled pixels (N, 3); None where no one or two names cover most of it or they are under 20.

    In a black-and-white picture only dark and light are told apart.
    """
    if len(pixels) < _FEWEST_PIXELS:
        return None
    lab = lab_from_rgb(pixels)
    median = np.median(lab, axis=0)
    where = (float(median[0]), float(median[1]), float(median[2]))
    if colorless:
        spread = np.percentile(lab[:, 0], 75) - np.percentile(lab[:, 0], 25)
        if spread > 25 or 40 <= median[0] <= 65:
            return None
        return Cloth(("dark",) if median[0] < 40 else ("light",), 1.0, where)
    names = name_colors(lab)
    counts = np.bincount(names, minlength=len(COLOR_NAMES)) / len(lab)
    first, second = np.argsort(-counts, kind="stable")[:2]
    main = np.median(lab[names == first], axis=0)
    where = (float(main[0]), float(main[1]), float(main[2]))
    lit = _name_in_light(COLOR_NAMES[first], lab, counts)
    if lit is not None:
        return Cloth((lit,), float(counts[first]), where)
    white_beside = COLOR_NAMES[first] in _SHADES and COLOR_NAMES[second] == "white" and counts[second] >= 0.28
    if counts[first] >= 0.5 and not white_beside:
        return Cloth((_shaded(COLOR_NAMES[first], where[0]),), float(counts[first]), where)
    two = (COLOR_NAMES[first], COLOR_NAMES[second])
    both = float(counts[first] + counts[second])
    chromatic = counts[len(_ACHROMATIC) :]
    if two[0] in _SHADES and counts[first] >= 0.35 and chromatic.sum() - counts[first] < 0.25:
        # One colour with black, gray or white in stripes, print or shade: of the two, white or black shows as a colour.
        if counts[second] >= 0.28 and two[1] in ("white", "black") and {*two} not in _SHADES_OF_ONE:
            return Cloth(two, both, where)
        return Cloth((two[0],), float(counts[first]), where)
    if two[0] in _SHADES and two[1] in _ACHROMATIC and counts[first] >= max(0.42, 2 * counts[second]):
        return Cloth((two[0],), float(counts[first]), where)  # one colour far ahead of every other
    if all(name in _ACHROMATIC for name in two):
        # One cloth in light and shade, not two colours; only black beside white is a pattern.
        if both >= 0.65 and {*two} == {"black", "white"}:
            return Cloth(two, both, where)
        neutral = float(counts[: len(_ACHROMATIC)].sum())
        if neutral < 0.7 or "white" in two:
            return None
        return Cloth(("dark",) if median[0] < 35 else ("gray",), neutral, where)
    if both < 0.65 or counts[second] < 0.28 or {*two} in _SHADES_OF_ONE:
        return None
    return Cloth(two, both, where)


def _name_in_light(name: str, lab: np.ndarray, counts: np.ndarray) -> str | None:
    """The colour a patch has where light falls on it, for the names that shade makes: white goes gray or beige, orange
    and yellow go brown. None where the lit part does not tell otherwise."""
    if name in ("gray", "beige", "white"):
        chroma = float(np.median(np.hypot(lab[:, 1], lab[:, 2])))
        return "white" if chroma <= 13 and float(np.percentile(lab[:, 0], 90)) >= 77 else None
    if name == "brown":
        for brighter in ("orange", "yellow"):
            if counts[COLOR_NAMES.index(brighter)] >= 0.2:
                return brighter
    return None


# Pairs of names that one cloth easily takes in light and shade: to name both would make two colours of one.
_SHADES_OF_ONE = (
    {"brown", "beige"},
    {"brown", "orange"},
    {"brown", "red"},
    {"brown", "black"},
    {"brown", "dark gray"},
    {"red", "pink"},
    {"red", "orange"},
    {"purple", "blue"},
    {"purple", "pink"},
    {"green", "yellow"},
    {"green", "dark gray"},
    {"green", "blue"},
    {"blue", "gray"},
    {"blue", "dark gray"},
    {"blue", "black"},
    {"beige", "gray"},
    {"beige", "white"},
    {"beige", "orange"},
    {"beige", "yellow"},
    {"beige", "pink"},
    {"green", "gray"},
    {"green", "black"},
    {"purple", "black"},
    {"purple", "dark gray"},
    {"purple", "gray"},
    {"pink", "gray"},
    {"brown", "gray"},
    {"brown", "green"},
    *({name, "dark"} for name in _SHADES),
)


def _shaded(name: str, lightness: float) -> str:
    if name in ("blue", "green") and lightness < 28:
        return f"dark {name}"
    if name in ("blue", "green") and lightness > 70:
        return f"light {name}"
    return name


# ------------------------------------------------------------------------------------------------ cloth and skin


@dataclass(frozen=True)
class Outfit:
    """Colours and cut of what a person wears; None where the joints or the pixels do not tell.

    sleeves: "long-sleeved", "short-sleeved" or "sleeveless". legwear: "trousers" or "shorts".
    """

    top: tuple[str, ...] | None = None
    sleeves: str | None = None
    bottom: tuple[str, ...] | None = None
    legwear: str | None = None


# Lengths of limbs and trunk between joints, in statures (Drillis and Contini 1966; Winter, "Biomechanics and Motor
# Control of Human Movement", figure 4.1; between the shoulder joints less than over them).
_TRUNK, _LEG = 0.288, 0.491
_LIMBS = (("shoulder", "elbow", 0.186), ("elbow", "wrist", 0.146), ("hip", "knee", 0.245), ("knee", "ankle", 0.246))
_SHOULDERS = 0.22


_SIDES = ("left", "right")


class _Body:
    """A person's joints by name, with the pixels of the image along them."""

    def __init__(self, image: np.ndarray, keypoints: np.ndarray) -> None:
        self.image = image
        self.height, self.width = image.shape[:2]
        self._keypoints = np.asarray(keypoints, dtype=np.float64)

    def seen(self, *names: str) -> bool:
        for name in names:
            x, y, score = self._keypoints[COCO_INDEX[name]]
            if not (score >= JOINT_SEEN and 0 <= x <= self.width and 0 <= y <= self.height):
                return False
        return True

    def at(self, name: str) -> np.ndarray:
        return self._keypoints[COCO_INDEX[name], :2]

    def middle(self, part: str) -> np.ndarray | None:
        """The midpoint of the left and right `part`, of the one that is seen where only one is."""
        sides = [self.at(f"{side}_{part}") for side in ("left", "right") if self.seen(f"{side}_{part}")]
        return np.mean(sides, axis=0) if sides else None

    def lowest(self, part: str) -> np.ndarray | None:
        """The lower in the image of the seen left and right `part`."""
        sides = [self.at(f"{side}_{part}") for side in ("left", "right") if self.seen(f"{side}_{part}")]
        return max(sides, key=lambda point: float(point[1])) if sides else None

    def stature(self) -> float:
        """How tall the person would be in the picture if upright and stretched out, pixels; 0 where no limb is seen.

        A limb that points towards the camera or away looks short, and none looks long: the longest for its kind tells,
        up to a fifth more than the longest of any other kind, in case it is a misplaced joint.
        """
        longest = [
            max(
                (
                    float(np.hypot(*(self.at(f"{side}_{upper}") - self.at(f"{side}_{lower}")))) / share
                    for side in _SIDES
                    if self.seen(f"{side}_{upper}", f"{side}_{lower}")
                ),
                default=0.0,
            )
            for upper, lower, share in _LIMBS
        ]
        shoulders, hips = self.middle("shoulder"), self.middle("hip")
        if shoulders is not None and hips is not None:
            longest.append(float(np.hypot(*(shoulders - hips))) / _TRUNK)
        if self.seen("left_shoulder", "right_shoulder"):
            longest.append(float(np.hypot(*(self.at("left_shoulder") - self.at("right_shoulder")))) / _SHOULDERS)
        second, first = sorted([0.0, *longest])[-2:]
        return min(first, 1.2 * second) if second > 0 else first

    def around(self, point: np.ndarray, radius: float) -> np.ndarray:
        """Pixels (N, 3) of the square of side 2 x radius about a point."""
        return self.strip(point - np.array([0, radius]), point + np.array([0, radius]), radius, 0.0, 1.0)

    def strip(self, start: np.ndarray, end: np.ndarray, half_width: float, first: float, last: float) -> np.ndarray:
        """Pixels (N, 3) of the image on a grid along the part first..last (0..1) of start-end, half_width to each side.

        At most 400; no pixel twice; none where the strip is under 4 pixels long: there is nothing to be seen then.
        """
        axis = end - start
        length = float(np.hypot(*axis))
        if length * (last - first) < 4:
            return np.zeros((0, 3), dtype=np.uint8)
        normal = np.array([-axis[1], axis[0]]) / length
        along = np.linspace(first, last, 20)
        across = np.linspace(-half_width, half_width, 20)
        points = start + along[:, None, None] * axis + across[None, :, None] * normal
        cells = np.unique(np.floor(points).astype(np.int64).reshape(-1, 2), axis=0)
        x, y = cells.T
        inside = (x >= 0) & (x < self.width) & (y >= 0) & (y < self.height)
        return self.image[y[inside], x[inside]]


_NO_PIXELS = np.zeros((0, 3), dtype=np.uint8)


def read_outfit(image: np.ndarray, person: Person) -> Outfit:
    """What the person wears, as far as the joints of each garment are seen.

    A top needs a shoulder and a hip; sleeves an elbow and a wrist on the same side; legwear a hip and a knee, and its
    length the ankle too. Several patches of a garment vote on its colour: joints lie off where a body is bent or seen
    from its end, and things lie before it.
    """
    body = _Body(image, person.keypoints)
    colorless = is_colorless(image)
    shoulders, hips = body.middle("shoulder"), body.middle("hip")
    if shoulders is None or hips is None or not (body.seen("left_shoulder") or body.seen("right_shoulder")):
        return Outfit()
    size = _TRUNK * body.stature()
    if size < 12:
        return Outfit()
    skins = [] if colorless else _skins_of(body, size)
    top = _vote(_top_patches(body, shoulders, hips, size), skins, colorless)
    bottom = _vote(_bottom_patches(body, shoulders, hips, size), skins, colorless, unlike=top)
    return Outfit(
        top=top.names if top else None,
        sleeves=_sleeves(body, top, skins, size, colorless) if top else None,
        bottom=bottom.names if bottom else None,
        legwear=_legwear(body, bottom, skins, size, colorless) if bottom else None,
    )


@dataclass(frozen=True)
class _Patch:
    """Pixels (N, 3) of a part of the body with their weight in a vote; bare: the part may be without cloth."""

    pixels: np.ndarray
    weight: float
    bare: bool = False


def _top_patches(body: _Body, shoulders: np.ndarray, hips: np.ndarray, size: float) -> list[_Patch]:
    """The chest, the shoulders and the upper halves of the upper arms."""
    breadth = 0.0
    if body.seen("left_shoulder", "right_shoulder"):
        breadth = float(np.hypot(*(body.at("left_shoulder") - body.at("right_shoulder"))))
    half = max(0.3 * breadth, 0.1 * size)
    patches = [
        _Patch(body.strip(shoulders, hips, half, 0.05, 0.4), 1.5),
        _Patch(body.strip(shoulders, hips, half, 0.3, 0.6), 0.8),
    ]
    for side in _SIDES:
        if body.seen(f"{side}_shoulder"):
            shoulder = body.at(f"{side}_shoulder")
            inwards = shoulder + 0.15 * (shoulders - shoulder) + 0.03 * (hips - shoulders)
            patches.append(_Patch(body.around(inwards, 0.07 * size), 0.75, bare=True))
        if body.seen(f"{side}_shoulder", f"{side}_elbow"):
            arm = body.strip(body.at(f"{side}_shoulder"), body.at(f"{side}_elbow"), 0.07 * size, 0.1, 0.45)
            patches.append(_Patch(arm, 1.0, bare=True))
    return patches


def _bottom_patches(body: _Body, shoulders: np.ndarray, hips: np.ndarray, size: float) -> list[_Patch]:
    """Both thighs, upper and lower half, what lies between the hips, and the shins; none where no thigh is seen."""
    patches = []
    for side in _SIDES:
        if body.seen(f"{side}_hip", f"{side}_knee"):
            hip, knee = body.at(f"{side}_hip"), body.at(f"{side}_knee")
            patches.append(_Patch(body.strip(hip, knee, 0.1 * size, 0.1, 0.45), 1.0, bare=True))
            patches.append(_Patch(body.strip(hip, knee, 0.09 * size, 0.45, 0.85), 1.0, bare=True))
    if not patches:
        return []
    patches.append(_Patch(body.strip(shoulders, hips, 0.1 * size, 0.95, 1.12), 1.0))
    for side in _SIDES:
        if body.seen(f"{side}_knee", f"{side}_ankle"):
            shin = body.strip(body.at(f"{side}_knee"), body.at(f"{side}_ankle"), 0.07 * size, 0.2, 0.7)
            patches.append(_Patch(shin, 0.5, bare=True))
    return patches


_QUORUM = 0.42
"""The share of a garment's patches, by weight, that must show its colour: two of five that differ are too few."""

# What shade makes of a colour: where patches of one cloth show both, the cloth has the second.
_SHADE_OF = {
    "gray": ("white",),
    "beige": ("white",),
    "brown": ("orange", "yellow"),
    "dark": ("blue", "green", "purple"),
}


def _vote(
    patches: Sequence[_Patch], skins: Sequence[np.ndarray], colorless: bool, unlike: Cloth | None = None
) -> Cloth | None:
    """The cloth that most of the patches show, by weight; None where none has a quorum or skin has more.

    unlike: a garment beside this one. Of its colour this one is only where hardly a patch shows another: where joints
    lie off, patches fall on the garment beside.
    """
    votes: dict[str, float] = {}
    cloths: dict[str, Cloth] = {}
    covered: set[str] = set()
    bare = asked = 0.0
    for patch in sorted(patches, key=lambda patch: patch.bare):  # what is never bare first
        cloth = describe_patch(patch.pixels, colorless)
        if cloth is None:
            asked += patch.weight if len(patch.pixels) >= _FEWEST_PIXELS else 0.0
            continue
        name = cloth.names[0].split()[-1]
        if _is_skin(cloth.lab, skins):
            bare += 0.0 if patch.bare else patch.weight
            continue
        if patch.bare and not skins and not colorless and name not in covered and _can_be_skin(np.array(cloth.lab)):
            continue  # cloth or skin: neither face nor hands tell
        if not patch.bare:
            covered.add(name)
        asked += patch.weight
        votes[name] = votes.get(name, 0.0) + patch.weight
        cloths.setdefault(name, cloth)
    for shade, lit in _SHADE_OF.items():
        for name in lit:
            if shade in votes and votes.get(name, 0.0) >= 0.3 * votes[shade]:
                votes[name] += votes.pop(shade)
    if not votes:
        return None
    best = max(votes, key=lambda name: votes[name])  # the first of equals: the patch that stands first
    if unlike is not None and best == unlike.names[0].split()[-1]:
        others = {name: weight for name, weight in votes.items() if name != best}
        second = max(others, key=lambda name: others[name], default=best)
        best = second if votes[second] >= 0.35 * sum(votes.values()) else best
    return cloths[best] if votes[best] > bare and votes[best] >= _QUORUM * asked else None


def _along(body: _Body, upper: str, lower: str, half_width: float, first: float, last: float) -> np.ndarray:
    """The pixels of both limbs upper-lower whose two joints are seen."""
    strips = [
        body.strip(body.at(f"{side}_{upper}"), body.at(f"{side}_{lower}"), half_width, first, last)
        for side in _SIDES
        if body.seen(f"{side}_{upper}", f"{side}_{lower}")
    ]
    return np.concatenate(strips) if strips else _NO_PIXELS


def _skins_of(body: _Body, size: float) -> list[np.ndarray]:
    """The CIELAB of the face and of each hand that is seen, where what lies there has a colour skin can have.

    Hands tell where the head is turned away; an arm's length beyond the wrist by a fifth is the middle of the hand.
    """
    places = [body.at("nose")] if body.seen("nose") else []
    for side in _SIDES:
        if body.seen(f"{side}_elbow", f"{side}_wrist"):
            elbow, wrist = body.at(f"{side}_elbow"), body.at(f"{side}_wrist")
            places.append(wrist + 0.2 * (wrist - elbow))
    radii = [0.07 * size] * (len(places) - 2) + [0.05 * size] * 2
    medians = [_median_lab(body.around(place, radius)) for place, radius in zip(places, radii, strict=False)]
    return [median for median in medians if median is not None and _can_be_skin(median)]


def _can_be_skin(lab: np.ndarray) -> bool:
    hue = np.degrees(np.arctan2(lab[2], lab[1]))
    return bool(20 <= lab[0] <= 92 and 7 <= np.hypot(lab[1], lab[2]) <= 50 and 15 <= hue <= 85)


def _is_skin(lab: ArrayLike, skins: Sequence[np.ndarray]) -> bool:
    """Whether a patch has the colour of face or hands; light and shade count half."""
    patch = np.array(lab)
    weight = np.array([0.5, 1.0, 1.0])
    return _can_be_skin(patch) and any(float(np.linalg.norm((patch - skin) * weight)) < 13 for skin in skins)


def _alike(one: ArrayLike, other: ArrayLike) -> bool:
    difference = (np.array(one) - np.array(other)) * np.array([0.5, 1.0, 1.0])
    return float(np.linalg.norm(difference)) < 14


def _median_lab(pixels: np.ndarray) -> np.ndarray | None:
    return np.median(lab_from_rgb(pixels), axis=0) if len(pixels) >= 9 else None


def _sleeves(body: _Body, top: Cloth, skins: Sequence[np.ndarray], size: float, colorless: bool) -> str | None:
    """By the colour of the forearms: the top's, or skin. None where neither or where the top looks like skin."""
    if colorless or not skins or _is_skin(top.lab, skins):
        return None
    lengths = []
    for side in _SIDES:
        if not body.seen(f"{side}_shoulder", f"{side}_elbow", f"{side}_wrist"):
            continue
        shoulder, elbow, wrist = (body.at(f"{side}_{part}") for part in ("shoulder", "elbow", "wrist"))
        forearm = _median_lab(body.strip(elbow, wrist, 0.03 * size, 0.3, 0.8))
        upper = _median_lab(body.strip(shoulder, elbow, 0.03 * size, 0.3, 0.7))
        if forearm is None or upper is None:
            continue
        if _is_skin(forearm, skins):
            lengths.append("sleeveless" if _is_skin(upper, skins) else "short-sleeved")
        elif _alike(forearm, top.lab) and _alike(upper, top.lab):
            lengths.append("long-sleeved")
    return lengths[0] if lengths and len(set(lengths)) == 1 else None


def _legwear(body: _Body, thigh: Cloth, skins: Sequence[np.ndarray], size: float, colorless: bool) -> str | None:
    """By the colour of the shins: the thighs', or skin."""
    shin = _median_lab(_along(body, "knee", "ankle", 0.04 * size, 0.25, 0.7))
    if shin is None:
        return None
    if not colorless and _is_skin(shin, skins) and not _alike(shin, thigh.lab):
        return "shorts"
    return "trousers" if _alike(shin, thigh.lab) else None


# ------------------------------------------------------------------------------------------------ posture


@dataclass(frozen=True)
class Posture:
    """What the joints say of the body.

    stance: standing | leaning | bent | low | upright (the trunk alone, whatever the legs do) | lying | upside_down |
    None where shoulders or hips are not seen. arms: both_raised | one_raised | spread | down | None. legs: apart |
    one_raised | bent | straight | None. whole: nose, shoulders, hips, knees and ankles are all seen. on_all_fours: a
    lying stance on hands and knees. outstretched: a lying stance with trunk and legs in one line. head_side: left |
    right, the side of the picture to which the head of a lying body points, None where to neither.
    """

    stance: str | None = None
    arms: str | None = None
    legs: str | None = None
    whole: bool = False
    on_all_fours: bool = False
    outstretched: bool = False
    head_side: str | None = None


def read_posture(person: Person, width: int, height: int) -> Posture:
    """The posture of a person in an image of width x height pixels. Up is the image's up."""
    body = _Body(np.zeros((height, width, 3), dtype=np.uint8), person.keypoints)
    shoulders, hips = body.middle("shoulder"), body.middle("hip")
    if shoulders is None or hips is None:
        return Posture(arms=_arms(body, None))
    stature = body.stature()
    if stature < 14:
        return Posture()
    whole = body.seen("nose") and all(
        body.seen(f"{side}_{part}") for part in ("shoulder", "hip", "knee", "ankle") for side in _SIDES
    )
    trunk = shoulders - hips
    tilt = _angle(trunk, np.array([0.0, -1.0]))
    stance = _stance(body, trunk, tilt, stature)
    if stance != "lying":
        return Posture(stance, _arms(body, tilt), _legs(body), whole)
    ankles, knees = body.middle("ankle"), body.middle("knee")
    legs = ankles if ankles is not None else knees
    across = float(trunk[0]) / (_TRUNK * stature)
    return Posture(
        stance,
        None,
        _legs(body),
        whole,
        on_all_fours=_on_all_fours(body, tilt, stature),
        outstretched=legs is not None and abs(across) > 0.6 and _angle(-trunk, legs - hips) < 40,
        head_side=None if abs(across) < 0.6 else "left" if across < 0 else "right",
    )


def _angle(one: np.ndarray, other: np.ndarray) -> float:
    """Degrees 0..180 between two vectors; 0 where either has no length."""
    lengths = float(np.hypot(*one) * np.hypot(*other))
    return float(np.degrees(np.arccos(np.clip(one @ other / lengths, -1, 1)))) if lengths > 0 else 0.0


def _stance(body: _Body, trunk: np.ndarray, tilt: float, stature: float) -> str | None:
    """By how far the trunk (from hips to shoulders, pixels) rises and whether the feet carry it.

    What the picture shows of the trunk's length upwards, beside the length it must have, is the sine of its slope in
    space, whichever way it points: a body seen from its feet or its head lies although it looks upright in the picture.
    """
    rise = -float(trunk[1]) / (_TRUNK * stature)
    drops = _drops(body, "ankle", stature)
    feet = [drop > 0.72 * _LEG for drop in drops]
    if rise < -0.45:
        return "bent" if len(feet) == 2 and all(feet) else "upside_down"
    if rise < 0.6:
        return "bent" if any(feet) else "lying"
    if not drops:
        return "upright"
    # The leg one stands on is the lower one: the other may be lifted for a kick or a step.
    knees = _drops(body, "knee", stature)
    if max(drops) < 0.245 or (knees and max(knees) < 0.1):
        return "low"
    return "leaning" if tilt > 22 else "standing"


def _drops(body: _Body, joint: str, stature: float) -> list[float]:
    """How far each seen joint is below the hips, statures."""
    hips = body.middle("hip")
    assert hips is not None
    return [float(body.at(f"{side}_{joint}")[1] - hips[1]) / stature for side in _SIDES if body.seen(f"{side}_{joint}")]


def _on_all_fours(body: _Body, tilt: float, stature: float) -> bool:
    """Whether hands and knees are below a trunk that is level in the picture."""
    shoulders, knees = body.middle("shoulder"), _drops(body, "knee", stature)
    hands = [
        float(body.at(f"{side}_wrist")[1] - shoulders[1]) / stature
        for side in _SIDES
        if shoulders is not None and body.seen(f"{side}_wrist")
    ]
    return 50 < tilt < 125 and bool(hands and knees) and min(hands) > 0.18 and min(knees) > 0.13


def _arms(body: _Body, tilt: float | None) -> str | None:
    """Where the hands are, for a body that is more or less upright."""
    if tilt is None or tilt > 60:
        return None
    raised, spread, down, count = 0, 0, 0, 0
    for side in _SIDES:
        if not body.seen(f"{side}_shoulder", f"{side}_elbow", f"{side}_wrist"):
            continue
        count += 1
        shoulder, elbow, wrist = (body.at(f"{side}_{part}") for part in ("shoulder", "elbow", "wrist"))
        reach = float(np.hypot(*(elbow - shoulder)) + np.hypot(*(wrist - elbow)))
        if reach <= 0:
            continue
        across, drop = abs(wrist[0] - shoulder[0]) / reach, (wrist[1] - shoulder[1]) / reach
        raised += drop < -0.3
        spread += across > 0.7 and abs(drop) <= 0.5
        down += drop > 0.65
    if raised == 2:
        return "both_raised"
    if raised == 1:
        return "one_raised"
    if spread == 2:
        return "spread"
    return "down" if down == 2 and count == 2 else None


def _legs(body: _Body) -> str | None:
    if not all(body.seen(f"{side}_{part}") for part in ("hip", "knee", "ankle") for side in _SIDES):
        return None
    hips = body.middle("hip")
    assert hips is not None
    left, right = (body.at(f"{side}_ankle") - hips for side in _SIDES)
    lengths = [float(np.hypot(*left)), float(np.hypot(*right))]
    knees = [
        _angle(body.at(f"{side}_hip") - body.at(f"{side}_knee"), body.at(f"{side}_ankle") - body.at(f"{side}_knee"))
        for side in _SIDES
    ]
    if (
        min(lengths) > 0
        and abs(left[1] - right[1]) > 0.4 * max(lengths)
        and min(left[1], right[1]) < 0.65 * max(lengths)
    ):
        return "one_raised"
    if _angle(left, right) > 42:
        return "apart"
    if min(knees) < 125:
        return "bent"
    return "straight" if min(knees) > 155 else None


# ------------------------------------------------------------------------------------------------ place


@dataclass(frozen=True)
class Place:
    """The surroundings. ground and backdrop are colour names; surface (grass | snow | water) and sky only where colour
    and grain agree; colorless: a black-and-white picture."""

    ground: str | None = None
    backdrop: str | None = None
    surface: str | None = None
    sky: bool = False
    colorless: bool = False


def read_place(image: np.ndarray, persons: Sequence[Person]) -> Place:
    """The ground (lowest third of the image) and backdrop (upper two fifths), people left out."""
    small = _small(image, 192)
    height, width = small.shape[:2]
    scale = np.array([width / image.shape[1], height / image.shape[0]])
    free = np.ones((height, width), dtype=bool)
    for person in persons:
        x0, y0 = np.floor(np.maximum(np.array(person.box[:2]) * scale, 0)).astype(int)
        x1, y1 = np.ceil(np.maximum(np.array(person.box[2:]) * scale, 0)).astype(int)
        free[y0:y1, x0:x1] = False
    lab = lab_from_rgb(small)
    colorless = is_colorless(image)
    low, high = slice(height - max(1, height // 3), height), slice(0, max(1, 2 * height // 5))
    below, above = lab[low][free[low]], lab[high][free[high]]
    ground, backdrop = _main_color(below, colorless), _main_color(above, colorless)
    if colorless:
        return Place(ground, backdrop, None, False, True)
    grain = _grain(lab[low][..., 0], free[low])
    sky = _sky(lab[: max(1, height // 4)], free[: max(1, height // 4)])
    return Place(ground, backdrop, _surface(below, grain, sky, lab[free]), sky, False)


def _main_color(lab: np.ndarray, colorless: bool) -> str | None:
    """The one colour that covers most of a region; None where none does or too little of it is free of people."""
    if len(lab) < 60:
        return None
    if colorless:
        lightness = float(np.median(lab[:, 0]))
        spread = float(np.percentile(lab[:, 0], 80) - np.percentile(lab[:, 0], 20))
        return None if spread > 40 or 40 <= lightness <= 60 else ("dark" if lightness < 40 else "light")
    if len(lab) > 3000:
        lab = lab[:: len(lab) // 2000]  # shares of an area need no more pixels
    names = name_colors(lab)
    counts = np.bincount(names, minlength=len(COLOR_NAMES)) / len(lab)
    first = int(counts.argmax())
    if counts[first] >= 0.55:
        return _shaded(COLOR_NAMES[first], float(np.median(lab[names == first, 0])))
    # Black, gray and white run into each other with the light: together they still are gray.
    neutral = float(counts[: len(_ACHROMATIC)].sum())
    if neutral >= 0.65:
        lightness = float(np.median(lab[:, 0]))
        return "dark" if lightness < 35 else "gray" if lightness < 78 else "white"
    return None


def _grain(lightness: np.ndarray, free: np.ndarray) -> float:
    """The median step of lightness between neighbouring pixels: about 0 for paint, several for grass or waves."""
    steps = np.abs(np.diff(lightness, axis=1))[free[:, 1:] & free[:, :-1]]
    return float(np.mean(np.minimum(steps, 20))) if len(steps) else 0.0


def _hue(lab: np.ndarray) -> np.ndarray:
    return np.degrees(np.arctan2(lab[:, 2], lab[:, 1])) % 360


def _surface(below: np.ndarray, grain: float, sky: bool, everything: np.ndarray) -> str | None:
    if len(below) < 60:
        return None
    hue, chroma, lightness = _hue(below), np.hypot(below[:, 1], below[:, 2]), below[:, 0]
    grass = np.mean((hue >= 95) & (hue <= 145) & (chroma >= 12) & (lightness >= 15) & (lightness <= 80))
    if grass >= 0.55 and (grain >= 1.5 or sky):
        return "grass"
    water = np.mean((hue >= 190) & (hue <= 275) & (chroma >= 15) & (lightness >= 25))
    if water >= 0.65 and grain >= 2.0:
        return "water"
    cold_white = np.mean((lightness >= 74) & (chroma <= 11) & (below[:, 2] <= 2.0))
    bright = np.mean((everything[:, 0] >= 70) & (np.hypot(everything[:, 1], everything[:, 2]) <= 14))
    if cold_white >= 0.75 and (sky or bright >= 0.6):
        return "snow"
    return None


def _sky(lab: np.ndarray, free: np.ndarray) -> bool:
    """Whether the upper quarter is an even light blue, lighter downwards or all alike, as a clear sky is."""
    pixels = lab[free]
    if len(pixels) < 60 or free.mean() < 0.4:
        return False
    hue, chroma = _hue(pixels), np.hypot(pixels[:, 1], pixels[:, 2])
    blue = np.mean((hue >= 225) & (hue <= 285) & (chroma >= 8) & (chroma <= 55) & (pixels[:, 0] >= 55))
    return bool(blue >= 0.8 and _grain(lab[..., 0], free) < 1.0)


# ------------------------------------------------------------------------------------------------ where in the picture


def read_position(person: Person, width: int, height: int) -> tuple[str, float]:
    """Where the person's box lies ("left", "centre" or "right") and the share of the image's height it takes, 0..1."""
    x0, y0, x1, y1 = person.box
    middle = (x0 + x1) / 2 / width
    side = "left" if middle < 0.4 else "right" if middle > 0.6 else "centre"
    return side, float(np.clip((y1 - y0) / height, 0, 1))


def _small(image: np.ndarray, side: int) -> np.ndarray:
    """The image shrunk by whole-pixel averaging so that its longer side is at most `side` pixels."""
    from PIL import Image

    height, width = image.shape[:2]
    factor = side / max(height, width)
    if factor >= 1:
        return image
    size = (max(1, round(width * factor)), max(1, round(height * factor)))
    return np.asarray(Image.fromarray(np.ascontiguousarray(image)).resize(size, Image.Resampling.BOX))
