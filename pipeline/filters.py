"""What the filters of a build measured, ready to be judged again: by calibrate for other thresholds, by report for the
records that were nearest to another verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.core.errors import UserError
from pipeline.core.profile import Profile
from pipeline.core.seeds import seed_of
from pipeline.core.store import Store
from pipeline.core.thresholds import Rules, people_rules, rules_of, structure_rules

SECTIONS = {"keypoints": ("keypoints.structure", "keypoints.people"), "similarity": ("similarity",)}
"""The filters, and the sections of the profile that hold their thresholds."""
ALL_SECTIONS = tuple(section for own in SECTIONS.values() for section in own)
_KINDS = {"keypoints.structure": "train", "keypoints.people": "test", "similarity": "test"}
_READ = 1024


@dataclass(frozen=True)
class Judged:
    """What a filter gave one verdict on. id: of the record, or of the pair whose two frames are judged together.

    kind: goal, wentrong, full or pair. members: the ids of the records. detail: what was measured, for `Rules`.
    """

    id: str
    shard: str
    kind: str
    members: tuple[str, ...]
    detail: Any


def rules_for(profile: Profile, section: str) -> Rules:
    """The filter of one section of the profile, e.g. `keypoints.people`."""
    if section == "keypoints.people":
        return people_rules(profile.keypoints.people)
    if section == "keypoints.structure":
        return structure_rules(profile.keypoints.structure)
    from pipeline.similarity import pair_verdict

    return rules_of("similarity", profile.similarity, lambda cosine, values: pair_verdict(cosine, values["max_cosine"]))


def section_shards(profile: Profile, section: str) -> list[str]:
    """The shards that the filter of one section judges."""
    from pipeline import stages
    from pipeline.core.stage import shard_kind

    made = stages.stage(section.partition(".")[0])
    return [shard for shard in stages.shard_names(made, profile) if shard_kind(shard) == _KINDS[section]]


def measured_ids(store: Store, stage: str, shards: Sequence[str]) -> dict[str, str]:
    """The ids of all records that a filter measured in these shards, with their shard.

    Raises UserError where a shard is not built, or was built by a filter that did not store what it measured.
    """
    found: dict[str, str] = {}
    for shard in shards:
        manifest = store.manifest(stage, shard)
        if manifest is None or "measured_key" not in manifest:
            state = "is not built" if manifest is None else "does not hold what was measured"
            raise UserError(f"{stage} {shard} {state} in {store.build_dir}: run python -m pipeline.{stage} first")
        found |= dict.fromkeys(store.measured(stage, shard, ["id"]), shard)
    return found


def some_of(ids: Sequence[str], most: int) -> list[str]:
    """At most so many of the ids, chosen by nothing but themselves, sorted."""
    return sorted(sorted(ids, key=lambda each: seed_of("some of", each))[:most])


def judged(
    profile: Profile, store: Store, section: str, shards: Sequence[str], most: int | None = None
) -> list[Judged]:
    """What one filter measured in these shards of the store, by id; at most so many of them.

    Raises UserError as `measured_ids` does.
    """
    stage = section.partition(".")[0]
    where = measured_ids(store, stage, shards)
    read = _pairs if stage == "similarity" else _images
    return read(store, where, most)


def judged_by_id(store: Store, section: str, shard: str, ids: Sequence[str]) -> list[Judged]:
    """As `judged`, of these records of one shard."""
    read: Callable[..., list[Judged]] = _pairs if section == "similarity" else _images
    return read(store, dict.fromkeys(ids, shard), None)


def _images(store: Store, where: dict[str, str], most: int | None) -> list[Judged]:
    from pipeline.backends.protocols import Person
    from pipeline.core.pose import measure_people
    from pipeline.core.records import image_stage

    chosen = some_of(list(where), len(where) if most is None else most)
    found = []
    for shard in sorted({where[record_id] for record_id in chosen}):
        ids = [record_id for record_id in chosen if where[record_id] == shard]
        for start in range(0, len(ids), _READ):
            some = ids[start : start + _READ]
            kinds = store.rows(image_stage(shard), shard, ["kind"], some)
            for record_id, row in store.measured("keypoints", shard, ["width", "height", "persons"], some).items():
                persons = [Person.from_row(person) for person in row["persons"]]
                detail = measure_people(persons, row["width"], row["height"], boxes=True)
                found.append(Judged(record_id, shard, kinds[record_id]["kind"], (record_id,), detail))
    return sorted(found, key=lambda each: each.id)


def _pairs(store: Store, where: dict[str, str], most: int | None) -> list[Judged]:
    members: dict[str, list[str]] = {}
    shards: dict[str, str] = {}
    cosines: dict[str, float] = {}
    for shard in sorted(set(where.values())):
        own = [record_id for record_id, at in where.items() if at == shard]
        for record_id, row in store.measured("similarity", shard, ["pair_id", "cosine"], own).items():
            members.setdefault(row["pair_id"], []).append(record_id)
            shards[row["pair_id"]], cosines[row["pair_id"]] = shard, row["cosine"]
    chosen = some_of(list(members), len(members) if most is None else most)
    return [Judged(pair, shards[pair], "pair", tuple(members[pair]), cosines[pair]) for pair in chosen]
