"""Stage 9, decompose: a caption split into appearance, action and background without adding to it (SeDA).

What the decomposer replied is stored as it came; the factors are read out of it apart and held against the caption.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline.backends.chat_roles import factor_replies
from pipeline.backends.protocols import FactorTexts
from pipeline.core.decomposition import REASONS, outcome
from pipeline.core.profile import Profile
from pipeline.core.replies import FACTORS, digest_of, faithful_part
from pipeline.core.stage import (
    Measured,
    Measuring,
    Outcome,
    Ref,
    Stage,
    StageContext,
    shard_kind,
)
from schemas.records import Decomposition, Engine, FactorReplies, Factors, PromptUsed


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
