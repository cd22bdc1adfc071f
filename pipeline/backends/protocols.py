"""The small protocol each outside engine answers to, one a job, and the plain values that cross it.

A stage knows these protocols and nothing of the engine behind them. Every backend module stays light to import: the
heavy library is imported inside the class that uses it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np


@dataclass(frozen=True)
class BackendContext:
    """What a backend may know of the build it works in.

    `settings` is the backend's own section of the profile. `truth_dir` is a folder beside the data in which an engine
    that knows the truth of its own pictures may write it; no stage reads it.
    """

    settings: Mapping[str, Any]
    build_dir: Path
    truth_dir: Path


@dataclass(frozen=True)
class Person:
    """One person seen in an image.

    keypoints: float32 (17, 3), COCO order, x and y in pixels of the image, score 0..1 (0: not seen).
    box: (x0, y0, x1, y1) in pixels. score: 0..1, how sure the engine is that this is a person.
    """

    keypoints: np.ndarray
    box: tuple[float, float, float, float]
    score: float

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Person:
        """The person of a stored `PersonKeypoints` row."""
        x0, y0, x1, y1 = row["box"]
        return cls(np.asarray(row["keypoints"], dtype=np.float32).reshape(-1, 3), (x0, y0, x1, y1), row["score"])


@dataclass(frozen=True)
class ImageRequest:
    """One image to make.

    id: the record's id. prompt: the text to draw. kind: goal | wentrong | full. identity: what goal, wentrong and full
    of one source and image number share (who it is, clothes, place). seed: of this record. attempt: 0, or 1 for the
    second try after a black image. context: what the sources say of the video as a whole, the same for all its kinds;
    an engine that can may take place and person from it where the prompt names none. float32: draw in full precision,
    asked of engines that are `DrawsInHalfPrecision` after a worthless image.
    """

    id: str
    prompt: str
    kind: str
    identity: str
    seed: int
    attempt: int = 0
    context: str = ""
    float32: bool = False


@dataclass(frozen=True)
class CaptionRequest:
    """An image to describe. persons are those the pose stage found, most certain first."""

    id: str
    image: np.ndarray
    persons: tuple[Person, ...]
    behavior: str
    source_caption: str | None
    prompt: str


@dataclass(frozen=True)
class LabelRequest:
    """An image whose action or anomaly (by `behavior`: normal | anomaly) and scene are asked for.

    prompts maps the question ("action" or "anomaly", and "scene") to the rendered instruction. source_caption is None
    where the video has none; then the re-caption stands in its place.
    """

    id: str
    image: np.ndarray
    persons: tuple[Person, ...]
    behavior: str
    source_caption: str | None
    caption: str
    prompts: Mapping[str, str]


@dataclass(frozen=True)
class Reply:
    """An engine's answer as it came, or the error it met."""

    text: str | None
    error: str | None = None


@dataclass(frozen=True)
class Labels:
    """The answers for one image: `behavior` is the action (normal) or the anomaly, `scene` the place; lower case."""

    behavior: str | None
    scene: str | None
    raw: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class FactorTexts:
    """A caption split in three; None where the caption says nothing of that factor."""

    appearance: str | None
    action: str | None
    background: str | None


@dataclass(frozen=True)
class ChatRequest:
    """One question to a chat model: an image (or none) before an instruction.

    id: whose question it is, for messages and logs only. schema: the JSON schema that constrains the answer, or None
    for free text. max_tokens: most tokens of the answer. seed and temperature: of the sampling, 0 for greedy.
    image: uint8 (H, W, 3) RGB; requests about one image stand next to each other, so that its cache is hit.
    """

    id: str
    text: str
    image: np.ndarray | None = None
    schema: Mapping[str, Any] | None = None
    max_tokens: int = 256
    seed: int = 0
    temperature: float = 0.0


@dataclass(frozen=True)
class ChatReply:
    """A chat model's answer as it came, or the error that took its place.

    text: raw, thinking and fences included; None with an error. finish_reason: `stop` or `length` (cut at max_tokens).
    prompt_tokens, completion_tokens: as the engine counted them, None where it does not say.
    """

    text: str | None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    error: str | None = None


class TextToImage(Protocol):
    """Draws what a text says."""

    name: str
    revision: str

    def generate(self, requests: Sequence[ImageRequest]) -> list[np.ndarray]:
        """One image a request, in order: uint8 (H, W, 3) RGB, or float (H, W, 3) in 0..1 before any rounding."""
        ...


@runtime_checkable
class CutsPrompts(Protocol):
    """What a `TextToImage` also is whose text encoder reads only so much of a prompt."""

    def cut(self, prompt: str) -> tuple[str, str | None]:
        """The prompt as it will be read whole, and what was left out of it for that; None where nothing was."""
        ...


@runtime_checkable
class DrawsInHalfPrecision(Protocol):
    """What a `TextToImage` also is whose numbers may overflow, and that can draw a request in float32 instead."""

    float32_revision: str | None
    """The revision of the images that it draws in float32; None where all are."""


class PoseEstimator(Protocol):
    """Finds people and their joints."""

    name: str
    revision: str

    def estimate(self, images: Sequence[np.ndarray]) -> list[list[Person]]:
        """The people of each uint8 (H, W, 3) RGB image, surest first; an empty list where there is none."""
        ...


class ImageEmbedder(Protocol):
    """Turns images into vectors whose cosine tells how alike they look."""

    name: str
    revision: str

    def embed(self, images: Sequence[np.ndarray]) -> np.ndarray:
        """float32 (N, D), each row of length 1."""
        ...


class ChatModel(Protocol):
    """A language model, with or without eyes, behind Captioner, Labeller and Decomposer."""

    name: str
    revision: str

    def chat(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        """One reply a request, in order; a request that fails gets a reply with an error, never an exception."""
        ...


class Captioner(Protocol):
    """Describes the people in an image."""

    name: str
    revision: str

    def caption(self, requests: Sequence[CaptionRequest]) -> list[Reply]:
        """One reply a request, in order."""
        ...


class Labeller(Protocol):
    """Names the action or anomaly of an image, and its scene."""

    name: str
    revision: str

    def label(self, requests: Sequence[LabelRequest]) -> list[Labels]:
        """One answer a request, in order."""
        ...


class Decomposer(Protocol):
    """Splits a caption into appearance, action and background without adding to it."""

    name: str
    revision: str

    def decompose(self, captions: Sequence[str], prompt: str) -> list[FactorTexts]:
        """One split a caption, in order."""
        ...


class SubjectReader(Protocol):
    """Tells whether a short caption's subject is a person."""

    name: str
    revision: str

    def subjects_are_people(self, captions: Sequence[str]) -> list[bool]:
        """One answer a caption, in order; False for an empty one."""
        ...
