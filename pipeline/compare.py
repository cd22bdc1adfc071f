"""Several runs of pipeline.train_eval and one table: what `--compare` and `--sweep` do, and who else runs many.

    rows = [Row("cmp", ("--model", "cmp")), Row("no-pose", ("--model", "cmp", "--set", "model.pose=off"))]
    runs = plan_runs(rows, seeds=(42, 43, 44), out=Path("runs/mine"), shared=("--preset", "small", "--data", DATA))
    failed = run_missing(runs, jobs=1)            # {run: why}; trains and evaluates what is not there yet
    found = results_of(runs[0].folder)            # Result | None: settings, costs, metrics; .figures("last")["R@1"]
    print(plain(comparison_of(rows_of(runs, failed))))

Every run is a child process of the ordinary command in a folder of its own (ROW-seedN), with its output in output.log
there; one that was stopped goes on exactly when the same is asked for again. A run that fails costs its own row.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline import cli
from pipeline.core.errors import UserError
from pipeline.train_options import digests_of, is_dual, planned
from pipeline.training.comparison import (
    Comparison,
    Result,
    RowResults,
    check_planned,
    comparison_of,
    csv_text,
    flat,
    markdown,
    plain,
    png_of,
    results_of,
    sweep_figure,
)  # fmt: skip
from pipeline.training.costs import read_costs

SEEDS, FIRST_SEED = 3, 42
OUTPUT, BACKGROUND_LOG = "output.log", "background.log"
_LOCK, _WORKER = ".several.lock", "worker.json"
_OWN = ("compare", "sweep", "seeds", "jobs", "background", "model", "finetune", "seed", "out", "dry_run", "threads",
        "list")  # fmt: skip
"""Options that are of the whole or set for each run; all others go to every run as they were given."""
_ALONE = ("evaluate", "analyse", "checkpoint", "export_published", "import_published")
_LOOK, _SHOW = 0.1, 1.0
"""Seconds between two looks at the running processes, and between two states of the bar."""


@dataclass(frozen=True)
class Row:
    """A row of a table: its name, and the arguments of pipeline.train_eval that make it what it is.

    model: where it is not the name. swept, value: the option of a sweep and what it is here.
    """

    name: str
    arguments: tuple[str, ...]
    model: str = ""
    swept: str | None = None
    value: str | None = None


@dataclass(frozen=True)
class PlannedRun:
    """A run of a row with a seed. arguments: of pipeline.train_eval, all but --threads.

    settings: those that its run.json will have, as far as they are known before the data is read.
    """

    row: Row
    seed: int
    folder: Path
    arguments: tuple[str, ...]
    settings: Mapping[str, Any] = field(compare=False, repr=False)
    fusion: str = ""
    top_k: int = 0

    @property
    def name(self) -> str:
        return f"{self.row.name}, seed {self.seed}"


def plan_runs(
    rows: Sequence[Row], seeds: Sequence[int], out: Path, shared: Sequence[str] = (), check: bool = True
) -> list[PlannedRun]:
    """Every row with every seed, seed by seed, so that a table with all rows is there early.

    shared: arguments of all runs. check: whether rows may differ in the model alone. Raises UserError for arguments
    that are wrong, for rows that share a folder, and where a folder holds a run of other settings.
    """
    runs = []
    for seed in seeds:
        for row in rows:
            folder = out / f"{_file_name(row.name)}-seed{seed}"
            arguments = (*shared, *row.arguments, "--seed", str(seed), "--out", str(folder))
            runs.append(PlannedRun(row, seed, folder, arguments, *planned(arguments)))
    if len({each.folder for each in runs}) < len(runs):
        twice = [each.name for each in runs if [other.folder for other in runs].count(each.folder) > 1]
        raise UserError(f"named twice: {twice[0]}")
    if check:
        _check_alike(runs)
    digests: dict[Any, tuple[str, str]] = {}
    for each in runs:
        there = results_of(each.folder)
        if there is None:
            continue
        check_planned(each.folder, there.settings, each.settings)
        fraction = each.settings["fraction"]
        if fraction not in digests:
            digests[fraction] = digests_of(each.arguments)
        known = (there.settings["samples"], there.costs.test)
        if known[0] != digests[fraction][0] or known[1] not in ("", digests[fraction][1]):
            raise UserError(
                f"{each.folder} holds a run over other data: {there.settings['data']} was built anew since, or --data "
                "is another; use another --out, or delete it"
            )
    return runs


def _file_name(name: str) -> str:
    """A folder's name for a row; one that had to be changed gets a number, so that no two share it."""
    import hashlib

    spaced = name.replace(" ", "-")
    plain_name = re.sub(r"[^A-Za-z0-9._=-]+", "_", spaced).strip("._") or "row"
    if plain_name == spaced and len(name) <= 60:
        return spaced
    return f"{plain_name[:50]}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def _check_alike(runs: Sequence[PlannedRun]) -> None:
    """Rows may differ in their model, and in what their row says; else a UserError names the difference."""

    def strict(run: PlannedRun) -> dict[str, Any]:
        recipe = run.settings["recipe"]
        dual = recipe["model"]["model"] == "dual"  # which matches nothing and, as it is, is not trained
        names = ("epochs", "batch_size", *(() if dual else ("evaluation",)))
        found = flat({name: recipe[name] for name in names if not dual or run.settings["fraction"]})
        return {name: value for name, value in found.items() if name != run.row.swept}

    first = strict(runs[0])
    for run in runs[1:]:
        for name, value in strict(run).items():
            if name in first and value != first[name]:
                raise UserError(
                    f"the rows would differ in more than the model: {name} is {value} for {run.row.name} and "
                    f"{first[name]} for {runs[0].row.name}; give it for all, e.g. --set {name}={first[name]}"
                )


def done(run: PlannedRun) -> bool:
    """Whether the run was trained and evaluated in the way that is wanted."""
    found = results_of(run.folder)
    if found is None or not found.finished:
        return False
    told = found.metrics["last"]
    if told["fusion"] == "similarity":  # a network that matches nothing is ranked by similarity, whatever is wanted
        return True
    return told["fusion"] == run.fusion and told["candidates"] == min(run.top_k, told["gallery"])


def rows_of(runs: Sequence[PlannedRun], failed: Mapping[PlannedRun, str] | None = None) -> list[RowResults]:
    """The rows of the runs with the results of those that are done, in the order of the rows."""
    rows = []
    for row in dict.fromkeys(run.row for run in runs):
        own = [run for run in runs if run.row == row]
        results: dict[int, Result] = {}
        for run in own:
            found = results_of(run.folder) if done(run) else None
            if found is not None:
                results[run.seed] = found
        why = {run.seed: text for run, text in (failed or {}).items() if run.row == row}
        seeds = tuple(run.seed for run in own)
        rows.append(RowResults(row.name, seeds, results, row.model or row.name, row.value, why))
    return rows


# --- running ----------------------------------------------------------------------------------------------------------


@dataclass
class _Child:
    run: PlannedRun
    process: subprocess.Popen[bytes]
    since: float


def run_missing(
    runs: Sequence[PlannedRun],
    jobs: int = 1,
    threads: int | None = None,
    say: Callable[[str], None] = print,
    finished: Callable[[Mapping[PlannedRun, str]], None] = lambda _: None,
) -> dict[PlannedRun, str]:
    """Train and evaluate the runs that are not done, `jobs` at a time. Returns those that failed, with why.

    threads: of each run (default: this machine's, over `jobs`). say: a line when a run begins or ends. finished: called
    with the failures so far after each run. The children end with this process, also when it is killed.
    """
    threads = threads or threads_of(jobs)
    waiting = [run for run in runs if not done(run)]
    check_threads(runs, threads)
    left, failed = list(waiting), dict[PlannedRun, str]()
    spent = _times_of(run for run in runs if run not in waiting)
    children: list[_Child] = []
    bar, shown = cli.Bar("all runs", unit="epochs"), 0.0

    def tell(line: str) -> None:
        if sys.stderr.isatty():
            sys.stderr.write("\r\x1b[K")  # the bar is drawn anew below the line
            sys.stderr.flush()
        say(line)

    if len(waiting) < len(runs):
        tell(f"{len(runs) - len(waiting)} of {len(runs)} runs are done")
    try:
        while left or children:
            while left and len(children) < jobs:
                run = left.pop(0)
                children.append(_Child(run, _start(run, threads), time.monotonic()))
                tell(f"run {runs.index(run) + 1} of {len(runs)}: {run.name} ({run.folder / OUTPUT})")
            time.sleep(_LOOK)
            if sys.stderr.isatty() and time.monotonic() - shown > _SHOW:
                bar(*_epochs(runs))
                shown = time.monotonic()
            for child in [each for each in children if each.process.poll() is not None]:
                children.remove(child)
                code, took = child.process.returncode, time.monotonic() - child.since
                if code == 130 or code == -signal.SIGINT:
                    raise KeyboardInterrupt
                if code or not done(child.run):
                    failed[child.run] = _why(child.run, code)
                    tell(f"failed: {child.run.name}: {failed[child.run]}")
                else:
                    spent.setdefault(child.run.row.name, []).append(took)
                    going = [each.run for each in children]
                    tell(f"done: {child.run.name}, {took:.0f} s{_first_figure(child.run)}"
                        f"{_left([*left, *going], spent, jobs)}")  # fmt: skip
                finished(failed)
    finally:
        bar.close()
        for child in children:
            child.process.terminate()
        for child in children:
            child.process.wait()
    return failed


def threads_of(jobs: int) -> int:
    """The threads of each of so many runs at a time: OMP_NUM_THREADS where it is set, else all, shared evenly."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, (int(given) if given.isdecimal() and int(given) else there) // jobs)


def check_threads(runs: Sequence[PlannedRun], threads: int) -> None:
    """Raises UserError where a run was begun with other threads: the last digits of the figures depend on them."""
    for run in runs:
        known = read_costs(run.folder).threads
        if known and known != [threads]:
            there = " and ".join(map(str, known))
            raise UserError(
                f"{run.folder} was trained with {there} thread{'' if known == [1] else 's'} and the other runs would "
                f"have {threads}, which changes the last digits: pass --threads {known[0]}, or use another --out"
            )


def _start(run: PlannedRun, threads: int) -> subprocess.Popen[bytes]:
    run.folder.mkdir(parents=True, exist_ok=True)
    root = str(Path(__file__).parents[1])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-u", "-m", "pipeline.train_eval", *run.arguments, "--threads", str(threads)]
    with (run.folder / OUTPUT).open("ab") as log:
        log.write(f"$ python -m pipeline.train_eval {shlex.join(command[4:])}\n".encode())
        log.flush()
        ends_with_us = _end_with_parent() if sys.platform == "linux" else None
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=ends_with_us
        )


def _end_with_parent() -> Callable[[], None]:
    """What a child does before it becomes the run: Linux then ends it (SIGTERM) when this process ends, however."""
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def ask() -> None:
        prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)

    return ask


def _why(run: PlannedRun, code: int) -> str:
    """The last line that says why a run failed."""
    if code < 0:
        name = signal.Signals(-code).name
        hint = " (out of memory?)" if -code == signal.SIGKILL else ""
        return f"ended by {name}{hint}; {run.folder / OUTPUT}"
    lines = (run.folder / OUTPUT).read_text("utf-8", errors="replace").splitlines()
    told = [line for line in lines if line.startswith("error: ")] or [line for line in lines if line.strip()]
    said = told[-1].removeprefix("error: ")
    return f"{said} (exit code {code})" if code else f"it wrote no figures; {run.folder / OUTPUT}"


def _times_of(runs: Iterator[PlannedRun] | Sequence[PlannedRun]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for run in runs:
        if seconds := read_costs(run.folder).seconds:
            found.setdefault(run.row.name, []).append(seconds)
    return found


def _first_figure(run: PlannedRun) -> str:
    found = results_of(run.folder)
    figures = found.figures() if found else {}
    return f", R@1 {figures['R@1']:.1f}" if figures else ""


def _left(runs: Sequence[PlannedRun], spent: Mapping[str, Sequence[float]], jobs: int) -> str:
    """How long the others will take, from those that are done: of the same row, else of any."""
    every = [each for own in spent.values() for each in own]
    if not runs or not every:
        return ""
    seconds = sum(_mean(spent.get(run.row.name) or every) for run in runs) / jobs
    told = f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
    return f"; about {told} for the other {len(runs)}"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _epochs(runs: Sequence[PlannedRun]) -> tuple[int, int]:
    """(done, of how many) over all runs."""
    total = sum(run.settings["recipe"]["epochs"] for run in runs if run.settings["fraction"])
    there = 0
    for run in runs:
        with contextlib.suppress(OSError):
            there += (run.folder / "log.jsonl").read_bytes().count(b"\n")
    return there, total


# --- the command ------------------------------------------------------------------------------------------------------


def several_runs(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """`--compare` and `--sweep` of pipeline.train_eval. Exit codes: 0 done, 1 some runs failed, 2 wrong input."""
    if options.compare and options.sweep:
        raise UserError("--compare and --sweep: one of the two; --sweep takes several models as --model cmp,seda")
    for name in _ALONE:
        if getattr(options, name):
            raise UserError(f"--{name.replace('_', '-')} is for one run, not for --compare or --sweep")
    if options.seed != parser.get_default("seed"):
        raise UserError(f"--seed {options.seed}: with several runs, use --seeds {options.seed},")
    jobs = 1 if options.jobs is None else options.jobs
    if jobs < 1 or (options.threads is not None and options.threads < 1):
        raise UserError("--jobs and --threads: at least 1")
    rows = _rows(options)
    swept = rows[0].swept
    out: Path = options.out or Path("runs") / (f"sweep-{_file_name(swept)}" if swept else "compare")
    runs = plan_runs(rows, seeds_of(options.seeds), out, arguments_of(options, parser))
    threads = options.threads or threads_of(jobs)
    check_threads(runs, threads)
    if options.dry_run:
        return _tell_plan(runs, jobs, threads)
    _make(out)
    if options.background:
        return _in_background(out, runs, options, parser)
    try:
        with _alone(out):
            return _work(out, runs, jobs, threads)
    except _BusyError as busy:
        _show(runs)
        raise UserError(f"{out}: {busy}") from None


def _work(out: Path, runs: Sequence[PlannedRun], jobs: int, threads: int) -> int:
    def write(failed: Mapping[PlannedRun, str]) -> None:
        write_tables(out, runs, failed)

    with _ended_like_by_ctrl_c():
        write({})  # also says, before hours are spent, whether what is there fits together
        failed = run_missing(runs, jobs, threads, lambda line: print(line, flush=True), write)
    comparison = write_tables(out, runs, failed)
    print(f"\n{plain(comparison)}\n")
    for path in _files(out, runs):
        print(f"wrote {path}")
    for run, why in failed.items():
        print(f"failed: {run.name}: {why}", file=sys.stderr)
    return cli.SOME_FAILED if failed else cli.DONE


def write_tables(out: Path, runs: Sequence[PlannedRun], failed: Mapping[PlannedRun, str]) -> Comparison:
    """Write the CSV, the Markdown and, for a sweep, the figure of what is done. Returns the comparison.

    Raises UserError where the runs differ in more than the model.
    """
    from pipeline.core.store import write_atomically

    comparison = comparison_of(rows_of(runs, failed), runs[0].row.swept)
    contents = [csv_text(comparison).encode(), markdown(comparison).encode()]
    if comparison.swept and any(line.seeds for line in comparison.lines):
        contents.append(png_of(sweep_figure(comparison)))
    for path, content in zip(_files(out, runs), contents, strict=False):
        write_atomically(path, content)
    return comparison


def _files(out: Path, runs: Sequence[PlannedRun]) -> list[Path]:
    if runs[0].row.swept is None:
        return [out / "compare.csv", out / "compare.md"]
    return [out / "sweep.csv", out / "sweep.md", out / "sweep.png"]


def _called(model: str, options: argparse.Namespace) -> tuple[str, ...]:
    """A row's model as it is typed; --finetune is for those rows alone that can be fine-tuned."""
    return ("--model", model, *(("--finetune",) if options.finetune and is_dual(model) else ()))


def _rows(options: argparse.Namespace) -> list[Row]:
    """The rows in the order they are given."""
    models = _names(options.compare or options.model, "--compare" if options.compare else "--model")
    if not options.sweep:
        return [Row(model, _called(model, options), model) for model in models]
    name, equals, text = options.sweep.partition("=")
    values = values_of(text)
    if not equals or not name or not values:
        raise UserError(f"--sweep {options.sweep}: use OPTION=VALUE,VALUE,..., e.g. fraction=0,0.1,0.5,1")
    if len(set(values)) < len(values):
        raise UserError(f"--sweep {options.sweep}: a value comes twice")
    rows = []
    for model in models:
        for value in values:
            arguments = ("--fraction", value) if name == "fraction" else ("--set", f"{name}={value}")
            called = (*_called(model, options), *arguments)
            rows.append(Row(f"{model} {name}={value}", called, model, name, value))
    if name == "fraction":
        for value in values:
            try:
                float(value)
            except ValueError:
                raise UserError(f"--sweep {options.sweep}: {value!r} is no number") from None
    return rows


def _names(text: str, option: str) -> list[str]:
    names = [each.strip() for each in text.split(",") if each.strip()]
    if not names or len(set(names)) < len(names):
        raise UserError(f"{option} {text}: names with commas between them, each once, e.g. cmp,seda")
    return names


def values_of(text: str) -> list[str]:
    """The values of a sweep: parted by commas that stand in no brackets.

    >>> values_of("[1, 2],[3, 4],off")
    ['[1, 2]', '[3, 4]', 'off']
    """
    values, depth = [""], 0
    for letter in text:
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth == 0:
            values.append("")
        else:
            values[-1] += letter
    return [each.strip() for each in values if each.strip()]


def seeds_of(text: str | None) -> tuple[int, ...]:
    """`3` is 42, 43, 44; with a comma it is a list: `7,8`, or `7,` for one. Raises UserError."""
    told = str(SEEDS) if text is None else text
    try:
        numbers = [int(each) for each in told.split(",") if each.strip()]
    except ValueError:
        numbers = []
    if "," not in told and numbers and numbers[0] > 0:
        return tuple(range(FIRST_SEED, FIRST_SEED + numbers[0]))
    if "," not in told or not numbers or len(set(numbers)) < len(numbers):
        raise UserError(f"--seeds {told}: how many (3 is 42,43,44), or different numbers with commas: 7,8")
    return tuple(numbers)


def arguments_of(
    options: argparse.Namespace, parser: argparse.ArgumentParser, without: Sequence[str] = _OWN
) -> tuple[str, ...]:
    """The options as they would be given on a command line, those at their default and `without` left out."""
    found: list[str] = []
    for action in parser._actions:
        value: Any = getattr(options, action.dest, None)
        if action.dest in (*without, "help") or not action.option_strings or value == action.default:
            continue
        flag = action.option_strings[-1]
        if isinstance(action, argparse._StoreTrueAction):
            found.append(flag)
        elif isinstance(action, argparse._AppendAction):
            found += [f"{flag}={each}" for each in value]
        elif isinstance(value, list | tuple):
            found += [flag, *map(str, value)]
        else:
            found.append(f"{flag}={value}")
    return tuple(found)


def _tell_plan(runs: Sequence[PlannedRun], jobs: int, threads: int) -> int:
    missing = [run for run in runs if not done(run)]
    print(f"{len(runs)} runs, {len(runs) - len(missing)} of them done; {jobs} at a time, {threads} threads each")
    for run in missing:
        print(f"would run: python -m pipeline.train_eval {shlex.join(run.arguments)} --threads {threads}")
    _show(runs)
    return cli.DONE


def _show(runs: Sequence[PlannedRun]) -> None:
    """The table so far, where there is something in it."""
    rows = rows_of(runs)
    if any(row.results for row in rows):
        print(f"so far:\n\n{plain(comparison_of(rows, runs[0].row.swept))}\n", flush=True)


class _BusyError(Exception):
    """Another process works in the folder; says which."""


def _make(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {out}: cannot be made ({error.strerror})") from None


@contextlib.contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Hold the folder of all runs; one that was killed holds it no longer. Raises _BusyError where another does."""
    import platform
    from datetime import datetime

    from filelock import FileLock, Timeout

    from pipeline.core.store import write_atomically

    lock = FileLock(out / _LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise _BusyError(_worker(out)) from None
    try:
        since = datetime.now().astimezone().isoformat(" ", "seconds")
        told = {"process": os.getpid(), "machine": platform.node(), "since": since}
        write_atomically(out / _WORKER, (json.dumps(told) + "\n").encode())
        yield
    finally:
        (out / _WORKER).unlink(missing_ok=True)
        lock.release()


def _worker(out: Path) -> str:
    who = "another process"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        told = json.loads((out / _WORKER).read_text("utf-8"))
        who = f"process {told['process']} on {told['machine']} (since {told['since']})"
    return f"{who} works on it; wait for it, or stop it (kill) and repeat the command to go on"


@contextlib.contextmanager
def _ended_like_by_ctrl_c() -> Iterator[None]:
    """A SIGTERM ends the children and says how to go on, as Ctrl-C does."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not in the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _in_background(
    out: Path, runs: Sequence[PlannedRun], options: argparse.Namespace, parser: argparse.ArgumentParser
) -> int:
    """Start the same command in a session of its own, and say how to follow and how to stop it."""
    try:
        with _alone(out):
            write_tables(out, runs, {})
    except _BusyError as busy:
        raise UserError(f"{out}: {busy}") from None
    log = out / BACKGROUND_LOG
    again = arguments_of(options, parser, without=("background",))
    root = str(Path(__file__).parents[1])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    with log.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "pipeline.train_eval", *again],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    print(f"{len(runs)} runs go on in the background as process {process.pid}")
    print(f"  follow: tail -f {shlex.quote(str(log))}")
    print(f"  stop:   kill {process.pid}    (repeat the command to go on)")
    print(f"  table:  {_files(out, runs)[1]}, after every run anew")
    return cli.DONE
