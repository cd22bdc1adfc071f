"""The ResNet-50 pair filter over the real classes of transformers, built tiny with random weights."""

from pathlib import Path

import numpy as np
import pytest

from pipeline.backends.protocols import BackendContext
from pipeline.backends.resnet50 import ResNet50


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> ResNet50:
    import torch
    from transformers import ConvNextImageProcessorPil, ResNetConfig, ResNetModel

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("resnet")
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1], layer_type="basic")
    ResNetModel(config).save_pretrained(folder)
    ConvNextImageProcessorPil(size={"shortest_edge": 224}).save_pretrained(folder)
    return ResNet50(BackendContext(settings={"model": str(folder)}, build_dir=Path(), truth_dir=Path()))


def _image(seed: int, height: int = 48, width: int = 64) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def test_rows_have_length_one_and_the_width_of_the_last_stage(embedder: ResNet50) -> None:
    vectors = embedder.embed([_image(1), _image(2, 80, 40)])
    assert vectors.shape == (2, 32)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_the_same_image_has_cosine_one_and_another_less(embedder: ResNet50) -> None:
    first, again, other = embedder.embed([_image(1), _image(1), np.zeros((48, 64, 3), np.uint8)])
    assert first @ again == pytest.approx(1, abs=1e-5)
    assert first @ other < first @ again - 1e-4


def test_no_images_give_no_rows(embedder: ResNet50) -> None:
    embedder.embed([_image(1)])
    assert embedder.embed([]).shape == (0, 32)
