"""The published networks' recorded numbers at tiny width: every tensor, loss, gradient, statistic and step."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pipeline.models.batch import Batch
from pipeline.models.config import FACTORS, OptimiserOptions
from pipeline.models.gather import one_process
from pipeline.models.losses import HardestNegatives
from pipeline.models.network import Losses, PairNetwork
from pipeline.models.optimiser import adamw, parameter_groups
from pipeline.models.published import fuse, published_name
from tests.models.golden import (
    SHORT_NAMES,
    golden,
    golden_batch,
    golden_network,
    hash_of_name,
    recorded_pictures,
    recorded_texts,
    signed,
    weight_of,
)

TINY = ("cmp_tiny", "seda_tiny", "seda_tiny_ca")
TENSOR, LOSS, NORM = 2e-4, 1e-4, 1e-3
ROUNDING = 3e-8
TEXT_LAYERS = 6
CANCELLED = ("key.bias", "attn.k.bias", "expand.0.bias", "reduce.0.bias")
"""What softmax or batch norm takes out again: the gradient is 0 but for rounding, another on every machine."""
NO_DROPOUT = {
    "projection_dropout": 0.0,
    "size.text.dropout": 0.0,
    "size.image.drop_path": 0.0,
}


class Recorder:
    """Takes the largest weight, as the recording did, and remembers which it was."""

    def __init__(self) -> None:
        self.choices: list[list[int]] = []

    def __call__(self, weights: Tensor) -> Tensor:
        chosen = HardestNegatives()(weights)
        self.choices.append(chosen.tolist())
        return chosen


@dataclass
class Run:
    network: PairNetwork
    batch: Batch
    losses: Losses
    choices: list[list[int]]


@cache
def evaluated(name: str) -> Run:
    network, batch, recorder = golden_network(name), golden_batch(name), Recorder()
    with torch.no_grad():
        losses = network(batch, one_process, recorder)
    return Run(network, batch, losses, recorder.choices)


@dataclass
class Trained(Run):
    gradients: dict[str, Tensor]
    buffers: dict[str, Tensor]
    before: dict[str, Tensor]
    after: dict[str, Tensor]


@cache
def trained(name: str) -> Trained:
    """One AdamW step in training mode without dropout; everything by published name."""
    network, batch, recorder = golden_network(name, **NO_DROPOUT).train(), golden_batch(name), Recorder()
    optimiser = adamw(network, OptimiserOptions())
    before = by_published_name(dict(network.named_parameters()))
    losses = network(batch, one_process, recorder)
    losses.total.backward()
    gradients = by_published_name({each: value.grad for each, value in network.named_parameters()})
    buffers = by_published_name(dict(network.named_buffers()), skip_unknown=True)
    optimiser.step()
    after = by_published_name(dict(network.named_parameters()))
    return Trained(network, batch, losses, recorder.choices, gradients, buffers, before, after)


def by_published_name(values: dict[str, Any], skip_unknown: bool = False) -> dict[str, Tensor]:
    persistent = {
        each: value.detach().clone()
        for each, value in values.items()
        if not (skip_unknown and each.endswith(("relative_position_index", "position_ids", "token_type_ids")))
    }
    return fuse(persistent, TEXT_LAYERS, torch.cat)


def close(ours: Any, recorded: Any, tolerance: float) -> None:
    np.testing.assert_allclose(torch.as_tensor(ours).numpy(), np.asarray(recorded), rtol=0, atol=tolerance)


def short(term: str) -> str:
    for factor, abbreviation in SHORT_NAMES.items():
        term = term.replace(factor, abbreviation)
    return term


def test_weights_are_rebuilt_as_the_recording_says():
    for name, values in golden("misc")[0]["recipe_check"].items():
        if name.startswith("fnv1a64"):
            assert str(hash_of_name("temp")) == values
        elif name.startswith("unit"):
            close((signed("a", (3,)) + 1) / 2, values, 1e-15)
        else:
            shape = golden("cmp_full")[0]["state_dict_shapes"][name]
            assert weight_of(name, tuple(shape)).flatten()[: len(values)].tolist() == values


@pytest.mark.parametrize("name", TINY)
def test_the_tensors_of_a_batch_are_those_recorded(name):
    run = evaluated(name)
    network, batch, arrays = run.network, run.batch, golden(name)[1]
    seen: dict[str, Tensor] = {}
    with torch.no_grad():
        assert network.pose_conv is not None
        assert batch.poses is not None
        assert batch.augmented is not None
        assert batch.hard is not None
        picture = network.pose_conv(batch.poses)
        seen["pose_conv_mean_hw"], seen["pose_conv_patch"] = picture.mean(dim=(2, 3)), picture[:, :, 100:108, 100:108]
        seen["image_embeds_raw"] = network.image_encoder(batch.images)
        seen["pose_embeds"] = network.image_encoder(picture)
        tokens, hard = network.fused_images([batch.images, batch.hard.images], [batch.poses, batch.hard.poses])
        seen["image_embeds"], seen["image_embeds_hard"] = tokens, hard
        seen["image_feat"] = network.image_feature(tokens)
        hidden = network.text_encoder(batch.captions.ids, batch.captions.mask)
        seen["text_embeds"] = hidden
        seen["text_feat"] = network.text_feature(hidden, batch.captions.mask)
        augmented = network.text_encoder(batch.augmented.ids, batch.augmented.mask)
        seen["text_feat_eda"] = network.text_feature(augmented, batch.augmented.mask)
        own = torch.arange(len(tokens))
        images = network.keys_values(tokens)
        everywhere = torch.arange(hidden.shape[1]).expand(len(own), -1)
        crossed = network.cross_encoder(hidden, batch.captions.mask, images, own, own, everywhere)
        seen["cross_embeds"], seen["cross_cls"] = crossed, crossed[:, 0]
        seen["itm_logits"] = network.match(hidden, batch.captions.mask, images, own, own)
        if name.startswith("seda"):
            assert batch.parts is not None
            sides = {"img": (network.image_factors, tokens), "txt": (network.text_factors, hidden)}
            for side, (factors, sequence) in sides.items():
                made = factors(sequence)
                weights = None if "ca" in name else factors.weights(sequence)
                for index, factor in enumerate(FACTORS):
                    seen[f"z_{side}_{SHORT_NAMES[factor]}"] = made[:, index]
                    if weights is not None:
                        seen[f"alpha_{side}_{SHORT_NAMES[factor]}"] = weights[:, index]
            for index, factor in enumerate(FACTORS):
                part = batch.parts[factor]
                made = network.text_factors(network.text_encoder(part.ids, part.mask), part.mask)
                seen[f"anchor_{SHORT_NAMES[factor]}"] = made[:, index]
    recorded = {each.removeprefix("eval."): value for each, value in arrays.items() if each.startswith("eval.")}
    assert set(recorded) <= set(seen)
    for each, value in recorded.items():
        close(seen[each], value, TENSOR)


@pytest.mark.parametrize("name", TINY)
def test_the_losses_in_evaluation_mode_are_those_recorded(name):
    run, values = evaluated(name), golden(name)[0]
    assert {short(each) for each in run.losses.terms} == set(values["eval.losses"])
    for term, loss in run.losses.terms.items():
        close(loss, values["eval.losses"][short(term)], LOSS)
    for part, loss in (("itc", run.losses.itc), ("itm", run.losses.itm), ("mlm", run.losses.mlm)):
        close(loss, values["eval.forward"][f"loss_{part}"], LOSS)


def test_the_hardest_negatives_of_cmp_are_those_recorded():
    values = golden("cmp_tiny")[0]
    assert evaluated("cmp_tiny").choices == [
        values[f"eval.{term}.{side}_neg_idx"] for term in ("itm", "itm_eda") for side in ("image", "text")
    ]


@pytest.mark.parametrize("name", ["seda_tiny", "seda_tiny_ca"])
def test_the_hardest_negatives_of_seda_are_those_recorded(name):
    values = golden(name)[0]
    order = ("itm", "itm_act", "itm_app", "itm_bg", "itm_eda")
    assert evaluated(name).choices == [choice for term in order for choice in values[f"eval.{term}.neg"]]


@pytest.mark.parametrize("name", TINY)
def test_the_losses_and_negatives_of_a_training_step_are_those_recorded(name):
    run, values = trained(name), golden(name)[0]
    assert [choice for choices in run.choices for choice in choices] == values["train_nodrop.negs"]
    for part in ("itc", "itm", "mlm"):
        close(getattr(run.losses, part).detach(), values["train_nodrop.forward"][f"loss_{part}"], LOSS)
    close(run.losses.total.detach(), values["train_nodrop.total"], LOSS)


@pytest.mark.parametrize("name", TINY)
def test_the_gradient_of_every_parameter_is_as_long_as_recorded(name):
    run, recorded = trained(name), golden(name)[0]["train_nodrop.grad_l2"]
    assert set(run.gradients) == set(recorded)
    for parameter, norm in recorded.items():
        ours = float(run.gradients[parameter].double().norm())
        if parameter.endswith(CANCELLED):
            assert max(ours, norm) < 2e-5, parameter
        else:
            assert ours == pytest.approx(norm, rel=NORM, abs=ROUNDING), parameter


@pytest.mark.parametrize("name", TINY)
def test_the_gradients_that_were_recorded_whole_are_the_same(name):
    run, arrays = trained(name), golden(name)[1]
    recorded = {each.removeprefix("train_nodrop.grad."): value for each, value in arrays.items() if ".grad." in each}
    assert recorded
    for parameter, gradient in recorded.items():
        ours = run.gradients[parameter].reshape(gradient.shape)
        close(ours, gradient, TENSOR)
        assert float((ours - gradient).norm()) <= NORM * float(gradient.norm()), parameter


@pytest.mark.parametrize("name", TINY)
def test_the_running_statistics_after_a_step_are_those_recorded(name):
    run, arrays = trained(name), golden(name)[1]
    recorded = {each.removeprefix("train_nodrop.after."): value for each, value in arrays.items() if ".after." in each}
    assert len(recorded) == 8
    for buffer, value in recorded.items():
        scale = max(1.0, float(value.abs().max()))
        close(run.buffers[buffer] / scale, value / scale, TENSOR)


def test_one_step_of_adamw_moves_every_parameter_as_far_as_recorded():
    """But where the gradient is nothing but rounding, which AdamW scales up: there it moves no further than it may."""
    run, values, arrays = trained("cmp_tiny"), *golden("cmp_tiny")
    recorded = values["train_nodrop.step_delta_l2"]
    assert set(run.after) == set(recorded)
    for parameter, norm in recorded.items():
        change = run.after[parameter].double() - run.before[parameter].double()
        if parameter.endswith(CANCELLED):
            assert max(float(change.norm()), norm) <= 2.01e-4 * change.numel() ** 0.5, parameter
        elif parameter.endswith("qkv.bias"):
            query, key, value = change.chunk(3)
            least = float(torch.cat([query, value]).norm())
            most = (least**2 + 2e-4**2 * key.numel()) ** 0.5
            assert least * (1 - NORM) <= norm <= most * (1 + NORM), parameter
        else:
            assert float(change.norm()) == pytest.approx(norm, rel=NORM, abs=1e-8), parameter
    whole = {each.removeprefix("train_nodrop.after_step."): value for each, value in arrays.items() if "_step." in each}
    assert len(whole) == 3
    for parameter, value in whole.items():
        close(run.after[parameter].reshape(value.shape), value, 1e-6)


def test_the_parameter_groups_of_cmp_are_those_recorded():
    groups = parameter_groups(golden_network("cmp_tiny"), OptimiserOptions())
    recorded = golden("cmp_tiny")[0]["param_groups"]
    assert len(groups) == len(recorded) == 4
    for ours, theirs in zip(groups, recorded, strict=True):
        assert (ours["lr"], ours["weight_decay"]) == (theirs["lr"], theirs["weight_decay"])
        assert {published_name(each, TEXT_LAYERS) for each in ours["names"]} == set(theirs["names"])


@pytest.mark.parametrize("name", ["seda_tiny", "seda_tiny_ca", "seda_full"])
def test_the_heads_of_seda_that_learn_twice_as_fast_are_those_recorded(name):
    network = golden_network(name.replace("full", "tiny"))
    options = OptimiserOptions()
    fast = {
        published_name(each, TEXT_LAYERS)
        for group in parameter_groups(network, options)
        if group["lr"] > options.lr
        for each in group["names"]
    }
    encoders = ("vision_encoder.", "text_encoder.")
    assert {each for each in fast if not each.startswith(encoders)} == set(golden(name)[0]["init_params_lr_x2"])
    cmp_fast = {each for group in golden("cmp_tiny")[0]["param_groups"][2:] for each in group["names"]}
    assert {each for each in fast if each.startswith(encoders)} == {
        each for each in cmp_fast if each.startswith(encoders)
    }


def test_an_untied_decoder_adds_as_many_parameters_as_recorded():
    for name in ("seda_tiny", "seda_tiny_ca"):
        record = golden(name)[0]["tied_decoder"]
        network = golden_network(name, **{"mlm.tie": False})
        never_used_bias = golden(name)[0]["state_dict_shapes"]["text_encoder.cls.predictions.bias"][0]
        count = sum(each.numel() for each in network.parameters())
        assert count + never_used_bias == record["n_params_after"]
        assert sum(each.numel() for each in golden_network(name).parameters()) == record["n_params_before"]
        (group,) = (
            each for each in parameter_groups(network, OptimiserOptions()) if "language_head.decoder" in each["names"]
        )
        assert (group["lr"], group["weight_decay"]) == (2e-4, 0.01)


def test_similarities_and_matching_logits_of_a_retrieval_are_those_recorded():
    values, arrays = golden("cmp_tiny")
    network = evaluated("cmp_tiny").network
    lengths, gallery = values["evalp.text_lens"], len(values["evalp.g_pids"])
    with torch.no_grad():
        texts = network.encode_texts(recorded_texts("eval:text", lengths))
        images = network.encode_images(
            recorded_pictures("eval:image", gallery), recorded_pictures("eval:pose", gallery)
        )
        close(texts.features @ images.features.t(), arrays["evalp.sims_t2i"], TENSOR)
        keys_values = network.keys_values(images.tokens)
        for query, length in enumerate(lengths):
            logits = network.match(
                texts.hidden[query : query + 1, :length],
                texts.mask[query : query + 1, :length],
                keys_values,
                torch.zeros(gallery, dtype=torch.long),
                torch.arange(gallery),
            )
            close(logits[:, 1], arrays["evalp.itm_logit_match_all_pairs"][query], TENSOR)
