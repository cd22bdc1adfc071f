"""Outcomes that were made before and still stand: an item is not made again where all that made it is the same.

A shard's content key says whether the shard as a whole stands. Where it does not, because a caption came or went or
because more of them are wanted, most of its items are what they were. A stage that says what each of its items depends
on (`Stage.inputs_of`) has a key stored with every item; an outcome of the same key is taken from the shard's own older
output, or from the same shard of another build that the profile names under `take_from`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.core.errors import UserError
from pipeline.core.prompts import load_prompt
from pipeline.core.stage import Item, Kept, Outcome, Rejected, Stage, StageContext
from pipeline.core.store import Store
from schemas.arrow import arrow_schema


def item_keys(
    stage: Stage, context: StageContext, fingerprints: Mapping[str, Any], items: Sequence[Item]
) -> dict[str, str]:
    """A key for each item, by id: what the stage says it depends on, with the stage's version, schema, prompts and
    engines. Empty for a stage that does not say. Raises ValueError where it says nothing of an item.
    """
    if stage.inputs_of is None or not items:
        return {}
    basis = {
        "stage": stage.name,
        "version": stage.version,
        "schema": str(arrow_schema(stage.writes)),
        "prompts": {prompt: load_prompt(prompt).sha256 for prompt in stage.prompts},
        "engines": fingerprints,
    }
    inputs = stage.inputs_of(context, items)
    if set(inputs) != {item.id for item in items}:
        raise ValueError(f"{stage.name} does not say what each of its items depends on")
    return {record_id: _digest({**basis, "id": record_id, "inputs": own}) for record_id, own in inputs.items()}


def _digest(basis: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(basis, sort_keys=True).encode()).hexdigest()


class Earlier:
    """What was made before of one shard, in this build and in those that the profile names.

    Raises UserError where a file to take from is not what it was when it was written.
    """

    def __init__(self, stage: Stage, context: StageContext) -> None:
        self._stage, self._shard = stage, context.shard
        self._sources: list[tuple[Store, dict[str, str]]] = []
        if stage.inputs_of is None:
            return
        own = context.store
        others = [type(own)(own.build_dir.parent / name) for name in context.profile.take_from]
        for store in [own, *(other for other in others if other.build_dir != own.build_dir)]:
            if store.manifest(stage.name, self._shard) is not None and (
                keys := store.item_keys(stage.name, self._shard)
            ):
                self._sources.append((store, keys))
        self._checked: set[Store] = set()

    def outcomes(self, wanted: Mapping[str, str]) -> list[Outcome]:
        """What is known of the items whose keys by id are `wanted`: those kept or rejected under the same key.

        One that failed is not among them, so that it is tried again.
        """
        left, found = dict(wanted), []
        for store, keys in self._sources:
            same = [record_id for record_id, key in left.items() if keys.get(record_id) == key]
            if not same:
                continue
            self._check(store)
            taken = self._read(store, same)
            found += taken
            for outcome in taken:
                del left[outcome.id]
        return found

    def _read(self, store: Store, ids: Sequence[str]) -> list[Outcome]:
        model = self._stage.writes
        rows = store.rows(self._stage.name, self._shard, list(model.model_fields), ids)
        taken: list[Outcome] = [Kept(model.model_validate(row)) for row in rows.values()]
        asked = set(ids)
        for row in store.dropped(self._stage.name, self._shard):
            if row["id"] in asked and row["outcome"] == "rejected":
                taken.append(Rejected(row["id"], row["reason"], row["detail"]))
        return taken

    def _check(self, store: Store) -> None:
        # Taken as they are and hashed anew, damaged bytes would look sound from then on.
        if store in self._checked:
            return
        if damaged := store.damaged_files(self._stage.name, self._shard):
            folder = store.shard_dir(self._stage.name, self._shard)
            raise UserError(f"{folder / damaged[0]} is damaged: delete {folder}, and what was in it is made again")
        self._checked.add(store)
