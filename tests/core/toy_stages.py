"""Two small stages for the tests of store and runner, and processes that run them and die at a given moment."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core.profile import Profile, load_profile
from pipeline.core.runner import ShardResult, run_shard
from pipeline.core.stage import Failed, Kept, Measured, Measuring, Outcome, Rejected, Stage, StageContext
from pipeline.core.store import Store
from schemas.records import Record

SHARD = "train-000"
BATCH = 4


class Word(Record):
    text: str
    blob: bytes


class Length(Record):
    letters: int


@dataclass(frozen=True)
class WordItem:
    id: str
    group: str = ""


def words(number: int) -> list[WordItem]:
    """Items in pairs: w000 and w001 are group g000, and so on."""
    return [WordItem(f"w{n:03d}", f"g{n // 2:03d}") for n in range(number)]


def word_outcome(item: WordItem, salt: str = "") -> Outcome:
    n = int(item.id[1:])
    if n % 7 == 3:
        return Rejected(item.id, "too_odd", f"number {n}")
    if n % 11 == 5:
        return Failed(item.id, "unreadable", f"number {n}")
    digest = hashlib.sha256(f"{salt}{item.id}".encode())
    return Kept(Word(id=item.id, text=f"{salt}{digest.hexdigest()}", blob=digest.digest() * 20))


def run_words(_context: StageContext, batch: Sequence[WordItem]) -> list[Outcome]:
    return [word_outcome(item) for item in reversed(batch)]


def words_stage(number: int = 13, **changes: Any) -> Stage:
    """Stage `words`: makes `number` words out of nothing; 3, 10, ... are rejected, 5, 16, ... fail."""
    made = Stage(
        name="words",
        version=1,
        summary="words",
        shard_kinds=("train",),
        reads={},
        writes=Word,
        reasons=("too_odd",),
        upstream=lambda _profile, _shard: [],
        items=lambda _context: list(reversed(words(number))),
        run=run_words,
        config=("similarity.max_cosine",),
    )
    return dataclasses.replace(made, **changes)


def lengths_stage(**changes: Any) -> Stage:
    """Stage `lengths`: the length of every kept word."""

    def run(context: StageContext, batch: Sequence[WordItem]) -> list[Outcome]:
        rows = context.store.rows("words", context.shard, ["text"], [item.id for item in batch])
        return [Kept(Length(id=item.id, letters=len(rows[item.id]["text"]))) for item in batch]

    made = Stage(
        name="lengths",
        version=1,
        summary="lengths",
        shard_kinds=("train",),
        reads={"words": ("text",)},
        writes=Length,
        reasons=(),
        upstream=lambda _profile, shard: [("words", shard)],
        items=lambda context: [WordItem(each) for each in context.store.kept_ids("words", context.shard)],
        run=run,
        config=("seed",),
    )
    return dataclasses.replace(made, **changes)


class Weight(Record):
    grams: int


def weigh(item: WordItem) -> Weight:
    """What the scales say of an item: 0 .. 99 grams, by its id."""
    return Weight(id=item.id, grams=int(hashlib.sha256(item.id.encode()).hexdigest(), 16) % 100)


def weights_stage(number: int = 13, **changes: Any) -> Stage:
    """Stage `weights`, a filter: an engine weighs, and too heavy words go. The threshold is `similarity.max_cosine`, of
    100 grams. The engine is the section `similarity`, a callable from item to `Weight`.
    """

    def measure(context: StageContext, batch: Sequence[WordItem]) -> list[Weight]:
        scales = context.engines("similarity")
        return [scales(item) for item in reversed(batch)]

    def run(context: StageContext, batch: Sequence[Measured]) -> list[Outcome]:
        most = 100 * context.profile.similarity.max_cosine
        return [
            Rejected(each.id, "too_heavy", str(each.record.grams)) if each.record.grams > most else Kept(each.record)
            for each in batch
        ]

    made = Stage(
        name="weights",
        version=1,
        summary="weights",
        shard_kinds=("train",),
        reads={},
        writes=Weight,
        reasons=("too_heavy",),
        upstream=lambda _profile, _shard: [],
        items=lambda _context: words(number),
        run=run,
        config=("similarity.max_cosine",),
        engines=("similarity",),
        measures=Measuring(version=1, writes=Weight, upstream=lambda _profile, _shard: [], run=measure),
    )
    return dataclasses.replace(made, **changes)


def no_engines(_section: str) -> Any:
    raise AssertionError("these stages have no engines")


@functools.lru_cache
def toy_profile(*overrides: str) -> Profile:
    return load_profile("demo", [f"batch_records={BATCH}", *overrides])


def context_in(
    folder: Path, profile: Profile | None = None, engines: Callable[[str], Any] = no_engines
) -> StageContext:
    return StageContext(profile or toy_profile(), Store(folder), SHARD, engines)


def build(stage: Stage, folder: Path, *overrides: str, force: bool = False, **fingerprints: Any) -> ShardResult:
    return run_shard(stage, context_in(folder, toy_profile(*overrides)), fingerprints, force=force)


def digests(folder: Path) -> dict[str, str]:
    """Every Parquet file under a folder with its sha256."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*.parquet"))
    }


def run_and_die(folder: str, event: int, *overrides: str) -> None:
    """Builds the words and is killed, as by kill -9, right before its `event`-th change to a file or folder.

    A file that is being written then is left half written. Exits as usual where there are fewer changes.
    """
    seen = 0

    def dying(change: Callable[..., Any], tear: bool = False) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            nonlocal seen
            if seen == event:
                if tear:
                    os.ftruncate(arguments[0], os.fstat(arguments[0]).st_size // 2)
                os.kill(os.getpid(), signal.SIGKILL)
            seen += 1
            return change(*arguments, **named)

        return wrapped

    os.fsync = dying(os.fsync, tear=True)  # type: ignore[assignment]
    for name in ("rename", "replace", "unlink", "rmdir", "mkdir"):
        setattr(os, name, dying(getattr(os, name)))
    build(words_stage(7), Path(folder), *overrides)


def run_until_told(folder: str, flag: str) -> None:
    """Builds the words, but stays in its first batch until the file `flag` is there."""

    def run(context: StageContext, batch: Sequence[WordItem]) -> list[Outcome]:
        Path(f"{flag}.started").touch()
        while not Path(flag).exists():
            time.sleep(0.01)
        return run_words(context, batch)

    build(words_stage(run=run), Path(folder))


if __name__ == "__main__":
    build(words_stage(), Path(sys.argv[1]))
    build(lengths_stage(), Path(sys.argv[1]))
    for file, digest in digests(Path(sys.argv[1])).items():
        print(file, digest)
