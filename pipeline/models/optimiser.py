"""Parameter groups, AdamW, and how the learning rate runs."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from pipeline.models.config import BeitSize, OptimiserOptions
from pipeline.models.dual import DualEncoder
from pipeline.models.network import PairNetwork
from pipeline.models.published import published_name

_NO_DECAY = ("bias", "LayerNorm.weight", "norm.weight", "norm1.weight", "norm2.weight")
"""A published name that contains one of these is not decayed; other norms and the temperature are."""
_HEADS = (
    *("vision_proj.", "text_proj.", "itm_head.", "text_encoder.cls.", "pose_block.", "pose_conv."),
    *("decoupled_linear_", "modality_proj_", "image_experts.", "text_experts.", "offload.", "gate."),
)
_NEW = (
    *("action_mapper.", "action_mapper_projected.", "nsc.", "pose_block.", "pose_conv."),
    *("image_experts.", "text_experts.", "offload.", "gate."),
)
"""What no checkpoint of X2-VLM has."""
_LAST = 2
"""How many of the last Swin stages, text layers and cross layers learn at the multiple."""


def parameter_groups(network: PairNetwork, options: OptimiserOptions) -> list[dict[str, Any]]:
    """AdamW's groups: decayed and not at `lr`, decayed and not at `lr_multiple` times it.

    At the multiple are the last two Swin stages, the last two layers of the text and of the cross encoder, and all
    heads, projections, pose and factor modules but the factors' cross-attention; with X2-VLM's encoders all that X2-VLM
    does not have. Each group has "names" beside
    "params", by this project's names.
    """
    groups: list[dict[str, Any]] = [
        {"params": [], "names": [], "lr": options.lr * multiple, "weight_decay": decay}
        for multiple in (1.0, options.lr_multiple)
        for decay in (options.weight_decay, 0.0)
    ]
    text_layers = network.options.size.text.text_layers
    for name, parameter in network.named_parameters():
        if not parameter.requires_grad:
            continue
        published = published_name(name, text_layers)
        undecayed = any(part in published for part in _NO_DECAY)
        group = groups[2 * _is_multiplied(published, network) + undecayed]
        group["params"].append(parameter)
        group["names"].append(name)
    return [group for group in groups if group["params"]]


def _is_multiplied(published: str, network: PairNetwork) -> bool:
    size = network.options.size
    if isinstance(size.image, BeitSize):  # LightAIR: what its start, X2-VLM, does not have
        return published.startswith(_NEW)
    stages, text = len(size.image.depths), size.text
    layers = [
        *range(max(text.text_layers - _LAST, 0), text.text_layers),
        *range(text.text_layers + max(text.cross_layers - _LAST, 0), text.text_layers + text.cross_layers),
    ]
    prefixes = (
        *_HEADS,
        *(f"vision_encoder.layers.{stage}." for stage in range(max(stages - _LAST, 0), stages)),
        *(f"text_encoder.bert.encoder.layer.{layer}." for layer in layers),
    )
    return published.startswith(prefixes)


def adamw(network: PairNetwork | DualEncoder, options: OptimiserOptions) -> torch.optim.AdamW:
    """AdamW over `parameter_groups`, or those of a dual encoder."""
    if isinstance(network, DualEncoder):
        groups = network.parameter_groups(options)
    else:
        groups = parameter_groups(network, options)
    return torch.optim.AdamW(groups, lr=options.lr, betas=options.betas, eps=options.eps)


def warmup_steps(options: OptimiserOptions, total_steps: int) -> int:
    """How many steps warm up: `warmup` itself, or as a share of all steps where it is below 1."""
    return int(options.warmup * total_steps) if options.warmup < 1 else int(options.warmup)


def lr_factor(options: OptimiserOptions, step: int, total_steps: int) -> float:
    """The factor on each group's learning rate at a step counted from 0.

    From 0 to 1 over the W warm-up steps, then falling in a straight line over T steps in all: to 0 (`linear`), to
    `lr_end` (`linear_floor`), or to 0 and halved from 4 W on and a fifth from 7 W on (`step`, the published code).
    """
    warmup = warmup_steps(options, total_steps)
    if step < warmup:
        return step / max(1, warmup)
    falling = max(0.0, (total_steps - step) / max(1, total_steps - warmup))
    if options.schedule == "linear":
        return falling
    if options.schedule == "linear_floor":
        floor = options.lr_end / options.lr
        return floor + (1 - floor) * falling
    return falling * (1.0 if step < 4 * warmup else 0.5 if step < 7 * warmup else 0.2)


def parameter_count(network: nn.Module) -> int:
    """How many numbers the network learns; a tied matrix counts once."""
    return sum(parameter.numel() for parameter in network.parameters())
