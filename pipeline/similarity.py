"""Stage 5, similarity: a real pair whose frames look the same shows no failure and is dropped (PAB, section 3.1).

The cosine of every pair is stored, of kept and of dropped ones: another threshold embeds nothing anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from pipeline.core.profile import Profile
from pipeline.core.records import image_rows
from pipeline.core.stage import Kept, Measured, Measuring, Outcome, Ref, Rejected, Stage, StageContext
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


def whole_pairs(batch: Sequence[Ref]) -> list[Ref]:
    """The frames whose partner is in the batch as well."""
    members = Counter(item.group for item in batch)
    return [item for item in batch if members[item.group] == 2]


def measure(context: StageContext, batch: Sequence[Ref]) -> list[SimilarityRecord]:
    embedder = context.engines("similarity")
    engine = Engine(name=embedder.name, revision=embedder.revision)
    ids = sorted(item.id for item in batch)
    images = image_rows(context, ids)
    vectors = dict(zip(ids, embedder.embed([images[record_id]["pixels"] for record_id in ids]), strict=True))
    pairs: dict[str, list[str]] = {}
    for item in batch:
        pairs.setdefault(item.group, []).append(item.id)
    records = []
    for pair, (first, second) in pairs.items():
        value = round(cosine(vectors[first], vectors[second]), 6)
        records += [
            SimilarityRecord(id=record_id, pair_id=pair, cosine=value, embedder=engine) for record_id in (first, second)
        ]
    return records


def run(context: StageContext, batch: Sequence[Measured]) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for item in batch:
        record: SimilarityRecord | None = item.record
        if record is None:
            outcomes.append(Rejected(item.id, PARTNER_GONE, f"pair {item.group}"))
        elif reason := pair_verdict(record.cosine, context.profile.similarity.max_cosine):
            outcomes.append(Rejected(item.id, reason, f'{{"cosine": {record.cosine:.6f}}}'))
        else:
            outcomes.append(Kept(record))
    return outcomes


def upstream(_profile: Profile, shard: str) -> list[tuple[str, str]]:
    return [("frames", shard), ("keypoints", shard)]


STAGE = Stage(
    name="similarity",
    version=2,
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
    measures=Measuring(
        version=1,
        writes=SimilarityRecord,
        upstream=lambda _profile, shard: [("frames", shard)],
        run=measure,
        measurable=whole_pairs,
    ),
)


if __name__ == "__main__":
    from pipeline.run_stage import stage_main

    raise SystemExit(stage_main("similarity"))
