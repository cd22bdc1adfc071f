"""Reads off spaCy's parse whether a short caption's grammatical subject is a person (the embedded SubjectReader)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipeline.backends.english_parser import parser_revision, pieces_of, readable
from pipeline.backends.person_words import can_be_verb, is_person_noun, names_people
from pipeline.backends.protocols import BackendContext
from pipeline.backends.worn_phrases import parsed_without_worn_phrases

if TYPE_CHECKING:
    from spacy.tokens import Doc, Span, Token

_SUBJECTS = frozenset({"nsubj", "nsubjpass"})
_TYPING_SLIPS = {"teh": "the", "hte": "the", "thier": "their", "adn": "and", "nad": "and", "si": "is", "wsa": "was"}
_OPINIONS = frozenset({"think", "believe", "guess", "suppose", "see", "bet"})
_WATCHING = frozenset({"know", "see", "tell", "understand", "remember", "recognize", "hear", "watch", "think", "get"})
_CONJUNCTIONS = frozenset(
    {"when", "while", "as", "after", "before", "because", "once", "if", "since", "until", "although"}
)
_BATCH = 256


class SpacySubjects:
    """SubjectReader of the embedded backend: the parse finds the subject, word lists say whether it is a person."""

    name = "spacy"

    def __init__(self, context: BackendContext) -> None:
        """Loads nothing: the parser comes with the first caption."""
        self.revision = f"2+{parser_revision()}"

    def subjects_are_people(self, captions: Sequence[str]) -> list[bool]:
        """One answer a caption, in order. Nothing raises but ParserMissingError, where the parser is not installed.

        Of several main clauses the first decides. False for a caption without a subject ("falls off a ladder"), for
        "I don't know", and for odd text: empty, blanks, no Latin letter (punctuation, emoji, other scripts), a web
        address. Markup, control characters and words of 200 letters and more are passed over, and of a text of more
        than 200 words the first 200 are read.
        """
        cleaned = [clean_for_parsing(caption) for caption in captions]
        places = [place for place, text in enumerate(cleaned) if text]
        answers = [False] * len(captions)
        if places:
            docs = parsed_without_worn_phrases([cleaned[place] for place in places], batch_size=_BATCH)
            for place, doc in zip(places, docs, strict=True):
                answers[place] = subject_is_person(doc)
        return answers


def clean_for_parsing(caption: str) -> str:
    """The caption's readable text in lower case, commonest typing slips mended; "" where no Latin letter is left.

    Lower case because a capital makes the tagger see a name ("SHE FELL", "Dude tried"). No more than 200 words.
    """
    text = pieces_of(readable(caption))[0].replace("’", "'").lower()
    text = re.sub(r"^[\W_]+", "", text)
    return " ".join(_TYPING_SLIPS.get(word, word) for word in text.split())


def subject_is_person(doc: Doc) -> bool:
    """Whether the subject of the first main clause of a parsed caption is a person who is there.

    Of "I don't know" and "I can't tell", said of the watching, what comes after decides; "nobody is there" and "there
    are no people" tell of no person.
    """
    sentences = [sent for sent in doc.sents if any(token.is_alpha for token in sent)]
    while len(sentences) > 1 and _is_lead_in(sentences[0]):
        del sentences[0]
    while sentences and _is_about_watching(sentences[0].root):
        del sentences[0]
    subject = main_subject(sentences[0]) if sentences else None
    return subject is not None and names_people(_compared(subject)) and not _is_absent(subject)


def _compared(subject: Token) -> Token:
    """The boys of "the smaller of the two boys"; other subjects as they are."""
    if subject.tag_ not in ("JJR", "JJS", "JJ", "RBS", "RBR"):
        return subject
    of = (child for child in subject.children if child.dep_ == "prep" and child.lower_ == "of")
    return next((inner for each in of for inner in each.children if inner.dep_ == "pobj"), subject)


def main_subject(sentence: Span) -> Token | None:
    """The head of the subject of a sentence's main clause, or None where it has none (imperative, bare verb).

    "there was a man" and "it was a man who" give "man"; a bare noun phrase ("man on a bike") gives its head.
    """
    root = _main_verb(sentence.root)
    subject = _marked_subject(root)
    if subject is not None:
        return _noun_before_verb(root, subject) or _person_before_participle(subject) or subject
    hidden = _noun_before_hidden_verb(root)
    if hidden is not None:
        return hidden
    is_misread = is_person_noun(root.lower_) and not can_be_verb(root.lower_)  # "dave" as an adjective
    if root.pos_ in ("NOUN", "PROPN", "PRON", "NUM") or root.tag_ == "DT" or is_misread:
        return root
    return _unmarked_subject(root) or _subject_of_other_name(root) or _inverted_subject(root)


def _main_verb(root: Token) -> Token:
    """The verb of "I think the man fell" and of "holding the rope the climber swung", parsed as below the first one."""
    is_opinion = root.lemma_ in _OPINIONS and any(child.lower_ in ("i", "we") for child in root.lefts)
    is_participle = root.tag_ == "VBG" and not any(child.dep_ in ("aux", *_SUBJECTS) for child in root.children)
    if not (is_opinion or is_participle):
        return root
    below = (child for child in root.rights if child.dep_ in ("ccomp", "parataxis"))
    return next((child for child in below if _marked_subject(child) is not None), root)


def _is_about_watching(verb: Token) -> bool:
    """ "I don't know", "I can't see", "we have no idea": nothing of what the clip shows."""
    if not any(child.dep_ == "nsubj" and child.lower_ in ("i", "we") for child in verb.children):
        return False
    if verb.lemma_ == "have":
        things = [child for child in verb.children if child.dep_ == "dobj" and child.lower_ in ("idea", "clue")]
        return any(inner.lower_ == "no" for thing in things for inner in thing.children)
    return verb.lemma_ in _WATCHING and any(child.dep_ == "neg" for child in verb.children)


def _is_absent(subject: Token) -> bool:
    """ "no one is there", "there are no people"; not "nobody catches the bride"."""
    verb = subject.head
    there = any(child.dep_ == "expl" for child in verb.children)
    is_none = subject.lower_ in ("nobody", "noone", "none") or any(child.lower_ == "no" for child in subject.children)
    is_said_to_be = verb.lemma_ == "be" or (subject.dep_ == "nsubjpass" and verb.lemma_ in ("see", "find", "show"))
    return is_none and is_said_to_be and (there or subject.dep_ in _SUBJECTS)


def _is_lead_in(sentence: Span) -> bool:
    """ "Trying to jump, | the boy fell", "when it hit the net | the goalie slipped": a clause before the main one.

    The parser made a sentence of it, though no full stop is there.
    """
    root = sentence.root
    is_open = sentence[-1].text not in (".", "!", "?")
    is_infinitive = any(child.lower_ == "to" and child.dep_ == "aux" for child in root.children)
    is_below = root.pos_ in ("VERB", "AUX") and any(
        child.dep_ in ("mark", "advmod") and child.lower_ in _CONJUNCTIONS and child.i == sentence.start
        for child in root.children
    )
    has_no_subject = _marked_subject(root) is None and (root.tag_ == "VBG" or is_infinitive)
    return is_open and (is_below or has_no_subject)


def _marked_subject(verb: Token) -> Token | None:
    if any(child.dep_ == "expl" and child.lower_ == "there" for child in verb.children):
        return next((child for child in verb.children if child.dep_ in ("attr", "dobj", "nsubj")), None)
    subject = next((child for child in verb.children if child.dep_ in _SUBJECTS and child.i < verb.i), None)
    if subject is not None and subject.lower_ == "it" and verb.lemma_ == "be":
        told = next((child for child in verb.rights if child.dep_ == "attr"), None)
        if told is not None and any(child.dep_ in ("relcl", "acl") for child in told.children):
            return told
        has_who = any(child.dep_ == "ccomp" and child.left_edge.tag_ == "WP" for child in verb.rights)
        return told if told is not None and has_who else subject
    return subject


def _noun_in_front(head: Token) -> Token | None:
    """The noun right in front of `head` that the parse made a part of its phrase."""
    before = next((child for child in head.children if child.i == head.i - 1), None)
    is_part = before is not None and before.dep_ in ("compound", "amod", "nmod", "advmod")
    return before if is_part else None


def _noun_before_verb(verb: Token, subject: Token) -> Token | None:
    """ "the kids ball rolls" (for "kid's"): nothing is part of a verb's phrase, so it is about the ball."""
    is_form_of_verb = verb.tag_ == "VBZ" or (verb.tag_ == "NNS" and can_be_verb(verb.lower_))
    before = _noun_in_front(verb) if is_form_of_verb else None
    return before if before is not None and before.dep_ == "compound" and before.i > subject.i else None


def _person_before_participle(subject: Token) -> Token | None:
    """ "man fishing falls in", read as a kind of fishing, is about the man."""
    is_doing = subject.lower_.endswith("ing") and can_be_verb(subject.lower_) and not is_person_noun(subject.lower_)
    before = _noun_in_front(subject) if is_doing else None
    return before if before is not None and is_person_noun(before.lower_) else None


def _noun_before_hidden_verb(root: Token) -> Token | None:
    """ "student driver crashes into a wall", read as one noun phrase, is about the driver."""
    is_form_of_verb = root.tag_ in ("VBZ", "VBD") or (root.lower_.endswith("s") and can_be_verb(root.lower_))
    before = _noun_in_front(root) if is_form_of_verb and not is_person_noun(root.lower_) else None
    return before if before is not None and is_person_noun(before.lower_) else None


def _unmarked_subject(verb: Token) -> Token | None:
    """The noun in front of the main verb where the parse gave it to a clause before ("when it broke the man fell")."""
    place = verb.i - 1
    doc = verb.doc
    while place >= 0 and doc[place].pos_ in ("AUX", "ADV", "PART"):
        place -= 1
    if place < 0:
        return None
    candidate = doc[place]
    is_nominal = candidate.pos_ in ("NOUN", "PROPN", "PRON") and candidate.dep_ in ("dobj", "pobj", "conj", "npadvmod")
    from_other_sentence = place < verb.sent.start and _is_lead_in(candidate.sent)
    in_clause_before = place >= verb.sent.start and any(child.dep_ == "advcl" for child in verb.children)
    return candidate if is_nominal and (from_other_sentence or in_clause_before) else None


def _subject_of_other_name(verb: Token) -> Token | None:
    """The person in front of a finite verb that the parse took for an exclamation ("boy on a skateboard hits ...")."""
    if verb.tag_ not in ("VBZ", "VBP", "VBD"):
        return None
    heads = (child for child in verb.lefts if child.dep_ in ("intj", "npadvmod", "nmod", "dep", "compound", "oprd"))
    return next((child for child in heads if is_person_noun(child.lower_)), None)


def _inverted_subject(verb: Token) -> Token | None:
    """ "On the ladder stands a painter": a place in front, and what is there behind the verb."""
    first = verb.sent[0]
    starts_with_place = first.tag_ in ("IN", "RB", "RP") and first.i < verb.i and first.lower_ not in _CONJUNCTIONS
    if not starts_with_place or verb.tag_ not in ("VBZ", "VBP", "VBD"):
        return None
    return next((child for child in verb.rights if child.dep_ in ("nsubj", "dobj", "attr", "npadvmod")), None)
