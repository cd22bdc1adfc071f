"""Stage 9, decompose: a caption split into appearance, action and background without adding to it (SeDA)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from pipeline.backends.protocols import FactorTexts
from pipeline.core.profile import Profile
from pipeline.core.stage import Kept, Outcome, Ref, Rejected, Stage, StageContext, shard_kind
from pipeline.core.text import content_words_kept
from schemas.records import Decomposition, Engine, Factors, PromptUsed

FACTORS = ("appearance", "action", "background")


def final_caption_stage(shard: str) -> tuple[str, str]:
    """The stage whose captions stand, and the stage whose kept records go on: review (the corrected caption) for test,
    recaption and attributes for train.
    """
    return ("review", "review") if shard_kind(shard) == "test" else ("recaption", "attributes")


def faithful_factors(caption: str, texts: FactorTexts) -> Factors:
    """The factors that say nothing the caption does not.

    One with a content word from elsewhere becomes null, and so does an empty one.
    """
    kept = {}
    for name in FACTORS:
        text = (getattr(texts, name) or "").strip()
        alone = Factors(**{**dict.fromkeys(FACTORS), name: text or None})
        kept[name] = text if text and not content_words_kept(caption, alone).added else None
    return Factors(**kept)


def items(context: StageContext) -> list[Ref]:
    _, gate = final_caption_stage(context.shard)
    return [Ref(record_id) for record_id in context.store.kept_ids(gate, context.shard)]


def run(context: StageContext, batch: Sequence[Ref]) -> list[Outcome]:
    decomposer = context.engines("decompose")
    engine = Engine(name=decomposer.name, revision=decomposer.revision)
    prompt = context.prompt("decompose")
    stage, _ = final_caption_stage(context.shard)
    rows = context.store.rows(stage, context.shard, ["caption"], [item.id for item in batch])
    # Each unique caption is split once.
    captions = sorted({row["caption"] for row in rows.values()})
    split = dict(zip(captions, decomposer.decompose(captions, prompt.text), strict=True))
    outcomes: list[Outcome] = []
    for item in batch:
        caption = rows[item.id]["caption"]
        factors = faithful_factors(caption, split[caption])
        missing = tuple(name for name in FACTORS if getattr(factors, name) is None)
        if len(missing) == len(FACTORS):
            outcomes.append(Rejected(item.id, "no_factors", caption))
            continue
        outcomes.append(
            Kept(
                Decomposition(
                    id=item.id,
                    caption=caption,
                    caption_sha256=hashlib.sha256(caption.encode()).hexdigest(),
                    factors=factors,
                    missing=missing,
                    decomposer=engine,
                    prompt=PromptUsed(id=prompt.id, sha256=prompt.sha256),
                )
            )
        )
    return outcomes


def upstream(_profile: Profile, shard: str) -> list[tuple[str, str]]:
    return [(stage, shard) for stage in dict.fromkeys(final_caption_stage(shard))]


STAGE = Stage(
    name="decompose",
    version=1,
    summary="appearance, action and background of each caption",
    shard_kinds=("train", "test"),
    reads={"recaption (train) | review (test)": ("caption",)},
    writes=Decomposition,
    reasons=("no_factors",),
    upstream=upstream,
    items=items,
    run=run,
    engines=("decompose",),
    prompts=("decompose",),
)


if __name__ == "__main__":
    from pipeline.run_stage import stage_main

    raise SystemExit(stage_main("decompose"))
