"""What a build came to: a table of its stages, an overview of its pairs, and contact sheets.

`python -m pipeline.report` prints the one and draws the other; `pipeline.build` ends with both. With `--filter STAGE`
it draws what one stage kept and dropped instead, the records nearest to the other verdict first.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core.card import PAPER_KEEP_RATES, HardCount, KindCount, ReplyCount, StageCount, keep_rate
from pipeline.core.errors import UserError
from pipeline.core.profile import Profile
from pipeline.core.seeds import seed_of
from pipeline.core.store import Store, file_digest, write_atomically

if TYPE_CHECKING:
    from PIL import Image

    from pipeline.core.sheet import Cell
    from pipeline.core.thresholds import Margin, Rules

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
    replies: tuple[ReplyCount, ...] = ()

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
        replies=tuple(
            delivery.reply_counts(
                store,
                [
                    (name, shard)
                    for name in delivery.REPLYING
                    for shard in stages.shard_names(stages.stage(name), profile)
                ],
            )
        ),
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
    for each in found.replies:
        outcomes = ", ".join(
            f"{name} {keep_rate(count, each.asked)}" for name, count in each.outcomes().items() if count
        )
        lines.append(f"{each.split:<5} replies  {each.stage}: {outcomes or 'none'}")
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
    table: list[Sequence[str]] = [head]
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
    return text_table(table, right={2, 3, 4, 5, 7})


def text_table(lines: Sequence[Sequence[str]], right: set[int]) -> str:
    """Lines of as many texts each as columns for a terminal; right: the columns that are set to the right."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            text.rjust(width) if column in right else text.ljust(width)
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
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


# --- the sheets of one filter -------------------------------------------------------------------------------------


FILTER_STAGES = ("keypoints", "similarity", "recaption", "attributes", "review", "decompose", "publish")
"""The stages whose rejected records have an image by then."""
FILTER_CELLS = 24
_LOOKED_AT = 2000
"""Records of one outcome whose margins are looked at; which ones, their ids decide."""
_COLUMNS = 4


@dataclass(frozen=True)
class _Found:
    """One cell to be: a record, or a pair that was judged as a whole, with what a stage came to."""

    id: str
    shard: str
    members: tuple[str, ...]
    detail: str = ""


def write_filter_sheets(profile: Profile, build: str, stage: str, cells: int = FILTER_CELLS) -> list[Path]:
    """Draw `sheets/<stage>-<reason>.png` for every reason for which a stage dropped records, and `<stage>-kept.png`.

    Where the stage is a filter with thresholds, the records nearest to the other verdict come first (`core.thresholds`
    says how near is told), else their ids decide. Returns the paths; sheets of reasons that are no more are removed.
    Raises UserError for a stage that is not built, or whose dropped records have no image.
    """
    from pipeline import stages
    from pipeline.core.sheet import stacked

    if stage not in FILTER_STAGES:
        if stage not in stages.STAGE_NAMES:
            raise UserError(f"--filter {stage}: no such stage; one of {', '.join(FILTER_STAGES)}")
        raise UserError(f"--filter {stage}: what it drops has no image; one of {', '.join(FILTER_STAGES)}")
    store = Store(stages.build_dir(profile, build))
    groups = _outcomes(profile, store, stage)
    looked_at = {section: _Nearness.of(profile, store, section, own) for section, own in groups.items()}
    folder = store.build_dir / "sheets"
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for outcome in sorted({outcome for own in groups.values() for outcome in own}):
        waiting = [section for section, own in groups.items() if own.get(outcome)]
        shares = _shared_out(cells, [len(groups[section][outcome]) for section in waiting])
        pages = [
            _filter_page(profile, store, section, outcome, len(groups[section][outcome]), looked_at[section], share)
            for section, share in zip(waiting, shares, strict=True)
        ]
        path = folder / f"{stage}-{_plain_name(outcome)}.png"
        buffer = io.BytesIO()
        stacked(pages).save(buffer, "PNG")
        write_atomically(path, buffer.getvalue())
        paths.append(path)
    for old in set(folder.glob(f"{stage}-*.png")) - set(paths):
        old.unlink()
    return paths


def _shared_out(cells: int, counts: Sequence[int]) -> list[int]:
    """Cells for each of several groups: evenly, and what a small one does not need goes to the others."""
    shares = [0] * len(counts)
    left = cells
    for done, number in enumerate(sorted(range(len(counts)), key=lambda each: counts[each])):
        shares[number] = min(counts[number], max(1, left // (len(counts) - done)))
        left -= shares[number]
    return shares


def _plain_name(reason: str) -> str:
    """A reason as part of a file's name: a stage's own are plain; an error's class from outside may be anything."""
    return "".join(each if each.isalnum() or each in "_-" else "_" for each in reason)[:80]


def _outcomes(profile: Profile, store: Store, stage: str) -> dict[str, dict[str, list[_Found]]]:
    """By section of thresholds (the stage's name where it has none), by reason or `kept`: what there is."""
    from pipeline import filters, stages

    image_shards = _image_shards(profile, store) if stage == "publish" else {}
    found: dict[str, dict[str, list[_Found]]] = {}
    sections = filters.SECTIONS.get(stage, (stage,))
    for section in sections:
        made = stages.stage(stage)
        shards = (
            filters.section_shards(profile, section) if stage in filters.SECTIONS else stages.shard_names(made, profile)
        )
        own: dict[str, list[_Found]] = {}
        for shard in shards:
            if store.manifest(stage, shard) is None:
                raise UserError(
                    f"{stage} {shard} is not built in {store.build_dir}: run python -m pipeline.{stage} first"
                )
            rows = [("kept", record_id, "") for record_id in store.kept_ids(stage, shard)]
            rows += [(row["reason"], row["id"], row["detail"]) for row in store.dropped(stage, shard)]
            for reason, record_id, detail in rows:
                at = image_shards.get(record_id, shard)
                own.setdefault(reason, []).append(_Found(record_id, at, (record_id,), detail))
        if stage == "similarity":
            own = {reason: _as_pairs(store, each) for reason, each in own.items()}
        found[section] = own
    return found


def _image_shards(profile: Profile, store: Store) -> dict[str, str]:
    """The shard of every record that came to publish, whose own shard is the whole build."""
    from pipeline import publish

    return {
        record_id: shard
        for stage, shard in publish.upstream(profile, "all")
        if stage == "decompose"
        for record_id in store.kept_ids(stage, shard)
    }


def _as_pairs(store: Store, found: Sequence[_Found]) -> list[_Found]:
    """Frames of one outcome joined to their pairs, first frame (goal) first."""
    pairs: dict[tuple[str, str], list[_Found]] = {}
    for shard, ids in _by_shard((each.shard, each.id) for each in found).items():
        rows = store.rows("frames", shard, ["pair_id"], ids)
        for each in found:
            if each.shard == shard:
                pairs.setdefault((shard, rows[each.id]["pair_id"]), []).append(each)
    return [
        _Found(pair, shard, tuple(sorted(each.id for each in own)), own[0].detail)
        for (shard, pair), own in pairs.items()
    ]


@dataclass(frozen=True)
class _Nearness:
    """The records of one filter that were looked at, by outcome, nearest to the other verdict first.

    rules, margins: None and empty where the stage has no thresholds, or the record was never measured. now: what the
    profile as it is now says (a reason, or `kept`) of those that the build judged otherwise.
    """

    order: Mapping[str, Sequence[_Found]]
    rules: Rules | None
    margins: Mapping[str, Margin]
    now: Mapping[str, str]

    @classmethod
    def of(cls, profile: Profile, store: Store, section: str, groups: Mapping[str, Sequence[_Found]]) -> _Nearness:
        from pipeline import filters
        from pipeline.core.thresholds import margin, own_scores, spreads_of

        chosen: dict[str, list[_Found]] = {}
        for outcome, found in groups.items():
            by_id = {each.id: each for each in found}
            chosen[outcome] = [by_id[each] for each in filters.some_of(list(by_id), _LOOKED_AT)]
        margins: dict[str, Margin] = {}
        now: dict[str, str] = {}
        rules = None
        if section in filters.ALL_SECTIONS:
            rules = filters.rules_for(profile, section)
            wanted = [(each.shard, member) for found in chosen.values() for each in found for member in each.members]
            judged = [
                each
                for shard, ids in _by_shard(wanted).items()
                for each in filters.judged_by_id(store, section, shard, ids)
            ]
            scores = {each.id: own_scores(rules, each.detail) for each in judged}
            spreads = spreads_of(view for views in scores.values() for view in views)
            margins = {each.id: margin(rules, each.detail, scores[each.id], spreads) for each in judged}
            verdicts = {each.id: rules.verdict(each.detail) or "kept" for each in judged}
            now = {
                each.id: verdicts[each.id]
                for outcome, found in chosen.items()
                for each in found
                if verdicts.get(each.id, outcome) != outcome
            }

        def nearness(each: _Found) -> tuple[float, int]:
            own = margins.get(each.id)
            return (own.distance if own else math.inf, seed_of("filter sheet", each.id))

        order = {outcome: sorted(found, key=nearness) for outcome, found in chosen.items()}
        return cls(order, rules, margins, now)


def _filter_page(
    profile: Profile, store: Store, section: str, outcome: str, count: int, near: _Nearness, cells: int
) -> Image.Image:
    from pipeline.core.sheet import contact_sheet

    what = {"keypoints.structure": "generated images", "keypoints.people": "real frames", "similarity": "real pairs"}
    by_margin = any(each.id in near.margins for each in near.order[outcome])
    which = ", nearest to the other verdict first" if by_margin else f", {cells} of them" if cells < count else ""
    if by_margin and len(near.order[outcome]) < count:
        which += f" of {len(near.order[outcome])} looked at"
    verdict = "kept" if outcome == "kept" else f"dropped for {outcome}"
    title = f"{section.partition('.')[0]}, {what.get(section, 'records')}: {count} {verdict}{which}"
    if changed := sum(each.id in near.now for each in near.order[outcome]):
        title += f"; {changed} judged otherwise by the profile as it is now"
    drawn = [_filter_cell(profile, store, section, outcome, each, near) for each in near.order[outcome][:cells]]
    return contact_sheet(drawn, _COLUMNS, _CELL, title, text_lines=5)


def _filter_cell(profile: Profile, store: Store, section: str, outcome: str, found: _Found, near: _Nearness) -> Cell:
    from pipeline.core.sheet import Cell

    first, second = _filter_pictures(profile, store, section, found)
    lines = [] if outcome == "kept" else [outcome]
    own = near.margins.get(found.id)
    if own is not None and own.threshold is not None and own.score is not None:
        assert near.rules is not None
        threshold = near.rules.thresholds[own.threshold]
        passes = own.score <= threshold.value if threshold.at_most else own.score >= threshold.value
        sign = {(True, True): "≤", (True, False): ">", (False, True): "≥", (False, False): "<"}[
            threshold.at_most, passes
        ]
        lines.append(f"{own.score:.4g} {sign} {threshold.name} {threshold.value:g}")
        if found.id in near.now:
            lines.append(f"by the profile as it is now: {near.now[found.id]}")
        else:
            lines.append(f"{own.distance:.2f} spreads from being {'dropped' if outcome == 'kept' else 'kept'}")
        if own.others:
            lines.append(f"also {', '.join(own.others)}")
    elif own is not None:
        lines.append("nobody to judge: no threshold would keep it")
    elif section == "similarity" and outcome != "kept":
        lines += _partner_lines(store, found)
    elif found.detail:
        lines.append(readable(found.detail))
    return Cell(first, found.id, tuple(lines), second)


def _partner_lines(store: Store, found: _Found) -> list[str]:
    """Which frame of a pair was dropped before, and why."""
    dropped = {row["id"]: row["reason"] for row in store.dropped("keypoints", found.shard)}
    return [
        f"{record_id.removeprefix(f'{found.id}_')}: {dropped[record_id]}"
        for record_id in _frames_of(store, found)
        if record_id in dropped
    ]


def _frames_of(store: Store, found: _Found) -> list[str]:
    """The ids of both frames of a pair, also of one that was dropped before, goal first."""
    rows = store.rows("frames", found.shard, ["pair_id", "kind"])
    own = [record_id for record_id, row in rows.items() if row["pair_id"] == found.id]
    return sorted(own, key=lambda each: (rows[each]["kind"], each))


def _filter_pictures(
    profile: Profile, store: Store, section: str, found: _Found
) -> tuple[Image.Image | None, Image.Image | None]:
    """The picture and, beside it, the people measured in it drawn over it; of a pair the two frames."""
    from pipeline.core.records import image_stage

    ids = _frames_of(store, found) if section == "similarity" else list(found.members)
    rows = store.rows(image_stage(found.shard), found.shard, ["image"], ids)
    pictures = [_picture(rows[record_id]["image"]) for record_id in ids]
    if section == "similarity":
        return pictures[0], pictures[1] if len(pictures) > 1 else None
    if not section.startswith("keypoints") or pictures[0] is None:
        return pictures[0], None
    row = store.measured("keypoints", found.shard, ["width", "height", "persons"], found.members).get(found.id)
    if row is None:
        return pictures[0], None
    thresholds = getattr(profile.keypoints, section.partition(".")[2])
    return pictures[0], _with_people(pictures[0], row, thresholds.min_joint_score)


_UNSURE = 0.4
"""How strongly joints are drawn that the filter does not count as seen."""


def _with_people(picture: Image.Image, row: Mapping[str, Any], min_joint_score: float) -> Image.Image:
    """The darkened picture with the measured people over it; joints below the least score faint."""
    import numpy as np
    from PIL import Image

    from pipeline.backends.protocols import Person
    from pipeline.core.pose import draw_pose_map

    joints = [Person.from_row(person).keypoints for person in row["persons"]]
    page = np.asarray(picture.convert("RGB"), dtype=np.float64) * 0.45
    for least, strength in ((1e-6, _UNSURE), (min_joint_score, 1.0)):
        drawn = draw_pose_map(joints, row["width"], row["height"], min_score=least, line_width=6, joint_radius=6)
        over = drawn.any(axis=2)
        page[over] = page[over] * (1 - strength) + drawn[over] * strength
    return Image.fromarray(np.rint(page).astype(np.uint8))


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
    parser.add_argument(
        "--filter",
        metavar="STAGE",
        help=f"draw instead what one stage kept and dropped, the borderline first: {', '.join(FILTER_STAGES)}",
    )
    parser.add_argument(
        "--cells", type=int, default=FILTER_CELLS, metavar="N", help=f"pictures on a sheet (default: {FILTER_CELLS})"
    )
    options = parser.parse_args(argv)

    def run() -> int:
        profile, build = cli.profile_and_build(options)
        if options.filter is not None:
            if options.cells < 1:
                raise UserError(f"--cells {options.cells}: a sheet needs at least one")
            for path in write_filter_sheets(profile, build, options.filter, options.cells):
                print(f"look at   {path}")
            return cli.DONE
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
