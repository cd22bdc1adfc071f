"""Reads off spaCy's parse whether a short caption's grammatical subject is a person (the embedded SubjectReader)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipeline.backends.english_parser import english_parser, parser_revision
from pipeline.backends.person_words import can_be_verb, is_person_noun, names_people
from pipeline.backends.protocols import BackendContext

if TYPE_CHECKING:
    from spacy.tokens import Doc, Span, Token

_SUBJECTS = frozenset({"nsubj", "nsubjpass"})
_TYPING_SLIPS = {"teh": "the", "hte": "the", "thier": "their", "adn": "and", "nad": "and", "si": "is", "wsa": "was"}
_BATCH = 256


class SpacySubjects:
    """SubjectReader of the embedded backend: the parse finds the subject, word lists say whether it is a person."""

    name = "spacy"

    def __init__(self, context: BackendContext) -> None:
        """Loads nothing: the parser comes with the first caption."""
        self.revision = f"1+{parser_revision()}"

    def subjects_are_people(self, captions: Sequence[str]) -> list[bool]:
        """One answer a caption, in order; False for an empty one and for one without a subject ("falls off a ladder").

        Of several main clauses the first decides. Raises ParserMissingError where the parser is not installed.
        """
        cleaned = [clean_for_parsing(caption) for caption in captions]
        places = [place for place, text in enumerate(cleaned) if text]
        answers = [False] * len(captions)
        if places:
            docs = english_parser().pipe((cleaned[place] for place in places), batch_size=_BATCH)
            for place, doc in zip(places, docs, strict=True):
                answers[place] = subject_is_person(doc)
        return answers


def clean_for_parsing(caption: str) -> str:
    """The caption in lower case, blanks single, commonest typing slips mended; "" where no letter is left.

    Lower case because a capital makes the tagger see a name ("SHE FELL", "Dude tried").
    """
    if not re.search(r"[^\W\d_]", caption):
        return ""
    text = caption.replace("’", "'").lower()
    text = re.sub(r"^[\W_]+", "", text)
    return " ".join(_TYPING_SLIPS.get(word, word) for word in text.split())


def subject_is_person(doc: Doc) -> bool:
    """Whether the subject of the first main clause of a parsed caption is a person."""
    sentences = [sent for sent in doc.sents if any(token.is_alpha for token in sent)]
    while len(sentences) > 1 and _is_lead_in(sentences[0]):
        del sentences[0]
    subject = main_subject(sentences[0]) if sentences else None
    return subject is not None and names_people(subject)


def main_subject(sentence: Span) -> Token | None:
    """The head of the subject of a sentence's main clause, or None where it has none (imperative, bare verb).

    "there was a man" gives "man"; a bare noun phrase ("man on a bike") gives its head.
    """
    root = sentence.root
    subject = _marked_subject(root)
    if subject is not None:
        return _person_before_participle(subject) or subject
    hidden = _person_before_hidden_verb(root)
    if hidden is not None:
        return hidden
    return root if root.pos_ in ("NOUN", "PROPN", "PRON") else _unmarked_subject(root)


def _is_lead_in(sentence: Span) -> bool:
    """ "Trying to jump, | the boy fell": a clause that the parser made a sentence of, though no full stop is there."""
    root = sentence.root
    is_open = sentence[-1].text not in (".", "!", "?")
    is_infinitive = any(child.lower_ == "to" and child.dep_ == "aux" for child in root.children)
    return is_open and _marked_subject(root) is None and (root.tag_ == "VBG" or is_infinitive)


def _marked_subject(verb: Token) -> Token | None:
    if any(child.dep_ == "expl" and child.lower_ == "there" for child in verb.children):
        return next((child for child in verb.children if child.dep_ in ("attr", "dobj", "nsubj")), None)
    return next((child for child in verb.children if child.dep_ in _SUBJECTS and child.i < verb.i), None)


def _person_in_front(head: Token) -> Token | None:
    """The person noun right in front of `head` that the parse made a part of its phrase."""
    before = next((child for child in head.children if child.i == head.i - 1), None)
    is_part = before is not None and before.dep_ in ("compound", "amod", "nmod", "advmod")
    return before if is_part and before is not None and is_person_noun(before.lower_) else None


def _person_before_participle(subject: Token) -> Token | None:
    """ "man fishing falls in", read as a kind of fishing, is about the man."""
    is_doing = subject.lower_.endswith("ing") and can_be_verb(subject.lower_) and not is_person_noun(subject.lower_)
    return _person_in_front(subject) if is_doing else None


def _person_before_hidden_verb(root: Token) -> Token | None:
    """ "student driver crashes into a wall", read as one noun phrase, is about the driver."""
    is_form_of_verb = root.tag_ in ("VBZ", "VBD") or (root.lower_.endswith("s") and can_be_verb(root.lower_))
    return _person_in_front(root) if is_form_of_verb and not is_person_noun(root.lower_) else None


def _unmarked_subject(verb: Token) -> Token | None:
    """The noun in front of the main verb where the parse gave it to a clause before ("when it broke the man fell")."""
    place = verb.i - 1
    while place >= verb.sent.start and verb.doc[place].pos_ in ("AUX", "ADV", "PART"):
        place -= 1
    if place < verb.sent.start:
        return None
    candidate = verb.doc[place]
    is_nominal = candidate.pos_ in ("NOUN", "PROPN", "PRON") and candidate.dep_ in ("dobj", "pobj", "conj", "npadvmod")
    return candidate if is_nominal and any(child.dep_ == "advcl" for child in verb.children) else None
