from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import seeds
from pipeline import train_eval


def metrics(recall: float, low: float) -> dict[str, object]:
    return {
        "protocols": {"PAB behaviour": {"R@1": recall}, "PAB identity": {"R@1": 2 * recall}},
        "pair accuracy": {"percent": 60.0, "95 % interval": [low, 70.0]},
        "gallery": 100,
        "fusion": "linear:10",
    }


def finished(folder: Path, recall: float, low: float, spent: dict[str, float]) -> None:
    for name in train_eval.WEIGHTS:
        path = folder / train_eval.EVALUATION / name / "metrics.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(metrics(recall, low)))
    (folder / train_eval.TIMES).write_text(json.dumps(spent))


@pytest.fixture
def trained(monkeypatch):
    """Which runs were trained; they end with figures that depend on the seed."""
    asked = []

    def train(arguments):
        folder = Path(arguments[arguments.index("--out") + 1])
        asked.append(folder.name)
        finished(folder, {42: 16.0, 43: 20.0}[int(folder.name.split("-")[1])], 55.0, {"steps": 90.0, "saving": 10.0})
        return 0

    monkeypatch.setattr(train_eval, "main", train)
    return asked


def test_a_row_a_recipe_with_mean_and_range_over_the_seeds(trained, tmp_path, capsys):
    command = ["--models", "cmp,m1", "--seeds", "42,43", "--runs", str(tmp_path)]
    assert seeds.main(command) == 0
    said = capsys.readouterr().out
    assert "| cmp | last | 18.0 (16.0 to 20.0) | 36.0 (32.0 to 40.0) | 60.0 (60.0 to 60.0) | 55.0 | 100.0" in said
    assert "| m1 | best | 18.0" in said
    assert "chance 1.00 %, fusion linear:10" in said
    assert "time of m1: steps 90 %, saving 10 %" in said
    assert "met by all 8 evaluations" in said


def test_only_runs_that_are_not_there_are_trained(trained, tmp_path, capsys):
    finished(tmp_path / "cmp-42", 30.0, 60.0, {"steps": 1.0})
    assert seeds.main(["--models", "cmp", "--seeds", "42,43", "--runs", str(tmp_path)]) == 0
    assert trained == ["cmp-43"]
    assert "25.0 (20.0 to 30.0)" in capsys.readouterr().out


@pytest.mark.parametrize(("recall", "low"), [(14.9, 60.0), (40.0, 50.0)])
def test_a_run_near_chance_misses_the_target(trained, tmp_path, capsys, recall, low):
    finished(tmp_path / "seda-42", recall, low, {"steps": 1.0})
    assert seeds.main(["--models", "seda", "--seeds", "42", "--runs", str(tmp_path)]) == 1
    assert "missed by seda (last), seda (best)" in capsys.readouterr().out


def test_seeds_that_are_no_numbers_are_told(tmp_path, capsys):
    assert seeds.main(["--seeds", "a", "--runs", str(tmp_path)]) == 2
    assert "--seeds a" in capsys.readouterr().err
