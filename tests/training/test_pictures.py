import io
import json
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from pipeline.core.images import ImageError, encode_jpeg, encode_png, read_image
from pipeline.core.pose import COCO_17, draw_pose_map
from pipeline.training.pictures import (
    MEAN,
    STD,
    Draw,
    draw_erased_box,
    mirrored_pose_map,
    normalised,
    read_square,
    resized,
)

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "misc.json").read_text("utf-8"))["random_erasing"]


@pytest.mark.parametrize("case", GOLDEN["boxes_top_left_bottom_right"], ids=lambda case: f"seed {case['seed']}")
def test_boxes_are_drawn_as_by_the_published_code(case):
    box = draw_erased_box(random.Random(case["seed"]), 224)
    assert (list(box) if box else None) == case["box"]


def test_as_many_pictures_are_erased_and_as_much_of_them_as_by_the_published_code():
    rng = random.Random(1)
    boxes = [draw_erased_box(rng, 224) for _ in range(3000)]
    areas = [(b - t) * (r - left) / 224**2 for t, left, b, r in filter(None, boxes)]
    assert len(areas) / 3000 == pytest.approx(GOLDEN["share_erased"], abs=0.03)
    assert np.mean(areas) == pytest.approx(GOLDEN["mean_area_when_erased"], abs=0.01)


@given(st.integers(8, 300), st.integers(0, 2**20))
def test_an_erased_box_lies_inside_and_is_smaller_than_the_picture(side, seed):
    box = draw_erased_box(random.Random(seed), side)
    if box is not None:
        top, left, bottom, right = box
        assert 0 <= top <= bottom <= side
        assert 0 <= left <= right <= side
        assert (bottom - top) < side
        assert (right - left) < side


def noise(width: int, height: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    small = rng.integers(0, 255, (height // 16, width // 16, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))


def test_a_jpeg_is_decoded_at_a_smaller_scale_not_below_the_side_and_looks_the_same():
    data = encode_jpeg(noise(1024, 1024))
    assert read_image(data, "a", least_side=224).shape == (256, 256, 3)
    assert read_image(data, "a", least_side=257).shape == (512, 512, 3)
    assert read_image(encode_jpeg(noise(1024, 512)), "a", least_side=224).shape == (256, 512, 3)
    whole = Image.fromarray(read_image(data, "a")).resize((224, 224), Image.Resampling.BICUBIC)
    difference = np.abs(read_square(data, "a", 224).astype(int) - np.asarray(whole).astype(int))
    assert difference.mean() < 1.0


def test_a_small_picture_or_a_png_is_decoded_whole():
    assert np.array_equal(read_square(encode_png(noise(224, 224)), "a", 224), noise(224, 224))
    assert read_square(encode_jpeg(noise(96, 48)), "a", 224).shape == (224, 224, 3)


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 240), st.integers(0, 9), st.booleans())
def test_a_picture_is_resized_as_by_pillow_rows_first(width, height, side, seed, extreme):
    rng = np.random.default_rng(seed)
    image = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    if extreme:
        image = (image > 127).astype(np.uint8) * 255
    rows = Image.fromarray(image).resize((side, height), Image.Resampling.BICUBIC)
    expected = np.asarray(rows.resize((side, side), Image.Resampling.BICUBIC))
    found = resized(image, side)
    assert found.shape == (side, side, 3)
    assert np.abs(found.astype(int) - expected).max() <= 2


def test_a_resized_photograph_differs_from_pillows_by_one_step_of_a_few_pixels():
    image = noise(1024, 768).copy()
    expected = np.asarray(Image.fromarray(image).resize((224, 224), Image.Resampling.BICUBIC))
    difference = np.abs(resized(image, 224).astype(int) - expected)
    assert difference.max() <= 1
    assert difference.mean() < 0.02


def test_a_broken_picture_is_an_error_with_its_name():
    with pytest.raises(ImageError, match="train/1"):
        read_square(encode_jpeg(noise(640, 640))[:900], "train/1", 64)


def test_a_picture_turned_by_its_exif_is_turned_at_a_smaller_scale_too():
    image = noise(640, 320)
    buffer, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(image).save(buffer, "JPEG", exif=exif)
    assert read_image(buffer.getvalue(), "a", least_side=100).shape == (320, 160, 3)


def test_a_picture_is_mirrored_erased_and_normalised_in_this_order():
    image = noise(64, 64)
    array = normalised(image, Draw(flip=True, erase=(10, 20, 30, 50)))
    expected = ((image[:, ::-1] / 255 - MEAN) / STD).transpose(2, 0, 1)
    assert array.dtype == np.float32
    assert not array[:, 10:30, 20:50].any()
    expected[:, 10:30, 20:50] = 0
    assert np.allclose(array, expected, atol=1e-6)


def body(shift: float = 0.0) -> np.ndarray:
    points = np.array(
        [
            *([128, 40], [134, 36], [122, 36], [142, 40], [114, 40]),
            *([158, 70], [98, 72], [180, 110], [80, 112], [190, 150], [60, 60]),
            *([150, 140], [106, 141], [152, 190], [100, 195], [154, 236], [92, 238]),
        ],
        dtype=float,
    )
    return np.column_stack([points + [shift, 0], np.ones(17)])  # noqa: RUF005


def test_a_mirrored_pose_map_is_the_map_of_the_mirrored_person():
    person = body()
    mirrored = person.copy()
    mirrored[:, 0] = 256 - person[:, 0]
    for index, name in enumerate(COCO_17):
        side, _, rest = name.partition("_")
        if side == "left":
            partner = COCO_17.index(f"right_{rest}")
            mirrored[[index, partner]] = mirrored[[partner, index]]
    found = mirrored_pose_map(draw_pose_map([person], 256, 256))[:, ::-1]
    expected = draw_pose_map([mirrored], 256, 256)
    # Limbs are painted in another order where they cross, so that a few pixels differ.
    assert (np.abs(found.astype(int) - expected).max(axis=2) > 2).mean() < 0.002
    assert (np.abs(draw_pose_map([person], 256, 256)[:, ::-1].astype(int) - expected).max(axis=2) > 2).mean() > 0.02


def test_mirroring_twice_gives_the_pose_map_back():
    pose_map = draw_pose_map([body()], 256, 256)
    assert np.abs(mirrored_pose_map(mirrored_pose_map(pose_map)).astype(int) - pose_map).max() <= 2


def test_an_empty_pose_map_stays_empty():
    assert not mirrored_pose_map(np.zeros((8, 8, 3), dtype=np.uint8)).any()
