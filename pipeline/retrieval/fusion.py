"""From similarities and matching logits to the scores that are ranked (CMP, evaluation; published code).

Every query's first k images by similarity have a matching logit (class 1, no softmax). How the two are joined:

* `single`: both scaled to 0..1 over the whole matrix, logit + 0.002 similarity. What the published code computes on one
  process.
* `ref_world:N`: what the published code computes on N processes. There a row that another process scores holds the
  sentinel 1000, which becomes the largest "logit" of the scaling, so that the similarity weighs about N times more.
* `linear`: logit + weight x similarity, the weight in logits.
* `similarity`: the similarities alone; nothing is matched (the only one for models without a matching head).
* `itm_only`: the logits alone; images beyond the first k come after them, by similarity (the papers' wording).

Similarities are passed in chunks of queries; what has to be known of the whole matrix are its extremes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.core.errors import UserError

SIMILARITY_WEIGHT = 0.002
"""Fixed in the published code."""
SENTINEL = 1000.0
"""What the published code takes for a logit that was not computed."""


@dataclass(frozen=True)
class Fusion:
    """How scores are joined. world: processes of `ref_world`. weight: of the similarity in `linear`, logits."""

    kind: str = "single"
    world: int = 1
    weight: float = 0.0

    @property
    def matches(self) -> bool:
        """Whether the matching head is asked."""
        return self.kind != "similarity"

    @property
    def name(self) -> str:
        """As it is typed."""
        return {"ref_world": f"ref_world:{self.world}", "linear": f"linear:{self.weight:g}"}.get(self.kind, self.kind)


def parse_fusion(text: str) -> Fusion:
    """`single`, `itm_only`, `similarity`, `linear:2.5` or `ref_world:4`. Raises UserError for anything else."""
    kind, colon, value = text.partition(":")
    try:
        if kind in ("single", "itm_only", "similarity") and not colon:
            return Fusion(kind)
        if kind == "linear":
            weight = float(value) if colon else 1.0
            if np.isfinite(weight):
                return Fusion(kind, weight=weight)
        if kind == "ref_world" and int(value) > 0:
            return Fusion(kind, world=int(value))
    except ValueError:
        pass
    raise UserError(
        f"--fusion {text}: use single, itm_only, similarity, linear:WEIGHT or ref_world:PROCESSES, e.g. ref_world:4"
    )


@dataclass(frozen=True)
class Extremes:
    """The least and largest similarity of the whole matrix, and the least and largest logit of each part of it.

    For `single` there is one part; for `ref_world` one for each process.
    """

    similarity: tuple[float, float]
    logits: tuple[tuple[float, float], ...]


def part_bounds(queries: int, world: int) -> list[tuple[int, int]]:
    """The rows that each of `world` processes of the published code scores: floor(queries / world) + 1 each.

    Raises UserError where the last has none (the published code divides by zero there).
    """
    if world == 1:
        return [(0, queries)]
    step = queries // world + 1
    bounds = [(rank * step, min(queries, (rank + 1) * step)) for rank in range(world)]
    if any(start >= end for start, end in bounds):
        raise UserError(f"ref_world:{world} leaves a process without one of the {queries} queries: use fewer processes")
    return bounds


def extremes_of(fusion: Fusion, similarity: tuple[float, float], logits: np.ndarray) -> Extremes:
    """What `fuse` has to know: similarity's least and largest value over the whole matrix, logits (Q, k) of all."""
    if not fusion.matches:
        return Extremes(similarity, ())
    bounds = part_bounds(len(logits), fusion.world)
    return Extremes(similarity, tuple((float(logits[a:b].min()), float(logits[a:b].max())) for a, b in bounds))


def fuse(
    fusion: Fusion,
    extremes: Extremes,
    similarity: np.ndarray,
    candidates: np.ndarray,
    logits: np.ndarray,
    first_row: int = 0,
    queries: int | None = None,
) -> np.ndarray:
    """float64 (q, G): the scores of a chunk of queries.

    similarity: (q, G). candidates: (q, k), the gallery images that have a logit; logits: (q, k), theirs. first_row: the
    number of the chunk's first query among all `queries` (for `ref_world`, whose scaling hangs on it).
    """
    similarity = np.asarray(similarity, dtype=np.float64)
    if not fusion.matches:
        return similarity
    logits = np.asarray(logits, dtype=np.float64)
    rows = np.arange(len(similarity))[:, None]
    least = logits.min(axis=1, keepdims=True)
    if fusion.kind == "itm_only":
        scores = least - 1.0 - (similarity.max(axis=1, keepdims=True) - similarity)
        scores[rows, candidates] = logits
        return scores
    filled = np.broadcast_to(least, similarity.shape).copy()
    filled[rows, candidates] = logits
    if fusion.kind == "linear":
        return filled + fusion.weight * similarity
    scaled = _scaled(similarity, *extremes.similarity)
    if fusion.world == 1:
        return _scaled(filled, *extremes.logits[0]) + SIMILARITY_WEIGHT * scaled
    bounds = part_bounds(queries if queries is not None else len(similarity), fusion.world)
    parts = [next(n for n, (a, b) in enumerate(bounds) if a <= first_row + row < b) for row in range(len(similarity))]
    lowest = np.array([extremes.logits[part][0] for part in parts])[:, None]
    others = fusion.world - 1  # the sentinel scales to 1 on every process that does not score the row
    return (filled - lowest) / (SENTINEL - lowest) + others + fusion.world * SIMILARITY_WEIGHT * scaled


def _scaled(values: np.ndarray, least: float, largest: float) -> np.ndarray:
    return (values - least) / (largest - least) if largest > least else np.zeros_like(values)
