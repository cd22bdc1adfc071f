"""A network under a named protocol: which data it is put to, what is counted, and what is left behind.

Figures of two protocols never share a table: galleries differ.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pipeline.core.errors import UserError
from pipeline.core.store import write_atomically
from pipeline.core.weather import CONDITIONS, weathered
from pipeline.formats.track4 import ANSWER, answer_text
from pipeline.retrieval import protocols
from pipeline.training import samples as sets
from pipeline.training.evaluate import Evaluation, EvaluationSettings, HeldTexts, Progress, evaluate
from pipeline.training.results import METRICS, format_metrics, format_weather, mean_of, weather_of, write_results
from pipeline.training.samples import SampleSet, load_samples, with_distractors

PAB_FAMILY = "PAB"
"""The four protocols over the test split."""
SHORT = {PAB_FAMILY: "pab", protocols.UCC: "ucc", protocols.WEATHER: "multi-weather", protocols.TRACK4: "track4"}
"""How people ask for them on the command line; TIPR sets go by their own names."""


def protocols_of(data: str, asked: str | None) -> list[str]:
    """The protocols that are asked for (names with commas between them), or the first that the data stands for.

    Raises UserError for one that the data has not.
    """
    if data.startswith(sets.TRACK4_PREFIX):
        own = [protocols.TRACK4]
    elif data.startswith(sets.TIPR_PREFIX):
        own = [sets.tipr_name(data)]
    else:
        own = [PAB_FAMILY, protocols.UCC, protocols.WEATHER]
    if asked is None:
        return own[:1]
    known = {each.lower(): each for each in own} | {SHORT.get(each, each).lower(): each for each in own}
    found: list[str] = []
    for name in asked.split(","):
        if name.strip().lower() not in known:
            there = ", ".join(SHORT.get(each, each) for each in own)
            raise UserError(f"--protocol {name.strip()}: {data} is judged by {there}")
        found.append(known[name.strip().lower()])
    return found


def set_of(data: str, protocol: str, ground_truth: Path | None = None, distractors: str | None = None) -> SampleSet:
    """What is searched in: the `ucc` split for UCC, the test split for all others.

    ground_truth: of Track 4, for `load_samples`. distractors: other data whose test images are in the gallery too, as
    Track 4 has them. Raises UserError where a split is empty.
    """
    if ground_truth is not None and protocol != protocols.TRACK4:
        raise UserError(f"--ground-truth {ground_truth}: only {protocols.TRACK4} (track4:FOLDER) takes one")
    if distractors is not None and protocol == protocols.WEATHER:
        raise UserError(
            f"--distractors {distractors}: {protocols.WEATHER} has a gallery of its own under each condition"
        )
    found = load_samples(data, "ucc" if protocol == protocols.UCC else "test", ground_truth=ground_truth)
    return found if distractors is None else with_distractors(found, load_samples(distractors, "test"))


@dataclass(frozen=True)
class Searcher:
    """A network that is put to protocols. words: makes texts into its tokens. progress: is told what is done."""

    network: Any
    words: Any
    settings: EvaluationSettings
    progress: Progress


@dataclass
class Told:
    """text: the figures for a person. paths: what was written. queries: how many were answered."""

    text: str
    paths: list[Path] = field(default_factory=list)
    queries: int = 0


def run_protocol(protocol: str, searcher: Searcher, data: SampleSet, folder: Path, about: Mapping[str, Any]) -> Told:
    """Evaluate a network under one protocol and write what it found, with `about`, into a folder. Raises UserError."""
    if protocol == protocols.WEATHER:
        return _weather(searcher, data, folder, about)
    names = protocols.PAB if protocol == PAB_FAMILY else (protocol,)
    found = evaluate(searcher.network, data, searcher.words, searcher.settings, searcher.progress, names)
    paths = write_results(folder, found, data, {**about, "protocol": protocol})
    if protocol == protocols.TRACK4:
        write_atomically(folder / ANSWER, answer(found).encode())
        paths.append(folder / ANSWER)
    return Told(format_metrics(found), paths, found.counts["queries"])


def answer(found: Evaluation) -> str:
    """Track 4's answer file: each query's first ten pictures, in the order of the queries."""
    return answer_text([[found.gallery[image].id for image in each.images] for each in found.rankings])


def _weather(searcher: Searcher, data: SampleSet, folder: Path, about: Mapping[str, Any]) -> Told:
    found: dict[str, Evaluation] = {}
    held = HeldTexts()
    drawn: list[str] = []
    for condition in CONDITIONS:
        under, own = weather_set(data, condition)
        if not own:
            drawn.append(condition)

        def tell(what: str, done: int, total: int, condition: str = condition) -> None:
            searcher.progress(f"{condition}: {what}", done, total)

        found[condition] = evaluate(
            searcher.network, under, searcher.words, searcher.settings, tell, (protocols.BEHAVIOUR,), held
        )
    told = weather_of(found)
    origin = _origin(drawn)
    first = next(iter(found.values()))
    content = {
        **about, "protocol": protocols.WEATHER, "pictures": origin, "conditions": told,
        "protocols": {protocols.WEATHER: mean_of([each.metrics[protocols.BEHAVIOUR] for each in found.values()])},
        "pair accuracy": {"queries": 0}, "fusion": first.fusion, "candidates": first.top_k, **first.counts,
        "unreadable": [f"{condition}: {name}: {why}" for condition, each in found.items()
                       for name, why in each.unreadable],
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / METRICS, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())
    text = f"{format_weather(told)}\npictures under weather: {origin}; fusion {first.fusion}"
    return Told(text, [folder / METRICS], sum(each.counts["queries"] for each in found.values()))


def _origin(drawn: Sequence[str]) -> str:
    """Where the pictures come from, given the conditions that the data has none of."""
    if not drawn:
        return "those of the data"
    here = "drawn here over the test split"
    if len(drawn) == len(CONDITIONS) - 1:
        return here
    return f"{here} ({', '.join(drawn)}); the others are those of the data"


def weather_set(data: SampleSet, condition: str) -> tuple[SampleSet, bool]:
    """The test split under a condition, and whether the data has such pictures of its own.

    What it has not is drawn over the pictures of the test split, the same way every time.
    """
    if condition == "normal":
        return data, True
    split = f"weather_{condition}"
    if _has(data.name, split):
        return load_samples(data.name, split), True
    ids = {each.image: each.id for each in data.samples}
    return replace(data, split=split, read=_Weathered(data.read, condition, ids)), False


def _has(data: str, split: str) -> bool:
    if data.startswith(sets.PAB_PREFIX):
        from pipeline.formats.pab import splits_in

        return split in splits_in(Path(data.removeprefix(sets.PAB_PREFIX)))
    return any((Path(data) / "data").glob(f"{split}-*.parquet"))


@dataclass(frozen=True)
class _Weathered:
    """Reads pictures as they are under a condition; pose maps stay as they are."""

    read: Callable[[Any, str], bytes]
    condition: str
    ids: Mapping[Any, str]

    def __call__(self, where: Any, column: str) -> bytes:
        data = self.read(where, column)
        if column != "image":
            return data
        from PIL import Image

        from pipeline.core.images import ImageError, read_image

        name = self.ids[where]
        try:
            picture = weathered(read_image(data, name), self.condition, name)
        except ValueError as error:  # too small for weather: it costs this picture, as one that cannot be read does
            raise ImageError(f"{name}: {error}") from None
        buffer = io.BytesIO()
        Image.fromarray(picture).save(buffer, "PNG", compress_level=1)
        return buffer.getvalue()
