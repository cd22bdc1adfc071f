"""Chat models behind one protocol: a server (`openai`), vLLM in this process (`vllm`), or `transformers`.

Only what is asked for is imported, and an engine's heavy library only with its first question.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.backends.protocols import ChatModel
from pipeline.core.errors import UserError

_MODULES = {
    "openai": "pipeline.backends.chat.openai_server",
    "vllm": "pipeline.backends.chat.vllm_inprocess",
    "transformers": "pipeline.backends.chat.transformers_local",
}

KINDS = tuple(_MODULES)
"""The kinds of engine there are."""


def chat_model(kind: str, settings: Mapping[str, Any], build_dir: Path | None = None) -> ChatModel:
    """The chat model of that kind. Loads no model and asks no server yet.

    build_dir: the folder of the build, in which a server's replies are kept so that no run pays for one twice; without
    it none is kept. Raises UserError for an unknown kind or setting, a wrong value, and weights that are not here.
    """
    return _module(kind).create(settings, build_dir)


def setting_names(kind: str) -> tuple[str, ...]:
    """The keys that the settings of an engine of that kind may have."""
    return tuple(_module(kind).DEFAULTS)


def identity(kind: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What identifies the answers of an engine: `name`, `revision` and those `settings` that shape an answer.

    The revision holds the commit or the digest of the weights. Where a server is, who asks it, how many questions at
    once, how often again and on how much of a GPU is left out. Raises UserError as `chat_model` does.
    """
    module = _module(kind)
    made = module.create(settings, None)
    shaping = {key: value for key, value in settings.items() if key in module.SHAPING}
    return {"name": made.name, "revision": made.revision, "settings": shaping}


def problems(kind: str, settings: Mapping[str, Any]) -> list[str]:
    """What stands in the way of asking this engine, one line each, found in seconds; empty where nothing does.

    A server is asked whether it serves the model; of an engine in this process the weights are looked for.
    """
    try:
        return _module(kind).create(settings, None).problems()
    except UserError as error:
        return [str(error)]


def _module(kind: str) -> Any:
    if kind not in _MODULES:
        raise UserError(f"no chat model is called '{kind}'; there are {', '.join(KINDS)}")
    return importlib.import_module(_MODULES[kind])
