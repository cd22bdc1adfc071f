import dataclasses

import pytest

from pipeline.backends.chat_roles import plain_reply
from pipeline.backends.protocols import Reply
from pipeline.core.prompts import load_prompt
from pipeline.core.runner import run_shard
from pipeline.core.stage import Ref
from pipeline.recaption import STAGE
from schemas.records import CaptionReplies, ImageRecord, PoseRecord, SimilarityRecord
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


def asking(answers) -> FakeEngine:
    """A captioner that gives its replies as they came: those that `answers` has for an id, each as fields."""
    return FakeEngine(
        "ask_captions",
        lambda requests: [
            tuple(
                plain_reply("caption", None, None).model_copy(update={"attempt": number, **fields})
                for number, fields in enumerate(answers.get(each.id, [{"text": f"A man in {each.id} runs."}]))
            )
            for each in requests
        ],
    )


def test_replies_are_kept_as_they_came_of_kept_rejected_and_failed_images(tmp_path):
    cut = {
        "text": "A man",
        "finish_reason": "length",
        "max_tokens": 8,
        "completion_tokens": 8,
        "seed": 0,
        "temperature": 0.0,
    }
    answers = {
        "a": [cut, {**cut, "text": ' Assistant: "A man\n runs." ', "finish_reason": "stop", "max_tokens": 16}],
        "b": [{"text": "<think>hm</think>I'm sorry, I can't help with that."}],
        "c": [cut, cut],
    }
    where = prepared(tmp_path, asking(answers))
    run(STAGE, where)
    assert {name: (record.caption, record.answered) for name, record in kept(STAGE, where).items()} == {
        "a": ("A man runs.", "retried")
    }
    assert dropped(STAGE, where) == {"b": "rejected: refusal", "c": "failed: reply_cut"}
    rows = where.store.measured("recaption", "train-000", list(CaptionReplies.model_fields))
    for name, given in answers.items():
        stored = CaptionReplies.model_validate(rows[name]).replies
        assert [(one.attempt, one.text, one.finish_reason, one.max_tokens) for one in stored] == [
            (number, one["text"], one.get("finish_reason"), one.get("max_tokens")) for number, one in enumerate(given)
        ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("A man runs. " * 9, "loop"),
        ("抱歉，我无法识别图像的内容。", "refusal"),
        ("一个男人在跑步", "not_english"),
        ("``", "empty_caption"),
    ],
)
def test_a_reply_that_is_no_caption_is_rejected_with_its_reason(tmp_path, text, reason):
    where = prepared(tmp_path, captioner({"a": Reply(text)}))
    run(STAGE, where)
    assert dropped(STAGE, where) == {"a": f"rejected: {reason}"}


def test_a_new_way_to_read_replies_asks_nobody(tmp_path):
    engine = captioner({"b": Reply("")})
    where = prepared(tmp_path, engine)
    run(STAGE, where)
    before = kept(STAGE, where)
    assert len(engine.asked) == 1
    result = run(dataclasses.replace(STAGE, version=STAGE.version + 1), where)
    assert (len(engine.asked), result.built, result.manifest["remembered_records"]) == (1, True, 3)
    assert kept(STAGE, where) == before
    assert dropped(STAGE, where) == {"b": "rejected: empty_caption"}


def test_another_version_of_asking_another_engine_or_force_asks_again(tmp_path):
    engine = captioner()
    where = prepared(tmp_path, engine)
    run(STAGE, where, recaption={"revision": "1"})
    run(STAGE, where, recaption={"revision": "2"})
    assert len(engine.asked) == 2
    other = dataclasses.replace(STAGE, measures=dataclasses.replace(STAGE.measures, version=99))
    run(other, where, recaption={"revision": "2"})
    assert len(engine.asked) == 3
    run_shard(other, where, {"recaption": {"revision": "2"}}, force=True)
    assert len(engine.asked) == 4


def test_only_what_was_an_error_and_images_that_changed_are_asked_about_again(tmp_path):
    answers = {"a": Reply(None, "server gone")}
    engine = captioner(answers)
    where = prepared(tmp_path, engine)
    run(STAGE, where)
    assert dropped(STAGE, where) == {"a": "failed: captioner_error"}
    answers.clear()
    # The people of c are others than before, and the upstream shard has another key: b is what it was.
    put(
        where, "keypoints", [person_record("a", 0), person_record("b", 1), person_record("c", 5)], PoseRecord, key="new"
    )
    run(STAGE, where)
    assert [request.id for request in engine.asked[-1][0]] == ["a", "c"]
    assert kept(STAGE, where)["c"].caption == "c: 5 people, anomaly"
    assert set(kept(STAGE, where)) == {"a", "b", "c"}
