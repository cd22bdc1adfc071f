"""Stage 4, keypoints: people and joints, the pose map, and the filters that judge them (PAB, section 3).

Real frames must show a person who covers enough of the image; generated images must show a whole body. The people an
engine found are stored as they are, of kept and of rejected images: another threshold asks no engine.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pipeline.backends.protocols import Person
from pipeline.core.images import encode_png
from pipeline.core.pose import (
    PEOPLE_REASONS,
    STRUCTURE_REASONS,
    PeopleThresholds,
    StructureThresholds,
    draw_pose_map,
    people_filter,
    structure_filter,
)
from pipeline.core.profile import KeypointsSection, Profile
from pipeline.core.records import image_rows, image_stage
from pipeline.core.stage import Kept, Measured, Measuring, Outcome, Ref, Rejected, Stage, StageContext, shard_kind
from schemas.records import Engine, PeopleFound, PersonKeypoints, PoseRecord


def judge(
    persons: Sequence[Person], width: int, height: int, section: KeypointsSection, kind: str
) -> tuple[str | None, dict[str, Any]]:
    """The filter that a shard's kind calls for: (reason to drop or None, the scores it judged)."""
    if kind == "test":
        return people_filter(persons, width, height, PeopleThresholds(**section.people.model_dump()))
    return structure_filter(persons, width, height, StructureThresholds(**section.structure.model_dump()))


def stored(person: Person) -> PersonKeypoints:
    """A person as stored: pixels to a hundredth, scores to four digits."""
    flat = [round(float(value), 4 if index % 3 == 2 else 2) for index, value in enumerate(person.keypoints.reshape(-1))]
    box = tuple(round(float(value), 2) for value in person.box)
    return PersonKeypoints(keypoints=tuple(flat), box=box, score=round(float(person.score), 4))


def items(context: StageContext) -> list[Ref]:
    return [Ref(record_id) for record_id in context.store.kept_ids(image_stage(context.shard), context.shard)]


def measure(context: StageContext, batch: Sequence[Ref]) -> list[PeopleFound]:
    estimator = context.engines("keypoints")
    ids = [item.id for item in batch]
    images = image_rows(context, ids)
    found = estimator.estimate([images[record_id]["pixels"] for record_id in ids])
    engine = Engine(name=estimator.name, revision=estimator.revision)
    records = []
    for record_id, persons in zip(ids, found, strict=True):
        height, width = images[record_id]["pixels"].shape[:2]
        people = tuple(stored(person) for person in persons)
        records.append(PeopleFound(id=record_id, width=width, height=height, persons=people, pose_estimator=engine))
    return records


def run(context: StageContext, batch: Sequence[Measured]) -> list[Outcome]:
    section, kind = context.profile.keypoints, shard_kind(context.shard)
    joint_score = (section.people if kind == "test" else section.structure).min_joint_score
    outcomes: list[Outcome] = []
    for item in batch:
        found: PeopleFound = item.record
        persons = [Person.from_row(person.model_dump()) for person in found.persons]
        reason, scores = judge(persons, found.width, found.height, section, kind)
        detail = json.dumps(scores, separators=(",", ":"))
        if reason is not None:
            outcomes.append(Rejected(item.id, reason, detail))
            continue
        pose_map = draw_pose_map(
            [person.keypoints for person in persons], found.width, found.height, min_score=joint_score
        )
        outcomes.append(
            Kept(
                PoseRecord(
                    id=item.id,
                    persons=found.persons,
                    pose_map=encode_png(pose_map),
                    scores=detail,
                    pose_estimator=found.pose_estimator,
                )
            )
        )
    return outcomes


def upstream(_profile: Profile, shard: str) -> list[tuple[str, str]]:
    return [(image_stage(shard), shard)]


STAGE = Stage(
    name="keypoints",
    version=3,
    summary="people and joints, pose maps, the people filter (real) and the structure filter (generated)",
    shard_kinds=("train", "test"),
    reads={"generate | frames": ("image",)},
    writes=PoseRecord,
    reasons=tuple(dict.fromkeys((*PEOPLE_REASONS, *STRUCTURE_REASONS))),
    upstream=upstream,
    items=items,
    run=run,
    config_by_kind={"test": ("keypoints.people",), "train": ("keypoints.structure",)},
    engines=("keypoints",),
    measures=Measuring(version=1, writes=PeopleFound, upstream=upstream, run=measure),
)


if __name__ == "__main__":
    from pipeline.run_stage import stage_main

    raise SystemExit(stage_main("keypoints"))
