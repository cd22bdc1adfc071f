"""Hand-made labels, and how answers are held against them. Pure: no engine, no file but the labels themselves.

Captions are marked by hand: A{appearance} V{action} B{background}; words outside the marks say nothing of the picture.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.backends.protocols import FactorTexts, Person
from pipeline.core.measures import Share
from pipeline.core.text import content_words, content_words_kept

CASES = Path(__file__).resolve().parents[1] / "tests" / "cases" / "text"
HALVES = ("tuning", "untouched")

_MARK = re.compile(r"([AVB])\{([^{}]*)\}")
_FACTORS = {"A": "appearance", "V": "action", "B": "background"}


def read_labels(name: str) -> list[dict[str, Any]]:
    """The rows of a label file of `tests/cases/text`."""
    return json.loads((CASES / f"{name}.json").read_text("utf-8"))


def plain_caption(marked: str) -> str:
    """A marked caption without its marks."""
    return _MARK.sub(r"\2", marked)


def marked_words(marked: str) -> dict[str, Counter[str]]:
    """The content words under each factor's marks, counted: {"appearance": ..., "action": ..., "background": ...}."""
    found: dict[str, Counter[str]] = {factor: Counter() for factor in _FACTORS.values()}
    for mark, words in _MARK.findall(marked):
        found[_FACTORS[mark]].update(content_words(words))
    return found


@dataclass(frozen=True)
class SplitScore:
    """How a decomposition stands against the marks.

    right: content words in the factor that a person gave them. somewhere: in some factor. factors: the same as `right`
    by factor. doubled, added: words in two factors though they stand once, words the caption lacks; captions counted.
    """

    right: Share
    somewhere: Share
    factors: dict[str, Share]
    doubled: int
    added: int
    wrong: tuple[str, ...]


def score_splits(marked: Sequence[str], splits: Sequence[FactorTexts]) -> SplitScore:
    """Hold decompositions against marked captions. `wrong`: a line for each caption with a word out of its place."""
    by_factor = {factor: Share(0, 0) for factor in _FACTORS.values()}
    somewhere, doubled, added = Share(0, 0), 0, 0
    wrong = []
    for text, split in zip(marked, splits, strict=True):
        given = {factor: Counter(content_words(getattr(split, factor) or "")) for factor in by_factor}
        gold = marked_words(text)
        everywhere = sum(given.values(), Counter[str]())
        in_all = sum(gold.values(), Counter[str]())
        somewhere += Share((everywhere & in_all).total(), in_all.total())
        out_of_place = []
        for factor, words in gold.items():
            by_factor[factor] += Share((words & given[factor]).total(), words.total())
            out_of_place += [f"{word} ({factor})" for word in (words - given[factor]).elements()]
        kept = content_words_kept(plain_caption(text), split)
        doubled += bool(kept.doubled)
        added += bool(kept.added)
        if out_of_place:
            wrong.append(f"{', '.join(out_of_place)}: {plain_caption(text)}")
    right = sum(by_factor.values(), Share(0, 0))
    return SplitScore(right, somewhere, by_factor, doubled, added, tuple(wrong))


def box_overlap(one: Sequence[float], other: Sequence[float]) -> float:
    """Intersection over union of two boxes x0, y0, x1, y1; 0..1."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    if width <= 0 or height <= 0:
        return 0.0
    shared = width * height
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return shared / (sum(areas) - shared)


def joint_box(person: Person) -> tuple[float, float, float, float]:
    """The box around a person's joints, x0, y0, x1, y1 in pixels; around those that were seen, where two were."""
    seen = person.keypoints[person.keypoints[:, 2] > 0]
    points = seen if len(seen) > 1 else person.keypoints
    x0, y0 = np.min(points[:, :2], axis=0)
    x1, y1 = np.max(points[:, :2], axis=0)
    return float(x0), float(y0), float(x1), float(y1)


def matching_person(box: Sequence[float], persons: Sequence[Person], least: float = 0.3) -> int | None:
    """The number of the person whose joints lie best in a labelled box, or None where none overlaps it by `least`."""
    overlaps = [box_overlap(box, joint_box(person)) for person in persons]
    best = int(np.argmax(overlaps)) if overlaps else None
    return best if best is not None and overlaps[best] >= least else None
