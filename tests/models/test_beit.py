"""The image side of X2-VLM, and X2-VLM's checkpoints."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pipeline.core.errors import UserError
from pipeline.models.beit import BeitEncoder
from pipeline.models.build import NETWORKS, build_network
from pipeline.models.config import SIZES, BeitSize, LightairOptions
from pipeline.models.network import PairNetwork
from pipeline.models.published import load_published, to_published
from pipeline.models.recipes import changed

SIZE = changed(
    SIZES["x2vlm-tiny"],
    {"image.image_size": 32, "image.patch_size": 8, "text.vocab_size": 60, "text.max_positions": 16, "max_tokens": 10},
)
OPTIONS = changed(LightairOptions(size=SIZE), {"codebook.phrases": ("falling", "walking", "running")})
NEW = ("action_parts.", "codebook")


def drawn(network: PairNetwork, seed: int) -> PairNetwork:
    """With weights, biases and scales that all count."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.2)
    return network.eval()


def network_of(seed: int, options: LightairOptions = OPTIONS) -> PairNetwork:
    return drawn(build_network(options, seed), seed)


# -- the encoder -------------------------------------------------------------------------------------------------------


def position_bias(table: Tensor, grid: int) -> Tensor:
    """(heads, tokens, tokens) by the definition: entries for the offsets of two patches, then [CLS] to patches, patches
    to [CLS] and [CLS] to itself."""
    tokens, offsets = grid * grid + 1, (2 * grid - 1) ** 2
    index = torch.empty(tokens, tokens, dtype=torch.long)
    for one in range(tokens):
        for other in range(tokens):
            if one and other:
                (row, column), (to_row, to_column) = divmod(one - 1, grid), divmod(other - 1, grid)
                index[one, other] = (row - to_row + grid - 1) * (2 * grid - 1) + column - to_column + grid - 1
            else:
                index[one, other] = offsets + (2 if one == other else 0 if one == 0 else 1)
    return table[index].permute(2, 0, 1)


def by_definition(weights: dict[str, Tensor], images: Tensor, size: BeitSize) -> Tensor:
    """BEiT-v2 in plain products, from weights under the published names."""

    def of(name: str) -> Tensor:
        return weights[f"vision_encoder.{name}"]

    def norm(rows: Tensor, name: str) -> Tensor:
        return functional.layer_norm(rows, (size.width,), of(f"{name}.weight"), of(f"{name}.bias"), 1e-6)

    grid, count = size.image_size // size.patch_size, len(images)
    cut = images.unfold(2, size.patch_size, size.patch_size).unfold(3, size.patch_size, size.patch_size)
    patches = cut.permute(0, 2, 3, 1, 4, 5).reshape(count, grid * grid, -1)
    rows = patches @ of("patch_embed.proj.weight").flatten(1).t() + of("patch_embed.proj.bias")
    rows = torch.cat([of("cls_token").expand(count, 1, -1), rows], dim=1)
    for block in range(size.layers):
        at = f"blocks.{block}"
        zero = torch.zeros_like(of(f"{at}.attn.q_bias"))
        bias = torch.cat([of(f"{at}.attn.q_bias"), zero, of(f"{at}.attn.v_bias")])
        fused = norm(rows, f"{at}.norm1") @ of(f"{at}.attn.qkv.weight").t() + bias
        q, k, v = fused.unflatten(2, (3, size.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(2, 3) / (size.width // size.heads) ** 0.5
        weighed = (scores + position_bias(of(f"{at}.attn.relative_position_bias_table"), grid)).softmax(dim=3) @ v
        joined = weighed.transpose(1, 2).flatten(2) @ of(f"{at}.attn.proj.weight").t() + of(f"{at}.attn.proj.bias")
        rows = rows + of(f"{at}.gamma_1") * joined
        inner = functional.gelu(norm(rows, f"{at}.norm2") @ of(f"{at}.mlp.fc1.weight").t() + of(f"{at}.mlp.fc1.bias"))
        rows = rows + of(f"{at}.gamma_2") * (inner @ of(f"{at}.mlp.fc2.weight").t() + of(f"{at}.mlp.fc2.bias"))
    rows = norm(rows[:, 1:], "fc_norm")
    return torch.cat([rows.mean(dim=1, keepdim=True), rows], dim=1)


def test_the_encoder_computes_what_beits_definition_says():
    network = network_of(1)
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = network.image_encoder(images)
        wanted = by_definition(to_published(network), images, SIZE.image)
    assert found.shape == (2, 1 + 16, 48)
    torch.testing.assert_close(found, wanted, atol=2e-4, rtol=0)


def test_activations_computed_again_give_the_same_gradients():
    found = []
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    for again in (False, True):
        network = network_of(1).train()
        assert isinstance(network.image_encoder, BeitEncoder)
        network.gradient_checkpointing(again)
        assert [each.gradient_checkpointing for each in network.image_encoder.blocks] == [again] * 2
        torch.manual_seed(3)  # of stochastic depth
        network.image_encoder(images).square().sum().backward()
        found.append({name: each.grad for name, each in network.image_encoder.named_parameters()})
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient)


def test_full_width_has_x2vlms_number_of_parameters():
    with torch.device("meta"):
        network = NETWORKS["lightair"](changed(LightairOptions(), {"codebook.phrases": ("falling",)}))  # type: ignore[call-arg]
    counted = {name: each.numel() for name, each in network.named_parameters() if not name.startswith("action_parts.")}
    assert sum(counted.values()) == 253_567_997
    # What a profiler's hooks see: no embedding but the tied decoder, no bare tensor, no product made by a function.
    unseen = ("position_embeddings", "token_type_embeddings", "cls_token", "lambda_", "bias_table", "temperature")
    fused = (".q_proj.", ".k_proj.", ".v_proj.")
    seen = sum(
        count
        for name, count in counted.items()
        if not any(each in name for each in unseen)
        and not (name.startswith("image_encoder.") and any(each in name for each in fused))
    )
    assert seen == 231_796_540


# -- X2-VLM's checkpoints ----------------------------------------------------------------------------------------------


def x2vlm(network: PairNetwork, form: str) -> dict[str, Tensor]:
    """The network's weights as X2-VLM's files have them, in one text stack or in two, with what only they have."""
    weights = {name: each for name, each in to_published(network).items() if not name.startswith(("action_", "nsc."))}
    if form == "split":
        renamed = {}
        first = SIZE.text.text_layers
        for name, tensor in weights.items():
            head, is_layer, rest = name.partition("text_encoder.bert.encoder.layer.")
            if is_layer and not head:
                number, _, tail = rest.partition(".")
                layer = int(number)
                name = (
                    f"text_encoder.encoder.layer.{layer}.{tail}"
                    if layer < first
                    else f"cross_encoder.encoder.layer.{layer - first}.{tail}"
                )
            elif name.startswith("text_encoder.mlm_head."):
                name = name.removeprefix("text_encoder.")
            renamed[name.replace("text_encoder.bert.embeddings", "text_encoder.embeddings")] = tensor
        weights = renamed
    else:
        weights = {name.replace("text_encoder.mlm_head.", "text_encoder.cls."): each for name, each in weights.items()}
    more = {"absolute_frame_pos_embed": (1, 3, 48), "bbox_head.0.weight": (4, 4), "tl_text_proj.weight": (32, 48)}
    return weights | {name: torch.zeros(shape) for name, shape in more.items()}


@pytest.mark.parametrize("form", ["single", "split"])
def test_both_forms_of_x2vlms_files_fill_all_but_what_is_new(tmp_path, form):
    source, network = network_of(1), network_of(2)
    path = tmp_path / "x2vlm_base_1b.th"
    torch.save({"model": x2vlm(source, form), "config": {"image_res": 32}}, path)
    before = {name: each.clone() for name, each in network.state_dict().items()}
    loaded = load_published(network, path)
    after, wanted = network.state_dict(), source.state_dict()
    new = {name for name in after if name.startswith(NEW)}
    assert set(loaded.missing) == new
    assert new
    for name, tensor in after.items():
        assert torch.equal(tensor, before[name] if name in new else wanted[name]), name
    assert loaded.ignored == ("absolute_frame_pos_embed", "bbox_head.0.weight", "tl_text_proj.weight")


def test_lightairs_own_names_come_back_with_codebook_mapper_and_gates(tmp_path):
    source, network = network_of(1), network_of(2)
    source.codebook.normal_()
    weights = to_published(source)
    assert weights["action_codebook"].shape == (3, 32)
    assert weights["vision_encoder.blocks.0.attn.qkv.weight"].shape == (3 * 48, 48)
    assert weights["vision_encoder.blocks.1.attn.relative_position_bias_table"].shape == (7 * 7 + 3, 4)
    assert weights["vision_encoder.blocks.1.attn.relative_position_index"].shape == (17, 17)
    names = {
        *("action_mapper_projected.4.weight", "nsc.2.bias", "vision_proj.weight", "text_proj.bias", "temp"),
        *("vision_encoder.cls_token", "vision_encoder.fc_norm.weight", "vision_encoder.blocks.0.gamma_2"),
        *("text_encoder.bert.encoder.layer.3.crossattention.self.key.weight", "itm_head.3.weight"),
        "text_encoder.mlm_head.predictions.transform.dense.weight",
    }
    assert names <= set(weights)
    assert not any("k_bias" in name or "text_encoder.cls." in name for name in weights)
    path = tmp_path / "lightair.pth"
    torch.save({"model": weights | {"action_mapper.0.weight": torch.zeros(48, 48)}}, path)
    loaded = load_published(network, path)
    assert (loaded.missing, loaded.ignored) == ((), ("action_mapper.0.weight",))  # of the mapper that is not used
    assert all(torch.equal(each, source.state_dict()[name]) for name, each in network.state_dict().items())


def test_positions_of_another_grid_are_told_by_name(tmp_path):
    path = tmp_path / "x2vlm.th"
    torch.save({"model": x2vlm(network_of(1), "single")}, path)
    other = changed(OPTIONS, {"size.image.image_size": 64})
    with pytest.raises(UserError, match=r"relative_position_bias_table has shape \[52, 4\], this network needs"):
        load_published(network_of(2, other), path)


class Shell:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("ran",)


def test_code_in_a_file_does_not_run(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"model": {"temp": torch.ones(1)}, "optimizer": Shell()}, tmp_path / "x2vlm.th")
    with pytest.raises(UserError, match="never run here"):
        load_published(network_of(1), tmp_path / "x2vlm.th")
    assert not (tmp_path / "ran").exists()
