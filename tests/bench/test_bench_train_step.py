import dataclasses

import pytest
import torch
from transformers import masking_utils

from bench import random_inputs, train_step
from bench.counting import Cost, measured
from bench.pair_by_pair import crossed_pairs, pair_by_pair
from bench.random_inputs import random_batch
from pipeline.models import cmp, losses
from pipeline.models import network as networks
from pipeline.models.build import NETWORKS, build_network
from pipeline.models.config import CmpOptions, SedaOptions
from pipeline.models.gather import one_process
from pipeline.models.losses import HardestNegatives
from pipeline.models.masking import masks_per_caption
from pipeline.models.recipes import recipe_named
from tests.models.small import NO_DROPOUT, small_batch, small_network

COUNT = 4
SWIN_B = 15.4e9
"""Multiply-adds of an image of 224 x 224, by Swin's paper (table 1)."""


@pytest.mark.parametrize("model", ["cmp", "seda"])
def test_pair_by_pair_has_the_losses_and_gradients_of_the_shared_way(model):
    network, batch = small_network(model, **NO_DROPOUT).train(), small_batch(COUNT)
    seen = []
    for way in (network, pair_by_pair(network)):
        network.zero_grad()
        found = way(batch, one_process, HardestNegatives())
        found.total.backward()
        gradients = {name: each.grad.clone() for name, each in network.named_parameters()}
        seen.append(({name: float(each) for name, each in found.terms.items()}, gradients))
    (terms, gradients), (other_terms, other_gradients) = seen
    assert terms == pytest.approx(other_terms, abs=1e-5)
    for name, gradient in gradients.items():
        assert torch.allclose(gradient, other_gradients[name], atol=2e-4), name


def test_pair_by_pair_shares_the_weights_and_leaves_the_network_as_it_is():
    network = small_network()
    twin = pair_by_pair(network)
    assert type(network) is NETWORKS["cmp"]
    assert all(one is other for one, other in zip(network.parameters(), twin.parameters(), strict=True))


def published_pair(size, text_tokens):
    """Multiply-adds of one pair through the cross encoder, by the shapes of its layers."""
    text, image_tokens = size.text, 1 + size.image.patches
    width, length = text.width, text_tokens
    self_attention = 4 * width * width * length + 2 * length * length * width
    queries_and_output = 2 * width * width * length
    keys_and_values = 2 * size.image.width * width * image_tokens
    cross_attention = queries_and_output + keys_and_values + 2 * length * image_tokens * width
    return text.cross_layers * (self_attention + cross_attention + 2 * width * text.ffn_width * length)


def on_meta(options):
    """A network without numbers: shapes alone."""
    with torch.device("meta"):
        return NETWORKS[options.model](options)


def test_a_pair_of_the_published_way_costs_what_its_layers_say_at_full_width():
    options = recipe_named("cmp").model
    size, network = options.size, on_meta(options).eval()
    with torch.no_grad(), torch.device("meta"):
        hidden, mask = torch.empty(1, 56, size.text.width), torch.ones(1, 56, dtype=torch.long)
        rows = torch.zeros(COUNT, dtype=torch.long)
        tokens = torch.empty(COUNT, 1 + size.image.patches, size.image.width)
        _, cost = measured(lambda: crossed_pairs(network.cross_encoder, hidden, mask, tokens, rows, rows))
    assert cost.multiply_adds == COUNT * published_pair(size, 56)


def test_a_step_at_full_width_needs_at_most_95_in_100_of_the_published_multiply_adds(monkeypatch):
    """Without numbers: shapes alone are computed. Forward; a matrix product's backward pass is two of its kind."""
    options = recipe_named("cmp").model
    network, batch = on_meta(options).train(), random_batch(options, COUNT).to("meta")
    neighbours = torch.arange(COUNT, device="meta").roll(1)
    monkeypatch.setattr(networks, "draw_negatives", lambda *_: (neighbours, neighbours))
    for module in (losses, cmp):
        monkeypatch.setattr(module, "similarities", lambda rows, columns: rows @ columns.t())  # without autocast
    monkeypatch.setattr(masking_utils, "_ignore_bidirectional_mask_sdpa", lambda *_: True)  # all tokens are real
    counts = []
    for way in (network, pair_by_pair(network)):
        with torch.device("meta"), torch.no_grad():
            _, forward = measured(lambda way=way: way(batch, one_process, HardestNegatives()))
        counts.append(forward.multiply_adds)
    assert counts[0] / counts[1] <= train_step.AT_MOST
    pairs = 9 * published_pair(options.size, 56)  # of a sample: 3 a matching term, 2 hard ones, 1 with hidden tokens
    pictures, texts = 4 * SWIN_B, 4 * 2.41e9  # image, pose map and the hard ones; caption, EDA, hidden tokens, hard
    convolutions_and_heads = 1.2e9
    assert counts[1] / COUNT == pytest.approx(pairs + pictures + texts + convolutions_and_heads, rel=0.005)


def test_the_batch_has_all_that_a_training_batch_may_have():
    options = SedaOptions()
    batch = random_batch(options, 3)
    assert all(getattr(batch, each.name) is not None for each in dataclasses.fields(batch))
    assert int(batch.captions.mask.sum()) == 3 * options.size.max_tokens
    positions = batch.masked.positions
    assert positions.shape == (3, masks_per_caption(options.mlm, options.size.max_tokens))
    assert all(len(set(row)) == len(row) and 0 not in row for row in positions.tolist())
    assert torch.equal(batch.images, random_batch(options, 3).images)
    assert not torch.equal(batch.images, random_batch(options, 3, seed=1).images)


def test_the_costs_of_a_step_are_of_both_ways_and_the_weights_move_once_a_run():
    network = build_network(CmpOptions(size=small_network().options.size), 0)
    before = network.temperature.detach().clone()
    costs = train_step.step_costs(network, small_batch(COUNT), 2)
    assert costs.forward.multiply_adds < costs.published_forward.multiply_adds
    assert costs.optimiser.multiply_adds == 0
    assert not torch.equal(network.temperature, before)
    assert all(each.grad is None for each in network.parameters())


def test_the_table_has_each_part_beside_the_published_one():
    costs = train_step.StepCosts(Cost(1e9, 1), Cost(2e9, 2), Cost(0, 0.5), Cost(2e9, 2), Cost(4e9, 8))
    assert costs.ratio == Cost(0.5, 0.3)
    rows = [line.split() for line in train_step.format_costs(costs, 2).splitlines()]
    assert rows[3] == ["both", "3.00", "G", "6.00", "G", "0.500", "3.00", "10.00", "0.300"]


def test_the_command_prints_the_ratio_and_refuses_a_batch_without_a_negative(capsys, monkeypatch):
    with pytest.raises(SystemExit) as stopped:
        train_step.main(["--batch", "1"])
    assert stopped.value.code == 2
    monkeypatch.setattr(random_inputs, "random_network", lambda *_: small_network())
    monkeypatch.setattr(random_inputs, "random_batch", lambda _options, count: small_batch(count))
    assert train_step.main(["--size", "tiny", "--repeats", "1"]) == 0
    assert "the target" in capsys.readouterr().out
    for bound, code in ((0.99, 0), (0.01, 1)):
        monkeypatch.setattr(train_step, "AT_MOST", bound)
        assert train_step.main(["--repeats", "1"]) == code
        assert f"(at most {bound:g}: {'MISSED' if code else 'met'})" in capsys.readouterr().out


@pytest.mark.parametrize("model", train_step.BESIDE)
def test_a_step_of_every_model_is_measured(model):
    found = train_step.one_step(model, "tiny", 2, 1)
    assert found.passes.multiply_adds > 0
    assert found.memory > 1e8
    cells = train_step.format_beside({model: found}).splitlines()[1].split()
    assert cells[0] == model
    assert cells[cells.index("G") + 2] == "1.00", "beside itself"


def test_models_that_are_not_there_are_told(capsys):
    with pytest.raises(SystemExit):
        train_step.main(["--beside", "cmp,clip"])
    assert "there are cmp, seda, gradco, lightair" in capsys.readouterr().err
