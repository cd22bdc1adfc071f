"""The paper's pair filter: ResNet-50 features of a whole image (PAB, section 3.1), by transformers or by torchvision.

transformers' is the default and needs no torchvision. The two bring the same network from two trainings, so that their
cosines are not the same numbers. The features are those before the classifier, averaged over the image: 2048 of them.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.backends.local_weights import (
    DTYPES,
    choice_setting,
    count_setting,
    device_of,
    load_model,
    load_pretrained,
    text_setting,
)
from pipeline.backends.protocols import BackendContext
from pipeline.core.errors import UserError

WHERE = "similarity.settings"
_SHORT_SIDE, _CROP = 256, 224  # of torchvision's weights, with the mean and deviation of ImageNet
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class ResNet50:
    """`ImageEmbedder` by ResNet-50's pooled features. Settings:

    library (transformers): or torchvision, where it is installed. model: for transformers a folder or a cached hub id
    (microsoft/resnet-50), for torchvision the file of its weights, .safetensors or a .pth of tensors alone. revision:
    commit of the hub's ("main"). device ("auto"), dtype ("float32"), batch (32). Nothing is downloaded.
    """

    name = "resnet50"
    revision: str

    def __init__(self, context: BackendContext) -> None:
        """Loads nothing: the network comes with the first image. Raises UserError for a setting that makes no sense,
        and where torchvision is asked for and not installed.
        """
        settings = context.settings
        self._library = choice_setting(settings, "library", WHERE, ("transformers", "torchvision"), "transformers")
        self._model_id = text_setting(settings, "model", WHERE)
        self._model_revision = text_setting(settings, "revision", WHERE, "main")
        self._device = text_setting(settings, "device", WHERE, "auto")
        self._dtype = choice_setting(settings, "dtype", WHERE, DTYPES, "float32")
        self._batch = count_setting(settings, "batch", WHERE, 32)
        self._model: Any = None
        self._processor: Any = None
        if self._library == "torchvision" and importlib.util.find_spec("torchvision") is None:
            raise UserError(f"{WHERE}.library: torchvision is not installed; use transformers")
        self.revision = f"{self._library} {importlib.metadata.version(self._library)}"

    def embed(self, images: Sequence[np.ndarray]) -> np.ndarray:
        """float32 (N, D), each row of length 1, of uint8 (H, W, 3) RGB images."""
        import torch

        self._load()
        rows: list[np.ndarray] = []
        for start in range(0, len(images), self._batch):
            pixels = self._pixels(list(images[start : start + self._batch]))
            with torch.inference_mode():
                pooled = self._model(pixels.to(self._device, getattr(torch, self._dtype)))
            pooled = (pooled.pooler_output if self._library == "transformers" else pooled).flatten(1)
            rows.append(torch.nn.functional.normalize(pooled.float(), dim=1).cpu().numpy())
        return np.concatenate(rows) if rows else np.zeros((0, self._width()), np.float32)

    def _pixels(self, images: list[np.ndarray]) -> Any:
        import torch

        if self._library == "transformers":
            return self._processor(images=images, return_tensors="pt")["pixel_values"]
        return torch.stack([torch.from_numpy(as_torchvision_does(image)) for image in images])

    def _width(self) -> int:
        return int(self._model.config.hidden_sizes[-1]) if self._library == "transformers" else int(self._model.width)

    def _load(self) -> None:
        if self._model is not None:
            return
        self._device = device_of(self._device)
        if self._library == "torchvision":
            self._model = _torchvision_model(self._model_id, self._device, self._dtype)
            return
        from transformers import ConvNextImageProcessorPil, ResNetModel

        setting = f"{WHERE}.model"
        self._processor = load_pretrained(
            ConvNextImageProcessorPil, self._model_id, setting, revision=self._model_revision
        )
        self._model = load_model(ResNetModel, self._model_id, setting, self._device, self._dtype, self._model_revision)


def as_torchvision_does(image: np.ndarray) -> np.ndarray:
    """float32 (3, 224, 224): the shorter side at 256, the middle cut out, normalised (torchvision's ImageNet way)."""
    from PIL import Image

    height, width = image.shape[:2]
    scale = _SHORT_SIDE / min(height, width)
    size = max(_CROP, int(width * scale)), max(_CROP, int(height * scale))
    scaled = np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BILINEAR), np.float32) / 255
    left, top = round((size[0] - _CROP) / 2), round((size[1] - _CROP) / 2)
    middle = scaled[top : top + _CROP, left : left + _CROP]
    normal = (middle - np.array(_MEAN, np.float32)) / np.array(_DEVIATION, np.float32)
    return np.ascontiguousarray(normal.transpose(2, 0, 1))


def _torchvision_model(path: str, device: str, dtype: str) -> Any:
    import torch
    from torchvision.models import resnet50

    if not Path(path).is_file():
        raise UserError(f"{WHERE}.model: {path} is no file; torchvision's weights are a .safetensors or .pth file")
    model = resnet50(weights=None)
    try:
        if path.endswith(".safetensors"):
            from safetensors.torch import load_file

            model.load_state_dict(load_file(path))
        else:
            model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:
        said = " ".join(str(error).split())
        raise UserError(f"{WHERE}.model: {path} holds no weights of torchvision's ResNet-50 ({said[:200]})") from None
    model.width = model.fc.in_features
    model.fc = torch.nn.Identity()
    return model.eval().to(device, getattr(torch, dtype))
