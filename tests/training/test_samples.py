import json
import pickle
import shutil

import pytest
from PIL import Image

from pipeline.core.errors import UserError
from pipeline.training.samples import Sample, drawn, load_samples, parted_by_source, with_distractors
from tests.synthetic_build import TEST_VIDEOS, TRAIN_VIDEOS, jpeg, publish_build, train_id, write_build

pytest.importorskip("datasets")


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """A published dataset of three training videos and four test videos."""
    root = tmp_path_factory.mktemp("samples")
    lost = {train_id(TRAIN_VIDEOS[0], "goal", 0): "keypoints"}
    publish_build(*write_build(root, lost))
    return root / "out" / "pab"


def test_the_samples_of_a_published_dataset_are_its_rows_by_id(out):
    found = load_samples(str(out), "train")
    ids = sorted(train_id(video, kind, n) for video in TRAIN_VIDEOS for kind in ("goal", "wentrong", "full")
                 for n in (0, 1))  # fmt: skip
    ids.remove(train_id(TRAIN_VIDEOS[0], "goal", 0))
    assert [sample.id for sample in found.samples] == ids
    assert {sample.source for sample in found.samples} == set(TRAIN_VIDEOS)
    assert {sample.normal for sample in found.samples if "_goal_" in sample.id} == {True}
    assert {sample.normal for sample in found.samples if "_full_" in sample.id} == {False}


def test_each_picture_is_that_of_its_row_also_in_another_process(out):
    found = load_samples(str(out), "train")
    again = pickle.loads(pickle.dumps(found))
    for sample in found.samples:
        assert found.picture(sample.image, "image") == jpeg(sample.id)
        assert again.picture(sample.image, "image") == jpeg(sample.id)
        assert found.picture(sample.pose, "pose") != jpeg(sample.id)


def test_the_hard_negative_is_the_counterpart_with_its_own_caption_and_picture(out):
    found = load_samples(str(out), "train")
    captions = {sample.id: sample.caption for sample in found.samples}
    for sample in found.samples:
        assert sample.hard is not None
        assert sample.hard.caption == captions[sample.hard.id]
        assert found.picture(sample.hard.image, "image") == jpeg(sample.hard.id)
        assert ("_goal_" in sample.id) != ("_goal_" in sample.hard.id)


def test_goal_wentrong_and_full_of_one_image_number_are_one_person(out):
    people: dict[str, set[str]] = {}
    for sample in load_samples(str(out), "train").samples:
        people.setdefault(sample.person, set()).add(sample.id)
    assert sorted(map(len, people.values())) == [2, 3, 3, 3, 3, 3]
    test = load_samples(str(out), "test")
    assert len({sample.person for sample in test.samples}) == len(TEST_VIDEOS)


def test_a_folder_without_a_dataset_is_told_what_to_do(tmp_path):
    with pytest.raises(UserError, match=r"no dataset of this project.*python -m pipeline\.build"):
        load_samples(str(tmp_path), "train")
    with pytest.raises(UserError, match="the folder is not there"):
        load_samples(f"pab:{tmp_path / 'none'}", "train")


def test_an_empty_split_is_told(out, tmp_path):
    copy = tmp_path / "pab"
    shutil.copytree(out, copy)
    for path in (copy / "data").glob("test-*"):
        path.unlink()
    with pytest.raises(UserError, match="test split is empty"):
        load_samples(str(copy), "test")


def test_the_released_folder_has_the_same_form(tmp_path):
    rows = [
        {"image": f"train/imgs_0/{kind}/{n}.jpg", "caption": f"A person, {kind}.", "image_id": f"0_{n}",
         "hard_i": f"imgs_0/{other}/{1 - n}.jpg", "hard_c": f"A person, {other}.", "hard_i_id": f"0_{1 - n}",
         "source_id": f"7_{n}", key: "Walking", "scene": "street"}
        for n, (kind, other, key) in enumerate((("goal", "full", "normal"), ("full", "goal", "anomaly")))
    ]  # fmt: skip
    (tmp_path / "annotation/train").mkdir(parents=True)
    (tmp_path / "annotation/train/attr_0.json").write_text("\n".join(map(json.dumps, rows)))
    for row in rows:
        for path in (tmp_path / row["image"], tmp_path / "pose" / row["image"]):
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), (int(row["image_id"][-1]) * 200, 0, 0)).save(path)
    found = load_samples(f"pab:{tmp_path}", "train")
    first, second = found.samples
    assert (first.id, first.source, first.person, first.normal, first.label) == ("0_0", "7", "7", True, "Walking")
    assert second.normal is False
    assert found.picture(first.hard.image, "image") == found.picture(second.image, "image")


def samples(count: int, sources: int) -> list[Sample]:
    return [
        Sample(f"s{n:04d}", f"v{n % sources}", None, None, ("a",), (None, None, None), n, None) for n in range(count)
    ]


def test_a_fraction_is_drawn_by_id_alone_and_a_smaller_one_is_part_of_it():
    every = samples(4000, 40)
    tenth, half = drawn(every, 0.1), drawn(every, 0.5)
    assert 340 < len(tenth) < 460
    assert 1880 < len(half) < 2120
    assert set(map(id, tenth)) <= set(map(id, half))
    assert {each.id for each in drawn(every[::-1], 0.1)} == {each.id for each in tenth}
    assert drawn(every, 1.0) == every


def test_validation_holds_whole_sources_and_training_the_others():
    training, validation = parted_by_source(samples(400, 40), 0.1)
    assert len({each.source for each in validation}) == 4
    assert not {each.source for each in training} & {each.source for each in validation}
    assert len(training) + len(validation) == 400
    assert parted_by_source(samples(10, 1), 0.1) == (samples(10, 1), [])
    assert len(parted_by_source(samples(10, 2), 0.01)[1]) == 5
    assert parted_by_source(samples(10, 5), 0)[1] == []


def test_an_images_further_captions_and_its_match_are_read_where_the_data_has_them(out, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    copy = tmp_path / "pab"
    shutil.copytree(out, copy)
    paths = sorted((copy / "data").glob("test-*.parquet"))
    table = pa.concat_tables([pq.read_table(each) for each in paths]).replace_schema_metadata(None)
    for each in paths:
        each.unlink()
    captions = [[each.as_py(), "seen anew"] for each in table["caption"][:1]] + [None] * (table.num_rows - 1)
    table = table.append_column("captions", pa.array(captions, pa.list_(pa.string())))
    matches = ["span", "span", *[None] * (table.num_rows - 2)]
    pq.write_table(table.append_column("match_id", pa.array(matches, pa.string())), paths[0])
    rows = table.select(["image_id", "caption"]).to_pylist()
    found = {each.id: each for each in load_samples(str(copy), "test").samples}
    first, second, third = (found[row["image_id"]] for row in rows[:3])
    assert first.captions == (rows[0]["caption"], "seen anew")
    assert second.captions == (rows[1]["caption"],)
    assert [each.match for each in (first, second, third)] == ["span", "span", third.id]


def test_a_person_retrieval_sets_picture_is_once_in_the_gallery_and_once_a_caption_in_training(tmp_path):
    rows = [
        {
            "split": split,
            "captions": [f"{split} {n} one", f"{split} {n} two"],
            "img_path": f"{n}.jpg",
            "id": 40 + n // 2,
        }
        for split, numbers in (("train", (0, 1, 2)), ("test", (4, 5)))
        for n in numbers
    ]
    (tmp_path / "imgs").mkdir()
    for n in range(6):
        (tmp_path / "imgs" / f"{n}.jpg").write_bytes(b"x")
    (tmp_path / "data_captions.json").write_text(json.dumps(rows))
    test = load_samples(f"tipr:rstpreid:{tmp_path}", "test")
    assert [(each.id, len(each.captions)) for each in test.samples] == [("4.jpg", 2), ("5.jpg", 2)]
    assert len({each.match for each in test.samples}) == 1
    train = load_samples(f"tipr:rstpreid:{tmp_path}", "train")
    assert len({each.id for each in train.samples}) == len(train) == 6
    assert {len(each.captions) for each in train.samples} == {1}
    assert train.picture(train.samples[0].image, "image") == b"x"


def test_distractors_are_searched_among_but_belong_to_nobody(out):
    data, others = load_samples(str(out), "test"), load_samples(str(out), "train")
    found = with_distractors(data, others)
    assert found.samples[: len(data)] == data.samples
    crowd = found.samples[len(data) :]
    assert not {each.match for each in crowd} & {each.match for each in data.samples}
    # Unknown persons would take the identity protocol away.
    assert not {each.person for each in crowd} & {None, *(each.person for each in data.samples)}
    assert {each.captions for each in crowd} == {()}
    for each, own in ((crowd[0], others.samples[0]), (crowd[-1], others.samples[-1])):
        assert found.picture(each.image, "image") == others.picture(own.image, "image")
        assert found.picture(each.pose, "pose") == others.picture(own.pose, "pose")
    assert found.picture(data.samples[0].image, "image") == data.picture(data.samples[0].image, "image")
