"""Captions read off pixels and keypoints, for a machine without a vision-language model.

Two or three sentences of 25 to 56 words in the manner of the re-captions: who in which clothes does what, and where.
They say only what `pixel_reading` and `pixel_places` have evidence for. Wording, grammar and order vary with the
sha256 of the image's id, so that a build's captions do not all read alike and the same image always gets the same one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from pipeline.backends import pixel_places
from pipeline.backends import pixel_reading as reading
from pipeline.backends.protocols import BackendContext, CaptionRequest, Person, Reply

FEWEST_WORDS, MOST_WORDS = 25, 56

_T = TypeVar("_T")

# A stance as a verb phrase ("the person stands upright") and as what can stand before the person ("standing upright").
_STANCES: dict[str, tuple[tuple[str, str], ...]] = {
    "standing": (
        ("stands upright", "standing upright"),
        ("is standing upright", "standing upright"),
        ("stands with the body upright", "standing with the body upright"),
        ("stands with an upright body", "standing with an upright body"),
        ("is standing with the body upright", "standing with the body upright"),
    ),
    "leaning": (
        ("stands with the body tilted", "standing with the body tilted"),
        ("stands tilted to one side", "tilted to one side"),
        ("is leaning to one side", "leaning to one side"),
    ),
    "bent": (
        ("is bent over at the hips", "bent over at the hips"),
        ("is bending over", "bending over"),
        ("is bent far over", "bent far over"),
    ),
    "low": (
        ("is in a low position with bent legs", "in a low position with bent legs"),
        ("is crouching or sitting with the hips low", "crouching or sitting with the hips low"),
        ("is sitting or crouching", "sitting or crouching"),
    ),
    "upright": (
        ("holds the upper body upright", "holding the upper body upright"),
        ("keeps the trunk upright", "keeping the trunk upright"),
    ),
    "lying": (
        ("has the body almost horizontal", "with the body almost horizontal"),
        ("is in a nearly horizontal position", "lying nearly horizontal"),
        ("holds the body nearly horizontal", "holding the body nearly horizontal"),
    ),
    "outstretched": (
        ("is stretched out horizontally", "stretched out horizontally"),
        ("has the body almost horizontal", "with the body almost horizontal"),
        ("is in a nearly horizontal position", "lying nearly horizontal"),
        ("is stretched out, almost horizontal", "stretched out almost horizontally"),
    ),
    "on_all_fours": (
        ("is down on hands and knees", "crouching on hands and knees"),
        ("is crouching on hands and knees", "crouching on hands and knees"),
        ("is crawling or crouching on hands and knees", "crawling or crouching on hands and knees"),
    ),
    "upside_down": (
        ("is upside down", "upside down"),
        ("is turned upside down", "turned upside down"),
        ("is upside down with the head below the hips", "upside down"),
        ("is head down with the hips up", "head down with the hips up"),
    ),
}
_PLAIN_STANCES = (("can be seen", "in view"), ("is visible", "visible"), ("is in view", "in view"))
_ARMS = {
    "both_raised": ("both arms raised", "both hands held up high", "both arms held up"),
    "one_raised": ("one arm raised", "one hand held up high", "one arm held up"),
    "spread": ("the arms spread to both sides", "both arms held out sideways", "the arms held out wide"),
    "down": ("both arms hanging down", "the arms down at the sides", "both hands held low"),
}
_LEGS = {
    "apart": ("the legs wide apart", "the feet wide apart", "both legs spread"),
    "one_raised": ("one leg raised", "one leg held up", "one foot lifted"),
    "bent": ("the knees bent", "both knees bent", "both legs bent"),
    "straight": ("both legs straight", "the legs straight"),
}
_HEADS = ("the head towards the {side}", "the head pointing to the {side}", "the head on the {side} side")
_SURFACES = {
    "grass": ("green grass", "a green, grassy ground"),
    "snow": ("white, snow-like ground", "a white surface that looks like snow"),
    "water": ("a blue surface that looks like water", "blue water"),
}
_SIDES = {
    "left": ("on the left side", "in the left part"),
    "right": ("on the right side", "in the right part"),
    "centre": ("near the middle", "close to the middle", "around the middle"),
}
_NUMBERS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six"}
# Where somebody is at a place; others are "in" it.
_AT_PLACES = {
    "lawn": "on a lawn",
    "street": "on a street",
    "playground": "on a playground",
    "beach": "on a beach",
    "swimming pool": "by a swimming pool",
    "lake": "by a lake",
    "water": "in water",
    "snowy ground": "on snowy ground",
}
# Names of places that say no more than what is told of ground and sky.
_TOLD_BY = {"snow": ("snowy ground",), "water": ("water",)}


class PixelCaptioner:
    """`Captioner` by reading pixels under the keypoints. Takes nothing from source caption, behavior or prompt."""

    name = "pixels"
    revision = "2"

    def __init__(self, context: BackendContext) -> None:
        """No setting is read and nothing is loaded."""

    def caption(self, requests: Sequence[CaptionRequest]) -> list[Reply]:
        """One caption a request, in order, each from its own image and persons alone."""
        return [Reply(describe(request.id, reading.as_rgb(request.image), request.persons)) for request in requests]


class _Choice:
    """Choices drawn from an id: the same id and question always give the same answer."""

    def __init__(self, record_id: str) -> None:
        self._id = record_id

    def number(self, question: str, count: int) -> int:
        digest = hashlib.sha256(f"{question}\x00{self._id}".encode()).digest()
        return int.from_bytes(digest[:8], "big") % count

    def of(self, question: str, options: Sequence[_T]) -> _T:
        return options[self.number(question, len(options))]


@dataclass(frozen=True)
class SeenPerson:
    """What was read of the person who is described. side: left | centre | right of the picture; height_share: of the
    picture's height, 0..1."""

    outfit: reading.Outfit
    posture: reading.Posture
    side: str
    height_share: float


@dataclass(frozen=True)
class Seen:
    """What was read of a picture. place_name: one or two words; count: of the people who are sure; person: the surest,
    None where nobody is."""

    place: reading.Place
    place_name: str | None
    person: SeenPerson | None
    count: int


@dataclass(frozen=True)
class _Phrases:
    """The words chosen for one caption.

    who: with an article. garments: top and legwear, those that are named; reverse: legwear first where either order
    reads well. stance: a verb phrase; before: the same as it can stand before the person; limbs: what follows `with`,
    maybe nothing. where: the side of the picture; picture: what the picture is called.
    """

    who: str
    garments: tuple[str, ...]
    reverse: bool
    stance: str
    before: str
    limbs: str
    where: str
    picture: str

    @property
    def clothes(self) -> str:
        """Top and legwear, to stand before a verb."""
        return " and ".join(self.garments)

    @property
    def clothes_last(self) -> str:
        """Top and legwear, to end a sentence or begin one."""
        return " and ".join(reversed(self.garments) if self.reverse else self.garments)

    @property
    def action(self) -> str:
        """Stance and limbs as a verb phrase."""
        return _joined(self.stance, self.limbs)

    @property
    def are(self) -> str:
        """The verb that goes with the clothes as subject."""
        return "is" if len(self.garments) == 1 and self.garments[0].startswith(("a ", "an ")) else "are"

    @property
    def limb_sentences(self) -> list[str]:
        """What is told of arms, legs and head in a sentence of its own, where there is any."""
        if self.limbs.startswith("the head "):
            return [f"The head is {self.limbs.removeprefix('the head ')}."]
        return [f"The person has {self.limbs}."] if self.limbs else []


@dataclass(frozen=True)
class _Setting:
    """The surroundings in words: each None where the picture does not tell. place: "a park"; at: "in a park"."""

    place: str | None
    at: str | None
    ground: str | None
    backdrop: str | None
    is_sky: bool
    colorless: bool


def describe(record_id: str, image: np.ndarray, persons: Sequence[Person]) -> str:
    """The caption of an image (uint8 (H, W, 3) RGB): 25 to 56 words, about the surest person and the place."""
    return tell(record_id, look(image, persons))


def look(image: np.ndarray, persons: Sequence[Person]) -> Seen:
    """What is seen in an image (uint8 (H, W, 3) RGB): of the place, and of the surest person."""
    place = reading.read_place(image, persons)
    name = None if place.colorless else pixel_places.place_in(image, persons)
    if not persons:
        return Seen(place, name, None, 0)
    height, width = image.shape[:2]
    side, height_share = reading.read_position(persons[0], width, height)
    person = SeenPerson(
        outfit=reading.read_outfit(image, persons[0]),
        posture=reading.read_posture(persons[0], width, height),
        side=side,
        height_share=height_share,
    )
    return Seen(place, name, person, sum(1 for each in persons if each.score >= reading.PERSON_SURE))


def tell(record_id: str, seen: Seen) -> str:
    """What is seen, in 25 to 56 words: wording, grammar and order are drawn from the id."""
    choice = _Choice(record_id)
    setting = _setting(choice, seen.place, seen.place_name)
    if seen.person is None:
        return _fit_length([_nobody(choice), _place_sentence(choice, setting)], _reserve(choice, seen))
    sentences = _sentences(choice, _phrases(choice, seen.person, seen.count), setting)
    told_where = any(sentence and "of the picture" in sentence for sentence in sentences)
    return _fit_length(sentences, _reserve(choice, seen, told_where))


def _fit_length(sentences: list[str | None], reserve: list[str]) -> str:
    """The sentences joined, the more telling of the reserve behind the first while the caption is short; the last left
    off while it is long."""
    told = [sentence for sentence in sentences if sentence]
    place = 1
    for sentence in reserve:
        if _count(told) >= FEWEST_WORDS:
            break
        told.insert(place, sentence)
        place += 1
    while len(told) > 1 and _count(told) > MOST_WORDS:
        told.pop()
    return " ".join(sentence[0].upper() + sentence[1:] for sentence in told)


def _count(sentences: Sequence[str]) -> int:
    return sum(len(sentence.split()) for sentence in sentences)


def _nobody(choice: _Choice) -> str:
    return choice.of("nobody", ("No person can be made out in this picture.", "Nobody can be made out clearly here."))


# ------------------------------------------------------------------------------------------------ the person in words


def _phrases(choice: _Choice, seen: SeenPerson, count: int) -> _Phrases:
    posture = seen.posture
    kind = posture.stance
    if kind == "lying":
        kind = "on_all_fours" if posture.on_all_fours else "outstretched" if posture.outstretched else "lying"
    stance, before = choice.of("stance", _STANCES[kind] if kind else _PLAIN_STANCES)
    who = choice.of("who", ("a person", "a person", "one person", "someone", "a single person"))
    if count > 1:
        who = f"one of {_NUMBERS.get(count, 'several')} people"
    garments = tuple(_garments(choice, seen.outfit))
    return _Phrases(
        who,
        garments,
        bool(choice.number("clothes", 2)),
        stance,
        before,
        _limbs(choice, posture),
        choice.of("where", _SIDES[seen.side]),
        choice.of("picture", ("picture", "image", "photo")),
    )


def _garments(choice: _Choice, outfit: reading.Outfit) -> list[str]:
    """Top and legwear, as far as they are named."""
    parts = []
    if outfit.top:
        color = " and ".join(outfit.top)
        if outfit.sleeves:
            words = [color, outfit.sleeves] if choice.number("sleeves", 2) else [outfit.sleeves, color]
            parts.append(_with_article(" ".join([*words, choice.of("top", ("top", "top", "shirt"))])))
        else:
            parts.append(_with_article(f"{color} {choice.of('top', ('top', 'top', 'upper garment'))}"))
    if outfit.bottom:
        names = {"trousers": ("trousers", "pants", "long trousers", "long pants"), "shorts": ("shorts",)}
        word = choice.of("legwear", names.get(outfit.legwear or "", ("bottoms", "legwear")))
        parts.append(f"{' and '.join(outfit.bottom)} {word}")
    return parts


def _with_article(words: str) -> str:
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def _limbs(choice: _Choice, posture: reading.Posture) -> str:
    """Arms and legs, and where the head of a lying body is; "" where nothing is told of them."""
    limbs = []
    if posture.arms:
        limbs.append(choice.of("arms", _ARMS[posture.arms]))
    if posture.head_side:
        limbs.append(choice.of("head", _HEADS).format(side=posture.head_side))
    # Bent or straight knees say nothing new of somebody who crouches, lies or stands on the head.
    elif posture.legs and (posture.stance in ("standing", "leaning", "bent") or posture.legs == "apart"):
        limbs.append(choice.of("legs", _LEGS[posture.legs]))
    return " and ".join(limbs)


def _joined(stance: str, limbs: str) -> str:
    if not limbs:
        return stance
    return f"{stance}, {limbs}" if " with " in f" {stance} " else f"{stance} with {limbs}"


# ------------------------------------------------------------------------------------------------ the place in words


def _setting(choice: _Choice, place: reading.Place, name: str | None) -> _Setting:
    ground = backdrop = None
    if place.surface:
        ground = choice.of("surface", _SURFACES[place.surface])
    elif place.ground:
        ground = f"{place.ground} ground"
        if choice.number("ground", 3):
            ground = _with_article(f"{place.ground} {choice.of('ground', ('ground', 'surface'))}")
    if place.sky:
        backdrop = choice.of("sky", ("a clear blue sky", "a blue sky"))
    elif place.backdrop:
        backdrop = _with_article(f"mostly {place.backdrop} {choice.of('backdrop', ('background', 'backdrop'))}")
    if name == "outdoors" or name in _TOLD_BY.get(place.surface or "", ()):
        name = None
    where = named = None
    if name is not None:
        where = _AT_PLACES.get(name, f"in {_with_article(name)}")
        named = where.split(" ", 1)[1]
    return _Setting(named, where, ground, backdrop, place.sky, place.colorless)


def _place_sentence(choice: _Choice, setting: _Setting) -> str | None:
    """What the scene shows; None where nothing of it is told."""
    ground, backdrop = setting.ground, setting.backdrop
    joint = choice.of("joint", ("and", "below", "under", "under" if setting.is_sky else "in front of"))
    if ground and backdrop:
        what = f"{ground} {joint} {backdrop}"
    elif ground:
        what = f"{ground} in the lower part"
    elif backdrop:
        what = f"{backdrop} in the upper part"
    else:
        what = ""
    if setting.place:
        looks = choice.of("looks", ("The place looks like", "The surroundings look like", "The setting seems to be"))
        return f"{looks} {setting.place}, with {what}." if what else f"{looks} {setting.place}."
    if not what:
        return None
    if setting.colorless:
        opening = choice.of("colorless", ("The black-and-white picture shows", "The scene, in black and white, shows"))
        return f"{opening} {what}."
    if ground and backdrop and joint != "and" and choice.number("scene", 4) == 0:
        return f"{ground} lies {joint} {backdrop}."
    opening = choice.of("scene", ("The scene shows", "The surroundings show", "The setting shows", "There is"))
    return f"{opening} {what}."


# ------------------------------------------------------------------------------------------------ sentences

_Frame = Callable[[_Phrases], list[str]]

# Ways to tell of a person whose clothes are named: who, clothes and action in one or two sentences. The top comes
# before legwear where a verb follows: "in black trousers and a red top stands" is hard to read.
_FRAMES: tuple[_Frame, ...] = (
    lambda p: [f"{p.who} in {p.clothes} {p.action}."],
    lambda p: [f"{p.who} wearing {p.clothes} {p.action}."],
    lambda p: [f"{p.who}, dressed in {p.clothes}, {p.action}."],
    lambda p: [f"{p.who} {p.action}. The person wears {p.clothes_last}."],
    lambda p: [f"{p.who} {p.action}. The clothes are {p.clothes_last}."],
    lambda p: [f"wearing {p.clothes}, {p.who} {p.action}."],
    lambda p: [f"dressed in {p.clothes}, {p.who} {p.action}."],
    lambda p: [f"in {p.clothes}, {p.who} {p.action}."],
    lambda p: [f"{p.before}, {p.who} wears {p.clothes_last}.", *p.limb_sentences],
    lambda p: [f"{p.before}, {p.who} is dressed in {p.clothes_last}.", *p.limb_sentences],
    lambda p: [f"{p.who} wears {p.clothes} and {p.action}."],
    lambda p: [f"{p.clothes_last} {p.are} worn by {p.who}. The person {p.action}."],
    lambda p: [f"{p.clothes_last} can be seen on {p.who}. The person {p.action}."],
    lambda p: [f"{p.clothes_last} {p.are} the clothes of {p.who}. The person {p.action}."],
    lambda p: (
        [f"{' and '.join(p.garments[:1])} is worn with {p.garments[1]}. The person {p.action}."]
        if len(p.garments) == 2
        else [f"{p.clothes} {p.are} worn by {p.who}. The person {p.action}."]
    ),
    lambda p: [f"{p.where} of the picture, {p.who} in {p.clothes} {p.action}."],
    lambda p: [f"the {p.picture} shows {p.who} who {p.action}. The person is dressed in {p.clothes_last}."],
    lambda p: [f"in the {p.picture}, {p.who} dressed in {p.clothes} {p.action}."],
)
_FRAMES_FROM_LIMBS: tuple[_Frame, ...] = (
    lambda p: [f"with {p.limbs}, {p.who} in {p.clothes} {p.stance}."],
    lambda p: [f"with {p.limbs}, {p.who} {p.stance}. The person wears {p.clothes_last}."],
    lambda p: [f"{p.limbs}, {p.who} in {p.clothes} {p.stance}."],
    lambda p: [f"{p.limbs}, {p.who} {p.stance}. The clothes are {p.clothes_last}."],
)
_FRAMES_WITHOUT_CLOTHES: tuple[_Frame, ...] = (
    lambda p: [f"{p.who} {p.action}."],
    lambda p: [f"the {p.picture} shows {p.who} who {p.action}."],
    lambda p: [f"in the {p.picture}, {p.who} {p.action}."],
    lambda p: [f"there is {p.who} who {p.action}."],
)


def _sentences(choice: _Choice, phrases: _Phrases, setting: _Setting) -> list[str | None]:
    """The person and the place, in an order and a grammar drawn from the id."""
    place = _place_sentence(choice, setting)
    frames = _FRAMES if phrases.clothes else _FRAMES_WITHOUT_CLOTHES
    if phrases.clothes and phrases.limbs and not phrases.limbs.startswith("the head"):
        frames += _FRAMES_FROM_LIMBS
    order = choice.number("order", 10)
    openings = _place_openings(choice, setting)
    if phrases.clothes and order <= 2 and openings:
        before, rest = choice.of("opening", openings)
        middle = choice.of("dressed", ("in", "dressed in", "wearing"))
        told = f"{before}, {phrases.who} {middle} {phrases.clothes} {phrases.action}."
        return [told, _place_sentence(choice, rest)]
    if order == 3 and place:
        return [_place_first(choice, setting) or place, *choice.of("frame", frames)(phrases)]
    return [*choice.of("frame", frames)(phrases), place]


def _place_first(choice: _Choice, setting: _Setting) -> str | None:
    """A sentence of the place that begins with its name; None where it has none."""
    if not setting.place:
        return None
    what = " and ".join(phrase for phrase in (setting.ground, setting.backdrop) if phrase)
    told = choice.of("first", ("is the setting", "can be seen", "is what the setting looks like"))
    return f"{setting.place} {told}, with {what}." if what else f"{setting.place} {told}."


def _place_openings(choice: _Choice, setting: _Setting) -> list[tuple[str, _Setting]]:
    """Phrases of place to begin a sentence with, each with what then is left to tell."""
    found = []
    if setting.at:
        found.append((setting.at, replace(setting, place=None, at=None)))
    if setting.ground:
        found.append((f"on {setting.ground}", replace(setting, ground=None)))
    if setting.backdrop and setting.is_sky:
        found.append((f"under {setting.backdrop}", replace(setting, backdrop=None)))
    return found


def _reserve(choice: _Choice, seen: Seen, told_where: bool = False) -> list[str]:
    """True sentences that say less, for captions that would be too short, the most telling first."""
    person = seen.person
    if person is None:
        return [
            "It shows only its surroundings, without a body whose shoulders, hips, knees and hands could be told apart."
        ]
    where = _SIDES[person.side][0]
    if person.height_share >= 0.75:
        size = "fills most of the height of the picture"
    elif person.height_share >= 0.4:
        size = "fills about half of the height of the picture"
    else:
        size = "is small compared with the whole picture"
    subject = f"The {choice.of('figure', ('figure', 'person'))}"
    reserve = [f"{subject} {size}." if told_where else f"{subject} is {where} of the picture and {size}."]
    if person.posture.whole:
        reserve.append("The body is visible from the head down to the feet.")
    else:
        reserve.append("Not all parts of the body can be seen clearly from this point of view.")
    if seen.place.ground is None and seen.place.backdrop is None:
        reserve.append("The surroundings show several colours, and no single one covers most of the scene.")
    return reserve
