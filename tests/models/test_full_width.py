"""The recorded numbers at full width: Swin-B and BERT-base.

CMP takes 20 seconds of one core and 3 GB. SeDA, whose encoders are the same, runs where `FULL_WIDTH=1` is set.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pipeline.models.build import NETWORKS
from pipeline.models.config import FACTORS, NetworkOptions
from pipeline.models.gather import one_process
from pipeline.models.losses import HardestNegatives
from pipeline.models.network import PairNetwork
from pipeline.models.published import to_published
from pipeline.models.recipes import recipe_named
from tests.models.golden import SHORT_NAMES, golden, golden_batch, golden_network, golden_options, is_structural

FULL = {"cmp_full": 230_792_798, "seda_full": 240_959_838}
only_when_asked = pytest.mark.skipif(os.environ.get("FULL_WIDTH") != "1", reason="FULL_WIDTH=1 runs SeDA at full width")


def on_meta(options: NetworkOptions) -> PairNetwork:
    """A network without numbers: shapes alone."""
    with torch.device("meta"):
        return NETWORKS[options.model](options)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", FULL)
def test_a_full_network_has_as_many_parameters_as_published(name):
    recorded = golden(name)[0]
    for options in (golden_options(name), recipe_named(name.split("_")[0]).model):
        network = on_meta(options)
        assert sum(each.numel() for each in network.parameters()) == FULL[name] == recorded["n_params_total"]
    cross = sum(each.numel() for each in network.cross_encoder.parameters())
    text = sum(each.numel() for each in network.text_encoder.parameters())
    head = sum(each.numel() for each in network.language_head.parameters())
    ours = {
        "vision_encoder": sum(each.numel() for each in network.image_encoder.parameters()),
        "text_encoder": cross + text + head,
        "vision_proj": sum(each.numel() for each in network.image_projection.parameters()),
        "text_proj": sum(each.numel() for each in network.text_projection.parameters()),
        "itm_head": sum(each.numel() for each in network.matching_head.parameters()),
        "pose_block": sum(each.numel() for each in network.pose_block.parameters()),
        "pose_conv": sum(each.numel() for each in network.pose_conv.parameters()),
    }
    assert ours.items() <= recorded["n_params_by_child"].items()
    assert (text, cross, head) == (23_440_896 + 394_752 + 1_536 + 42_527_232, 59_069_952, 622_650)


@pytest.mark.parametrize("name", FULL)
def test_a_full_network_has_the_published_names_and_shapes(name):
    weights = to_published(on_meta(golden_options(name)))
    recorded = golden(name)[0]["state_dict_shapes"]
    assert {each: list(value.shape) for each, value in weights.items()} == recorded


def evaluated(name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and losses of the recorded batch; the network is gone when this returns."""
    network, batch = golden_network(name), golden_batch(name)
    seen: dict[str, Tensor] = {}
    with torch.no_grad():
        losses = network(batch, one_process, HardestNegatives())
        picture = network.pose_conv(batch.poses)
        seen["pose_conv_mean_hw"], seen["pose_conv_patch"] = picture.mean(dim=(2, 3)), picture[:, :, 100:108, 100:108]
        seen["image_embeds_raw"], seen["pose_embeds"] = network.image_encoder(torch.cat([batch.images, picture])).chunk(
            2
        )
        tokens = network.pose_block(seen["image_embeds_raw"], seen["pose_embeds"])
        seen["image_embeds"], seen["image_feat"] = tokens, network.image_feature(tokens)
        seen["image_embeds_hard"] = network.fused_images([batch.hard.images], [batch.hard.poses])[0]
        texts = [batch.captions, batch.augmented, *(batch.parts[each] for each in FACTORS if batch.parts)]
        encoded = network.text_encoder(
            torch.cat([each.ids for each in texts]), torch.cat([each.mask for each in texts])
        )
        hidden, augmented, *parts = encoded.split(len(batch.images))
        seen["text_embeds"], seen["text_feat"] = hidden, network.text_feature(hidden, batch.captions.mask)
        seen["text_feat_eda"] = network.text_feature(augmented, batch.augmented.mask)
        own, first = torch.arange(len(tokens)), torch.zeros(len(tokens), 1, dtype=torch.long)
        crossed = network.cross_encoder(hidden, batch.captions.mask, network.keys_values(tokens), own, own, first)
        seen["cross_cls"], seen["itm_logits"] = crossed[:, 0], network.matching_head(crossed[:, 0])
        if parts:
            sides = {"img": (network.image_factors, tokens), "txt": (network.text_factors, hidden)}
            for side, (factors, sequence) in sides.items():
                made, weights = factors(sequence), factors.weights(sequence)
                for index, short in enumerate(SHORT_NAMES.values()):
                    seen[f"z_{side}_{short}"], seen[f"alpha_{side}_{short}"] = made[:, index], weights[:, index]
            for index, (short, part) in enumerate(zip(SHORT_NAMES.values(), parts, strict=True)):
                seen[f"anchor_{short}"] = network.text_factors(part)[:, index]
    return seen, {each: float(loss) for each, loss in losses.terms.items()}


@pytest.mark.parametrize("name", ["cmp_full", pytest.param("seda_full", marks=only_when_asked)])
def test_tensors_and_losses_at_full_width_are_those_recorded(name):
    values, arrays = golden(name)
    seen, losses = evaluated(name)
    recorded = {each.removeprefix("eval."): value for each, value in arrays.items() if each.startswith("eval.")}
    assert set(recorded) <= set(seen)
    for each, value in recorded.items():
        np.testing.assert_allclose(seen[each].numpy(), value.numpy(), rtol=0, atol=1e-3, err_msg=each)
    for term, loss in losses.items():
        short = term
        for factor, abbreviation in SHORT_NAMES.items():
            short = short.replace(factor, abbreviation)
        assert loss == pytest.approx(values["eval.losses"][short], abs=1e-4), term
    assert len(losses) == len(values["eval.losses"])


def test_structural_buffers_are_no_weights():
    names = [each for each in golden("cmp_full")[0]["state_dict_shapes"] if is_structural(each)]
    assert len(names) == 24 + 11 + 1
