"""The released PAB folder: JSON Lines under `.json`, pictures and pose maps beside them (CMP, SeDA, LightAIR).

    annotation/{train,train_decouple}/attr_0.json ..   annotation/test/{attr,ucc}.json
    annotation/multi-weather/multi-weather_wind.json ..
    train/imgs_0/goal/0.jpg ..   test/0.jpg ..   ucc/..   pose/train/imgs_0/goal/0.jpg ..   pose/test/0.jpg ..

`stream_pab` gives each row of a split as it is read, or what is wrong with it; `read_pab` holds a split in memory: rows
whose pictures are missing are left out and counted, and fields that are wrong are an error that names the row.
"""

from __future__ import annotations

import codecs
import json
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Literal, NamedTuple

from pipeline.core.errors import UserError
from pipeline.core.seen import SeenNames
from schemas.records import KINDS, Kind

Split = str
"""One of `SPLITS`."""
FACTOR_NAMES = ("appearance", "action", "background")
Factors = tuple[str | None, str | None, str | None]
Hard = Literal["needed", "kept", "ignored"]
"""What to do with a training row's hard negative: a row without one is broken, kept without, or nobody asks for it."""

WEATHER = "weather_"
_WEATHERS = ("wind", "rain", "snow", "rain_snow", "dark", "dark_wind", "dark_rain", "dark_snow", "light")
SPLITS: tuple[Split, ...] = ("train", "test", "ucc", *(f"{WEATHER}{name}" for name in _WEATHERS))

REASONS = {
    "torn_line": "the last line is cut off",
    "bad_json": "a line is no JSON",
    "not_utf8": "a line is not UTF-8 text",
    "line_too_long": "a row has more than 16 million characters",
    "not_an_object": "a row is no object",
    "wrong_type": "a field is missing, of another type, or text that no file can hold",
    "two_labels": "a row has both normal and anomaly",
    "path_leads_out": "a path leads out of the folder",
    "image_missing": "the image is not there",
    "pose_missing": "the pose map is not there",
    "no_caption": "the caption is empty",
    "text_caption_in_test": "a test row's caption is a text and not a list: a query for every letter",
    "no_hard_negative": "a training row without hard_i or hard_c",
    "hard_image_missing": "the hard negative's image is not there",
    "hard_pose_missing": "the hard negative's pose map is not there",
    "duplicate_id": "an earlier row of the split has the image_id",
}
"""What can be wrong with a row."""
_COSTS_ITS_ROW_ALONE = ("torn_line", "image_missing", "pose_missing", "no_caption", "hard_image_missing",
                        "hard_pose_missing", "duplicate_id", "two_labels")  # fmt: skip
"""Of these a folder may have some and still be trained on in place."""

_MOST_CHARACTERS = 1 << 24
_CHUNK = 1 << 20
_BOM = "\ufeff"


@dataclass(frozen=True)
class PabHard:
    """The hard negative of a training row: its id, caption, factors and picture."""

    id: str
    caption: str
    factors: Factors
    image: Path
    pose: Path | None


@dataclass(frozen=True)
class PabRow:
    """One image and its captions (one in train, one or more elsewhere).

    id: unique in the split. match_id: the released image_id, which several images of `ucc` may share. label: the action
    (normal) or anomaly; normal: None where neither the row nor its path says. person: what goal, wentrong and full of
    one person share (train, from source_id); None in test. pose: None where the folder has no pose maps of the split.
    factors: of the caption; None where the row says nothing of one. where: the row's file, line and number.
    """

    id: str
    image: Path
    pose: Path | None
    captions: tuple[str, ...]
    normal: bool | None = None
    label: str | None = None
    scene: str | None = None
    source_id: str | None = None
    factors: Factors = (None, None, None)
    hard: PabHard | None = None
    match_id: str | None = None
    source_caption: str | None = None
    where: Where | None = None

    @property
    def person(self) -> str | None:
        """The source's number: `3617` of `3617_2`."""
        return self.source_id.rpartition("_")[0] or None if self.source_id else None

    @property
    def kind(self) -> Kind | None:
        """goal, wentrong or full, by the folder of the image, else by the end of source_id (0, 1, 2)."""
        return _kind(self.image, self.source_id)

    @property
    def shard(self) -> int | None:
        """The number of the image's folder: 3 of `train/imgs_3/goal/7.jpg`; None elsewhere."""
        name = self.image.parent.parent.name
        number = name.removeprefix("imgs_")
        return int(number) if name != number and number.isdecimal() else None


class Where(NamedTuple):
    """Where a row stands: file relative to the folder; line (None in an array) and row from 1."""

    file: str
    line: int | None
    row: int

    def __str__(self) -> str:
        return f"{self.file}, row {self.row}"


@dataclass(frozen=True)
class BrokenRow:
    """A row that cannot be used. reason: one of `REASONS`; detail: of this row, for a person; id: where it is known."""

    where: Where
    reason: str
    detail: str
    id: str | None = None


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
    found = PabSplit()
    missing: dict[str, list[str]] = {}
    for each in stream_pab(root, split, hard="needed" if hard else "ignored"):
        if isinstance(each, PabRow):
            found.rows.append(each)
        elif each.reason in _COSTS_ITS_ROW_ALONE:
            missing.setdefault(each.where.file, []).append(f"row {each.where.row}: {each.detail}")
        else:
            raise UserError(_told(root, each))
    for file, lines in missing.items():
        found.left_out += len(lines)
        more = f" and {len(lines) - 1} more" if len(lines) > 1 else ""
        found.problems.append(f"{file}: left out {lines[0]}{more}")
    if not found.rows:
        first = f" ({found.problems[0]})" if found.problems else ""
        raise UserError(
            f"{root}: no usable {split} row in {len(annotation_files(root, split))} annotation files{first}"
        )
    return found


def _told(root: Path, broken: BrokenRow) -> str:
    if broken.reason in ("bad_json", "not_utf8", "line_too_long"):
        line = f", line {broken.where.line}" if broken.where.line is not None else f", row {broken.where.row}"
        return f"{root / broken.where.file}{line}: {broken.detail}"
    if broken.reason == "no_hard_negative":
        return f"{broken.where}: {broken.detail}; train without the hard term or mend the row"
    return f"{broken.where}: {broken.detail}"


def stream_pab(
    root: Path,
    split: Split,
    *,
    hard: Hard = "needed",
    lists_only: bool = False,
    seen: Callable[[int], None] | None = None,
) -> Iterator[PabRow | BrokenRow]:
    """Each row of a split in the order of its files, usable or broken; holds one row in memory.

    lists_only: whether a plain text as a test row's caption is broken or is its one query. seen: told after each row
    how many bytes of the annotations are read. Raises UserError where there are no annotations, or where a file cannot
    be read. Pictures are looked for, not opened.
    """
    files = annotation_files(root, split)
    reader = _Reader(root, split, hard, lists_only)
    before = 0
    for path in files:
        name = path.relative_to(root).as_posix()
        for line, number, value, end in _objects(path):
            where = Where(name, line, number)
            yield value.at(where) if isinstance(value, _Unread) else reader.row(value, where)
            if seen is not None:
                seen(before + end)
        before += path.stat().st_size


def splits_in(root: Path) -> list[Split]:
    """The splits that a folder has annotations of."""
    return [split for split in SPLITS if _files(root, split)]


def annotation_files(root: Path, split: Split) -> list[Path]:
    """The annotation files of a split: `train_decouple` before `train`, in the order of their numbers.

    Raises UserError where there is none.
    """
    if split not in SPLITS:
        raise UserError(f"{root}: a released PAB folder has no split {split}; it has {', '.join(SPLITS)}")
    files = _files(root, split)
    if not files:
        wanted = {"train": "annotation/train/attr_*.json", "test": _TEST, "ucc": _UCC[0]}.get(split, _weather(split))
        raise UserError(f"{root}: {wanted} is not there; is this the released PAB folder?")
    return files


_TEST = "annotation/test/attr.json"
_UCC = ("annotation/test/ucc.json", "annotation/ucc.json", "annotation/ucc/ucc.json")


def _weather(split: Split) -> str:
    return f"annotation/multi-weather/multi-weather_{split.removeprefix(WEATHER)}.json"


def _files(root: Path, split: Split) -> list[Path]:
    if split != "train":
        names = {"test": (_TEST,), "ucc": _UCC}.get(split, (_weather(split),))
        return [path for name in names if (path := root / name).is_file()][:1]
    for folder in ("train_decouple", "train", "train_attr"):
        for pattern in ("attr_*.json", "pair_*.json"):
            files = list((root / "annotation" / folder).glob(pattern))
            if files:
                return sorted(files, key=lambda path: (_number(path.stem), path.name))
    return []


def _number(stem: str) -> int:
    tail = stem.rpartition("_")[2]
    return int(tail) if tail.isdecimal() else -1


# The objects of a file.


def read_rows(path: Path) -> tuple[list[dict[str, Any]], str | None]:
    """The objects of an annotation file, JSON Lines or one JSON array, and what was cut off its end, if anything was.

    Blank lines, a byte order mark and CRLF are fine. Raises UserError for a line that is no object, except the last,
    which a crash may have cut.
    """
    rows: list[dict[str, Any]] = []
    for line, number, value, _ in _objects(path):
        if isinstance(value, dict):
            rows.append(value)
        elif value.reason == "torn_line":
            return rows, f"row {number}: {value.detail}"
        else:
            place = f"row {number}" if line is None or value.reason == "not_an_object" else f"line {line}"
            raise UserError(f"{path}, {place}: {value.detail}")
    return rows, None


class _Unread(NamedTuple):
    """Text that is no object."""

    reason: str
    detail: str

    def at(self, where: Where) -> BrokenRow:
        return BrokenRow(where, self.reason, self.detail)


_Found = tuple[int | None, int, dict[str, Any] | _Unread, int]
"""Line (None in an array), row, the object, and the bytes read so far."""


def _objects(path: Path) -> Iterator[_Found]:
    try:
        with path.open("rb") as file:
            yield from _elements(file) if _is_array(file) else _lines(file)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None


def _is_array(file: BinaryIO) -> bool:
    """Whether the first character is that of an array; the file is at its start again."""
    first = b""
    while not first and (chunk := file.read(1 << 16)):
        first = chunk.removeprefix(codecs.BOM_UTF8).lstrip()[:1]
    file.seek(0)
    return first == b"["


def _lines(file: BinaryIO) -> Iterator[_Found]:
    number = row = end = 0
    while line := file.readline(_MOST_CHARACTERS):
        number += 1
        whole = line.endswith(b"\n")
        end += len(line)
        too_long = not whole and len(line) == _MOST_CHARACTERS
        while not whole and len(line) == _MOST_CHARACTERS:
            line = file.readline(_MOST_CHARACTERS)
            whole, end = line.endswith(b"\n"), end + len(line)
        if not too_long and not line.removeprefix(codecs.BOM_UTF8).strip():
            continue
        row += 1
        yield number, row, _Unread("line_too_long", "the line is too long") if too_long else _parsed(line, whole), end


def _parsed(line: bytes, whole: bool) -> dict[str, Any] | _Unread:
    """The object of a line. whole: whether it has an end; one without may have been cut off."""
    try:
        value = json.loads(line.decode("utf-8").removeprefix(_BOM))
    except UnicodeDecodeError:
        return _Unread("not_utf8", "is not UTF-8 text") if whole else _Unread("torn_line", "the line is cut off")
    except (ValueError, RecursionError):
        return _Unread("bad_json", "is no JSON") if whole else _Unread("torn_line", "the line is cut off")
    return value if isinstance(value, dict) else _Unread("not_an_object", "is not an object")


def _elements(file: BinaryIO) -> Iterator[_Found]:
    """The elements of one array, decoded as they are read. After one that is no JSON nothing can be told apart."""
    text = _Text(file)
    text.skip("[")
    row = 0
    decoder = json.JSONDecoder()
    while True:
        value: Any
        try:
            mark = text.skip("," if row else "")
            if mark == "]":
                return
            row += 1
            if not mark:
                raise _CutError(_Unread("torn_line", "the array is cut off"))
            value = text.element(decoder)
        except _CutError as error:
            yield None, max(row, 1), error.args[0], text.read_bytes
            return
        if not isinstance(value, dict):
            value = _Unread("not_an_object", "is not an object")
        yield None, row, value, text.read_bytes


class _CutError(Exception):
    """Where an array ends too early, with an `_Unread`."""


class _Text:
    """The text of a file in chunks, and the place in it."""

    def __init__(self, file: BinaryIO) -> None:
        # A byte that is no UTF-8 becomes half a surrogate pair, and costs the row alone in which it stands.
        self._file, self._decoder = file, codecs.getincrementaldecoder("utf-8-sig")("surrogateescape")
        self._text, self._at, self._ended = "", 0, False
        self.read_bytes = 0

    def skip(self, marks: str) -> str:
        """Pass over blanks and at most one of these marks; the next character, or nothing at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in f" \t\r\n{marks}":
                if self._text[self._at] in marks:
                    marks = ""
                self._at += 1
            if self._at < len(self._text) or not self._more():
                return self._text[self._at : self._at + 1]

    def element(self, decoder: json.JSONDecoder) -> Any:
        """The value that begins here. Raises _CutError where there is none."""
        while True:
            try:
                value, end = decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                # What a chunk's end cut in two reads as an error near that end; any other is the file's.
                cut = error.msg.startswith("Unterminated string") or error.pos >= len(self._text) - 16
                if not cut:
                    raise _CutError(_Unread("bad_json", f"is no JSON ({error.msg}); the rest is not read")) from None
            except (ValueError, RecursionError):
                raise _CutError(_Unread("bad_json", "is no JSON; the rest is not read")) from None
            else:
                # A number may go on in the next chunk; what has brackets or quotes has its end.
                if isinstance(value, dict | list | str) or self._ended or self._text[end : end + 1] in (*" \t\r\n,]",):
                    self._at = end
                    return value
            if len(self._text) - self._at > _MOST_CHARACTERS:
                raise _CutError(_Unread("line_too_long", "the row is too long; the rest is not read"))
            if self._ended:
                raise _CutError(_Unread("torn_line", "the array is cut off"))
            self._more()

    def _more(self) -> bool:
        """Read a chunk; False at the end."""
        if self._ended:
            return False
        data = self._file.read(_CHUNK)
        self.read_bytes += len(data)
        new = self._decoder.decode(data, not data)
        self._ended = not data
        self._text, self._at = self._text[self._at :] + new, 0
        return bool(data)


# The fields of a row.


class _BrokenError(Exception):
    """What is wrong with a row: its reason and detail."""


class _Reader:
    """Turns the objects of one split into rows."""

    def __init__(self, root: Path, split: Split, hard: Hard, lists_only: bool) -> None:
        self._root, self._split, self._lists_only = root, split, lists_only
        self._hard = hard if split == "train" else "ignored"
        self._poses = (root / "pose" / {"train": "train", "ucc": "ucc"}.get(split, "test")).is_dir()
        self._folder = _Folder(root)
        self._seen = SeenNames()

    def row(self, row: dict[str, Any], where: Where) -> PabRow | BrokenRow:
        """The row, or what is wrong with it."""
        known = None
        try:
            image_name = _path(row, "image")
            known = _id(row.get("image_id"), image_name, "image_id")
            return self._row(row, where, image_name, known)
        except _BrokenError as error:
            reason, detail = error.args
            return BrokenRow(where, reason, detail, known)

    def _row(self, row: dict[str, Any], where: Where, image_name: str, match: str) -> PabRow:
        image = self._root / image_name
        captions = self._captions(row)
        pose = self._root / _pose_name(image_name) if self._poses else None
        self._check_there(image, pose, "")
        if not captions:
            raise _BrokenError("no_caption", "no caption")
        own, of_hard = _factors(row)
        source = _text_or_none(row, "source_id")
        normal, label = _label(row, _kind(image, source))
        hard = self._partner(row, of_hard)
        return PabRow(
            id=self._unique(match),
            image=image,
            pose=pose,
            captions=captions,
            normal=normal,
            label=label,
            scene=_text_or_none(row, "scene"),
            source_id=source,
            factors=own,
            hard=hard,
            match_id=match,
            source_caption=_text_or_none(row, "source_caption"),
            where=where,
        )

    def _captions(self, row: dict[str, Any]) -> tuple[str, ...]:
        value = row.get("caption")
        listed = self._split != "train"
        if listed and isinstance(value, list) and all(isinstance(each, str) for each in value):
            return tuple(_writable(each, "caption") for each in value if each.strip())
        if not isinstance(value, str):
            what = "missing" if value is None else f"{type(value).__name__}, not text"
            raise _BrokenError("wrong_type", f"caption is {what}{' or a list of texts' * listed}")
        if listed and self._lists_only:
            raise _BrokenError("text_caption_in_test", "caption is a text, not a list of texts")
        # In test too one caption: a reader that walks the text would make a query of every letter.
        return (_writable(value, "caption"),) if value.strip() else ()

    def _partner(self, row: dict[str, Any], factors: Factors) -> PabHard | None:
        if self._hard == "ignored":
            return None
        try:
            if row.get("hard_i") is None or row.get("hard_c") is None:
                raise _BrokenError("no_hard_negative", "no hard negative (hard_i, hard_c)")
            name = f"train/{_path(row, 'hard_i')}"
            image = self._root / name
            pose = self._root / _pose_name(name) if self._poses else None
            self._check_there(image, pose, "hard_")
            partner = _id(row.get("hard_i_id"), name, "hard_i_id")
            return PabHard(partner, _text(row, "hard_c"), factors, image, pose)
        except _BrokenError as error:
            if self._hard == "kept" and error.args[0] in (
                "no_hard_negative",
                "hard_image_missing",
                "hard_pose_missing",
            ):
                return None
            raise

    def _check_there(self, image: Path, pose: Path | None, which: str) -> None:
        for path, what in ((image, "image"), (pose, "pose")):
            if path is not None and not self._folder.has(path):
                raise _BrokenError(f"{which}{what}_missing", f"{path.relative_to(self._root)} is not there")

    def _unique(self, match: str) -> str:
        if self._seen.add(match):
            return match
        if self._split != "ucc":
            raise _BrokenError("duplicate_id", f"an earlier row has the image_id {match}")
        number = 2
        while not self._seen.add(f"{match}#{number}"):
            number += 1
        return f"{match}#{number}"


class _Folder:
    """Which files are in a folder; a link out of it counts for nothing."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self._inside: dict[Path, bool] = {}

    def has(self, path: Path) -> bool:
        try:
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                return path.is_file() and path.resolve().is_relative_to(self._root)
        except (OSError, ValueError, RuntimeError):
            return False
        return stat.S_ISREG(mode) and self._is_inside(path.parent)

    def _is_inside(self, parent: Path) -> bool:
        if parent not in self._inside:
            if len(self._inside) > 10_000:
                self._inside.clear()
            self._inside[parent] = Path(os.path.realpath(parent)).is_relative_to(self._root)
        return self._inside[parent]


def _kind(image: Path, source_id: str | None) -> Kind | None:
    folder = image.parent.name
    if folder in KINDS and image.parent.parent.name.startswith("imgs_"):
        return folder  # type: ignore[return-value]
    tail = source_id.rpartition("_")[2] if source_id else ""
    return KINDS[int(tail)] if tail in ("0", "1", "2") else None


def _label(row: dict[str, Any], kind: Kind | None) -> tuple[bool | None, str | None]:
    """Whether the row is normal, and its action or anomaly. As in the published loaders it is the key that counts."""
    keys = [name for name in ("normal", "anomaly") if name in row]
    if len(keys) == 2:
        keys = [name for name in keys if row[name] is not None]
        if len(keys) == 2:
            raise _BrokenError("two_labels", "both normal and anomaly")
    if not keys:
        return (None if kind is None else kind == "goal"), None
    return keys[0] == "normal", _text_or_none(row, keys[0])


def _factors(row: dict[str, Any]) -> tuple[Factors, Factors]:
    """SeDA's `decoupled_caption`: [[factors of caption, factors of hard_c]]; what is empty or missing is None."""
    value = row.get("decoupled_caption")
    if value is not None and not isinstance(value, list):
        raise _BrokenError("wrong_type", f"decoupled_caption is {type(value).__name__}, not a list")
    inner = value[0] if value else []
    parts = [each if isinstance(each, dict) else {} for each in (inner if isinstance(inner, list) else [])][:2]
    parts += [{}] * (2 - len(parts))
    own, of_hard = (
        tuple(
            _writable(part[name], name) if isinstance(part.get(name), str) and part[name].strip() else None
            for name in FACTOR_NAMES
        )
        for part in parts
    )
    return own, of_hard  # type: ignore[return-value]


def _text(row: dict[str, Any], name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str) or not value.strip():
        raise _BrokenError("wrong_type", f"{name} is missing or no text")
    return _writable(value, name)


def _text_or_none(row: dict[str, Any], name: str) -> str | None:
    value = row.get(name)
    return None if value is None or not str(value).strip() else _writable(str(value), name)


def _writable(text: str, name: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _BrokenError("wrong_type", f"{name} is text that no file can hold") from None
    return text


def _id(value: object, otherwise: str, name: str) -> str:
    """An id as text; a row without one goes by its path."""
    if value is None:
        return otherwise
    if isinstance(value, bool) or not isinstance(value, int | str) or value == "":
        raise _BrokenError("wrong_type", f"{name} is {type(value).__name__}, not a text or a whole number")
    return _writable(str(value), name)


def _path(row: dict[str, Any], name: str) -> str:
    value = _text(row, name)
    path = PurePosixPath(value)
    if path.is_absolute() or ".." in path.parts or "\0" in value:
        raise _BrokenError("path_leads_out", f"{value} leads out of the folder")
    return path.as_posix()


def _pose_name(image: str) -> str:
    """Where an image's pose map is; a picture of other weather has the pose map of the ordinary one."""
    if "multi-weather" in image:
        return f"pose/test/{PurePosixPath(image).name}"
    return f"pose/{image}"
