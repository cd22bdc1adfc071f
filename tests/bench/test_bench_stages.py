import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bench import stages
from bench.labelled import marked_words, plain_caption, read_labels
from pipeline.backends.protocols import FactorTexts, Person, Reply
from pipeline.core.errors import UserError
from pipeline.verify import load_terms


class Answering:
    """An engine whose method of that name answers by a function of one input."""

    name, revision = "fake", "1"

    def __init__(self, method: str, answer) -> None:
        setattr(self, method, lambda inputs, *_: [answer(each) for each in inputs])


def values(measured: stages.Measured) -> dict[str, float | None]:
    return {figure.name: figure.value for figure in measured.figures}


def test_a_reader_that_knows_the_labels_is_wholly_right_and_one_that_keeps_everything_is_not():
    rows = [*read_labels("subject_100"), *read_labels("subject_filter")]
    known = {row["caption"]: row["expect"] == "keep" for row in rows}
    assert set(values(stages.subjects(Answering("subjects_are_people", known.__getitem__))).values()) == {1.0}
    naive = stages.subjects(Answering("subjects_are_people", lambda _: True))
    untouched = [row for row in rows if row.get("half") == "untouched"]
    assert values(naive)["untouched"] == sum(known[row["caption"]] for row in untouched) / 50
    assert [figure.met for figure in naive.figures if figure.name == "untouched"] == [False]


def test_wrong_answers_of_the_untouched_half_are_counted_but_never_shown():
    captions = {row["caption"] for row in read_labels("subject_100") if row["half"] == "untouched"}
    captions |= {plain_caption(row["marked"]) for row in read_labels("factors_60") if row["half"] == "untouched"}
    never = Answering("subjects_are_people", lambda _: False)
    nothing = Answering("decompose", lambda _: FactorTexts(None, None, None))
    shown = "\n".join([*stages.subjects(never).wrong, *stages.factors(nothing).wrong])
    assert shown
    assert not [caption for caption in captions if caption in shown]


def test_a_decomposer_that_puts_everything_into_the_action_has_just_the_actions_right():
    found = values(stages.factors(Answering("decompose", lambda caption: FactorTexts(None, caption, None))))
    words = [marked_words(row["marked"]) for row in read_labels("factors_60") if row["half"] == "untouched"]
    action = sum(each["action"].total() for each in words)
    everything = sum(counter.total() for each in words for counter in each.values())
    assert found["untouched: in the right factor"] == pytest.approx(action / everything, abs=0.02)
    assert (found["untouched: appearance"], found["untouched: action"]) == (0.0, 1.0)
    assert found["untouched: in some factor"] == 1.0


JOINTS = np.column_stack([np.linspace(20, 60, 17), np.linspace(10, 110, 17), np.full(17, 0.9)]).astype(np.float32)


def real_folder(folder: Path) -> Path:
    people = folder / "real_people"
    people.mkdir(parents=True)
    Image.fromarray(np.full((120, 200, 3), 90, np.uint8)).save(people / "a.jpg")
    joints = JOINTS.copy()
    joints[:, 2] = 2
    rows = [
        {"image_id": 1, "num_keypoints": 17, "keypoints": joints.reshape(-1).tolist()},
        {"image_id": 1, "num_keypoints": 17, "keypoints": (joints + np.array([100, 0, 0])).reshape(-1).tolist()},
        {"image_id": 1, "num_keypoints": 3, "keypoints": (joints * 0).reshape(-1).tolist()},
    ]
    data = {"images": [{"id": 1, "file_name": "a.jpg"}], "annotations": rows}
    (people / "keypoints.json").write_text(json.dumps(data))
    return folder


def test_people_are_found_where_half_their_joints_are_and_hardly_annotated_ones_are_not_asked_for(tmp_path):
    off = JOINTS.copy()
    off[:4, 0] += 30
    found = stages.joints(Answering("estimate", lambda _: [Person(off, (20, 10, 60, 110), 0.9)]), real_folder(tmp_path))
    assert [(figure.value, figure.of) for figure in found.figures] == [(0.5, 2), (pytest.approx(13 / 17), 17)]
    assert len(found.wrong) == 1


def labelled(**changes):
    row = {"id": "R01", "person": "somebody", "file": "real_people/a.jpg", "time_s": None, "people_in_image": 1}
    row |= {"box": [18, 8, 62, 112], "posture": "fallen", "bottom": None}
    return row | {"top": {"garment": "shirt", "colours": ["red", "gray"]}} | changes


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("A person in a grey shirt is lying on the floor.", (1.0, 1.0, 1.0, None, 1.0)),
        ("A person in a blue shirt stands.", (1.0, 0.0, 0.0, None, 1.0)),
    ],
)
def test_a_labelled_person_is_judged_by_what_the_captioner_says(tmp_path, monkeypatch, caption, expected):
    asked = []
    captioner = Answering("caption", lambda request: asked.append(request) or Reply(caption))
    estimator = Answering("estimate", lambda _: [Person(JOINTS, (20, 10, 60, 110), 0.9)])
    monkeypatch.setattr(stages, "read_labels", lambda _: [labelled()])
    found = values(stages.real_people(estimator, captioner, load_terms(), real_folder(tmp_path)))
    assert tuple(found.values()) == expected
    (request,) = asked
    assert request.image.shape == (120, 66, 3)  # the box and a quarter more on every side that there is
    assert request.persons[0].keypoints[0, 0] == JOINTS[0, 0] - 7


def test_a_person_whom_nobody_found_is_not_judged_further(tmp_path, monkeypatch):
    monkeypatch.setattr(stages, "read_labels", lambda _: [labelled()])
    nobody = Answering("estimate", lambda _: [])
    found = stages.real_people(nobody, None, load_terms(), real_folder(tmp_path))
    assert tuple(values(found).values()) == (0.0, None, None, None, 0.0)
    assert len(found.wrong) == 2


def test_a_missing_picture_is_one_line_and_exit_code_2(tmp_path):
    with pytest.raises(UserError, match=r"real_people/a\.jpg is not there"):
        stages.read_picture(tmp_path, "real_people/a.jpg", None)
    done = subprocess.run(
        [sys.executable, "-m", "bench.stages", "--profile", "nothing"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
