"""What several finished runs say together: figures by row over seeds, what must be equal between them, and tables.

Pure: reads runs' folders, trains nothing, loads no torch. `pipeline.compare` plans and runs.

results_of(folder)          a `Result`: settings, costs and figures of a run's folder; None where no run was begun
check_comparable(results)   UserError that names the first difference which is not the model
comparison_of(rows, ...)    a `Comparison`: cells by row and weights; `markdown`, `csv_text` and `sweep_figure` show it
"""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core.errors import UserError
from pipeline.training.costs import Costs, read_costs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SETTINGS, EVALUATION, METRICS, WEIGHTS = "run.json", "evaluation", "metrics.json", ("last", "best")
FIGURES = ("R@1", "R@5", "mAP", "identity R@1", "pair accuracy")
"""Percent; R@K and mAP are those of the main protocol, the first that the evaluation names."""
LOWEST = "lowest end of its 95 % interval"
IDENTITY = "PAB identity"
LEAST_FOR_STD = 3
TRAINING_GROUPS = ("optimiser", "augmentation")
"""Parts of a recipe that a preset may set otherwise for one model: told under the table, no error."""
_OF_A_RUN = ("recipe", "seed", "synonyms")
_OF_TRAINING = ("fraction", "validation", "samples", "epochs", "batch_size", "accumulate", "precision", "reproduce",
                "preset", "training pairs", "train size")  # fmt: skip
_OF_THE_RECIPE = ("epochs", "batch_size", "evaluation")


@dataclass(frozen=True)
class Result:
    """A run's folder as it stands. settings: its run.json. metrics: by weights, those that were evaluated."""

    folder: Path
    settings: Mapping[str, Any]
    costs: Costs
    metrics: Mapping[str, Mapping[str, Any]]

    @property
    def finished(self) -> bool:
        """Whether it was trained to its end and every weights there are were evaluated."""
        there = [name for name in WEIGHTS if (self.folder / name).is_dir()]
        return self.costs.finished and "last" in self.metrics and all(name in self.metrics for name in there)

    @property
    def protocol(self) -> str:
        """The protocol of R@K and mAP."""
        return next(iter(self.metrics["last"]["protocols"]))

    def figures(self, weights: str = "last") -> dict[str, float]:
        """FIGURES and LOWEST in percent, those that the data allows; empty where these weights were not evaluated."""
        if weights not in self.metrics:
            return {}
        found = self.metrics[weights]
        main = next(iter(found["protocols"].values()))
        figures = {name: main[name] for name in ("R@1", "R@5", "mAP")}
        if IDENTITY in found["protocols"]:
            figures["identity R@1"] = found["protocols"][IDENTITY]["R@1"]
        if found["pair accuracy"]["queries"]:
            figures["pair accuracy"] = found["pair accuracy"]["percent"]
            figures[LOWEST] = found["pair accuracy"]["95 % interval"][0]
        return figures


def results_of(folder: Path) -> Result | None:
    """What a run's folder holds; None where no run was begun there. Raises UserError where a file is damaged."""
    path = folder / SETTINGS
    if not path.is_file():
        return None
    metrics = {}
    for name in WEIGHTS:
        place = folder / EVALUATION / name / METRICS
        if place.is_file():
            metrics[name] = _json(place)
    return Result(folder, _json(path), read_costs(folder), metrics)


def _json(path: Path) -> Any:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is damaged ({error}): delete the folder of its run to begin it anew") from None
    if not isinstance(found, dict):
        raise UserError(f"{path} is damaged (holds no values by name): delete the folder of its run to begin it anew")
    return found


# --- what must be equal -----------------------------------------------------------------------------------------------


def flat(values: Any, prefix: str = "") -> dict[str, Any]:
    """The single values of nested mappings by dotted names."""
    if not isinstance(values, Mapping):
        return {prefix: values}
    return {key: each for name, own in values.items() for key, each in flat(own, f"{prefix}.{name}".strip(".")).items()}


def facts_of(result: Result) -> dict[str, Any]:
    """What two rows of one table must share, by the names that a person gives it: data, protocol, training."""
    settings = result.settings
    facts = {name: value for name, value in settings.items() if name not in _OF_A_RUN}
    recipe = settings["recipe"]
    facts |= flat({name: recipe[name] for name in _OF_THE_RECIPE})
    if recipe["model"].get("eda_weight"):
        facts["synonyms"] = settings["synonyms"]  # only of the models that augment captions
    matches = recipe["model"]["model"] != "dual"
    if not matches:
        # Nothing is matched, so how matching and similarity are joined is no setting of it; and as it is, it is not
        # trained, so neither is how the others were.
        untrained = _OF_TRAINING if not settings["fraction"] else ()
        facts = {
            name: value
            for name, value in facts.items()
            if name not in untrained and not name.startswith("evaluation.") and name != "init"
        }
    costs = result.costs
    known = {"threads": costs.threads, "device": costs.device, "test split": costs.test}
    facts |= {name: value for name, value in known.items() if value}  # a run of an older version does not tell them
    for weights, found in result.metrics.items():
        if weights == "last":
            own = ("gallery", "queries", *(("fusion", "candidates") if matches else ()))
            facts |= {name: found[name] for name in own}
            facts["protocols"] = ", ".join(found["protocols"])
    return facts


def check_comparable(results: Sequence[Result], swept: str | None = None) -> None:
    """Raises UserError where two runs differ in more than the model, the seed and the swept option, naming both.

    A setting that one of them does not have at all is the business of its model. swept: by its dotted name; what
    follows from it (the samples of a fraction) need only agree between runs with one value of it.
    """
    first: dict[str, tuple[Any, Result]] = {}
    for result in results:
        value = _value_of(result, swept) if swept else None
        for name, own in facts_of(result).items():
            if name == swept:
                continue
            key = f"{name} at {value}" if swept and _follows(name, swept) else name
            there, other = first.setdefault(key, (own, result))
            if there != own:
                raise UserError(
                    f"the runs differ in more than the model: {name} is {_short(own)} in {result.folder} and "
                    f"{_short(there)} in {other.folder}; delete the one that is wrong, or use another --out"
                )


def _follows(name: str, swept: str) -> bool:
    if swept == "fraction":
        return name in ("samples", "training pairs", "train size")
    return (swept.startswith("evaluation.") and name in ("fusion", "candidates")) or name.startswith(f"{swept}.")


def _value_of(result: Result, swept: str) -> Any:
    return {**facts_of(result), **flat(result.settings["recipe"])}.get(swept)


def check_planned(folder: Path, settings: Mapping[str, Any], planned: Mapping[str, Any]) -> None:
    """Raises UserError where a run's settings are not those that are planned for its folder.

    An empty list in the plan is one that the run fills from its data.
    """
    own, wanted = flat(settings), flat(planned)
    for name in sorted(wanted):
        value = wanted[name]
        if value == [] or name.startswith("recipe.rows") or name == "recipe.title":
            continue
        if name not in own or own[name] != value:
            raise UserError(
                f"{folder} holds a run with other settings: {name} ({_short(own.get(name))} there, {_short(value)} "
                "here); use another --out, or delete it"
            )


def preset_differences(rows: Mapping[str, Result], swept: str | None = None) -> list[str]:
    """A line for each setting of training that the preset gives some models otherwise than others."""
    values: dict[str, dict[str, Any]] = {}
    for row, result in rows.items():
        recipe = result.settings["recipe"]
        for name, value in flat({group: recipe[group] for group in TRAINING_GROUPS}).items():
            values.setdefault(name, {})[row] = value
    lines = []
    for name, by_row in values.items():
        told = {row: json.dumps(value) for row, value in by_row.items()}
        if name == swept or len(set(told.values())) == 1:
            continue
        usual = statistics.mode(told.values())
        others = ", ".join(f"{row} {value}" for row, value in told.items() if value != usual)
        lines.append(f"The preset trains with another {name}: {others}; the other rows {usual}.")
    return lines


def _short(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


# --- numbers over seeds -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spread:
    """Values over seeds. std: the sample's, None for fewer than three."""

    mean: float
    std: float | None
    least: float
    largest: float

    def __str__(self) -> str:
        if self.std is not None:
            return f"{self.mean:.1f} ± {self.std:.1f}"
        return f"{self.mean:.1f}" if self.least == self.largest else (
            f"{self.mean:.1f} ({self.least:.1f} to {self.largest:.1f})"
        )  # fmt: skip


def spread_of(values: Iterable[float | None]) -> Spread | None:
    """Mean and spread of the values that are there; None where none is."""
    known = [each for each in values if each is not None and not math.isnan(each)]
    if not known:
        return None
    std = statistics.stdev(known) if len(known) >= LEAST_FOR_STD else None
    return Spread(statistics.fmean(known), std, min(known), max(known))


@dataclass(frozen=True)
class RowResults:
    """The runs of a row that are done. wanted: its seeds. value: of the swept option. failed: seed -> why."""

    name: str
    wanted: tuple[int, ...]
    results: Mapping[int, Result]
    model: str = ""
    value: str | None = None
    failed: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Line:
    """A row of the table: figures over seeds by FIGURES; lowest: of pair accuracy's interval, over all seeds."""

    row: RowResults
    weights: str
    seeds: int
    figures: Mapping[str, Spread | None]
    lowest: float | None
    parameters: int | None
    peak_memory: Spread | None
    peak_gpu_memory: Spread | None
    query_milliseconds: Spread | None
    seconds: Spread | None
    pretrained: str


@dataclass(frozen=True)
class Comparison:
    """All rows with last and best weights, and what is said under the table. swept: the option of a sweep."""

    lines: tuple[Line, ...]
    notes: tuple[str, ...]
    swept: str | None = None

    @property
    def failures(self) -> dict[str, str]:
        """`row, seed N` -> why it failed."""
        return {
            f"{line.row.name}, seed {seed}": why
            for line in self.lines
            if line.weights == "last"
            for seed, why in line.row.failed.items()
        }


def comparison_of(rows: Sequence[RowResults], swept: str | None = None) -> Comparison:
    """The table of rows. Raises UserError where their runs differ in more than the model."""
    every = [result for row in rows for result in row.results.values()]
    check_comparable(every, swept)
    lines = [_line(row, weights) for weights in WEIGHTS for row in rows]
    lines = [line for line in lines if line.weights == "last" or line.seeds]
    firsts = {row.name: next(iter(row.results.values())) for row in rows if row.results}
    return Comparison(tuple(lines), tuple(_notes(rows, every, firsts, lines, swept)), swept)


def _line(row: RowResults, weights: str) -> Line:
    results = [each for each in row.results.values() if weights in each.metrics]
    figures = [each.figures(weights) for each in results]
    costs = [each.costs for each in results]
    lows = [each[LOWEST] for each in figures if LOWEST in each]
    return Line(
        row,
        weights,
        len(results),
        {name: spread_of(each.get(name) for each in figures) for name in FIGURES},
        min(lows) if lows else None,
        next((each.parameters for each in costs if each.parameters), None),
        spread_of(each.peak_memory for each in costs),
        spread_of(each.peak_gpu_memory for each in costs),
        spread_of(each.query_milliseconds.get(weights) for each in costs),
        spread_of(each.seconds for each in costs if each.threads),
        _pretrained(results),
    )


def _pretrained(results: Sequence[Result]) -> str:
    starts = {each.costs.start for each in results if each.costs.start}
    if not starts:
        return ""
    text = min(starts)
    return "nothing" if text.startswith("nothing") else text.removeprefix("pretrained from ").partition(";")[0]


def _notes(
    rows: Sequence[RowResults],
    results: Sequence[Result],
    firsts: Mapping[str, Result],
    lines: Sequence[Line],
    swept: str | None,
) -> list[str]:
    notes = []
    if results:
        first = results[0]
        facts, found = facts_of(first), first.metrics["last"]
        chance = 100 / found["gallery"]
        trained = ", ".join(
            f"{told} {facts[name]:g}"
            for name, told in (("epochs", "epochs"), ("batch_size", "batch"), ("fraction", "fraction of the data"))
            if name != swept and name in facts
        )
        digest = "" if swept == "fraction" else f" (training samples {facts['samples']})"
        notes += [
            f"Data {facts['data']}{digest}; preset {facts['preset']}, {trained}; "
            f"{_threads(results)}, {first.costs.device}.",
            f"Protocol {first.protocol} (identity R@1: {IDENTITY}), fusion {found['fusion']}, {found['queries']} "
            f"queries, gallery of {found['gallery']} images, chance R@1 {chance:.2f} %, chance pair accuracy 50 %.",
        ]
        last = [line for line in lines if line.weights == "last" and line.figures["R@1"] is not None]
        recalls = [each.figures("last")["R@1"] / chance for each in results]
        lows = [line.lowest for line in last if line.lowest is not None]
        told = f"Last weights: R@1 is {min(recalls):.1f} times chance in the worst run"
        notes.append(f"{told}, the lowest end of a 95 % interval of pair accuracy {min(lows):.1f} %." if lows else
                     f"{told}.")  # fmt: skip
        if {each.costs.start for each in results if each.costs.start} - {first.costs.start}:
            notes += [f"{name}: {each.costs.start}." for name, each in firsts.items() if each.costs.start]
        notes += preset_differences(firsts, swept)
    seeds = sorted({seed for row in rows for seed in row.wanted})
    counts = [len(row.results) for row in rows if row.results] or [0]
    how = "one run each" if max(counts) < 2 else "mean (least to largest)"
    if max(counts) >= LEAST_FOR_STD:
        how = (
            "mean ± standard deviation"
            if min(counts) >= LEAST_FOR_STD
            else f"{how} of two, ± standard deviation of more"
        )
    lowest = "" if max(counts) < 2 else "; pair accuracy's interval is that of the seed where it is lowest"
    notes += [
        f"Seeds {', '.join(map(str, seeds))}: {how}{lowest}.",
        "Memory: the largest resident set of a training process (on a GPU, what torch allocated there beside it). "
        "Seconds: of training with validation, without the last evaluation. Milliseconds a query: encoding queries, "
        "ranking by features, matching and ranking anew, without encoding the gallery.",
    ]
    notes += [
        f"Failed: {row.name}, seed {seed}: {why}" for row in rows for seed, why in sorted(row.failed.items())
    ]  # fmt: skip
    return notes


def _threads(results: Sequence[Result]) -> str:
    known = next((each.costs.threads for each in results if each.costs.threads), [])
    return f"{' or '.join(map(str, known)) or 'unknown'} thread{'' if known == [1] else 's'} a run"


# --- tables -----------------------------------------------------------------------------------------------------------


def table_cells(comparison: Comparison, weights: str) -> list[tuple[str, ...]]:
    """Head and rows of one table as a person reads it; what training cost stands beside the last weights alone."""
    lines = [line for line in comparison.lines if line.weights == weights]
    gpu = any(line.peak_gpu_memory for line in lines)
    costs = weights == "last"
    varied = (comparison.swept,) if comparison.swept else ()
    head = ["model", *varied, "seeds", *FIGURES[:-1], "pair accuracy", "its 95 % interval from"]
    if costs:
        head += ["parameters", "memory, MiB", *(["GPU memory, MiB"] if gpu else []), "ms a query", "seconds",
                 "pretrained"]  # fmt: skip
    table = [tuple(head)]
    for line in lines:
        row = line.row
        count = str(line.seeds) if line.seeds == len(row.wanted) else f"{line.seeds} of {len(row.wanted)}"
        cells = [row.model if varied else row.name, *([row.value or ""] if varied else []), count]
        cells += [_cell(line.figures[name]) for name in FIGURES]
        cells.append("-" if line.lowest is None else f"{line.lowest:.1f}")
        if costs:
            cells += [f"{line.parameters:,}" if line.parameters else "-", _mean(line.peak_memory, 0)]
            cells += [_mean(line.peak_gpu_memory, 0)] if gpu else []
            cells += [_mean(line.query_milliseconds, 2), _mean(line.seconds, 0), line.pretrained or "-"]
        table.append(tuple(cells))
    return table


def _cell(spread: Spread | None) -> str:
    return "-" if spread is None else str(spread)


def _mean(spread: Spread | None, digits: int) -> str:
    return "-" if spread is None else f"{spread.mean:.{digits}f}"


def plain(comparison: Comparison) -> str:
    """The tables and notes for a terminal."""
    parts = []
    for weights in _weights(comparison):
        table = table_cells(comparison, weights)
        widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
        parts.append(_TITLES[weights])
        parts.append(
            "\n".join(
                "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
                for line in table
            )
        )
    return "\n\n".join([*parts, "\n".join(comparison.notes)])


def markdown(comparison: Comparison) -> str:
    """The tables and notes as Markdown: the last weights, below them those chosen on held-out sources."""
    parts = []
    for weights in _weights(comparison):
        head, *rows = [[text.replace("|", "\\|") for text in line] for line in table_cells(comparison, weights)]
        lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head), *(f"| {' | '.join(row)} |" for row in rows)]
        parts += [_TITLES[weights], "\n".join(lines)]
    return "\n\n".join([*parts, "\n".join(f"* {note}" for note in comparison.notes)]) + "\n"


_TITLES = {
    "last": "Weights of the last epoch:",
    "best": "Weights of the epoch chosen on held-out training sources:",
}


def _weights(comparison: Comparison) -> list[str]:
    there = {line.weights for line in comparison.lines}
    return [name for name in WEIGHTS if name in there]


def csv_text(comparison: Comparison) -> str:
    """Every row and weights as CSV: mean, std (empty below three seeds), least and largest, in full digits."""
    varied = [comparison.swept] if comparison.swept else []
    head = ["model", *varied, "weights", "seeds done", "seeds wanted"]
    for name in FIGURES:
        head += [f"{name} {what}" for what in ("mean", "std", "min", "max")]
    head += ["pair accuracy 95 % interval lowest", "parameters", "peak memory MiB", "peak GPU memory MiB",
             "milliseconds a query", "training seconds", "pretrained", "failed"]  # fmt: skip
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(head)
    for line in comparison.lines:
        row = line.row
        cells: list[Any] = [row.model if varied else row.name, *([row.value] if varied else []), line.weights]
        cells += [line.seeds, len(row.wanted)]
        for name in FIGURES:
            spread = line.figures[name]
            cells += ["", "", "", ""] if spread is None else [
                _number(each) for each in (spread.mean, spread.std, spread.least, spread.largest)
            ]  # fmt: skip
        cells += [_number(line.lowest), line.parameters or ""]
        spreads = (line.peak_memory, line.peak_gpu_memory, line.query_milliseconds, line.seconds)
        cells += [_number(each.mean if each else None) for each in spreads]
        cells += [line.pretrained, "; ".join(f"seed {seed}: {why}" for seed, why in sorted(row.failed.items()))]
        writer.writerow(cells)
    return buffer.getvalue()


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


# --- the figure of a sweep --------------------------------------------------------------------------------------------


def sweep_figure(comparison: Comparison, weights: str = "last") -> Figure:
    """R@1, mAP and pair accuracy against the swept option: mean and range over seeds, a line a model."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = [name for name in ("R@1", "mAP", "pair accuracy")
             if any(line.figures[name] for line in comparison.lines)]  # fmt: skip
    figure = Figure(figsize=(4.2 * max(1, len(names)), 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    lines = [line for line in comparison.lines if line.weights == weights]
    values = list(dict.fromkeys(line.row.value or "" for line in lines))
    places, scale = axis_of(values)
    for number, name in enumerate(names):
        axes = figure.add_subplot(1, len(names), number + 1)
        for model in dict.fromkeys(line.row.model for line in lines):
            points = [
                (places[line.row.value or ""], spread)
                for line in lines
                if line.row.model == model and (spread := line.figures[name]) is not None
            ]
            points.sort(key=lambda point: point[0])
            where = [place for place, _ in points]
            (drawn,) = axes.plot(where, [each.mean for _, each in points], marker="o", markersize=4, label=model)
            axes.fill_between(
                where,
                [each.least for _, each in points],
                [each.largest for _, each in points],
                color=drawn.get_color(),
                alpha=0.2,
                linewidth=0,
            )
        if scale == "symlog":
            positive = min(place for place in places.values() if place > 0)
            axes.set_xscale("symlog", linthresh=positive, linscale=0.6)
        elif scale == "log":
            axes.set_xscale("log")
        if len(values) <= 10 or not scale:
            axes.set_xticks(list(places.values()), [_tick(value, comparison.swept) for value in values])
            axes.minorticks_off()
        axes.set(title=f"{name} (%)", xlabel=_axis_name(comparison.swept))
        if name == "pair accuracy":
            axes.axhline(50, color="grey", linestyle=":", label="chance")
        else:
            axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend()
    return figure


def axis_of(values: Sequence[str]) -> tuple[dict[str, float], str]:
    """Where each value stands on the axis, and the axis: `linear`, `log`, `symlog` (with a 0), or "" for words."""
    try:
        places = {value: float(value) for value in values}
    except ValueError:
        return {value: float(number) for number, value in enumerate(values)}, ""
    positive = [place for place in places.values() if place > 0]
    if any(place < 0 for place in places.values()) or not positive or max(positive) < 8 * min(positive):
        return places, "linear"
    return places, "log" if len(positive) == len(places) else "symlog"


def _tick(value: str, swept: str | None) -> str:
    return f"{100 * float(value):g} %" if swept == "fraction" else value


def _axis_name(swept: str | None) -> str:
    return "share of the training data (0: not trained)" if swept == "fraction" else str(swept)


def png_of(figure: Figure) -> bytes:
    """The figure as PNG bytes, the same for the same figure."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130, metadata={"Software": None})
    return buffer.getvalue()


__all__ = [
    "FIGURES", "LOWEST", "WEIGHTS", "Comparison", "Line", "Result", "RowResults", "Spread", "check_comparable",
    "check_planned", "comparison_of", "csv_text", "facts_of", "markdown", "plain", "png_of", "preset_differences",
    "results_of", "spread_of", "sweep_figure",
]  # fmt: skip
