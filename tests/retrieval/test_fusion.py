import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from pipeline.core.errors import UserError
from pipeline.retrieval.fusion import Fusion, extremes_of, fuse, parse_fusion, part_bounds
from pipeline.retrieval.metrics import first_ranked

GOLDEN = Path(__file__).parents[1] / "golden"
MISC = load_file(GOLDEN / "misc.safetensors")
K_TEST = json.loads((GOLDEN / "misc.json").read_text("utf-8"))["fusion"]["k_test"]


def fused(fusion, similarity, all_logits, k, chunk=1000):
    """As an evaluation does: the first k by similarity get their logit, chunk by chunk."""
    order = np.arange(similarity.shape[1])
    candidates = np.array([first_ranked(row, order, k) for row in similarity])
    logits = np.take_along_axis(all_logits, candidates, axis=1)
    extremes = extremes_of(fusion, (float(similarity.min()), float(similarity.max())), logits)
    count = len(similarity)
    parts = [
        fuse(fusion, extremes, similarity[a : a + chunk], candidates[a : a + chunk], logits[a : a + chunk], a, count)
        for a in range(0, count, chunk)
    ]
    return np.concatenate(parts)


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("chunk", [1, 3, 1000])
def test_scores_equal_those_of_the_published_code_on_one_two_and_four_processes(world, chunk):
    fusion = parse_fusion("single" if world == 1 else f"ref_world:{world}")
    found = fused(fusion, MISC["fusion.sims"], MISC["fusion.logit"], K_TEST, chunk)
    assert np.abs(found - MISC[f"fusion.score_world{world}"]).max() < 1e-6


@pytest.mark.parametrize(("world", "name"), [(1, ""), (2, "_world2"), (4, "_world4")])
def test_scores_of_a_whole_evaluation_equal_those_of_the_published_code(world, name):
    golden = load_file(GOLDEN / "cmp_tiny.safetensors")
    fusion = Fusion("single") if world == 1 else Fusion("ref_world", world)
    k = json.loads((GOLDEN / "cmp_tiny.json").read_text("utf-8"))["evalp.k_test"]
    found = fused(fusion, golden["evalp.sims_t2i"], golden["evalp.itm_logit_match_all_pairs"], k)
    assert np.abs(found - golden[f"evalp.score_t2i{name}"]).max() < 1e-6


SIMILARITY = np.array([[0.9, 0.8, 0.7, 0.1, 0.2], [0.1, 0.2, 0.3, 0.9, 0.8]])
LOGITS = np.array([[1.0, 3.0, 9.0, 9.0, 9.0], [9.0, 9.0, 9.0, -2.0, 5.0]])


def test_with_the_logits_alone_the_first_k_come_first_by_logit_and_the_rest_by_similarity():
    found = fused(Fusion("itm_only"), SIMILARITY, LOGITS, 2)
    order = np.arange(5)
    assert [first_ranked(row, order, 5).tolist() for row in found] == [[1, 0, 2, 4, 3], [4, 3, 2, 1, 0]]
    assert found[0, 1] == 3.0


def test_the_linear_score_is_logit_plus_weighted_similarity_and_the_rest_get_the_rows_least_logit():
    found = fused(parse_fusion("linear:2"), SIMILARITY, LOGITS, 2)
    assert found[0].tolist() == pytest.approx([1 + 1.8, 3 + 1.6, 1 + 1.4, 1 + 0.2, 1 + 0.4])


def test_constant_similarities_or_logits_do_not_divide_by_zero():
    flat = np.ones((2, 3))
    assert fused(Fusion("single"), flat, flat, 2).tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize("text", ["single", "itm_only", "linear:0.5", "ref_world:4"])
def test_a_fusion_is_named_as_it_is_typed(text):
    assert parse_fusion(text).name == text


@pytest.mark.parametrize(
    "text", ["", "double", "single:2", "linear:x", "linear:nan", "ref_world", "ref_world:0", "ref_world:-1"]
)
def test_another_fusion_is_told_what_there_is(text):
    with pytest.raises(UserError, match="use single, itm_only"):
        parse_fusion(text)


@given(st.integers(1, 400), st.integers(1, 9))
def test_the_processes_rows_follow_each_other_without_a_gap_or_the_last_process_has_none(queries, world):
    try:
        bounds = part_bounds(queries, world)
    except UserError:
        assert (world - 1) * (queries // world + 1) >= queries
        return
    assert [row for start, end in bounds for row in range(start, end)] == list(range(queries))
