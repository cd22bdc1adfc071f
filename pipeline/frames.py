"""Stage 1, frames: the middle frame before and after each clip's failure (PAB, section 3.1).

The frames are those shown at t/2 and (t + duration)/2, where t is the transition time and duration the end of the last
decodable frame.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pipeline.core.images import encode_jpeg
from pipeline.core.profile import FramesSection, Profile
from pipeline.core.stage import Failed, Kept, Outcome, Rejected, Stage, StageContext
from pipeline.formats.oops import (
    OopsVideo,
    TransitionLabel,
    median_valid_time,
    official_quality,
    official_time,
    video_key,
)
from pipeline.formats.oops_shards import frame_videos, videos_digest
from pipeline.formats.video import ClipFrames, FrameReader, VideoError
from schemas.records import Engine, ImageRecord, behavior_of

FrameKind = Literal["goal", "wentrong"]

NO_LABEL, NO_FAILURE, QUALITY = "no_transition_label", "no_failure_seen", "quality_rule"
JUDGED = ("nothing_before_transition", "nothing_after_transition", "frame_too_large")
"""What a decoder's answer says of the clip itself; its other reasons are failures to read it."""


@dataclass(frozen=True)
class FrameItem:
    """The frame before (goal) or after (wentrong) the failure of one clip; a clip's two are one group."""

    video: OopsVideo
    kind: FrameKind

    @property
    def id(self) -> str:
        return f"{self.group}_{self.kind}_frame"

    @property
    def group(self) -> str:
        return video_key(self.video.name)


def transition_time(label: TransitionLabel | None, section: FramesSection) -> tuple[float | None, str]:
    """The clip's transition time in seconds, or None and the reason why it is not used."""
    if label is None:
        return None, NO_LABEL
    time_s = official_time(label) if section.transition == "official" else median_valid_time(label)
    if time_s is None:
        return None, NO_FAILURE
    if section.quality_rule and not official_quality(label):
        return None, QUALITY
    return time_s, ""


def items(context: StageContext) -> list[FrameItem]:
    kinds: tuple[FrameKind, FrameKind] = ("goal", "wentrong")
    return [FrameItem(video, kind) for video in frame_videos(context.profile, context.shard) for kind in kinds]


def run(context: StageContext, batch: Sequence[FrameItem]) -> list[Outcome]:
    section = context.profile.frames
    clips: dict[str, list[FrameItem]] = {}
    for item in batch:
        clips.setdefault(item.group, []).append(item)
    outcomes: list[Outcome] = []
    with FrameReader(deadline_s=section.deadline_s) as reader:
        for members in clips.values():
            outcomes += _clip_outcomes(members, reader, section)
    return outcomes


def _clip_outcomes(members: Sequence[FrameItem], reader: FrameReader, section: FramesSection) -> list[Outcome]:
    video = members[0].video
    if video.path is None:
        what = f"{video.name}: listed or labelled under {video.split}, but there is no video file"
        return [Failed(item.id, "missing_video", what) for item in members]
    time_s, reason = transition_time(video.label, section)
    if time_s is None:
        return [Rejected(item.id, reason, _label_text(video)) for item in members]
    try:
        clip = reader.read_pair(video.path, time_s)
    except VideoError as error:
        verdict = Rejected if error.reason in JUDGED else Failed
        return [verdict(item.id, error.reason, f"{video.name}: {error.detail}") for item in members]
    return [Kept(_record(item, clip, time_s, section.jpeg_quality)) for item in members]


def _label_text(video: OopsVideo) -> str:
    if video.label is None:
        return video.name
    return f"{video.name}: votes {list(video.label.t)} s, length {video.label.len_s:g} s"


def _record(item: FrameItem, clip: ClipFrames, time_s: float, quality: int) -> ImageRecord:
    shown = clip.before if item.kind == "goal" else clip.after
    encoded = encode_jpeg(shown.image, quality)
    height, width = shown.image.shape[:2]
    return ImageRecord(
        id=item.id,
        source_id=f"{item.group}_{item.kind}",
        pair_id=item.group,
        video=item.video.name,
        kind=item.kind,
        behavior=behavior_of(item.kind),
        source_caption=None,
        image=encoded,
        width=width,
        height=height,
        sha256=hashlib.sha256(encoded).hexdigest(),
        number=None,
        transition_time_s=float(time_s),
        wanted_time_s=float(shown.wanted_s),
        shown_time_s=float(shown.start_s),
        seed=None,
        attempt=None,
        prompt=None,
        prompt_cut=None,
        generator=Engine(name="oops", revision=f"frame {shown.index} read by {clip.decoder}"),
    )


def upstream(_profile: Profile, _shard: str) -> list[tuple[str, str]]:
    return []


STAGE = Stage(
    name="frames",
    version=1,
    summary="the middle frames before and after each clip's failure",
    shard_kinds=("test",),
    reads={"OOPS! folder": ("videos", "transition times")},
    writes=ImageRecord,
    reasons=(NO_LABEL, NO_FAILURE, QUALITY, *JUDGED),
    upstream=upstream,
    items=items,
    run=run,
    config=("frames.splits", "frames.transition", "frames.quality_rule", "frames.jpeg_quality"),
    external=videos_digest,
)


if __name__ == "__main__":
    from pipeline.run_stage import stage_main

    raise SystemExit(stage_main("frames"))
