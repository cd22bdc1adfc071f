import hashlib
import json

import numpy as np
import pytest

from pipeline.core.images import read_image
from pipeline.core.runner import content_key
from pipeline.core.seeds import seed_of
from pipeline.generate import STAGE, item_id
from schemas.records import KINDS, Kind, SourceCaption, behavior_of
from tests.backends.overflow import overflowing
from tests.stage_helpers import ENGINE, MINI, FakeEngine, context, dropped, kept, picture, put, run

KEYS = ("aaaaaaaaaa", "bbbbbbbbbb")


def source(key: str, kind: Kind) -> SourceCaption:
    return SourceCaption(
        id=f"{key}_{kind}",
        video=f"video {key}",
        video_key=key,
        oops_split="train",
        kind=kind,
        behavior=behavior_of(kind),
        caption=f"a man of {key} does {kind}",
        worker=0,
        subject_reader=ENGINE,
    )


def painter(spoiled=lambda request: None) -> FakeEngine:
    """Paints a picture of the request's own colour, or what `spoiled` gives in its place."""

    def generate(requests):
        images = []
        for request in requests:
            bad = spoiled(request)
            red, green, blue = (100 + byte % 100 for byte in hashlib.sha256(f"{request.seed}".encode()).digest()[:3])
            images.append(picture((red, green, blue), 16, 12) if bad is None else bad)
        return images

    return FakeEngine("generate", generate)


def generating(folder, engine, shard="train-000", *overrides):
    where = context(folder, shard, *overrides, generate=engine)
    sources = [source(key, kind) for key in KEYS for kind in KINDS]
    put(where, "sources", sources, SourceCaption, "train-000")
    return where


def requests_of(engine):
    return {(request.id, request.attempt): request for (batch,) in engine.asked for request in batch}


def test_image_number_k_of_every_source_caption_is_shard_k(tmp_path):
    engine = painter()
    where = generating(tmp_path, engine, "train-005")
    run(STAGE, where)
    records = kept(STAGE, where)
    assert set(records) == {f"{key}_{kind}_005" for key in KEYS for kind in ("goal", "wentrong", "full")}
    record = records["aaaaaaaaaa_full_005"]
    assert record.source_id == "aaaaaaaaaa_full"
    assert record.pair_id == "aaaaaaaaaa_005"
    assert (record.number, record.kind, record.behavior) == (5, "full", "anomaly")
    assert record.source_caption == record.prompt == "a man of aaaaaaaaaa does full"
    assert (record.width, record.height) == (16, 12)
    assert record.sha256 == hashlib.sha256(record.image).hexdigest()
    assert read_image(record.image, "x").shape == (12, 16, 3)
    assert record.transition_time_s is record.shown_time_s is None


def test_all_kinds_of_one_video_and_number_share_who_is_shown_and_nothing_else_does(tmp_path):
    identities: dict[str, list[str]] = {}
    seeds = set()
    for shard in ("train-000", "train-001"):
        engine = painter()
        run(STAGE, generating(tmp_path, engine, shard))
        for request in requests_of(engine).values():
            identities.setdefault(request.identity, []).append(request.kind)
            seeds.add(request.seed)
    assert len(identities) == 4  # two videos, two numbers
    assert all(sorted(kinds) == ["full", "goal", "wentrong"] for kinds in identities.values())
    assert len(seeds) == 12


def test_the_seed_comes_from_the_profiles_seed_the_id_and_the_attempt(tmp_path):
    engine = painter()
    where = generating(tmp_path, engine, "train-000", "seed=7")
    run(STAGE, where)
    record = kept(STAGE, where)["bbbbbbbbbb_goal_000"]
    assert record.seed == seed_of(7, "bbbbbbbbbb_goal_000", 0)
    assert record.attempt == 0


def test_images_do_not_depend_on_what_else_is_in_the_batch(tmp_path):
    digests = []
    for size in (1, 2, 6):
        where = generating(tmp_path / str(size), painter(), "train-000", f"batch_records={size}")
        run(STAGE, where)
        digests.append({name: record.sha256 for name, record in kept(STAGE, where).items()})
    assert digests[0] == digests[1] == digests[2]


NAN = np.full((12, 16, 3), 0.5, np.float32)
NAN[0, 0, 0] = np.nan


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (np.zeros((12, 16, 3), np.uint8), "black_image"),
        (np.full((12, 16, 3), 90, np.uint8), "flat_image"),
        (NAN, "nan_image"),
    ],
    ids=["black", "flat", "nan"],
)
def test_a_worthless_image_is_tried_once_more_with_the_second_seed_and_then_rejected(tmp_path, image, reason):
    bad, mended = "aaaaaaaaaa_goal_000", "bbbbbbbbbb_goal_000"
    engine = painter(
        lambda request: image if request.id == bad or (request.id, request.attempt) == (mended, 0) else None
    )
    where = generating(tmp_path, engine)
    result = run(STAGE, where)
    asked = requests_of(engine)
    assert [attempt for name, attempt in asked if name == bad] == [0, 1]
    assert asked[bad, 0].seed != asked[bad, 1].seed
    assert asked[bad, 0].identity == asked[bad, 1].identity
    assert dropped(STAGE, where) == {bad: f"rejected: {reason}"}
    detail = where.store.dropped("generate", "train-000")[0]["detail"]
    assert str(asked[bad, 0].seed) in detail
    assert str(asked[bad, 1].seed) in detail
    record = kept(STAGE, where)[mended]
    assert (record.attempt, record.seed) == (1, asked[mended, 1].seed)
    assert max(attempt for _, attempt in asked) == 1
    assert result.manifest["counts"]["kept"] == 5


def half_precision(spoiled) -> FakeEngine:
    engine = painter(spoiled)
    engine.float32_revision = "1 in float32"
    return engine


def test_an_engine_in_half_precision_draws_a_worthless_image_again_in_float32_with_the_same_seed(tmp_path):
    hopeless, overflowing, unlucky = "aaaaaaaaaa_goal_000", "bbbbbbbbbb_goal_000", "bbbbbbbbbb_full_000"

    def spoiled(request):
        bad = {
            hopeless: True,
            overflowing: not request.float32 and request.attempt == 0,
            unlucky: request.attempt == 0,
        }
        return NAN if bad.get(request.id) else None

    engine = half_precision(spoiled)
    where = generating(tmp_path, engine)
    run(STAGE, where)
    asked = [(each.id, each.attempt, each.float32, each.seed) for (batch,) in engine.asked for each in batch]
    first, second = (seed_of(0, hopeless, attempt) for attempt in (0, 1))
    assert [each[1:] for each in asked if each[0] == hopeless] == [
        (0, False, first),
        (0, True, first),
        (1, False, second),
    ]
    assert [each[1:3] for each in asked if each[0] == overflowing] == [(0, False), (0, True)]
    records = kept(STAGE, where)
    made_by = {record.id: (record.attempt, record.generator.revision) for record in records.values()}
    assert made_by.pop(overflowing) == (0, "1 in float32")
    assert made_by.pop(unlucky) == (1, "1")
    assert set(made_by.values()) == {(0, "1")}
    (row,) = where.store.dropped("generate", "train-000")
    assert (row["id"], row["reason"]) == (hopeless, "nan_image")
    assert row["detail"] == f"seeds tried: {first}, {first} in float32, {second}"


def test_an_engine_that_draws_in_float32_anyway_is_not_asked_twice_for_one_seed(tmp_path):
    engine = painter(lambda request: NAN)
    engine.float32_revision = None
    run(STAGE, generating(tmp_path, engine))
    assert {(each.attempt, each.float32) for (batch,) in engine.asked for each in batch} == {(0, False), (1, False)}


def test_what_was_left_out_of_a_prompt_is_recorded_at_every_attempt(tmp_path):
    long, mended = "a man of aaaaaaaaaa does full", "aaaaaaaaaa_full_000"
    engine = painter(lambda request: NAN if (request.id, request.attempt) == (mended, 0) else None)
    engine.cut = lambda prompt: ("a man does full", "of aaaaaaaaaa") if prompt == long else (prompt, None)
    where = generating(tmp_path, engine)
    run(STAGE, where)
    assert [each.prompt for (batch,) in engine.asked for each in batch if each.id == mended] == ["a man does full"] * 2
    records = kept(STAGE, where)
    record = records.pop(mended)
    assert (record.prompt, record.prompt_cut, record.source_caption) == ("a man does full", "of aaaaaaaaaa", long)
    assert record.attempt == 1
    assert all(each.prompt == each.source_caption and each.prompt_cut is None for each in records.values())


def test_the_stage_draws_with_a_real_pipeline_and_mends_in_float32_what_overflows(tmp_path, capsys, monkeypatch):
    from pipeline.backends.clip_vocabulary import count_tokens
    from pipeline.backends.tiny.diffusion import write_tiny_sd
    from pipeline.run_stage import stage_main

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    model = overflowing(write_tiny_sd(tmp_path / "whole"), tmp_path / "overflowing")
    engine = {"model": str(model), "size": 64, "steps": 2, "device": "cpu", "dtype": "float16", "batch_size": 4}
    given = ["generate.backend=diffusers", f"generate.settings={json.dumps(engine)}"]
    where = context(tmp_path / "work", "train-000", *given)
    sources = [source(key, kind) for key in KEYS for kind in KINDS]
    endless = f"a man runs very fast {'and jumps very high ' * 20}in the park"
    sources[0] = sources[0].model_copy(update={"caption": endless})
    put(where, "sources", sources, SourceCaption, "train-000")
    given += [f"work={tmp_path / 'work'}", f"oops.root={MINI}", "batch_records=4"]
    command = ["--build", "build", "--shard", "0", *(f"--set={each}" for each in given)]
    assert stage_main("generate", command) == 0
    assert "kept 6 + rejected 0 + failed 0" in capsys.readouterr().out
    records = kept(STAGE, where)
    assert {(each.width, each.height, each.attempt) for each in records.values()} == {(64, 64, 0)}
    assert len({each.sha256 for each in records.values()}) == 6
    (fingerprint,) = where.store.manifest("generate", "train-000")["engines"].values()
    assert "float16 on cpu" in fingerprint["revision"]
    assert all("float32 on cpu" in each.generator.revision for each in records.values())
    cut = records[item_id(sources[0].id, 0)]
    assert cut.prompt_cut.endswith("in the park")
    assert count_tokens(cut.prompt) <= 77
    assert stage_main("generate", command) == 0
    assert "up to date" in capsys.readouterr().out


def test_an_image_of_floats_is_rounded(tmp_path):
    image = np.linspace(0, 1, 12 * 16 * 3, dtype=np.float32).reshape(12, 16, 3)
    where = generating(tmp_path, painter(lambda _request: image))
    run(STAGE, where)
    shown = read_image(kept(STAGE, where)["aaaaaaaaaa_goal_000"].image, "x").astype(int)
    assert np.abs(shown - image * 255).max() < 25  # JPEG
    assert np.abs(shown - image * 255).mean() < 4


def test_an_engine_that_gives_too_few_images_fails_the_records_and_not_the_shard(tmp_path):
    where = generating(tmp_path, FakeEngine("generate", lambda requests: [picture()] * (len(requests) - 1)))
    assert run(STAGE, where).manifest["counts"] == {"in": 6, "kept": 0, "rejected": 0, "failed": 6}


def test_an_engine_that_raises_for_one_prompt_costs_that_image(tmp_path):
    def generate(requests):
        if any(request.id.startswith("aaaaaaaaaa_full") for request in requests):
            raise RuntimeError("out of memory")
        return [picture() for _ in requests]

    where = generating(tmp_path, FakeEngine("generate", generate))
    run(STAGE, where)
    assert dropped(STAGE, where) == {"aaaaaaaaaa_full_000": "failed: RuntimeError"}


def test_the_seed_of_the_profile_changes_the_key(tmp_path):
    keys = set()
    for seed in (0, 1):
        where = generating(tmp_path / str(seed), painter(), "train-000", f"seed={seed}")
        keys.add(content_key(STAGE, where.profile, where.store, where.shard, {}))
    assert len(keys) == 2


def test_ids_say_source_and_number():
    assert item_id("0123456789_full", 7) == "0123456789_full_007"


def test_all_kinds_of_a_video_are_told_the_same_of_it_and_share_the_identity(tmp_path):
    engine = painter()
    run(STAGE, generating(tmp_path, engine))
    for key in KEYS:
        told = {(each.context, each.identity) for each in requests_of(engine).values() if each.id.startswith(key)}
        assert len(told) == 1
        ((text, _),) = told
        assert text == f"a man of {key} does goal. a man of {key} does wentrong. a man of {key} does full"
