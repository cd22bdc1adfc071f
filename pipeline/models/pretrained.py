"""Saving a network to a folder and reading it back: config.json, model.safetensors and a model card."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from torch import Tensor, nn

from pipeline.core.errors import UserError
from pipeline.core.store import write_atomically
from pipeline.models.config import NetworkOptions, PaperRow, Recipe

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
CARD_FILE = "README.md"

_N = TypeVar("_N", bound="Pretrained")


class Pretrained(nn.Module):
    """A network that is built from `options` alone and can be saved and read back."""

    options_type: type[NetworkOptions]
    options: NetworkOptions

    def save_pretrained(self, folder: Path | str, recipe: Recipe | None = None, notes: Sequence[str] = ()) -> None:
        """Writes config.json, model.safetensors and README.md into a folder, each whole or not at all.

        Weights go in as float32, on whatever device they are. recipe, notes: what the card says of the training. The
        same network gives the same bytes.
        """
        from safetensors.torch import save

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        weights = {name: each.detach().cpu().contiguous() for name, each in sorted(self.state_dict().items())}
        floats = {name: each.float() if each.is_floating_point() else each for name, each in weights.items()}
        write_atomically(folder / WEIGHTS_FILE, save(floats, metadata={"format": "pt"}))
        config = {"architectures": [type(self).__name__], **self.options.model_dump(mode="json")}
        write_atomically(folder / CONFIG_FILE, (json.dumps(config, indent=2) + "\n").encode())
        write_atomically(folder / CARD_FILE, model_card(self, recipe, notes).encode())

    @classmethod
    def from_pretrained(cls: type[_N], folder: Path | str) -> _N:
        """The network saved in a folder, on the CPU, in evaluation mode.

        UserError where the folder misses a file, or holds another model or weights that do not fit its config.
        """
        folder = Path(folder)
        options = cls.options_type.model_validate(read_config(folder, cls))
        network = cls(options)  # type: ignore[call-arg]
        network.fill(read_tensors(folder / WEIGHTS_FILE), str(folder / WEIGHTS_FILE))
        return network.eval()

    def fill(self, weights: dict[str, Tensor], source: str) -> None:
        """Takes all weights by this project's names; UserError naming `source` unless names and shapes are the same."""
        own = self.state_dict()
        for title, names in (("misses", set(own) - set(weights)), ("has no place for", set(weights) - set(own))):
            if names:
                raise UserError(f"{source}: {title} {min(names)} (and {len(names) - 1} more): it is of another model")
        for name, tensor in own.items():
            if weights[name].shape != tensor.shape:
                raise UserError(
                    f"{source}: {name} has shape {list(weights[name].shape)}, this network needs {list(tensor.shape)}"
                )
        self.load_state_dict(weights)


def read_config(folder: Path, wanted: type[Pretrained]) -> dict[str, Any]:
    """The checked options in a folder's config.json; UserError where they are not those of the wanted network."""
    config = saved_config(folder)
    config.pop("architectures", None)
    try:
        wanted.options_type.model_validate(config)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(each) for each in first["loc"])
        raise UserError(f"{folder / CONFIG_FILE}: {place}: {first['msg']} (for a {wanted.__name__})") from error
    return config


def saved_config(folder: Path) -> dict[str, Any]:
    """A folder's config.json; UserError where there is none."""
    path = folder / CONFIG_FILE
    if not path.is_file():
        raise UserError(f"{path}: no such file; name a folder that save_pretrained wrote")
    try:
        config = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: is no JSON ({error})") from error
    if not isinstance(config, dict):
        raise UserError(f"{path}: holds no options by name")
    return config


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors file by name; UserError where it is missing or damaged."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise UserError(f"{path}: no such file; name a folder that save_pretrained wrote")
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path}: cannot be read as safetensors ({error})") from error


def model_card(network: Pretrained, recipe: Recipe | None, notes: Sequence[str] = ()) -> str:
    """The README.md of a saved network: what it is, how many numbers it learns, how to load it."""
    name, size = type(network).__name__, network.options.size
    parts = [
        f"| {part} | {sum(each.numel() for each in child.parameters()):,} |"
        for part, child in network.named_children()
        if any(True for _ in child.parameters())
    ]
    total = sum(each.numel() for each in network.parameters())
    title = recipe.title if recipe else name
    lines = [
        "---",
        "license: apache-2.0",
        "library_name: pytorch",
        "tags: [text-based-person-anomaly-search, text-to-image-retrieval]",
        "---",
        "",
        f"# {title}",
        "",
        f"`{name}` of size `{size.name}`: images of {size.image.image_size} x {size.image.image_size} pixels, texts of "
        f"up to {size.max_tokens} tokens of the bert-base-uncased vocabulary, features of {size.feature_width}.",
        "",
    ]
    if recipe:
        lines += [f"Recipe `{recipe.name}`, {recipe.epochs} epochs.", ""]
        lines += published_table(recipe.rows)
    lines += [f"- {note}" for note in notes]
    lines += [
        *([""] if notes else []),
        "## Parts",
        "",
        "| part | parameters |",
        "|---|---|",
        *parts,
        f"| all, shared ones once | {total:,} |",
        "",
        "## Loading",
        "",
        "```python",
        f"from pipeline.models.{name.lower()} import {name}",
        "",
        f'network = {name}.from_pretrained("FOLDER")',
        "```",
        "",
    ]
    return "\n".join(lines)


def published_table(rows: Sequence[PaperRow]) -> list[str]:
    """The published numbers that a recipe stands for, one Markdown table a generation, since these start from other
    weights."""
    lines: list[str] = []
    for generation in sorted({row.generation for row in rows}):
        lines += [
            f"Published, generation {generation}:",
            "",
            "| train pairs | R@1 | R@5 | R@10 | mAP | |",
            "|---|---|---|---|---|---|",
        ]
        for row in rows:
            if row.generation == generation:
                numbers = ["" if each is None else f"{each:.2f}" for each in (row.r1, row.r5, row.r10, row.map)]
                lines.append("| " + " | ".join([row.train_pairs, *numbers, row.note]) + " |")
        lines.append("")
    return lines
