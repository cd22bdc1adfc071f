"""The shard store: `work/<build>/<stage>/<shard>/` with Parquet parts, `rejected.parquet`, for a filter also what it
measured (`measured-*.parquet`), for a stage whose outcomes may be taken over the items' keys (`keys-*.parquet`), and
`stage.json` last.

A shard is built in `<shard>.building-<key>` beside its place and moved there when it is whole, so a reader sees the old
shard or the new one, never half of either. A kill loses at most the part being written.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core.errors import UserError
from schemas.arrow import arrow_schema
from schemas.records import Record, Rejection

if TYPE_CHECKING:
    import pyarrow as pa

MANIFEST = "stage.json"
REJECTED = "rejected.parquet"


class ItemKey(Record):
    """What an item of a shard was made from, as one key (`core.takeover`)."""

    key: str


class ShardBusyError(UserError):
    """Another process holds the shard and the caller did not want to wait."""


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file whole or not at all: temporary name, fsync, rename."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def parquet_bytes(table: pa.Table, rows_per_group: int | None = None) -> bytes:
    """A table as Parquet bytes: the same table gives the same bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", row_group_size=rows_per_group or max(table.num_rows, 1))
    return sink.getvalue().to_pybytes()


def records_table(model: type, records: Sequence[Any]) -> pa.Table:
    """Records of one model as a table with that model's schema."""
    import pyarrow as pa

    return pa.Table.from_pylist([record.model_dump() for record in records], schema=arrow_schema(model))


def file_digest(path: Path) -> str:
    """sha256 of a file, hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class Store:
    """All shards of one build."""

    build_dir: Path

    def shard_dir(self, stage: str, shard: str) -> Path:
        return self.build_dir / stage / shard

    def manifest(self, stage: str, shard: str) -> dict[str, Any] | None:
        """What `stage.json` says of a finished shard, or None where there is none."""
        path = self.shard_dir(stage, shard) / MANIFEST
        try:
            return json.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            return None
        except json.JSONDecodeError:
            raise UserError(f"{path} is damaged: delete {path.parent} and run the stage again") from None

    def table(self, stage: str, shard: str, columns: Sequence[str], ids: Sequence[str] | None = None) -> pa.Table:
        """These columns of a finished shard's kept records, in id order; of these ids only, where ids are given."""
        return self._parts(stage, shard, "part", columns, ids)

    def _parts(self, stage: str, shard: str, kind: str, columns: Sequence[str], ids: Sequence[str] | None) -> pa.Table:
        import pyarrow as pa
        import pyarrow.dataset as ds

        parts = sorted(self.shard_dir(stage, shard).glob(f"{kind}-*.parquet"))
        if not parts:
            raise UserError(f"{stage} {shard} is not there: run python -m pipeline.{stage} first")
        dataset = ds.dataset([os.fspath(part) for part in parts], format="parquet")
        # The reader passes over parts by their statistics of the id: images of other batches stay on the disk.
        wanted = ds.field("id").isin(pa.array(sorted(ids), pa.string())) if ids is not None else None
        return dataset.to_table(columns=list(columns), filter=wanted, use_threads=False).sort_by("id")

    def measured(
        self, stage: str, shard: str, columns: Sequence[str], ids: Sequence[str] | None = None
    ) -> dict[str, dict[str, Any]]:
        """What a finished filter measured, of the records it kept and of those it rejected, as plain rows by id.

        Raises UserError where the shard is not there or measures nothing.
        """
        names = list(dict.fromkeys(["id", *columns]))
        return {row["id"]: row for row in self._parts(stage, shard, "measured", names, ids).to_pylist()}

    def rows(
        self, stage: str, shard: str, columns: Sequence[str], ids: Sequence[str] | None = None
    ) -> dict[str, dict[str, Any]]:
        """As `table`, as plain rows by id."""
        names = list(dict.fromkeys(["id", *columns]))
        return {row["id"]: row for row in self.table(stage, shard, names, ids).to_pylist()}

    def kept_ids(self, stage: str, shard: str) -> list[str]:
        """The ids a finished shard kept, sorted."""
        return self.table(stage, shard, ["id"])["id"].to_pylist()

    def dropped(self, stage: str, shard: str) -> list[dict[str, Any]]:
        """What a finished shard rejected or failed, in id order, as rows of `Rejection`."""
        import pyarrow.parquet as pq

        return pq.read_table(self.shard_dir(stage, shard) / REJECTED).to_pylist()

    def item_keys(self, stage: str, shard: str) -> dict[str, str]:
        """The key of every item of a finished shard, by id; empty where its stage stores none."""
        import pyarrow.parquet as pq

        pieces = sorted(self.shard_dir(stage, shard).glob("keys-*.parquet"))
        return {row["id"]: row["key"] for piece in pieces for row in pq.read_table(piece).to_pylist()}

    def damaged_files(self, stage: str, shard: str) -> list[str]:
        """The files of a finished shard that are not what `stage.json` says: gone, or of another sha256."""
        folder = self.shard_dir(stage, shard)
        known = (self.manifest(stage, shard) or {}).get("files", {})
        return [
            name
            for name, digest in sorted(known.items())
            if not (folder / name).is_file() or file_digest(folder / name) != digest
        ]

    @contextlib.contextmanager
    def writing(
        self,
        stage: str,
        shard: str,
        key: str,
        model: type[Record],
        measures: type[Record] | None = None,
        wait: bool = True,
    ) -> Iterator[ShardWriter]:
        """A writer for one shard under one content key, alone: a second process waits, or with wait=False is told who
        holds the shard (ShardBusyError). What a killed swap left is put right first.
        """
        from filelock import FileLock, Timeout

        folder = self.build_dir / stage
        folder.mkdir(parents=True, exist_ok=True)
        holder = folder / f".{shard}.holder"
        lock = FileLock(folder / f".{shard}.lock")
        try:
            lock.acquire(timeout=-1 if wait else 0)
        except Timeout:
            who = "another process"
            with contextlib.suppress(FileNotFoundError):
                who = holder.read_text("utf-8") or who
            raise ShardBusyError(f"{stage} {shard} is being built by {who}: wait for it, or stop it") from None
        try:
            holder.write_text(f"process {os.getpid()} on {socket.gethostname()}", "utf-8")
            writer = ShardWriter(self, stage, shard, key, model, measures)
            writer.recover()
            yield writer
        finally:
            holder.unlink(missing_ok=True)
            lock.release()


class ShardWriter:
    """Writes one shard part by part; parts that an earlier, killed run finished are kept as they are."""

    def __init__(
        self, store: Store, stage: str, shard: str, key: str, model: type[Record], measures: type[Record] | None = None
    ) -> None:
        self._stage, self._shard, self._key, self._model, self._measures = stage, shard, key, model, measures
        self._place = store.shard_dir(stage, shard)
        self._aside = self._place.with_name(f"{shard}.old")
        self.folder = self._place.with_name(f"{shard}.building-{key[:12]}")

    def recover(self) -> None:
        """Go through with a swap that a kill cut short, and remove what a run under another key left."""
        if (self.folder / MANIFEST).exists():  # the shard is whole, and only its name was missing
            self._swap(self.folder)
        elif not self._place.exists() and self._aside.exists():
            self._aside.rename(self._place)
        _remove(self._aside)
        for stale in self._place.parent.glob(f"{self._shard}.building-*"):
            if stale != self.folder:
                _remove(stale)

    def begin(self, parts: int, force: bool = False) -> None:
        """Make the folder to build in. The parts of an earlier run stay, unless `force` says to forget them or they are
        more than the `parts` there will be now.
        """
        numbers = range(parts)
        paths = (self._kept_path, self._dropped_path, self._measured_path, self._keys_path)
        known = {path(number).name for number in numbers for path in paths}
        if force or {path.name for path in self.folder.glob("*.parquet")} - {*known, REJECTED}:
            _remove(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        for torn in self.folder.glob(".*.tmp"):
            torn.unlink()

    def abandon(self) -> None:
        """Remove what was built so far."""
        _remove(self.folder)

    def has_part(self, number: int) -> bool:
        """Whether an earlier run finished this part."""
        return self._kept_path(number).exists() and self._dropped_path(number).exists()

    def write_part(
        self,
        number: int,
        kept: Sequence[Record],
        dropped: Sequence[Rejection],
        measured: Sequence[Record] = (),
        keys: Mapping[str, str] | None = None,
    ) -> None:
        """Write one part. What is not kept goes first: a part counts as there when its kept file is.

        keys: of the part's items by id, for a stage whose outcomes may be taken over.
        """
        self._write(self._dropped_path(number), Rejection, dropped)
        if keys is not None:
            self._write(self._keys_path(number), ItemKey, [ItemKey(id=name, key=key) for name, key in keys.items()])
        if self._measures is not None:
            self._write(self._measured_path(number), self._measures, measured)
        self._write(self._kept_path(number), self._model, kept)

    def finish(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """Join the dropped of all parts, write `stage.json`, and put the shard in its place. Returns the manifest."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        pieces = sorted(self.folder.glob("dropped-*.parquet"))
        dropped = pa.concat_tables([pq.read_table(piece) for piece in pieces]).sort_by("id")
        write_atomically(self.folder / REJECTED, parquet_bytes(dropped))
        files = {path.name: file_digest(path) for path in sorted(self.folder.glob("*.parquet")) if path not in pieces}
        whole = {"stage": self._stage, "shard": self._shard, "key": self._key, **manifest, "files": files}
        write_atomically(self.folder / MANIFEST, json.dumps(whole, indent=1, ensure_ascii=False).encode())
        self._swap(self.folder)
        return whole

    def outcomes(self, number: int) -> tuple[list[str], list[dict[str, Any]]]:
        """The kept ids and the dropped rows of a part that is there."""
        import pyarrow.parquet as pq

        kept = pq.read_table(self._kept_path(number), columns=["id"])["id"].to_pylist()
        return kept, pq.read_table(self._dropped_path(number)).to_pylist()

    def _swap(self, whole: Path) -> None:
        # The pieces go only now: until `stage.json` is there, a rerun needs them.
        for piece in whole.glob("dropped-*.parquet"):
            piece.unlink()
        if self._place.exists():
            _remove(self._aside)
            self._place.rename(self._aside)
        whole.rename(self._place)
        _remove(self._aside)

    def _kept_path(self, number: int) -> Path:
        return self.folder / f"part-{number:05d}.parquet"

    def _dropped_path(self, number: int) -> Path:
        return self.folder / f"dropped-{number:05d}.parquet"

    def _keys_path(self, number: int) -> Path:
        return self.folder / f"keys-{number:05d}.parquet"

    def _measured_path(self, number: int) -> Path:
        return self.folder / f"measured-{number:05d}.parquet"

    def _write(self, path: Path, model: type, records: Sequence[Any]) -> None:
        table = records_table(model, sorted(records, key=lambda record: record.id))
        write_atomically(path, parquet_bytes(table))


def _remove(folder: Path) -> None:
    if folder.exists():
        (folder / MANIFEST).unlink(missing_ok=True)  # first: half a shard must not look whole if a kill comes now
        shutil.rmtree(folder)
