"""A tiny Qwen2-VL that is shown images and a tiny Qwen3 that answers, through the real classes of transformers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.backends.chat import chat_model, identity, problems
from pipeline.backends.chat.images import GRID_PIXELS, capped_size
from pipeline.backends.protocols import ChatModel, ChatRequest
from pipeline.core.errors import UserError

SCHEMA = {
    "type": "object",
    "properties": {
        "appearance": {"anyOf": [{"type": "string", "maxLength": 12}, {"type": "null"}]},
        "falls": {"type": "boolean"},
    },
    "required": ["appearance", "falls"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    from pipeline.backends.tiny.qwen import write_tiny_qwen2_vl, write_tiny_qwen3

    root = tmp_path_factory.mktemp("tiny")
    return {"vl": write_tiny_qwen2_vl(root / "vl"), "q3": write_tiny_qwen3(root / "q3")}


@pytest.fixture(scope="module")
def qwen3(folders: dict[str, Path]) -> ChatModel:
    return chat_model("transformers", {"model": str(folders["q3"]), "batch_size": 4})


@pytest.fixture(scope="module")
def qwen2_vl(folders: dict[str, Path]) -> ChatModel:
    return chat_model("transformers", {"model": str(folders["vl"]), "max_pixels": 28 * 28 * 8})


def picture(seed: int, height: int = 60, width: int = 90) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def of_schema(text: str | None) -> bool:
    answer: Any = json.loads(text or "")
    return set(answer) == {"appearance", "falls"} and isinstance(answer["falls"], bool)


def test_qwen3_answers_under_a_schema_with_json_of_it_and_ends(qwen3: ChatModel) -> None:
    schemas = (None, SCHEMA, SCHEMA)
    free, held, long = qwen3.chat(
        [ChatRequest(str(n), "word " * (1 + 9 * n), schema=schema, max_tokens=90) for n, schema in enumerate(schemas)]
    )
    for reply in (held, long):
        assert of_schema(reply.text)
        assert reply.finish_reason == "stop"
    with pytest.raises(ValueError, match=r"Expecting|Extra"):
        json.loads(free.text or "")
    assert (held.prompt_tokens or 0) < (long.prompt_tokens or 0)


def test_an_answer_in_a_batch_is_the_answer_alone(qwen3: ChatModel) -> None:
    requests = [ChatRequest(str(n), "she runs " * n, max_tokens=12) for n in range(1, 6)]
    assert qwen3.chat(requests) == [qwen3.chat([request])[0] for request in requests]
    rooms = [ChatRequest(str(room), "hello", max_tokens=room) for room in (3, 6)]
    assert [reply.completion_tokens for reply in qwen3.chat(rooms)] == [3, 6], "the room is each one's own"


def test_an_answer_cut_at_its_room_says_length(qwen3: ChatModel) -> None:
    cut = qwen3.chat([ChatRequest("a", "hello", schema=SCHEMA, max_tokens=3)])[0]
    assert (cut.finish_reason, cut.completion_tokens) == ("length", 3)
    assert cut.text
    assert cut.text.startswith('{"')


def test_a_drawn_answer_hangs_on_its_seed_and_not_on_its_company(qwen3: ChatModel) -> None:
    import torch

    draws = [ChatRequest(str(seed), "hello", max_tokens=12, seed=seed, temperature=0.9) for seed in (1, 2)]
    before = torch.random.get_rng_state()
    one, two = qwen3.chat(draws)
    assert one.text != two.text
    assert qwen3.chat([ChatRequest("x", "hi", max_tokens=4), *reversed(draws)])[1:] == [two, one]
    assert torch.equal(before, torch.random.get_rng_state())


def test_the_taste_in_a_models_own_folder_shapes_no_answer(
    folders: dict[str, Path], qwen3: ChatModel, tmp_path: Path
) -> None:
    request = ChatRequest("a", "hello", max_tokens=6)
    plain = qwen3.chat([request])
    other = Path(shutil.copytree(folders["q3"], tmp_path / "other"))
    taste = json.loads((other / "generation_config.json").read_text("utf-8"))
    taste["suppress_tokens"] = list(range(8, 300))
    (other / "generation_config.json").write_text(json.dumps(taste), "utf-8")
    assert chat_model("transformers", {"model": str(other)}).chat([request]) == plain


def test_no_thinking_is_asked_for_and_marks_of_it_stay_in_the_text(qwen3: ChatModel) -> None:
    # The template writes an empty thought where thinking is off: 4 tokens beyond one that lets the model think.
    from pipeline.backends.chat.transformers_local import _rendered, _reply

    model = qwen3._started()  # type: ignore[attr-defined]
    assert _rendered(model, ChatRequest("a", "hi")).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    ids = model.tokenizer("<think>so</think>yes<|im_end|>")["input_ids"]
    assert _reply(model, ids, 1).text == "<think>so</think>yes"
    padded = _reply(model, [*ids, model.tokenizer.pad_token_id, model.tokenizer.pad_token_id], 1)
    assert (padded, padded.completion_tokens) == (_reply(model, ids, 1), len(ids)), "padding is no part of an answer"


def test_a_question_too_long_or_under_an_impossible_schema_is_an_error_alone(qwen3: ChatModel) -> None:
    requests = [
        ChatRequest("a", "hello", max_tokens=4),
        ChatRequest("b", "word " * 5000, max_tokens=4),
        ChatRequest("c", "hello", schema={"type": "no such type"}, max_tokens=4),
        ChatRequest("d", "hello", picture(0), max_tokens=4),
    ]
    replies = qwen3.chat(requests)
    assert [reply.error is None for reply in replies] == [True, False, False, False]
    assert "the model takes 4096" in str(replies[1].error)
    assert "takes no images" in str(replies[3].error)


def test_qwen2_vl_is_shown_the_image_before_the_text(qwen2_vl: ChatModel) -> None:
    from pipeline.backends.chat.transformers_local import _inputs, _rendered

    model = qwen2_vl._started()  # type: ignore[attr-defined]
    request = ChatRequest("a", "what?", picture(0, 56, 84))
    text = _rendered(model, request)
    assert text.index("<|image_pad|>") < text.index("what?")
    inputs = _inputs(model, [request, ChatRequest("b", "what is it?", picture(1, 112, 112))])
    shown = model.tokenizer.convert_tokens_to_ids("<|image_pad|>")
    assert (inputs["input_ids"] == shown).sum(dim=1).tolist() == [2 * 3, 2 * 2], "capped at 8"
    assert inputs["attention_mask"][0, 0] == 0, "padded on the left"
    assert inputs["attention_mask"][0, -1] == 1


def test_qwen2_vl_answers_about_each_image_and_refuses_bad_ones_one_by_one(qwen2_vl: ChatModel) -> None:
    requests = [
        ChatRequest("a", "what?", picture(0), SCHEMA, max_tokens=90),
        ChatRequest("b", "what?", picture(1, 300, 200), max_tokens=8),
        ChatRequest("small", "what?", picture(0, 20, 90), max_tokens=8),
        ChatRequest("thin", "what?", picture(0, 28, 28 * 201), max_tokens=8),
        ChatRequest("none", "what?", max_tokens=8),
        ChatRequest("c", "what?", picture(2), max_tokens=8),
    ]
    replies = qwen2_vl.chat(requests)
    assert [reply.error is None for reply in replies] == [True, True, False, False, True, True]
    assert of_schema(replies[0].text)
    assert replies[1].text != replies[5].text
    # At most 8 tokens of image: the cap of the settings, not the folder's.
    assert 0 < (replies[1].prompt_tokens or 0) - (replies[4].prompt_tokens or 0) <= 8 + 2
    assert qwen2_vl.chat([requests[5]])[0] == replies[5]


def test_the_same_seed_writes_the_same_tiny_model_and_another_writes_another(folders: dict[str, Path]) -> None:
    from pipeline.backends.tiny.qwen import write_tiny_qwen3

    again = write_tiny_qwen3(folders["q3"].parent / "again")
    other = write_tiny_qwen3(folders["q3"].parent / "other", seed=1)
    for path in folders["q3"].iterdir():
        assert (again / path.name).read_bytes() == path.read_bytes()
    first = identity("transformers", {"model": str(folders["q3"])})
    assert identity("transformers", {"model": str(again)}) == first
    assert identity("transformers", {"model": str(other)}) != first


def test_what_is_missing_is_one_line(tmp_path: Path, folders: dict[str, Path]) -> None:
    assert problems("transformers", {"model": str(folders["q3"])}) == []
    assert "not on this machine" in problems("transformers", {"model": str(tmp_path / "gone")})[0]
    assert "no config.json" in problems("transformers", {"model": str(tmp_path)})[0]
    (tmp_path / "config.json").write_text('{"model_type": "llava", "vision_config": {}}')
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert "is another" in problems("transformers", {"model": str(tmp_path)})[0]
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    with pytest.raises(UserError, match="cannot be loaded"):
        chat_model("transformers", {"model": str(tmp_path)}).chat([ChatRequest("a", "b")])
    with pytest.raises(UserError, match="cannot go to the device 'no such'"):
        chat_model("transformers", {"model": str(folders["q3"]), "device": "no such"}).chat([ChatRequest("a", "b")])


def smart_resize(height: int, width: int, max_pixels: int) -> tuple[int, int]:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    return smart_resize(height, width, factor=GRID_PIXELS, min_pixels=0, max_pixels=max_pixels)


@settings(deadline=None)
@given(st.integers(28, 3000), st.integers(28, 3000), st.integers(GRID_PIXELS**2, 2_000_000))
def test_a_cap_makes_an_image_what_the_model_would_have_made_of_it(height: int, width: int, max_pixels: int) -> None:
    size = capped_size(height, width, max_pixels)
    expected = smart_resize(height, width, max_pixels)
    assert smart_resize(*size, max_pixels=max(max_pixels, size[0] * size[1])) == expected
    if size != (height, width):
        assert size == expected
        # A side is at least one square, so a long thin image may stay a little larger.
        assert size[0] * size[1] <= max_pixels or GRID_PIXELS in size
