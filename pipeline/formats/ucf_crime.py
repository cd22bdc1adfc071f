"""UCF-Crime: the temporal annotations of its test videos, where their files are, and the spans they make.

The annotation file has a line a video: `name  class  s1  e1  s2  e2`, separated by any white space, and in a later
variant the number of frames after them. s and e are the first and last frame of an anomaly, counted from 1, both
included; -1 where there is none. The ReadMe says 30 frames a second of all videos.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from pipeline.core.errors import UserError

ANNOTATIONS = "Temporal_Anomaly_Annotation_for_Testing_Videos.txt"
FPS = 30
NORMAL = "Normal"
NORMAL_FOLDER = "Testing_Normal_Videos_Anomaly"
VIDEO_SUFFIXES = frozenset({".mp4", ".avi", ".mkv", ".mov"})
NO_CLASS = "(none)"

LINE_REASONS = {
    "torn_line": "the line is not a name, a class and four (or five) whole numbers",
    "bad_name": "the name or the class is no plain name of a file inside the folder",
    "bad_span": "a span starts before frame 1, ends before it starts, or has one end alone",
    "normal_with_span": "a normal video with an anomaly",
    "anomaly_without_span": "an anomaly's video without its span",
    "duplicate_video": "a line above is about the same video",
}
VIDEO_REASONS = {
    "missing_video": "no file of that name in the folder",
    "ambiguous_video": "several files of that name, none of them where its class says",
}

_LINE = re.compile(r"(\S.*?)\s+(\S+)((?:\s+[+-]?\d+){4,5})", re.ASCII)
_MOST_FRAME = 10**8


@dataclass(frozen=True)
class Span:
    """Frames of a video, counted from 1, both included. id: `a1`, `a2` for anomalies, `n1` .. for what is around."""

    id: str
    behavior: Literal["normal", "anomaly"]
    first: int
    last: int

    @property
    def frames(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True)
class UcfVideo:
    """A line of the annotations. frames: how many the video has, where the line says so; nothing is decided by it."""

    line: int
    name: str
    class_name: str
    anomalies: tuple[Span, ...]
    frames: int | None = None

    @property
    def is_normal(self) -> bool:
        return not self.anomalies


@dataclass(frozen=True)
class BrokenLine:
    """A line that is of no use; reason is one of LINE_REASONS, class_name NO_CLASS where it could not be read."""

    line: int
    class_name: str
    reason: str
    detail: str


def read_annotations(path: Path) -> list[UcfVideo | BrokenLine]:
    """Every line of the annotations that is not blank, in order.

    Raises UserError where the file is not there or is no text.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UserError(f"{path}: the annotations cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: the annotations are not UTF-8 text (byte {error.start})") from None
    seen: set[str] = set()
    found: list[UcfVideo | BrokenLine] = []
    for number, line in enumerate(re.split(r"\r\n|\n|\r", text), 1):
        if not line.strip():
            continue
        made = parse_line(line, number)
        if isinstance(made, UcfVideo):
            if made.name in seen:
                made = BrokenLine(number, made.class_name, "duplicate_video", made.name)
            else:
                seen.add(made.name)
        found.append(made)
    return found


def parse_line(line: str, number: int) -> UcfVideo | BrokenLine:
    """One line of the annotations. A name may hold blanks; the class is the word before the numbers."""
    match = _LINE.fullmatch(line.strip())
    if match is None:
        return BrokenLine(number, NO_CLASS, "torn_line", line.strip()[:200])
    name, class_name = match[1], match[2]
    if not (_is_inside(name) and _is_inside(class_name) and "/" not in class_name):
        return BrokenLine(number, NO_CLASS, "bad_name", line.strip()[:200])
    numbers = [int(word[:12]) for word in match[3].split()]
    spans: list[tuple[int, int]] = []
    for first, last in (numbers[0:2], numbers[2:4]):
        if (first, last) == (-1, -1):
            continue
        if not 1 <= first <= last <= _MOST_FRAME:
            return BrokenLine(number, class_name, "bad_span", f"{name}: {first} to {last}")
        spans.append((first, last))
    if class_name == NORMAL and spans:
        return BrokenLine(number, class_name, "normal_with_span", f"{name}: {spans[0][0]} to {spans[0][1]}")
    if class_name != NORMAL and not spans:
        return BrokenLine(number, class_name, "anomaly_without_span", name)
    anomalies = tuple(Span(f"a{place}", "anomaly", *span) for place, span in enumerate(sorted(spans), 1))
    frames = numbers[4] if len(numbers) == 5 and numbers[4] > 0 else None
    return UcfVideo(number, name, class_name, anomalies, frames)


def normal_spans(anomalies: Sequence[Span], frames: int) -> list[Span]:
    """What is left of a video of so many frames outside its anomalies, in order; all of it where there is none."""
    found: list[Span] = []
    start = 1
    for first, last in [*sorted((span.first, span.last) for span in anomalies), (frames + 1, frames + 1)]:
        if first > start and start <= frames:
            found.append(Span(f"n{len(found) + 1}", "normal", start, min(first - 1, frames)))
        start = max(start, last + 1)
    return found


def key_frames(span: Span, count: int) -> list[int]:
    """The frames shown at 1/(count+1), .., count/(count+1) of a span: numbers from 1, ascending, each once."""
    return sorted({span.first + span.frames * share // (count + 1) for share in range(1, count + 1)})


def frame_time(number: int) -> float:
    """The middle of the time at which frame `number` (from 1) is shown, seconds: rounding to either side still hits
    it.
    """
    return (number - 0.5) / FPS


def frame_count(duration_s: float) -> int:
    """How many frames of 1/30 s begin in a video of that length."""
    return int(duration_s * FPS + 1e-3)


def videos_in(root: Path) -> dict[str, list[Path]]:
    """Every video under the folder by its file's name, sorted; links that lead out of it are left out."""
    inside = root.resolve()
    found: dict[str, list[Path]] = {}
    for folder, subfolders, names in os.walk(root):
        subfolders.sort()
        for name in sorted(names):
            path = Path(folder, name)
            if path.suffix.lower() in VIDEO_SUFFIXES and path.is_file() and path.resolve().is_relative_to(inside):
                found.setdefault(name, []).append(path)
    return found


def locate(root: Path, video: UcfVideo, known: dict[str, list[Path]]) -> Path | str:
    """The video's file out of `videos_in(root)`, or the reason (of VIDEO_REASONS) why there is none.

    Looked for where its class says, then by its name anywhere in the folder.
    """
    candidates = known.get(PurePosixPath(video.name).name, [])
    usual = [Path(video.class_name, video.name), Path(video.name)]
    if video.class_name == NORMAL:
        usual.insert(0, Path(NORMAL_FOLDER, video.name))
    for each in usual:
        if root / each in candidates:
            return root / each
    if len(candidates) == 1:
        return candidates[0]
    folders = (video.class_name, NORMAL_FOLDER) if video.class_name == NORMAL else (video.class_name,)
    named = [path for path in candidates if path.parent.name in folders]
    if len(named) == 1:
        return named[0]
    return "ambiguous_video" if candidates else "missing_video"


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and "\\" not in name and name.isprintable()
