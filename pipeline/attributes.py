"""Stage 7, attributes: action (normal) or anomaly (anomaly), and scene, of each image (PAB, "Attribute Annotation")."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pipeline.backends.protocols import LabelRequest, Labels, Person
from pipeline.core.profile import Profile
from pipeline.core.records import filtered_stage, image_rows, image_stage, person_rows
from pipeline.core.stage import Kept, Outcome, Ref, Stage, StageContext, shard_kind
from schemas.records import Attributes, Engine, PromptUsed

QUESTION = {"normal": "action", "anomaly": "anomaly"}


def items(context: StageContext) -> list[Ref]:
    return [Ref(record_id) for record_id in context.store.kept_ids("recaption", context.shard)]


def run(context: StageContext, batch: Sequence[Ref]) -> list[Outcome]:
    labeller = context.engines("attributes")
    prompts = {name: context.prompt(name) for name in ("action", "anomaly", "scene")}
    ids = [item.id for item in batch]
    images = image_rows(context, ids, ["behavior", "source_id", "source_caption"])
    people = person_rows(context, ids)
    captions = context.store.rows("recaption", context.shard, ["caption"], ids)
    source_captions = _source_captions(context, images)
    requests = []
    for record_id in ids:
        row, source = images[record_id], source_captions[record_id]
        stands_in = source or captions[record_id]["caption"]
        requests.append(
            LabelRequest(
                id=record_id,
                image=row["pixels"],
                persons=tuple(Person.from_row(person) for person in people[record_id]),
                behavior=row["behavior"],
                source_caption=source,
                caption=captions[record_id]["caption"],
                prompts={
                    name: prompts[name].render(source_caption=stands_in)
                    for name in (QUESTION[row["behavior"]], "scene")
                },
            )
        )
    outcomes: list[Outcome] = []
    for request, labels in zip(requests, labeller.label(requests), strict=True):
        used = tuple(PromptUsed(id=name, sha256=prompts[name].sha256) for name in request.prompts)
        outcomes.append(_outcome(request, labels, Engine(name=labeller.name, revision=labeller.revision), used))
    return outcomes


def _source_captions(context: StageContext, images: dict[str, dict[str, Any]]) -> dict[str, str | None]:
    """A generated image carries its source caption; a real frame's is looked up: a quarter of the videos have none."""
    if shard_kind(context.shard) == "train":
        return {record_id: row["source_caption"] for record_id, row in images.items()}
    wanted = sorted({row["source_id"] for row in images.values()})
    found = context.store.rows("sources", "test-000", ["caption"], wanted)
    return {
        record_id: found[row["source_id"]]["caption"] if row["source_id"] in found else None
        for record_id, row in images.items()
    }


def _outcome(request: LabelRequest, labels: Labels, engine: Engine, used: tuple[PromptUsed, ...]) -> Outcome:
    # A question without an answer leaves its column null: an image is not dropped for want of a label.
    normal = request.behavior == "normal"
    return Kept(
        Attributes(
            id=request.id,
            action=labels.behavior if normal else None,
            anomaly=None if normal else labels.behavior,
            scene=labels.scene,
            raw=json.dumps(dict(labels.raw), ensure_ascii=False, sort_keys=True),
            asked_with="source caption" if request.source_caption else "re-caption",
            labeller=engine,
            prompts=used,
        )
    )


def upstream(_profile: Profile, shard: str) -> list[tuple[str, str]]:
    captions = [("sources", "test-000")] if shard_kind(shard) == "test" else []
    return [
        (image_stage(shard), shard),
        ("keypoints", shard),
        (filtered_stage(shard), shard),
        *captions,
        ("recaption", shard),
    ]


STAGE = Stage(
    name="attributes",
    version=1,
    summary="action or anomaly, and scene, of each image",
    shard_kinds=("train", "test"),
    reads={
        "generate | frames": ("image", "behavior", "source_id", "source_caption"),
        "keypoints": ("persons",),
        "recaption": ("caption",),
        "sources (test)": ("caption",),
    },
    writes=Attributes,
    reasons=(),
    upstream=upstream,
    items=items,
    run=run,
    engines=("attributes",),
    prompts=("action", "anomaly", "scene"),
)


if __name__ == "__main__":
    from pipeline.run_stage import stage_main

    raise SystemExit(stage_main("attributes"))
