"""A small finished build written straight into a store, to test without engines what comes after the stages."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from pipeline import publish
from pipeline.core.profile import Profile, load_profile
from pipeline.core.prompts import load_prompt
from pipeline.core.runner import ShardResult, run_shard
from pipeline.core.seeds import generator_of
from pipeline.core.stage import StageContext
from pipeline.core.store import Store
from schemas.records import (
    Attributes,
    Decomposition,
    Engine,
    Factors,
    ImageRecord,
    PersonKeypoints,
    PoseRecord,
    PromptUsed,
    Recaption,
    Record,
    Rejection,
    Review,
    SimilarityRecord,
    SourceCaption,
    behavior_of,
)

TRAIN_VIDEOS = ("climbs a fence0", "rides a bike1", "skates in a park2")
TEST_VIDEOS = ("jumps a puddle0", "skates in a park2", "carries a box4", "walks a dog5")
WIDTH, HEIGHT = 48, 32


def video_key(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:10]


def train_id(video: str, kind: str, number: int) -> str:
    return f"{video_key(video)}_{kind}_{number:03d}"


def frame_id(video: str, kind: str) -> str:
    return f"{video_key(video)}_{kind}_frame"


def small_profile(root: Path, overrides: Sequence[str] = ()) -> Profile:
    """The demo profile with two training shards and two test shards, working under `root`."""
    own = [
        f"out={root / 'out' / 'pab'}",
        f"work={root / 'work'}",
        "generate.images_per_caption=2",
        "frames.clips_per_shard=2",
        f"footage.train_clips={len(TRAIN_VIDEOS)}",
        f"footage.val_clips={len(TEST_VIDEOS)}",
        "publish.rows_per_file=7",
        "publish.rows_per_group=3",
    ]
    return load_profile("demo", [*own, *overrides])


def write_build(
    root: Path, lost: Mapping[str, str] | None = None, overrides: Sequence[str] = ()
) -> tuple[Profile, Store]:
    """All shards that publish reads. lost: record id -> the stage that rejects it."""
    profile = small_profile(root, overrides)
    store = Store(profile.work / "small")
    lost = lost or {}
    for shard in ("train-000", "train-001", "test-000", "test-001"):
        _write_shard(store, shard, lost)
    for shard, videos, kinds in (
        ("train-000", TRAIN_VIDEOS, ("goal", "wentrong", "full")),
        ("test-000", TEST_VIDEOS[:2], ("goal", "wentrong")),  # the videos of test-001 have no captions
    ):
        sources = [_source(video, kind) for video in videos for kind in kinds]
        _put(store, "sources", shard, SourceCaption, sources, lost, {"sources": engine("spacy-subjects")})
    return profile, store


def publish_build(profile: Profile, store: Store, force: bool = False) -> ShardResult:
    """Run publish, and with it the delivery."""
    return run_shard(publish.STAGE, StageContext(profile, store, "all", lambda _: None), {}, force=force)


def engine(name: str) -> Engine:
    return Engine(name=name, revision="1")


def jpeg(name: str) -> bytes:
    """A picture of random blocks, the same for the same name."""
    blocks = generator_of(name).integers(0, 256, (4, 6, 3), dtype="uint8")
    buffer = io.BytesIO()
    Image.fromarray(blocks).resize((WIDTH, HEIGHT), Image.Resampling.NEAREST).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


def _png(name: str) -> bytes:
    buffer = io.BytesIO()
    Image.open(io.BytesIO(jpeg(name))).save(buffer, "PNG")
    return buffer.getvalue()


def _write_shard(store: Store, shard: str, lost: Mapping[str, str]) -> None:
    train = shard.startswith("train")
    number = int(shard[-3:])
    videos = TRAIN_VIDEOS if train else TEST_VIDEOS[2 * number : 2 * number + 2]
    kinds = ("goal", "wentrong", "full") if train else ("goal", "wentrong")
    images = [_image(video, kind, number if train else None) for video in videos for kind in kinds]
    first = "generate" if train else "frames"
    engines: dict[str, dict[str, Engine]] = {
        "generate": {"generate": engine("simulator")},
        "keypoints": {"keypoints": engine("blazepose")},
        "similarity": {"similarity": engine("efficientnet_lite0")},
        "recaption": {"recaption": engine("pixels")},
        "attributes": {"attributes": engine("pixels")},
        "decompose": {"decompose": engine("clauses")},
    }
    left = _put(store, first, shard, ImageRecord, images, lost, engines.get(first, {}))
    behaviors = {image.id: image.behavior for image in images}
    makers: list[tuple[str, type[Record], Any]] = [
        ("keypoints", PoseRecord, _pose),
        *([] if train else [("similarity", SimilarityRecord, _similarity)]),
        ("recaption", Recaption, _recaption),
        ("attributes", Attributes, lambda record_id: _attributes(record_id, behaviors[record_id])),
        *([] if train else [("review", Review, _review)]),
        ("decompose", Decomposition, _decomposition),
    ]
    for stage, model, make in makers:
        left = _put(store, stage, shard, model, [make(record_id) for record_id in left], lost, engines.get(stage, {}))


def _put(
    store: Store,
    stage: str,
    shard: str,
    model: type[Record],
    records: Sequence[Record],
    lost: Mapping[str, str],
    engines: Mapping[str, Engine],
) -> list[str]:
    kept = [record for record in records if lost.get(record.id) != stage]
    dropped = [
        Rejection(id=record.id, outcome="rejected", reason=f"bad_for_{stage}", detail='{"score": 0.1}')
        for record in records
        if lost.get(record.id) == stage
    ]
    prompts = {"recaption": ["caption"], "attributes": ["action", "anomaly", "scene"], "decompose": ["decompose"]}
    manifest = {
        "counts": {"in": len(records), "kept": len(kept), "rejected": len(dropped), "failed": 0},
        "reasons": {f"bad_for_{stage}": len(dropped)} if dropped else {},
        "engines": {section: {**used.model_dump(), "settings": {}} for section, used in engines.items()},
        "prompts": {prompt: load_prompt(prompt).sha256 for prompt in prompts.get(stage, [])},
        "seconds": 1.5,
    }
    key = hashlib.sha256(f"{stage} {shard} {sorted(lost.items())}".encode()).hexdigest()
    with store.writing(stage, shard, key, model) as writer:
        half = len(kept) // 2
        writer.begin(2)
        writer.write_part(0, kept[:half], dropped)
        writer.write_part(1, kept[half:], [])
        writer.finish(manifest)
    return [record.id for record in kept]


def _source(video: str, kind: Any) -> SourceCaption:
    return SourceCaption(
        id=f"{video_key(video)}_{kind}",
        video=video,
        video_key=video_key(video),
        oops_split="train",
        kind=kind,
        behavior=behavior_of(kind),
        caption=f"a man {video} ({kind})",
        worker=0,
        subject_reader=engine("spacy-subjects"),
    )


def _image(video: str, kind: Any, number: int | None) -> ImageRecord:
    record_id = train_id(video, kind, number) if number is not None else frame_id(video, kind)
    data = jpeg(record_id)
    real = number is None
    return ImageRecord(
        id=record_id,
        source_id=f"{video_key(video)}_{kind}",
        pair_id=video_key(video) if real else f"{video_key(video)}_{number:03d}",
        video=video,
        kind=kind,
        behavior=behavior_of(kind),
        source_caption=None if real else f"a man {video} ({kind})",
        image=data,
        width=WIDTH,
        height=HEIGHT,
        sha256=hashlib.sha256(data).hexdigest(),
        number=number,
        transition_time_s=2.5 if real else None,
        wanted_time_s=1.25 if real else None,
        shown_time_s=1.24 if real else None,
        seed=None if real else 7,
        attempt=None if real else 0,
        prompt=None if real else f"a man {video} ({kind})",
        prompt_cut=None,
        generator=engine("oops" if real else "simulator"),
    )


def _pose(record_id: str) -> PoseRecord:
    person = PersonKeypoints(keypoints=tuple(float(each) for each in range(51)), box=(1.0, 2.0, 30.0, 31.0), score=0.9)
    return PoseRecord(
        id=record_id,
        persons=(person,),
        pose_map=_png(f"{record_id} pose"),
        scores="{}",
        pose_estimator=engine("blazepose"),
    )


def _similarity(record_id: str) -> SimilarityRecord:
    return SimilarityRecord(
        id=record_id, pair_id=record_id.split("_")[0], cosine=0.4, embedder=engine("efficientnet_lite0")
    )


def caption_of(record_id: str) -> str:
    return f"A man in a red jacket of {record_id}."


def _recaption(record_id: str) -> Recaption:
    prompt = PromptUsed(id="caption", sha256=load_prompt("caption").sha256)
    return Recaption(id=record_id, caption=caption_of(record_id), captioner=engine("pixels"), prompt=prompt)


def _attributes(record_id: str, behavior: str) -> Attributes:
    normal = behavior == "normal"
    return Attributes(
        id=record_id,
        action="walking" if normal else None,
        anomaly=None if normal else "falling",
        scene="park",
        raw="{}",
        asked_with="source caption",
        labeller=engine("pixels"),
        prompts=(),
    )


def _review(record_id: str) -> Review:
    return Review(id=record_id, caption=caption_of(record_id), reviewed=False, corrected=False, votes=0)


def _decomposition(record_id: str) -> Decomposition:
    caption = caption_of(record_id)
    return Decomposition(
        id=record_id,
        caption=caption,
        caption_sha256=hashlib.sha256(caption.encode()).hexdigest(),
        factors=Factors(appearance="a red jacket", action=None, background=None),
        missing=("action", "background"),
        decomposer=engine("clauses"),
        prompt=PromptUsed(id="decompose", sha256=load_prompt("decompose").sha256),
    )
