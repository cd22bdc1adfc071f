"""What to leave out of a prompt that a text encoder cannot read whole.

A text encoder cuts a long prompt at its end, and the end of a joined caption is what went wrong. So it is cut here,
at the clause that matters least: scene before clothes before other details before actions, later ones first.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

LEFT_OUT_BETWEEN = " ... "
"""Stands between parts that were left out of different places of a prompt."""


class Weight(IntEnum):
    """How much a clause matters for the picture, least first."""

    SCENE = 0
    LOOKS = 1
    DETAIL = 2
    ACTION = 3
    SENTENCE = 4


@dataclass(frozen=True)
class Clause:
    """A piece of a prompt with the blanks and punctuation after it; the pieces in a row are the prompt.

    sentence: the number of the sentence it belongs to.
    """

    text: str
    weight: Weight
    sentence: int


_PLACES = frozenset(
    """
    air alley area arena backyard balcony bar barn basement basin bathroom bay beach bedroom building bus cafe car
    church city class classroom club corner corridor country countryside court courtyard desert distance dock door
    driveway farm fence field floor foreground forest front garage garden gym hall hallway highway hill home hotel house
    ice indoors kitchen lake lane lawn library lobby lot mall market meadow middle mountain night office outdoors park
    parking path pavement pier place plaza playground pool porch rain ramp restaurant rink river road rock roof room
    sand school sea shop shore side sidewalk sky slope slopes snow stadium stage staircase stairs stairway station store
    street streets studio sun sunset sunshine town track trail train trees tunnel village wall water weather wood woods
    yard zoo background backgrounds surroundings
    """.split()  # noqa: SIM905 (a list literal would be one word a line)
)
_AT_A_PLACE = (
    r"in front of|in the middle of|next to|on top of|close to|in|on|at|near|inside|outside|behind|beside|beneath|under"
    r"|along|alongside|around|by|beyond|below|above|among|between|surrounded by"
)
_LOOKS = r"wearing|dressed in|clad in|in an? [a-z-]+ (?:shirt|dress|suit|jacket|coat|hat|helmet|t-shirt|hoodie)"
_DETERMINER = r"an?|the|his|her|their|its|my|your|our|some|two|three|four|another|one"
_OTHER_DETAIL = (
    rf"into|onto|from|against|towards?|with|without|during|out of|after|before|while|who|which|where"
    rf"|(?:off|over|down|up|through|across)(?= (?:{_DETERMINER})\b)"  # else part of the verb: "gets up"
)
# "and", but not between two things: "a man and a woman", "a man and his dog".
_JOINED = rf"and(?! (?:{_DETERMINER})\b)|but|when|as|because|then|so|until|if|although|though|causing|making|leaving"
# The verbs that most often come after a phrase about the subject ("a man in a red shirt tries"); no parser here.
_VERB = r"tries|try|tried|attempts|attempted|is|are|was|were|has|gets"
_PEOPLE = r"m[ae]n|wom[ae]n|people|persons?|boys?|girls?|kids?|child|children|guys?|lady|ladies|someone|somebody|team"
_MERE_SCENE = re.compile(
    rf"(?!.*\b(?:{_PEOPLE})\b)(?:there (?:is|are|was|were)|the (?:background|scene|setting|weather|sky|ground))\b", re.I
)

_LOOKS_OPEN = re.compile(rf"(?:{_LOOKS})\b", re.I)
_PLACE_OPENS = re.compile(rf"(?:{_AT_A_PLACE})\b", re.I)
_DETAIL_OPENS = re.compile(rf"\(|(?:{_OTHER_DETAIL})\b", re.I)
_VERB_OPENS = re.compile(rf"(?:{_VERB})\b", re.I)
_BOUNDARY = re.compile(
    rf"(?<=[:,)])\s+|\s+(?=\()|\s+(?=(?:{_LOOKS}|{_AT_A_PLACE}|{_OTHER_DETAIL}|{_JOINED})\b)"
    rf"|(?<!who)(?<!which)(?<!that)(?<!and)(?<!but)(?<!there)\s+(?=(?:{_VERB})\b)",
    re.I,
)
_PLACE = re.compile(
    rf"(?:{_AT_A_PLACE})\b(?:\s+[\w'-]+){{0,3}}?(?:\s+(?:{'|'.join(sorted(_PLACES))})\b)+[.,:;!?)]*\s*", re.I
)
"""A place from its preposition to its noun: what comes after that is no part of it ("in the park | falls over")."""
_SENTENCE = re.compile(r".+?(?:[.!?;]+(?:\s+|$)|$)", re.S)
_SENTENCE_END = re.compile(r"[.!?;]\s*$")
_MOST_WORDS_OF_A_PHRASE = 5
"""A phrase of more words holds the verb that comes after it: "in a red shirt tries to jump"."""


def clauses_of(prompt: str) -> list[Clause]:
    """The prompt in clauses, each with its weight; their texts in a row are the prompt, character for character."""
    clauses = []
    for number, sentence in enumerate(match.group() for match in _SENTENCE.finditer(prompt)):
        if _MERE_SCENE.match(sentence):
            clauses.append(Clause(sentence, Weight.SCENE, number))
            continue
        subject_found = verb_found = False
        for text in _pieces(sentence):
            verb = bool(_VERB_OPENS.match(text)) and not verb_found
            weight = Weight.SENTENCE if verb else _weight(text, subject_found)
            if verb and clauses and clauses[-1].weight is Weight.SENTENCE and clauses[-1].sentence == number:
                clauses[-1] = Clause(clauses[-1].text + text, weight, number)
            else:
                clauses.append(Clause(text, weight, number))
            subject_found = subject_found or weight is Weight.SENTENCE
            verb_found = verb_found or verb
    return clauses


def _pieces(sentence: str) -> list[str]:
    """A sentence cut before every phrase and joined clause, and after every place."""
    cuts = {match.end() for match in _BOUNDARY.finditer(sentence)} | {0, len(sentence)}
    for start in tuple(cuts):
        place = _PLACE.match(sentence, start)
        if place is not None:
            cuts.add(place.end())
    ends = sorted(cuts)
    return [sentence[start:end] for start, end in itertools.pairwise(ends)]


def _weight(text: str, subject_found: bool) -> Weight:
    if _PLACE.fullmatch(text):
        return Weight.SCENE
    short = len(text.split()) <= _MOST_WORDS_OF_A_PHRASE
    if short and _LOOKS_OPEN.match(text):
        return Weight.LOOKS
    if short and (_PLACE_OPENS.match(text) or _DETAIL_OPENS.match(text)):
        return Weight.DETAIL
    return Weight.ACTION if subject_found else Weight.SENTENCE


def cut_prompt(prompt: str, count: Callable[[str], int], limit: int) -> tuple[str, str | None]:
    """The prompt in at most `limit` tokens, and what was left out of it, None where nothing was.

    count: how many tokens a text has, those around it included. Whole clauses are left out while that is enough, the
    least weighty first, of equal ones the last; then the first clause loses words from its end. Words are never
    changed. Raises ValueError where not even one character fits.
    """
    if count(prompt) <= limit:
        return prompt, None
    clauses = clauses_of(prompt)
    heads = [index for index, clause in enumerate(clauses) if clause.weight is Weight.SENTENCE]
    first = heads[0] if heads else 0
    order = sorted((index for index in range(len(clauses)) if index != first), key=lambda i: (clauses[i].weight, -i))
    kept = set(range(len(clauses)))
    for index in order:
        kept.discard(index)
        if count(_joined(clauses, kept)) <= limit:
            break
    else:
        return _shortened(clauses, first, count, limit)
    # A long clause that had to go may have made room for a short one that went before it, in a sentence that stands.
    for index in reversed(order):
        headless = clauses[index].sentence not in {clauses[each].sentence for each in kept}
        if index not in kept and not headless and count(_joined(clauses, kept | {index})) <= limit:
            kept.add(index)
    return _joined(clauses, kept), _left_out(clauses, kept)


def _joined(clauses: Sequence[Clause], kept: Iterable[int]) -> str:
    kept = set(kept)
    text = ""
    for index, clause in enumerate(clauses):
        if index in kept:
            text += clause.text
        elif _SENTENCE_END.search(clause.text) and text and not _SENTENCE_END.search(text):
            text = f"{text.rstrip(' ,:')}. "  # the sentence lost its end, not its full stop
    return _tidy(text)


def _tidy(text: str) -> str:
    """The text without the comma or colon that a left-out clause leaves hanging before a full stop or at the end."""
    return re.sub(r"[,:\s]+(?=[.!?;]|$)", "", text).strip()


def _left_out(clauses: Sequence[Clause], kept: set[int]) -> str:
    parts: list[str] = []
    previous = None
    for index, clause in enumerate(clauses):
        if index in kept:
            continue
        if previous is not None and previous == index - 1:
            parts[-1] += clause.text
        else:
            parts.append(clause.text)
        previous = index
    return LEFT_OUT_BETWEEN.join(part.strip() for part in parts)


def _shortened(clauses: Sequence[Clause], only: int, count: Callable[[str], int], limit: int) -> tuple[str, str]:
    """The one clause left, cut after its last word that fits, or inside its first word where not even that does."""
    text = clauses[only].text
    ends = [match.end() for match in re.finditer(r"\S+", text)]
    fitting = _longest(text, ends, count, limit) or _longest(text, range(1, ends[0] + 1 if ends else 1), count, limit)
    if fitting is None:
        raise ValueError(f"not even one character of the prompt fits into {limit} tokens")
    rest = [*(clause.text for clause in clauses[:only]), text[fitting:], *(each.text for each in clauses[only + 1 :])]
    before, after = "".join(rest[:only]).strip(), "".join(rest[only:]).strip()
    return _tidy(text[:fitting]), LEFT_OUT_BETWEEN.join(part for part in (before, after) if part)


def _longest(text: str, ends: Iterable[int], count: Callable[[str], int], limit: int) -> int | None:
    """The last of the ends, in order, up to which the text fits; None where none does."""
    found = None
    for end in ends:
        if count(_tidy(text[:end])) > limit:
            break
        found = end
    return found
