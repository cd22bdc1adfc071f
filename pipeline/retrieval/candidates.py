"""Each query's first images by similarity of features: what the matching head is asked about."""

from __future__ import annotations

import numpy as np

_SPARE = 16
"""So many more are asked of the index than wanted, so that equals at the end of the list are told apart by id."""


def first_candidates(
    queries: np.ndarray, gallery: np.ndarray, k: int, gallery_order: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The first min(k, G) gallery images of each query by inner product: indices int64 and similarities float64 (Q, k).

    queries (Q, D) and gallery (G, D): float32, rows of length 1. Equal similarities (to seven digits) are ordered by
    gallery_order. The similarities are summed in float64, so that they do not hang on how queries are batched.
    """
    import faiss

    k = min(k, len(gallery))
    index = faiss.IndexFlatIP(gallery.shape[1])
    index.add(np.ascontiguousarray(gallery, dtype=np.float32))
    _, near = index.search(np.ascontiguousarray(queries, dtype=np.float32), min(k + _SPARE, len(gallery)))
    indices = np.empty((len(queries), k), dtype=np.int64)
    values = np.empty((len(queries), k), dtype=np.float64)
    for row, found in enumerate(near):
        exact = gallery[found].astype(np.float64) @ queries[row].astype(np.float64)
        order = np.lexsort((gallery_order[found], -exact.round(7)))[:k]
        indices[row], values[row] = found[order], exact[order]
    return indices, values
