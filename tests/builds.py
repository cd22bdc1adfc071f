"""Small whole builds through the real command line, for the tests that need one."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

TINY = {
    "footage.train_clips": "4",
    "footage.val_clips": "6",
    "frames.clips_per_shard": "3",
    "generate.images_per_caption": "2",
    "batch_records": "8",
}
"""Overrides that make the demo profile small enough for a test, with two shards of either kind."""


def build_command(folder: Path, overrides: Mapping[str, str], module: str = "pipeline.build") -> list[str]:
    """The command that builds into `folder` alone: its work and out folders, and the overrides."""
    settings = {"work": str(folder / "work"), "out": str(folder / "out"), **overrides}
    flags = [f"--set={key}={value}" for key, value in settings.items()]
    return [sys.executable, "-m", module, *flags]


def run_command(command: list[str], hash_seed: str = "0", timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """Run a command from the project's root with another hash seed, as a person would from a shell."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout)


def digests(folder: Path, pattern: str = "**/*") -> dict[str, str]:
    """sha256 of every file below a folder by its relative path."""
    files = sorted(path for path in folder.glob(pattern) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
