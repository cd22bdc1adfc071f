"""The shape of every answer a language model gives, as the models that validate it and constrain its decoding."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class FactorsReply(BaseModel):
    """The answer to the decompose prompt: three strings, null where the caption says nothing of that factor."""

    model_config = ConfigDict(extra="forbid")

    appearance: str | None
    action: str | None
    background: str | None


def json_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema of a reply model, as constrained decoding takes it."""
    return model.model_json_schema()
