"""Which nouns name people: word lists, derivation (-man, -ist, -er of a verb), compounds, groups, near misses."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from pipeline.backends.english_parser import english_parser, read_word_file, section_words

if TYPE_CHECKING:
    from spacy.tokens import Token

_LISTED_SECTIONS = ("core", "ages and relatives", "general", "work", "sport")
_PERSON_ENDINGS = ("man", "men", "woman", "women", "boy", "girl", "lady", "guy", "kid", "person", "people", "mother")
_IRREGULAR = {"men": "man", "women": "woman", "children": "child", "wives": "wife", "people": "people", "wifes": "wife"}


@dataclass(frozen=True)
class _Lexicon:
    core: frozenset[str]
    people: frozenset[str]
    pronouns: frozenset[str]
    quantifiers: frozenset[str]
    collectives: frozenset[str]
    containers: frozenset[str]
    others: frozenset[str]
    others_after: dict[str, frozenset[str]]


@cache
def _lexicon() -> _Lexicon:
    sections = read_word_file("person_words.txt")
    after = {}
    for line in sections["not people after"]:
        head, _, words = line.partition(":")
        after[head] = frozenset(words.split())
    return _Lexicon(
        core=section_words(sections, "core"),
        people=frozenset().union(*(section_words(sections, title) for title in _LISTED_SECTIONS)),
        pronouns=section_words(sections, "pronouns"),
        quantifiers=section_words(sections, "quantifiers"),
        collectives=section_words(sections, "collectives"),
        containers=section_words(sections, "containers"),
        others=section_words(sections, "not people"),
        others_after=after,
    )


@cache
def _known_words(kind: str) -> frozenset[str]:
    """Base forms the lemmatizer's own index knows (`kind`: noun | verb | adj)."""
    lookups = english_parser().get_pipe("lemmatizer").lookups  # type: ignore[attr-defined]
    return frozenset(lookups.get_table("lemma_index")[kind])


def _verb_bases(form: str) -> list[str]:
    """Base forms an inflected verb may have: crashes -> crash, slipped -> slip, riding -> ride."""
    bases = [form]
    for ending in ("s", "es", "ed", "d", "ing"):
        if form.endswith(ending) and len(form) - len(ending) >= 2:
            stem = form[: -len(ending)]
            bases += [stem, stem + "e"]
            if len(stem) > 3 and stem[-1] == stem[-2]:
                bases.append(stem[:-1])
    if form.endswith("ies"):
        bases.append(form[:-3] + "y")
    return bases


def can_be_verb(form: str) -> bool:
    """Whether the lower-case word is a form of a verb the lemmatizer knows."""
    verbs = _known_words("verb")
    return any(base in verbs for base in _verb_bases(form))


def singulars(word: str) -> list[str]:
    """The word and the singulars it may be the plural of, surest first."""
    found = [_IRREGULAR.get(word, word)]
    if word.endswith("ies") and len(word) > 4:
        found.append(word[:-3] + "y")
    if word.endswith("es") and len(word) > 4:
        found.append(word[:-2])
    if word.endswith("s") and not word.endswith("ss") and len(word) > 3:
        found.append(word[:-1])
    if word.endswith("men"):
        found.append(word[:-3] + "man")
    return list(dict.fromkeys(found))


def _derives_from_verb(word: str) -> bool:
    """-er and -or nouns of doers: skater, juggler, rider, inspector."""
    if len(word) < 5 or not word.endswith(("er", "or")):
        return False
    stem = word[:-2]
    bases = [stem, stem + "e"]
    if len(stem) > 3 and stem[-1] == stem[-2]:
        bases.append(stem[:-1])
    return any(len(base) > 2 and base in _known_words("verb") for base in bases)


def _one_slip_apart(a: str, b: str) -> bool:
    """Whether one letter added, lost, changed or swapped with its neighbour makes b of a."""
    if a == b or abs(len(a) - len(b)) > 1:
        return False
    start = 0
    while start < min(len(a), len(b)) and a[start] == b[start]:
        start += 1
    rest_a, rest_b = a[start:], b[start:]
    if len(a) == len(b):
        swapped = rest_a[:2] == rest_b[1::-1] and rest_a[2:] == rest_b[2:]
        return rest_a[1:] == rest_b[1:] or swapped
    return rest_a[1:] == rest_b if len(a) > len(b) else rest_a == rest_b[1:]


def is_known_word(word: str) -> bool:
    """Whether the lower-case word is the base form of a word the lemmatizer knows."""
    return any(word in _known_words(kind) for kind in ("noun", "verb", "adj", "adv"))


def _misspelt_person(word: str) -> bool:
    """A word no list knows, one slip away from a word for a person (gril, peple, waitor)."""
    if len(word) < 4 or is_known_word(word):
        return False
    lexicon = _lexicon()
    longer = (known for known in lexicon.people if len(known) >= 6)
    return any(_one_slip_apart(word, known) for known in (*lexicon.core, *longer) if len(known) >= 4)


@cache
def is_person_noun(word: str) -> bool:
    """Whether a single lower-case noun, singular or plural, names a person by itself."""
    lexicon = _lexicon()
    forms = singulars(word)
    if any(form in lexicon.people for form in forms):
        return True
    if any(form in lexicon.others for form in forms):
        return False
    for form in forms:
        if any(form.endswith(ending) and len(form) > len(ending) + 1 for ending in _PERSON_ENDINGS):
            return True
        if form.endswith("ist") and len(form) >= 6:
            return True
        if any(len(form) > len(known) + 1 and form.endswith(known) for known in _long_people()):
            return True
        if _derives_from_verb(form):
            return True
        if "-" in form and is_person_noun(form.rsplit("-", 1)[1]):
            return True
    return any(_misspelt_person(form) for form in forms)


@cache
def _long_people() -> tuple[str, ...]:
    """Doers long enough to be the end of another one: boarder in kneeboarder, player in ballplayer."""
    return tuple(sorted(word for word in _lexicon().people if len(word) >= 6 and " " not in word))


def is_person_pronoun(word: str) -> bool:
    """Whether a lower-case pronoun stands for people; `it`, `this` and `nothing` do not."""
    return word in _lexicon().pronouns


def names_people(head: Token) -> bool:
    """Whether a noun phrase, given by its head, is people: the head decides, or what follows its `of`, or a partner.

    "the boy's father" and "basketball player" are, "the man's hat", "manhole cover" and "fire truck" are not;
    "a group of friends" is, "a group of dogs" is not; of "a man and his dog" one partner is enough.
    """
    return _head_names_people(head) or any(names_people(child) for child in head.children if child.dep_ == "conj")


def _head_names_people(head: Token) -> bool:
    lexicon = _lexicon()
    word = head.lower_
    if is_person_pronoun(word):
        return True
    forms = singulars(word)
    counted = word in lexicon.quantifiers or head.tag_ == "CD"
    grouped = any(form in lexicon.collectives or form in lexicon.containers for form in forms)
    if counted or grouped:
        for child in head.children:
            if child.lower_ == "of" and child.dep_ == "prep":
                inner = [grandchild for grandchild in child.children if grandchild.dep_ in ("pobj", "pcomp")]
                if inner:
                    return any(names_people(token) or _is_object_pronoun(token) for token in inner)
        only_an_amount = any(form in lexicon.containers for form in forms)
        return not only_an_amount or any(form in lexicon.collectives for form in forms)
    if head.pos_ not in ("NOUN", "PROPN", "ADJ", "VERB", "X", "INTJ", "ADV", "PRON", "DET"):
        return False
    barred = next((lexicon.others_after[form] for form in forms if form in lexicon.others_after), frozenset())
    before = {child.lower_ for child in head.children if child.dep_ in ("compound", "amod", "nmod")}
    if barred & before:
        return False
    return is_person_noun(word)


def _is_object_pronoun(token: Token) -> bool:
    return token.lower_ in {"them", "us", "you", "these", "those"}
