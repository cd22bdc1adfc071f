"""The flow runs what `python -m pipeline.build` runs, in its order, and ends as a person can read."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
import urllib.request
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
    monkeypatch.setattr(flow_module, "_sharing_workers", lambda workers: contextlib.nullcontext())
    monkeypatch.setattr(flow_module.preflight, "missing_pieces", lambda profile: [])
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
    monkeypatch.setattr(flow_module.preflight, "missing_pieces", lambda profile: lacking)
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


def _end_this_process():
    os.kill(os.getpid(), signal.SIGKILL)


def test_after_a_worker_was_killed_the_next_try_finds_a_new_one():
    workers = flow_module.SharedWorkers(1)
    try:
        first = workers.run(os.getpid)
        with pytest.raises(BrokenProcessPool):
            workers.run(_end_this_process)
        second = workers.run(os.getpid)
    finally:
        workers.close()
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
    assert serve.main(["--port", str(_free_port()), "--wait", "0", "worker"]) == 2
    assert "make server" in capsys.readouterr().err


# --- through a server and a worker


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Service:
    """A Prefect server and a worker in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.port, self._folder, self._running = _free_port(), folder, []
        self.environment = {**os.environ, **settings.prefect_environment(folder / "home", self.port)}

    def start(self, command: str) -> None:
        options = ["--port", str(self.port), "--home", str(self._folder / "home"), "--wait", "150"]
        with self._log(command).open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "flows.serve", *options, command],
                cwd=ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._running.append(process)

    def wait_for(self, command: str, text: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while text not in self._log(command).read_text():
            if time.monotonic() > deadline or self._running[-1].poll() is not None:
                pytest.fail(f"the {command} did not start:\n{self._log(command).read_text()[-3000:]}")
            time.sleep(0.2)

    def run(self, deployment: str, seconds: float, **parameters: object) -> tuple[subprocess.CompletedProcess, dict]:
        """What `prefect deployment run --watch` gave back, and the flow run's state."""
        given = [part for name, value in parameters.items() for part in ("--param", f"{name}={json.dumps(value)}")]
        finished = subprocess.run(
            [sys.executable, "-m", "prefect", "deployment", "run", deployment, *given, "--watch"],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
        found = re.search(r"UUID: ([0-9a-f-]{36})", finished.stdout)
        assert found, finished.stdout + finished.stderr
        return finished, self.api(f"flow_runs/{found[1]}")

    def api(self, path: str, query: dict | None = None):
        body = None if query is None else json.dumps(query).encode()
        request = urllib.request.Request(
            f"{settings.api_url(self.port)}/{path}", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.load(answer)

    def log(self, command: str) -> str:
        return self._log(command).read_text()

    def _log(self, command: str) -> Path:
        return self._folder / f"{command}.log"

    def stop(self) -> None:
        for process in reversed(self._running):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(8)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(8)


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    running = Service(tmp_path_factory.mktemp("prefect"))
    try:
        running.start("server")
        running.start("worker")
        running.wait_for("worker", "started!", 150)
        yield running
    finally:
        running.stop()


def _digests(folder: Path) -> dict[str, str]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def test_full_ends_failed_within_a_minute_with_the_list_of_what_is_missing(service):
    start = time.monotonic()
    finished, run = service.run("build-pab/full", 90, overrides=["oops.root=./no-such-folder"])
    assert time.monotonic() - start < 60
    assert finished.returncode != 0
    assert run["state"]["type"] == "FAILED"
    message = run["state"]["message"]
    for said in ("the OOPS! folder no-such-folder is not there", "RealVisXL", "vllm", "or use the profile demo"):
        assert said in message
        assert said in service.log("worker")


TINY = [
    "footage.train_clips=3",
    "footage.val_clips=3",
    "generate.images_per_caption=1",
    "frames.clips_per_shard=2",
    "workers=1",
]


def test_demo_ends_completed_with_the_bytes_of_a_build_without_prefect(service, tmp_path):
    places = {
        name: [f"out={tmp_path / name / 'out'}", f"work={tmp_path / name / 'work'}"] for name in ("flow", "plain")
    }
    options = [part for each in [*TINY, *places["plain"]] for part in ("--set", each)]
    with (tmp_path / "plain.log").open("wb") as log:
        plain = subprocess.Popen(
            [sys.executable, "-m", "pipeline.build", "--profile", "demo", *options],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": "7"},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        finished, run = service.run("build-pab/demo", 240, overrides=[*TINY, *places["flow"]])
        plain_code = plain.wait(240)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(plain.pid, signal.SIGKILL)
    assert run["state"]["type"] == "COMPLETED", service.log("worker")[-4000:]
    assert finished.returncode == 0
    assert plain_code in (0, 1), (tmp_path / "plain.log").read_text()[-3000:]

    made = _digests(tmp_path / "flow" / "out")
    assert any(name.endswith(".parquet") for name in made)
    assert made == _digests(tmp_path / "plain" / "out")

    tasks = service.api("task_runs/filter", {"task_runs": {"flow_run_id": {"any_": [run["id"]]}}})
    names = {each["name"]: each["state"]["type"] for each in tasks}
    profile = load_profile("demo", [*TINY, *places["flow"]])
    expected = {
        f"{stage.name} {shard}" for stage in stages.all_stages() for shard in stages.shard_names(stage, profile)
    }
    assert "keypoints test-001" in expected
    assert set(names) == expected | {"footage 0"}
    assert set(names.values()) == {"COMPLETED"}
    (artifact,) = service.api("artifacts/filter", {"flow_runs": {"id": {"any_": [run["id"]]}}})
    assert "keypoints" in artifact["data"]
    assert "contact_sheet.png" in artifact["data"]


def test_more_shards_than_threads_queue_and_a_killed_worker_is_tried_again(service, monkeypatch):
    from prefect import flow, task
    from prefect.settings import PREFECT_API_URL, temporary_settings
    from prefect.task_runners import ThreadPoolTaskRunner

    lock, tries, at_once = threading.Lock(), {}, []
    running = 0

    @task(
        task_run_name="{stage} {shard}", retries=2, retry_delay_seconds=0, retry_condition_fn=flow_module.worth_retrying
    )
    def work(stage: str, shard: str) -> None:
        nonlocal running
        with lock:
            running += 1
            at_once.append(running)
            tries[shard] = tries.get(shard, 0) + 1
        time.sleep(0.02)
        with lock:
            running -= 1
        if shard == "train-001" and tries[shard] == 1:
            raise BrokenProcessPool("a worker was killed")
        if shard == "train-002":
            raise UserError("the folder is not there")

    @flow
    def many() -> None:
        calls = [{"stage": "keypoints", "shard": f"train-{number:03d}"} for number in range(12)]
        with ThreadPoolTaskRunner(max_workers=2) as runner:
            flow_module.run_all("keypoints", work, calls, runner)

    with (
        temporary_settings({PREFECT_API_URL: settings.api_url(service.port)}),
        pytest.raises(flow_module.ShardsFailedError) as failed,
    ):
        many()
    assert list(failed.value.errors) == ["train-002"]
    assert "the folder is not there" in failed.value.errors["train-002"]
    assert tries == {f"train-{number:03d}": 2 if number == 1 else 1 for number in range(12)}
    assert max(at_once) == 2
