"""Captions of drawn people, and of real photographs where they are."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import mannequin
import numpy as np
import pytest
import real_pictures
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pipeline.backends.pixel_captioner import FEWEST_WORDS, MOST_WORDS, PixelCaptioner, Seen, look, tell
from pipeline.backends.protocols import BackendContext, CaptionRequest
from pipeline.core.pose import COCO_INDEX

CONTEXT = BackendContext({}, Path(), Path())
GARMENTS = re.compile(r"\b(top|garment|trousers|pants|shorts|bottoms|wear\w*|dressed)\b")


@cache
def picture(turn: float, clothes: mannequin.Clothes) -> tuple[np.ndarray, np.ndarray]:
    keypoints = mannequin.joints(mannequin.STANDING, 240, (160, 290), turn)
    return mannequin.draw(keypoints, clothes, mannequin.room()), keypoints


def request(record_id: str = "a", turn: float = 0, hidden=(), clothes=mannequin.Clothes(), **other) -> CaptionRequest:  # noqa: B008
    image, drawn = picture(turn, clothes)
    keypoints = drawn.copy()
    for joint in hidden:
        keypoints[COCO_INDEX[joint], 2] = 0.1
    fields = {"behavior": "normal", "source_caption": None, "prompt": ""} | other
    return CaptionRequest(record_id, image, (mannequin.person(keypoints),), **fields)


@cache
def seen(turn: float) -> Seen:
    """What is read of the drawn person, for wordings by many ids."""
    one = request(turn=turn)
    return look(one.image, one.persons)


def caption(*args, **kwargs) -> str:
    (reply,) = PixelCaptioner(CONTEXT).caption([request(*args, **kwargs)])
    assert reply.error is None
    return reply.text


@pytest.mark.parametrize("record_id", [f"id-{n}" for n in range(12)])
def test_a_caption_names_clothes_posture_and_place_in_25_to_56_words(record_id):
    text = caption(record_id)
    assert FEWEST_WORDS <= len(text.split()) <= MOST_WORDS
    assert re.search(r"\b(red long-sleeved|long-sleeved red) (top|shirt)\b", text)
    assert re.search(r"\bblue (long )?(trousers|pants)\b", text)
    assert "upright" in text.lower()
    assert "brown" in text.lower()
    assert text.count(".") in (1, 2, 3, 4)
    assert all(sentence[0].isupper() for sentence in text.split(". "))


def test_lying_and_upside_down_bodies_are_told_from_standing_ones():
    assert not re.search("upright", caption(turn=90))
    assert re.search("horizontal", caption(turn=90))
    assert re.search("upside down|head down", caption(turn=180))


def test_ids_vary_the_wording_and_the_same_id_never_does():
    texts = {tell(f"id-{n}", seen(0)) for n in range(150)}
    assert len(texts) >= 145
    assert len({" ".join(text.split()[:3]) for text in texts}) >= 30
    assert caption("id-7") == caption("id-7")


STANCES = re.compile(r"\b(upright|horizontal|horizontally|upside down|head down)\b")


def test_the_decomposer_finds_clothes_stance_and_place_of_a_caption_each_in_its_factor():
    pytest.importorskip("spacy")
    from pipeline.backends.clause_decomposer import ClauseDecomposer

    texts = [tell(f"id-{n}", seen(turn)) for n in range(16) for turn in (0, 90, 180)]
    whole = [
        all(re.search(rf"\b{word}\b", factors.appearance or "") for word in ("red", "blue"))
        and bool(STANCES.search((factors.action or "").lower()))
        and re.search(r"\bbrown\b", factors.background or "") is not None
        for factors in ClauseDecomposer(CONTEXT).decompose(texts, "")
    ]
    assert sum(whole) >= 0.92 * len(whole), [text for text, right in zip(texts, whole, strict=True) if not right]


@pytest.mark.parametrize(
    ("turn", "wanted", "barred"),
    [
        (0, r"\bupright\b", r"horizontal|upside|fours"),
        (90, r"horizontal", r"upright|upside|fours"),
        (180, r"upside down|head down", r"upright|horizontal|fours"),
    ],
)
def test_every_wording_of_a_stance_names_it_and_no_other(turn, wanted, barred):
    for n in range(60):
        text = tell(f"id-{n}", seen(turn))
        assert re.search(wanted, text.lower()), text
        assert not re.search(barred, text.lower()), text


def test_a_caption_does_not_hang_on_its_neighbours_or_on_the_caption_that_made_the_image():
    captioner = PixelCaptioner(CONTEXT)
    one, two = request("one"), request("two", turn=90)
    together = captioner.caption([one, two])
    assert captioner.caption([two, one]) == together[::-1]
    assert captioner.caption([one]) == together[:1]
    told = request("one", source_caption="A woman in a green dress falls into a pool.", behavior="anomaly", prompt="x")
    assert captioner.caption([told]) == together[:1]


def test_garments_are_named_only_where_their_joints_are_seen():
    legs = ("left_knee", "right_knee", "left_ankle", "right_ankle")
    text = caption(hidden=legs)
    assert "red" in text
    assert "blue" not in text
    hips = ("left_hip", "right_hip", *legs)
    for n in range(8):
        assert not GARMENTS.search(caption(f"id-{n}", hidden=hips))


def test_other_people_are_counted_only_when_they_are_sure():
    one = request()
    sure, doubtful = mannequin.person(one.persons[0].keypoints, 0.8), mannequin.person(one.persons[0].keypoints, 0.2)

    def with_people(*people):
        made = CaptionRequest(one.id, one.image, people, "normal", None, "")
        return PixelCaptioner(CONTEXT).caption([made])[0].text.lower()

    assert "two people" in with_people(sure, sure)
    assert "people" not in with_people(sure, doubtful)


def test_a_picture_without_a_person_says_so():
    image = mannequin.room()
    (reply,) = PixelCaptioner(CONTEXT).caption([CaptionRequest("x", image, (), "normal", None, "")])
    assert re.search("no person|nobody", reply.text.lower())
    assert FEWEST_WORDS <= len(reply.text.split()) <= MOST_WORDS


joint = st.tuples(st.floats(-50, 250), st.floats(-50, 250), st.floats(0, 1))


@settings(max_examples=25, deadline=None)
@given(st.lists(joint, min_size=17, max_size=17), st.text(max_size=12), st.integers(0, 5))
def test_any_body_in_any_picture_gets_a_well_formed_caption(joints, record_id, seed):
    rng = np.random.default_rng(seed)
    image = np.array(Image.fromarray(rng.integers(0, 256, (3, 4, 3), dtype=np.uint8)).resize((200, 200)))
    people = (mannequin.person(np.array(joints, dtype=np.float32)),)
    (reply,) = PixelCaptioner(CONTEXT).caption([CaptionRequest(record_id, image, people, "normal", None, "")])
    assert FEWEST_WORDS <= len(reply.text.split()) <= MOST_WORDS
    assert not re.search(r"  | ,|\.\.|None", reply.text)
    assert reply.text.endswith(".")


# What a person sees in the photograph: words that must not be in its caption, and one that should.
SEEN = {
    "000000000785.jpg": (
        ("blue", "green", "shorts", "lying", "raised"),
        r"^(?=.*\bred\b)(?=.*\bblack (long )?(trousers|pants))",
    ),
    "000000040083.jpg": (
        ("red", "blue", "brown", "beige", "upright", "lying"),
        "black and white|black-and-white|low|sit",
    ),
    "000000196141.jpg": (("blue top", "shorts", "lying", "sitting", "snow"), "red top|red upper|red short"),
    "000000197388.jpg": (("green top", "shorts", "lying", "sitting", "water"), "blue|red"),
}


@real_pictures.needs_real_pictures
@pytest.mark.parametrize("name", SEEN)
def test_a_caption_of_a_real_photograph_claims_nothing_a_person_would_deny(name):
    pytest.importorskip("mediapipe")
    from pipeline.backends.blazepose import BlazePose

    image = real_pictures.load(name)
    people = tuple(BlazePose(CONTEXT).estimate([image])[0])
    requests = [CaptionRequest(f"{name}-{n}", image, people, "normal", None, "") for n in range(6)]
    for reply in PixelCaptioner(CONTEXT).caption(requests):
        wrong, right = SEEN[name]
        assert not any(re.search(rf"\b{word}\b", reply.text.lower()) for word in wrong), reply.text
        assert re.search(right, reply.text.lower()), reply.text
