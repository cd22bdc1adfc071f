"""A few worker processes that keep their engines loaded from one shard to the next."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from queue import Empty
from typing import Any

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


def _start_worker(queue: Any) -> None:
    global _progress
    # A worker whose parent was killed would hold its shard, and then wait for more work, for ever.
    threading.Thread(target=_end_with_parent, daemon=True).start()

    def put(task: str, done: int, total: int) -> None:
        queue.put((task, done, total))

    _progress = put


@contextmanager
def worker_pool(
    workers: int, on_progress: Callable[[str, int, int], None] | None = None
) -> Iterator[Callable[..., Future[Any]]]:
    """`submit(function, *args)` over `workers` processes. on_progress gets what they report, in this process.

    Leaving the block waits for running tasks; an error cancels those that have not started.
    """
    use_one_thread()
    context = get_context("spawn")
    queue = context.Queue()
    stop = threading.Event()

    def listen() -> None:
        while not stop.is_set():
            try:
                message = queue.get(timeout=0.2)
            except Empty:
                continue
            if on_progress is not None:
                on_progress(*message)

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker, initargs=(queue,))
    try:
        yield pool.submit
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        stop.set()
        listener.join()
