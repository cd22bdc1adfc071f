"""A few worker processes that keep their engines loaded from one shard to the next.

What wants a GPU runs in processes of its own, one a GPU, each of which sees that GPU alone. They end when a stage with
another engine comes: only the end of a process gives all of a GPU's memory back.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from pathlib import Path
from queue import Empty
from types import TracebackType
from typing import Any

from pipeline.core.gpus import DEVICES, claim_gpu, lock_folder, visible_gpus

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "GLOG_minloglevel": "3",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
"""Sums of floats depend on how many threads share them; workers use one each, so that results do not."""

_progress: Callable[[str, int, int], None] | None = None


def use_one_thread() -> None:
    """Set this process, and those it starts, to one thread a library. To be called before the libraries load."""
    os.environ.update(ONE_THREAD)


def report(task: str, done: int, total: int) -> None:
    """Tell the process that started this worker how far a task is."""
    if _progress is not None:
        _progress(task, done, total)


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)


def _start_worker(queue: Any, gpus: Sequence[str], locks: Path) -> None:
    global _progress
    # A worker whose parent was killed would hold its shard, and then wait for more work, for ever.
    threading.Thread(target=_end_with_parent, daemon=True).start()

    def put(task: str, done: int, total: int) -> None:
        queue.put((task, done, total))

    _progress = put
    if gpus:
        claim_gpu(gpus, locks)
    else:
        os.environ[DEVICES] = ""  # a library that finds a GPU by itself would take memory from the stage that has it


class Workers:
    """The processes of one build: `workers` for what runs on the CPU, and one a GPU for what wants one.

    on_progress gets what tasks `report`, in this process. A GPU that another build of this machine holds is waited for.
    Used as a context: leaving it waits for running tasks and cancels those that have not started.
    """

    def __init__(self, workers: int, on_progress: Callable[[str, int, int], None] | None = None) -> None:
        use_one_thread()
        self._workers, self._on_progress = workers, on_progress
        self._gpus = [gpu.id for gpu in visible_gpus()]
        self._context = get_context("spawn")
        self._queue = self._context.Queue()
        self._stop = threading.Event()
        self._pools: dict[str | None, ProcessPoolExecutor] = {}
        self._lock = threading.Lock()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    @property
    def gpus(self) -> int:
        """How many GPUs there are to work on."""
        return len(self._gpus)

    def submit(self, function: Callable[..., Any], *arguments: Any, engine: str | None = None) -> Future[Any]:
        """Run function(*arguments) in a worker process.

        engine: what it loads onto a GPU, None for what needs none. Tasks of one engine share its processes; another
        engine's first task waits until those have ended. Without any GPU all tasks run on the CPU.
        """
        return self._pool(engine).submit(function, *arguments)

    def run(self, function: Callable[..., Any], *arguments: Any, engine: str | None = None) -> Any:
        """As `submit`, waits and returns or raises what it did. After BrokenProcessPool (a worker was killed) there
        are new processes, so that another try can succeed.
        """
        pool = self._pool(engine)
        try:
            return pool.submit(function, *arguments).result()
        except BrokenProcessPool:
            with self._lock:
                for name in [name for name, each in self._pools.items() if each is pool]:
                    del self._pools[name]
            raise

    def release_gpus(self) -> None:
        """End the processes that hold a GPU, when they are done, so that another build can have it."""
        with self._lock:
            for name in [name for name in self._pools if name is not None]:
                self._pools.pop(name).shutdown(wait=True)

    def close(self) -> None:
        """Wait for what runs, and end the processes."""
        with self._lock:
            for pool in self._pools.values():
                pool.shutdown(wait=True, cancel_futures=True)
            self._pools.clear()
        self._stop.set()
        self._listener.join()

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _pool(self, engine: str | None) -> ProcessPoolExecutor:
        wanted = engine if self._gpus else None
        with self._lock:
            if wanted not in self._pools:
                for other in [name for name in self._pools if name is not None and wanted is not None]:
                    self._pools.pop(other).shutdown(wait=True)
                gpus = self._gpus if wanted is not None else []
                self._pools[wanted] = ProcessPoolExecutor(
                    len(gpus) or self._workers,
                    mp_context=self._context,
                    initializer=_start_worker,
                    initargs=(self._queue, gpus, lock_folder()),
                )
            return self._pools[wanted]

    def _listen(self) -> None:
        while not self._stop.is_set():
            try:
                message = self._queue.get(timeout=0.2)
            except Empty:
                continue
            if self._on_progress is not None:
                self._on_progress(*message)


@contextmanager
def worker_pool(
    workers: int, on_progress: Callable[[str, int, int], None] | None = None
) -> Iterator[Callable[..., Future[Any]]]:
    """`submit(function, *arguments)` over `workers` processes, for work that needs no GPU; see `Workers`."""
    with Workers(workers, on_progress) as processes:
        yield processes.submit
