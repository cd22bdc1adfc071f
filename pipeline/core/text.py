"""Caption cleaning as the trainers do it, and what a split of a caption keeps, loses and adds. No parser needed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

_DROPPED = re.compile(r"[,.'!?\"()*#:;~]")
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")

# Words that only hold a sentence together. Which factor they go to changes nothing, so they are not counted.
_FUNCTION_WORDS = frozenset(
    """
    a an the this that these those some any each every either neither no such same other another
    i you he she it we they me him her us them my your his its our their mine yours hers ours theirs
    himself herself itself themselves myself yourself ourselves yourselves who whom whose which what one ones
    am is are was were be been being do does did doing done has have had having can could may might must shall should
    will would get gets got getting
    and or but nor so yet if as than while when where whereas because although though since until unless whether
    of in on at by to from with without within into onto upon off over under above below up down out about across after
    against along amid among around before behind beside besides between beyond during except for inside like near
    outside past through throughout toward towards via per next
    there here then now also just only very too not s t both all
    """.split()  # noqa: SIM905 (a list literal would be one word a line)
)

# "The image shows ...", "In the picture, a man is seen ...": words about the picture as such, of no factor.
_FRAME_WORDS = frozenset(
    """
    image images picture pictures photo photos photograph photographs shows show showing shown seen depicts depict
    depicting depicted captures capture captured capturing features feature featuring pictured
    """.split()  # noqa: SIM905
)


class Factors(Protocol):
    """Anything with the three factors of a caption, each text or None."""

    @property
    def appearance(self) -> str | None: ...
    @property
    def action(self) -> str | None: ...
    @property
    def background(self) -> str | None: ...


class ContentCheck(NamedTuple):
    """Content words that a split lost (missing), brought in (added) or used more often than the caption (doubled)."""

    missing: tuple[str, ...]
    added: tuple[str, ...]
    doubled: tuple[str, ...]


def pre_caption(text: str, max_words: int = 56) -> str:
    """The caption as CMP's trainer feeds it: lower case, punctuation off, `-` and `/` blank, cut at `max_words` words.

    "" when nothing is left, where CMP's own raises ValueError; the caller drops or replaces the text and counts it.
    A full stop without a blank after it joins two words, as there: "pants.He" -> "pantshe".
    """
    lowered = _DROPPED.sub("", text.lower()).replace("-", " ").replace("/", " ").replace("<person>", "person")
    return " ".join(lowered.split()[:max_words])


def words_of(text: str) -> list[str]:
    """The words of a text in order, lower case, hyphenated ones apart ("T-shirt" -> t, shirt), apostrophes kept."""
    return [word.replace("’", "'") for word in _WORD.findall(text.lower())]


def content_words(text: str) -> list[str]:
    """The words that say something: no articles, pronouns, prepositions, auxiliaries, nor "the image shows"."""
    return [word for word in map(_bare, words_of(text)) if word not in _FUNCTION_WORDS and word not in _FRAME_WORDS]


def content_words_kept(caption: str, factors: Factors) -> ContentCheck:
    """What a split into factors did to the caption's content words, each list in the order met.

    missing: in the caption, in no factor. added: in a factor, not in the caption. doubled: of the caption, but in the
    factors more often than there. Words are compared with their endings off (slips, slipping), so that a rewriting
    engine may inflect; any other change counts as one word missing and one added.
    """
    parts = (factors.appearance, factors.action, factors.background)
    given = [(word, _stem(word)) for word in content_words(caption)]
    used = [(word, _stem(word)) for part in parts if part for word in content_words(part)]
    left = Counter(stem for _, stem in given)
    added, doubled = [], []
    for word, stem in used:
        if stem not in left:
            added.append(word)
        elif left[stem] > 0:
            left[stem] -= 1
        else:
            doubled.append(word)
    missing = []
    for word, stem in reversed(given):
        if left[stem] > 0:
            left[stem] -= 1
            missing.append(word)
    return ContentCheck(tuple(reversed(missing)), tuple(added), tuple(doubled))


def words_in_order(caption: str, part: str) -> bool:
    """Whether every word of `part`, function words too, is a word of the caption, and in the caption's order."""
    return _is_subsequence(words_of(part), words_of(caption))


def _is_subsequence(part: Iterable[str], whole: Sequence[str]) -> bool:
    rest = iter(whole)
    return all(word in rest for word in part)


def _bare(word: str) -> str:
    """The word without what an apostrophe glued to it: man's -> man, they're -> they, isn't -> not."""
    return "not" if word.endswith("n't") else word.split("'")[0]


def _stem(word: str) -> str:
    """The word without -s, -ed or -ing, a doubled consonant made single: for comparing, not for reading."""
    for ending in ("ing", "ied", "ies", "ed", "es", "s"):
        if word.endswith(ending) and len(word) - len(ending) >= 3 and not word.endswith("ss"):
            word = word[: -len(ending)] + ("y" if ending in ("ied", "ies") else "")
            break
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "aeioulsz":
        word = word[:-1]
    return word[:-1] if word.endswith("e") and len(word) > 3 else word
