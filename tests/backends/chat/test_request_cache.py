"""The file that keeps a server's replies: shared by processes, whole after a kill, and of no other kind."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
from pathlib import Path

import pytest

from pipeline.backends.chat.request_cache import RequestCache, content_key
from pipeline.backends.protocols import ChatReply
from pipeline.core.errors import UserError

REPLY = ChatReply("<think>\n</think> yes", "stop", 3, None)


def put_many(cache: RequestCache, writer: int) -> None:
    """What a worker does with a cache that was open when it was forked."""
    for number in range(50):
        cache.put(f"{writer}-{number}", "model", "id", REPLY)
    assert cache._owner == os.getpid(), "SQLite allows no connection in two processes"


def test_a_reply_comes_back_as_it_was_and_the_first_stays(tmp_path: Path) -> None:
    cache = RequestCache(tmp_path / "new" / "file.sqlite")
    assert cache.get("k") is None
    cache.put("k", "model", "id", REPLY)
    cache.put("k", "model", "id", ChatReply("other"))
    cache.close()
    assert RequestCache(cache.path).get("k") == REPLY
    assert len(cache) == 1


def test_processes_write_at_once_and_none_loses_a_reply(tmp_path: Path) -> None:
    path = tmp_path / "file.sqlite"
    held = RequestCache(path)
    held.put("mine", "model", "id", REPLY)
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=put_many, args=(held, number)) for number in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert len(held) == 101


@pytest.mark.parametrize("content", [b"not a database at all, only some text " * 40, None])
def test_a_file_of_another_kind_is_one_line_for_a_person(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "file.sqlite"
    if content is None:
        sqlite3.connect(path).execute("PRAGMA user_version=99")
    else:
        path.write_bytes(content)
    with pytest.raises(UserError, match="move it away"):
        RequestCache(path).get("k")


def test_a_key_hangs_on_content_alone() -> None:
    assert content_key({"a": 1, "b": [1, 2]}) == content_key({"b": [1, 2], "a": 1})
    assert content_key({"a": 1}) != content_key({"a": "1"})
    assert content_key({"b": [1, 2]}) != content_key({"b": [2, 1]})
