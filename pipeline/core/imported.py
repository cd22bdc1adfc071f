"""Datasets that did not come out of this project's stages, written in its form: Parquet in a stream, a card, a swap.

`write_imported` takes rows as they come and never holds more than a row group of them. What it writes is read by
`pipeline.training.samples.load_samples` and by `datasets.load_dataset(folder)`.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from pipeline.core.card import COLUMNS, TAG, ConfigFiles, files_head, markdown_table, size_category
from pipeline.core.dataset_folder import (
    CARD,
    IMPORT_NOTE,
    Place,
    SplitWriter,
    check_out,
    content_digest,
    features_of,
    files_in,
    published_image,
    shown_folder,
)
from pipeline.core.errors import UserError
from pipeline.core.seen import SeenNames
from pipeline.core.store import write_atomically
from schemas.records import ImportedRejection, ImportedRow, PublishedImage

SPLITS = ("train", "test", "ucc", "weather_wind", "weather_rain", "weather_snow", "weather_rain_snow", "weather_dark",
          "weather_dark_wind", "weather_dark_rain", "weather_dark_snow", "weather_light")  # fmt: skip
"""The splits that a dataset may have; ordinary weather is `test`."""

ROWS_PER_FILE = 10_000
ROWS_PER_GROUP = 100
BYTES_PER_FILE = 500 << 20
"""Of pictures, before a new file is begun."""

_SPLIT_NAME = re.compile(r"[A-Za-z0-9]\w*")

IMPORTED_COLUMNS = {
    **COLUMNS,
    "image_id": "the image's id as it came; unique in its split",
    "captions": "all captions of the image where it may have several; `caption` is the first. Null: it is the only one",
    "match_id": "images with one `match_id` answer each other's captions. Null: an image answers its own alone",
    "kind": "goal (what was meant), wentrong (what went wrong), full (both in one); null where nobody knows",
    "behavior": "normal or anomaly; null where nobody knows",
    "reviewed": "whether reviewers saw the pair; null where nobody knows",
}


@dataclass(frozen=True)
class ImportedDataset:
    """What was written: rows of each split that has any, how many were rejected, and the digest of the data files."""

    folder: Path
    rows: Mapping[str, int]
    rejected: int
    digest: str


def picture_fields(data: bytes, name: str) -> dict[str, Any]:
    """The columns of an encoded picture: image, width, height (pixels, upright) and sha256.

    name: kept as the picture's path where it ends as a picture's name does; else the ending is added. Reads the
    picture's head and not its pixels; see `core.images.read_image` for a full check. Raises ImageError for what is no
    picture.
    """
    from PIL import ExifTags, Image

    from pipeline.core.images import DEFAULT_MAX_PIXELS, IMAGE_SUFFIXES, ImageError

    try:
        with Image.open(io.BytesIO(data), formats=("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")) as image:
            width, height = image.size
            turned = image.getexif().get(ExifTags.Base.Orientation, 1) in (5, 6, 7, 8)
    except Exception as error:  # Pillow's readers raise all sorts of things on bytes from outside
        raise ImageError(f"{name}: not an image of a known format") from error
    if width * height > DEFAULT_MAX_PIXELS or not width * height:
        raise ImageError(f"{name}: {width} x {height} pixels, the limit is {DEFAULT_MAX_PIXELS}")
    if turned:
        width, height = height, width
    known = Path(name).suffix.lower() in IMAGE_SUFFIXES
    column = PublishedImage(bytes=data, path=name) if known else published_image(name, data)
    return {"image": column, "width": width, "height": height, "sha256": hashlib.sha256(data).hexdigest()}


def write_imported(
    folder: Path,
    splits: Mapping[str, Iterable[ImportedRow]],
    note: str | Callable[[], str],
    *,
    title: str = "Imported dataset for text-based person anomaly search",
    licence: str = "terms-of-the-source",
    rejected: Iterable[ImportedRejection] = (),
    facts: Mapping[str, Any] | None = None,
    rows_per_file: int = ROWS_PER_FILE,
    bytes_per_file: int = BYTES_PER_FILE,
    option: str = "--out FOLDER",
) -> ImportedDataset:
    """Write a dataset whose rows come from elsewhere, and put it in its place when it is whole.

    splits: the rows of each split, each read once and in this order. note: where they are from, for the card
    (Markdown); a function is asked when all rows have come. licence: `apache-2.0`, or else the name of other terms.
    rejected: read last. facts: plain values that are kept in `import.json`. option: what a person gives to choose
    another folder.

    Returns the counts. Raises UserError where the folder holds something else than a dataset of this project, where
    an id comes twice in a split, or where no row came.
    """
    out = folder.resolve()
    for split in splits:
        if not _SPLIT_NAME.fullmatch(split) or split == "rejected":
            raise ValueError(f"{split!r} is no name of a split")
    place = Place(out, out, option)
    place.recover()
    check_out(out, option)
    made = place.building()
    try:
        written = [
            found
            for split, rows in splits.items()
            if (found := _writer(made, "data", split, ImportedRow, rows_per_file, bytes_per_file).write(
                _checked(split, rows)))
        ]  # fmt: skip
        if not written:
            raise UserError(f"out: no row came, so {folder} is not written{_told(note)}")
        dropped = _writer(made, "rejected", "rejected", ImportedRejection, 1_000_000, bytes_per_file).write(rejected)
        configs = [ConfigFiles("default", written, features_of(ImportedRow)._to_yaml_list())]
        if dropped is not None:
            configs.append(ConfigFiles("rejected", [dropped], features_of(ImportedRejection)._to_yaml_list()))
        digest = content_digest(made)
        text = note() if callable(note) else note
        write_atomically(made / CARD, _card(title, licence, shown_folder(folder), configs, text, digest).encode())
        counts = {each.name: each.rows for each in written}
        count = dropped.rows if dropped is not None else 0
        files = {path.relative_to(made).as_posix(): path.stat().st_size for path in files_in(made)}
        told = {**(facts or {}), "rows": counts, "rejected": count, "content_digest": digest, "files": files}
        write_atomically(made / IMPORT_NOTE, json.dumps(told, indent=1, ensure_ascii=False).encode())
        place.swap()
    except BaseException:
        place.abandon()
        raise
    return ImportedDataset(folder, counts, count, digest)


def read_note(folder: Path) -> dict[str, Any] | None:
    """What `import.json` of a dataset says, where its files are those that were written; else None."""
    try:
        known = json.loads((folder / IMPORT_NOTE).read_text("utf-8"))
        sizes = {name: (folder / name).stat().st_size for name in known["files"]}
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return known if sizes == known["files"] else None


def _writer(
    folder: Path, subfolder: str, split: str, model: type, rows_per_file: int, bytes_per_file: int
) -> SplitWriter:
    return SplitWriter(
        folder,
        subfolder,
        split,
        model,
        rows_per_file=rows_per_file,
        rows_per_group=ROWS_PER_GROUP,
        bytes_per_file=bytes_per_file,
    )


def _checked(split: str, rows: Iterable[ImportedRow]) -> Iterator[ImportedRow]:
    seen = SeenNames()
    for row in rows:
        if not seen.add(row.image_id):
            raise UserError(f"{split}: two rows have the image_id {row.image_id}; ids must be unique in a split")
        yield row


def _told(note: str | Callable[[], str]) -> str:
    return "" if not callable(note) else f":\n{note()}"


_CARD = Template("""\
# $title

$note

## What is in it

$splits
$rejected
```python
from datasets import load_dataset

dataset = load_dataset("$folder")
```

$columns

Digest of the data files: `$digest`. (It also tells the cache of `datasets`, which knows a folder by its name and this
card, one dataset from another of that name.)

## Use

Meant for: research on searching images of people by text when what matters is what they do and whether it goes wrong.

Not meant for, and not to be used for: surveillance of individuals; identifying, tracking or profiling people; deciding
anything about a person; judging from looks who is suspicious.

## Licence and origin

$licence
""")


def _card(title: str, licence: str, folder: str, configs: Sequence[ConfigFiles], note: str, digest: str) -> str:
    import yaml

    head = yaml.safe_dump(_head(title, licence, configs), sort_keys=False, allow_unicode=True, width=120)
    rows = [
        (config.name, each.name, f"{each.rows:,}", f"{each.disk_bytes / 1e6:,.1f} MB")
        for config in configs
        for each in config.splits
    ]
    columns = [(f"`{name}`", IMPORTED_COLUMNS[name]) for name in ImportedRow.model_fields]
    body = _CARD.substitute(
        title=title,
        note=note.strip(),
        splits=markdown_table(["config", "split", "rows", "on disk"], rows),
        rejected="\nThe config `rejected` has every row that could not be used: file, line, row and reason.\n"
        if len(configs) > 1
        else "",
        folder=folder,
        columns=markdown_table(["column", "what it holds"], columns),
        digest=digest,
        licence="Apache-2.0."
        if licence == "apache-2.0"
        else "The images and texts keep the terms of where they come from, which this card does not know and cannot "
        "grant. Do not pass them on without checking those terms.",
    )
    return f"---\n{head}---\n\n{body}"


def _head(title: str, licence: str, configs: Sequence[ConfigFiles]) -> dict[str, Any]:
    spdx = licence == "apache-2.0"
    total = sum(each.rows for each in configs[0].splits)
    return {
        "pretty_name": title,
        "license": licence if spdx else "other",
        **({} if spdx else {"license_name": licence}),
        "language": ["en"],
        "task_categories": ["text-retrieval", "image-feature-extraction"],
        "tags": [TAG, "person-anomaly-search", "text-to-image-retrieval", "imported"],
        "size_categories": [size_category(total)],
        **files_head(configs),
    }
