"""`python -m pipeline.import_pab DIR`: a released PAB folder becomes a dataset of this project, row by row.

Annotations and pictures are read as they are needed: a million rows take no more memory than a thousand. Each row that
cannot be used is counted by its reason and listed, with file, line and row, in the dataset's `rejected` config.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from pydantic import ValidationError

from pipeline.cli import DONE, Bar, guarded
from pipeline.core.dataset_folder import check_out
from pipeline.core.errors import UserError, one_line
from pipeline.core.images import ImageError, read_image
from pipeline.core.imported import picture_fields, read_note, write_imported
from pipeline.core.seen import SeenNames
from pipeline.core.store import file_digest
from pipeline.formats import pab
from pipeline.formats.pab import BrokenRow, Hard, PabRow, annotation_files, splits_in, stream_pab
from schemas.records import Factors, ImportedRejection, ImportedRow, behavior_of

DEFAULT_OUT = Path("out/pab-imported")
OPTION = "--out FOLDER"

REASONS = {
    **pab.REASONS,
    "image_unreadable": "the image is no picture",
    "pose_unreadable": "the pose map is no picture",
}


@dataclass(frozen=True)
class Import:
    """What is wanted. check_pictures: decode every picture whole, not its head alone."""

    root: Path
    splits: tuple[str, ...]
    keep_without_hard: bool = False
    check_pictures: bool = False

    @property
    def hard(self) -> Hard:
        return "kept" if self.keep_without_hard else "needed"


@dataclass
class Tally:
    """What came: rows of each split, broken ones by split and reason, and what is worth knowing of the rest."""

    rows: Counter[str] = field(default_factory=Counter)
    broken: Counter[tuple[str, str]] = field(default_factory=Counter)
    without_hard: int = 0
    without_pose: Counter[str] = field(default_factory=Counter)
    with_factors: int = 0
    ids: SeenNames = field(default_factory=SeenNames)
    partners: SeenNames = field(default_factory=SeenNames)

    def count(self, split: str, row_id: str, partner: str | None, pose: bool, factors: bool) -> None:
        """Count a usable row."""
        self.rows[split] += 1
        self.without_pose[split] += not pose
        self.with_factors += factors
        if split == "train":
            self.ids.add(row_id)
            if partner is None:
                self.without_hard += 1
            else:
                self.partners.add(partner)

    def lost_partners(self) -> int:
        """Hard negatives that are no usable row themselves."""
        return sum(name not in self.ids for name in self.partners)

    def went_in(self, split: str) -> int:
        """All rows of a split, broken ones among them."""
        return self.rows[split] + sum(count for (name, _), count in self.broken.items() if name == split)


def rows_of(
    wanted: Import, split: str, tally: Tally, rejected: TextIO, bar: Bar | None = None
) -> Iterator[ImportedRow]:
    """The rows of a split, ready to be written; each broken one is counted and goes as a JSON line to `rejected`."""
    for each in _streamed(wanted, split, tally, bar):
        made = each if isinstance(each, BrokenRow) else _row(wanted, split, each)
        if isinstance(made, ImportedRow):
            tally.count(split, made.image_id, made.hard_image_id, made.pose is not None, made.factors is not None)
            yield made
        else:
            tally.broken[split, made.reason] += 1
            rejected.write(_rejection(split, made).model_dump_json() + "\n")


def _streamed(wanted: Import, split: str, tally: Tally, bar: Bar | None) -> Iterator[PabRow | BrokenRow]:
    total = max(sum(path.stat().st_size for path in annotation_files(wanted.root, split)), 1)

    def seen(done: int) -> None:
        # How many rows there are is known only at the end; till then their mean size tells.
        if bar is not None and done:
            count = tally.went_in(split)
            bar(count, max(round(count * total / done), count))

    return stream_pab(wanted.root, split, hard=wanted.hard, lists_only=True, seen=seen)


def _row(wanted: Import, split: str, row: PabRow) -> ImportedRow | BrokenRow:
    assert row.where is not None
    path = row.image.relative_to(wanted.root).as_posix()
    what = "image"
    try:
        image = _picture(row.image, path, wanted.check_pictures)
        what = "pose"
        pose = None
        if row.pose is not None:
            pose = _picture(row.pose, row.pose.relative_to(wanted.root).as_posix(), wanted.check_pictures)["image"]
    except (ImageError, OSError) as error:
        return BrokenRow(row.where, f"{what}_unreadable", one_line(error), row.id)
    hard = row.hard
    behavior: Any = None if row.normal is None else "normal" if row.normal else "anomaly"
    if behavior is None and row.kind is not None:
        behavior = behavior_of(row.kind)
    try:
        return ImportedRow(
            **image,
            pose=pose,
            caption=row.captions[0],
            captions=row.captions if split != "train" else None,
            image_id=row.id,
            match_id=row.match_id if row.match_id != row.id or split == "ucc" else None,
            source_id=row.source_id,
            source_caption=row.source_caption,
            kind=row.kind,
            behavior=behavior,
            action=row.label if behavior == "normal" else None,
            anomaly=row.label if behavior == "anomaly" else None,
            scene=row.scene,
            factors=_factors(row.factors),
            hard_image_id=hard.id if hard else None,
            hard_caption=hard.caption if hard else None,
            hard_factors=_factors(hard.factors) if hard else None,
            pair_id=row.person if row.person is None or row.shard is None else f"{row.person}_{row.shard}",
            video=row.person,
        )
    except ValidationError as error:
        return BrokenRow(row.where, "wrong_type", one_line(error.errors()[0]["msg"]), row.id)


def _picture(path: Path, name: str, check: bool) -> dict[str, Any]:
    data = path.read_bytes()
    if check:
        read_image(data, name)
    return picture_fields(data, name)


def _factors(value: tuple[str | None, str | None, str | None]) -> Factors | None:
    if not any(value):
        return None
    return Factors(appearance=value[0], action=value[1], background=value[2])


def _rejection(split: str, broken: BrokenRow) -> ImportedRejection:
    return ImportedRejection(
        split=split,
        file=broken.where.file,
        line=broken.where.line,
        row=broken.where.row,
        image_id=broken.id,
        reason=broken.reason,
        detail=broken.detail,
    )


def summary(wanted: Import, tally: Tally) -> list[str]:
    """The tables that a person reads at the end: rows by split, and broken rows by split and reason."""
    splits = [
        (split, f"{tally.went_in(split):,}", f"{tally.rows[split]:,}", f"{tally.went_in(split) - tally.rows[split]:,}")
        for split in wanted.splits
    ]
    lines = _table(["split", "rows", "usable", "broken"], splits)
    if tally.broken:
        broken = [
            (split, reason, f"{count:,}", REASONS[reason]) for (split, reason), count in sorted(tally.broken.items())
        ]
        lines += ["", *_table(["split", "reason", "rows", "which is"], broken)]
    notes = []
    if tally.without_hard:
        notes.append(f"{tally.without_hard:,} training rows have no hard negative")
    if lost := tally.lost_partners():
        notes.append(f"{lost:,} images are hard negatives of others, but no rows themselves: those rows train without")
    bare = [split for split in wanted.splits if tally.rows[split] and tally.without_pose[split] == tally.rows[split]]
    if bare:
        notes.append(f"no pose maps: {', '.join(bare)}")
    if tally.rows["train"] and not tally.with_factors:
        notes.append("no factors (annotation/train_decouple): python -m pipeline.decompose --data splits the captions")
    return [*lines, *(["", *(f"{note}." for note in notes)] if notes else [])]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table whose columns stand under each other."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    marks = ["-" * width for width in widths]
    return [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in (head, marks, *rows)
    ]


def inputs_key(wanted: Import) -> str:
    """What an import depends on, as one key: each file of the folder by name, size and time, the options, and the code.

    Opens no picture; holds one folder's names in memory.
    """
    digest = hashlib.sha256()
    here = [Path(str(module)) for module in (__file__, pab.__file__)]
    basis = [list(wanted.splits), wanted.keep_without_hard, wanted.check_pictures, [file_digest(path) for path in here]]
    digest.update(json.dumps(basis).encode())
    for folder, subfolders, names in os.walk(wanted.root):
        subfolders.sort()
        for name in sorted(names):
            path = os.path.join(folder, name)  # noqa: PTH118 - two million names
            known = os.lstat(path)
            digest.update(
                f"{path[len(str(wanted.root)) :]}\0{known.st_size}\0{known.st_mtime_ns}\n".encode(errors="replace")
            )
    return digest.hexdigest()


def run_import(wanted: Import, out: Path, force: bool = False) -> bool:
    """Import into `out` and say what came. Returns False where `out` holds just this already and nothing was done."""
    check_out(out.resolve(), OPTION)
    inside = out.resolve().is_relative_to(wanted.root.resolve())
    if inside or wanted.root.resolve().is_relative_to(out.resolve()):
        raise UserError(f"out: {out} and {wanted.root} lie in each other; choose another folder with {OPTION}")
    key = inputs_key(wanted)
    known = read_note(out)
    if known is not None and known.get("inputs") == key and not force:
        print(f"{out} is already what {wanted.root} gives ({_counts(known['rows'])}); nothing to do (--force: again)")
        return False
    tally, started = Tally(), time.monotonic()
    with tempfile.TemporaryFile("w+", encoding="utf-8") as spool:

        def note() -> str:
            return "\n".join([_NOTE, "", "## Rows of the annotations", "", *summary(wanted, tally)])

        def rejections() -> Iterator[ImportedRejection]:
            spool.seek(0)
            for line in spool:
                yield ImportedRejection.model_validate_json(line)

        splits = {split: _with_bar(wanted, split, tally, spool) for split in wanted.splits}
        made = write_imported(
            out,
            splits,
            note,
            title="PAB as released, imported",
            rejected=rejections(),
            facts={"inputs": key},
            option=OPTION,
        )
    print("\n".join(summary(wanted, tally)))
    seconds = max(time.monotonic() - started, 1e-9)
    print(f"\n{out}: {_counts(made.rows)} in {seconds:.1f} s ({sum(made.rows.values()) / seconds:,.0f} rows a second)")
    if made.rejected:
        print(f"Every broken row with file, line, row and reason: {out / 'rejected'}")
    return True


_NOTE = """\
PAB (the Pedestrian Anomaly Behavior benchmark) as its authors released it, in the columns of this project. Ids,
captions, labels and pictures are as they came. What the release does not say (keypoints, seeds, the engines that wrote
the texts) is null."""


def _with_bar(wanted: Import, split: str, tally: Tally, spool: TextIO) -> Iterator[ImportedRow]:
    bar = Bar(f"import {split}", "rows")
    try:
        yield from rows_of(wanted, split, tally, spool, bar)
    finally:
        bar.close()


def dry_run(wanted: Import) -> None:
    """Read the annotations, look whether their pictures are there, and say what would come; writes nothing."""
    tally = Tally()
    for split in wanted.splits:
        bar = Bar(f"read {split}", "rows")
        for each in _streamed(wanted, split, tally, bar):
            if isinstance(each, BrokenRow):
                tally.broken[split, each.reason] += 1
                continue
            partner = each.hard.id if each.hard else None
            tally.count(split, each.id, partner, each.pose is not None, any(each.factors))
        bar.close()
    print("\n".join(summary(wanted, tally)))
    print("\nNothing is written: this was a dry run. Pictures were looked for, not opened.")


def _counts(rows: dict[str, int] | Any) -> str:
    return ", ".join(f"{split} {count:,}" for split, count in rows.items())


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    made = argparse.ArgumentParser(
        prog="python -m pipeline.import_pab",
        description="Bring PAB as released (JSON Lines or arrays, pictures, pose maps) into this project's form. A "
        "folder that has not changed since is not read again; until the new dataset is whole the old one stays.",
    )
    made.add_argument("folder", type=Path, metavar="DIR", help="the released folder: annotation/, train/, test/, pose/")
    made.add_argument("--out", type=Path, default=DEFAULT_OUT, metavar="FOLDER", help=f"default: ./{DEFAULT_OUT}")
    made.add_argument(
        "--splits",
        metavar="NAMES",
        help=f"of {', '.join(pab.SPLITS)}, separated by commas (default: all that are there)",
    )
    made.add_argument(
        "--keep-without-hard",
        action="store_true",
        help="keep training rows whose hard negative is missing, with null in its place (default: they are broken)",
    )
    made.add_argument("--check-pictures", action="store_true", help="decode every picture whole (slow), not its head")
    made.add_argument("--dry-run", action="store_true", help="say what would come and write nothing")
    made.add_argument("--force", action="store_true", help="import again even where nothing has changed")
    return made


def wanted_import(options: argparse.Namespace) -> Import:
    """What the options ask for. Raises UserError where it is not there."""
    root = options.folder
    if not root.is_dir():
        raise UserError(f"{root}: the folder is not there")
    there = splits_in(root)
    if options.splits is None:
        if not there:
            raise UserError(f"{root}: no annotation/train/attr_*.json and no annotation/test/attr.json; is this the "
                            "released PAB folder?")  # fmt: skip
        splits = there
    else:
        splits = list(dict.fromkeys(name.strip() for name in options.splits.split(",") if name.strip()))
        if unknown := [name for name in splits if name not in pab.SPLITS]:
            raise UserError(f"--splits {unknown[0]}: no such split; choose of {', '.join(pab.SPLITS)}")
        for name in splits:
            annotation_files(root, name)
        if not splits:
            raise UserError("--splits names no split")
    return Import(root, tuple(splits), options.keep_without_hard, options.check_pictures)


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m pipeline.import_pab`."""
    options = parser().parse_args(argv)

    def run() -> int:
        wanted = wanted_import(options)
        if options.dry_run:
            dry_run(wanted)
        else:
            run_import(wanted, options.out, options.force)
        return DONE

    return guarded(run)


if __name__ == "__main__":
    raise SystemExit(main())
