"""A diffusion pipeline whose numbers do not fit into float16, for the tests of what is done about it."""

from __future__ import annotations

import shutil
from pathlib import Path


def overflowing(folder: Path, target: Path) -> Path:
    """A copy of a tiny pipeline whose VAE holds numbers that overflow in float16, and that a norm takes out again."""
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(folder, target)
    path = target / "vae" / "diffusion_pytorch_model.safetensors"
    weights = load_file(path)
    for name in ("decoder.conv_in.weight", "decoder.conv_in.bias"):
        weights[name] = weights[name] * 1e5
        assert torch.isfinite(weights[name].half()).all()  # the weights fit; what they are multiplied with does not
    save_file(weights, path, {"format": "pt"})
    return target
