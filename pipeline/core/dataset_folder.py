"""A dataset's folder, whoever fills it: whose it is, its columns, its files, and how it gets into its place."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from pipeline.core.card import SIMULATED_FOOTAGE_TAG, TAG, SplitFiles
from pipeline.core.errors import UserError, one_line
from pipeline.core.store import file_digest
from schemas.arrow import arrow_schema
from schemas.records import PublishedImage

if TYPE_CHECKING:
    from datasets import Features

CARD = "README.md"
VOCABULARY = "vocabulary.json"
IMPORT_NOTE = "import.json"

OURS = re.compile(
    r"README\.md|\.README\.md\.\d+\.tmp|vocabulary\.json|import\.json|data/\w+-\d{5}-of-\d{5}\.parquet|"
    r"rejected/rejected-\d{5}-of-\d{5}\.parquet"
)
"""The files of a dataset that this project wrote, by their path in its folder."""

MOST_GROUP_BYTES = 64 << 20
"""Pictures held in memory before they are written."""


def features_of(model: type[BaseModel]) -> Features:
    """The features of a published model, read off its schema; each encoded image is an `Image`."""
    from datasets import Features, Image

    features = Features.from_arrow_schema(arrow_schema(model))
    for name, info in model.model_fields.items():
        if info.annotation in (PublishedImage, PublishedImage | None):
            features[name] = Image()
    return features


def published_image(name: str, data: bytes) -> PublishedImage:
    """An encoded image as a row holds it: its path is the name with the ending that its bytes say."""
    return PublishedImage(bytes=data, path=f"{name}.png" if data.startswith(b"\x89PNG") else f"{name}.jpg")


def is_ours(folder: Path) -> bool:
    """Whether a folder holds a dataset that this project wrote: its card has our tag."""
    tags = card_head(folder).get("tags")
    return isinstance(tags, list) and TAG in tags


def card_head(folder: Path) -> dict[str, Any]:
    """The YAML head of a folder's card; empty where there is none."""
    import yaml

    path = folder / CARD
    if not path.is_file():
        return {}
    with path.open("rb") as file:
        text = file.read(1 << 20).decode("utf-8", "replace")
    parts = re.split(r"^---\s*$", text, maxsplit=2, flags=re.MULTILINE)
    try:
        head = yaml.safe_load(parts[1]) if len(parts) == 3 and not parts[0].strip() else None
    except yaml.YAMLError:
        return {}
    return head if isinstance(head, dict) else {}


def check_out(out: Path, option: str = "--set out=FOLDER") -> None:
    """Raises UserError unless the folder is absent, empty, or a dataset that this project wrote."""
    if not out.exists() and not out.is_symlink():
        return
    if not out.is_dir():
        raise UserError(f"out: {out} is not a folder; choose another with {option}")
    if any(out.iterdir()) and not is_ours(out):
        raise UserError(
            f"out: {out} holds something else than a dataset of this project and stays as it is; "
            f"choose another folder with {option}"
        )


def shown_folder(out: Path) -> str:
    """The folder as the card's example names it: never a path of the machine it was built on."""
    return f"./{out.name if out.is_absolute() else out.as_posix()}"


def files_in(folder: Path) -> list[Path]:
    """Every file and link under a folder, sorted."""
    return sorted(path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())


_DATA_FILE = re.compile(r"(\w+)-\d{5}-of-\d{5}\.parquet")


def split_files(folder: Path) -> dict[str, list[Path]]:
    """The data files of each split that a dataset's folder has, in their order; train and test come first."""
    found: dict[str, list[Path]] = {}
    for path in sorted((folder / "data").glob("*.parquet")):
        if match := _DATA_FILE.fullmatch(path.name):
            found.setdefault(match[1], []).append(path)
    return dict(sorted(found.items(), key=lambda each: ({"train": 0, "test": 1}.get(each[0], 2), each[0])))


def read_split(files: Sequence[Path], columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """The rows of these files as plain values, a few in memory at once.

    columns: of these alone; `image.path` is an image without its bytes. Raises UserError for a file that is broken.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    for path in files:
        try:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(32 if columns is None else 4096, columns=columns):
                    yield from batch.to_pylist()
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"{path}: cannot be read ({one_line(error)})") from None


def row_count(files: Sequence[Path]) -> int:
    """How many rows these files hold, by what they say at their ends. Raises UserError for a file that is broken."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    total = 0
    for path in files:
        try:
            total += pq.read_metadata(path).num_rows
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"{path}: cannot be read ({one_line(error)})") from None
    return total


FRAME_OF_VIDEO = "oops"
"""What `generator` calls a frame that was taken from a video."""


def may_show_real_people(folder: Path) -> Callable[[Mapping[str, Any]], bool]:
    """Whether a row's image may show real people, whose rights nobody has cleared: asked of each row of a dataset.

    So do frames of videos, unless the card says that the footage is simulated, and images of which the row does not say
    what made them. Images that an engine made do not. A row: its `generator`.
    """
    head = card_head(folder)
    tags = head.get("tags")
    # Of datasets without the tag the licence tells: frames of real videos make it `other`.
    simulated = SIMULATED_FOOTAGE_TAG in (tags if isinstance(tags, list) else []) or head.get("license") == "apache-2.0"

    def asked(row: Mapping[str, Any]) -> bool:
        generator = row["generator"]
        return generator is None or (generator["name"] == FRAME_OF_VIDEO and not simulated)

    return asked


def content_digest(folder: Path) -> str:
    """sha256, hex, over the names and digests of all data files: the same rows in the same files give the same."""
    files = {path.relative_to(folder).as_posix(): file_digest(path) for path in sorted(folder.rglob("*.parquet"))}
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


class Place:
    """Where a dataset goes, and the two folders beside it through which it gets there.

    origin: what it is made from; two makers with one `out` do not share their half-made folders. check: raises where
    the folder is not ours to replace. ours: the files that go with the old folder; those of others stay.
    """

    def __init__(
        self,
        out: Path,
        origin: Path,
        option: str = "--set out=FOLDER",
        check: Callable[[Path, str], None] = check_out,
        ours: re.Pattern[str] = OURS,
    ) -> None:
        mark = hashlib.sha256(str(origin.resolve()).encode()).hexdigest()[:8]
        self._out, self._option, self._check, self._ours = out, option, check, ours
        self._new = out.with_name(f".{out.name}.building-{mark}")
        self._old = out.with_name(f".{out.name}.old-{mark}")

    def recover(self) -> None:
        """Finish or undo a swap that a kill cut short."""
        if self._old.is_dir():
            if self._out.exists():
                self._clear_old()
            else:
                self._old.rename(self._out)

    def building(self) -> Path:
        """An empty folder beside `out`."""
        if self._new.exists():
            shutil.rmtree(self._new)
        try:
            self._new.mkdir(parents=True)
        except OSError as error:
            raise UserError(
                f"out: {self._out} cannot be made ({error.strerror}); choose another with {self._option}"
            ) from None
        return self._new

    def swap(self) -> None:
        """Put the new folder in the old one's place."""
        self._check(self._out, self._option)
        if self._out.exists():
            self._out.rename(self._old)
        self._new.rename(self._out)
        self._clear_old()

    def abandon(self) -> None:
        """Remove what was built so far; a dataset that the swap had already moved aside comes back."""
        shutil.rmtree(self._new, ignore_errors=True)
        self.recover()

    def _clear_old(self) -> None:
        if not self._old.is_dir():
            return
        for path in files_in(self._old):
            inside = path.relative_to(self._old)
            if not self._ours.fullmatch(inside.as_posix()):
                (self._out / inside).parent.mkdir(parents=True, exist_ok=True)
                path.rename(self._out / inside)
        shutil.rmtree(self._old)


class SplitWriter:
    """Writes rows as they come into files of bounded size, without knowing how many there will be.

    Files get their names at the end, since those say how many they are. Holds one row group in memory.
    """

    def __init__(
        self,
        folder: Path,
        subfolder: str,
        split: str,
        model: type[BaseModel],
        *,
        rows_per_file: int,
        rows_per_group: int,
        bytes_per_file: int,
    ) -> None:
        self._folder, self._subfolder, self._split, self._model = folder, subfolder, split, model
        self._rows_per_file, self._rows_per_group, self._bytes_per_file = rows_per_file, rows_per_group, bytes_per_file
        self._schema = features_of(model).arrow_schema
        self._group: list[dict[str, Any]] = []
        self._group_bytes = self._rows_in_file = self._bytes_in_file = 0
        self._parts: list[Path] = []
        self._file: Any = None
        self._writer: Any = None
        self.rows = self.memory = 0

    def write(self, rows: Iterable[BaseModel]) -> SplitFiles | None:
        """Write all rows; what the card says of the split, or None where there was no row."""
        try:
            for row in rows:
                self._add(row)
            self._flush()
            self._close()
        finally:
            if self._file is not None:  # the rows ended in an error: the folder is given up
                with contextlib.suppress(Exception):
                    self._writer.close()
                self._file.close()
        if not self._parts:
            return None
        count, disk = len(self._parts), 0
        for number, part in enumerate(self._parts):
            disk += part.stat().st_size
            part.rename(part.with_name(f"{self._split}-{number:05d}-of-{count:05d}.parquet"))
        pattern = f"{self._subfolder}/{self._split}-*-of-{count:05d}.parquet"
        return SplitFiles(self._split, pattern, self.rows, self.memory, disk)

    def _add(self, row: BaseModel) -> None:
        if self._rows_in_file + len(self._group) >= self._rows_per_file or (
            self._bytes_in_file + self._group_bytes >= self._bytes_per_file
        ):
            self._flush()
            self._close()
        self._group.append(row.model_dump())
        self._group_bytes += sum(len(value.bytes) for _, value in row if isinstance(value, PublishedImage))
        if len(self._group) >= self._rows_per_group or self._group_bytes >= MOST_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not self._group:
            return
        if self._writer is None:
            (self._folder / self._subfolder).mkdir(exist_ok=True)
            self._parts.append(self._folder / self._subfolder / f"{self._split}-{len(self._parts):05d}.part")
            self._file = self._parts[-1].open("wb")
            self._writer = pq.ParquetWriter(self._file, self._schema, compression="zstd")
        table = pa.Table.from_pylist(self._group, schema=self._schema)
        self._writer.write_table(table, row_group_size=len(self._group))
        self.rows += len(self._group)
        self.memory += table.nbytes
        self._rows_in_file += len(self._group)
        self._bytes_in_file += self._group_bytes
        self._group, self._group_bytes = [], 0

    def _close(self) -> None:
        if self._writer is None:
            return
        self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._file = self._writer = None
        self._rows_in_file = self._bytes_in_file = 0
