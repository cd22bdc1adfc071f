"""Furnished places: always the same for a seed, and told apart by who looks at the picture."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.backends.pixel_places import measure, place_in
from pipeline.backends.simulator.episode import Set, backdrop, cast
from pipeline.backends.simulator.person import draw_looks
from pipeline.backends.simulator.render import Face, Shape
from pipeline.backends.simulator.scenes import PLACES
from pipeline.core.seeds import generator_of
from pipeline.verify import load_terms

SIZE = 240
SCENES = load_terms().scenes


def empty(place: str, seed: int, zoom: float = 1.0) -> np.ndarray:
    """The empty place, uint8 (SIZE, SIZE, 3), its middle where people are."""
    casting = cast("walking", "trip", place, draw_looks(generator_of("looks", seed)), f"scene {seed}", f"shot {seed}")
    stage = Set(casting, np.zeros(3), SIZE)
    stage.zoomed(zoom)
    return np.clip(backdrop(stage, [], (0, 0, SIZE, SIZE)).colour, 0, 255).astype(np.uint8)


def flat(shape: Shape) -> list[np.ndarray]:
    return [np.asarray(part, dtype=float) for part in shape if isinstance(part, (np.ndarray, tuple, float, int))]


@pytest.mark.parametrize("place", list(PLACES))
def test_a_place_is_furnished_alike_for_a_seed_and_otherwise_for_another(place):
    one, again, other = (PLACES[place].furnish(generator_of("scene", seed)).shapes for seed in (1, 1, 2))
    assert len(one) == len(again)
    for first, second in zip(one, again, strict=True):
        assert type(first) is type(second)
        assert all(np.array_equal(a, b) for a, b in zip(flat(first), flat(second), strict=True))
    assert len(one) != len(other) or any(
        not np.array_equal(a, b)
        for first, second in zip(one, other, strict=True)
        for a, b in zip(flat(first), flat(second), strict=False)
        if a.shape == b.shape
    )


@pytest.mark.parametrize("place", list(PLACES))
def test_a_picture_of_a_place_is_taken_for_that_place(place):
    """The reader knows nothing of this drawing: what it takes for another place is not drawn well enough."""
    seen = [place_in(empty(place, seed, zoom), ()) for seed in range(4) for zoom in (0.9, 1.3)]
    assert sum(name in SCENES[place] for name in seen) >= 6, seen


def test_bays_lie_to_both_sides_of_whoever_is_in_a_parking_lot():
    for seed in range(8):
        shapes = PLACES["parking lot"].furnish(generator_of("scene", seed)).shapes
        away = [
            shape.corners[:, 0].mean()
            for shape in shapes
            if isinstance(shape, Face)
            and np.ptp(shape.corners[:, 0]) < 0.2
            and shape.corners[:, 1].max() < 0.05
            and shape.corners[:, 2].min() < -1
            and shape.corners[:, 2].max() > 1
        ]
        assert any(-1.8 < x < 0 for x in away)
        assert any(0 < x < 1.8 for x in away)


def test_bays_are_seen_in_a_near_view_of_a_parking_lot():
    for seed in range(4):
        stripes = measure(empty("parking lot", seed, 1.3), ()).stripes
        assert sum(stripe.length for stripe in stripes if stripe.steepness > 20 and stripe.lightness > 60) > 0.3
