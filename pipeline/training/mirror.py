"""Captions of mirrored pictures: what was on the left is on the right."""

from __future__ import annotations

import re

_OTHER_SIDE = {"left": "right", "right": "left"}
# "The right way", "left the room" and "turned right side up" are no sides of the picture; neither is "right now".
_NO_SIDE_BEFORE = frozenset({"has", "have", "had", "he", "she", "they", "it", "who", "just", "was", "be", "been"})
_NO_SIDE_AFTER = frozenset({"now", "away", "before", "after", "way", "as", "when", "behind", "next"})
_SIDE_WORDS = re.compile(r"[A-Za-z]+|[^A-Za-z]+")
_JOINED = re.compile(r"(left|right)(handed|most|ward|wards|hand)", re.IGNORECASE)


def mirrored(caption: str) -> str:
    """The caption of the picture mirrored left to right: left and right change places where they mean a side.

    Case is kept, and so is everything else. Mirroring twice gives the caption back.
    """
    parts = _SIDE_WORDS.findall(caption)
    words = [number for number, part in enumerate(parts) if part[0].isalpha()]
    found = list(parts)
    for place, number in enumerate(words):
        before = parts[words[place - 1]].lower() if place else ""
        after = parts[words[place + 1]].lower() if place + 1 < len(words) else ""
        found[number] = _other_side(parts[number], before, after)
    return "".join(found)


def _other_side(word: str, before: str, after: str) -> str:
    joined = _JOINED.fullmatch(word)
    if joined:
        return _as(joined[1], _OTHER_SIDE[joined[1].lower()]) + joined[2]
    other = _OTHER_SIDE.get(word.lower())
    if other is None or before in _NO_SIDE_BEFORE or after in _NO_SIDE_AFTER:
        return word
    return _as(word, other)


def _as(model: str, word: str) -> str:
    if model.isupper():
        return word.upper()
    return word.capitalize() if model[0].isupper() else word
