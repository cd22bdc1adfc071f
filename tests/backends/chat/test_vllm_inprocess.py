"""The vllm engine against a stand-in that takes a call only where vLLM 0.33.0's own signature would.

vllm_signatures.json was read out of its wheel (extract_vllm_signatures.py); the real thing runs in `make check-vllm`.
"""

from __future__ import annotations

import inspect
import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pipeline.backends.chat import chat_model, identity, problems, vllm_inprocess
from pipeline.backends.protocols import ChatRequest
from pipeline.core.errors import UserError

SIGNATURES = json.loads(Path(__file__).with_name("vllm_signatures.json").read_text("utf-8"))
SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}}}
KINDS = {
    "positional": inspect.Parameter.POSITIONAL_OR_KEYWORD,
    "keyword": inspect.Parameter.KEYWORD_ONLY,
    "keywords": inspect.Parameter.VAR_KEYWORD,
}


def signature(name: str) -> inspect.Signature:
    found = [
        inspect.Parameter(
            each["name"],
            KINDS[each["kind"]],
            default=None if each["default"] and each["kind"] != "keywords" else inspect.Parameter.empty,
        )
        for each in SIGNATURES[name]
    ]
    return inspect.Signature(found)


def bind(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments by name; TypeError where vLLM's own function would raise it."""
    bound = signature(name).bind(*args, **kwargs).arguments
    passed_on = bound.pop("kwargs", {})
    if unknown := set(passed_on) - set(SIGNATURES["EngineArgs"]):
        raise TypeError(f"EngineArgs.__init__() got an unexpected keyword argument {sorted(unknown)[0]!r}")
    return {**bound, **passed_on}


def bound_class(name: str) -> type:
    class Bound:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.__dict__.update(dict.fromkeys((each["name"] for each in SIGNATURES[name]), None))
            self.__dict__.update(bind(name, args, kwargs))

    Bound.__name__ = name
    return Bound


class Stand:
    """The fake package: what it was called with, and how it answers."""

    def __init__(self) -> None:
        self.loads: list[dict[str, Any]] = []
        self.chats: list[dict[str, Any]] = []
        self.finish = "stop"
        self.fails: Exception | None = None
        self.unfinished = False


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Stand:
    stand = Stand()
    errors: dict[str, Any] = {"Exception": Exception}
    for name, base in SIGNATURES["errors"].items():
        errors[name] = type(name, (errors[base],), {})
    request_output, completion = bound_class("RequestOutput"), bound_class("CompletionOutput")

    class LLM:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            if stand.fails:
                raise stand.fails
            stand.loads.append(bind("LLM.__init__", args, kwargs))
            self.llm_engine = types.SimpleNamespace(has_unfinished_requests=lambda: stand.unfinished)

        def chat(self, *args: Any, **kwargs: Any) -> list[Any]:
            call = bind("LLM.chat", args, kwargs)
            stand.chats.append(call)
            texts = [json.dumps(messages, default=lambda image: image.size) for messages in call["messages"]]
            if any("poison" in text for text in texts):
                raise errors["VLLMValidationError"]("the prompt is longer than the maximum model length")
            if any("break" in text for text in texts):
                stand.unfinished = True
                raise ValueError("shape mismatch")
            if any("kill" in text for text in texts):
                raise errors["EngineDeadError"]("core died")
            assert len(call["sampling_params"]) == len(texts)
            return [
                request_output(
                    request_id=str(place),
                    prompt=None,
                    prompt_token_ids=[1, 2, 3],
                    prompt_logprobs=None,
                    finished=True,
                    outputs=[
                        completion(
                            index=0,
                            text=text,
                            token_ids=(1, 2),
                            cumulative_logprob=None,
                            logprobs=None,
                            finish_reason=stand.finish,
                        )
                    ],
                )
                for place, text in enumerate(texts)
            ]

    package, sampling = types.ModuleType("vllm"), types.ModuleType("vllm.sampling_params")
    package.__dict__.update(LLM=LLM, SamplingParams=bound_class("SamplingParams"), sampling_params=sampling)
    sampling.__dict__.update(StructuredOutputsParams=bound_class("StructuredOutputsParams"))
    for name, one in (("vllm.exceptions", "VLLMError"), ("vllm.v1.engine.exceptions", "EngineDeadError")):
        module = types.ModuleType(name)
        module.__dict__[one] = errors[one]
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("vllm.v1", "vllm.v1.engine"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "vllm", package)
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", sampling)
    monkeypatch.setattr(vllm_inprocess, "_loaded", {})
    for name in ("VLLM_NO_USAGE_STATS", "DO_NOT_TRACK"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv(name, "1")
    return stand


def model(tmp_path: Path, sees: bool = True) -> str:
    config = {"model_type": "qwen2_vl", "vision_config": {}} if sees else {"model_type": "qwen3"}
    folder = tmp_path / ("sees" if sees else "reads")
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"weights")
    return str(folder)


def picture(height: int = 40, width: int = 60) -> np.ndarray:
    return np.zeros((height, width, 3), np.uint8)


def test_the_stand_in_takes_no_call_that_vllm_would_not() -> None:
    assert SIGNATURES["wheel"].startswith("vllm-0.33.0-")
    bind("LLM.__init__", ("m",), {"max_num_seqs": 3, "dtype": "auto"})
    for name, args, kwargs in (
        ("LLM.__init__", (), {}),
        ("LLM.__init__", ("m", "auto"), {}),
        ("LLM.__init__", ("m",), {"no_such_field": 1}),
        ("LLM.chat", ([],), {"guided_json": {}}),
        ("SamplingParams", (), {"guided_decoding": None}),
        ("StructuredOutputsParams", (), {"schema": {}}),
    ):
        with pytest.raises(TypeError):
            bind(name, args, kwargs)


def test_one_call_asks_everything_image_first_and_thinking_off(vllm: Stand, tmp_path: Path) -> None:
    requests = [
        ChatRequest("a", "what?", picture(), SCHEMA, max_tokens=9, seed=7, temperature=0.5),
        ChatRequest("b", "where?"),
    ]
    replies = chat_model("vllm", {"model": model(tmp_path)}).chat(requests)
    call = vllm.chats[0]
    assert len(vllm.chats) == 1
    assert call["use_tqdm"] is False
    assert call["chat_template_kwargs"] == {"enable_thinking": False}
    (shown, asked), plain = call["messages"][0][0]["content"], call["messages"][1][0]["content"]
    assert (asked, plain) == ({"type": "text", "text": "what?"}, "where?")
    assert {shown["type"], asked["type"]} <= set(SIGNATURES["content parts"])
    assert isinstance(shown["image_pil"], Image.Image)
    held, free = call["sampling_params"]
    assert (held.temperature, held.seed, held.max_tokens, held.structured_outputs.json) == (0.5, 7, 9, SCHEMA)
    assert (free.temperature, free.structured_outputs) == (0, None)
    assert [(reply.finish_reason, reply.prompt_tokens, reply.completion_tokens) for reply in replies] == [
        ("stop", 3, 2)
    ] * 2
    assert "what?" in str(replies[0].text)
    assert "where?" in str(replies[1].text)


def test_the_model_is_loaded_once_a_process_with_safetensors_and_no_code_of_its_own(
    vllm: Stand, tmp_path: Path
) -> None:
    settings = {"model": model(tmp_path), "max_model_len": 4096, "max_num_seqs": 64, "max_pixels": 50176}
    for _ in range(2):
        chat_model("vllm", settings).chat([ChatRequest("a", "b")])
    (load,) = vllm.loads
    assert load["model"] == settings["model"]
    assert load["load_format"] == "safetensors"
    assert load["trust_remote_code"] is False
    assert load["enable_prefix_caching"] is True
    assert load["structured_outputs_config"] == {"backend": "guidance", "disable_any_whitespace": True}
    assert load["limit_mm_per_prompt"] == {"image": 1, "video": 0}
    assert load["mm_processor_kwargs"] == {"max_pixels": 50176}
    assert (load["max_model_len"], load["max_num_seqs"]) == (4096, 64)
    chat_model("vllm", {"model": model(tmp_path, sees=False)}).chat([ChatRequest("a", "b")])
    assert "mm_processor_kwargs" not in vllm.loads[1]
    assert len(vllm_inprocess._loaded) == 1


def test_one_question_that_vllm_refuses_takes_no_other_with_it(vllm: Stand, tmp_path: Path) -> None:
    requests = [ChatRequest(str(n), "poison" if n == 3 else f"question {n}") for n in range(6)]
    replies = chat_model("vllm", {"model": model(tmp_path)}).chat(requests)
    assert [reply.error is None for reply in replies] == [n != 3 for n in range(6)]
    assert "longer than the maximum" in str(replies[3].error)
    assert all(f"question {n}" in str(replies[n].text) for n in range(6) if n != 3)


def test_an_engine_that_died_stops_the_run_and_is_not_asked_again(vllm: Stand, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has died"):
        chat_model("vllm", {"model": model(tmp_path)}).chat([ChatRequest(str(n), "kill") for n in range(4)])
    assert len(vllm.chats) == 1
    assert not vllm_inprocess._loaded


def test_a_model_that_breaks_over_its_answers_stops_the_run_and_is_not_asked_again(vllm: Stand, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="breaks when it answers: shape mismatch"):
        chat_model("vllm", {"model": model(tmp_path)}).chat([ChatRequest(str(n), "break") for n in range(4)])
    assert len(vllm.chats) == 1
    assert not vllm_inprocess._loaded


def test_a_refused_image_and_an_image_for_a_model_without_eyes_are_errors_alone(vllm: Stand, tmp_path: Path) -> None:
    requests = [ChatRequest("a", "b", picture(20, 60)), ChatRequest("c", "d", picture()), ChatRequest("e", "f")]
    seeing = chat_model("vllm", {"model": model(tmp_path)}).chat(requests)
    assert [reply.error is None for reply in seeing] == [False, True, True]
    reading = chat_model("vllm", {"model": model(tmp_path, sees=False)}).chat(requests)
    assert [reply.error is None for reply in reading] == [False, False, True]
    assert "takes no images" in str(reading[1].error)


@pytest.mark.parametrize("reason", SIGNATURES["finish reasons"])
def test_the_finish_reason_comes_through_and_what_was_broken_off_is_an_error(
    vllm: Stand, tmp_path: Path, reason: str
) -> None:
    vllm.finish = reason
    reply = chat_model("vllm", {"model": model(tmp_path)}).chat([ChatRequest("a", "b")])[0]
    assert reply.finish_reason == reason
    assert (reply.error is not None) == (reply.text is None) == (reason in ("abort", "error"))


def test_what_is_missing_is_one_line(vllm: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vllm.fails = ValueError("No available memory\nfor the cache blocks")
    with pytest.raises(UserError, match=r"cannot load .*: No available memory for the cache blocks"):
        chat_model("vllm", {"model": model(tmp_path)}).chat([ChatRequest("a", "b")])
    assert "not on this machine" in problems("vllm", {"model": "no-such/model"})[0]
    (tmp_path / "pickled").mkdir()
    (tmp_path / "pickled" / "config.json").write_text("{}")
    (tmp_path / "pickled" / "pytorch_model.bin").write_bytes(b"")
    assert "no weights in safetensors" in problems("vllm", {"model": str(tmp_path / "pickled")})[0]
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(UserError, match="needs the package vllm"):
        chat_model("vllm", {"model": model(tmp_path)}).chat([ChatRequest("a", "b")])


def test_other_weights_are_another_identity_and_another_place_is_not(tmp_path: Path) -> None:
    first = identity("vllm", {"model": model(tmp_path)})
    (tmp_path / "copy").mkdir()
    assert identity("vllm", {"model": model(tmp_path / "copy"), "gpu_memory_utilization": 0.5}) == first
    assert str(tmp_path) not in json.dumps(first)
    (tmp_path / "copy" / "sees" / "model.safetensors").write_bytes(b"Weights")
    assert identity("vllm", {"model": model(tmp_path / "copy")}) == first  # model() writes them anew
    (tmp_path / "copy" / "sees" / "model.safetensors").write_bytes(b"other weights")
    assert identity("vllm", {"model": str(tmp_path / "copy" / "sees")}) != first
    assert identity("vllm", {"model": model(tmp_path), "dtype": "float16"}) != first


def test_a_model_of_the_hubs_cache_is_known_by_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    commit = "0123456789abcdef0123456789abcdef01234567"
    repo = tmp_path / "models--Qwen--Tiny"
    (repo / "snapshots" / commit).mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)
    (repo / "snapshots" / commit / "config.json").write_text("{}")
    (repo / "snapshots" / commit / "model.safetensors").write_bytes(b"weights")
    assert identity("vllm", {"model": "Qwen/Tiny"})["revision"].endswith(f"+Qwen/Tiny@{commit}")
    assert identity("vllm", {"model": "Qwen/Tiny", "revision": commit})["revision"].endswith(f"+Qwen/Tiny@{commit}")
    assert "not on this machine" in problems("vllm", {"model": "Qwen/Tiny", "revision": "f" * 40})[0]
