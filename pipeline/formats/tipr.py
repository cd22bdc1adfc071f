"""Text-based person retrieval sets: CUHK-PEDES, ICFG-PEDES, RSTPReid, UFine6926, UFine3C.

Each is one JSON array of pictures with their captions, and a folder of pictures. Field names differ from set to set,
ids have holes, and a picture may have many captions: it stands once in the gallery, with a query for each.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from pipeline.core.errors import UserError


@dataclass(frozen=True)
class TiprSet:
    """How a set lies on disk. files: the annotation's possible names. images: where pictures may lie, first to last."""

    name: str
    files: tuple[str, ...]
    image_key: str = "file_path"
    images: tuple[str, ...] = ("imgs", "images", ".")
    splits: tuple[str, ...] = ("train", "val", "test")


SETS: dict[str, TiprSet] = {
    each.name: each
    for each in (
        TiprSet("CUHK-PEDES", ("reid_raw.json", "CUHK-PEDES_reid_raw.json")),
        TiprSet("ICFG-PEDES", ("ICFG-PEDES.json",), splits=("train", "test")),
        TiprSet("RSTPReid", ("data_captions.json", "RSTPReid_data_captions.json"), image_key="img_path"),
        TiprSet("UFine6926", ("UFine6926.json", "ufine6926.json", "data_captions.json"), splits=("train", "test")),
        TiprSet("UFine3C", ("UFine3C_Annotations.json", "UFine3C.json"), splits=("test",)),
    )
}


@dataclass(frozen=True)
class TiprRow:
    """One picture. id: its path in the set. person: the set's number, as text. captions: those that say something."""

    id: str
    image: Path
    person: str
    captions: tuple[str, ...]


@dataclass
class TiprSplit:
    """The pictures of a split. left_out: pictures that are not there, or that have no caption, and captions without a
    word. problems: a line for each kind of these."""

    rows: list[TiprRow] = field(default_factory=list)
    left_out: int = 0
    problems: list[str] = field(default_factory=list)


def set_named(name: str) -> TiprSet:
    """The set of a name, whatever its case. Raises UserError naming all of them."""
    found = {each.lower(): known for each, known in SETS.items()}.get(name.lower())
    if found is None:
        raise UserError(f"tipr:{name}: there is no such set; there are {', '.join(SETS)}")
    return found


def read_tipr(name: str, root: Path, split: str) -> TiprSplit:
    """A split of the set in a folder, in the order of the file; `val` is empty where the set has none.

    Raises UserError where the annotation is not there or is not what it should be, where the set has no such split, or
    where nothing is left.
    """
    known = set_named(name)
    if split not in known.splits:
        raise UserError(f"tipr:{known.name}: has no {split} split, only {', '.join(known.splits)}")
    path = _annotation(known, root)
    found = TiprSplit()
    missing, silent, empty, seen = [], 0, 0, set()
    for number, row in enumerate(_array(path), 1):
        where = f"{path.name}, row {number}"
        if not isinstance(row, dict):
            raise UserError(f"{where}: is not an object")
        if _text(row, "split", where) != split:
            continue
        told = _text(row, known.image_key, where)
        captions = row.get("captions")
        if not isinstance(captions, list) or not all(isinstance(each, str) for each in captions):
            raise UserError(f"{where}: captions is no list of texts")
        person = row.get("id")
        if isinstance(person, bool) or not isinstance(person, int | str):
            raise UserError(f"{where}: id is {type(person).__name__}, not a number")
        if told in seen:
            raise UserError(f"{where}: {told} stands there twice")
        seen.add(told)
        image = _image(known, root, told, where)
        spoken = tuple(each for each in captions if each.strip())
        empty += len(captions) - len(spoken)
        if image is None:
            missing.append(told)
        elif not spoken:
            silent += 1
        else:
            found.rows.append(TiprRow(told, image, str(person), spoken))
    if missing:
        found.problems.append(f"{known.name}: {len(missing)} pictures of {split} are not there, e.g. {missing[0]}")
    if silent:
        found.problems.append(f"{known.name}: {silent} pictures of {split} have no caption")
    if empty:
        found.problems.append(f"{known.name}: {empty} captions of {split} are empty")
    found.left_out = len(missing) + silent + empty
    if not found.rows:
        why = f" ({found.problems[0]})" if found.problems else ""
        raise UserError(f"{root}: no usable {split} row of {known.name} in {path.name}{why}")
    return found


def _annotation(known: TiprSet, root: Path) -> Path:
    for folder in (root, root / known.name):
        for name in known.files:
            if (folder / name).is_file():
                return folder / name
    raise UserError(f"{root}: {known.files[0]} is not there; is this {known.name}?")


def _array(path: Path) -> list[Any]:
    try:
        rows = json.loads(path.read_text("utf-8-sig"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read as JSON ({error})") from None
    if not isinstance(rows, list):
        raise UserError(f"{path}: is not an array of rows")
    return rows


def _text(row: Mapping[str, Any], name: str, where: str) -> str:
    value = row.get(name)
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{where}: {name} is missing or no text")
    return value


def _image(known: TiprSet, root: Path, told: str, where: str) -> Path | None:
    """The picture's file; None where it is nowhere, or is a link out of the folder."""
    inner = PurePosixPath(told)
    if inner.is_absolute() or ".." in inner.parts or "\0" in told:
        raise UserError(f"{where}: {told} leads out of the folder")
    for folder in (root, root / known.name):
        for name in known.images:
            path = folder / name / inner
            if path.is_file() and path.resolve().is_relative_to(root.resolve()):
                return path
    return None
