import numpy as np
import pytest

from pipeline.retrieval.candidates import first_candidates

pytest.importorskip("faiss")


def unit(rng, count, width=16):
    rows = rng.normal(size=(count, width)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_the_first_candidates_are_those_of_a_full_sort():
    rng = np.random.default_rng(1)
    queries, gallery = unit(rng, 20), unit(rng, 90)
    indices, values = first_candidates(queries, gallery, 10, np.arange(90))
    full = queries.astype(np.float64) @ gallery.astype(np.float64).T
    assert np.array_equal(indices, np.argsort(-full, axis=1, kind="stable")[:, :10])
    assert np.allclose(values, np.take_along_axis(full, indices, axis=1), atol=1e-12)


def test_more_candidates_than_images_are_all_images():
    rng = np.random.default_rng(2)
    indices, _ = first_candidates(unit(rng, 3), unit(rng, 5), 128, np.arange(5))
    assert sorted(indices[0].tolist()) == list(range(5))


def test_equal_images_come_in_the_order_of_their_ids_also_at_the_end_of_the_list():
    rng = np.random.default_rng(3)
    gallery = np.repeat(unit(rng, 4), 5, axis=0)
    order = rng.permutation(20)
    indices, values = first_candidates(gallery[:1], gallery, 3, order)
    assert order[indices[0]].tolist() == sorted(order[:5])[:3]
    assert np.ptp(values[0]) == 0


@pytest.mark.parametrize("batch", [1, 2, 4])
def test_candidates_do_not_hang_on_how_the_queries_are_batched(batch):
    rng = np.random.default_rng(4)
    queries, gallery = unit(rng, 8), unit(rng, 60)
    whole = first_candidates(queries, gallery, 7, np.arange(60))
    parts = [first_candidates(queries[a : a + batch], gallery, 7, np.arange(60)) for a in range(0, 8, batch)]
    for number in range(2):
        assert np.array_equal(np.concatenate([part[number] for part in parts]), whole[number])
