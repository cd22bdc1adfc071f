"""AI City Challenge 2026, Track 4: queries without names among a gallery with distractors, and the answer it wants.

    gallery/*.jpg        36,773 pictures with masked names
    query_text.json      JSON Lines: {"query_index": ..., "caption": "..."}
    query_index.txt      a query's index a line: the order of the answer's lines
    ground_truth.txt     where somebody has it: query index and picture name a line
    pose/gallery/*       pose maps, where somebody made them

`answer.txt` has a line a query, in the order of query_index.txt: the names of its first ten pictures.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.core.errors import UserError

ANSWERS = 10
"""Pictures of a line of the answer."""
ANSWER = "answer.txt"
GROUND_TRUTH = "ground_truth.txt"
_PICTURES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp"})


@dataclass(frozen=True)
class TrackQuery:
    """A query in the order of the answer. right: names of the pictures that answer it; None where nobody tells."""

    index: str
    caption: str
    right: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Track4:
    """gallery: the pictures' paths, by name. poses: whether there is a pose map of each."""

    queries: tuple[TrackQuery, ...]
    gallery: tuple[Path, ...]
    poses: tuple[Path | None, ...]


def read_track4(root: Path, ground_truth: Path | None = None) -> Track4:
    """The test set of a folder. Raises UserError where a file is missing or wrong, naming the line, or where a query
    has no caption, stands twice, or is answered by a picture that is not there."""
    captions = _captions(root / "query_text.json")
    order = [line.strip() for line in _lines(root / "query_index.txt") if line.strip()]
    if not order:
        raise UserError(f"{root / 'query_index.txt'}: names no query")
    if len(set(order)) < len(order):
        twice = next(each for number, each in enumerate(order) if each in order[:number])
        raise UserError(f"{root / 'query_index.txt'}: query {twice} stands there twice")
    folder = root / "gallery"
    gallery = sorted(path for path in folder.glob("*") if path.suffix.lower() in _PICTURES) if folder.is_dir() else []
    if not gallery:
        raise UserError(f"{folder}: has no pictures")
    truth_file = ground_truth or (root / GROUND_TRUTH if (root / GROUND_TRUTH).is_file() else None)
    truth = _truth(truth_file, {path.name for path in gallery}) if truth_file else None
    queries = []
    for index in order:
        if index not in captions:
            raise UserError(f"{root / 'query_text.json'}: has no query {index}, which query_index.txt names")
        right = None if truth is None else tuple(truth.get(index, ()))
        queries.append(TrackQuery(index, captions[index], right))
    poses = root / "pose" / "gallery"
    maps = {path.stem: path for path in poses.glob("*")} if poses.is_dir() else {}
    return Track4(tuple(queries), tuple(gallery), tuple(maps.get(path.stem) for path in gallery))


def answer_text(first: Sequence[Sequence[str]]) -> str:
    """The answer file: the names of each query's first pictures, a line a query."""
    return "".join(f"{' '.join(names[:ANSWERS])}\n" for names in first)


def _captions(path: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except (json.JSONDecodeError, RecursionError):
            raise UserError(f"{where}: is no JSON") from None
        index, caption = (row.get("query_index"), row.get("caption")) if isinstance(row, dict) else (None, None)
        if isinstance(caption, list) and len(caption) == 1:
            caption = caption[0]
        if isinstance(index, bool) or not isinstance(index, int | str) or not isinstance(caption, str):
            raise UserError(f"{where}: needs query_index and caption (a text)")
        if not caption.strip():
            raise UserError(f"{where}: the caption of query {index} is empty")
        if str(index) in found:
            raise UserError(f"{where}: query {index} stands there twice")
        found[str(index)] = caption
    return found


def _truth(path: Path, names: set[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for number, line in enumerate(_lines(path), 1):
        parts = line.split()
        if not parts:
            continue
        if len(parts) != 2:
            raise UserError(f"{path}, line {number}: wants a query index and a picture's name")
        if parts[1] not in names:
            raise UserError(f"{path}, line {number}: {parts[1]} is not in the gallery")
        found.setdefault(parts[0], []).append(parts[1])
    return found


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8-sig").splitlines()
    except FileNotFoundError:
        raise UserError(f"{path}: is not there") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from None
