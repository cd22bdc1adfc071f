"""Stage 7, attributes: action (normal) or anomaly (anomaly), and scene, of each image (PAB, "Attribute Annotation").

What the labeller replied is stored as it came; the labels are read out of it apart, so that another way to read them
asks nobody.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.backends.chat_roles import label_replies
from pipeline.backends.protocols import LabelRequest, Person
from pipeline.core.profile import Profile
from pipeline.core.records import filtered_stage, image_rows, image_stage, person_rows
from pipeline.core.replies import digest_of, last_replies, read_answer, was_cut
from pipeline.core.stage import Failed, Kept, Measured, Measuring, Outcome, Ref, Stage, StageContext, shard_kind
from schemas.records import Answered, Attributes, Engine, LabelReplies, PromptUsed

QUESTION = {"normal": "action", "anomaly": "anomaly"}
PROMPTS = ("action", "anomaly", "scene")


def items(context: StageContext) -> list[Ref]:
    return [Ref(record_id) for record_id in context.store.kept_ids("recaption", context.shard)]


def asked_with(context: StageContext, batch: Sequence[Ref]) -> dict[str, str]:
    """A digest of all that the questions about each image hold, by id."""
    ids = [item.id for item in batch]
    columns = ["sha256", "behavior", "source_id", "source_caption"]
    images = context.store.rows(image_stage(context.shard), context.shard, columns, ids)
    captions = context.store.rows("recaption", context.shard, ["caption"], ids)
    people = person_rows(context, ids)
    sources = _source_captions(context, images)
    prompts = [context.prompt(name).text for name in PROMPTS]
    return {
        name: digest_of(row["sha256"], row["behavior"], sources[name], captions[name]["caption"], people[name], prompts)
        for name, row in images.items()
    }


def stands(context: StageContext, batch: Sequence[Ref], known: Mapping[str, LabelReplies]) -> dict[str, LabelReplies]:
    """The replies to the very questions that would be asked now; an error is none."""
    asked = asked_with(context, batch)
    return {
        name: record
        for name, record in known.items()
        if record.asked == asked.get(name) and all(reply.error is None for reply in record.replies)
    }


def measure(context: StageContext, batch: Sequence[Ref]) -> list[LabelReplies]:
    labeller = context.engines("attributes")
    engine = Engine(name=labeller.name, revision=labeller.revision)
    prompts = {name: context.prompt(name) for name in PROMPTS}
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
    asked = asked_with(context, batch)
    return [
        LabelReplies(
            id=request.id,
            asked=asked[request.id],
            behavior=images[request.id]["behavior"],
            replies=replies,
            asked_with="source caption" if request.source_caption else "re-caption",
            labeller=engine,
            prompts=tuple(PromptUsed(id=name, sha256=prompts[name].sha256) for name in request.prompts),
        )
        for request, replies in zip(requests, label_replies(labeller, requests), strict=True)
    ]


def run(_context: StageContext, batch: Sequence[Measured]) -> list[Outcome]:
    return [outcome(item.record) for item in batch]


def outcome(found: LabelReplies) -> Outcome:
    """What an image's replies come to; to each question the last one asked stands."""
    last = last_replies(found.replies)
    for question, reply in last.items():
        if reply.error is not None:
            return Failed(found.id, "labeller_error", f"{question}: {reply.error}")
        if was_cut(reply):
            return Failed(found.id, "reply_cut", f"{question}: no end within {reply.max_tokens} tokens")
    # A question without an answer leaves its column null: an image is not dropped for want of a label.
    labels = {question: read_answer(question, reply.text or "").value for question, reply in last.items()}
    raw = {question: reply.text for question, reply in last.items() if reply.text is not None}
    answered: Answered = "first try" if len(found.replies) == len(last) else "retried"
    return Kept(
        Attributes(
            id=found.id,
            action=labels.get("action"),
            anomaly=labels.get("anomaly"),
            scene=labels["scene"],
            raw=json.dumps(raw, ensure_ascii=False, sort_keys=True),
            answered="in part" if None in labels.values() else answered,
            asked_with=found.asked_with,
            labeller=found.labeller,
            prompts=found.prompts,
        )
    )


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
    version=2,
    summary="action or anomaly, and scene, of each image",
    shard_kinds=("train", "test"),
    reads={
        "generate | frames": ("image", "behavior", "source_id", "source_caption", "sha256"),
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
    # No upstream: whether a question is the same one, its own digest tells, image by image.
    measures=Measuring(
        version=1, writes=LabelReplies, upstream=lambda _profile, _shard: [], run=measure, stands=stands
    ),
    prompts=PROMPTS,
)


if __name__ == "__main__":
    from pipeline.run_stage import stage_main

    raise SystemExit(stage_main("attributes"))
