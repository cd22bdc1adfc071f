"""Grey repeating textures (256, 256) of values about 1, made once a process and always alike."""

from __future__ import annotations

import functools

import numpy as np

from pipeline.core.seeds import generator_of

SIDE = 256


def _noise(name: str, *scales: tuple[float, float]) -> np.ndarray:
    """Repeating smooth noise: each scale is (blur in texels, strength)."""
    from scipy.ndimage import gaussian_filter

    rng = generator_of("texture", name)
    total = np.ones((SIDE, SIDE))
    for blur, strength in scales:
        grain = rng.normal(size=(SIDE, SIDE))
        if blur > 0:
            grain = gaussian_filter(grain, blur, mode="wrap")
        total += strength * grain / grain.std()
    return total


def _lines(period: int, width: int, offset: bool = False, rows: bool = True, columns: bool = True) -> np.ndarray:
    """1 on the joints of a grid, every second row shifted by half a period where `offset`."""
    y, x = np.mgrid[0:SIDE, 0:SIDE]
    shifted = x + (period // 2) * ((y // (period // (2 if offset else 1))) % 2) if offset else x
    row_period = period // 2 if offset else period
    joints = np.zeros((SIDE, SIDE))
    if rows:
        joints[(y % row_period) < width] = 1
    if columns:
        joints[(shifted % period) < width] = 1
    return joints


@functools.cache
def texture(name: str) -> np.ndarray:
    """The texture of that name, float32 (256, 256); read only."""
    y, x = np.mgrid[0:SIDE, 0:SIDE]
    turn = 2 * np.pi / SIDE
    if name == "grass":
        made = _noise(name, (0.7, 0.13), (5, 0.07), (24, 0.08))
    elif name == "asphalt":
        made = _noise(name, (0.6, 0.09), (10, 0.04))
    elif name == "sand":
        made = _noise(name, (0.5, 0.05), (7, 0.05)) + 0.03 * np.sin(turn * (6 * y + 1.5 * np.sin(turn * 2 * x) * 10))
    elif name == "snow":
        made = _noise(name, (4, 0.02), (18, 0.035))
    elif name == "planks":
        grain = _noise(name, (0.5, 0.03), (12, 0.05))
        board = generator_of("boards").normal(0, 0.06, 8)[(y // 32) % 8]
        made = grain + board - 0.3 * ((y % 32) < 2) + 0.03 * np.sin(turn * (x * 3 + y * 20))
    elif name == "tiles":
        made = _noise(name, (8, 0.02)) - 0.22 * _lines(64, 3)
    elif name == "checker":
        made = _noise(name, (6, 0.015)) + 0.1 * (((x // 64) + (y // 64)) % 2) - 0.05
    elif name == "brick":
        made = _noise(name, (0.8, 0.05), (9, 0.06)) + 0.3 * _lines(64, 4, offset=True)
    elif name == "carpet":
        made = _noise(name, (0.8, 0.07), (20, 0.04))
    elif name == "wallpaper":
        made = _noise(name, (12, 0.01)) + 0.05 * ((x // 32) % 2)
    elif name == "hedge":
        made = _noise(name, (1.6, 0.2), (6, 0.12))
    elif name == "water":
        made = (
            1
            + 0.08 * np.sin(turn * (4 * x + 8 * np.sin(turn * 2 * y) * 3))
            + 0.06 * np.sin(turn * (5 * y + 3 * x))
            + (_noise(name, (4, 0.06)) - 1)
        )
    elif name == "panel":
        made = _noise(name, (10, 0.02)) - 0.18 * _lines(64, 3, rows=False)
    elif name == "chips":
        made = _noise(name, (1.2, 0.14), (3, 0.07))
    else:
        raise ValueError(f"no texture is called {name!r}")
    made = made.astype(np.float32)
    made.setflags(write=False)
    return made
