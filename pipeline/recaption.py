"""Stage 6, recaption: a caption read off the image alone (PAB, "Text Diversifying via Re-captioning").

What the captioner replied is stored as it came, of kept and of rejected images: another way to read it asks nobody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline.backends.chat_roles import caption_replies
from pipeline.backends.protocols import CaptionRequest, Person
from pipeline.core.profile import Profile
from pipeline.core.records import filtered_items, filtered_stage, image_rows, image_stage, person_rows
from pipeline.core.replies import digest_of, read_caption, was_cut
from pipeline.core.stage import Failed, Kept, Measured, Measuring, Outcome, Ref, Rejected, Stage, StageContext
from schemas.records import CaptionReplies, Engine, PromptUsed, Recaption

REASONS = {"empty": "empty_caption", "refusal": "refusal", "loop": "loop", "not_english": "not_english"}
"""The stage's reason for each of `core.replies.read_caption`."""


def asked_with(context: StageContext, batch: Sequence[Ref]) -> dict[str, str]:
    """A digest of all that a question about each image holds, by id: bytes, people, behaviour, the prompt."""
    ids = [item.id for item in batch]
    images = context.store.rows(image_stage(context.shard), context.shard, ["sha256", "behavior"], ids)
    people = person_rows(context, ids)
    prompt = context.prompt("caption").text
    return {name: digest_of(row["sha256"], row["behavior"], people[name], prompt) for name, row in images.items()}


def stands(
    context: StageContext, batch: Sequence[Ref], known: Mapping[str, CaptionReplies]
) -> dict[str, CaptionReplies]:
    """The replies to the very question that would be asked now; an error is none."""
    asked = asked_with(context, batch)
    return {
        name: record
        for name, record in known.items()
        if record.asked == asked.get(name) and record.replies[-1].error is None
    }


def measure(context: StageContext, batch: Sequence[Ref]) -> list[CaptionReplies]:
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
    asked = asked_with(context, batch)
    return [
        CaptionReplies(id=record_id, asked=asked[record_id], replies=replies, captioner=engine, prompt=used)
        for record_id, replies in zip(ids, caption_replies(captioner, requests), strict=True)
    ]


def run(_context: StageContext, batch: Sequence[Measured]) -> list[Outcome]:
    return [outcome(item.record) for item in batch]


def outcome(found: CaptionReplies) -> Outcome:
    """What an image's replies come to; the last one asked stands."""
    reply = found.replies[-1]
    if reply.error is not None:
        return Failed(found.id, "captioner_error", reply.error)
    if was_cut(reply):
        return Failed(found.id, "reply_cut", f"no end within {reply.max_tokens} tokens")
    answer = read_caption(reply.text or "")
    if answer.value is None:
        detail = "the captioner gave no text" if answer.reason == "empty" else (reply.text or "")
        return Rejected(found.id, REASONS[answer.reason or "empty"], detail)
    return Kept(
        Recaption(
            id=found.id,
            caption=answer.value,
            answered="first try" if len(found.replies) == 1 else "retried",
            captioner=found.captioner,
            prompt=found.prompt,
        )
    )


def upstream(_profile: Profile, shard: str) -> list[tuple[str, str]]:
    return [(image_stage(shard), shard), ("keypoints", shard), (filtered_stage(shard), shard)]


STAGE = Stage(
    name="recaption",
    version=2,
    summary="a caption read off each image that passed the filters",
    shard_kinds=("train", "test"),
    reads={
        "generate | frames": ("image", "behavior", "sha256"),
        "keypoints": ("persons",),
        "similarity (test)": ("id",),
    },
    writes=Recaption,
    reasons=tuple(REASONS.values()),
    upstream=upstream,
    items=filtered_items,
    run=run,
    engines=("recaption",),
    # No upstream: whether a question is the same one, its own digest tells, image by image.
    measures=Measuring(
        version=1, writes=CaptionReplies, upstream=lambda _profile, _shard: [], run=measure, stands=stands
    ),
    prompts=("caption",),
)


if __name__ == "__main__":
    from pipeline.run_stage import stage_main

    raise SystemExit(stage_main("recaption"))
