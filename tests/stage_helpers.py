"""What the tests of the stages share: a store with the outputs of earlier stages, and engines that answer at once."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from pipeline.core.profile import load_profile
from pipeline.core.runner import ShardResult, run_shard
from pipeline.core.stage import Stage, StageContext
from pipeline.core.store import Store
from schemas.records import Engine, ImageRecord, PersonKeypoints, PoseRecord, Record, behavior_of

MINI = Path(__file__).parent / "cases" / "oops_mini"
ENGINE = Engine(name="fake", revision="1")


class WatchedStore(Store):
    """A store that notes which columns of which shards a stage reads."""

    def table(self, stage: str, shard: str, columns: Sequence[str], ids: Sequence[str] | None = None) -> Any:
        reads = self.__dict__.setdefault("reads", {})
        reads.setdefault((stage, shard), set()).update(columns)
        return super().table(stage, shard, columns, ids)


class FakeEngine:
    """An engine whose one method gives what `answer` says, and which keeps what it was asked."""

    name, revision = "fake", "1"

    def __init__(self, method: str, answer: Callable[..., Any]) -> None:
        self.asked: list[Any] = []

        def call(*arguments: Any) -> Any:
            self.asked.append(arguments)
            return answer(*arguments)

        setattr(self, method, call)


def context(folder: Path, shard: str, *overrides: str, **engines: Any) -> StageContext:
    """Where a stage runs, with these engines by profile section and these values set."""
    profile = load_profile("demo", [f"work={folder}", f"oops.root={MINI}", "batch_records=4", *overrides])
    return StageContext(profile, WatchedStore(folder / "build"), shard, engines.__getitem__)


def put(
    context: StageContext,
    stage: str,
    records: Sequence[Record],
    model: type[Record],
    shard: str = "",
    key: str = "key",
) -> None:
    """Makes these records what a stage kept, under a content key."""
    with context.store.writing(stage, shard or context.shard, key, model) as writer:
        writer.begin(1)
        writer.write_part(0, records, [])
        writer.finish({"counts": {}})


def run(stage: Stage, context: StageContext, **fingerprints: Any) -> ShardResult:
    """Runs a stage as the command line does, and checks that it reads only what it declares."""
    context.store.__dict__.pop("reads", None)
    result = run_shard(stage, context, fingerprints)
    declared = set(stage.upstream(context.profile, context.shard))
    for (name, shard), columns in context.store.__dict__.get("reads", {}).items():
        if name == stage.name:
            continue
        assert (name, shard) in declared, f"{stage.name} reads {name} {shard}, which its upstream does not name"
        named = {column for source, own in stage.reads.items() if name in source for column in own}
        assert columns - {"id"} <= named, f"{stage.name} reads {columns - {'id'} - named} of {name}, undeclared"
    return result


def kept(stage: Stage, context: StageContext) -> dict[str, Any]:
    """What a stage kept, by id, as records."""
    rows = context.store.table(stage.name, context.shard, list(stage.writes.model_fields)).to_pylist()
    return {row["id"]: stage.writes.model_validate(row) for row in rows}


def dropped(stage: Stage, context: StageContext) -> dict[str, str]:
    """What a stage dropped: `rejected: reason` or `failed: reason` by id."""
    rows = context.store.dropped(stage.name, context.shard)
    return {row["id"]: f"{row['outcome']}: {row['reason']}" for row in rows}


def picture(color: tuple[int, int, int] = (200, 30, 30), width: int = 8, height: int = 6) -> np.ndarray:
    """uint8 (height, width, 3): one colour with a dark corner."""
    image = np.full((height, width, 3), color, dtype=np.uint8)
    image[: height // 2, : width // 2] = 10
    return image


def png(image: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


def image_record(record_id: str, kind: str = "goal", image: bytes | None = None, **fields: Any) -> ImageRecord:
    """An image of the given kind; pair and source come from the id's first part."""
    key = record_id.partition("_")[0]
    known: dict[str, Any] = {
        "source_id": f"{key}_{kind}",
        "pair_id": key,
        "video": f"video {key}",
        "behavior": behavior_of(kind),
        "source_caption": None,
        "image": image if image is not None else png(picture()),
        "width": 8,
        "height": 6,
        "sha256": "0" * 64,
        "generator": ENGINE,
    }
    nothing = dict.fromkeys(
        ("number", "transition_time_s", "wanted_time_s", "shown_time_s", "seed", "attempt", "prompt", "prompt_cut")
    )
    return ImageRecord(**{"id": record_id, "kind": kind, **nothing, **known, **fields})


def person_record(record_id: str, persons: int = 1) -> PoseRecord:
    """A pose record with so many people, the n-th with the score 0.9 - 0.1 n."""
    people = [
        PersonKeypoints(keypoints=(1.0, 2.0, 0.5) * 17, box=(0.0, 1.0, 4.0, 5.0), score=0.9 - 0.1 * n)
        for n in range(persons)
    ]
    return PoseRecord(id=record_id, persons=tuple(people), pose_map=b"png", scores="{}", pose_estimator=ENGINE)
