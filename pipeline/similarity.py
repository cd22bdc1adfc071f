"""Stage 5, similarity: a real pair whose frames look the same shows no failure and is dropped (PAB, section 3.1)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.core.profile import Profile
from pipeline.core.records import image_rows
from pipeline.core.stage import Kept, Outcome, Ref, Rejected, Stage, StageContext
from schemas.records import Engine, SimilarityRecord

TOO_ALIKE, PARTNER_GONE = "pair_too_alike", "partner_rejected"


def cosine(first: np.ndarray, second: np.ndarray) -> float:
    """The cosine of two vectors of any length above zero. Raises ValueError where it is not a number."""
    lengths = float(np.linalg.norm(first) * np.linalg.norm(second))
    value = float(first @ second) / lengths if lengths > 0 else np.nan
    if not np.isfinite(value):
        raise ValueError("the cosine of the pair's vectors is not a number")
    return value


def pair_verdict(value: float, max_cosine: float) -> str | None:
    """The reason to drop a pair of this cosine, or None: dropped when strictly above the threshold."""
    return TOO_ALIKE if value > max_cosine else None


def items(context: StageContext) -> list[Ref]:
    rows = context.store.rows("frames", context.shard, ["pair_id"], context.store.kept_ids("keypoints", context.shard))
    return [Ref(record_id, row["pair_id"]) for record_id, row in rows.items()]


def run(context: StageContext, batch: Sequence[Ref]) -> list[Outcome]:
    embedder = context.engines("similarity")
    engine = Engine(name=embedder.name, revision=embedder.revision)
    pairs: dict[str, list[str]] = {}
    for item in batch:
        pairs.setdefault(item.group, []).append(item.id)
    whole = sorted(record_id for members in pairs.values() if len(members) == 2 for record_id in members)
    vectors: dict[str, np.ndarray] = {}
    if whole:
        images = image_rows(context, whole)
        vectors = dict(zip(whole, embedder.embed([images[record_id]["pixels"] for record_id in whole]), strict=True))
    outcomes: list[Outcome] = []
    for pair, members in pairs.items():
        if len(members) != 2:
            outcomes += [Rejected(record_id, PARTNER_GONE, f"pair {pair}") for record_id in members]
            continue
        value = cosine(vectors[members[0]], vectors[members[1]])
        reason = pair_verdict(value, context.profile.similarity.max_cosine)
        for record_id in members:
            if reason:
                outcomes.append(Rejected(record_id, reason, f'{{"cosine": {value:.6f}}}'))
            else:
                record = SimilarityRecord(id=record_id, pair_id=pair, cosine=round(value, 6), embedder=engine)
                outcomes.append(Kept(record))
    return outcomes


def upstream(_profile: Profile, shard: str) -> list[tuple[str, str]]:
    return [("frames", shard), ("keypoints", shard)]


STAGE = Stage(
    name="similarity",
    version=1,
    summary="drops real pairs whose two frames look the same",
    shard_kinds=("test",),
    reads={"frames": ("image", "pair_id"), "keypoints": ("id",)},
    writes=SimilarityRecord,
    reasons=(TOO_ALIKE, PARTNER_GONE),
    upstream=upstream,
    items=items,
    run=run,
    config=("similarity.max_cosine",),
    engines=("similarity",),
)


if __name__ == "__main__":
    from pipeline.run_stage import stage_main

    raise SystemExit(stage_main("similarity"))
