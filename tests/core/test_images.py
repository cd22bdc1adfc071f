import io
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image, ImageFile

from pipeline.core.images import (
    ImageError,
    check_generated,
    encode_jpeg,
    encode_png,
    list_images,
    read_image,
    to_uint8,
)

CASES = Path(__file__).parents[1] / "cases"
IMAGES = CASES / "images"
EXPECTED = {case["id"]: case for case in json.loads((CASES / "images_expected.json").read_text("utf-8"))}

pictures = arrays(np.uint8, st.tuples(st.integers(1, 24), st.integers(1, 24), st.just(3)))


def read_case(case: str) -> np.ndarray:
    path = IMAGES / EXPECTED[case]["file"]
    return read_image(path.read_bytes(), path.name)


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("case", ["I01", "I07", "I09", "I10", "I12", "I30", "I36"])
def test_a_whole_image_of_any_kind_is_upright_rgb(case):
    image = read_case(case)
    expected = EXPECTED[case]["expected"]
    assert image.dtype == np.uint8
    assert image.shape[2] == 3
    if isinstance(expected, str):
        return
    if "size" in expected:
        assert [image.shape[1], image.shape[0]] == expected["size"]
    for key, value in expected.items():
        if key.startswith("pixel_"):
            x, y = (int(number) for number in key.split("_")[1:3])
            assert np.abs(image[y, x].astype(int) - value).max() <= 6


@pytest.mark.parametrize("case", ["I02", "I04", "I18"])
def test_a_broken_empty_or_huge_image_is_an_error_that_names_it(case):
    with pytest.raises(ImageError) as error:
        read_case(case)
    assert str(error.value).startswith(EXPECTED[case]["file"] + ": ")
    assert "\n" not in str(error.value)


def test_a_truncated_image_stays_an_error_when_a_library_has_allowed_them(monkeypatch):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    with pytest.raises(ImageError, match="truncated"):
        read_case("I02")


def test_the_pixel_limit_is_checked_before_the_pixels_are_decoded():
    data = (IMAGES / EXPECTED["I01"]["file"]).read_bytes()
    assert read_image(data, "a.jpg", max_pixels=128 * 192).shape == (192, 128, 3)
    header_only = data[: len(data) // 2]
    with pytest.raises(ImageError, match="128 x 192 pixels, the limit is 24575"):
        read_image(header_only, "a.jpg", max_pixels=128 * 192 - 1)


def test_the_black_picture_and_the_one_with_nan_are_told():
    assert check_generated(read_case("I22")) == "black_image"
    assert check_generated(np.load(IMAGES / EXPECTED["I26"]["file"], allow_pickle=False)) == "nan_image"


def test_a_folder_scan_finds_every_ending_and_name_and_no_link_that_leads_out(tmp_path):
    names = [path.name for path in list_images(IMAGES)]
    assert EXPECTED["I30"]["file"] in names
    assert EXPECTED["I36"]["file"] in names
    assert not any(name.endswith(".npy") for name in names)
    assert names == sorted(names)
    folder = tmp_path / "in"
    (folder / "deep").mkdir(parents=True)
    (tmp_path / "outside.png").write_bytes(b"x")
    (folder / "b.PNG").write_bytes(b"x")
    (folder / "deep/a.webp").write_bytes(b"x")
    (folder / "leak.png").symlink_to(tmp_path / "outside.png")
    (folder / "gone.png").symlink_to(tmp_path / "nothing.png")
    assert list_images(folder) == [folder / "b.PNG", folder / "deep/a.webp"]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_exif_orientation_gives_the_same_upright_picture(orientation):
    upright = np.zeros((40, 60, 3), np.uint8)
    upright[:20, :30], upright[:20, 30:], upright[20:, :30] = (250, 0, 0), (0, 250, 0), (0, 0, 250)
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: np.rot90(upright, 1),
        7: np.rot90(upright, 2).transpose(1, 0, 2),
        8: np.rot90(upright, 3),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(Image.fromarray(np.ascontiguousarray(stored)), "PNG", exif=exif)
    assert np.array_equal(read_image(data, "turned.png"), upright)


def test_transparency_is_put_on_white_in_every_mode():
    clear = Image.new("RGBA", (4, 4), (200, 0, 0, 0))
    assert (read_image(encoded(clear, "PNG"), "a.png") == 255).all()
    half = Image.new("RGBA", (4, 4), (200, 0, 0, 128))
    assert np.abs(read_image(encoded(half, "PNG"), "a.png")[0, 0].astype(int) - (227, 127, 127)).max() <= 1
    grey = Image.new("LA", (4, 4), (10, 0))
    assert (read_image(encoded(grey, "PNG"), "a.png") == 255).all()
    palette = Image.new("P", (4, 4), 1)
    palette.putpalette([0, 0, 0, 9, 9, 9])
    assert (read_image(encoded(palette, "PNG", transparency=1), "a.png") == 255).all()
    keyed = Image.new("RGB", (4, 4), (1, 2, 3))
    assert (read_image(encoded(keyed, "PNG", transparency=(1, 2, 3)), "a.png") == 255).all()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF"])
def test_each_known_format_is_read(kind):
    data = encoded(Image.new("RGB", (8, 6), (200, 100, 50)), kind)
    image = read_image(data, "a")
    assert image.shape == (6, 8, 3)
    assert np.abs(image[3, 4].astype(int) - (200, 100, 50)).max() <= 4


def test_sixteen_bits_a_pixel_keep_their_brightness():
    data = encoded(Image.fromarray(np.full((4, 4), 128 << 8, np.uint16)), "PNG")
    assert (read_image(data, "deep.png") == 128).all()


@pytest.mark.parametrize(
    "data", [b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", b"<svg/>", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"]
)
def test_what_is_no_photograph_is_refused(data):
    with pytest.raises(ImageError, match=r"^a\.jpg: "):
        read_image(data, "a.jpg")


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["ok_rgb.jpg", "cmyk.jpg", "exif_orientation6.jpg", "palette8.png"]), st.randoms())
def test_damaged_bytes_give_a_picture_or_an_image_error_and_nothing_else(name, random):
    data = bytearray((IMAGES / name).read_bytes())
    for _ in range(4):
        data[random.randrange(len(data))] = random.randrange(256)
    outcome: object
    try:
        outcome = read_image(bytes(data), name, max_pixels=200_000)
    except ImageError as error:
        outcome = str(error)
    assert outcome.startswith(name) if isinstance(outcome, str) else outcome.shape[2] == 3


@given(pictures)
def test_a_png_gives_back_every_pixel_and_the_same_bytes(picture):
    data = encode_png(picture)
    assert np.array_equal(read_image(data, "a.png"), picture)
    assert encode_png(picture.copy()) == data


@given(pictures)
def test_a_jpeg_keeps_the_size_and_gives_the_same_bytes(picture):
    data = encode_jpeg(picture)
    assert read_image(data, "a.jpg").shape == picture.shape
    assert encode_jpeg(np.asfortranarray(picture)) == data


def test_a_jpeg_keeps_the_colour_of_single_columns():
    stripes = np.zeros((16, 16, 3), np.uint8)
    stripes[:, ::2], stripes[:, 1::2] = (220, 40, 40), (40, 40, 220)
    assert np.abs(read_image(encode_jpeg(stripes), "a.jpg").astype(int) - stripes).mean() < 6


@given(
    arrays(np.float32, st.tuples(st.integers(1, 9), st.integers(1, 9), st.just(3)), elements=st.floats(-1, 2, width=32))
)
def test_floats_become_the_nearest_of_256_steps(picture):
    expected = [min(max(round(float(value) * 255), 0), 255) for value in picture.ravel()]
    assert to_uint8(picture).ravel().tolist() == expected


@given(st.sampled_from([np.nan, np.inf, -np.inf]), st.sampled_from([np.float16, np.float32, np.float64]), st.data())
def test_one_value_that_is_no_number_is_told_and_never_rounded(value, kind, data):
    picture = np.full((6, 5, 3), 0.5, kind)
    picture[tuple(data.draw(st.integers(0, size - 1)) for size in picture.shape)] = value
    assert check_generated(picture) == "nan_image"
    with pytest.raises(ValueError, match="NaN"):
        to_uint8(picture)


def test_an_empty_picture_is_told_from_a_dark_one_even_after_a_jpeg():
    black, grey = np.zeros((64, 64, 3), np.uint8), np.full((64, 64, 3), (90, 120, 60), np.uint8)
    night = black.copy()
    night[20:40, 20:40] = 30
    for turn in (lambda picture: picture, lambda picture: read_image(encode_jpeg(picture), "a.jpg")):
        assert check_generated(turn(black)) == "black_image"
        assert check_generated(turn(grey)) == "flat_image"
        assert check_generated(turn(night)) is None
    assert check_generated(black / np.float32(255)) == "black_image"
    assert check_generated(night / np.float32(255)) is None
    assert check_generated(np.ones((8, 8, 3), np.float32)) == "flat_image"


@pytest.mark.parametrize(
    "array", [np.zeros((4, 4)), np.zeros((0, 4, 3)), np.zeros((4, 4, 4)), np.zeros((4, 4, 3), int)]
)
def test_an_array_that_is_no_image_is_refused(array):
    for function in (check_generated, to_uint8, encode_jpeg, encode_png):
        with pytest.raises(ValueError, match="an image"):
            function(array)
