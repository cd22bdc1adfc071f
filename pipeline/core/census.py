"""What a dataset has that it should not have, or too much of: near-duplicates, repeated captions, leaks, imbalance.

Plain values in, dataclasses out, and those as text; `pipeline.audit` reads a build and writes what is found here.
Nothing grows with the square of the rows but time: images are compared block by block, and only counts, one mark an
image and the closest pairs are kept.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

AUDIT_REPORT = "audit.json"
"""The file in a build's folder that holds what was found."""

SPLITS = ("train", "test")
BOTH = "train + test"
"""Between the splits: one image (or caption) of each."""
SPANS = (*SPLITS, BOTH)
SAME_PAIR, SAME_VIDEO, OTHER_VIDEO = "same pair", "same video", "different videos"
RELATIONS = (SAME_PAIR, SAME_VIDEO, OTHER_VIDEO)

ROWS_A_BLOCK = 4096
"""Images compared with as many others at once: 20 MB of vectors a side at 1,280 numbers each."""
LOOK_BELOW = 0.1
"""How far below the threshold a pair is still looked at, so that the closest are known where none is a duplicate."""
TOP_LABELS = 5
TOP_CAPTIONS = 5
NAMES_SHOWN = 5
TRAINER_WORDS = 56
"""Words after which CMP's trainer cuts a caption (`core.text.pre_caption`)."""

_SLACK = 1e-4  # what float32 sums may be off by; the cosine itself is then worked out in float64
_CANDIDATES_AT_ONCE = 4096
_MOST_NULL = 0.2
_LEAST_ENTROPY = 0.5

Level = Literal["error", "warning", "note"]


# --- what is found ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finding:
    """Something a person should know. error: the test split is not what it claims to be."""

    level: Level
    text: str


@dataclass(frozen=True)
class PairCount:
    """Image pairs of one kind: within a split or between both, and what the two have in common.

    compared: how many such pairs there are. near: those at or above the threshold. images: rows in at least one of
    these. closest: the highest cosine, None where none came within LOOK_BELOW of the threshold.
    """

    span: str
    relation: str
    compared: int
    near: int
    images: int
    closest: float | None


@dataclass(frozen=True)
class ClosePair:
    """One of the closest pairs of its kind, by row ids."""

    span: str
    relation: str
    first: str
    second: str
    cosine: float


@dataclass(frozen=True)
class NearestInTrain:
    """Of every test image the closest training image: cosines. None where a split is empty."""

    median: float
    p95: float
    highest: float


@dataclass(frozen=True)
class Copies:
    """Images with the same bytes: rows of a split beyond the first of each; test rows whose image is also in train."""

    train: int
    test: int
    between: int


@dataclass(frozen=True)
class CaptionCount:
    """How often captions repeat in one split. form: "exact" or "normalised" (as a trainer reads them).

    repeated: rows whose caption another row of the split has. ambiguous: rows whose caption a row of another video has.
    between: rows whose caption the other split has too.
    """

    form: str
    split: str
    rows: int
    distinct: int
    repeated: int
    ambiguous: int
    between: int


@dataclass(frozen=True)
class CommonCaption:
    """A caption that stands more than once, with how often in each split."""

    caption: str
    train: int
    test: int


@dataclass(frozen=True)
class VideoOverlap:
    """Videos in both splits. by_key, by_name: must be none. by_title: names alike but for the number at their end,
    which OOPS! gives to the clips cut from one upload. names: the first of those by key or name.
    """

    train: int
    test: int
    by_key: int
    by_name: int
    by_title: int
    names: tuple[str, ...]


@dataclass(frozen=True)
class LabelBalance:
    """One label in one split, over the rows that should have it.

    null: rows without. entropy: of the labels' shares, divided by its maximum for so many labels: 1 where all are
    equally frequent, 0 where there is but one; None where no row has any.
    """

    split: str
    label: str
    rows: int
    null: int
    distinct: int
    entropy: float | None
    top: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class CaptionLengths:
    """Words a caption in one split. long: rows that a trainer would cut."""

    split: str
    rows: int
    least: int
    p5: float
    median: float
    mean: float
    p95: float
    most: int
    long: int


@dataclass(frozen=True)
class KindRows:
    """Rows of one split and kind, how many have a hard negative, and how many one with their own caption."""

    split: str
    kind: str
    rows: int
    hard: int
    same_caption: int


@dataclass(frozen=True)
class Audit:
    """All that was found. embedder: name and revision; near_duplicate_cosine: the threshold it was counted with."""

    embedder: str
    near_duplicate_cosine: float
    pairs: tuple[PairCount, ...]
    closest: tuple[ClosePair, ...]
    nearest: NearestInTrain | None
    copies: Copies
    captions: tuple[CaptionCount, ...]
    common_captions: tuple[CommonCaption, ...]
    videos: VideoOverlap
    labels: tuple[LabelBalance, ...]
    lengths: tuple[CaptionLengths, ...]
    kinds: tuple[KindRows, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What a person should know, errors first."""
        return tuple(sorted(_findings(self), key=lambda each: ("error", "warning", "note").index(each.level)))


def read_audit(path: Path, key: str, basis: str | None = None) -> Audit | None:
    """The audit in a file, where it is of the publish shard of this key (and made on this basis); else None."""
    from pydantic import TypeAdapter, ValidationError

    try:
        data = json.loads(path.read_text("utf-8"))
        if data["key"] != key or (basis is not None and data["basis"] != basis):
            return None
        return TypeAdapter(Audit).validate_python(data["audit"])
    except (OSError, ValueError, KeyError, TypeError, ValidationError):
        return None


# --- images -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PairRows:
    """What pairs of rows are told apart by, an array each, all of one length.

    split: 0 train, 1 test; train rows come first. video, pair: numbers that two rows share where they share the video,
    or the pair (in train: the person).
    """

    split: np.ndarray
    video: np.ndarray
    pair: np.ndarray

    def __post_init__(self) -> None:
        if np.any(np.diff(self.split.astype(np.int8)) < 0):
            raise ValueError("train rows come first")


@dataclass(frozen=True)
class PairCensus:
    """`PairCount`s, and of each kind the closest pairs as (span, relation, first row, second row, cosine)."""

    counts: tuple[PairCount, ...]
    closest: tuple[tuple[str, str, int, int, float], ...]


def count_close_pairs(
    vectors: Callable[[int, int], np.ndarray],
    rows: PairRows,
    near: float,
    shown: int,
    rows_a_block: int = ROWS_A_BLOCK,
    progress: Callable[[int, int], None] | None = None,
) -> PairCensus:
    """Every pair of rows whose cosine is at least `near` (rounded to six digits), counted by kind.

    vectors(start, stop): float32 (stop - start, D), each row of length 1 (or 0: alike to nothing). shown: closest pairs
    kept of each kind. Exact: each block is searched with faiss's flat inner-product index, and what it finds is worked
    out again in float64, so that neither blocks nor threads change a count. Time grows with the square of the rows (2 D
    operations a pair); memory holds two blocks and what they find, at the worst all pairs of two blocks.
    """
    import faiss

    total = len(rows.split)
    floor = near - LOOK_BELOW
    counts = np.zeros(len(SPANS) * len(RELATIONS), dtype=np.int64)
    marked = np.zeros((len(counts), total), dtype=bool)
    best: list[list[tuple[float, int, int]]] = [[] for _ in counts]
    starts = range(0, total, rows_a_block)
    done = 0
    for base_start in starts:
        base = np.ascontiguousarray(vectors(base_start, min(base_start + rows_a_block, total)), dtype=np.float32)
        index = faiss.IndexFlatIP(base.shape[1])
        index.add(base)
        for query_start in starts:
            if query_start > base_start:
                break
            queries = (
                base
                if query_start == base_start
                else np.ascontiguousarray(
                    vectors(query_start, min(query_start + rows_a_block, total)), dtype=np.float32
                )
            )
            limits, _, found = index.range_search(queries, floor - _SLACK)
            first = np.repeat(np.arange(len(queries)), np.diff(limits).astype(np.int64))
            second = found.astype(np.int64)
            if query_start == base_start:
                once = first < second
                first, second = first[once], second[once]
            for at in range(0, len(first), _CANDIDATES_AT_ONCE):
                one, other = first[at : at + _CANDIDATES_AT_ONCE], second[at : at + _CANDIDATES_AT_ONCE]
                cosines = np.round(
                    np.einsum("ij,ij->i", queries[one].astype(np.float64), base[other].astype(np.float64)), 6
                )
                kept = cosines >= floor
                _take(rows, one[kept] + query_start, other[kept] + base_start, cosines[kept], near, shown, counts,
                      marked, best)  # fmt: skip
        done += len(base)
        if progress is not None:
            progress(done, total)
    compared = _compared(rows)
    census = []
    closest = []
    for kind, (span, relation) in enumerate((span, relation) for span in SPANS for relation in RELATIONS):
        top = best[kind]
        census.append(
            PairCount(span, relation, compared[kind], int(counts[kind]), int(marked[kind].sum()),
                      -top[0][0] if top else None)
        )  # fmt: skip
        closest += [(span, relation, first_row, second_row, -minus) for minus, first_row, second_row in top]
    return PairCensus(tuple(each for each in census if each.compared), tuple(closest))


def _take(
    rows: PairRows,
    first: np.ndarray,
    second: np.ndarray,
    cosines: np.ndarray,
    near: float,
    shown: int,
    counts: np.ndarray,
    marked: np.ndarray,
    best: list[list[tuple[float, int, int]]],
) -> None:
    """Count these pairs into `counts`, mark their rows, and keep the closest of each kind in `best`."""
    kinds = _kinds_of(rows, first, second)
    for kind in np.unique(kinds):
        own = kinds == kind
        ones, others, values = first[own], second[own], cosines[own]
        close = values >= near
        counts[kind] += int(close.sum())
        marked[kind, ones[close]] = True
        marked[kind, others[close]] = True
        order = np.lexsort((others, ones, -values))[:shown]
        new = [(-float(values[at]), int(ones[at]), int(others[at])) for at in order]
        best[kind] = sorted([*best[kind], *new])[:shown]


def _kinds_of(rows: PairRows, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The number of each pair's kind: span by span, and in it relation by relation."""
    one, other = rows.split[first], rows.split[second]
    span = np.where(one != other, SPANS.index(BOTH), one.astype(np.int64))
    same_pair = (rows.pair[first] == rows.pair[second]) & (one == other)
    same_video = rows.video[first] == rows.video[second]
    relation = np.where(same_pair, 0, np.where(same_video, 1, 2))
    return span * len(RELATIONS) + relation


def _compared(rows: PairRows) -> list[int]:
    """How many pairs there are of each kind."""

    def within(numbers: np.ndarray) -> int:
        sizes = np.unique(numbers, return_counts=True)[1].astype(np.int64)
        return int((sizes * (sizes - 1) // 2).sum())

    found: list[int] = []
    for split in range(len(SPLITS)):
        own = rows.split == split
        total = int(own.sum())
        same_pair, same_video = within(rows.pair[own]), within(rows.video[own])
        found += [same_pair, same_video - same_pair, total * (total - 1) // 2 - same_video]
    train, test = (Counter(rows.video[rows.split == split].tolist()) for split in range(len(SPLITS)))
    shared = sum(count * test[video] for video, count in train.items() if video in test)
    return [*found, 0, shared, train.total() * test.total() - shared]


def nearest_in_train(
    vectors: Callable[[int, int], np.ndarray], rows: PairRows, rows_a_block: int = ROWS_A_BLOCK
) -> NearestInTrain | None:
    """How close the closest training image of each test image is (exact); None where a split is empty."""
    import faiss

    train = int((rows.split == 0).sum())
    total = len(rows.split)
    if not train or train == total:
        return None
    best = np.full(total - train, -1.0, dtype=np.float32)
    for base_start in range(0, train, rows_a_block):
        base = np.ascontiguousarray(vectors(base_start, min(base_start + rows_a_block, train)), dtype=np.float32)
        index = faiss.IndexFlatIP(base.shape[1])
        index.add(base)
        for start in range(train, total, rows_a_block):
            stop = min(start + rows_a_block, total)
            closest, _ = index.search(np.ascontiguousarray(vectors(start, stop), dtype=np.float32), 1)
            best[start - train : stop - train] = np.maximum(best[start - train : stop - train], closest[:, 0])
    median, p95, highest = np.quantile(best.astype(np.float64), (0.5, 0.95, 1.0))
    # Three digits: float32 sums differ in the seventh with the number of threads.
    return NearestInTrain(round(float(median), 3), round(float(p95), 3), round(float(highest), 3))


def count_copies(sha256: np.ndarray, split: np.ndarray) -> Copies:
    """Rows whose image has the very bytes of another's, by their sha256 (an array of fixed-length bytes)."""
    train, test = sha256[split == 0], sha256[split == 1]
    return Copies(
        train=len(train) - len(np.unique(train)),
        test=len(test) - len(np.unique(test)),
        between=int(np.isin(test, train).sum()),
    )


# --- captions and labels ------------------------------------------------------------------------------------------


def digest(text: str) -> bytes:
    """16 bytes that stand for a text: a million captions are counted in 16 MB."""
    return hashlib.sha256(text.encode()).digest()[:16]


def digests(texts: Iterable[str]) -> np.ndarray:
    """The digests of texts as an array that numpy can sort and compare."""
    return np.array([digest(text) for text in texts], dtype="S16")


def count_captions(form: str, captions: np.ndarray, split: np.ndarray, video: np.ndarray) -> list[CaptionCount]:
    """How often captions repeat, a `CaptionCount` a split that has rows. captions: digests, one a row."""
    found = []
    for number, name in enumerate(SPLITS):
        own = split == number
        if not own.any():
            continue
        _, group, sizes = np.unique(captions[own], return_inverse=True, return_counts=True)
        videos = video[own]
        lowest = np.full(len(sizes), np.iinfo(np.int64).max)
        highest = np.full(len(sizes), -1)
        np.minimum.at(lowest, group, videos)
        np.maximum.at(highest, group, videos)
        found.append(
            CaptionCount(
                form=form,
                split=name,
                rows=int(own.sum()),
                distinct=len(sizes),
                repeated=int(sizes[sizes > 1].sum()),
                ambiguous=int(sizes[lowest != highest].sum()),
                between=int(np.isin(captions[own], captions[~own]).sum()),
            )
        )
    return found


def most_common(captions: np.ndarray, split: np.ndarray, top: int = TOP_CAPTIONS) -> list[tuple[int, int, int]]:
    """The captions that stand most often, more than once: a row that has it, and how often in train and in test."""
    _, first, group, sizes = np.unique(captions, return_index=True, return_inverse=True, return_counts=True)
    in_test = np.bincount(group, weights=split, minlength=len(sizes)).astype(int)
    order = np.lexsort((first, -sizes))[:top]
    return [(int(first[at]), int(sizes[at] - in_test[at]), int(in_test[at])) for at in order if sizes[at] > 1]


def caption_lengths(split: str, words: Sequence[int]) -> CaptionLengths:
    """The distribution of words a caption. Raises ValueError for none."""
    if not len(words):
        raise ValueError(f"{split}: no caption has no length")
    counts = np.asarray(words, dtype=np.int64)
    p5, median, p95 = (round(float(each), 1) for each in np.quantile(counts, (0.05, 0.5, 0.95)))
    return CaptionLengths(split, len(counts), int(counts.min()), p5, median, round(float(counts.mean()), 1), p95,
                          int(counts.max()), int((counts > TRAINER_WORDS).sum()))  # fmt: skip


def label_balance(split: str, label: str, counts: Mapping[str | None, int], top: int = TOP_LABELS) -> LabelBalance:
    """The balance of one label in one split. counts: rows by label, None for rows without."""
    named = {name: count for name, count in counts.items() if name is not None and count}
    total = sum(named.values())
    ordered = sorted(named.items(), key=lambda each: (-each[1], each[0]))
    return LabelBalance(
        split=split,
        label=label,
        rows=total + counts.get(None, 0),
        null=counts.get(None, 0),
        distinct=len(named),
        entropy=round(normalised_entropy(list(named.values())), 4) if named else None,
        top=tuple(ordered[:top]),
    )


def normalised_entropy(counts: Sequence[int]) -> float:
    """Shannon's entropy of the shares divided by that of equal shares, 0..1; 0 for a single one."""
    total = sum(counts)
    shares = [count / total for count in counts if count]
    if len(shares) < 2:
        return 0.0
    return -math.fsum(share * math.log(share) for share in shares) / math.log(len(shares))


# --- videos -------------------------------------------------------------------------------------------------------


def plain_name(name: str) -> str:
    """A video's name without what copying may change: letter forms, case, blanks, a file's ending."""
    plain = " ".join(unicodedata.normalize("NFKC", name).casefold().split())
    return re.sub(r"\.(mp4|mkv|webm|avi|mov)$", "", plain)


def title_of(name: str) -> str:
    """The name without the clip's number at its end: what clips cut from one upload share."""
    plain = plain_name(name)
    return plain.rstrip("0123456789").rstrip() or plain


def video_overlap(train: Mapping[str, str], test: Mapping[str, str]) -> VideoOverlap:
    """Which videos both splits have. train, test: name by key."""
    keys = train.keys() & test.keys()
    names = {plain_name(name) for name in train.values()}
    same_name = {key for key, name in test.items() if plain_name(name) in names}
    titles = {title_of(name) for name in train.values()}
    shown = sorted(test[key] for key in keys | same_name)[:NAMES_SHOWN]
    return VideoOverlap(
        train=len(train),
        test=len(test),
        by_key=len(keys),
        by_name=len(same_name),
        by_title=sum(title_of(name) in titles for name in test.values()),
        names=tuple(shown),
    )


# --- in words -----------------------------------------------------------------------------------------------------


def _findings(audit: Audit) -> Iterable[Finding]:
    videos, copies = audit.videos, audit.copies
    if videos.by_key or videos.by_name:
        count = max(videos.by_key, videos.by_name)
        yield Finding("error", f"{count} videos are in train and in test: {', '.join(videos.names)}")
    if copies.between:
        yield Finding("error", f"{copies.between} test images are in train, byte for byte")
    if copies.train or copies.test:
        yield Finding("warning", f"images that stand more than once: {copies.train} in train, {copies.test} in test")
    near = {(each.span, each.relation): each for each in audit.pairs if each.near}
    for span, level, what in (
        (BOTH, "warning", "of a training and a test image of different videos"),
        ("test", "warning", "of two test images of different videos: which is meant a sentence cannot say"),
        ("train", "note", "of two training images of different videos"),
    ):
        if (span, OTHER_VIDEO) in near:
            each = near[span, OTHER_VIDEO]
            yield Finding(level, f"{each.near:,} near-duplicates ({each.images:,} images) {what}")  # type: ignore[arg-type]
    for captions in audit.captions:
        if captions.form == "normalised" and captions.split == "test" and captions.repeated:
            yield Finding(
                "warning",
                f"{captions.repeated} of {captions.rows} test captions are those of another test image too "
                f"({captions.ambiguous} of another video): such a query has more than one right answer",
            )
        if captions.form == "normalised" and captions.split == "test" and captions.between:
            yield Finding("note", f"{captions.between} of {captions.rows} test captions stand in train too")
    same = sum(each.same_caption for each in audit.kinds)
    if same:
        yield Finding("warning", f"{same} hard negatives have the caption of their own image: they teach nothing")
    for label in audit.labels:
        where = f"{label.split}, {label.label}"
        if label.rows and label.null / label.rows > _MOST_NULL:
            yield Finding("warning", f"{where}: {label.null} of {label.rows} rows have none")
        if label.entropy is not None and label.entropy < _LEAST_ENTROPY:
            name, count = label.top[0]
            yield Finding("note", f"{where}: '{name}' alone is {count} of {label.rows - label.null}")
    long = {each.split: each.long for each in audit.lengths if each.long}
    for split, count in long.items():
        yield Finding("note", f"{split}: {count} captions are longer than the {TRAINER_WORDS} words a trainer reads")
    if videos.by_title and not (videos.by_key or videos.by_name):
        yield Finding(
            "note",
            f"{videos.by_title} of {videos.test} test videos are named as a training video but for the number at the "
            "end: clips of one upload, or of one series",
        )


Table = tuple[str, tuple[str, ...], list[tuple[str, ...]]]
"""A heading, the columns' names, and the rows."""


def tables(audit: Audit) -> list[Table]:
    """All of it as tables, for a terminal or a card."""
    found: list[Table] = [
        (
            f"Near-duplicate images (cosine of {audit.near_duplicate_cosine:g} or more)",
            ("within", "two images of", "pairs", "near-duplicates", "images in them", "closest"),
            [
                (
                    each.span,
                    each.relation,
                    f"{each.compared:,}",
                    f"{each.near:,}",
                    f"{each.images:,}",
                    "–" if each.closest is None else f"{each.closest:.3f}",
                )
                for each in audit.pairs
            ],
        ),
        (
            "Captions that stand more than once",
            ("captions", "split", "rows", "distinct", "rows sharing one", "with another video", "with the other split"),
            [
                (
                    each.form,
                    each.split,
                    *(f"{n:,}" for n in (each.rows, each.distinct, each.repeated, each.ambiguous, each.between)),
                )
                for each in audit.captions
            ],
        ),
        (
            "Labels",
            ("split", "label", "rows", "without", "distinct", "evenness", "most frequent"),
            [
                (
                    each.split,
                    each.label,
                    f"{each.rows:,}",
                    f"{100 * each.null / each.rows:.1f} %" if each.rows else "–",
                    str(each.distinct),
                    "–" if each.entropy is None else f"{each.entropy:.2f}",
                    ", ".join(f"{name} {count:,}" for name, count in each.top) or "–",
                )
                for each in audit.labels
            ],
        ),
        (
            "Words a caption",
            ("split", "least", "5 %", "median", "mean", "95 %", "most", f"over {TRAINER_WORDS}"),
            [
                (each.split, str(each.least), f"{each.p5:g}", f"{each.median:g}", f"{each.mean:g}", f"{each.p95:g}",
                 str(each.most), f"{each.long:,}")
                for each in audit.lengths
            ],
        ),
        (
            "Kinds and hard negatives",
            ("split", "kind", "rows", "with a hard negative", "whose caption is their own"),
            [
                (
                    each.split,
                    each.kind,
                    f"{each.rows:,}",
                    f"{100 * each.hard / each.rows:.1f} %" if each.rows else "–",
                    f"{each.same_caption:,}",
                )
                for each in audit.kinds
            ],
        ),
    ]  # fmt: skip
    if audit.common_captions:
        found.insert(
            2,
            (
                "The captions that stand most often",
                ("train", "test", "caption"),
                [(f"{each.train:,}", f"{each.test:,}", each.caption) for each in audit.common_captions],
            ),
        )
    return found


def sentences(audit: Audit) -> list[str]:
    """What the tables do not hold: copies, the closest training images, the videos, and how to read the tables."""
    copies, videos = audit.copies, audit.videos
    said = [
        f"Images are compared by the cosine of their vectors by {audit.embedder}; where – is the closest, none "
        f"came within {LOOK_BELOW:g} of the threshold. Captions are compared as they stand (exact) and as a trainer "
        f"reads them (normalised: lower case, no punctuation, {TRAINER_WORDS} words). Evenness is a label's entropy "
        "divided by the most it could be: 1 where all its values are equally frequent.",
        f"Images with the very bytes of another: {copies.train:,} in train, {copies.test:,} in test; test images that "
        f"are in train too: {copies.between:,}.",
    ]
    if audit.nearest is not None:
        near = audit.nearest
        said.append(
            f"The closest training image of a test image has a cosine of {near.median:.3f} in the median, under "
            f"{near.p95:.3f} for 95 in 100, {near.highest:.3f} at most."
        )
    said.append(
        f"Videos: {videos.train:,} in train, {videos.test:,} in test; in both: {videos.by_key:,} by their key, "
        f"{videos.by_name:,} by their name, {videos.by_title:,} by their name without the number at its end."
    )
    return said
