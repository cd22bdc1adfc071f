import io
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from pipeline.backends.protocols import Person
from pipeline.core.pose import COCO_17, draw_pose_map
from pipeline.keypoints import STAGE, judge, stored
from schemas.records import ImageRecord
from tests.stage_helpers import FakeEngine, context, dropped, image_record, kept, picture, png, put, run

SIZE = 64

# A standing person in a 64 x 64 image: x and y of the joints in COCO order.
STANDING = np.array(
    [
        *([32, 10], [33, 9], [31, 9], [35, 10], [29, 10]),
        *([38, 18], [26, 18], [40, 27], [24, 27], [41, 35], [23, 35]),
        *([36, 35], [28, 35], [36, 46], [28, 46], [36, 57], [28, 57]),
    ],
    dtype=np.float32,
)


def person(scores=0.9, score=0.95, points=STANDING) -> Person:
    joints = np.column_stack([points, np.broadcast_to(np.float32(scores), 17)]).astype(np.float32)
    return Person(joints, (20.0, 5.0, 45.0, 60.0), score)


def torn() -> Person:
    points = STANDING.copy()
    points[COCO_17.index("left_wrist")] = (2, 2)
    points[COCO_17.index("left_ankle")] = (62, 4)
    return person(points=points)


def estimator(*answers) -> FakeEngine:
    """Gives the people of each image by the brightness of its last pixel: image n has the brightness n."""
    return FakeEngine("estimate", lambda images: [answers[int(image[-1, -1, 0])] for image in images])


def estimated(folder, shard, *answers, names="abcdef"):
    where = context(folder, shard, keypoints=estimator(*answers))
    images = [
        image_record(name, image=png(picture((n,) * 3, SIZE, SIZE)), width=SIZE, height=SIZE)
        for n, name in zip(range(len(answers)), names, strict=False)
    ]
    put(where, "generate" if shard.startswith("train") else "frames", images, ImageRecord)
    run(STAGE, where)
    return where


@pytest.mark.parametrize("shard", ["train-000", "test-000"])
def test_a_whole_person_is_kept_with_joints_pose_map_and_scores(tmp_path, shard):
    where = estimated(tmp_path, shard, [person()])
    record = kept(STAGE, where)["a"]
    joints = np.array(record.persons[0].keypoints).reshape(17, 3)
    assert np.allclose(joints[:, :2], STANDING)
    assert np.allclose(joints[:, 2], 0.9)
    assert record.persons[0].box == (20.0, 5.0, 45.0, 60.0)
    shown = np.asarray(Image.open(io.BytesIO(record.pose_map)))
    assert shown.shape == (SIZE, SIZE, 3)
    assert np.array_equal(shown, draw_pose_map([person().keypoints], SIZE, SIZE, min_score=0.3))
    assert shown.any()
    assert json.loads(record.scores)


@pytest.mark.parametrize("shard", ["train-000", "test-000"])
def test_an_image_without_a_person_is_rejected_with_the_scores_that_were_judged(tmp_path, shard):
    where = estimated(tmp_path, shard, [], [person()], [person(scores=0.1, score=0.1)])
    assert set(kept(STAGE, where)) == {"b"}
    gone = where.store.dropped("keypoints", shard)
    assert {row["outcome"] for row in gone} == {"rejected"}
    assert {row["reason"] for row in gone} <= set(STAGE.reasons)
    for row in gone:
        json.loads(row["detail"])


def test_torn_bodies_fall_to_the_structure_filter_of_generated_images_alone(tmp_path):
    assert set(dropped(STAGE, estimated(tmp_path / "train", "train-000", [torn()], [person()]))) == {"a"}
    assert dropped(STAGE, estimated(tmp_path / "test", "test-000", [torn()], [person()])) == {}


def test_the_thresholds_are_those_of_the_profile(tmp_path):
    section = context(tmp_path, "test-000").profile.keypoints
    strict = context(tmp_path, "test-000", "keypoints.people.min_area_share=0.9").profile.keypoints
    assert judge([person()], SIZE, SIZE, section, "test")[0] is None
    assert judge([person()], SIZE, SIZE, strict, "test")[0] in STAGE.reasons
    assert judge([person()], SIZE, SIZE, strict, "train")[0] is None


def test_other_thresholds_decide_again_without_the_engine(tmp_path):
    estimated(tmp_path, "train-000", [person()], [person(score=0.5)], [])
    where = context(tmp_path, "train-000", "keypoints.structure.min_person_score=0.7", keypoints=None)
    assert run(STAGE, where).manifest["remembered_records"] == 3
    assert set(kept(STAGE, where)) == {"a"}
    measured = where.store.measured("keypoints", "train-000", ["persons", "width", "height"])
    assert {record_id: len(row["persons"]) for record_id, row in measured.items()} == {"a": 1, "b": 1, "c": 0}
    assert (measured["c"]["width"], measured["c"]["height"]) == (SIZE, SIZE)


def test_an_image_that_cannot_be_read_fails_alone(tmp_path):
    where = context(tmp_path, "train-000", keypoints=estimator([person()], [person()]))
    images = [
        image_record("a", image=png(picture((0,) * 3, SIZE, SIZE))),
        image_record("b", image=png(picture((1,) * 3, SIZE, SIZE))[:100]),
    ]
    put(where, "generate", images, ImageRecord)
    run(STAGE, where)
    assert set(kept(STAGE, where)) == {"a"}
    assert dropped(STAGE, where) == {"b": "failed: ImageError"}


joints = st.lists(st.floats(-50, 5000, width=32), min_size=34, max_size=34)


@given(joints, st.lists(st.floats(0, 1, width=32), min_size=17, max_size=17), st.floats(0, 1))
def test_a_stored_person_is_the_person_to_a_hundredth_of_a_pixel(points, scores, score):
    original = person(np.array(scores), score, np.array(points, dtype=np.float32).reshape(17, 2))
    back = Person.from_row(stored(original).model_dump())
    assert np.allclose(back.keypoints[:, :2], original.keypoints[:, :2], atol=0.006, rtol=1e-6)
    assert np.allclose(back.keypoints[:, 2], original.keypoints[:, 2], atol=6e-5)
    assert back.box == original.box
    assert abs(back.score - score) <= 5.1e-5
