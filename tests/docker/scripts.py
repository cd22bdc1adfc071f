"""The scripts of docker/ as modules and as commands, and Dockerfiles as instructions."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"


def module(name: str) -> ModuleType:
    """A script of docker/, which is no package: pip's `docker` has that name."""
    spec = importlib.util.spec_from_file_location(f"docker_{name}", DOCKER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


def instructions(dockerfile: str) -> list[tuple[str, str]]:
    """Each instruction and what follows it, lines that go on joined, comments left out."""
    text = re.sub(r"^\s*#.*\n", "", dockerfile, flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    return [(line.split()[0].upper(), line.split(maxsplit=1)[1].strip()) for line in lines if line.strip()]
