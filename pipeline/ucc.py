"""`python -m pipeline.ucc UCF_DIR`: key frames of UCF-Crime's test videos, captioned, as the test set `ucc`.

How the published UCC was cut out of UCF-Crime is open. The rule here is in `RULE`, and the card of the dataset repeats
it with the counts by class. What a video gave is kept in the work folder: a run that was stopped goes on from there.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipeline import attributes, recaption, stages
from pipeline.backends.chat_roles import caption_replies, factor_replies, label_replies
from pipeline.backends.protocols import CaptionRequest, LabelRequest, Person
from pipeline.cli import DONE, SOME_FAILED, Bar, common_parser, guarded, profile_and_build
from pipeline.core import decomposition
from pipeline.core.card import markdown_table
from pipeline.core.dataset_folder import check_out, published_image
from pipeline.core.errors import UserError, one_line
from pipeline.core.images import encode_jpeg, encode_png
from pipeline.core.imported import picture_fields, write_imported
from pipeline.core.pose import PEOPLE_REASONS, draw_pose_map
from pipeline.core.profile import Profile
from pipeline.core.prompts import load_prompt
from pipeline.core.replies import digest_of
from pipeline.core.stage import Kept, Outcome
from pipeline.core.store import parquet_bytes, records_table, write_atomically
from pipeline.formats import ucf_crime
from pipeline.formats.ucf_crime import (
    ANNOTATIONS,
    FPS,
    LINE_REASONS,
    BrokenLine,
    Span,
    UcfVideo,
    frame_count,
    frame_time,
    key_frames,
    locate,
    normal_spans,
    read_annotations,
    videos_in,
)
from pipeline.formats.video import FrameReader, VideoError
from pipeline.keypoints import judge, stored
from schemas.records import (
    CaptionReplies,
    Engine,
    FactorReplies,
    ImportedRejection,
    ImportedRow,
    LabelReplies,
    PersonKeypoints,
    PromptUsed,
)

VERSION = 1
"""Raised when the same video, rule and engines give other rows."""

DEFAULT_OUT = Path("out/ucc")
OPTION = "--out FOLDER"
DEADLINE_S = 600.0
"""Some of the videos run for an hour."""

RULE = """\
Of every span the frames shown at 1/4, 1/2 and 3/4 of it (with n frames a span: at 1/(n+1) .. n/(n+1)). The spans are
those of the temporal annotations (anomaly), and what is left of the video outside them (normal); a normal video is one
normal span. A normal span must last {shortest:g} s. An annotated span that ends after the video is cut at its end, one
that begins there is dropped. Frame numbers count from 1 at {fps} frames a second, both ends included. A key frame is
kept if the profile's pose engine finds a person in it who passes the filter for real frames, and if it gets a caption.
All key frames of one span share a `match_id`: each of them answers the captions of all."""
SHORTEST_NORMAL_S = 1.0

REASONS = {
    **LINE_REASONS,
    **ucf_crime.VIDEO_REASONS,
    "unreadable_video": "the decoder cannot read it",
    "decode_timeout": "not decoded in time",
    "decoder_crashed": "the decoder died of it",
    "frame_too_large": "too many pixels, or not enough memory",
    "span_beyond_end": "the span begins after the video's end",
    "span_too_short": f"a normal span of less than {SHORTEST_NORMAL_S:g} s",
    "frame_not_shown": "the video shows nothing at that time",
    "no_key_frame": "no key frame of the video was kept",
    **dict.fromkeys(PEOPLE_REASONS, "the filter for real frames"),
    **dict.fromkeys(recaption.REASONS.values(), "the captioner's reply is no caption"),
    "captioner_error": "the captioner met an error",
    "labeller_error": "the labeller met an error",
    "reply_cut": "a reply was cut for want of room",
}
"""Every reason for which a line, a span or a key frame is not in the dataset."""

FAILED = frozenset({"unreadable_video", "decode_timeout", "decoder_crashed", "missing_video", "ambiguous_video",
                    "captioner_error", "labeller_error", "reply_cut"})  # fmt: skip
"""Those that judge nothing: something was missing or did not work. The next run tries them again."""


@dataclass(frozen=True)
class Dropped:
    """A span or key frame that is not in the dataset; id: as its image_id would be, or its span's match_id."""

    id: str
    reason: str
    detail: str = ""


@dataclass(frozen=True)
class Found:
    """What a video gave: rows, what was dropped, and how many spans of each behaviour it has."""

    rows: tuple[ImportedRow, ...]
    dropped: tuple[Dropped, ...] = ()
    spans: dict[str, int] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        return any(each.reason in FAILED for each in self.dropped)


@dataclass(frozen=True)
class KeyFrame:
    """A frame that is wanted: its number (from 1) and the span it stands for."""

    video: UcfVideo
    span: Span
    number: int

    @property
    def match_id(self) -> str:
        return f"{video_key(self.video)}_{self.span.id}"

    @property
    def id(self) -> str:
        return f"{self.match_id}_{self.number:06d}"


@dataclass(frozen=True)
class Build:
    """What is wanted: of which folder, with which engines, how many frames a span."""

    root: Path
    annotations: Path
    profile: Profile
    name: str
    frames_per_span: int = 3
    deadline_s: float = DEADLINE_S

    @property
    def parts(self) -> Path:
        return stages.build_dir(self.profile, self.name) / "ucc"


def video_key(video: UcfVideo) -> str:
    """Ten hex digits of the video's name, as for the videos of OOPS!."""
    return hashlib.sha256(video.name.encode()).hexdigest()[:10]


def wanted_frames(video: UcfVideo, frames: int, per_span: int) -> tuple[list[KeyFrame], list[Dropped], dict[str, int]]:
    """The key frames of a video of so many frames, the spans that have none, and how many spans it has by behaviour."""
    wanted: list[KeyFrame] = []
    dropped: list[Dropped] = []
    spans = [*video.anomalies, *normal_spans(video.anomalies, frames)]
    for span in sorted(spans, key=lambda each: (each.first, each.id)):
        span_id = f"{video_key(video)}_{span.id}"
        if span.first > frames:
            dropped.append(Dropped(span_id, "span_beyond_end", f"{span.first} to {span.last} of {frames} frames"))
        elif span.behavior == "normal" and span.frames < SHORTEST_NORMAL_S * FPS:
            dropped.append(Dropped(span_id, "span_too_short", f"{span.frames} frames"))
        else:
            shown = Span(span.id, span.behavior, span.first, min(span.last, frames))
            wanted += [KeyFrame(video, shown, number) for number in key_frames(shown, per_span)]
    return wanted, dropped, dict(Counter(span.behavior for span in spans))


class Builder:
    """Turns videos into rows with the engines that a profile names, each loaded when it is first needed."""

    def __init__(self, build: Build, reader: FrameReader) -> None:
        self._build, self._reader = build, reader
        self._prompts = {name: load_prompt(name) for name in ("caption", *attributes.PROMPTS, "decompose")}

    def _engine(self, section: str) -> Any:
        return stages.engine_of(section, self._build.profile, self._build.name)

    def video(self, video: UcfVideo, path: Path) -> Found:
        """What a video gives. Raises VideoError where it cannot be read."""
        frames = frame_count(self._reader.duration(path))
        wanted, dropped, spans = wanted_frames(video, frames, self._build.frames_per_span)
        shown = self._reader.read_at(path, [frame_time(each.number) for each in wanted]) if wanted else None
        images: dict[str, tuple[KeyFrame, Any, bytes]] = {}
        for each, frame in zip(wanted, shown.frames if shown else (), strict=True):
            if frame is None:
                dropped.append(Dropped(each.id, "frame_not_shown", f"frame {each.number}"))
            else:
                encoded = encode_jpeg(frame.image, self._build.profile.frames.jpeg_quality)
                images[each.id] = (each, frame.image, encoded)
        rows = self._rows(images, dropped) if images else []
        return Found(tuple(rows), tuple(dropped), spans)

    def _rows(self, images: dict[str, tuple[KeyFrame, Any, bytes]], dropped: list[Dropped]) -> list[ImportedRow]:
        people = self._people(images, dropped)
        captions = self._captions(images, people, dropped)
        labels = self._labels(images, people, captions, dropped)
        factors = self._factors([captions[name].caption for name in labels])
        min_score = self._build.profile.keypoints.people.min_joint_score
        rows = []
        for name, label in labels.items():
            frame, pixels, encoded = images[name]
            height, width = pixels.shape[:2]
            joints = [person.keypoints for person in people[name][1]]
            pose = encode_png(draw_pose_map(joints, width, height, min_score=min_score))
            caption = captions[name]
            split = factors.get(caption.caption)
            rows.append(
                ImportedRow(
                    **picture_fields(encoded, f"{name}.jpg"),
                    pose=published_image(name, pose),
                    caption=caption.caption,
                    image_id=name,
                    match_id=frame.match_id,
                    source_id=video_key(frame.video),
                    behavior=frame.span.behavior,
                    action=label.action,
                    anomaly=label.anomaly,
                    scene=label.scene,
                    factors=split.factors if split else None,
                    video=f"{frame.video.class_name}/{frame.video.name}",
                    keypoints=people[name][0],
                    # No generator: the frame is footage of real people.
                    captioner=caption.captioner,
                    labeller=label.labeller,
                    decomposer=split.decomposer if split else None,
                    reviewed=False,
                )
            )
        return rows

    def _people(
        self, images: dict[str, tuple[KeyFrame, Any, bytes]], dropped: list[Dropped]
    ) -> dict[str, tuple[tuple[PersonKeypoints, ...], list[Person]]]:
        """The people of each frame that passes the filter, as stored and as engines read them."""
        found = self._engine("keypoints").estimate([pixels for _, pixels, _ in images.values()])
        kept = {}
        for (name, (_, pixels, _)), persons in zip(images.items(), found, strict=True):
            people = tuple(stored(person) for person in persons)
            again = [Person.from_row(person.model_dump()) for person in people]
            reason, scores = judge(again, pixels.shape[1], pixels.shape[0], self._build.profile.keypoints, "test")
            if reason is None:
                kept[name] = (people, again)
            else:
                dropped.append(Dropped(name, reason, json.dumps(scores, separators=(",", ":"))))
        return kept

    def _captions(self, images: Any, people: Any, dropped: list[Dropped]) -> dict[str, Any]:
        if not people:
            return {}
        engine, prompt = self._engine("recaption"), self._prompts["caption"]
        requests = [
            CaptionRequest(
                id=name,
                image=images[name][1],
                persons=tuple(people[name][1]),
                behavior=images[name][0].span.behavior,
                source_caption=None,
                prompt=prompt.text,
            )
            for name in people
        ]
        used = PromptUsed(id=prompt.id, sha256=prompt.sha256)
        made = Engine(name=engine.name, revision=engine.revision)
        return _kept(
            [
                recaption.outcome(
                    CaptionReplies(id=request.id, asked=digest_of(), replies=replies, captioner=made, prompt=used)
                )
                for request, replies in zip(requests, caption_replies(engine, requests), strict=True)
            ],
            dropped,
        )

    def _labels(self, images: Any, people: Any, captions: Any, dropped: list[Dropped]) -> dict[str, Any]:
        if not captions:
            return {}
        engine = self._engine("attributes")
        made = Engine(name=engine.name, revision=engine.revision)
        requests = []
        for name, caption in captions.items():
            behavior = images[name][0].span.behavior
            questions = (attributes.QUESTION[behavior], "scene")
            requests.append(
                LabelRequest(
                    id=name,
                    image=images[name][1],
                    persons=tuple(people[name][1]),
                    behavior=behavior,
                    source_caption=None,
                    caption=caption.caption,
                    # As for a real frame of OOPS! whose video has no sentence: the re-caption stands in for it.
                    prompts={each: self._prompts[each].render(source_caption=caption.caption) for each in questions},
                )
            )
        return _kept(
            [
                attributes.outcome(
                    LabelReplies(
                        id=request.id,
                        asked=digest_of(),
                        behavior=images[request.id][0].span.behavior,
                        replies=replies,
                        asked_with="re-caption",
                        labeller=made,
                        prompts=tuple(
                            PromptUsed(id=each, sha256=self._prompts[each].sha256) for each in request.prompts
                        ),
                    )
                )
                for request, replies in zip(requests, label_replies(engine, requests), strict=True)
            ],
            dropped,
        )

    def _factors(self, captions: Sequence[str]) -> dict[str, Any]:
        """The factors by caption; a caption that cannot be split has none, and its image stays: nothing is searched by
        them.
        """
        if not captions:
            return {}
        engine, prompt = self._engine("decompose"), self._prompts["decompose"]
        made, used = Engine(name=engine.name, revision=engine.revision), PromptUsed(id=prompt.id, sha256=prompt.sha256)
        unique = sorted(set(captions))
        found = {}
        for caption, replies in zip(unique, factor_replies(engine, unique, prompt.text), strict=True):
            asked = FactorReplies(id=caption, asked=digest_of(), replies=replies, decomposer=made, prompt=used)
            outcome = decomposition.outcome(caption, asked)
            if isinstance(outcome, Kept):
                found[caption] = outcome.record
        return found


def _kept(outcomes: Sequence[Outcome], dropped: list[Dropped]) -> dict[str, Any]:
    """The records that go on, by id; the others are told."""
    kept = {}
    for outcome in outcomes:
        if isinstance(outcome, Kept):
            kept[outcome.id] = outcome.record
        else:
            dropped.append(Dropped(outcome.id, outcome.reason, one_line(outcome.detail)))
    return kept


def engines_key(build: Build) -> str:
    """All that a video's rows depend on besides the video: engines, prompts, filter, rule and code, as one digest."""
    profile = build.profile
    prints: dict[str, Any] = {}
    for section in ("keypoints", "recaption", "attributes", "decompose"):
        prints |= stages.fingerprints(stages.stage(section), profile)
    prompts = {name: load_prompt(name).sha256 for name in ("caption", *attributes.PROMPTS, "decompose")}
    basis = {
        "version": VERSION,
        "stages": [stages.stage(name).version for name in ("keypoints", "recaption", "attributes", "decompose")],
        "engines": prints,
        "prompts": prompts,
        "filter": profile.section("keypoints.people"),
        "jpeg_quality": profile.frames.jpeg_quality,
        "frames_per_span": build.frames_per_span,
        "shortest_normal_s": SHORTEST_NORMAL_S,
    }
    return digest_of(basis)


class Parts:
    """What each video gave, in files of its own."""

    def __init__(self, folder: Path, key: str) -> None:
        self._folder, self._key = folder / key[:16], key

    def path(self, video: UcfVideo, file: Path) -> Path:
        """Of the part without its ending: it changes with the file (size and time), the annotation and the key."""
        known = file.stat()
        spans = [(span.first, span.last) for span in video.anomalies]
        mark = digest_of(self._key, video.name, video.class_name, spans, known.st_size, known.st_mtime_ns)
        return self._folder / f"{video_key(video)}-{mark[:16]}"

    def read(self, path: Path) -> Found | None:
        """What was found before; None where nothing was, where a file is broken, or where something had failed."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            told = json.loads(path.with_suffix(".json").read_text("utf-8"))
            data = path.with_suffix(".parquet").read_bytes()
            if hashlib.sha256(data).hexdigest() != told["rows_sha256"]:
                return None
            rows = pq.read_table(pa.BufferReader(data)).to_pylist()
            found = Found(
                tuple(ImportedRow.model_validate(row) for row in rows),
                tuple(Dropped(**each) for each in told["dropped"]),
                dict(told["spans"]),
            )
        except (OSError, ValueError, KeyError, TypeError, pa.ArrowException, ValidationError):
            return None
        return None if found.failed else found

    def write(self, path: Path, found: Found) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        data = parquet_bytes(records_table(ImportedRow, found.rows))
        write_atomically(path.with_suffix(".parquet"), data)
        told = {
            "rows_sha256": hashlib.sha256(data).hexdigest(),
            "dropped": [vars(each) for each in found.dropped],
            "spans": found.spans,
        }
        write_atomically(path.with_suffix(".json"), json.dumps(told, ensure_ascii=False).encode())


@dataclass
class Tally:
    """What came of lines, spans and key frames, by class."""

    lines: Counter[tuple[str, str]] = field(default_factory=Counter)
    spans: Counter[tuple[str, str]] = field(default_factory=Counter)
    frames: Counter[tuple[str, str]] = field(default_factory=Counter)
    reasons: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    def classes(self) -> list[str]:
        return sorted({name for name, _ in self.lines})

    def line(self, class_name: str, reason: str | None) -> str:
        """Count a line: kept, or rejected or failed for a reason."""
        outcome = "kept" if reason is None else "failed" if reason in FAILED else "rejected"
        self.lines[class_name, outcome] += 1
        if reason is not None:
            self.reasons[class_name, "line", reason] += 1
        return outcome

    def found(self, class_name: str, found: Found) -> None:
        for behavior, count in found.spans.items():
            self.spans[class_name, behavior] += count
        for row in found.rows:
            self.frames[class_name, row.behavior or ""] += 1
        for each in found.dropped:
            what = "span" if each.reason.startswith("span_") else "frame"
            self.reasons[class_name, what, each.reason] += 1

    def tables(self) -> str:
        """Two Markdown tables: what came of each class, and why the rest did not."""
        head = ["class", "lines", "kept", "rejected", "failed", "anomaly spans", "normal spans", "anomaly images",
                "normal images"]  # fmt: skip
        rows = []
        for name in self.classes():
            outcomes = [self.lines[name, outcome] for outcome in ("kept", "rejected", "failed")]
            counts = [counter[name, each] for counter in (self.spans, self.frames) for each in ("anomaly", "normal")]
            rows.append([name, *(f"{count:,}" for count in (sum(outcomes), *outcomes, *counts))])
        totals = [sum(int(row[column].replace(",", "")) for row in rows) for column in range(1, len(head))]
        rows.append(["all", *(f"{total:,}" for total in totals)])
        told = markdown_table(head, rows)
        if self.reasons:
            why = [
                (name, what, reason, f"{count:,}", REASONS[reason])
                for (name, what, reason), count in sorted(self.reasons.items())
            ]
            told += "\n\n" + markdown_table(["class", "of", "reason", "count", "which is"], why)
        return told


def found_videos(build: Build) -> Iterator[tuple[UcfVideo, Path] | BrokenLine]:
    """Every line with its video's file; a line without one is a BrokenLine with a reason of VIDEO_REASONS."""
    known = videos_in(build.root)
    for line in read_annotations(build.annotations):
        if isinstance(line, BrokenLine):
            yield line
            continue
        path = locate(build.root, line, known)
        if isinstance(path, Path):
            yield line, path
        else:
            yield BrokenLine(line.line, line.class_name, path, line.name)


def rows_of(
    build: Build, tally: Tally, rejections: list[ImportedRejection], bar: Bar | None = None
) -> Iterator[ImportedRow]:
    """The rows of all videos in the order of the annotations; what is not in them goes to `tally` and `rejections`."""
    lines = list(found_videos(build))
    parts = Parts(build.parts, engines_key(build))
    with FrameReader(deadline_s=build.deadline_s) as reader:
        builder = Builder(build, reader)
        for done, line in enumerate(lines, 1):
            if isinstance(line, BrokenLine):
                tally.line(line.class_name, line.reason)
                rejections.append(_rejection(build, line.line, None, line.reason, line.detail))
            else:
                yield from _video_rows(build, builder, parts, line, tally, rejections)
            if bar is not None:
                bar(done, len(lines))


def _video_rows(
    build: Build,
    builder: Builder,
    parts: Parts,
    line: tuple[UcfVideo, Path],
    tally: Tally,
    rejections: list[ImportedRejection],
) -> Iterator[ImportedRow]:
    video, path = line
    part = parts.path(video, path)
    found = parts.read(part)
    if found is None:
        try:
            found = builder.video(video, path)
        except VideoError as error:
            tally.line(video.class_name, error.reason)
            rejections.append(_rejection(build, video.line, None, error.reason, f"{video.name}: {error.detail}"))
            return
        parts.write(part, found)
    tally.found(video.class_name, found)
    reason = None
    if not found.rows:
        reason = next((each.reason for each in found.dropped if each.reason in FAILED), "no_key_frame")
        rejections.append(_rejection(build, video.line, None, reason, video.name))
    tally.line(video.class_name, reason)
    rejections += [_rejection(build, video.line, each.id, each.reason, each.detail) for each in found.dropped]
    yield from found.rows


def _rejection(build: Build, line: int, image_id: str | None, reason: str, detail: str) -> ImportedRejection:
    file = build.annotations.name
    return ImportedRejection(
        split="ucc", file=file, line=line, row=line, image_id=image_id, reason=reason, detail=detail
    )


_NOTE = """\
UCC as this project builds it: key frames of the test videos of UCF-Crime with captions, labels, keypoints and pose maps
by the engines named in each row. **The published UCC's rule is open; this is not that set**, and scores on the two are
not comparable.

## Rule

{rule}

Frames a span: {count}.

## Counts

{tables}"""


def rule() -> str:
    """How key frames are chosen, in words."""
    return RULE.format(shortest=SHORTEST_NORMAL_S, fps=FPS)


def run_build(build: Build, out: Path) -> int:
    """Build into `out` and say what came; returns the exit code."""
    check_out(out.resolve(), OPTION)
    root = build.root.resolve()
    if out.resolve().is_relative_to(root) or root.is_relative_to(out.resolve()):
        raise UserError(f"out: {out} and {build.root} lie in each other; choose another folder with {OPTION}")
    tally, bar = Tally(), Bar("ucc", "videos")
    rejections: list[ImportedRejection] = []

    def note() -> str:
        if not tally.frames:  # then there is no card, and this is what the error says
            return tally.tables()
        return _NOTE.format(rule=rule(), count=build.frames_per_span, tables=tally.tables())

    try:
        made = write_imported(
            out,
            {"ucc": rows_of(build, tally, rejections, bar)},
            note,
            title="UCC, built anew from UCF-Crime",
            rejected=_read_late(rejections),
            option=OPTION,
        )
    finally:
        bar.close()
    print(tally.tables())
    print(f"{out}: ucc {made.rows['ucc']:,} images; {made.rejected:,} lines, spans and frames are not in it: "
          f"{out / 'rejected'}")  # fmt: skip
    failed = sum(count for (_, _, reason), count in tally.reasons.items() if reason in FAILED)
    if failed:
        print(f"{failed:,} of them failed; the same command tries those again", file=sys.stderr)
    return SOME_FAILED if failed else DONE


def _read_late(rejections: list[ImportedRejection]) -> Iterator[ImportedRejection]:
    yield from rejections


def dry_run(build: Build) -> int:
    """Read the annotations, look where the videos are, and say what would be read; decodes and writes nothing."""
    tally, wanted = Tally(), 0
    for line in found_videos(build):
        if isinstance(line, BrokenLine):
            tally.line(line.class_name, line.reason)
        else:
            tally.line(line[0].class_name, None)
            tally.spans[line[0].class_name, "anomaly"] += len(line[0].anomalies)
            wanted += 1
    print(tally.tables())
    print(f"{wanted:,} videos would be read. Normal spans and images are known when a video has been decoded.")
    print("Nothing is written: this was a dry run.")
    return DONE


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    made = common_parser(
        "pipeline.ucc",
        "Build the test set ucc from the test videos of UCF-Crime and their temporal annotations. "
        f"{' '.join(rule().split())} How the published UCC was made is open: this set is not that one. A run that was "
        "stopped goes on from where it was.",
    )
    made.add_argument("folder", type=Path, metavar="UCF_DIR", help=f"holds {ANNOTATIONS} and the videos, at any depth")
    made.add_argument("--annotations", type=Path, metavar="FILE", help=f"default: {ANNOTATIONS} in UCF_DIR")
    made.add_argument("--out", type=Path, default=DEFAULT_OUT, metavar="FOLDER", help=f"default: ./{DEFAULT_OUT}")
    made.add_argument("--frames-per-span", type=int, default=3, metavar="N", help="key frames of a span (default: 3)")
    made.add_argument(
        "--deadline", type=float, default=DEADLINE_S, metavar="SECONDS", help="most for a video (default: %(default)g)"
    )
    made.add_argument("--dry-run", action="store_true", help="say what would be read and write nothing")
    return made


def wanted_build(options: argparse.Namespace) -> Build:
    """What the options ask for. Raises UserError where it cannot be."""
    profile, name = profile_and_build(options)
    if not options.folder.is_dir():
        raise UserError(f"{options.folder}: the folder is not there")
    if not 1 <= options.frames_per_span <= 100:
        raise UserError(f"--frames-per-span {options.frames_per_span}: choose 1 to 100")
    if not 0 < options.deadline <= 86400:
        raise UserError(f"--deadline {options.deadline:g}: choose more than 0 seconds, and a day at most")
    annotations = options.annotations or options.folder / ANNOTATIONS
    if not annotations.is_file():
        raise UserError(f"{annotations}: the annotations are not there; say where they are with --annotations FILE")
    return Build(options.folder, annotations, profile, name, options.frames_per_span, options.deadline)


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m pipeline.ucc`."""
    options = parser().parse_args(argv)

    def run() -> int:
        build = wanted_build(options)
        return dry_run(build) if options.dry_run else run_build(build, options.out)

    return guarded(run)


if __name__ == "__main__":
    raise SystemExit(main())
