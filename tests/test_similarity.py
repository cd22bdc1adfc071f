import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.similarity import STAGE, cosine, pair_verdict
from schemas.records import ImageRecord, PoseRecord
from tests.stage_helpers import FakeEngine, context, dropped, image_record, kept, person_record, picture, png, put, run

CASES = json.loads((Path(__file__).parent / "cases" / "filter" / "cosine_pairs.json").read_text("utf-8"))


def test_the_cases_are_all_here():
    assert [case["id"] for case in CASES] == ["C01", "C02", "C03", "C04", "C05", "C06"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['id']} {case['why']}")
def test_a_pair_is_dropped_when_its_cosine_is_above_the_threshold(case):
    value = cosine(np.array(case["a"]), np.array(case["b"]))
    assert ("drop" if pair_verdict(value, 0.95) else "keep") == case["expect"]


def test_a_pair_at_the_threshold_is_kept():
    assert pair_verdict(0.95, 0.95) is None
    assert pair_verdict(np.nextafter(0.95, 1), 0.95) == "pair_too_alike"


vectors = (
    st.lists(st.floats(-100, 100), min_size=3, max_size=3).map(np.array).filter(lambda v: np.linalg.norm(v) > 1e-3)
)


@given(vectors, vectors, st.floats(0.01, 100))
def test_the_cosine_is_one_of_two_vectors_of_any_length(first, second, factor):
    value = cosine(first, second)
    assert -1 - 1e-9 <= value <= 1 + 1e-9
    assert value == pytest.approx(cosine(second, first))
    assert value == pytest.approx(cosine(first * factor, second))
    assert cosine(first, first) == pytest.approx(1)


@pytest.mark.parametrize("broken", [[0.0, 0.0], [np.nan, 1.0], [np.inf, 1.0]])
def test_a_vector_without_a_direction_has_no_cosine(broken):
    with pytest.raises(ValueError, match="not a number"), np.errstate(invalid="ignore"):
        cosine(np.array(broken), np.array([1.0, 0.0]))


def gray_embedder() -> FakeEngine:
    """Embeds the colour of the lower right pixel: (1, 0) for dark, turning to (0, 1) for bright."""

    def embed(images):
        angles = np.array([image[-1, -1, 0] / 255 * np.pi / 2 for image in images])
        return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)

    return FakeEngine("embed", embed)


def with_pairs(where, pairs, passed=None):
    frames = []
    for pair, brightnesses in pairs.items():
        for kind, brightness in zip(("goal", "wentrong"), brightnesses, strict=True):
            frames.append(image_record(f"{pair}_{kind}_frame", kind, png(picture((brightness,) * 3))))
    put(where, "frames", frames, ImageRecord)
    names = passed if passed is not None else [frame.id for frame in frames]
    put(where, "keypoints", [person_record(name) for name in names], PoseRecord)


def test_a_pair_stands_or_falls_as_one(tmp_path):
    where = context(tmp_path, "test-000", similarity=gray_embedder())
    with_pairs(where, {"p1": (0, 200), "p2": (100, 105), "p3": (50, 50)})
    run(STAGE, where)
    records = kept(STAGE, where)
    assert list(records) == ["p1_goal_frame", "p1_wentrong_frame"]
    assert {record.pair_id for record in records.values()} == {"p1"}
    assert records["p1_goal_frame"].cosine == pytest.approx(np.cos(200 / 255 * np.pi / 2), abs=1e-6)
    assert set(dropped(STAGE, where).values()) == {"rejected: pair_too_alike"}
    assert len(dropped(STAGE, where)) == 4
    detail = json.loads(where.store.dropped("similarity", "test-000")[0]["detail"])
    assert detail["cosine"] > 0.95


def test_a_frame_whose_partner_fell_to_the_people_filter_goes_too_and_is_not_embedded(tmp_path):
    embedder = gray_embedder()
    where = context(tmp_path, "test-000", similarity=embedder)
    with_pairs(where, {"p1": (0, 200), "p2": (0, 200)}, ["p1_goal_frame", "p1_wentrong_frame", "p2_wentrong_frame"])
    run(STAGE, where)
    assert dropped(STAGE, where) == {"p2_wentrong_frame": "rejected: partner_rejected"}
    assert [len(images) for (images,) in embedder.asked] == [2]


def test_a_shard_without_one_whole_pair_asks_the_embedder_nothing(tmp_path):
    embedder = gray_embedder()
    where = context(tmp_path, "test-000", similarity=embedder)
    with_pairs(where, {"p1": (0, 200)}, ["p1_wentrong_frame"])
    assert run(STAGE, where).manifest["counts"] == {"in": 1, "kept": 0, "rejected": 1, "failed": 0}
    assert embedder.asked == []


def test_no_frames_at_all_is_an_empty_shard(tmp_path):
    where = context(tmp_path, "test-000", similarity=gray_embedder())
    with_pairs(where, {"p1": (0, 200)}, [])
    assert run(STAGE, where).manifest["counts"]["in"] == 0


def test_the_threshold_is_the_profiles(tmp_path):
    where = context(tmp_path, "test-000", "similarity.max_cosine=0.1", similarity=gray_embedder())
    with_pairs(where, {"p1": (0, 200)})
    run(STAGE, where)
    assert len(dropped(STAGE, where)) == 2


def test_another_threshold_embeds_nothing_anew_and_another_people_filter_just_the_pairs_it_gives_back(tmp_path):
    where = context(tmp_path, "test-000", similarity=gray_embedder())
    pairs = {"p1": (0, 200), "p2": (100, 105), "p3": (0, 250)}
    names = [f"{pair}_{kind}_frame" for pair in pairs for kind in ("goal", "wentrong")]
    with_pairs(where, pairs, names[:5])
    run(STAGE, where)
    loose = context(tmp_path, "test-000", "similarity.max_cosine=1.0", similarity=None)
    assert run(STAGE, loose).manifest["remembered_records"] == 4
    assert set(kept(STAGE, loose)) == set(names[:4])
    embedder = gray_embedder()
    more = context(tmp_path, "test-000", "similarity.max_cosine=1.0", similarity=embedder)
    put(more, "keypoints", [person_record(name) for name in names], PoseRecord, key="other")
    run(STAGE, more)
    assert set(kept(STAGE, more)) == set(names)
    assert [len(images) for (images,) in embedder.asked] == [2]


def test_pairs_are_not_parted_between_batches(tmp_path):
    where = context(tmp_path, "test-000", "batch_records=3", similarity=gray_embedder())
    with_pairs(where, {f"p{n}": (0, 200) for n in range(5)})
    assert run(STAGE, where).manifest["counts"]["kept"] == 10
