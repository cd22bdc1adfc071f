"""What a finished dataset has that it should not have, or too much of: `python -m pipeline.audit`.

Near-duplicate images within and across the splits, captions that stand more than once, videos in both splits, labels,
lengths, kinds and hard negatives. Prints tables, writes `audit.json` and `near_duplicates.png` into the build's folder,
and puts the figures into the delivered dataset's card. No stage: nothing is dropped for it.

The vectors are those of the profile's similarity engine. They are kept under `work/<build>/audit/`, found again by the
image's sha256 and the engine's fingerprint, so that another threshold, or a build of which a part is new, embeds only
what was never embedded. Of n images of d numbers: 4 n d bytes on disk, n^2 d operations to compare each with each, two
blocks in memory. For a million images of 1,280 numbers that is 5 GB, 18 hours on one core (of the profile's `workers`
all are used; worked out from 27 s for 20,480), and in memory about 1 GB for ids and digests.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.core import census
from pipeline.core.census import AUDIT_REPORT, read_audit
from pipeline.core.errors import UserError
from pipeline.core.profile import Profile
from pipeline.core.records import image_stage
from pipeline.core.store import Store, file_digest, write_atomically
from pipeline.core.text import pre_caption

if TYPE_CHECKING:
    from PIL import Image

SHEET_NAME = "near_duplicates.png"
IMAGES_A_PART = 1024
"""Vectors in one file: what a kill can cost at most."""
_READ_IMAGES = 128
_CELL = 200
_LABELS = ("action", "anomaly", "scene")
_SHEET_ORDER = [(span, relation) for relation in reversed(census.RELATIONS) for span in reversed(census.SPANS)]


@dataclass
class Rows:
    """What the audit knows of the published rows, a value each, train first, by shard and id.

    exact, normalised: digests of the captions. videos: name by key, of each split.
    """

    ids: list[str] = field(default_factory=list)
    shards: list[str] = field(default_factory=list)
    splits: list[int] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    video_keys: list[str] = field(default_factory=list)
    pairs: list[str] = field(default_factory=list)
    sha256: list[str] = field(default_factory=list)
    exact: list[bytes] = field(default_factory=list)
    normalised: list[bytes] = field(default_factory=list)
    words: list[int] = field(default_factory=list)
    hard: list[str | None] = field(default_factory=list)
    labels: dict[tuple[str, str], Counter[str | None]] = field(default_factory=dict)
    videos: dict[str, dict[str, str]] = field(default_factory=lambda: {split: {} for split in census.SPLITS})

    @functools.cached_property
    def split(self) -> np.ndarray:
        """0 for train, 1 for test."""
        return np.array(self.splits, dtype=np.uint8)

    @functools.cached_property
    def digests(self) -> np.ndarray:
        """The images' sha256 as an array."""
        return np.array(self.sha256, dtype="S64")

    @functools.cached_property
    def pair_rows(self) -> census.PairRows:
        """Split, video and pair as numbers."""
        return census.PairRows(self.split, _numbered(self.video_keys), _numbered(self.pairs))


def _numbered(names: Sequence[str]) -> np.ndarray:
    known: dict[str, int] = {}
    return np.array([known.setdefault(name, len(known)) for name in names], dtype=np.int64)


def read_rows(store: Store) -> Rows:
    """The published rows of a finished build. Reads no image."""
    rows = Rows()
    table = store.table("publish", "all", ["id", "split", "shard", "hard_image_id"])
    table = table.sort_by([("split", "descending"), ("shard", "ascending"), ("id", "ascending")])
    by_shard: dict[tuple[str, str], list[tuple[str, str | None]]] = {}
    for split, shard, record_id, hard in zip(
        *(table[name].to_pylist() for name in ("split", "shard", "id", "hard_image_id")), strict=True
    ):
        by_shard.setdefault((split, shard), []).append((record_id, hard))
    for (split, shard), members in by_shard.items():
        _read_shard(store, split, shard, members, rows)
    return rows


def _read_shard(store: Store, split: str, shard: str, members: Sequence[tuple[str, str | None]], rows: Rows) -> None:
    ids = [record_id for record_id, _ in members]
    columns = ["video", "source_id", "pair_id", "kind", "behavior", "sha256"]
    images = store.rows(image_stage(shard), shard, columns, ids)
    captions = store.rows("decompose", shard, ["caption"], ids)
    labels = store.rows("attributes", shard, list(_LABELS), ids)
    for record_id, hard in members:
        image, caption = images[record_id], captions[record_id]["caption"]
        key = image["source_id"].split("_")[0]
        rows.ids.append(record_id)
        rows.shards.append(shard)
        rows.splits.append(census.SPLITS.index(split))
        rows.kinds.append(sys.intern(image["kind"]))
        rows.video_keys.append(sys.intern(key))
        rows.pairs.append(image["pair_id"])
        rows.sha256.append(image["sha256"])
        rows.exact.append(census.digest(caption))
        rows.normalised.append(census.digest(pre_caption(caption)))
        rows.words.append(len(caption.split()))
        rows.hard.append(hard)
        rows.videos[split][key] = image["video"]
        for label in _LABELS:
            if label == "scene" or (label == "action") == (image["behavior"] == "normal"):
                rows.labels.setdefault((split, label), Counter())[labels[record_id][label]] += 1


# --- vectors ------------------------------------------------------------------------------------------------------


class Vectors:
    """The vectors of a build's images by one engine, in files of `IMAGES_A_PART`; a damaged file is as none."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._parts: list[Path] = []
        self._place = np.zeros((0, 2), dtype=np.int64)
        self._known = np.zeros(0, dtype="S64")
        self.open()

    def open(self) -> None:
        """Look again at which vectors there are."""
        parts: list[Path] = []
        names: list[np.ndarray] = []
        places: list[np.ndarray] = []
        size: int | None = None
        for path in sorted(self._folder.glob("*.npy")):
            part = _open_part(path)
            if part is None or (size is not None and part["vector"].shape[1] != size):
                path.unlink()
                continue
            size = part["vector"].shape[1]
            names.append(np.array(part["sha256"]))
            places.append(np.stack([np.full(len(part), len(parts)), np.arange(len(part))], axis=1))
            parts.append(path)
        self._parts = parts
        known = np.concatenate(names) if names else np.zeros(0, dtype="S64")
        self._known, first = np.unique(known, return_index=True)
        self._place = np.concatenate(places)[first] if places else np.zeros((0, 2), dtype=np.int64)

    def missing(self, sha256: np.ndarray) -> np.ndarray:
        """Whether there is no vector yet, for each of these images."""
        return ~np.isin(sha256, self._known)

    def of(self, sha256: np.ndarray) -> np.ndarray:
        """float32 (N, D): the vectors of these images, all of which must be there."""
        at = np.searchsorted(self._known, sha256)
        if np.any(at >= len(self._known)) or np.any(self._known[np.minimum(at, len(self._known) - 1)] != sha256):
            raise KeyError("an image has no vector")
        places = self._place[at]
        found: np.ndarray | None = None
        for number in np.unique(places[:, 0]):
            part = np.load(self._parts[number], mmap_mode="r", allow_pickle=False)["vector"]
            own = places[:, 0] == number
            if found is None:
                found = np.zeros((len(sha256), part.shape[1]), dtype=np.float32)
            found[own] = part[places[own, 1]]
        assert found is not None
        return found


def _open_part(path: Path) -> np.ndarray | None:
    try:
        part = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError):
        return None
    names, ndim = part.dtype.names, part.ndim
    sound = names == ("sha256", "vector") and ndim == 1 and len(part) and part.dtype == _part_type(part["vector"].shape)
    return part if sound else None


def _part_type(shape: Sequence[int]) -> np.dtype[Any]:
    return np.dtype([("sha256", "S64"), ("vector", "<f4", (shape[-1],))])


def write_part(folder: Path, name: str, sha256: Sequence[str], vectors: np.ndarray) -> Path:
    """Write the vectors of some images as one file, whole or not at all. Returns its path.

    Vectors are brought to length 1; one of length 0 stays, alike to nothing. Raises ValueError for one that is no
    number.
    """
    if not np.isfinite(vectors).all():
        raise ValueError("an image's vector holds NaN or infinity")
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    part = np.zeros(len(sha256), dtype=_part_type(vectors.shape))
    part["sha256"] = [each.encode() for each in sha256]
    part["vector"] = vectors / np.where(lengths > 0, lengths, 1)
    buffer = io.BytesIO()
    np.save(buffer, part, allow_pickle=False)
    # The name tells the images: two processes that embed the same ones write the same file.
    path = folder / f"{name}-{hashlib.sha256(part['sha256'].tobytes()).hexdigest()[:12]}.npy"
    write_atomically(path, buffer.getvalue())
    return path


def vectors_folder(profile: Profile, store: Store) -> Path:
    """Where the vectors of the profile's similarity engine are kept."""
    known = _fingerprint(profile)
    mark = hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode()).hexdigest()[:12]
    return store.build_dir / "audit" / f"{known['name']}-{mark}"


def _fingerprint(profile: Profile) -> dict[str, Any]:
    from pipeline.backends import registry

    return registry.fingerprint("similarity", profile.similarity.backend, profile.similarity.settings)


def embed_all(
    profile: Profile, store: Store, rows: Rows, progress: Callable[[int, int], None] | None = None
) -> Vectors:
    """Embed the images that have no vector yet, in the profile's number of processes. Returns all vectors."""
    folder = vectors_folder(profile, store)
    folder.mkdir(parents=True, exist_ok=True)
    vectors = Vectors(folder)
    todo: dict[str, list[str]] = {}
    seen: set[str] = set()
    for at in np.flatnonzero(vectors.missing(rows.digests)):
        if rows.sha256[at] not in seen:
            seen.add(rows.sha256[at])
            todo.setdefault(rows.shards[at], []).append(rows.ids[at])
    if not todo:
        return vectors
    total = sum(map(len, todo.values()))
    done: dict[str, int] = {}

    def tell(shard: str, count: int, _: int) -> None:
        done[shard] = count
        if progress is not None:
            progress(sum(done.values()), total)

    if profile.workers > 1 and len(todo) > 1:
        from pipeline.core.workers import worker_pool

        with worker_pool(profile.workers, tell) as submit:
            for future in [submit(embed_task, profile, store, shard, ids) for shard, ids in todo.items()]:
                future.result()
    else:
        for shard, ids in todo.items():
            embed_task(profile, store, shard, ids, tell)
    vectors.open()
    return vectors


def embed_task(
    profile: Profile,
    store: Store,
    shard: str,
    ids: Sequence[str],
    tell: Callable[[str, int, int], None] | None = None,
) -> None:
    """Embed these images of one shard and write their vectors; runs in a worker process, which tells how far it is.

    Raises UserError where an image is not that of its sha256.
    """
    from pipeline.core.images import read_image
    from pipeline.core.workers import report

    embedder, folder = _embedder(profile, store), vectors_folder(profile, store)
    for start in range(0, len(ids), IMAGES_A_PART):
        part = ids[start : start + IMAGES_A_PART]
        names: list[str] = []
        found: list[np.ndarray] = []
        for at in range(0, len(part), _READ_IMAGES):
            own = part[at : at + _READ_IMAGES]
            images = store.rows(image_stage(shard), shard, ["image", "sha256"], own)
            for record_id in own:
                if hashlib.sha256(images[record_id]["image"]).hexdigest() != images[record_id]["sha256"]:
                    raise UserError(
                        f"the image of {record_id} is not that of its sha256: run python -m pipeline.verify"
                    )
            names += [images[record_id]["sha256"] for record_id in own]
            found.append(embedder.embed([read_image(images[record_id]["image"], record_id) for record_id in own]))
            (tell or report)(shard, start + at + len(own), len(ids))
        write_part(folder, shard, names, np.concatenate(found))


def _embedder(profile: Profile, store: Store) -> Any:
    from pipeline.backends import registry
    from pipeline.backends.protocols import BackendContext

    chosen = profile.similarity
    context = BackendContext(settings=chosen.settings, build_dir=store.build_dir, truth_dir=store.build_dir)
    return registry.create("similarity", chosen.backend, context)


# --- the audit ----------------------------------------------------------------------------------------------------


def audit_rows(profile: Profile, store: Store, rows: Rows, vectors: Vectors) -> census.Audit:
    """Everything measured on these rows. Needs no engine, only their vectors."""
    import faiss

    faiss.omp_set_num_threads(profile.workers)  # a pair found is worked out again: threads change no count

    def block(start: int, stop: int) -> np.ndarray:
        return vectors.of(rows.digests[start:stop])

    near = profile.audit.near_duplicate_cosine
    pairs = census.count_close_pairs(block, rows.pair_rows, near, profile.audit.closest_pairs)
    known = _fingerprint(profile)
    exact, normalised = (np.array(each, dtype="S16") for each in (rows.exact, rows.normalised))
    video = rows.pair_rows.video
    words = np.array(rows.words)
    common = census.most_common(exact, rows.split)
    captions = _captions(store, [(rows.shards[row], rows.ids[row]) for row, _, _ in common])
    return census.Audit(
        embedder=f"{known['name']} {known['revision']}",
        near_duplicate_cosine=near,
        pairs=pairs.counts,
        closest=tuple(
            census.ClosePair(span, relation, rows.ids[first], rows.ids[second], cosine)
            for span, relation, first, second, cosine in pairs.closest
        ),
        nearest=census.nearest_in_train(block, rows.pair_rows),
        copies=census.count_copies(rows.digests, rows.split),
        captions=(
            *census.count_captions("exact", exact, rows.split, video),
            *census.count_captions("normalised", normalised, rows.split, video),
        ),
        common_captions=tuple(
            census.CommonCaption(captions[rows.ids[row]], train, test) for row, train, test in common
        ),
        videos=census.video_overlap(rows.videos["train"], rows.videos["test"]),
        labels=tuple(
            census.label_balance(split, label, rows.labels[split, label])
            for split in census.SPLITS
            for label in _LABELS
            if (split, label) in rows.labels
        ),
        lengths=tuple(
            census.caption_lengths(split, words[rows.split == number])
            for number, split in enumerate(census.SPLITS)
            if np.any(rows.split == number)
        ),
        kinds=tuple(_kinds(rows)),
    )


def _captions(store: Store, wanted: Iterable[tuple[str, str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for shard, ids in _by_shard(wanted).items():
        found |= {
            record_id: row["caption"] for record_id, row in store.rows("decompose", shard, ["caption"], ids).items()
        }
    return found


def _by_shard(wanted: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    grouped: dict[str, list[str]] = {}
    for shard, record_id in wanted:
        grouped.setdefault(shard, []).append(record_id)
    return grouped


def _kinds(rows: Rows) -> Iterator[census.KindRows]:
    from schemas.records import KINDS

    captions = dict(zip(rows.ids, rows.normalised, strict=True))
    counts: Counter[tuple[int, str, str]] = Counter()
    for number, kind, own, hard in zip(rows.splits, rows.kinds, rows.normalised, rows.hard, strict=True):
        counts[number, kind, "rows"] += 1
        if hard is not None:
            counts[number, kind, "hard"] += 1
            counts[number, kind, "same"] += captions[hard] == own
    for number, split in enumerate(census.SPLITS):
        for kind in KINDS:
            if counts[number, kind, "rows"]:
                yield census.KindRows(split, kind, *(counts[number, kind, what] for what in ("rows", "hard", "same")))


def audit_build(
    profile: Profile, build: str, progress: Callable[[str], Any] | None = None
) -> tuple[census.Audit, Path]:
    """Audit a finished build, unless what `audit.json` says still stands. Returns the audit and the file's path.

    Raises UserError where publish has not run or nothing was published.
    """
    from pipeline import stages

    store = Store(stages.build_dir(profile, build))
    manifest = store.manifest("publish", "all")
    if manifest is None:
        raise UserError(f"the build in {store.build_dir} is not finished: run python -m pipeline.build first")
    path, sheet = store.build_dir / AUDIT_REPORT, store.build_dir / SHEET_NAME
    basis = _basis(profile, manifest)
    known = read_audit(path, manifest["key"], basis)
    if known is not None and (sheet.is_file() or not known.closest):
        return known, path
    rows = read_rows(store)
    if not rows.ids:
        raise UserError(f"the build in {store.build_dir} has no published row, so that there is nothing to audit")
    vectors = embed_all(profile, store, rows, progress("embedding") if progress else None)
    found = audit_rows(profile, store, rows, vectors)
    page = close_pairs_sheet(store, rows, found)
    if page is None:
        sheet.unlink(missing_ok=True)
    else:
        buffer = io.BytesIO()
        page.save(buffer, "PNG")
        write_atomically(sheet, buffer.getvalue())
    data = {
        "build": build,
        "key": manifest["key"],
        "basis": basis,
        "findings": [asdict(each) for each in found.findings],
        "audit": asdict(found),
    }
    write_atomically(path, (json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode())
    return found, path


def _basis(profile: Profile, manifest: Mapping[str, Any]) -> str:
    """What decides whether an audit still stands: the records, the settings, the engine, and this code."""
    basis = {
        "publish": manifest["key"],
        "settings": profile.section("audit"),
        "engine": _fingerprint(profile),
        "code": [file_digest(Path(str(module))) for module in (__file__, census.__file__)],
    }
    return hashlib.sha256(json.dumps(basis, sort_keys=True, default=str).encode()).hexdigest()


def close_pairs_sheet(store: Store, rows: Rows, found: census.Audit) -> Image.Image | None:
    """The closest pairs of every kind side by side, with their cosines; None where no two images come near."""
    from PIL import Image

    from pipeline.core.images import read_image
    from pipeline.core.sheet import Cell, contact_sheet, stacked

    where = {record_id: at for at, record_id in enumerate(rows.ids)}
    wanted = {record_id for pair in found.closest for record_id in (pair.first, pair.second)}
    captions = _captions(store, [(rows.shards[where[each]], each) for each in sorted(wanted)])
    pictures = {}
    for shard, ids in _by_shard((rows.shards[where[each]], each) for each in sorted(wanted)).items():
        for record_id, row in store.rows(image_stage(shard), shard, ["image"], ids).items():
            pictures[record_id] = Image.fromarray(read_image(row["image"], record_id))
    pages = []
    for span, relation in _SHEET_ORDER:
        cells: list[Cell | None] = []
        for pair in found.closest:
            if (pair.span, pair.relation) == (span, relation):
                near = "near-duplicate" if pair.cosine >= found.near_duplicate_cosine else "below the threshold"
                for record_id, heading in ((pair.first, f"{pair.cosine:.3f}, {near}"), (pair.second, "and")):
                    at = where[record_id]
                    video = rows.videos[census.SPLITS[rows.splits[at]]][rows.video_keys[at]]
                    cells.append(Cell(pictures[record_id], heading, (record_id, video, captions[record_id])))
        if cells:
            title = f"{span}, {relation}: the closest (threshold {found.near_duplicate_cosine:g})"
            pages.append(contact_sheet(cells, 4, _CELL, title, text_lines=7))
    return stacked(pages) if pages else None


def format_audit(found: census.Audit) -> str:
    """The audit as text for a terminal: tables, sentences, and the findings last."""
    parts = []
    for title, head, lines in census.tables(found):
        table = [head, *lines]
        widths = [max(len(line[column]) for line in table) for column in range(len(head))]
        rows = (
            "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in table
        )
        parts.append("\n".join([f"{title}:", *(f"  {row}" for row in rows)]))
    parts.append("\n".join(census.sentences(found)))
    findings = [f"{each.level:<8} {each.text}" for each in found.findings]
    parts.append("\n".join(findings or ["nothing to note"]))
    return "\n\n".join(parts)


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m pipeline.audit`. Returns the exit code: 1 where a finding is an error."""
    from pipeline import cli
    from pipeline.core.workers import use_one_thread

    use_one_thread()
    parser = cli.common_parser(
        "pipeline.audit", "Look for near-duplicates, repeated captions, leaks and imbalance in a finished dataset."
    )
    options = parser.parse_args(argv)

    def run() -> int:
        from pipeline import delivery, stages

        profile, build = cli.profile_and_build(options)
        bars: list[cli.Bar] = []

        def bar(name: str) -> cli.Bar:
            bars.append(cli.Bar(name))
            return bars[-1]

        try:
            found, path = audit_build(profile, build, bar)
        finally:
            for each in bars:
                each.close()
        print(format_audit(found))
        print(f"\nwritten to {path}")
        if found.closest:
            print(f"look at    {path.with_name(SHEET_NAME)}")
        store = Store(stages.build_dir(profile, build))
        print(delivery.card_message(profile, delivery.refresh_card(profile, store)))
        return cli.SOME_FAILED if any(each.level == "error" for each in found.findings) else cli.DONE

    return cli.guarded(run)


if __name__ == "__main__":
    raise SystemExit(main())
