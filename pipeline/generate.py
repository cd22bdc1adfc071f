"""Stage 3, generate: image number k of every source caption is shard train-k (PAB, section 3.2)."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.backends.protocols import CutsPrompts, DrawsInHalfPrecision, ImageRequest
from pipeline.core.images import check_generated, encode_jpeg, to_uint8
from pipeline.core.profile import Profile
from pipeline.core.seeds import seed_of
from pipeline.core.stage import Kept, Outcome, Rejected, Stage, StageContext, shard_number
from schemas.records import KINDS, Engine, ImageRecord

ATTEMPTS = 2
"""A black, flat or NaN image is tried once more with the second seed of its id, then rejected; see `tries_of`."""


@dataclass(frozen=True)
class GenerateItem:
    """One image to make of one source caption."""

    id: str
    source_id: str
    group: str = ""


def item_id(source_id: str, number: int) -> str:
    """`<source id>_<image number>`: the id of a generated image."""
    return f"{source_id}_{number:03d}"


def items(context: StageContext) -> list[GenerateItem]:
    number = shard_number(context.shard)
    kept = context.store.kept_ids("sources", "train-000")[: context.profile.generate.sources]
    return [GenerateItem(item_id(source, number), source) for source in kept]


def inputs_of(context: StageContext, batch: Sequence[GenerateItem]) -> dict[str, Any]:
    """All that the image of each item depends on besides the engine: what is asked for, at every attempt, where the
    caption comes from, and how the image is stored.
    """
    sources, about = _texts(context, batch)
    number = shard_number(context.shard)
    return {
        item.id: {
            "requests": [
                dataclasses.asdict(request_for(context, sources[item.source_id], about, item.id, number, attempt))
                for attempt in range(ATTEMPTS)
            ],
            "source": sources[item.source_id],
            "jpeg_quality": context.profile.generate.jpeg_quality,
        }
        for item in batch
    }


def _texts(context: StageContext, batch: Sequence[GenerateItem]) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """The sources of a batch by id, and what is said of each of their videos by its key."""
    sources = context.store.rows(
        "sources",
        "train-000",
        ["video", "video_key", "kind", "behavior", "caption"],
        ids=[item.source_id for item in batch],
    )
    return sources, video_texts(context, sorted({row["video_key"] for row in sources.values()}))


def run(context: StageContext, batch: Sequence[GenerateItem]) -> list[Outcome]:
    number = shard_number(context.shard)
    engine = context.engines("generate")
    sources, about = _texts(context, batch)
    cuts = {item.id: _cut(engine, sources[item.source_id]["caption"]) for item in batch}
    tried: dict[str, list[str]] = {item.id: [] for item in batch}
    waiting = list(batch)
    outcomes: dict[str, Outcome] = {}
    for attempt, float32 in tries_of(engine):
        requests = []
        for item in waiting:
            request = request_for(context, sources[item.source_id], about, item.id, number, attempt)
            requests.append(dataclasses.replace(request, prompt=cuts[item.id][0], float32=float32))
        again = []
        for item, request, image in zip(waiting, requests, engine.generate(requests), strict=True):
            fault = check_generated(image)
            if fault is None:
                encoded = encode_jpeg(to_uint8(image), context.profile.generate.jpeg_quality)
                made_by = Engine(name=engine.name, revision=engine.float32_revision if float32 else engine.revision)
                source = sources[item.source_id]
                outcomes[item.id] = Kept(
                    _record(item, source, request, number, image.shape, encoded, cuts[item.id][1], made_by)
                )
            else:
                tried[item.id].append(f"{request.seed} in float32" if float32 else f"{request.seed}")
                outcomes[item.id] = Rejected(item.id, fault, f"seeds tried: {', '.join(tried[item.id])}")
                again.append(item)
        waiting = again
        if not waiting:
            break
    return [outcomes[item.id] for item in batch]


def _cut(engine: Any, prompt: str) -> tuple[str, str | None]:
    """The prompt as the engine reads it, and what was left out for that."""
    return engine.cut(prompt) if isinstance(engine, CutsPrompts) else (prompt, None)


def tries_of(engine: Any) -> list[tuple[int, bool]]:
    """How often an image is tried at most, in order: (attempt, whether in float32).

    An engine that draws in half precision gets the same seed once more in float32, in which nothing overflows, before
    the second seed.
    """
    in_half = isinstance(engine, DrawsInHalfPrecision) and engine.float32_revision is not None
    return [(0, False), *([(0, True)] if in_half else []), *((attempt, False) for attempt in range(1, ATTEMPTS))]


def video_texts(context: StageContext, video_keys: Sequence[str]) -> dict[str, str]:
    """What the kept source captions say of each of these videos, in the order of the kinds, one text a video key."""
    ids = [f"{key}_{kind}" for key in video_keys for kind in KINDS]
    rows = context.store.rows("sources", "train-000", ["caption"], ids)
    return {
        key: ". ".join(rows[f"{key}_{kind}"]["caption"] for kind in KINDS if f"{key}_{kind}" in rows)
        for key in video_keys
    }


def request_for(
    context: StageContext, source: dict[str, Any], about: dict[str, str], record_id: str, number: int, attempt: int
) -> ImageRequest:
    """The request for one image. Who is shown, and where, is shared by all kinds of one video and image number; pose,
    camera and light come from the record's own seed.
    """
    return ImageRequest(
        id=record_id,
        prompt=source["caption"],
        kind=source["kind"],
        identity=f"{context.profile.seed}/{source['video_key']}/{number}",
        seed=_seed(context, record_id, attempt),
        attempt=attempt,
        context=about[source["video_key"]],
    )


def _seed(context: StageContext, record_id: str, attempt: int) -> int:
    return seed_of(context.profile.seed, record_id, attempt)


def _record(
    item: GenerateItem,
    source: dict[str, Any],
    request: ImageRequest,
    number: int,
    shape: tuple[int, ...],
    encoded: bytes,
    left_out: str | None,
    made_by: Engine,
) -> ImageRecord:
    return ImageRecord(
        id=item.id,
        source_id=item.source_id,
        pair_id=f"{source['video_key']}_{number:03d}",
        video=source["video"],
        kind=source["kind"],
        behavior=source["behavior"],
        source_caption=source["caption"],
        image=encoded,
        width=shape[1],
        height=shape[0],
        sha256=hashlib.sha256(encoded).hexdigest(),
        number=number,
        transition_time_s=None,
        wanted_time_s=None,
        shown_time_s=None,
        seed=request.seed,
        attempt=request.attempt,
        prompt=request.prompt,
        prompt_cut=left_out,
        generator=made_by,
    )


def upstream(_profile: Profile, _shard: str) -> list[tuple[str, str]]:
    return [("sources", "train-000")]


STAGE = Stage(
    name="generate",
    version=1,
    summary="an image of every source caption, image number k in shard train-k",
    shard_kinds=("train",),
    reads={"sources": ("video", "video_key", "kind", "behavior", "caption")},
    writes=ImageRecord,
    reasons=("nan_image", "black_image", "flat_image"),
    upstream=upstream,
    items=items,
    run=run,
    config=("seed", "generate.sources", "generate.jpeg_quality"),
    engines=("generate",),
    inputs_of=inputs_of,
)


if __name__ == "__main__":
    from pipeline.run_stage import stage_main

    raise SystemExit(stage_main("generate"))
