"""The published names: weights of CMP, SeDA, X-VLM, APTM and Swin read into these networks, and written back.

Files from outside are read as tensors only: no pickled code runs.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.core.errors import UserError
from pipeline.core.store import write_atomically
from pipeline.models.config import BeitSize, ImageSize
from pipeline.models.network import PairNetwork
from pipeline.models.pretrained import read_tensors

SWIN_PREFIX = "vision_encoder."
_TEXT_PREFIX = "text_encoder."
_CROSS_LAYER = re.compile(r"^cross_encoder\.layer\.(\d+)\.")
_TEXT_LAYER = re.compile(r"^text_encoder\.bert\.encoder\.layer\.(\d+)\.")
_BLOCK = r"image_encoder\.swin\.encoder\.layers\.(\d+)\.blocks\.(\d+)"
_BEIT_BLOCK = r"image_encoder\.beit\.layers\.(\d+)"
_FUSED = re.compile(
    rf"^(?:{_BLOCK}\.attention\.(?P<swin>[qkv])_proj\.(?:weight|bias)"
    rf"|{_BEIT_BLOCK}\.attention\.(?P<beit>[qkv])_proj\.weight)$"
)
_OURS_TO_PUBLISHED: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile("^" + ours), published)
    for ours, published in (
        (r"image_encoder\.swin\.embeddings\.patch_embeddings\.projection\.", "vision_encoder.patch_embed.proj."),
        (r"image_encoder\.swin\.embeddings\.norm\.", "vision_encoder.patch_embed.norm."),
        (rf"{_BLOCK}\.layernorm_before\.", r"vision_encoder.layers.\1.blocks.\2.norm1."),
        (rf"{_BLOCK}\.layernorm_after\.", r"vision_encoder.layers.\1.blocks.\2.norm2."),
        (rf"{_BLOCK}\.attention\.[qkv]_proj\.", r"vision_encoder.layers.\1.blocks.\2.attn.qkv."),
        (rf"{_BLOCK}\.attention\.o_proj\.", r"vision_encoder.layers.\1.blocks.\2.attn.proj."),
        (rf"{_BLOCK}\.attention\.relative_position_bias\.", r"vision_encoder.layers.\1.blocks.\2.attn."),
        (rf"{_BLOCK}\.mlp\.", r"vision_encoder.layers.\1.blocks.\2.mlp."),
        (r"image_encoder\.swin\.encoder\.layers\.(\d+)\.downsample\.", r"vision_encoder.layers.\1.downsample."),
        (r"image_encoder\.swin\.layernorm\.", "vision_encoder.norm."),
        (r"image_encoder\.beit\.embeddings\.cls_token$", "vision_encoder.cls_token"),
        (r"image_encoder\.beit\.embeddings\.patch_embeddings\.projection\.", "vision_encoder.patch_embed.proj."),
        (rf"{_BEIT_BLOCK}\.layernorm_before\.", r"vision_encoder.blocks.\1.norm1."),
        (rf"{_BEIT_BLOCK}\.layernorm_after\.", r"vision_encoder.blocks.\1.norm2."),
        (rf"{_BEIT_BLOCK}\.attention\.[qkv]_proj\.weight$", r"vision_encoder.blocks.\1.attn.qkv.weight"),
        (rf"{_BEIT_BLOCK}\.attention\.([qv])_proj\.bias$", r"vision_encoder.blocks.\1.attn.\2_bias"),
        (rf"{_BEIT_BLOCK}\.attention\.o_proj\.", r"vision_encoder.blocks.\1.attn.proj."),
        (rf"{_BEIT_BLOCK}\.relative_position_bias\.", r"vision_encoder.blocks.\1.attn."),
        (rf"{_BEIT_BLOCK}\.lambda_([12])$", r"vision_encoder.blocks.\1.gamma_\2"),
        (rf"{_BEIT_BLOCK}\.mlp\.", r"vision_encoder.blocks.\1.mlp."),
        (r"image_encoder\.norm\.", "vision_encoder.fc_norm."),
        (r"action_parts\.mapper_projected\.", "action_mapper_projected."),
        (r"action_parts\.mapper\.", "action_mapper."),
        (r"action_parts\.gates\.", "nsc."),
        (r"codebook$", "action_codebook"),
        (r"text_encoder\.bert\.", "text_encoder.bert."),
        (r"language_head\.dense\.", "text_encoder.cls.predictions.transform.dense."),
        (r"language_head\.norm\.", "text_encoder.cls.predictions.transform.LayerNorm."),
        (r"language_head\.bias$", "text_encoder.cls.predictions.bias"),
        (r"language_head\.decoder$", "text_encoder.cls.predictions.decoder.weight"),
        (r"image_projection\.norm\.", "vision_proj.0."),
        (r"image_projection\.linear\.", "vision_proj.2."),
        (r"text_projection\.norm\.", "text_proj.0."),
        (r"text_projection\.linear\.", "text_proj.2."),
        (r"matching_head\.dense\.", "itm_head.0."),
        (r"matching_head\.norm\.", "itm_head.1."),
        (r"matching_head\.output\.", "itm_head.3."),
        (r"image_factors\.queries\.", "decoupled_linear_img."),
        (r"text_factors\.queries\.", "decoupled_linear_txt."),
        (r"image_factors\.merge\.", "modality_proj_img."),
        (r"text_factors\.merge\.", "modality_proj_txt."),
        (r"image_factors\.attention\.", "cross_attn_img."),
        (r"text_factors\.attention\.", "cross_attn_txt."),
        (r"pose_block\.", "pose_block."),
        (r"pose_conv\.", "pose_conv."),
        (r"temperature$", "temp"),
        # GradCO has no published code: its own parts keep their names.
        (r"image_projection\.(?=weight|bias|\d)", "vision_proj."),
        (r"text_projection\.(?=weight|bias|\d)", "text_proj."),
        (r"image_experts\.", "image_experts."),
        (r"text_experts\.", "text_experts."),
        (r"offload\.", "offload."),
        (r"gate\.", "gate."),
    )
)
_DECODER_WEIGHT = "text_encoder.cls.predictions.decoder.weight"
_DECODER_BIAS = "text_encoder.cls.predictions.decoder.bias"
_HEAD_BIAS = "text_encoder.cls.predictions.bias"
_CMP_HEAD, _LIGHTAIR_HEAD = "text_encoder.cls.", "text_encoder.mlm_head."
"""Where the language head is: in CMP's files and in LightAIR's, whose encoders are X2-VLM's."""
_APART = re.compile(r"^cross_encoder\.(?:bert\.)?encoder\.layer\.(\d+)\.")
_STRUCTURAL = re.compile(r"(relative_position_index|attn_mask|position_ids)$")


@dataclass(frozen=True)
class Loaded:
    """What reading weights did, by this project's names, sorted.

    loaded: read. missing: left as they were. ignored: published names that have no place here.
    """

    loaded: tuple[str, ...]
    missing: tuple[str, ...]
    ignored: tuple[str, ...]


def published_name(name: str, text_layers: int) -> str:
    """The published name of a parameter or buffer; queries, keys and values of Swin share one ("...attn.qkv.weight").

    KeyError for a name that is none of these networks'.
    """
    cross = _CROSS_LAYER.match(name)
    if cross:
        return f"text_encoder.bert.encoder.layer.{int(cross[1]) + text_layers}.{name[cross.end() :]}"
    for pattern, published in _OURS_TO_PUBLISHED:
        renamed, found = pattern.subn(published, name)
        if found:
            return renamed
    raise KeyError(name)


def fuse(values: Mapping[str, Any], text_layers: int, join: Callable[[list[Any]], Any]) -> dict[str, Any]:
    """Values by published name; where several of ours share one (queries, keys, values), they are joined in order."""
    groups: dict[str, list[Any]] = {}
    for name, value in values.items():
        groups.setdefault(published_name(name, text_layers), []).append(value)
    return {name: group[0] if len(group) == 1 else join(group) for name, group in groups.items()}


def to_published(network: PairNetwork) -> dict[str, Tensor]:
    """The network's weights under the published names, with the buffers that the published networks carry."""
    text_layers = network.options.size.text.text_layers
    weights = fuse(network.state_dict(), text_layers, torch.cat)
    weights.setdefault(_DECODER_WEIGHT, network.text_encoder.word_embeddings.detach())
    weights[_DECODER_BIAS] = weights[_HEAD_BIAS]
    weights["text_encoder.bert.embeddings.position_ids"] = torch.arange(network.options.size.text.max_positions)[None]
    size = network.options.size.image
    if not isinstance(size, BeitSize):
        return weights | _swin_buffers(size)
    heads = {name: f"{_LIGHTAIR_HEAD}{name.removeprefix(_CMP_HEAD)}" for name in weights if name.startswith(_CMP_HEAD)}
    return {heads.get(name, name): each for name, each in weights.items()} | _beit_buffers(size)


def write_published(network: PairNetwork, path: Path) -> None:
    """Writes `to_published` to a file: `.safetensors`, or `.pth` with the weights under "model", as the published code
    reads them. UserError for another ending, or where the file cannot be written."""
    from safetensors.torch import save

    weights = {name: each.detach().cpu().contiguous() for name, each in sorted(to_published(network).items())}
    if path.suffix == ".safetensors":
        content = save({name: each.clone() for name, each in weights.items()}, metadata={"format": "pt"})
    elif path.suffix == ".pth":
        buffer = io.BytesIO()
        torch.save({"model": weights}, buffer)
        content = buffer.getvalue()
    else:
        raise UserError(f"{path}: weights are written as .safetensors or .pth")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from None


def read_weights(network: PairNetwork, weights: Mapping[str, Tensor], source: str = "weights") -> Loaded:
    """Fills the network from weights under published names; what they do not have stays as it is.

    source: what to call them in errors. UserError where a shape differs, where layers have no place in the network, or
    where no name fits.
    """
    text_layers = network.options.size.text.text_layers
    own = network.state_dict()
    taken: dict[str, Tensor] = {}
    used = set()
    for name, tensor in own.items():
        published = published_name(name, text_layers)
        if published not in weights:
            continue
        found = weights[published]
        fused = _FUSED.match(name)
        if fused:
            if found.ndim == 0 or len(found) != 3 * len(tensor):
                raise _other_shape(source, published, found, (3 * len(tensor), *tensor.shape[1:]))
            found = found.chunk(3)["qkv".index(fused["swin"] or fused["beit"])]
        if found.numel() == 1 and tensor.numel() == 1:
            found = found.reshape(tensor.shape)
        if found.shape != tensor.shape:
            raise _other_shape(source, published, found, tensor.shape)
        taken[name] = found.to(tensor.dtype)
        used.add(published)
    if not taken:
        raise UserError(f"{source}: none of its {len(weights)} names is a weight of this network")
    for published, target in ((_DECODER_WEIGHT, "language_head.decoder"), (_DECODER_BIAS, "language_head.bias")):
        if published in weights and target in own and weights[published].shape == own[target].shape:
            taken[target] = weights[published].to(own[target].dtype)
            used.add(published)
    if "language_head.decoder" in own and _DECODER_WEIGHT not in weights and _EMBEDDING in taken:
        taken["language_head.decoder"] = taken[_EMBEDDING]
    ignored = sorted(name for name in weights if name not in used and not _is_structural(name))
    layers = ("vision_encoder.layers.", "vision_encoder.blocks.", "text_encoder.bert.encoder.")
    spare = [name for name in ignored if name.startswith(layers)]
    if spare:
        raise UserError(f"{source}: {spare[0]} has no place in a network of size {network.options.size.name!r}")
    network.load_state_dict(taken, strict=False)
    return Loaded(tuple(sorted(taken)), tuple(sorted(set(own) - set(taken))), tuple(ignored))


_EMBEDDING = "text_encoder.bert.embeddings.word_embeddings.weight"


def _is_structural(name: str) -> bool:
    return bool(_STRUCTURAL.search(name)) or name == _DECODER_WEIGHT


def _other_shape(source: str, name: str, found: Tensor, wanted: Iterable[int]) -> UserError:
    return UserError(
        f"{source}: {name} has shape {list(found.shape)}, this network needs {list(wanted)}: it is a checkpoint of "
        "another model or size"
    )


def read_checkpoint(path: Path) -> dict[str, Tensor]:
    """The tensors of a published file by name: .safetensors, or torch's format, bare or under "model".

    UserError where it is missing, damaged, holds anything but tensors and plain values, or no tensors.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file; put the published weights there")
    if path.suffix == ".safetensors":
        return read_tensors(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"{path}: cannot be read as weights ({reason}): it is damaged, or holds more than tensors and plain "
            "values, which is never run here; ask its authors for a file of tensors"
        ) from error
    weights = content.get("model", content) if isinstance(content, Mapping) else None
    tensors = {str(name): each for name, each in (weights or {}).items() if isinstance(each, Tensor)}
    if not tensors:
        raise UserError(f'{path}: holds no weights, neither by name nor under "model"')
    return tensors


def load_published(network: PairNetwork, path: Path) -> Loaded:
    """Reads `cmp.pth`, `seda.pth`, X-VLM's, APTM's or X2-VLM's weights into the network.

    Of X-VLM's 16M weights the encoders, the language head, the matching head and the temperature are taken; pose
    modules, factor modules and the projections stay as they were. Of X2-VLM's the projections are taken as well, what
    is for videos, boxes and masked images is not. UserError as `read_checkpoint` and `read_weights`.
    """
    text_layers = network.options.size.text.text_layers
    return read_weights(network, as_published(read_checkpoint(path), text_layers), str(path))


def as_published(weights: Mapping[str, Tensor], text_layers: int) -> dict[str, Tensor]:
    """Weights with the text encoder's names as CMP has them: APTM's miss the "bert." in the middle, and X2-VLM's may
    have the cross encoder's layers, and the language head, under names of their own."""
    renamed = {}
    for name, tensor in weights.items():
        apart = _APART.match(name)
        if apart:
            name = f"text_encoder.bert.encoder.layer.{int(apart[1]) + text_layers}.{name[apart.end() :]}"
        elif name.startswith(("mlm_head.", _LIGHTAIR_HEAD)):
            name = f"{_CMP_HEAD}{name.partition('mlm_head.')[2]}"
        rest = name.removeprefix(_TEXT_PREFIX)
        if rest != name and rest.startswith(("embeddings.", "encoder.")):
            name = f"{_TEXT_PREFIX}bert.{rest}"
        renamed[name] = tensor
    return renamed


def load_swin(network: PairNetwork, path: Path) -> Loaded:
    """Reads a file of Microsoft's Swin into the image encoder; its classifier is dropped."""
    weights = {SWIN_PREFIX + name: each for name, each in read_checkpoint(path).items() if not name.startswith("head.")}
    return read_weights(network, weights, str(path))


def load_bert(network: PairNetwork, path: Path) -> Loaded:
    """Reads the first layers of a BERT by transformers' names into the text encoder (and no others).

    The rest of its layers, its pooler and its head are dropped. For a network whose text side is as wide as that BERT.
    """
    last = network.options.size.text.text_layers
    weights = {}
    for name, tensor in read_checkpoint(path).items():
        published = "text_encoder.bert." + name.removeprefix("bert.")
        layer = _TEXT_LAYER.match(published)
        if published.startswith("text_encoder.bert.embeddings.") or (layer and int(layer[1]) < last):
            weights[published] = tensor
    return read_weights(network, weights, str(path))


def _swin_buffers(size: ImageSize) -> dict[str, Tensor]:
    """The index tables and window masks that Microsoft's Swin stores with its weights."""
    window = size.window
    axis = torch.arange(window)
    rows, columns = (each.flatten() for each in torch.meshgrid(axis, axis, indexing="ij"))
    down = rows[:, None] - rows[None, :] + window - 1
    across = columns[:, None] - columns[None, :] + window - 1
    index = down * (2 * window - 1) + across
    buffers: dict[str, Tensor] = {}
    side = size.image_size // size.patch_size
    for stage, depth in enumerate(size.depths):
        for block in range(depth):
            prefix = f"{SWIN_PREFIX}layers.{stage}.blocks.{block}"
            buffers[f"{prefix}.attn.relative_position_index"] = index.clone()
            if block % 2 and side > window:
                buffers[f"{prefix}.attn_mask"] = _window_mask(side, window)
        side //= 2
    return buffers


def _beit_buffers(size: BeitSize) -> dict[str, Tensor]:
    """The index tables that BEiT stores with its weights."""
    from transformers.models.beit.modeling_beit import BeitRelativePositionBias

    side = size.image_size // size.patch_size
    index = BeitRelativePositionBias.generate_relative_position_index((side, side))
    return {f"{SWIN_PREFIX}blocks.{block}.attn.relative_position_index": index.clone() for block in range(size.layers)}


def _window_mask(side: int, window: int) -> Tensor:
    """float (windows, window^2, window^2): -100 between tokens that a shifted window brings together from apart."""
    place = torch.arange(side)
    region = (place >= side - window).long() + (place >= side - window // 2).long()
    regions = (3 * region[:, None] + region[None, :]).unflatten(0, (-1, window)).unflatten(2, (-1, window))
    flat = regions.transpose(1, 2).reshape(-1, window * window)
    return torch.where(flat[:, None, :] == flat[:, :, None], 0.0, -100.0)
