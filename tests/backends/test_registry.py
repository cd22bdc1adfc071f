"""The registry of engines: what each needs is known without loading it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.backends import registry
from pipeline.core.errors import UserError
from pipeline.core.profile import load_profile, profile_names


@pytest.mark.parametrize("found", [each for each in registry.ENTRIES if each.target], ids=lambda each: each.name)
def test_every_engine_with_code_gives_a_fingerprint_under_its_registered_name(
    found: registry.BackendEntry, tmp_path: Path
) -> None:
    section = next(name for name, job in registry.SECTION_JOBS.items() if job == found.job)
    settings = {"model": "none"} if found.name == "resnet50" else {}
    if found.name in registry.CHAT_SETTINGS:
        (tmp_path / "config.json").write_text("{}")
        (tmp_path / "model.safetensors").write_bytes(b"")
        settings = {"model": str(tmp_path)}
    fingerprint = registry.fingerprint(section, found.name, settings)
    assert fingerprint["name"] == found.name
    assert fingerprint["revision"]


def test_a_setting_that_the_engine_does_not_know_is_an_error_that_names_those_it_has() -> None:
    with pytest.raises(UserError, match="'blazepose' has no setting 'tyles'; it has tiles, turns"):
        registry.fingerprint("keypoints", "blazepose", {"tyles": False})


@pytest.mark.parametrize("name", profile_names())
def test_every_shipped_profile_names_engines_and_settings_that_there_are(name: str) -> None:
    profile = load_profile(name)
    for section in registry.SECTION_JOBS:
        chosen = getattr(profile, section)
        registry.entry(section, chosen.backend)
        assert registry.unknown_settings(section, chosen.backend, chosen.settings) == []


def test_an_engine_without_code_names_the_one_to_use_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    without = tuple(replace(each, target=None) if each.name == "diffusers" else each for each in registry.ENTRIES)
    monkeypatch.setattr(registry, "ENTRIES", without)
    with pytest.raises(UserError, match="not part of this version; use 'simulator' instead"):
        registry.engine_class("generate", "diffusers")


def test_fingerprints_of_the_demo_load_no_heavy_library() -> None:
    code = (
        "import sys\n"
        "from pipeline.backends import registry\n"
        "from pipeline.core.profile import load_profile\n"
        "profile = load_profile('demo')\n"
        "for section in registry.SECTION_JOBS:\n"
        "    chosen = getattr(profile, section)\n"
        "    registry.fingerprint(section, chosen.backend, chosen.settings)\n"
        "print([name for name in ('torch', 'mediapipe', 'pybullet', 'spacy', 'cv2') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
