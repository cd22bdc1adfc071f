"""The paper's pair filter: ResNet-50 features of a whole image, through transformers (PAB, section 3.1)."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.backends.protocols import BackendContext

_BATCH = 32


class ResNet50:
    """Pooled ResNet-50 features of length 1, weights from the folder or cached hub model named by `settings["model"]`.

    settings: model (folder or hub id), device ("cpu" where not given). Nothing is downloaded.
    """

    name = "resnet50"
    revision = f"transformers {importlib.metadata.version('transformers')}"

    def __init__(self, context: BackendContext) -> None:
        self._model_id = str(context.settings["model"])
        self._device = str(context.settings.get("device", "cpu"))
        self._model: Any = None
        self._processor: Any = None

    def embed(self, images: Sequence[np.ndarray]) -> np.ndarray:
        """float32 (N, D), each row of length 1, of uint8 (H, W, 3) RGB images."""
        import torch

        self._load()
        rows: list[np.ndarray] = []
        for start in range(0, len(images), _BATCH):
            batch = self._processor(images=list(images[start : start + _BATCH]), return_tensors="pt")
            with torch.inference_mode():
                pooled = self._model(batch["pixel_values"].to(self._device)).pooler_output.flatten(1)
            rows.append(torch.nn.functional.normalize(pooled.float(), dim=1).cpu().numpy())
        return np.concatenate(rows) if rows else np.zeros((0, self._width()), np.float32)

    def _width(self) -> int:
        return int(self._model.config.hidden_sizes[-1])

    def _load(self) -> None:
        if self._model is None:
            from transformers import ConvNextImageProcessorPil, ResNetModel

            self._model = ResNetModel.from_pretrained(self._model_id, local_files_only=True, use_safetensors=True)
            self._model.eval().to(self._device)
            self._processor = ConvNextImageProcessorPil.from_pretrained(self._model_id, local_files_only=True)
