from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from pipeline.core.errors import UserError
from pipeline.models.build import load_network
from pipeline.models.cmp import CMP
from pipeline.models.gather import one_process
from pipeline.models.losses import HardestNegatives
from pipeline.models.recipes import RECIPES
from pipeline.models.seda import SeDA
from tests.models.small import small_batch, small_network


@pytest.mark.parametrize("model", ["cmp", "seda"])
def test_a_saved_network_comes_back_as_it_was(tmp_path, model):
    network = small_network(model, **{"mlm.mask_pad": True})
    network.save_pretrained(tmp_path / "saved")
    back = {"cmp": CMP, "seda": SeDA}[model].from_pretrained(tmp_path / "saved")
    assert back.options == network.options
    assert not back.training
    with torch.no_grad():
        first, second = (each(small_batch(), one_process, HardestNegatives()).total for each in (network, back))
    assert torch.equal(first, second)
    assert type(load_network(tmp_path / "saved")) is type(network)


def test_the_same_network_gives_the_same_bytes(tmp_path):
    for folder in ("one", "two"):
        small_network().save_pretrained(tmp_path / folder, RECIPES["cmp"], ["made for a test"])
    for file in ("config.json", "model.safetensors", "README.md"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    assert {each.name for each in (tmp_path / "one").iterdir()} == {"config.json", "model.safetensors", "README.md"}


def test_weights_are_stored_as_float32_whatever_they_were_trained_in(tmp_path):
    small_network().to(torch.bfloat16).save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    assert {value.dtype for value in stored.values()} == {torch.float32, torch.int64}
    CMP.from_pretrained(tmp_path)


def test_the_card_keeps_generations_apart_and_counts_what_is_learnt(tmp_path):
    network = small_network()
    network.save_pretrained(tmp_path, RECIPES["cmp"], ["made for a test"])
    card = (tmp_path / "README.md").read_text("utf-8")
    assert card.startswith("---\nlicense: ")
    assert f"{sum(each.numel() for each in network.parameters()):,}" in card
    assert "- made for a test" in card
    first, second = card.split("generation 2")
    assert "79.53" in first
    assert "84.93" not in first
    assert "84.93" in second
    assert "None" not in card


def test_a_folder_that_holds_something_else_is_told(tmp_path):
    with pytest.raises(UserError, match=r"config\.json: no such file"):
        CMP.from_pretrained(tmp_path)
    small_network().save_pretrained(tmp_path)
    with pytest.raises(UserError, match="for a SeDA"):
        SeDA.from_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    for change, message in (
        ({"temperature": torch.ones(3)}, "temperature has shape"),
        ({"more": torch.ones(3)}, "has no place for more"),
    ):
        save_file({**weights, **change}, tmp_path / "model.safetensors")
        with pytest.raises(UserError, match=message):
            CMP.from_pretrained(tmp_path)
    weights.pop("temperature")
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="misses temperature"):
        CMP.from_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"model\.safetensors: no such file"):
        CMP.from_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text("utf-8"))
    for changed, message in (
        ({**config, "pose": "often"}, "pose"),
        ({**config, "colour": 1}, "colour"),
        ({**config, "model": "clip"}, "holds no network known here"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(changed), "utf-8")
        with pytest.raises(UserError, match=message):
            load_network(tmp_path)
    for text, message in (("{", "is no JSON"), ("[]", "no options by name")):
        (tmp_path / "config.json").write_text(text, "utf-8")
        with pytest.raises(UserError, match=message):
            load_network(tmp_path)
