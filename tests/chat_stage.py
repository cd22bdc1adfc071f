"""A stage's real command line over a chat model that answers at once: `python -m tests.chat_stage LOG DIES STAGE ...`.

The model notes each question in the file LOG, and is killed as by kill -9 when question number DIES comes (0: never).
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.backends import chat
from pipeline.backends.protocols import ChatReply, ChatRequest
from pipeline.run_stage import stage_main


class LoggedChat:
    """Splits a caption into itself as the action; a caption with "odd" in it is refused."""

    name, revision = "openai", "1+logged"

    def __init__(self, log: Path, dies: int) -> None:
        self._log, self._dies = log, dies

    def chat(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: ChatRequest) -> ChatReply:
        caption = request.text.rpartition("Caption: ")[2]
        asked = len(self._log.read_text("utf-8").splitlines()) if self._log.exists() else 0
        if self._dies and asked + 1 == self._dies:
            os.kill(os.getpid(), signal.SIGKILL)
        with self._log.open("a", encoding="utf-8") as file:
            file.write(f"{caption}\n")
        if "odd" in caption:
            return ChatReply("I'm sorry, I can't.", "stop", 7, 8)
        return ChatReply(json.dumps({"appearance": None, "action": caption, "background": None}), "stop", 7, 9)


def main(log: str, dies: str, stage: str, *arguments: str) -> int:
    chat.chat_model = lambda _kind, _settings, _build_dir=None: LoggedChat(Path(log), int(dies))  # type: ignore[assignment]
    return stage_main(stage, arguments)


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
