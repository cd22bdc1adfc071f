"""Easy data augmentation of captions (EDA, Wei and Zou 2019) as the published trainers use it, reproducible.

Four candidates, one of each operation, are made of a caption, and one is drawn. All draws come from the generator that
is passed in, and no set is walked in hash order: the same seed gives the same text in every process.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

ALPHA = 0.1
"""Of a caption's words: how many an operation changes; also the chance that deletion drops a word."""

_TRIES = 10
_SWAP_TRIES = 4
_WORDNET_FOLDERS = ("/usr/share/wordnet", "/usr/local/share/wordnet", "/usr/share/nltk_data/corpora/wordnet")
_PARTS_OF_SPEECH = ("noun", "verb", "adj", "adv")

Synonyms = Mapping[str, Sequence[str]]
"""Words and their synonyms, in a fixed order, without the word itself."""


def augment(caption: str, rng: random.Random, synonyms: Synonyms | None, stop_words: frozenset[str]) -> str:
    """One of four variants of a caption: synonyms for some words, synonyms put in, words swapped, words dropped.

    Without synonyms (None) the first is left out. The caption is reduced to letters and single blanks first; one that
    has no letter comes back as "".
    """
    words = only_letters(caption).split()
    if not words:
        return ""
    count = max(1, int(ALPHA * len(words)))
    candidates = []
    if synonyms is not None:
        candidates.append(replace_by_synonyms(words, count, rng, synonyms, stop_words))
        candidates.append(insert_synonyms(words, count, rng, synonyms))
    candidates.append(swap_words(words, count, rng))
    candidates.append(delete_words(words, ALPHA, rng))
    return " ".join(candidates[rng.randrange(len(candidates))])


def only_letters(text: str) -> str:
    """Lower case, apostrophes gone, everything else that is no letter a to z a blank; blanks once, none in front."""
    text = text.replace("’", "").replace("'", "").lower()
    return re.sub(r" +", " ", re.sub(r"[^a-z]", " ", text)).removeprefix(" ")


def replace_by_synonyms(
    words: Sequence[str], count: int, rng: random.Random, synonyms: Synonyms, stop_words: frozenset[str]
) -> list[str]:
    """The words with up to `count` different ones, wherever they stand, replaced by a synonym of theirs."""
    candidates = sorted(set(words) - stop_words)
    rng.shuffle(candidates)
    found = list(words)
    replaced = 0
    for word in candidates:
        known = synonyms.get(word, ())
        if known:
            synonym = known[rng.randrange(len(known))]
            found = [synonym if each == word else each for each in found]
            replaced += 1
        if replaced >= count:
            break
    return " ".join(found).split()


def insert_synonyms(words: Sequence[str], count: int, rng: random.Random, synonyms: Synonyms) -> list[str]:
    """The words with `count` times the first synonym of a random word put somewhere, never behind the last."""
    found = list(words)
    for _ in range(count):
        for _ in range(_TRIES):
            known = synonyms.get(found[rng.randint(0, len(found) - 1)], ())
            if known:
                found.insert(rng.randint(0, len(found) - 1), known[0])
                break
    return found


def swap_words(words: Sequence[str], count: int, rng: random.Random) -> list[str]:
    """The words with two of them swapped, `count` times; a draw of one place twice is repeated a few times."""
    found = list(words)
    for _ in range(count):
        one = other = rng.randint(0, len(found) - 1)
        for _ in range(_SWAP_TRIES):
            other = rng.randint(0, len(found) - 1)
            if other != one:
                break
        found[one], found[other] = found[other], found[one]
    return found


def delete_words(words: Sequence[str], chance: float, rng: random.Random) -> list[str]:
    """The words without those that fell out, each with the given chance; at least one stays."""
    if len(words) == 1:
        return list(words)
    kept = [word for word in words if rng.uniform(0, 1) > chance]
    return kept or [words[rng.randint(0, len(words) - 1)]]


def wordnet_folder() -> Path | None:
    """Where WordNet's own files are on this machine, or None: in $WNSEARCHDIR, where that is set (as WordNet's programs
    have it), or where Debian's wordnet-base or NLTK's download put them."""
    told = os.environ.get("WNSEARCHDIR")
    folders = (told,) if told else (*_WORDNET_FOLDERS, Path.home() / "nltk_data" / "corpora" / "wordnet")
    return next((Path(folder) for folder in folders if (Path(folder) / "data.noun").is_file()), None)


def wordnet_synonyms(folder: Path) -> Synonyms:
    """Synonyms from WordNet's database files (index.* and data.*, wndb(5)): the words of all senses of a word.

    Letters only, `_` and `-` as blanks; in the order of the alphabet. Raises OSError where a file is missing.
    """
    senses: dict[str, set[str]] = {}
    for part in _PARTS_OF_SPEECH:
        for line in (folder / f"data.{part}").read_text("latin-1").splitlines():
            if line.startswith("  "):  # the licence
                continue
            fields = line.split(" ")
            lemmas = [_plain(lemma) for lemma in fields[4 : 4 + 2 * int(fields[3], 16) : 2]]
            for lemma in lemmas:
                senses.setdefault(lemma, set()).update(lemmas)
    return {lemma: tuple(sorted(words - {lemma, ""})) for lemma, words in senses.items()}


def _plain(lemma: str) -> str:
    text = re.sub(r"\([a-z]+\)$", "", lemma).replace("_", " ").replace("-", " ").lower()
    return "".join(letter for letter in text if letter == " " or "a" <= letter <= "z")


def english_stop_words() -> frozenset[str]:
    """Words that are not replaced by synonyms."""
    from spacy.lang.en.stop_words import STOP_WORDS

    return frozenset(STOP_WORDS)
