"""What a build needs and has not got, found in the first seconds: packages and their versions, weights, GPUs, servers,
disk, the OOPS! folder.

Starts no engine, so that a machine that cannot do a build is told at once.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import json
import os
import shutil
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline import tiny_models
from pipeline.backends import chat, registry
from pipeline.backends.mmpose_pose import PYTHON
from pipeline.core.errors import UserError
from pipeline.core.gpus import visible_gpus
from pipeline.core.profile import DEFAULT_PROFILE, Profile
from pipeline.delivery import check_out
from pipeline.gpu_stages import wants_gpu

PROJECT = "pab-rebuild"
_PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
FILES = {
    "python": ("the interpreter of its environment", PYTHON, "sh docker/mmpose-env.sh makes it, or name it, "),
    "checkpoint": ("the checkpoint", None, "fetch it and name it, "),
}
"""Settings of engines that name a file: what it is, its default, what to do where it is not there."""
_GIB = 2**30
_SOLD_AS = 0.93
"""Of the memory that a GPU is sold with, what nvidia-smi may say it has: 22.5 GiB of an L4's 24."""


@dataclass(frozen=True)
class Missing:
    """One thing a build lacks: which part of the profile asks for it, what it is, and what to do or use instead."""

    section: str
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.section}: {self.what}; {self.remedy}"


def missing_pieces(profile: Profile, build: str | None = None) -> list[Missing]:
    """Everything the profile's build lacks on this machine; empty where it can start.

    build: the build's name, so that what it has written already need not fit on the disk once more.
    """
    found = _missing_folder(profile) + _taken_out(profile)
    sections = {section: getattr(profile, section) for section in registry.SECTION_JOBS}
    engines = {section: registry.entry(section, chosen.backend) for section, chosen in sections.items()}
    on_gpu = any(wants_gpu(entry, sections[section].settings) for section, entry in engines.items())
    gpu = gpu_memory_gib() if on_gpu else 0.0
    for section, entry in engines.items():
        written = {
            key: value
            for key, value in sections[section].settings.items()
            if isinstance(value, str) and tiny_models.will_be_written(profile, value)
        }
        found += _missing_for_engine(section, entry, sections[section].settings, gpu, written)
    return found + _missing_disk(profile, build, bool(found))


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
    section: str, entry: registry.BackendEntry, settings: Mapping[str, Any], gpu: float, written: Collection[str] = ()
) -> list[Missing]:
    """What one engine lacks. written: the settings that name weights which the build will write itself."""
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
        elif wrong := wrong_version(package):
            found.append(Missing(section, wrong, remedy))
    if wants_gpu(entry, settings) and gpu < _SOLD_AS * (entry.gpu_gib or 0.1):
        has = f"there are {gpu:.0f} GiB" if gpu else "there is none"
        size = f" with {entry.gpu_gib:g} GiB" if entry.gpu_gib else ""
        what = f"'{entry.name}' wants a GPU{size}, {has}"
        found.append(Missing(section, what, f"run it on such a machine {instead}".strip()))
    lacking = [*_weights(section, entry, settings, written), *_files(section, entry, settings)]
    if entry.name == "openai":
        own = {key: value for key, value in settings.items() if key in chat.setting_names(entry.name)}
        remedy = f"start the server, name another with --set {section}.settings.base_url=URL,"
        lacking += [(each, remedy) for each in _server_problems(json.dumps(own, sort_keys=True))]
    return found + [Missing(section, what, f"{remedy} {instead}".strip(" ,")) for what, remedy in lacking]


def _files(section: str, entry: registry.BackendEntry, settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The files that an engine's settings name and that are not there, and what to do."""
    for key, (what, default, remedy) in FILES.items():
        if key in entry.settings:
            path = str(settings.get(key) or default or "")
            if not Path(path).is_file():
                named = f"{what} {path} is not there" if path else f"no {what.removeprefix('the ')} is named"
                yield named, f"{remedy}--set {section}.settings.{key}=FILE,"


def _weights(
    section: str, entry: registry.BackendEntry, settings: Mapping[str, Any], written: Collection[str]
) -> Iterator[tuple[str, str]]:
    """What is wrong with each model that an engine loads, and how to get it."""
    if section == "generate" and "model" in written:
        return
    if section == "generate" and entry.name == "diffusers":
        from pipeline.backends.diffusers_images import check_weights, find_weights, settings_of

        try:
            chosen = settings_of(settings)
            folder, _ = find_weights(chosen.model, chosen.revision)
            if folder is not None:
                check_weights(folder, chosen.variant)
                return
            what = f"the weights '{chosen.model}' are not on this machine"
            yield what, _fetch(section, "model", chosen.model, chosen.revision)
        except UserError as error:
            what = str(error).removeprefix("generate: ")
            yield what, "get them anew, or name others, --set generate.settings.model=FOLDER,"
        return
    for key in ("model", "detector"):
        wanted = key == entry.weights or (key == "detector" and key in entry.settings and entry.weights is not None)
        if not wanted or key in written or (key == "detector" and settings.get("boxes") == "image"):
            continue
        model = str(settings.get(key) or "")
        revision = settings.get("detector_revision" if key == "detector" else "revision")
        if fault := weights_fault(model, None if revision is None else str(revision)):
            yield fault, _fetch(section, key, model, revision)


def _fetch(section: str, key: str, model: str, revision: Any) -> str:
    if "/" in model and not Path(model).is_dir():
        return f"hf download {model}" + (f" --revision {revision}" if revision else "")
    return f"name their folder, --set {section}.settings.{key}=FOLDER,"


@functools.lru_cache(maxsize=8)
def _server_problems(settings: str) -> tuple[str, ...]:
    # Two stages that ask one server are one question to it.
    return tuple(chat.problems("openai", json.loads(settings)))


@functools.lru_cache(maxsize=1)
def _pins() -> dict[str, str]:
    """The versions that this project asks for: canonical name of a distribution -> version specifier."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    if _PYPROJECT.is_file():
        project = tomllib.loads(_PYPROJECT.read_text("utf-8"))["project"]
        lines = [*project["dependencies"], *(line for own in project["optional-dependencies"].values() for line in own)]
    else:
        lines = importlib.metadata.requires(PROJECT) or []
    wanted = [Requirement(line) for line in lines]
    return {canonicalize_name(each.name): str(each.specifier) for each in wanted if each.specifier}


def wrong_version(package: str) -> str | None:
    """What is wrong with the version of an installed package, or None: it is one that pyproject.toml allows, or the
    package is not named there.
    """
    from packaging.specifiers import SpecifierSet
    from packaging.utils import canonicalize_name

    wanted = _pins().get(canonicalize_name(package))
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
    if wanted is None or SpecifierSet(wanted).contains(version, prereleases=True):
        return None
    return f"{package} {version} is installed, and {wanted} is wanted"


def weights_fault(model: str, revision: str | None = None) -> str | None:
    """What is wrong with the weights of a model, or None where they are here: a folder, or a model of the Hugging Face
    cache, with its configuration and whole safetensors. Nothing is downloaded and no file is read but small lists.
    """
    if not model:
        return "no weights are named"
    folder = Path(model)
    if not folder.is_dir():
        snapshot = _snapshot(model, revision)
        if snapshot is None:
            return f"the weights '{model}' are not on this machine" + (f" at revision {revision}" if revision else "")
        folder = snapshot
    if not any((folder / name).exists() for name in ("config.json", "model_index.json")):
        return f"the weights '{model}' have no config.json or model_index.json"
    for listed in folder.rglob("*.safetensors.index.json"):
        names = set(json.loads(listed.read_text("utf-8")).get("weight_map", {}).values())
        if lacking := sorted(name for name in names if not (listed.parent / name).exists()):
            return f"of the weights '{model}' {len(lacking)} files are not there, {lacking[0]} for one"
    tensors = list(folder.rglob("*.safetensors"))
    if not any(path.exists() for path in tensors):
        pickled = any(folder.rglob(f"*.{ending}") for ending in ("bin", "ckpt", "pt", "pth"))
        return f"the weights '{model}' hold no safetensors" + (", and pickled ones are not read" if pickled else "")
    return None


def _snapshot(model: str, revision: str | None) -> Path | None:
    """The folder of a model of the hub in the cache; the commit that `main` names where no revision is given."""
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    hub = Path(os.environ.get("HF_HUB_CACHE", home / "hub"))
    place = hub / f"models--{model.replace('/', '--')}"
    named = place / "refs" / (revision or "main")
    commit = named.read_text("utf-8").strip() if named.is_file() else revision
    folder = place / "snapshots" / commit if commit else None
    return folder if folder is not None and folder.is_dir() else None


def gpu_memory_gib() -> float:
    """The memory in GiB of the smallest GPU that this process may use, 0 where there is none: each gets its shards."""
    return min((gpu.memory_gib for gpu in visible_gpus()), default=0.0)


def _missing_disk(profile: Profile, build: str | None, cannot_start: bool) -> list[Missing]:
    # Where pieces are missing anyway, the plan of another machine's build is no news; and it reads the OOPS! folder.
    if cannot_start:
        return []
    from pipeline.workload import disk_left

    found = []
    for place, wanted in disk_left(profile, build).items():
        free = shutil.disk_usage(place).free
        if wanted > free:
            what = f"the build will write about {wanted / _GIB:,.1f} GiB to {place}, which has {free / _GIB:,.1f} free"
            found.append(Missing("work", what, "make room, or give --set work=FOLDER --set out=FOLDER elsewhere"))
    return found


def explain(profile_name: str, missing: list[Missing]) -> str:
    """The list of missing pieces for a person to read."""
    lines = "\n".join(f"  * {piece}" for piece in missing)
    told = f"the profile '{profile_name}' cannot run on this machine; it lacks:\n{lines}"
    return told if profile_name == DEFAULT_PROFILE else f"{told}\nor use the profile {DEFAULT_PROFILE}"
