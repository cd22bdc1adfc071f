import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.training.eda import (
    augment,
    delete_words,
    english_stop_words,
    insert_synonyms,
    only_letters,
    replace_by_synonyms,
    swap_words,
    wordnet_folder,
    wordnet_synonyms,
)

ROOT = Path(__file__).parents[2]
GOLDEN = json.loads((ROOT / "tests" / "golden" / "misc.json").read_text("utf-8"))["eda"]
TABLE = GOLDEN["table"]
WORDS = GOLDEN["sentence"].split()
STOP = frozenset({"a", "in", "is", "on", "the", "while"})


@pytest.mark.parametrize("case", GOLDEN["only_chars"], ids=lambda case: case["input"])
def test_captions_are_reduced_to_letters_as_in_the_published_code(case):
    assert only_letters(case["input"]) == case["output"]


@pytest.mark.parametrize("name", GOLDEN["ops"])
def test_each_operation_draws_as_the_published_code_does(name):
    operation, setting, seed = name.split("_")
    rng = random.Random(int(seed.removeprefix("seed")))
    found = {
        "swap": lambda: swap_words(WORDS, int(setting[1:]), rng),
        "deletion": lambda: delete_words(WORDS, float(setting[1:]), rng),
        "insertion": lambda: insert_synonyms(WORDS, int(setting[1:]), rng, TABLE),
    }[operation]()
    assert found == GOLDEN["ops"][name]


def test_a_word_is_replaced_wherever_it_stands_and_stop_words_never():
    found = replace_by_synonyms(
        ["a", "man", "and", "a", "man", "in", "the", "street"], 9, random.Random(1), TABLE, STOP
    )
    assert " ".join(found) in {
        f"a {man} and a {man} in the {street}" for man in ("adult male", "human") for street in ("road", "avenue")
    }


def test_all_four_operations_come_about_equally_often():
    lengths = GOLDEN["length_histogram_of_chosen_augmentation_4000_draws"]
    rng = random.Random(0)
    found = [len(augment(GOLDEN["sentence"], rng, TABLE, STOP).split()) for _ in range(4000)]
    for length, count in lengths.items():
        if count >= 100:
            assert found.count(int(length)) == pytest.approx(count, rel=0.25), length


def test_without_synonyms_words_are_swapped_or_dropped_and_none_is_new():
    rng = random.Random(3)
    for _ in range(50):
        assert set(augment(GOLDEN["sentence"], rng, None, STOP).split()) <= set(WORDS)


@given(st.text(max_size=60), st.integers(0, 2**32))
def test_any_caption_with_a_letter_keeps_a_word_and_one_without_gives_nothing(caption, seed):
    found = augment(caption, random.Random(seed), TABLE, STOP)
    assert bool(found) == bool(only_letters(caption).strip())


def test_the_same_seed_gives_the_same_text_in_processes_of_other_hash_seeds():
    program = (
        "import random; from pipeline.training.eda import augment\n"
        "table = {'man': ['human', 'male'], 'street': ['road'], 'red': ['crimson'], 'shirt': ['top']}\n"
        "rng = random.Random(5)\n"
        "print([augment('a man in a red shirt on the street', rng, table, frozenset('a')) for _ in range(20)])"
    )
    found = {
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT,
                       env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(found) == 1


def test_wordnets_files_are_read_as_their_manual_says(tmp_path):
    (tmp_path / "data.noun").write_text(
        "  1 the licence is here\n"
        "00001740 03 n 03 man 0 adult_male 0 Adult-Man 1 001 @ 00000001 n 0000 | a grown man\n"
        "00002000 03 n 02 man 0 human 0 000 | anybody\n"
    )
    (tmp_path / "data.adj").write_text("00003000 00 a 02 red(p) 0 crimson 0 000 | of the colour\n")
    for part in ("verb", "adv"):
        (tmp_path / f"data.{part}").write_text("")
    synonyms = wordnet_synonyms(tmp_path)
    assert synonyms["man"] == ("adult male", "adult man", "human")
    assert synonyms["red"] == ("crimson",)
    assert "nothing" not in synonyms


def test_wordnet_is_looked_for_where_its_own_variable_says(tmp_path, monkeypatch):
    monkeypatch.setenv("WNSEARCHDIR", str(tmp_path))
    assert wordnet_folder() is None
    (tmp_path / "data.noun").touch()
    assert wordnet_folder() == tmp_path


@pytest.mark.skipif(wordnet_folder() is None, reason="NO WORDNET: apt install wordnet-base; synonyms were not tried")
def test_wordnet_of_this_machine_knows_common_words():
    folder = wordnet_folder()
    assert folder is not None
    assert "jumper" in wordnet_synonyms(folder)["sweater"]


def test_stop_words_are_function_words():
    words = english_stop_words()
    assert {"a", "the", "is", "on"} <= words
    assert not {"man", "red", "falling"} & words
