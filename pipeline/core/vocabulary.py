"""Near-duplicate labels merged into classes: falling, falls and "fell to ground" beside "falling to the ground".

By rules of English alone, without a model: endings, irregular verbs, articles, spelling, word order, words joined or
apart. Two labels that mean the same in other words (bike, bicycle) stay two classes. What a label is merged with does
not depend on the order in which labels come.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

QUESTIONS = ("action", "anomaly", "scene")
"""The columns that have a vocabulary. Verbs are brought to one form in the first two, plurals in all."""

RARER = 10
"""A misspelt word is taken for another only where the other is so many times as frequent."""
_LONG_STEM = 8

_DROPPED = frozenset(
    {
        *("a", "an", "the", "his", "her", "its", "their", "my", "your", "our", "some", "is", "are", "was", "were"),
        *("be", "being", "been", "get", "gets", "got", "getting"),
    }
)
_SAME = {"into": "in", "onto": "on", "inside": "in", "towards": "toward"}
_IRREGULAR = {
    **{
        "fell": "fall",
        "fallen": "fall",
        "lost": "lose",
        "loses": "lose",
        "ran": "run",
        "rode": "ride",
        "ridden": "ride",
    },
    **{"threw": "throw", "thrown": "throw", "caught": "catch", "swam": "swim", "drove": "drive", "driven": "drive"},
    **{"broke": "break", "broken": "break", "slid": "slide", "spun": "spin", "swung": "swing", "stood": "stand"},
    **{"sat": "sit", "lay": "lie", "lying": "lie", "hurt": "hurt", "took": "take", "taken": "take", "made": "make"},
    **{"held": "hold", "struck": "strike", "stuck": "stick", "shot": "shoot", "blew": "blow", "blown": "blow"},
    **{"flew": "fly", "flown": "fly", "dove": "dive", "bit": "bite", "bitten": "bite", "ate": "eat", "eaten": "eat"},
    **{"fought": "fight", "sang": "sing", "went": "go", "gone": "go", "goes": "go", "did": "do", "does": "do"},
    **{"had": "have", "has": "have", "came": "come", "gave": "give", "wore": "wear", "tore": "tear", "hung": "hang"},
    **{"dying": "die", "tying": "tie", "left": "leave", "kept": "keep", "swept": "sweep", "dug": "dig", "sank": "sink"},
    **{"tried": "try", "failed": "fail", "bent": "bend", "knelt": "kneel", "leapt": "leap", "drew": "draw"},
}
_PLURALS = {
    **{"men": "man", "women": "woman", "children": "child", "people": "person", "feet": "foot", "leaves": "leaf"},
    **{"shelves": "shelf", "knives": "knife", "wolves": "wolf", "teeth": "tooth", "mice": "mouse", "buses": "bus"},
}
_SPELLINGS = {
    **{"centre": "center", "theatre": "theater", "grey": "gray", "tyre": "tire", "kerb": "curb", "plough": "plow"},
    **{"colour": "color", "harbour": "harbor", "neighbour": "neighbor", "neighbourhood": "neighborhood"},
    **{"pyjamas": "pajamas", "aeroplane": "airplane", "programme": "program", "grill": "grill", "storey": "story"},
}
_WORD = re.compile(r"[^\W_]+")
_DOUBLED = re.compile(r"(.)\1+")
_VOWELS = "aeiouy"


@dataclass(frozen=True)
class LabelClass:
    """Labels that are one: `name` is the most frequent of them, variants their counts, most frequent first."""

    name: str
    count: int
    variants: dict[str, int]


def classes(question: str, counts: Mapping[str, int]) -> list[LabelClass]:
    """The classes of a column's labels, most frequent first. `counts` says how often each label is there.

    Deterministic, and the same for any order of the labels. Raises ValueError for a column without a vocabulary.
    """
    if question not in QUESTIONS:
        raise ValueError(f"no vocabulary of '{question}'; there are {', '.join(QUESTIONS)}")
    verbs = question != "scene"
    stems = {label: label_stems(label, verbs) for label in sorted(counts)}
    corrected = _corrections(stems, counts)
    groups = _Groups()
    for label, own in stems.items():
        right = [corrected.get(stem, stem) for stem in own]
        groups.join(label, ("any order", tuple(sorted(right))))
        groups.join(label, ("no blanks", "".join(right)))
    found: dict[object, Counter[str]] = {}
    for label in sorted(counts):
        found.setdefault(groups.root(label), Counter())[label] = counts[label]
    made = []
    for variants in found.values():
        ranked = sorted(variants.items(), key=lambda each: (-each[1], len(each[0]), each[0]))
        made.append(LabelClass(ranked[0][0], sum(variants.values()), dict(ranked)))
    return sorted(made, key=lambda each: (-each.count, each.name))


def class_of(made: Sequence[LabelClass]) -> dict[str, str]:
    """The class's name of every label."""
    return {label: each.name for each in made for label in each.variants}


def counted(labels: Iterable[str | None]) -> Counter[str]:
    """How often each label is there; nulls are none."""
    return Counter(label for label in labels if label is not None)


def label_stems(label: str, verbs: bool) -> tuple[str, ...]:
    """The words of a label in order in their bare form; all of them where nothing else would be left.

    verbs: whether -ing, -ed and irregular forms are brought to one form; of a place they are names (parking, building).
    """
    words = [_SAME.get(word, word) for word in _WORD.findall(label.lower().replace("'s ", " ").replace("’s ", " "))]
    kept = [word for word in words if word not in _DROPPED] or words
    return tuple(word_stem(word, verbs) for word in kept) or (label.strip().lower(),)


def word_stem(word: str, verbs: bool) -> str:
    """A word without its ending, for comparing, not for reading.

    slips, slipped, slipping -> slip; hoping -> hope, hopping -> hop; riding, rides -> ride; travelling -> travel.
    The rules are steps 1a, 1b and 5a of Porter's stemmer (Program 14, 1980), with irregular and British forms.
    """
    word = _SPELLINGS.get(word, word)
    word = _PLURALS.get(word, word)
    if verbs and word in _IRREGULAR:
        return _without_e(_IRREGULAR[word])
    word = _singular(word)
    word = _SPELLINGS.get(word, word)
    if verbs:
        word = _base(word)
    return _without_e(word)


def _singular(word: str) -> str:
    if word.endswith(("sses", "xes", "ches", "shes", "zzes")):
        return word[:-2]
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith("s") and not word.endswith(("ss", "us", "is")) and len(word) > 3:
        return word[:-1]
    return word


def _base(word: str) -> str:
    if word.endswith("ied") and len(word) > 4:
        return word[:-3] + "y"
    for ending in ("ing", "ed"):
        stem = word.removesuffix(ending)
        if stem == word or len(stem) < 2 or not any(letter in _VOWELS for letter in stem):
            continue
        if len(stem) > 2 and stem[-1] == stem[-2] and stem[-1] not in "aeiousz":
            # fall, roll, pull keep both; travel and cancel, of two syllables, are doubled in British spelling alone.
            return stem[:-1] if stem[-1] != "l" or _syllables(stem) > 1 else stem
        if _short(stem):
            return f"{stem}e"
        return stem
    return word


def _without_e(word: str) -> str:
    return word[:-1] if word.endswith("e") and len(word) > 3 and not _short(word[:-1]) and word[-2] != "e" else word


def _short(stem: str) -> bool:
    """Whether a stem is one syllable that ends in consonant, vowel, consonant other than w, x, y: hop, rid, lin."""
    if len(stem) < 3 or _syllables(stem) != 1:
        return False
    before, vowel, last = stem[-3], stem[-2], stem[-1]
    return before not in "aeiou" and vowel in _VOWELS and last not in "aeiouwxy"


def _syllables(stem: str) -> int:
    return len(re.findall(r"[aeiouy]+", stem))


def _corrections(stems: Mapping[str, Sequence[str]], counts: Mapping[str, int]) -> dict[str, str]:
    """Misspelt stems and what is meant: a letter doubled, undoubled or swapped with its neighbour, or in a long word
    any one letter, where the right one is far more frequent. One letter makes too many other words of short ones
    (slipping, skipping).
    """
    frequency: Counter[str] = Counter()
    for label, own in stems.items():
        for stem in set(own):
            frequency[stem] += counts[label]
    shapes: dict[str, list[str]] = {}
    for stem in sorted(frequency):
        for shape in _shapes(stem):
            shapes.setdefault(shape, []).append(stem)
    meant: dict[str, str] = {}
    for stem in sorted(frequency):
        near = {other for shape in _shapes(stem) for other in shapes[shape] if other != stem and _typo(stem, other)}
        likely = [other for other in near if frequency[other] >= RARER * frequency[stem]]
        if likely:
            meant[stem] = min(likely, key=lambda other: (-frequency[other], other))
    return {stem: _followed(stem, meant) for stem in meant}


def _followed(stem: str, meant: Mapping[str, str]) -> str:
    while stem in meant:  # each step is to a stem ten times as frequent, so that it ends
        stem = meant[stem]
    return stem


def _shapes(stem: str) -> set[str]:
    """Keys of which two stems share one where they may be one word misspelt."""
    if len(stem) < 3 or not stem.isalpha():
        return set()
    found = {f"doubled {_single(stem)}", f"swapped {''.join(sorted(stem))}"}
    if len(stem) >= _LONG_STEM - 1:
        found |= {f"long {stem[:at]}{stem[at + 1 :]}" for at in range(1, len(stem))} | {f"long {stem}"}
    return found


def _typo(one: str, other: str) -> bool:
    if one[0] != other[0]:
        return False
    if _single(one) == _single(other):
        return True
    different = [at for at, (left, right) in enumerate(zip(one, other, strict=False)) if left != right]
    if len(one) == len(other) and len(different) == 2 and different[1] == different[0] + 1:
        first, second = different
        return one[first] == other[second] and one[second] == other[first]
    return max(len(one), len(other)) >= _LONG_STEM and _one_letter_apart(one, other)


def _single(stem: str) -> str:
    """The stem with doubled letters made single and a last e off: slip of slipping, slipe of sliping."""
    return _DOUBLED.sub(r"\1", stem).removesuffix("e")


def _one_letter_apart(one: str, other: str) -> bool:
    short, long = sorted((one, other), key=len)
    if len(short) == len(long):
        return sum(left != right for left, right in zip(short, long, strict=True)) == 1
    return len(long) - len(short) == 1 and any(long[:at] + long[at + 1 :] == short for at in range(len(long)))


class _Groups:
    """Disjoint sets: what was joined, however, has one root."""

    def __init__(self) -> None:
        self._above: dict[object, object] = {}

    def root(self, item: object) -> object:
        while self._above.get(item, item) != item:
            item = self._above[item]
        return item

    def join(self, one: object, other: object) -> None:
        left, right = self.root(one), self.root(other)
        self._above.setdefault(one, one)
        if left != right:
            self._above[right] = left
