"""What is left out of a prompt that is too long: scene before action, whole clauses, and never more than need be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.prompt_cut import Weight, clauses_of, cut_prompt

FALL = (
    "A man in a red shirt tries to do a backflip off a wall in the park while his friends watch. "
    "He slips and falls on his back, but gets up in the end."
)
SKIING = (
    "People are skiing down a snowy slope near the trees, wearing helmets. There are mountains in the background. "
    "One of them loses balance and crashes into a fence by the road."
)


def words(text: str) -> int:
    return len(text.split())


def test_a_prompt_that_fits_is_left_as_it_is() -> None:
    assert cut_prompt(FALL, words, words(FALL)) == (FALL, None)


@pytest.mark.parametrize(
    ("prompt", "weights"),
    [
        (
            "A man in a red shirt tries to jump off a wall in the park and falls",
            ["SENTENCE", "LOOKS", "SENTENCE", "DETAIL", "SCENE", "ACTION"],
        ),
        ("A man in the park falls over", ["SENTENCE", "SCENE", "ACTION"]),
        ("In the yard, a man and his dog play with a ball", ["SCENE", "SENTENCE", "DETAIL"]),
        ("There are trees and a lake. A boy falls.", ["SCENE", "SENTENCE"]),
        ("There is a man on a bike", ["SENTENCE", "DETAIL"]),
        ("A man and a woman get up", ["SENTENCE"]),
        ("She rides into the lake", ["SENTENCE", "DETAIL"]),
    ],
)
def test_clauses_are_told_apart_by_what_they_say(prompt: str, weights: list[str]) -> None:
    assert [clause.weight.name for clause in clauses_of(prompt)] == weights


def test_the_scene_goes_before_anything_else_and_the_later_scene_first() -> None:
    assert cut_prompt(SKIING, words, words(SKIING) - 1)[1] == "by the road."
    kept, left_out = cut_prompt(SKIING, words, words(SKIING) - 12)
    assert left_out == "near the trees, ... There are mountains in the background. ... by the road."
    assert kept == (
        "People are skiing down a snowy slope wearing helmets. One of them loses balance and crashes into a fence."
    )


def test_what_is_done_and_what_goes_wrong_outlast_clothes_and_details() -> None:
    kept, left_out = cut_prompt(FALL, words, 17)
    assert kept == "A man tries to do a backflip off a wall. He slips and falls but gets up."
    assert left_out == "in a red shirt ... in the park while his friends watch. ... on his back, ... in the end."


def test_the_weights_are_ordered_as_the_cut_is() -> None:
    assert Weight.SCENE < Weight.LOOKS < Weight.DETAIL < Weight.ACTION < Weight.SENTENCE


def test_a_short_clause_comes_back_where_a_long_one_made_room() -> None:
    # Both scenes go before the long detail is reached; with it gone there is room for one of them.
    prompt = "A boy jumps with a very long stick in the yard on a hill"
    kept, left_out = cut_prompt(prompt, words, 7)
    assert kept == "A boy jumps in the yard"
    assert left_out == "with a very long stick ... on a hill"


def test_one_clause_that_is_too_long_loses_words_from_its_end() -> None:
    assert cut_prompt("one two three four five", words, 3) == ("one two three", "four five")


def test_one_word_that_is_too_long_is_cut_inside() -> None:
    assert cut_prompt("x" * 50, len, 30) == ("x" * 30, "x" * 20)


def test_a_limit_that_nothing_fits_is_an_error() -> None:
    with pytest.raises(ValueError, match="not even one character"):
        cut_prompt("a man", lambda text: len(text) + 2, 2)


PHRASES = st.sampled_from(
    [
        *("A man", "two girls", "he", "tries to jump", "is riding a bike", "and falls", "but gets up", "in the park"),
        *("on a hill", "wearing a hat", "with a dog", "into a fence", "while singing", "There are trees.", "slips."),
        *("(for fun)", "the lake,", "He falls!", "...", "xxxxxxxxxxxxxxxxxxxxxxxx", "ß 水", "\n", "that", "and a cat"),
    ]
)
PROMPTS = st.lists(PHRASES, min_size=1, max_size=14).map(" ".join) | st.text(min_size=1, max_size=60)


@given(PROMPTS)
def test_the_clauses_in_a_row_are_the_prompt(prompt: str) -> None:
    assert "".join(clause.text for clause in clauses_of(prompt)) == prompt


@given(PROMPTS, st.integers(3, 40))
def test_what_is_kept_fits_and_every_word_is_either_kept_or_left_out(prompt: str, limit: int) -> None:
    kept, left_out = cut_prompt(prompt, words, limit)
    assert words(kept) <= limit
    assert (left_out is None) == (words(prompt) <= limit)

    def letters(text: str) -> list[str]:
        return sorted(letter for letter in text if letter.isalnum())

    assert letters(kept + (left_out or "")) == letters(prompt)


@given(PROMPTS, st.integers(3, 60))
def test_a_cut_prompt_is_not_cut_again(prompt: str, limit: int) -> None:
    kept, _ = cut_prompt(prompt, len, limit)
    assert cut_prompt(kept, len, limit) == (kept, None)
