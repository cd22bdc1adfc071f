import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from pipeline.retrieval.metrics import (
    MetricsCounter,
    PairAccuracy,
    first_ranked,
    id_order,
    pair_accuracy,
    ranks_of,
    relevant_indices,
)

TESTS = Path(__file__).parents[1]
GOLDEN = json.loads((TESTS / "golden" / "misc.json").read_text("utf-8"))["metrics"]
ARRAYS = load_file(TESTS / "golden" / "misc.safetensors")
CASES = json.loads((TESTS / "cases" / "eval" / "metrics_small.json").read_text("utf-8"))


def measured(scores, query_labels, gallery_labels, order=None, chunk=1000):
    order = np.arange(len(gallery_labels)) if order is None else order
    counter = MetricsCounter(order)
    relevant = relevant_indices([str(each) for each in query_labels], [str(each) for each in gallery_labels])
    for start in range(0, len(scores), chunk):
        counter.add(np.asarray(scores[start : start + chunk]), relevant[start : start + chunk])
    return counter.metrics()


def as_named(found):
    return {f"R{k}": value for k, value in found.recall.items()} | {"mAP": found.mean_ap, "mINP": found.mean_inp}


@pytest.mark.parametrize("name", sorted(set(GOLDEN) - {"ties_straddling_as_run_here"}))
def test_figures_equal_those_of_the_published_code(name):
    case = GOLDEN[name]
    found = as_named(measured(ARRAYS[f"metrics.{name}.scores"], case["q_pids"], case["g_pids"]))
    assert found == pytest.approx(case["result"], abs=1e-4)


def test_ties_across_relevant_and_other_images_end_between_the_best_and_the_worst_order():
    case = GOLDEN["ties_straddling_as_run_here"]
    scores = ARRAYS["metrics.ties_straddling_as_run_here.scores"]
    best, worst = case["optimistic"], case["pessimistic"]
    rng = np.random.default_rng(0)
    for _ in range(20):
        order = rng.permutation(len(case["g_pids"]))
        found = measured(scores, case["q_pids"], case["g_pids"], order)
        assert worst["R1"] <= found.recall[1] <= best["R1"]
        assert worst["AP"] - 1e-6 <= found.mean_ap <= best["AP"] + 1e-6
        assert worst["INP"] - 1e-6 <= found.mean_inp <= best["INP"] + 1e-6


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_figures_are_those_of_the_small_cases(case):
    found = measured(case["sims"], case["q_ids"], case["g_ids"])
    expect = dict(case["expect"])
    assert found.without_relevant == expect.pop("queries_without_positive")
    assert as_named(found) == pytest.approx(expect, abs=1e-3)


def by_sorting(scores, query_labels, gallery_labels, order):
    """The definitions, word by word, over a whole sorted gallery."""
    hits, precisions, inverse = {1: 0, 5: 0, 10: 0}, [], []
    for row, label in zip(scores, query_labels, strict=True):
        ranking = sorted(range(len(row)), key=lambda index: (-row[index], order[index]))
        ranks = [rank for rank, index in enumerate(ranking, 1) if gallery_labels[index] == label]
        if not ranks:
            continue
        for k in hits:
            hits[k] += any(rank <= k for rank in ranks)
        precisions.append(sum((n + 1) / rank for n, rank in enumerate(ranks)) / len(ranks))
        inverse.append(len(ranks) / max(ranks))
    count = len(precisions)
    if not count:
        return None
    return {**{f"R{k}": 100 * n / count for k, n in hits.items()},
            "mAP": 100 * sum(precisions) / count, "mINP": 100 * sum(inverse) / count}  # fmt: skip


@given(st.data())
def test_figures_equal_those_of_a_sorted_gallery_whatever_the_ties_the_chunks_and_the_order_of_ids(data):
    queries, gallery = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 14))
    scores = np.array(data.draw(st.lists(st.integers(0, 4), min_size=queries * gallery, max_size=queries * gallery)))
    scores = scores.reshape(queries, gallery).astype(float)
    labels = st.integers(0, 3)
    query_labels = data.draw(st.lists(labels, min_size=queries, max_size=queries))
    gallery_labels = data.draw(st.lists(labels, min_size=gallery, max_size=gallery))
    order = np.array(data.draw(st.permutations(range(gallery))))
    found = measured(scores, query_labels, gallery_labels, order, data.draw(st.integers(1, 6)))
    expected = by_sorting(scores, query_labels, gallery_labels, order)
    assert found.queries + found.without_relevant == queries
    if expected is None:
        assert found.queries == 0
        assert math.isnan(found.mean_ap)
    else:
        assert as_named(found) == pytest.approx(expected)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(1, 15), st.randoms(use_true_random=False))
def test_the_first_ranked_images_have_the_first_ranks(scores, k, random):
    row = np.array(scores, dtype=float)
    order = list(range(len(row)))
    random.shuffle(order)
    first = first_ranked(row, np.array(order), k)
    assert ranks_of(row, first, np.array(order)).tolist() == list(range(1, min(k, len(row)) + 1))


def test_a_score_that_is_not_a_number_is_refused():
    with pytest.raises(ValueError, match="not a number"):
        ranks_of(np.array([0.1, np.nan]), np.array([0]), np.arange(2))


def test_ids_are_ordered_as_text_and_must_differ():
    assert id_order(["b", "a10", "a9"]).tolist() == [2, 0, 1]
    with pytest.raises(ValueError, match="one id"):
        id_order(["a", "a"])


def test_pair_accuracy_counts_queries_that_put_their_own_image_above_its_counterpart():
    scores = np.array([[0.9, 0.1, 0.5], [0.2, 0.2, 0.5], [0.3, 0.9, 0.5], [0.1, 0.2, 0.3]])
    found = pair_accuracy(scores, [0, 0, 0, 2], [1, 1, 1, None])
    assert found == PairAccuracy(1, 3)  # a tie is no success; without a counterpart nothing is asked


def test_the_interval_is_wilsons():
    low, high = PairAccuracy(15, 20).interval  # worked by hand from the formula
    assert (low, high) == pytest.approx((0.53130, 0.88814), abs=1e-5)
    assert all(math.isnan(end) for end in PairAccuracy(0, 0).interval)
    assert PairAccuracy(0, 10).interval[0] == pytest.approx(0, abs=1e-12)
