"""Chat with a model that vLLM runs in this process (`LLM.chat` of vLLM 0.33).

vLLM puts requests into batches as they come, and sums over other batches end in other last bits: the same question may,
rarely, get another answer in another company. The seed of a question is its own.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.backends.chat import images
from pipeline.backends.chat.settings import Rule, read_settings, required_model
from pipeline.backends.local_weights import config_of, identity_of, installed_version, model_folder, sees_images
from pipeline.backends.protocols import ChatReply, ChatRequest
from pipeline.core.errors import UserError, one_line

DEFAULTS = {
    "model": Rule(None, str),
    "revision": Rule(None, str),
    "dtype": Rule("auto", str, choices=("auto", "bfloat16", "float16", "float32")),
    "max_model_len": Rule(None, int, least=1),
    "max_num_seqs": Rule(None, int, least=1),
    "gpu_memory_utilization": Rule(0.9, float, least=0.01),
    "tensor_parallel_size": Rule(1, int, least=1),
    "enforce_eager": Rule(False, bool),
    "max_pixels": Rule(images.DEFAULT_MAX_PIXELS, int, least=images.GRID_PIXELS**2),
}
"""model: a folder, or a model of the hub's cache; revision: its commit, the cache's main where not given. dtype, and
max_model_len (most tokens of question and answer together): as vLLM means them, its defaults where null. max_num_seqs,
gpu_memory_utilization, tensor_parallel_size, enforce_eager: how much of which machine. max_pixels: of an image."""
SHAPING = ("dtype", "max_model_len", "tensor_parallel_size", "max_pixels")

_FAILED = frozenset({"abort", "error"})
_loaded: dict[str, Any] = {}
"""The model that this process holds, by the arguments it was made with: one at most, for it takes all of a GPU."""


class VLLMInProcess:
    """ChatModel by vLLM. The model is loaded with the first question, once a process: engines of the same settings
    share it, and another model takes its place.
    """

    name = "vllm"

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = read_settings(self.name, DEFAULTS, settings)
        self._model = required_model(self.name, self._settings["model"])
        self._folder = model_folder(self.name, self._model, self._settings["revision"])
        self._sees = sees_images(config_of(self._folder))
        self.revision = f"1+vllm-{installed_version('vllm')}+{identity_of(self._folder, self._model)}"

    def chat(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        """One reply a request, in order. Raises UserError where vLLM is not installed or cannot load the model."""
        blind = None if self._sees else self._model
        ready, replies = images.prepared(requests, self._settings["max_pixels"], blind)
        asked = [position for position in range(len(ready)) if position not in replies]
        if asked:
            llm = self._llm()
            answers = self._ask(llm, [ready[position] for position in asked])
            replies.update(zip(asked, answers, strict=True))
        return [replies[position] for position in range(len(requests))]

    def problems(self) -> list[str]:
        """What stands in the way of asking, one line each; that the weights are here was seen when this was made."""
        if importlib.util.find_spec("vllm") is None:
            return ["the package vllm is not installed: pip install 'pab-rebuild[gpu]'"]
        return []

    def _ask(self, llm: Any, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        from vllm.exceptions import VLLMError
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            return [_reply_of(output) for output in self._outputs(llm, requests)]
        except EngineDeadError as error:
            _loaded.clear()
            raise UserError(f"'vllm': the engine of {self._model} has died; run this again") from error
        except (VLLMError, ValueError, TypeError) as error:
            if llm.llm_engine.has_unfinished_requests():
                # It took the questions and broke over them: they stay in it, and it would never end with others.
                _loaded.clear()
                raise UserError(f"'vllm': {self._model} breaks when it answers: {one_line(error)}") from error
            # vLLM refuses a whole list for one question (too long, a schema it cannot follow): find that one.
            if len(requests) == 1:
                return [ChatReply(None, error=f"vLLM refuses it: {one_line(error)}")]
        half = len(requests) // 2
        return self._ask(llm, requests[:half]) + self._ask(llm, requests[half:])

    def _outputs(self, llm: Any, requests: Sequence[ChatRequest]) -> list[Any]:
        outputs = llm.chat(
            [_conversation(request) for request in requests],
            [_sampling(request) for request in requests],
            use_tqdm=False,
            chat_template_kwargs={"enable_thinking": False},
        )
        if len(outputs) != len(requests):
            raise RuntimeError(f"{len(outputs)} outputs for {len(requests)} questions")
        return outputs

    def _llm(self) -> Any:
        arguments = self._arguments()
        key = json.dumps(arguments, sort_keys=True)
        if key not in _loaded:
            if _loaded:
                _loaded.clear()
                gc.collect()
            _loaded[key] = self._load(arguments)
        return _loaded[key]

    def _arguments(self) -> dict[str, Any]:
        chosen = ("dtype", "gpu_memory_utilization", "tensor_parallel_size", "enforce_eager")
        arguments = {
            "model": str(self._folder),
            "trust_remote_code": False,
            "load_format": "safetensors",
            "generation_config": "vllm",
            "enable_prefix_caching": True,
            "seed": 0,
            # Held by llguidance as in the transformers engine, and no blank outside of texts: a model may take a liking
            # to them and write nothing else until its room is out.
            "structured_outputs_config": {"backend": "guidance", "disable_any_whitespace": True},
            **{key: self._settings[key] for key in chosen},
        }
        for key in ("max_model_len", "max_num_seqs"):
            if self._settings[key] is not None:
                arguments[key] = self._settings[key]
        if self._sees:
            arguments["limit_mm_per_prompt"] = {"image": 1, "video": 0}
            arguments["mm_processor_kwargs"] = {"max_pixels": self._settings["max_pixels"]}
        return arguments

    def _load(self, arguments: Mapping[str, Any]) -> Any:
        # Read when vLLM is imported; nothing of a build leaves the machine.
        for name in ("VLLM_NO_USAGE_STATS", "DO_NOT_TRACK", "HF_HUB_OFFLINE"):
            os.environ.setdefault(name, "1")
        try:
            from vllm import LLM
        except ImportError as error:
            raise UserError(f"'vllm' needs the package vllm: pip install 'pab-rebuild[gpu]' ({error})") from None
        try:
            return LLM(**arguments)
        except (ValueError, RuntimeError, OSError) as error:
            raise UserError(f"'vllm' cannot load {self._model}: {one_line(error, 300)}") from error


def create(settings: Mapping[str, Any], build_dir: Path | None) -> VLLMInProcess:
    """The engine of these settings; raises UserError for wrong ones."""
    return VLLMInProcess(settings)


def _conversation(request: ChatRequest) -> list[dict[str, Any]]:
    if request.image is None:
        return [{"role": "user", "content": request.text}]
    from PIL import Image

    # Before the text: questions about one image then begin alike, and the prefix cache is hit.
    seen = {"type": "image_pil", "image_pil": Image.fromarray(request.image)}
    return [{"role": "user", "content": [seen, {"type": "text", "text": request.text}]}]


def _sampling(request: ChatRequest) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    held = None if request.schema is None else StructuredOutputsParams(json=dict(request.schema))
    return SamplingParams(
        temperature=request.temperature,
        seed=request.seed,
        max_tokens=request.max_tokens,
        structured_outputs=held,
    )


def _reply_of(output: Any) -> ChatReply:
    answer = output.outputs[0]
    prompt_tokens = None if output.prompt_token_ids is None else len(output.prompt_token_ids)
    if answer.finish_reason in _FAILED:
        return ChatReply(None, answer.finish_reason, prompt_tokens, error=f"vLLM ended with '{answer.finish_reason}'")
    return ChatReply(answer.text, answer.finish_reason, prompt_tokens, len(answer.token_ids))
