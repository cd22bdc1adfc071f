"""How fast a released PAB folder is imported, and in how much memory.

    python -m bench.importing --rows 100000

Makes folders in the released layout (small pictures, hard-linked from a few) with a quarter, a half and all rows,
imports each in a process of its own, and prints rows a second and the process's peak memory. Memory that grows with the
rows would show as three different figures.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from pipeline.core.seeds import generator_of

KINDS = ("goal", "wentrong", "full")
ROWS_PER_FOLDER = 13_515
"""Of the release: 1,013,605 images in 75 folders."""
PICTURES = 16
PICTURE_SIZE = 96
ROOT = Path(__file__).parents[1]


def picture(number: int, size: int = PICTURE_SIZE) -> bytes:
    """A JPEG of coloured blocks, the same for the same number."""
    blocks = generator_of("bench picture", number).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(blocks).resize((size, size), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def make_folder(root: Path, rows: int, test_rows: int = 0, rows_per_folder: int = ROWS_PER_FOLDER) -> None:
    """A folder in the released layout with so many training rows (three a person, each with its hard negative)."""
    for name in ("annotation/train", "annotation/train_decouple", "annotation/test", "test", "pose/test"):
        (root / name).mkdir(parents=True)
    for folder in range((rows + rows_per_folder - 1) // rows_per_folder):
        count = min(rows_per_folder, rows - folder * rows_per_folder)
        _train_folder(root, folder, count)
    if test_rows:
        _test_split(root, test_rows)
    for path in root.glob(".stock-*"):
        path.unlink()


def _test_split(root: Path, rows: int) -> None:
    stocks = _stocks(root, "test")
    with (root / "annotation/test/attr.json").open("w", encoding="utf-8") as file:
        for number in range(rows):
            _link(root, stocks, f"test/{number}.jpg", number)
            row = {"image": f"test/{number}.jpg", "image_id": number, "caption": [_caption("test", number)]}
            file.write(json.dumps(row) + "\n")


def _train_folder(root: Path, folder: int, count: int) -> None:
    for kind in KINDS:
        for top in ("train", "pose/train"):
            (root / top / f"imgs_{folder}" / kind).mkdir(parents=True)
    stocks = _stocks(root, str(folder))
    names = [(KINDS[number % 3], number // 3) for number in range(count)]
    with (
        (root / f"annotation/train/attr_{folder}.json").open("w", encoding="utf-8") as plain,
        (root / f"annotation/train_decouple/attr_{folder}.json").open("w", encoding="utf-8") as decoupled,
    ):
        for number, (kind, person) in enumerate(names):
            path = f"train/imgs_{folder}/{kind}/{person}.jpg"
            _link(root, stocks, path, number)
            # A person's goal and wentrong oppose each other; full opposes goal. The last person may lack some.
            partner = number + 1 if kind == "goal" else number - number % 3
            if partner >= count:
                partner = max(number - 2, 0)
            hard_kind, hard_person = names[partner]
            row = {
                "image": path,
                "caption": _caption(folder, number),
                "image_id": f"{folder}_{number}",
                "hard_i": f"imgs_{folder}/{hard_kind}/{hard_person}.jpg",
                "hard_c": _caption(folder, partner),
                "hard_i_id": f"{folder}_{partner}",
                "source_id": f"{person}_{KINDS.index(kind)}",
                "source_caption": f"person number {person} does something and it goes one way or the other",
                "normal" if kind == "goal" else "anomaly": "walking" if kind == "goal" else "falling",
                "scene": "street",
            }
            plain.write(json.dumps(row) + "\n")
            parts = [_factors(folder, each) for each in (number, partner)]
            decoupled.write(json.dumps({**row, "decoupled_caption": [parts]}) + "\n")


def _stocks(root: Path, name: str) -> list[Path]:
    """A few pictures of their own for each folder: a disk may refuse more than 65,000 links to one file."""
    paths = [root / f".stock-{name}-{number}" for number in range(PICTURES)]
    for number, path in enumerate(paths):
        path.write_bytes(picture(number))
    return paths


def _link(root: Path, stocks: Sequence[Path], name: str, number: int) -> None:
    (root / name).hardlink_to(stocks[number % PICTURES])
    (root / "pose" / name).hardlink_to(stocks[(number + 1) % PICTURES])


def _caption(folder: object, number: int) -> str:
    return (
        f"The image shows person {number} of folder {folder} in a red jacket and blue trousers on a wide street with "
        "shops along both sides. The person has one foot off the ground and both arms held out in front of the body."
    )


def _factors(folder: object, number: int) -> dict[str, str]:
    return {
        "appearance": f"person {number} of folder {folder} in a red jacket and blue trousers",
        "action": "one foot off the ground and both arms held out",
        "background": "a wide street with shops along both sides",
    }


_IMPORT = """
import sys
from bench.counting import largest_memory
from pipeline.import_pab import main
code = main(sys.argv[1:])
print(largest_memory())
sys.exit(code)
"""
"""The import and its own peak: what a parent is told of a child's counts the parent's memory as well."""


def measured(folder: Path, out: Path) -> tuple[float, int]:
    """(seconds, peak bytes) of importing a folder in a process of its own."""
    started = time.monotonic()
    command = [sys.executable, "-c", _IMPORT, str(folder), "--out", str(out)]
    child = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if child.returncode:
        raise RuntimeError(f"the import failed with {child.returncode}:\n{child.stdout}")
    return time.monotonic() - started, int(child.stdout.split()[-1])


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m bench.importing`."""
    parser = argparse.ArgumentParser(prog="python -m bench.importing", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rows", type=int, default=100_000, help="of the largest folder (default: 100000)")
    parser.add_argument("--work", type=Path, help="where to make the folders (default: a temporary folder)")
    options = parser.parse_args(argv)
    print(f"pictures: {PICTURE_SIZE} x {PICTURE_SIZE}, {len(picture(0)):,} bytes, and a pose map of that size each")
    for rows in sorted({max(options.rows // 4, 1), max(options.rows // 2, 1), options.rows}):
        work = Path(tempfile.mkdtemp(prefix="importing-", dir=options.work))
        try:
            make_folder(work / "pab", rows)
            seconds, peak = measured(work / "pab", work / "out")
            print(f"{rows:>9,} rows: {seconds:7.1f} s, {rows / seconds:7,.0f} rows a second, peak {peak / 1e6:,.0f} MB")
        finally:
            shutil.rmtree(work)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
