"""What each protocol counts: which queries, and which images are right for them.

Plain values in, plain values out; a protocol that the data cannot answer (nobody knows the persons) is not there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.retrieval.metrics import relevant_indices

BEHAVIOUR, IDENTITY, NORMAL, ANOMALY = "PAB behaviour", "PAB identity", "PAB-Normal", "PAB-Anomaly"
PAB = (BEHAVIOUR, IDENTITY, NORMAL, ANOMALY)
UCC, WEATHER, TRACK4 = "UCC", "Multi-Weather", "AI City Track 4"
TIPR = ("CUHK-PEDES", "ICFG-PEDES", "RSTPReid", "UFine6926", "UFine3C")
AVERAGED = frozenset({UCC, *TIPR})
"""Protocols that also tell the mean of R@1, R@5 and R@10 (UCC-Avg, R-Avg)."""


@dataclass(frozen=True)
class Judged:
    """What protocols know of an image or a query.

    match: equal for a query and the images that answer it. person: equal for images of one person; None where nobody
    knows. normal: the behaviour; None where the data does not say.
    """

    match: str
    person: str | None = None
    normal: bool | None = None


@dataclass(frozen=True)
class Counted:
    """A protocol over some queries. rows: their numbers, rising. relevant: for each the gallery indices that are right,
    rising; a query with none is left out of the figures and counted."""

    protocol: str
    rows: tuple[int, ...]
    relevant: tuple[np.ndarray, ...]


def counted(names: Sequence[str], queries: Sequence[Judged], gallery: Sequence[Judged]) -> list[Counted]:
    """The protocols of these names that the data can answer, in their order.

    PAB behaviour, UCC, Track 4 and the TIPR sets: images with the query's `match`. PAB identity: images of its person.
    PAB-Normal and PAB-Anomaly: PAB behaviour over the queries of one behaviour, against the whole gallery.
    """
    by_match = relevant_indices([each.match for each in queries], [each.match for each in gallery])
    found = []
    for name in names:
        rows = list(range(len(queries)))
        relevant = by_match
        if name == IDENTITY:
            if any(each.person is None for each in (*queries, *gallery)):
                continue
            relevant = relevant_indices(
                [each.person or "" for each in queries], [each.person or "" for each in gallery]
            )
        elif name in (NORMAL, ANOMALY):
            rows = [row for row, each in enumerate(queries) if each.normal is (name == NORMAL)]
        if len(rows):
            found.append(Counted(name, tuple(rows), tuple(relevant[row] for row in rows)))
    return found
