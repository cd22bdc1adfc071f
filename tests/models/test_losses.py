from __future__ import annotations

import math

import pytest
import torch

from pipeline.core.errors import UserError
from pipeline.models.layers import masked_mean, three_bins, unit
from pipeline.models.losses import (
    DrawnNegatives,
    HardestNegatives,
    anchor_loss,
    contrastive_loss,
    draw_negatives,
    identity_targets,
    masked_language_loss,
    matching_loss,
    similarities,
)
from pipeline.models.network import pooled, pooled_width
from tests.models.golden import golden


def rows(count: int, width: int = 5, seed: int = 0) -> torch.Tensor:
    return unit(torch.randn(count, width, generator=torch.Generator().manual_seed(seed)))


def test_targets_are_spread_over_the_pairs_of_an_identity_and_smoothed():
    targets = identity_targets(torch.tensor([7, 8, 7]), 0.3)
    assert torch.allclose(targets[0], torch.tensor([0.45, 0.1, 0.45]))
    assert torch.allclose(targets[1], torch.tensor([0.1, 0.8, 0.1]))


def test_the_contrastive_loss_is_the_mean_of_both_directions_written_out():
    images, texts, identities, tau = rows(4), rows(4, seed=1), [0, 1, 1, 2], 0.2
    total = 0.0
    for one, other in ((images, texts), (texts, images)):
        for i in range(4):
            scores = [float(one[i] @ other[j]) / tau for j in range(4)]
            log_sum = math.log(sum(math.exp(score) for score in scores))
            same = [identities[i] == identities[j] for j in range(4)]
            target = [0.8 * each / sum(same) + 0.2 / 4 for each in same]
            total -= sum(t * (score - log_sum) for t, score in zip(target, scores, strict=True)) / 4 / 2
    loss = contrastive_loss(images, texts, torch.tensor(identities), torch.tensor(tau), 0.2)
    assert float(loss) == pytest.approx(total, abs=1e-6)


def test_the_anchor_loss_looks_from_the_anchor_alone():
    factors, anchors = rows(3), rows(3, seed=1)
    expected = 0.0
    for i in range(3):
        scores = [math.exp(float(anchors[i] @ factors[j]) / 0.07) for j in range(3)]
        expected -= math.log(scores[i] / sum(scores)) / 3
    assert float(anchor_loss(factors, anchors, 0.07)) == pytest.approx(expected, abs=1e-5)


def test_negatives_are_of_another_identity_and_the_similar_ones_are_drawn_most():
    identities = torch.tensor([0, 0, 1, 2, 3, 3])
    images, texts = rows(6), rows(6, seed=1)
    choose = DrawnNegatives(torch.Generator().manual_seed(0))
    drawn = torch.zeros(2, 6, 6)
    similarity = similarities(images, texts)
    for _ in range(3000):
        for side, chosen in enumerate(draw_negatives(similarity, identities, torch.tensor(0.5), choose)):
            drawn[side, torch.arange(6), chosen] += 1
    other = identities[:, None] != identities[None, :]
    similarity = images @ texts.t() / 0.5
    for side, scores in enumerate((similarity.t(), similarity)):
        weights = (scores.softmax(1) + 1e-5) * other
        assert torch.allclose(drawn[side] / 3000, weights / weights.sum(1, keepdim=True), atol=0.04)
        assert not drawn[side][~other].any()


def test_the_same_generator_draws_the_same_negatives():
    first, again = (
        DrawnNegatives(torch.Generator().manual_seed(3))(torch.full((8, 8), 1 / 8)).tolist() for _ in range(2)
    )
    assert first == again


def test_a_batch_of_one_identity_has_no_negatives():
    with pytest.raises(UserError, match="one identity only"):
        draw_negatives(similarities(rows(3), rows(3)), torch.tensor([4, 4, 4]), torch.tensor(0.07), HardestNegatives())


def test_features_that_are_not_finite_are_told():
    broken = rows(3)
    broken[0] = math.nan
    with pytest.raises(UserError, match="not finite"):
        draw_negatives(similarities(broken, rows(3)), torch.arange(3), torch.tensor(0.07), HardestNegatives())


def test_losses_over_nothing_are_zero_with_a_gradient():
    logits = torch.randn(2, 5, requires_grad=True)
    loss = masked_language_loss(logits, torch.tensor([-100, -100])) + matching_loss(
        logits[:0, :2], torch.zeros(0, dtype=torch.long)
    )
    loss.backward()
    assert float(loss.detach()) == 0
    assert logits.grad is not None
    assert not logits.grad.any()


def test_the_masked_language_loss_counts_hidden_tokens_alone():
    logits, labels = torch.randn(3, 5, generator=torch.Generator().manual_seed(0)), torch.tensor([1, -100, 4])
    expected = -(logits.log_softmax(1)[0, 1] + logits.log_softmax(1)[2, 4]) / 2
    assert float(masked_language_loss(logits, labels)) == pytest.approx(float(expected), abs=1e-6)


def test_the_bins_of_pooling_are_those_recorded():
    for length, bins in golden("misc")[0]["adaptive_pool3"].items():
        tokens = torch.randn(2, int(length), 3, generator=torch.Generator().manual_seed(0))
        expected = torch.cat([tokens[:, start:stop].mean(1) for start, stop in bins], dim=1)
        assert torch.allclose(three_bins(tokens), expected, atol=1e-6)


def test_pooling_by_equation_4_averages_what_the_mask_keeps():
    tokens = torch.arange(12.0).view(1, 4, 3)
    mask = torch.tensor([[1, 1, 0, 0]])
    assert pooled(tokens, mask, "avg_cls", True).tolist() == [[3, 4, 5, 0, 1, 2]]
    assert pooled(tokens, None, "avg_cls", False).shape[1] == pooled_width(3, "avg_cls", False)
    assert pooled(tokens, mask, "p3", True).shape[1] == pooled_width(3, "p3", True) == 12
    assert masked_mean(tokens, torch.zeros(1, 4)).tolist() == [[0, 0, 0]]
