"""Chat with Qwen2-VL or Qwen3 through transformers, on whatever device there is.

Greedy questions are answered in batches (padded on the left). One that samples is answered alone, so that its answer
hangs on its own seed and not on its company. A schema holds the answer where the package llguidance is there; elsewhere
it is a wish, and whoever parses the answer finds out.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.backends.chat import images
from pipeline.backends.chat.schema_decoding import SchemaDecoding, SchemaError
from pipeline.backends.chat.settings import Rule, read_settings, required_model
from pipeline.backends.local_weights import (
    config_of,
    device_of,
    identity_of,
    installed_version,
    load_model,
    load_pretrained,
    model_folder,
    sees_images,
)
from pipeline.backends.protocols import ChatReply, ChatRequest
from pipeline.core.errors import UserError, one_line

DEFAULTS = {
    "model": Rule(None, str),
    "revision": Rule(None, str),
    "device": Rule("auto", str),
    "dtype": Rule("auto", str, choices=("auto", "bfloat16", "float16", "float32")),
    "batch_size": Rule(8, int, least=1),
    "max_pixels": Rule(images.DEFAULT_MAX_PIXELS, int, least=images.GRID_PIXELS**2),
}
"""model: a folder, or a model of the hub's cache; revision: its commit, the cache's main where not given. device:
`auto` is a CUDA GPU where there is one, else the CPU. dtype: `auto` is bfloat16 on a GPU, float32 on a CPU. batch_size:
greedy questions at once. max_pixels: of an image."""
SHAPING = ("device", "dtype", "batch_size", "max_pixels")

_IMAGE_TOKEN, _VIDEO_TOKEN = "<|image_pad|>", "<|video_pad|>"
_loaded: dict[tuple[str, ...], _Model] = {}
"""The model that this process holds: one at most."""


class _Model(NamedTuple):
    network: Any
    processor: Any
    tokenizer: Any
    template: str | None
    end_tokens: tuple[int, ...]
    schemas: SchemaDecoding | None


class TransformersLocal:
    """ChatModel by transformers. The model is loaded with the first question, once a process: engines of the same
    settings share it, and another model takes its place.
    """

    name = "transformers"

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = read_settings(self.name, DEFAULTS, settings)
        self._model = required_model(self.name, self._settings["model"])
        self._folder = model_folder(self.name, self._model, self._settings["revision"])
        config = config_of(self._folder)
        self._sees = sees_images(config)
        if self._sees and config.get("model_type") != "qwen2_vl":
            raise UserError(f"'transformers' knows Qwen2-VL among models with eyes; {self._model} is another")
        held = f"+llguidance-{installed_version('llguidance')}" if _holds_schemas() else ""
        weights = identity_of(self._folder, self._model)
        self.revision = f"1+transformers-{installed_version('transformers')}{held}+{weights}"

    def chat(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        """One reply a request, in order. Raises UserError where the model cannot be loaded."""
        blind = None if self._sees else self._model
        ready, replies = images.prepared(requests, self._settings["max_pixels"], blind)
        asked = [position for position in range(len(ready)) if position not in replies]
        if asked:
            model = self._started()
            for batch in self._batches(asked, ready):
                answers = self._answer(model, [ready[position] for position in batch])
                replies.update(zip(batch, answers, strict=True))
        return [replies[position] for position in range(len(requests))]

    def problems(self) -> list[str]:
        """What stands in the way of asking, one line each; that the weights are here was seen when this was made."""
        return [
            f"the package {package} is not installed: pip install {package}"
            for package in ("transformers", "torch")
            if importlib.util.find_spec(package) is None
        ]

    def _batches(self, positions: Sequence[int], requests: Sequence[ChatRequest]) -> Iterator[list[int]]:
        """Neighbours that can be answered at once: with as much room for the answer, and nothing drawn."""
        batch: list[int] = []
        before = None
        for position in positions:
            request = requests[position]
            room = None if request.temperature > 0 else request.max_tokens
            if batch and (room is None or room != before or len(batch) == self._settings["batch_size"]):
                yield batch
                batch = []
            batch.append(position)
            before = room
        if batch:
            yield batch

    def _answer(self, model: _Model, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        import torch

        try:
            return self._generate(model, requests)
        except (SchemaError, ValueError, torch.OutOfMemoryError) as error:
            if len(requests) == 1:
                return [ChatReply(None, error=one_line(error))]
        half = len(requests) // 2
        return self._answer(model, requests[:half]) + self._answer(model, requests[half:])

    def _generate(self, model: _Model, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        import torch

        inputs = _inputs(model, requests).to(model.network.device)
        length = inputs["input_ids"].shape[1]
        room = requests[0].max_tokens
        most = getattr(model.network.config.get_text_config(), "max_position_embeddings", None)
        if most is not None and length + room > most:
            raise ValueError(
                f"the question has {length} tokens and {room} are left for the answer; the model takes {most}"
            )
        with torch.inference_mode(), torch.random.fork_rng(devices=_devices(model.network.device)):
            # Drawn alone, so the one seed is this question's.
            torch.manual_seed(requests[0].seed)
            written = model.network.generate(
                **inputs,
                generation_config=_sampling(model, requests[0]),
                logits_processor=self._held(model, requests, length),
            )
        prompts = inputs["attention_mask"].sum(dim=1).tolist()
        rows = written[:, length:].tolist()
        return [_reply(model, row, count) for row, count in zip(rows, prompts, strict=True)]

    def _held(self, model: _Model, requests: Sequence[ChatRequest], length: int) -> list[Any]:
        schemas = [request.schema for request in requests]
        if model.schemas is None or not any(schema is not None for schema in schemas):
            return []
        return [model.schemas.processor(schemas, length)]

    def _started(self) -> _Model:
        key = (str(self._folder), self._settings["device"], self._settings["dtype"], str(self._settings["max_pixels"]))
        if key not in _loaded:
            if _loaded:
                _loaded.clear()
                gc.collect()
            _loaded[key] = self._load()
        return _loaded[key]

    def _load(self) -> _Model:
        import transformers

        folder, where = str(self._folder), f"'{self.name}' setting model"
        device = device_of(self._settings["device"])
        dtype = self._settings["dtype"]
        if dtype == "auto":
            dtype = "float32" if device == "cpu" else "bfloat16"
        made = transformers.Qwen2VLForConditionalGeneration if self._sees else transformers.AutoModelForCausalLM
        tokenizer = load_pretrained(
            transformers.AutoTokenizer, folder, where, padding_side="left", trust_remote_code=False
        )
        template = tokenizer.chat_template or _old_template(self._folder)
        processor = _image_reader(folder, where, tokenizer, self._settings["max_pixels"]) if self._sees else None
        network = load_model(made, folder, where, device, dtype, trust_remote_code=False)
        ends = network.generation_config.eos_token_id
        # Its own taste (temperature, repetition penalty, ...) must not shape an answer: a question says all that does.
        network.generation_config = transformers.GenerationConfig()
        ends = (tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends]))
        end_tokens = tuple(dict.fromkeys(end for end in ends if end is not None))
        schemas = None
        if _holds_schemas():
            width = network.get_output_embeddings().weight.shape[0]
            schemas = SchemaDecoding(tokenizer, width, end_tokens)
        return _Model(network, processor, tokenizer, template, end_tokens, schemas)


def create(settings: Mapping[str, Any], build_dir: Path | None) -> TransformersLocal:
    """The engine of these settings; raises UserError for wrong ones."""
    return TransformersLocal(settings)


def _image_reader(folder: str, where: str, tokenizer: Any, max_pixels: int) -> Any:
    """Qwen2-VL's processor. Without torchvision transformers cannot make the whole one, for want of its half that reads
    videos: then the same class with the half that reads images.
    """
    import transformers

    with_torchvision = importlib.util.find_spec("torchvision") is not None
    made = transformers.Qwen2VLImageProcessor if with_torchvision else transformers.Qwen2VLImageProcessorPil
    reader = load_pretrained(made, folder, where)
    # No image has more than max_pixels by now: the cap must not be the folder's, or an image would be resampled twice.
    reader.size = {**dict(reader.size), "longest_edge": max_pixels}
    if with_torchvision:
        return transformers.Qwen2VLProcessor(reader, tokenizer, transformers.Qwen2VLVideoProcessor())

    class ImagesOnly(transformers.Qwen2VLProcessor):
        attributes = ("image_processor", "tokenizer")

        def __init__(self, image_processor: Any = None, tokenizer: Any = None) -> None:
            self.image_token, self.video_token = _IMAGE_TOKEN, _VIDEO_TOKEN
            self.image_token_id = tokenizer.convert_tokens_to_ids(self.image_token)
            self.video_token_id = tokenizer.convert_tokens_to_ids(self.video_token)
            transformers.ProcessorMixin.__init__(self, image_processor, tokenizer)

        @classmethod
        def get_attributes(cls) -> list[str]:
            return list(cls.attributes)

    return ImagesOnly(reader, tokenizer)


def _old_template(folder: Path) -> str | None:
    """The chat template where the first releases of Qwen2-VL had it."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return str(json.loads((folder / "chat_template.json").read_text("utf-8"))["chat_template"])
    return None


def _inputs(model: _Model, requests: Sequence[ChatRequest]) -> Any:
    texts = [_rendered(model, request) for request in requests]
    seen = [request.image for request in requests if request.image is not None]
    if seen:
        return model.processor(text=texts, images=seen, padding=True, padding_side="left", return_tensors="pt")
    return model.tokenizer(texts, padding=True, return_tensors="pt")


def _rendered(model: _Model, request: ChatRequest) -> str:
    # Before the text, as in the other engines and in the model's own examples.
    seen = [] if request.image is None else [{"type": "image"}]
    content: Any = [*seen, {"type": "text", "text": request.text}] if seen else request.text
    return model.tokenizer.apply_chat_template(
        [{"role": "user", "content": content}],
        chat_template=model.template,
        tokenize=False,
        add_generation_prompt=True,
        enable_thinking=False,
    )


def _sampling(model: _Model, request: ChatRequest) -> Any:
    from transformers import GenerationConfig

    drawn = {"temperature": request.temperature, "top_p": 1.0, "top_k": 0} if request.temperature > 0 else {}
    return GenerationConfig(
        max_new_tokens=request.max_tokens,
        do_sample=request.temperature > 0,
        num_beams=1,
        repetition_penalty=1.0,
        eos_token_id=list(model.end_tokens),
        pad_token_id=model.tokenizer.pad_token_id,
        **drawn,
    )


def _reply(model: _Model, row: Sequence[int], prompt_tokens: int) -> ChatReply:
    end = next((place for place, token in enumerate(row) if token in model.end_tokens), None)
    written = row if end is None else row[:end]
    text = model.tokenizer.decode(written, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    count = len(row) if end is None else end + 1
    return ChatReply(text, "length" if end is None else "stop", prompt_tokens, count)


def _devices(device: Any) -> list[Any]:
    return [device] if device.type == "cuda" else []


def _holds_schemas() -> bool:
    return importlib.util.find_spec("llguidance") is not None
