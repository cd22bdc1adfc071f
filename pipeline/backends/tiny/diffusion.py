"""A Stable Diffusion and an SDXL pipeline of a few megabytes, random weights: what they draw means nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.backends.clip_vocabulary import PROMPT_TOKENS, clip_tokenizer

_WIDTH = 32
"""Of the text encoders and of the first block of UNet and VAE; the smallest that their group norms take."""
_BLOCKS = (_WIDTH, 2 * _WIDTH)
_LATENT_SIDE = 16
_SCALE = 4
"""Pixels a latent pixel: the VAE halves twice."""


def write_tiny_sd(folder: Path, seed: int = 0) -> Path:
    """Write a whole StableDiffusionPipeline (64 px) as safetensors; the folder. The same seed gives the same bytes."""
    from diffusers import StableDiffusionPipeline, UNet2DConditionModel

    with _seeded(seed):
        tokenizer = clip_tokenizer()
        unet = UNet2DConditionModel(**_unet_shape(), cross_attention_dim=_WIDTH, attention_head_dim=8)
        pipeline: Any = StableDiffusionPipeline(
            vae=_vae(scaling_factor=0.18215),
            text_encoder=_text_encoder(tokenizer),
            tokenizer=tokenizer,
            unet=unet,
            scheduler=_scheduler(),
            safety_checker=None,
            feature_extractor=None,
            requires_safety_checker=False,
        )
    pipeline.save_pretrained(folder, safe_serialization=True)
    return folder


def write_tiny_sdxl(folder: Path, seed: int = 0) -> Path:
    """Write a whole StableDiffusionXLPipeline (64 px) as safetensors; the folder. The same seed, the same bytes."""
    from diffusers import StableDiffusionXLPipeline, UNet2DConditionModel

    time_width = 8
    with _seeded(seed):
        tokenizers = clip_tokenizer(), clip_tokenizer()
        unet = UNet2DConditionModel(
            **_unet_shape(),
            cross_attention_dim=2 * _WIDTH,  # both encoders' states, side by side
            attention_head_dim=(2, 4),
            transformer_layers_per_block=(1, 2),
            use_linear_projection=True,
            addition_embed_type="text_time",
            addition_time_embed_dim=time_width,
            projection_class_embeddings_input_dim=6 * time_width + _WIDTH,  # six sizes and crops, and the pooled text
        )
        pipeline: Any = StableDiffusionXLPipeline(
            vae=_vae(scaling_factor=0.13025),
            text_encoder=_text_encoder(tokenizers[0]),
            text_encoder_2=_text_encoder(tokenizers[1], with_projection=True),
            tokenizer=tokenizers[0],
            tokenizer_2=tokenizers[1],
            unet=unet,
            scheduler=_scheduler(),
            add_watermarker=False,
        )
    pipeline.save_pretrained(folder, safe_serialization=True)
    return folder


def _seeded(seed: int) -> Any:
    """A block in which torch draws from this seed; its own state is put back after."""
    import contextlib

    import torch

    @contextlib.contextmanager
    def block() -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield

    return block()


def _unet_shape() -> dict[str, Any]:
    return {
        "sample_size": _LATENT_SIDE,
        "layers_per_block": 1,
        "block_out_channels": _BLOCKS,
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
    }


def _vae(scaling_factor: float) -> Any:
    from diffusers import AutoencoderKL

    return AutoencoderKL(
        latent_channels=4,
        block_out_channels=(_WIDTH, _WIDTH, _WIDTH),
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        layers_per_block=1,
        sample_size=_LATENT_SIDE * _SCALE,
        scaling_factor=scaling_factor,
    )


def _text_encoder(tokenizer: Any, with_projection: bool = False) -> Any:
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

    config = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=_WIDTH,
        intermediate_size=2 * _WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        projection_dim=_WIDTH,
        max_position_embeddings=PROMPT_TOKENS,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return (CLIPTextModelWithProjection if with_projection else CLIPTextModel)(config)


def _scheduler() -> Any:
    from diffusers import DDIMScheduler

    # Stable Diffusion's own noise schedule.
    return DDIMScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        clip_sample=False,
        set_alpha_to_one=False,
        steps_offset=1,
    )
