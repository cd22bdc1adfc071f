import dataclasses
import json

from pipeline.attributes import STAGE
from pipeline.backends.chat_roles import plain_reply
from pipeline.backends.protocols import Labels
from pipeline.core.prompts import load_prompt
from schemas.records import (
    ImageRecord,
    PoseRecord,
    PromptUsed,
    Recaption,
    SimilarityRecord,
    SourceCaption,
)
from tests.stage_helpers import ENGINE, FakeEngine, context, dropped, image_record, kept, person_record, put, run


def labeller(answers=None) -> FakeEngine:
    answers = answers or {}
    known = Labels("running", "street", {"scene": "Street.", "action": "running"})
    return FakeEngine("label", lambda requests: [answers.get(each.id, known) for each in requests])


def prepared(folder, engine, shard="train-000"):
    where = context(folder, shard, attributes=engine)
    source = "a man runs" if shard.startswith("train") else None
    names = {"a_goal": "goal", "b_wentrong": "wentrong", "c_full": "full"}
    images = [image_record(name, kind, source_caption=source) for name, kind in names.items()]
    put(where, "generate" if shard.startswith("train") else "frames", images, ImageRecord)
    put(where, "keypoints", [person_record(name) for name in names], PoseRecord)
    used = PromptUsed(id="caption", sha256="0")
    captions = [Recaption(id=name, caption=f"seen in {name}", captioner=ENGINE, prompt=used) for name in names]
    put(where, "recaption", captions, Recaption)
    if shard.startswith("test"):
        put(where, "similarity", [], SimilarityRecord)
        own = SourceCaption(
            id="a_goal",
            video="video a",
            video_key="a",
            oops_split="val",
            kind="goal",
            behavior="normal",
            caption="he wanted to jump",
            worker=0,
            subject_reader=ENGINE,
        )
        put(where, "sources", [own], SourceCaption, "test-000")
    return where


def requests_of(engine):
    return {request.id: request for (batch,) in engine.asked for request in batch}


def test_a_normal_image_gets_an_action_and_an_anomaly_image_an_anomaly(tmp_path):
    where = prepared(tmp_path, labeller({"c_full": Labels("falling", None, {"anomaly": "falling"})}))
    run(STAGE, where)
    records = kept(STAGE, where)
    assert (records["a_goal"].action, records["a_goal"].anomaly) == ("running", None)
    assert (records["b_wentrong"].action, records["b_wentrong"].anomaly) == (None, "running")
    assert (records["c_full"].anomaly, records["c_full"].scene) == ("falling", None)
    assert json.loads(records["a_goal"].raw) == {"scene": "Street.", "action": "running"}


def test_the_questions_are_action_or_anomaly_by_behaviour_and_scene_with_the_source_caption_in_them(tmp_path):
    engine = labeller()
    where = prepared(tmp_path, engine)
    run(STAGE, where)
    asked = requests_of(engine)
    assert set(asked["a_goal"].prompts) == {"action", "scene"}
    assert set(asked["b_wentrong"].prompts) == set(asked["c_full"].prompts) == {"anomaly", "scene"}
    for name, text in asked["a_goal"].prompts.items():
        assert text == load_prompt(name).render(source_caption="a man runs")
    assert asked["a_goal"].caption == "seen in a_goal"
    record = kept(STAGE, where)["b_wentrong"]
    assert {used.id: used.sha256 for used in record.prompts} == {
        name: load_prompt(name).sha256 for name in ("anomaly", "scene")
    }
    assert record.asked_with == "source caption"


def test_a_real_frame_is_asked_about_with_its_videos_caption_or_else_its_re_caption(tmp_path):
    engine = labeller()
    where = prepared(tmp_path, engine, "test-000")
    run(STAGE, where)
    asked, records = requests_of(engine), kept(STAGE, where)
    assert asked["a_goal"].source_caption == "he wanted to jump"
    assert asked["b_wentrong"].source_caption is None
    scene = load_prompt("scene")
    assert asked["a_goal"].prompts["scene"] == scene.render(source_caption="he wanted to jump")
    assert asked["b_wentrong"].prompts["scene"] == scene.render(source_caption="seen in b_wentrong")
    assert (records["a_goal"].asked_with, records["b_wentrong"].asked_with) == ("source caption", "re-caption")


def test_an_image_of_which_nothing_could_be_said_goes_on_without_labels_and_keeps_the_answers(tmp_path):
    where = prepared(tmp_path, labeller({"a_goal": Labels(None, None, {"scene": "I cannot tell."})}))
    run(STAGE, where)
    assert dropped(STAGE, where) == {}
    record = kept(STAGE, where)["a_goal"]
    assert (record.action, record.anomaly, record.scene) == (None, None, None)
    assert json.loads(record.raw) == {"scene": "I cannot tell."}


def asking(answers) -> FakeEngine:
    """A labeller that gives its replies as they came: (question, fields) of each reply by id."""
    return FakeEngine(
        "ask_labels",
        lambda requests: [
            tuple(
                plain_reply(question, None, None).model_copy(update=fields)
                for question, fields in answers.get(each.id, [(name, {"text": "Dancing!"}) for name in each.prompts])
            )
            for each in requests
        ],
    )


def test_answers_are_normalised_and_kept_as_they_came(tmp_path):
    answers = {
        "a_goal": [
            ("action", {"text": "The man is riding a scooter."}),
            ("scene", {"text": "<think></think>Parking Lot"}),
        ],
        "b_wentrong": [
            ("anomaly", {"text": "slip", "finish_reason": "length"}),
            ("anomaly", {"text": "SLIPPING", "finish_reason": "stop"}),
            ("scene", {"text": "in a kitchen"}),
        ],
        "c_full": [("anomaly", {"text": "I am unable to determine it."}), ("scene", {"text": "street"})],
    }
    where = prepared(tmp_path, asking(answers))
    run(STAGE, where)
    records = kept(STAGE, where)
    assert {name: (each.action, each.anomaly, each.scene, each.answered) for name, each in records.items()} == {
        "a_goal": ("riding a scooter", None, "parking lot", "first try"),
        "b_wentrong": (None, "slipping", "kitchen", "retried"),
        "c_full": (None, None, "street", "in part"),
    }
    assert json.loads(records["b_wentrong"].raw) == {"anomaly": "SLIPPING", "scene": "in a kitchen"}
    rows = where.store.measured("attributes", "train-000", ["replies"])
    assert [reply["text"] for reply in rows["b_wentrong"]["replies"]] == ["slip", "SLIPPING", "in a kitchen"]


def test_a_reply_that_stays_cut_or_is_an_error_fails_the_image_and_is_never_a_label(tmp_path):
    cut = {"text": "falling over the", "finish_reason": "length", "max_tokens": 4}
    answers = {
        "b_wentrong": [("anomaly", cut), ("anomaly", cut), ("scene", {"text": "street"})],
        "c_full": [("anomaly", {"text": "falling"}), ("scene", {"error": "timeout"})],
    }
    where = prepared(tmp_path, asking(answers))
    run(STAGE, where)
    assert dropped(STAGE, where) == {"b_wentrong": "failed: reply_cut", "c_full": "failed: labeller_error"}


def test_one_object_for_all_questions_answers_each_by_the_images_behaviour(tmp_path):
    text = '{"action": "slipping", "anomaly": true, "scene": "Kitchen"}'
    answers = {name: [(question, {"text": text}) for question in (first, "scene")] for name, first in (
        ("a_goal", "action"), ("b_wentrong", "anomaly"))}  # fmt: skip
    where = prepared(tmp_path, asking(answers))
    run(STAGE, where)
    records = kept(STAGE, where)
    assert (records["a_goal"].action, records["a_goal"].anomaly, records["a_goal"].scene) == (
        "slipping",
        None,
        "kitchen",
    )
    assert (records["b_wentrong"].action, records["b_wentrong"].anomaly) == (None, "slipping")


def test_a_new_way_to_read_answers_asks_nobody_and_a_changed_caption_asks_about_its_image_alone(tmp_path):
    engine = labeller()
    where = prepared(tmp_path, engine)
    run(STAGE, where)
    newer = dataclasses.replace(STAGE, version=STAGE.version + 1)
    run(newer, where)
    assert len(engine.asked) == 1
    used = PromptUsed(id="caption", sha256="0")
    captions = [
        Recaption(id=name, caption=f"seen in {name}{' again' * (name == 'c_full')}", captioner=ENGINE, prompt=used)
        for name in ("a_goal", "b_wentrong", "c_full")
    ]
    put(where, "recaption", captions, Recaption, key="new")
    run(newer, where)
    assert [request.id for request in engine.asked[-1][0]] == ["c_full"]
    assert len(engine.asked) == 2
