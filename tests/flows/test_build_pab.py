"""The flow runs what `python -m pipeline.build` runs, in its order, and ends as a person can read."""

from __future__ import annotations

import contextlib
import os
import signal
import tomllib
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import SimpleNamespace

import pytest

from flows import build_pab as flow_module
from flows import serve, settings
from pipeline import stages
from pipeline.core.errors import UserError
from pipeline.core.profile import load_profile
from pipeline.core.runner import LostRecordsError
from pipeline.footage import FootageState
from pipeline.preflight import Missing

ROOT = settings.ROOT


# --- the flow's own code, without a server


class FakeWorkers:
    """So many GPUs; notes when they are given back."""

    def __init__(self, gpus: int, calls: list[tuple[str, str]]) -> None:
        self.gpus, self._calls = gpus, calls

    def release_gpus(self) -> None:
        self._calls.append(("release", ""))


@pytest.fixture
def plain_flow(monkeypatch):
    """The flow's function with tasks recorded in place of run, on a machine that lacks nothing."""
    calls: list[tuple[str, str]] = []

    def record(step, work, arguments, runner):
        for each in arguments:
            assert set(each) <= {"stage", "shard", "number", "profile", "build", "overrides"}, "names, never data"
            calls.append((step, str(each.get("shard", each.get("number")))))

    class Logger:
        def info(self, text): ...
        def error(self, text): ...

    monkeypatch.setattr(flow_module, "run_all", record)
    monkeypatch.setattr(flow_module, "get_run_logger", Logger)
    monkeypatch.setattr(flow_module, "_sharing_workers", lambda workers: contextlib.nullcontext(FakeWorkers(0, calls)))
    monkeypatch.setattr(flow_module.preflight, "missing_pieces", lambda profile, build: [])
    monkeypatch.setattr(flow_module.footage, "footage_state", lambda profile: FootageState(True, False, 3))
    monkeypatch.setattr(flow_module.footage, "prepare", lambda profile: calls.append(("prepare", "")))
    monkeypatch.setattr(flow_module.footage, "finish", lambda profile: calls.append(("finish", "")))
    monkeypatch.setattr(
        flow_module.stages, "shard_names", lambda stage, profile: [f"{stage.name}-0", f"{stage.name}-1"]
    )
    monkeypatch.setattr(flow_module.report, "write_sheets", lambda profile, build: [Path("contact_sheet.png")])
    monkeypatch.setattr(flow_module.report, "summary", lambda profile, build: SimpleNamespace(failed=0))
    monkeypatch.setattr(flow_module.report, "format_summary", lambda summary: "the table")
    monkeypatch.setattr(flow_module, "create_markdown_artifact", lambda **artifact: None)
    return calls


def test_footage_comes_first_and_the_stages_follow_in_order_with_all_their_shards(plain_flow):
    state = flow_module.build_pab.fn("demo")
    expected = [("prepare", ""), ("footage", "0"), ("footage", "1"), ("footage", "2"), ("finish", "")]
    expected += [(name, f"{name}-{shard}") for name in stages.STAGE_NAMES for shard in (0, 1)]
    assert plain_flow == expected
    assert state.is_completed()
    assert state.message.endswith("no record failed")


def test_footage_that_is_there_is_not_filmed_again(plain_flow, monkeypatch):
    monkeypatch.setattr(flow_module.footage, "footage_state", lambda profile: FootageState(True, True, 3))
    flow_module.build_pab.fn("demo")
    assert plain_flow[0][0] == "frames"


def test_a_run_with_failed_records_completes_and_says_how_many_failed(plain_flow, monkeypatch):
    monkeypatch.setattr(flow_module.report, "summary", lambda profile, build: SimpleNamespace(failed=7))
    state = flow_module.build_pab.fn("demo")
    assert state.is_completed()
    assert "7 records failed" in state.message


def test_a_missing_piece_ends_the_run_before_anything_is_run_and_is_named(plain_flow, monkeypatch):
    lacking = [Missing("generate", "there is no GPU", "use the simulator"), Missing("oops", "no folder", "give one")]
    monkeypatch.setattr(flow_module.preflight, "missing_pieces", lambda profile, build: lacking)
    state = flow_module.build_pab.fn("full")
    assert plain_flow == []
    assert state.is_failed()
    assert "  * generate: there is no GPU; use the simulator\n  * oops: no folder; give one" in state.message


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"profile": "nonesuch"}, "no profile 'nonesuch'"),
        ({"overrides": ["generate.imagespercaption=2"]}, "unknown key 'generate.imagespercaption'"),
        ({"build": "../elsewhere"}, "--build '../elsewhere'"),
    ],
)
def test_wrong_input_ends_the_run_with_one_line(plain_flow, arguments, said):
    state = flow_module.build_pab.fn(**arguments)
    assert plain_flow == []
    assert state.is_failed()
    assert said in state.message
    assert "\n" not in state.message


def test_shards_that_did_not_come_through_end_the_run_and_later_stages_do_not_start(plain_flow, monkeypatch):
    record = flow_module.run_all

    def fail_at_keypoints(step, work, arguments, runner):
        record(step, work, arguments, runner)
        if step == "keypoints":
            raise flow_module.ShardsFailedError(step, {"train-001": "the disk is full"})

    monkeypatch.setattr(flow_module, "run_all", fail_at_keypoints)
    state = flow_module.build_pab.fn("demo")
    assert state.is_failed()
    assert "train-001: the disk is full" in state.message
    assert plain_flow[-1][0] == "keypoints"


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (BrokenProcessPool("a worker was killed"), True),
        (ConnectionResetError("gone"), True),
        (OSError(5, "Input/output error"), True),
        (MemoryError(), True),
        (UserError("the folder is not there"), False),
        (LostRecordsError("ids in are not ids out"), False),
        (ValueError("a fault of the code"), False),
    ],
)
def test_only_what_a_second_try_may_mend_is_tried_again(error, again):
    state = flow_module.Failed(data=error)
    assert flow_module.worth_retrying(flow_module.run_shard, None, state) is again


def test_gpu_engines_and_cpu_engines_carry_tags_of_their_own():
    demo, full = load_profile("demo"), load_profile("full")
    generate, keypoints, publish = (stages.stage(name) for name in ("generate", "keypoints", "publish"))
    assert flow_module.engine_tags(generate, demo) == {"cpu", "simulator"}
    assert flow_module.engine_tags(generate, full) == {"gpu", "diffusers"}
    assert flow_module.engine_tags(keypoints, demo) == {"cpu", "blazepose"}
    assert flow_module.engine_tags(publish, full) == {"cpu"}


def test_gpu_stages_of_one_engine_hold_the_gpus_slot_and_give_both_back_before_the_next_engine(plain_flow, monkeypatch):
    @contextlib.contextmanager
    def slot(name, occupy):
        plain_flow.append(("slot", name))
        yield
        plain_flow.append(("slot back", name))

    monkeypatch.setattr(flow_module, "concurrency", slot)
    monkeypatch.setattr(
        flow_module, "_sharing_workers", lambda workers: contextlib.nullcontext(FakeWorkers(2, plain_flow))
    )
    flow_module.build_pab.fn("full")
    order = [name for name, _ in plain_flow if name not in ("prepare", "footage", "finish")]
    order = [name for name, after in zip(order, [*order[1:], ""], strict=True) if name != after]
    expected = ["frames", "sources"]
    for group in (["generate"], ["keypoints"], ["similarity"], ["recaption", "attributes"]):
        expected += ["slot", *group, "release", "slot back"]
    assert order == [*expected, "review", "slot", "decompose", "release", "slot back", "publish"]


def test_a_build_without_gpus_waits_for_no_slot(plain_flow, monkeypatch):
    monkeypatch.setattr(flow_module, "concurrency", lambda *_, **__: pytest.fail("it took a slot"))
    flow_module.build_pab.fn("full")
    assert ("publish", "publish-0") in plain_flow
    assert ("release", "") not in plain_flow


def _end_this_process():
    os.kill(os.getpid(), signal.SIGKILL)


def test_after_a_worker_was_killed_the_next_try_finds_a_new_one():
    with flow_module.Workers(1) as workers:
        first = workers.run(os.getpid)
        with pytest.raises(BrokenProcessPool):
            workers.run(_end_this_process)
        second = workers.run(os.getpid)
    assert len({first, second, os.getpid()}) == 3


def test_the_prefect_command_finds_the_server_of_this_folder_with_nothing_exported():
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["prefect"]
    assert table["api"]["url"] == settings.api_url()
    assert table["home"] == settings.HOME


def test_server_worker_and_runs_stay_on_loopback_and_tell_nobody():
    environment = settings.prefect_environment(port=4321)
    assert environment["PREFECT_API_URL"] == "http://127.0.0.1:4321/api"
    assert environment["PREFECT_SERVER_API_HOST"] == "127.0.0.1"
    assert environment["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"
    assert environment["DO_NOT_TRACK"] == "1"


def test_a_worker_without_a_server_says_how_to_start_one(capsys, monkeypatch):
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.chdir(ROOT)
    assert serve.main(["--port", "9", "--wait", "0", "worker"]) == 2
    assert "make server" in capsys.readouterr().err
