import functools
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures.process import BrokenProcessPool
from itertools import pairwise
from pathlib import Path

import pytest

from pipeline.core import gpus, workers
from pipeline.core.runner import MissingUpstreamError
from pipeline.core.workers import ONE_THREAD, Workers, report, worker_pool

ROOT = Path(__file__).parents[2]
PARENT = """
import sys, time
sys.path[:0] = {paths!r}
from tests.core.test_workers import busy
from pipeline.core.workers import worker_pool
if __name__ == "__main__":
    with worker_pool(1) as submit:
        submit(busy, sys.argv[1]).result()
"""


def work(number: int) -> tuple[int, dict[str, str | None]]:
    for done in range(number):
        report("work", done + 1, number)
    return os.getpid(), {name: os.environ.get(name) for name in ONE_THREAD}


def fail_for_a_person() -> None:
    raise MissingUpstreamError("lengths", "train-000", "words", "train-000", "")


def busy(path: str) -> None:
    Path(path).write_text(str(os.getpid()))
    time.sleep(60)


def alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def wait_for(condition, seconds: float = 20) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


def test_workers_run_apart_with_one_thread_a_library_and_tell_how_far_they_are(monkeypatch):
    for name in ONE_THREAD:
        monkeypatch.setenv(name, "8")
    seen = []
    with worker_pool(1, lambda *message: seen.append(message)) as submit:
        process, environment = submit(work, 3).result()
        again, _ = submit(work, 0).result()
        assert wait_for(lambda: len(seen) == 3)
        with pytest.raises(MissingUpstreamError, match=r"python -m pipeline\.words"):
            submit(fail_for_a_person).result()
        assert submit(work, 0).result()[0] == process  # the worker lives on
    assert process == again != os.getpid()
    assert environment == ONE_THREAD
    assert seen == [("work", 1, 3), ("work", 2, 3), ("work", 3, 3)]
    assert not alive(process)


def test_reporting_without_a_pool_is_no_error():
    report("work", 1, 2)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks processes up in /proc")
def test_a_worker_ends_with_a_parent_that_is_killed(tmp_path):
    script, note = tmp_path / "parent.py", tmp_path / "worker"
    script.write_text(PARENT.format(paths=[str(ROOT)]), "utf-8")
    parent = subprocess.Popen([sys.executable, str(script), str(note)])
    assert wait_for(lambda: note.exists() and note.read_text())
    worker = int(note.read_text())
    assert alive(worker)
    parent.kill()
    parent.wait()
    assert wait_for(lambda: not alive(worker))


# --- one process a GPU


@functools.lru_cache
def load(engine: str, log: str) -> str:
    """As an engine loads its model: once a process. Notes it."""
    note(log, "load", engine)
    return engine


def note(log: str, event: str, engine: str) -> None:
    line = {"event": event, "engine": engine, "process": os.getpid(), "gpu": os.environ["CUDA_VISIBLE_DEVICES"]}
    with Path(log).open("a") as file:
        file.write(json.dumps({**line, "at": time.monotonic()}) + "\n")


def draw(engine: str, log: str, seconds: float) -> str:
    load(engine, log)
    time.sleep(seconds)
    note(log, "done", engine)
    return os.environ["CUDA_VISIBLE_DEVICES"]


def device_seen() -> str | None:
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def end_by_a_kill() -> None:
    os.kill(os.getpid(), 9)


@pytest.fixture
def two_gpus(monkeypatch, tmp_path):
    """Two GPUs that are not there, which this machine's other processes know nothing of."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(gpus, "installed_gpus", list)
    monkeypatch.setattr(workers, "lock_folder", lambda: tmp_path / "locks")
    return tmp_path / "log"


def spans(log: Path) -> dict[int, dict]:
    """What every process did: its GPU, its engines as often as it loaded one, from its first word to its last."""
    found: dict[int, dict] = {}
    for line in log.read_text().splitlines():
        row = json.loads(line)
        own = found.setdefault(row["process"], {"gpus": set(), "loads": [], "from": row["at"], "to": row["at"]})
        own["gpus"].add(row["gpu"])
        own["to"] = row["at"]
        own["loads"] += [row["engine"]] if row["event"] == "load" else []
    return found


def test_two_builds_with_two_engines_share_two_gpus_without_meeting_on_one(two_gpus):
    log = str(two_gpus)

    def one_build(name: str) -> None:
        with Workers(1) as processes:
            for engine in (f"{name} diffusion", f"{name} chat"):
                calls = [processes.submit(draw, engine, log, 0.1, engine=engine) for _ in range(4)]
                assert {call.result() for call in calls} <= {"0", "1"}

    builds = [threading.Thread(target=one_build, args=(name,)) for name in ("first", "second")]
    for build in builds:
        build.start()
    for build in builds:
        build.join(120)
        assert not build.is_alive()
    seen = spans(two_gpus)
    assert sum(len(own["loads"]) for own in seen.values()) == len(seen) >= 4  # a model is loaded once a process
    for own in seen.values():
        assert len(own["gpus"]) == 1
    for device in ("0", "1"):
        on_it = sorted((own["from"], own["to"]) for own in seen.values() if own["gpus"] == {device})
        assert all(before[1] <= after[0] for before, after in pairwise(on_it))
    lines = [json.loads(line) for line in two_gpus.read_text().splitlines()]
    assert sum(line["event"] == "done" for line in lines) == 16


def test_stages_of_one_engine_keep_its_processes_and_what_needs_no_gpu_sees_none(two_gpus):
    with Workers(1) as processes:
        first = processes.submit(draw, "chat", str(two_gpus), 0, engine="chat").result()
        assert processes.submit(device_seen).result() == ""
        assert processes.submit(draw, "chat", str(two_gpus), 0, engine="chat").result() == first
        assert [own["loads"] for own in spans(two_gpus).values()] == [["chat"]]
        with pytest.raises(BrokenProcessPool):
            processes.run(end_by_a_kill, engine="chat")
        assert processes.run(draw, "chat", str(two_gpus), 0, engine="chat") in ("0", "1")
        processes.release_gpus()
        assert not any(alive(process) for process in spans(two_gpus))


def test_without_a_gpu_its_work_is_done_on_the_cpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with Workers(1) as processes:
        assert processes.gpus == 0
        first = processes.submit(os.getpid, engine="chat").result()
        assert processes.submit(os.getpid).result() == first
