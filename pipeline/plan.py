"""What a build will take, before anything runs: `python -m pipeline.plan --profile full [--gpus 8 --gpu h100]`.

Per stage: records, requests, tokens, GPU hours, time, disk; then what this machine lacks for it. `--measure FILE` times
a few items of each stage here, with the profile's engines, and writes rates that `--rates FILE` reckons with later.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from pipeline import preflight, tiny_models
from pipeline.cli import DONE, common_parser, guarded, profile_and_build
from pipeline.core.errors import UserError
from pipeline.core.gpus import visible_gpus
from pipeline.core.planning import (
    ESTIMATE,
    Rates,
    Span,
    Step,
    disk_of,
    load_rates,
    plan_steps,
    total,
)
from pipeline.core.profile import Profile
from pipeline.core.store import write_atomically
from pipeline.core.workers import use_one_thread
from pipeline.preflight import Missing
from pipeline.timing import gpu_key, measure
from pipeline.workload import Counts, workload

ITEMS = 32
_MARK = "~"


@dataclasses.dataclass(frozen=True)
class Plan:
    """A build's plan: its steps, on which and how many GPUs and CPU workers, what was counted, what is missing here."""

    profile: str
    title: str
    gpu: str
    gpus: int
    workers: int
    counts: Counts
    steps: tuple[Step, ...]
    missing: tuple[Missing, ...]
    batch_sizes: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def gpu_seconds(self) -> Span:
        """Of all GPUs together."""
        return total(step.busy for step in self.steps if step.work.on_gpu)

    @property
    def wall(self) -> Span:
        """Seconds from start to end of the stages with a known rate."""
        return total(step.wall for step in self.steps)


def make_plan(
    profile: Profile, build: str, rates: Rates, name: str, gpu: str | None = None, gpus: int | None = None
) -> Plan:
    """The plan of a build. gpu and gpus: the profile's `hardware` where none are given.

    Raises UserError for a GPU that the rates do not know.
    """
    gpu, gpus = gpu or profile.hardware.gpu, gpus or profile.hardware.gpus
    works, counts = workload(profile, build, rates)
    steps = tuple(plan_steps(works, rates, gpu, gpus, profile.workers))
    missing = tuple(preflight.missing_pieces(profile, build))
    return Plan(name, profile.title, gpu, gpus, profile.workers, counts, steps, missing, rates.batch_sizes)


def format_plan(plan: Plan) -> str:
    """The plan as a table for a terminal."""
    on_gpus = any(step.work.on_gpu for step in plan.steps)
    hardware = f"{plan.gpus} x {plan.gpu} and " if on_gpus else ""
    workers = f"{plan.workers} CPU worker{'s' if plan.workers != 1 else ''}"
    header = (
        "stage",
        "in",
        "kept",
        "requests",
        "tokens in",
        "tokens out",
        "GPU hours",
        "time",
        "disk",
        "rate of",
        "from",
    )
    rows = [_row(step) for step in plan.steps]
    disks = disk_of(plan.steps)
    places = " + ".join(f"{_bytes(size)} in {place}" for place, size in disks.items())
    known = [step.wall for step in plan.steps if step.wall is not None]
    rows.append(
        (
            "all",
            *("",) * 5,
            _hours(plan.gpu_seconds) if on_gpus else "",
            _time(plan.wall) if known else "",
            _bytes(sum(disks.values())),
            "",
            "",
        )
    )
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    lines = [f"{plan.profile}: {plan.title}", f"on {hardware}{workers}; counts: {plan.counts.said_by}", ""]
    for row in [header, *rows[:-1], None, rows[-1]]:
        if row is None:
            lines.append("-" * len(lines[3]))
            continue
        cells = [
            cell.ljust(width) if column in (0, len(header) - 2, len(header) - 1) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    lines += ["", f"disk: {places}"]
    taken = [f"{step.work.stage} {step.work.taken_over:,.0f}" for step in plan.steps if step.work.taken_over]
    if taken:
        lines.append(f"there already, and not made again: {', '.join(taken)}")
    for stage, size in plan.batch_sizes.items():
        lines.append(
            f"{stage}: the largest batch that fit when it was measured is {size} ({stage}.settings.batch_size)"
        )
    if any(step.origin == ESTIMATE for step in plan.steps):
        lines.append(
            f"{_MARK} something in it is nobody's figure, see pipeline/rates.yaml; --measure FILE finds this machine's"
        )
    unknown = [step.work.stage for step in plan.steps if step.wall is None]
    if unknown:
        lines.append(
            f"no rate is known for {', '.join(unknown)} on this hardware: the sum is without; --measure finds it"
        )
    lines.append("")
    lines += (
        ["missing on this machine:", *(f"  * {piece}" for piece in plan.missing)]
        if plan.missing
        else ["nothing is missing on this machine"]
    )
    return "\n".join(lines)


def _row(step: Step) -> tuple[str, ...]:
    work = step.work
    return (
        work.stage,
        f"{work.items:,.0f}",
        f"{work.kept:,.0f}",
        _count(work.requests),
        _count(work.tokens_in),
        _count(work.tokens_out),
        (_hours(step.busy) if step.busy else "?") if work.on_gpu else "",
        _time(step.wall) if step.wall else "?",
        _bytes(work.disk_bytes),
        f"{work.engine} on {step.device}" if work.engine else step.device,
        f"{_MARK} {step.origin}" if step.origin == ESTIMATE else step.origin,
    )


def _count(number: float) -> str:
    if not number:
        return ""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f}"


def _span(span: Span, unit: float, name: str) -> str:
    low, high = (f"{value / unit:,.1f}" if value / unit < 10 else f"{value / unit:,.0f}" for value in _ends(span))
    return f"{low} {name}".strip() if low == high else f"{low}-{high} {name}".strip()


def _ends(span: Span) -> tuple[float, float]:
    return span.low, span.high


def _hours(span: Span) -> str:
    return _span(span, 3600, "") if span.high >= 180 else f"{span.high / 3600:.2f}"


def _time(span: Span) -> str:
    if span.high < 90:
        return _span(span, 1, "s")
    return _span(span, 60, "min") if span.high < 5400 else _span(span, 3600, "h")


def _bytes(number: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f} B"


def plan_json(plan: Plan) -> dict[str, Any]:
    """The plan as plain data; times in seconds, disk in bytes."""
    steps = [
        {
            "stage": step.work.stage,
            "engine": step.work.engine,
            "device": step.device,
            "on_gpu": step.work.on_gpu,
            "items": round(step.work.items),
            "kept": round(step.work.kept),
            "taken_over": round(step.work.taken_over),
            "shards": step.work.shards,
            "requests": round(step.work.requests),
            "tokens_in": round(step.work.tokens_in),
            "tokens_out": round(step.work.tokens_out),
            "busy_s": dataclasses.astuple(step.busy) if step.busy else None,
            "wall_s": dataclasses.astuple(step.wall) if step.wall else None,
            "disk_bytes": round(step.work.disk_bytes),
            "place": step.work.place,
            "origin": step.origin,
        }
        for step in plan.steps
    ]
    return {
        "profile": plan.profile,
        "gpu": plan.gpu,
        "gpus": plan.gpus,
        "workers": plan.workers,
        "counts": plan.counts.said_by,
        "steps": steps,
        "gpu_s": dataclasses.astuple(plan.gpu_seconds),
        "wall_s": dataclasses.astuple(plan.wall),
        "disk_bytes": {place: round(size) for place, size in disk_of(plan.steps).items()},
        "batch_sizes": plan.batch_sizes,
        "missing": [str(piece) for piece in plan.missing],
    }


def write_rates(path: Path, rates: Rates, said: str) -> None:
    """Write measured rates as a file that `load_rates` reads."""
    data = rates.model_dump(mode="json", exclude_defaults=True)
    text = yaml.safe_dump(data, sort_keys=False, default_flow_style=None, width=120, allow_unicode=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, f"# {said}\n{text}".encode())


def _machine() -> str:
    gpus = [gpu.name for gpu in visible_gpus()]
    return f"{os.cpu_count()} CPU cores, {', '.join(gpus) if gpus else 'no GPU'}"


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m pipeline.plan`. Exit codes: 0 done (also where pieces are missing: they are listed), 2 wrong input."""
    use_one_thread()
    parser = common_parser("pipeline.plan", "Say what a build will take, stage by stage, before anything runs.")
    parser.add_argument("--gpu", metavar="NAME", help="reckon with this GPU (default: the profile's hardware)")
    parser.add_argument("--gpus", type=int, metavar="N", help="and with so many (default: the profile's hardware)")
    parser.add_argument("--rates", type=Path, metavar="FILE", help="rates that come before pipeline/rates.yaml")
    parser.add_argument("--json", action="store_true", help="print plain data in place of the table")
    parser.add_argument(
        "--measure", type=Path, metavar="FILE", help="time the stages here, write the rates to FILE, plan with them"
    )
    parser.add_argument("--items", type=int, default=ITEMS, help=f"records a stage that --measure times ({ITEMS})")
    options = parser.parse_args(argv)
    return guarded(lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    profile, build = profile_and_build(options)
    if options.gpus is not None and options.gpus < 1:
        raise UserError(f"--gpus {options.gpus}: at least one; a profile without GPU engines needs none named")
    if options.items < 8:
        raise UserError(f"--items {options.items}: at least 8, or there is nothing to time once the engines are loaded")
    rates = load_rates()
    if options.rates is not None:
        rates = load_rates(options.rates).over(rates)
    gpu = options.gpu
    if options.measure is not None:
        rates = _measure(options, profile, build).over(rates)
        here = visible_gpus()
        gpu = gpu or (gpu_key(here[0].name) if here else None)
    plan = make_plan(profile, build, rates, Path(options.profile).stem, gpu, options.gpus)
    print(json.dumps(plan_json(plan), indent=1) if options.json else format_plan(plan))
    return DONE


def _measure(options: argparse.Namespace, profile: Profile, build: str) -> Rates:
    if missing := preflight.missing_pieces(profile, build):
        raise UserError(preflight.explain(options.profile, missing))
    tiny_models.write(profile)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pab-measure-") as folder:
        measured = measure(profile, options.items, Path(folder), lambda line: print(line, file=sys.stderr, flush=True))
    seconds = time.monotonic() - start
    command = f"python -m pipeline.plan --profile {options.profile} --measure"
    said = f"Measured by {command} on {_machine()}, in {seconds:.0f} s"
    # Of the last minute; our own workers are among what runs.
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > max(cores, profile.workers) + 1:
        said += f", while {load:.0f} processes shared the cores"
        print(f"{load:.0f} processes share the {cores} cores: these times are those of a busy machine", file=sys.stderr)
    write_rates(options.measure, measured, said)
    print(f"measured in {seconds:.0f} s: {options.measure}\n", file=sys.stderr)
    return measured


if __name__ == "__main__":
    raise SystemExit(main())
