"""mmpose's RTMPose itself, with random weights, in its own environment: `sh docker/check-mmpose.sh` makes it and runs
these tests, which are left out where it has not been made.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from pipeline.backends import mmpose_child
from pipeline.backends.mmpose_pose import PYTHON, MMPose
from pipeline.backends.protocols import BackendContext
from pipeline.core.errors import UserError
from pipeline.core.pose import draw_pose_map

ROOT = Path(__file__).parents[2]
INTERPRETER = Path(os.environ.get("MMPOSE_PYTHON", ROOT / PYTHON))
CONFIG = "rtmpose-s_8xb256-420e_coco-256x192"
ASKED_FOR = os.environ.get("CHECK_MMPOSE") == "1"

pytestmark = pytest.mark.skipif(not ASKED_FOR, reason="in an environment of its own: make check-mmpose runs it")

# Runs in mmpose's environment: writes a .pth as mmpose publishes them, with its log; one that would run code; and
# what mmpose.apis answers about the images itself.
PREPARE = """
import os, sys
sys.path.insert(0, sys.argv[1])
import mmpose_child
import numpy as np
import torch
mmpose_child.import_mmpose()
from mmengine.logging import HistoryBuffer
from mmpose.apis import inference_topdown
from safetensors.torch import load_file

folder, config = sys.argv[2], sys.argv[3]
weights = load_file(folder + "/weights.safetensors")
log = HistoryBuffer(np.arange(5.0), np.ones(5))
log.update(0.5)
meta = {"epoch": 420, "seed": np.int64(3), "dataset_meta": {"classes": ("person",)}}
torch.save({"meta": meta, "message_hub": {"loss": log}, "state_dict": weights}, folder + "/published.pth")
class Hostile:
    def __reduce__(self):
        return os.system, ("touch " + folder + "/was-run",)
torch.save({"meta": Hostile(), "state_dict": weights}, folder + "/hostile.pth")

model = mmpose_child.build_model(config, "cpu")
model.load_state_dict(weights)
images = np.load(folder + "/images.npy")
boxes = np.load(folder + "/boxes.npy")
answers = []
for image in images:
    for result in inference_topdown(model, np.ascontiguousarray(image[..., ::-1]), boxes):
        seen = result.pred_instances
        answers.append(np.concatenate([seen.keypoints[0], seen.keypoint_scores[0][:, None]], axis=1))
np.save(folder + "/answers.npy", np.array(answers, np.float32))
"""


def in_environment(*words: str) -> None:
    done = subprocess.run([str(INTERPRETER), "-I", *words], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mmpose")
    rng = np.random.default_rng(0)
    np.save(path / "images.npy", rng.integers(0, 256, (3, 200, 150, 3), dtype=np.uint8))
    np.save(path / "boxes.npy", np.array([[0, 0, 150, 200], [30, 40, 100, 180]], np.float32))
    child = str(Path(mmpose_child.__file__))
    in_environment(child, "random", CONFIG, str(path / "weights.safetensors"))
    in_environment("-c", PREPARE, str(Path(child).parent), str(path), CONFIG)
    return path


def engine(folder: Path, weights: str = "weights.safetensors", **settings) -> MMPose:
    known = {"model": CONFIG, "checkpoint": str(folder / weights), "python": str(INTERPRETER), "device": "cpu"}
    return MMPose(BackendContext({**known, "boxes": "image", **settings}, Path(), Path()))


def test_rtmpose_answers_through_the_engine_what_it_answers_to_mmposes_own_call(folder):
    from pipeline.backends.person_boxes import PersonBox

    images, boxes = np.load(folder / "images.npy"), np.load(folder / "boxes.npy")

    class Detector:
        def detect(self, some):
            return [[PersonBox(tuple(map(float, box)), 0.9 - 0.1 * n) for n, box in enumerate(boxes)] for _ in some]

    made = engine(folder)
    made._detector = Detector()
    found = made.estimate(list(images))
    made.close()
    joints = np.array([person.keypoints for people in found for person in people])
    wanted = np.load(folder / "answers.npy").copy()
    wanted[..., 2] = wanted[..., 2].clip(0, 1)
    assert joints.shape == (6, 17, 3)
    assert np.allclose(joints, wanted, atol=1e-3)
    assert not np.allclose(joints[0], joints[2])
    assert draw_pose_map([each.keypoints for each in found[0]], 150, 200, min_score=0).any()


def test_a_published_checkpoint_gives_the_same_joints_and_a_hostile_one_is_refused_unread(folder):
    images = list(np.load(folder / "images.npy")[:1])
    answers = []
    for weights in ("weights.safetensors", "published.pth"):
        made = engine(folder, weights)
        answers.append(made.estimate(images)[0][0])
        made.close()
    assert np.array_equal(answers[0].keypoints, answers[1].keypoints)
    assert answers[0].score == pytest.approx(float(answers[0].keypoints[:, 2].mean()))
    with pytest.raises(UserError, match="holds more than tensors and numbers"):
        engine(folder, "hostile.pth").estimate(images)
    assert not (folder / "was-run").exists()
    in_environment(
        str(mmpose_child.__file__), "convert", str(folder / "published.pth"), str(folder / "new.safetensors")
    )
    assert (folder / "new.safetensors").stat().st_size == (folder / "weights.safetensors").stat().st_size


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("no-such-config", "mmpose has 0 body configurations called 'no-such-config'"),
        ("../../../etc/passwd", "mmpose has 0 body configurations"),
        ("rtmpose-m_8xb64-210e_mpii-256x256", "gives 16 joints that are not COCO's 17"),
    ],
)
def test_configurations_from_elsewhere_and_of_other_joints_are_refused(folder, model, said):
    with pytest.raises(UserError, match=said):
        engine(folder, model=model).estimate(list(np.load(folder / "images.npy")[:1]))
