"""The ten conditions of Multi-Weather, drawn over a picture: wind, rain, snow, dark, light and their combinations.

The published pictures of those conditions are not public here, only the conditions' names. What is drawn below is this
project's own rendering: scores under it may be compared with each other, not with published ones.

All lengths are shares of the picture's size and all randomness comes from (condition, image id): a picture of any size
gets the same weather, and gets it again in every process.
"""

from __future__ import annotations

import math

import numpy as np

from pipeline.core.seeds import generator_of

CONDITIONS = (
    *("normal", "wind", "rain", "snow", "rain_snow"),
    *("dark", "dark_wind", "dark_rain", "dark_snow", "light"),
)
"""As the published test sets are named; `normal` is the picture as it is."""

LEAST_SIDE = 28
"""Pixels; on anything smaller a flake would be a sizeable part of the picture."""

_SUBPIXEL = 4
_AIR_RAIN = np.array((150, 156, 164), np.float32)
_AIR_SNOW = np.array((226, 231, 238), np.float32)
_AIR_DUST = np.array((203, 178, 134), np.float32)
_NIGHT = np.array((0.78, 0.9, 1.12), np.float32)
_LUMA = np.array((0.299, 0.587, 0.114), np.float32)


def weathered(image: np.ndarray, condition: str, image_id: str) -> np.ndarray:
    """The picture under a condition: uint8 (H, W, 3) RGB in, a new array of the same shape out.

    The same picture, condition and id give the same pixels. Raises ValueError for another condition than `CONDITIONS`,
    another kind of array, or a side below `LEAST_SIDE`.
    """
    if condition not in CONDITIONS:
        raise ValueError(f"no condition is called {condition!r}; there are {', '.join(CONDITIONS)}")
    if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
        raise ValueError(f"a picture is uint8 (H, W, 3), not {image.dtype} {image.shape}")
    if min(image.shape[:2]) < LEAST_SIDE:
        raise ValueError(f"a picture of {image.shape[1]} x {image.shape[0]} pixels is too small: {LEAST_SIDE} at least")
    if condition == "normal":
        return image.copy()
    random = generator_of("weather", condition, image_id)
    picture = image.astype(np.float32)
    parts = condition.split("_")
    for part in sorted(parts, key=_ORDER.index):
        picture = _PARTS[part](picture, random)
    return np.clip(np.rint(picture), 0, 255).astype(np.uint8)


def _size(picture: np.ndarray) -> float:
    """The side of a square of the picture's area, pixels."""
    return math.sqrt(picture.shape[0] * picture.shape[1])


def _veiled(picture: np.ndarray, air: np.ndarray, share: np.ndarray | float, colour: float) -> np.ndarray:
    """Colours faded to the share `colour` of what they were, then so much of the air's own colour in front of all."""
    grey = (picture @ _LUMA)[..., None]
    return (grey + (picture - grey) * colour) * (1 - share) + air * share


def _painted(picture: np.ndarray, mask: np.ndarray, colour: tuple[int, int, int]) -> np.ndarray:
    """`colour` over the picture where the mask (uint8, opacity of 255) says so."""
    share = (mask.astype(np.float32) * np.float32(1 / 255))[..., None]
    return picture + (np.asarray(colour, np.float32) - picture) * share


def _streaks(
    shape: tuple[int, int], random: np.random.Generator, count: int, length: float, width: float, angle: float,
    opacity: float,
) -> np.ndarray:  # fmt: skip
    """Lines strewn over a mask, at most slightly off one direction. length, width: pixels. angle: radians off the x
    axis, downwards. Thinner than a pixel is drawn a pixel wide and as much fainter.
    """
    import cv2

    height, least = shape[0], max(width, 0.6)
    mask = np.zeros(shape, np.uint8)
    middles = random.random((count, 2)) * (shape[1] + length, height + length) - length / 2
    lengths = length * random.uniform(0.6, 1.3, count)
    angles = angle + random.normal(0, 0.025, count)
    shades = np.minimum(opacity * min(1.0, width / least) * random.uniform(0.55, 1.0, count), 1.0) * 255
    half = np.stack((np.cos(angles), np.sin(angles)), 1) * lengths[:, None] / 2
    scale = 1 << _SUBPIXEL
    starts = np.rint((middles - half) * scale).astype(int).tolist()
    ends = np.rint((middles + half) * scale).astype(int).tolist()
    thick = max(1, round(width))
    for start, end, shade in zip(starts, ends, shades.tolist(), strict=True):
        cv2.line(mask, start, end, shade, thick, cv2.LINE_AA, _SUBPIXEL)
    return mask


def _rain(picture: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Slanting streaks at three depths before a grey haze; wet air takes light and colour."""
    size, shape = _size(picture), picture.shape[:2]
    slant = math.radians(90 + float(random.choice((-1, 1))) * random.uniform(9, 17))
    picture = _veiled(picture * np.float32(0.74), _AIR_RAIN, 0.2, 0.66)
    drops = np.zeros(shape, np.uint8)
    for count, length, width, opacity in (
        (520, 0.045, 0.0016, 0.42),
        (240, 0.085, 0.0027, 0.5),
        (60, 0.17, 0.0048, 0.5),
    ):
        np.maximum(drops, _streaks(shape, random, count, length * size, width * size, slant, opacity), out=drops)
    return _painted(picture, drops, (222, 228, 236))


def _snow(picture: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Flakes at three depths, the near ones large and out of focus, before bright air of little contrast."""
    import cv2

    size, shape = _size(picture), picture.shape[:2]
    picture = _veiled(picture, _AIR_SNOW, 0.34, 0.6)
    scale = 1 << _SUBPIXEL
    flakes = np.zeros(shape, np.uint8)
    for count, radius, opacity, blur in ((620, 0.0026, 0.85, 0.0), (210, 0.0055, 0.9, 0.0012), (48, 0.013, 0.8, 0.004)):
        mask = np.zeros(shape, np.uint8)
        radii = radius * size * random.uniform(0.6, 1.4, count)
        # A flake smaller than a pixel covers only so much of one.
        shades = opacity * random.uniform(0.65, 1.0, count) * np.minimum(1.0, (radii / 0.5) ** 2) * 255
        places = np.rint(random.random((count, 2)) * (shape[1], shape[0]) * scale).astype(int).tolist()
        drawn = np.rint(np.maximum(radii, 0.5) * scale).astype(int).tolist()
        for place, pixels, shade in zip(places, drawn, shades.tolist(), strict=True):
            cv2.circle(mask, place, pixels, shade, -1, cv2.LINE_AA, _SUBPIXEL)
        if blur * size > 0.3:
            cv2.GaussianBlur(mask, (0, 0), blur * size, dst=mask)
        np.maximum(flakes, mask, out=flakes)
    return _painted(picture, flakes, (252, 252, 252))


def _wind(picture: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """A gust across the picture: drifting dust, streaks along it, leaves and scraps, and what it shakes is smeared."""
    import cv2

    size, shape = _size(picture), picture.shape[:2]
    side = float(random.choice((-1, 1)))
    angle = side * math.radians(random.uniform(4, 11))
    picture = _smeared(picture, 0.011 * size, angle)
    # Clouds of dust are long along the wind: coarse noise, stretched.
    rows, columns = 9, 5
    clouds = cv2.resize(random.random((rows, columns)).astype(np.float32), shape[::-1], interpolation=cv2.INTER_CUBIC)
    share = (0.1 + 0.36 * np.clip(clouds, 0, 1))[..., None]
    picture = _veiled(picture, _AIR_DUST, share, 0.72)
    dust = np.zeros(shape, np.uint8)
    for count, length, width, opacity in ((150, 0.11, 0.0018, 0.38), (50, 0.24, 0.0032, 0.34)):
        np.maximum(dust, _streaks(shape, random, count, length * size, width * size, angle, opacity), out=dust)
    return _scraps(_painted(picture, dust, (238, 222, 188)), random, angle)


def _scraps(picture: np.ndarray, random: np.random.Generator, angle: float) -> np.ndarray:
    """Leaves, twigs and paper flying by, each turned its own way and smeared along the wind."""
    import cv2

    size, (height, width) = _size(picture), picture.shape[:2]
    scale = 1 << _SUBPIXEL
    layer = np.zeros((height, width, 4), np.uint8)  # colour and opacity, so that one pass smears all
    for colour, count in (((92, 66, 28), 22), ((134, 96, 30), 16), ((60, 78, 34), 12), ((226, 222, 210), 5)):
        for _ in range(count):
            long = size * random.uniform(0.006, 0.016)
            axes = (max(long, 0.6), max(long * random.uniform(0.35, 0.6), 0.5))
            middle = np.rint(random.random(2) * (width, height) * scale).astype(int).tolist()
            turned, drawn = float(random.uniform(0, 180)), [round(each * scale) for each in axes]
            cv2.ellipse(layer, middle, drawn, turned, 0, 360, (*colour, 255), -1, cv2.LINE_AA, _SUBPIXEL)
    smeared = _smeared(layer, 0.009 * size, angle).astype(np.float32)
    return picture * (1 - smeared[..., 3:] * np.float32(1 / 255)) + smeared[..., :3]


def _smeared(picture: np.ndarray, length: float, angle: float) -> np.ndarray:
    """The mean along a line of `length` pixels at an angle (radians)."""
    import cv2

    half = max(math.ceil(length / 2), 1)
    kernel = np.zeros((2 * half + 1, 2 * half + 1), np.float32)
    reach = np.array((math.cos(angle), math.sin(angle))) * min(length / 2, half)
    scale = 1 << _SUBPIXEL
    start, end = (np.rint((half + sign * reach) * scale).astype(int).tolist() for sign in (-1, 1))
    cv2.line(kernel, start, end, 1.0, 1, cv2.LINE_8, _SUBPIXEL)
    # A sum of ones over a count, so that a flat picture stays as it was to the last bit.
    return cv2.filter2D(picture, -1, kernel / kernel.sum(), borderType=cv2.BORDER_REPLICATE)


def _dark(picture: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Night: little light, bluish, and the grain of a sensor that has too little of it."""
    light = np.clip(picture, 0, 255) * np.float32(1 / 255)
    grey = (light @ _LUMA)[..., None]
    light = (grey + (light - grey) * np.float32(0.62)) * _NIGHT
    light = np.clip(light, 0, 1)
    dim = light * np.sqrt(light) * np.float32(0.5) + np.float32(0.015)
    grain = random.standard_normal(dim.shape, dtype=np.float32)
    # Shot noise grows with the root of the light, read noise is always there.
    strength = np.sqrt(dim * np.float32(0.0016) + np.float32(0.00012))
    return (dim + strength * grain) * np.float32(255)


def _light(picture: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Over-exposure: twice the light, what is bright burns out, and its glare spreads over what is beside it."""
    import cv2

    size = _size(picture)
    gain = np.float32(random.uniform(1.75, 1.95))
    bright = picture * gain + np.float32(26)
    over = np.maximum(bright - 225, 0)
    small = cv2.resize(over, None, fx=0.25, fy=0.25, interpolation=cv2.INTER_AREA)
    glare = cv2.GaussianBlur(small, (0, 0), max(0.03 * size * 0.25, 0.5))
    return bright + cv2.resize(glare, picture.shape[1::-1], interpolation=cv2.INTER_LINEAR) * np.float32(0.5)


_PARTS = {"wind": _wind, "rain": _rain, "snow": _snow, "dark": _dark, "light": _light}
_ORDER = tuple(_PARTS)
"""Weather comes before the exposure it is photographed with."""
