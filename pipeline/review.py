"""Stage 8, review: three reviewers keep real pairs and correct their captions (PAB, section 3.1).

The reviewers' file is JSON Lines, one decision a line:
{"pair_id": "3fa9c1d2e0", "reviewer": "ann", "keep": true, "captions": {"<image id>": "corrected text"}}
A pair is kept when as many reviewers as the profile asks for keep it, and dropped when one of them does not. Where
there is no file, or no decision on a pair, the caption stands as it is and the record is marked unreviewed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from pipeline.core.errors import UserError
from pipeline.core.profile import Profile
from pipeline.core.stage import Kept, Outcome, Ref, Rejected, Stage, StageContext
from schemas.records import Review

DROPPED, UNDECIDED = "reviewers_dropped", "too_few_reviewers"


class Decision(BaseModel):
    """One reviewer's word on one pair: keep it or not, and corrected captions by image id."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    pair_id: str
    reviewer: str
    keep: bool
    captions: dict[str, str] = {}


@dataclass(frozen=True)
class Verdict:
    """What the reviewers came to on one pair: the reason to drop it or None, their number, and corrected captions."""

    reason: str | None
    votes: int
    captions: dict[str, str]


def read_decisions(path: Path) -> list[Decision]:
    """The decisions of a reviewers' file. Raises UserError naming file and line for what cannot be read."""
    decisions = []
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError):
        raise UserError(f"review.file: {path} cannot be read; give the reviewers' JSON Lines file, or none") from None
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            decisions.append(Decision.model_validate_json(line))
        except ValidationError as error:
            what = error.errors()[0]
            where = ".".join(str(part) for part in what["loc"]) or "line"
            raise UserError(f"{path}, line {number}: '{where}': {what['msg']}") from None
    return decisions


def verdict_of(decisions: Sequence[Decision], reviewers: int) -> Verdict | None:
    """The verdict on one pair from its decisions, or None where there are none.

    Each reviewer's last decision counts. Of the corrections of one caption the commonest stands; of equally common ones
    that of the reviewer whose name sorts first. An empty correction is none.
    """
    latest = {decision.reviewer: decision for decision in decisions}
    if not latest:
        return None
    corrections: dict[str, list[str]] = {}
    for _, decision in sorted(latest.items()):
        for image_id, text in decision.captions.items():
            if text.strip():
                corrections.setdefault(image_id, []).append(" ".join(text.split()))
    captions = {image_id: max(texts, key=texts.count) for image_id, texts in corrections.items()}
    if not all(decision.keep for decision in latest.values()):
        return Verdict(DROPPED, len(latest), captions)
    return Verdict(UNDECIDED if len(latest) < reviewers else None, len(latest), captions)


def items(context: StageContext) -> list[Ref]:
    ids = context.store.kept_ids("attributes", context.shard)
    rows = context.store.rows("frames", context.shard, ["pair_id"], ids)
    return [Ref(record_id, row["pair_id"]) for record_id, row in rows.items()]


def run(context: StageContext, batch: Sequence[Ref]) -> list[Outcome]:
    section = context.profile.review
    decisions: dict[str, list[Decision]] = {}
    for decision in read_decisions(section.file) if section.file else []:
        decisions.setdefault(decision.pair_id, []).append(decision)
    captions = context.store.rows("recaption", context.shard, ["caption"], [item.id for item in batch])
    outcomes: list[Outcome] = []
    for item in batch:
        caption = captions[item.id]["caption"]
        verdict = verdict_of(decisions.get(item.group, []), section.reviewers)
        if verdict is None:
            record = Review(id=item.id, caption=caption, reviewed=False, corrected=False, votes=0)
            outcomes.append(Kept(record))
        elif verdict.reason is not None:
            outcomes.append(Rejected(item.id, verdict.reason, f"{verdict.votes} reviewers"))
        else:
            final = verdict.captions.get(item.id) or caption
            outcomes.append(
                Kept(Review(id=item.id, caption=final, reviewed=True, corrected=final != caption, votes=verdict.votes))
            )
    return outcomes


def upstream(_profile: Profile, shard: str) -> list[tuple[str, str]]:
    return [("frames", shard), ("recaption", shard), ("attributes", shard)]


def decisions_digest(profile: Profile, _shard: str) -> dict[str, Any]:
    """The digest of the reviewers' file: a new correction makes the shards that follow from it new."""
    if profile.review.file is None:
        return {}
    decisions = [decision.model_dump() for decision in read_decisions(profile.review.file)]
    return {"decisions": hashlib.sha256(json.dumps(decisions, sort_keys=True).encode()).hexdigest()}


STAGE = Stage(
    name="review",
    version=1,
    summary="reviewers keep real pairs and correct captions",
    shard_kinds=("test",),
    reads={"recaption": ("caption",), "frames": ("pair_id",), "attributes": ("id",)},
    writes=Review,
    reasons=(DROPPED, UNDECIDED),
    upstream=upstream,
    items=items,
    run=run,
    config=("review.reviewers",),
    external=decisions_digest,
)


if __name__ == "__main__":
    from pipeline.run_stage import stage_main

    raise SystemExit(stage_main("review"))
