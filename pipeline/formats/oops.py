"""Reads an OOPS! folder: clip names, videos, transition times and captions, joined by name.

Layout (README of the published archive and of its caption archive "svos"):

    annotations/{train,val}.txt  {train,val}_filtered.txt  filtered_vids.txt  transition_times.json
    oops_video/{train,val}/NAME.mp4
    svos/{train,val}.json

Three habits of the data shape this module. A name is a YouTube title with a clip index behind it, so it holds blanks,
brackets and dots, and one name can be the start of another: names are compared whole, and ".mp4" is added, never taken
off a key. The caption archive's keys are UTF-8 read as cp1252, some of them. Every video has three times, where -1
says that this annotator saw no failure.
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pipeline.core.errors import UserError

SPLITS = ("train", "val")
Part = Literal["videos", "times", "captions"]
ALL_PARTS: tuple[Part, ...] = ("videos", "times", "captions")

# The quality rule of OOPS!'s own loader (cvlab-columbia/oops, dataloader.py).
QUALITY_LEN_S = (3.2, 30.0)
QUALITY_REL_T = (0.01, 0.99)

_TIMES_FILE = "annotations/transition_times.json"
_VIDEO_SUFFIX = ".mp4"
_MAX_FILE_NAME_BYTES = 255
_MAX_ANNOTATION_BYTES = 1 << 30


@dataclass(frozen=True)
class TransitionLabel:
    """When the failure begins, by each annotator.

    t: seconds from the clip's start, -1 where the annotator saw no failure. len_s: the annotated length in seconds
    (for OOPS!'s quality rule only; the clip's own duration is measured). n_notfound: how many saw no failure, as the
    file says it. rel_t: t / len, so that "not seen" is -1/len there: any negative number.
    """

    t: tuple[float, ...]
    len_s: float
    n_notfound: int
    rel_t: tuple[float, ...]


@dataclass(frozen=True)
class OopsCaption:
    """One worker's two sentences as written, spelling errors and all; either may be empty."""

    goal: str
    wentwrong: str


@dataclass(frozen=True)
class OopsVideo:
    """One clip and what is known of it.

    name: as in the lists, NFC. path: the video file, None where it is missing. label, captions: None and () where the
    archive has none. in_list: named in {split}.txt. passed_quality_list: named in {split}_filtered.txt.
    """

    name: str
    split: str
    path: Path | None
    label: TransitionLabel | None
    captions: tuple[OopsCaption, ...]
    in_list: bool
    passed_quality_list: bool


@dataclass(frozen=True)
class OopsFolder:
    """An OOPS! folder that was read.

    orphan_labels: labels whose name is in no list, has no file and no caption in the splits read. problems: what was
    left out and why, as (where, what).
    """

    root: Path
    splits: tuple[str, ...]
    orphan_labels: tuple[tuple[str, TransitionLabel], ...]
    problems: tuple[tuple[str, str], ...]
    _videos: Mapping[str, tuple[OopsVideo, ...]] = field(repr=False)

    def videos(self, split: str) -> list[OopsVideo]:
        """The split's clips by name in code point order; KeyError for a split that was not read."""
        return list(self._videos[split])


def official_time(label: TransitionLabel) -> float | None:
    """OOPS!'s single transition time in seconds: `sorted(t)[len(t) // 2]`, the -1 counted in; None when negative."""
    if not label.t:
        return None
    time_s = sorted(label.t)[len(label.t) // 2]
    return None if time_s < 0 else time_s


def median_valid_time(label: TransitionLabel) -> float | None:
    """The median, in seconds, of the times of those who saw the failure; None when nobody did."""
    seen = [time_s for time_s in label.t if time_s >= 0]
    return statistics.median(seen) if seen else None


def official_quality(label: TransitionLabel) -> bool:
    """Whether OOPS!'s loader would use the clip: a time, not at either end, and 3.2 to 30 s long."""
    if official_time(label) is None or not label.rel_t:
        return False
    relative = statistics.median(label.rel_t)
    return QUALITY_REL_T[0] <= relative <= QUALITY_REL_T[1] and QUALITY_LEN_S[0] <= label.len_s <= QUALITY_LEN_S[1]


def video_key(name: str) -> str:
    """10 hex digits that stand for the clip in ids: the start of the sha256 of its NFC name in UTF-8."""
    return hashlib.sha256(unicodedata.normalize("NFC", name).encode("utf-8")).hexdigest()[:10]


def repair_key(key: str) -> str:
    """The key with "UTF-8 read as cp1252" undone; the key as it is where that fails.

    cp1252 leaves 81, 8d, 8f, 90 and 9d undefined and readers keep those bytes as control characters, so that a closing
    quote (e2 80 9d) comes as two printable characters and U+009D. Those five go back to their byte too.
    """
    garbled = bytearray()
    for character in key:
        try:
            garbled += character.encode("cp1252")
        except UnicodeEncodeError:
            if character not in "\x81\x8d\x8f\x90\x9d":
                return key
            garbled.append(ord(character))
    try:
        return garbled.decode("utf-8")
    except UnicodeDecodeError:
        return key


def name_flaw(name: str) -> str | None:
    """Why a clip's name cannot be one file's name inside the folder, or None when it can."""
    if not name:
        return "empty name"
    if any(character in "/\\\0" for character in name):
        return "the name holds a path separator or NUL"
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in name):
        return "the name holds a control character or is no valid text"
    if len((name + _VIDEO_SUFFIX).encode("utf-8")) > _MAX_FILE_NAME_BYTES:
        return "the name is longer than a file name can be"
    return None


def parse_name_list(text: str) -> list[str]:
    """The names of a list file, one a line. Blanks at either end belong to the name (lines may end in CR LF)."""
    return [name for line in text.split("\n") if (name := line.removesuffix("\r"))]


def parse_label(entry: object) -> TransitionLabel:
    """One entry of transition_times.json; ValueError says what is wrong with it."""
    if not isinstance(entry, Mapping):
        raise ValueError(f"expected an object, found {type(entry).__name__}")
    times = _numbers(entry, "t")
    relative = _numbers(entry, "rel_t")
    if not times:
        raise ValueError("t is empty")
    if len(relative) != len(times):
        raise ValueError(f"rel_t has {len(relative)} numbers, t has {len(times)}")
    length = _number(entry.get("len"), "len")
    if length <= 0:
        raise ValueError(f"len is {length}, expected more than 0 s")
    not_found = entry.get("n_notfound")
    if isinstance(not_found, bool) or not isinstance(not_found, int) or not_found < 0:
        raise ValueError(f"n_notfound is {not_found!r:.40}, expected a whole number")
    return TransitionLabel(t=times, len_s=length, n_notfound=not_found, rel_t=relative)


def parse_caption(entry: object) -> OopsCaption:
    """One worker's record of a caption file; ValueError says what is wrong with it."""
    if not isinstance(entry, Mapping):
        raise ValueError(f"expected an object, found {type(entry).__name__}")
    for part in ("goal", "wentwrong"):
        if not isinstance(entry.get(part), str):
            raise ValueError(f"{part} is missing" if part not in entry else f"{part} is not a text")
    return OopsCaption(goal=entry["goal"], wentwrong=entry["wentwrong"])


def read_oops(root: Path, splits: Sequence[str], *, needs: Collection[Part] = ALL_PARTS) -> OopsFolder:
    """Everything the folder knows of the clips of `splits` ("train", "val").

    A split's clips are the names in its lists, its video files and the names in its caption file. What is wrong with
    one entry costs that entry and is told in `problems`. `needs` says which parts must be there ("videos", "times",
    "captions"); another part that is missing is a problem only. Raises UserError when the folder or a needed part is
    missing, leads out of the folder, or is unreadable.
    """
    if not root.is_dir():
        raise UserError(
            f"no OOPS! folder at {root}: set oops.root to the folder that holds annotations/ and oops_video/"
        )
    if unknown := [split for split in splits if split not in SPLITS]:
        raise UserError(f"OOPS! has no split {unknown[0]!r}: choose from {', '.join(SPLITS)}")
    return _Reader(root.resolve(), tuple(dict.fromkeys(splits)), frozenset(needs)).read()


def _numbers(entry: Mapping[str, Any], key: str) -> tuple[float, ...]:
    values = entry.get(key)
    if not isinstance(values, list):
        raise ValueError(f"{key} is missing" if key not in entry else f"{key} is not a list")
    return tuple(_number(value, key) for value in values)


def _number(value: object, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{key} holds {value!r:.40}, expected a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{key} holds {value!r:.40}, expected a finite number")
    return number


class _Reader:
    """The state of one reading: where we are, and the problems met so far."""

    def __init__(self, root: Path, splits: tuple[str, ...], needs: frozenset[Part]) -> None:
        self.root = root
        self.splits = splits
        self.needs = needs
        self.problems: list[tuple[str, str]] = []

    def read(self) -> OopsFolder:
        # Lists and files of every split are looked at, so that a label of a split not asked for is no orphan.
        listed = {split: self._names(f"annotations/{split}.txt") or frozenset() for split in SPLITS}
        files = {split: self._video_files(split) for split in SPLITS}
        labels = self._labels()
        known = frozenset().union(*listed.values(), *files.values(), labels)
        captions = {split: self._captions(split, known) for split in self.splits}

        videos = {}
        named: set[str] = set().union(*listed.values(), *files.values())
        for split in self.splits:
            others = frozenset().union(*(listed[other] for other in SPLITS if other != split))
            passed = self._names(f"annotations/{split}_filtered.txt")
            if passed is None:
                passed = self._names("annotations/filtered_vids.txt") or frozenset()
            universe = set(listed[split]) | set(files[split])
            for name in sorted(captions[split]):
                if name in others and name not in universe:
                    self._problem(f"svos/{split}.json: {name}", "the name belongs to another split")
                else:
                    universe.add(name)
            for name in sorted(universe & others):
                self._problem(f"{split}: {name}", "the name is in the list of another split too")
            named |= universe
            videos[split] = tuple(
                OopsVideo(
                    name=name,
                    split=split,
                    path=files[split].get(name),
                    label=labels.get(name),
                    captions=captions[split].get(name, ()),
                    in_list=name in listed[split],
                    passed_quality_list=name in passed,
                )
                for name in self._with_own_keys(sorted(universe))
            )
        orphans = tuple((name, labels[name]) for name in sorted(set(labels) - named))
        return OopsFolder(self.root, self.splits, orphans, tuple(self.problems), videos)

    def _problem(self, where: str, what: str) -> None:
        # Names come from outside: a lone surrogate or a control character must not break whoever prints this.
        printable = where.encode("utf-8", "backslashreplace").decode("utf-8")
        self.problems.append(("".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in printable), what))

    def _missing(self, part: Part, relative: str) -> None:
        if part in self.needs:
            raise UserError(f"{relative} is missing in {self.root}: unpack the OOPS! archive and its captions there")
        self._problem(relative, "missing")

    def _inside(self, relative: str) -> Path | None:
        """The path of a part of the folder, None where there is none; UserError where it leads out of the folder."""
        path = self.root / relative
        try:
            resolved = path.resolve(strict=True)
        except (OSError, RuntimeError):
            return None
        if not resolved.is_relative_to(self.root):
            raise UserError(f"{path} leads out of the OOPS! folder: put the real file or folder there")
        return resolved

    def _text(self, relative: str) -> str | None:
        path = self._inside(relative)
        if path is None or not path.is_file():
            return None
        if path.stat().st_size > _MAX_ANNOTATION_BYTES:
            raise UserError(f"{path} is larger than {_MAX_ANNOTATION_BYTES >> 20} MB: it is no OOPS! annotation file")
        try:
            return path.read_bytes().decode("utf-8-sig", errors="surrogateescape")
        except OSError as error:
            raise UserError(f"{path} cannot be read ({error.strerror}): check its permissions") from error

    def _names(self, relative: str) -> frozenset[str] | None:
        text = self._text(relative)
        if text is None:
            return None
        return frozenset(self._good_names(relative, parse_name_list(text), lambda name: name))

    def _good_names(self, where: str, keys: Iterable[str], repair: Callable[[str], str]) -> dict[str, str]:
        """The usable names of `keys`, each with the key it came from; the first of two keys of one name stays."""
        names: dict[str, str] = {}
        for key in keys:
            name = unicodedata.normalize("NFC", repair(key))
            if flaw := name_flaw(name):
                self._problem(f"{where}: {name}", flaw)
            elif name in names and names[name] != key:
                self._problem(f"{where}: {name}", "two keys give this name; the first is used")
            else:
                names.setdefault(name, key)
        return names

    def _with_own_keys(self, names: Iterable[str]) -> list[str]:
        owners: dict[str, str] = {}
        for name in names:
            owner = owners.setdefault(video_key(name), name)
            if owner != name:
                self._problem(name, f"its key {video_key(name)} is also that of {owner}; left out")
        return list(owners.values())

    def _video_files(self, split: str) -> dict[str, Path]:
        relative = f"oops_video/{split}"
        folder = self._inside(relative)
        if folder is None or not folder.is_dir():
            # A split without videos is common: captions can be had without them, and a part of the archive is a part.
            others = any((self.root / "oops_video" / other).is_dir() for other in self.splits if other != split)
            if split in self.splits and others:
                self._problem(relative, "missing")
            elif split in self.splits:
                self._missing("videos", relative)
            return {}
        found: dict[str, Path] = {}
        for path in sorted(folder.iterdir(), key=lambda path: path.name):
            if path.name[-len(_VIDEO_SUFFIX) :].lower() != _VIDEO_SUFFIX:
                continue
            where = f"{relative}/{path.name}"
            name = unicodedata.normalize("NFC", path.name[: -len(_VIDEO_SUFFIX)])
            if flaw := name_flaw(name):
                self._problem(where, flaw)
                continue
            resolved = path.resolve()
            if not resolved.is_relative_to(self.root):
                self._problem(where, "the link leads out of the OOPS! folder")
            elif not resolved.is_file():
                self._problem(where, "not a file")
            elif name in found:
                self._problem(where, f"the same name as {found[name].name}")
            else:
                found[name] = path
        return found

    def _json_object(self, part: Part, relative: str) -> dict[str, Any]:
        text = self._text(relative)
        if text is None:
            self._missing(part, relative)
            return {}
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            reason = str(error) if isinstance(error, json.JSONDecodeError) else "too deep or too large a value"
            raise UserError(f"{self.root / relative} is no readable JSON ({reason}): fetch the file again") from error
        if not isinstance(value, dict):
            raise UserError(f"{self.root / relative} holds no JSON object of names: fetch the file again")
        return value

    def _labels(self) -> dict[str, TransitionLabel]:
        entries = self._json_object("times", _TIMES_FILE)
        labels = {}
        for name, key in self._good_names(_TIMES_FILE, entries, lambda name: name).items():
            try:
                labels[name] = parse_label(entries[key])
            except ValueError as error:
                self._problem(f"{_TIMES_FILE}: {name}", str(error))
        return labels

    def _captions(self, split: str, known: frozenset[str]) -> dict[str, tuple[OopsCaption, ...]]:
        relative = f"svos/{split}.json"
        entries = self._json_object("captions", relative)

        def repair(key: str) -> str:
            # A key that is a clip's name as it stands needs no repair, even where one is possible.
            return key if unicodedata.normalize("NFC", key) in known else repair_key(key)

        captions = {}
        for name, key in self._good_names(relative, entries, repair).items():
            records = entries[key]
            if not isinstance(records, list):
                self._problem(f"{relative}: {name}", f"expected a list of records, found {type(records).__name__}")
                continue
            good = []
            for number, record in enumerate(records):
                try:
                    good.append(parse_caption(record))
                except ValueError as error:
                    self._problem(f"{relative}: {name}: record {number}", str(error))
            captions[name] = tuple(good)
        return captions
