import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.core.runner import MissingUpstreamError
from pipeline.core.workers import ONE_THREAD, report, worker_pool

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
