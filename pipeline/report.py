"""What a build came to: a table of its stages, an overview of its pairs, and contact sheets.

`python -m pipeline.report` prints the one and draws the other; `pipeline.build` ends with both.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core.card import PAPER_KEEP_RATES, HardCount, KindCount, StageCount, keep_rate
from pipeline.core.errors import UserError
from pipeline.core.profile import Profile
from pipeline.core.seeds import seed_of
from pipeline.core.store import Store, file_digest, write_atomically

if TYPE_CHECKING:
    from PIL import Image

    from pipeline.core.sheet import Cell

SHEET_PAIRS = 6
"""Pairs of each split on the contact sheet."""
EXAMPLES = 3
"""Examples of each reason on the sheet of rejected records."""
_CELL = 200
_SHEET_VERSION = 1


_PROBLEMS_SHOWN = 10


@dataclass(frozen=True)
class StageRow:
    """A line of the table: a stage in one split. shards: those finished, of how many; seconds: of all of them."""

    count: StageCount
    shards: int
    of: int
    seconds: float


@dataclass(frozen=True)
class PairCount:
    """A split's pairs by the kinds that came through, e.g. {"goal + wentrong": 78}."""

    split: str
    kinds: Mapping[str, int]


@dataclass(frozen=True)
class Summary:
    """What a build came to."""

    build: str
    rows: tuple[StageRow, ...]
    pairs: tuple[PairCount, ...]
    kinds: tuple[KindCount, ...]
    hard: tuple[HardCount, ...]
    warnings: tuple[str, ...]

    @property
    def failed(self) -> int:
        """Records that failed, over all stages."""
        return sum(sum(row.count.failed.values()) for row in self.rows)


def summary(profile: Profile, build: str) -> Summary:
    """The counts of what is finished of a build; a build that is not finished has fewer rows, and a warning says so."""
    from pipeline import delivery, stages
    from pipeline.core.stage import shard_kind

    store = Store(stages.build_dir(profile, build))
    rows: list[StageRow] = []
    unfinished: list[str] = []
    for name in stages.STAGE_NAMES:
        shards = stages.shard_names(stages.stage(name), profile)
        manifests = {shard: store.manifest(name, shard) for shard in shards}
        missing = [shard for shard, manifest in manifests.items() if manifest is None]
        if missing:
            unfinished.append(f"{name} ({', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''})")
        for count in delivery.stage_counts(store, [(name, shard) for shard in shards]):
            own = [manifests[shard] for shard in shards if shard_kind(shard) == count.split]
            there = [manifest for manifest in own if manifest is not None]
            seconds = sum(manifest["seconds"] for manifest in there)
            rows.append(StageRow(count, len(there), len(own), seconds))
    warnings = [f"not built yet: {', '.join(unfinished)}"] if unfinished else []
    warnings += [
        f"{row.count.stage} {row.count.split}: {row.count.went_in} went in, another number came out"
        for row in rows
        if not row.count.adds_up
    ]
    warnings += _folder_warnings(profile) + _review_warnings(profile, store)
    publications = _publications(store)
    if publications:
        warnings += _delivery_warnings(profile, store)
    train_shards = stages.shard_names(stages.stage("generate"), profile)
    return Summary(
        build=build,
        rows=tuple(rows),
        pairs=tuple(_pair_counts(publications)),
        kinds=tuple(delivery.kind_counts(store, train_shards)),
        hard=tuple(delivery.hard_counts(publications)),
        warnings=tuple(warnings),
    )


def _folder_warnings(profile: Profile) -> list[str]:
    """What is wrong with the OOPS! folder itself, a line each, the first few."""
    from pipeline.core.profile import oops_root
    from pipeline.formats.oops_shards import open_folder

    if not oops_root(profile).is_dir():
        return []
    problems = [f"OOPS! folder: {where}: {what}" for where, what in open_folder(profile).problems]
    more = [f"OOPS! folder: {len(problems) - _PROBLEMS_SHOWN} more"] if len(problems) > _PROBLEMS_SHOWN else []
    return problems[:_PROBLEMS_SHOWN] + more


def _review_warnings(profile: Profile, store: Store) -> list[str]:
    """Decisions of the reviewers' file on pairs that this build has not got: a mistyped id must not pass in silence."""
    from pipeline import stages
    from pipeline.review import read_decisions

    shards = [shard for shard in stages.shard_names(stages.stage("frames"), profile) if store.manifest("frames", shard)]
    if profile.review.file is None or not shards:
        return []
    pairs = {row["pair_id"] for shard in shards for row in store.rows("frames", shard, ["pair_id"]).values()}
    unknown = sorted({decision.pair_id for decision in read_decisions(profile.review.file)} - pairs)
    named = f"{', '.join(unknown[:3])}{', ...' if len(unknown) > 3 else ''}"
    return [f"{profile.review.file}: {len(unknown)} of its pairs are not in this build: {named}"] if unknown else []


def _publications(store: Store) -> list[dict[str, Any]]:
    from pipeline import delivery

    return delivery.read_publications(store) if store.manifest("publish", "all") is not None else []


def _delivery_warnings(profile: Profile, store: Store) -> list[str]:
    from pipeline import delivery

    if not delivery.delivery_stands(profile, store):
        return [f"{profile.out} does not hold this build's dataset: run python -m pipeline.publish"]
    return list(json.loads(delivery.delivery_note(store).read_text("utf-8"))["warnings"])


def _pair_counts(publications: Iterable[Mapping[str, Any]]) -> list[PairCount]:
    """Pairs by which kinds of them came through; a pair is a video, in train with its image number (the shard)."""
    from schemas.records import KINDS

    members: dict[tuple[str, str, str], set[str]] = {}
    for each in publications:
        video_key, kind = each["id"].split("_")[:2]
        members.setdefault((each["split"], each["shard"], video_key), set()).add(kind)
    counts: dict[str, Counter[str]] = {}
    for (split, _, _), kinds in members.items():
        name = " + ".join(kind for kind in KINDS if kind in kinds)
        counts.setdefault(split, Counter())[name] += 1
    return [PairCount(split, dict(counts[split].most_common())) for split in ("train", "test") if split in counts]


def format_summary(found: Summary) -> str:
    """The summary as text for a terminal."""
    parts = [_stage_table(found.rows)] if found.rows else []
    lines = []
    for pair in found.pairs:
        lines.append(f"{pair.split:<5} pairs  {', '.join(f'{name}: {count}' for name, count in pair.kinds.items())}")
    for split in dict.fromkeys(hard.split for hard in found.hard):
        own = [hard for hard in found.hard if hard.split == split]
        same, other, none = (sum(getattr(hard, name) for hard in own) for name in ("same_shard", "other_shard", "none"))
        lines.append(f"{split:<5} hard negatives  in the same shard: {same}, in another: {other}, none: {none}")
    if any(kind.generated for kind in found.kinds):
        kept = ", ".join(
            f"{kind.kind} {keep_rate(kind.published, kind.generated)} (PAB {PAPER_KEEP_RATES[kind.kind]:.0%})"
            for kind in found.kinds
        )
        lines.append(f"generated images kept  {kept}")
    if lines:
        parts.append("\n".join(lines))
    if found.warnings:
        parts.append("\n".join(f"note: {warning}" for warning in found.warnings))
    return "\n\n".join(parts)


def _stage_table(rows: Sequence[StageRow]) -> str:
    head = ("stage", "split", "in", "kept", "rejected", "failed", "in = out", "time", "reasons")
    table = [head]
    for row in rows:
        count = row.count
        reasons = Counter(count.rejected) + Counter(count.failed)
        table.append(
            (
                count.stage,
                count.split if row.shards == row.of else f"{count.split} {row.shards}/{row.of}",
                str(count.went_in),
                str(count.kept),
                str(sum(count.rejected.values())),
                str(sum(count.failed.values())),
                "yes" if count.adds_up else "NO",
                f"{row.seconds:.1f} s",
                ", ".join(f"{name} {number}" for name, number in reasons.most_common()),
            )
        )
    widths = [max(len(line[column]) for line in table) for column in range(len(head))]
    right = {2, 3, 4, 5, 7}
    return "\n".join(
        "  ".join(
            text.rjust(width) if column in right else text.ljust(width)
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in table
    )


def write_sheets(profile: Profile, build: str) -> list[Path]:
    """Draw `contact_sheet.png` and `rejected_sheet.png` into the build's folder, unless they are up to date.

    Returns the paths of those that have something to show. Raises UserError where publish has not run.
    """
    from pipeline import stages
    from pipeline.core import sheet

    folder = stages.build_dir(profile, build)
    store = Store(folder)
    manifest = store.manifest("publish", "all")
    if manifest is None:
        raise UserError(f"nothing to show yet: publish has not run in {folder}; run python -m pipeline.build first")
    basis = [manifest["key"], _SHEET_VERSION, *(file_digest(Path(str(each))) for each in (__file__, sheet.__file__))]
    key = hashlib.sha256(json.dumps(basis).encode()).hexdigest()
    paths = []
    for name, draw in (("contact_sheet.png", _contact_sheet), ("rejected_sheet.png", _rejected_sheet)):
        path = folder / name
        if not _has_key(path, key):
            page = draw(profile, store)
            if page is None:
                path.unlink(missing_ok=True)
                continue
            write_atomically(path, _png(page, key))
        paths.append(path)
    return paths


def _png(page: Image.Image, key: str) -> bytes:
    from PIL.PngImagePlugin import PngInfo

    info = PngInfo()
    info.add_text("key", key)
    buffer = io.BytesIO()
    page.save(buffer, "PNG", pnginfo=info)
    return buffer.getvalue()


def _has_key(path: Path, key: str) -> bool:
    from PIL import Image

    try:
        with Image.open(path, formats=["PNG"]) as page:
            return page.info.get("key") == key
    except (OSError, SyntaxError):
        return False


def _contact_sheet(_profile: Profile, store: Store) -> Image.Image | None:
    """Same person as goal, wentrong and full from train; before and after from test; each with pose map and caption."""
    from pipeline.core.sheet import contact_sheet, stacked

    publications = _publications(store)
    pages = []
    for split, kinds, title in (
        (
            "train",
            ("goal", "wentrong", "full"),
            "train: one person a row, drawn from the goal, wentrong and full caption",
        ),
        ("test", ("goal", "wentrong"), "test: one video a row, before and after the failure"),
    ):
        pairs: dict[tuple[str, str], dict[str, str]] = {}
        for each in publications:
            if each["split"] == split:
                video_key, kind = each["id"].split("_")[:2]
                pairs.setdefault((each["shard"], video_key), {})[kind] = each["id"]
        # Whole pairs first; which ones, the pairs' own names decide.
        order = sorted(pairs, key=lambda pair: (-len(pairs[pair]), seed_of("contact sheet", *pair)))[:SHEET_PAIRS]
        found = _cells(store, [(shard, record_id) for shard, key in order for record_id in pairs[shard, key].values()])
        cells: list[Cell | None] = [found.get(pairs[pair].get(kind, "")) for pair in order for kind in kinds]
        if cells:
            pages.append(contact_sheet(cells, len(kinds), _CELL, title, text_lines=7))
    return stacked(pages) if pages else None


def _cells(store: Store, wanted: Sequence[tuple[str, str]]) -> dict[str, Cell]:
    from pipeline.core.records import image_stage
    from pipeline.core.sheet import Cell

    cells = {}
    for shard, ids in _by_shard(wanted).items():
        images = store.rows(image_stage(shard), shard, ["image", "kind"], ids)
        poses = store.rows("keypoints", shard, ["pose_map"], ids)
        captions = store.rows("decompose", shard, ["caption"], ids)
        labels = store.rows("attributes", shard, ["action", "anomaly", "scene"], ids)
        for record_id in ids:
            label = labels[record_id]
            words = ", ".join(word for word in (label["action"], label["anomaly"], label["scene"]) if word)
            cells[record_id] = Cell(
                picture=_picture(images[record_id]["image"]),
                pose=_picture(poses[record_id]["pose_map"]),
                heading=f"{record_id}: {words}",
                lines=(captions[record_id]["caption"],),
            )
    return cells


def _rejected_sheet(profile: Profile, store: Store) -> Image.Image | None:
    """A few records of each reason, with the image where there was one by then."""
    from pipeline import publish
    from pipeline.core.records import image_stage
    from pipeline.core.sheet import Cell, contact_sheet

    examples: dict[tuple[str, str], list[tuple[str, dict[str, Any]]]] = {}
    shards = publish.upstream(profile, "all")
    for stage, shard in [*shards, ("publish", "all")]:
        for row in store.dropped(stage, shard):
            examples.setdefault((stage, row["reason"]), []).append((shard, row))
    publish_shards: dict[str, str] = {}
    pictures: dict[str, Image.Image | None] = {}
    chosen: list[tuple[str, str, str, dict[str, Any]]] = []
    for (stage, reason), rows in examples.items():
        rows.sort(key=lambda each: seed_of("rejected sheet", each[1]["id"]))
        chosen += [(stage, reason, shard, row) for shard, row in rows[:EXAMPLES]]
    if not chosen:
        return None
    if any(stage == "publish" for stage, *_ in chosen):
        publish_shards = {row_id: shard for stage, shard in shards if stage == "decompose"
                          for row_id in store.kept_ids(stage, shard)}  # fmt: skip
    with_image = [
        (publish_shards[row["id"]] if stage == "publish" else shard, row["id"])
        for stage, _, shard, row in chosen
        if stage not in ("frames", "sources", "generate")
    ]
    for shard, ids in _by_shard(with_image).items():
        rows_found = store.rows(image_stage(shard), shard, ["image"], ids)
        pictures |= {record_id: _picture(row["image"]) for record_id, row in rows_found.items()}
    cells: list[Cell | None] = []
    for (stage, reason), rows in examples.items():
        count = len(rows)
        row_cells = [Cell(pictures.get(row["id"]), row["id"], (readable(row["detail"]),)) for _, row in rows[:EXAMPLES]]
        heading = Cell(None, f"{stage}: {reason}", (f"{count} {rows[0][1]['outcome']}",))
        cells += [heading, *row_cells, *[None] * (EXAMPLES - len(row_cells))]
    return contact_sheet(cells, EXAMPLES + 1, _CELL, "what was dropped, and why: a few of each reason", text_lines=5)


def readable(detail: str) -> str:
    """A rejection's detail as a line: of scores in JSON, the plain numbers, and of a list its length and first."""
    try:
        scores = json.loads(detail)
    except json.JSONDecodeError:
        return detail
    return ", ".join(_plain(scores)) if isinstance(scores, dict) else detail


def _plain(scores: Mapping[str, Any]) -> Iterator[str]:
    for name, value in scores.items():
        if isinstance(value, list) and all(isinstance(each, dict) for each in value):
            yield f"{name}: {len(value)}"
            yield from _plain(value[0] if value else {})
        elif isinstance(value, dict):
            yield from _plain(value)
        elif not isinstance(value, list):
            yield f"{name.replace('_', ' ')} {value:.3g}" if isinstance(value, float) else f"{name} {value}"


def _by_shard(wanted: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    grouped: dict[str, list[str]] = {}
    for shard, record_id in wanted:
        grouped.setdefault(shard, []).append(record_id)
    return grouped


def _picture(data: bytes) -> Image.Image | None:
    from PIL import Image

    from pipeline.core.images import ImageError, read_image

    try:
        return Image.fromarray(read_image(data, "an image of the build"))
    except ImageError:
        return None  # it may be here because it cannot be read


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m pipeline.report`: print the summary and draw the sheets. Returns the exit code."""
    from pipeline import cli

    parser = cli.common_parser("pipeline.report", "Print what a build came to and draw its contact sheets.")
    options = parser.parse_args(argv)

    def run() -> int:
        profile, build = cli.profile_and_build(options)
        found = summary(profile, build)
        if not found.rows:
            raise UserError(f"nothing is built in {profile.work / build}: run python -m pipeline.build first")
        print(format_summary(found))
        if any(row.count.stage == "publish" for row in found.rows):
            print()
            for path in write_sheets(profile, build):
                print(f"look at   {path}")
        return cli.SOME_FAILED if found.failed else cli.DONE

    return cli.guarded(run)


if __name__ == "__main__":
    raise SystemExit(main())
