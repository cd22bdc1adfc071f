"""Asks a tiny Qwen3 or a tiny Qwen2-VL, of random weights, through the project's vllm engine; for check-vllm.sh.

Fails where an answer under a schema is no JSON of that schema, a cut one is not marked, one seed gives two answers, one
bad question takes others with it, or an image is not seen.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

from pipeline.backends.chat import chat_model, problems
from pipeline.backends.protocols import ChatModel, ChatReply, ChatRequest
from pipeline.backends.tiny.qwen import write_tiny_qwen2_vl, write_tiny_qwen3

SCHEMA = {
    "type": "object",
    "properties": {"action": {"type": "string", "maxLength": 12}, "anomaly": {"type": "boolean"}},
    "required": ["action", "anomaly"],
    "additionalProperties": False,
}


def engine(model: Path) -> ChatModel:
    settings = {
        "model": str(model),
        "dtype": "float32",
        "max_model_len": 512,
        "max_num_seqs": 8,
        "enforce_eager": True,
        "max_pixels": 8 * 28 * 28,
    }
    found = problems("vllm", settings)
    assert not found, found
    return chat_model("vllm", settings)


def check_held(reply: ChatReply) -> None:
    assert reply.error is None, reply
    assert reply.finish_reason == "stop", reply
    answer = json.loads(reply.text or "")
    assert set(answer) == {"action", "anomaly"}, answer
    assert isinstance(answer["action"], str), answer
    assert isinstance(answer["anomaly"], bool), answer


def check_reading(folder: Path) -> list[ChatReply]:
    questions = [
        ChatRequest("held", "What does she do?", schema=SCHEMA, max_tokens=200, temperature=0.8, seed=1),
        ChatRequest("again", "What does she do?", schema=SCHEMA, max_tokens=200, temperature=0.8, seed=1),
        ChatRequest("free", "What does he do?", max_tokens=5),
        ChatRequest("long", "word " * 2000),
        ChatRequest("greedy", "What do they do?", schema=SCHEMA, max_tokens=200),
    ]
    replies = engine(write_tiny_qwen3(folder)).chat(questions)
    held, again, free, long, greedy = replies
    for reply in (held, again, greedy):
        check_held(reply)
    assert held.text == again.text, (held, again)
    assert (free.finish_reason, free.completion_tokens) == ("length", 5), free
    assert long.text is None, long
    assert long.error, long
    return replies


def check_seeing(folder: Path) -> list[ChatReply]:
    dark, noise = np.zeros((56, 84, 3), np.uint8), np.random.default_rng(0).integers(0, 256, (300, 200, 3), np.uint8)
    questions = [
        ChatRequest("dark", "What does she do?", dark, SCHEMA, max_tokens=200),
        ChatRequest("noise", "What does she do?", noise, max_tokens=8),
        ChatRequest("small", "What does she do?", dark[:20], max_tokens=8),
        ChatRequest("blind", "What does she do?", max_tokens=8),
    ]
    replies = engine(write_tiny_qwen2_vl(folder, wide_heads=True)).chat(questions)
    held, seen, small, blind = replies
    check_held(held)
    assert small.error, small
    # An image stands between two marks; the dark one is 2 x 3 tokens, the large one at most the 8 of max_pixels.
    assert (held.prompt_tokens or 0) - (blind.prompt_tokens or 0) == 2 * 3 + 2, (held, blind)
    assert 2 < (seen.prompt_tokens or 0) - (blind.prompt_tokens or 0) <= 8 + 2, (seen, blind)
    assert seen.text != blind.text, (seen, blind)
    return replies


def main() -> None:
    check = {"reading": check_reading, "seeing": check_seeing}[sys.argv[1]]
    with tempfile.TemporaryDirectory() as folder:
        replies = check(Path(folder) / "tiny")
    from vllm import __version__

    print(f"vllm {__version__}", *replies, f"{sys.argv[1]} by the vllm engine is in order", sep="\n")


if __name__ == "__main__":
    main()
