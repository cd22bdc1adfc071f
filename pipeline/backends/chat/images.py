"""What Qwen2-VL refuses among images, and how a large one is made smaller before it is asked about."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from PIL import Image

from pipeline.backends.protocols import ChatReply, ChatRequest

GRID_PIXELS = 28
"""Qwen2-VL sees squares of 28 pixels a side (14 a patch, two patches merged): one token each."""
LARGEST_RATIO = 200
DEFAULT_MAX_PIXELS = 1280 * GRID_PIXELS**2
"""1280 tokens an image at most: the upper end that the model's card suggests (256 to 1280)."""


def refusal(image: np.ndarray) -> str | None:
    """Why Qwen2-VL takes no such image, or None where it does: under 28 pixels a side, or one side over 200 times the
    other (`smart_resize` of transformers and of vLLM).
    """
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        return f"the image is {image.dtype} {image.shape}, not uint8 (height, width, 3)"
    height, width = image.shape[:2]
    short, long = min(height, width), max(height, width)
    if short < GRID_PIXELS:
        return f"the image has {width} x {height} pixels, and Qwen2-VL takes none under {GRID_PIXELS} a side"
    if long / short > LARGEST_RATIO:
        return f"the image has {width} x {height} pixels, and Qwen2-VL takes no ratio over {LARGEST_RATIO}"
    return None


def capped_size(height: int, width: int, max_pixels: int) -> tuple[int, int]:
    """(height, width) of an image of that size after the cap: unchanged where the model would not make it smaller.

    Else sides of whole squares whose area is at most `max_pixels` at nearly the same ratio, as `smart_resize` rounds
    them, so that the model's own resizing then changes nothing and the image is resampled once.
    """
    if round(height / GRID_PIXELS) * round(width / GRID_PIXELS) * GRID_PIXELS**2 <= max_pixels:
        return height, width
    shrink = math.sqrt(height * width / max_pixels)
    rows = max(1, math.floor(height / shrink / GRID_PIXELS))
    columns = max(1, math.floor(width / shrink / GRID_PIXELS))
    return rows * GRID_PIXELS, columns * GRID_PIXELS


def capped(image: np.ndarray, max_pixels: int) -> np.ndarray:
    """The uint8 (H, W, 3) image, made smaller (bicubic, as the model does) where it has more than `max_pixels`."""
    height, width = image.shape[:2]
    rows, columns = capped_size(height, width, max_pixels)
    if (rows, columns) == (height, width):
        return image
    return np.asarray(Image.fromarray(image).resize((columns, rows), Image.Resampling.BICUBIC))


def prepared(
    requests: Sequence[ChatRequest], max_pixels: int, blind: str | None = None
) -> tuple[list[ChatRequest], dict[int, ChatReply]]:
    """The requests with their images capped, and for those whose image is refused, by position, the reply that says so.

    An image that several requests share stays one array. blind: the name of a model that takes no images, and so
    refuses every one.
    """
    seen: dict[int, np.ndarray] = {}
    ready, refused = [], {}
    for position, request in enumerate(requests):
        ready.append(request)
        if request.image is None:
            continue
        if reason := f"{blind} takes no images" if blind else refusal(request.image):
            refused[position] = ChatReply(None, error=reason)
            continue
        if id(request.image) not in seen:
            seen[id(request.image)] = capped(request.image, max_pixels)
        ready[position] = replace(request, image=seen[id(request.image)])
    return ready, refused
