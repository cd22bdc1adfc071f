"""The prompts in `prompts/`: one Markdown file each, a YAML head and the text. Its sha256 goes into every record."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from pipeline.core.errors import UserError

PROMPTS_DIR = Path(__file__).resolve().parents[2] / "prompts"

_ID = re.compile(r"[a-z][a-z0-9_]*")
_PLACEHOLDER = re.compile(r"\{([a-z][a-z0-9_]*)\}")
_HEAD_KEYS = {"id", "source", "used_by", "placeholders", "reply"}
_CHOICES = {"source": ("published", "ours"), "reply": ("text", "json")}


class PromptError(UserError):
    """A prompt file is missing or wrong, or a prompt is rendered with the wrong values."""


@dataclass(frozen=True)
class Prompt:
    """One prompt: its text with `{name}` placeholders, and what its file's head says.

    sha256: hex digest of the file's bytes. source: published | ours. used_by: the stages that send it.
    reply: text | json.
    """

    id: str
    text: str
    sha256: str
    placeholders: tuple[str, ...]
    source: str
    used_by: tuple[str, ...]
    reply: str

    def render(self, **values: str) -> str:
        """The text with each placeholder replaced; braces inside a value, and all other braces, stay as they are.

        Raises PromptError when a placeholder has no value or a value has no placeholder.
        """
        missing = sorted(set(self.placeholders) - set(values))
        surplus = sorted(set(values) - set(self.placeholders))
        if missing or surplus:
            wrong = [f"no value for {{{name}}}" for name in missing] + [
                f"no placeholder {{{name}}}" for name in surplus
            ]
            raise PromptError(f"prompt {self.id}: {', '.join(wrong)}")
        # One pass, so that a value that looks like a placeholder is not replaced in turn.
        known = re.compile("|".join(re.escape(f"{{{name}}}") for name in self.placeholders) or r"(?!)")
        return known.sub(lambda match: values[match.group()[1:-1]], self.text)


def load_prompt(prompt_id: str, folder: Path = PROMPTS_DIR) -> Prompt:
    """The prompt of the file `<id>.md` in `folder`.

    Raises PromptError where there is none, or where its head and its text disagree.
    """
    path = folder / f"{prompt_id}.md"
    if not _ID.fullmatch(prompt_id) or not path.is_file():
        there = ", ".join(sorted(found.stem for found in folder.glob("*.md") if _ID.fullmatch(found.stem))) or "none"
        raise PromptError(f"no prompt {prompt_id!r} in {folder}; there are: {there}")
    raw = path.read_bytes()
    try:
        content = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PromptError(f"{path}: not UTF-8 ({error.reason} at byte {error.start})") from error
    head, text = _split_head(content, path)
    placeholders, used_by = (_names(head, key, path) for key in ("placeholders", "used_by"))
    if head["id"] != prompt_id:
        raise PromptError(f"{path}: its head says id {head['id']!r}")
    for key, choices in _CHOICES.items():
        if head[key] not in choices:
            raise PromptError(f"{path}: {key} is {head[key]!r}, not {' or '.join(choices)}")
    if set(placeholders) != set(_PLACEHOLDER.findall(text)):
        found = sorted(set(_PLACEHOLDER.findall(text)))
        raise PromptError(f"{path}: its head names placeholders {sorted(placeholders)}, its text has {found}")
    digest = hashlib.sha256(raw).hexdigest()
    return Prompt(prompt_id, text, digest, placeholders, str(head["source"]), used_by, str(head["reply"]))


def _split_head(content: str, path: Path) -> tuple[dict[str, object], str]:
    import yaml

    parts = re.split(r"^---[ \t]*\r?\n", content, maxsplit=2, flags=re.MULTILINE)
    if len(parts) != 3 or parts[0].strip():
        raise PromptError(f"{path}: it must start with a head between two lines of ---")
    try:
        head = yaml.safe_load(parts[1])
    except yaml.YAMLError as error:
        raise PromptError(f"{path}: its head is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(head, dict) or set(head) != _HEAD_KEYS:
        raise PromptError(f"{path}: its head must have exactly the keys {', '.join(sorted(_HEAD_KEYS))}")
    text = parts[2].strip()
    if not text:
        raise PromptError(f"{path}: there is no text after the head")
    return head, text


def _names(head: dict[str, object], key: str, path: Path) -> tuple[str, ...]:
    value = head[key]
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise PromptError(f"{path}: {key} must be a list of names")
    return tuple(value)
