"""Tables over several runs, on folders of runs that were written by hand."""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import UserError
from pipeline.training.comparison import (
    FIGURES,
    RowResults,
    axis_of,
    check_comparable,
    check_planned,
    comparison_of,
    csv_text,
    markdown,
    plain,
    png_of,
    results_of,
    spread_of,
    sweep_figure,
)
from pipeline.training.costs import Costs, read_costs, write_costs


def recipe(model: str = "cmp", /, **changes: Any) -> dict[str, Any]:
    return {
        "name": model,
        "model": {"model": model, "eda_weight": 0.8, "pose": model == "cmp"},
        "optimiser": {"lr": 1e-3, "schedule": "linear"},
        "augmentation": {"flip_prob": 0.5},
        "evaluation": {"fusion": "linear", "top_k": 128},
        "epochs": 8,
        "batch_size": 32,
        **changes,
    }


def finished(
    folder: Path,
    recall: float = 20.0,
    weights: tuple[str, ...] = ("last", "best"),
    costs: Costs | None = None,
    metrics: dict[str, Any] | None = None,
    **settings: Any,
) -> Path:
    """The folder of a run that is done."""
    own = {
        "recipe": recipe(),
        "preset": "small",
        "data": "./out/pab",
        "samples": "1234",
        "fraction": 1.0,
        "seed": 42,
        "synonyms": True,
        **settings,
    }
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(own, sort_keys=True))
    start = "nothing was pretrained: all weights start at random"
    write_costs(
        folder,
        costs
        or Costs(4_000_000, start, "abcd", "cpu", [2], 10 * recall, 700.0, None, {"last": 1.5, "best": 2.5}, True),
    )
    for number, name in enumerate(weights):
        (folder / name).mkdir()
        place = folder / "evaluation" / name
        place.mkdir(parents=True)
        found = {
            "protocols": {
                "PAB behaviour": {"R@1": recall - number, "R@5": 50.0, "mAP": 33.0},
                "PAB identity": {"R@1": recall + 5},
            },
            "pair accuracy": {"queries": 100, "percent": 70.0, "95 % interval": [60.0 + recall / 10, 80.0]},
            "fusion": "linear:30",
            "candidates": 100,
            "gallery": 100,
            "queries": 100,
            **(metrics or {}),
        }
        (place / "metrics.json").write_text(json.dumps(found))
    return folder


def row(tmp_path: Path, name: str, recalls: dict[int, float], wanted: tuple[int, ...] = (), **settings: Any) -> Any:
    found = {}
    for seed, recall in recalls.items():
        value = settings.get("fraction", "")
        folder = finished(tmp_path / f"{name}{value}-seed{seed}", recall, seed=seed, **settings)
        found[seed] = results_of(folder)
    return RowResults(name, wanted or tuple(recalls), found, name)


def cells(line: str) -> list[str]:
    return [each.strip() for each in line.strip("|").split(" | ")]


def test_rows_have_mean_and_spread_over_the_seeds_and_what_the_runs_cost(tmp_path):
    rows = [row(tmp_path, "cmp", {42: 16.0, 43: 20.0, 44: 27.0}), row(tmp_path, "seda", {42: 18.0, 43: 20.0})]
    lines = markdown(comparison_of(rows)).splitlines()
    assert cells(lines[4])[:4] == ["cmp", "3", "21.0 ± 5.6", "50.0 ± 0.0"]
    assert cells(lines[5])[:4] == ["seda", "2", "19.0 (18.0 to 20.0)", "50.0"]
    assert cells(lines[4])[6:] == ["70.0 ± 0.0", "61.6", "4,000,000", "700", "1.50", "210", "nothing"]
    assert "Weights of the epoch chosen on held-out training sources:" in lines
    best = lines[lines.index("Weights of the epoch chosen on held-out training sources:") :]
    assert cells(best[4])[2] == "20.0 ± 5.6"
    assert "chance R@1 1.00 %" in "".join(lines)
    assert "R@1 is 16.0 times chance in the worst run, the lowest end of a 95 % interval of pair accuracy 61.6 %" in (
        "".join(lines)
    )


def test_csv_and_markdown_and_the_terminal_say_the_same(tmp_path):
    rows = [row(tmp_path, "cmp", {42: 16.0, 43: 20.0, 44: 27.0}), row(tmp_path, "seda", {42: 18.0, 43: 20.0})]
    comparison = comparison_of(rows)
    table = list(csv.DictReader(io.StringIO(csv_text(comparison))))
    assert [(each["model"], each["weights"]) for each in table] == [
        *(("cmp", "last"), ("seda", "last"), ("cmp", "best"), ("seda", "best")),
    ]
    lines = [line for line in markdown(comparison).splitlines() if line.startswith(("| cmp", "| seda"))]
    for told, line in zip(table, lines, strict=True):
        for number, name in enumerate(FIGURES, 2):
            assert float(cells(line)[number].split()[0]) == pytest.approx(float(told[f"{name} mean"]), abs=0.05)
        assert bool(told["R@1 std"]) == ("±" in cells(line)[2])
    shown = [line.split() for line in plain(comparison).splitlines() if line.startswith(("cmp", "seda"))]
    assert shown == [" ".join(cells(line)).split() for line in lines]


def test_a_row_whose_runs_are_not_all_done_says_how_many_are_and_one_that_failed_says_why(tmp_path):
    part = row(tmp_path, "cmp", {42: 16.0}, wanted=(42, 43, 44))
    none = RowResults("seda", (42, 43, 44), {}, "seda", None, {42: "the disk is full"})
    comparison = comparison_of([part, none])
    lines = markdown(comparison).splitlines()
    assert cells(lines[4])[:3] == ["cmp", "1 of 3", "16.0"]
    assert cells(lines[5])[:3] == ["seda", "0 of 3", "-"]
    assert "* Failed: seda, seed 42: the disk is full" in lines
    assert list(csv.DictReader(io.StringIO(csv_text(comparison))))[1]["failed"] == "seed 42: the disk is full"
    assert comparison.failures == {"seda, seed 42": "the disk is full"}


def test_a_table_without_any_finished_run_is_one_of_dashes(tmp_path):
    lines = markdown(comparison_of([RowResults("cmp", (42,), {})])).splitlines()
    assert set(cells(lines[4])[2:]) == {"-"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"samples": "99"}, 'samples is "99" in'),
        ({"preset": "paper"}, 'preset is "paper"'),
        ({"fraction": 0.5}, "fraction is 0.5"),
        ({"recipe": recipe(epochs=9)}, "epochs is 9"),
        ({"recipe": recipe(batch_size=16)}, "batch_size is 16"),
        ({"recipe": recipe(evaluation={"fusion": "single", "top_k": 128})}, 'evaluation.fusion is "single"'),
        ({"synonyms": False}, "synonyms is false"),
        ({"metrics": {"fusion": "single"}}, 'fusion is "single"'),
        ({"metrics": {"gallery": 99}}, "gallery is 99"),
        ({"metrics": {"protocols": {"UCC": {"R@1": 1.0, "R@5": 2.0, "mAP": 3.0}}}}, 'protocols is "UCC"'),
        ({"costs": Costs(threads=[1], test="abcd", device="cpu", finished=True)}, "threads is [1]"),
        ({"costs": Costs(threads=[2], test="ffff", device="cpu", finished=True)}, 'test split is "ffff"'),
    ],
)
def test_runs_that_differ_in_more_than_the_model_are_refused_with_what_it_is(tmp_path, change, said):
    runs = [results_of(finished(tmp_path / "a")), results_of(finished(tmp_path / "b", seed=43, **change))]
    with pytest.raises(UserError) as refused:
        check_comparable(runs)
    assert said in str(refused.value)
    assert f"{tmp_path / 'a'}" in str(refused.value)
    assert f"{tmp_path / 'b'}" in str(refused.value)


def test_models_seeds_and_settings_that_one_model_alone_has_may_differ(tmp_path):
    other = recipe("gradco", model={"model": "gradco", "bmoe": {"experts": 4}})
    runs = [
        finished(tmp_path / "a"),
        finished(tmp_path / "b", seed=43, recipe=other, synonyms=False, phrases="5 phrases of the data"),
    ]
    check_comparable([results_of(each) for each in runs])


def test_another_learning_rate_of_a_preset_is_told_under_the_table(tmp_path):
    rows = [
        row(tmp_path, "cmp", {42: 16.0}),
        row(tmp_path, "seda", {42: 16.0}),
        row(tmp_path, "gradco", {42: 16.0}, recipe=recipe("gradco", optimiser={"lr": 5e-4, "schedule": "linear"})),
    ]
    text = markdown(comparison_of(rows))
    assert "* The preset trains with another optimiser.lr: gradco 0.0005; the other rows 0.001." in text
    assert "schedule" not in text


def test_what_was_pretrained_is_a_column_and_a_line_for_each_row_where_rows_differ(tmp_path):
    start = "pretrained from MiniLM (words): 10 of 20 weights; the others start at random"
    rows = [
        row(tmp_path, "cmp", {42: 16.0}),
        row(tmp_path, "seda", {42: 16.0}, costs=Costs(20, start, "abcd", "cpu", [2], finished=True)),
    ]
    text = markdown(comparison_of(rows))
    assert cells(text.splitlines()[5])[-1] == "MiniLM (words): 10 of 20 weights"
    assert f"* seda: {start}." in text


def test_a_run_of_other_settings_than_planned_is_refused_and_what_a_run_reads_off_its_data_is_not(tmp_path):
    settings = {"recipe": {"model": {"phrases": ["falls"], "pose": True}, "epochs": 8}, "seed": 42}
    check_planned(tmp_path, settings, {"recipe": {"model": {"phrases": [], "pose": True}, "epochs": 8}})
    with pytest.raises(UserError, match=r"recipe\.epochs \(8 there, 9 here\)"):
        check_planned(tmp_path, settings, {"recipe": {"epochs": 9}})
    with pytest.raises(UserError, match=r"recipe\.model\.pose \(true there, false here\)"):
        check_planned(tmp_path, settings, {"recipe": {"model": {"pose": False}}})


def test_a_run_is_finished_when_all_its_weights_are_evaluated(tmp_path):
    folder = finished(tmp_path / "a")
    assert results_of(folder).finished
    (folder / "evaluation" / "best" / "metrics.json").unlink()
    assert not results_of(folder).finished
    assert results_of(tmp_path / "nowhere") is None
    begun = finished(tmp_path / "b", weights=(), costs=Costs())
    assert not results_of(begun).finished


@pytest.mark.parametrize("name", ["run.json", "costs.json", "evaluation/last/metrics.json"])
@pytest.mark.parametrize("content", ["{half", "[]"])
def test_a_damaged_file_is_named(tmp_path, name, content):
    folder = finished(tmp_path / "a")
    (folder / name).write_text(content)
    with pytest.raises(UserError, match="is damaged"):
        results_of(folder)


def test_costs_come_back_as_they_were_written_and_those_of_a_newer_version_are_read(tmp_path):
    costs = Costs(5, "x", "y", "cpu", [1, 2], 3.5, 700.1, None, {"last": 1.0}, True)
    write_costs(tmp_path, costs)
    assert read_costs(tmp_path) == costs
    told = json.loads((tmp_path / "costs.json").read_text())
    (tmp_path / "costs.json").write_text(json.dumps({**told, "colour": "red"}))
    assert read_costs(tmp_path) == costs
    assert read_costs(tmp_path / "nowhere") == Costs()


@given(st.lists(st.floats(0, 100), min_size=1, max_size=9))
def test_a_spread_is_that_of_the_values(values):
    spread = spread_of([*values, None, math.nan])
    assert spread.least == min(values)
    assert spread.largest == max(values)
    assert spread.mean == pytest.approx(sum(values) / len(values))
    assert (spread.std is None) == (len(values) < 3)
    if spread.std is not None:
        assert spread.std == pytest.approx(statistics.stdev(values))


# --- sweeps


def test_rows_of_a_sweep_may_differ_in_what_is_swept_and_in_what_follows_from_it_alone(tmp_path):
    half = finished(tmp_path / "half", fraction=0.5, samples="aa")
    whole = finished(tmp_path / "whole", fraction=1.0, samples="bb")
    check_comparable([results_of(each) for each in (half, whole)], "fraction")
    other = finished(tmp_path / "other", fraction=0.5, samples="cc", seed=43)
    with pytest.raises(UserError, match='samples is "cc"'):
        check_comparable([results_of(each) for each in (half, whole, other)], "fraction")
    with pytest.raises(UserError, match="fraction is 1"):
        check_comparable([results_of(each) for each in (half, whole)], "optimiser.lr")
    longer = finished(tmp_path / "longer", recipe=recipe(epochs=9))
    with pytest.raises(UserError, match="epochs is 9"):
        check_comparable([results_of(finished(tmp_path / "w2")), results_of(longer)], "optimiser.lr")
    check_comparable([results_of(tmp_path / "w2"), results_of(longer)], "epochs")


def swept(tmp_path: Path, option: str, values: list[str]) -> Any:
    rows = []
    for model in ("cmp", "seda"):
        for number, value in enumerate(values):
            results = {}
            for seed in (42, 43):
                settings = {"fraction": float(value), "samples": value} if option == "fraction" else {}
                folder = finished(
                    tmp_path / f"{model}{value}{seed}", 5.0 + 4 * number + seed % 2, seed=seed, **settings
                )
                results[seed] = results_of(folder)
            rows.append(RowResults(f"{model} {option}={value}", (42, 43), results, model, value))
    return comparison_of(rows, option)


def test_the_figure_of_a_sweep_has_a_line_and_a_band_a_model_on_an_axis_that_takes_a_zero(tmp_path):
    values = ["0", "0.1", "0.25", "0.5", "1"]
    comparison = swept(tmp_path, "fraction", values)
    figure = sweep_figure(comparison)
    recalls = figure.axes[0]
    assert [axes.get_title() for axes in figure.axes] == ["R@1 (%)", "mAP (%)", "pair accuracy (%)"]
    assert recalls.get_xscale() == "symlog"
    assert [text.get_text() for text in recalls.get_xticklabels()] == ["0 %", "10 %", "25 %", "50 %", "100 %"]
    assert [line.get_label() for line in recalls.lines] == ["cmp", "seda"]
    assert list(recalls.lines[0].get_ydata()) == [5.5, 9.5, 13.5, 17.5, 21.5]
    band = recalls.collections[0].get_paths()[0].vertices
    assert {tuple(map(float, each)) for each in band} >= {(0.1, 9.0), (0.1, 10.0), (1.0, 21.0), (1.0, 22.0)}
    assert png_of(figure) == png_of(sweep_figure(comparison))
    table = markdown(comparison).splitlines()
    assert cells(table[2])[:3] == ["model", "fraction", "seeds"]
    assert cells(table[5])[:3] == ["cmp", "0.1", "2"]


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        (["0", "0.1", "1"], "symlog"),
        (["1", "2", "4", "8"], "log"),
        (["0.1", "0.2", "0.3"], "linear"),
        (["-1", "0", "10"], "linear"),
        (["0"], "linear"),
        (["extra", "off"], ""),
    ],
)
def test_the_axis_of_a_sweep_fits_its_values(values, scale):
    places, found = axis_of(values)
    assert found == scale
    assert len(set(places.values())) == len(values)
    if scale:
        assert places == {value: float(value) for value in values}
