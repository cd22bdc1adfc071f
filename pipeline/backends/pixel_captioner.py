"""Captions read off pixels and keypoints, for a machine without a vision-language model.

Two or three sentences of 25 to 56 words in the manner of the re-captions: who in which clothes does what, then where.
They say only what `pixel_reading` has evidence for. Wording and order vary with the sha256 of the image's id, so that
a build's captions do not all read alike and the same image always gets the same one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.backends import pixel_reading as reading
from pipeline.backends.protocols import BackendContext, CaptionRequest, Person, Reply

FEWEST_WORDS, MOST_WORDS = 25, 56

_STANCES = {
    "standing": ("stands upright", "is standing upright", "stands with the body upright"),
    "leaning": ("stands with the body tilted", "leans clearly to one side", "stands tilted to one side"),
    "bent": ("bends over", "is bent over at the hips", "leans far over from the hips"),
    "low": ("is in a low position with bent legs", "crouches or sits, the hips held low", "is sitting or crouching"),
    "lying": (
        "has the body almost horizontal",
        "is stretched out horizontally",
        "is in a lying, nearly horizontal position",
    ),
    "upside_down": (
        "is upside down, the head below the hips",
        "is head down with the legs up",
        "is turned upside down with the feet above the head",
    ),
}
_PLAIN_STANCES = ("can be seen", "is visible", "is in view")
_ARMS = {
    "both_raised": ("both arms raised", "both hands held up high"),
    "one_raised": ("one arm raised", "one hand held up high"),
    "spread": ("the arms spread to both sides", "both arms stretched out sideways"),
    "down": ("both arms hanging down", "the arms down at the sides"),
}
_LEGS = {
    "apart": ("the legs wide apart", "the feet far apart"),
    "one_raised": ("one leg raised", "one leg held up"),
    "bent": ("the knees bent", "bent knees"),
    "straight": ("straight legs", "the legs straight"),
}
_SURFACES = {
    "grass": ("green grass", "a green, grassy ground"),
    "snow": ("white, snow-like ground", "a white surface that looks like snow"),
    "water": ("a blue surface that looks like water", "blue water"),
}
_NUMBERS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six"}


class PixelCaptioner:
    """`Captioner` by reading pixels under the keypoints. Takes nothing from source caption, behavior or prompt."""

    name = "pixels"
    revision = "1"

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

    def of(self, question: str, options: Sequence[str]) -> str:
        return options[self.number(question, len(options))]


@dataclass(frozen=True)
class _Seen:
    outfit: reading.Outfit
    posture: reading.Posture
    place: reading.Place
    side: str
    height_share: float
    count: int


def describe(record_id: str, image: np.ndarray, persons: Sequence[Person]) -> str:
    """The caption of an image (uint8 (H, W, 3) RGB): 25 to 56 words, about the surest person and the place."""
    choice = _Choice(record_id)
    height, width = image.shape[:2]
    place = reading.read_place(image, persons)
    if not persons:
        return _fit_length([_nobody(choice)], [_place_sentence(choice, place)], _reserve(choice, None, place))
    main = persons[0]
    side, height_share = reading.read_position(main, width, height)
    seen = _Seen(
        outfit=reading.read_outfit(image, main),
        posture=reading.read_posture(main, width, height),
        place=place,
        side=side,
        height_share=height_share,
        count=sum(1 for person in persons if person.score >= reading.PERSON_SURE),
    )
    return _fit_length(_person_sentences(choice, seen), [_place_sentence(choice, place)], _reserve(choice, seen, place))


def _fit_length(must: list[str], place: list[str | None], reserve: list[str]) -> str:
    """Sentences joined: reserves are put before the place while the caption is short, dropped from the end if long."""
    sentences = [sentence for sentence in must if sentence]
    ending = [sentence for sentence in place if sentence]
    for sentence in reserve:
        if sum(len(s.split()) for s in sentences + ending) >= FEWEST_WORDS:
            break
        sentences.append(sentence)
    sentences += ending
    while len(sentences) > 1 and sum(len(s.split()) for s in sentences) > MOST_WORDS:
        sentences.pop()
    return " ".join(sentence[0].upper() + sentence[1:] for sentence in sentences)


def _nobody(choice: _Choice) -> str:
    return choice.of("nobody", ("No person can be made out in this picture.", "Nobody can be made out clearly here."))


def _person_sentences(choice: _Choice, seen: _Seen) -> list[str]:
    """One or two sentences: appearance and action, in an order drawn from the id."""
    clothes = _clothes(choice, seen.outfit)
    action = _action(choice, seen.posture)
    who = "a person" if seen.count < 2 else f"one of {_NUMBERS.get(seen.count, 'several')} people"
    form = choice.number("form", 5)
    if clothes is None:
        opening = ("{who} {action}.", "the picture shows {who} who {action}.", "in the image, {who} {action}.")
        return [opening[form % 3].format(who=who, action=action)]
    if form == 0:
        return [f"{who} in {clothes} {action}."]
    if form == 1:
        return [f"{who} {action}. The person wears {clothes}."]
    if form == 2:
        return [f"the picture shows {who} who {action}. The person is dressed in {clothes}."]
    if form == 3:
        return [f"wearing {clothes}, {who} {action}."]
    return [f"in the image, {who} dressed in {clothes} {action}."]


def _clothes(choice: _Choice, outfit: reading.Outfit) -> str | None:
    parts = []
    if outfit.top:
        words = [outfit.sleeves, "top"] if outfit.sleeves else [choice.of("top", ("top", "upper garment"))]
        parts.append(_with_article(" ".join([*_colors(outfit.top), *words])))
    if outfit.bottom:
        if outfit.legwear == "trousers":
            word = choice.of("trousers", ("trousers", "pants", "long trousers"))
        else:
            word = outfit.legwear or "bottoms"
        color = " ".join(_colors(outfit.bottom))
        parts.append(f"{color} {word}")
    return " and ".join(parts) if parts else None


def _colors(names: tuple[str, ...]) -> list[str]:
    return [" and ".join(names)]


def _with_article(words: str) -> str:
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def _action(choice: _Choice, posture: reading.Posture) -> str:
    """A verb phrase from stance, arms and legs."""
    stance = choice.of("stance", _STANCES[posture.stance] if posture.stance else _PLAIN_STANCES)
    limbs = []
    if posture.arms:
        limbs.append(choice.of("arms", _ARMS[posture.arms]))
    # Bent or straight knees say nothing new of somebody who crouches, lies or stands on the head.
    if posture.legs and (posture.stance in ("standing", "leaning", "bent") or posture.legs == "apart"):
        limbs.append(choice.of("legs", _LEGS[posture.legs]))
    if not limbs:
        return stance
    joined = " and ".join(limbs)
    return f"{stance}, {joined}" if " with " in stance and "with" in joined else f"{stance}{_with(stance)}{joined}"


def _with(stance: str) -> str:
    return ", with " if "," in stance or " with " in stance else " with "


def _place_sentence(choice: _Choice, place: reading.Place) -> str | None:
    """What the scene shows; None where neither ground nor backdrop has one colour."""
    ground = backdrop = None
    if place.surface:
        ground = choice.of("surface", _SURFACES[place.surface])
    elif place.ground:
        ground = _with_article(f"{place.ground} {choice.of('ground', ('ground', 'surface'))}")
    if place.sky:
        backdrop = choice.of("sky", ("a clear blue sky", "a blue sky"))
    elif place.backdrop:
        backdrop = _with_article(f"mostly {place.backdrop} {choice.of('backdrop', ('background', 'backdrop'))}")
    if place.colorless and (ground or backdrop):
        opening = choice.of("colorless", ("The black-and-white picture shows", "The scene, in black and white, shows"))
    else:
        opening = choice.of("scene", ("The scene shows", "The surroundings show", "The setting shows"))
    if ground and backdrop:
        joint = choice.of("joint", ("and", "below", "under"))
        if joint == "and":
            return f"{opening} {ground} and {backdrop}."
        return f"{opening} {ground} {joint} {backdrop}."
    if ground:
        return f"{opening} {ground} in the lower part."
    if backdrop:
        return f"{opening} {backdrop} in the upper part."
    return None


def _reserve(choice: _Choice, seen: _Seen | None, place: reading.Place) -> list[str]:
    """True sentences that say less, for captions that would be too short, the most telling first."""
    if seen is None:
        return [
            "It shows only its surroundings, without a body whose shoulders, hips, knees and hands could be told apart."
        ]
    where = {"left": "on the left side", "right": "on the right side", "centre": "near the middle"}[seen.side]
    if seen.height_share >= 0.75:
        size = "fills most of the height of the picture"
    elif seen.height_share >= 0.4:
        size = "fills about half of the height of the picture"
    else:
        size = "is small compared with the whole picture"
    reserve = [f"The {choice.of('figure', ('figure', 'person'))} is {where} of the picture and {size}."]
    if seen.posture.whole:
        reserve.append("The body is visible from the head down to the feet.")
    else:
        reserve.append("Not all parts of the body can be seen clearly from this point of view.")
    if place.ground is None and place.backdrop is None:
        reserve.append("The surroundings show several colours, and no single one covers most of the scene.")
    return reserve
