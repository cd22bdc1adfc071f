"""Stage 6, recaption: a caption read off the image alone (PAB, "Text Diversifying via Re-captioning")."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.backends.protocols import CaptionRequest, Person
from pipeline.core.profile import Profile
from pipeline.core.records import filtered_items, filtered_stage, image_rows, image_stage, person_rows
from pipeline.core.stage import Failed, Kept, Outcome, Ref, Rejected, Stage, StageContext
from schemas.records import Engine, PromptUsed, Recaption


def run(context: StageContext, batch: Sequence[Ref]) -> list[Outcome]:
    captioner = context.engines("recaption")
    engine = Engine(name=captioner.name, revision=captioner.revision)
    prompt = context.prompt("caption")
    ids = [item.id for item in batch]
    images = image_rows(context, ids, ["behavior"])
    people = person_rows(context, ids)
    requests = [
        CaptionRequest(
            id=record_id,
            image=images[record_id]["pixels"],
            persons=tuple(Person.from_row(row) for row in people[record_id]),
            behavior=images[record_id]["behavior"],
            source_caption=None,
            prompt=prompt.text,
        )
        for record_id in ids
    ]
    used = PromptUsed(id=prompt.id, sha256=prompt.sha256)
    outcomes: list[Outcome] = []
    for record_id, reply in zip(ids, captioner.caption(requests), strict=True):
        if reply.error is not None:
            outcomes.append(Failed(record_id, "captioner_error", reply.error))
        elif not (reply.text or "").strip():
            outcomes.append(Rejected(record_id, "empty_caption", "the captioner gave no text"))
        else:
            text = " ".join((reply.text or "").split())
            outcomes.append(Kept(Recaption(id=record_id, caption=text, captioner=engine, prompt=used)))
    return outcomes


def upstream(_profile: Profile, shard: str) -> list[tuple[str, str]]:
    return [(image_stage(shard), shard), ("keypoints", shard), (filtered_stage(shard), shard)]


STAGE = Stage(
    name="recaption",
    version=1,
    summary="a caption read off each image that passed the filters",
    shard_kinds=("train", "test"),
    reads={"generate | frames": ("image", "behavior"), "keypoints": ("persons",), "similarity (test)": ("id",)},
    writes=Recaption,
    reasons=("empty_caption",),
    upstream=upstream,
    items=filtered_items,
    run=run,
    engines=("recaption",),
    prompts=("caption",),
)


if __name__ == "__main__":
    from pipeline.run_stage import stage_main

    raise SystemExit(stage_main("recaption"))
