"""Where the people of an image are: boxes by an object detector of transformers, for pose estimators that want them.

Made for RT-DETR (PekingU/rtdetr_r50vd_coco_o365, the detector that ViTPose's own documentation uses), which needs no
torchvision and no suppression of overlapping boxes. Any other detector of transformers that knows a class `person` does
as well (DETR, YOLOS, RT-DETRv2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.backends.local_weights import (
    DTYPES,
    choice_setting,
    count_setting,
    device_of,
    load_model,
    load_pretrained,
    number_setting,
    text_setting,
)
from pipeline.core.errors import UserError

WHERE = "keypoints.settings"
SETTINGS = ("detector", "detector_revision", "min_box_score", "max_people", "device", "dtype", "batch")
"""The settings that a pose estimator which asks the detector hands on."""
SMALLEST_SIDE = 16
"""Pixels; in an image with a shorter side nobody can be made out."""


@dataclass(frozen=True)
class PersonBox:
    """A box (x0, y0, x1, y1) in pixels, within the image, and how sure the detector is of a person in it (0..1)."""

    box: tuple[float, float, float, float]
    score: float


class PersonDetector:
    """Boxes of people, surest first. Settings:

    detector: folder or cached hub id; detector_revision: commit of the hub's ("main"). min_box_score (0.3): below it
    nobody is there. max_people (20): boxes of an image at most. device ("auto"), dtype ("float32"), batch (16): images
    at a time.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Loads nothing: the network comes with the first image. Raises UserError for a setting that makes no sense."""
        self._model_id = text_setting(settings, "detector", WHERE)
        self._revision = text_setting(settings, "detector_revision", WHERE, "main")
        self._least = number_setting(settings, "min_box_score", WHERE, 0.3, most=1)
        self._most = count_setting(settings, "max_people", WHERE, 20)
        self._device = text_setting(settings, "device", WHERE, "auto")
        self._dtype = choice_setting(settings, "dtype", WHERE, DTYPES, "float32")
        self._batch = count_setting(settings, "batch", WHERE, 16)
        self._model: Any = None
        self._processor: Any = None
        self._person = -1

    def detect(self, images: Sequence[np.ndarray]) -> list[list[PersonBox]]:
        """The people of each uint8 (H, W, 3) RGB image, surest first; none in an image of under 16 pixels.

        Raises UserError where the network cannot be loaded or knows no class `person`.
        """
        self._load()
        found: list[list[PersonBox]] = [[] for _ in images]
        seen = [index for index, image in enumerate(images) if min(image.shape[:2]) >= SMALLEST_SIDE]
        for start in range(0, len(seen), self._batch):
            some = seen[start : start + self._batch]
            for index, people in zip(some, self._detect([images[each] for each in some]), strict=True):
                found[index] = people
        return found

    def _detect(self, images: list[np.ndarray]) -> list[list[PersonBox]]:
        import torch

        inputs = self._processor(images=images, return_tensors="pt")
        # Detectors that keep an image's proportions (DETR, YOLOS) fill up the batch, and say so in a mask.
        given = {name: inputs[name].to(self._device) for name in ("pixel_values", "pixel_mask") if name in inputs}
        given["pixel_values"] = given["pixel_values"].to(self._model.dtype)
        with torch.inference_mode():
            outputs = self._model(**given)
        # Half floats have 11 bits: too few for pixels of a large image.
        outputs.logits, outputs.pred_boxes = outputs.logits.float().cpu(), outputs.pred_boxes.float().cpu()
        sizes = [image.shape[:2] for image in images]
        answers = self._processor.post_process_object_detection(outputs, threshold=self._least, target_sizes=sizes)
        return [self._people(answer, *size) for answer, size in zip(answers, sizes, strict=True)]

    def _people(self, answer: Mapping[str, Any], height: int, width: int) -> list[PersonBox]:
        people = []
        for score, label, corners in zip(
            answer["scores"].tolist(), answer["labels"].tolist(), answer["boxes"].tolist(), strict=True
        ):
            x0, x1 = (min(max(value, 0.0), float(width)) for value in (corners[0], corners[2]))
            y0, y1 = (min(max(value, 0.0), float(height)) for value in (corners[1], corners[3]))
            if label == self._person and x1 - x0 >= 1 and y1 - y0 >= 1:
                people.append(PersonBox((x0, y0, x1, y1), min(max(score, 0.0), 1.0)))
        return sorted(people, key=lambda person: (-person.score, person.box))[: self._most]

    def _load(self) -> None:
        if self._model is not None:
            return
        from transformers import AutoImageProcessor, AutoModelForObjectDetection

        setting = f"{WHERE}.detector"
        self._device = device_of(self._device)
        processor = load_pretrained(
            AutoImageProcessor, self._model_id, setting, revision=self._revision, backend="pil", trust_remote_code=False
        )
        model = load_model(
            AutoModelForObjectDetection, self._model_id, setting, self._device, self._dtype, self._revision
        )
        people = [number for number, name in model.config.id2label.items() if str(name).lower() == "person"]
        if len(people) != 1:
            raise UserError(f"{setting}: '{self._model_id}' knows {len(people)} classes called person, not one")
        self._processor, self._model, self._person = processor, model, int(people[0])
