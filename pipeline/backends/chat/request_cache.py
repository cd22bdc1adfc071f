"""Replies that a server has given, by the content of the question, so that none is paid for twice.

One SQLite file a build: one row a reply, written when it comes. Threads and processes may share it. The key is a
sha256, so the file holds no question, no image and no API key. Errors are not kept: they are asked again.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.backends.protocols import ChatReply
from pipeline.core.errors import UserError

_VERSION = 1
_BUSY_S = 60
_TABLE = """
CREATE TABLE IF NOT EXISTS replies (
    key TEXT PRIMARY KEY, model TEXT NOT NULL, request_id TEXT NOT NULL, text TEXT NOT NULL, finish_reason TEXT,
    prompt_tokens INTEGER, completion_tokens INTEGER
) WITHOUT ROWID
"""


def content_key(content: Mapping[str, Any]) -> str:
    """sha256 (hex) of what is asked, as JSON with sorted keys: the same question gives the same key anywhere."""
    text = json.dumps(content, sort_keys=True, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


class RequestCache:
    """The replies kept in one file. Raises UserError where the file is there and is not such a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._owner = 0

    def get(self, key: str) -> ChatReply | None:
        """The reply kept under that key, or None."""
        query = "SELECT text, finish_reason, prompt_tokens, completion_tokens FROM replies WHERE key = ?"
        with self._lock:
            row = self._run(query, (key,)).fetchone()
        return None if row is None else ChatReply(*row)

    def put(self, key: str, model: str, request_id: str, reply: ChatReply) -> None:
        """Keep a reply; it is on disk when this returns. The first one under a key stays."""
        row = (key, model, request_id, reply.text, reply.finish_reason, reply.prompt_tokens, reply.completion_tokens)
        with self._lock:
            self._run("INSERT OR IGNORE INTO replies VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def __len__(self) -> int:
        with self._lock:
            return self._run("SELECT count(*) FROM replies", ()).fetchone()[0]

    def close(self) -> None:
        """Give the file back; the next question opens it again."""
        with self._lock:
            if self._connection is not None and self._owner == os.getpid():
                self._connection.close()
            self._connection = None

    def _run(self, statement: str, values: tuple[Any, ...]) -> sqlite3.Cursor:
        try:
            return self._opened().execute(statement, values)
        except sqlite3.DatabaseError as error:
            raise UserError(f"{self.path}, the replies kept so far, cannot be used ({error}); move it away") from None

    def _opened(self) -> sqlite3.Connection:
        # A connection may not cross a fork, so a worker that inherited one opens its own.
        if self._connection is None or self._owner != os.getpid():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            made = sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
            made.execute("PRAGMA journal_mode=WAL")
            made.execute("PRAGMA synchronous=NORMAL")
            version = made.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, _VERSION):
                raise UserError(f"{self.path} was written by another version of this project; move it away")
            made.execute(_TABLE)
            made.execute(f"PRAGMA user_version={_VERSION}")
            self._connection, self._owner = made, os.getpid()
        return self._connection
