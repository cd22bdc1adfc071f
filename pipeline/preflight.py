"""What a build needs and has not got, found in the first seconds: packages, weights, GPU, the OOPS! folder.

Imports nothing heavy and starts no engine, so that a machine that cannot do a build is told at once.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.backends import registry
from pipeline.core.errors import UserError
from pipeline.core.profile import DEFAULT_PROFILE, Profile
from pipeline.delivery import check_out


@dataclass(frozen=True)
class Missing:
    """One thing a build lacks: which part of the profile asks for it, what it is, and what to do or use instead."""

    section: str
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.section}: {self.what}; {self.remedy}"


def missing_pieces(profile: Profile) -> list[Missing]:
    """Everything the profile's build lacks on this machine; empty where it can start."""
    found = _missing_folder(profile) + _taken_out(profile)
    engines = {section: registry.entry(section, getattr(profile, section).backend) for section in registry.SECTION_JOBS}
    gpu = gpu_memory_gib() if any(entry.gpu_gib is not None for entry in engines.values()) else 0.0
    for section, entry in engines.items():
        found += _missing_for_engine(section, entry, getattr(profile, section).settings, gpu)
    return found


def _missing_folder(profile: Profile) -> list[Missing]:
    if profile.oops.root is None:
        if profile.footage is None:
            return [Missing("oops", "no OOPS! folder is named", "give --set oops.root=FOLDER, or use --profile demo")]
        return []
    needed = ("oops_video", "annotations/transition_times.json", "svos")
    lacking = [name for name in needed if not (profile.oops.root / name).exists()]
    if not profile.oops.root.is_dir():
        what = f"the OOPS! folder {profile.oops.root} is not there"
    elif lacking:
        what = f"the OOPS! folder {profile.oops.root} has no {', no '.join(lacking)}"
    else:
        return []
    return [Missing("oops", what, "give --set oops.root=FOLDER, or use --profile demo, which films its own")]


def _taken_out(profile: Profile) -> list[Missing]:
    # The dataset is written last: hours of work should not end at a folder that may not be replaced.
    try:
        check_out(profile.out.resolve())
    except UserError as error:
        what, _, remedy = str(error).removeprefix("out: ").partition("; ")
        return [Missing("out", what, remedy)]
    return []


def _missing_for_engine(
    section: str, entry: registry.BackendEntry, settings: Mapping[str, Any], gpu: float
) -> list[Missing]:
    # The settings are those of the engine that is missing; the other one would refuse them, or be recorded with them.
    other = f"--set {section}.backend={entry.instead}" + (f" --set {section}.settings={{}}" if settings else "")
    instead = f"or use {other}" if entry.instead else ""
    found = [
        Missing(section, f"'{entry.name}' has no setting '{key}'", f"it has {', '.join(entry.settings) or 'none'}")
        for key in registry.unknown_settings(section, entry.name, settings)
    ]
    if entry.target is None:
        what = f"the '{entry.name}' {entry.job} is not part of this version"
        found.append(Missing(section, what, f"use {other}"))
    for package, remedy in entry.packages.items():
        if importlib.util.find_spec(package) is None:
            found.append(Missing(section, f"the package {package} is not installed", f"{remedy} {instead}".strip()))
    if entry.gpu_gib is not None and gpu < entry.gpu_gib:
        has = f"there are {gpu:.0f} GiB" if gpu else "there is none"
        what = f"'{entry.name}' wants a GPU with {entry.gpu_gib:g} GiB, {has}"
        found.append(Missing(section, what, f"run it on such a machine {instead}".strip()))
    if entry.weights is not None:
        model = str(settings.get(entry.weights, ""))
        if not weights_present(model):
            what = f"the weights '{model}' are not on this machine"
            folder = f"name their folder, --set {section}.settings.{entry.weights}=FOLDER,"
            fetch = f"hf download {model}" if "/" in model else folder
            found.append(Missing(section, what, f"{fetch} {instead}".strip()))
    return found


def weights_present(model: str) -> bool:
    """Whether weights are here: a folder with a config, or a model of the Hugging Face cache."""
    if not model:
        return False
    if (Path(model) / "config.json").exists() or (Path(model) / "model_index.json").exists():
        return True
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    hub = Path(os.environ.get("HF_HUB_CACHE", home / "hub"))
    snapshots = hub / f"models--{model.replace('/', '--')}" / "snapshots"
    return snapshots.is_dir() and any(snapshots.glob("*/*.json"))


def gpu_memory_gib() -> float:
    """The memory of the largest NVIDIA GPU in GiB, 0 where there is none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return 0.0
    query = [program, "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=4, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return 0.0
    return max((float(line) / 1024 for line in answer.split() if line.replace(".", "").isdigit()), default=0.0)


def explain(profile_name: str, missing: list[Missing]) -> str:
    """The list of missing pieces for a person to read."""
    lines = "\n".join(f"  * {piece}" for piece in missing)
    told = f"the profile '{profile_name}' cannot run on this machine; it lacks:\n{lines}"
    return told if profile_name == DEFAULT_PROFILE else f"{told}\nor use the profile {DEFAULT_PROFILE}"
