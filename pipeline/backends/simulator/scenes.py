"""Where it happens: eleven furnished places, seen by a camera that stands at +z and looks towards -z.

Stage axes: x to the right of the camera, y up, the ground at height 0, people about the origin. Metres.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pipeline.backends.simulator.render import Blob, Canvas, Colour, Face, Limb, Shape, ball, box
from pipeline.backends.simulator.textures import texture


@dataclass(frozen=True)
class Scene:
    """A furnished place: its shapes, the sky's colours (top, horizon; None indoors), and whether it is indoors."""

    name: str
    shapes: list[Shape]
    sky: tuple[Colour, Colour]
    indoors: bool = False
    clouds: bool = False


@dataclass(frozen=True)
class Place:
    """A kind of scene: its name, the words a caption may use for it, how one is furnished."""

    name: str
    words: tuple[str, ...]
    furnish: Callable[[np.random.Generator], Scene]


def _v(x: float, y: float, z: float) -> np.ndarray:
    return np.array([x, y, z], dtype=float)


def _ground(
    colour: Colour,
    name: str,
    repeat: float,
    x: tuple[float, float] = (-70, 70),
    z: tuple[float, float] = (-70, 14),
    y: float = 0.0,
) -> Face:
    corners = np.array([[x[0], y, z[1]], [x[1], y, z[1]], [x[1], y, z[0]], [x[0], y, z[0]]], dtype=float)
    return Face(corners, colour, texture(name), repeat, ground=True)


def _wall(
    colour: Colour,
    name: str | None,
    z: float,
    height: float,
    x: tuple[float, float] = (-16, 16),
    y: float = 0.0,
    repeat: float = 2.0,
) -> Face:
    corners = np.array([[x[0], y, z], [x[1], y, z], [x[1], y + height, z], [x[0], y + height, z]], dtype=float)
    return Face(corners, colour, texture(name) if name else None, repeat)


def _panel(colour: Colour, x: float, y: float, z: float, wide: float, tall: float, lit: bool = True) -> Face:
    corners = np.array(
        [[x - wide / 2, y, z], [x + wide / 2, y, z], [x + wide / 2, y + tall, z], [x - wide / 2, y + tall, z]]
    )
    return Face(corners, colour, lit=lit)


def _stripe(colour: Colour, x: tuple[float, float], z: tuple[float, float], y: float = 0.006) -> Face:
    corners = np.array([[x[0], y, z[1]], [x[1], y, z[1]], [x[1], y, z[0]], [x[0], y, z[0]]], dtype=float)
    return Face(corners, colour, ground=True)


def _vary(rng: np.random.Generator, colour: Colour, amount: float = 0.1) -> Colour:
    factor = 1 + rng.uniform(-amount, amount, 3)
    r, g, b = (float(min(255.0, value * f)) for value, f in zip(colour, factor, strict=True))
    return (r, g, b)


def _tree(rng: np.random.Generator, x: float, z: float, size: float = 1.0) -> list[Shape]:
    green = _vary(rng, (62, 122, 48), 0.18)
    shapes: list[Shape] = [Limb(_v(x, 0, z), _v(x + 0.1, 2.2 * size, z), 0.16 * size, 0.11 * size, (98, 72, 48))]
    for _ in range(6):
        dx, dy, dz = rng.uniform(-0.9, 0.9), rng.uniform(-0.5, 0.9), rng.uniform(-0.5, 0.5)
        shade = float(rng.uniform(0.86, 1.12))
        r = float(rng.uniform(0.62, 0.95)) * size
        colour = (green[0] * shade, green[1] * shade, green[2] * shade)
        shapes.append(Blob(_v(x + dx * size, (2.9 + dy) * size, z + dz * size), np.diag([r, 0.85 * r, r]), colour))
    return shapes


def _pine(rng: np.random.Generator, x: float, z: float, size: float) -> list[Shape]:
    """A snowy pine: wedges that turn one side to the sun and one away, white towards their tips."""
    shapes: list[Shape] = [Limb(_v(x, 0, z), _v(x, 0.9 * size, z), 0.12 * size, 0.1 * size, (88, 62, 44))]
    for level in range(4):
        y, wide, tall = (0.6 + 0.62 * level) * size, (1.05 - 0.2 * level) * size, 1.15 * size
        top, ridge = _v(x, y + tall, z), _v(x, y - 0.12 * size, z + 0.45 * wide)
        for side in (-1, 1):
            edge = _v(x + side * wide, y, z)
            shapes.append(Face(np.array([ridge, edge, top]), (46 + 8 * level, 96 + 8 * level, 68 + 4 * level)))
            lift = _v(0, 0, 0.015)
            shapes.append(
                Face(np.array([ridge + 0.55 * (top - ridge), edge + 0.62 * (top - edge), top]) + lift, (240, 245, 252))
            )
    return shapes


def _bush(rng: np.random.Generator, x: float, z: float) -> list[Shape]:
    colour = _vary(rng, (58, 112, 46), 0.2)
    return [Blob(_v(x + dx, 0.3, z), np.diag([0.5, 0.45, 0.4]), _vary(rng, colour, 0.08)) for dx in (-0.4, 0.05, 0.45)]


def _fence(z: float, colour: Colour, height: float = 1.1) -> list[Shape]:
    shapes: list[Shape] = [_panel(colour, 0, y, z + 0.02, 40, 0.1) for y in (0.35 * height, 0.8 * height)]
    shapes += [_panel(colour, x, 0.0, z, 0.13, height) for x in np.arange(-14, 14.1, 0.24)]
    return shapes


def _house(rng: np.random.Generator, x: float, z: float) -> list[Shape]:
    wall = _vary(rng, [(222, 206, 178), (196, 120, 96), (180, 196, 206)][int(rng.integers(3))])
    shapes: list[Shape] = list(box(_v(x, 1.6, z), _v(3.4, 1.6, 1.5), wall, texture=texture("panel"), repeat=1.6))
    front = z + 1.51
    shapes.append(
        Face(
            np.array([[x - 3.8, 3.1, z + 1.9], [x + 3.8, 3.1, z + 1.9], [x + 3.0, 4.7, z], [x - 3.0, 4.7, z]]),
            (118, 62, 52),
            texture("brick"),
            1.4,
        )
    )
    for wx in (-2.2, 2.1):
        shapes += [
            _panel((240, 240, 236), x + wx, 1.0, front, 1.4, 1.3),
            _panel((96, 128, 152), x + wx, 1.08, front + 0.01, 1.2, 1.1),
        ]
    shapes += [
        _panel((92, 60, 44), x + 0.1, 0.0, front, 1.0, 2.1),
        _panel((214, 190, 90), x + 0.45, 1.0, front + 0.01, 0.08, 0.08),
    ]
    return shapes


def _car(rng: np.random.Generator, x: float, z: float, colour: Colour) -> list[Shape]:
    shapes: list[Shape] = list(box(_v(x, 0.58, z), _v(2.1, 0.3, 0.85), colour))
    cabin = (46, 58, 70)
    top = np.array(
        [[x - 0.85, 1.42, z + 0.7], [x + 0.75, 1.42, z + 0.7], [x + 1.25, 0.88, z + 0.84], [x - 1.45, 0.88, z + 0.84]]
    )
    back = top.copy()
    back[:, 2] = 2 * z - back[:, 2]
    shapes += [Face(top, cabin), Face(back, cabin)]
    shapes.append(Face(np.array([top[0], top[1], back[1], back[0]]), colour))
    shapes.append(Face(np.array([top[1], top[2], back[2], back[1]]), cabin))
    shapes.append(Face(np.array([top[0], top[3], back[3], back[0]]), cabin))
    shapes.append(
        Face(
            np.array(
                [[x - 0.1, 1.42, z + 0.705], [x, 1.42, z + 0.705], [x, 0.88, z + 0.85], [x - 0.1, 0.88, z + 0.85]]
            ),
            colour,
        )
    )
    for wx in (-1.3, 1.3):
        shapes.append(Blob(_v(x + wx, 0.34, z + 0.82), np.diag([0.34, 0.34, 0.1]), (30, 30, 33)))
        shapes.append(Blob(_v(x + wx, 0.34, z + 0.88), np.diag([0.18, 0.18, 0.08]), (176, 178, 182)))
    shapes += [
        _panel((250, 240, 190), x + 1.95, 0.6, z + 0.86, 0.25, 0.16),
        _panel((200, 30, 30), x - 1.95, 0.6, z + 0.86, 0.25, 0.16),
    ]
    return shapes


DAY = ((86, 146, 214), (202, 222, 238))


def _lawn(rng: np.random.Generator) -> Scene:
    shapes: list[Shape] = [_ground(_vary(rng, (104, 158, 66), 0.1), "grass", 1.6)]
    shapes += _house(rng, float(rng.uniform(-4, 4)), -10.5)
    shapes += _fence(-6.2, (232, 228, 216) if rng.random() < 0.6 else (146, 104, 66), 1.1)
    for x in (-7.5, float(rng.uniform(-3.5, 3.5)), 6.8):
        shapes += _tree(rng, x + float(rng.uniform(-0.8, 0.8)), -7.8, float(rng.uniform(0.85, 1.2)))
    for x in (-4.5, 4.2):
        shapes += _bush(rng, x + float(rng.uniform(-1, 1)), -5.6)
    return Scene("lawn", shapes, DAY, clouds=True)


def _street(rng: np.random.Generator) -> Scene:
    shapes: list[Shape] = [_ground(_vary(rng, (112, 113, 117), 0.05), "asphalt", 1.4)]
    shapes += box(_v(0, 0.06, -4.5), _v(40, 0.06, 1.3), (176, 172, 166), texture=texture("tiles"), repeat=3.0)
    shapes += [_stripe((228, 224, 210), (x, x + 1.6), (1.9, 2.05)) for x in np.arange(-12, 12, 3.0)]
    x = -17.0
    while x < 17:
        width = float(rng.uniform(4.2, 6.2))
        colour = _vary(rng, [(176, 98, 76), (206, 186, 150), (150, 158, 168), (196, 150, 120)][int(rng.integers(4))])
        shapes.append(_wall(colour, "brick", -5.8, 7.5, (x, x + width), repeat=1.5))
        for wx in np.arange(x + 0.9, x + width - 0.6, 1.7):
            for y in (1.2, 3.6, 5.7):
                shapes += [
                    _panel((236, 232, 224), wx, y, -5.78, 1.1, 1.4),
                    _panel((70, 92, 112), wx, y + 0.08, -5.77, 0.94, 1.24),
                ]
        shapes.append(_panel(_vary(rng, (96, 48, 40), 0.3), x + width - 0.75, 0.1, -5.76, 0.95, 2.2))
        x += width
    lamp = float(rng.uniform(-3.5, 3.5))
    shapes += [
        Limb(_v(lamp, 0, -3.6), _v(lamp, 4.6, -3.6), 0.07, 0.05, (60, 66, 70)),
        ball(_v(lamp, 4.7, -3.6), 0.2, (250, 242, 214)),
    ]
    if rng.random() < 0.6:
        shapes += _car(rng, float(rng.choice([-4.2, 4.2])), -2.9, _vary(rng, (190, 50, 46), 0.6))
    return Scene("street", shapes, DAY, clouds=True)


def _gym(rng: np.random.Generator) -> Scene:
    shapes: list[Shape] = [_ground(_vary(rng, (206, 158, 98), 0.06), "planks", 1.8)]
    wall = _vary(rng, (214, 208, 194), 0.06)
    shapes += [
        _wall(wall, "brick", -5.0, 6.5, repeat=2.4),
        _wall(_vary(rng, (40, 78, 150), 0.2), "panel", -4.97, 1.5, repeat=3.0),
    ]
    shapes += [
        _stripe((40, 90, 170), (-30, 30), (-2.3, -2.2)),
        _stripe((240, 240, 236), (-30, 30), (1.7, 1.8)),
        _stripe((200, 50, 46), (3.3, 3.4), (-5, 6)),
    ]
    for x in np.arange(-9, 9.1, 3.6):
        shapes += [
            _panel((240, 246, 250), x, 3.2, -4.96, 2.0, 1.6, lit=False),
            _panel((110, 116, 124), x, 3.2, -4.955, 0.07, 1.6),
        ]
    hoop = float(rng.uniform(-3, 3))
    shapes += [
        _panel((246, 246, 246), hoop, 2.45, -4.6, 1.5, 1.0),
        _panel((214, 60, 40), hoop, 2.55, -4.59, 0.56, 0.06),
        _panel((214, 60, 40), hoop, 2.95, -4.59, 0.56, 0.06),
    ]
    ring = [_v(hoop + 0.24 * np.cos(a), 2.5, -4.3 + 0.24 * np.sin(a)) for a in np.linspace(0, 2 * np.pi, 11)]
    shapes += [Limb(p, q, 0.02, 0.02, (236, 100, 40)) for p, q in itertools.pairwise(ring)]
    bars = hoop + (3.4 if hoop < 0 else -3.4)
    shapes += [
        Limb(_v(bars - 0.9, y, -4.8), _v(bars + 0.9, y, -4.8), 0.03, 0.03, (190, 140, 80))
        for y in np.arange(0.3, 2.9, 0.28)
    ]
    shapes += box(_v(-bars, 0.18, -3.9), _v(1.1, 0.18, 0.6), (60, 130, 90))
    return Scene("gym", shapes, ((226, 222, 212), (226, 222, 212)), indoors=True)


def _beach(rng: np.random.Generator) -> Scene:
    shapes: list[Shape] = [_ground(_vary(rng, (228, 204, 152), 0.05), "sand", 2.2)]
    shapes.append(_ground((46, 134, 176), "water", 3.0, z=(-70, -6.2), y=0.012))
    shapes.append(_stripe((236, 244, 246), (-70, 70), (-6.45, -6.0), 0.016))
    x = float(rng.uniform(-4.5, 4.5))
    shapes += [Limb(_v(x, 0, -4.2), _v(x, 2.2, -4.2), 0.035, 0.035, (240, 240, 240))]
    shade = _vary(rng, (226, 60, 60), 0.3)
    for part, (wide, y) in enumerate(((1.3, 1.95), (1.0, 2.12), (0.62, 2.26))):
        shapes.append(Blob(_v(x, y, -4.2), np.diag([wide, 0.16, wide]), shade if part % 2 == 0 else (246, 244, 238)))
    shapes.append(_stripe(_vary(rng, (70, 140, 200), 0.4), (x + 0.6, x + 1.5), (-4.6, -2.9), 0.01))
    palm = x - 5.0 if x > 0 else x + 5.0
    shapes.append(Limb(_v(palm, 0, -5.2), _v(palm + 0.5, 3.6, -5.2), 0.16, 0.1, (140, 106, 70)))
    for a in np.linspace(0, 2 * np.pi, 8)[:-1]:
        mid, tip = (
            _v(palm + 0.5 + 0.8 * np.cos(a), 3.75, -5.2 + 0.5 * np.sin(a)),
            _v(palm + 0.5 + 1.6 * np.cos(a), 3.1, -5.2 + 1.0 * np.sin(a)),
        )
        shapes += [
            Limb(_v(palm + 0.5, 3.6, -5.2), mid, 0.07, 0.12, (70, 138, 58)),
            Limb(mid, tip, 0.12, 0.02, (60, 124, 52)),
        ]
    return Scene("beach", shapes, ((70, 150, 224), (206, 230, 242)), clouds=True)


def _snow(rng: np.random.Generator) -> Scene:
    shapes: list[Shape] = [_ground((206, 215, 228), "snow", 4.5)]
    for x in np.arange(-36, 37, 12.0):
        top, base = float(rng.uniform(7, 13)), x + float(rng.uniform(-3, 3))
        shapes.append(
            Face(
                np.array([[base - 14, 0, -46], [base + 14, 0, -46], [base + 1, top, -46], [base - 1, top, -46]]),
                _vary(rng, (142, 160, 188), 0.06),
            )
        )
        shapes.append(
            Face(
                np.array(
                    [
                        [base - 4.6, 0.68 * top, -45.9],
                        [base + 4.6, 0.68 * top, -45.9],
                        [base + 1, top, -45.9],
                        [base - 1, top, -45.9],
                    ]
                ),
                (240, 246, 252),
            )
        )
    for x in np.linspace(-9, 9, 8):
        shapes += _pine(
            rng, float(x + rng.uniform(-0.6, 0.6)), float(rng.uniform(-10, -5.6)), float(rng.uniform(0.9, 1.5))
        )
    for x in (-2.6, 2.4):
        shapes += [
            Limb(_v(x, 0, -3.4), _v(x, 1.5, -3.4), 0.025, 0.02, (220, 40, 44)),
            _panel((230, 50, 50), x + 0.26, 1.05, -3.4, 0.5, 0.4),
        ]
    for z in (-2.2, -1.9):
        shapes.append(_stripe((206, 218, 234), (-30, 30), (z, z + 0.08)))
    return Scene("snow slope", shapes, ((110, 160, 220), (216, 230, 244)), clouds=True)


def _parking(rng: np.random.Generator) -> Scene:
    shapes: list[Shape] = [_ground(_vary(rng, (92, 94, 98), 0.05), "asphalt", 1.4)]
    shapes += [_stripe((236, 236, 230), (x, x + 0.11), (-6.4, -2.2)) for x in np.arange(-13.5, 14, 2.7 * 1.75)]
    shapes.append(_stripe((232, 196, 40), (-30, 30), (1.9, 2.0)))
    paints = [(190, 44, 44), (44, 84, 170), (228, 228, 226), (52, 54, 60), (70, 140, 90), (200, 170, 60)]
    for x in (-11.1, -6.4, -1.7, 3.0, 7.7):
        if rng.random() < 0.72:
            shapes += _car(rng, x, -4.3, paints[int(rng.integers(len(paints)))])
    shapes.append(_wall(_vary(rng, (196, 190, 178), 0.08), "panel", -9.5, 4.2, (-18, 18), repeat=5))
    shapes.append(_wall((60, 110, 170), None, -9.45, 0.8, (-18, 18), y=3.2))
    for x in np.arange(-12, 12.1, 4.0):
        shapes.append(_panel((70, 92, 106), x, 0.3, -9.44, 2.6, 2.3))
    pole = float(rng.uniform(-4, 4))
    shapes += [Limb(_v(pole, 0, -7), _v(pole, 6, -7), 0.09, 0.07, (150, 152, 154))]
    # A second row of bays, empty, about whoever is there: without it a near view shows asphalt that could be any.
    near = float(rng.uniform(-0.35, 0.35))
    shapes += [_stripe((236, 236, 230), (near + x, near + x + 0.1), (-1.5, 3.2)) for x in np.arange(-3.9, 4.0, 2.6)]
    return Scene("parking lot", shapes, DAY, clouds=True)


def _playground(rng: np.random.Generator) -> Scene:
    shapes: list[Shape] = [
        _ground((112, 156, 76), "grass", 1.6),
        _ground(_vary(rng, (186, 140, 92), 0.06), "chips", 1.2, (-9, 9), (-6.2, 3.2), 0.004),
    ]
    x = float(rng.uniform(1.8, 3.6)) * (1 if rng.random() < 0.5 else -1)
    for dx in (-0.5, 0.5):
        for z in (-4.6, -3.8):
            shapes.append(Limb(_v(x + dx, 0, z), _v(x + dx, 2.3, z), 0.055, 0.055, (214, 52, 48)))
    shapes += box(_v(x, 1.35, -4.2), _v(0.55, 0.05, 0.45), (240, 196, 44))
    shapes.append(Face(np.array([[x - 0.75, 2.2, -3.6], [x + 0.75, 2.2, -3.6], [x, 3.0, -4.2]]), (40, 110, 190)))
    toward = -1 if x > 0 else 1
    slide = np.array(
        [
            [x + 0.55 * toward, 1.38, -4.5],
            [x + 0.55 * toward, 1.38, -3.9],
            [x + 2.4 * toward, 0.12, -3.9],
            [x + 2.4 * toward, 0.12, -4.5],
        ]
    )
    shapes.append(Face(slide, (60, 150, 210)))
    shapes += [
        Limb(slide[1], slide[2], 0.06, 0.06, (30, 110, 180)),
        Limb(slide[0], slide[3], 0.06, 0.06, (30, 110, 180)),
    ]
    s = -x
    for dx in (-1.3, 1.3):
        for z in (-5.2, -3.9):
            shapes.append(Limb(_v(s + dx, 0, z), _v(s + dx, 2.5, -4.55), 0.05, 0.05, (60, 140, 80)))
    shapes.append(Limb(_v(s - 1.35, 2.5, -4.55), _v(s + 1.35, 2.5, -4.55), 0.05, 0.05, (60, 140, 80)))
    for dx in (-0.6, 0.6):
        for e in (-0.2, 0.2):
            shapes.append(Limb(_v(s + dx + e, 2.5, -4.55), _v(s + dx + e, 0.55, -4.5), 0.012, 0.012, (150, 150, 154)))
        shapes += box(_v(s + dx, 0.53, -4.5), _v(0.24, 0.02, 0.1), (36, 36, 40))
    for tx in (-8, -2.5, 2.8, 8.2):
        shapes += _tree(rng, tx + float(rng.uniform(-1, 1)), -9.0, 1.15)
    return Scene("playground", shapes, DAY, clouds=True)


def _living_room(rng: np.random.Generator) -> Scene:
    wall = _vary(rng, [(222, 206, 170), (170, 192, 182), (206, 178, 176), (184, 192, 214)][int(rng.integers(4))], 0.05)
    shapes: list[Shape] = [
        _ground(_vary(rng, (164, 116, 72), 0.08), "planks", 1.6),
        _wall(wall, "wallpaper", -3.3, 4.5, repeat=1.6),
    ]
    shapes += [_panel((240, 238, 230), 0, 0.0, -3.28, 32, 0.13)]
    shapes += [
        _stripe(_vary(rng, (168, 52, 56), 0.35), (-2.3, 2.3), (-1.6, 1.6)),
        _stripe(_vary(rng, (216, 190, 150), 0.1), (-2.0, 2.0), (-1.3, 1.3), 0.009),
    ]
    side = 1 if rng.random() < 0.5 else -1
    sofa = _vary(rng, [(70, 100, 150), (120, 130, 80), (150, 80, 60), (96, 92, 104)][int(rng.integers(4))])
    x = 2.3 * side
    shapes += box(_v(x, 0.28, -2.7), _v(1.05, 0.2, 0.42), sofa)
    shapes += box(_v(x, 0.6, -3.05), _v(1.05, 0.4, 0.14), sofa)
    for dx in (-1.1, 1.1):
        shapes += box(_v(x + dx, 0.38, -2.75), _v(0.13, 0.3, 0.45), _vary(rng, sofa, 0.04))
    shapes += [Blob(_v(x - 0.6, 0.6, -2.75), np.diag([0.24, 0.22, 0.1]), _vary(rng, (230, 190, 90), 0.2))]
    shapes += [
        _panel((250, 250, 248), -0.9 * side, 1.1, -3.27, 1.7, 1.5),
        _panel((168, 206, 236), -0.9 * side, 1.18, -3.26, 1.54, 1.34, lit=False),
        _panel((250, 250, 248), -0.9 * side, 1.1, -3.25, 0.06, 1.5),
    ]
    for cx in (-1.0, 1.0):
        shapes.append(_panel(_vary(rng, (190, 90, 70), 0.3), -0.9 * side + cx, 0.6, -3.24, 0.5, 2.3))
    shapes += [
        _panel((110, 76, 44), x, 1.55, -3.27, 0.95, 0.7),
        _panel(_vary(rng, (80, 130, 120), 0.4), x, 1.61, -3.26, 0.82, 0.57),
    ]
    lamp = -3.0 * side
    shapes += [
        Limb(_v(lamp, 0, -2.8), _v(lamp, 1.5, -2.8), 0.025, 0.025, (90, 80, 70)),
        Limb(_v(lamp, 1.45, -2.8), _v(lamp, 1.75, -2.8), 0.26, 0.15, (250, 232, 180)),
    ]
    return Scene("living room", shapes, (wall, wall), indoors=True)


def _kitchen(rng: np.random.Generator) -> Scene:
    wall = _vary(rng, (232, 226, 206), 0.06)
    shapes: list[Shape] = [
        _ground(_vary(rng, (206, 200, 190), 0.06), "checker", 1.6),
        _wall(wall, "tiles", -3.1, 4.5, repeat=1.0),
    ]
    front = _vary(rng, [(238, 234, 224), (98, 136, 150), (170, 120, 76), (126, 150, 110)][int(rng.integers(4))])
    shapes += box(_v(0.9, 0.43, -2.75), _v(6.2, 0.43, 0.32), front)
    shapes += box(_v(0.9, 0.88, -2.73), _v(6.25, 0.025, 0.36), (76, 72, 70))
    shapes += box(_v(0.9, 1.95, -2.95), _v(6.2, 0.35, 0.16), front)
    dark = (front[0] * 0.78, front[1] * 0.78, front[2] * 0.78)
    for x in np.arange(-5.0, 7.1, 0.75):
        shapes += [
            _panel(dark, x, 0.06, -2.42, 0.03, 0.78),
            _panel(dark, x, 1.6, -2.78, 0.03, 0.7),
            _panel((150, 150, 150), x + 0.12, 0.6, -2.41, 0.03, 0.16),
        ]
    oven = float(rng.uniform(-0.8, 2.4))
    shapes += [
        _panel((62, 64, 68), oven, 0.08, -2.41, 0.72, 0.76),
        _panel((24, 26, 30), oven, 0.18, -2.4, 0.56, 0.4),
        _panel((200, 60, 40), oven, 0.74, -2.4, 0.5, 0.05),
    ]
    shapes += [
        Limb(_v(oven - 0.15, 0.92, -2.7), _v(oven - 0.15, 1.06, -2.7), 0.12, 0.12, (176, 60, 50)),
        Limb(_v(oven + 1.4, 0.92, -2.7), _v(oven + 1.4, 1.2, -2.7), 0.05, 0.04, (70, 130, 80)),
    ]
    fridge = -2.6
    shapes += box(_v(fridge, 0.95, -2.6), _v(0.4, 0.95, 0.38), (212, 216, 220))
    shapes += [
        _panel((150, 154, 158), fridge, 1.22, -2.21, 0.8, 0.02),
        _panel((110, 112, 116), fridge + 0.3, 1.3, -2.2, 0.03, 0.4),
        _panel((110, 112, 116), fridge + 0.3, 0.7, -2.2, 0.03, 0.4),
    ]
    return Scene("kitchen", shapes, (wall, wall), indoors=True)


def _pool(rng: np.random.Generator) -> Scene:
    shapes: list[Shape] = [_ground(_vary(rng, (216, 200, 178), 0.05), "tiles", 2.4)]
    shapes.append(_ground((52, 156, 204), "water", 1.8, (-9, 9), (-6.6, -2.4), 0.01))
    for z0, z1 in ((-2.4, -2.2), (-6.8, -6.6)):
        shapes.append(_stripe((242, 240, 234), (-9, 9), (z0, z1), 0.014))
    shapes += _fence(-8.6, (240, 240, 236), 1.3)
    for x in (-7, -3.2, 3.5, 7.6):
        shapes += _tree(rng, x + float(rng.uniform(-1, 1)), -10.5, 1.2)
    x = float(rng.choice([-3.6, 3.6]))
    cloth = _vary(rng, (60, 130, 200), 0.4)
    shapes += box(_v(x, 0.3, -7.5), _v(0.75, 0.04, 0.3), cloth)
    shapes.append(
        Face(
            np.array([[x + 0.7, 0.32, -7.8], [x + 0.7, 0.32, -7.2], [x + 1.2, 0.85, -7.2], [x + 1.2, 0.85, -7.8]]),
            cloth,
        )
    )
    shapes += [
        Limb(_v(-x, 0, -2.0), _v(-x, 0.8, -2.05), 0.03, 0.03, (190, 194, 198)),
        Limb(_v(-x + 0.45, 0, -2.0), _v(-x + 0.45, 0.8, -2.05), 0.03, 0.03, (190, 194, 198)),
    ]
    ring = _vary(rng, (240, 120, 60), 0.2)
    loop = [_v(-1.2 + 0.35 * np.cos(a), 0.07, -4.4 + 0.35 * np.sin(a)) for a in np.linspace(0, 2 * np.pi, 9)]
    shapes += [Limb(p, q, 0.09, 0.09, ring) for p, q in itertools.pairwise(loop)]
    return Scene("pool side", shapes, DAY, clouds=True)


def _park(rng: np.random.Generator) -> Scene:
    shapes: list[Shape] = [
        _ground(_vary(rng, (92, 142, 62), 0.1), "grass", 1.6),
        _ground((198, 182, 152), "asphalt", 1.2, (-70, 70), (-1.8, 1.8), 0.005),
    ]
    for x in np.linspace(-11, 11, 7):
        shapes += _tree(rng, float(x + rng.uniform(-1, 1)), float(rng.uniform(-10, -5.5)), float(rng.uniform(1.0, 1.5)))
    x = float(rng.uniform(-3.4, 3.4))
    for y, z in ((0.45, -2.6), (0.72, -2.85), (0.88, -2.87)):
        shapes += box(_v(x, y, z), _v(0.85, 0.045, 0.17 if y < 0.5 else 0.03), (150, 98, 54))
    for dx in (-0.7, 0.7):
        shapes += box(_v(x + dx, 0.4, -2.75), _v(0.04, 0.4, 0.2), (50, 52, 56))
    for bx in (-6, 5.4):
        shapes += _bush(rng, bx, -4.4)
    lamp = x + 3.4 if x < 0 else x - 3.4
    shapes += [
        Limb(_v(lamp, 0, -2.6), _v(lamp, 3.2, -2.6), 0.05, 0.04, (44, 60, 52)),
        ball(_v(lamp, 3.3, -2.6), 0.19, (252, 246, 220)),
    ]
    return Scene("park", shapes, ((96, 156, 220), (214, 228, 236)), clouds=True)


PLACES: dict[str, Place] = {
    place.name: place
    for place in (
        Place("lawn", ("lawn", "yard", "garden", "grass", "backyard", "field"), _lawn),
        Place("street", ("street", "sidewalk", "road", "town", "city", "building"), _street),
        Place("gym", ("gym", "court", "arena", "stage"), _gym),
        Place("beach", ("beach", "sand", "sea", "ocean"), _beach),
        Place("snow slope", ("snow", "slope", "mountain", "winter", "hill"), _snow),
        Place("parking lot", ("parking", "driveway", "car park"), _parking),
        Place("playground", ("playground", "slide", "swing"), _playground),
        Place("living room", ("living room", "room", "house", "home", "sofa", "couch", "indoors"), _living_room),
        Place("kitchen", ("kitchen", "fridge", "counter"), _kitchen),
        Place("pool side", ("pool", "swimming"), _pool),
        Place("park", ("park", "path", "trail", "woods", "bench"), _park),
    )
}


@functools.cache
def _cloud_texture() -> np.ndarray:
    """Soft repeating noise (256, 512) about 0, of standard deviation 1."""
    import cv2

    soft = cv2.GaussianBlur(np.tile(texture("hedge"), (1, 2)), (0, 0), 5)
    return (soft - soft.mean()) / soft.std()


def paint_sky(canvas: Canvas, scene: Scene, shift: float) -> None:
    """Fill what no shape covers with the sky: a gradient from the horizon up, and clouds outdoors; haze far away.

    shift: 0..1, which clouds.
    """
    import cv2

    view = canvas.view
    distant = np.nonzero((canvas.depth > 16).any(1))[0]
    if not len(distant):
        return
    # Only the rows that see far: the ground before the camera needs neither sky nor haze.
    rows = np.arange(distant[0], distant[-1] + 1)
    depth, colour = canvas.depth[rows[0] : rows[-1] + 1], canvas.colour[rows[0] : rows[-1] + 1]
    far = depth > 9e3
    forward = view.basis[2]
    horizon = view.centre[1] + view.focal * forward[1] / max(float(np.hypot(forward[0], forward[2])), 1e-6)
    rise = np.clip((horizon - rows) / (0.32 * view.focal), 0, 1)[:, None, None].astype(np.float32)
    top, low = (np.asarray(paint, np.float32) for paint in scene.sky)
    if far.any():
        sky = np.broadcast_to(low + (top - low) * rise, colour.shape).copy()
        if scene.clouds:
            down = ((rows - horizon) / view.focal * 620).astype(np.int64)
            along = ((np.arange(colour.shape[1]) - view.centre[0]) / view.focal * 210 + shift * 256).astype(np.int64)
            veil = _cloud_texture()[down[:, None] % 256, along[None, :] % 512].astype(np.float32)
            veil = cv2.GaussianBlur(veil, (0, 0), max(1.0, view.focal / 500))
            sky += (255 - sky) * np.clip(veil * 0.45, 0, 0.75)[..., None] * np.clip(rise * 3, 0, 1)
        np.copyto(colour, sky, where=far[..., None])
    if not scene.indoors:
        haze = np.clip((depth - 16) / 60, 0, np.float32(0.8))
        haze[far] = 0
        colour += (low - colour) * haze[..., None]
