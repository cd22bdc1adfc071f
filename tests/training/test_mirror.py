import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.training.mirror import mirrored


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("a man on the left raises his right arm", "a man on the right raises his left arm"),
        ("Left of the car stands a boy.", "Right of the car stands a boy."),
        ("his LEFT leg, right knee", "his RIGHT leg, left knee"),
        ("a left-handed pitcher, the rightmost player", "a right-handed pitcher, the leftmost player"),
        ("he left the room", "he left the room"),
        ("she falls right after the jump, right now", "she falls right after the jump, right now"),
        ("bright lights, a copyright sign", "bright lights, a copyright sign"),
    ],
)
def test_sides_change_places_and_nothing_else(caption, expected):
    assert mirrored(caption) == expected


words = st.sampled_from(["left", "right", "Left", "he", "arm", "the", "now", "righthand", ",", "way", "RIGHT", "é1"])


@given(st.lists(words, max_size=8).map(" ".join) | st.text(max_size=40))
def test_mirrored_twice_is_the_caption(caption):
    assert mirrored(mirrored(caption)) == caption
