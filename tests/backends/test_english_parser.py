from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.backends.english_parser import LONGEST_PIECE, pieces_of, readable
from pipeline.core.text import words_in_order


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A man\n  falls.", "A man falls."),
        ("a&nbsp;man &amp; a dog", "a man a dog"),
        ("<!-- no man --><i>a</i> dog", "a dog"),
        ("<style>p {color: red}</style>a dog", "a dog"),
        ("x < y and y > z", "x < y and y > z"),
        ("see www.example.com/man now", "see now"),
        ("> a quote\n# a heading", "a quote a heading"),
        ("`a` __b__ *c*", "a __b__ c"),
        ("naïve café", "naïve café"),
        ("日本 123 !", ""),
        ("a " + "b" * 300, "a"),
    ],
)
def test_what_is_no_text_becomes_blank_and_words_stay(text, expected):
    assert readable(text) == expected


@given(st.text())
def test_the_readable_text_has_words_of_the_text_only_in_its_order_and_can_be_encoded(text):
    line = readable(text)
    assert words_in_order(text, line)
    assert "\n" not in line
    line.encode()


def test_hostile_markup_is_read_in_no_time():
    for text in ("<script>" * 50_000, "<!--" * 50_000, "&a" * 100_000, "<a " * 100_000, "](" * 100_000):
        readable(text)


@given(st.lists(st.sampled_from(["a", "man", "falls.", "falls .", "(well)", "..."]), max_size=700).map(" ".join))
def test_pieces_are_short_and_make_up_the_text(text):
    pieces = pieces_of(text)
    assert " ".join(pieces).split() == text.split()
    assert all(len(piece.split()) <= LONGEST_PIECE for piece in pieces)


def test_a_text_is_cut_after_a_sentence_where_there_is_one():
    text = "a b c. " * 80
    assert all(piece.endswith(".") for piece in pieces_of(text.strip()))
    assert [len(piece.split()) for piece in pieces_of("a " * 450)] == [LONGEST_PIECE, LONGEST_PIECE, 50]
