"""What GradCO's mechanism does, measured on arrays: anchors, conflicts, geometry, experts, weights, hard negatives.

Pure: numpy alone, no network and no file. P pairs, T texts, I images, S streams, F feature width, W token width.
Arrays are taken in any float type and summed in float64. What is measured and why: GradCO, sections 4.6 and 4.7.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pipeline.core.text import content_words, pre_caption

EPSILON = 1e-12
ANGLE_BINS = 36
"""Of the half circle for angles between anchors, of the full one for directions in a plane."""

Edit = Literal["appearance masked", "action masked", "action exchanged"]
EDITS: tuple[Edit, ...] = ("appearance masked", "action masked", "action exchanged")
MASK = "[MASK]"
"""The vocabulary's word for a hidden token."""


def unit(rows: np.ndarray) -> np.ndarray:
    """(..., F) with rows of length 1 in float64; a row of zeros stays one."""
    values = np.asarray(rows, dtype=np.float64)
    lengths = np.linalg.norm(values, axis=-1, keepdims=True)
    return np.divide(values, lengths, out=np.zeros_like(values), where=lengths > EPSILON)


def cosines(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """(..., F) twice -> (...): cosines row by row; NaN where a row has no length, for which there is no direction."""
    one, other = np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)
    lengths = np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1)
    products = (one * other).sum(axis=-1)
    return np.divide(products, lengths, out=np.full_like(lengths, math.nan), where=lengths > EPSILON)


def mean_of(values: np.ndarray) -> float | None:
    """The mean of the values that are numbers; None where none is."""
    known = np.asarray(values, dtype=np.float64)
    known = known[~np.isnan(known)]
    return float(known.mean()) if known.size else None


# --- anchors ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AnchorMeasures:
    """Of one stream. norm, relative: mean length of the anchors, and over their text's. cosine: mean cosine of anchor
    and text - image, None where an anchor of every pair is 0."""

    norm: float
    relative: float
    cosine: float | None


def anchor_measures(anchors: np.ndarray, texts: np.ndarray, images: np.ndarray) -> list[AnchorMeasures]:
    """(P, S, F) three times -> one a stream: how long anchors are, and how much they point along text - image.

    texts, images: features as the anchors are added to them, of any length.
    """
    lengths = np.linalg.norm(np.asarray(anchors, dtype=np.float64), axis=2)
    of_texts = np.maximum(np.linalg.norm(np.asarray(texts, dtype=np.float64), axis=2), EPSILON)
    along = cosines(anchors, np.asarray(texts, dtype=np.float64) - images)
    return [
        AnchorMeasures(float(lengths[:, s].mean()), float((lengths / of_texts)[:, s].mean()), mean_of(along[:, s]))
        for s in range(lengths.shape[1])
    ]


# --- conflicts of gradients -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Conflict:
    """How two gradients stand to each other over pairs. cosine: mean. share: of pairs whose cosine is below 0. strong:
    below -0.5. pairs: those where both gradients have a length. None where there is no such pair."""

    cosine: float | None
    share: float | None
    strong: float | None
    pairs: int


def conflict_of(values: np.ndarray) -> Conflict:
    """Cosines (P,), NaN where a gradient is 0 -> their `Conflict`."""
    known = np.asarray(values, dtype=np.float64)
    known = known[~np.isnan(known)]
    if not known.size:
        return Conflict(None, None, None, 0)
    return Conflict(float(known.mean()), float((known < 0).mean()), float((known < -0.5).mean()), int(known.size))


def feature_conflicts(positive: np.ndarray, negative: np.ndarray) -> np.ndarray:
    """Gradients of the positive and of the hard-negative term to the text features, (P, S, F) twice -> cosines (P,)."""
    count = len(positive)
    return cosines(np.reshape(positive, (count, -1)), np.reshape(negative, (count, -1)))


def projection_conflicts(
    positive: np.ndarray, negative: np.ndarray, inputs: np.ndarray, shared: bool = True
) -> np.ndarray:
    """Cosines (P,) of the gradients that the two terms of a pair give to the weights and the bias of its projection.

    positive, negative: gradients to the projected features, (P, S, F). inputs: what was projected, (P, S, W). shared:
    one projection for all streams, else one each. The gradient to a linear layer being the sum over streams of
    g x^T, its inner products are those of g times those of x: no (F, W) matrix is made.
    """
    x = np.asarray(inputs, dtype=np.float64)
    kernel = np.einsum("psw,pzw->psz", x, x) + 1  # 1: of the bias
    if not shared:
        kernel = kernel * np.eye(x.shape[1])

    def product(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        found: np.ndarray = (np.einsum("psf,pzf->psz", one, other) * kernel).sum(axis=(1, 2))
        return found

    p, n = np.asarray(positive, dtype=np.float64), np.asarray(negative, dtype=np.float64)
    lengths = np.sqrt(np.maximum(product(p, p) * product(n, n), 0))
    return np.divide(product(p, n), lengths, out=np.full(len(p), math.nan), where=lengths > EPSILON)


def gradient_ratio(with_anchors: np.ndarray, without: np.ndarray) -> float | None:
    """Mean length of gradients (P, S, F) over that of others: below 1, the texts are spared; None over nothing."""
    one, other = (np.linalg.norm(np.reshape(each, (len(each), -1)), axis=1).mean() for each in (with_anchors, without))
    return float(one / other) if other > EPSILON else None


# --- geometry ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Coverage:
    """How evenly directions fill their space.

    effective_rank: exp of the entropy of the squared singular values' shares, from 1 to F. resultant: length of the
    mean direction, 0 (even) to 1 (all alike). evenness: entropy of the angles in the plane of the first two principal
    components over that of an even circle, 0 to 1. angles: share of pairs of directions by angle, ANGLE_BINS from 0 to
    180 degrees. circle: share of directions by angle in that plane, ANGLE_BINS over 360 degrees. mean_cosine: over
    pairs of directions.
    """

    effective_rank: float
    resultant: float
    evenness: float
    mean_cosine: float
    angles: tuple[float, ...]
    circle: tuple[float, ...]


def coverage_of(vectors: np.ndarray) -> Coverage:
    """Of N directions (N, F); those without a length are left out. Raises ValueError where fewer than two are left."""
    directions = unit(vectors)
    directions = directions[np.linalg.norm(directions, axis=1) > 0.5]
    count = len(directions)
    if count < 2:
        raise ValueError(f"coverage of {count} directions")
    products = np.clip(directions @ directions.T, -1, 1)[np.triu_indices(count, 1)]
    angles, _ = np.histogram(np.degrees(np.arccos(products)), bins=ANGLE_BINS, range=(0, 180))
    circle, _ = np.histogram(_plane_angles(directions), bins=ANGLE_BINS, range=(-math.pi, math.pi))
    shares = circle / count
    return Coverage(
        effective_rank(directions),
        float(np.linalg.norm(directions.mean(axis=0))),
        _entropy(shares) / math.log(min(ANGLE_BINS, count)),
        float(products.mean()),
        tuple(float(each) for each in angles / len(products)),
        tuple(float(each) for each in shares),
    )


def effective_rank(rows: np.ndarray) -> float:
    """exp of the entropy of the squared singular values' shares of (N, F): how many directions the rows spread over."""
    squares = np.linalg.svd(np.asarray(rows, dtype=np.float64), compute_uv=False) ** 2
    return float(math.exp(_entropy(squares / squares.sum()))) if squares.sum() > EPSILON else 0.0


def _entropy(shares: np.ndarray) -> float:
    positive = shares[shares > 0]
    return float(max(0.0, -(positive * np.log(positive)).sum()))


def _plane_angles(directions: np.ndarray) -> np.ndarray:
    """Angles (N,) of the centred rows in the plane of their first two principal components, in radians."""
    centred = directions - directions.mean(axis=0)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    plane = axes[:2] if len(axes) > 1 else np.vstack([axes, np.zeros_like(axes)])
    # A singular vector's sign is arbitrary: the largest entry is made positive, so that equal inputs give equal figures
    signs = np.sign(plane[np.arange(len(plane)), np.abs(plane).argmax(axis=1)])
    x, y = (centred @ (plane * np.where(signs == 0, 1, signs)[:, None]).T).T
    return np.arctan2(y, x)


@dataclass(frozen=True)
class AnchorCoverage:
    """Of one stream's anchors, mean over texts: what the direction regulariser is to spread. None: anchors are 0.

    angles: share of pairs of one text's anchors by their angle, ANGLE_BINS from 0 to 180 degrees.
    """

    effective_rank: float | None
    resultant: float | None
    mean_cosine: float | None
    angles: tuple[float, ...]


def anchor_coverage(anchors: np.ndarray) -> list[AnchorCoverage]:
    """(T, I, S, F), the anchors of each text with all images -> one a stream: how far a text's anchors spread."""
    found = []
    for stream in range(anchors.shape[2]):
        each = []
        for own in anchors[:, :, stream]:
            if (np.linalg.norm(own, axis=1) > EPSILON).sum() > 1:
                each.append(coverage_of(own))
        if not each:
            found.append(AnchorCoverage(None, None, None, (0.0,) * ANGLE_BINS))
            continue
        found.append(
            AnchorCoverage(
                float(np.mean([one.effective_rank for one in each])),
                float(np.mean([one.resultant for one in each])),
                float(np.mean([one.mean_cosine for one in each])),
                tuple(float(value) for value in np.mean([one.angles for one in each], axis=0)),
            )
        )
    return found


def pair_distances(similarity: np.ndarray) -> np.ndarray:
    """Distances of directions with these cosines: sqrt(2 - 2 cos), 0 to 2; for a weighted sum of cosines, of the
    weighted streams side by side."""
    return np.sqrt(np.maximum(2 - 2 * np.asarray(similarity, dtype=np.float64), 0))


# --- experts ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ranks:
    """Of one way of ranking: rank of each query's own image from 1 (ties count against it), and its first image."""

    ranks: np.ndarray
    first: np.ndarray

    @property
    def recall(self) -> float:
        """R@1 in percent."""
        return float(100 * (self.ranks == 1).mean())


def ranks_of(similarity: np.ndarray, own: np.ndarray) -> Ranks:
    """(T, I) and the gallery index of each text's image, int64 (T,) -> `Ranks`; the first of equal ones is first."""
    scores = np.asarray(similarity, dtype=np.float64)
    target = scores[np.arange(len(scores)), own][:, None]
    ranks = (scores >= target).sum(axis=1)
    return Ranks(ranks, scores.argmax(axis=1))


@dataclass(frozen=True)
class Consistency:
    """How one stream's ranking stands to the fused one: percent of queries.

    recall: its R@1. agreement: with the same first image as fused. better, worse: where it ranks the own image before,
    behind where the fused one does.
    """

    recall: float
    agreement: float
    better: float
    worse: float


@dataclass(frozen=True)
class ExpertMeasures:
    """fused, even: R@1 with the query's weights and with equal ones. any_stream, all_streams: percent of queries that
    at least one stream, every stream, ranks right. streams: one each."""

    fused: float
    even: float
    any_stream: float
    all_streams: float
    streams: tuple[Consistency, ...]


def expert_measures(by_stream: np.ndarray, weights: np.ndarray, own: np.ndarray) -> ExpertMeasures:
    """(T, I, S) cosines of each stream, (T, S) weights, int64 (T,) own images -> the streams beside their fusion."""
    fused = ranks_of(np.einsum("tis,ts->ti", by_stream, weights), own)
    alone = [ranks_of(by_stream[:, :, stream], own) for stream in range(by_stream.shape[2])]
    right = np.stack([each.ranks == 1 for each in alone])
    return ExpertMeasures(
        fused.recall,
        ranks_of(np.asarray(by_stream, dtype=np.float64).mean(axis=2), own).recall,
        float(100 * right.any(axis=0).mean()),
        float(100 * right.all(axis=0).mean()),
        tuple(
            Consistency(
                each.recall,
                float(100 * (each.first == fused.first).mean()),
                float(100 * (each.ranks < fused.ranks).mean()),
                float(100 * (each.ranks > fused.ranks).mean()),
            )
            for each in alone
        ),
    )


# --- weights ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WeightsByKind:
    """Weights of a stream over queries of one kind. largest: of a single query, at `query` (an index). std: over
    queries."""

    mean: float
    std: float
    largest: float
    query: int


def weights_by_kind(weights: np.ndarray, normal: Sequence[bool | None]) -> dict[str, list[WeightsByKind]]:
    """(T, S) and each query's behaviour -> by `normal` and `anomaly` one a stream; a kind without a query is absent."""
    found = {}
    for name, wanted in (("normal", True), ("anomaly", False)):
        rows = np.array([index for index, each in enumerate(normal) if each is wanted], dtype=np.int64)
        if len(rows):
            own = np.asarray(weights, dtype=np.float64)[rows]
            found[name] = [
                WeightsByKind(
                    float(own[:, s].mean()),
                    float(own[:, s].std()),
                    float(own[:, s].max()),
                    int(rows[own[:, s].argmax()]),
                )
                for s in range(own.shape[1])
            ]
    return found


@dataclass(frozen=True)
class WeightShift:
    """What an edit of the words does to the weights. queries: how many could be edited. signed: mean change of each
    stream's weight. moved: mean of its size."""

    queries: int
    signed: tuple[float, ...]
    moved: tuple[float, ...]


def weight_shift(before: np.ndarray, after: np.ndarray) -> WeightShift:
    """(T, S) twice, of the queries that were edited -> what the edit changed."""
    change = np.asarray(after, dtype=np.float64) - before
    if not len(change):
        return WeightShift(0, (0.0,) * change.shape[1], (0.0,) * change.shape[1])
    return WeightShift(
        len(change),
        tuple(float(each) for each in change.mean(axis=0)),
        tuple(float(each) for each in np.abs(change).mean(axis=0)),
    )


def edited(caption: str, factors: Sequence[str | None], hard: Sequence[str | None], edit: Edit) -> str | None:
    """The caption, cleaned as for training, with words of one factor hidden, or its action exchanged for the hard one.

    factors, hard: appearance, action and background of the caption and of its hard negative. Hidden are content words
    that the factor has and no other factor does, wherever they stand. Exchanged: all words from the first to the last
    of these, where the action stands in one piece, else these words alone. None where there is nothing to hide or to
    put in its place, or where the edit changes nothing.
    """
    words = pre_caption(caption).split()
    place = 0 if edit == "appearance masked" else 1
    wanted = _own_words(factors, place)
    rows = [number for number, word in enumerate(words) if word in wanted]
    if not rows:
        return None
    if edit != "action exchanged":
        return " ".join(MASK if number in set(rows) else word for number, word in enumerate(words))
    instead = pre_caption(hard[1] or "").split()
    if not instead:
        return None
    phrase = pre_caption(factors[1] or "").split()
    start = next((s for s in range(len(words)) if words[s : s + len(phrase)] == phrase), None)
    if start is not None:
        gone = set(range(start, start + len(phrase)))
    else:
        start, gone = rows[0], set(rows)
    kept = [word for number, word in enumerate(words[:start]) if number not in gone]
    kept += instead + [word for number, word in enumerate(words) if number >= start and number not in gone]
    changed = " ".join(kept)
    return changed if changed != " ".join(words) else None


def _own_words(factors: Sequence[str | None], place: int) -> frozenset[str]:
    """Content words of one factor that no other has, as the cleaned caption spells them."""
    of_each = [_content(part) for part in factors]
    others = frozenset().union(*(words for number, words in enumerate(of_each) if number != place))
    return of_each[place] - others


def _content(part: str | None) -> frozenset[str]:
    cleaned = pre_caption(part or "")
    return frozenset(word for word in cleaned.split() if content_words(word))


# --- hard negatives ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Blocks:
    """How block-like a matrix of similarities is, over pairs of different images.

    within: mean similarity of images of one person, across: of two persons. gap: within - across. d: gap over the
    pooled standard deviation of both. separated: share of (within, across) pairs of pairs in the right order, 0.5 by
    chance.
    """

    within: float
    across: float
    gap: float
    d: float
    separated: float


def blocks_of(similarity: np.ndarray, persons: Sequence[str]) -> Blocks:
    """(N, N) and the persons of its rows -> `Blocks`. Raises ValueError where no two rows are of one person, or all."""
    names = np.array(persons)
    same = names[:, None] == names[None, :]
    apart = ~np.eye(len(names), dtype=bool)
    values = np.asarray(similarity, dtype=np.float64)
    within, across = values[same & apart], values[~same]
    if not within.size or not across.size:
        raise ValueError("blocks want two images of one person, and two persons")
    gap = float(within.mean() - across.mean())
    pooled = math.sqrt((within.var() * within.size + across.var() * across.size) / (within.size + across.size))
    order = np.sort(across)
    below, at_most = np.searchsorted(order, within, "left"), np.searchsorted(order, within, "right")
    return Blocks(
        float(within.mean()),
        float(across.mean()),
        gap,
        gap / pooled if pooled > EPSILON else math.inf if gap > 0 else 0.0,
        float((below + at_most).mean() / 2 / across.size),
    )


def as_values(found: object) -> object:
    """Nested data classes, tuples and arrays as what JSON can hold; what is no number is None."""
    if hasattr(found, "__dataclass_fields__"):
        return {name: as_values(getattr(found, name)) for name in found.__dataclass_fields__}
    if isinstance(found, Mapping):
        return {str(name): as_values(each) for name, each in found.items()}
    if isinstance(found, np.ndarray):
        return as_values(found.tolist())
    if isinstance(found, list | tuple):
        return [as_values(each) for each in found]
    if isinstance(found, float | np.floating):
        return round(float(found), 6) if math.isfinite(found) else None
    return found.item() if isinstance(found, np.generic) else found
