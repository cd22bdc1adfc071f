"""Every model that a build through the paper's engines asks for, tiny, in one folder: a profile's `tiny_models`.

What they make means nothing. They are made so that each filter of a build keeps some records and drops others.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pipeline.backends.tiny.diffusion import write_tiny_sd
from pipeline.backends.tiny.pose import write_tiny_detector, write_tiny_resnet, write_tiny_vitpose
from pipeline.backends.tiny.speech import write_speaking_qwen2_vl, write_splitting_qwen3
from pipeline.core.errors import UserError

REVISION = 1
"""Raised when other models come of the same seed."""
MARKER = "tiny-models.json"
"""Written last: the folder is whole."""
MODELS = ("sd", "detector", "vitpose", "resnet", "qwen2-vl", "qwen3")
"""The folders' names."""

# Of a picture's brightness, -1 (black) to 1: what most have, how far they are apart, and the grain over each.
_BRIGHTNESS, _SPREAD, _GRAIN = -0.45, 0.9, 0.03
# Of what the tiny UNet leaves in the latents' first channel: its mean over a picture (and how far those are apart) and
# its deviation within one, as the decoder gets them.
_MEAN, _MEAN_SPREAD, _DEVIATION = -0.5, 1.1, 17.6
_LARGE = 1000.0
"""Beside constants of this size the decoder's norms change nothing but the scale."""
_LIFT = 10.0
"""So far above zero SiLU passes on what it gets."""


def is_made(folder: Path, seed: int, prompts: Mapping[str, str]) -> bool:
    """Whether the models of that seed are in the folder, fitted to these prompts."""
    marker = folder / MARKER
    return marker.is_file() and marker.read_text("utf-8") == _marked(seed, prompts)


def write_tiny_models(
    folder: Path, seed: int, prompts: Mapping[str, str], progress: Callable[[int, int], None] | None = None
) -> None:
    """Write all models into the folder, in the place of what was there; half a minute of a CPU, one thread.

    prompts: the texts of `caption`, `action`, `anomaly`, `scene` and `decompose`, by name. progress: gets how many of
    how many models are done. The folder appears with the last of them. The same seed gives the same bytes on a machine.
    Raises UserError where the folder holds something else.
    """
    import torch
    from transformers.utils import logging

    if folder.exists() and not (folder / MARKER).is_file() and any(folder.iterdir()):
        raise UserError(f"tiny_models.folder: {folder} holds other files, which would be lost; name another folder")
    logging.set_verbosity_error()  # its advice about image processors, which are not used
    logging.disable_progress_bar()

    writers: dict[str, Callable[[Path], Any]] = {
        "sd": lambda place: write_drawing_sd(place, seed),
        "detector": lambda place: write_tiny_detector(place, seed),
        "vitpose": lambda place: write_tiny_vitpose(place, seed),
        "resnet": lambda place: write_tiny_resnet(place, seed),
        "qwen2-vl": lambda place: write_speaking_qwen2_vl(place, _without(prompts, "decompose"), seed),
        "qwen3": lambda place: write_splitting_qwen3(place, prompts["decompose"], seed),
    }
    assert tuple(writers) == MODELS
    building = folder.with_name(f".{folder.name}.{os.getpid()}.building")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for done, (name, write) in enumerate(writers.items(), start=1):
            write(building / name)
            if progress:
                progress(done, len(writers))
        (building / MARKER).write_text(_marked(seed, prompts), "utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        building.rename(folder)
    finally:
        torch.set_num_threads(threads)
        shutil.rmtree(building, ignore_errors=True)


def write_drawing_sd(folder: Path, seed: int = 0) -> Path:
    """A tiny StableDiffusionPipeline whose pictures are of a grain, and as bright as their noise has it: a third black.

    Returns the folder.
    """
    import torch
    from diffusers import AutoencoderKL

    write_tiny_sd(folder, seed)
    vae = AutoencoderKL.from_pretrained(folder / "vae", local_files_only=True)
    # One group: norms of a group a channel would take every picture's brightness away.
    config = {**dict(vae.config), "norm_num_groups": 1}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        vae = AutoencoderKL.from_config(config)
    _decode_by_the_mean(vae)
    vae.save_pretrained(folder / "vae", safe_serialization=True)
    return folder


def _decode_by_the_mean(vae: Any) -> None:
    """Set the decoder's weights so that a picture is as bright as the mean of its latents' first channel says.

    What no line here sets is zero, so that the residual blocks pass on what they get. The attention, which looks
    everywhere alike, puts the mean into channel 4; channels 0 to 2 are the latents themselves, for the grain.
    """
    import torch

    decoder, mean, half = vae.decoder, 4, vae.config.block_out_channels[0] // 2
    for parameter in (*decoder.parameters(), *vae.post_quant_conv.parameters()):
        parameter.requires_grad_(False).zero_()
    vae.post_quant_conv.weight[:, :, 0, 0] = torch.eye(4)
    decoder.conv_in.weight[:3, :3, 1, 1] = torch.eye(3)
    decoder.conv_in.bias[half : half * 3 // 2] = _LARGE
    decoder.conv_in.bias[half * 3 // 2 :] = -_LARGE
    scale = _LARGE / 2**0.5  # half of the channels are as large as that
    attention = decoder.mid_block.attentions[0]
    attention.group_norm.weight.fill_(1)
    attention.to_v.weight[mean, 0] = scale
    attention.to_out[0].weight[mean, mean] = 1
    for block in decoder.up_blocks:
        for upsampler in block.upsamplers or ():
            upsampler.conv.weight[:, :, 1, 1] = torch.eye(2 * half)
    decoder.conv_norm_out.weight[:3] = scale * _GRAIN / _DEVIATION
    decoder.conv_norm_out.weight[mean] = scale * _SPREAD / _MEAN_SPREAD
    decoder.conv_norm_out.bias.fill_(_LIFT)
    decoder.conv_out.weight[:, :3, 1, 1] = torch.eye(3)
    decoder.conv_out.weight[:, mean, 1, 1] = 1
    decoder.conv_out.bias.fill_(_BRIGHTNESS - 2 * _LIFT - _SPREAD * _MEAN / _MEAN_SPREAD)


def _without(prompts: Mapping[str, str], name: str) -> dict[str, str]:
    return {key: text for key, text in prompts.items() if key != name}


def _marked(seed: int, prompts: Mapping[str, str]) -> str:
    return json.dumps({"revision": REVISION, "seed": seed, "prompts": dict(prompts)}, sort_keys=True)
