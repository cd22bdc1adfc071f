"""What a build lacks is found before it starts, named, and comes with what to do instead."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline import gpu_stages, preflight, stages, workload
from pipeline.backends import registry
from pipeline.core.errors import UserError
from pipeline.core.gpus import Gpu
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


def put_model(folder, **files):
    """A model's folder: a configuration, weights, and files more."""
    contents = {"config.json": "{}", "model.safetensors": "", **files}
    for name, text in contents.items():
        if text is not None:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
    return folder


def put_in_hub(hub, model, commit="c" * 40, **files):
    """A model in the Hugging Face cache, whose `main` is this commit."""
    place = hub / f"models--{model.replace('/', '--')}"
    (place / "refs").mkdir(parents=True, exist_ok=True)
    (place / "refs" / "main").write_text(commit)
    return put_model(place / "snapshots" / commit, **files)


PIPELINE = {
    "config.json": None,
    "model.safetensors": None,
    "model_index.json": json.dumps({"_class_name": "StableDiffusionPipeline"}),
    **{f"{part}/model.safetensors": "" for part in ("unet", "vae", "text_encoder")},
}


@pytest.fixture
def able_machine(monkeypatch, tmp_path):
    """A machine that has all that the full profile asks for."""
    root = tmp_path / "oops"
    for folder in ("oops_video", "annotations", "svos"):
        (root / folder).mkdir(parents=True)
    (root / "annotations" / "transition_times.json").write_text("{}")
    monkeypatch.setattr(preflight, "gpu_memory_gib", lambda: 80.0)
    monkeypatch.setattr(preflight.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(preflight, "_missing_disk", lambda *_: [])
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    for name in ("python", "rtmpose.pth"):
        (tmp_path / name).write_text("")
    for section in registry.SECTION_JOBS:
        settings = getattr(load_profile("full"), section).settings
        for key in ("model", "detector"):
            if "/" in str(settings.get(key, "")):
                put_in_hub(tmp_path / "hub", settings[key])
    put_in_hub(tmp_path / "hub", "SG161222/Realistic_Vision_V4.0_noVAE", **PIPELINE)
    return load_profile("full", given_of(tmp_path))


def given_of(tmp_path):
    own = {"python": tmp_path / "python", "checkpoint": tmp_path / "rtmpose.pth"}
    return [f"oops.root={tmp_path / 'oops'}", *(f"keypoints.settings.{key}={value}" for key, value in own.items())]


def whats(missing):
    return [(piece.section, piece.what) for piece in missing]


def test_the_full_profile_is_judged_in_under_five_seconds_with_nothing_heavy_imported():
    code = (
        "import json, sys, time; from pipeline import preflight; from pipeline.core.profile import load_profile; "
        "found = preflight.missing_pieces(load_profile('full', ['oops.root=./no-such-folder'])); "
        f"heavy = [name for name in {HEAVY!r} if name in sys.modules]; "
        "print(json.dumps([len(found), heavy, time.process_time()]))"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    found, heavy, seconds = json.loads(run.stdout)
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


def test_the_smallest_gpu_of_those_that_may_be_used_counts(monkeypatch):
    here = [Gpu("GPU-a", "A100", 79.6), Gpu("GPU-b", "RTX 3090", 24.0)]
    monkeypatch.setattr(preflight, "visible_gpus", lambda: here)
    assert preflight.gpu_memory_gib() == 24.0
    monkeypatch.setattr(preflight, "visible_gpus", list)
    assert preflight.gpu_memory_gib() == 0


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
    engines = {"generate", "keypoints", "similarity", "recaption", "attributes", "decompose"}
    assert {piece.section for piece in none} == engines
    assert all("there is none" in piece.what for piece in none)


def test_a_gpu_counts_as_the_size_it_is_sold_with(able_machine, monkeypatch):
    monkeypatch.setattr(preflight, "gpu_memory_gib", lambda: 23028 / 1024)  # an L4 of 24 GB
    assert preflight.missing_pieces(able_machine) == []


def test_an_engine_that_is_told_to_use_the_cpu_wants_no_gpu(able_machine, monkeypatch, tmp_path):
    monkeypatch.setattr(preflight, "gpu_memory_gib", lambda: 0.0)
    monkeypatch.setattr(preflight, "visible_gpus", list)
    devices = [f"{section}.settings.device=cpu" for section in ("generate", "keypoints", "similarity")]
    missing = preflight.missing_pieces(load_profile("full", [*given_of(tmp_path), *devices]))
    assert {piece.section for piece in missing} == {"recaption", "attributes", "decompose"}


def test_an_engine_that_takes_what_there_is_works_on_a_gpu_only_where_there_is_one(monkeypatch):
    entry = registry.entry("similarity", "resnet50")
    monkeypatch.setattr(gpu_stages, "visible_gpus", lambda: [Gpu("0")])
    assert gpu_stages.works_on_gpu(entry, {})
    assert not gpu_stages.works_on_gpu(entry, {"device": "cpu"})
    assert not gpu_stages.works_on_gpu(registry.entry("recaption", "pixels"), {})
    monkeypatch.setattr(gpu_stages, "visible_gpus", list)
    assert not gpu_stages.works_on_gpu(entry, {})
    assert gpu_stages.works_on_gpu(entry, {"device": "cuda:0"})


def test_stages_that_follow_each_other_with_one_engine_are_on_the_gpu_together():
    full = load_profile("full")
    groups = list(gpu_stages.by_gpu_engine(stages.all_stages(), full))
    assert [[stage.name for stage in group] for engine, group in groups if engine] == [
        ["generate"],
        ["keypoints"],
        ["similarity"],
        ["recaption", "attributes"],
        ["decompose"],
    ]
    assert [stage.name for _, group in groups for stage in group] == list(stages.STAGE_NAMES)
    demo = load_profile("demo")
    assert [engine for engine, _ in gpu_stages.by_gpu_engine(stages.all_stages(), demo)] == [None]


def test_weights_that_are_not_here_are_named_with_the_way_to_get_them(able_machine, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "another-hub"))
    missing = {piece.section: piece for piece in preflight.missing_pieces(able_machine)}
    assert set(missing) == {"generate", "keypoints", "similarity", "recaption", "attributes", "decompose"}
    assert "'SG161222/Realistic_Vision_V4.0_noVAE' are not on this machine" in missing["generate"].what
    assert "hf download SG161222/Realistic_Vision_V4.0_noVAE" in missing["generate"].remedy
    assert "--set generate.backend=simulator" in missing["generate"].remedy
    assert "PekingU/rtdetr_r50vd_coco_o365" in missing["keypoints"].what


def test_another_revision_than_the_one_that_is_here_is_missing(able_machine, tmp_path):
    given = [*given_of(tmp_path), f"decompose.settings.revision={'d' * 40}"]
    (piece,) = preflight.missing_pieces(load_profile("full", given))
    assert piece.section == "decompose"
    assert "d" * 40 in piece.what
    assert piece.remedy.startswith(f"hf download Qwen/Qwen3-8B --revision {'d' * 40}")
    here = [*given_of(tmp_path), f"decompose.settings.revision={'c' * 40}"]
    assert preflight.missing_pieces(load_profile("full", here)) == []


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, None),
        ({"config.json": None}, "no config.json or model_index.json"),
        ({"model.safetensors": None}, "hold no safetensors"),
        ({"model.safetensors": None, "pytorch_model.bin": ""}, "pickled ones are not read"),
        ({"model.safetensors.index.json": json.dumps({"weight_map": {"a": "model.safetensors"}})}, None),
        (
            {
                "model.safetensors.index.json": json.dumps(
                    {"weight_map": {"a": "model.safetensors", "b": "2.safetensors"}}
                )
            },
            "1 files are not there, 2.safetensors for one",
        ),
        ({"config.json": None, "model_index.json": "{}", "model.safetensors": None, "unet/a.safetensors": ""}, None),
    ],
)
def test_weights_are_a_configuration_and_whole_safetensors(tmp_path, monkeypatch, files, said):
    fault = preflight.weights_fault(str(put_model(tmp_path / "model", **files)))
    assert (fault is None) if said is None else (said in fault)
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    put_in_hub(tmp_path / "home" / "hub", "some/model", **files)
    fault = preflight.weights_fault("some/model")
    assert (fault is None) if said is None else (said in fault)


def test_a_download_that_was_cut_short_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    folder = put_in_hub(tmp_path, "some/model", **{"model.safetensors": None})
    (folder / "model.safetensors").symlink_to(tmp_path / "blobs" / "missing")
    assert "hold no safetensors" in preflight.weights_fault("some/model")


def test_a_diffusion_model_without_one_of_its_parts_is_named(able_machine, tmp_path):
    for path in (tmp_path / "hub").glob("models--SG161222*/snapshots/*/vae/*"):
        path.rename(path.with_suffix(".bin"))
    (piece,) = preflight.missing_pieces(able_machine)
    assert piece.section == "generate"
    assert "vae pickled only" in piece.what


@pytest.mark.parametrize("key", ["python", "checkpoint"])
def test_a_file_that_the_pose_engine_needs_is_named(able_machine, tmp_path, key):
    (tmp_path / {"python": "python", "checkpoint": "rtmpose.pth"}[key]).unlink()
    (piece,) = preflight.missing_pieces(able_machine)
    assert piece.section == "keypoints"
    assert str(tmp_path) in piece.what
    assert f"--set keypoints.settings.{key}=FILE" in piece.remedy


def test_a_package_of_another_version_than_the_projects_is_named(able_machine, monkeypatch):
    versions = {"diffusers": "0.41.0", "transformers": "5.20.2"}
    monkeypatch.setattr(preflight.importlib.metadata, "version", lambda name: versions.get(name, "0"))
    monkeypatch.setattr(preflight, "_pins", lambda: {"diffusers": ">=0.42,<0.43", "transformers": ">=5.20,<5.21"})
    (piece,) = preflight.missing_pieces(able_machine)
    assert piece.what == "diffusers 0.41.0 is installed, and >=0.42,<0.43 is wanted"
    assert piece.section == "generate"


def test_the_versions_that_are_wanted_are_those_of_the_project():
    pins = preflight._pins()
    assert pins["mediapipe"] == "==0.10.14"
    assert pins["efficientnet-lite-pytorch"] == "==0.1.0"
    assert preflight.wrong_version("numpy") is None


class Models(BaseHTTPRequestHandler):
    """A server that serves one model."""

    asked = 0

    def do_GET(self):
        type(self).asked += 1
        body = json.dumps({"object": "list", "data": [{"id": "some/model", "object": "model"}]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_): ...


@pytest.fixture
def server():
    Models.asked = 0
    running = ThreadingHTTPServer(("127.0.0.1", 0), Models)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{running.server_port}/v1"
    running.shutdown()
    running.server_close()


def served(url, model):
    preflight._server_problems.cache_clear()
    given = [f"{section}.backend=openai" for section in ("recaption", "attributes")]
    given += [f"{section}.settings={{model: {model}, base_url: '{url}'}}" for section in ("recaption", "attributes")]
    return preflight.missing_pieces(load_profile("demo", given))


def test_a_server_that_serves_the_model_is_asked_once_for_both_stages(server):
    assert served(server, "some/model") == []
    assert Models.asked == 1


def test_a_server_that_serves_another_model_is_told_apart_from_one_that_does_not_answer(server):
    other = served(server, "other/model")
    assert [piece.section for piece in other] == ["recaption", "attributes"]
    assert all("serves some/model, not other/model" in piece.what for piece in other)
    start = time.monotonic()
    silent = served("http://127.0.0.1:9/v1", "some/model")
    assert time.monotonic() - start < 10
    assert len(silent) == 2
    assert all("does not answer" in piece.what and "base_url=URL" in piece.remedy for piece in silent)


def test_a_disk_that_is_too_small_is_told_with_what_the_build_will_write(monkeypatch, tmp_path):
    profile = load_profile("demo", [f"work={tmp_path / 'work'}", f"out={tmp_path / 'out'}"])
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda place: SimpleNamespace(free=2**20))
    (piece,) = preflight.missing_pieces(profile)
    assert piece.section == "work"
    assert re.search(r"will write about 0\.\d GiB to .*, which has 0\.0 free", piece.what)
    assert "--set work=FOLDER" in piece.remedy
    # What the build has written already need not fit a second time.
    (tmp_path / "work" / "demo").mkdir(parents=True)
    with (tmp_path / "work" / "demo" / "written").open("wb") as file:
        file.truncate(10**9)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "data").mkdir()
    with (tmp_path / "out" / "data" / "written").open("wb") as file:
        file.truncate(10**9)
    assert workload.disk_left(profile, "demo") == {tmp_path / "work" / "demo": 0.0}


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
    given = [f"oops.root={able_machine.oops.root}", f"work={tmp_path}"]
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
