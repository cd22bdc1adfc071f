"""Seeds that come from ids, so that a record is the same whatever the order, the worker or the day."""

from __future__ import annotations

import hashlib

import numpy as np


def seed_of(*parts: object) -> int:
    """A seed in 0..2**63-1 made from the parts' text alone: the same parts give the same seed in every process."""
    return int.from_bytes(_digest(parts)[:8], "big") >> 1


def generator_of(*parts: object) -> np.random.Generator:
    """A numpy generator made from the parts' text alone."""
    return np.random.Generator(np.random.PCG64(int.from_bytes(_digest(parts)[:16], "big")))


def _digest(parts: tuple[object, ...]) -> bytes:
    return hashlib.sha256("\x1f".join(str(part) for part in parts).encode()).digest()
