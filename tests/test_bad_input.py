"""A build over an OOPS! folder with everything wrong that a download can have: it goes on, counts and says so."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.builds import ROOT, build_command, run_command

MINI = ROOT / "tests" / "cases" / "oops_mini"
SMALL = {
    "sources.splits": "[train]",
    "frames.splits": "[train, val]",
    "generate.images_per_caption": "1",
    "frames.clips_per_shard": "50",
    "frames.quality_rule": "false",
    "workers": "1",
}


@pytest.fixture(scope="module")
def wrong_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small OOPS! folder, with an unreadable video added to what is wrong with it already."""
    folder = tmp_path_factory.mktemp("wrong") / "oops"
    shutil.copytree(MINI, folder)
    (folder / "oops_video" / "train" / "Weekend Ladder Trouble - Home Clips (March 2016)3.mp4").write_bytes(b"no video")
    return folder


@pytest.fixture(scope="module")
def built(wrong_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, int]:
    folder = tmp_path_factory.mktemp("built")
    done = run_command(build_command(folder, {**SMALL, "oops.root": str(wrong_folder)}))
    return folder, done.stdout + done.stderr, done.returncode


def _reasons(folder: Path, stage: str) -> dict[str, int]:
    total: dict[str, int] = {}
    for path in (folder / "work" / "demo" / stage).glob("*/stage.json"):
        for reason, count in json.loads(path.read_text("utf-8"))["reasons"].items():
            total[reason] = total.get(reason, 0) + count
    return total


def test_the_run_goes_on_and_its_exit_code_says_that_records_failed(built: tuple[Path, str, int]) -> None:
    folder, said, code = built
    assert code == 1, said
    assert "failed" in said
    assert (folder / "out" / "README.md").exists()


def test_each_fault_of_the_clips_has_its_reason_in_the_table(built: tuple[Path, str, int]) -> None:
    folder, said, _ = built
    reasons = _reasons(folder, "frames")
    assert reasons["missing_video"] == 2
    assert reasons["unreadable_video"] == 2
    assert reasons["no_transition_label"] == 2
    assert reasons["no_failure_seen"] == 4
    assert reasons["nothing_before_transition"] == 2
    (manifest,) = (folder / "work" / "demo" / "frames").glob("*/stage.json")
    assert json.loads(manifest.read_text("utf-8"))["counts"]["failed"] == 4
    for reason in reasons:
        assert reason in said


def test_each_fault_of_the_captions_has_its_reason(built: tuple[Path, str, int]) -> None:
    reasons = _reasons(built[0], "sources")
    assert reasons["no_caption"] > 0
    assert reasons["subject_not_a_person"] > 0


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--set", "oops.root=/no/such/folder"], "/no/such/folder"),
        (["--set", "keypoints.people.min_jonts=3"], "did you mean 'min_joints'"),
        (["--set", "generate.images_per_caption=none"], "generate.images_per_caption"),
        (["--set", "keypoints.backend=openpose"], "blazepose"),
        (["--profile", "demmo"], "demo"),
        (["--build", "../outside"], "--build"),
    ],
)
def test_a_wrong_word_is_one_clear_line_and_exit_code_2(flags: list[str], told: str, tmp_path: Path) -> None:
    command = [*build_command(tmp_path, {}), *flags]
    done = run_command(command, timeout=60)
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 2


def test_a_wrong_shard_number_is_one_clear_line_and_exit_code_2(wrong_folder: Path, tmp_path: Path) -> None:
    command = build_command(tmp_path, {**SMALL, "oops.root": str(wrong_folder)}, "pipeline.generate")
    done = run_command([*command, "--shard", "7"], timeout=60)
    assert done.returncode == 2
    assert done.stderr.strip() == "error: --shard 7: stage generate has train-000"
