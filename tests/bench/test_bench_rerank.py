import numpy as np
import pytest
import torch

from bench import embed, rerank
from bench.random_inputs import random_network, random_tokens
from pipeline.models.recipes import recipe_named
from tests.bench.test_bench_train_step import on_meta, published_pair


@pytest.fixture(scope="module")
def tiny():
    return random_network("cmp", "tiny")


def test_re_ranking_at_full_width_needs_at_most_70_in_100_of_the_published_multiply_adds():
    """Without numbers: shapes alone are computed."""
    options = recipe_named("cmp").model
    costs = rerank.rerank_costs(on_meta(options).eval(), 128, 56, 1, compare=False)
    head = 2 * options.size.text.width * (options.size.text.width + 2)
    assert costs.published.multiply_adds == 128 * (published_pair(options.size, 56) + head)
    assert costs.ours.multiply_adds / costs.published.multiply_adds <= rerank.AT_MOST
    apart = options.size.text.cross_layers * 2 * options.size.image.width * options.size.text.width
    assert costs.apart.multiply_adds == 128 * apart * (1 + options.size.image.patches)


@pytest.mark.parametrize("real_tokens", [2, 30, 56])
def test_scores_are_those_of_the_published_way_and_differ_among_pairs(tiny, real_tokens):
    costs = rerank.rerank_costs(tiny, 24, real_tokens, 1)
    assert costs.difference <= 1e-5
    assert costs.spread > 100 * costs.difference
    assert costs.ours.multiply_adds < costs.published.multiply_adds


def test_a_wrong_score_is_told(tiny, monkeypatch, capsys):
    command = ["--size", "tiny", "--k", "8", "--repeats", "1"]
    assert rerank.main(command) == 0
    assert "(at most 0.0002: met)" in capsys.readouterr().out
    match = type(tiny).match
    monkeypatch.setattr(type(tiny), "match", lambda *arguments: match(*arguments) + 1e-3)
    assert rerank.main(command) == 1
    assert "MISSED" in capsys.readouterr().out


def test_a_gallery_is_evaluated_whole_and_its_time_extrapolated(capsys):
    command = ["--size", "tiny", "--gallery", "60", "--queries", "9", "--reranked", "2", "--k", "8"]
    assert rerank.main(command) == 0
    told = capsys.readouterr().out
    assert "9 queries x 60 images, k = 8, 2 queries matched" in told
    assert told.count("extrapolated") == 5
    assert "most memory, GiB" in told


def test_costs_of_a_gallery_count_different_candidates(tiny):
    costs = rerank.gallery_costs(tiny, 30, 12, 1, 8)
    assert costs.matched_images == 8
    assert 8 < costs.all_images <= 30
    assert costs.top_k == 8
    assert costs.memory > 0


def test_tokens_that_are_not_held_are_made_anew_and_are_the_same_each_time():
    tokens = rerank.MadeTokens(10, (3, 4), held_bytes=4 * 3 * 4 * 2)
    assert tokens.held.shape == (2, 3, 4)
    assert len(tokens) == 10
    assert 9 in tokens
    assert 10 not in tokens
    assert torch.equal(tokens[9], tokens[9])
    assert not torch.equal(tokens[9], tokens[8])
    assert len(rerank.MadeTokens(3, (3, 4), held_bytes=1 << 20).held) == 3


def test_random_texts_have_the_real_tokens_asked_for():
    made = random_tokens(2, 8, 30522, torch.Generator().manual_seed(0), real=5)
    assert made.mask.sum(dim=1).tolist() == [5, 5]
    assert np.array_equal(made.ids != 0, made.mask)
    assert made.ids[:, [0, 4]].tolist() == [[101, 102], [101, 102]]


def test_an_image_costs_two_passes_of_the_encoder_and_the_pose(tiny):
    one, three = (embed.embedding_costs(tiny, count, 1) for count in (1, 3))
    assert one["image and pose map"].multiply_adds > 2 * one["the image encoder alone"].multiply_adds
    for name, cost in one.items():
        assert cost.multiply_adds == pytest.approx(three[name].multiply_adds, rel=1e-6), name


def test_embedding_prints_a_column_for_each_batch(capsys):
    assert embed.main(["--size", "tiny", "--batch", "2", "--repeats", "1"]) == 0
    told = capsys.readouterr().out
    assert "s, 1 at once" in told
    assert "s, 2 at once" in told
