"""Splits a caption into appearance, action and background along spaCy's parse (the embedded Decomposer).

Every token of the caption is given to one factor or to none, so nothing can be added, moved or doubled: a factor is
the caption with the other words left out. The rules, in the order of their weight:

* people as they are first named, and what is worn or looked like, is appearance; phrases of it are found before the
  parse, which then reads the caption without them (worn_phrases);
* what people do, what they handle or slip on, their posture, and things that fall or break, is action, and so is what
  garments and limbs do;
* places, and things and animals that nobody handles, are background, and so are people who only look on;
* a bare second mention ("the man", "he") goes with its clause, for it describes nobody;
* "the image shows" and "in the picture" go nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipeline.backends.english_parser import english_parser, parser_revision, pieces_of, readable
from pipeline.backends.factor_words import factor_words, is_garment, is_one_of
from pipeline.backends.person_words import can_be_verb, is_known_word, is_person_noun, names_people, singulars
from pipeline.backends.protocols import BackendContext, FactorTexts
from pipeline.backends.worn_phrases import HELD_IN, WornPhrase, kept_tokens, part_of, tagged, worn_phrases
from pipeline.core.text import content_words, words_of

if TYPE_CHECKING:
    from spacy.tokens import Doc, Span, Token

_APPEARANCE, _ACTION, _BACKGROUND, _DROPPED = "appearance", "action", "background", ""
_SUBJECTS = ("nsubj", "nsubjpass", "csubj")
_HANGING = ("hang", "strap", "sling", "drape", "tie", "fasten", "match", "have", "strapped", "slung", "tied")
_BATCH = 128


class ClauseDecomposer:
    """Decomposer of the embedded backend; asks no model, so the prompt is not used."""

    name = "clauses"

    def __init__(self, context: BackendContext) -> None:
        """Loads nothing: the parser comes with the first caption."""
        self.revision = f"2+{parser_revision()}"

    def decompose(self, captions: Sequence[str], prompt: str) -> list[FactorTexts]:
        """One split a caption, in order; a factor's words are words of the caption, in its order. Nothing raises but
        ParserMissingError, where the parser is not installed.

        Of odd text: all None for one without a Latin letter (empty, blanks, punctuation, emoji, other scripts). HTML
        tags, marks of Markdown, web addresses, control characters and words of 200 letters and more go to no factor,
        what is between them is split as any text ("I don't know" is an action, a noun without a verb is appearance
        where it names people, else background). A text of more than 200 words is split piece by piece.
        """
        lines = [readable(caption) for caption in captions]
        pieces = [pieces_of(line) if line else [] for line in lines]
        splits = iter(_split_pieces([piece for each in pieces for piece in each]))
        return [_joined([next(splits) for _ in each]) for each in pieces]


def _split_pieces(pieces: Sequence[str]) -> list[FactorTexts]:
    whole = tagged(pieces, _BATCH)
    phrases = [worn_phrases(doc) for doc in whole]
    kept = [kept_tokens(doc, found) for doc, found in zip(whole, phrases, strict=True)]
    parts = (part_of(*each) for each in zip(whole, kept, phrases, strict=True))
    parsed = english_parser().pipe(parts, batch_size=_BATCH)
    return [_split(*each) for each in zip(whole, phrases, kept, parsed, strict=True)]


def _joined(splits: Sequence[FactorTexts]) -> FactorTexts:
    """The factors of pieces as those of the whole."""
    texts = [[text for text in each if text] for each in zip(*(_texts(split) for split in splits), strict=True)]
    return FactorTexts(*(", ".join(each) or None for each in texts or [[], [], []]))


def _texts(split: FactorTexts) -> tuple[str | None, str | None, str | None]:
    return split.appearance, split.action, split.background


def _split(whole: Doc, phrases: Sequence[WornPhrase], kept: Sequence[int], parsed: Doc) -> FactorTexts:
    """The three factors of a caption: `parsed` is the part of it at `kept`, without the phrases of what is worn."""
    place_of = {place: number for number, place in enumerate(kept)}
    clothed = frozenset(place_of[phrase.anchor] for phrase in phrases if phrase.anchor in place_of)
    _mend(parsed)
    labelled = _Labelling(parsed, clothed).factors
    factors = [_DROPPED] * len(whole)
    for number, place in enumerate(kept):
        factors[place] = labelled[number]
    for phrase in phrases:
        of = factors[phrase.anchor] if phrase.anchor is not None else _APPEARANCE
        factor = _BACKGROUND if of == _BACKGROUND else _APPEARANCE
        for place in range(phrase.start, phrase.end):
            factors[place] = factor
    sentences = _sentence_numbers(whole, phrases, kept, parsed)
    texts = {factor: _assemble(whole, factors, sentences, factor) for factor in (_APPEARANCE, _ACTION, _BACKGROUND)}
    return FactorTexts(texts[_APPEARANCE], texts[_ACTION], texts[_BACKGROUND])


def _mend(doc: Doc) -> None:
    """Mends what the parser is apt to get wrong in short clauses about people; changes the doc."""
    for token in doc:
        before = doc[token.i - 1] if token.i else None
        if before is not None and before.head.i == token.i and before.dep_ in ("compound", "amod", "nmod"):
            _mend_hidden_verb(before, token)
    for verb in doc:
        people = [
            child for child in verb.lefts if child.dep_ in (*_SUBJECTS, "npadvmod", "dep") and _kind(child) == "person"
        ]
        if len(people) == 2 and people[1].dep_ in _SUBJECTS and not any(child.dep_ == "cc" for child in verb.lefts):
            first, second = people
            if doc[second.left_edge.i - 1].text == ",":
                # "His partner, a tall woman, has slipped" is about one person.
                first.dep_, second.head, second.dep_ = second.dep_, first, "appos"


def _mend_hidden_verb(subject: Token, verb: Token) -> None:
    """ "A store clerk hurries over", "one foot dangles", read as one noun phrase."""
    stands_alone = verb.dep_ in ("ROOT", "conj", "ccomp", "advcl", "parataxis")
    if not stands_alone or subject.pos_ not in ("NOUN", "PROPN") or is_person_noun(verb.lower_):
        return
    is_plural = verb.tag_ == "NNS" and can_be_verb(verb.lower_)
    singular = any(child.lower_ in ("a", "an", "one", "each", "every", "another") for child in verb.children)
    if not (verb.tag_ == "VBZ" or (is_plural and (singular or is_person_noun(subject.lower_)))):
        return
    for child in list(verb.children):
        if child.i < subject.i and child.dep_ in ("det", "amod", "compound", "nummod", "poss", "nmod"):
            child.head = subject
    verb.tag_, verb.pos_ = "VBZ", "VERB"
    verb.lemma_ = next((form for form in singulars(verb.lower_)[1:] if can_be_verb(form)), verb.lower_)
    subject.dep_ = "nsubj"


def _sentence_numbers(whole: Doc, phrases: Sequence[WornPhrase], kept: Sequence[int], parsed: Doc) -> list[int]:
    """The number of the sentence that each token of the whole caption stands in."""
    opening = {place for phrase in phrases if phrase.anchor is None for place in range(phrase.start, phrase.end + 1)}
    starts = set()
    for sentence in parsed.sents:
        place = kept[sentence.start]
        while place - 1 in opening:
            place -= 1
        starts.add(place)
    numbers, number = [], -1
    for token in whole:
        number += token.i in starts or token.i == 0
        numbers.append(number)
    return numbers


def _kind(head: Token) -> str:
    """What a noun phrase is about: person, apparel, looks, body, gear or thing."""
    words = factor_words()
    if head.lower_ in ("it", "its", "this", "that", "which", "these", "those"):
        return "thing"
    counted = head.tag_ == "CD" or head.lower_ in ("one", "both", "some", "pair", "set", "most", "each", "all", "piece")
    inner = _object_of(head, "of") if counted else None
    if inner is not None and not names_people(head):
        return _kind(inner)
    if is_garment(head):
        return "apparel"
    if is_one_of(head, words.looks):
        return "looks"
    if is_one_of(head, words.body):
        return "body"
    if head.pos_ == "PRON" or head.tag_ == "CD" or is_person_noun(head.lower_):
        return "person" if names_people(head) else "thing"
    if is_one_of(head, words.gear):
        return "gear"
    return "person" if names_people(head) else "thing"


def _object_of(token: Token, preposition: str) -> Token | None:
    for child in token.children:
        if child.dep_ == "prep" and child.lower_ == preposition:
            return next((inner for inner in child.children if inner.dep_ == "pobj"), None)
    return None


def _final_object(preposition: Token) -> Token | None:
    """What a preposition is about: the wall in "next to a wall", the house in "in front of a house"."""
    found = next((child for child in preposition.children if child.dep_ in ("pobj", "pcomp", "npadvmod")), None)
    if found is not None and found.i + 1 < len(found.doc) and found.doc[found.i + 1].text == "-":
        rest = (child for child in preposition.children if child.dep_ == "pobj")
        found = next((child for child in rest if child.i == found.i + 2), found)  # "mid-air" in three tokens
    if found is None:
        inner = next((child for child in preposition.children if child.dep_ == "prep"), None)
        return _final_object(inner) if inner is not None else None
    if found.lower_ in ("front", "top", "edge", "middle", "side", "end", "center", "centre", "bottom", "back"):
        return _object_of(found, "of") or found
    return found


def _is_verb_like(token: Token) -> bool:
    """A verb, or a word taken for a noun that has a subject ("she trips/NNS over a hose")."""
    return token.pos_ in ("VERB", "AUX") or any(
        child.dep_ in (*_SUBJECTS, "aux", "auxpass", "expl") for child in token.children
    )


def _is_owned(thing: Token) -> bool:
    """Whether it is somebody's: "his feet", "the boy's bag"."""
    return any(
        child.lower_ != "its" and (child.tag_ == "PRP$" or (child.dep_ == "poss" and names_people(child)))
        for child in thing.children
    )


def _is_passive(verb: Token) -> bool:
    """Of a state ("is torn"); "gets caught" tells what happens."""
    return any(child.dep_ == "auxpass" and child.lemma_.lower() != "get" for child in verb.children)


def _parts(verb: Token) -> list[Token]:
    """What hangs on a verb, or on its auxiliary where the parse took the main word for a noun ("he is head down")."""
    parts = list(verb.children)
    for child in verb.children:
        if child.dep_ in ("aux", "auxpass"):
            parts += [part for part in child.children if part.dep_ not in ("punct", "cc")]
    return parts


def _touches(preposition: Token, target: Token, head: Token) -> bool:
    """Whether the thing is what somebody slips on, leans on or breaks through, and no place where it happens."""
    words = factor_words()
    lemma = head.lemma_.lower()
    return (
        preposition.lower_ in ("on", "upon", "over", "against", "through", "down", "up", "along")
        and (lemma in words.contact or lemma in words.mishaps)
        and not is_one_of(target, words.places)
    )


class _Labelling:
    """Gives each token of one doc its factor; `factors` holds the answer by token index.

    `clothed` are the words whose looks the caption tells in a phrase that was left out of the doc.
    """

    def __init__(self, doc: Doc, clothed: frozenset[int]) -> None:
        self.doc = doc
        self.clothed = clothed
        self.given: list[str | None] = [None] * len(doc)
        for number, sentence in enumerate(doc.sents):
            self._sentence(sentence, first=number == 0)
        self._complete()
        self.factors: list[str] = [factor or _DROPPED for factor in self.given]

    def _kind(self, head: Token) -> str:
        return "person" if head.i in self.clothed else _kind(head)

    # -- clauses

    def _sentence(self, sentence: Span, first: bool) -> None:
        root = sentence.root
        if not first and self._is_set_behind(root):
            self._spread_all(root, _BACKGROUND)
        elif _is_verb_like(root):
            self._clause(root, actor="person")
        else:
            self._entity(root)

    def _is_set_behind(self, root: Token) -> bool:
        """Whether a later sentence is about what is "in the background", or about bystanders."""
        words = factor_words()
        subject = self._subject(root)
        if subject is not None and self._only_looks_on(subject, root):
            return True
        for child in root.children:
            target = _final_object(child) if child.dep_ == "prep" else None
            if target is not None and is_one_of(target, words.far):
                return subject is None or subject.pos_ != "PRON" or child.i < subject.i
        return False

    def _only_looks_on(self, subject: Token, verb: Token) -> bool:
        """Whether people are part of the place: a crowd, "hands of fans", several people who stand and watch."""
        words = factor_words()
        group = _object_of(subject, "of")
        if group is not None and (is_one_of(group, words.bystanders) or self._kind(subject) == "person"):
            subject = group if is_one_of(group, words.bystanders) else subject
        is_many = subject.tag_ in ("NNS", "NNPS") or subject.lower_ in ("crowd", "audience") or group is not None
        if is_one_of(subject, words.bystanders) and is_many:
            return True
        is_told_of = subject.i in self.clothed or any(
            child.lower_ in ("the", "his", "her", "their", "its", "both") or child.dep_ in ("appos", "relcl")
            for child in subject.children
        )
        if is_told_of or subject.pos_ == "PRON" or subject.tag_ not in ("NN", "NNS") or self._kind(subject) != "person":
            return False
        is_bare = all(child.dep_ in ("amod", "punct", "prep") for child in subject.children)
        if (
            is_many
            and is_bare
            and not any(token.tag_ == "PRP" and token.lower_ not in ("it", "they") for token in verb.subtree)
        ):
            return True  # "photographers crouch along the edge", and nobody named before is meant
        return (is_many or is_one_of(subject, words.bystanders)) and verb.lemma_.lower() in words.onlooking

    @staticmethod
    def _subject(verb: Token) -> Token | None:
        if any(child.dep_ == "expl" and child.lower_ == "there" for child in verb.children):
            return next((child for child in verb.children if child.dep_ in ("attr", "dobj", "nsubj")), None)
        return next((part for part in _parts(verb) if part.dep_ in _SUBJECTS), None)

    def _clause(self, verb: Token, actor: str) -> None:
        """Labels a clause; `actor` is the kind of whoever acts in it where it has no subject of its own."""
        subject = self._subject(verb)
        if subject is not None and self._is_frame(subject, verb):
            self._frame(subject, verb)
            return
        there = any(child.dep_ == "expl" for child in verb.children)
        if subject is not None and subject.lower_ not in ("who", "that", "which"):
            if subject.sent.start > 0 and verb.dep_ == "conj" and not there and self._only_looks_on(subject, verb):
                self._spread_all(verb, _BACKGROUND)
                return
            actor = self._actor(subject, verb)
        if (
            actor == "person"
            and verb.tag_ == "VBN"
            and verb.lemma_.lower() in factor_words().frame_verbs | {"see", "picture"}
        ):
            # "A man is seen riding a bicycle": that he is seen says nothing.
            self.given[verb.i] = _DROPPED
            for child in _parts(verb):
                if child.dep_ in ("aux", "auxpass", "mark"):
                    self.given[child.i] = _DROPPED
                else:
                    self._verb_child(verb, child, _ACTION, actor, subject, there)
            return
        factor = self._verb_factor(verb, actor, subject, there)
        self.given[verb.i] = factor
        if actor == "person" and factor == _BACKGROUND and not there:
            # "He is on a field with both arms raised": the place took the verb, the arms are an action all the same.
            for child in _parts(verb):
                self._verb_child(
                    verb, child, _ACTION if child.dep_ in ("prep", "advcl", "conj") else factor, actor, subject, there
                )
            return
        for child in _parts(verb):
            self._verb_child(verb, child, factor, actor, subject, there)

    def _actor(self, subject: Token, verb: Token) -> str:
        kind = self._kind(subject)
        if kind in ("apparel", "gear") and any(
            child.dep_ == "conj" and self._kind(child) == "thing" for child in subject.children
        ):
            return "thing"
        if kind == "thing" and any(child.dep_ == "conj" and self._kind(child) == "body" for child in subject.children):
            return "body"
        in_hand = _is_owned(subject) or any(
            target is not None and self._kind(target) == "body"
            for target in (_final_object(child) for child in subject.children if child.dep_ == "prep")
        )
        if kind == "apparel" and subject.tag_ == "NNS" and verb.lemma_.lower() in factor_words().static:
            is_bare = all(child.dep_ in ("amod", "compound", "punct") for child in subject.children)
            kind = "thing" if is_bare else kind  # "stockings hang from the mantel"
        part_of = _object_of(subject, "of")
        said = {verb.lemma_.lower(), *(child.lower_ for child in verb.children if child.dep_ == "acomp")}
        hangs = not said.isdisjoint(_HANGING)
        if kind == "apparel" and not hangs and is_one_of(part_of or subject, factor_words().carried):
            return "handled" if in_hand or self._was_handled(part_of or subject) else "thing"
        return "handled" if kind in ("thing", "gear") and (in_hand or self._was_handled(subject)) else kind

    def _was_handled(self, subject: Token) -> bool:
        """Whether the thing was part of an action before ("riding a bike. The bike is leaning over")."""
        words = factor_words()
        before = {child.lower_ for child in subject.children}
        is_definite = bool(before & {"the", "its"}) and "other" not in before
        is_part = is_one_of(subject, words.gear_parts)
        earlier = self.doc[: subject.left_edge.i]
        return is_definite and any(
            self.given[token.i] == _ACTION
            and (
                token.lemma_ == subject.lemma_
                or (is_part and is_one_of(token, words.gear))
                or (token.pos_ == "NOUN" and subject.lemma_ in ("animal", "vehicle", "object", "device", "creature"))
            )
            for token in earlier
        )

    def _verb_factor(self, verb: Token, actor: str, subject: Token | None, there: bool) -> str:
        words = factor_words()
        lemma = verb.lemma_.lower()
        if there and subject is not None:
            return _APPEARANCE if actor == "person" else _BACKGROUND
        if actor in ("apparel", "looks"):
            gets = any(child.dep_ == "auxpass" and child.lemma_.lower() == "get" for child in verb.children)
            moves = gets or (lemma in words.mishaps and not _is_passive(verb))
            lasts = actor == "looks" and verb.tag_ in ("VBZ", "VBP")  # "her hair falls over her shoulders"
            return _ACTION if moves and not lasts else _APPEARANCE
        if actor == "body" and not is_one_of(verb, words.mishaps):
            said = [verb, *(child for child in verb.children if child.dep_ == "acomp")]
            if any(is_one_of(each, words.soiled) for each in said) and (_is_passive(verb) or lemma == "be"):
                return _APPEARANCE
        if actor in ("body", "handled"):
            return _ACTION
        target = next((child for child in verb.children if child.dep_ in ("dobj", "attr", "oprd")), None)
        if actor == "person":
            if lemma in words.wear or (lemma == "clad"):
                return _APPEARANCE
            if lemma == "have" and target is not None and self._kind(target) in ("apparel", "looks"):
                return _APPEARANCE
            return self._copula_factor(verb, target) if lemma == "be" else _ACTION
        if actor == "gear":
            return _BACKGROUND if lemma in words.static else _ACTION
        if self._befalls_somebody(verb, target):
            return _ACTION
        if subject is not None and is_one_of(subject, words.nature) and target is None:
            return _BACKGROUND
        if verb.dep_ == "advcl" and subject is not None and not is_one_of(subject, words.places):
            return _BACKGROUND if lemma in words.static or lemma in words.onlooking else _ACTION
        return _ACTION if lemma in words.mishaps else _BACKGROUND

    def _befalls_somebody(self, verb: Token, target: Token | None) -> bool:
        """ "The ball hits him", "milk drips down his cheeks", "smoke pours from the pan" that somebody held."""
        if target is not None and self._kind(target) == "person":
            return True
        reached = [(child.lower_, _final_object(child)) for child in verb.children if child.dep_ == "prep"]
        return any(
            thing is not None
            and ((self._kind(thing) == "body" and _is_owned(thing)) or (word == "from" and self._was_handled(thing)))
            for word, thing in [("", target), *reached]
        )

    def _copula_factor(self, verb: Token, target: Token | None) -> str:
        words = factor_words()
        near = (*verb.children, *verb.doc[verb.i + 1 : verb.i + 3])
        if any(child.lower_ in ("upside", "upright", "up", "down", "head") for child in near):
            return _ACTION
        adjective = next((child for child in verb.children if child.dep_ == "acomp"), None)
        if adjective is not None:
            return _APPEARANCE if is_one_of(adjective, words.looking) else _ACTION
        if target is not None:
            states = [child for child in verb.children if child.dep_ == "attr" and is_one_of(child, words.states)]
            return _ACTION if states or target.lower_.endswith("ing") else _APPEARANCE
        places = [child for child in verb.children if child.dep_ == "prep" and not self._names_the_image(child)]
        if places:
            thing = _final_object(places[0])
            kind = self._kind(thing) if thing is not None else "thing"
            is_place = kind == "thing" and thing is not None and not is_one_of(thing, words.states)
            if kind in ("apparel", "looks"):
                return _APPEARANCE
            return _BACKGROUND if is_place else _ACTION
        return _ACTION

    def _verb_child(
        self, verb: Token, child: Token, factor: str, actor: str, subject: Token | None, there: bool
    ) -> None:
        words = factor_words()
        if child.dep_ in ("punct", "cc"):
            return
        if child.dep_ in ("aux", "auxpass"):
            self.given[child.i] = factor
            return
        if subject is not None and child.i == subject.i:
            if there:
                self._entity(child)
            else:
                self._spread(child, self._subject_factor(child, verb, factor, actor))
        elif child.dep_ in _SUBJECTS:
            # A second subject of a coordination that the parse gave to the verb ("a bride and a groom are dancing").
            self._spread(child, _APPEARANCE if self._kind(child) == "person" and actor == "person" else factor)
        elif child.dep_ in ("prep", "agent") or (child.dep_ in ("advmod", "prt") and _final_object(child) is not None):
            self._spread(child, self._preposition_factor(child, verb, factor))
        elif child.dep_ == "prt" and self._is_preposition_of_object(verb, child):
            thing = next(noun for noun in verb.children if noun.left_edge.i == child.i + 1)
            self._spread(child, self._place_or(child, thing, verb, factor))
        elif child.dep_ in ("dobj", "npadvmod") and (particle := self._particle_before(verb, child)) is not None:
            self._spread(child, self._place_or(particle, child, verb, factor))
        elif child.dep_ == "advmod" and child.lower_ in words.place_adverbs and factor == _ACTION:
            self._spread(child, _BACKGROUND if not list(child.children) else factor)
        elif child.dep_ in ("advcl", "xcomp", "ccomp", "conj", "parataxis", "acl", "relcl", "dep", "pcomp"):
            self._follow(child, factor, actor)
        else:
            self._spread(child, factor)

    def _subject_factor(self, subject: Token, verb: Token, factor: str, actor: str) -> str:
        """The factor of a subject whose verb is of `factor`: people as first told of and garments are appearance."""
        if actor == "person" and (not self._is_bare_mention(subject) or self._is_clothed_beside(verb)):
            return _APPEARANCE
        if actor in ("apparel", "looks") and not is_one_of(subject, factor_words().carried):
            return _APPEARANCE
        return factor

    def _follow(self, child: Token, factor: str, actor: str) -> None:
        """A clause below or beside another one: by its own subject, else by the actor of the one above."""
        if factor == _BACKGROUND and self._subject(child) is None:
            self._spread(child, _BACKGROUND)
        elif _is_verb_like(child) or child.dep_ in ("advcl", "xcomp", "ccomp", "conj"):
            is_noun = child.pos_ in ("NOUN", "PROPN") and any(inner.dep_ == "det" for inner in child.children)
            if is_noun:
                self._spread(child, factor)
            else:
                self._clause(child, "person" if actor in ("body", "handled") and not self._subject(child) else actor)
        else:
            self._spread(child, factor)

    # -- phrases

    @staticmethod
    def _is_frame(subject: Token, verb: Token) -> bool:
        words = factor_words()
        return is_one_of(subject, words.frame_nouns) and verb.lemma_.lower() in words.frame_verbs

    def _frame(self, subject: Token, verb: Token) -> None:
        """ "The image shows a boy": the boy counts, the rest is dropped, unless it tells how the image looks."""
        is_plain = all(child.dep_ in ("det", "punct") for child in subject.children)
        factor = _DROPPED if is_plain else _BACKGROUND
        self.given[verb.i] = factor
        self._spread_all(subject, factor)
        for child in verb.children:
            if child.i == subject.i or child.dep_ in ("punct", "cc"):
                continue
            if child.dep_ in ("dobj", "attr", "npadvmod"):
                self._entity(child)
            elif child.dep_ in ("ccomp", "xcomp", "advcl", "conj"):
                self._follow(child, _ACTION, "person")
            elif child.dep_ == "prep":
                self._spread(child, self._preposition_factor(child, verb, _ACTION))
            elif child.dep_ in ("aux", "advmod", "mark", "prt") and not list(child.children):
                self.given[child.i] = factor
            else:
                self._spread(child, _ACTION)

    def _is_bare_mention(self, head: Token) -> bool:
        """A pronoun, or "the man" and nothing more."""
        if head.i in self.clothed:
            return False
        if any(child.dep_ in ("acl", "relcl", "conj") for child in head.children):
            return False
        if head.pos_ == "PRON" or head.tag_ in ("CD", "DT", "PRP", "WP", "JJ"):
            group = _object_of(head, "of")
            return group is None or group.pos_ == "PRON"
        children = [child for child in head.children if child.dep_ != "punct"]
        return len(children) == 1 and children[0].lower_ in ("the", "both", "his", "her", "their")

    def _is_clothed_beside(self, verb: Token) -> bool:
        """ "The other, in a white shirt, is sitting": the clothes hang on the verb, but are of the one named before."""
        return any(
            child.dep_ == "prep" and child.i < verb.i and self._preposition_factor(child, verb, _ACTION) == _APPEARANCE
            for child in verb.children
        )

    def _entity(self, head: Token) -> None:
        """A noun phrase that stands by itself ("there is ...", "the image shows ...", a caption without a verb)."""
        factors = {"person": _APPEARANCE, "apparel": _APPEARANCE, "looks": _APPEARANCE, "body": _ACTION}
        kind = self._kind(head)
        if kind in ("thing", "gear") and self._is_at_body(head):
            kind = "body"  # "the microphone still in his hand"
        self._spread(head, factors.get(kind, _BACKGROUND))

    @staticmethod
    def _brings_in_hand(preposition: Token) -> bool:
        """ "with a wrench in his fist", hung on a place by the parser."""
        target = _final_object(preposition) if preposition.dep_ == "prep" and preposition.lower_ == "with" else None
        if target is None:
            return False
        held = (_final_object(child) for child in target.children if child.dep_ == "prep")
        return any(each is not None and each.lower_ in HELD_IN and _is_owned(each) for each in held)

    def _is_at_body(self, head: Token) -> bool:
        targets = (_final_object(child) for child in head.children if child.dep_ == "prep")
        return any(target is not None and self._kind(target) == "body" for target in targets)

    def _spread(self, token: Token, factor: str) -> None:
        """Gives a phrase its factor, but for those of its parts that belong to another one."""
        if factor == _ACTION and token.i in self.clothed:
            factor = _APPEARANCE  # somebody else whose looks are told ("beside a woman in a red coat")
        self.given[token.i] = factor
        is_nominal = token.pos_ in ("NOUN", "PROPN", "PRON", "NUM", "DET", "ADJ")
        kind = self._kind(token) if is_nominal else "thing"
        for child in token.children:
            if child.dep_ in ("punct", "cc"):
                continue
            if factor in (_BACKGROUND, _DROPPED):
                self._spread(child, _ACTION if factor == _BACKGROUND and self._brings_in_hand(child) else factor)
            elif child.dep_ in ("acl", "relcl") and (kind == "person" or self._is_stray_participle(token, child, kind)):
                self._clause(child, "person")
            elif child.dep_ == "prep" and is_nominal:
                self._spread(child, self._preposition_factor(child, token, factor))
            elif child.dep_ in ("appos", "conj") and kind == "person" and self._tells_posture(child):
                self._spread(child, _ACTION)
            elif child.dep_ == "conj" and is_nominal:
                if child.pos_ == "VERB":
                    self._clause(child, "person")
                else:
                    beside = kind == "person" and factor == _APPEARANCE and self._kind(child) in ("thing", "gear")
                    self._spread(child, _BACKGROUND if beside else factor)
            else:
                self._spread(child, factor)

    @staticmethod
    def _is_stray_participle(token: Token, child: Token, kind: str) -> bool:
        """ "in a yellow jacket riding a bicycle": it is not the jacket that rides."""
        return kind in ("apparel", "looks", "body") and child.tag_ == "VBG"

    def _tells_posture(self, phrase: Token) -> bool:
        """ "a man lying flat, the body horizontal": said of the body, whichever word the parse makes its head."""
        nouns = [token for token in phrase.subtree if token.pos_ == "NOUN"]
        return bool(nouns) and self._kind(nouns[0]) == "body"

    def _spread_all(self, token: Token, factor: str) -> None:
        for inner in token.subtree:
            if inner.dep_ not in ("punct",):
                self.given[inner.i] = factor
        self._drop_frames(token)

    def _drop_frames(self, token: Token) -> None:
        for inner in token.subtree:
            if inner.dep_ == "prep" and self._names_the_image(inner):
                for word in inner.subtree:
                    self.given[word.i] = _DROPPED

    @staticmethod
    def _names_the_image(preposition: Token) -> bool:
        """Whether it is "in the image" or "of the picture"."""
        target = next((child for child in preposition.children if child.dep_ == "pobj"), None)
        plain = target is not None and all(child.dep_ in ("det", "punct") for child in target.children)
        is_image = target is not None and is_one_of(target, factor_words().frame_nouns)
        return plain and is_image

    def _preposition_factor(self, preposition: Token, head: Token, factor: str) -> str:
        """The factor of a prepositional phrase below a verb or noun of `factor`."""
        words = factor_words()
        if self._names_the_image(preposition) and preposition.lower_ in ("in", "of"):
            return _DROPPED
        target = _final_object(preposition)
        if target is None or factor in (_BACKGROUND, _DROPPED):
            return factor
        word = preposition.lower_
        kind = self._kind(target) if target.pos_ != "VERB" else "thing"
        on_person = head.pos_ not in ("VERB", "AUX") and self._kind(head) == "person"
        if word == "of":
            return factor
        if (
            kind == "apparel"
            and word == "with"
            and any(
                held is not None and held.lower_ in HELD_IN
                for held in (_final_object(child) for child in target.children if child.dep_ == "prep")
            )
        ):
            return factor
        if kind in ("apparel", "looks"):
            is_worn = word in ("in", "with") and (on_person or head.pos_ in ("VERB", "AUX"))
            return _APPEARANCE if is_worn else factor
        if kind == "body":
            return factor if not on_person or word in ("with", "on") else _ACTION
        if kind == "person":
            return _ACTION if on_person else factor
        if on_person and word == "with" and self._is_on_body(target):
            return _APPEARANCE
        if on_person and target.lower_ in ("left", "right", "middle", "center", "centre", "front", "side"):
            return _APPEARANCE
        if word == "at" and head.lemma_.lower() in words.target_verbs:
            return factor
        is_ridden = kind == "gear" or is_one_of(target, words.gear_parts)
        if is_ridden and word in ("on", "in", "with", "off", "over"):
            return _ACTION
        if is_one_of(target, words.states):
            return _ACTION if on_person else factor
        is_by_doer = word == "by" and _is_passive(head) and not is_one_of(target, words.places)
        if (
            preposition.dep_ == "agent"
            or is_by_doer
            or _touches(preposition, target, head)
            or self._is_depth(preposition, head)
        ):
            return factor
        if head.lemma_.lower() in words.bound and word in ("in", "with", "by", "under", "inside", "between", "to"):
            is_place = is_one_of(target, words.places) and not is_one_of(target, words.substances)
            return _BACKGROUND if is_place else factor
        if word == "from" and head.lemma_.lower() in words.onlooking and is_one_of(target, words.places):
            return _BACKGROUND
        if kind == "gear" and word in ("beside", "near", "by", "next", "under") and self._went_wrong(target):
            return _ACTION
        if word in words.place:
            return _BACKGROUND
        if on_person:
            return _ACTION
        return factor

    def _is_on_body(self, thing: Token) -> bool:
        """ "with sawdust in his hair", "with a towel around her waist", and not "with a cup in his hand"."""
        words = factor_words()
        for child in thing.children:
            target = _final_object(child) if child.dep_ == "prep" else None
            if target is not None and is_one_of(target, words.looks):
                return True
            if target is None or target.lower_ in HELD_IN:
                continue
            if child.lower_ in ("on", "around", "over", "across") and self._kind(target) == "body":
                return True
        return False

    @staticmethod
    def _is_depth(preposition: Token, head: Token) -> bool:
        """ "is knee-deep in mud": no place, but how far."""
        measures = (child for child in preposition.children if child.dep_ == "advmod")
        return head.lemma_ == "be" and any(child.tag_ == "JJ" for child in measures)

    @staticmethod
    def _went_wrong(thing: Token) -> bool:
        """ "a toppled cart", "his broken cane"."""
        bases = (
            base
            for child in thing.children
            if child.dep_ == "amod"
            for base in (child.lemma_, child.lower_[:-1], child.lower_[:-2])
        )
        return any(base in factor_words().mishaps for base in bases)

    # -- particles that are prepositions ("tumbling down a slope")

    @staticmethod
    def _is_preposition_of_object(verb: Token, particle: Token) -> bool:
        return any(
            child.dep_ in ("dobj", "npadvmod") and child.left_edge.i == particle.i + 1 for child in verb.children
        )

    @staticmethod
    def _particle_before(verb: Token, noun: Token) -> Token | None:
        return next((child for child in verb.children if child.dep_ == "prt" and child.i + 1 == noun.left_edge.i), None)

    def _place_or(self, particle: Token, thing: Token, verb: Token, factor: str) -> str:
        is_place = (
            factor == _ACTION
            and particle.lower_ in ("down", "up", "along", "across", "through", "around")
            and self._kind(thing) != "body"
            and (is_one_of(thing, factor_words().places) or particle.lower_ not in ("up", "down"))
            and not _touches(particle, thing, verb)
        )
        return _BACKGROUND if is_place else factor

    # -- what is left

    def _complete(self) -> None:
        """Conjunctions go with what they bring in, left-over words with what is above them."""
        for token in self.doc:
            if token.lower_ in factor_words().postures and self.given[token.i] in (_APPEARANCE, _BACKGROUND):
                # The parser takes these for nouns after a list of clothes ("in a red top and blue jeans squats").
                self.given[token.i] = _ACTION if token.pos_ in ("NOUN", "PROPN", "ADJ") else self.given[token.i]
            if token.lower_ == "down" and token.i and self.doc[token.i - 1].lower_ == "upside":
                subject = self._subject(token.sent.root)
                if subject is not None and self.given[subject.i] != _BACKGROUND:
                    self.given[token.i] = self.given[token.i - 1] = _ACTION
        for token in self.doc:
            if token.dep_ == "cc" and self.given[token.i] is None:
                joined = [child for child in token.head.children if child.dep_ == "conj" and child.i > token.i]
                source = min(joined, key=lambda child: child.i) if joined else token.head
                self.given[token.i] = self.given[source.left_edge.i] or self.given[source.i]
        for token in self.doc:
            if self.given[token.i] is None and not token.is_punct and not token.is_space:
                above = next((up for up in token.ancestors if self.given[up.i] is not None), None)
                self.given[token.i] = self.given[above.i] if above is not None else _BACKGROUND
        for token in self.doc:
            if self.given[token.i] == _DROPPED and content_words(token.text):
                self.given[token.i] = _BACKGROUND  # nothing that says something is dropped, whatever the parse
        # "they're", "isn't" and "boy's" stay one word.
        for token in self.doc[1:]:
            if token.text[0] in "'’" or token.lower_ in ("n't", "n’t"):
                self.given[token.i] = self.given[token.i - 1]


def _assemble(doc: Doc, factors: Sequence[str], sentences: Sequence[int], factor: str) -> str | None:
    """The factor's words as text: runs of the caption, a comma where the caption leaves off and starts anew."""
    text, last_end, last_sentence = "", 0, -1
    for run in _runs(doc, factors, sentences, factor):
        start, end = _trim(doc, run)
        opens_sentence = start < end and sentences[start] != last_sentence
        if opens_sentence and doc[start].tag_ == "CC":
            start += 1
        if start >= end:
            continue
        piece = doc[start:end].text
        starts_sentence = start == 0 or sentences[start] != sentences[start - 1]
        if not text:
            text = _lower_start(doc, start, piece, starts_sentence)
        elif start == last_end and not doc[start - 1].whitespace_:
            text += piece
        elif opens_sentence:
            text += ", " + _lower_start(doc, start, piece, starts_sentence)
        else:
            starts_anew = doc[start - 1].text in ",;" or doc[start].tag_ in ("DT", "CD", "PRP$")
            text += (", " if starts_anew else " ") + piece
        last_end, last_sentence = end, sentences[start]
    return text if words_of(text) else None


def _runs(doc: Doc, factors: Sequence[str], sentences: Sequence[int], factor: str) -> list[tuple[int, int]]:
    """Spans of tokens of the factor within a sentence; punctuation between two of its words belongs to it."""
    runs: list[tuple[int, int]] = []
    for token in doc:
        if token.is_punct or token.is_space or factors[token.i] != factor:
            continue
        start, end = runs[-1] if runs else (0, 0)
        if runs and sentences[start] == sentences[token.i] and all(between.is_punct for between in doc[end : token.i]):
            runs[-1] = (start, token.i + 1)
        else:
            runs.append((token.i, token.i + 1))
    return runs


def _trim(doc: Doc, run: tuple[int, int]) -> tuple[int, int]:
    """The run without a conjunction that nothing follows."""
    start, end = run
    while end > start and (doc[end - 1].tag_ == "CC" or doc[end - 1].is_punct):
        end -= 1
    return start, end


def _lower_start(doc: Doc, start: int, piece: str, starts_sentence: bool) -> str:
    """Lower case for a sentence's first word; what is no common word (a name) and "T-shirt" are left alone."""
    token = doc[start]
    is_name = token.tag_ in ("NNP", "NNPS") and not any(is_known_word(form) for form in singulars(token.lower_))
    if starts_sentence and len(token.text) > 1 and not token.is_upper and not is_name:
        return piece[0].lower() + piece[1:]
    return piece if token.text != "A" else "a" + piece[1:]
