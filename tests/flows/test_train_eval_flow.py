"""What the flow train-eval does before and after the command, without a server."""

from __future__ import annotations

import os
import signal
import sys
from types import SimpleNamespace

import pytest

from flows import serve, settings
from flows import train_eval as flow_module
from pipeline.core.errors import UserError
from pipeline.models.recipes import RECIPES
from tests.synthetic_build import publish_build, write_build


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> str:
    root = tmp_path_factory.mktemp("flow")
    publish_build(*write_build(root))
    return str(root / "out" / "pab")


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, text: str) -> None:
        self.lines.append(text)

    error = info


@pytest.fixture
def log(monkeypatch) -> Log:
    log = Log()
    monkeypatch.setattr(flow_module, "get_run_logger", lambda: log)
    return log


@pytest.fixture
def calls(monkeypatch, log) -> list[tuple[str, object]]:
    """What the flow starts, in order, with nothing started."""
    found: list[tuple[str, object]] = []

    def build(profile, overrides, return_state):
        found.append(("build", (profile, overrides)))
        return SimpleNamespace(is_completed=lambda: profile == "demo", message="there is no GPU")

    monkeypatch.setattr(flow_module, "build_pab", build)
    monkeypatch.setattr(flow_module, "run_command", lambda arguments: found.append(("run", arguments)))
    monkeypatch.setattr(flow_module, "figures", lambda folder: f"figures of {folder}")
    monkeypatch.setattr(flow_module, "create_markdown_artifact", lambda **each: found.append(("artifact", each)))
    return found


def test_parameters_become_the_commands_options_and_the_figures_an_artifact(calls, data):
    state = flow_module.train_eval.fn("seda", data, preset="small", seed=7, epochs=2, changes=["optimiser.lr=1e-3"])
    (_, arguments), (_, artifact) = calls
    assert arguments == ["--model=seda", f"--data={data}", "--preset=small", "--seed=7", "--epochs=2",
                         "--fraction=1.0", "--set=optimiser.lr=1e-3"]  # fmt: skip
    assert artifact["markdown"] == "# seda, seed 7\n\nfigures of runs/seda-small-seed7\n"
    assert state.is_completed()
    assert state.message.endswith("runs/seda-small-seed7")


def test_a_missing_dataset_ends_the_run_at_once_and_says_what_to_run(calls, tmp_path):
    state = flow_module.train_eval.fn(data=str(tmp_path))
    assert calls == []
    assert state.is_failed()
    assert "build one with python -m pipeline.build" in state.message
    assert "prefect deployment run build-pab/demo --watch, or give this flow build=demo" in state.message


def test_build_comes_before_training_and_its_dataset_is_trained_on(calls, data):
    state = flow_module.train_eval.fn(preset="small", build="demo", build_overrides=[f"out={data}"])
    assert [name for name, _ in calls] == ["build", "run", "artifact"]
    assert calls[0][1] == ("demo", [f"out={data}"])
    assert f"--data={data}" in calls[1][1]
    assert state.is_completed()


def test_a_build_that_does_not_come_through_ends_the_run(calls):
    state = flow_module.train_eval.fn(build="full")
    assert [name for name, _ in calls] == ["build"]
    assert state.is_failed()
    assert state.message == "build-pab did not come through: there is no GPU"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"model": "cpm"}, "no such recipe: 'cpm'"),
        ({"preset": "large"}, "--preset large"),
        ({"changes": ["optimiser.lt=1"]}, "there is no option 'lt'"),
        ({"data": None, "build": "nonesuch"}, "no profile 'nonesuch'"),
        ({"data": None, "build": "demo", "model": "cpm"}, "no such recipe: 'cpm'"),
        ({"build": "demo"}, "give one of the two"),
    ],
)
def test_a_wrong_parameter_ends_the_run_with_one_line(calls, data, arguments, said):
    state = flow_module.train_eval.fn(**{"data": data, **arguments})
    assert calls == []
    assert state.is_failed()
    assert said in state.message
    assert "\n" not in state.message


# --- the task


def starts(monkeypatch, code: str) -> None:
    """Let the task start these lines of Python in place of the command."""
    popen = flow_module.subprocess.Popen
    monkeypatch.setattr(
        flow_module.subprocess, "Popen", lambda _, **options: popen([sys.executable, "-c", code], **options)
    )


def test_what_the_command_says_goes_into_the_log_line_by_line(monkeypatch, log):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    starts(monkeypatch, "import os; print('one\\n\\ntwo', os.environ.get('OMP_NUM_THREADS'))")
    flow_module.run_command.fn([])
    assert log.lines == ["one", "two None"]


@pytest.mark.parametrize(
    ("code", "error", "said"),
    [
        ("import sys; print('x'); print('error: no data', file=sys.stderr); sys.exit(2)", UserError, "^no data$"),
        ("raise ValueError('a fault')", RuntimeError, "ended with 1:\n(.*\n)*ValueError: a fault"),
        (f"import os; os.kill(os.getpid(), {signal.SIGKILL:d})", ChildProcessError, "killed by signal 9"),
    ],
)
def test_the_way_the_command_ended_is_told(monkeypatch, log, code, error, said):
    starts(monkeypatch, code)
    with pytest.raises(error, match=said):
        flow_module.run_command.fn([])


def test_only_a_killed_command_is_started_again():
    for error, again in ((ChildProcessError("killed"), True), (UserError("x"), False), (RuntimeError("x"), False)):
        state = flow_module.Failed(data=error)
        assert flow_module.worth_retrying(flow_module.run_command, None, state) is again


def test_a_flow_run_that_is_cancelled_takes_its_training_along(monkeypatch, log):
    class CancelledError(BaseException):
        pass

    def cancel(text: str) -> None:
        log.lines.append(text)
        raise CancelledError

    monkeypatch.setattr(log, "info", cancel)
    starts(monkeypatch, "import os, time; print(os.getpid(), flush=True); time.sleep(60)")
    with pytest.raises(CancelledError):
        flow_module.run_command.fn([])
    with pytest.raises(ProcessLookupError):
        os.kill(int(log.lines[0]), 0)


def test_every_deployment_of_training_is_a_recipe_and_is_registered_under_the_flows_name():
    assert set(settings.TRAINING_DEPLOYMENTS) == {"cmp", "seda", "gradco", "lightair"} <= set(RECIPES)
    assert flow_module.train_eval.name == "train-eval"
    assert serve.TRAINING_DEPLOYMENTS is settings.TRAINING_DEPLOYMENTS
