"""The deployments through a Prefect server and a worker, as a person starts and runs them."""

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
import urllib.error
import urllib.request
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from flows import build_pab as flow_module
from flows import settings
from pipeline import stages
from pipeline.core.errors import UserError
from pipeline.core.profile import load_profile
from tests.engines_tiny import models_in, the_build
from tests.synthetic_build import publish_build, write_build
from tests.test_train_eval import SIZE

ROOT = settings.ROOT


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


def test_the_limit_of_builds_on_gpus_is_there_and_keeps_what_a_person_set(service):
    from prefect.settings import PREFECT_API_URL, temporary_settings

    from flows import serve

    limits = {each["name"]: each["limit"] for each in service.api("v2/concurrency_limits/filter", {})}
    assert limits[settings.GPU_LIMIT] == 1
    request = urllib.request.Request(
        f"{settings.api_url(service.port)}/v2/concurrency_limits/{settings.GPU_LIMIT}",
        json.dumps({"limit": 2}).encode(),
        {"Content-Type": "application/json"},
        method="PATCH",
    )
    for attempt in range(
        5
    ):  # the server's SQLite may be locked by a worker's poll; Prefect's own client tries again too
        try:
            urllib.request.urlopen(request, timeout=20).close()
            break
        except urllib.error.HTTPError as error:
            if error.code != 503 or attempt == 4:
                raise
            time.sleep(1)
    with temporary_settings({PREFECT_API_URL: settings.api_url(service.port)}):
        assert {f"build-pab/{name}" for name in settings.DEPLOYMENTS} <= set(serve.register())
    limits = {each["name"]: each["limit"] for each in service.api("v2/concurrency_limits/filter", {})}
    assert limits[settings.GPU_LIMIT] == 2


def test_full_ends_failed_within_a_minute_with_the_list_of_what_is_missing(service):
    start = time.monotonic()
    finished, run = service.run("build-pab/full", 90, overrides=["oops.root=./no-such-folder"])
    assert time.monotonic() - start < 60
    assert finished.returncode != 0
    assert run["state"]["type"] == "FAILED"
    message = run["state"]["message"]
    for said in (
        "the OOPS! folder no-such-folder is not there",
        "Realistic_Vision_V4.0",
        "vllm",
        "or use the profile demo",
    ):
        assert said in message
        assert said in service.log("worker")


CAPTIONS = [
    {"goal": "A man walks across the lawn."},
    {"wentwrong": "A woman slips on the street."},
    {"goal": "The boy jumps into the pool."},
    {"wentwrong": "A girl falls off a ladder."},
]


def test_full_ends_completed_with_other_checkpoints_and_four_captions_given(service, tmp_path, tmp_path_factory):
    checkpoints = the_build(tmp_path_factory) / "tiny-models"
    local = {"device": "cpu"}
    talking = {**local, "max_pixels": 3200, "max_tokens": 128}
    engines = {
        "generate": ("diffusers", {**local, "size": 64, "scheduler": "ddim", "steps": 2}),
        "keypoints": ("vitpose", {**local, "min_box_score": 0.1}),
        "similarity": ("resnet50", local),
        "recaption": ("transformers", {**talking, "temperature": 0.5}),
        "attributes": ("transformers", {**talking, "temperature": 0.5}),
        "decompose": ("transformers", talking),
    }
    values = {
        "out": tmp_path / "out",
        "work": tmp_path / "work",
        "workers": 1,
        "oops.root": None,
        "footage": {"train_clips": 1, "val_clips": 2, "size": 64},
        "sources.captions": CAPTIONS,
        "generate.images_per_caption": 2,
        "frames.quality_rule": False,
        "keypoints.structure.min_person_score": 0.1,
    }
    for section, (backend, own) in engines.items():
        values |= {f"{section}.backend": backend, f"{section}.settings": own}
    values |= {key: name for key, name in models_in(checkpoints).items() if ".settings." in key}
    overrides = [f"{key}={json.dumps(value, default=str)}" for key, value in values.items()]
    finished, run = service.run("build-pab/full", 300, overrides=overrides)
    assert run["state"]["type"] == "COMPLETED", service.log("worker")[-4000:]
    assert finished.returncode == 0
    assert "no record failed" in run["state"]["message"]

    from pipeline.core.store import Store

    store = Store(tmp_path / "work" / "full")
    drawn = store.rows("generate", "train-000", ["prompt"], store.kept_ids("generate", "train-000"))
    given = {text for caption in CAPTIONS for text in caption.values()}
    assert {row["prompt"] for row in drawn.values()} <= given
    assert store.manifest("generate", "train-000")["counts"]["in"] == len(given)

    import datasets

    loaded = datasets.load_dataset(str(tmp_path / "out"), cache_dir=str(tmp_path / "cache"))
    assert len(loaded["train"]) >= 1
    assert loaded["train"][0]["image"].size == (64, 64)


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


def test_training_without_a_dataset_ends_failed_within_a_minute_and_says_what_to_run(service, tmp_path):
    start = time.monotonic()
    finished, run = service.run("train-eval/seda", 90, data=str(tmp_path / "nowhere"))
    assert time.monotonic() - start < 60
    assert finished.returncode != 0
    assert run["state"]["type"] == "FAILED"
    assert run["parameters"]["model"] == "seda"
    assert f"--data {tmp_path / 'nowhere'}: no dataset of this project is there" in run["state"]["message"]
    assert "prefect deployment run build-pab/demo --watch" in run["state"]["message"]


def test_training_ends_completed_with_its_lines_in_the_log_and_its_figures_in_an_artifact(service, tmp_path):
    publish_build(*write_build(tmp_path))
    finished, run = service.run(
        "train-eval/cmp",
        240,
        data=str(tmp_path / "out" / "pab"),
        out=str(tmp_path / "run"),
        preset="small",
        init="none",
        epochs=1,
        batch_size=4,
        threads=1,
        changes=[SIZE],
    )
    assert run["state"]["type"] == "COMPLETED", service.log("worker")[-4000:]
    assert finished.returncode == 0
    (task,) = service.api("task_runs/filter", {"task_runs": {"flow_run_id": {"any_": [run["id"]]}}})
    assert task["state"]["type"] == "COMPLETED"
    logs = service.api("logs/filter", {"logs": {"task_run_id": {"any_": [task["id"]]}}})
    assert any(each["message"].startswith("epoch   1 of 1  loss ") for each in logs)
    (artifact,) = service.api("artifacts/filter", {"flow_runs": {"id": {"any_": [run["id"]]}}})
    figures = json.loads((tmp_path / "run" / "evaluation" / "best" / "metrics.json").read_text("utf-8"))
    first = figures["protocols"]["PAB behaviour"]
    assert f"| best | PAB behaviour | {first['R@1']:.2f} | " in artifact["data"]
    assert "* last: pair accuracy " in artifact["data"]
