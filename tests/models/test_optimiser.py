from __future__ import annotations

import pytest
import torch

from pipeline.models.build import build_network
from pipeline.models.config import SIZES, CmpOptions, OptimiserOptions
from pipeline.models.optimiser import lr_factor, parameter_count, parameter_groups, warmup_steps
from tests.models.golden import golden

RECORDED = {
    "step_e30_spe1000_w500_lr1e-4": (OptimiserOptions(), 30_000),
    "linear_e30_spe1000_w500_lr1e-4": (OptimiserOptions(schedule="linear"), 30_000),
    "step_e3_spe40_w0.1_lr2e-5": (OptimiserOptions(lr=2e-5, warmup=0.1), 120),
}


@pytest.mark.parametrize("name", RECORDED)
def test_the_learning_rate_runs_as_recorded(name):
    options, total = RECORDED[name]
    points = golden("misc")[0]["schedule"][name]
    assert points
    for point in points:
        ours = options.lr * lr_factor(options, point["step"], total)
        assert ours == pytest.approx(point["lr"], rel=1e-12, abs=1e-18), point


def test_the_papers_schedule_warms_up_and_ends_at_its_floor():
    options = OptimiserOptions(schedule="linear_floor")
    rates = [options.lr * lr_factor(options, step, 3000) for step in range(3001)]
    assert rates[0] == 0
    assert rates[500] == pytest.approx(1e-4)
    assert rates[-1] == pytest.approx(1e-5)
    assert rates[500:] == sorted(rates[500:], reverse=True)


def test_warm_up_below_one_is_a_share():
    assert warmup_steps(OptimiserOptions(warmup=0.25), 120) == 30
    assert warmup_steps(OptimiserOptions(warmup=500), 120) == 500


def test_every_parameter_is_in_one_group_and_frozen_ones_in_none():
    network = build_network(CmpOptions(size=SIZES["small"]), 0)
    network.text_encoder.bert.embeddings.requires_grad_(False)
    groups = parameter_groups(network, OptimiserOptions())
    names = [name for group in groups for name in group["names"]]
    assert sorted(names) == sorted(name for name, each in network.named_parameters() if each.requires_grad)
    grouped = sum(each.numel() for group in groups for each in group["params"])
    frozen = sum(each.numel() for each in network.text_encoder.bert.embeddings.parameters())
    assert grouped + frozen == parameter_count(network)


def test_the_same_seed_builds_the_same_weights_and_leaves_torchs_generator_alone():
    options = CmpOptions(size=SIZES["small"])
    state = torch.random.get_rng_state()
    first, again, other = (build_network(options, seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)
