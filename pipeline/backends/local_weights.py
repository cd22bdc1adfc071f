"""Models of transformers from this machine alone: no network, no pickle, no code out of a checkpoint."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.core.errors import UserError, one_line

DTYPES = ("float32", "float16", "bfloat16")

_COMMIT = re.compile(r"[0-9a-f]{40}")
# What decides an answer: the weights, the model's shape, its tokenizer with the chat template, its image processor.
_DECIDING = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model")


def device_of(setting: str) -> str:
    """The device that a setting means: `auto` is the GPU where there is one, else the CPU."""
    if setting != "auto":
        return setting
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def model_folder(engine: str, model: str, revision: str | None) -> Path:
    """The folder of the model: `model` itself, or its snapshot in the Hugging Face cache. Nothing is downloaded.

    revision: the commit (or branch) of a model of the hub; None for the one that the cache calls main. Raises UserError
    where the model is not here, or is without weights in safetensors (pickled ones are not read).
    """
    folder = Path(model)
    if folder.is_dir():
        if revision is not None:
            raise UserError(f"'{engine}' setting revision is of a model of the hub; {model} is a folder, leave it out")
    else:
        folder = _snapshot(engine, model, revision)
    if not (folder / "config.json").is_file():
        raise UserError(f"'{engine}': the folder {model} holds no model, it has no config.json")
    if not any(folder.glob("*.safetensors")):
        raise UserError(f"'{engine}': {model} has no weights in safetensors, and no others are read")
    return folder


def identity_of(folder: Path, model: str) -> str:
    """`model@commit` for a snapshot of the hub's cache, else `sha256-` and the digest of the files that decide."""
    if folder.parent.name == "snapshots" and _COMMIT.fullmatch(folder.name):
        hub_id = folder.parent.parent.name.removeprefix("models--").replace("--", "/")
        return f"{hub_id}@{folder.name}"
    files = sorted({path for pattern in _DECIDING for path in folder.glob(pattern) if path.is_file()})
    stamps = tuple((path, path.stat().st_size, path.stat().st_mtime_ns) for path in files)
    return f"sha256-{_digest(stamps)[:16]}"


def config_of(folder: Path) -> Mapping[str, Any]:
    """The model's config.json. Raises UserError where it is not readable."""
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / 'config.json'} cannot be read: {error}") from None
    if not isinstance(config, dict):
        raise UserError(f"{folder / 'config.json'} is not a model's configuration")
    return config


def sees_images(config: Mapping[str, Any]) -> bool:
    """Whether the model of that configuration takes images."""
    return "vision_config" in config


def installed_version(package: str) -> str:
    """The package's version, `none` where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def load_pretrained(kind: Any, model: str, setting: str, **options: Any) -> Any:
    """What `kind.from_pretrained` gives for a folder, or for a hub id that is in the cache.

    setting: the dotted place in the profile that names it, for the message. Raises UserError where it cannot be loaded.
    """
    from safetensors import SafetensorError

    try:
        return kind.from_pretrained(model, local_files_only=True, **options)
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        raise UserError(
            f"{setting}: '{model}' cannot be loaded ({one_line(error)}); name a folder, or hf download it"
        ) from None


def load_model(
    kind: Any, model: str, setting: str, device: str, dtype: str, revision: str | None = None, **options: Any
) -> Any:
    """A network ready to be asked: weights from safetensors alone, on its device (not `auto`), not in training.

    Raises UserError as `load_pretrained` does, and where the device is not there or too small.
    """
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    loaded = load_pretrained(
        kind, model, setting, revision=revision or "main", use_safetensors=True, dtype=getattr(torch, dtype), **options
    )
    try:
        return loaded.eval().to(device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"{setting}: '{model}' cannot go to the device '{device}' ({one_line(error)})") from None


def text_setting(settings: Mapping[str, Any], key: str, where: str, default: str | None = None) -> str:
    """A setting that is a text. Raises UserError where it is missing or none."""
    value = settings.get(key, default)
    if not isinstance(value, str) or not value:
        raise UserError(f"{where}.{key}: " + ("is missing" if value is None else f"{value!r} is not a text"))
    return value


def choice_setting(settings: Mapping[str, Any], key: str, where: str, choices: tuple[str, ...], default: str) -> str:
    """A setting that is one of a few words. Raises UserError naming them."""
    value = settings.get(key, default)
    if value not in choices:
        raise UserError(f"{where}.{key}: {value!r} is none of {', '.join(choices)}")
    return value


def count_setting(settings: Mapping[str, Any], key: str, where: str, default: int, least: int = 1) -> int:
    """A setting that is a whole number. Raises UserError where it is none, or too small."""
    value = settings.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UserError(f"{where}.{key}: {value!r} is not a whole number of at least {least}")
    return value


def number_setting(
    settings: Mapping[str, Any], key: str, where: str, default: float, least: float = 0.0, most: float = float("inf")
) -> float:
    """A setting that is a number within bounds. Raises UserError where it is none, or outside."""
    value = settings.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise UserError(f"{where}.{key}: {value!r} is not a number from {least:g} to {most:g}")
    return float(value)


def _snapshot(engine: str, model: str, revision: str | None) -> Path:
    import huggingface_hub

    try:
        return Path(huggingface_hub.snapshot_download(model, revision=revision, local_files_only=True))
    except (OSError, ValueError):
        at = f" --revision {revision}" if revision else ""
        raise UserError(
            f"'{engine}': the weights '{model}' are not on this machine; name their folder, or: hf download {model}{at}"
        ) from None


# Gigabytes are read once a process; a file that has changed has another size or time.
@functools.lru_cache(maxsize=8)
def _digest(stamps: tuple[tuple[Path, int, int], ...]) -> str:
    total = hashlib.sha256()
    for path, _, _ in stamps:
        with path.open("rb") as file:
            total.update(f"{path.name}\n{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return total.hexdigest()
