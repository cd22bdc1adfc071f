"""Which place a picture shows, read off its ground and what stands on it: grass, sand, snow, water, road, boards, tile.

Every pixel outside the people gets a material by its colour. The place follows from the ground's material, how coarse
it is, what is painted on it and what it ends at: a path through grass is a park, asphalt up to a pavement a street,
asphalt with bays or vehicles a parking lot, striped boards a gym. Where the evidence carries no place, none is named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.backends.pixel_reading import as_rgb, lab_from_rgb
from pipeline.backends.protocols import Person

SIDE = 160
"""Pixels of the longer side at which a place is read: grass and gravel are grain then, planks and bays still shapes."""

MATERIALS = ("other", "dark", "plant", "water", "white", "gray", "pale", "sand", "earth", "vivid")
"""What a pixel may be of, by colour alone. gray: neutral and as dark as asphalt; pale: lighter than that, with little
colour (concrete, tiles, plaster); sand: light and yellowish; earth: brown, of soil or wood; vivid: a strong colour
that ground hardly has (paint, plastic, cloth)."""

_LIMBS = (
    *((5, 6), (11, 12), (5, 11), (6, 12), (5, 7), (7, 9), (6, 8), (8, 10)),
    *((11, 13), (13, 15), (12, 14), (14, 16), (0, 5), (0, 6)),
)
_FEWEST_PIXELS = 200


@dataclass(frozen=True)
class Stripe:
    """A straight thin thing that is lighter than what lies about it: its length in shares of the picture's longer
    side, its steepness in degrees (0 level, 90 upright), its lightness and chroma (CIELAB)."""

    length: float
    steepness: float
    lightness: float
    chroma: float


@dataclass(frozen=True)
class Surroundings:
    """What was measured of a picture outside its people.

    below, above: share of each material (0..1) in the lower and in the upper half. beyond: the share of the picture's
    columns (0..1) whose ground ends at each material. lightness, chroma, hue (degrees): the median CIELAB of the lower
    half. along, down: the mean step of lightness between pixels of the lower half that are neighbours in a row, in a
    column. busy_below, busy_above: share of pixels on an edge, 0..1. water_lightness, water_grain: of what has the
    colour of water. sky: whether the top is a clear sky. stripes: the thin light lines.
    """

    below: Mapping[str, float]
    above: Mapping[str, float]
    beyond: Mapping[str, float]
    lightness: float
    chroma: float
    hue: float
    along: float
    down: float
    busy_below: float
    busy_above: float
    water_lightness: float
    water_grain: float
    sky: bool
    stripes: tuple[Stripe, ...]


def place_in(image: np.ndarray, persons: Sequence[Person]) -> str | None:
    """The place an image (uint8 (H, W, 3) RGB) shows, in one or two words; None where the pixels do not tell it."""
    seen = measure(image, persons)
    return place_of(seen) if seen is not None else None


# ------------------------------------------------------------------------------------------------ from what is measured


def place_of(seen: Surroundings) -> str | None:
    """The place that was measured; None where nothing measured carries one."""
    for read in (_by_water, _on_grass, _on_snow, _on_asphalt, _on_warm_ground, _indoors):
        place = read(seen)
        if place is not None:
            return place
    return "outdoors" if seen.sky else None


def _by_water(seen: Surroundings) -> str | None:
    """Water ripples, more than a sky does and less than a pile of blue things. Sand before it is rough and warm, a
    pool's deck pale and laid smoothly; a pool's water is clear and light."""
    if (seen.below["water"] + seen.above["water"]) / 2 < 0.08 or not 1.5 <= seen.water_grain < 6:
        return None
    clear = seen.water_lightness >= 53
    if seen.below["water"] >= 0.5:
        return "swimming pool" if clear else "water"
    if seen.below["plant"] >= 0.3:
        return "lake"
    sandy = (seen.chroma >= 21) + (seen.along >= 1.35) + (not clear)
    return "beach" if sandy >= 2 else "swimming pool"


def _on_grass(seen: Surroundings) -> str | None:
    """Grass alone is a lawn; with bare ground through it a park, and with coarse chips of wood a playground."""
    green = (seen.below["plant"] + seen.above["plant"]) / 2
    green_here = green >= 0.12 or seen.beyond["plant"] >= 0.4
    if not green_here or seen.below["gray"] >= 0.3 or not (seen.along >= 1.5 or seen.sky):
        return None
    if seen.below["plant"] >= 0.8:
        return "lawn"
    if seen.below["sand"] + seen.below["pale"] + seen.below["earth"] >= 0.12:
        return "playground" if _is_chips(seen, 2.5) else "park"
    return "lawn" if seen.below["plant"] >= 0.5 else "park"


def _is_chips(seen: Surroundings, grain: float) -> bool:
    """Coarse alike all ways, and the brown of wood: darker than sand."""
    coarse = seen.along >= grain and seen.down < 1.6 * seen.along
    return coarse and seen.chroma >= 26 and seen.hue < 88 and seen.lightness < 74


def _on_snow(seen: Surroundings) -> str | None:
    """Snow is white or, in shade, bluish, and even; a white floor has joints and stands under something."""
    cold = seen.chroma <= 6 or (200 < seen.hue < 300 and seen.chroma <= 14)
    even = max(seen.along, seen.down) < 2.6 and seen.busy_below < 0.32
    white = seen.below["white"] + seen.below["pale"]
    wall = seen.above["earth"] + seen.above["sand"] + seen.above["vivid"] >= 0.5
    return "snowy ground" if white >= 0.5 and seen.lightness >= 72 and cold and even and not wall else None


def _on_asphalt(seen: Surroundings) -> str | None:
    """Asphalt that ends at a pale kerb is a street. White lines that lead away are bays, more surely than upright ones,
    which may be posts; what stands right on the asphalt, dark below and painted above, are vehicles: a parking lot."""
    if seen.below["gray"] < 0.5 or seen.along < 1.0:
        return None
    white = [stripe for stripe in seen.stripes if stripe.chroma < 20 and stripe.lightness >= 62]
    bays = sum(stripe.length for stripe in white if 20 < stripe.steepness < 82)
    upright = sum(stripe.length for stripe in white if stripe.steepness >= 82)
    yellow = sum(stripe.length for stripe in seen.stripes if stripe.chroma >= 35 and stripe.lightness > 50)
    beyond = seen.beyond
    parking = 2 * (bays >= 0.18) + (upright >= 0.18) + 0.5 * (yellow >= 0.3)
    parking += (beyond["vivid"] + beyond["dark"] >= 0.25) + 0.25 * (beyond["dark"] >= 0.1)
    kerb = beyond["pale"] + beyond["white"] + beyond["sand"] + beyond["other"] >= 0.5
    buildings = seen.above["earth"] + seen.above["sand"] >= 0.15
    return "parking lot" if parking > 0.25 + kerb + 0.25 * buildings else "street"


def _on_warm_ground(seen: Surroundings) -> str | None:
    """Brown and yellow ground by its grain: chips are coarse, sand fine and alike all ways; boards are striped one way,
    the more so under a hall's lines; carpets and the boards of a home are smooth."""
    warm = seen.below["earth"] + seen.below["sand"] + seen.below["vivid"] >= 0.5
    if not warm or seen.chroma < 18 or not 20 <= seen.hue <= 115:
        return None
    if _is_chips(seen, 3.3):
        return "playground"
    striped = seen.down >= max(3.0, 1.5 * seen.along) and seen.along >= 0.75
    if striped and seen.lightness >= 46 and 50 <= seen.hue < 90:
        return "gym"
    if seen.along >= 1.3:
        return "beach" if seen.lightness >= 68 and seen.below["sand"] >= 0.5 else None
    return "living room" if seen.chroma >= 20 else None


def _indoors(seen: Surroundings) -> str | None:
    """A smooth pale floor that has edges is tiled: a kitchen's. A plain pale wall over a floor of another kind, or
    smooth things all about, are a room."""
    smooth = seen.along < 1.6
    coloured = seen.below["earth"] + seen.below["vivid"] + seen.below["dark"] + seen.below["gray"]
    if smooth and seen.busy_below >= 0.15 and seen.lightness >= 68 and seen.chroma < 20 and coloured < 0.4:
        return "kitchen"
    wall = seen.above["white"] + seen.above["pale"] + seen.above["sand"]
    floor = seen.below["white"] + seen.below["pale"] + seen.below["sand"]
    plain = wall >= 0.6 and seen.busy_above < 0.35 and floor < wall - 0.3 and not seen.sky
    outside = seen.sky or seen.above["plant"] + seen.above["water"] >= 0.3
    return "room" if plain or (smooth and seen.busy_below >= 0.05 and not outside) else None


# ------------------------------------------------------------------------------------------------ measuring


def measure(image: np.ndarray, persons: Sequence[Person]) -> Surroundings | None:
    """The surroundings in an image (uint8 (H, W, 3) RGB). None for a black-and-white picture, whose materials cannot
    be told, and where people leave too little of the lower half to be seen."""
    from scipy import ndimage

    small = _shrunk(as_rgb(image))
    height, width = small.shape[:2]
    half = height // 2
    free = ~_bodies((height, width), persons, width / image.shape[1])
    if free[half:].sum() < _FEWEST_PIXELS:
        return None
    sharp = lab_from_rgb(small).astype(np.float32)
    lab = ndimage.uniform_filter(sharp, (3, 3, 0))
    chroma = np.hypot(lab[..., 1], lab[..., 2])
    if np.percentile(chroma, 98) < 5:
        return None
    kinds = _materials(lab, chroma)
    lightness = sharp[..., 0]
    along = np.minimum(np.abs(np.diff(lightness, axis=1)), 20)
    down = np.minimum(np.abs(np.diff(lightness, axis=0)), 20)
    beside, under = free[:, 1:] & free[:, :-1], free[1:] & free[:-1]
    busy = ndimage.gaussian_gradient_magnitude(lightness, 1.0) > 1.5
    water = (kinds == MATERIALS.index("water")) & free
    wet = water[1:] & water[:-1]
    ground = np.median(lab[half:][free[half:]], axis=0)
    top = max(1, height // 4)
    return Surroundings(
        below=_shares(kinds[half:][free[half:]]),
        above=_shares(kinds[:half][free[:half]]),
        beyond=_ground_ends_at(kinds, free),
        lightness=float(ground[0]),
        chroma=float(np.hypot(ground[1], ground[2])),
        hue=float(np.degrees(np.arctan2(ground[2], ground[1])) % 360),
        along=_mean(along[half:][beside[half:]]),
        down=_mean(down[half:][under[half:]]),
        busy_below=_mean(busy[half:][free[half:]]),
        busy_above=_mean(busy[:half][free[:half]]),
        water_lightness=float(np.median(lab[..., 0][water])) if water.any() else 0.0,
        water_grain=_mean(down[wet]),
        sky=_is_clear_sky(lab[:top], along[:top], free[:top]),
        stripes=_stripes(lightness - ndimage.grey_opening(lightness, (7, 7)) > 10, free, lab[..., 0], chroma),
    )


def _shrunk(image: np.ndarray) -> np.ndarray:
    from PIL import Image

    height, width = image.shape[:2]
    scale = SIDE / max(height, width)
    if scale >= 1:
        return image
    size = (max(2, round(width * scale)), max(2, round(height * scale)))
    return np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BOX))


def _is_clear_sky(lab: np.ndarray, along: np.ndarray, free: np.ndarray) -> bool:
    """Whether the top of a picture is light blue and even."""
    if free.mean() < 0.4:
        return False
    pixels = lab[free]
    hue = np.degrees(np.arctan2(pixels[:, 2], pixels[:, 1])) % 360
    blue = (hue >= 225) & (hue <= 285) & (np.hypot(pixels[:, 1], pixels[:, 2]) >= 8) & (pixels[:, 0] >= 55)
    return bool(blue.mean() >= 0.8 and _mean(along[free[:, 1:] & free[:, :-1]]) < 1.0)


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if values.size else 0.0


def _shares(kinds: np.ndarray) -> dict[str, float]:
    counts = np.bincount(kinds, minlength=len(MATERIALS))
    return {name: float(count) / max(1, kinds.size) for name, count in zip(MATERIALS, counts, strict=True)}


def _bodies(shape: tuple[int, int], persons: Sequence[Person], scale: float) -> np.ndarray:
    """Where people are: thick limbs between the joints that were found, bool (H, W)."""
    from PIL import Image, ImageDraw

    picture = Image.new("L", (shape[1], shape[0]))
    pen = ImageDraw.Draw(picture)
    for person in persons:
        joints = np.asarray(person.keypoints, dtype=np.float64)
        found = joints[:, 2] > 0.1
        if found.sum() < 2:
            continue
        # Far outside the picture a joint only gives a limb its direction.
        points = np.clip(joints[:, :2] * scale, -2000, 4000)
        thick = max(2, round(0.2 * float(np.ptp(points[found], axis=0).max())))
        for one, other in _LIMBS:
            if found[one] and found[other]:
                pen.line([tuple(points[one]), tuple(points[other])], fill=1, width=thick)
        for x, y in points[found]:
            pen.ellipse([x - thick / 2, y - thick / 2, x + thick / 2, y + thick / 2], fill=1)
    return np.asarray(picture) > 0


def _materials(lab: np.ndarray, chroma: np.ndarray) -> np.ndarray:
    """The index in MATERIALS of every pixel of a CIELAB picture (H, W, 3): the first that fits."""
    lightness = lab[..., 0]
    hue = np.degrees(np.arctan2(lab[..., 2], lab[..., 1])) % 360
    # Light yellow-green of little strength is sand or plaster in some light, not grass.
    leafy = ((hue >= 106) | (lightness < 66)) & (chroma >= 0.45 * lightness - 12)
    tests = {
        "dark": lightness < 20,
        "plant": (hue >= 95) & (hue <= 150) & (chroma >= 13) & leafy,
        "water": (hue >= 200) & (hue <= 268) & (chroma >= 16) & (lightness >= 25),
        "white": (lightness >= 72) & (chroma <= 8),
        "gray": (chroma <= 11) & (lightness < 58),
        "pale": (chroma <= 13) & (lightness >= 58),
        "sand": (hue >= 45) & (hue <= 115) & (lightness >= 66) & (chroma <= 45),
        "earth": (hue >= 35) & (hue < 95) & (lightness < 82) & (chroma <= 62),
        "vivid": chroma > 30,
    }
    return np.select(list(tests.values()), [MATERIALS.index(name) for name in tests], 0)


def _ground_ends_at(kinds: np.ndarray, free: np.ndarray) -> dict[str, float]:
    """The share of columns (0..1) by the material that the ground, the most frequent one at the bottom, ends at."""
    height, width = kinds.shape
    bottom = slice(height - max(1, height // 4), height)
    ground = np.bincount(kinds[bottom][free[bottom]], minlength=len(MATERIALS)).argmax()
    strange = np.cumsum((free & (kinds != ground))[::-1], axis=0)  # from the bottom edge up to each pixel
    ended = strange >= max(3, height // 16)  # less is a line or a speck on the ground
    met = kinds[height - 1 - ended.argmax(axis=0), np.arange(width)][ended.any(axis=0)]
    counts = np.bincount(met, minlength=len(MATERIALS))
    return {name: float(count) / width for name, count in zip(MATERIALS, counts, strict=True)}


def _stripes(mask: np.ndarray, free: np.ndarray, lightness: np.ndarray, chroma: np.ndarray) -> tuple[Stripe, ...]:
    """The connected pixels of a mask that lie along a line, at least an eighth of the picture long."""
    from scipy import ndimage

    side = max(mask.shape)
    labels, _ = ndimage.label(mask & free, np.ones((3, 3)))
    found = []
    for number, (rows, columns) in enumerate(ndimage.find_objects(labels), start=1):
        if max(rows.stop - rows.start, columns.stop - columns.start) < 0.12 * side:
            continue
        y, x = np.nonzero(labels[rows, columns] == number)
        y, x = y + rows.start, x + columns.start
        spreads, directions = np.linalg.eigh(np.cov(np.stack([x, y]).astype(np.float64)))
        thick, length = np.sqrt(12 * np.maximum(spreads, 0))  # a bar's spread is its length squared over twelve
        if length < 0.12 * side or thick > 0.16 * length + 1:
            continue
        across, up = np.abs(directions[:, 1])
        found.append(
            Stripe(
                float(length / side),
                float(np.degrees(np.arctan2(up, across))),
                float(np.median(lightness[y, x])),
                float(np.median(chroma[y, x])),
            )
        )
    return tuple(found)
