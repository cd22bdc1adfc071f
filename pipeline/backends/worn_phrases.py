"""Finds in a tagged caption what is said of somebody's clothes and looks beside the clause, and leaves it out.

"A clerk with a green vest and a name tag hurries over": the parser is apt to take "hurries" for the last thing worn, or
the last garment for a second subject. Such phrases have a plain shape (`in`, `with`, `wearing` or `dressed in`, then a
list of noun phrases that end in a garment or a feature), which the tags alone show. Without them the parser reads
"A clerk hurries over", and what it says of the rest is true of the caption.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from typing import TYPE_CHECKING

from pipeline.backends.english_parser import english_parser
from pipeline.backends.factor_words import factor_words, is_one_of, is_worn_word
from pipeline.backends.person_words import can_be_verb, is_person_noun, singulars

if TYPE_CHECKING:
    from spacy.tokens import Doc, Token

_NOT_FOR_TAGS = ("parser", "attribute_ruler", "lemmatizer")
_STARTERS = ("DT", "PDT", "PRP$", "CD")
_MODIFIERS = (
    "JJ", "JJR", "JJS", "NN", "NNS", "NNP", "NNPS", "VBN", "VBG", "VBD", "CD", "RB", "HYPH", "POS", "AFX", "FW",
)  # fmt: skip
_FINITE = ("VBZ", "VBP", "VBD", "MD", "PRP", "WP")
_NOUNS = ("NN", "NNS", "NNP", "NNPS")
_COUNTERS = ("pair", "pairs", "set", "piece", "lot", "couple", "type", "kind", "strand", "bit")
_ON_BODY = (
    "to", "on", "around", "over", "across", "round", "in", "into", "behind", "from", "below", "above", "down", "at",
)  # fmt: skip
HELD_IN = ("hand", "hands", "arm", "arms", "fist", "fists", "fingers", "teeth", "mouth", "grip", "grasp", "lap")
_PARTICIPLES_OF_WEAR = ("dressed", "clad", "attired", "outfitted", "clothed", "decked", "garbed", "wrapped")
_PURPOSES = (
    "matching", "running", "riding", "hiking", "swimming", "bathing", "skiing", "boxing", "climbing", "diving",
    "cycling", "wrestling", "walking", "dancing", "fitting", "flowing", "fencing", "hunting", "wading", "working",
    "training",
)  # fmt: skip
_OTHERS = ("one", "other", "another", "others", "both", "first", "second", "who")


@dataclass(frozen=True)
class WornPhrase:
    """Tokens `start` to `end` (exclusive) tell of looks; `anchor` is the word they are said of, None if it follows."""

    start: int
    end: int
    anchor: int | None


def worn_phrases(doc: Doc) -> list[WornPhrase]:
    """The phrases of a tagged doc, in order and apart from each other. Only words and tags are looked at."""
    found: list[WornPhrase] = []
    place = 0
    while place < len(doc):
        phrase = _phrase_at(doc, place)
        if phrase is None:
            place += 1
        else:
            if found and phrase.anchor is not None and found[-1].start <= phrase.anchor < found[-1].end:
                phrase = WornPhrase(phrase.start, phrase.end, found[-1].anchor)
            found.append(phrase)
            place = phrase.end
    return found


def kept_tokens(doc: Doc, phrases: Sequence[WornPhrase]) -> list[int]:
    """Indices of the tokens outside the phrases, without the commas that only set them off."""
    gone: set[int] = set()
    for phrase in phrases:
        gone.update(range(phrase.start, phrase.end))
        before, after = phrase.start - 1, phrase.end
        if after < len(doc) and doc[after].text == ",":
            opens = before < 0 or doc[before].text in ".!?"
            if opens or doc[before].text == "," or _continues(doc, after + 1):
                gone.add(after)
        if before >= 0 and doc[before].text == ",":
            gone.add(before)
    return [token.i for token in doc if token.i not in gone]


def _continues(doc: Doc, place: int) -> bool:
    """Whether a verb of the clause comes next, so that the comma in front only ended a list."""
    return place < len(doc) and doc[place].tag_ in ("VBZ", "VBP", "VBD", "VBG", "VBN", "MD")


def _phrase_at(doc: Doc, place: int) -> WornPhrase | None:
    relative = _relative_clause(doc, place) or _absolute(doc, place) or _has_on(doc, place)
    if relative is not None:
        return relative
    before = doc[place - 1] if place else None
    opens = before is None or before.text in ".!?" or before.is_space
    anchor = None if opens else _anchor(doc, place)
    if not opens and anchor is None:
        return None
    adjectives = _adjectives(doc, place) if before is not None and before.text == "," else place
    end = _worn_list(doc, adjectives)
    if end is None and adjectives > place:
        end = adjectives if _ends_aside(doc, adjectives) else None
    if end is None:
        return None
    if opens and not (end < len(doc) and doc[end].text == ","):
        return None
    return WornPhrase(place, end, anchor)


def _relative_clause(doc: Doc, place: int) -> WornPhrase | None:
    """ "who has freckles and two pigtails", "who is wearing a red cap", "who has on a leather coat"."""
    if doc[place].lower_ not in ("who", "that") or not place:
        return None
    inner, verb = place + 1, ""
    while inner < len(doc) and doc[inner].lower_ in ("is", "was", "are", "were", "also"):
        inner += 1
    if inner < len(doc) and doc[inner].lower_ in ("wears", "wear", "wore", "wearing", "has", "have", "had", "sports"):
        verb = doc[inner].lower_
        inner += 1
        if inner < len(doc) and doc[inner].lower_ == "on":
            inner += 1
    elif inner + 1 < len(doc) and doc[inner].lower_ in _PARTICIPLES_OF_WEAR and doc[inner + 1].lower_ == "in":
        inner += 2
    else:
        return None
    end = _worn_noun_phrase(doc, inner, verb)
    if end is None or not _closes(doc, end):
        return None
    end = _end_of_list(doc, end)
    anchor = _person_before(doc, place)
    return None if anchor is None else WornPhrase(place, end, anchor)


def _absolute(doc: Doc, place: int) -> WornPhrase | None:
    """ "her hair in two buns", between commas."""
    if not place or doc[place - 1].text != "," or doc[place].tag_ != "PRP$":
        return None
    end = _soiled_limb(doc, place) or _worn_noun_phrase(doc, place, "with")
    if end is None or not _ends_aside(doc, end):
        return None
    if is_worn_word(doc[end - 1]) and doc[end - 2].tag_ in ("PRP$", "JJ"):
        return None  # ", her red scarf," and nothing told of it
    return WornPhrase(place, end, _person_before(doc, place))


def _soiled_limb(doc: Doc, place: int) -> int | None:
    """Past "his face covered in tomato sauce"."""
    words = factor_words()
    if (
        place + 3 >= len(doc)
        or not is_one_of(doc[place + 1], words.body)
        or doc[place + 3].lower_ not in ("in", "with")
    ):
        return None
    return _plain_noun_phrase(doc, place + 4) if doc[place + 2].lower_ in words.soiled else None


def _has_on(doc: Doc, place: int) -> WornPhrase | None:
    """ "(she) has on striped socks"."""
    is_verb = place > 0 and doc[place].lower_ in ("has", "have", "had") and doc[place - 1].tag_ == "PRP"
    if not is_verb or place + 1 >= len(doc) or doc[place + 1].lower_ != "on":
        return None
    end = _worn_noun_phrase(doc, place + 2, "has")
    if end is None:
        return None
    return WornPhrase(place, _end_of_list(doc, end), place - 1)


def _person_before(doc: Doc, place: int) -> int | None:
    """The nearest word for a person in the sentence before `place`."""
    for index in range(place - 1, max(-1, place - 12), -1):
        if doc[index].text in ".!?":
            return None
        is_person = doc[index].tag_ in _NOUNS and is_person_noun(doc[index].lower_)
        if is_person or doc[index].lower_ in _OTHERS:
            return index
    return None


def _anchor(doc: Doc, place: int) -> int | None:
    """The person, or the features of one, that the words at `place` may be said of."""
    index = place - 1
    if doc[index].text in (",", "and"):
        index -= 1
        if index >= 0 and doc[index].text == ",":
            index -= 1
    if index < 0:
        return None
    token = doc[index]
    if token.tag_ in _NOUNS and (is_person_noun(token.lower_) or is_worn_word(token)):
        return index
    is_in_phrase = index > 0 and doc[index - 1].tag_ in (*_STARTERS, *_NOUNS, "JJ")
    if is_in_phrase and token.tag_[:2] in ("VB", "JJ") and is_person_noun(token.lower_):
        return index  # "a hotel maid", taken for a verb
    if token.tag_ in ("NN", "NNP") and _is_dressed(doc, place):
        return index  # whatever the word, it wears clothes
    if token.lower_ in _OTHERS and token.lower_ != "who":
        return index
    if doc[place - 1].text == "," and (doc[place].lower_ == "wearing" or doc[place].lower_ in _PARTICIPLES_OF_WEAR):
        return _person_before(doc, place)
    if token.lower_ in ("left", "right", "center", "middle", "front", "background", "foreground") and index >= 3:
        # "The man on the left, in a blue shirt": said of the man.
        person = doc[index - 3] if doc[index - 2].tag_ in ("IN", "DT") else None
        if person is not None and (is_person_noun(person.lower_) or person.lower_ in _OTHERS):
            return person.i
    return None


def _is_dressed(doc: Doc, place: int) -> bool:
    """Whether "wearing", "dressed in" or "in a ..." stands at `place`, which is said of nobody but people."""
    noun = doc[place - 1]
    words = factor_words()
    if is_one_of(noun, words.body) or is_one_of(noun, words.gear) or is_one_of(noun, words.places):
        return False
    if doc[place].lower_ == "in":
        return place + 1 < len(doc) and doc[place + 1].tag_ in ("DT", "JJ") and doc[place + 1].lower_ != "the"
    return doc[place].lower_ == "wearing" or doc[place].lower_ in _PARTICIPLES_OF_WEAR


def _adjectives(doc: Doc, place: int) -> int:
    """Past "shirtless and", "slim and pale"; `place` where no word for looks stands there."""
    words = factor_words()
    index = place
    while index < len(doc) and (
        is_one_of(doc[index], words.looking) or (index > place and doc[index].tag_ == "JJ" and doc[index].is_alpha)
    ):
        index += 1
        if index + 1 < len(doc) and doc[index].text in ("and", ","):
            following = doc[index + 1]
            if following.tag_ == "JJ" or is_one_of(following, words.looking) or _opening(doc, index + 1) is not None:
                index += 1
    return index


def _ends_aside(doc: Doc, place: int) -> bool:
    return place < len(doc) and doc[place].text in ",."


def _opening(doc: Doc, place: int) -> int | None:
    """Past "wearing", "dressed in", "in" or "with"; None where none of them stands there."""
    if place >= len(doc):
        return None
    token = doc[place]
    before = doc[place - 1] if place else None
    is_finite = before is not None and (before.tag_ in _FINITE or before.lower_ == "be")
    if token.lower_ in ("wearing", "sporting", "donning"):
        return None if is_finite else place + 1
    if token.lower_ in _PARTICIPLES_OF_WEAR:
        inner = place + 1
        if inner < len(doc) and doc[inner].lower_ in ("up", "out"):
            inner += 1
        return inner + 1 if not is_finite and inner < len(doc) and doc[inner].lower_ in ("in", "as") else None
    return place + 1 if token.lower_ in ("in", "with") else None


def _worn_list(doc: Doc, place: int) -> int | None:
    """The end of a list of things worn that an opening word at `place` brings in."""
    inner = _opening(doc, place)
    if inner is None:
        return None
    opener = doc[place].lower_
    if doc[inner - 1].lower_ == "as":
        role_end = _plain_noun_phrase(doc, inner)
        return None if role_end is None else _end_of_list(doc, role_end)
    first_end = _worn_noun_phrase(doc, inner, opener)
    if first_end is None and opener != "with":
        first_end = _colours_alone(doc, inner)
    return None if first_end is None else _end_of_list(doc, first_end)


def _colours_alone(doc: Doc, place: int) -> int | None:
    """Past "blue" or "black and gold" ("a striker in blue is celebrating")."""
    end = place
    while end < len(doc) and doc[end].lower_ in factor_words().colours:
        end += 1
        if end + 1 < len(doc) and doc[end].text == "and" and doc[end + 1].lower_ in factor_words().colours:
            end += 1
    return end if end > place and (_closes(doc, end) or _is_verb_next(doc, end)) else None


def _end_of_list(doc: Doc, place: int) -> int:
    """The end of a list whose first member ends at `place`."""
    end = place
    while (following := _next_in_list(doc, end)) is not None:
        end = following
    return end


def _next_in_list(doc: Doc, place: int) -> int | None:
    index = place
    if index < len(doc) and doc[index].text == ",":
        index += 1
    if index < len(doc) and doc[index].lower_ in ("and", "or", "plus"):
        index += 1
    opening = _opening(doc, index)
    if opening is not None:
        return _worn_noun_phrase(doc, opening, doc[index].lower_)
    return _worn_noun_phrase(doc, index, "and") if index > place else None


def _worn_noun_phrase(doc: Doc, place: int, opener: str) -> int | None:
    """Past a noun phrase that starts at `place` and names something worn or a feature; None where it does not."""
    index = place
    owned = index < len(doc) and doc[index].lower_ in ("his", "her", "their", "the")
    while index < len(doc) and (doc[index].tag_ in _STARTERS or doc[index].lower_ in ("half", "no")):
        index += 1
    if index < len(doc) and doc[index].tag_ in ("VBG", "VBD") and index == place and not _is_participle(doc, index):
        return None
    while index < len(doc):
        token = doc[index]
        if token.lower_ in _COUNTERS and index + 1 < len(doc) and doc[index + 1].lower_ == "of":
            index += 2
            continue
        if is_worn_word(token) and token.tag_ not in ("VBG",) and not _is_modifier_of_next(doc, index, place):
            return _with_tail(doc, index + 1, token, opener, owned)
        if (reach := _thing_on_body(doc, index, opener)) is not None:
            return reach
        if opener in ("with", "and", "has", "have") and _is_described_limb(doc, index, place):
            return index + 1 if _closes(doc, index + 1) else None
        if token.lower_ == "one" and index and doc[index - 1].lower_ in factor_words().colours and opener == "in":
            return index + 1  # "the other in a red one"
        between = token.text in (",", "and") and index > place and doc[index - 1].tag_ in ("JJ", "NN")
        if between and index + 1 < len(doc) and doc[index + 1].tag_ in ("JJ", "NN") and _is_describing(doc, index):
            index += 1
            continue
        if token.tag_ not in _MODIFIERS or (is_person_noun(token.lower_) and token.tag_ in _NOUNS):
            return None
        index += 1
    return None


def _plain_noun_phrase(doc: Doc, place: int) -> int | None:
    """Past "a pirate"."""
    index = place
    while index < len(doc) and doc[index].tag_ in (*_STARTERS, "JJ", *_NOUNS):
        index += 1
    return index if index > place and doc[index - 1].tag_ in _NOUNS and _closes_or_goes_on(doc, index) else None


def _closes_or_goes_on(doc: Doc, place: int) -> bool:
    return _closes(doc, place) or doc[place].lower_ in ("in", "with")


def _thing_on_body(doc: Doc, place: int, opener: str) -> int | None:
    """Past "paint on her cheeks", "(a) baby strapped to her chest", where the noun at `place` is not held."""
    if opener not in ("with", "and") or doc[place].tag_ not in _NOUNS:
        return None
    index = place + 1
    if index < len(doc) and doc[index].lower_ in ("strapped", "tied", "wrapped", "slung", "draped", "painted"):
        index += 1
    if index + 1 >= len(doc) or doc[index + 1].tag_ != "PRP$" or (doc[index].lower_ == "to" and index == place + 1):
        return None
    reach = _body_phrase(doc, index)
    return None if reach is None or doc[reach - 1].lower_ in HELD_IN else reach


def _is_described_limb(doc: Doc, place: int, start: int) -> bool:
    """ "tattooed forearms", "broad shoulders"; not "his arms", "outstretched arms"."""
    words = factor_words()
    if place == start or not is_one_of(doc[place], words.body):
        return False
    before = doc[place - 1]
    looks = before.tag_ == "JJ" or before.lower_ in words.soiled
    return looks and before.lower_ not in words.posed and not any(doc[i].tag_ == "PRP$" for i in range(start, place))


def _is_participle(doc: Doc, place: int) -> bool:
    """ "ripped jeans", "running shoes": a participle right in front of the garment."""
    if place + 1 >= len(doc) or not is_worn_word(doc[place + 1]):
        return False
    return doc[place].tag_ == "VBD" or doc[place].lower_ in _PURPOSES


def _is_describing(doc: Doc, place: int) -> bool:
    """Whether "," or "and" at `place` joins two adjectives or colours ("a red and white scarf", "long, wavy hair")."""
    left, right = doc[place - 1], doc[place + 1]
    return all(token.tag_ == "JJ" or token.lower_ in factor_words().colours for token in (left, right))


def _is_modifier_of_next(doc: Doc, place: int, start: int) -> bool:
    if place + 1 >= len(doc):
        return False
    following = doc[place + 1]
    if following.tag_ == "HYPH":
        return True
    if following.tag_ not in _NOUNS:
        return False
    if is_worn_word(following):
        # "a cap watches": one cap, so that no watches are meant.
        is_one = doc[start].lower_ in ("a", "an") and following.tag_ == "NNS"
        return not (is_one and can_be_verb(following.lower_))
    # "a denim jacket grins": the tagger reads a list to its end as nouns.
    is_verb = following.lower_.endswith("s") and can_be_verb(following.lower_) and doc[place].tag_ in _NOUNS
    return not is_verb


def _with_tail(doc: Doc, end: int, head: Token, opener: str, owned: bool) -> int | None:
    """The end of the phrase with what is said of the garment; None where it is held and not worn."""
    words = factor_words()
    index = end
    if opener == "with" and owned and index < len(doc) and doc[index].tag_ == "VBG":
        return None  # "with his scarf flying": it is told what happens
    # "tied in a bun", "pushed up on his forehead"
    if index < len(doc) and doc[index].tag_ in ("VBN", "VBD") and opener in ("with", "and", "in"):
        tail = index + 1
        while tail < len(doc) and doc[tail].tag_ in ("RP", "RB"):
            tail += 1
        reach = _body_phrase(doc, tail)
        if reach is not None:
            return reach if _closes(doc, reach) else end
        return tail if _closes(doc, tail) and doc[index].tag_ == "VBN" and opener == "with" else end
    if index < len(doc) and doc[index].lower_ in _ON_BODY and (reach := _body_phrase(doc, index)) is not None:
        if doc[reach - 1].lower_ in HELD_IN and not is_one_of(head, words.looks):
            return None
        return reach
    if index < len(doc) and doc[index].lower_ in ("with", "of"):
        reach = _part_phrase(doc, index + 1)
        if reach is not None:
            return reach
    return end


def _body_phrase(doc: Doc, place: int) -> int | None:
    """Past "on his forehead" or "in a bun"."""
    if place >= len(doc) or doc[place].lower_ not in _ON_BODY:
        return None
    index = place + 1
    while index < len(doc) and (doc[index].tag_ in _STARTERS or doc[index].tag_ in ("JJ", "NN", "NNS", "CD")):
        token = doc[index]
        words = factor_words()
        if is_one_of(token, words.body) or is_one_of(token, words.looks):
            following = doc[index + 1] if index + 1 < len(doc) else None
            is_compound = following is not None and following.tag_ in _NOUNS
            if not is_compound or (following is not None and following.tag_ == "NNS" and can_be_verb(following.lower_)):
                return index + 1
        index += 1
    return None


def _part_phrase(doc: Doc, place: int) -> int | None:
    """Past "white stripes", "the number 23", "a hood": what a garment has on it."""
    index = place
    while index < len(doc) and (doc[index].tag_ in _STARTERS or doc[index].tag_ in _MODIFIERS):
        if is_one_of(doc[index], factor_words().garment_parts):
            index += 1
            while index < len(doc) and doc[index].tag_ in ("CD", "NNP"):
                index += 1
            return index
        index += 1
    return None


def _closes(doc: Doc, place: int) -> bool:
    """Whether a phrase may end in front of `place`."""
    ends = ("CC", "VBZ", "VBP", "VBD", "VBG", "MD", "WP", "RB")
    return place >= len(doc) or doc[place].is_punct or doc[place].tag_ in ends


def _is_verb_next(doc: Doc, place: int) -> bool:
    """Whether a word that may be a verb stands in front of what goes with a verb ("in blue leap past him")."""
    follows = doc[place + 1].tag_ if place + 1 < len(doc) else "."
    return can_be_verb(doc[place].lower_) and follows in ("IN", "RB", "RP", "DT", "PRP", "PRP$", "TO")


def tagged(texts: Iterable[str], batch_size: int) -> list[Doc]:
    """The texts with tags and nothing else, as `worn_phrases` reads them."""
    return list(english_parser().pipe(texts, batch_size=batch_size, disable=_NOT_FOR_TAGS))


def part_of(doc: Doc, places: Sequence[int], phrases: Sequence[WornPhrase]) -> Doc:
    """The tokens at `places` as a text of their own, unparsed; token n of it is token places[n] of the doc.

    Whoever wears something is a person: where the tagger took the word for a verb ("a hotel maid"), a plain word for a
    person stands in the new text, so that the parser is not misled too.
    """
    from spacy.tokens import Doc

    people = {phrase.anchor for phrase in phrases}
    words, spaces = [], []
    for place, following in zip_longest(places, places[1:]):
        token = doc[place]
        joins_anew = following is not None and following != place + 1 and not doc[following].is_punct
        spaces.append(bool(token.whitespace_) or joins_anew)
        misread = place in people and token.tag_[:2] in ("VB", "JJ") and is_person_noun(token.lower_)
        words.append("person" if misread else token.text)
    return Doc(doc.vocab, words=words, spaces=spaces)


def parsed_without_worn_phrases(texts: Sequence[str], batch_size: int) -> list[Doc]:
    """The parsed texts, in order, each without what it says of clothes and looks beside its clauses.

    Only a text with a word for something worn is read twice.
    """
    doubtful = [place for place, text in enumerate(texts) if _names_something_worn(text)]
    parts: dict[int, Doc] = {}
    for place, doc in zip(doubtful, tagged((texts[place] for place in doubtful), batch_size), strict=True):
        phrases = worn_phrases(doc)
        if phrases:
            parts[place] = part_of(doc, kept_tokens(doc, phrases), phrases)
    sources = (parts.get(place, text) for place, text in enumerate(texts))
    return list(english_parser().pipe(sources, batch_size=batch_size))


@cache
def _worn_forms() -> frozenset[str]:
    words = factor_words()
    return words.apparel | words.looks | words.colours


def _names_something_worn(text: str) -> bool:
    return any(form in _worn_forms() for word in text.lower().split() for form in singulars(word.strip(".,;!?")))
