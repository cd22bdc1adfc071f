"""Stage 9, decompose: a caption split into appearance, action and background without adding to it (SeDA).

What the decomposer replied is stored as it came; the factors are read out of it apart and held against the caption.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from pipeline.backends.chat_roles import factor_replies
from pipeline.backends.protocols import FactorTexts
from pipeline.core.profile import Profile
from pipeline.core.replies import FACTORS, FactorsJudged, digest_of, faithful_part, judge_factors, was_cut
from pipeline.core.stage import (
    Failed,
    Kept,
    Measured,
    Measuring,
    Outcome,
    Ref,
    Rejected,
    Stage,
    StageContext,
    shard_kind,
)
from schemas.records import Answered, Decomposition, Engine, FactorReplies, Factors, PromptUsed

REASONS = {"refusal": "refusal", "loop": "loop"}
"""The stage's reason where no reply could be read, by that of `core.replies.read_factors`; any other is unparsable."""


def final_caption_stage(shard: str) -> tuple[str, str]:
    """The stage whose captions stand, and the stage whose kept records go on: review (the corrected caption) for test,
    recaption and attributes for train.
    """
    return ("review", "review") if shard_kind(shard) == "test" else ("recaption", "attributes")


def faithful_factors(caption: str, texts: FactorTexts) -> Factors:
    """The factors that say nothing the caption does not.

    One with a content word from elsewhere becomes null, and so does an empty one.
    """
    given = {name: (getattr(texts, name) or "").strip() or None for name in FACTORS}
    return faithful_part(caption, Factors(**given))[0]


def items(context: StageContext) -> list[Ref]:
    _, gate = final_caption_stage(context.shard)
    return [Ref(record_id) for record_id in context.store.kept_ids(gate, context.shard)]


def asked_with(context: StageContext, batch: Sequence[Ref]) -> dict[str, str]:
    """A digest of the question about each caption, by id."""
    prompt = context.prompt("decompose").text
    return {name: digest_of(caption, prompt) for name, caption in _captions(context, batch).items()}


def stands(context: StageContext, batch: Sequence[Ref], known: Mapping[str, FactorReplies]) -> dict[str, FactorReplies]:
    """The replies to the very question that would be asked now; an error is none."""
    asked = asked_with(context, batch)
    return {
        name: record
        for name, record in known.items()
        if record.asked == asked.get(name) and record.replies[-1].error is None
    }


def measure(context: StageContext, batch: Sequence[Ref]) -> list[FactorReplies]:
    decomposer = context.engines("decompose")
    engine = Engine(name=decomposer.name, revision=decomposer.revision)
    prompt = context.prompt("decompose")
    captions = _captions(context, batch)
    unique = sorted(set(captions.values()))
    replies = dict(zip(unique, factor_replies(decomposer, unique, prompt.text), strict=True))
    asked = asked_with(context, batch)
    used = PromptUsed(id=prompt.id, sha256=prompt.sha256)
    return [
        FactorReplies(id=name, asked=asked[name], replies=replies[caption], decomposer=engine, prompt=used)
        for name, caption in captions.items()
    ]


def run(context: StageContext, batch: Sequence[Measured]) -> list[Outcome]:
    captions = _captions(context, batch)
    return [outcome(captions[item.id], item.record) for item in batch]


def outcome(caption: str, found: FactorReplies) -> Outcome:
    """What the replies about a caption come to: the first good one, else the one with most factors the caption bears
    out, the earlier of two.
    """
    judged = [
        (number, judge_factors(caption, reply.text))
        for number, reply in enumerate(found.replies)
        if reply.error is None and not was_cut(reply)
    ]
    read = [(number, each) for number, each in judged if each.reason is None]
    if not read:
        return _nothing_read(found, [each for _, each in judged])
    number, best = max(read, key=lambda each: (each[1].good, each[1].found, -each[0]))
    factors = best.factors
    if factors is None or best.found == 0:
        return Rejected(found.id, "no_factors", caption)
    answered: Answered = "retried" if number else "first try"
    return Kept(
        Decomposition(
            id=found.id,
            caption=caption,
            caption_sha256=hashlib.sha256(caption.encode()).hexdigest(),
            factors=factors,
            missing=tuple(name for name in FACTORS if getattr(factors, name) is None),
            unfaithful=best.unfaithful,
            answered="in part" if best.unfaithful else answered,
            decomposer=found.decomposer,
            prompt=found.prompt,
        )
    )


def _nothing_read(found: FactorReplies, judged: Sequence[FactorsJudged]) -> Outcome:
    last = found.replies[-1]
    if last.error is not None:
        return Failed(found.id, "decomposer_error", last.error)
    if was_cut(last):
        return Failed(found.id, "reply_cut", f"no end within {last.max_tokens} tokens")
    reason = REASONS.get(judged[-1].reason or "", "unparsable")
    return Rejected(found.id, reason, f"{judged[-1].reason}: {last.text}")


def _captions(context: StageContext, batch: Sequence[Ref] | Sequence[Measured]) -> dict[str, str]:
    stage, _ = final_caption_stage(context.shard)
    ids = [item.id for item in batch]
    rows = context.store.rows(stage, context.shard, ["caption"], ids)
    return {name: rows[name]["caption"] for name in ids}


def upstream(_profile: Profile, shard: str) -> list[tuple[str, str]]:
    return [(stage, shard) for stage in dict.fromkeys(final_caption_stage(shard))]


STAGE = Stage(
    name="decompose",
    version=2,
    summary="appearance, action and background of each caption",
    shard_kinds=("train", "test"),
    reads={"recaption (train) | review (test)": ("caption",)},
    writes=Decomposition,
    reasons=("no_factors", "unparsable", *REASONS.values()),
    upstream=upstream,
    items=items,
    run=run,
    engines=("decompose",),
    # No upstream: whether a question is the same one, its own digest tells, caption by caption.
    measures=Measuring(
        version=1, writes=FactorReplies, upstream=lambda _profile, _shard: [], run=measure, stands=stands
    ),
    prompts=("decompose",),
)


if __name__ == "__main__":
    from pipeline.decompose_data import decompose_main

    raise SystemExit(decompose_main())
