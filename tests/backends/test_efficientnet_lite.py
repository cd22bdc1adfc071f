"""EfficientNet-Lite0 with its real weights."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import mannequin
import numpy as np
import pytest
import real_pictures

from pipeline.backends import efficientnet_lite
from pipeline.backends.efficientnet_lite import STATIC_PAIR_COSINE, EfficientNetLite0
from pipeline.backends.protocols import BackendContext
from pipeline.core.profile import load_profile

pytest.importorskip("efficientnet_lite_pytorch")
CONTEXT = BackendContext({}, Path(), Path())


@pytest.fixture(scope="module")
def embedder() -> EfficientNetLite0:
    return EfficientNetLite0(CONTEXT)


def scene(turn: float = 0, top=(200, 30, 40)) -> np.ndarray:
    joints = mannequin.joints(mannequin.STANDING, 240, (160, 290), turn)
    return mannequin.draw(joints, mannequin.Clothes(top=top), mannequin.room())


def test_rows_are_float32_of_length_one(embedder):
    rows = embedder.embed([scene(), scene(90), np.zeros((40, 90, 3), np.uint8)])
    assert rows.shape == (3, 1280)
    assert rows.dtype == np.float32
    assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    assert embedder.embed([]).shape == (0, 1280)


def test_a_row_is_the_same_bytes_alone_in_company_and_in_another_order(embedder):
    images = [scene(), scene(90), mannequin.room(500, 200)]
    rows = embedder.embed(images)
    assert embedder.embed(images[::-1])[::-1].tobytes() == rows.tobytes()
    for image, row in zip(images, rows, strict=True):
        assert EfficientNetLite0(CONTEXT).embed([image])[0].tobytes() == row.tobytes()


def test_a_frame_and_its_neighbour_are_above_the_threshold_and_a_fall_is_below(embedder):
    still = scene()
    again = np.roll(still, 1, axis=1)
    rows = embedder.embed([still, again, scene(90)])
    assert rows[0] @ rows[1] > STATIC_PAIR_COSINE
    assert rows[0] @ rows[2] < STATIC_PAIR_COSINE


def test_the_demo_drops_pairs_from_the_measured_threshold_on():
    assert load_profile("demo").similarity.max_cosine == STATIC_PAIR_COSINE


def test_the_network_knows_what_imagenet_taught_it(embedder):
    """Weights in wrong places would still give unit rows: a red disc must be nearer to an orange one than to noise."""
    import torch

    model = embedder._model
    assert not model.training
    with torch.inference_mode():
        logits = model._fc(torch.zeros(1, 1280))
    assert logits.shape == (1, 1000)
    yy, xx = np.mgrid[:224, :224]
    disc = ((yy - 112) ** 2 + (xx - 112) ** 2 < 70**2)[:, :, None]
    red, orange = (np.where(disc, color, (90, 120, 90)).astype(np.uint8) for color in ((200, 30, 30), (220, 120, 30)))
    noise = np.random.default_rng(0).integers(0, 256, (224, 224, 3), dtype=np.uint8)
    rows = embedder.embed([red, orange, noise])
    assert rows[0] @ rows[1] > rows[0] @ rows[2] + 0.2


def test_other_weights_than_the_measured_ones_are_refused(monkeypatch):
    monkeypatch.setattr(efficientnet_lite, "WEIGHTS_SHA256", "0" * 64)
    with pytest.raises(ValueError, match="sha256"):
        EfficientNetLite0(CONTEXT)


def test_the_module_imports_without_torch():
    code = "import sys, pipeline.backends.efficientnet_lite; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@real_pictures.needs_real_pictures
def test_different_real_photographs_are_far_apart(embedder):
    rows = embedder.embed([real_pictures.load(name) for name in real_pictures.NAMES])
    cosines = (rows @ rows.T)[np.triu_indices(len(rows), 1)]
    assert cosines.max() < 0.75
