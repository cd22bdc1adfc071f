"""Profiles: everything that decides what a build makes, in one YAML file, validated before anything runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, ValidationError, model_serializer

from pipeline.core.errors import UserError

PROFILES_DIR = Path(__file__).resolve().parent.parent / "profiles"
DEFAULT_PROFILE = "demo"

Share = Annotated[float, Field(ge=0, le=1)]
OopsSplit = Literal["train", "val"]


class Section(BaseModel):
    """A part of a profile: frozen, and a key it does not know is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class BackendSection(Section):
    """Which engine does a job, and the engine's own settings."""

    backend: str
    settings: dict[str, Any] = {}


class OopsSection(Section):
    """The OOPS! folder. Without a root the simulator films one, as `footage` says."""

    root: Path | None = None


class FootageSection(Section):
    """How many clips the simulator films where no OOPS! folder is given."""

    engine: Literal["simulator"] = "simulator"
    train_clips: int = Field(ge=0)
    val_clips: int = Field(ge=0)
    size: int = Field(320, ge=64, le=2048)
    """Width and height of the clips, pixels."""


class TinyModelsSection(Section):
    """Models that the project writes itself, for a build that shows that the paper's engines run. They know nothing."""

    folder: Path
    seed: int = 0


class GivenCaption(Section):
    """What somebody wanted to do and what came of it, as a worker of OOPS! would have written; either may be empty."""

    goal: str = ""
    wentwrong: str = ""


class SourcesSection(BackendSection):
    """Which OOPS! splits feed captions, and what reads their subjects."""

    splits: tuple[OopsSplit, ...]
    captions: tuple[GivenCaption, ...] | None = None
    """Draw these, and none of OOPS!'s; each is a video of its own that nobody has."""


class FramesSection(Section):
    """Which OOPS! splits feed test pairs, and how a transition time is taken from the annotators' votes."""

    splits: tuple[OopsSplit, ...]
    clips: int | None = Field(None, ge=1)
    """Only so many clips, drawn by their names' digests; all where none is given."""
    clips_per_shard: int = Field(ge=1)
    transition: Literal["official", "median_valid"] = "official"
    quality_rule: bool = True
    """Keep only clips that pass OOPS!'s own rule: 3.2 to 30 s long, the failure neither at the start nor the end."""
    deadline_s: float = Field(60, gt=0)
    jpeg_quality: int = Field(95, ge=50, le=100)


class GenerateSection(BackendSection):
    """How many images a caption gets: image number k of every caption is shard train-k."""

    images_per_caption: int = Field(ge=1, le=999)
    sources: int | None = Field(None, ge=1)
    """Only the first so many source captions in the order of their ids, a video's next to each other; ids start with a
    digest of the video's name, so that it is a fair draw. All where none is given.
    """
    jpeg_quality: int = Field(95, ge=50, le=100)


class PeopleSection(Section):
    """When a real frame shows a person well enough; the fields are those of `core.pose.PeopleThresholds`."""

    min_joint_score: Share
    min_joints: int = Field(ge=0, le=17)
    min_found_score: Share
    min_person_score: Share
    min_area_share: Share


class StructureSection(Section):
    """When a generated body is whole; the fields are those of `core.pose.StructureThresholds`."""

    min_joint_score: Share
    min_joints: int = Field(ge=0, le=17)
    min_found_score: Share
    min_person_score: Share
    min_area_share: Share
    max_cut_share: Share
    border_share: Share
    max_stretch: float = Field(gt=1)
    min_limbs: int | None = Field(None, ge=0, le=4)
    max_doubled_joints: int | None = Field(None, ge=0, le=8)
    max_asymmetry: float | None = Field(None, gt=1)
    max_outside_share: float | None = Field(None, ge=0, le=1)

    @model_serializer(mode="wrap")
    def _rules_that_are_on(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # A rule that is off is no part of what a build depends on: its content keys are those of before the rule.
        return {name: value for name, value in serialize(self).items() if value is not None}


class KeypointsSection(BackendSection):
    """The pose estimator, and the two filters that judge what it found."""

    people: PeopleSection
    structure: StructureSection


class SimilaritySection(BackendSection):
    """The pair filter: a pair whose frames are more alike than this is dropped."""

    max_cosine: float = Field(ge=-1, le=1)


class ReviewSection(Section):
    """The reviewers' file (JSON Lines), where there is one, and how many must agree to keep a pair."""

    file: Path | None = None
    reviewers: int = Field(3, ge=1)


class PublishSection(Section):
    """How the dataset is cut into files."""

    rows_per_file: int = Field(ge=1)
    rows_per_group: int = Field(ge=1)
    vocabulary: bool = False
    """Whether near-duplicate labels are merged into classes: `vocabulary.json` beside the data, and columns with each
    row's class.
    """


class AuditSection(Section):
    """When two images count as near-duplicates (`pipeline.audit`); nothing is dropped for it."""

    near_duplicate_cosine: Annotated[float, Field(gt=0, le=1)] = 0.92
    """A pair at or above this is one. The scale is the similarity engine's own. By EfficientNet-Lite0 an image and the
    same one halved, moved by 4 to 12 pixels, cropped by a tenth, mirrored or as a poor JPEG have 0.92 to 0.99 in
    the median (real and simulated), different images 0.91 at most (one simulated scene drawn twice).
    """
    closest_pairs: Annotated[int, Field(ge=1, le=100)] = 6
    """Pairs of each kind that are named and drawn."""


class HardwareSection(Section):
    """The GPUs that `pipeline.plan` reckons with where the command names none; nothing else reads it."""

    gpu: str = "a100"
    gpus: int = Field(default=1, ge=1)


class Profile(Section):
    """All of a build's configuration."""

    title: str
    seed: int = 0
    out: Path
    work: Path
    workers: int = Field(ge=1, le=256)
    batch_records: int = Field(ge=1)
    """Records in one part of a shard: what a kill can cost at most."""
    take_from: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")], ...] = ()
    """Other builds in the work folder: what they made from the same is taken over, not made again (`core.takeover`)."""
    oops: OopsSection = OopsSection()
    footage: FootageSection | None = None
    tiny_models: TinyModelsSection | None = None
    sources: SourcesSection
    frames: FramesSection
    generate: GenerateSection
    keypoints: KeypointsSection
    similarity: SimilaritySection
    recaption: BackendSection
    attributes: BackendSection
    review: ReviewSection
    decompose: BackendSection
    publish: PublishSection
    audit: AuditSection = AuditSection()
    hardware: HardwareSection = HardwareSection()

    def section(self, path: str) -> Any:
        """The value at a dotted path as plain data (for content keys), e.g. `keypoints.people`."""
        value: Any = self.model_dump(mode="json")
        for name in path.split("."):
            value = value[name]
        return value


def profile_names() -> list[str]:
    """The names of the profiles that ship with the project."""
    return sorted(path.stem for path in PROFILES_DIR.glob("*.yaml"))


def load_profile(name: str = DEFAULT_PROFILE, overrides: list[str] | None = None) -> Profile:
    """The profile of that name (or that YAML file) with `key=value` overrides applied.

    Raises UserError in one line for an unknown profile, key or value.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else PROFILES_DIR / f"{name}.yaml"
    if not path.is_file():
        raise UserError(f"no profile '{name}': use one of {', '.join(profile_names())}, or the path of a .yaml file")
    try:
        data = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError):
        raise UserError(f"{path} cannot be read as UTF-8 text") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not readable YAML: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict):
        raise UserError(f"{path} must hold a mapping of sections, as the profiles in {PROFILES_DIR.name}/ do")
    for override in overrides or []:
        _apply(data, override)
    try:
        return Profile.model_validate(data)
    except ValidationError as error:
        raise UserError(f"profile '{name}': {_one_line(error)}") from None


def _apply(data: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise UserError(f"--set {override}: write it as key=value, e.g. --set generate.images_per_caption=2")
    try:
        value = yaml.safe_load(text) if text else None
    except yaml.YAMLError:
        raise UserError(f"--set {override}: '{text}' is not a YAML value") from None
    *sections, last = key.split(".")
    target = data
    for section in sections:
        if target.get(section) is None:
            target[section] = {}
        target = target[section]
        if not isinstance(target, dict):
            raise UserError(f"--set {override}: '{section}' has no keys below it")
    target[last] = value


def _one_line(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"unknown key '{where}'; {_near(where)}"
    if first["type"] == "missing":
        return f"'{where}' is missing; give it in the profile, or with --set {where}=..."
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"'{where}': {first['msg'][0].lower()}{first['msg'][1:]}, not {first.get('input')!r}{more}"


def _near(where: str) -> str:
    model: Any = Profile
    *sections, last = where.split(".")
    for section in (each for each in sections if not each.isdigit()):  # a number is a place in a list
        model = model.model_fields[section].annotation
        while not hasattr(model, "model_fields"):
            model = next(item for item in model.__args__ if item is not type(None))
    names = sorted(model.model_fields)
    import difflib

    close = difflib.get_close_matches(last, names, n=1)
    return f"did you mean '{close[0]}'?" if close else f"known here: {', '.join(names)}"


def oops_root(profile: Profile) -> Path:
    """The OOPS! folder of this profile: its own, or where the simulator's footage for it is kept."""
    if profile.oops.root is not None:
        return profile.oops.root
    if profile.footage is None:
        raise UserError("no OOPS! folder: give one with --set oops.root=FOLDER (the layout is in the README)")
    footage = profile.footage
    name = f"simulated-{footage.train_clips}-{footage.val_clips}-{footage.size}px-seed{profile.seed}"
    return Path(os.fspath(profile.work)) / "footage" / name
