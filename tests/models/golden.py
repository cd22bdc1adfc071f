"""Recorded numbers of the published networks, and the weights and inputs they were recorded with, made from names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from pipeline.models.batch import Batch, HardPairs, MaskedTokens, Tokens
from pipeline.models.cmp import CMP
from pipeline.models.config import SIZES, SedaOptions
from pipeline.models.network import PairNetwork
from pipeline.models.published import read_weights
from pipeline.models.recipes import changed, recipe_named, reproduce
from pipeline.models.seda import SeDA

FOLDER = Path(__file__).parents[1] / "golden"
SHORT_NAMES = {"appearance": "app", "action": "act", "background": "bg"}
_MASK = (1 << 64) - 1
_CHUNK = 1 << 22


@cache
def golden(name: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The plain values and the arrays of one recording."""
    return json.loads((FOLDER / f"{name}.json").read_text("utf-8")), load_file(FOLDER / f"{name}.safetensors")


def hash_of_name(name: str) -> int:
    """FNV-1a, 64 bits."""
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = ((value ^ byte) * 0x100000001B3) & _MASK
    return value


def signed(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """float64 in [-1, 1) by splitmix64 from a name, in C order."""
    count = int(np.prod(shape)) if shape else 1
    flat = np.empty(count, np.float64)
    start = np.uint64(hash_of_name(name))
    for begin in range(0, count, _CHUNK):
        step = np.arange(begin + 1, min(begin + _CHUNK, count) + 1, dtype=np.uint64)
        z = start + step * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
        flat[begin : begin + len(step)] = 2 * ((z >> np.uint64(40)) / 2.0**24) - 1
    return flat.reshape(shape)


def weight_of(name: str, shape: tuple[int, ...]) -> Tensor:
    """The weight that was recorded with, by its published name."""
    if name.endswith("num_batches_tracked"):
        return torch.zeros((), dtype=torch.long)
    if name == "temp":
        return torch.tensor(0.07)
    s = signed(name, shape)
    if name.endswith("running_mean"):
        s = 0.1 * s
    elif name.endswith("running_var"):
        s = 1 + 0.5 * s
    elif name.endswith("relative_position_bias_table"):
        s = 0.5 * s
    elif "embeddings.weight" in name:
        s = 0.1 * s
    elif len(shape) == 1:
        s = 1 + 0.2 * s if name.endswith(".weight") else 0.1 * s
    else:
        s = np.sqrt(3 / np.prod(shape[1:])) * s
    return torch.from_numpy(s.astype(np.float32))


def is_structural(name: str) -> bool:
    """Whether a published buffer follows from the shape alone."""
    return name.endswith(("relative_position_index", "attn_mask", "position_ids"))


def golden_weights(shapes: Mapping[str, list[int]]) -> dict[str, Tensor]:
    """All weights by published name, without structural buffers and the tied decoder."""
    tied = ("cls.predictions.decoder.weight", "cls.predictions.decoder.bias")
    return {
        name: weight_of(name, tuple(shape))
        for name, shape in shapes.items()
        if not is_structural(name) and not name.endswith(tied)
    }


def golden_options(name: str, **changes: Any) -> Any:
    """The options of a recording.

    The decoder is tied, since the recordings were made before the published code unties it.
    """
    values, _ = golden(name)
    options = reproduce(recipe_named(name.split("_")[0]), "published").model
    wanted = {"size": SIZES["tiny" if "tiny" in name else "paper"], "mlm.tie": True}
    if values["config"].get("use_ca"):
        wanted["stp.weighting"] = "cross_attention"
    return changed(options, {**wanted, **changes})


def golden_network(name: str, **changes: Any) -> PairNetwork:
    """The network of a recording, in evaluation mode, with its weights; options by dotted names changed."""
    values, _ = golden(name)
    options = golden_options(name, **changes)
    network = SeDA(options) if isinstance(options, SedaOptions) else CMP(options)
    loaded = read_weights(network, golden_weights(values["state_dict_shapes"]))
    assert not loaded.missing
    assert not loaded.ignored
    return network.eval()


def recorded_pictures(name: str, count: int) -> Tensor:
    """float32 (count, 3, 224, 224)."""
    return torch.from_numpy((1.5 * signed(name, (count, 3, 224, 224))).astype(np.float32))


def recorded_texts(name: str, lengths: list[int]) -> Tokens:
    """Texts of random ids between [CLS] and [SEP], padded to 56."""
    ids = torch.zeros(len(lengths), 56, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        words = np.floor(1000 + (signed(f"{name}:{row}", (56,)) + 1) / 2 * 29522).astype(np.int64)
        words[0], words[length - 1], words[length:] = 101, 102, 0
        ids[row], mask[row, :length] = torch.from_numpy(words), 1
    return Tokens(ids, mask)


def golden_batch(name: str) -> Batch:
    """The batch of a recording."""
    _, arrays = golden(name)
    count = len(arrays["in.ids"])
    pictures = {
        each: recorded_pictures(f"input:{each}", count) for each in ("image", "pose", "hard_image", "hard_pose")
    }
    parts = None
    if "in.dec_ids" in arrays:
        ids, masks = arrays["in.dec_ids"].split(count), arrays["in.dec_att"].split(count)
        parts = {factor: Tokens(ids[index], masks[index]) for index, factor in enumerate(SHORT_NAMES)}
    return Batch(
        images=pictures["image"],
        poses=pictures["pose"],
        captions=Tokens(arrays["in.ids"], arrays["in.att"]),
        identities=arrays["in.idx"],
        augmented=Tokens(arrays["in.ids_e"], arrays["in.att_e"]),
        masked=MaskedTokens(arrays["in.ids_m"], arrays["in.mp"], arrays["in.mid"]),
        hard=HardPairs(
            rows=torch.arange(count),
            images=pictures["hard_image"],
            poses=pictures["hard_pose"],
            captions=Tokens(arrays["in.ids_h"], arrays["in.att_h"]),
        ),
        parts=parts,
    )
