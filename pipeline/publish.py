"""Stage 10, publish: each image's hard negative (PAB, section 4), and the dataset that `load_dataset` reads.

The stage's records are decisions: which image goes out, and which is its hard negative. The images are copied once, at
delivery, from the shards of the stages that made them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pipeline import delivery
from pipeline.core.profile import Profile
from pipeline.core.records import image_stage
from pipeline.core.seeds import seed_of
from pipeline.core.stage import Kept, Outcome, Rejected, Stage, StageContext, shard_name
from pipeline.core.store import Store
from pipeline.delivery import check_out, delivery_stands
from pipeline.formats.oops_shards import test_shard_count
from schemas.records import Publication

__all__ = ["STAGE", "check_out", "delivery_stands", "hard_partners"]

PARTNER_MISSING = "partner_missing"

Split = Literal["train", "test"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """An image that may be another's hard negative."""

    id: str
    video: str
    kind: str
    shard: str


@dataclass(frozen=True, slots=True)
class PublishItem:
    """An image that came through all stages, and its hard negative where there is one."""

    id: str
    split: Split
    shard: str
    partner: Candidate | None
    group: str = ""


def hard_partners(images: Sequence[Candidate]) -> dict[str, Candidate | None]:
    """Each image's hard negative: the image of the same video with the opposite behaviour, or None where there is none.

    goal: full, else wentrong; wentrong and full: goal. From the same shard, else from the shard that the image's id
    draws among those that have one. Does not depend on the order of the images.
    """
    by_video: dict[str, dict[str, dict[str, Candidate]]] = {}
    for image in images:
        by_video.setdefault(image.video, {}).setdefault(image.shard, {})[image.kind] = image
    return {image.id: _partner(image, by_video[image.video]) for image in images}


def _partner(image: Candidate, shards: Mapping[str, Mapping[str, Candidate]]) -> Candidate | None:
    wanted = ("full", "wentrong") if image.kind == "goal" else ("goal",)

    def best(shard: str) -> Candidate | None:
        return next((shards[shard][kind] for kind in wanted if kind in shards[shard]), None)

    here = best(image.shard)
    if here is not None:
        return here
    others = [found for shard in sorted(shards) if (found := best(shard)) is not None]
    return others[seed_of(image.id, "hard partner") % len(others)] if others else None


def items(context: StageContext) -> list[PublishItem]:
    found: list[PublishItem] = []
    for split, shards in split_shards(context.profile).items():
        candidates = [each for shard in shards for each in _candidates(context.store, shard)]
        partners = hard_partners(candidates)
        found += [PublishItem(each.id, split, each.shard, partners[each.id]) for each in candidates]
    return found


def _candidates(store: Store, shard: str) -> Iterator[Candidate]:
    kept = set(store.kept_ids("decompose", shard))
    table = store.table(image_stage(shard), shard, ["id", "video", "kind"])
    for record_id, video, kind in zip(*(table[name].to_pylist() for name in ("id", "video", "kind")), strict=True):
        if record_id in kept:
            yield Candidate(record_id, video, kind, shard)


def run(_context: StageContext, batch: Sequence[PublishItem]) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for item in batch:
        if item.split == "test" and item.partner is None:
            outcomes.append(Rejected(item.id, PARTNER_MISSING, "the other frame of the pair did not come through"))
            continue
        record = Publication(
            id=item.id,
            split=item.split,
            shard=item.shard,
            hard_image_id=item.partner.id if item.partner else None,
            hard_shard=item.partner.shard if item.partner else None,
        )
        outcomes.append(Kept(record))
    return outcomes


def split_shards(profile: Profile) -> dict[Split, list[str]]:
    """The shards of each split."""
    return {
        "train": [shard_name("train", number) for number in range(profile.generate.images_per_caption)],
        "test": [shard_name("test", number) for number in range(test_shard_count(profile))],
    }


def upstream(profile: Profile, _shard: str) -> list[tuple[str, str]]:
    """Every shard of every stage before this one, in the order of the stages: the dataset says what each dropped."""
    shards = split_shards(profile)
    both = [*shards["train"], *shards["test"]]
    plan = {
        "frames": shards["test"],
        "sources": ["train-000", "test-000"],
        "generate": shards["train"],
        "keypoints": both,
        "similarity": shards["test"],
        "recaption": both,
        "attributes": both,
        "review": shards["test"],
        "decompose": both,
    }
    return [(stage, shard) for stage, names in plan.items() for shard in names]


def deliver(context: StageContext, manifest: dict[str, Any]) -> None:
    """Bring the dataset folder of the profile up to date; see `delivery.deliver`."""
    delivery.deliver(context.profile, context.store, manifest, upstream(context.profile, "all"))


STAGE = Stage(
    name="publish",
    version=1,
    summary="each image's hard negative, and the dataset folder",
    shard_kinds=(),
    reads={
        "decompose": ("caption", "factors", "answered"),
        "generate | frames": ("image", "video", "kind", "source_id", "pair_id"),
        "keypoints": ("persons", "pose_map"),
        "recaption": ("captioner", "answered"),
        "attributes": ("action", "anomaly", "scene", "answered"),
        "sources (test)": ("caption",),
        "review (test)": ("reviewed",),
        "every stage": ("rejected",),
    },
    writes=Publication,
    reasons=(PARTNER_MISSING,),
    upstream=upstream,
    items=items,
    run=run,
    deliver=deliver,
)


if __name__ == "__main__":
    from pipeline.push import publish_main

    raise SystemExit(publish_main())
