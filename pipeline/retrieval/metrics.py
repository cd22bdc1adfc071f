"""What a ranking is worth: R@K, mAP, mINP and pair accuracy, from scores, whatever the chunks they come in.

Ranking is by falling score; equal scores are ordered by gallery id, so that one set of scores has one result. Only the
ranks of relevant images are computed, never a whole sorted gallery.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

RECALLS = (1, 5, 10)


@dataclass(frozen=True)
class Metrics:
    """The figures of one protocol, in percent.

    recall: R@K by K, the share of queries with a relevant image among the first K. mean_ap: of the mean precision at
    the relevant images' ranks. mean_inp: of the relevant images' number over the last one's rank (mINP). queries: those
    that count; without_relevant: those with no relevant image in the gallery, left out. All NaN where none counts.
    """

    recall: Mapping[int, float]
    mean_ap: float
    mean_inp: float
    queries: int
    without_relevant: int


@dataclass
class MetricsCounter:
    """Takes scores chunk by chunk and ends in `Metrics`.

    gallery_order: for each gallery image its place in the order of the ids (`id_order`), which decides ties.
    """

    gallery_order: np.ndarray
    _hits: dict[int, int] = field(default_factory=lambda: dict.fromkeys(RECALLS, 0))
    _precisions: list[float] = field(default_factory=list)
    _inverse_negatives: list[float] = field(default_factory=list)
    _without: int = 0

    def add(self, scores: np.ndarray, relevant: Sequence[np.ndarray]) -> None:
        """Count a chunk of queries: scores (Q, G), and for each query the gallery indices of its relevant images."""
        for row, indices in zip(scores, relevant, strict=True):
            if not len(indices):
                self._without += 1
                continue
            ranks = np.sort(ranks_of(row, indices, self.gallery_order))
            for k in RECALLS:
                self._hits[k] += int(ranks[0] <= k)
            self._precisions.append(float(np.mean(np.arange(1, len(ranks) + 1) / ranks)))
            self._inverse_negatives.append(len(ranks) / float(ranks[-1]))

    def metrics(self) -> Metrics:
        """The figures of everything that was added."""
        count = len(self._precisions)
        return Metrics(
            recall={k: _percent(hits, count) for k, hits in self._hits.items()},
            mean_ap=_percent(math.fsum(self._precisions), count),
            mean_inp=_percent(math.fsum(self._inverse_negatives), count),
            queries=count,
            without_relevant=self._without,
        )


def _percent(total: float, count: int) -> float:
    return 100.0 * total / count if count else math.nan


def id_order(ids: Sequence[str]) -> np.ndarray:
    """int64 (G,): each gallery image's place in the order of the ids. Raises ValueError where two are equal."""
    order = np.argsort(np.array(ids), kind="stable")
    if len(set(ids)) != len(ids):
        raise ValueError("two gallery images have one id")
    places = np.empty(len(ids), dtype=np.int64)
    places[order] = np.arange(len(ids))
    return places


def ranks_of(scores: np.ndarray, indices: np.ndarray, gallery_order: np.ndarray) -> np.ndarray:
    """int64, the ranks (1 = first) of these gallery images under one query's scores (G,); ties by gallery_order.

    Raises ValueError for a score that is not a number: it has no place in an order.
    """
    if np.isnan(scores).any():
        raise ValueError("a score is not a number")
    ranks = np.empty(len(indices), dtype=np.int64)
    for number, index in enumerate(indices):
        equal = (scores == scores[index]) & (gallery_order < gallery_order[index])
        ranks[number] = 1 + np.count_nonzero(scores > scores[index]) + np.count_nonzero(equal)
    return ranks


def first_ranked(scores: np.ndarray, gallery_order: np.ndarray, k: int) -> np.ndarray:
    """int64 (min(k, G),): the gallery images that come first under one query's scores (G,); ties by gallery_order."""
    return np.lexsort((gallery_order, -scores))[:k]


def relevant_indices(query_labels: Sequence[str], gallery_labels: Sequence[str]) -> list[np.ndarray]:
    """For each query the gallery indices, rising, of the images with its label."""
    by_label: dict[str, list[int]] = {}
    for index, label in enumerate(gallery_labels):
        by_label.setdefault(label, []).append(index)
    return [np.array(by_label.get(label, []), dtype=np.int64) for label in query_labels]


@dataclass(frozen=True)
class PairAccuracy:
    """How often the right image scores above its same-person counterpart, where there is one.

    A tie is no success. share: 0..1, NaN without a query; low, high: the 95 % interval (Wilson).
    """

    right: int
    queries: int

    @property
    def share(self) -> float:
        return self.right / self.queries if self.queries else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """The lower and upper end of Wilson's 95 % interval, 0..1; (NaN, NaN) without a query."""
        if not self.queries:
            return math.nan, math.nan
        z, n = 1.959963984540054, self.queries
        middle = (self.share + z * z / (2 * n)) / (1 + z * z / n)
        reach = z / (1 + z * z / n) * math.sqrt(self.share * (1 - self.share) / n + z * z / (4 * n * n))
        return middle - reach, middle + reach

    def __add__(self, other: PairAccuracy) -> PairAccuracy:
        return PairAccuracy(self.right + other.right, self.queries + other.queries)


def pair_accuracy(scores: np.ndarray, right: Sequence[int], counterpart: Sequence[int | None]) -> PairAccuracy:
    """Pair accuracy of a chunk: scores (Q, G), gallery index of each query's own image and of its counterpart."""
    won = [
        bool(row[own] > row[other])
        for row, own, other in zip(scores, right, counterpart, strict=True)
        if other is not None
    ]
    return PairAccuracy(sum(won), len(won))
