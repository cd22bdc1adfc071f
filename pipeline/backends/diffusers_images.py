"""Text to image by Stable Diffusion 1.5 or SDXL through diffusers (PAB, section 3.2).

The paper says "Realistic Vision V4.0" and cites RealVisXL V4.0: the one is an SD 1.5 checkpoint (512 px), the other an
SDXL one (1024 px), so both are presets. Steps, guidance, sampler, size and negative prompt are unpublished; they are
settings here. The safety checker is off: it blackens images of people who fall and lie, and what a black image is
must not depend on a classifier. Weights come from safetensors on this machine alone, and no code comes with them.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import logging
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipeline.backends.clip_vocabulary import token_count
from pipeline.backends.protocols import BackendContext, ImageRequest
from pipeline.core.errors import UserError
from pipeline.core.prompt_cut import cut_prompt

log = logging.getLogger(__name__)

CODE = 1
"""Raised when this module draws other pixels from the same weights and settings."""

# In plain words, within CLIP's 77 tokens: diffusers reads the brackets and weights of web programs as text.
_NEGATIVE_PROMPT = (
    "drawing, painting, cartoon, 3d render, text, watermark, blurry, low quality, jpeg artifacts, close-up, cropped, "
    "out of frame, deformed body, missing limbs, extra limbs, fused fingers, duplicate person"
)
_COMMON = {
    "revision": None,
    "variant": None,
    "scheduler": "dpmpp_2m_karras",
    "steps": 25,
    "negative_prompt": _NEGATIVE_PROMPT,
    "dtype": "auto",
    "channels_last": True,
    "compile": False,
    "device": "auto",
}
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "realistic-vision-v4": {
        **_COMMON,
        "model": "SG161222/Realistic_Vision_V4.0_noVAE",
        "size": 512,
        "guidance": 5.0,
        "vae_float32": False,
        "batch_size": 16,
    },
    "realvisxl-v4": {
        **_COMMON,
        "model": "SG161222/RealVisXL_V4.0",
        "size": 1024,
        "guidance": 5.0,
        "vae_float32": True,  # SDXL's VAE overflows in float16
        "batch_size": 4,
    },
}
"""What a preset settles; any of it is overridden by a setting of the same name."""

_SCHEDULERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "ddim": ("DDIMScheduler", {}),
    "dpmpp_2m_karras": (
        "DPMSolverMultistepScheduler",
        {"algorithm_type": "dpmsolver++", "solver_order": 2, "use_karras_sigmas": True},
    ),
    "dpmpp_2m_sde_karras": (
        "DPMSolverMultistepScheduler",
        {"algorithm_type": "sde-dpmsolver++", "solver_order": 2, "use_karras_sigmas": True},
    ),
    "euler": ("EulerDiscreteScheduler", {}),
    "euler_ancestral": ("EulerAncestralDiscreteScheduler", {}),
}
_PIPELINES = {
    "StableDiffusionPipeline": ("unet", "vae", "text_encoder"),
    "StableDiffusionXLPipeline": ("unet", "vae", "text_encoder", "text_encoder_2"),
}
"""The pipelines that are read, and which of their parts hold weights."""
_LEFT_OUT = {
    "StableDiffusionPipeline": {
        "safety_checker": None,
        "requires_safety_checker": False,
        "feature_extractor": None,
        "image_encoder": None,
    },
    "StableDiffusionXLPipeline": {"add_watermarker": False, "feature_extractor": None, "image_encoder": None},
}
_PICKLED = (".bin", ".ckpt", ".pt", ".pth")


class DiffusionSettings(BaseModel):
    """The engine's part of a profile, its preset filled in.

    model: a folder or a cached hub id. revision: the commit of a hub model, None for the newest in the cache.
    variant: `fp16` where the folder holds only files so named. size: pixels a side. guidance: 1 switches it off.
    dtype: `auto` is float16 on a GPU and float32 on a CPU. vae_float32: the VAE alone in float32.
    batch_size: images drawn together. device: `auto` is the GPU where there is one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    preset: Literal["realistic-vision-v4", "realvisxl-v4"] = "realistic-vision-v4"
    model: str = Field(min_length=1)
    revision: str | None = Field(pattern=r"^[0-9a-f]{40}$")
    variant: str | None = Field(pattern=r"^[a-z0-9_]+$")
    size: int = Field(ge=64, le=2048, multiple_of=8)
    scheduler: Literal["ddim", "dpmpp_2m_karras", "dpmpp_2m_sde_karras", "euler", "euler_ancestral"]
    steps: int = Field(ge=1, le=500)
    guidance: float = Field(ge=1, le=50)
    negative_prompt: str
    dtype: Literal["auto", "float16", "bfloat16", "float32"]
    vae_float32: bool
    batch_size: int = Field(ge=1, le=1024)
    channels_last: bool
    compile: bool
    device: str = Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")


SETTINGS = tuple(DiffusionSettings.model_fields)


def settings_of(given: Mapping[str, Any]) -> DiffusionSettings:
    """The settings of a profile over their preset. Raises UserError in one line for one that is unknown or wrong."""
    preset = given.get("preset", DiffusionSettings.model_fields["preset"].default)
    defaults = PRESETS.get(preset) if isinstance(preset, str) else None
    if defaults is None:
        raise UserError(f"generate.settings.preset: no preset '{preset}'; there are {', '.join(PRESETS)}")
    try:
        return DiffusionSettings.model_validate({**defaults, **given})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UserError(
            f"generate.settings.{where}: {first['msg'][0].lower()}{first['msg'][1:]}, not {first.get('input')!r}"
        ) from None


class DiffusersTextToImage:
    """Draws captions by a diffusion pipeline; see `DiffusionSettings` and `PRESETS` for its settings.

    Of a request it takes prompt, seed and float32: a diffusion model knows nothing but a text and noise, so identity
    and context change nothing. The same requests in the same batches give the same bits on one machine; alone or in
    another batch an image differs by 1 of 255 at most.

    out_of_memory: the sizes of the batches that did not fit and were halved, in order.
    """

    name = "diffusers"

    def __init__(self, context: BackendContext) -> None:
        self.settings = settings_of(context.settings)
        self._device = _device_of(self.settings.device)
        kind = self._device.partition(":")[0]
        half = {"auto": "float16" if kind == "cuda" else "float32"}
        self._dtype = half.get(self.settings.dtype, self.settings.dtype)
        self._folder, weights = find_weights(self.settings.model, self.settings.revision)
        self.revision = self._revision(weights, kind, self._dtype)
        in_half = self._dtype != "float32"
        self.float32_revision = self._revision(weights, kind, "float32") if in_half else None
        self.out_of_memory: list[int] = []
        # Float32 takes twice the memory of the dtypes above it.
        self._running = {False: self.settings.batch_size, True: max(1, self.settings.batch_size // 2)}
        self._pipe: Any = None

    def generate(self, requests: Sequence[ImageRequest]) -> list[np.ndarray]:
        """One image a request, in order: float32 (size, size, 3) in 0..1, unrounded, NaN where the numbers overflowed.

        Raises UserError where the weights cannot be loaded or not even one image fits into memory.
        """
        images: dict[int, np.ndarray] = {}
        for float32 in (False, True):
            chosen = [index for index, request in enumerate(requests) if request.float32 == float32]
            if chosen:
                with self._precision(float32):
                    drawn = self._draw_all([requests[index] for index in chosen], float32)
                images.update(zip(chosen, drawn, strict=True))
        return [images[index] for index in range(len(requests))]

    def cut(self, prompt: str) -> tuple[str, str | None]:
        """The prompt within what every text encoder of the pipeline reads, counted by their own tokenizers, and what
        was left out of it (see `core.prompt_cut`); None where it was short enough.
        """
        return cut_prompt(prompt, self._count, self._prompt_tokens())

    def largest_batch(self, most: int = 128, steps: int = 2) -> int:
        """How many images fit into this machine's memory at once, at most `most`; what `batch_size` may be.

        Draws a few steps of each size it tries: a step takes the memory that fifty take, and no more is kept. To be
        asked before a build, of a device that nothing else uses. Raises UserError where not even one image fits.
        """
        pipe = self._load()
        # A whole prompt is as long as the longest: both are padded to what the text encoder reads.
        request = ImageRequest(id="trial", prompt="a person", kind="goal", identity="", seed=0)

        def fits(size: int) -> bool:
            made = self._unless_out_of_memory(lambda: self._draw(pipe, [request] * size, steps))
            return made is not None

        return largest_batch(fits, most)

    def _revision(self, weights: str, device: str, dtype: str) -> str:
        """What identifies the images: weights, all settings (not only those that the profile names) and libraries."""
        chosen = self.settings
        settings = {**chosen.model_dump(exclude={"preset", "model", "revision"}), "device": device, "dtype": dtype}
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
        versions = (f"{name} {importlib.metadata.version(name)}" for name in ("diffusers", "transformers", "torch"))
        return (
            f"{weights}, {chosen.size} px, {chosen.steps} steps of {chosen.scheduler}, guidance {chosen.guidance:g}, "
            f"{dtype} on {device}, batches of {chosen.batch_size}, settings {digest}, code {CODE}, "
            + ", ".join(versions)
        )

    def _draw_all(self, requests: Sequence[ImageRequest], float32: bool) -> list[np.ndarray]:
        pipe = self._load()
        images: list[np.ndarray] = []
        while len(images) < len(requests):
            batch = requests[len(images) : len(images) + self._running[float32]]
            made = self._unless_out_of_memory(functools.partial(self._draw, pipe, batch, self.settings.steps))
            if made is None:
                self._halve(len(batch), float32)
            else:
                images += made
        return images

    def _halve(self, size: int, float32: bool) -> None:
        # The key of the build names the batch size that it began with: this changes an image by 1 of 255 at most.
        if size == 1:
            raise UserError(
                f"generate: one image of {self.settings.size} pixels does not fit into the memory of {self._device}; "
                "nothing else may run there, or choose a smaller model or size"
            )
        self.out_of_memory.append(size)
        self._running[float32] = size // 2
        log.warning("diffusers: %d images at once are out of memory; going on with %d", size, size // 2)

    def _unless_out_of_memory(self, draw: Callable[[], list[np.ndarray]]) -> list[np.ndarray] | None:
        """What is drawn, or None where memory ran out; then what the attempt held is freed."""
        import torch
        from accelerate.utils.memory import should_reduce_batch_size

        try:
            return draw()
        except RuntimeError as error:
            # Not every library says it by the same class.
            if not isinstance(error, torch.OutOfMemoryError) and not should_reduce_batch_size(error):
                raise
        if self._device != "cpu":
            torch.cuda.empty_cache()
        return None

    def _draw(self, pipe: Any, requests: Sequence[ImageRequest], steps: int) -> list[np.ndarray]:
        import torch

        chosen = self.settings
        # Made anew at every call: one that has been drawn from once would give other noise the second time. On the CPU
        # and in float32, so that the noise of a seed is the same on every device and in every precision.
        generators = [torch.Generator("cpu").manual_seed(request.seed) for request in requests]
        side = chosen.size // pipe.vae_scale_factor
        shape = (1, pipe.unet.config.in_channels, side, side)
        noise = torch.cat([torch.randn(shape, generator=each, dtype=torch.float32) for each in generators])
        guided = chosen.guidance > 1 and bool(chosen.negative_prompt)
        with torch.no_grad():
            latents = pipe(
                prompt=[self.cut(request.prompt)[0] for request in requests],
                negative_prompt=[chosen.negative_prompt] * len(requests) if guided else None,
                height=chosen.size,
                width=chosen.size,
                num_inference_steps=steps,
                guidance_scale=chosen.guidance,
                generator=generators,
                latents=noise.to(pipe.unet.device, pipe.unet.dtype),
                output_type="latent",
            ).images
            # One at a time: at 1024 pixels decoding takes more memory than a step, and gains nothing from a batch.
            return [_decoded(pipe.vae, each[None]) for each in latents]

    @contextlib.contextmanager
    def _precision(self, float32: bool) -> Iterator[None]:
        """The pipeline in float32 meanwhile; back in half precision the weights are the same bits as before."""
        import torch

        pipe = self._load()
        if not float32 or self._dtype == "float32":
            yield
            return
        self._cast(pipe, torch.float32)
        try:
            yield
        finally:
            self._cast(pipe, getattr(torch, self._dtype))

    def _cast(self, pipe: Any, dtype: Any) -> None:
        import torch

        for part in _PIPELINES[type(pipe).__name__]:
            in_float32 = part == "vae" and self.settings.vae_float32
            getattr(pipe, part).to(dtype=torch.float32 if in_float32 else dtype)

    def _count(self, prompt: str) -> int:
        return max(token_count(tokenizer, prompt) for tokenizer, _ in self._readers())

    def _prompt_tokens(self) -> int:
        """How many tokens of a prompt every encoder reads, those around it included: 77."""
        return min(
            min(tokenizer.model_max_length, encoder.config.max_position_embeddings)
            for tokenizer, encoder in self._readers()
        )

    def _readers(self) -> list[tuple[Any, Any]]:
        """The pipeline's tokenizers, each with the text encoder that reads what it writes."""
        pipe = self._load()
        found = [(pipe.tokenizer, pipe.text_encoder)]
        if hasattr(pipe, "tokenizer_2"):
            found.append((pipe.tokenizer_2, pipe.text_encoder_2))
        return found

    def _load(self) -> Any:
        if self._pipe is not None:
            return self._pipe
        if self._folder is None:
            raise UserError(
                f"generate: the weights '{self.settings.model}' are not on this machine: hf download "
                f"{self.settings.model}, or name their folder, --set generate.settings.model=FOLDER"
            )
        kind = check_weights(self._folder, self.settings.variant)
        self._pipe = self._loaded(self._folder, kind)
        negative = self._count(self.settings.negative_prompt)
        if negative > self._prompt_tokens():
            raise UserError(
                f"generate.settings.negative_prompt: {negative} tokens, the text encoder reads {self._prompt_tokens()}"
            )
        return self._pipe

    def _loaded(self, folder: Path, kind: str) -> Any:
        import torch
        from transformers.utils import logging as transformers_logging

        transformers_logging.set_verbosity_error()  # its advice about image processors, which are not used
        transformers_logging.disable_progress_bar()
        import diffusers

        diffusers.utils.logging.set_verbosity_error()  # the cast to float32 and back warns of nothing
        diffusers.utils.logging.disable_progress_bar()
        chosen = self.settings
        dtype = getattr(torch, self._dtype)
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
        pipe = getattr(diffusers, kind).from_pretrained(
            folder,
            dtype={"default": dtype, "vae": torch.float32 if chosen.vae_float32 else dtype},
            variant=chosen.variant,
            use_safetensors=True,
            local_files_only=True,
            **_LEFT_OUT[kind],
        )
        scheduler, options = _SCHEDULERS[chosen.scheduler]
        pipe.scheduler = getattr(diffusers, scheduler).from_config(pipe.scheduler.config, **options)
        pipe.set_progress_bar_config(disable=True)
        for part in _PIPELINES[kind]:
            getattr(pipe, part).eval().to(self._device)
        if chosen.channels_last:
            for part in (pipe.unet, pipe.vae):
                part.to(memory_format=torch.channels_last)
        if chosen.compile:
            pipe.unet.compile()
        log.warning("diffusers: drawing without a safety checker, by %s", self.revision)
        return pipe


def largest_batch(fits: Callable[[int], bool], most: int) -> int:
    """The largest size in 1..most that fits, where all below one that fits do too; each size is tried once at most.

    Doubles until one does not fit, then halves the gap. Raises UserError where not even 1 fits.
    """
    if not fits(1):
        raise UserError("not even one image fits into memory; choose a smaller model or size, or a larger GPU")
    good, bad = 1, None
    while good < most and bad is None:
        size = min(2 * good, most)
        if fits(size):
            good = size
        else:
            bad = size
    while bad is not None and bad - good > 1:
        size = (good + bad) // 2
        if fits(size):
            good = size
        else:
            bad = size
    return good


def _decoded(vae: Any, latents: Any) -> np.ndarray:
    """One image, float32 (H, W, 3) in 0..1, of latents (1, C, h, w); NaN stays NaN."""
    mean, spread = vae.config.get("latents_mean"), vae.config.get("latents_std")
    latents = latents.to(vae.dtype)
    if mean is not None and spread is not None:
        columns = [latents.new_tensor(each).view(1, -1, 1, 1) for each in (mean, spread)]
        latents = latents * columns[1] / vae.config.scaling_factor + columns[0]
    else:
        latents = latents / vae.config.scaling_factor
    image = vae.decode(latents, return_dict=False)[0][0].float()
    return (image / 2 + 0.5).clamp(0, 1).permute(1, 2, 0).cpu().numpy()


def _device_of(wanted: str) -> str:
    if wanted != "auto":
        return wanted
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def find_weights(model: str, revision: str | None) -> tuple[Path | None, str]:
    """Where a model's files are (None where they are not here), and what identifies them.

    A folder: its name and a digest of its files. A hub id: the commit of its snapshot in the cache, the one that
    `revision` names, else the newest one fetched.
    """
    folder = Path(model)
    if folder.is_dir():
        return folder, f"{folder.resolve().name}@{folder_digest(folder)[:16]}"
    snapshot = _cached_snapshot(model, revision)
    return snapshot, f"{model}@{snapshot.name if snapshot else 'not here'}"


def _cached_snapshot(model: str, revision: str | None) -> Path | None:
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    stored = Path(os.environ.get("HF_HUB_CACHE", home / "hub")) / f"models--{model.replace('/', '--')}"
    if revision is None:
        try:
            revision = (stored / "refs" / "main").read_text("ascii").strip()
        except (OSError, UnicodeDecodeError):
            # Fetched by its commit alone; which one is meant is plain only where there is one.
            found = [path.name for path in (stored / "snapshots").glob("*")]
            revision = found[0] if len(found) == 1 else ""
    snapshot = stored / "snapshots" / Path(revision).name
    return snapshot if revision and (snapshot / "model_index.json").is_file() else None


def folder_digest(folder: Path) -> str:
    """sha256 over the configurations of a pipeline's folder and, of its weight files, names, sizes, headers and samples
    of the numbers: enough to tell two trainings apart without reading gigabytes.
    """
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.suffix not in (".json", ".txt", ".safetensors") or not path.is_file():
            continue
        content = _weights_digest(path) if path.suffix == ".safetensors" else hashlib.sha256(path.read_bytes()).digest()
        found.update(path.relative_to(folder).as_posix().encode() + b"\0" + content)
    return found.hexdigest()


def _weights_digest(path: Path, sample: int = 1 << 16) -> bytes:
    found = hashlib.sha256()
    size = path.stat().st_size
    with path.open("rb") as file:
        found.update(struct.pack("<q", size))
        header = min(struct.unpack("<Q", file.read(8).ljust(8, b"\0"))[0], size)
        found.update(file.read(header))
        for start in (8 + header, (8 + header + size) // 2, size - sample):
            file.seek(max(start, 0))
            found.update(file.read(sample))
    return found.digest()


def check_weights(folder: Path, variant: str | None = None) -> str:
    """The class of the pipeline in a folder: StableDiffusionPipeline or StableDiffusionXLPipeline.

    Raises UserError in one line for any other, for one that brings code of its own, and where a part has no weights as
    safetensors: pickled ones (.bin, .ckpt) run code when they are read, and are not.
    """
    where = f"generate: the model {folder}"
    try:
        index = json.loads((folder / "model_index.json").read_text("utf-8"))
        kind = index["_class_name"]
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{where} is no diffusers pipeline: it has no readable model_index.json") from None
    if kind not in _PIPELINES:
        raise UserError(f"{where} is a {kind}; {' and '.join(_PIPELINES)} are drawn with")
    loaded = (*_PIPELINES[kind], "scheduler", "tokenizer", "tokenizer_2")
    for part in loaded:
        library = index.get(part, ["diffusers"])[0] if isinstance(index.get(part), list) else "diffusers"
        if library not in ("diffusers", "transformers"):
            raise UserError(f"{where} brings code of its own for its {part} ('{library}'), which is not run")
    ending = f".{variant}.safetensors" if variant else ".safetensors"
    for part in _PIPELINES[kind]:
        names = sorted(path.name for path in (folder / part).glob("*"))
        weights = [name for name in names if name.endswith(".safetensors")]
        pickled = [name for name in names if name.endswith(_PICKLED)]
        if not weights and pickled:
            raise UserError(
                f"{where} has its {part} pickled only ({pickled[0]}), which is not read; get it as safetensors"
            )
        # Of the plain files `model.safetensors` and shards; of a variant `model.fp16.safetensors`.
        fitting = [name for name in weights if name.endswith(ending) and (variant or "." not in _stem(name))]
        if not fitting:
            other = f"; it has {weights[0]}, see generate.settings.variant" if weights else ""
            raise UserError(f"{where} has no {part}/*{ending}{other}")
    return kind


def _stem(name: str) -> str:
    return name.removesuffix(".safetensors")
