"""An outcome that was made from the same is taken over; whatever went into it that is another makes it anew."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline.core import takeover
from pipeline.core.errors import UserError
from pipeline.core.prompts import Prompt
from pipeline.core.runner import run_shard
from pipeline.core.stage import Kept, Outcome, Stage, StageContext
from pipeline.core.store import Store
from tests.core.toy_stages import (
    SHARD,
    Word,
    WordItem,
    digests,
    no_engines,
    toy_profile,
    word_outcome,
    words,
    words_stage,
)


class Maker:
    """A stage of `number` words that notes which it made. What a word is made from is its id, and `texts` of some."""

    def __init__(self, number: int = 13, texts: dict[str, str] | None = None, **changes: Any) -> None:
        self.made: list[str] = []
        self._texts, self._number, self._changes = texts or {}, number, changes

    @property
    def stage(self) -> Stage:
        def run(_context: StageContext, batch: Sequence[WordItem]) -> list[Outcome]:
            self.made += [item.id for item in batch]
            return [word_outcome(item, self._texts.get(item.id, "")) for item in batch]

        # The items are the seed's part of the profile here, as a limit on sources is: another shard, the same words.
        made = {"config": ("seed",), "run": run, "inputs_of": self.inputs_of, **self._changes}
        return words_stage(self._number, **made)

    def inputs_of(self, _context: StageContext, batch: Sequence[WordItem]) -> dict[str, Any]:
        return {item.id: self._texts.get(item.id, "") for item in batch}


def build(maker: Maker, folder: Path, *overrides: str, name: str = "one", force: bool = False, **engines: Any) -> Any:
    context = StageContext(toy_profile(*overrides), Store(folder / name), SHARD, no_engines)
    return run_shard(maker.stage, context, engines, force=force).manifest


FAILED = {"w005"}


def test_more_items_make_only_the_new_ones_and_end_in_the_bytes_of_a_build_from_nothing(tmp_path):
    build(Maker(6), tmp_path / "grown")
    grown, fresh = Maker(13), Maker(13)
    manifest = build(grown, tmp_path / "grown", "seed=2")
    build(fresh, tmp_path / "fresh", "seed=2")
    assert set(grown.made) == {item.id for item in words(13)} - {"w000", "w001", "w002", "w003", "w004"}
    assert len(fresh.made) == 13
    assert digests(tmp_path / "grown") == digests(tmp_path / "fresh")
    assert manifest["taken_over_records"] == 5
    assert any(name.startswith("keys-") for name in manifest["files"])


def test_one_changed_input_makes_that_item_anew_and_no_other(tmp_path):
    build(Maker(), tmp_path)
    changed = Maker(texts={"w007": "another"})
    build(changed, tmp_path, "seed=2")
    assert set(changed.made) == {"w007"} | FAILED
    assert Store(tmp_path / "one").rows("words", SHARD, ["text"])["w007"]["text"].startswith("another")


def test_fewer_items_are_taken_over_and_the_rest_is_gone(tmp_path):
    build(Maker(), tmp_path)
    fewer = Maker(4)
    build(fewer, tmp_path, "seed=2")
    assert fewer.made == []
    assert Store(tmp_path / "one").kept_ids("words", SHARD) == ["w000", "w001", "w002"]
    assert [row["id"] for row in Store(tmp_path / "one").dropped("words", SHARD)] == ["w003"]


def test_a_build_takes_over_from_another_that_the_profile_names_and_from_no_other(tmp_path):
    build(Maker(6), tmp_path, name="pilot")
    named, unnamed = Maker(), Maker()
    build(named, tmp_path, "take_from=[nowhere, pilot]", "seed=2", name="full")
    build(unnamed, tmp_path, "seed=2", name="other")
    assert len(named.made) == 8
    assert len(unnamed.made) == 13
    assert digests(tmp_path / "full") == digests(tmp_path / "other")


def test_what_failed_is_tried_again_and_what_was_rejected_is_not(tmp_path):
    build(Maker(), tmp_path)
    again = Maker()
    build(again, tmp_path, "seed=2")
    assert again.made == ["w005"]


@pytest.mark.parametrize(
    ("changes", "engines"),
    [({"version": 2}, {}), ({}, {"generate": "revision 2"}), ({"prompts": ("caption",)}, {})],
    ids=["version", "engine", "prompts"],
)
def test_another_version_engine_or_prompt_takes_nothing_over(tmp_path, changes, engines):
    build(Maker(), tmp_path)
    other = Maker(**changes)
    build(other, tmp_path, "seed=2", **engines)
    assert len(other.made) == 13


def test_an_edited_prompt_takes_nothing_over(tmp_path, monkeypatch):
    build(Maker(prompts=("caption",)), tmp_path)
    edited = Prompt("caption", "x", "0" * 64, (), "ours", (), "text")
    monkeypatch.setattr(takeover, "load_prompt", lambda _name: edited)
    other = Maker(prompts=("caption",))
    build(other, tmp_path, "seed=2")
    assert len(other.made) == 13


def test_another_schema_takes_nothing_over(tmp_path):
    class Word2(Word):
        more: str = ""

    build(Maker(), tmp_path)

    def run(_context: StageContext, batch: Sequence[WordItem]) -> list[Outcome]:
        other.made += [item.id for item in batch]
        outcomes = [word_outcome(item) for item in batch]
        return [Kept(Word2(**each.record.model_dump())) if isinstance(each, Kept) else each for each in outcomes]

    other = Maker(writes=Word2, run=run)
    build(other, tmp_path, "seed=2")
    assert len(other.made) == 13


def test_force_takes_nothing_over(tmp_path):
    build(Maker(), tmp_path)
    forced = Maker()
    build(forced, tmp_path, "seed=2", force=True)
    assert len(forced.made) == 13


def test_damaged_files_are_not_taken_over_but_named(tmp_path):
    build(Maker(6), tmp_path, name="pilot")
    part = tmp_path / "pilot" / "words" / SHARD / "part-00000.parquet"
    damaged = bytearray(part.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    part.write_bytes(bytes(damaged))
    with pytest.raises(UserError, match=r"part-00000\.parquet is damaged: delete .*train-000"):
        build(Maker(), tmp_path, "take_from=[pilot]", name="full")


def test_a_killed_run_that_took_over_goes_on_where_it_was(tmp_path):
    build(Maker(6), tmp_path, name="pilot")

    class Stopped(Maker):
        def inputs_of(self, context: StageContext, batch: Sequence[WordItem]) -> dict[str, Any]:
            if batch[0].id == "w008":
                raise KeyboardInterrupt
            return super().inputs_of(context, batch)

    with pytest.raises(KeyboardInterrupt):
        build(Stopped(), tmp_path, "take_from=[pilot]", name="full")
    again = Maker()
    build(again, tmp_path, "take_from=[pilot]", name="full")
    build(Maker(), tmp_path, name="fresh")
    assert min(again.made) == "w008"
    assert digests(tmp_path / "full") == digests(tmp_path / "fresh")


def test_a_stage_that_does_not_say_what_an_item_is_made_from_is_stopped(tmp_path):
    with pytest.raises(ValueError, match="what each of its items depends on"):
        build(Maker(inputs_of=lambda _context, batch: {batch[0].id: 1}), tmp_path)


@pytest.mark.parametrize("name", ["../elsewhere", "/etc", ".hidden", "a/b", ""])
def test_a_build_to_take_from_is_a_plain_name(name):
    with pytest.raises(UserError, match=r"take_from"):
        toy_profile(f"take_from={json.dumps([name])}")
