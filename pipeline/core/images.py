"""Images in and out: whatever a file holds becomes an upright uint8 RGB array, or an error that names the file."""

from __future__ import annotations

import io
import os
import struct
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image, ImageFile, ImageOps

DEFAULT_MAX_PIXELS = 50_000_000
IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"})

# The raster formats a photograph comes in. Left out on purpose: those that Pillow hands to another program (EPS).
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")
# What Pillow and its plugins raise on bytes that are not what they claim to be.
_DECODING_ERRORS = (OSError, SyntaxError, ValueError, TypeError, KeyError, IndexError, EOFError, OverflowError,
                    ZeroDivisionError, MemoryError, struct.error, Image.DecompressionBombError)  # fmt: skip

# Of 255: an empty picture that went through a JPEG is still within this of one colour.
_BLACK_MAX = 4
_FLAT_SPREAD = 4


class ImageError(Exception):
    """An image that cannot be read: one line with its name and what is wrong with it."""


def read_image(
    data: bytes, name: str, max_pixels: int = DEFAULT_MAX_PIXELS, least_side: int | None = None
) -> np.ndarray:
    """The image as uint8 (H, W, 3) RGB, turned upright by its EXIF, transparency put on white.

    least_side: a JPEG may be decoded at a half, a quarter or an eighth of its size, as long as its shorter side keeps
    so many pixels; several times faster where a small picture is wanted.

    A truncated image is an error, not a picture filled up with grey. Raises ImageError, which names `name`, for bytes
    that are no image or a broken one, and for one of more than `max_pixels` (before its pixels are decoded).
    """
    if not data:
        raise ImageError(f"{name}: the file is empty")
    # A global of Pillow that any library may have switched on; it would pass broken files as whole ones.
    ImageFile.LOAD_TRUNCATED_IMAGES = False
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            width, height = image.size
            if width * height > max_pixels:
                raise ImageError(f"{name}: {width} x {height} pixels, the limit is {max_pixels}")
            if least_side is not None:
                image.draft(None, (least_side, least_side))
            image.load()
            upright = _upright(image)
            return np.array(_on_white(upright) if upright.has_transparency_data else _opaque(upright))
    except Image.DecompressionBombError as error:
        raise ImageError(f"{name}: too many pixels (the limit is {max_pixels})") from error
    except _DECODING_ERRORS as error:
        reason = "not an image of a known format" if isinstance(error, Image.UnidentifiedImageError) else str(error)
        raise ImageError(f"{name}: {reason or type(error).__name__}") from error


def encode_jpeg(array: np.ndarray, quality: int = 95) -> bytes:
    """The uint8 (H, W, 3) RGB array as JPEG, colours at full resolution; the same bytes each time."""
    buffer = io.BytesIO()
    Image.fromarray(_checked_uint8(array)).save(buffer, "JPEG", quality=quality, subsampling=0)
    return buffer.getvalue()


def encode_png(array: np.ndarray) -> bytes:
    """The uint8 (H, W, 3) RGB array as PNG; the same bytes each time."""
    buffer = io.BytesIO()
    Image.fromarray(_checked_uint8(array)).save(buffer, "PNG", compress_level=6)
    return buffer.getvalue()


def check_generated(array: np.ndarray) -> str | None:
    """What makes a generated image worthless: "nan_image", "black_image", "flat_image" (one colour), or None.

    array: (H, W, 3), uint8 or float in 0..1, as the engine gave it: after rounding to uint8 a NaN is a colour.
    """
    _check_shape(array)
    if np.issubdtype(array.dtype, np.floating):
        if not np.isfinite(array).all():
            return "nan_image"
        array = to_uint8(array)
    elif array.dtype != np.uint8:
        raise ValueError(f"an image is uint8 or float, not {array.dtype}")
    lowest, highest = array.min(axis=(0, 1)).astype(int), array.max(axis=(0, 1)).astype(int)
    if highest.max() <= _BLACK_MAX:
        return "black_image"
    return "flat_image" if (highest - lowest).max() <= _FLAT_SPREAD else None


def to_uint8(array: np.ndarray) -> np.ndarray:
    """The image as uint8 (H, W, 3): floats of 0..1 rounded to 0..255, those outside cut off. ValueError for NaN."""
    _check_shape(array)
    if array.dtype == np.uint8:
        return array
    if not np.issubdtype(array.dtype, np.floating):
        raise ValueError(f"an image is uint8 or float, not {array.dtype}")
    if not np.isfinite(array).all():
        raise ValueError("the image holds NaN or infinity")
    return np.rint(np.clip(array.astype(np.float64), 0.0, 1.0) * 255.0).astype(np.uint8)


def list_images(folder: Path) -> list[Path]:
    """Every image file under the folder by its name's ending in any case, sorted; links out of it are left out."""
    root = folder.resolve()
    found = []
    for directory, subfolders, names in os.walk(root):
        subfolders.sort()
        for name in names:
            path = Path(directory, name)
            if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file() and path.resolve().is_relative_to(root):
                found.append(folder / path.relative_to(root))
    return sorted(found)


def _check_shape(array: np.ndarray) -> None:
    if array.ndim != 3 or array.shape[2] != 3 or not array.size:
        raise ValueError(f"an image is (H, W, 3), not {array.shape}")


def _checked_uint8(array: np.ndarray) -> np.ndarray:
    _check_shape(array)
    if array.dtype != np.uint8:
        raise ValueError(f"an image to encode is uint8, not {array.dtype}; see to_uint8")
    return np.ascontiguousarray(array)


def _upright(image: Image.Image) -> Image.Image:
    try:
        is_turned = image.getexif().get(ExifTags.Base.Orientation, 1) != 1
        return ImageOps.exif_transpose(image) if is_turned else image  # which would copy an upright one
    except _DECODING_ERRORS:
        return image  # broken EXIF says nothing about which way is up; the pixels are whole


def _on_white(image: Image.Image) -> Image.Image:
    layer = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", layer.size, (255, 255, 255, 255)), layer).convert("RGB")


def _opaque(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        # 16 bits a pixel: Pillow's own conversion cuts off at 255 and gives white.
        return Image.fromarray((np.asarray(image).clip(0, 65535) >> 8).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise ValueError("float pixels have no agreed range")
    return image if image.mode == "RGB" else image.convert("RGB")
