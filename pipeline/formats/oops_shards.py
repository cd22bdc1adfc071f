"""Which videos of the OOPS! folder fall into which shard, and the digests that tell when the folder has changed."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Sequence
from pathlib import Path

from pipeline.core.profile import Profile, oops_root
from pipeline.core.stage import shard_kind, shard_number
from pipeline.core.store import file_digest
from pipeline.formats.oops import OopsCaption, OopsFolder, OopsVideo, read_oops, video_key

FOOTAGE_MARKER = "footage.json"
"""Written last by the simulator: the folder is whole."""


def open_folder(profile: Profile) -> OopsFolder:
    """The OOPS! folder of a profile, read once a process as long as its annotations stay the same.

    Raises UserError where the folder or a needed file is missing.
    """
    root = oops_root(profile)
    return _read(root, tuple(sorted({*profile.sources.splits, *profile.frames.splits})), _stamp(root))


@functools.lru_cache(maxsize=4)
def _read(root: Path, splits: tuple[str, ...], _stamp: tuple[tuple[str, int, int], ...]) -> OopsFolder:
    return read_oops(root, splits)


def _stamp(root: Path) -> tuple[tuple[str, int, int], ...]:
    files = [path for path in _annotation_files(root) if path.is_file()]
    folders = [path for path in (root / "oops_video" / "train", root / "oops_video" / "val") if path.is_dir()]
    stats = [(path.name, path.stat()) for path in [*files, *folders]]
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)


def _annotation_files(root: Path) -> list[Path]:
    return sorted([*root.glob("annotations/*.txt"), *root.glob("annotations/*.json"), *root.glob("svos/*.json")])


def test_shard_count(profile: Profile) -> int:
    """How many test shards there are: the clips of `frames.splits`, `frames.clips_per_shard` a shard, at least one.

    Known from the profile before the simulator's footage is filmed.
    """
    filmed = profile.oops.root is not None or (oops_root(profile) / FOOTAGE_MARKER).exists()
    if filmed:
        count = len(_frame_candidates(profile))
    else:
        assert profile.footage is not None
        clips = {"train": profile.footage.train_clips, "val": profile.footage.val_clips}
        count = sum(clips[split] for split in profile.frames.splits)
        count = min(count, profile.frames.clips or count)
    return max(1, math.ceil(count / profile.frames.clips_per_shard))


def frame_videos(profile: Profile, shard: str) -> list[OopsVideo]:
    """The videos whose frames are a test shard, by name."""
    start = shard_number(shard) * profile.frames.clips_per_shard
    return _frame_candidates(profile)[start : start + profile.frames.clips_per_shard]


def caption_videos(profile: Profile, shard: str) -> list[OopsVideo]:
    """The videos whose captions a shard of `sources` reads: those that feed training, or whose frames are tested."""
    if shard_kind(shard) == "test":
        return _videos(profile, profile.frames.splits)
    if profile.sources.captions is not None:
        return _given(profile)
    return _videos(profile, profile.sources.splits)


def _given(profile: Profile) -> list[OopsVideo]:
    """The profile's own captions, each as a video whose name is that of its words: others beside it change no id."""
    given = {}
    for caption in profile.sources.captions or ():
        name = "given " + hashlib.sha256(f"{caption.goal}\n{caption.wentwrong}".encode()).hexdigest()[:12]
        captions = (OopsCaption(caption.goal, caption.wentwrong),)
        given[name] = OopsVideo(
            name, "train", path=None, label=None, captions=captions, in_list=False, passed_quality_list=False
        )
    return [given[name] for name in sorted(given)]


def _frame_candidates(profile: Profile) -> list[OopsVideo]:
    # A label that belongs to no list, file or caption is a clip that went missing: it is counted with the first split.
    split = profile.frames.splits[0]
    orphans = [
        OopsVideo(name, split, path=None, label=label, captions=(), in_list=False, passed_quality_list=False)
        for name, label in open_folder(profile).orphan_labels
    ]
    drawn = sorted([*_videos(profile, profile.frames.splits), *orphans], key=lambda video: video_key(video.name))
    return sorted(drawn[: profile.frames.clips], key=lambda video: video.name)


def _videos(profile: Profile, splits: Sequence[str]) -> list[OopsVideo]:
    folder = open_folder(profile)
    # A clip listed under two splits is one clip, with one id: it is counted with the split named first.
    unique: dict[str, OopsVideo] = {}
    for split in splits:
        for video in folder.videos(split):
            unique.setdefault(video_key(video.name), video)
    return sorted(unique.values(), key=lambda video: video.name)


def annotations_digest(profile: Profile, shard: str) -> dict[str, str]:
    """Digests of all annotation and caption files of the folder; of captions that the profile gives, their names."""
    if shard_kind(shard) == "train" and profile.sources.captions is not None:
        return {"given": ", ".join(video.name for video in _given(profile))}
    root = oops_root(profile)
    return {str(path.relative_to(root)): file_digest(path) for path in _annotation_files(root)}


def videos_digest(profile: Profile, shard: str) -> dict[str, str]:
    """Digests of the annotations, and size and time of change of every video of a shard."""
    digest = hashlib.sha256()
    for video in frame_videos(profile, shard):
        stat = video.path.stat() if video.path is not None else None
        digest.update(f"{video.name}\0{(stat.st_size, stat.st_mtime_ns) if stat else None}\n".encode())
    return {**annotations_digest(profile, shard), "videos": digest.hexdigest()}
