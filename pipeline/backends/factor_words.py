"""The words that tell the factors of a caption apart, from data/factor_words.txt."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from pipeline.backends.english_parser import read_word_file, section_words
from pipeline.backends.person_words import singulars

if TYPE_CHECKING:
    from spacy.tokens import Token

_GARMENT_ENDINGS = ("suit", "suits", "shirt", "shirts", "coat", "coats", "jacket", "pants", "shoes", "boots", "wear")


@dataclass(frozen=True)
class FactorWords:
    """One field a section; underscores stand for the blanks of its title."""

    apparel: frozenset[str]
    carried: frozenset[str]
    garment_parts: frozenset[str]
    looks: frozenset[str]
    looking: frozenset[str]
    colours: frozenset[str]
    body: frozenset[str]
    posed: frozenset[str]
    soiled: frozenset[str]
    gear: frozenset[str]
    gear_parts: frozenset[str]
    states: frozenset[str]
    mishaps: frozenset[str]
    contact: frozenset[str]
    bound: frozenset[str]
    static: frozenset[str]
    wear: frozenset[str]
    onlooking: frozenset[str]
    inward: frozenset[str]
    place: frozenset[str]
    place_adverbs: frozenset[str]
    places: frozenset[str]
    substances: frozenset[str]
    nature: frozenset[str]
    target_verbs: frozenset[str]
    frame_nouns: frozenset[str]
    frame_verbs: frozenset[str]
    bystanders: frozenset[str]
    far: frozenset[str]
    postures: frozenset[str]


@cache
def factor_words() -> FactorWords:
    """The word lists, read once."""
    sections = read_word_file("factor_words.txt")
    return FactorWords(
        **{field: section_words(sections, field.replace("_", " ")) for field in FactorWords.__dataclass_fields__}
    )


def is_one_of(token: Token, words: frozenset[str]) -> bool:
    """Whether the token, its base form or a singular of it is among the words. An untagged lemma ("") never is."""
    return (
        token.lower_ in words or token.lemma_.lower() in words or any(form in words for form in singulars(token.lower_))
    )


def is_garment(token: Token) -> bool:
    """Whether the token names something worn or carried on the body."""
    return is_one_of(token, factor_words().apparel) or token.lower_.endswith(_GARMENT_ENDINGS)


def is_worn_word(token: Token) -> bool:
    """Whether the token names something worn or a feature of the body that people are told by (hair, beard)."""
    return is_garment(token) or is_one_of(token, factor_words().looks)
