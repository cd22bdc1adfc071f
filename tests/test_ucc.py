import contextlib
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from pipeline import stages, ucc
from pipeline.backends.protocols import FactorTexts, Labels, Reply
from pipeline.cli import DONE, SOME_FAILED, WRONG
from pipeline.core.dataset_folder import is_ours, may_show_real_people, read_split, split_files
from pipeline.core.images import read_image
from pipeline.formats.ucf_crime import ANNOTATIONS
from pipeline.ucc import REASONS, main
from tests.builds import digests
from tests.formats.test_video import TICKS, frame_number, make_clip
from tests.stage_helpers import FakeEngine
from tests.test_keypoints import person

ROOT = Path(__file__).parents[1]
FRAME = TICKS // 30

LINES = """\
Abuse 001_x264.mp4  Abuse  61  100  -1  -1  \r
Fighting002_x264.mp4  Fighting  1  40  81  9000  120
Normal_003_x264.mp4  Normal  -1  -1  -1  -1
Broken_x264.mp4  Arson  5  9  -1  -1
Gone_x264.mp4  Robbery  5  9  -1  -1
Late_x264.mp4  Robbery  500  900  -1  -1
torn
Abuse 001_x264.mp4  Abuse  61  100  -1  -1
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """Videos whose frames carry their number (from 0): of 120, 120, 90 and 20 frames, and one that is cut off."""
    folder = tmp_path_factory.mktemp("ucf") / "UCF Crime"
    whole = [number * FRAME for number in range(120)]
    for name, frames in (
        ("Abuse/Abuse 001_x264.mp4", 120),
        ("part 2/deep/Fighting002_x264.mp4", 120),
        ("Testing_Normal_Videos_Anomaly/Normal_003_x264.mp4", 90),
        ("Robbery/Late_x264.mp4", 20),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        make_clip(folder / name, whole[:frames])
    (folder / "Arson").mkdir()
    (folder / "Arson" / "Broken_x264.mp4").write_bytes((folder / "Abuse" / "Abuse 001_x264.mp4").read_bytes()[:700])
    (folder / ANNOTATIONS).write_bytes(LINES.encode())
    return folder


def seen(images: list[np.ndarray]) -> list[list]:
    """A person in each frame; none in those whose number ends in 9."""
    return [[] if frame_number(image) % 10 == 9 else [person()] for image in images]


def captions(requests: list) -> list[Reply]:
    """A caption with the number of the frame; the captioner breaks down over frame 60."""
    return [
        Reply(None, "out of memory")
        if frame_number(request.image) == 60
        else Reply(f"A person in a red shirt is walking along a street past the number {frame_number(request.image)}.")
        for request in requests
    ]


def engines() -> dict[str, FakeEngine]:
    return {
        "keypoints": FakeEngine("estimate", seen),
        "recaption": FakeEngine("caption", captions),
        "attributes": FakeEngine("label", lambda asked: [Labels(f"{each.behavior} thing", "street") for each in asked]),
        "decompose": FakeEngine(
            "decompose", lambda texts, prompt: [FactorTexts("a red shirt", "walking", "a street") for _ in texts]
        ),
    }


def run(home: Path, folder: Path, *options: str) -> tuple[int, dict[str, FakeEngine]]:
    """Runs the command in this process with engines that answer at once: exit code and engines."""
    made = engines()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "engine_of", lambda section, _profile, _build: made[section])
        code = main([str(folder), "--out", str(home / "out"), "--set", f"work={home / 'work'}", *options])
    return code, made


@dataclass(frozen=True)
class Built:
    """A finished run: its folder, exit code, output and engines."""

    home: Path
    code: int
    told: str
    engines: dict[str, FakeEngine]

    @property
    def out(self) -> Path:
        return self.home / "out"


@pytest.fixture(scope="module")
def built(root, tmp_path_factory) -> Built:
    home, said = tmp_path_factory.mktemp("built"), io.StringIO()
    with contextlib.redirect_stdout(said):
        code, made = run(home, root)
    return Built(home, code, said.getvalue(), made)


@pytest.fixture
def again(built, tmp_path) -> Path:
    """A copy of that run, to go on from."""
    shutil.copytree(built.home, tmp_path / "home")
    return tmp_path / "home"


def rows(out: Path) -> list[dict]:
    return list(read_split(split_files(out)["ucc"]))


def rejected(out: Path) -> list[tuple[int, str]]:
    files = sorted((out / "rejected").glob("*.parquet"))
    return [(row["line"], row["reason"]) for row in read_split(files)]


def key(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:10]


def test_key_frames_are_those_of_the_rule_in_the_order_of_the_annotations(built):
    assert built.code == SOME_FAILED
    abuse, fight, normal = "Abuse/Abuse 001_x264.mp4", "Fighting/Fighting002_x264.mp4", "Normal/Normal_003_x264.mp4"
    found = [
        (row["video"], row["match_id"].split("_")[1], int(row["image_id"][-6:]), row["behavior"])
        for row in rows(built.out)
    ]
    assert found == [
        (abuse, "n1", 16, "normal"),  # 1 to 60
        (abuse, "n1", 31, "normal"),
        (abuse, "n1", 46, "normal"),
        (abuse, "a1", 71, "anomaly"),  # 61 to 100
        (abuse, "a1", 81, "anomaly"),
        (abuse, "a1", 91, "anomaly"),
        (fight, "a1", 11, "anomaly"),  # 1 to 40
        (fight, "a1", 21, "anomaly"),
        (fight, "a1", 31, "anomaly"),
        (fight, "n1", 51, "normal"),  # 41 to 80; the captioner broke down over frame 61
        (fight, "n1", 71, "normal"),
        (fight, "a2", 91, "anomaly"),  # 81 to the video's end at 120
        (fight, "a2", 101, "anomaly"),
        (fight, "a2", 111, "anomaly"),
        (normal, "n1", 23, "normal"),  # 1 to 90
        (normal, "n1", 46, "normal"),
        (normal, "n1", 68, "normal"),
    ]
    for row in rows(built.out):
        assert frame_number(read_image(row["image"]["bytes"], "")) == int(row["image_id"][-6:]) - 1


def test_every_line_span_and_frame_is_kept_or_told(built):
    assert sorted(rejected(built.out)) == [
        (1, "span_too_short"),  # frames 101 to 120
        (2, "captioner_error"),
        (4, "unreadable_video"),
        (5, "missing_video"),
        (6, "no_key_frame"),
        (6, "span_beyond_end"),
        (6, "span_too_short"),
        (7, "torn_line"),
        (8, "duplicate_video"),
    ]
    assert "| all | 8 | 3 | 3 | 2 | 4 | 5 | 9 | 8 |" in built.told
    assert "| Fighting | frame | captioner_error | 1 |" in built.told
    tables = built.told[: built.told.index(str(built.out))].strip()
    assert tables in (built.out / "README.md").read_text("utf-8")


def test_a_row_has_what_the_engines_said_and_shares_its_span(built):
    found, made = rows(built.out), built.engines
    first = found[0]
    assert first["caption"].endswith("past the number 15.")
    assert (first["action"], first["anomaly"], first["scene"]) == ("normal thing", None, "street")
    assert (found[3]["action"], found[3]["anomaly"]) == (None, "anomaly thing")
    assert first["factors"] == {"appearance": "a red shirt", "action": "walking", "background": "a street"}
    assert first["source_id"] == key("Abuse 001_x264.mp4")
    assert len(first["keypoints"]) == 1
    assert read_image(first["pose"]["bytes"], "").shape == (96, 160, 3)
    assert len({row["match_id"] for row in found}) == 6
    # The captioner sees the image alone, and the labeller is asked with what it said.
    assert all(request.source_caption is None for (asked,) in made["recaption"].asked for request in asked)
    labelled = made["attributes"].asked[0][0][0]
    assert labelled.caption in labelled.prompts["action"]
    assert is_ours(built.out)
    assert may_show_real_people(built.out)(first)


def test_frames_without_a_person_fall_to_the_filter(tmp_path, root):
    folder = tmp_path / "one"
    folder.mkdir()
    (folder / "a.mp4").write_bytes((root / "Abuse" / "Abuse 001_x264.mp4").read_bytes())
    (folder / ANNOTATIONS).write_text("a.mp4 Abuse 20 78 -1 -1")  # frame 49; then 79 to 120: frame 100 shows number 99
    code, _ = run(tmp_path, folder, "--frames-per-span", "1")
    assert code == DONE
    assert [int(row["image_id"][-6:]) for row in rows(tmp_path / "out")] == [49]
    assert rejected(tmp_path / "out") == [(1, "span_too_short"), (1, "no_person")]


def test_a_second_run_asks_only_for_what_failed_and_gives_the_same_bytes(again, built, root):
    before = digests(again / "out")
    _, made = run(again, root)
    assert digests(again / "out") == before
    # Only the video over one of whose frames the captioner broke down.
    assert len(made["keypoints"].asked) == 1
    part = next((again / "work").rglob(f"{key('Normal_003_x264.mp4')}-*.parquet"))
    part.write_bytes(part.read_bytes()[:-9])
    _, made = run(again, root)
    assert digests(again / "out") == before
    assert len(made["keypoints"].asked) == 2


def test_another_rule_filter_or_file_reads_anew(again, root):
    _, made = run(again, root, "--frames-per-span", "1")
    assert len(made["keypoints"].asked) == 3
    assert len(rows(again / "out")) == 5
    _, made = run(again, root, "--set", "keypoints.people.min_joints=7")
    assert len(made["keypoints"].asked) == 3
    touched = root / "Testing_Normal_Videos_Anomaly" / "Normal_003_x264.mp4"
    known = touched.stat()
    os.utime(touched, (1, 1))
    _, made = run(again, root)
    os.utime(touched, ns=(known.st_atime_ns, known.st_mtime_ns))
    assert len(made["keypoints"].asked) == 2


def test_a_dry_run_finds_the_videos_and_writes_nothing(root, tmp_path, capsys):
    code, made = run(tmp_path, root, "--dry-run")
    assert code == DONE
    assert "5 videos would be read" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
    assert not made["keypoints"].asked


def test_bad_input_is_one_line_and_exit_code_2(root, tmp_path, capsys):
    empty = tmp_path / "empty"
    empty.mkdir()
    for arguments, says in (
        ([str(tmp_path / "gone")], "is not there"),
        ([str(empty)], "--annotations"),
        ([str(root), "--frames-per-span", "0"], "1 to 100"),
        ([str(root), "--deadline", "-1"], "more than 0"),
        ([str(root), "--out", str(root / "out")], "lie in each other"),
        ([str(root), "--profile", "none"], "no profile"),
    ):
        assert main(arguments) == WRONG, arguments
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert says in error


def test_the_help_and_the_card_hold_the_rule(built, capsys):
    rule, card = " ".join(ucc.rule().split()), (built.out / "README.md").read_text("utf-8")
    assert rule in " ".join(card.split())
    assert "not that set" in card
    with pytest.raises(SystemExit):
        main(["--help"])
    assert rule in " ".join(capsys.readouterr().out.split())


def test_every_reason_has_words():
    assert all(REASONS.values())
    assert set(ucc.FAILED) <= set(REASONS)


def test_what_the_command_line_did_before_it_was_killed_is_not_done_again(root, tmp_path):
    """The embedded pose engine on frames that show nobody: all is judged, nothing kept, and nothing lost."""
    folder = tmp_path / "ucf"
    folder.mkdir()
    names = [f"{number}.mp4" for number in range(9)]
    for name in names:
        (folder / name).write_bytes((root / "Robbery" / "Late_x264.mp4").read_bytes())
    (folder / ANNOTATIONS).write_text("\n".join(f"{name} Abuse 10 20 -1 -1" for name in names))
    command = [sys.executable, "-m", "pipeline.ucc", str(folder), "--out", str(tmp_path / "out")]
    command += ["--set", f"work={tmp_path / 'work'}"]
    running = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list((tmp_path / "work").rglob("*.json")) and running.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    running.send_signal(signal.SIGKILL)
    running.wait()
    done = [json.loads(path.read_text("utf-8")) for path in (tmp_path / "work").rglob("*.json")]
    assert 1 <= len(done) < len(names)
    assert [{each["reason"] for each in one["dropped"]} for one in done] == [{"span_too_short", "no_person"}] * len(
        done
    )
    code, made = run(tmp_path, folder)
    assert code == DONE
    assert len(made["keypoints"].asked) == len(names) - len(done)
    # Those that were judged before stay without an image; the others show somebody to the engine of this test.
    assert len({row["video"] for row in rows(tmp_path / "out")}) == len(names) - len(done)
