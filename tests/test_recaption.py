import pytest

from pipeline.backends.protocols import Reply
from pipeline.core.prompts import load_prompt
from pipeline.core.stage import Ref
from pipeline.recaption import STAGE
from schemas.records import ImageRecord, PoseRecord, SimilarityRecord
from tests.stage_helpers import (
    ENGINE,
    FakeEngine,
    context,
    dropped,
    image_record,
    kept,
    person_record,
    picture,
    png,
    put,
    run,
)


def captioner(answers=None) -> FakeEngine:
    """Tells the id and what it was shown, or what `answers` gives for an id."""
    answers = answers or {}
    return FakeEngine(
        "caption",
        lambda requests: [
            answers.get(each.id, Reply(f"{each.id}: {len(each.persons)} people, {each.behavior}")) for each in requests
        ],
    )


def prepared(folder, engine, shard="train-000"):
    where = context(folder, shard, recaption=engine)
    names = [("a", "goal"), ("b", "wentrong"), ("c", "full"), ("d", "goal")]
    images = [image_record(name, kind, png(picture((10 * n + 50,) * 3))) for n, (name, kind) in enumerate(names)]
    put(where, "generate" if shard.startswith("train") else "frames", images, ImageRecord)
    put(where, "keypoints", [person_record(name, n) for n, name in enumerate("abc")], PoseRecord)
    return where


def test_each_image_that_passed_the_filters_is_described_from_its_pixels_and_people(tmp_path):
    engine = captioner()
    where = prepared(tmp_path, engine)
    run(STAGE, where)
    assert {name: record.caption for name, record in kept(STAGE, where).items()} == {
        "a": "a: 0 people, normal",
        "b": "b: 1 people, anomaly",
        "c": "c: 2 people, anomaly",
    }
    ((requests,),) = engine.asked
    assert [int(request.image[-1, -1, 0]) for request in requests] == [50, 60, 70]
    assert [person.score for person in requests[2].persons] == [pytest.approx(0.9), pytest.approx(0.8)]
    assert requests[1].persons[0].keypoints.shape == (17, 3)


def test_the_captioner_is_given_the_prompt_and_never_the_source_caption(tmp_path):
    engine = captioner()
    where = prepared(tmp_path, engine)
    run(STAGE, where)
    ((requests,),) = engine.asked
    prompt = load_prompt("caption")
    assert {(request.prompt, request.source_caption) for request in requests} == {(prompt.text, None)}
    record = kept(STAGE, where)["a"]
    assert (record.prompt.id, record.prompt.sha256) == ("caption", prompt.sha256)
    assert record.captioner == ENGINE


def test_test_shards_describe_what_the_pair_filter_kept(tmp_path):
    where = prepared(tmp_path, captioner(), "test-000")
    put(where, "similarity", [SimilarityRecord(id="b", pair_id="b", cosine=0.1, embedder=ENGINE)], SimilarityRecord)
    run(STAGE, where)
    assert set(kept(STAGE, where)) == {"b"}


def test_an_error_of_the_engine_fails_the_image_and_an_empty_answer_is_rejected(tmp_path):
    answers = {"a": Reply(None, "server gone"), "b": Reply(" \n "), "c": Reply(" Two\n  lines \u00a0here ")}
    where = prepared(tmp_path, captioner(answers))
    run(STAGE, where)
    assert dropped(STAGE, where) == {"a": "failed: captioner_error", "b": "rejected: empty_caption"}
    assert kept(STAGE, where)["c"].caption == "Two lines here"
    assert where.store.dropped("recaption", "train-000")[0]["detail"] == "server gone"


def test_items_are_in_order_of_id(tmp_path):
    assert list(STAGE.items(prepared(tmp_path, captioner()))) == [Ref("a"), Ref("b"), Ref("c")]
