"""The crossing into mmpose's environment, over a child that runs the real server with an engine of its own.

What mmpose itself answers is tested by test_mmpose_real.py, where its environment is there.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from pipeline.backends.mmpose_pose import ChildError, MMPose
from pipeline.backends.protocols import BackendContext
from pipeline.core.errors import UserError

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """An interpreter that runs the stand-in, whatever script it is given."""
    path = tmp_path / "python"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{HERE / "fake_mmpose_child.py"}" "$@"\n')
    path.chmod(0o755)
    return path


@pytest.fixture
def made(python: Path, tmp_path: Path):
    engines = []

    def make(**settings) -> MMPose:
        (tmp_path / "weights.safetensors").touch()
        known = {"model": "rtmpose", "checkpoint": str(tmp_path / "weights.safetensors"), "python": str(python)}
        engine = MMPose(BackendContext({**known, "boxes": "image", **settings}, Path(), Path()))
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.close()


def image(order: int, height: int = 40, width: int = 30) -> np.ndarray:
    return np.full((height, width, 3), order, np.uint8)


def test_joints_come_back_image_by_image_through_one_process(made):
    engine = made(batch=2)
    found = engine.estimate([image(30), image(70, 50, 20), image(10, 8, 90), image(90)])
    assert [len(people) for people in found] == [1, 1, 0, 1]  # under 16 pixels nobody can be made out
    assert found[1][0].box == (0.0, 0.0, 20.0, 50.0)
    assert found[1][0].keypoints.shape == (17, 3)
    assert found[1][0].keypoints.dtype == np.float32
    assert found[1][0].score == pytest.approx(0.7)
    pid = engine._child._process.pid
    assert engine.estimate([image(50)])[0][0].score == pytest.approx(0.5)
    assert engine._child._process.pid == pid
    assert engine.estimate([]) == []


def test_scores_above_one_are_cut_and_turned_pictures_arrive_as_they_look(made):
    picture = np.zeros((40, 30, 3), np.uint8)
    picture[0, 0] = 120
    turned = np.ascontiguousarray(picture[::-1, ::-1])[::-1, ::-1]
    assert made().estimate([turned])[0][0].score == 1.0


def test_boxes_of_the_detector_are_what_the_child_is_asked_about(made, monkeypatch):
    from pipeline.backends.person_boxes import PersonBox

    class Detector:
        def detect(self, images):
            return [[PersonBox((3, 4, 20, 30), 0.9), PersonBox((1, 2, 9, 9), 0.4)], [], [PersonBox((5, 6, 9, 9), 0.8)]]

    engine = made()
    engine._detector = Detector()
    found = engine.estimate([image(30), image(40), image(50)])
    assert [[person.score for person in people] for people in found] == [[0.9, 0.4], [], [0.8]]
    assert found[0][1].keypoints[5].tolist() == pytest.approx([1, 2, 0.3])
    assert found[2][0].keypoints[0].tolist() == pytest.approx([5, 6, 0.5])


def test_a_crash_raises_for_a_batch_and_the_next_batch_is_answered_by_a_new_process(made):
    engine = made()
    with pytest.raises(ChildError, match=r"ended \(code 7\).*torn to pieces"):
        engine.estimate([image(30), image(1)])
    assert engine.estimate([image(30)])[0][0].score == pytest.approx(0.3)
    with pytest.raises(ChildError, match="ended"):
        engine.estimate([image(1)])


def test_a_single_image_is_tried_once_more_after_a_crash(made):
    assert made().estimate([image(5)])[0][0].score == pytest.approx(0.05)


def test_a_child_that_hangs_is_ended_after_the_timeout(made):
    engine = made(timeout_s=3)
    engine.estimate([image(30)])
    process = engine._child._process
    start = time.monotonic()
    with pytest.raises(ChildError, match="no answer within 3 s"):
        engine.estimate([image(2), image(2)])
    assert time.monotonic() - start < 10
    assert process.returncode == -signal.SIGKILL


def test_a_child_that_does_not_even_read_is_ended_after_the_timeout(made):
    engine = made(model="deaf", timeout_s=4)
    start = time.monotonic()
    with pytest.raises(ChildError, match="no answer within 4 s"):
        engine.estimate([image(30, 1500, 1200)] * 2)
    assert time.monotonic() - start < 30


def test_an_error_over_one_image_leaves_the_process_as_it_is(made):
    engine = made()
    with pytest.raises(ChildError, match="ValueError: nothing to see"):
        engine.estimate([image(3)])
    pid = engine._child._process.pid
    engine.estimate([image(30)])
    assert engine._child._process.pid == pid


def test_bytes_that_are_no_message_are_an_error_and_not_an_answer(made):
    with pytest.raises(ChildError, match="no message"):
        made().estimate([image(4), image(4)])


def test_an_image_larger_than_a_pipe_goes_through(made):
    assert made().estimate([image(60, 1500, 1200)])[0][0].score == pytest.approx(0.6)


def test_the_child_ends_with_the_process_that_started_it(python, tmp_path):
    (tmp_path / "weights.safetensors").touch()
    code = (
        "import sys, time; from pathlib import Path; import numpy as np\n"
        "from pipeline.backends.mmpose_pose import MMPose\n"
        "from pipeline.backends.protocols import BackendContext\n"
        f"settings = dict(model='m', checkpoint={str(tmp_path / 'weights.safetensors')!r}, python={str(python)!r}, "
        "boxes='image')\n"
        "engine = MMPose(BackendContext(settings, Path(), Path()))\n"
        "engine.estimate([np.full((20, 20, 3), 30, np.uint8)])\n"
        "print(engine._child._process.pid, flush=True)\n"
        "engine.estimate([np.full((20, 20, 3), 2, np.uint8)])\n"  # in the middle of a request that takes a minute
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        os.kill(pid, 0)
        time.sleep(0.5)
        parent.kill()
        parent.wait()
    deadline = time.monotonic() + 10
    while _lives(pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _lives(pid)


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"python": "/nowhere/python"},
            "keypoints.settings.python: /nowhere/python is not there: run sh docker/mmpose",
        ),
        ({"checkpoint": "/nowhere/a.pth"}, "keypoints.settings.checkpoint: /nowhere/a.pth is not there"),
        ({"model": "broken"}, "mmpose does not start: .*no such configuration"),
    ],
)
def test_what_keeps_the_child_from_starting_is_said_to_a_person(made, settings, said):
    with pytest.raises(UserError, match=said):
        made(**settings).estimate([image(30)])


def test_another_mmpose_is_refused(made, monkeypatch):
    monkeypatch.setenv("FAKE_MMPOSE", "0.29.0")
    with pytest.raises(UserError, match=r"mmpose 1\.3\.2 is needed"):
        made().estimate([image(30)])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"boxes": "hands"}, "'hands' is none of detector, image"),
        ({"boxes": "detector"}, "detector: is missing"),
        ({"batch": 0}, "batch: 0 is not a whole number of at least 1"),
        ({"timeout_s": "long"}, "'long' is not a number"),
        ({"model": None}, "model: is missing"),
    ],
)
def test_settings_that_make_no_sense_are_errors_before_anything_starts(made, settings, said):
    with pytest.raises(UserError, match=said):
        made(**settings)
