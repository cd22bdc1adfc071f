import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pipeline.core.images import ImageError
from pipeline.core.profile import load_profile
from pipeline.core.records import filtered_items, filtered_stage, image_rows, image_stage, person_rows
from pipeline.core.stage import StageContext
from pipeline.core.store import Store
from schemas.records import Engine, PersonKeypoints, PoseRecord, Record


class Picture(Record):
    image: bytes
    kind: str


class Name(Record):
    pass


def context(folder: Path, shard: str) -> StageContext:
    return StageContext(load_profile(), Store(folder), shard, lambda _section: None)


def put(where: StageContext, stage: str, records: list[Record]) -> None:
    with where.store.writing(stage, where.shard, "key", type(records[0])) as writer:
        writer.begin(1)
        writer.write_part(0, records, [])
        writer.finish({})


def png(value: int) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.full((2, 3, 3), value, np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def test_the_branches_meet_in_keypoints_and_part_in_what_filters_them():
    assert (image_stage("train-007"), image_stage("test-000")) == ("generate", "frames")
    assert (filtered_stage("train-007"), filtered_stage("test-000")) == ("keypoints", "similarity")


@pytest.mark.parametrize(("shard", "stage"), [("train-000", "keypoints"), ("test-000", "similarity")])
def test_what_passed_all_filters_is_what_the_last_filter_kept(tmp_path, shard, stage):
    where = context(tmp_path, shard)
    put(where, stage, [Name(id="b"), Name(id="a")])
    assert [item.id for item in filtered_items(where)] == ["a", "b"]


@pytest.mark.parametrize(("shard", "stage"), [("train-000", "generate"), ("test-000", "frames")])
def test_images_come_decoded_with_the_columns_asked_for(tmp_path, shard, stage):
    where = context(tmp_path, shard)
    put(where, stage, [Picture(id=name, image=png(n), kind="goal") for n, name in enumerate("abc")])
    rows = image_rows(where, ["c", "a"], ["kind"])
    assert {name: (int(row["pixels"].max()), row["kind"]) for name, row in rows.items()} == {
        "a": (0, "goal"),
        "c": (2, "goal"),
    }
    assert rows["a"]["pixels"].shape == (2, 3, 3)
    assert "image" not in rows["a"]


def test_an_image_that_cannot_be_read_is_named(tmp_path):
    where = context(tmp_path, "train-000")
    put(where, "generate", [Picture(id="broken", image=png(1)[:40], kind="goal")])
    with pytest.raises(ImageError, match="broken"):
        image_rows(where, ["broken"])


def test_the_people_of_an_image_come_in_the_order_in_which_they_were_found(tmp_path):
    where = context(tmp_path, "test-000")
    people = tuple(
        PersonKeypoints(keypoints=(0.0,) * 51, box=(0.0, 0.0, 1.0, 1.0), score=score) for score in (0.3, 0.9, 0.5)
    )
    engine = Engine(name="x", revision="1")
    put(where, "keypoints", [PoseRecord(id="a", persons=people, pose_map=b"", scores="", pose_estimator=engine)])
    assert [person["score"] for person in person_rows(where, ["a"])["a"]] == [0.3, 0.9, 0.5]
