"""How much each stage of a build has to do: from the profile, the OOPS! folder where it is there, what is built, and
the table of rates for the rest.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline import footage, gpu_stages, stages
from pipeline.backends import chat, registry
from pipeline.core.errors import UserError
from pipeline.core.planning import (
    MEASURED,
    PUBLISHED,
    Kept,
    Origin,
    Rates,
    Work,
    keep_share,
    load_rates,
    size_of,
    worst,
)
from pipeline.core.profile import Profile, oops_root
from pipeline.core.prompts import load_prompt
from pipeline.core.runner import content_key
from pipeline.core.stage import Stage, shard_kind, shard_name
from pipeline.core.store import Store
from schemas.records import KINDS

_SHARDS_COUNTED = 3
"""Finished shards of a stage of which the kept are counted by kind: tens of thousands of records say enough."""
_CAPTION_CHARACTERS = 300
"""Of a re-caption of 52 words, or of a source caption with the question around it."""


@dataclass(frozen=True)
class Counts:
    """How many clips feed captions and test pairs, and how many captions of each kind there are to draw.

    said_by: for a person, where the numbers are from.
    """

    caption_clips: int
    caption_clips_of_test: int
    test_clips: int
    sources: Mapping[str, float]
    origin: Origin
    said_by: str


def counts_of(profile: Profile, store: Store | None, rates: Rates) -> Counts:
    """The counts of a profile's own folder, else of the footage that it films, else the table's (the paper's)."""
    built = _built_sources(store)
    if oops_is_there(profile):
        from pipeline.formats.oops_shards import caption_videos, frame_videos, test_shard_count

        train, test = caption_videos(profile, "train-000"), caption_videos(profile, "test-000")
        test_shards = [shard_name("test", number) for number in range(test_shard_count(profile))]
        clips = sum(len(frame_videos(profile, shard)) for shard in test_shards)
        captioned = sum(bool(video.captions) for video in train)
        said = f"the OOPS! folder {oops_root(profile)}"
        return _counted(profile, rates, len(train), len(test), clips, captioned, built, said)
    splits = {"train": "train_clips", "val": "val_clips"}
    if profile.footage is not None and profile.oops.root is None:
        own = profile.footage.model_dump()
        train_clips = sum(own[splits[split]] for split in profile.sources.splits)
        of_test = sum(own[splits[split]] for split in profile.frames.splits)
        clips = min(of_test, profile.frames.clips or of_test)
        said = "the footage that the profile films"
        return _counted(profile, rates, train_clips, of_test, clips, train_clips, built, said)
    train_clips = sum(rates.counts[splits[split]] for split in profile.sources.splits)
    of_test = sum(rates.counts[splits[split]] for split in profile.frames.splits)
    clips = min(of_test, profile.frames.clips or of_test)
    sources: dict[str, float] = {kind: float(rates.counts[kind]) for kind in KINDS}
    return Counts(train_clips, of_test, clips, sources, PUBLISHED, "the paper (no OOPS! folder is here)")


def oops_is_there(profile: Profile) -> bool:
    """Whether the profile's OOPS! folder, its own or the simulator's, can be counted now."""
    state = footage.footage_state(profile)
    if state.simulated:
        return state.ready
    needed = ("oops_video", "annotations/transition_times.json", "svos")
    return profile.oops.root is not None and all((profile.oops.root / name).exists() for name in needed)


def _counted(
    profile: Profile,
    rates: Rates,
    train: int,
    of_test: int,
    clips: int,
    captioned: int,
    built: Mapping[str, float] | None,
    said: str,
) -> Counts:
    if built is not None:
        return Counts(train, of_test, clips, built, MEASURED, f"{said}, captions as the build kept them")
    simulated = footage.footage_state(profile).simulated
    shares = {
        kind: keep_share(rates, "sources", "simulated" if simulated else kind, profile.sources.backend)
        for kind in KINDS
    }
    sources: dict[str, float] = {kind: captioned * share for kind, (share, _) in shares.items()}
    return Counts(train, of_test, clips, sources, worst(origin for _, origin in shares.values()), said)


def _built_sources(store: Store | None) -> dict[str, float] | None:
    if store is None or store.manifest("sources", "train-000") is None:
        return None
    kept = Counter(record_id.rpartition("_")[2] for record_id in store.kept_ids("sources", "train-000"))
    return {kind: float(kept[kind]) for kind in KINDS}


def kept_of_build(profile: Profile, store: Store) -> list[Kept]:
    """The shares of records that the finished shards of a build kept, by kind."""
    found = []
    for stage in stages.all_stages():
        seen: Counter[str] = Counter()
        kept: Counter[str] = Counter()
        for kind in stage.shard_kinds:
            done = sorted(path.parent.name for path in (store.build_dir / stage.name).glob(f"{kind}-*/stage.json"))
            for shard in done[:_SHARDS_COUNTED]:
                for record_id in store.kept_ids(stage.name, shard):
                    kept[_kind_of(record_id, shard)] += 1
                    seen[_kind_of(record_id, shard)] += 1
                for row in store.dropped(stage.name, shard):
                    seen[_kind_of(row["id"], shard)] += 1
        if seen:
            engine = getattr(profile, stage.engines[0]).backend if stage.engines else None
            shares = {kind: kept[kind] / seen[kind] for kind in sorted(seen)}
            found.append(Kept(stage=stage.name, engine=engine, shares=shares, origin=MEASURED))
    return found


def _kind_of(record_id: str, shard: str) -> str:
    # <video key>_<kind>_<number>; all test frames are one kind here, for both of a pair go or stay.
    return "test" if shard_kind(shard) == "test" else record_id.split("_")[1]


def workload(profile: Profile, build: str, rates: Rates) -> tuple[list[Work], Counts]:
    """What every stage of a build has to do, footage first where the simulator films it, and what was counted."""
    store = Store(stages.build_dir(profile, build))
    built = kept_of_build(profile, store)
    rates = Rates(kept=tuple(built)).over(rates)
    counts = counts_of(profile, store, rates)
    known = {(entry.stage, kind) for entry in built for kind in entry.shares}
    return list(_works(profile, store, counts, rates, known)), counts


def _works(profile: Profile, store: Store, counts: Counts, rates: Rates, built: set[tuple[str, str]]) -> Iterator[Work]:
    numbers = profile.generate.images_per_caption
    shards = {"train": numbers, "test": max(1, math.ceil(counts.test_clips / profile.frames.clips_per_shard))}
    size = engine_settings("generate", profile).get("size", 512)
    train_pixels, test_pixels = float(size) ** 2, float(rates.counts["frame_width"] * rates.counts["frame_height"])
    state = footage.footage_state(profile)
    if state.simulated and profile.footage is not None:
        test_pixels = float(profile.footage.size) ** 2
        if not state.ready:
            clips = profile.footage.train_clips + profile.footage.val_clips
            each, origin = size_of(rates, "footage", 0)
            yield Work("footage", clips, clips, state.tasks, disk_bytes=clips * each, origins=(origin,))

    def made(stage: str, items: float, kept: float, *origins: Origin, pixels: float = 0.0, **more: Any) -> Work:
        engine = getattr(profile, stage).backend if stage in registry.SECTION_JOBS else None
        found = stages.stage(stage)
        own_shards = 1 if stage == "publish" else sum(shards[kind] for kind in found.shard_kinds)
        each, size_origin = size_of(rates, stage, pixels, engine)
        on_server = engine == "openai"
        return Work(
            **{
                "stage": stage,
                "items": items,
                "kept": kept,
                "shards": len(found.shard_kinds) if stage == "sources" else own_shards,
                "engine": engine,
                "settings": engine_settings(stage, profile) if engine else {},
                "on_gpu": on_server or gpu_stages.gpu_engine(found, profile) is not None,
                "disk_bytes": kept * each,
                "taken_over": min(items, float(standing(found, profile, store))),
                "origins": (*origins, size_origin),
                **more,
            }
        )

    def share(stage: str, kind: str) -> tuple[float, Origin]:
        # What a filter lets through of the simulator's frames says nothing of OOPS!'s.
        engine = getattr(getattr(profile, stage), "backend", None)
        if state.simulated and kind == "test" and (stage, "test") not in built:
            kind = "simulated"
        return keep_share(rates, stage, kind, engine)

    frames_share, frames_origin = share("frames", "test")
    frames = 2.0 * counts.test_clips
    yield made("frames", frames, frames * frames_share, counts.origin, frames_origin, pixels=test_pixels)
    captions = sum(counts.sources.values())
    clips = counts.caption_clips + counts.caption_clips_of_test
    yield made("sources", 3.0 * clips, captions * clips / max(1, counts.caption_clips), counts.origin)

    drawn = min(1.0, (profile.generate.sources or captions) / captions) if captions else 0.0
    kinds = {kind: count * drawn * numbers for kind, count in counts.sources.items()}
    images = sum(kinds.values())
    generate = engine_settings("generate", profile)
    yield made(
        "generate",
        images,
        images,
        counts.origin,
        pixels=train_pixels,
        steps=int(generate.get("steps", 1)),
        taken_over=min(
            images, float(max(taken_over(profile, store), standing(stages.stage("generate"), profile, store)))
        ),
    )
    origins: list[Origin] = [counts.origin]
    train = 0.0
    for kind, count in kinds.items():
        kept_share, origin = share("keypoints", kind)
        train += count * kept_share
        origins.append(origin)
    test = frames * frames_share
    people_share, people_origin = share("keypoints", "test")
    origins += [frames_origin, people_origin]
    pose_each = size_of(rates, "keypoints", train_pixels, profile.keypoints.backend)[0]
    seen, test = test, test * people_share
    yield made("keypoints", images + seen, train + test, *origins, pixels=train_pixels)

    seen, (alike_share, alike_origin) = test, share("similarity", "test")
    test *= alike_share
    origins.append(alike_origin)
    yield made("similarity", seen, test, *origins)

    image_tokens = {
        "train": _image_tokens(train_pixels, profile),
        "test": _image_tokens(test_pixels, profile),
    }
    images_seen = train * image_tokens["train"] + test * image_tokens["test"]
    items = train + test
    for stage, questions in (("recaption", ("caption",)), ("attributes", ("anomaly", "scene"))):
        asked = _questions(profile, stage, items, questions, images_seen, rates)
        yield made(stage, items, items, *origins, **asked)

    reviewed, review_origin = share("review", "test") if profile.review.file is not None else (1.0, MEASURED)
    seen, test = test, test * reviewed
    origins.append(review_origin)
    yield made("review", seen, test, *origins)
    items = train + test
    yield made("decompose", items, items, *origins, **_questions(profile, "decompose", items, ("factors",), 0.0, rates))
    row = size_of(rates, "publish", 0)[0]
    image_each = size_of(rates, "generate", train_pixels, profile.generate.backend)[0]
    frame_each = size_of(rates, "frames", test_pixels)[0]
    out = train * (row + image_each + pose_each) + test * (row + frame_each + pose_each)
    yield made("publish", items, items, *origins, disk_bytes=out, place="out")


def engine_settings(stage: str, profile: Profile) -> dict[str, Any]:
    """The settings of a section's engine, those of its preset filled in where it has presets."""
    section = getattr(profile, stage)
    if stage == "generate" and section.backend == "diffusers":
        from pipeline.backends.diffusers_images import settings_of

        return settings_of(section.settings).model_dump()
    return dict(section.settings)


def _image_tokens(pixels: float, profile: Profile) -> float:
    """The tokens of an image to Qwen2-VL: one for every 28 x 28 pixels, up to the cap in the settings."""
    from pipeline.backends.chat.images import DEFAULT_MAX_PIXELS, GRID_PIXELS, capped_size

    side = round(math.sqrt(pixels))
    rows, columns = capped_size(side, side, int(profile.recaption.settings.get("max_pixels") or DEFAULT_MAX_PIXELS))
    return round(rows / GRID_PIXELS) * round(columns / GRID_PIXELS)


def _questions(
    profile: Profile, stage: str, items: float, questions: tuple[str, ...], image_tokens: float, rates: Rates
) -> dict[str, Any]:
    """Requests and tokens of a stage that asks a language model; nothing for one that asks none."""
    if getattr(profile, stage).backend not in chat.KINDS:
        return {}
    each = rates.tokens_per_character or 0.25
    prompts = [load_prompt("decompose" if name == "factors" else name) for name in questions]
    about = [_CAPTION_CHARACTERS if prompt.placeholders or stage == "decompose" else 0 for prompt in prompts]
    text = sum((len(prompt.text) + more) * each for prompt, more in zip(prompts, about, strict=True))
    return {
        "requests": items * len(questions),
        "tokens_in": items * text + image_tokens * len(questions),
        "tokens_out": items * sum(rates.reply_tokens.get(name, 0.0) for name in questions),
    }


def standing(stage: Stage, profile: Profile, store: Store) -> int:
    """How many items of a stage are in shards of this build that are up to date."""
    count = 0
    try:
        fingerprints = stages.fingerprints(stage, profile)
        for shard in stages.shard_names(stage, profile):
            manifest = store.manifest(stage.name, shard)
            if manifest is not None and content_key(stage, profile, store, shard, fingerprints) == manifest["key"]:
                count += manifest["counts"]["in"]
    except (UserError, ImportError):
        return count
    return count


def taken_over(profile: Profile, store: Store) -> int:
    """How many images of this build or of those it takes from were made by the very engine that the profile names.

    Images of captions that have changed since are among them, so that it is the most there can be.
    """
    made = stages.stage("generate")
    try:
        wanted = stages.fingerprints(made, profile)
    except (UserError, ImportError):
        return 0
    count = 0
    for number in range(profile.generate.images_per_caption):
        shard = shard_name("train", number)
        best = 0
        for folder in (store.build_dir, *(store.build_dir.parent / name for name in profile.take_from)):
            manifest = Store(folder).manifest("generate", shard)
            if manifest is not None and manifest.get("engines") == wanted:
                best = max(best, manifest["counts"]["kept"] + manifest["counts"]["rejected"])
        count += best
    return count


def disk_left(profile: Profile, build: str | None) -> dict[Path, float]:
    """The bytes that a build has still to write, by the folder (that is there) on whose disk they go."""
    works, _ = workload(profile, build or "unnamed", load_rates())
    wanted = {
        "work": sum(work.disk_bytes for work in works if work.place == "work"),
        "out": sum(work.disk_bytes for work in works if work.place == "out"),
    }
    there = {"work": stages.build_dir(profile, build or "unnamed"), "out": profile.out}
    left: dict[Path, float] = {}
    for place, total in wanted.items():
        disk = _nearest(there[place])
        known = next((other for other in left if other.stat().st_dev == disk.stat().st_dev), disk)
        left[known] = left.get(known, 0.0) + max(0.0, total - _written(there[place]))
    return left


def _nearest(folder: Path) -> Path:
    folder = folder.absolute()
    return next(each for each in (folder, *folder.parents) if each.is_dir())


def _written(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(place) / name).lstat().st_size
            except FileNotFoundError:  # a build that runs has just moved it
                continue
    return total
