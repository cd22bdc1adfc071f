from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.core import census
from pipeline.core.census import (
    BOTH,
    OTHER_VIDEO,
    SAME_PAIR,
    SAME_VIDEO,
    Audit,
    CaptionCount,
    Copies,
    KindRows,
    PairCount,
    PairRows,
    VideoOverlap,
    caption_lengths,
    count_captions,
    count_close_pairs,
    count_copies,
    digests,
    label_balance,
    most_common,
    nearest_in_train,
    normalised_entropy,
    plain_name,
    title_of,
    video_overlap,
)

NEAR = 0.95
EMPTY = Audit(
    embedder="engine 1",
    near_duplicate_cosine=NEAR,
    pairs=(),
    closest=(),
    nearest=None,
    copies=Copies(0, 0, 0),
    captions=(),
    common_captions=(),
    videos=VideoOverlap(3, 2, 0, 0, 0, ()),
    labels=(),
    lengths=(),
    kinds=(),
)


def cloud(seed: int, rows: int, tightness: float) -> np.ndarray:
    """float32 (rows, 12), each row of length 1, in clumps of which many are near-duplicates of each other."""
    generator = np.random.default_rng(seed)
    centres = generator.standard_normal((max(1, rows // 3), 12))
    points = centres[generator.integers(0, len(centres), rows)] + tightness * generator.standard_normal((rows, 12))
    return (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)


def some_rows(seed: int, train: int, test: int) -> PairRows:
    generator = np.random.default_rng(seed)
    video = np.concatenate([generator.integers(0, 4, train), generator.integers(3, 7, test)])
    pair = video * 10 + np.concatenate([generator.integers(0, 2, train), np.full(test, 9)])
    return PairRows(np.repeat([0, 1], [train, test]).astype(np.uint8), video.astype(np.int64), pair.astype(np.int64))


def by_brute_force(vectors: np.ndarray, rows: PairRows, near: float):
    """Of every kind: pairs compared, near ones, their rows, and all pairs with their cosines, closest first."""
    kinds: dict[tuple[str, str], dict] = {}
    for one, other in itertools.combinations(range(len(vectors)), 2):
        span = BOTH if rows.split[one] != rows.split[other] else census.SPLITS[rows.split[one]]
        relation = (
            SAME_PAIR
            if rows.pair[one] == rows.pair[other] and span != BOTH
            else SAME_VIDEO
            if rows.video[one] == rows.video[other]
            else OTHER_VIDEO
        )
        found = kinds.setdefault((span, relation), {"compared": 0, "near": 0, "rows": set(), "all": []})
        cosine = round(math.fsum(float(a) * float(b) for a, b in zip(vectors[one], vectors[other], strict=True)), 6)
        found["compared"] += 1
        found["all"].append((-cosine, one, other))
        if cosine >= near:
            found["near"] += 1
            found["rows"] |= {one, other}
    return kinds


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    train=st.integers(0, 25),
    test=st.integers(0, 12),
    block=st.integers(1, 50),
    tightness=st.sampled_from([0.0, 0.05, 0.3]),
)
@example(seed=1, train=0, test=0, block=3, tightness=0.1)
@example(seed=2, train=25, test=12, block=4, tightness=0.05)
def test_near_duplicates_are_those_that_brute_force_finds_whatever_the_blocks(seed, train, test, block, tightness):
    vectors, rows = cloud(seed, train + test, tightness), some_rows(seed, train, test)
    pairs = count_close_pairs(lambda start, stop: vectors[start:stop], rows, NEAR, 3, block)
    truth = by_brute_force(vectors, rows, NEAR)
    assert {(each.span, each.relation) for each in pairs.counts} == set(truth)
    for each in pairs.counts:
        expected = truth[each.span, each.relation]
        near = [-minus for minus, _, _ in sorted(expected["all"]) if -minus >= NEAR - census.LOOK_BELOW]
        assert (each.compared, each.near, each.images) == (
            expected["compared"],
            expected["near"],
            len(expected["rows"]),
        )
        assert each.closest == (near[0] if near else None)
        shown = [pair[2:] for pair in pairs.closest if pair[:2] == (each.span, each.relation)]
        assert shown == [(a, b, -minus) for minus, a, b in sorted(expected["all"])[: len(near)][:3]]


def test_a_vector_of_no_length_is_alike_to_nothing_and_copies_have_a_cosine_of_one():
    vectors = np.zeros((4, 5), dtype=np.float32)
    vectors[2:, 1] = 1
    rows = PairRows(np.zeros(4, np.uint8), np.arange(4), np.arange(4))
    (found,) = count_close_pairs(lambda start, stop: vectors[start:stop], rows, NEAR, 5).counts
    assert (found.compared, found.near, found.images, found.closest) == (6, 1, 2, 1.0)


def test_a_pair_exactly_at_the_threshold_is_near_and_one_below_is_not():
    angle = np.arccos([0.96, 0.95, 0.949])
    vectors = np.array([[1, 0], *zip(np.cos(angle), -np.sin(angle), strict=True)], dtype=np.float32)
    rows = PairRows(np.array([0, 1, 1, 1], np.uint8), np.array([0, 1, 1, 1]), np.array([0, 1, 1, 1]))
    counts = count_close_pairs(lambda start, stop: vectors[start:stop], rows, NEAR, 5).counts
    between = next(each for each in counts if each.span == BOTH)
    assert (between.compared, between.near) == (3, 2)


def test_no_block_asks_for_more_rows_than_it_may_hold():
    vectors, asked = cloud(3, 40, 0.1), []

    def block(start: int, stop: int) -> np.ndarray:
        asked.append(stop - start)
        return vectors[start:stop]

    count_close_pairs(block, some_rows(3, 30, 10), NEAR, 3, 7)
    nearest_in_train(block, some_rows(3, 30, 10), 7)
    assert max(asked) == 7


def test_rows_of_which_train_does_not_come_first_are_refused():
    with pytest.raises(ValueError, match="train rows come first"):
        PairRows(np.array([1, 0], np.uint8), np.arange(2), np.arange(2))


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), train=st.integers(0, 20), test=st.integers(0, 9), block=st.integers(1, 30))
def test_the_closest_training_image_is_that_of_brute_force(seed, train, test, block):
    vectors = cloud(seed, train + test, 0.4)
    found = nearest_in_train(lambda start, stop: vectors[start:stop], some_rows(seed, train, test), block)
    if not train or not test:
        assert found is None
        return
    best = (vectors[train:].astype(float) @ vectors[:train].astype(float).T).max(axis=1)
    assert found is not None
    assert (found.median, found.highest) == pytest.approx((np.median(best), best.max()), abs=6e-4)


captions = st.lists(
    st.tuples(st.sampled_from(["a man", "a dog", "a cat", "two men"]), st.booleans(), st.integers(0, 3)), max_size=30
)


@given(rows=captions)
def test_repeated_captions_are_those_that_counting_by_hand_gives(rows):
    texts, test, video = [r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows]
    split = np.array(test, dtype=np.uint8)
    found = count_captions("exact", digests(texts), split, np.array(video, dtype=np.int64))
    assert [each.split for each in found] == [name for name, is_test in (("train", False), ("test", True))
                                              if is_test in test]  # fmt: skip
    for each in found:
        own = [(text, of) for text, is_test, of in rows if is_test == (each.split == "test")]
        others = {text for text, is_test, _ in rows if is_test != (each.split == "test")}
        counts = Counter(text for text, _ in own)
        assert (each.rows, each.distinct) == (len(own), len(counts))
        assert each.repeated == sum(counts[text] > 1 for text, _ in own)
        assert each.ambiguous == sum(any(a == text and b != of for a, b in own) for text, of in own)
        assert each.between == sum(text in others for text, _ in own)


def test_the_most_common_captions_come_first_and_a_caption_that_stands_once_is_not_among_them():
    texts = ["once", "twice", "thrice", "thrice", "twice", "thrice"]
    found = most_common(digests(texts), np.array([0, 0, 0, 0, 1, 1], np.uint8))
    assert found == [(2, 2, 1), (1, 1, 1)]


def test_images_with_the_same_bytes_are_counted_within_and_between_the_splits():
    sha256 = np.array([b"a", b"a", b"b", b"a", b"c", b"c"], dtype="S64")
    assert count_copies(sha256, np.array([0, 0, 0, 1, 1, 1])) == Copies(train=1, test=1, between=1)


@given(counts=st.lists(st.integers(1, 10**6), min_size=1, max_size=30))
def test_evenness_is_one_for_equal_counts_and_less_for_any_other(counts):
    value = normalised_entropy(counts)
    assert 0 <= value <= 1 + 1e-12
    if len(counts) > 1:
        assert (value == pytest.approx(1, abs=1e-12)) or len(set(counts)) > 1
        assert normalised_entropy([counts[0]] * len(counts)) == pytest.approx(1)
        assert value == pytest.approx(normalised_entropy(counts[::-1]))
    else:
        assert value == 0


def test_a_labels_balance_counts_what_is_null_and_names_the_most_frequent():
    found = label_balance("train", "scene", {"park": 6, None: 2, "road": 2, "beach": 2}, top=2)
    assert (found.rows, found.null, found.distinct, found.top) == (12, 2, 3, (("park", 6), ("beach", 2)))
    assert found.entropy == pytest.approx(-(0.6 * math.log(0.6) + 0.4 * math.log(0.2)) / math.log(3), abs=1e-4)
    assert label_balance("train", "scene", {None: 3}).entropy is None


def test_the_length_of_captions_is_described_and_those_that_a_trainer_cuts_are_counted():
    found = caption_lengths("test", [10, 20, 30, 40, 57])
    assert (found.least, found.median, found.mean, found.most, found.long) == (10, 30, 31.4, 57, 1)
    with pytest.raises(ValueError, match="no caption"):
        caption_lengths("test", [])


def test_a_video_in_both_splits_is_found_by_key_by_name_and_by_the_title_of_its_upload():
    train = {"k1": "Best Fails (July 2017)11", "k2": "Slip0", "k3": "Jumps"}
    assert video_overlap(train, {"k9": "Best Fails (July 2017)4"}) == VideoOverlap(3, 1, 0, 0, 1, ())
    assert video_overlap(train, {"k1": "renamed"}) == VideoOverlap(3, 1, 1, 0, 0, ("renamed",))
    under_another_key = video_overlap(train, {"k9": "  slip0.MP4"})
    assert (under_another_key.by_key, under_another_key.by_name) == (0, 1)
    assert video_overlap(train, {"k9": "else"}) == VideoOverlap(3, 1, 0, 0, 0, ())


def test_names_are_compared_without_case_letter_forms_blanks_and_endings():
    assert plain_name("Ｆail  Video.mp4") == plain_name("fail video")
    assert title_of("Fails (2017)11") == title_of("fails (2017)4") != title_of("fails (2018)4")
    assert title_of("12345") == "12345"


def levels(found: Audit) -> list[str]:
    return [each.level for each in found.findings]


def test_a_leak_is_an_error_and_comes_first():
    near = PairCount(BOTH, OTHER_VIDEO, 10, 1, 2, 0.97)
    assert levels(EMPTY) == []
    leak = replace(EMPTY, pairs=(near,), videos=VideoOverlap(3, 2, 1, 1, 1, ("Slip0",)))
    assert levels(leak) == ["error", "warning"]
    assert "1 videos are in train and in test: Slip0" in leak.findings[0].text
    assert levels(replace(EMPTY, videos=VideoOverlap(3, 2, 0, 1, 1, ("slip0",)))) == ["error"]
    assert levels(replace(EMPTY, copies=Copies(0, 0, 1))) == ["error"]


def test_what_is_alike_by_design_is_no_finding():
    by_design = [PairCount("train", SAME_PAIR, 9, 9, 9, 1.0), PairCount("train", SAME_VIDEO, 9, 9, 9, 1.0)]
    assert levels(replace(EMPTY, pairs=tuple(by_design))) == []


@pytest.mark.parametrize(
    ("change", "level"),
    [
        ({"copies": Copies(1, 0, 0)}, "warning"),
        ({"pairs": (PairCount("test", OTHER_VIDEO, 9, 1, 2, 0.96),)}, "warning"),
        ({"pairs": (PairCount("train", OTHER_VIDEO, 9, 1, 2, 0.96),)}, "note"),
        ({"captions": (CaptionCount("normalised", "test", 9, 8, 2, 2, 0),)}, "warning"),
        ({"captions": (CaptionCount("normalised", "train", 9, 8, 2, 2, 0),)}, None),
        ({"kinds": (KindRows("train", "goal", 9, 9, 1),)}, "warning"),
        ({"labels": (label_balance("train", "scene", {"park": 1, None: 1}),)}, "warning"),
        ({"labels": (label_balance("train", "scene", {"park": 99, "road": 1}),)}, "note"),
        ({"lengths": (caption_lengths("train", [57]),)}, "note"),
        ({"videos": VideoOverlap(3, 2, 0, 0, 1, ())}, "note"),
    ],
)
def test_every_fault_has_its_level(change, level):
    assert levels(replace(EMPTY, **change))[:1] == ([level] if level else [])


def test_an_audit_is_read_back_as_it_was_and_only_under_its_key(tmp_path):
    found = replace(
        EMPTY,
        pairs=(PairCount("test", OTHER_VIDEO, 9, 1, 2, None),),
        labels=(label_balance("train", "scene", {"park": 1, None: 1}),),
    )
    path = tmp_path / "audit.json"
    assert census.read_audit(path, "k") is None
    path.write_text(json.dumps({"key": "k", "basis": "b", "audit": asdict(found)}), "utf-8")
    assert census.read_audit(path, "k") == census.read_audit(path, "k", "b") == found
    assert census.read_audit(path, "other") is None
    assert census.read_audit(path, "k", "other") is None
    for text in ("", "[]", '{"key": "k"}', '{"key": "k", "audit": {"pairs": 3}}'):
        path.write_text(text, "utf-8")
        assert census.read_audit(path, "k") is None
