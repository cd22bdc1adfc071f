"""The last step of an image: is what the lock says installed, and does this Python stand on its feet?

python docker/check_image.py docker/requirements.lock

Prints what is wrong, a line each, and exits with 1; an image that would fail at its first start is not built.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

LINKED = ("bz2", "ctypes", "curses", "hashlib", "lzma", "readline", "sqlite3", "ssl", "uuid", "zlib")
"""Modules of Python that need a library of the system: the GPU image copies Python beside another system's."""


def pins(lock: str) -> dict[str, str]:
    """Name and version of every `name==version` line. Raises ValueError for a line that pins nothing."""
    found = {}
    for number, line in enumerate(lock.splitlines(), 1):
        text = line.partition("#")[0].partition(";")[0].strip()
        if not text:
            continue
        name, equals, pinned = text.partition("==")
        if not equals or not name or not pinned or "*" in pinned:
            raise ValueError(f"line {number} of the lock is not name==version: {line!r}")
        found[name.partition("[")[0].strip()] = pinned.strip()
    return found


def broken_modules(names: Iterable[str] = LINKED) -> list[str]:
    """A line for every module of Python that does not import."""
    lines = []
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:
            lines.append(f"python: {name} does not import: {error}")
    return lines


def wrong_versions(lock: str) -> list[str]:
    """A line for every package of the lock that is not installed, or is in another version; `+cpu` is none."""
    lines = []
    for name, pinned in pins(lock).items():
        try:
            installed = version(name)
        except PackageNotFoundError:
            lines.append(f"{name}=={pinned} is not installed")
            continue
        if pinned not in (installed, installed.partition("+")[0]):
            lines.append(f"{name}=={pinned} is locked, {installed} is installed")
    return lines


def main(arguments: list[str]) -> int:
    """Exit codes: 0 whole, 1 not, 2 wrong command."""
    if len(arguments) != 1:
        print("usage: python docker/check_image.py LOCK", file=sys.stderr)
        return 2
    lock = Path(arguments[0]).read_text("utf-8")
    wrong = broken_modules() + wrong_versions(lock)
    for line in wrong:
        print(line, file=sys.stderr)
    print(
        f"{len(pins(lock))} packages as locked, Python {sys.version.split()[0]}" if not wrong else f"{len(wrong)} wrong"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
