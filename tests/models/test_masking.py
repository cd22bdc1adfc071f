from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import UserError
from pipeline.core.seeds import generator_of
from pipeline.models.config import MaskingOptions
from pipeline.models.masking import (
    CLS_ID,
    IGNORED_LABEL,
    MASK_ID,
    PAD_ID,
    SEP_ID,
    continuations,
    mask_caption,
    masks_per_caption,
)
from tests.models.golden import golden

PUBLISHED = MaskingOptions(mask_pad=True)
NO_CONTINUATION = np.zeros(30522, dtype=bool)
RECORDED_CONTINUATION = np.array([2000 <= token < 6000 for token in range(30522)])


def padded(words: int, length: int = 56) -> tuple[np.ndarray, int]:
    ids = np.zeros(length, dtype=np.int64)
    ids[: words + 2] = [CLS_ID, *range(10_000, 10_000 + words), SEP_ID]
    return ids, words + 2


def test_the_published_generator_is_replayed_draw_for_draw():
    values, arrays = golden("misc")
    for example in values["mlm"]["examples"]:
        ids = arrays["mlm.ids"][example["row"]].numpy()
        masked = mask_caption(ids, 0, PUBLISHED, RECORDED_CONTINUATION, random.Random(example["seed"]))
        assert masked.positions.tolist() == example["masked_pos"]
        assert masked.ids[masked.positions].tolist() == example["masked_ids_out"]
        assert masked.labels.tolist() == ids[masked.positions].tolist()


def test_the_published_shares_of_padding_and_replacement_are_seen():
    recorded = golden("misc")[0]["mlm"]["statistics_row1_len20_of_56_3000_draws"]
    ids = golden("misc")[1]["mlm.ids"][1].numpy()
    count = dict.fromkeys(("n", "mask", "rand", "keep", "pad", "sep", "cls"), 0)
    for draw in range(1000):
        masked = mask_caption(ids, 20, PUBLISHED, RECORDED_CONTINUATION, generator_of("masking", draw))
        out = masked.ids[masked.positions]
        count["n"] += len(out)
        count["mask"] += int((out == MASK_ID).sum())
        count["keep"] += int((out == masked.labels).sum())
        count["rand"] += int(((out != MASK_ID) & (out != masked.labels)).sum())
        for name, token in (("pad", PAD_ID), ("sep", SEP_ID), ("cls", CLS_ID)):
            count[name] += int((masked.labels == token).sum())
    for name, total in count.items():
        assert total / count["n"] == pytest.approx(recorded[name] / recorded["n"], abs=0.015), name


@given(words=st.integers(0, 54), seed=st.integers(0, 1000), most=st.sampled_from([10, None, 3]))
def test_without_padding_only_words_are_hidden(words, seed, most):
    ids, real = padded(words)
    options = MaskingOptions(max_masks=most)
    masked = mask_caption(ids, real, options, NO_CONTINUATION, generator_of(seed))
    chosen = masked.labels != IGNORED_LABEL
    positions = masked.positions[chosen]
    assert len(masked.positions) == len(masked.labels) == masks_per_caption(options, 56)
    assert len(positions) == min(words, max(1, min(most or 99, round(0.25 * words))))
    assert len(set(positions.tolist())) == len(positions)
    assert all(1 <= position <= words for position in positions)
    assert (ids[positions] == masked.labels[chosen]).all()
    assert not masked.positions[~chosen].any()
    untouched = np.setdiff1d(np.arange(56), positions)
    assert (masked.ids[untouched] == ids[untouched]).all()


def test_a_word_of_several_pieces_is_hidden_as_a_whole():
    ids, real = padded(12)
    pieces = NO_CONTINUATION.copy()
    pieces[[10_001, 10_002, 10_007]] = True
    options = MaskingOptions(skipgram_prob=0, max_masks=None, mask_prob=0.5)
    groups = ({1, 2, 3}, {7, 8})
    whole = 0
    for seed in range(200):
        masked = mask_caption(ids, real, options, pieces, generator_of(seed))
        positions = set(masked.positions[masked.labels != IGNORED_LABEL].tolist())
        whole += all(group <= positions or not group & positions for group in groups)
    assert whole > 150  # a word is cut only where the last one chosen would hide too many


def test_the_same_generator_hides_the_same_tokens():
    ids, real = padded(30)
    first, again = (mask_caption(ids, real, MaskingOptions(), NO_CONTINUATION, generator_of("a")) for _ in range(2))
    assert first.ids.tolist() == again.ids.tolist()
    assert first.positions.tolist() == again.positions.tolist()


def test_a_text_that_does_not_begin_with_cls_is_an_error():
    with pytest.raises(UserError, match="must be first"):
        mask_caption([7, 8], 2, MaskingOptions(), NO_CONTINUATION, generator_of(0))


def test_continuations_are_the_entries_with_two_hashes():
    assert continuations(["a", "##ing", "#"]).tolist() == [False, True, False]
