"""Silence for native libraries that write their start-up notes to the terminal past Python."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def silent_output(*descriptors: int) -> Iterator[None]:
    """Nothing reaches these file descriptors (1: standard output, 2: standard error) meanwhile."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [(descriptor, os.dup(descriptor)) for descriptor in descriptors]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        for descriptor in descriptors:
            os.dup2(nowhere, descriptor)
        yield
    finally:
        for descriptor, copy in kept:
            os.dup2(copy, descriptor)
            os.close(copy)
        os.close(nowhere)
