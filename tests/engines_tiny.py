"""One build of the profile engines-tiny through the real command line, shared by the tests that need its models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.builds import build_command, run_command

NAME = "engines-tiny"
_MODELS = {
    "generate": ("model", "sd"),
    "keypoints": ("model", "vitpose"),
    "similarity": ("model", "resnet"),
    "recaption": ("model", "qwen2-vl"),
    "attributes": ("model", "qwen2-vl"),
    "decompose": ("model", "qwen3"),
}


def models_in(folder: Path) -> dict[str, str]:
    """The overrides that make the profile look for its models, and write them, in a folder."""
    found = {f"{section}.settings.{key}": str(folder / name) for section, (key, name) in _MODELS.items()}
    return {
        **found,
        "keypoints.settings.detector": str(folder / "detector"),
        "tiny_models.folder": str(folder),
        "review.file": str(folder / "reviews.jsonl"),
    }


def command(folder: Path) -> list[str]:
    """The command that builds the profile into a folder alone."""
    return [*build_command(folder, models_in(folder / "tiny-models")), "--profile", NAME]


def the_build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the build, made by whoever asks first; `said.txt` in it is what the command printed."""
    folder = tmp_path_factory.getbasetemp() / NAME
    if not (folder / "said.txt").exists():
        done = run_command(command(folder), timeout=900)
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
        (folder / "said.txt").write_text(f"{done.stdout}\n{done.stderr}", "utf-8")
    return folder


def counts(folder: Path) -> dict[str, dict[str, int]]:
    """What each stage took, kept, rejected and failed, all its shards together."""
    found: dict[str, dict[str, int]] = {}
    for path in sorted((folder / "work" / NAME).glob("*/*/stage.json")):
        own = found.setdefault(path.parts[-3], {})
        for name, number in json.loads(path.read_text("utf-8"))["counts"].items():
            own[name] = own.get(name, 0) + number
    return found
