"""RTMPose in the environment that mmpose has for itself: a server on its standard input and output.

    .venv-mmpose/bin/python -I pipeline/backends/mmpose_child.py serve CONFIG CHECKPOINT DEVICE BATCH
    .venv-mmpose/bin/python -I pipeline/backends/mmpose_child.py convert IN.pth OUT.safetensors
    .venv-mmpose/bin/python -I pipeline/backends/mmpose_child.py random CONFIG OUT.safetensors [SEED]

Nothing of the project can be imported here. A message is four bytes (big-endian) with the length of a JSON header, the
header, and as many raw bytes as its `bytes` says. Asked is with the shapes of RGB images, whose pixels are the bytes,
and the boxes in each; the answer has float32 (people, 17, 3): x, y in pixels and score. CONFIG is the name of one of
the configurations that mmpose brings; CHECKPOINT a .safetensors file or a .pth file.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

COCO_JOINTS = (
    *("nose", "left_eye", "right_eye", "left_ear", "right_ear", "left_shoulder", "right_shoulder", "left_elbow"),
    *("right_elbow", "left_wrist", "right_wrist", "left_hip", "right_hip", "left_knee", "right_knee"),
    *("left_ankle", "right_ankle"),
)
LONGEST_HEADER = 1 << 24


# --- messages -----------------------------------------------------------------------------------------------------


def packed(header: dict[str, Any], payload: bytes = b"") -> bytes:
    """A message as it is sent."""
    text = json.dumps({**header, "bytes": len(payload)}).encode()
    return struct.pack(">I", len(text)) + text + payload


def read_message(stream: BinaryIO) -> tuple[dict[str, Any], bytes] | None:
    """The next message; None where the other side has closed. Raises ValueError for what is none."""
    head = stream.read(4)
    if not head:
        return None
    (length,) = struct.unpack(">I", head)
    if length > LONGEST_HEADER:
        raise ValueError("the header of a message is too long")
    header = json.loads(stream.read(length))
    payload = stream.read(header["bytes"])
    if len(payload) != header["bytes"]:
        raise ValueError("a message ends early")
    return header, payload


def images_of(header: dict[str, Any], payload: bytes) -> list[np.ndarray]:
    """The images of a request: uint8 (H, W, 3)."""
    images, at = [], 0
    for height, width in header["images"]:
        size = height * width * 3
        images.append(np.frombuffer(payload, np.uint8, size, at).reshape(height, width, 3))
        at += size
    return images


def serve(engine: Any, asked: BinaryIO, answered: BinaryIO) -> None:
    """Answer until the other side closes. An engine that raises costs its request alone."""
    answered.write(packed({"ready": engine.about}))
    answered.flush()
    while (message := read_message(asked)) is not None:
        header, payload = message
        try:
            people = engine.estimate(images_of(header, payload), header["boxes"])
            answer = packed({"people": len(people)}, np.ascontiguousarray(people, dtype="<f4").tobytes())
        except Exception as error:
            answer = packed({"error": f"{type(error).__name__}: {error}"})
        answered.write(answer)
        answered.flush()


def end_with_parent() -> None:
    """End this process when the one that started it is gone, also in the middle of a request."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


# --- mmpose -------------------------------------------------------------------------------------------------------


def import_mmpose() -> Any:
    """The package mmpose, with stand-ins for the parts of others that it imports and RTMPose does not use.

    Its other models import compiled operators of the full mmcv, a few names of mmdet, and one of torchvision.
    """
    import importlib.machinery
    import importlib.util
    import types

    import torch

    class NeedsFullMmcv(torch.nn.Module):
        def __init__(self, *_: Any, **__: Any) -> None:
            raise ImportError("this model needs the compiled operators of the full mmcv")

    def stand_in(name: str, **names: Any) -> None:
        module = types.ModuleType(name)
        module.__path__ = []
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)  # others ask whether a package is there by it
        module.__dict__.update(names)
        sys.modules[name] = module

    operators = ("MultiScaleDeformableAttention", "DeformConv2d", "ModulatedDeformConv2d")
    if importlib.util.find_spec("mmcv._ext") is None:
        stand_in("mmcv.ops", **dict.fromkeys(operators, NeedsFullMmcv))
    if importlib.util.find_spec("mmdet") is None:
        stand_in("mmdet")
        stand_in("mmdet.utils", ConfigType=dict, reduce_mean=lambda value: value)
    if importlib.util.find_spec("torchvision") is None:
        stand_in("torchvision", __version__="0")
        stand_in("torchvision.transforms", ToPILImage=object)
    import mmpose

    return mmpose


def config_path(name: str) -> Path:
    """The configuration of that name among those of the installed mmpose; never a file from elsewhere, which could run
    anything. Raises ValueError where there is none.
    """
    folder = Path(import_mmpose().__file__).parent / ".mim" / "configs" / "body_2d_keypoint"
    found = [path for path in folder.rglob("*.py") if path.stem == name]
    if len(found) != 1:
        raise ValueError(f"mmpose has {len(found)} body configurations called '{name}'")
    return found[0]


def build_model(name: str, device: str) -> Any:
    """The network of a configuration with random weights: nothing is downloaded. Raises ValueError for other joints."""
    import_mmpose()
    from mmengine.config import Config
    from mmpose.apis import init_model

    config = Config.fromfile(config_path(name))
    _drop_downloads(config.model)
    model = init_model(config, None, device=device)
    joints = [model.dataset_meta["keypoint_id2name"][number] for number in range(model.dataset_meta["num_keypoints"])]
    if tuple(joints) != COCO_JOINTS:
        raise ValueError(f"'{name}' gives {len(joints)} joints that are not COCO's 17")
    return model


def _drop_downloads(part: Any) -> None:
    if isinstance(part, dict):
        if isinstance(part.get("init_cfg"), dict) and part["init_cfg"].get("type") == "Pretrained":
            part["init_cfg"] = None
        for value in part.values():
            _drop_downloads(value)
    elif isinstance(part, list | tuple):
        for value in part:
            _drop_downloads(value)


def load_weights(path: str) -> dict[str, Any]:
    """The tensors of a checkpoint by name.

    A .pth file is read with weights_only, which builds tensors and plain values and calls nothing else. Published files
    hold their training log besides: what that consists of is read as nothing (`_Ignored`). Raises ValueError where the
    file holds anything more.
    """
    import pickle

    import torch

    if path.endswith(".safetensors"):
        from safetensors.torch import load_file

        return load_file(path)
    try:
        with torch.serialization.safe_globals([(_Ignored, name) for name in _LOG_PARTS]):
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(f"{path} holds more than tensors and numbers, and is not loaded: {error}") from None
    weights = loaded.get("state_dict", loaded) if isinstance(loaded, dict) else {}
    if not weights or not all(isinstance(value, torch.Tensor) for value in weights.values()):
        raise ValueError(f"{path} holds no weights")
    return dict(weights)


class _Ignored:
    """Stands where a published file names a class or function of its log: takes anything and does nothing."""

    def __new__(cls, *_: Any, **__: Any) -> _Ignored:
        return super().__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __setstate__(self, _: Any) -> None:
        pass


_LOG_PARTS = (
    "mmengine.logging.history_buffer.HistoryBuffer",
    *("builtins.getattr", "__builtin__.getattr", "numpy.ndarray", "numpy.dtype"),
    *("numpy.core.multiarray._reconstruct", "numpy.core.multiarray.scalar"),
    *("numpy._core.multiarray._reconstruct", "numpy._core.multiarray.scalar"),
)


class RtmPose:
    """A top-down network of mmpose, asked as `mmpose.apis.inference_topdown` asks it, over several images at a time."""

    def __init__(self, config: str, checkpoint: str, device: str, batch: int) -> None:
        import mmengine
        import torch

        mmpose = import_mmpose()
        from mmengine.dataset import Compose
        from mmengine.registry import init_default_scope

        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self._model = build_model(config, device)
        self._model.load_state_dict(load_weights(checkpoint), strict=True)
        init_default_scope(self._model.cfg.get("default_scope", "mmpose"))
        self._prepare = Compose(self._model.cfg.test_dataloader.dataset.pipeline)
        self._batch = batch
        self.about = {"mmpose": mmpose.__version__, "mmengine": mmengine.__version__, "torch": torch.__version__}

    def estimate(self, images: list[np.ndarray], boxes: list[list[list[float]]]) -> np.ndarray:
        """float32 (people, 17, 3): joints of each box (x0, y0, x1, y1) of each RGB image, in order."""
        import torch
        from mmengine.dataset import pseudo_collate

        crops = [
            self._prepare(
                {
                    "img": np.ascontiguousarray(image[..., ::-1]),
                    "bbox": np.array([box], np.float32),
                    "bbox_score": np.ones(1, np.float32),
                    **self._model.dataset_meta,
                }
            )
            for image, own in zip(images, boxes, strict=True)
            for box in own
        ]
        people = []
        for start in range(0, len(crops), self._batch):
            with torch.no_grad():
                results = self._model.test_step(pseudo_collate(crops[start : start + self._batch]))
            for result in results:
                seen = result.pred_instances
                people.append(np.concatenate([seen.keypoints[0], seen.keypoint_scores[0][:, None]], axis=1))
        return np.array(people, np.float32).reshape(-1, len(COCO_JOINTS), 3)


def convert(source: str, target: str) -> None:
    """Write the tensors of a .pth file as .safetensors."""
    import_mmpose()
    from safetensors.torch import save_file

    save_file({name: value.contiguous() for name, value in load_weights(source).items()}, target)


def write_random(config: str, target: str, seed: int) -> None:
    """Write random weights of a configuration's network as .safetensors, for trying the way and not the answers."""
    import torch

    torch.manual_seed(seed)
    model = build_model(config, "cpu")
    from safetensors.torch import save_file

    save_file({name: value.contiguous() for name, value in model.state_dict().items()}, target)


def main(words: list[str]) -> int:
    # What libraries print must not get between the messages.
    answered = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    command, *rest = words
    try:
        if command == "serve":
            end_with_parent()
            config, checkpoint, device, batch = rest
            serve(RtmPose(config, checkpoint, device, int(batch)), sys.stdin.buffer, answered)
        elif command == "convert":
            convert(*rest)
        else:
            write_random(rest[0], rest[1], int(rest[2]) if len(rest) > 2 else 0)
    except Exception as error:
        if command != "serve":
            raise
        answered.write(packed({"error": f"{type(error).__name__}: {error}"}))
        answered.flush()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
