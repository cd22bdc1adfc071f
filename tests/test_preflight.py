"""What a build lacks is found before it starts, named, and comes with what to do instead."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline import preflight
from pipeline.backends import registry
from pipeline.core.errors import UserError
from pipeline.core.profile import load_profile

ROOT = Path(__file__).resolve().parent.parent
HEAVY = (
    "torch",
    "transformers",
    "diffusers",
    "vllm",
    "mediapipe",
    "pybullet",
    "spacy",
    "cv2",
    "av",
    "decord",
    "pyarrow",
)


@pytest.fixture
def bare_machine(monkeypatch, tmp_path):
    """A machine with no GPU, no weights and no package that an engine asks for."""
    monkeypatch.setattr(preflight, "gpu_memory_gib", lambda: 0.0)
    monkeypatch.setattr(preflight.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "no-hub"))


@pytest.fixture
def able_machine(monkeypatch, tmp_path):
    """A machine that has all that the full profile asks for, and a version that holds all engines."""
    root = tmp_path / "oops"
    for folder in ("oops_video", "annotations", "svos"):
        (root / folder).mkdir(parents=True)
    (root / "annotations" / "transition_times.json").write_text("{}")
    monkeypatch.setattr(preflight, "gpu_memory_gib", lambda: 80.0)
    monkeypatch.setattr(preflight.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(
        registry, "ENTRIES", tuple(replace(each, target="somewhere:Engine") for each in registry.ENTRIES)
    )
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    profile = load_profile("full", [f"oops.root={root}", f"keypoints.settings.model={tmp_path / 'rtmpose'}"])
    (tmp_path / "rtmpose").mkdir()
    (tmp_path / "rtmpose" / "config.json").write_text("{}")
    for section in registry.SECTION_JOBS:
        model = str(getattr(profile, section).settings.get("model", ""))
        snapshot = tmp_path / "hub" / f"models--{model.replace('/', '--')}" / "snapshots" / "abc"
        snapshot.mkdir(parents=True, exist_ok=True)
        (snapshot / "config.json").write_text("{}")
    return profile


def whats(missing):
    return [(piece.section, piece.what) for piece in missing]


def test_the_full_profile_is_judged_in_under_five_seconds_with_nothing_heavy_imported():
    code = (
        "import json, sys; from pipeline import preflight; from pipeline.core.profile import load_profile; "
        "found = preflight.missing_pieces(load_profile('full', ['oops.root=./no-such-folder'])); "
        f"print(json.dumps([len(found), [name for name in {HEAVY!r} if name in sys.modules]]))"
    )
    start = time.monotonic()
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    seconds = time.monotonic() - start
    found, heavy = json.loads(run.stdout)
    assert found > 0
    assert heavy == []
    assert seconds < 5


def test_a_graphics_driver_that_hangs_does_not_hold_the_preflight_up(monkeypatch, tmp_path):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    start = time.monotonic()
    assert preflight.gpu_memory_gib() == 0
    assert time.monotonic() - start < 5


@pytest.mark.parametrize(
    ("answer", "gib"),
    [("81559\n24576\n", 81559 / 1024), ("", 0), ("No devices were found\n", 0), ("[N/A]\n", 0)],
)
def test_the_largest_gpu_of_the_machine_counts(monkeypatch, tmp_path, answer, gib):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{answer}END\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert preflight.gpu_memory_gib() == pytest.approx(gib)


def test_a_machine_that_has_everything_lacks_nothing(able_machine):
    assert preflight.missing_pieces(able_machine) == []


def test_the_demo_lacks_nothing_in_this_environment():
    assert preflight.missing_pieces(load_profile("demo")) == []


def test_a_package_that_is_not_installed_is_named_with_the_way_to_get_it(bare_machine):
    missing = preflight.missing_pieces(load_profile("demo"))
    named = {
        (piece.section, package) for piece in missing for package in ("mediapipe", "pybullet") if package in piece.what
    }
    assert named == {("keypoints", "mediapipe"), ("generate", "pybullet")}
    assert all("pip install" in piece.remedy for piece in missing)


def test_a_gpu_that_is_too_small_is_told_apart_from_none(able_machine, monkeypatch):
    monkeypatch.setattr(preflight, "gpu_memory_gib", lambda: 12.0)
    small = preflight.missing_pieces(able_machine)
    assert {piece.section for piece in small} == {"recaption", "attributes", "decompose"}
    assert all("there are 12 GiB" in piece.what and ".backend=" in piece.remedy for piece in small)
    monkeypatch.setattr(preflight, "gpu_memory_gib", lambda: 0.0)
    none = preflight.missing_pieces(able_machine)
    assert {piece.section for piece in none} == {"generate", "keypoints", "recaption", "attributes", "decompose"}
    assert all("there is none" in piece.what for piece in none)


def test_weights_that_are_not_here_are_named_with_the_way_to_get_them(able_machine, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "another-hub"))
    missing = {piece.section: piece for piece in preflight.missing_pieces(able_machine)}
    assert set(missing) == {"generate", "similarity", "recaption", "attributes", "decompose"}
    assert "SG161222/RealVisXL_V4.0" in missing["generate"].what
    assert "hf download SG161222/RealVisXL_V4.0" in missing["generate"].remedy
    assert "--set generate.backend=simulator" in missing["generate"].remedy


def test_weights_without_a_hub_name_are_not_to_be_downloaded(able_machine):
    profile = load_profile("full", [f"oops.root={able_machine.oops.root}"])
    (piece,) = preflight.missing_pieces(profile)
    assert piece.section == "keypoints"
    assert "hf download" not in piece.remedy
    assert "--set keypoints.settings.model=FOLDER" in piece.remedy


def test_an_engine_that_this_version_does_not_hold_is_named_with_the_one_to_use(able_machine, monkeypatch):
    without = tuple(replace(each, target=None) if each.name == "diffusers" else each for each in registry.ENTRIES)
    monkeypatch.setattr(registry, "ENTRIES", without)
    (piece,) = preflight.missing_pieces(able_machine)
    assert piece.section == "generate"
    assert piece.remedy == "use --set generate.backend=simulator --set generate.settings={}"


@pytest.mark.parametrize("part", ["oops_video", "svos", "annotations/transition_times.json"])
def test_a_part_that_the_oops_folder_lacks_is_named(able_machine, part):
    path = able_machine.oops.root / part
    path.unlink() if path.is_file() else path.rmdir()
    (piece,) = preflight.missing_pieces(able_machine)
    assert piece.section == "oops"
    assert part in piece.what
    assert "--set oops.root=FOLDER" in piece.remedy


def test_an_oops_folder_that_is_not_there_is_one_line_and_not_three(able_machine):
    profile = load_profile("full", ["oops.root=./no-such-folder"])
    oops = [piece for piece in preflight.missing_pieces(profile) if piece.section == "oops"]
    assert [piece.what for piece in oops] == ["the OOPS! folder no-such-folder is not there"]


def test_an_engine_that_does_not_exist_is_an_error_that_names_those_that_do():
    with pytest.raises(UserError, match="there are simulator, diffusers"):
        preflight.missing_pieces(load_profile("demo", ["generate.backend=midjourney"]))


def test_doing_what_the_list_says_leaves_nothing_missing(able_machine, monkeypatch, tmp_path):
    monkeypatch.setattr(preflight, "gpu_memory_gib", lambda: 0.0)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "another-hub"))
    given = [f"oops.root={able_machine.oops.root}"]
    missing = preflight.missing_pieces(load_profile("full", given))
    given += [option for piece in missing for option in re.findall(r"use (?:--set \S+ ?)+", piece.remedy)]
    given = [option for text in given for option in re.findall(r"--set (\S+)", text) or [text]]
    changed = load_profile("full", given)
    assert preflight.missing_pieces(changed) == []
    assert changed.generate.settings == {}


def test_the_list_for_a_person_holds_every_piece_and_the_profile_to_use_instead(bare_machine):
    missing = preflight.missing_pieces(load_profile("full", ["oops.root=./no-such-folder"]))
    told = preflight.explain("full", missing)
    assert len(missing) > 10
    assert all(f"  * {piece}" in told.splitlines() for piece in missing)
    assert told.splitlines()[-1] == "or use the profile demo"
