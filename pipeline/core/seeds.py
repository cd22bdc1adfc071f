"""Seeds that come from ids, so that a record is the same whatever the order, the worker or the day."""

from __future__ import annotations

import hashlib

import numpy as np


def seed_of(*parts: str | int) -> int:
    """A seed in 0..2**63-1 made from the parts alone: the same parts give the same seed in every process."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator_of(*parts: str | int) -> np.random.Generator:
    """A numpy generator seeded by `seed_of(*parts)`."""
    return np.random.default_rng(seed_of(*parts))
