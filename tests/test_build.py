"""Whole builds through the real command line: the same bytes however they are run, and nothing lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.builds import ROOT, TINY, build_command, digests, run_command

SHARDS = {
    "frames": {"test-000", "test-001"},
    "sources": {"train-000", "test-000"},
    "generate": {"train-000", "train-001"},
    "similarity": {"test-000", "test-001"},
    "keypoints": {"train-000", "train-001", "test-000", "test-001"},
    "publish": {"all"},
}


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two-workers")
    done = run_command(build_command(folder, {**TINY, "workers": "2"}), hash_seed="1")
    assert done.returncode == 0, done.stdout + done.stderr
    (folder / "said.txt").write_text(done.stdout, "utf-8")
    return folder


def _manifests(folder: Path) -> dict[str, dict]:
    paths = sorted((folder / "work" / "demo").glob("*/*/stage.json"))
    return {f"{path.parts[-3]}/{path.parts[-2]}": json.loads(path.read_text("utf-8")) for path in paths}


def test_one_worker_and_another_hash_seed_give_the_same_bytes(two_workers: Path, tmp_path: Path) -> None:
    done = run_command(build_command(tmp_path, {**TINY, "workers": "1"}), hash_seed="2")
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = digests(two_workers / "out"), digests(tmp_path / "out")
    assert any(name.startswith("data/train-") for name in first)
    assert any(name.startswith("data/test-") for name in first)
    assert first == second
    parts = digests(two_workers / "work" / "demo", "**/*.parquet")
    assert parts
    assert parts == digests(tmp_path / "work" / "demo", "**/*.parquet")


def test_every_shard_gives_back_the_ids_it_took(two_workers: Path) -> None:
    manifests = _manifests(two_workers)
    for stage, shards in SHARDS.items():
        assert {name.partition("/")[2] for name in manifests if name.startswith(f"{stage}/")} == shards
    for manifest in manifests.values():
        counts = manifest["counts"]
        assert counts["in"] == counts["kept"] + counts["rejected"] + counts["failed"]


def test_the_dataset_loads_by_name_and_streams(two_workers: Path, tmp_path: Path) -> None:
    import datasets

    out = str(two_workers / "out")
    loaded = datasets.load_dataset(out, cache_dir=str(tmp_path))
    assert set(loaded) == {"train", "test"}
    row = loaded["train"][0]
    assert row["image"].size == row["pose"].size == (row["width"], row["height"])
    streamed = list(datasets.load_dataset(out, split="test", streaming=True))
    assert [each["image_id"] for each in streamed] == loaded["test"]["image_id"]
    rejected = datasets.load_dataset(out, "rejected", cache_dir=str(tmp_path))
    assert len(rejected["train" if "train" in rejected else next(iter(rejected))]) > 0


def test_a_second_run_does_nothing_and_says_so(two_workers: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (two_workers / "work" / "demo").glob("*/*/stage.json")}
    start = time.monotonic()
    done = run_command(build_command(two_workers, {**TINY, "workers": "2"}))
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - start < 10
    assert "up to date" in done.stdout
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_a_changed_threshold_redoes_just_what_depends_on_it(two_workers: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(two_workers, folder, copy_function=shutil.copy2)
    before = {name: manifest["key"] for name, manifest in _manifests(folder).items()}
    # The copy's clips keep their times of change, so nothing but the threshold is new.
    done = run_command(build_command(folder, {**TINY, "workers": "2", "similarity.max_cosine": "0.5"}))
    assert done.returncode == 0, done.stderr
    after = {name: manifest["key"] for name, manifest in _manifests(folder).items()}
    changed = {name.partition("/")[0] for name in after if after[name] != before[name]}
    assert changed == {"similarity", "recaption", "attributes", "review", "decompose", "publish"}
    assert all(after[name] == before[name] for name in after if name.startswith("recaption/train"))


def test_a_build_killed_in_the_middle_ends_with_the_same_bytes(two_workers: Path, tmp_path: Path) -> None:
    command = build_command(tmp_path, {**TINY, "workers": "2"})
    first = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    half = tmp_path / "work" / "demo" / "generate"
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and not list(half.glob("*.building-*/part-*.parquet")):
        assert first.poll() is None, "the build ended before it could be killed"
        time.sleep(0.02)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    finished = {path: path.stat().st_mtime_ns for path in half.glob("*/part-*.parquet")}
    assert finished
    done = run_command(command)
    assert done.returncode == 0, done.stdout + done.stderr
    assert digests(tmp_path / "out") == digests(two_workers / "out")
    resumed = [name for name, manifest in _manifests(tmp_path).items() if manifest["resumed_records"] > 0]
    assert any(name.startswith("generate/") for name in resumed)


def test_the_summary_names_every_stage_and_what_to_do_next(two_workers: Path) -> None:
    said = (two_workers / "said.txt").read_text("utf-8")
    for word in ("frames", "sources", "generate", "keypoints", "publish", "contact_sheet.png", "load_dataset"):
        assert word in said


def test_one_stage_by_hand_finds_its_shard_up_to_date_and_shows_examples(two_workers: Path) -> None:
    command = [*build_command(two_workers, TINY, "pipeline.decompose"), "--shard", "1"]
    done = run_command(command)
    assert done.returncode == 0, done.stderr
    first, *examples = done.stdout.splitlines()
    assert first.startswith("decompose train-001: up to date; in ")
    assert len(examples) == 3
