import json

from pipeline.attributes import STAGE
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
