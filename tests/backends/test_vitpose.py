"""ViTPose and its person detector over the real classes of transformers, built tiny."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pipeline.backends.person_boxes import PersonDetector
from pipeline.backends.protocols import BackendContext, Person
from pipeline.backends.tiny.pose import BOX, write_tiny_detector, write_tiny_vitpose
from pipeline.backends.vitpose import VitPose
from pipeline.core.errors import UserError
from pipeline.core.pose import StructureThresholds, structure_filter


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_detector(folder / "detector")
    write_tiny_vitpose(folder / "fitted")
    write_tiny_vitpose(folder / "random", seed=3, steps=0)
    write_tiny_vitpose(folder / "plus", seed=3, experts=3, steps=0)
    write_tiny_vitpose(folder / "hand", joints=21, steps=0)
    return folder


def engine(tiny: Path, name: str, **settings) -> VitPose:
    known = {"model": str(tiny / name), "detector": str(tiny / "detector"), "min_box_score": 0.05, **settings}
    return VitPose(BackendContext(known, Path(), Path()))


def image(brightness: int, height: int = 120, width: int = 80) -> np.ndarray:
    noise = np.random.default_rng(brightness).normal(brightness, 25, (height, width, 3))
    return noise.clip(0, 255).astype(np.uint8)


def flat(people: list[list[Person]]) -> np.ndarray:
    return np.array([person.keypoints for own in people for person in own])


def test_a_person_has_17_joints_in_pixels_within_the_box_and_the_detectors_score(tiny):
    (found,), (square,) = engine(tiny, "fitted").estimate([image(200), image(200, 100, 100)])
    for person, (height, width) in ((found, (120, 80)), (square, (100, 100))):
        across, down, wide, high = BOX
        wanted = np.array([across - wide / 2, down - high / 2, across + wide / 2, down + high / 2])
        assert np.allclose(person.box, wanted * (width, height, width, height), atol=0.5)
        assert person.keypoints.shape == (17, 3)
        assert person.keypoints.dtype == np.float32
        assert (person.keypoints[:, 2] > 0.5).all()
        middle = person.keypoints[:, :2].mean(axis=0) / (width, height)
        assert np.allclose(middle, (across, down - 0.08), atol=0.03)
        assert (person.keypoints[15:, 1] > 0.8 * height).all()
        assert 0 < person.score < 1
    assert structure_filter([found], 80, 120, StructureThresholds())[0] is None


def test_the_brighter_the_image_the_surer_the_tiny_detector_is_and_a_least_score_drops_the_dark(tiny):
    images = [image(brightness) for brightness in (0, 64, 128, 192, 255)]
    scores = [own[0].score for own in engine(tiny, "fitted").estimate(images)]
    assert scores == sorted(scores)
    assert scores[-1] - scores[0] > 0.3
    found = engine(tiny, "fitted", min_box_score=(scores[1] + scores[2]) / 2).estimate(images)
    assert [len(own) for own in found] == [0, 0, 1, 1, 1]


def test_neither_order_nor_batch_size_changes_the_joints(tiny):
    images = [image(220, 100 + 8 * number, 80) for number in range(5)]
    together = flat(engine(tiny, "random", batch=16).estimate(images))
    alone = flat(engine(tiny, "random", batch=1).estimate(images[::-1]))[::-1]
    assert np.allclose(together, alone, atol=0.05)
    assert np.abs(together[1] - together[0]).max() > 1  # the joints are those of their own image
    assert engine(tiny, "random").estimate([]) == []


def test_the_same_images_give_the_same_bits(tiny):
    images = [image(180), image(220)]
    assert np.array_equal(*(flat(engine(tiny, "random").estimate(images)) for _ in range(2)))


def test_of_vitpose_plus_the_expert_that_is_named_answers(tiny):
    coco, other = (flat(engine(tiny, "plus", dataset_index=expert).estimate([image(220)])) for expert in (0, 1))
    assert coco.shape == (1, 17, 3)
    assert not np.allclose(coco, other)
    assert np.array_equal(coco, flat(engine(tiny, "plus").estimate([image(220)])))
    with pytest.raises(UserError, match=r"dataset_index: .* has 3 experts"):
        engine(tiny, "plus", dataset_index=3).estimate([image(220)])


def test_half_floats_move_joints_by_little(tiny):
    exact, half = (flat(engine(tiny, "fitted", dtype=kind).estimate([image(220)])) for kind in ("float32", "bfloat16"))
    assert np.abs(exact[..., :2] - half[..., :2]).max() < 3


def test_in_an_image_without_room_for_anybody_there_is_nobody(tiny):
    assert engine(tiny, "fitted").estimate([image(220, 8, 200), image(220)])[0] == []


def test_the_surest_people_come_first_and_no_more_than_asked_for(tiny):
    import torch

    detector = PersonDetector({"detector": str(tiny / "detector"), "max_people": 2})
    detector._person = 0
    answer = {
        "scores": torch.tensor([0.4, 0.9, 0.6, 0.95]),
        "labels": torch.tensor([0, 0, 0, 1]),
        "boxes": torch.tensor([[0, 0, 9, 9], [-5, 2, 300, 9], [1, 1, 9, 9], [0, 0, 9, 9]]),
    }
    people = detector._people(answer, 50, 100)
    assert [round(person.score, 2) for person in people] == [0.9, 0.6]
    assert people[0].box == (0.0, 2.0, 100.0, 9.0)  # cut at the image's edge
    outside = {**answer, "boxes": torch.tensor([[-20, -20, -5, -5]] * 4)}
    assert detector._people(outside, 50, 100) == []


def test_a_network_with_other_joints_is_refused(tiny):
    with pytest.raises(UserError, match="gives 21 joints, not COCO's 17"):
        engine(tiny, "hand").estimate([image(220)])


def test_a_detector_that_knows_no_person_is_refused(tiny, tmp_path):
    import shutil

    shutil.copytree(tiny / "detector", tmp_path / "cats")
    config = json.loads((tmp_path / "cats" / "config.json").read_text())
    config |= {"id2label": {"0": "cat", "1": "dog"}, "label2id": {"cat": 0, "dog": 1}}
    (tmp_path / "cats" / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="knows 0 classes called person"):
        engine(tiny, "fitted", detector=str(tmp_path / "cats")).estimate([image(220)])


def test_pickled_weights_are_not_read(tiny, tmp_path):
    import shutil

    import torch
    from safetensors.torch import load_file

    shutil.copytree(tiny / "random", tmp_path / "pickled")
    weights = tmp_path / "pickled" / "model.safetensors"
    torch.save(load_file(weights), tmp_path / "pickled" / "pytorch_model.bin")
    weights.unlink()
    with pytest.raises(UserError, match=r"keypoints\.settings\.model: .*pickled' cannot be loaded"):
        engine(tmp_path, "pickled", detector=str(tiny / "detector")).estimate([image(220)])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model": None}, "model: is missing"),
        ({"detector": None}, "detector: is missing"),
        ({"dtype": "int8"}, "dtype: 'int8' is none of float32"),
        ({"min_box_score": 2}, "min_box_score: 2 is not a number from 0 to 1"),
        ({"batch": True}, "batch: True is not a whole number"),
    ],
)
def test_settings_that_make_no_sense_are_errors_before_anything_loads(tiny, settings, said):
    with pytest.raises(UserError, match=said):
        engine(tiny, "fitted", **settings)


def test_weights_that_are_nowhere_are_an_error_that_says_which(tiny):
    with pytest.raises(UserError, match=r"keypoints\.settings\.detector: 'no/such' cannot be loaded"):
        engine(tiny, "fitted", detector="no/such").estimate([image(220)])


def test_a_tiny_checkpoint_is_the_same_bytes_from_the_same_seed(tiny, tmp_path):
    write_tiny_vitpose(tmp_path, seed=3, steps=0)
    assert (tmp_path / "model.safetensors").read_bytes() == (tiny / "random" / "model.safetensors").read_bytes()
    write_tiny_detector(tmp_path / "a", seed=1, steps=2)
    write_tiny_detector(tmp_path / "b", seed=1, steps=2)
    write_tiny_detector(tmp_path / "c", seed=2, steps=2)
    a, b, c = ((tmp_path / name / "model.safetensors").read_bytes() for name in "abc")
    assert a == b
    assert a != c
