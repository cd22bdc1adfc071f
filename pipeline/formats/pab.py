"""The released PAB folder: JSON Lines under `.json`, pictures and pose maps beside them (CMP, SeDA).

    annotation/{train,train_decouple}/attr_0.json ..   annotation/test/attr.json
    train/imgs_0/goal/0.jpg ..   test/0.jpg ..   pose/train/imgs_0/goal/0.jpg ..   pose/test/0.jpg ..

Rows whose pictures are missing or whose fields are wrong are left out and counted; a file that is no annotation at all
is an error that names it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from pipeline.core.errors import UserError

Split = Literal["train", "test"]
FACTOR_NAMES = ("appearance", "action", "background")


@dataclass(frozen=True)
class PabHard:
    """The hard negative of a training row: its id, caption, factors and picture."""

    id: str
    caption: str
    factors: tuple[str | None, str | None, str | None]
    image: Path
    pose: Path | None


@dataclass(frozen=True)
class PabRow:
    """One image and its captions (one in train, one or more in test).

    label: the action (normal) or anomaly; normal: None where the row does not say. person: what goal, wentrong and full
    of one person share (train, from source_id); None in test. pose: None where the folder has no pose maps.
    factors: of the caption; None where the row says nothing of one.
    """

    id: str
    image: Path
    pose: Path | None
    captions: tuple[str, ...]
    normal: bool | None = None
    label: str | None = None
    scene: str | None = None
    source_id: str | None = None
    factors: tuple[str | None, str | None, str | None] = (None, None, None)
    hard: PabHard | None = None

    @property
    def person(self) -> str | None:
        """The source's number: `3617` of `3617_2`."""
        return self.source_id.rpartition("_")[0] or None if self.source_id else None


@dataclass
class PabSplit:
    """The rows of a split, and what was left out: a line for each file that had any, and the count."""

    rows: list[PabRow] = field(default_factory=list)
    left_out: int = 0
    problems: list[str] = field(default_factory=list)


def read_pab(root: Path, split: Split, hard: bool = True) -> PabSplit:
    """A split of a released PAB folder, with SeDA's factors where `train_decouple` is there.

    hard: whether training rows must have a hard negative; a row without one is then an error that names it, since the
    loss would lack a term. Raises UserError where there are no annotations, where a file is not what it should be, or
    where nothing is left.
    """
    files = annotation_files(root, split)
    poses = (root / "pose").is_dir()
    found = PabSplit()
    for path in files:
        rows, torn = read_rows(path)
        missing: list[str] = []
        for number, row in enumerate(rows, 1):
            where = f"{path.relative_to(root)}, row {number}"
            made, absent = _row(root, split, row, where, hard, poses)
            if absent:
                missing.append(f"row {number}: {absent}")
            else:
                assert made is not None
                found.rows.append(made)
        if torn:
            missing.append(torn)
        if missing:
            found.left_out += len(missing)
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            found.problems.append(f"{path.relative_to(root)}: left out {missing[0]}{more}")
    if not found.rows:
        first = f" ({found.problems[0]})" if found.problems else ""
        raise UserError(f"{root}: no usable {split} row in {len(files)} annotation files{first}")
    return found


def annotation_files(root: Path, split: Split) -> list[Path]:
    """The annotation files of a split: `train_decouple` before `train`, in the order of their numbers.

    Raises UserError where there is none.
    """
    if split == "test":
        path = root / "annotation" / "test" / "attr.json"
        if path.is_file():
            return [path]
        raise UserError(f"{root}: annotation/test/attr.json is not there; is this the released PAB folder?")
    for name in ("train_decouple", "train"):
        files = [path for pattern in ("attr_*.json", "pair_*.json")
                 for path in (root / "annotation" / name).glob(pattern)]  # fmt: skip
        if files:
            return sorted(files, key=lambda path: (path.stem.rpartition("_")[0], _number(path.stem), path.name))
    raise UserError(f"{root}: annotation/train/attr_*.json is not there; is this the released PAB folder?")


def _number(stem: str) -> int:
    tail = stem.rpartition("_")[2]
    return int(tail) if tail.isdecimal() else -1


def read_rows(path: Path) -> tuple[list[dict[str, Any]], str | None]:
    """The objects of an annotation file, JSON Lines or one JSON array, and what was cut off its end, if anything was.

    Blank lines, a byte order mark and CRLF are fine. Raises UserError for a line that is no object, except the last,
    which a crash may have cut.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not UTF-8 text") from None
    if text.lstrip().startswith("["):
        try:
            rows = json.loads(text)
        except json.JSONDecodeError as error:
            raise UserError(f"{path}, line {error.lineno}: is no JSON ({error.msg})") from None
        for number, row in enumerate(rows, 1):
            if not isinstance(row, dict):
                raise UserError(f"{path}, row {number}: is not an object")
        return rows, None
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    rows = []
    for number, line in lines:
        try:
            row = json.loads(line)
        except (json.JSONDecodeError, RecursionError):
            if (number, line) == lines[-1] and not text.endswith("\n"):
                return rows, f"row {len(rows) + 1}: the line is cut off"
            raise UserError(f"{path}, line {number}: is no JSON") from None
        if not isinstance(row, dict):
            raise UserError(f"{path}, line {number}: is not an object")
        rows.append(row)
    return rows, None


def _row(
    root: Path, split: Split, row: dict[str, Any], where: str, hard: bool, poses: bool
) -> tuple[PabRow | None, str | None]:
    """The row, or what it lacks that costs it alone. Raises UserError for fields that are not what they should be."""
    image = _inside(root, _text(row, "image", where), where)
    captions = _captions(row, split, where)
    pose = root / "pose" / image.relative_to(root) if poses else None
    absent = _absent(root, image, pose)
    if absent or not captions:
        return None, absent or "no caption"
    own, of_hard = _factors(row, where)
    normal = "normal" in row if "normal" in row or "anomaly" in row else None
    label = row.get("normal", row.get("anomaly"))
    partner = None
    if split == "train" and hard:
        if row.get("hard_i") is None or row.get("hard_c") is None:
            raise UserError(f"{where}: no hard negative (hard_i, hard_c); train without the hard term or mend the row")
        hard_image = _inside(root, f"train/{_text(row, 'hard_i', where)}", where)
        hard_pose = root / "pose" / hard_image.relative_to(root) if poses else None
        absent = _absent(root, hard_image, hard_pose)
        if absent:
            return None, absent
        partner = PabHard(
            str(row.get("hard_i_id", row["hard_i"])), _text(row, "hard_c", where), of_hard, hard_image, hard_pose
        )
    return (
        PabRow(
            id=str(row.get("image_id", row["image"])),
            image=image,
            pose=pose,
            captions=captions,
            normal=normal,
            label=str(label) if label is not None else None,
            scene=str(row["scene"]) if row.get("scene") is not None else None,
            source_id=str(row["source_id"]) if row.get("source_id") is not None else None,
            factors=own,
            hard=partner,
        ),
        None,
    )


def _captions(row: dict[str, Any], split: Split, where: str) -> tuple[str, ...]:
    value = row.get("caption")
    if split == "test" and isinstance(value, list) and all(isinstance(each, str) for each in value):
        return tuple(each for each in value if each.strip())
    if isinstance(value, str):  # in test too: a reader that walks it would make a query of every letter
        return (value,) if value.strip() else ()
    raise UserError(f"{where}: caption is {type(value).__name__}, not text{' or a list of texts' * (split == 'test')}")


def _factors(
    row: dict[str, Any], where: str
) -> tuple[tuple[str | None, str | None, str | None], tuple[str | None, str | None, str | None]]:
    """SeDA's `decoupled_caption`: [[factors of caption, factors of hard_c]]; what is empty or missing is None."""
    value = row.get("decoupled_caption")
    if value is not None and not isinstance(value, list):
        raise UserError(f"{where}: decoupled_caption is {type(value).__name__}, not a list")
    inner = value[0] if value else []
    parts: list[dict[str, Any]] = [each if isinstance(each, dict) else {} for each in _listed(inner)][:2]
    parts += [{}] * (2 - len(parts))
    own, of_hard = (
        tuple(part[name] if isinstance(part.get(name), str) and part[name].strip() else None for name in FACTOR_NAMES)
        for part in parts
    )
    return own, of_hard  # type: ignore[return-value]


def _listed(value: object) -> Iterator[object]:
    if isinstance(value, list):
        yield from value


def _text(row: dict[str, Any], name: str, where: str) -> str:
    value = row.get(name)
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{where}: {name} is missing or no text")
    return value


def _inside(root: Path, name: str, where: str) -> Path:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise UserError(f"{where}: {name} leads out of the folder")
    return root / path


def _absent(root: Path, image: Path, pose: Path | None) -> str | None:
    """The first of the two files that is not there, or that is a link out of the folder."""
    for path in (image, pose):
        if path is not None and not (path.is_file() and path.resolve().is_relative_to(root.resolve())):
            return f"{path.relative_to(root)} is not there"
    return None
