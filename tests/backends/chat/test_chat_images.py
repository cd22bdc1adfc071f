"""Which images are refused, and that large ones are capped; test_transformers_local has the model's own formula."""

from __future__ import annotations

import numpy as np

from pipeline.backends.chat.images import capped, prepared, refusal
from pipeline.backends.protocols import ChatRequest


def test_images_qwen_refuses_are_told_apart_at_the_very_edge() -> None:
    assert refusal(np.zeros((28, 28 * 200, 3), np.uint8)) is None
    assert "ratio over 200" in str(refusal(np.zeros((28, 28 * 200 + 1, 3), np.uint8)))
    assert "ratio over 200" in str(refusal(np.zeros((28 * 200 + 1, 28, 3), np.uint8)))
    assert refusal(np.zeros((28, 28, 3), np.uint8)) is None
    assert "none under 28" in str(refusal(np.zeros((27, 28, 3), np.uint8)))
    assert "none under 28" in str(refusal(np.zeros((28, 27, 3), np.uint8)))
    assert "none under 28" in str(refusal(np.zeros((0, 28, 3), np.uint8)))
    assert "not uint8" in str(refusal(np.zeros((28, 28), np.uint8)))


def test_a_small_image_is_left_alone_and_a_large_one_resized_once() -> None:
    image = np.random.default_rng(0).integers(0, 256, (200, 100, 3), dtype=np.uint8)
    assert capped(image, 200 * 112) is image
    assert capped(image, 28 * 28 * 8).shape == (28 * 4, 28 * 2, 3)
    requests = [ChatRequest("a", "one", image), ChatRequest("a", "two", image), ChatRequest("b", "three", image[:20])]
    ready, refused = prepared(requests, 28 * 28 * 8)
    assert ready[0].image is ready[1].image
    assert list(refused) == [2]
