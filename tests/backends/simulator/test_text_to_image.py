import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pybullet")
pytest.importorskip("cv2")

from pipeline.backends.protocols import BackendContext, ImageRequest
from pipeline.backends.simulator.failures import FAILURES
from pipeline.backends.simulator.motions import ACTIONS
from pipeline.backends.simulator.person import CLOTH_COLOURS
from pipeline.backends.simulator.scenes import PLACES
from pipeline.backends.simulator.text_to_image import BAD_KINDS, SimulatorTextToImage, draw, understand


def request(number: int, prompt: str = "a man is running", kind: str = "goal", identity: str = "v/0") -> ImageRequest:
    return ImageRequest(f"r-{number}", prompt, kind, identity, seed=1000 + number)


def digest(image: np.ndarray) -> str:
    return hashlib.sha256(image.tobytes()).hexdigest()


def maker(folder: Path, **settings: object) -> SimulatorTextToImage:
    return SimulatorTextToImage(BackendContext(settings, folder, folder / "truth"))


MIXED = [
    request(1, "A man climbs a ladder", "goal", "a/0"),
    request(2, "the ladder slips and he falls", "wentwrong", "a/0"),
    request(3, "she skateboards and runs into a pole", "full", "b/1"),
    request(4, "he falls in the pool", "wentwrong", "c/2"),
]


def test_an_image_is_the_same_whatever_was_drawn_before_it():
    forwards = [digest(draw(item, 96)[0]) for item in MIXED]
    backwards = [digest(draw(item, 96)[0]) for item in reversed(MIXED)]
    assert forwards == backwards[::-1]
    assert len(set(forwards)) == len(MIXED)


def test_an_image_is_the_same_in_another_process():
    code = (
        "import hashlib\n"
        "from pipeline.backends.protocols import ImageRequest\n"
        "from pipeline.backends.simulator.text_to_image import draw\n"
        f"item = ImageRequest{(MIXED[2].id, MIXED[2].prompt, MIXED[2].kind, MIXED[2].identity, MIXED[2].seed)!r}\n"
        "print(hashlib.sha256(draw(item, 96)[0].tobytes()).hexdigest())\n"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == digest(draw(MIXED[2], 96)[0])


def test_only_the_image_is_on_standard_output_free_of_the_engines_chatter():
    code = "from pipeline.backends.simulator.failures import World\nWorld()\nprint('x')\n"
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout == "x\n"


def test_images_come_in_order_at_the_asked_size_with_one_truth_row_each(tmp_path):
    engine = maker(tmp_path, size=80)
    images = engine.generate(MIXED)
    assert [image.shape for image in images] == [(80, 80, 3)] * 4
    assert all(image.dtype == np.uint8 for image in images)
    (file,) = (tmp_path / "truth").iterdir()
    assert file.name == "r-1.jsonl"
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    assert [row["id"] for row in rows] == ["r-1", "r-2", "r-3", "r-4"]
    assert all(len(row["joints"]) == 17 for row in rows)


def test_a_truth_file_stays_in_its_folder_whatever_the_id(tmp_path):
    odd = ImageRequest("../../etc/passwd", "a man runs", "goal", "x", 1)
    maker(tmp_path, size=64).generate([odd])
    assert [path.parent for path in tmp_path.rglob("*.jsonl")] == [tmp_path / "truth"]


def test_goal_wentwrong_and_full_of_one_identity_show_the_same_person_at_the_same_place():
    rows = [
        draw(request(n, "a man walks", kind, "v/7"), 64, 0)[1] for n, kind in enumerate(("goal", "wentwrong", "full"))
    ]
    assert rows[0]["clothes"] == rows[1]["clothes"] == rows[2]["clothes"]
    assert rows[0]["scene"] == rows[1]["scene"] == rows[2]["scene"]
    assert rows[0]["failure"] is None
    assert rows[1]["failure"] == rows[2]["failure"] is not None


def test_a_goal_is_mostly_upright_and_a_failure_mostly_not():
    goals = [draw(request(n, "a man walks", "goal", f"v/{n}"), 64, 0)[1]["posture"] for n in range(6)]
    fails = [draw(request(n, "a man slips", "wentwrong", f"v/{n}"), 64, 0)[1]["posture"] for n in range(12)]
    assert goals == ["upright"] * 6
    assert sum(posture != "upright" for posture in fails) >= 10


def test_the_whole_person_of_a_good_image_is_inside_it():
    for number, action in enumerate(ACTIONS):
        kind = ("goal", "wentwrong", "full")[number % 3]
        row = draw(request(number, action, kind, f"w/{number}"), 96, 0)[1]
        joints = np.array(row["joints"])
        assert joints[:, :2].min() >= 0
        assert joints[:, :2].max() <= 96
        assert joints[:, 2].sum() >= 6


def test_about_the_asked_share_is_bad_and_of_every_kind():
    rows = [draw(request(number), 64, 0.4)[1] for number in range(60)]
    bad = [row["bad"] for row in rows if row["bad"]]
    assert 0.25 <= len(bad) / len(rows) <= 0.55
    assert set(bad) == set(BAD_KINDS)
    assert all(row["bad"] is None for row in (draw(request(number), 64, 0)[1] for number in range(6)))


def test_a_bad_image_is_bad_in_its_own_way():
    by_kind: dict[str, dict] = {}
    number = 0
    while len(by_kind) < 3:
        row = draw(request(number), 96, 1.0)[1]
        by_kind.setdefault(row["bad"], row)
        number += 1
    assert sum(joint[2] for joint in by_kind["no_person"]["joints"]) == 0
    joints = np.array(by_kind["cut_off"]["joints"])
    outside = ((joints[:, :2] < 0) | (joints[:, :2] >= 96)).any(1)
    assert 6 <= outside.sum() <= 15


@pytest.mark.parametrize(
    ("prompt", "action", "failure", "scene"),
    [
        ("A man is riding a skateboard in a parking lot", "skateboarding", None, "parking lot"),
        ("a girl trips over something while running at the beach", "running", "trip", "beach"),
        ("Guy climbs the ladder and gets hit by a ball", "climbing a ladder", "ball", None),
        ("she is carrying a box in the kitchen and slips", "carrying a box", "slip", "kitchen"),
    ],
)
def test_a_captions_words_choose_action_failure_and_scene(prompt, action, failure, scene):
    meaning = understand(prompt, "identity")
    assert meaning.action == action
    assert failure is None or meaning.failure == failure
    assert scene is None or meaning.scene == scene


def test_who_the_caption_names_is_drawn():
    assert draw(request(1, "a woman is dancing"), 64, 0)[1]["clothes"]["gender"] == "female"
    assert draw(request(1, "the little boy runs"), 64, 0)[1]["clothes"]["age"] == "child"


def test_an_unknown_caption_still_draws_something():
    meaning = understand("zzz", "k")
    assert meaning.action in ACTIONS
    assert meaning.failure in ACTIONS[meaning.action].falls
    assert meaning.scene in PLACES


def test_there_is_enough_to_see():
    assert len(ACTIONS) >= 20
    assert len(FAILURES) >= 12
    assert len(PLACES) >= 10
    assert len(CLOTH_COLOURS) == 10
    assert {fall for action in ACTIONS.values() for fall in action.falls} == set(FAILURES)


@pytest.mark.parametrize("settings", [{"bad_share": 1.5}, {"size": 8}, {"colour": "red"}])
def test_a_setting_that_makes_no_sense_is_refused(tmp_path, settings):
    with pytest.raises(ValueError, match="simulator"):
        maker(tmp_path, **settings)


def test_place_and_person_are_the_videos_and_action_and_failure_the_prompts() -> None:
    about = "a woman rides her skateboard on the beach. she slips off"
    goal = understand("a woman rides her skateboard on the beach", "k", about)
    wrong = understand("she slips off", "k", about)
    assert (
        (goal.scene, goal.who, goal.action)
        == (wrong.scene, wrong.who, wrong.action)
        == ("beach", "woman", "skateboarding")
    )
    assert understand("he does a cartwheel", "k", about).action == "doing a cartwheel"
