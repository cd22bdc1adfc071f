"""Holds decomposers against captions marked by hand: words in their place, speed, memory.

python -m bench.decomposers [--captions 20] [--backends clauses,smollm2] [--set smollm2.copy=false]

The captions are the first ones of the untouched half of tests/cases/text/factors_60.json, which no rule was made for.
They are counted and never shown. Each engine works in a process of its own; one whose packages are missing is passed
over with the command that installs it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from bench.labelled import SplitScore, plain_caption, read_labels, score_splits
from pipeline.backends import registry
from pipeline.backends.protocols import BackendContext, FactorTexts
from pipeline.core.errors import UserError
from pipeline.core.prompts import load_prompt
from pipeline.core.workers import use_one_thread
from pipeline.decompose import FACTORS, faithful_factors

SECTION = "decompose"
_FIRST = "A man walks."
"""Asked before the clock starts, so that loading is not counted as speed."""


@dataclass(frozen=True)
class Measured:
    """One engine's answers and what they cost.

    load_s: seconds until its first answer. caption_s: seconds a caption after that. tokens: that a model wrote for
    them, or None where there is none. retries, unanswered: captions asked twice, and those without any answer.
    memory_mib: the most that its process held.
    """

    splits: list[FactorTexts]
    load_s: float
    caption_s: float
    tokens: int | None
    retries: int
    unanswered: int
    memory_mib: float


def measure(name: str, settings: Mapping[str, Any], captions: Sequence[str], prompt: str) -> Measured:
    """Ask an engine for each caption, one at a time. To be called in a process that has done nothing else."""
    use_one_thread()
    start = time.perf_counter()
    engine = registry.create(SECTION, name, BackendContext(settings, Path(), Path()))
    engine.decompose([_FIRST], prompt)
    loaded = time.perf_counter()
    before = {key: getattr(engine, key, 0) for key in ("generated_tokens", "retries", "unanswered")}
    splits = [engine.decompose([caption], prompt)[0] for caption in captions]
    seconds = time.perf_counter() - loaded
    spent = {key: getattr(engine, key, 0) - value for key, value in before.items()}
    return Measured(
        splits=splits,
        load_s=loaded - start,
        caption_s=seconds / len(captions),
        tokens=spent["generated_tokens"] if hasattr(engine, "generated_tokens") else None,
        retries=spent["retries"],
        unanswered=spent["unanswered"],
        memory_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )


def thrown_away(captions: Sequence[str], splits: Sequence[FactorTexts]) -> tuple[int, int]:
    """How many factors the stage makes null because they say what the caption does not, and how many there were."""
    given = [(caption, split, name) for caption, split in zip(captions, splits, strict=True) for name in FACTORS]
    said = [(caption, split, name) for caption, split, name in given if getattr(split, name)]
    return sum(getattr(faithful_factors(caption, split), name) is None for caption, split, name in said), len(said)


def as_kept(captions: Sequence[str], splits: Sequence[FactorTexts]) -> list[FactorTexts]:
    """The splits as the stage writes them, its check of content words behind them."""
    kept = [faithful_factors(caption, split) for caption, split in zip(captions, splits, strict=True)]
    return [FactorTexts(each.appearance, each.action, each.background) for each in kept]


def lines_of(marked: Sequence[str], found: Measured) -> list[tuple[str, str]]:
    """What the table says of one engine: (name of the figure, value)."""
    captions = [plain_caption(text) for text in marked]
    thrown, said = thrown_away(captions, found.splits)
    score: SplitScore = score_splits(marked, as_kept(captions, found.splits))
    tokens = "-" if found.tokens is None else f"{found.tokens / (found.caption_s * len(captions)):.1f}"
    return [
        ("content words in the right factor", f"{score.right.value or 0:.1%}"),
        ("  of appearance", f"{score.factors['appearance'].value or 0:.1%}"),
        ("  of action", f"{score.factors['action'].value or 0:.1%}"),
        ("  of background", f"{score.factors['background'].value or 0:.1%}"),
        ("content words in some factor", f"{score.somewhere.value or 0:.1%}"),
        ("captions with a word in two factors", f"{score.doubled} of {len(captions)}"),
        ("factors thrown away as unfaithful", f"{thrown} of {said}"),
        ("captions asked twice; without answer", f"{found.retries}; {found.unanswered}"),
        ("seconds a caption", f"{found.caption_s:.3f}"),
        ("tokens written a second", tokens),
        ("seconds to load and answer once", f"{found.load_s:.1f}"),
        ("memory of the process, MiB", f"{found.memory_mib:.0f}"),
    ]


def table(columns: Mapping[str, Sequence[tuple[str, str]]]) -> str:
    """The engines side by side, one figure a line."""
    wide = max(len(name) for name, _ in next(iter(columns.values())))
    head = " " * wide + "".join(f"  {name:>12}" for name in columns)
    rows = zip(*columns.values(), strict=True)
    return "\n".join([head, *(f"{row[0][0]:<{wide}}" + "".join(f"  {value:>12}" for _, value in row) for row in rows)])


def missing_packages(name: str) -> str | None:
    """What an engine needs and has not got, with the command that installs it; None where all is there."""
    packages = registry.entry(SECTION, name).packages
    absent = {package: remedy for package, remedy in packages.items() if importlib.util.find_spec(package) is None}
    if not absent:
        return None
    return f"{', '.join(absent)} not installed: {'; '.join(dict.fromkeys(absent.values()))}"


def settings_of(given: Sequence[str]) -> dict[str, dict[str, Any]]:
    """`backend.key=value` texts as settings by backend; a value is JSON. Raises UserError for any other text."""
    found: dict[str, dict[str, Any]] = {}
    for text in given:
        path, _, value = text.partition("=")
        name, _, key = path.partition(".")
        try:
            found.setdefault(name, {})[key] = json.loads(value)
        except json.JSONDecodeError:
            raise UserError(f"--set {text}: a setting reads backend.key=value, as smollm2.copy=false") from None
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; 2 for wrong input or where no engine asked for is installed."""
    parser = argparse.ArgumentParser(prog="python -m bench.decomposers", description=__doc__.splitlines()[0])
    parser.add_argument("--captions", type=int, default=20, help="how many, at most 30 (default: 20)")
    parser.add_argument("--backends", default="clauses,smollm2", help="default: clauses,smollm2")
    parser.add_argument("--set", action="append", default=[], metavar="BACKEND.KEY=VALUE", help="an engine's setting")
    options = parser.parse_args(argv)
    marked = [row["marked"] for row in read_labels("factors_60") if row["half"] == "untouched"][: options.captions]
    columns = {}
    try:
        if options.captions < 1:
            raise UserError("--captions: at least 1")
        settings = settings_of(options.set)
        if stray := sorted(set(settings) - set(options.backends.split(","))):
            raise UserError(f"--set: {stray[0]} is not among --backends {options.backends}")
        for name in options.backends.split(","):
            registry.fingerprint(SECTION, name, settings.get(name, {}))
        for name in options.backends.split(","):
            own = settings.get(name, {})
            if missing := missing_packages(name):
                print(f"{name}: not measured, {missing}", file=sys.stderr)
                continue
            captions = [plain_caption(text) for text in marked]
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                found = pool.submit(measure, name, own, captions, load_prompt(SECTION).text).result()
            columns[name] = lines_of(marked, found)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if columns:
        print(f"{len(marked)} captions marked by hand, none of them used to make a rule\n\n{table(columns)}")
    return 0 if columns else 2


if __name__ == "__main__":
    raise SystemExit(main())
