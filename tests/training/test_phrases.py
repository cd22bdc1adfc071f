from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.models.config import AugmentationOptions, LightairOptions
from pipeline.models.lightair import NO_PHRASE
from pipeline.models.recipes import changed
from pipeline.training.batches import Preparer, collated
from pipeline.training.phrases import action_phrases, phrase_finder
from pipeline.training.texts import vocabulary
from tests.training.tiny_run import SIZE, sample_set

LABELS = ("Falling", "falling", "fell, Riding a bike", "riding a bike", "jumping", None, "", "walking on the long wall")


def test_phrases_are_short_actions_named_twice_without_near_duplicates():
    assert action_phrases(LABELS) == ("falling", "riding a bike")
    assert action_phrases([*LABELS, "jumping"]) == ("falling", "jumping", "riding a bike")
    assert action_phrases([*LABELS, LABELS[-1]]) == ("falling", "riding a bike"), "four words are no phrase"
    assert action_phrases([]) == ()


@given(st.permutations([*LABELS, "running", "runs", "jumping"]))
def test_the_order_of_labels_does_not_matter(labels):
    assert action_phrases(labels) == action_phrases([*LABELS, "running", "runs", "jumping"])


def test_a_label_is_found_by_its_words_whatever_their_case_and_ending():
    found = phrase_finder(("falling", "riding a bike"))
    assert [found(each) for each in ("Falling ", "falls", "Jumping,  Riding a  Bike", "jumping", None, "")] == [
        *(0, 0, 1),
        *(None, None, None),
    ]


def test_every_phrase_finds_itself():
    phrases = action_phrases([*LABELS, *LABELS])
    found = phrase_finder(phrases)
    assert [found(each) for each in phrases] == list(range(len(phrases)))


def test_a_batch_tells_which_phrase_each_label_is():
    from dataclasses import replace

    data = sample_set(4)
    labels = ("standing", "Falling", "sitting", None)
    data = replace(data, samples=tuple(
        replace(each, label=label) for each, label in zip(data.samples, labels, strict=True)
    ))  # fmt: skip
    model = changed(LightairOptions(size=SIZE), {"codebook.phrases": ("falling", "standing")})
    preparer = Preparer(data, model, AugmentationOptions(), vocabulary(SIZE.max_tokens), None, frozenset(), 5)
    batch = collated([preparer[0, number] for number in range(4)]).batch
    assert batch is not None
    assert torch.equal(batch.actions, torch.tensor([1, 0, NO_PHRASE, NO_PHRASE]))
