"""The records that cross stage boundaries, one model a boundary.

Ids are made from a record's origin: `video_key` is ten hex digits of the video's name, a source caption is
`<video_key>_<kind>`, a generated image `<video_key>_<kind>_<image number>`, a real frame `<video_key>_<kind>_frame`.
Times are seconds, sizes and keypoints pixels, scores 0..1.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, model_validator

Kind = Literal["goal", "wentrong", "full"]
Behavior = Literal["normal", "anomaly"]
Answered = Literal["first try", "retried", "in part"]
"""What it took to get a value out of an engine: its first reply, a later one, or a part of it is null all the same."""

KINDS: tuple[Kind, ...] = ("goal", "wentrong", "full")


def behavior_of(kind: str) -> Behavior:
    """goal shows what was meant (normal); wentrong and full show the failure (anomaly)."""
    return "normal" if kind == "goal" else "anomaly"


class Model(BaseModel):
    """The base of all: frozen; unknown fields are errors, and so is text that no file can hold (half a surrogate pair,
    which JSON from outside may bring in).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="after")
    def _text_can_be_written(self) -> Self:
        for name, value in self:
            if isinstance(value, str):
                try:
                    value.encode()
                except UnicodeEncodeError:
                    raise ValueError(f"{name} is not valid text") from None
        return self


class Record(Model):
    """What every record has: an id that is its own in its stage."""

    id: str


class Engine(Model):
    """Which engine made a value: its name and the revision of its weights or code."""

    name: str
    revision: str


class PromptUsed(Model):
    """Which instruction was given: the prompt's id and the sha256 of its file."""

    id: str
    sha256: str


class SourceCaption(Record):
    """sources: an OOPS! sentence (or, for `full`, the two joined) whose subject is a person."""

    video: str
    video_key: str
    oops_split: str
    kind: Kind
    behavior: Behavior
    caption: str
    worker: int
    subject_reader: Engine


class ImageRecord(Record):
    """frames and generate: one image and where it comes from.

    image: encoded bytes. pair_id: for a real frame the video, for a generated image the source and the image number, so
    goal, wentrong and full of one person share it. transition_time_s, shown_time_s: null for generated images.
    seed, attempt, prompt: null for real frames. prompt_cut: what was left out of a prompt that was too long.
    """

    source_id: str
    pair_id: str
    video: str
    kind: Kind
    behavior: Behavior
    source_caption: str | None
    image: bytes
    width: int
    height: int
    sha256: str
    number: int | None
    transition_time_s: float | None
    wanted_time_s: float | None
    shown_time_s: float | None
    seed: int | None
    attempt: int | None
    prompt: str | None
    prompt_cut: str | None
    generator: Engine


class PersonKeypoints(Model):
    """One person: 17 COCO joints, each x, y (pixels) and score (0..1), flattened to 51 numbers; box x0, y0, x1, y1."""

    keypoints: tuple[float, ...]
    box: tuple[float, ...]
    score: float


class PeopleFound(Record):
    """keypoints, measured: the people an engine found in an image, surest first, and the image's size in pixels."""

    width: int
    height: int
    persons: tuple[PersonKeypoints, ...]
    pose_estimator: Engine


class PoseRecord(Record):
    """keypoints: the people found, the pose map drawn from them (PNG), and the scores the filter judged (JSON)."""

    persons: tuple[PersonKeypoints, ...]
    pose_map: bytes
    scores: str
    pose_estimator: Engine


class SimilarityRecord(Record):
    """similarity, kept and measured: how alike the two frames of the pair are (cosine, -1..1)."""

    pair_id: str
    cosine: float
    embedder: Engine


class FrozenReply(Model):
    """One request to an engine and its reply as it came, before any parsing.

    question: caption | action | anomaly | scene | factors. attempt: 0, 1, ... in the order asked. seed, temperature,
    max_tokens: what the request said; null for an engine that knows no such thing. text: raw, thinking and fences
    included; null with an error. finish_reason: stop | length, null where the engine does not say, as the tokens are.
    """

    question: str
    attempt: int
    seed: int | None
    temperature: float | None
    max_tokens: int | None
    text: str | None
    finish_reason: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    error: str | None


class CaptionReplies(Record):
    """recaption, measured: what the captioner replied about an image. asked: sha256 of all that it was asked with."""

    asked: str
    replies: tuple[FrozenReply, ...]
    captioner: Engine
    prompt: PromptUsed


class Recaption(Record):
    """recaption: the caption read off the image, and which reply gave it."""

    caption: str
    answered: Answered = "first try"
    captioner: Engine
    prompt: PromptUsed


class LabelReplies(Record):
    """attributes, measured: what the labeller replied to the two questions about an image, one after the other.

    asked: sha256 of all that it was asked with. asked_with: as in `Attributes`.
    """

    asked: str
    behavior: Behavior
    replies: tuple[FrozenReply, ...]
    asked_with: Literal["source caption", "re-caption"]
    labeller: Engine
    prompts: tuple[PromptUsed, ...]


class Attributes(Record):
    """attributes: action (normal images) or anomaly (anomaly images), and scene. raw: the answers as they came (JSON).

    asked_with: whether the questions held the source caption or, where the video has none, the re-caption.
    """

    action: str | None
    anomaly: str | None
    scene: str | None
    raw: str
    answered: Answered = "first try"
    asked_with: Literal["source caption", "re-caption"]
    labeller: Engine
    prompts: tuple[PromptUsed, ...]


class Review(Record):
    """review: the caption that stands after review. reviewed: whether reviewers saw the pair at all."""

    caption: str
    reviewed: bool
    corrected: bool
    votes: int


class Factors(Model):
    """A caption's appearance, action and background; null where it says nothing of that factor (SeDA)."""

    appearance: str | None
    action: str | None
    background: str | None


class FactorReplies(Record):
    """decompose, measured: what the decomposer replied to a caption. asked: sha256 of all that it was asked with."""

    asked: str
    replies: tuple[FrozenReply, ...]
    decomposer: Engine
    prompt: PromptUsed


class Decomposition(Record):
    """decompose: the factors of one caption, tied to it by the caption's sha256.

    missing: the factors that are null. unfaithful: those of them that are null because every reply said there what the
    caption does not.
    """

    caption: str
    caption_sha256: str
    factors: Factors
    missing: tuple[str, ...]
    unfaithful: tuple[str, ...] = ()
    answered: Answered = "first try"
    decomposer: Engine
    prompt: PromptUsed


class Publication(Record):
    """publish: where a record of the dataset is read from, and its hard negative (the counterpart of its source).

    hard_image_id, hard_shard: null where no counterpart survived.
    """

    split: Literal["train", "test"]
    shard: str
    hard_image_id: str | None
    hard_shard: str | None


class PublishedImage(Model):
    """An encoded image as the `Image` feature of `datasets` stores it."""

    bytes: bytes
    path: str


class PublishedRow(Model):
    """publish: one row of the dataset. Nullable fields are nullable in every shard alike."""

    image: PublishedImage
    pose: PublishedImage
    caption: str
    image_id: str
    source_id: str
    source_caption: str | None
    kind: Kind
    behavior: Behavior
    action: str | None
    anomaly: str | None
    scene: str | None
    factors: Factors
    hard_image_id: str | None
    hard_caption: str | None
    hard_factors: Factors | None
    pair_id: str
    video: str
    transition_time_s: float | None
    keypoints: tuple[PersonKeypoints, ...]
    width: int
    height: int
    sha256: str
    seed: int | None
    generator: Engine
    captioner: Engine
    labeller: Engine
    decomposer: Engine
    reviewed: bool


class ClassedRow(PublishedRow):
    """publish with `publish.vocabulary`: a row that also has the classes of its labels; null where the label is.

    They are the names of `vocabulary.json`, in which near-duplicates of a label share one class.
    """

    action_class: str | None
    anomaly_class: str | None
    scene_class: str | None


class ImportedRow(Model):
    """A row that did not come out of this project's stages: `PublishedRow`, with null where nobody knows a value.

    image_id: unique in its split. captions: all captions where there may be several; `caption` is the first of them,
    and null means that it is the only one. match_id: what images that answer each other's captions share; null means
    that an image answers its own captions alone. hard_image_id may name an image that is not in the split.
    """

    image: PublishedImage
    pose: PublishedImage | None = None
    caption: str
    captions: tuple[str, ...] | None = None
    image_id: str
    match_id: str | None = None
    source_id: str | None = None
    source_caption: str | None = None
    kind: Kind | None = None
    behavior: Behavior | None = None
    action: str | None = None
    anomaly: str | None = None
    scene: str | None = None
    factors: Factors | None = None
    hard_image_id: str | None = None
    hard_caption: str | None = None
    hard_factors: Factors | None = None
    pair_id: str | None = None
    video: str | None = None
    transition_time_s: float | None = None
    keypoints: tuple[PersonKeypoints, ...] | None = None
    width: int
    height: int
    sha256: str
    seed: int | None = None
    generator: Engine | None = None
    captioner: Engine | None = None
    labeller: Engine | None = None
    decomposer: Engine | None = None
    reviewed: bool | None = None

    @model_validator(mode="after")
    def _captions_begin_with_the_caption(self) -> Self:
        if self.captions is not None and (not self.captions or self.captions[0] != self.caption):
            raise ValueError("caption must be the first of captions")
        return self


class ImportedRejection(Model):
    """A row of other people's annotations that could not become an `ImportedRow`: where it stands, and why.

    file: relative to the folder. line, row: from 1; row counts the objects of the file, broken ones among them; line is
    null in a file that is one array.
    """

    split: str
    file: str
    line: int | None
    row: int
    image_id: str | None
    reason: str
    detail: str


class Rejection(Model):
    """A record that went no further: rejected with a reason from its stage's list, or failed with the error.

    detail: for a person to read; for a filter, the scores it judged (JSON).
    """

    id: str
    outcome: Literal["rejected", "failed"]
    reason: str
    detail: str


class PublishedRejection(Model):
    """publish: one row of the `rejected` config: which stage dropped what, and why."""

    id: str
    stage: str
    shard: str
    outcome: Literal["rejected", "failed"]
    reason: str
    detail: str
