"""The NVIDIA GPUs of this machine: which there are, which this build may use, and one process a GPU at a time."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEVICES = "CUDA_VISIBLE_DEVICES"
BY_BUS = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
"""CUDA counts the fastest GPU first unless told otherwise, nvidia-smi goes by the bus: numbers should mean the same."""
_ANSWER_S = 4
_LOOK_AGAIN_S = 0.2
_held: list[Any] = []


@dataclass(frozen=True)
class Gpu:
    """One GPU. id: what CUDA_VISIBLE_DEVICES calls it; memory_gib: 0 where nvidia-smi does not say."""

    id: str
    name: str = ""
    memory_gib: float = 0.0


def installed_gpus() -> list[Gpu]:
    """All GPUs that nvidia-smi knows, by number; none where it is not there or does not answer in time."""
    program = shutil.which("nvidia-smi")
    return list(_answer_of(program)) if program is not None else []


@functools.lru_cache(maxsize=4)
def _answer_of(program: str) -> tuple[Gpu, ...]:
    # Asked once a process: GPUs do not come and go, and a driver that hangs takes its time at every question.
    query = [program, "--query-gpu=uuid,name,memory.total", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=_ANSWER_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    found = []
    for line in answer.splitlines():
        uuid, comma, rest = line.partition(",")
        name, _, memory = rest.rpartition(",")
        if comma and uuid.strip().startswith("GPU-"):
            number = memory.strip()
            found.append(Gpu(uuid.strip(), name.strip(), float(number) / 1024 if number.isdigit() else 0.0))
    return tuple(found)


def visible_gpus(environment: Mapping[str, str] | None = None) -> list[Gpu]:
    """The GPUs that this process may use: those CUDA_VISIBLE_DEVICES names (by number or id, up to the first that is
    none, as CUDA reads it), or all that are installed where it is not set.
    """
    named = (os.environ if environment is None else environment).get(DEVICES)
    installed = installed_gpus()
    if named is None:
        return installed
    found: list[Gpu] = []
    for word in (each.strip() for each in named.split(",")):
        if not word or word.startswith("-") or (installed and word.isdecimal() and int(word) >= len(installed)):
            break
        if word.isdecimal() and installed:
            found.append(installed[int(word)])
        else:
            found.append(next((gpu for gpu in installed if gpu.id.startswith(word)), Gpu(word)))
    return found


def lock_folder() -> Path:
    """Where this user's processes mark the GPUs they use; the same for all builds of the machine."""
    return Path(tempfile.gettempdir()) / f"pab-gpus-{os.getuid()}"


def claim_gpu(ids: Sequence[str], folder: Path) -> str:
    """Take the first of these GPUs that no other process of a build holds, waiting until there is one.

    The GPU is this process's until it ends, however it ends, and CUDA sees no other from now on. To be called before
    anything loads CUDA. Returns the GPU's id.
    """
    from filelock import FileLock, Timeout

    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    told = False
    while True:
        for name in ids:
            lock = FileLock(folder / f"{name.replace('/', '_')}.lock")
            try:
                lock.acquire(timeout=0)
            except Timeout:
                continue
            _held.append(lock)
            os.environ.update(BY_BUS)
            os.environ[DEVICES] = name
            return name
        if not told:
            print(f"waiting: another build uses {', '.join(ids)}", file=sys.stderr, flush=True)
            told = True
        time.sleep(_LOOK_AGAIN_S)
