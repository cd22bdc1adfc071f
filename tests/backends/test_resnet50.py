"""The ResNet-50 pair filter: transformers' real classes, built tiny, and torchvision's way over a stand-in for it."""

from __future__ import annotations

import importlib.machinery
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from pipeline.backends import resnet50
from pipeline.backends.protocols import BackendContext
from pipeline.backends.resnet50 import ResNet50
from pipeline.backends.tiny.pose import write_tiny_resnet
from pipeline.core.errors import UserError


def made(model: Path | str, **settings) -> ResNet50:
    return ResNet50(BackendContext(settings={"model": str(model), **settings}, build_dir=Path(), truth_dir=Path()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("resnet")
    write_tiny_resnet(path)
    return path


@pytest.fixture(scope="module")
def embedder(folder: Path) -> ResNet50:
    return made(folder)


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
    assert embedder.embed([]).shape == (0, 32)


def test_the_batch_size_changes_no_row(folder: Path, embedder: ResNet50) -> None:
    images = [_image(seed, 40 + seed, 60) for seed in range(5)]
    np.testing.assert_allclose(made(folder, batch=2).embed(images), embedder.embed(images), atol=1e-5)


def test_settings_that_make_no_sense_are_errors_before_anything_loads(folder: Path) -> None:
    with pytest.raises(UserError, match="'jax' is none of transformers, torchvision"):
        made(folder, library="jax")
    with pytest.raises(UserError, match="model: is missing"):
        ResNet50(BackendContext({}, Path(), Path()))
    with pytest.raises(UserError, match=r"similarity\.settings\.model: 'no/such' cannot be loaded"):
        made("no/such").embed([_image(1)])


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is not None, reason="it is installed here")
def test_torchvision_asked_for_and_not_there_is_an_error_that_says_what_to_use(folder: Path) -> None:
    with pytest.raises(UserError, match="torchvision is not installed; use transformers"):
        made(folder, library="torchvision")


@pytest.fixture
def torchvision(monkeypatch: pytest.MonkeyPatch) -> type:
    """A torchvision whose resnet50 is small, with a classifier called fc as the real one has."""
    import torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 12, 16, stride=16)
            self.fc = torch.nn.Linear(12, 1000)

        def forward(self, pixels):
            assert pixels.shape[1:] == (3, 224, 224)
            return self.fc(self.conv(pixels).relu().mean((2, 3)))

    package, models = types.ModuleType("torchvision"), types.ModuleType("torchvision.models")
    package.__spec__ = importlib.machinery.ModuleSpec("torchvision", None)
    models.resnet50 = lambda weights: Net()
    monkeypatch.setitem(sys.modules, "torchvision", package)
    monkeypatch.setitem(sys.modules, "torchvision.models", models)
    monkeypatch.setattr(resnet50.importlib.metadata, "version", lambda name: f"0 of {name}")
    torch.manual_seed(0)
    return Net


@pytest.mark.parametrize("ending", ["pth", "safetensors"])
def test_torchvisions_network_gives_the_features_before_its_classifier(tmp_path, torchvision, ending) -> None:
    import torch
    from safetensors.torch import save_file

    net = torchvision()
    path = tmp_path / f"resnet50.{ending}"
    save_file(net.state_dict(), path) if ending == "safetensors" else torch.save(net.state_dict(), path)
    engine = made(path, library="torchvision", device="cpu")
    assert engine.revision == "torchvision 0 of torchvision"
    vectors = engine.embed([_image(1), _image(2, 300, 500)])
    assert vectors.shape == (2, 12)
    pixels = torch.from_numpy(resnet50.as_torchvision_does(_image(1)))[None]
    wanted = net.conv(pixels).relu().mean((2, 3))[0].detach().numpy()
    np.testing.assert_allclose(vectors[0], wanted / np.linalg.norm(wanted), atol=1e-5)


def test_a_pickle_with_more_than_tensors_in_it_is_not_read_as_torchvisions_weights(tmp_path, torchvision) -> None:
    import torch

    marker = tmp_path / "was run"

    class Hostile:
        def __reduce__(self):
            return Path.touch, (marker,)

    torch.save({"conv.weight": Hostile()}, tmp_path / "bad.pth")
    with pytest.raises(UserError, match="holds no weights"):
        made(tmp_path / "bad.pth", library="torchvision").embed([_image(1)])
    assert not marker.exists()


def test_an_image_is_scaled_cut_in_the_middle_and_normalised_for_torchvision() -> None:
    image = np.zeros((256, 512, 3), np.uint8)
    image[:, 256 - 112 : 256 + 112] = (255, 0, 0)
    pixels = resnet50.as_torchvision_does(image)
    assert pixels.shape == (3, 224, 224)
    np.testing.assert_allclose(pixels[0], (1 - 0.485) / 0.229, rtol=1e-5)
    np.testing.assert_allclose(pixels[2], (0 - 0.406) / 0.225, rtol=1e-5)
