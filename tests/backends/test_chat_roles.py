"""The jobs done by a chat model: what is asked, what is asked again, and what is kept of every reply."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pipeline.backends import chat, chat_roles, registry
from pipeline.backends.chat_roles import (
    OpenaiCaptioner,
    OpenaiDecomposer,
    OpenaiLabeller,
    caption_replies,
    factor_replies,
    label_replies,
)
from pipeline.backends.protocols import (
    BackendContext,
    CaptionRequest,
    ChatReply,
    FactorTexts,
    LabelRequest,
    Labels,
    Reply,
)
from pipeline.core.errors import UserError
from pipeline.core.prompts import load_prompt
from schemas.records import Factors
from tests.stage_helpers import FakeEngine

CAPTION = "A man in a red shirt slips on a wet floor."
GOOD = json.dumps({"appearance": "a man in a red shirt", "action": "slips", "background": "on a wet floor"})
ADDS = json.dumps({"appearance": "a man in a green shirt", "action": "slips", "background": "on a wet floor"})
PROMPT = load_prompt("decompose").text
IMAGE = np.zeros((4, 4, 3), np.uint8)


class FakeChat:
    """A chat model that gives the next of its replies, whatever is asked; keeps the requests, a list a call."""

    name, revision = "openai", "1+toy"

    def __init__(self, *replies) -> None:
        self.calls: list[list] = []
        self._replies = list(replies)

    def chat(self, requests):
        self.calls.append(list(requests))
        return [self._replies.pop(0) for _ in requests]

    @property
    def asked(self):
        return [request for call in self.calls for request in call]


def said(text, finish="stop"):
    return ChatReply(text, finish, prompt_tokens=9, completion_tokens=5)


@pytest.fixture
def made(monkeypatch):
    """Makes an engine over a fake chat model: made(class, fake, **settings)."""

    def make(engine, fake, **settings):
        monkeypatch.setattr(chat, "chat_model", lambda kind, settings, build_dir: fake)
        return engine(BackendContext(settings={"model": "toy", **settings}, build_dir=Path(), truth_dir=Path()))

    return make


def caption_request(name="a"):
    return CaptionRequest(name, IMAGE, (), "normal", None, "Describe it.")


def label_request(name="a", behavior="anomaly"):
    question = {"normal": "action", "anomaly": "anomaly"}[behavior]
    return LabelRequest(name, IMAGE, (), behavior, None, "a caption", {question: "What fails?", "scene": "Where?"})


def test_a_caption_is_asked_for_once_with_the_image_and_the_prompt(made):
    fake = FakeChat(said(" Assistant: A man slips. "))
    engine = made(OpenaiCaptioner, fake, max_tokens=99)
    ((reply,),) = engine.ask_captions([caption_request()])
    (request,) = fake.asked
    assert (request.text, request.max_tokens, request.seed, request.temperature) == ("Describe it.", 99, 0, 0.0)
    assert request.image is IMAGE
    assert request.schema is None
    assert reply.text == " Assistant: A man slips. "
    assert (reply.question, reply.attempt, reply.finish_reason) == ("caption", 0, "stop")
    assert (reply.prompt_tokens, reply.completion_tokens, reply.max_tokens) == (9, 5, 99)


def test_a_cut_reply_is_asked_for_once_more_with_twice_the_room_and_then_stays_cut(made):
    fake = FakeChat(said("A man", "length"), said("whole"), said("A man who"), said("A m", "length"))
    replies = made(OpenaiCaptioner, fake, max_tokens=10).ask_captions([caption_request("a"), caption_request("b")])
    assert [len(each) for each in replies] == [2, 1]
    assert [[request.max_tokens for request in call] for call in fake.calls] == [[10, 10], [20]]
    assert [reply.finish_reason for reply in replies[0]] == ["length", "stop"]
    fake = FakeChat(said("A man", "length"), said("A man who", "length"))
    engine = made(OpenaiCaptioner, fake, max_tokens=10)
    assert engine.caption([caption_request()]) == [Reply(None, "the reply was cut")]
    assert len(fake.asked) == 2


def test_an_error_is_kept_and_not_asked_again(made):
    fake = FakeChat(ChatReply(None, error="server gone"))
    assert made(OpenaiCaptioner, fake).caption([caption_request()]) == [Reply(None, "server gone")]
    assert len(fake.asked) == 1


def test_both_questions_about_an_image_stand_next_to_each_other(made):
    fake = FakeChat(*[said(text) for text in ("Slipping.", "The scene is a kitchen.", "I cannot tell.", "park")])
    engine = made(OpenaiLabeller, fake)
    labels = engine.label([label_request("a"), label_request("b")])
    assert [(request.id, request.text) for request in fake.asked] == [
        ("a", "What fails?"), ("a", "Where?"), ("b", "What fails?"), ("b", "Where?"),
    ]  # fmt: skip
    assert labels[0] == Labels("slipping", "kitchen", {"anomaly": "Slipping.", "scene": "The scene is a kitchen."})
    assert (labels[1].behavior, labels[1].scene) == (None, "park")


def test_a_cut_label_is_asked_again_alone_and_its_replies_stay_in_order(made):
    fake = FakeChat(said("slip", "length"), said("kitchen"), said("slipping"))
    (replies,) = made(OpenaiLabeller, fake).ask_labels([label_request()])
    assert [(reply.question, reply.attempt, reply.text) for reply in replies] == [
        ("anomaly", 0, "slip"), ("anomaly", 1, "slipping"), ("scene", 0, "kitchen"),
    ]  # fmt: skip
    assert [request.text for request in fake.calls[1]] == ["What fails?"]


def test_a_caption_is_split_under_the_schema_of_factors(made):
    fake = FakeChat(said(f"<think></think>{GOOD}"))
    engine = made(OpenaiDecomposer, fake)
    assert engine.decompose([CAPTION], PROMPT) == [FactorTexts("a man in a red shirt", "slips", "on a wet floor")]
    (request,) = fake.asked
    assert request.schema == Factors.model_json_schema()
    assert request.text.endswith(f"Caption: {CAPTION}")
    assert request.image is None
    assert request.temperature == 0.0


@pytest.mark.parametrize(
    "bad", [ADDS, "I'm sorry, I can't.", "", '{"appearance": null, "action": null, "background": null}']
)
def test_a_split_that_adds_or_does_not_parse_is_asked_again_with_another_seed_and_heat(made, bad):
    fake = FakeChat(said(bad), said(GOOD), said(bad), said(GOOD))
    (replies,) = made(OpenaiDecomposer, fake).ask_factors([CAPTION], PROMPT)
    first, second = fake.asked
    assert (first.seed, first.temperature) == (0, 0.0)
    assert second.temperature == 0.7
    assert second.seed != first.seed
    assert second.text == first.text
    assert [(reply.attempt, reply.text) for reply in replies] == [(0, bad), (1, GOOD)]
    made(OpenaiDecomposer, fake).ask_factors([CAPTION], PROMPT)
    assert [request.seed for request in fake.calls[3]] == [second.seed]


def test_only_the_captions_whose_split_failed_are_asked_again_and_so_often_at_most(made):
    fake = FakeChat(said(GOOD), said(ADDS), said(ADDS), said(ADDS))
    engine = made(OpenaiDecomposer, fake, resample=2)
    replies = engine.ask_factors([CAPTION, f"{CAPTION} "], PROMPT)
    assert [len(call) for call in fake.calls] == [2, 1, 1]
    assert [len(each) for each in replies] == [1, 3]
    assert len({request.seed for call in fake.calls[1:] for request in call}) == 2
    fake = FakeChat(said(ADDS))
    engine = made(OpenaiDecomposer, fake, resample=0)
    assert engine.decompose([CAPTION], PROMPT) == [FactorTexts(None, "slips", "on a wet floor")]


def test_a_split_cut_twice_or_an_error_is_not_asked_again(made):
    fake = FakeChat(said("{", "length"), said("{", "length"), ChatReply(None, error="gone"))
    engine = made(OpenaiDecomposer, fake)
    assert engine.decompose([CAPTION], PROMPT) == engine.decompose([CAPTION], PROMPT) == [FactorTexts(None, None, None)]
    assert [[request.max_tokens for request in call] for call in fake.calls] == [[512], [1024], [512]]


def test_the_answers_of_an_engine_without_replies_are_its_replies():
    captioner = FakeEngine("caption", lambda requests: [Reply("A man."), Reply(None, "no \ud800")])
    replies = caption_replies(captioner, [caption_request("a"), caption_request("b")])
    assert [(one.text, one.error, one.seed, one.finish_reason) for (one,) in replies] == [
        ("A man.", None, None, None), (None, "no \\ud800", None, None),
    ]  # fmt: skip
    labeller = FakeEngine("label", lambda requests: [Labels("falling", None, {"scene": "Dark."}), Labels("x", "y")])
    found = label_replies(labeller, [label_request("a"), label_request("b")])
    assert [[(one.question, one.text) for one in each] for each in found] == [
        [("anomaly", "falling"), ("scene", "Dark.")], [("anomaly", "x"), ("scene", "y")],
    ]  # fmt: skip
    splitter = FakeEngine("decompose", lambda captions, prompt: [FactorTexts("a", None, "ü")])
    (((reply),),) = factor_replies(splitter, ["c"], "p")
    assert json.loads(reply.text) == {"appearance": "a", "action": None, "background": "ü"}


def test_the_settings_of_the_job_go_to_the_job_and_those_of_the_engine_to_the_engine(monkeypatch):
    seen = []
    monkeypatch.setattr(
        chat, "chat_model", lambda kind, settings, build_dir: seen.append((kind, settings, build_dir)) or FakeChat()
    )
    context = BackendContext({"model": "m", "concurrency": 3, "seed": 4}, Path("build"), Path())
    engine = OpenaiDecomposer(context)
    assert seen == [("openai", {"model": "m", "concurrency": 3}, Path("build"))]
    assert (engine.name, engine.revision) == ("openai", "1+1+toy")
    with pytest.raises(UserError, match="setting resample"):
        OpenaiDecomposer(BackendContext({"model": "m", "resample": -1}, Path(), Path()))


def test_where_the_server_is_does_not_change_what_identifies_the_answers_and_the_room_does():
    def identity(**settings):
        return registry.fingerprint("recaption", "openai", {"model": "m", **settings})

    assert identity() == identity(base_url="http://127.0.0.1:9/v1", concurrency=3)
    assert identity() != identity(max_tokens=99)
    assert identity()["name"] == "openai"


@pytest.mark.parametrize("kind", chat.KINDS)
@pytest.mark.parametrize("section", ["recaption", "attributes", "decompose"])
def test_the_registry_knows_each_setting_of_the_job_and_of_its_engine(kind, section):
    entry = registry.entry(section, kind)
    engine = registry.engine_class(section, kind)
    assert engine.engine == kind
    assert set(entry.settings) == set(engine.rules) | set(chat.setting_names(kind))
    assert not set(engine.rules) & set(chat.setting_names(kind))
    assert issubclass(engine, (chat_roles.ChatCaptioner, chat_roles.ChatLabeller, chat_roles.ChatDecomposer))


def test_what_is_drawn_has_a_seed_of_its_own_for_each_image_and_question_whatever_stands_beside_it(made):
    def seeds(engine, ask, request, names, **settings):
        fake = FakeChat(*[said("walking")] * 8)
        getattr(made(engine, fake, temperature=0.5, **settings), ask)([request(name) for name in names])
        return [each.seed for each in fake.asked]

    for ask in ((OpenaiCaptioner, "ask_captions", caption_request), (OpenaiLabeller, "ask_labels", label_request)):
        both = seeds(*ask, ["a", "b"])
        assert len(set(both)) == len(both)
        assert both == seeds(*ask, ["a"]) + seeds(*ask, ["b"])
        assert not set(both) & set(seeds(*ask, ["a", "b"], seed=1))
        assert all(0 <= seed < 2**31 for seed in both)


def test_a_split_that_is_drawn_has_a_seed_of_its_caption_whatever_stands_beside_it(made):
    def seeds(*captions):
        fake = FakeChat(*[said(GOOD)] * len(captions))
        made(OpenaiDecomposer, fake, temperature=0.5, resample=0).ask_factors(captions, PROMPT)
        return [each.seed for each in fake.asked]

    assert seeds(CAPTION, "A dog.") == [*seeds(CAPTION), *seeds("A dog.")]
    assert len(set(seeds(CAPTION, "A dog."))) == 2
