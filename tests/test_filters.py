from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline import filters
from pipeline.core.errors import UserError
from pipeline.core.stage import StageContext
from pipeline.core.store import Store
from pipeline.keypoints import STAGE as KEYPOINTS
from pipeline.similarity import STAGE as SIMILARITY
from schemas.records import ImageRecord
from tests.stage_helpers import FakeEngine, context, image_record, picture, png, put, run
from tests.test_keypoints import SIZE, person

TRAIN_SCORES = (0.95, 0.6, 0.35, 0.2)
"""Person scores of the four generated images; the fifth shows nobody."""
PINNED = ("keypoints.structure.min_person_score=0.3", "keypoints.people.min_person_score=0.4")
"""So that the three surest of them pass, whatever the demo's own thresholds."""
BRIGHTNESS = {"k1": (10, 12), "k2": (10, 200), "k3": (10, 250)}
"""Of the two frames of each pair: the first is a static clip. The goal frame of k3 shows nobody."""


def frame_ids() -> list[str]:
    return [f"{pair}_{kind}_frame" for pair in BRIGHTNESS for kind in ("goal", "wentrong")]


def _people(images):
    found = []
    for image in images:
        marker = int(image[-1, -1, 1])
        score = TRAIN_SCORES[marker] if marker < len(TRAIN_SCORES) else None
        found.append([] if score is None else [person(score=score)])
    return found


def _vectors(images):
    import numpy as np

    angles = np.array([image[-1, -1, 0] / 255 * np.pi / 2 for image in images])
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def judged_build(folder: Path) -> StageContext:
    """Both filters run over five generated images and three pairs of frames, with engines that answer at once."""
    train = context(folder, "train-000", *PINNED, keypoints=FakeEngine("estimate", _people))
    images = [
        image_record(f"v{number}_goal_000", image=png(picture((90, number, 0), SIZE, SIZE)), width=SIZE, height=SIZE)
        for number in range(5)
    ]
    put(train, "generate", images, ImageRecord)
    run(KEYPOINTS, train)
    test = context(
        folder,
        "test-000",
        *PINNED,
        keypoints=FakeEngine("estimate", _people),
        similarity=FakeEngine("embed", _vectors),
    )
    frames = [
        image_record(
            f"{pair}_{kind}_frame",
            kind,
            image=png(picture((level, 9 if (pair, kind) == ("k3", "goal") else 0, 0), SIZE, SIZE)),
            width=SIZE,
            height=SIZE,
        )
        for pair, levels in BRIGHTNESS.items()
        for kind, level in zip(("goal", "wentrong"), levels, strict=True)
    ]
    put(test, "frames", frames, ImageRecord)
    run(KEYPOINTS, test)
    run(SIMILARITY, test)
    return train


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> StageContext:
    return judged_build(tmp_path_factory.mktemp("filters"))


def test_what_was_measured_is_decided_again_as_the_stage_decided_it(built):
    for section, shard in (("keypoints.structure", "train-000"), ("keypoints.people", "test-000")):
        rules = filters.rules_for(built.profile, section)
        found = filters.judged(built.profile, built.store, section, [shard])
        kept = set(built.store.kept_ids("keypoints", shard))
        assert {each.id for each in found if rules.verdict(each.detail) is None} == kept
        assert 0 < len(kept) < len(found)
        reasons = {row["id"]: row["reason"] for row in built.store.dropped("keypoints", shard)}
        assert {each.id: rules.verdict(each.detail) for each in found if each.id not in kept} == reasons


def test_a_pair_is_judged_once_and_has_both_its_frames(built):
    found = filters.judged(built.profile, built.store, "similarity", ["test-000"])
    assert [(each.id, each.kind, each.members) for each in found] == [
        (pair, "pair", (f"{pair}_goal_frame", f"{pair}_wentrong_frame")) for pair in ("k1", "k2")
    ]
    rules = filters.rules_for(built.profile, "similarity")
    assert [rules.verdict(each.detail) for each in found] == ["pair_too_alike", None]


def test_at_most_so_many_are_read_and_their_ids_decide_which(built):
    every = filters.judged(built.profile, built.store, "keypoints.structure", ["train-000"])
    some = filters.judged(built.profile, built.store, "keypoints.structure", ["train-000"], most=2)
    assert len(every) == 5
    assert len(some) == 2
    assert [each.id for each in some] == filters.some_of([each.id for each in every][::-1], 2)


def test_records_of_one_shard_are_found_by_id(built):
    found = filters.judged_by_id(built.store, "keypoints.people", "test-000", ["k2_goal_frame"])
    assert [(each.id, each.kind) for each in found] == [("k2_goal_frame", "goal")]
    pairs = filters.judged_by_id(built.store, "similarity", "test-000", ["k1_goal_frame", "k1_wentrong_frame"])
    assert [each.id for each in pairs] == ["k1"]


def test_a_shard_that_is_not_there_or_holds_no_measurements_is_named(tmp_path):
    where = judged_build(tmp_path)
    with pytest.raises(UserError, match=r"keypoints train-001 is not built .* run python -m pipeline\.keypoints"):
        filters.measured_ids(where.store, "keypoints", ["train-000", "train-001"])
    path = where.store.shard_dir("keypoints", "train-000") / "stage.json"
    manifest = json.loads(path.read_text("utf-8"))
    del manifest["measured_key"]
    path.write_text(json.dumps(manifest), "utf-8")
    with pytest.raises(UserError, match="does not hold what was measured"):
        filters.measured_ids(Store(where.store.build_dir), "keypoints", ["train-000"])


def test_each_filter_judges_its_own_shards(built):
    assert all(each.startswith("train") for each in filters.section_shards(built.profile, "keypoints.structure"))
    for section in ("keypoints.people", "similarity"):
        assert all(each.startswith("test") for each in filters.section_shards(built.profile, section))
