"""The openai engine against a server on loopback that answers well, badly, late, with errors, and dies half-way."""

from __future__ import annotations

import base64
import email.utils
import io
import json
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pipeline.backends.chat import chat_model, identity, problems
from pipeline.backends.chat.openai_server import REQUEST_CACHE, OpenAIServer, retry_after_s
from pipeline.backends.protocols import ChatReply, ChatRequest
from pipeline.core.errors import UserError
from tests.backends.chat.fake_server import MODEL, FakeServer, Say, unused_url

SCHEMA = {"type": "object", "properties": {"action": {"type": "string"}}, "required": ["action"]}
OK = ChatReply('{"action": "running"}', "stop", 11, 7)


def engine(server: FakeServer, build_dir: Path | None = None, **settings: Any) -> OpenAIServer:
    chosen = {"model": MODEL, "base_url": server.base_url, "backoff_s": 0.01, "retries": 2, **settings}
    made = chat_model("openai", chosen, build_dir)
    assert isinstance(made, OpenAIServer)
    return made


def questions(count: int) -> list[ChatRequest]:
    return [ChatRequest(f"record-{number}", f"question {number}") for number in range(count)]


def picture(height: int = 40, width: int = 60, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def always(said: Say) -> Callable[[int, dict[str, Any]], Say]:
    return lambda place, body: said


def first(*said: Say) -> Callable[[int, dict[str, Any]], Say]:
    return lambda place, body: said[place] if place < len(said) else Say()


def test_an_image_goes_before_the_text_losslessly_and_thinking_is_off() -> None:
    image = picture()
    with FakeServer(always(Say())).running() as server:
        request = ChatRequest("a", "What is she doing?", image, SCHEMA, max_tokens=33, seed=5, temperature=0.5)
        assert engine(server).chat([request]) == [OK]
    body = server.bodies[0]
    shown, asked = body["messages"][0]["content"]
    assert asked == {"type": "text", "text": "What is she doing?"}
    assert shown["type"] == "image_url"
    kind, _, data = shown["image_url"]["url"].partition(";base64,")
    assert kind == "data:image/png"
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))), image)
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    assert body["response_format"] == {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
    assert (body["model"], body["max_tokens"], body["temperature"], body["seed"]) == (MODEL, 33, 0.5, 5)


def test_jpeg_and_a_server_that_knows_no_template_arguments_are_settings() -> None:
    with FakeServer(always(Say())).running() as server:
        engine(server, image_format="jpeg", thinking="unsaid").chat([ChatRequest("a", "b", picture())])
    assert server.bodies[0]["messages"][0]["content"][0]["image_url"]["url"].startswith("data:image/jpeg;base64,/9j/")
    assert "chat_template_kwargs" not in server.bodies[0]
    assert "response_format" not in server.bodies[0]


def test_a_large_image_is_sent_within_max_pixels() -> None:
    with FakeServer(always(Say())).running() as server:
        engine(server, max_pixels=28 * 28 * 4).chat([ChatRequest("a", "b", picture(200, 100))])
    url = server.bodies[0]["messages"][0]["content"][0]["image_url"]["url"]
    width, height = Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).size
    assert width * height <= 28 * 28 * 4


def test_a_refused_image_is_an_error_of_its_own_and_is_not_sent() -> None:
    bad = [picture(27, 400), picture(28, 28 * 201), picture()[:, :, :1], picture().astype(np.float32)]
    requests = [ChatRequest("ok", "b", picture()), *(ChatRequest("bad", "b", image) for image in bad)]
    with FakeServer(always(Say())).running() as server:
        good, *others = engine(server).chat(requests)
    assert good == OK
    assert all(reply.text is None and reply.error and "the image " in reply.error for reply in others)
    assert server.count == 1


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (Say(text="{'action': 'run"), "{'action': 'run"),
        (Say(text=""), ""),
        (Say(text=None, more=(("reasoning_content", "<think>hm</think>yes"),)), "<think>hm</think>yes"),
        (Say(text=None, more=(("reasoning", "yes"),)), "yes"),
        (Say(text=None, more=(("refusal", "I cannot help with that."),)), "I cannot help with that."),
        (Say(text="half \ud800 a pair"), "half ? a pair"),
    ],
)
def test_an_answer_comes_as_it_is_wherever_it_landed(said: Say, expected: str, tmp_path: Path) -> None:
    with FakeServer(always(said)).running() as server:
        assert engine(server, tmp_path).chat(questions(1)) == [ChatReply(expected, "stop", 11, 7)]


def test_an_answer_that_was_cut_says_so() -> None:
    with FakeServer(always(Say(text="{", finish_reason="length"))).running() as server:
        assert engine(server).chat(questions(1))[0].finish_reason == "length"


@pytest.mark.parametrize(
    "bad",
    [
        Say(status=500, text="oh"),
        Say(status=503, text="loading"),
        Say(status=429, text="slow down", headers=(("Retry-After", "0.05"),)),
        Say(status=408, text="late"),
        Say(cut=True),
        Say(delay_s=0.6),
        Say(raw=b'{"id": "chat-1", "choi'),
        Say(raw=b"<html>proxy</html>", content_type="text/html"),
        Say(raw=b'{"choices": []}'),
    ],
)
def test_what_may_pass_is_tried_again_and_up_to_a_limit(bad: Say) -> None:
    with FakeServer(first(bad, bad)).running() as server:
        assert engine(server, timeout_s=0.3).chat(questions(1)) == [OK]
    assert server.count == 3
    with FakeServer(always(bad)).running() as server:
        reply = engine(server, timeout_s=0.3, retries=1).chat(questions(1))[0]
    assert reply.text is None
    assert reply.error
    assert "tried 2 times" in reply.error
    assert server.count == 2


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
def test_what_the_server_will_never_take_is_an_error_at_once(status: int) -> None:
    with FakeServer(first(Say(status=status, text="too long"))).running() as server:
        replies = engine(server, concurrency=1).chat(questions(3))
    assert replies[0].text is None
    assert f"{status}: " in str(replies[0].error)
    assert "too long" in str(replies[0].error)
    assert replies[1:] == [OK, OK]
    assert server.count == 3


def test_waits_double_from_the_first_and_are_the_same_in_every_run(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float | None] = []

    def noted(event: threading.Event, timeout: float | None = None) -> bool:
        waits.append(timeout)
        return event.is_set()

    monkeypatch.setattr("threading.Event.wait", noted)
    with FakeServer(always(Say(status=500, text="oh"))).running() as server:
        made = engine(server, retries=4, backoff_s=0.25, longest_wait_s=1)
        made._ask(questions(1)[0], threading.Event())
    assert [wait for wait in waits if wait in (0.25, 0.5, 1.0, 2.0, 4.0)] == [0.25, 0.5, 1.0, 1.0]


def test_retry_after_is_waited_out_and_one_too_long_is_an_error() -> None:
    slow = Say(status=429, text="slow down", headers=(("Retry-After", "0.4"),))
    with FakeServer(first(slow)).running() as server:
        began = time.monotonic()
        assert engine(server).chat(questions(1)) == [OK]
        assert time.monotonic() - began >= 0.4
    never = Say(status=429, text="quota", headers=(("Retry-After", "3600"),))
    with FakeServer(always(never)).running() as server:
        assert "asks to wait 3600 s" in str(engine(server).chat(questions(1))[0].error)
    assert server.count == 1


def test_retry_after_is_read_as_seconds_or_as_a_date() -> None:
    assert retry_after_s(None) is None
    assert retry_after_s("2.5") == 2.5
    assert retry_after_s("-3") == 0
    assert retry_after_s("soon") is None
    assert 8 < (retry_after_s(email.utils.formatdate(time.time() + 10, usegmt=True)) or 0) <= 10


def test_no_more_questions_at_once_than_the_setting_says() -> None:
    with FakeServer(always(Say(delay_s=0.05))).running() as server:
        assert engine(server, concurrency=3).chat(questions(9)) == [OK] * 9
    assert server.most_at_once == 3


def test_replies_come_in_the_order_of_the_questions_whichever_is_first() -> None:
    def slow_to_early(place: int, body: dict[str, Any]) -> Say:
        text = body["messages"][0]["content"]
        return Say(text=text, delay_s=0.2 if text == "question 0" else 0)

    with FakeServer(slow_to_early).running() as server:
        assert [reply.text for reply in engine(server).chat(questions(4))] == [f"question {n}" for n in range(4)]


def test_a_server_that_dies_half_way_stops_the_run_and_the_next_run_asks_only_for_the_rest(tmp_path: Path) -> None:
    asked = questions(10)
    with FakeServer(always(Say()), dies_after=4).running() as server:
        with pytest.raises(UserError, match=r"does not answer.*what it answered so far is kept"):
            engine(server, tmp_path, concurrency=2).chat(asked)
        assert server.count >= 4
    kept = len(sqlite3.connect(tmp_path / REQUEST_CACHE).execute("SELECT key FROM replies").fetchall())
    assert kept == 4
    with FakeServer(always(Say())).running() as server:
        assert engine(server, tmp_path).chat(asked) == [OK] * 10
        assert server.count == 10 - kept
        assert engine(server, tmp_path).chat(asked) == [OK] * 10
        assert server.count == 10 - kept


def test_everything_answered_needs_no_server(tmp_path: Path) -> None:
    with FakeServer(always(Say())).running() as server:
        engine(server, tmp_path).chat(questions(2))
    made = chat_model("openai", {"model": MODEL, "base_url": unused_url()}, tmp_path)
    assert made.chat(questions(2)) == [OK, OK]
    with pytest.raises(UserError, match="does not answer"):
        made.chat(questions(3))


def test_whatever_shapes_an_answer_asks_again_and_nothing_else_does(tmp_path: Path) -> None:
    base = ChatRequest("a", "text", picture(), SCHEMA, 10, 1, 0.0)
    others = [
        ChatRequest("a", "text!", picture(), SCHEMA, 10, 1, 0.0),
        ChatRequest("a", "text", picture(seed=1), SCHEMA, 10, 1, 0.0),
        ChatRequest("a", "text", picture().reshape(60, 40, 3), SCHEMA, 10, 1, 0.0),
        ChatRequest("a", "text", None, SCHEMA, 10, 1, 0.0),
        ChatRequest("a", "text", picture(), None, 10, 1, 0.0),
        ChatRequest("a", "text", picture(), SCHEMA, 20, 1, 0.0),
        ChatRequest("a", "text", picture(), SCHEMA, 10, 2, 0.0),
        ChatRequest("a", "text", picture(), SCHEMA, 10, 1, 0.5),
    ]
    with FakeServer(always(Say()), models=(MODEL, "other")).running() as server:
        engine(server, tmp_path).chat([base, ChatRequest("b", "text", picture(), dict(SCHEMA), 10, 1, 0.0)])
        assert server.count == 1, "the same question in one list is asked once"
        engine(server, tmp_path, concurrency=2, timeout_s=9, retries=0).chat([base])
        assert server.count == 1
        engine(server, tmp_path).chat(others)
        assert server.count == 1 + len(others)
        for setting in ({"image_format": "jpeg"}, {"thinking": "unsaid"}, {"revision": "abc"}, {"model": "other"}):
            before = server.count
            engine(server, tmp_path, **setting).chat([base])
            assert server.count == before + 1, setting


def test_an_error_is_not_kept(tmp_path: Path) -> None:
    with FakeServer(first(Say(status=400, text="no"))).running() as server:
        assert engine(server, tmp_path).chat(questions(1))[0].error
        assert engine(server, tmp_path).chat(questions(1)) == [OK]


def test_the_key_is_sent_and_is_written_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINY_KEY", "secret-4711")
    with FakeServer(always(Say()), key="secret-4711").running() as server:
        made = engine(server, tmp_path, api_key_env="TINY_KEY")
        assert made.chat(questions(1)) == [OK]
        made.close()
        assert server.headers[0]["authorization"] == "Bearer secret-4711"
        settings = {"model": MODEL, "base_url": server.base_url, "api_key_env": "TINY_KEY"}
        assert "TINY_KEY" not in json.dumps(identity("openai", settings))
    assert all(b"secret-4711" not in path.read_bytes() for path in tmp_path.iterdir())


def test_what_stands_in_the_way_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    began = time.monotonic()
    assert "does not answer" in problems("openai", {"model": MODEL, "base_url": unused_url()})[0]
    with FakeServer(always(Say()), models=("one", "two"), key="k").running() as server:
        place = {"model": MODEL, "base_url": server.base_url}
        assert "refuses no key" in problems("openai", place)[0]
        assert "NO_SUCH_KEY is not set" in problems("openai", place | {"api_key_env": "NO_SUCH_KEY"})[0]
        monkeypatch.setenv("TINY_KEY", "k")
        place["api_key_env"] = "TINY_KEY"
        assert problems("openai", place)[0].endswith(f"serves one, two, not {MODEL}")
        with pytest.raises(UserError, match="serves one, two, not"):
            chat_model("openai", place).chat(questions(1))
        assert problems("openai", place | {"model": "two"}) == []
        assert server.count == 0
    assert "needs the setting model" in problems("openai", {})[0]
    assert "no setting 'modle'" in problems("openai", {"modle": "x"})[0]
    assert "without a password" in problems("openai", {"model": "x", "base_url": "http://me:pw@there/v1"})[0]
    assert time.monotonic() - began < 5
    monkeypatch.setitem(sys.modules, "openai", None)
    assert "needs the package openai" in problems("openai", {"model": "x"})[0]


def test_where_and_how_fast_a_server_is_asked_does_not_identify_its_answers() -> None:
    base = identity("openai", {"model": MODEL})
    aside = {"base_url": "http://elsewhere:1/v1", "concurrency": 2, "retries": 0, "timeout_s": 5, "api_key_env": "K"}
    assert identity("openai", {"model": MODEL, **aside}) == base
    for other in ({"revision": "abc"}, {"max_pixels": 50000}, {"image_format": "jpeg"}, {"thinking": "unsaid"}):
        assert identity("openai", {"model": MODEL, **other}) != base
    assert base == {"name": "openai", "revision": f"1+{MODEL}@unstated", "settings": {}}
