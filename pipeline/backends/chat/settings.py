"""An engine's settings: its defaults with what the profile says, every value of the kind its default is of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.core.errors import UserError


@dataclass(frozen=True)
class Rule:
    """What a setting may be: default, its type, its least value, or the words to choose from."""

    default: Any
    kind: type[Any]
    least: float | None = None
    choices: tuple[str, ...] = ()


def read_settings(engine: str, rules: Mapping[str, Rule], given: Mapping[str, Any]) -> dict[str, Any]:
    """Every setting's value. Raises UserError for an unknown key, a value of another type, one too small.

    A rule whose default is None may stay unset, and null then means the same as leaving it out.
    """
    for key in given:
        if key not in rules:
            raise UserError(f"'{engine}' has no setting '{key}'; it has {', '.join(rules)}")
    found: dict[str, Any] = {}
    for key, rule in rules.items():
        value: Any = given.get(key, rule.default)
        if value is None and rule.default is None:
            found[key] = None
            continue
        if rule.kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, rule.kind) or (isinstance(value, bool) and rule.kind is not bool):
            raise UserError(f"'{engine}' setting {key}: {value!r} is not {_called(rule.kind)}")
        if rule.least is not None and not value >= rule.least:
            raise UserError(f"'{engine}' setting {key}: {value!r} is less than {rule.least:g}")
        if rule.choices and value not in rule.choices:
            raise UserError(f"'{engine}' setting {key}: {value!r} is not one of {', '.join(rule.choices)}")
        found[key] = value
    return found


def required_model(engine: str, model: str | None) -> str:
    """The model's name. Raises UserError where none is given."""
    if not model:
        raise UserError(f"'{engine}' needs the setting model, the name or the folder of what to ask")
    return model


def _called(kind: type[Any]) -> str:
    return {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}[kind]
