"""`python -m pipeline.decompose --data FOLDER`: the captions of a finished dataset, split by the profile's engine.

For data that no stage of this project made: PAB as it is released has captions, and parts of them only where somebody
ran SeDA's decomposition. Two passes, neither of which holds the dataset in memory. The first reads captions alone, asks
the engine about those that it was not asked about before, and keeps what was replied in the work folder, so that a run
that was stopped goes on. The second writes the rows with the factors that the replies come to.
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline import stages
from pipeline.backends.chat_roles import factor_replies
from pipeline.cli import DONE, SOME_FAILED, Bar, common_parser, guarded, profile_and_build
from pipeline.core import decomposition
from pipeline.core.card import markdown_table
from pipeline.core.dataset_folder import (
    IMPORT_NOTE,
    card_head,
    check_out,
    content_digest,
    is_ours,
    read_split,
    row_count,
)
from pipeline.core.dataset_folder import split_files as files_by_split
from pipeline.core.errors import UserError, one_line
from pipeline.core.imported import read_note, write_imported
from pipeline.core.profile import Profile
from pipeline.core.prompts import load_prompt
from pipeline.core.replies import digest_of
from pipeline.core.seen import SeenNames
from pipeline.core.stage import Kept
from pipeline.core.workers import use_one_thread
from schemas.records import Decomposition, Engine, FactorReplies, ImportedRejection, ImportedRow, PromptUsed

VERSION = 1
"""Raised when the same replies give other rows."""

OPTION = "--out FOLDER"
AT_ONCE = 256
"""Captions that the engine is asked about together, after which their replies are on disk."""

HELP = (
    "With --data FOLDER no build is worked on: the captions of a finished dataset are split instead. See "
    "python -m pipeline.decompose --data FOLDER --help."
)

REASONS = {
    "split": "all that the engine named is in the caption",
    "in part": "a factor had words that the caption lacks, and is null",
    "no_factors": "the reply names no factor",
    "unparsable": "no reply could be read",
    "refusal": "the engine would not answer",
    "loop": "the reply goes round in circles",
    "reply_cut": "the reply was cut for want of room",
    "decomposer_error": "the engine met an error; the same command asks again",
}
"""What can become of a caption."""

_CAPTIONS = ("caption", "hard_caption")
_FACTORS = {"caption": "factors", "hard_caption": "hard_factors"}

_NOTE = """\
{name} with appearance, action and background of its captions (splits: {splits}), by {engine}. Everything else is as it
was there. A part has no content word that its caption lacks; what the engine added is null.

{table}"""


@dataclass(frozen=True)
class Wanted:
    """What is to be split, with which engine. again: also captions that have factors."""

    data: Path
    profile: Profile
    build: str
    splits: tuple[str, ...] = ("train",)
    again: bool = False

    def files(self) -> dict[str, list[Path]]:
        """The data files of every split, those that stay as they are among them."""
        return files_by_split(self.data)

    def open_captions(self, row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """(column, caption) of a row's captions that have no factors, or of all with `again`."""
        for column in _CAPTIONS:
            if row[column] and (self.again or not _has_factors(row[_FACTORS[column]])):
                yield column, row[column]


def _has_factors(value: Mapping[str, Any] | None) -> bool:
    return value is not None and any(value.values())


class KeptReplies:
    """What the engine replied, by caption, in one file; written caption by caption, errors are not kept.

    Raises UserError where the file is there and is no such file.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        try:
            self._file = sqlite3.connect(path, isolation_level=None, timeout=60)
            self._file.execute("PRAGMA journal_mode=WAL")
            self._file.execute("CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, record TEXT) WITHOUT ROWID")
        except sqlite3.Error as error:
            raise UserError(f"{path}: no file of replies ({error}); move it away, they are asked for anew") from None

    def get(self, caption: str) -> FactorReplies | None:
        """The replies to a caption, or None."""
        row = self._file.execute("SELECT record FROM replies WHERE key = ?", (digest_of(caption),)).fetchone()
        return None if row is None else FactorReplies.model_validate_json(row[0])

    def put(self, records: Mapping[str, FactorReplies]) -> None:
        """Keep replies by caption; they are on disk when this returns."""
        rows = [(digest_of(caption), record.model_dump_json()) for caption, record in records.items()]
        with self._file:
            self._file.execute("BEGIN")
            self._file.executemany("INSERT OR REPLACE INTO replies VALUES (?, ?)", rows)
            self._file.execute("COMMIT")

    def close(self) -> None:
        """Give the file back."""
        self._file.close()


@dataclass
class Split:
    """What becomes of captions: the engine's answers, and how many rows' captions came to what."""

    replies: KeptReplies
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def of(self, column: str, caption: str) -> Decomposition | None:
        """The factors of a caption; None, counted with the reason, where there are none."""
        found = self.replies.get(caption)
        if found is None:
            self.counts[column, "decomposer_error"] += 1
            return None
        came = decomposition.outcome(caption, found)
        if not isinstance(came, Kept):
            self.counts[column, came.reason] += 1
            return None
        record = came.record
        assert isinstance(record, Decomposition)
        self.counts[column, "in part" if record.unfaithful else "split"] += 1
        return record


def engine_key(wanted: Wanted) -> str:
    """All that a reply depends on besides its caption, as one digest."""
    made, prompt = stages.stage("decompose"), load_prompt("decompose")
    assert made.measures is not None
    return digest_of(made.measures.version, stages.fingerprints(made, wanted.profile), prompt.sha256)


def replies_path(wanted: Wanted) -> Path:
    """Where the replies of the profile's engine are kept, whatever the dataset: the same caption is asked once."""
    return stages.build_dir(wanted.profile, wanted.build) / "decompose-data" / f"{engine_key(wanted)[:16]}.sqlite"


def unasked(wanted: Wanted, kept: KeptReplies | None, bar: Bar | None = None) -> Iterator[str]:
    """Each caption without a reply, once. Reads no image. bar: moved by rows."""
    files = [path for split in wanted.splits for path in wanted.files()[split]]
    total, seen = row_count(files), SeenNames()
    for number, row in enumerate(read_split(files, [*_CAPTIONS, *_FACTORS.values()]), 1):
        for _, caption in wanted.open_captions(row):
            if seen.add(caption) and (kept is None or kept.get(caption) is None):
                yield caption
        if bar is not None:
            bar(number, total)


def ask(wanted: Wanted, kept: KeptReplies) -> tuple[int, int, str | None]:
    """Ask the engine about every caption that has no reply. Returns how many it was asked about, how many of them ended
    in an error, and the first of these in words."""
    prompt = load_prompt("decompose")
    used = PromptUsed(id=prompt.id, sha256=prompt.sha256)
    bar = Bar("decompose", "rows")
    asked, failed, first = 0, 0, None
    batch: list[str] = []

    def send() -> None:
        nonlocal asked, failed, first
        engine = stages.engine_of("decompose", wanted.profile, wanted.build)
        made = Engine(name=engine.name, revision=engine.revision)
        good = {}
        for caption, replies in zip(batch, factor_replies(engine, batch, prompt.text), strict=True):
            name = digest_of(caption)
            record = FactorReplies(id=name, asked=name, replies=replies, decomposer=made, prompt=used)
            if replies[-1].error is None:
                good[caption] = record
            else:
                failed += 1
                first = first or one_line(replies[-1].error)
        kept.put(good)
        asked += len(batch)
        batch.clear()

    try:
        for caption in unasked(wanted, kept, bar):
            batch.append(caption)
            if len(batch) == AT_ONCE:
                send()
        if batch:
            send()
    finally:
        bar.close()
    return asked, failed, first


def rows_of(wanted: Wanted, split: str, files: Sequence[Path], found: Split) -> Iterator[ImportedRow]:
    """The rows of a split, with factors where it is one of those that are wanted; a few in memory at once."""
    bar, total = Bar(split, "rows"), row_count(files)
    try:
        for number, row in enumerate(read_split(files), 1):
            known = {name: row[name] for name in ImportedRow.model_fields if name in row}
            if split in wanted.splits:
                for column, caption in wanted.open_captions(row):
                    made = found.of(column, caption)
                    known[_FACTORS[column]] = made.factors if made else None
                    if column == "caption":
                        known["decomposer"] = made.decomposer if made else None
            yield ImportedRow.model_validate(known)
            bar(number, total)
    finally:
        bar.close()


def table(counts: Mapping[tuple[str, str], int]) -> str:
    """What became of how many captions, as Markdown."""
    rows = [
        (outcome, f"{counts.get(('caption', outcome), 0):,}", f"{counts.get(('hard_caption', outcome), 0):,}", words)
        for outcome, words in REASONS.items()
        if any(counts.get((column, outcome)) for column in _CAPTIONS)
    ]
    return markdown_table(["outcome", "captions", "captions of hard negatives", "which is"], rows)


def decompose_data(wanted: Wanted, out: Path) -> int:
    """Write the dataset with factors into `out` and say what came; returns the exit code. Raises UserError."""
    check_out(out.resolve(), OPTION)
    data = wanted.data.resolve()
    if out.resolve().is_relative_to(data) or data.is_relative_to(out.resolve()):
        raise UserError(f"out: {out} and {wanted.data} lie in each other; choose another folder with {OPTION}")
    origin = (read_note(wanted.data) or {}).get("content_digest") or content_digest(wanted.data)
    key = digest_of(VERSION, origin, engine_key(wanted), sorted(wanted.splits), wanted.again)
    if (read_note(out) or {}).get("decomposed") == key:
        print(f"{out} is already {wanted.data} with the factors of this engine; nothing to do")
        return DONE
    kept = KeptReplies(replies_path(wanted))
    try:
        asked, failed, error = ask(wanted, kept)
        found = Split(kept)
        head = card_head(wanted.data)
        chosen = wanted.profile.decompose.backend

        def note() -> str:
            return _NOTE.format(
                name=data.name, splits=", ".join(wanted.splits), engine=chosen, table=table(found.counts)
            )

        made = write_imported(
            out,
            {split: rows_of(wanted, split, files, found) for split, files in wanted.files().items()},
            note,
            title=str(head.get("pretty_name") or data.name),
            licence="apache-2.0" if head.get("license") == "apache-2.0" else "terms-of-the-source",
            rejected=_rejected(wanted.data),
            facts={} if failed else {"decomposed": key},  # with failures the same command has something to do
            option=OPTION,
        )
    finally:
        kept.close()
    print(table(found.counts))
    rows = ", ".join(f"{split} {count:,}" for split, count in made.rows.items())
    print(f"{out}: {rows}; the engine was asked about {asked:,} captions")
    if failed:
        print(f"{failed:,} captions failed, the first with: {error}; the same command asks again", file=sys.stderr)
    return SOME_FAILED if failed else DONE


def _rejected(data: Path) -> Iterator[ImportedRejection]:
    """What an import could not use, told on; the rejected records of a build are another thing and stay there."""
    if (data / IMPORT_NOTE).is_file():
        for row in read_split(sorted((data / "rejected").glob("*.parquet"))):
            yield ImportedRejection.model_validate(row)


def parser() -> argparse.ArgumentParser:
    """The options of the command with --data."""
    made = common_parser(
        "pipeline.decompose",
        "Split the captions of a finished dataset into appearance, action and background with the profile's engine "
        "(decompose.backend), and write the dataset anew with them. For datasets that came from elsewhere "
        "(python -m pipeline.import_pab). Replies are kept under work/, so that a run that was stopped goes on, and "
        "no caption is asked about twice.",
    )
    made.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="a dataset of this project")
    made.add_argument("--out", type=Path, metavar="FOLDER", help="where it goes (default: FOLDER-decomposed)")
    made.add_argument("--splits", default="train", metavar="NAMES", help="with commas between them (default: train)")
    made.add_argument("--again", action="store_true", help="also split captions that have factors already")
    made.add_argument("--dry-run", action="store_true", help="say how many captions would be asked about, and stop")
    return made


def wanted_of(options: argparse.Namespace) -> Wanted:
    """What the options ask for. Raises UserError where it cannot be."""
    profile, build = profile_and_build(options)
    if not is_ours(options.data):
        raise UserError(
            f"--data {options.data}: no dataset of this project; import one with python -m pipeline.import_pab"
        )
    splits = tuple(dict.fromkeys(name.strip() for name in options.splits.split(",") if name.strip()))
    there = files_by_split(options.data)
    if not splits or not set(splits) <= there.keys():
        raise UserError(f"--splits {options.splits}: {options.data} has {', '.join(there) or 'no data files'}")
    return Wanted(options.data, profile, build, splits, options.again)


def decompose_main(argv: Sequence[str] | None = None) -> int:
    """`python -m pipeline.decompose`: the stage, or with --data a finished dataset."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not any(word == "--data" or word.startswith("--data=") for word in words):
        from pipeline.run_stage import stage_main

        return stage_main("decompose", words, epilog=HELP)
    use_one_thread()
    options = parser().parse_args(words)

    def run() -> int:
        wanted = wanted_of(options)
        if options.dry_run:
            path = replies_path(wanted)
            kept = KeptReplies(path) if path.is_file() else None
            print(f"the engine ({wanted.profile.decompose.backend}) would be asked about "
                  f"{sum(1 for _ in unasked(wanted, kept)):,} captions")  # fmt: skip
            print("Nothing is written: this was a dry run.")
            return DONE
        return decompose_data(wanted, options.out or options.data.with_name(f"{options.data.name}-decomposed"))

    return guarded(run)
