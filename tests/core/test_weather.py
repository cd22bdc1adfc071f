import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.weather import CONDITIONS, LEAST_SIDE, weathered

ROOT = Path(__file__).parents[2]
LUMA = np.array((0.299, 0.587, 0.114))
COMBINED = {name: name.split("_") for name in CONDITIONS if "_" in name}


def street(height: int = 160, width: int = 200) -> np.ndarray:
    """A soft scene with a person-like bar: uint8 (height, width, 3)."""
    rows, columns = np.mgrid[0:height, 0:width].astype(np.float32)
    image = np.stack((90 + 70 * rows / height, 110 + 40 * columns / width, 100 + 0 * rows), 2)
    image[height // 4 : 3 * height // 4, 2 * width // 5 : 3 * width // 5] = (150, 40, 40)
    return cv2.GaussianBlur(np.rint(image).astype(np.uint8), (0, 0), 2)


def fine_energy(image: np.ndarray) -> float:
    """How much changes from pixel to pixel."""
    return float(np.abs(cv2.Laplacian(image.astype(np.float32) @ LUMA.astype(np.float32), cv2.CV_32F)).mean())


@pytest.mark.parametrize("condition", CONDITIONS)
@given(
    height=st.integers(LEAST_SIDE, 90),
    width=st.integers(LEAST_SIDE, 90),
    image_id=st.text(max_size=8),
    shade=st.integers(0, 255),
)
@settings(max_examples=8, deadline=None)
def test_a_picture_of_any_size_keeps_its_size_and_gets_the_same_weather_again(
    condition, height, width, image_id, shade
):
    image = np.full((height, width, 3), shade, np.uint8)
    before = image.copy()
    made = weathered(image, condition, image_id)
    assert (made.shape, made.dtype) == (image.shape, np.uint8)
    assert np.array_equal(made, weathered(image, condition, image_id))
    assert np.array_equal(image, before)
    assert not np.shares_memory(made, image)


def test_normal_weather_changes_nothing_and_any_other_does():
    image = street()
    assert np.array_equal(weathered(image, "normal", "a"), image)
    assert all((weathered(image, name, "a") != image).any() for name in CONDITIONS[1:])


@pytest.mark.parametrize("condition", CONDITIONS[1:])
def test_two_ids_get_two_weathers(condition):
    assert not np.array_equal(weathered(street(), condition, "a"), weathered(street(), condition, "b"))


@pytest.mark.parametrize("image_id", ["a", "b", "c"])
def test_dark_takes_light_and_over_exposure_burns_out(image_id):
    image = street()
    for name in CONDITIONS:
        made = weathered(image, name, image_id)
        if name.startswith("dark"):
            assert made.mean() < 0.65 * image.mean(), name
    light = weathered(image, "light", image_id)
    assert light.mean() > image.mean() + 30
    assert (light == 255).mean() > (image == 255).mean() + 0.1


@pytest.mark.parametrize("size", [64, 160, 512])
@pytest.mark.parametrize("condition", ["rain", "snow", "rain_snow"])
def test_drops_and_flakes_add_fine_structure_at_any_size(condition, size):
    image = street(size, size)
    assert fine_energy(weathered(image, condition, "a")) > 1.5 * fine_energy(image)


@pytest.mark.parametrize("condition", ["rain", "snow", "wind"])
def test_weather_covers_as_much_of_a_large_picture_as_of_a_small_one(condition):
    flat = {size: np.full((size, size, 3), 60, np.uint8) for size in (96, 256, 1024)}
    means = [weathered(image, condition, "a").mean() for image in flat.values()]
    assert max(means) - min(means) < 0.1 * max(means)


@pytest.mark.parametrize("condition", COMBINED)
def test_a_combination_is_none_of_its_parts(condition):
    image = street()
    made = weathered(image, condition, "a").astype(int)
    for part in COMBINED[condition]:
        assert np.abs(made - weathered(image, part, "a")).mean() > 3, part


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("image_id", ["a", "b", "c"])
def test_the_person_can_still_be_told_from_the_ground(condition, image_id):
    image = street()
    made = weathered(image, condition, image_id).astype(float)
    height, width = image.shape[:2]
    person = made[height // 3 : 2 * height // 3, 9 * width // 20 : 11 * width // 20].mean((0, 1))
    ground = made[height // 3 : 2 * height // 3, : width // 5].mean((0, 1))
    assert np.abs(person - ground).max() > 6


def test_the_pixels_do_not_depend_on_the_process():
    program = (
        "import numpy as np, hashlib; from pipeline.core.weather import *; i = np.full((40, 50, 3), 90, np.uint8);"
        "print(hashlib.sha256(b''.join(weathered(i, c, 'a').tobytes() for c in CONDITIONS)).hexdigest())"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
            env={"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


@pytest.mark.parametrize(
    ("image", "condition", "says"),
    [
        (np.zeros((30, 30, 3), np.uint8), "fog", "no condition"),
        (np.zeros((30, 30, 3), np.float32), "rain", "uint8"),
        (np.zeros((30, 30), np.uint8), "rain", "uint8"),
        (np.zeros((27, 30, 3), np.uint8), "rain", "too small"),
    ],
)
def test_what_is_no_picture_or_condition_is_told(image, condition, says):
    with pytest.raises(ValueError, match=says):
        weathered(image, condition, "a")
