import dataclasses
import json
import os
import pickle
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import stages
from pipeline.core import runner
from pipeline.core.errors import UserError
from pipeline.core.prompts import Prompt
from pipeline.core.runner import LostRecordsError, MissingUpstreamError, batches_of, content_key, outcomes_of, run_shard
from pipeline.core.stage import Failed, Kept, Ref, Rejected, parse_shard, shard_kind, shard_name, shard_number
from pipeline.core.store import Store
from tests.core import toy_stages
from tests.core.toy_stages import (
    BATCH,
    SHARD,
    Length,
    WordItem,
    build,
    context_in,
    digests,
    lengths_stage,
    run_words,
    toy_profile,
    weigh,
    weights_stage,
    word_outcome,
    words,
    words_stage,
)

ROOT = Path(__file__).parents[2]


def rows_of(folder: Path, stage: str) -> list[str]:
    return Store(folder).kept_ids(stage, SHARD)


# --- batches


items_in_groups = st.lists(st.integers(1, 5), max_size=12).map(
    lambda sizes: [
        WordItem(f"{group:02d}-{n}", f"{group:02d}") for group, size in enumerate(sizes) for n in range(size)
    ]
)
single_items = st.integers(0, 30).map(lambda number: [WordItem(f"{n:02d}") for n in range(number)])


@given(items_in_groups | single_items, st.integers(1, 7))
def test_batches_hold_every_item_once_in_order_and_never_part_a_group(items, size):
    batches = batches_of(items, size)
    assert [item for batch in batches for item in batch] == items
    for group in {item.group for item in items if item.group}:
        assert sum(any(item.group == group for item in batch) for batch in batches) == 1
    largest_group = max((sum(i.group == item.group for i in items) if item.group else 1 for item in items), default=1)
    assert all(len(batch) < size + largest_group for batch in batches)
    assert all(len(batch) >= size for batch in batches[:-1])
    assert all(batches) or batches == [[]]


def test_items_without_a_group_are_cut_at_the_size():
    assert [len(batch) for batch in batches_of([Ref(str(n)) for n in range(7)], 3)] == [3, 3, 1]


def test_a_group_stays_whole_in_a_shard_however_its_ids_sort(tmp_path):
    seen = []

    def run(_context, batch):
        seen.append([item.group for item in batch])
        return [word_outcome(WordItem(item.id)) for item in batch]

    # By id alone the members of the groups "even" and "odd" would alternate.
    mixed = [WordItem(f"w{n:03d}", "odd" if n % 2 else "even") for n in range(12)]
    build(words_stage(run=run, items=lambda _context: mixed), tmp_path)
    assert seen == [["even"] * 6, ["odd"] * 6]


# --- ids in, ids out


def test_every_id_comes_out_once_as_kept_rejected_or_failed(tmp_path):
    result = build(words_stage(13), tmp_path)
    kept = rows_of(tmp_path, "words")
    dropped = {row["id"]: (row["outcome"], row["reason"]) for row in Store(tmp_path).dropped("words", SHARD)}
    assert dropped == {
        "w003": ("rejected", "too_odd"),
        "w010": ("rejected", "too_odd"),
        "w005": ("failed", "unreadable"),
    }
    assert sorted([*kept, *dropped]) == [item.id for item in words(13)]
    assert result.manifest["counts"] == {"in": 13, "kept": 10, "rejected": 2, "failed": 1}
    assert result.manifest["reasons"] == {"too_odd": 2, "unreadable": 1}


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda out: out[:-1], "lost"),
        (lambda out: [*out, Failed("w999", "x")], "w999"),
        (lambda out: [*out, out[0]], "not asked for"),
        (lambda out: [*out[:-1], out[0]], "lost"),
        (lambda _out: [], "lost"),
    ],
    ids=["one left out", "one too many", "one twice", "one in the place of another", "none"],
)
def test_a_stage_that_gives_back_other_ids_is_stopped_and_writes_nothing(tmp_path, spoil, said):
    stage = words_stage(run=lambda context, batch: spoil(run_words(context, batch)))
    with pytest.raises(LostRecordsError, match=said):
        build(stage, tmp_path)
    assert digests(tmp_path) == {}
    assert build(words_stage(), tmp_path).built  # the mended stage starts clean


def test_two_inputs_of_one_id_are_refused(tmp_path):
    with pytest.raises(LostRecordsError, match="w002"):
        build(words_stage(items=lambda _context: [*words(4), WordItem("w002", "g001")]), tmp_path)


def test_a_part_left_by_a_run_over_other_items_is_not_taken_for_ours(tmp_path):
    def stopped(_context, batch):
        if batch[0].id != "w000":
            raise KeyboardInterrupt
        return run_words(_context, batch)

    with pytest.raises(KeyboardInterrupt):
        build(words_stage(run=stopped), tmp_path)
    other = [WordItem(f"w{n:03d}") for n in range(20, 33)]
    with pytest.raises(LostRecordsError):
        build(words_stage(items=lambda _context: other), tmp_path)
    assert build(words_stage(items=lambda _context: other), tmp_path).manifest["counts"]["in"] == 13


def test_a_reason_that_is_not_in_the_stages_list_is_refused(tmp_path):
    stage = words_stage(run=lambda _context, batch: [Rejected(item.id, "bad_mood") for item in batch])
    with pytest.raises(ValueError, match="too_odd; not for 'bad_mood'"):
        build(stage, tmp_path)


def test_a_record_of_another_schema_is_refused(tmp_path):
    stage = words_stage(run=lambda _context, batch: [Kept(Length(id=item.id, letters=1)) for item in batch])
    with pytest.raises(TypeError, match="writes Word, not Length"):
        build(stage, tmp_path)


def test_an_empty_shard_is_a_shard(tmp_path):
    result = build(words_stage(0), tmp_path)
    assert result.manifest["counts"] == {"in": 0, "kept": 0, "rejected": 0, "failed": 0}
    assert rows_of(tmp_path, "words") == [] == Store(tmp_path).dropped("words", SHARD)
    assert build(lengths_stage(), tmp_path).manifest["counts"]["in"] == 0


# --- failures


def failing(bad: str):
    def run(context, batch):
        if any(item.id == bad for item in batch):
            raise ZeroDivisionError(f"cannot divide by {object()!r} \ud800")
        return run_words(context, batch)

    return run


def test_a_batch_that_raises_costs_one_group_which_fails_with_the_error(tmp_path):
    result = build(words_stage(13, run=failing("w007")), tmp_path)
    failed = {row["id"]: row for row in Store(tmp_path).dropped("words", SHARD) if row["outcome"] == "failed"}
    assert set(failed) == {"w006", "w007", "w005"}
    assert failed["w006"]["reason"] == "ZeroDivisionError"
    assert "cannot divide by <object object at 0x...> \\ud800 (run, line " in failed["w006"]["detail"]
    assert "of test_runner.py)" in failed["w006"]["detail"]
    assert result.manifest["counts"] == {"in": 13, "kept": 8, "rejected": 2, "failed": 3}


def test_an_item_without_a_group_fails_alone(tmp_path):
    alone = [Ref(item.id) for item in words(9)]
    build(words_stage(run=failing("w007"), items=lambda _context: alone), tmp_path)
    assert {row["id"] for row in Store(tmp_path).dropped("words", SHARD)} == {"w003", "w005", "w007"}


def test_an_error_for_a_person_stops_the_shard(tmp_path):
    def run(_context, _batch):
        raise UserError("the reviewers' file cannot be read")

    with pytest.raises(UserError, match="reviewers"):
        build(words_stage(run=run), tmp_path)


def test_an_engine_that_cannot_load_stops_the_shard_and_fails_no_record(tmp_path):
    def broken(section):
        raise RuntimeError(f"no weights for {section}")

    stage = words_stage(engines=("generate",))
    with pytest.raises(RuntimeError, match="no weights for generate"):
        run_shard(stage, context_in(tmp_path, engines=broken), {})
    assert digests(tmp_path) == {}


def test_outcomes_of_an_empty_batch_ask_no_engine(tmp_path):
    assert outcomes_of(words_stage(engines=("generate",)), context_in(tmp_path), []) == []


# --- up to date, forced, resumed


# --- filters measure once and decide again


class Scales:
    """The engine of `weights_stage`: notes whom it weighed; these ids break it."""

    def __init__(self, *broken: str) -> None:
        self.weighed: list[str] = []
        self._broken = broken

    def __call__(self, item: WordItem) -> Any:
        self.weighed.append(item.id)
        if item.id in self._broken:
            raise RuntimeError("the scales broke")
        return weigh(item)


def weighed(folder: Path, threshold: float, scales: Any, stage: Any = None, force: bool = False, **engine: Any) -> Any:
    profile = toy_profile(f"similarity.max_cosine={threshold}")
    return run_shard(stage or weights_stage(), context_in(folder, profile, lambda _: scales), engine, force=force)


def heavy(threshold: float) -> list[str]:
    return [item.id for item in words(13) if weigh(item).grams > 100 * threshold]


@given(st.lists(st.integers(0, 100), min_size=2, max_size=4))
@settings(max_examples=10, deadline=None)
def test_a_changed_threshold_decides_again_without_the_engine_and_ends_in_the_bytes_of_a_fresh_build(percents):
    with tempfile.TemporaryDirectory() as temporary:
        again, fresh = Path(temporary) / "again", Path(temporary) / "fresh"
        weighed(again, percents[0] / 100, Scales())
        for percent in percents[1:]:
            weighed(again, percent / 100, None)
            assert [row["id"] for row in Store(again).dropped("weights", SHARD)] == heavy(percent / 100)
        weighed(fresh, percents[-1] / 100, Scales())
        assert digests(again) == digests(fresh)


def test_what_a_filter_measured_is_there_for_the_kept_and_for_the_rejected(tmp_path):
    manifest = weighed(tmp_path, 0.5, Scales()).manifest
    rows = Store(tmp_path).measured("weights", SHARD, ["grams"])
    assert rows == {item.id: {"id": item.id, "grams": weigh(item).grams} for item in words(13)}
    assert set(manifest["files"]) == {path.name for path in (tmp_path / "weights" / SHARD).glob("*.parquet")}
    assert 0 < manifest["counts"]["rejected"] < 13
    with pytest.raises(UserError, match="words train-000"):
        Store(tmp_path).measured("words", SHARD, ["text"])


def test_force_another_engine_and_another_version_of_the_measuring_half_measure_anew(tmp_path):
    weighed(tmp_path, 0.5, Scales())
    of_another_version = dataclasses.replace(weights_stage().measures, version=2)
    for changes in (
        {"force": True},
        {"similarity": {"name": "scales", "revision": "2"}},
        {"stage": weights_stage(measures=of_another_version)},
    ):
        scales = Scales()
        assert weighed(tmp_path, 0.5, scales, **changes).built
        assert sorted(scales.weighed) == [item.id for item in words(13)], changes
        assert weighed(tmp_path, 0.4, None, **{**changes, "force": False}).manifest["remembered_records"] == 13


def test_another_version_of_the_verdict_measures_nothing_anew(tmp_path):
    weighed(tmp_path, 0.5, Scales())
    assert weighed(tmp_path, 0.5, None, stage=weights_stage(version=2)).manifest["remembered_records"] == 13


def test_a_record_that_could_not_be_measured_fails_alone_and_is_tried_again(tmp_path):
    weighed(tmp_path, 0.5, Scales("w003"))
    failed = [row for row in Store(tmp_path).dropped("weights", SHARD) if row["outcome"] == "failed"]
    assert [row["id"] for row in failed] == ["w002", "w003"]  # a group stands or falls as one
    mended = Scales()
    weighed(tmp_path, 0.4, mended)
    assert sorted(mended.weighed) == ["w002", "w003"]
    assert [row["id"] for row in Store(tmp_path).dropped("weights", SHARD)] == heavy(0.4)


def test_a_measuring_half_that_gives_back_other_ids_is_stopped(tmp_path):
    def wrong(_context: Any, batch: Any) -> list[Any]:
        return [weigh(item) for item in batch[1:]]

    stage = weights_stage(measures=dataclasses.replace(weights_stage().measures, run=wrong))
    with pytest.raises(LostRecordsError, match="ids in are not ids out"):
        weighed(tmp_path, 0.5, Scales(), stage=stage)
    assert not (tmp_path / "weights" / SHARD).exists()


def test_the_same_key_does_nothing_and_leaves_no_trace(tmp_path):
    first = build(words_stage(), tmp_path)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")}

    def never(_context, _batch):
        raise AssertionError("ran again")

    again = build(words_stage(run=never), tmp_path)
    assert (first.built, again.built) == (True, False)
    assert again.manifest == first.manifest
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")} == times
    assert [path.name for path in (tmp_path / "words").iterdir() if not path.name.startswith(".")] == [SHARD]


def test_force_builds_again_with_the_same_bytes(tmp_path):
    build(words_stage(), tmp_path)
    before = digests(tmp_path)
    assert build(words_stage(), tmp_path, force=True).built
    assert digests(tmp_path) == before


def test_a_forced_run_that_was_stopped_leaves_the_shard_as_it_was(tmp_path):
    def stopped(_context, _batch):
        raise KeyboardInterrupt

    build(words_stage(), tmp_path)
    with pytest.raises(KeyboardInterrupt):
        build(words_stage(run=stopped), tmp_path, force=True)
    assert len(list((tmp_path / "words").glob("train-*"))) == 2
    assert not build(words_stage(), tmp_path).built
    assert [path.name for path in (tmp_path / "words").glob("train-*")] == [SHARD]


def test_a_rerun_counts_what_it_took_over_and_reports_progress_from_there(tmp_path):
    def stopped(context, batch):
        if batch[0].id == "w008":
            raise KeyboardInterrupt
        return run_words(context, batch)

    with pytest.raises(KeyboardInterrupt):
        build(words_stage(run=stopped), tmp_path)
    seen = []
    result = run_shard(words_stage(), context_in(tmp_path), {}, progress=lambda done, total: seen.append((done, total)))
    assert result.manifest["resumed_records"] == 2 * BATCH
    assert seen == [(0, 13), (4, 13), (8, 13), (12, 13), (13, 13)]


def test_an_input_that_changes_while_the_stage_runs_is_not_mixed(tmp_path):
    build(words_stage(), tmp_path)

    def run(context, batch):
        build(words_stage(11), tmp_path, "similarity.max_cosine=0.1")  # another process builds the words anew
        return [Kept(Length(id=item.id, letters=1)) for item in batch]

    with pytest.raises(UserError, match="has changed while it ran"):
        build(lengths_stage(run=run), tmp_path)
    assert Store(tmp_path).manifest("lengths", SHARD) is None
    assert build(lengths_stage(), tmp_path).manifest["counts"]["in"] == 8


def test_a_second_run_of_a_shard_waits_and_then_finds_it_done(tmp_path):
    started, go = threading.Event(), threading.Event()

    def slow(context, batch):
        started.set()
        assert go.wait(30)
        return run_words(context, batch)

    results: dict[str, Any] = {}
    first = threading.Thread(target=lambda: results.update(first=build(words_stage(run=slow), tmp_path)))
    second = threading.Thread(target=lambda: results.update(second=build(words_stage(run=slow), tmp_path)))
    first.start()
    assert started.wait(30)
    second.start()
    second.join(0.3)
    assert second.is_alive()
    go.set()
    first.join(30)
    second.join(30)
    assert (results["first"].built, results["second"].built) == (True, False)


def test_other_hash_seeds_give_the_same_bytes(tmp_path):
    printed = []
    for seed in ("1", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, toy_stages.__file__, str(tmp_path / seed)]
        printed.append(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    assert printed[0] == printed[1]
    assert printed[0].count("part-") == 7


# --- missing inputs


def test_a_missing_input_names_the_command_that_makes_it(tmp_path):
    with pytest.raises(MissingUpstreamError) as caught:
        build(lengths_stage(), tmp_path / "trial")
    assert f"python -m pipeline.words --shard {SHARD} --build trial first, or add --with-upstream" in str(caught.value)
    assert (caught.value.stage, caught.value.shard) == ("words", SHARD)


def test_errors_come_through_pickle_as_they_are():
    error = MissingUpstreamError("lengths", SHARD, "words", SHARD, " --build x")
    back = pickle.loads(pickle.dumps(error))
    assert (str(back), back.stage, back.shard) == (str(error), "words", SHARD)
    assert type(back) is MissingUpstreamError


# --- content keys


def key_of(folder: Path, stage=None, fingerprints=None, overrides=(), shard: str = SHARD) -> str:
    return content_key(stage or words_stage(), toy_profile(*overrides), Store(folder), shard, fingerprints or {})


def test_the_key_changes_with_everything_that_the_shard_depends_on(tmp_path, monkeypatch):
    engine = {"generate": {"name": "a", "revision": "1", "settings": {"size": 3}}}
    prompted = words_stage(prompts=("caption",))
    keys = {
        "plain": key_of(tmp_path),
        "version": key_of(tmp_path, words_stage(version=2)),
        "schema": key_of(tmp_path, words_stage(writes=Length)),
        "config": key_of(tmp_path, overrides=("similarity.max_cosine=0.5",)),
        "batch": key_of(tmp_path, overrides=("batch_records=5",)),
        "engine": key_of(tmp_path, fingerprints=engine),
        "settings": key_of(tmp_path, fingerprints={"generate": {**engine["generate"], "settings": {"size": 4}}}),
        "prompt": key_of(tmp_path, prompted),
        "external": key_of(tmp_path, words_stage(external=lambda _profile, _shard: {"file": "1"})),
        "external changed": key_of(tmp_path, words_stage(external=lambda _profile, _shard: {"file": "2"})),
        "shard": key_of(tmp_path, shard="train-001"),
        "name": key_of(tmp_path, words_stage(name="other")),
    }
    edited = Prompt("caption", "text", "0" * 64, (), "ours", (), "text")
    monkeypatch.setattr(runner, "load_prompt", lambda _prompt: edited)
    keys["prompt edited"] = key_of(tmp_path, prompted)
    assert len(set(keys.values())) == len(keys)


def test_the_key_does_not_change_with_what_the_shard_does_not_depend_on(tmp_path):
    plain = key_of(tmp_path)
    for other in (
        "seed=9",
        "workers=7",
        f"work={tmp_path}",
        "publish.rows_per_file=3",
        "generate.images_per_caption=5",
    ):
        assert key_of(tmp_path, overrides=(other,)) == plain, other
    assert key_of(tmp_path / "elsewhere") == plain


def test_config_of_one_kind_of_shard_leaves_the_other_kind_alone(tmp_path):
    stage = words_stage(config=(), config_by_kind={"test": ("seed",)})
    for shard, same in (("train-000", True), ("test-000", False)):
        keys = {key_of(tmp_path, stage, overrides=overrides, shard=shard) for overrides in ((), ("seed=5",))}
        assert (len(keys) == 1) is same


def test_a_changed_threshold_changes_the_keys_of_what_follows(tmp_path):
    build(words_stage(), tmp_path)
    before = key_of(tmp_path, lengths_stage())
    build(words_stage(), tmp_path, "similarity.max_cosine=0.5")
    assert key_of(tmp_path, lengths_stage()) != before
    build(words_stage(), tmp_path)
    assert key_of(tmp_path, lengths_stage()) == before


plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)
fingerprint_dicts = st.dictionaries(st.text(max_size=5), plain_values, max_size=5)


@settings(max_examples=60, deadline=None)
@given(fingerprint_dicts, st.randoms(use_true_random=False))
def test_the_key_does_not_hang_on_the_order_of_settings(values, random):
    shuffled = list(values.items())
    random.shuffle(shuffled)
    assert key_of(Path("none"), fingerprints=values) == key_of(Path("none"), fingerprints=dict(shuffled))


@settings(max_examples=60, deadline=None)
@given(fingerprint_dicts, fingerprint_dicts)
def test_other_settings_give_another_key(first, second):
    same = json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)
    assert (key_of(Path("none"), fingerprints=first) == key_of(Path("none"), fingerprints=second)) is same


class BuiltStore(Store):
    """A store in which every shard is built, under one key."""

    def manifest(self, stage, shard):
        return {"key": "k"}


MINI = f"oops.root={ROOT / 'tests' / 'cases' / 'oops_mini'}"


@pytest.mark.parametrize(
    ("override", "dependent"),
    [
        ("similarity.max_cosine=0.9", {"similarity test"}),
        ("keypoints.people.min_joints=3", {"keypoints test"}),
        ("keypoints.structure.max_stretch=3", {"keypoints train"}),
        ("frames.quality_rule=false", {"frames test"}),
        ("frames.jpeg_quality=90", {"frames test"}),
        ("generate.jpeg_quality=90", {"generate train"}),
        ("generate.settings.size=64", {"generate train"}),
        ("generate.sources=3", {"generate train"}),
        ("take_from=[another]", set()),
        ("hardware.gpus=3", set()),
        ("review.reviewers=2", {"review test"}),
        ("sources.splits=[train,val]", {"sources train"}),
        ("recaption.settings={a: 1}", {"recaption train", "recaption test"}),
        ("decompose.settings={a: 1}", {"decompose train", "decompose test"}),
        ("seed=1", {"generate train"}),
        ("generate.images_per_caption=3", set()),
        ("workers=3", set()),
        ("title=another", set()),
    ],
)
def test_a_changed_value_redoes_just_the_stages_that_depend_on_it(tmp_path, override, dependent):
    def keys(*overrides):
        profile, store = toy_profile(MINI, *overrides), BuiltStore(tmp_path)
        found = {}
        for stage in stages.all_stages():
            if stage.name == "publish":
                continue  # reads everything, so that it follows from any change
            engines = {each: profile.section(each) for each in stage.engines}
            engines = {each: (value["backend"], value["settings"]) for each, value in engines.items()}
            for kind in stage.shard_kinds:
                found[f"{stage.name} {kind}"] = content_key(stage, profile, store, f"{kind}-000", engines)
        return found

    before, after = keys(), keys(override)
    assert {name for name in before if before[name] != after[name]} == dependent


# --- names of shards


KNOWN = ["train-000", "train-001", "train-002", "test-000"]


@pytest.mark.parametrize(
    ("text", "shard"),
    [
        ("2", "train-002"),
        ("002", "train-002"),
        ("train-1", "train-001"),
        ("test-0", "test-000"),
        ("test-000", "test-000"),
    ],
)
def test_a_shard_is_found_by_what_a_person_writes(text, shard):
    assert parse_shard(text, KNOWN, "keypoints") == shard


@pytest.mark.parametrize("text", ["3", "-1", "test-1", "", "all", "train-", "²", "train-²", "1.0", "../x", "dev-0"])
def test_an_unknown_shard_names_those_there_are(text):
    with pytest.raises(UserError, match=r"stage keypoints has test-000 and train-000 \.\. train-002"):
        parse_shard(text, KNOWN, "keypoints")


def test_a_stage_of_one_shard_has_the_shard_all():
    assert parse_shard("all", ["all"], "publish") == "all"
    with pytest.raises(UserError, match=r"stage publish has all$"):
        parse_shard("0", ["all"], "publish")


@given(st.sampled_from(["train", "test"]), st.integers(0, 999))
def test_a_shards_name_gives_back_its_kind_and_number(kind, number):
    name = shard_name(kind, number)
    assert (shard_kind(name), shard_number(name)) == (kind, number)
    assert len(name) == len(kind) + 4
