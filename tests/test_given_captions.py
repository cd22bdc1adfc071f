"""Captions that a profile gives in the place of OOPS!'s."""

from __future__ import annotations

import json

import pytest

from pipeline.core.errors import UserError
from pipeline.core.profile import Profile, load_profile
from pipeline.formats.oops_shards import annotations_digest, caption_videos
from tests.stage_helpers import MINI

WALKS = {"goal": "A man walks.", "wentwrong": "He falls."}
JUMPS = {"goal": "A girl jumps.", "wentwrong": ""}


def profile_with(*captions: dict[str, str]) -> Profile:
    return load_profile("full", [f"oops.root={MINI}", f"sources.captions={json.dumps(captions)}"])


def test_each_given_caption_is_a_video_of_its_own_and_none_of_oops_is_left() -> None:
    found = caption_videos(profile_with(WALKS, JUMPS), "train-000")
    assert sorted((video.captions[0].goal, video.captions[0].wentwrong) for video in found) == [
        ("A girl jumps.", ""),
        ("A man walks.", "He falls."),
    ]
    assert all(video.path is None and len(video.captions) == 1 for video in found)


def test_a_captions_id_hangs_on_its_words_alone() -> None:
    both = caption_videos(profile_with(WALKS, JUMPS), "train-000")
    assert both == caption_videos(profile_with(JUMPS, WALKS, WALKS), "train-000")
    (alone,) = caption_videos(profile_with(WALKS), "train-000")
    assert alone in both


def test_another_given_caption_makes_the_sources_new_and_the_test_split_is_oopss() -> None:
    given, others = profile_with(WALKS), profile_with(JUMPS)
    assert annotations_digest(given, "train-000") != annotations_digest(others, "train-000")
    plain = load_profile("full", [f"oops.root={MINI}"])
    for read in (annotations_digest, caption_videos):
        assert read(given, "test-000") == read(plain, "test-000")


def test_a_caption_with_an_unknown_part_is_refused() -> None:
    with pytest.raises(UserError, match="captions"):
        profile_with({"gaol": "A man walks."})
