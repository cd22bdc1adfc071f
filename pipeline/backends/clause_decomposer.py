"""Splits a caption into appearance, action and background along spaCy's parse (the embedded Decomposer).

Every token of the caption is given to one factor or to none, so nothing can be added, moved or doubled: a factor is
the caption with the other words left out. The rules, in the order of their weight:

* people as they are first named, and what is worn or looked like, is appearance;
* what people do, what they handle, their posture, and things that fall or break, is action;
* places, and things and animals that nobody handles, are background, and so are bystanders "in the background";
* a bare second mention ("the man", "he") goes with its clause, for it describes nobody;
* "the image shows" and "in the picture" go nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from pipeline.backends.english_parser import english_parser, parser_revision, read_word_file, section_words
from pipeline.backends.person_words import is_known_word, is_person_noun, names_people, singulars
from pipeline.backends.protocols import BackendContext, FactorTexts
from pipeline.core.text import content_words

if TYPE_CHECKING:
    from spacy.tokens import Doc, Span, Token

_APPEARANCE, _ACTION, _BACKGROUND, _DROPPED = "appearance", "action", "background", ""
_SUBJECTS = ("nsubj", "nsubjpass", "csubj")
_GARMENT_ENDINGS = ("suit", "suits", "shirt", "shirts", "coat", "coats", "jacket", "pants", "shoes", "boots", "wear")
_BATCH = 128


class ClauseDecomposer:
    """Decomposer of the embedded backend; asks no model, so the prompt is not used."""

    name = "clauses"

    def __init__(self, context: BackendContext) -> None:
        """Loads nothing: the parser comes with the first caption."""
        self.revision = f"1+{parser_revision()}"

    def decompose(self, captions: Sequence[str], prompt: str) -> list[FactorTexts]:
        """One split a caption, in order; all None for an empty one. Raises ParserMissingError without the parser."""
        cleaned = (" ".join(caption.split()) for caption in captions)
        return [split_caption(doc) for doc in english_parser().pipe(cleaned, batch_size=_BATCH)]


@dataclass(frozen=True)
class _FactorWords:
    apparel: frozenset[str]
    looks: frozenset[str]
    looking: frozenset[str]
    body: frozenset[str]
    gear: frozenset[str]
    states: frozenset[str]
    mishaps: frozenset[str]
    static: frozenset[str]
    wear: frozenset[str]
    inward: frozenset[str]
    place: frozenset[str]
    place_adverbs: frozenset[str]
    target_verbs: frozenset[str]
    frame_nouns: frozenset[str]
    frame_verbs: frozenset[str]
    bystanders: frozenset[str]
    far: frozenset[str]
    postures: frozenset[str]


@cache
def _words() -> _FactorWords:
    sections = read_word_file("factor_words.txt")
    titles = {
        "looking": "looking adjectives",
        "inward": "inward prepositions",
        "place": "place prepositions",
        "place_adverbs": "place adverbs",
        "target_verbs": "target verbs",
        "frame_nouns": "frame nouns",
        "frame_verbs": "frame verbs",
        "far": "far places",
    }
    return _FactorWords(
        **{
            field: section_words(sections, titles.get(field, field))
            for field in _FactorWords.__dataclass_fields__  # one section a field
        }
    )


def split_caption(doc: Doc) -> FactorTexts:
    """The three factors of a parsed caption, each its words in the caption's order, None where there are none."""
    factors = _Labelling(doc).factors
    texts = {factor: _assemble(doc, factors, factor) for factor in (_APPEARANCE, _ACTION, _BACKGROUND)}
    return FactorTexts(texts[_APPEARANCE], texts[_ACTION], texts[_BACKGROUND])


def _is(token: Token, words: frozenset[str]) -> bool:
    return (
        token.lower_ in words or token.lemma_.lower() in words or any(form in words for form in singulars(token.lower_))
    )


def _kind(head: Token) -> str:
    """What a noun phrase is about: person, apparel, looks, body, gear or thing."""
    words = _words()
    if head.lower_ in ("it", "its", "this", "that", "which", "these", "those"):
        return "thing"
    counted = head.tag_ == "CD" or head.lower_ in ("one", "both", "some", "pair", "set", "most", "each", "all", "piece")
    inner = _object_of(head, "of") if counted else None
    if inner is not None and not names_people(head):
        return _kind(inner)
    if _is(head, words.apparel) or head.lower_.endswith(_GARMENT_ENDINGS):
        return "apparel"
    if _is(head, words.looks):
        return "looks"
    if _is(head, words.body):
        return "body"
    if head.pos_ == "PRON" or head.tag_ == "CD" or is_person_noun(head.lower_):
        return "person" if names_people(head) else "thing"
    if _is(head, words.gear):
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


def _parts(verb: Token) -> list[Token]:
    """What hangs on a verb, or on its auxiliary where the parse took the main word for a noun ("he is head down")."""
    parts = list(verb.children)
    for child in verb.children:
        if child.dep_ in ("aux", "auxpass"):
            parts += [part for part in child.children if part.dep_ not in ("punct", "cc")]
    return parts


class _Labelling:
    """Gives each token of one doc its factor; `factors` holds the answer by token index."""

    def __init__(self, doc: Doc) -> None:
        self.doc = doc
        self.given: list[str | None] = [None] * len(doc)
        for number, sentence in enumerate(doc.sents):
            self._sentence(sentence, first=number == 0)
        self._complete()
        self.factors: list[str] = [factor or _DROPPED for factor in self.given]

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
        words = _words()
        subject = self._subject(root)
        if subject is not None and _is(subject, words.bystanders):
            return True
        for child in root.children:
            target = _final_object(child) if child.dep_ == "prep" else None
            if target is not None and _is(target, words.far):
                return subject is None or subject.pos_ != "PRON" or child.i < subject.i
        return False

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
            actor = self._actor(subject)
        if (
            actor == "person"
            and verb.tag_ == "VBN"
            and verb.lemma_.lower() in _words().frame_verbs | {"see", "picture"}
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

    def _actor(self, subject: Token) -> str:
        kind = _kind(subject)
        if kind in ("apparel", "gear") and any(
            child.dep_ == "conj" and _kind(child) == "thing" for child in subject.children
        ):
            return "thing"
        in_hand = any(child.tag_ == "PRP$" for child in subject.children) or any(
            target is not None and _kind(target) == "body"
            for target in (_final_object(child) for child in subject.children if child.dep_ == "prep")
        )
        return "handled" if kind in ("thing", "gear") and (in_hand or self._was_handled(subject)) else kind

    def _was_handled(self, subject: Token) -> bool:
        """Whether the thing was part of an action before ("riding a bike. The bike is leaning over")."""
        is_definite = any(child.lower_ == "the" for child in subject.children)
        earlier = self.doc[: subject.left_edge.i]
        return is_definite and any(
            token.lemma_ == subject.lemma_ and self.given[token.i] == _ACTION for token in earlier
        )

    def _verb_factor(self, verb: Token, actor: str, subject: Token | None, there: bool) -> str:
        words = _words()
        lemma = verb.lemma_.lower()
        if there and subject is not None:
            return _APPEARANCE if actor == "person" else _BACKGROUND
        if actor in ("apparel", "looks"):
            return _APPEARANCE
        if actor in ("body", "handled"):
            return _ACTION
        target = next((child for child in verb.children if child.dep_ in ("dobj", "attr", "oprd")), None)
        if actor == "person":
            if lemma in words.wear or (lemma == "clad"):
                return _APPEARANCE
            if lemma == "have" and target is not None and _kind(target) in ("apparel", "looks"):
                return _APPEARANCE
            return self._copula_factor(verb, target) if lemma == "be" else _ACTION
        if actor == "gear":
            return _BACKGROUND if lemma in words.static else _ACTION
        strikes = target is not None and _kind(target) in ("person", "body")
        return _ACTION if lemma in words.mishaps or strikes else _BACKGROUND

    @staticmethod
    def _copula_factor(verb: Token, target: Token | None) -> str:
        words = _words()
        if any(child.lower_ in ("upside", "upright", "up", "down", "head") for child in verb.children):
            return _ACTION
        adjective = next((child for child in verb.children if child.dep_ == "acomp"), None)
        if adjective is not None:
            return _APPEARANCE if _is(adjective, words.looking) else _ACTION
        if target is not None:
            states = [child for child in verb.children if child.dep_ == "attr" and _is(child, words.states)]
            return _ACTION if states or target.lower_.endswith("ing") else _APPEARANCE
        places = [child for child in verb.children if child.dep_ == "prep"]
        if places:
            thing = _final_object(places[0])
            kind = _kind(thing) if thing is not None else "thing"
            is_place = kind == "thing" and thing is not None and not _is(thing, words.states)
            if kind in ("apparel", "looks"):
                return _APPEARANCE
            return _BACKGROUND if is_place else _ACTION
        return _ACTION

    def _verb_child(
        self, verb: Token, child: Token, factor: str, actor: str, subject: Token | None, there: bool
    ) -> None:
        words = _words()
        if child.dep_ in ("punct", "cc"):
            return
        if child.dep_ in ("aux", "auxpass"):
            self.given[child.i] = factor
            return
        if subject is not None and child.i == subject.i:
            if there:
                self._entity(child)
            elif actor == "person" and (not self._is_bare_mention(child) or self._is_clothed_beside(verb)):
                self._spread(child, _APPEARANCE)
            else:
                self._spread(child, factor)
        elif child.dep_ in _SUBJECTS:
            # A second subject of a coordination that the parse gave to the verb ("a bride and a groom are dancing").
            self._spread(child, _APPEARANCE if _kind(child) == "person" and actor == "person" else factor)
        elif child.dep_ in ("prep", "agent") or (child.dep_ == "advmod" and _final_object(child) is not None):
            self._spread(child, self._preposition_factor(child, verb, factor))
        elif child.dep_ == "prt" and self._is_preposition_of_object(verb, child):
            self._spread(child, self._place_or(child, factor))
        elif child.dep_ in ("dobj", "npadvmod") and (particle := self._particle_before(verb, child)) is not None:
            self._spread(child, self._place_or(particle, factor))
        elif child.dep_ == "advmod" and child.lower_ in words.place_adverbs and factor == _ACTION:
            self._spread(child, _BACKGROUND if not list(child.children) else factor)
        elif child.dep_ in ("advcl", "xcomp", "ccomp", "conj", "parataxis", "acl", "relcl", "dep", "pcomp"):
            self._follow(child, factor, actor)
        else:
            self._spread(child, factor)

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
        words = _words()
        return _is(subject, words.frame_nouns) and verb.lemma_.lower() in words.frame_verbs

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

    @staticmethod
    def _is_bare_mention(head: Token) -> bool:
        """A pronoun, or "the man" and nothing more."""
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
        self._spread(head, factors.get(_kind(head), _BACKGROUND))

    def _spread(self, token: Token, factor: str) -> None:
        """Gives a phrase its factor, but for those of its parts that belong to another one."""
        self.given[token.i] = factor
        is_nominal = token.pos_ in ("NOUN", "PROPN", "PRON", "NUM", "DET", "ADJ")
        kind = _kind(token) if is_nominal else "thing"
        for child in token.children:
            if child.dep_ in ("punct", "cc"):
                continue
            if factor in (_BACKGROUND, _DROPPED):
                self._spread(child, factor)
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
                    beside = kind == "person" and factor == _APPEARANCE and _kind(child) in ("thing", "gear")
                    self._spread(child, _BACKGROUND if beside else factor)
            else:
                self._spread(child, factor)

    @staticmethod
    def _is_stray_participle(token: Token, child: Token, kind: str) -> bool:
        """ "in a yellow jacket riding a bicycle": it is not the jacket that rides."""
        return kind in ("apparel", "looks", "body") and child.tag_ == "VBG"

    @staticmethod
    def _tells_posture(phrase: Token) -> bool:
        """ "a man lying flat, the body horizontal": said of the body, whichever word the parse makes its head."""
        nouns = [token for token in phrase.subtree if token.pos_ == "NOUN"]
        return bool(nouns) and _kind(nouns[0]) == "body"

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
        return plain and target is not None and _is(target, _words().frame_nouns) and target.lemma_ != "video"

    def _preposition_factor(self, preposition: Token, head: Token, factor: str) -> str:
        """The factor of a prepositional phrase below a verb or noun of `factor`."""
        words = _words()
        if self._names_the_image(preposition) and preposition.lower_ in ("in", "of"):
            return _DROPPED
        target = _final_object(preposition)
        if target is None or factor in (_BACKGROUND, _DROPPED):
            return factor
        word = preposition.lower_
        kind = _kind(target) if target.pos_ != "VERB" else "thing"
        on_person = head.pos_ not in ("VERB", "AUX") and _kind(head) == "person"
        if word == "of":
            return factor
        if kind in ("apparel", "looks"):
            is_worn = word in ("in", "with") and (on_person or head.pos_ in ("VERB", "AUX"))
            return _APPEARANCE if is_worn else factor
        if kind == "body":
            return factor if not on_person or word in ("with", "on") else _ACTION
        if kind == "person":
            return _ACTION if on_person else factor
        if on_person and target.lower_ in ("left", "right", "middle", "center", "centre", "front", "side"):
            return _APPEARANCE
        if word == "at" and head.lemma_.lower() in words.target_verbs:
            return factor
        if kind == "gear" and word in ("on", "in", "with", "off", "over"):
            return _ACTION
        if _is(target, words.states):
            return _ACTION if on_person else factor
        if word in words.place:
            return _BACKGROUND
        if on_person:
            return _ACTION
        return factor

    # -- particles that are prepositions ("tumbling down a slope")

    @staticmethod
    def _is_preposition_of_object(verb: Token, particle: Token) -> bool:
        return any(
            child.dep_ in ("dobj", "npadvmod") and child.left_edge.i == particle.i + 1 for child in verb.children
        )

    @staticmethod
    def _particle_before(verb: Token, noun: Token) -> Token | None:
        return next((child for child in verb.children if child.dep_ == "prt" and child.i + 1 == noun.left_edge.i), None)

    @staticmethod
    def _place_or(particle: Token, factor: str) -> str:
        is_place = factor == _ACTION and particle.lower_ in ("down", "up", "along", "across", "through", "around")
        return _BACKGROUND if is_place else factor

    # -- what is left

    def _complete(self) -> None:
        """Conjunctions go with what they bring in, left-over words with what is above them."""
        for token in self.doc:
            if token.lower_ in _words().postures and self.given[token.i] in (_APPEARANCE, _BACKGROUND):
                # The parser takes these for nouns after a list of clothes ("in a red top and blue jeans squats").
                self.given[token.i] = _ACTION if token.pos_ in ("NOUN", "PROPN", "ADJ") else self.given[token.i]
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


def _assemble(doc: Doc, factors: Sequence[str], factor: str) -> str | None:
    """The factor's words as text: runs of the caption, a comma where the caption leaves off and starts anew."""
    text, last_end, last_sentence = "", 0, -1
    for number, sentence in enumerate(doc.sents):
        for start, end in (_trim(doc, run) for run in _runs(sentence, factors, factor)):
            opens_sentence = number != last_sentence
            if opens_sentence and start < end and doc[start].dep_ == "cc":
                start += 1
            if start >= end:
                continue
            piece = doc[start:end].text
            if not text:
                text = _lower_start(doc, start, piece)
            elif start == last_end and not doc[start - 1].whitespace_:
                text += piece
            elif opens_sentence:
                text += ", " + _lower_start(doc, start, piece)
            else:
                starts_anew = doc[start - 1].text in ",;" or doc[start].dep_ in ("det", "nummod", "poss")
                text += (", " if starts_anew else " ") + piece
            last_end, last_sentence = end, number
    return text or None


def _runs(sentence: Span, factors: Sequence[str], factor: str) -> list[tuple[int, int]]:
    """Spans of tokens of the factor; punctuation between two of its words belongs to it."""
    runs: list[tuple[int, int]] = []
    for token in sentence:
        if token.is_punct or token.is_space or factors[token.i] != factor:
            continue
        if runs and all(between.is_punct for between in token.doc[runs[-1][1] : token.i]):
            runs[-1] = (runs[-1][0], token.i + 1)
        else:
            runs.append((token.i, token.i + 1))
    return runs


def _trim(doc: Doc, run: tuple[int, int]) -> tuple[int, int]:
    """The run without a conjunction that nothing follows."""
    start, end = run
    while end > start and (doc[end - 1].dep_ == "cc" or doc[end - 1].is_punct):
        end -= 1
    return start, end


def _lower_start(doc: Doc, start: int, piece: str) -> str:
    """Lower case for a sentence's first word; what is no common word (a name) and "T-shirt" are left alone."""
    token = doc[start]
    is_name = token.tag_ in ("NNP", "NNPS") and not any(is_known_word(form) for form in singulars(token.lower_))
    if token.is_sent_start and len(token.text) > 1 and not token.is_upper and not is_name:
        return piece[0].lower() + piece[1:]
    return piece if token.text != "A" else "a" + piece[1:]
