"""What a decomposer's replies about a caption come to: its factors, or why there are none. Asks no engine."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from pipeline.core.replies import FACTORS, FactorsJudged, judge_factors, was_cut
from pipeline.core.stage import Failed, Kept, Outcome, Rejected
from schemas.records import Answered, Decomposition, FactorReplies

REASONS = {"refusal": "refusal", "loop": "loop"}
"""The stage's reason where no reply could be read, by that of `core.replies.read_factors`; any other is unparsable."""


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
