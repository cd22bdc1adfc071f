"""Keypoints by ViTPose through transformers, in the boxes of a person detector of transformers.

Needs nothing that the other engines of transformers do not. Of ViTPose+, which has an expert for each of the data sets
that it was trained on, the expert of COCO answers, whose 17 joints are those of this project.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
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
from pipeline.backends.person_boxes import SETTINGS as DETECTOR_SETTINGS
from pipeline.backends.person_boxes import WHERE, PersonBox, PersonDetector
from pipeline.backends.protocols import BackendContext, Person
from pipeline.core.errors import UserError
from pipeline.core.pose import COCO_17

JOINTS = len(COCO_17)


class VitPose:
    """`PoseEstimator` by ViTPose or ViTPose+, everybody the detector sees. Settings:

    model: folder or cached hub id (usyd-community/vitpose-base-simple, usyd-community/vitpose-plus-base); revision:
    commit of the hub's ("main"). dataset_index (0, COCO): the expert of a ViTPose+. device ("auto"), dtype ("float32"),
    batch (16): images at a time for the detector, people for ViTPose. detector, detector_revision, min_box_score,
    max_people: see `PersonDetector`.
    """

    name = "vitpose"
    revision = f"1+transformers-{importlib.metadata.version('transformers')}"

    def __init__(self, context: BackendContext) -> None:
        """Loads nothing: the networks come with the first image. Raises UserError for a setting that makes no sense."""
        settings = context.settings
        self._model_id = text_setting(settings, "model", WHERE)
        self._model_revision = text_setting(settings, "revision", WHERE, "main")
        self._expert = count_setting(settings, "dataset_index", WHERE, 0, least=0)
        self._device = text_setting(settings, "device", WHERE, "auto")
        self._dtype = choice_setting(settings, "dtype", WHERE, DTYPES, "float32")
        self._batch = count_setting(settings, "batch", WHERE, 16)
        self._detector = PersonDetector({key: settings[key] for key in DETECTOR_SETTINGS if key in settings})
        self._model: Any = None
        self._processor: Any = None

    def estimate(self, images: Sequence[np.ndarray]) -> list[list[Person]]:
        """The people of each uint8 (H, W, 3) RGB image, surest first; keypoints float32 (17, 3), COCO order, pixels.

        A person's score is the detector's. Raises UserError where a network cannot be loaded or gives other joints.
        """
        self._load()
        found: list[list[Person]] = []
        for start in range(0, len(images), self._batch):
            some = list(images[start : start + self._batch])
            found += self._estimate(some, self._detector.detect(some))
        return found

    def _estimate(self, images: list[np.ndarray], boxes: list[list[PersonBox]]) -> list[list[Person]]:
        import torch

        peopled = [index for index, own in enumerate(boxes) if own]
        if not peopled:
            return [[] for _ in images]
        corners = [[_corner_and_size(each) for each in boxes[index]] for index in peopled]
        pixels = self._processor([images[index] for index in peopled], boxes=corners, return_tensors="pt").pixel_values
        parts = []
        for start in range(0, len(pixels), self._batch):
            part = pixels[start : start + self._batch].to(self._device, self._model.dtype)
            experts = {"dataset_index": torch.full((len(part),), self._expert, device=self._device)}
            with torch.inference_mode():
                output = self._model(part, **(experts if self._model.config.backbone_config.num_experts > 1 else {}))
            parts.append(output.heatmaps.float().cpu())
        output.heatmaps = torch.cat(parts)
        answers = self._processor.post_process_pose_estimation(output, boxes=corners)
        people: list[list[Person]] = [[] for _ in images]
        for index, answer in zip(peopled, answers, strict=True):
            people[index] = [_person(pose, box) for pose, box in zip(answer, boxes[index], strict=True)]
        return people

    def _load(self) -> None:
        if self._model is not None:
            return
        from transformers import VitPoseForPoseEstimation, VitPoseImageProcessorPil

        setting = f"{WHERE}.model"
        self._device = device_of(self._device)
        processor = load_pretrained(VitPoseImageProcessorPil, self._model_id, setting, revision=self._model_revision)
        model = load_model(
            VitPoseForPoseEstimation, self._model_id, setting, self._device, self._dtype, self._model_revision
        )
        if model.config.num_labels != JOINTS:
            raise UserError(
                f"{setting}: '{self._model_id}' gives {model.config.num_labels} joints, not COCO's {JOINTS}"
            )
        experts = model.config.backbone_config.num_experts
        if self._expert >= experts:
            raise UserError(f"{WHERE}.dataset_index: '{self._model_id}' has {experts} experts, numbered from 0")
        self._processor, self._model = processor, model


def _corner_and_size(person: PersonBox) -> list[float]:
    """x, y, width and height, as the processor wants them."""
    x0, y0, x1, y1 = person.box
    return [x0, y0, x1 - x0, y1 - y0]


def _person(pose: Any, box: PersonBox) -> Person:
    # A heatmap's peak may lie a little beyond 0..1.
    scores = pose["scores"].numpy().clip(0, 1)
    joints = np.column_stack([pose["keypoints"].numpy(), scores]).astype(np.float32)
    return Person(joints, box.box, box.score)
