"""Names that were seen, however many, in bounded memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator


class SeenNames:
    """A set of texts that lies on disk beyond a cache of 2 MB: a million names cost no memory to speak of.

    The file is a temporary one without a name and goes with the object.
    """

    def __init__(self) -> None:
        self._known = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._known.execute("PRAGMA journal_mode=OFF")
        self._known.execute("PRAGMA synchronous=OFF")
        self._known.execute("CREATE TABLE names (name TEXT PRIMARY KEY) WITHOUT ROWID")
        self._known.execute("BEGIN")

    def add(self, name: str) -> bool:
        """Whether the name is new; from now on it is not."""
        return self._known.execute("INSERT OR IGNORE INTO names VALUES (?)", (name,)).rowcount == 1

    def __contains__(self, name: str) -> bool:
        return self._known.execute("SELECT 1 FROM names WHERE name = ?", (name,)).fetchone() is not None

    def __len__(self) -> int:
        return self._known.execute("SELECT count(*) FROM names").fetchone()[0]

    def __iter__(self) -> Iterator[str]:
        """The names in the order of their text."""
        for (name,) in self._known.execute("SELECT name FROM names ORDER BY name"):
            yield name
