"""Several recipes over several seeds: how good each is on the test split, how far seeds spread, where the time goes.

python -m bench.seeds [--models baseline,m1,m2,cmp,seda] [--seeds 42,43,44] [--data ./out/pab] [--runs runs/seeds]

Trains what is not there yet, one run after the other (`pipeline.train_eval --preset small`; repeat the command to go
on), then prints one row a recipe: mean and range over the seeds, of the last weights and of those chosen on held-out
training sources. Every row is ranked by the same protocol and fusion. Exit code 1 where a run misses its target.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core.errors import UserError

MODELS = ("baseline", "m1", "m2", "cmp", "seda")
SEEDS = (42, 43, 44)
TIMES_CHANCE = 15
"""R@1 of a run, at least, in multiples of one over the gallery."""


@dataclass(frozen=True)
class Figures:
    """One evaluation: percent, but for `interval` (95 %, percent) and gallery (images)."""

    recall: float
    identity: float
    pairs: float
    interval: tuple[float, float]
    gallery: int
    fusion: str

    @property
    def meets_target(self) -> bool:
        """R@1 at 15 times chance, and a pair accuracy that is not chance."""
        return self.recall >= TIMES_CHANCE * 100 / self.gallery and self.interval[0] > 50


def figures_of(metrics: dict[str, Any]) -> Figures:
    """The figures of a `metrics.json`. Raises KeyError where it lacks one."""
    protocols, pairs = metrics["protocols"], metrics["pair accuracy"]
    return Figures(
        protocols["PAB behaviour"]["R@1"],
        protocols["PAB identity"]["R@1"],
        pairs["percent"],
        tuple(pairs["95 % interval"]),
        metrics["gallery"],
        metrics["fusion"],
    )


def spread(values: Sequence[float]) -> str:
    """`17.1 (15.7 to 19.3)`: mean, least and largest."""
    return f"{sum(values) / len(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def table_of(found: dict[str, dict[str, list[Figures]]], seconds: dict[str, list[dict[str, float]]]) -> str:
    """Markdown: a row for each recipe and kind of weights. found: recipe -> last | best -> a value a seed."""
    head = ("recipe", "weights", "R@1", "identity R@1", "pair accuracy", "its 95 % interval, lowest end", "seconds")
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    for recipe, by_weights in found.items():
        for weights, runs in by_weights.items():
            cells = [
                *(spread([getattr(run, name) for run in runs]) for name in ("recall", "identity", "pairs")),
                f"{min(run.interval[0] for run in runs):.1f}",
                spread([sum(each.values()) for each in seconds[recipe]]) if recipe in seconds else "",
            ]
            lines.append(f"| {recipe} | {weights} | {' | '.join(cells)} |")
    return "\n".join(lines)


def shares_of(seconds: Sequence[dict[str, float]]) -> str:
    """`steps 80 %, batches 9 %, ...` over several runs."""
    names = dict.fromkeys(name for each in seconds for name in each)
    whole = sum(sum(each.values()) for each in seconds)
    return ", ".join(f"{name} {100 * sum(each.get(name, 0) for each in seconds) / whole:.0f} %" for name in names)


def main(argv: Sequence[str] | None = None) -> int:
    """Train what is missing, print the table; 1 where a run misses the target, 2 for wrong input."""
    from pipeline import cli

    parser = argparse.ArgumentParser(
        prog="python -m bench.seeds", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default=",".join(MODELS), help=f"(default: {','.join(MODELS)})")
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)), help="(default: 42,43,44)")
    parser.add_argument("--data", default="./out/pab", help="a published dataset (default: ./out/pab)")
    parser.add_argument("--runs", type=Path, default=Path("runs/seeds"), help="(default: runs/seeds)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides")
    options = parser.parse_args(argv)
    return cli.guarded(lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    from pipeline import train_eval
    from pipeline.training.results import METRICS

    try:
        seeds = [int(each) for each in options.seeds.split(",")]
    except ValueError:
        raise UserError(f"--seeds {options.seeds}: numbers with commas between them, e.g. 42,43,44") from None
    models = options.models.split(",")
    found: dict[str, dict[str, list[Figures]]] = {}
    seconds: dict[str, list[dict[str, float]]] = {}
    for seed in seeds:
        for model in models:
            folder = options.runs / f"{model}-{seed}"
            paths = {name: folder / train_eval.EVALUATION / name / METRICS for name in train_eval.WEIGHTS}
            if not all(path.is_file() for path in paths.values()):
                arguments = ["--model", model, "--seed", str(seed), "--preset", "small", "--data", options.data]
                changes = [part for each in options.overrides for part in ("--set", each)]
                if code := train_eval.main([*arguments, *changes, "--out", str(folder)]):
                    return code
            for name, path in paths.items():
                row = found.setdefault(model, {}).setdefault(name, [])
                row.append(figures_of(json.loads(path.read_text("utf-8"))))
            if (folder / train_eval.TIMES).is_file():
                seconds.setdefault(model, []).append(json.loads((folder / train_eval.TIMES).read_text("utf-8")))
    print(f"\n{table_of(found, seconds)}\n")
    first = next(iter(found.values()))["last"][0]
    least = TIMES_CHANCE * 100 / first.gallery
    print(
        f"{len(seeds)} seeds; gallery {first.gallery} images, chance {100 / first.gallery:.2f} %, fusion {first.fusion}"
    )
    for model, spent in seconds.items():
        print(f"time of {model}: {shares_of(spent)}")
    runs = [(model, name, each) for model, by in found.items() for name, own in by.items() for each in own]
    missed = [f"{model} ({name})" for model, name, each in runs if not each.meets_target]
    what = f"R@1 at least {least:.1f} % and a pair accuracy whose interval lies above 50 %"
    print(f"target {what}: {'missed by ' + ', '.join(missed) if missed else f'met by all {len(runs)} evaluations'}")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
