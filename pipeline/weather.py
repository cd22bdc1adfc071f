"""`python -m pipeline.weather`: a split of a dataset under the ten conditions of Multi-Weather, and a contact sheet.

The conditions are named as the published test sets are. Their pictures are drawn by `core.weather`: scores under them
may be compared with each other, not with published ones.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pipeline.cli import DONE, Bar, guarded
from pipeline.core.dataset_folder import card_head, check_out, is_ours, read_split, row_count, split_files
from pipeline.core.errors import UserError
from pipeline.core.images import ImageError, encode_jpeg, read_image
from pipeline.core.imported import picture_fields, write_imported
from pipeline.core.store import write_atomically
from pipeline.core.weather import CONDITIONS, LEAST_SIDE, weathered
from schemas.records import ImportedRow

DEFAULT_DATA, DEFAULT_OUT = Path("out/pab"), Path("out/pab-weather")
OPTION = "--out FOLDER"
JPEG_QUALITY = 95
_SHEET_CELL = 320

_NOTE = """\
The split `{split}` of {name} ({rows:,} images) under the ten conditions of Multi-Weather: `test` is the split as it is,
byte by byte, and each `weather_*` holds the same rows with that weather drawn over their images. Ids, captions, labels,
keypoints and pose maps are those of `test`.

The conditions have the names of the published test sets, whose pictures are not public. These are renderings of this
project's own, made of the picture, the condition and the image's id alone: **scores under them may be compared with
each other, not with published ones.**"""


def split_of(condition: str) -> str:
    """The split that holds a condition: `test` for normal weather."""
    return "test" if condition == "normal" else f"weather_{condition}"


def rows_under(files: Sequence[Path], condition: str, bar: Bar | None = None, total: int = 0) -> Iterator[ImportedRow]:
    """The rows of these data files under a condition, a few in memory at once.

    Normal weather keeps the image's bytes; any other is a new JPEG. Raises UserError for an image that cannot be read
    or is too small.
    """
    for number, row in enumerate(read_split(files)):
        yield _row(row, condition)
        if bar is not None:
            bar(number + 1, total)


def _row(row: dict[str, Any], condition: str) -> ImportedRow:
    known = {name: row[name] for name in ImportedRow.model_fields if name in row}
    if condition == "normal":
        return ImportedRow.model_validate(known)
    name = row["image_id"]
    try:
        picture = weathered(read_image(row["image"]["bytes"], name), condition, name)
    except ImageError as error:
        raise UserError(str(error)) from None
    except ValueError as error:
        raise UserError(f"{name}: {error}") from None
    return ImportedRow.model_validate({**known, **picture_fields(encode_jpeg(picture, JPEG_QUALITY), f"{name}.jpg")})


def sheet_bytes(data: bytes, name: str) -> bytes:
    """A PNG with all ten conditions on one picture, each under its name."""
    from PIL import Image

    from pipeline.core.sheet import Cell, contact_sheet

    picture = read_image(data, name)
    if min(picture.shape[:2]) < LEAST_SIDE:
        raise ImageError(f"{name}: {picture.shape[1]} x {picture.shape[0]} pixels; {LEAST_SIDE} a side at least")
    cells = [
        Cell(Image.fromarray(weathered(picture, condition, name)), condition.replace("_", " + "))
        for condition in CONDITIONS
    ]
    buffer = io.BytesIO()
    contact_sheet(cells, 5, _SHEET_CELL, f"Ten conditions on {name}", text_lines=1).save(buffer, "PNG")
    return buffer.getvalue()


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    made = argparse.ArgumentParser(
        prog="python -m pipeline.weather",
        description="Write a split of a dataset under the ten conditions of Multi-Weather: test (as it is), and "
        f"{', '.join(split_of(each) for each in CONDITIONS[1:])}. The same image gets the same weather in every run. "
        "The weather is drawn by this project; scores are not comparable with those on the published pictures.",
    )
    made.add_argument(
        "--data", type=Path, metavar="FOLDER", help=f"a dataset of this project (default: ./{DEFAULT_DATA})"
    )
    made.add_argument("--split", default="test", metavar="NAME", help="which of its splits (default: test)")
    made.add_argument("--out", type=Path, default=DEFAULT_OUT, metavar="FOLDER", help=f"default: ./{DEFAULT_OUT}")
    made.add_argument("--sheet", type=Path, metavar="FILE.png", help="also write all ten conditions on one picture")
    made.add_argument(
        "--image", type=Path, metavar="FILE", help="the sheet's picture; without --data nothing but the sheet is made"
    )
    made.add_argument("--dry-run", action="store_true", help="say what would be written and write nothing")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m pipeline.weather`."""
    options = parser().parse_args(argv)
    return guarded(lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    if options.image is not None and options.sheet is None:
        raise UserError("--image is the picture of a contact sheet: say where it goes with --sheet FILE.png")
    if options.sheet is not None and options.sheet.suffix.lower() != ".png":
        raise UserError(f"--sheet {options.sheet}: a sheet is a PNG; give a name that ends in .png")
    if options.image is not None and options.data is None:
        _write_sheet(options.sheet, _file_bytes(options.image), options.image.name, options.dry_run)
        return DONE
    data = options.data or DEFAULT_DATA
    files = _files(data, options.split)
    out = options.out.resolve()
    check_out(out, OPTION)
    if out.is_relative_to(data.resolve()) or data.resolve().is_relative_to(out):
        raise UserError(f"out: {options.out} and {data} lie in each other; choose another folder with {OPTION}")
    total = row_count(files)
    if options.sheet is not None:
        first = next(read_split(files, ["image", "image_id"]), None)
        if options.image is not None:
            _write_sheet(options.sheet, _file_bytes(options.image), options.image.name, options.dry_run)
        elif first is not None:
            _write_sheet(options.sheet, first["image"]["bytes"], first["image_id"], options.dry_run)
    if options.dry_run:
        made = [f"{split_of(condition)} {total:,}" for condition in CONDITIONS]
        print(f"{options.out} would hold {total * len(CONDITIONS):,} rows: {', '.join(made)}")
        print("Nothing is written: this was a dry run.")
        return DONE
    licence = card_head(data).get("license")
    written = write_imported(
        options.out,
        {split_of(condition): _with_bar(files, condition, total) for condition in CONDITIONS},
        _NOTE.format(split=options.split, name=data.resolve().name, rows=total),
        title="Multi-Weather: text-based person anomaly search under ten conditions",
        licence="apache-2.0" if licence == "apache-2.0" else "terms-of-the-source",
        option=OPTION,
    )
    print(f"{options.out}: {', '.join(f'{split} {count:,}' for split, count in written.rows.items())}")
    return DONE


def _with_bar(files: Sequence[Path], condition: str, total: int) -> Iterator[ImportedRow]:
    bar = Bar(condition, "images")
    try:
        yield from rows_under(files, condition, bar, total)
    finally:
        bar.close()


def _files(data: Path, split: str) -> list[Path]:
    if not is_ours(data):
        raise UserError(
            f"--data {data}: no dataset of this project; build one (python -m pipeline.build) or import one "
            "(python -m pipeline.import_pab)"
        )
    found = split_files(data)
    if split not in found:
        raise UserError(f"--split {split}: {data} has {', '.join(found) or 'no data files'}")
    return found[split]


def _file_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"--image {path}: cannot be read ({error.strerror})") from None


def _write_sheet(path: Path, data: bytes, name: str, dry_run: bool) -> None:
    try:
        made = sheet_bytes(data, name)
    except ImageError as error:
        raise UserError(f"--sheet: {error}") from None
    if dry_run:
        print(f"{path} would show ten conditions on {name}")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, made)
    print(f"{path}: ten conditions on {name}")


if __name__ == "__main__":
    raise SystemExit(main())
