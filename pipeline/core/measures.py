"""Yardsticks: shares with the count behind them, precision and recall, joints found, and what a caption's words say.

Pure functions on plain values. What is measured with them, and against which truth, is `pipeline.verify`'s business.
"""

from __future__ import annotations

import functools
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.core.text import words_of

_SENTENCE_END = re.compile(r"[.!?;]+(?=\s|$)")
_TIME_SLACK_S = 1e-6
"""Times are read from containers and files that round them."""


@dataclass(frozen=True)
class Share:
    """So many of so many."""

    right: int
    of: int

    @property
    def value(self) -> float | None:
        """0..1; None where there was no case."""
        return self.right / self.of if self.of else None

    def __add__(self, other: Share) -> Share:
        return Share(self.right + other.right, self.of + other.of)


def share(answers: Iterable[bool]) -> Share:
    """How many of the answers are yes."""
    listed = [bool(answer) for answer in answers]
    return Share(sum(listed), len(listed))


def precision_recall(cases: Iterable[tuple[bool, bool]]) -> tuple[Share, Share]:
    """Precision and recall of (said, true) cases: the share of the said that is true, of the true that was said."""
    listed = list(cases)
    return share(true for said, true in listed if said), share(said for said, true in listed if true)


def body_size(joints: Any) -> float:
    """The larger side of the box around all joints (N, 2 or more), pixels: a stand-in for the person's height."""
    points = np.asarray(joints, dtype=np.float64)[:, :2]
    return float((points.max(axis=0) - points.min(axis=0)).max())


def joints_found(found: Any, truth: Any, reach: float) -> Share:
    """Of the joints that can be seen in truth, those found within `reach` pixels of where they are (PCK).

    found, truth: (17, 3), x, y in pixels; a found joint of score 0 was not found, a true one of visibility 0 is not
    asked for. found is None where no person was found at all.
    """
    true = np.asarray(truth, dtype=np.float64)
    visible = true[:, 2] > 0
    if found is None:
        return Share(0, int(visible.sum()))
    guess = np.asarray(found, dtype=np.float64)
    near = np.hypot(*(guess - true)[:, :2].T) <= reach
    return Share(int((visible & near & (guess[:, 2] > 0)).sum()), int(visible.sum()))


def shown_index(times: Sequence[float], time: float) -> int:
    """The number of the frame shown at a time: the last that starts at or before it. times: of all frames, rising.

    Raises ValueError for a time before the first frame.
    """
    index = bisect_right(times, time + _TIME_SLACK_S) - 1
    if index < 0:
        raise ValueError(
            f"nothing is shown at {time} s: the first frame starts at {times[0] if times else 'no time'} s"
        )
    return index


def says(text: str, phrases: Iterable[str]) -> bool:
    """Whether a text has one of the phrases, by whole words; `*` at the end of a word stands for any ending."""
    words = f" {' '.join(words_of(text))} "
    return any(_compiled(phrase).search(words) for phrase in phrases)


def first_said(text: str, table: Mapping[str, Sequence[str]]) -> str | None:
    """The first row of the table, from its top, of which the text has a phrase; None where it has none."""
    return next((name for name, phrases in table.items() if says(text, phrases)), None)


@functools.lru_cache(maxsize=1024)
def _compiled(phrase: str) -> re.Pattern[str]:
    parts = phrase.replace("-", " ").split()
    words = [re.escape(word[:-1]) + r"[^ ]*" if word.endswith("*") else re.escape(word) for word in parts]
    return re.compile(rf" {' '.join(words)} ")


def colour_of(
    text: str, garments: Iterable[str], colours: Mapping[str, Sequence[str]], other_things: Iterable[str] = ()
) -> str | None:
    """The colour a caption gives a garment: that of the colour word nearest before the garment's word.

    colours: name -> its words. A colour is not looked for across the end of a sentence or a word of `other_things`
    (what else has a colour: other garments, hair, ground), so that it is not taken from there. Of several mentions the
    first that has a colour counts; None where none has.
    """
    named = {word: name for name, words in colours.items() for word in words}
    wanted, others = set(garments), set(other_things)
    for sentence in _sentences(text):
        latest: str | None = None
        for word in sentence:
            if word in wanted:
                if latest is not None:
                    return latest
            elif word in others:
                latest = None
            latest = named.get(word, latest) if word not in wanted else None
    return None


def _sentences(text: str) -> Iterator[list[str]]:
    for sentence in _SENTENCE_END.split(text):
        yield words_of(sentence)


def opening(text: str, words: int = 3) -> str:
    """The first words of a text, lower case."""
    return " ".join(words_of(text)[:words])
