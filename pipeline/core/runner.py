"""Runs one stage over one shard: batches in, outcomes counted, parts written, nothing lost."""

from __future__ import annotations

import hashlib
import json
import re
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.core.errors import UserError
from pipeline.core.profile import Profile
from pipeline.core.prompts import load_prompt
from pipeline.core.stage import Failed, Item, Kept, Measured, Outcome, Rejected, Stage, StageContext, shard_kind
from pipeline.core.store import Store
from pipeline.core.takeover import Earlier, item_keys
from schemas.arrow import arrow_schema
from schemas.records import Record, Rejection

_ADDRESS = re.compile(r"0x[0-9a-fA-F]{6,}")  # of an object in memory: another one in every run

Progress = Callable[[int, int], None]
"""Called with (records done, records in all) after every part."""


class MissingUpstreamError(UserError):
    """A shard this one reads has not been built."""

    def __init__(self, stage: str, shard: str, missing_stage: str, missing_shard: str, options: str) -> None:
        self.stage, self.shard = missing_stage, missing_shard
        of = f" --shard {missing_shard}" if missing_shard != "all" else ""
        super().__init__(
            f"{stage} {shard} needs {missing_stage} {missing_shard}, which is not there: run "
            f"python -m pipeline.{missing_stage}{of}{options} first, or add --with-upstream"
        )
        self._parts = (stage, shard, missing_stage, missing_shard, options)

    def with_options(self, options: str) -> MissingUpstreamError:
        """The same error naming the command with the options that the person gave, e.g. ` --profile full`."""
        return MissingUpstreamError(*self._parts[:4], options)

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors come back from worker processes by pickle, which would call the class with the message alone.
        return type(self), self._parts


class LostRecordsError(RuntimeError):
    """A stage gave back other ids than it was given: a fault of the stage, never of its input."""


@dataclass(frozen=True)
class ShardResult:
    """What running a shard came to. built is False where it was up to date."""

    manifest: dict[str, Any]
    built: bool


def content_key(stage: Stage, profile: Profile, store: Store, shard: str, fingerprints: dict[str, Any]) -> str:
    """The key that decides whether a finished shard still stands.

    Hashes the stage's version and schema, the config it depends on, its prompts, its engines' fingerprints, what it
    reads from outside, and the keys of the shards it reads. Raises MissingUpstreamError where one of those is not
    built.
    """
    upstream = _upstream_keys(stage, store, shard, stage.upstream(profile, shard))
    measured = {"measured": measured_key(stage, profile, store, shard, fingerprints)} if stage.measures else {}
    basis = {
        **measured,
        "stage": stage.name,
        "shard": shard,
        "version": stage.version,
        "schema": str(arrow_schema(stage.writes)),
        "config": {path: profile.section(path) for path in config_of(stage, shard)},
        "batch_records": profile.batch_records,
        "prompts": {prompt: load_prompt(prompt).sha256 for prompt in stage.prompts},
        "engines": fingerprints,
        "external": stage.external(profile, shard) if stage.external else {},
        "upstream": upstream,
    }
    return _digest(basis)


def measured_key(stage: Stage, profile: Profile, store: Store, shard: str, fingerprints: dict[str, Any]) -> str | None:
    """The key under which what a stage measured still stands, whatever it decides by; None for other stages.

    Raises MissingUpstreamError where a shard that the measurement depends on is not built.
    """
    if stage.measures is None:
        return None
    basis = {
        "stage": stage.name,
        "shard": shard,
        "version": stage.measures.version,
        "schema": str(arrow_schema(stage.measures.writes)),
        "engines": fingerprints,
        "upstream": _upstream_keys(stage, store, shard, stage.measures.upstream(profile, shard)),
    }
    if stage.prompts:
        basis["prompts"] = {prompt: load_prompt(prompt).sha256 for prompt in stage.prompts}
    return _digest(basis)


def _upstream_keys(stage: Stage, store: Store, shard: str, upstream: Sequence[tuple[str, str]]) -> dict[str, str]:
    keys: dict[str, str] = {}
    for name, upstream_shard in upstream:
        manifest = store.manifest(name, upstream_shard)
        if manifest is None:
            raise MissingUpstreamError(stage.name, shard, name, upstream_shard, f" --build {store.build_dir.name}")
        keys[f"{name}/{upstream_shard}"] = manifest["key"]
    return keys


def _digest(basis: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(basis, sort_keys=True, default=str).encode()).hexdigest()


def config_of(stage: Stage, shard: str) -> tuple[str, ...]:
    """The dotted profile paths that one shard of a stage depends on."""
    return (*stage.config, *stage.config_by_kind.get(shard_kind(shard), ()))


def run_shard(
    stage: Stage,
    context: StageContext,
    fingerprints: dict[str, Any],
    progress: Progress | None = None,
    force: bool = False,
) -> ShardResult:
    """Bring one shard up to date, resuming what a killed run left.

    Returns the shard's manifest. Raises MissingUpstreamError where its inputs are not built, UserError where they
    changed meanwhile, and LostRecordsError when the ids that came out are not those that went in.
    """
    store, shard = context.store, context.shard
    key = content_key(stage, context.profile, store, shard, fingerprints)
    measured_by = measured_key(stage, context.profile, store, shard, fingerprints)
    with store.writing(
        stage.name, shard, key, stage.writes, stage.measures.writes if stage.measures else None
    ) as writer:
        finished = store.manifest(stage.name, shard)
        if finished is not None and finished["key"] == key and not force:
            writer.abandon()
            if stage.deliver:
                stage.deliver(context, finished)
            return ShardResult(finished, built=False)
        start = time.monotonic()
        items = sorted(stage.items(context), key=lambda item: (item.group or item.id, item.id))
        _check_unique(stage, shard, items)
        batches = batches_of(items, context.profile.batch_records)
        writer.begin(len(batches), force)
        # The shard that stands was judged by other thresholds; what was measured for it may hold all the same.
        stands = measured_by is not None and finished is not None and finished.get("measured_key") == measured_by
        earlier = Earlier(stage, context)
        done, made, remembered, taken_over = 0, 0, 0, 0
        kept_ids: list[str] = []
        dropped_rows: list[dict[str, Any]] = []
        if progress:
            progress(0, len(items))
        for number, batch in enumerate(batches):
            if not writer.has_part(number):
                measured = _measured_before(stage, context, batch) if stands and not force else {}
                remembered += len(measured)
                keys = item_keys(stage, context, fingerprints, batch)
                taken = earlier.outcomes(keys) if keys and not force else []
                taken_over += len(taken)
                known = {outcome.id for outcome in taken}
                rest = [item for item in batch if item.id not in known]
                outcomes = [*taken, *outcomes_of(stage, context, rest, measured)]
                _check_ids(stage, shard, batch, [outcome.id for outcome in outcomes])
                kept = [_checked(stage, outcome) for outcome in outcomes if isinstance(outcome, Kept)]
                dropped = [_dropped(stage, outcome) for outcome in outcomes if not isinstance(outcome, Kept)]
                writer.write_part(
                    number, kept, dropped, list(measured.values()), keys if stage.inputs_of is not None else None
                )
                made += len(batch)
            part_kept, part_dropped = writer.outcomes(number)
            if not _same_ids(batch, part_kept, part_dropped):
                writer.abandon()
                raise LostRecordsError(f"{stage.name} {shard}: part {number} holds other ids than its batch; run again")
            kept_ids += part_kept
            dropped_rows += part_dropped
            done += len(batch)
            if progress:
                progress(done, len(items))
        _check_ids(stage, shard, items, [*kept_ids, *(row["id"] for row in dropped_rows)])
        if content_key(stage, context.profile, store, shard, fingerprints) != key:
            writer.abandon()
            raise UserError(f"{stage.name} {shard}: what it reads has changed while it ran; run it again")
        seconds = time.monotonic() - start
        manifest = {
            "counts": {
                "in": len(items),
                "kept": len(kept_ids),
                "rejected": sum(row["outcome"] == "rejected" for row in dropped_rows),
                "failed": sum(row["outcome"] == "failed" for row in dropped_rows),
            },
            "reasons": dict(sorted(Counter(row["reason"] for row in dropped_rows).items())),
            "engines": fingerprints,
            "prompts": {prompt: load_prompt(prompt).sha256 for prompt in stage.prompts},
            "versions": library_versions(),
            "seconds": round(seconds, 3),
            "records_per_second": round((made - taken_over) / seconds, 2) if seconds > 0 else None,
            "resumed_records": len(items) - made,
        }
        if measured_by is not None:
            manifest |= {"measured_key": measured_by, "remembered_records": remembered}
        if stage.inputs_of is not None:
            manifest |= {"taken_over_records": taken_over}
        whole = writer.finish(manifest)
        if stage.deliver:
            stage.deliver(context, whole)
        return ShardResult(whole, built=True)


def batches_of(items: Sequence[Item], size: int) -> list[list[Item]]:
    """Items in batches of about `size`, in order, a group never parted; one empty batch where there are none."""
    batches: list[list[Item]] = [[]]
    for index, item in enumerate(items):
        same_group = index > 0 and item.group and item.group == items[index - 1].group
        if len(batches[-1]) >= size and not same_group:
            batches.append([])
        batches[-1].append(item)
    return batches


def _measured_before(stage: Stage, context: StageContext, batch: Sequence[Item]) -> dict[str, Record]:
    assert stage.measures is not None
    model = stage.measures.writes
    rows = context.store.measured(stage.name, context.shard, list(model.model_fields), [item.id for item in batch])
    known = {record_id: model.model_validate(row) for record_id, row in rows.items()}
    stands = stage.measures.stands
    return known if stands is None or not known else dict(stands(context, batch, known))


def outcomes_of(
    stage: Stage, context: StageContext, batch: Sequence[Item], measured: dict[str, Record] | None = None
) -> list[Outcome]:
    """The stage's outcomes for a batch. Where the batch raises, each group is tried alone, so that a bad record costs
    one group at most, and becomes Failed with the error.

    measured: for a filter, what is known of the batch by id; what is not is measured now and added.
    """
    if not batch:
        return []
    known = {} if measured is None else measured
    unknown = _unmeasured(stage, batch, known)
    if unknown or stage.measures is None:
        for section in stage.engines:
            context.engines(section)  # an engine that cannot load stops the stage; it is not a fault of one record
    try:
        if stage.measures is None:
            return list(stage.run(context, batch))
        if unknown:
            known |= _measure(stage, context, unknown)
        return list(stage.run(context, [Measured(item, known.get(item.id)) for item in batch]))
    except (UserError, LostRecordsError):
        raise
    except Exception as error:
        groups: dict[str, list[Item]] = {}
        for item in batch:
            groups.setdefault(item.group or item.id, []).append(item)
        if len(groups) == 1:
            where = traceback.extract_tb(error.__traceback__)[-1]
            said = _ADDRESS.sub("0x...", str(error))
            detail = f"{said} ({where.name}, line {where.lineno} of {where.filename.rpartition('/')[2]})"
            return [Failed(item.id, type(error).__name__, detail) for item in batch]
        return [outcome for group in groups.values() for outcome in outcomes_of(stage, context, group, known)]


def _unmeasured(stage: Stage, batch: Sequence[Item], known: dict[str, Record]) -> list[Item]:
    """The items that a filter has still to measure: whole groups, in order; none for other stages."""
    if stage.measures is None:
        return []
    able = stage.measures.measurable(batch)
    groups = {item.group or item.id for item in able if item.id not in known}
    return [item for item in able if (item.group or item.id) in groups]


def _measure(stage: Stage, context: StageContext, items: Sequence[Item]) -> dict[str, Record]:
    assert stage.measures is not None
    found = list(stage.measures.run(context, items))
    wrong = [record for record in found if type(record) is not stage.measures.writes]
    if wrong:
        raise TypeError(f"{stage.name} measures {stage.measures.writes.__name__}, not {type(wrong[0]).__name__}")
    _check_ids(stage, context.shard, items, [record.id for record in found])
    return {record.id: record for record in found}


def library_versions() -> dict[str, str]:
    """Versions of the libraries whose change could change a result."""
    import platform
    from importlib import metadata

    names = ("numpy", "pillow", "pyarrow", "av", "decord", "torch", "spacy", "mediapipe", "pybullet")
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _checked(stage: Stage, outcome: Kept) -> Record:
    if type(outcome.record) is not stage.writes:
        raise TypeError(f"{stage.name} writes {stage.writes.__name__}, not {type(outcome.record).__name__}")
    return outcome.record


def _dropped(stage: Stage, outcome: Rejected | Failed) -> Rejection:
    if isinstance(outcome, Rejected) and outcome.reason not in stage.reasons:
        raise ValueError(f"{stage.name} rejects for {', '.join(stage.reasons)}; not for '{outcome.reason}'")
    kind: Literal["rejected", "failed"] = "rejected" if isinstance(outcome, Rejected) else "failed"
    # A detail may quote input from outside; half a surrogate pair in it is no text that a file can hold.
    detail = outcome.detail.encode("utf-8", "backslashreplace").decode("utf-8")
    return Rejection(id=outcome.id, outcome=kind, reason=outcome.reason, detail=detail)


def _check_ids(stage: Stage, shard: str, items: Sequence[Item], out: list[str]) -> None:
    went_in, came_out = Counter(item.id for item in items), Counter(out)
    if went_in != came_out:
        lost, extra = list(went_in - came_out)[:3], list(came_out - went_in)[:3]
        raise LostRecordsError(f"{stage.name} {shard}: ids in are not ids out; lost {lost}, not asked for {extra}")


def _same_ids(items: Sequence[Item], kept: Sequence[str], dropped: Sequence[dict[str, Any]]) -> bool:
    return Counter(item.id for item in items) == Counter([*kept, *(row["id"] for row in dropped)])


def _check_unique(stage: Stage, shard: str, items: Sequence[Item]) -> None:
    doubled = [name for name, count in Counter(item.id for item in items).items() if count > 1]
    if doubled:
        raise LostRecordsError(f"{stage.name} {shard}: {len(doubled)} ids came in more than once, {doubled[0]} for one")
