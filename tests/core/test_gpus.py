"""Which GPUs there are, which a build may use, and that two processes never have the same one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.core import gpus
from pipeline.core.gpus import Gpu, claim_gpu, installed_gpus, visible_gpus

ROOT = Path(__file__).parents[2]
TWO = "GPU-aa11, NVIDIA H100 80GB HBM3, 81559\nGPU-bb22, NVIDIA GeForce RTX 3090, 24576\n"


@pytest.fixture
def nvidia_smi(monkeypatch, tmp_path):
    """Puts an nvidia-smi that prints a text first on the path."""

    def put(text: str, script: str = "") -> None:
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{script}\ncat <<'END'\n{text}END\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return put


def test_every_gpu_is_known_by_id_name_and_memory(nvidia_smi):
    nvidia_smi(TWO)
    assert installed_gpus() == [
        Gpu("GPU-aa11", "NVIDIA H100 80GB HBM3", 81559 / 1024),
        Gpu("GPU-bb22", "NVIDIA GeForce RTX 3090", 24.0),
    ]


@pytest.mark.parametrize("text", ["", "No devices were found\n", "\n\n"])
def test_an_answer_without_gpus_is_none(nvidia_smi, text):
    nvidia_smi(text)
    assert installed_gpus() == []


def test_memory_that_is_not_told_is_none_and_the_gpu_is_there(nvidia_smi):
    nvidia_smi("GPU-aa11, NVIDIA GB10, [N/A]\n")
    assert installed_gpus() == [Gpu("GPU-aa11", "NVIDIA GB10", 0.0)]


def test_a_driver_that_fails_has_no_gpus(nvidia_smi):
    nvidia_smi("", "exit 9")
    assert installed_gpus() == []


@pytest.mark.parametrize(
    ("named", "ids"),
    [
        (None, ["GPU-aa11", "GPU-bb22"]),
        ("1", ["GPU-bb22"]),
        ("1,0", ["GPU-bb22", "GPU-aa11"]),
        ("GPU-bb", ["GPU-bb22"]),
        ("", []),
        ("-1", []),
        ("0,-1,1", ["GPU-aa11"]),
        ("0,7,1", ["GPU-aa11"]),
    ],
)
def test_only_the_gpus_that_cuda_would_see_are_worked_on(nvidia_smi, named, ids):
    nvidia_smi(TWO)
    environment = {} if named is None else {"CUDA_VISIBLE_DEVICES": named}
    assert [gpu.id for gpu in visible_gpus(environment)] == ids


def test_without_nvidia_smi_the_named_devices_are_taken_at_their_word(monkeypatch):
    monkeypatch.setattr(gpus, "installed_gpus", list)
    assert [gpu.id for gpu in visible_gpus({"CUDA_VISIBLE_DEVICES": "0, 1"})] == ["0", "1"]
    assert visible_gpus({}) == []


def test_a_held_gpu_is_passed_over_and_is_free_when_its_process_has_been_killed(tmp_path, monkeypatch):
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(gpus, "_held", [])
    code = (
        "import sys; from pathlib import Path; from pipeline.core.gpus import claim_gpu; "
        "print(claim_gpu(['0', '1'], Path(sys.argv[1])), flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "0\n"
        assert claim_gpu(["0", "1"], tmp_path) == "1"
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "1"
        assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    finally:
        other.kill()
        other.wait()
    assert claim_gpu(["0"], tmp_path) == "0"
    for lock in gpus._held:
        lock.release()
