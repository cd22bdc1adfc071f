from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from pipeline.core.errors import UserError
from pipeline.models.build import build_network
from pipeline.models.gather import one_process
from pipeline.models.losses import HardestNegatives
from pipeline.models.network import PairNetwork
from pipeline.models.published import load_bert, load_published, load_swin, to_published
from tests.models.golden import golden, golden_network, golden_options, golden_weights, is_structural
from tests.models.small import small_batch, small_network

TINY = ("cmp_tiny", "seda_tiny", "seda_tiny_ca")


def recorded_file(folder: Path, name: str, **more: Tensor) -> tuple[Path, dict[str, Tensor]]:
    """A checkpoint under every published name and shape, structural buffers and decoder included."""
    shapes = golden(name)[0]["state_dict_shapes"]
    weights = golden_weights(shapes)
    weights["text_encoder.cls.predictions.decoder.weight"] = weights[
        "text_encoder.bert.embeddings.word_embeddings.weight"
    ]
    weights["text_encoder.cls.predictions.decoder.bias"] = weights["text_encoder.cls.predictions.bias"]
    for each, shape in shapes.items():
        if is_structural(each):
            weights[each] = torch.zeros(shape)
    assert set(weights) == set(shapes)
    weights |= more
    path = folder / f"{name}.pth"
    torch.save({"model": weights, "config": {"embed_dim": 128, "be_hard": True}}, path)
    return path, weights


def fresh(name: str, **changes: Any) -> PairNetwork:
    return build_network(golden_options(name, **changes), 0)


@pytest.mark.parametrize("name", TINY)
def test_a_published_checkpoint_fills_the_whole_network_and_comes_back_under_its_names(tmp_path, name):
    path, weights = recorded_file(tmp_path, name)
    network = fresh(name)
    loaded = load_published(network, path)
    assert set(loaded.loaded) == set(network.state_dict())
    assert (loaded.missing, loaded.ignored) == ((), ())
    back = to_published(network)
    assert set(back) == set(weights)
    for each, value in weights.items():
        assert back[each].shape == value.shape, each
        if not is_structural(each):
            assert torch.equal(back[each], value), each


@pytest.mark.parametrize("name", TINY)
def test_the_published_buffers_are_written_as_the_published_networks_have_them(name):
    """Index tables and masks by their definition: what shifted windows bring together from apart is shut off."""
    back = to_published(golden_network(name))
    index = back["vision_encoder.layers.0.blocks.0.attn.relative_position_index"]
    assert index.shape == (49, 49)
    for one, other in ((0, 48), (5, 17), (48, 0), (20, 20)):
        down, across = one // 7 - other // 7 + 6, one % 7 - other % 7 + 6
        assert int(index[one, other]) == 13 * down + across
    mask = back["vision_encoder.layers.0.blocks.1.attn_mask"]
    assert mask.shape == (64, 49, 49)
    assert not mask[0].any()
    side, window, shift = 56, 7, 3
    bound = [(-side, -window), (-window, -shift), (-shift, 0)]

    def region(place: int) -> int:
        return next(number for number, (low, high) in enumerate(bound) if low <= place - side < high)

    for number, one, other in ((7, 0, 6), (63, 0, 48), (56, 3, 45), (63, 24, 25)):
        row, column = divmod(number, 8)
        places = [(row * 7 + token // 7, column * 7 + token % 7) for token in (one, other)]
        apart = tuple(map(region, places[0])) != tuple(map(region, places[1]))
        assert float(mask[number, one, other]) == (-100 if apart else 0)
    assert back["text_encoder.bert.embeddings.position_ids"].tolist() == [list(range(512))]


def test_a_bare_file_of_weights_and_safetensors_load_too(tmp_path):
    path, weights = recorded_file(tmp_path, "cmp_tiny")
    torch.save(weights, tmp_path / "bare.pth")
    save_file({each: value.clone() for each, value in weights.items()}, tmp_path / "whole.safetensors")
    states = []
    for file in (path, tmp_path / "bare.pth", tmp_path / "whole.safetensors"):
        network = fresh("cmp_tiny")
        load_published(network, file)
        states.append(network.state_dict())
    for other in states[1:]:
        assert all(torch.equal(states[0][each], other[each]) for each in states[0])


def test_xvlm_brings_encoders_heads_and_temperature_and_leaves_the_rest(tmp_path):
    _, weights = recorded_file(tmp_path, "cmp_tiny")
    kept = ("vision_encoder.", "text_encoder.", "itm_head.", "temp")
    xvlm = {each: value for each, value in weights.items() if each.startswith(kept)}
    xvlm["temp"] = torch.tensor(0.05)
    xvlm |= {f"{each}_proj.weight": torch.ones(256, width) for each, width in (("vision", 64), ("text", 48))}
    xvlm |= {f"{each}_proj.bias": torch.ones(256) for each in ("vision", "text")}
    xvlm |= {"bbox_head.0.weight": torch.ones(96, 48)}
    torch.save({"model": xvlm}, tmp_path / "16m_base_model_state_step_199999.th")
    for name in ("cmp_tiny", "seda_tiny"):
        network = fresh(name)
        before = {each: value.clone() for each, value in network.state_dict().items()}
        loaded = load_published(network, tmp_path / "16m_base_model_state_step_199999.th")
        groups = {each.split(".")[0] for each in loaded.missing}
        new = {"image_factors", "text_factors"} if name == "seda_tiny" else set()
        assert groups == {"image_projection", "text_projection", "pose_block", "pose_conv"} | new
        assert all(torch.equal(network.state_dict()[each], before[each]) for each in loaded.missing)
        assert float(network.temperature.detach()) == pytest.approx(0.05)
        assert len(loaded.ignored) == 5
        assert {each.split(".")[0] for each in loaded.ignored} == {"vision_proj", "text_proj", "bbox_head"}


def test_aptm_names_without_bert_in_them_load(tmp_path):
    path, weights = recorded_file(tmp_path, "cmp_tiny")
    renamed = {each.replace("text_encoder.bert.", "text_encoder."): value for each, value in weights.items()}
    torch.save({"model": renamed}, path)
    assert not load_published(fresh("cmp_tiny"), path).missing


def test_swin_fills_the_image_encoder_alone_and_its_classifier_is_dropped(tmp_path):
    _, weights = recorded_file(tmp_path, "cmp_tiny")
    swin = {
        each.removeprefix("vision_encoder."): value
        for each, value in weights.items()
        if each.startswith("vision_encoder.")
    }
    swin |= {"head.weight": torch.ones(1000, 64), "head.bias": torch.ones(1000)}
    torch.save({"model": swin}, tmp_path / "swin.pth")
    network = fresh("cmp_tiny")
    loaded = load_swin(network, tmp_path / "swin.pth")
    image = {each for each in network.state_dict() if each.startswith("image_encoder.")}
    assert set(loaded.loaded) == image
    assert loaded.ignored == ()


def test_bert_fills_the_text_encoder_with_its_first_layers(tmp_path):
    network = small_network()
    bert = {
        each.removeprefix("text_encoder.bert."): torch.full_like(value, 0.25)
        for each, value in network.state_dict().items()
        if each.startswith("text_encoder.")
    }
    bert |= {each.replace("layer.1.", "layer.2."): value for each, value in bert.items() if "layer.1." in each}
    bert |= {"pooler.dense.weight": torch.ones(16, 16)}
    save_file({f"bert.{each}": value.clone() for each, value in bert.items()}, tmp_path / "model.safetensors")
    loaded = load_bert(network, tmp_path / "model.safetensors")
    text = {each for each in network.state_dict() if each.startswith("text_encoder.")}
    assert set(loaded.loaded) == text
    assert all((value == 0.25).all() for each, value in network.state_dict().items() if each in text)


def test_an_untied_decoder_takes_its_own_weights_or_the_embeddings(tmp_path):
    name = "text_encoder.cls.predictions.decoder.weight"
    path, weights = recorded_file(tmp_path, "seda_tiny")
    trained = torch.full_like(weights[name], 0.5)
    torch.save({"model": {**weights, name: trained}}, path)
    network = fresh("seda_tiny", **{"mlm.tie": False})
    assert not load_published(network, path).missing
    assert torch.equal(network.state_dict()["language_head.decoder"], trained)
    assert torch.equal(to_published(network)[name], trained)
    torch.save({"model": {each: value for each, value in weights.items() if each != name}}, path)
    network = fresh("seda_tiny", **{"mlm.tie": False})
    assert not load_published(network, path).missing
    assert torch.equal(network.state_dict()["language_head.decoder"], network.text_encoder.word_embeddings)


def test_a_network_of_ours_goes_through_the_published_names_and_is_the_same(tmp_path):
    for model in ("cmp", "seda"):
        network = small_network(model, seed=1)
        torch.save({"model": to_published(network)}, tmp_path / "ours.pth")
        other = small_network(model, seed=2)
        load_published(other, tmp_path / "ours.pth")
        with torch.no_grad():
            first, second = (each(small_batch(), one_process, HardestNegatives()).total for each in (network, other))
        assert torch.equal(first, second)


def test_weights_of_another_shape_name_what_differs(tmp_path):
    path, _ = recorded_file(tmp_path, "cmp_tiny")
    with pytest.raises(UserError, match=r"text_proj\.0\.weight has shape \[192\], this network needs \[240\]"):
        load_published(fresh("seda_tiny"), path)
    with pytest.raises(UserError, match=r"cmp_tiny\.pth: .* has shape"):
        load_published(small_network(), path)


def test_layers_that_have_no_place_are_an_error(tmp_path):
    name = "text_encoder.bert.encoder.layer.12.attention.self.query.weight"
    path, _ = recorded_file(tmp_path, "cmp_tiny", **{name: torch.ones(48, 48)})
    with pytest.raises(UserError, match=r"layer\.12\..* has no place"):
        load_published(fresh("cmp_tiny"), path)


class Harmful:
    """What a hostile file holds."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("exit 1",)


@pytest.mark.parametrize("content", ["missing", "damaged", "harmful", "empty", "foreign", "a list"])
def test_a_file_that_is_no_checkpoint_is_told_and_runs_no_code(tmp_path, content, monkeypatch):
    path = tmp_path / "cmp.pth"
    wanted = {"missing": "no such file", "empty": "holds no weights", "a list": "holds no weights"}
    if content == "damaged":
        path.write_bytes(b"PK\x03\x04 nothing")
    elif content == "harmful":
        torch.save({"model": {"temp": Harmful()}}, path)
    elif content == "empty":
        torch.save({"model": {}, "config": {}}, path)
    elif content == "a list":
        torch.save([torch.ones(1)], path)
    elif content == "foreign":
        torch.save({"model": {"conv1.weight": torch.ones(3)}}, path)
        wanted["foreign"] = "none of its 1 names"

    def called(command: str) -> int:
        raise AssertionError(command)

    monkeypatch.setattr(os, "system", called)
    with pytest.raises(UserError, match=wanted.get(content, "cannot be read as weights")):
        load_published(small_network(), path)


def test_a_damaged_safetensors_file_is_told(tmp_path):
    (tmp_path / "cmp.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}")
    with pytest.raises(UserError, match="cannot be read as safetensors"):
        load_published(small_network(), tmp_path / "cmp.safetensors")
