"""Keypoints by mmpose's RTMPose, which lives in an environment of its own and is crossed by arrays.

pip cannot join mmpose with the rest, so `docker/mmpose-env.sh` makes .venv-mmpose, and a child process there
(`mmpose_child.py`) is sent the pixels and boxes of images and answers with joints. RTMPose wants to know where people
are: here a person detector of transformers tells it, or the whole image is one person's box.

The child is started with the first image and ends with this process. Where it crashes or does not answer in time it is
started anew and asked once more about a single image; several images raise, so that the stage asks one by one and the
image that is at fault fails alone.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import tempfile
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from pipeline.backends import mmpose_child
from pipeline.backends.local_weights import choice_setting, count_setting, number_setting, text_setting
from pipeline.backends.person_boxes import SETTINGS as DETECTOR_SETTINGS
from pipeline.backends.person_boxes import SMALLEST_SIDE, WHERE, PersonBox, PersonDetector
from pipeline.backends.protocols import BackendContext, Person
from pipeline.core.errors import UserError
from pipeline.core.pose import COCO_17

MMPOSE_VERSION = "1.3.2"
PYTHON = ".venv-mmpose/bin/python"
_CHILD = Path(mmpose_child.__file__)
_LOG_TAIL = 400
_PIECE = 1 << 20


class ChildError(RuntimeError):
    """The child process crashed, hung, or could not answer about an image."""


class MMPose:
    """`PoseEstimator` by RTMPose (or another top-down network of mmpose with COCO's 17 joints). Settings:

    model: name of a configuration that mmpose brings, e.g. rtmpose-m_8xb256-420e_coco-256x192. checkpoint: its weights,
    .safetensors or .pth (of which nothing but tensors and numbers is read). python (.venv-mmpose/bin/python): the
    interpreter of its environment. boxes: `detector` (default), with the settings of `PersonDetector`, or `image`: the
    whole image is the box of one person. device ("auto") of both networks, batch (16), timeout_s (300): for one batch;
    start_timeout_s (300): for the start.
    """

    name = "mmpose"
    revision = f"1+mmpose-{MMPOSE_VERSION}"

    def __init__(self, context: BackendContext) -> None:
        """Starts nothing: the child comes with the first image. Raises UserError for a setting that makes no sense, and
        where the interpreter or the weights are not there.
        """
        settings = context.settings
        self._config = text_setting(settings, "model", WHERE)
        self._checkpoint = Path(text_setting(settings, "checkpoint", WHERE))
        self._python = Path(text_setting(settings, "python", WHERE, PYTHON))
        self._device = text_setting(settings, "device", WHERE, "auto")
        self._batch = count_setting(settings, "batch", WHERE, 16)
        self._timeout = number_setting(settings, "timeout_s", WHERE, 300, least=0.1)
        self._start_timeout = number_setting(settings, "start_timeout_s", WHERE, 300, least=0.1)
        boxes = choice_setting(settings, "boxes", WHERE, ("detector", "image"), "detector")
        own = {key: settings[key] for key in DETECTOR_SETTINGS if key in settings}
        self._detector = PersonDetector(own) if boxes == "detector" else None
        self._child: _Child | None = None

    def estimate(self, images: Sequence[np.ndarray]) -> list[list[Person]]:
        """The people of each uint8 (H, W, 3) RGB image, surest first; keypoints float32 (17, 3), COCO order, pixels.

        A person's score is the detector's; where the whole image is the box, the mean of the joints' scores. Raises
        ChildError where the child crashes over these images, UserError where it cannot start.
        """
        found: list[list[Person]] = []
        for start in range(0, len(images), self._batch):
            some = [np.ascontiguousarray(image) for image in images[start : start + self._batch]]
            boxes = self._detector.detect(some) if self._detector else [_whole(image) for image in some]
            found += self._people(some, boxes)
        return found

    def close(self) -> None:
        """End the child; the next image starts another."""
        if self._child is not None:
            self._child.end()
            self._child = None

    def _people(self, images: list[np.ndarray], boxes: list[list[PersonBox]]) -> list[list[Person]]:
        asked = [index for index, own in enumerate(boxes) if own]
        if not asked:
            return [[] for _ in images]
        joints = iter(self._ask([images[index] for index in asked], [boxes[index] for index in asked]))
        return [[self._person(next(joints), each) for each in own] for own in boxes]

    def _person(self, joints: np.ndarray, box: PersonBox) -> Person:
        joints = joints.copy()
        joints[:, 2] = joints[:, 2].clip(0, 1)  # SimCC's maxima may lie a little beyond 1
        score = box.score if self._detector else float(joints[:, 2].mean())
        return Person(joints, box.box, score)

    def _ask(self, images: list[np.ndarray], boxes: list[list[PersonBox]]) -> np.ndarray:
        header = {
            "images": [image.shape[:2] for image in images],
            "boxes": [[each.box for each in own] for own in boxes],
        }
        message = mmpose_child.packed(header, b"".join(image.tobytes() for image in images))
        wanted = sum(len(own) for own in boxes)
        for chance in (1, 0) if len(images) == 1 else (0,):
            child = self._running()
            try:
                reply, payload = child.exchange(message, self._timeout)
            except ChildError:
                self.close()
                if not chance:
                    raise
                continue
            if "error" in reply:
                raise ChildError(reply["error"])
            if len(payload) != wanted * len(COCO_17) * 3 * 4:
                raise ChildError(f"{len(payload)} bytes of joints came for {wanted} people")
            return np.frombuffer(payload, dtype="<f4").astype(np.float32).reshape(wanted, len(COCO_17), 3)
        raise AssertionError("unreachable")

    def _running(self) -> _Child:
        if self._child is None:
            for setting, path in (("python", self._python), ("checkpoint", self._checkpoint)):
                if not path.is_file():
                    remedy = "run sh docker/mmpose-env.sh" if setting == "python" else "name its .safetensors or .pth"
                    raise UserError(f"{WHERE}.{setting}: {path} is not there: {remedy}")
            # Not through `resolve`: a virtual environment's python is a link, and knows its environment by the link.
            words = [str(self._python.absolute()), "-I", str(_CHILD), "serve"]
            words += [self._config, str(self._checkpoint.absolute()), self._device, str(self._batch)]
            child = _Child(words)
            try:
                reply, _ = child.exchange(b"", self._start_timeout)
            except ChildError as error:
                child.end()
                raise UserError(f"{WHERE}: mmpose does not start: {error}") from None
            if "ready" not in reply:
                child.end()
                raise UserError(f"{WHERE}: mmpose does not start: {reply.get('error', reply)}")
            if reply["ready"].get("mmpose") != MMPOSE_VERSION:
                child.end()
                raise UserError(f"{WHERE}.python: mmpose {MMPOSE_VERSION} is needed there: run sh docker/mmpose-env.sh")
            self._child = child
        return self._child


def _whole(image: np.ndarray) -> list[PersonBox]:
    height, width = image.shape[:2]
    return [PersonBox((0.0, 0.0, float(width), float(height)), 1.0)] if min(height, width) >= SMALLEST_SIDE else []


class _Child:
    """The process in the other environment, and one message there and one back at a time."""

    def __init__(self, words: list[str]) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the process)
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log)
        self._end = weakref.finalize(self, _end, self._process, self._log)  # also when this process ends
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        for end in (self._in, self._out):
            os.set_blocking(end, False)

    def end(self) -> None:
        self._end()

    def exchange(self, message: bytes, timeout: float) -> tuple[dict[str, Any], bytes]:
        """Send a message (none where it is empty) and read one. Raises ChildError where the child ends, sends what is
        no message, or takes longer than timeout seconds.
        """
        deadline = time.monotonic() + timeout
        left, came = memoryview(message), bytearray()
        with selectors.DefaultSelector() as ready:
            ready.register(self._out, selectors.EVENT_READ)
            if left:
                ready.register(self._in, selectors.EVENT_WRITE)
            while not _is_whole(came):
                wait = deadline - time.monotonic()
                if wait <= 0:
                    raise ChildError(f"no answer within {timeout:g} s")
                for key, _ in ready.select(wait):
                    if key.fd == self._out:
                        piece = os.read(self._out, _PIECE)
                        if not piece:
                            raise ChildError(f"the process in the other environment ended{self._said()}")
                        came += piece
                    else:
                        try:
                            left = left[os.write(self._in, left[:_PIECE]) :]
                        except BrokenPipeError:
                            left = left[:0]  # it has ended: its output says so next
                        if not left:
                            ready.unregister(self._in)
        try:
            import io

            found = mmpose_child.read_message(io.BytesIO(came))
        except (ValueError, KeyError, TypeError) as error:
            raise ChildError(f"what came back is no message: {error}") from None
        assert found is not None
        return found

    def _said(self) -> str:
        """The end of what it wrote before it ended."""
        self._process.wait(timeout=10)
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - _LOG_TAIL))
        words = " ".join(self._log.read().decode("utf-8", "replace").split())
        return f" (code {self._process.returncode}){': ... ' + words if words else ''}"


def _is_whole(came: bytearray) -> bool:
    """Whether a message has come in full, or something that cannot become one."""
    import json

    if len(came) < 4:
        return False
    length = int.from_bytes(came[:4], "big")
    if length > mmpose_child.LONGEST_HEADER:
        return True
    if len(came) < 4 + length:
        return False
    try:
        return len(came) >= 4 + length + json.loads(came[4 : 4 + length])["bytes"]
    except (ValueError, KeyError, TypeError):
        return True


def _end(process: subprocess.Popen[bytes], log: IO[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    log.close()
