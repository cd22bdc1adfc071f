"""Builds the demo from nothing in a folder of its own, then again, and prints time, memory and what was kept.

python -m bench.demo [--workers 2] [--folder DIR]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]


def run_measured(command: list[str]) -> tuple[float, float, int]:
    """Run a command to its end: (seconds, the largest memory of it and its children together in GiB, exit code).

    Memory is the sum of the processes' proportional sets, so that pages they share count once.
    """
    start = time.monotonic()
    process = psutil.Popen(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
    largest = 0
    while process.poll() is None:
        largest = max(largest, sum(_memory(each) for each in _family(process)))
        time.sleep(0.5)
    return time.monotonic() - start, largest / 2**30, process.returncode


def _family(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _memory(process: psutil.Process) -> int:
    try:
        return process.memory_full_info().pss
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0


def main() -> int:
    """Print the table; the exit code is that of the first build that failed."""
    parser = argparse.ArgumentParser(prog="python -m bench.demo", description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="keep the build here (default: a temporary folder)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        values = {"work": folder / "work", "out": folder / "out", "workers": options.workers}
        command = [sys.executable, "-m", "pipeline.build", *(f"--set={key}={value}" for key, value in values.items())]
        for name in ("from nothing", "again"):
            seconds, memory, code = run_measured(command)
            print(f"{name:<13} {seconds:7.1f} s   {memory:5.2f} GiB at most   exit code {code}")
            if code:
                return code
        stages: dict[str, dict[str, float]] = {}
        for path in sorted((folder / "work" / "demo").glob("*/*/stage.json")):
            manifest = json.loads(path.read_text("utf-8"))
            total = stages.setdefault(manifest["stage"], {"in": 0, "kept": 0, "seconds": 0.0})
            total["in"] += manifest["counts"]["in"]
            total["kept"] += manifest["counts"]["kept"]
            total["seconds"] += manifest["seconds"]
        for stage, total in stages.items():
            counts = f"in {total['in']:>5.0f}   kept {total['kept']:>5.0f}"
            print(f"{stage:<13} {counts}   {total['seconds']:7.1f} worker-seconds")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
