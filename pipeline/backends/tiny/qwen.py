"""Qwen2-VL and Qwen3 built tiny with random weights, saved as the published models are: what they say means nothing.

The tokenizer is byte-level with Qwen's own special tokens, so any text can be read and written. Same seed, same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
_MARKS = ("<think>", "</think>")
"""Tokens of their own that are text all the same, as in Qwen3: they stay in what is decoded."""
_HEARD = (
    "A person in a red shirt is running across the street, and falls.",
    '{"action": "running", "scene": "street"}',
)

TOKENS = 320
Fit = Callable[[Any, Any], None]
"""What a model and its tokenizer are given to before they are saved."""

_TURNS = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}\
{% if part.type == 'image' or part.type == 'image_url' or 'image' in part %}<|vision_start|><|image_pad|><|vision_end|>\
{% elif 'text' in part %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
"""
_VL_TEMPLATE = _TURNS + "{% endif %}"
_QWEN3_TEMPLATE = (
    _TURNS
    + "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)


def write_tiny_qwen2_vl(
    folder: Path,
    seed: int = 0,
    heard: Sequence[str] = _HEARD,
    tokens: int = TOKENS,
    fit: Fit | None = None,
    wide_heads: bool = False,
) -> Path:
    """A Qwen2VLForConditionalGeneration of some 110,000 weights in that folder, with tokenizer, chat template and image
    processor. Returns the folder. heard: the texts that the tokenizer learns its `tokens` from. fit: what is done to
    model and tokenizer before they are saved. wide_heads: 64 and not 8, as vLLM wants them on a CPU.
    """
    import torch
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration, Qwen2VLImageProcessorPil

    tokenizer = _tokenizer(_VL_TEMPLATE, heard, tokens)
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in _SPECIAL}
    shape = _text_shape(tokenizer)
    if wide_heads:
        shape |= {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1}
    sections = [8, 12, 12] if wide_heads else [1, 1, 2]
    config = Qwen2VLConfig(
        text_config={**shape, "rope_scaling": {"type": "mrope", "mrope_section": sections}},
        vision_config={
            "depth": 2,
            "embed_dim": 32,
            "hidden_size": shape["hidden_size"],
            "num_heads": 4,
            "mlp_ratio": 2,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "in_channels": 3,
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2VLForConditionalGeneration(config)
        if fit is not None:
            fit(model, tokenizer)
    _save(model, tokenizer, folder)
    Qwen2VLImageProcessorPil(min_pixels=28 * 28, max_pixels=28 * 28 * 16).save_pretrained(folder)
    return folder


def write_tiny_qwen3(
    folder: Path, seed: int = 0, heard: Sequence[str] = _HEARD, tokens: int = TOKENS, fit: Fit | None = None
) -> Path:
    """A Qwen3ForCausalLM of some 80,000 weights in that folder, with tokenizer and chat template. Returns the folder.
    heard, tokens, fit: as of `write_tiny_qwen2_vl`.

    Heads are 64 wide: vLLM's attention on a CPU takes no narrower ones.
    """
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = _tokenizer(_QWEN3_TEMPLATE, heard, tokens)
    config = Qwen3Config(**_text_shape(tokenizer), head_dim=64)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
        if fit is not None:
            fit(model, tokenizer)
    _save(model, tokenizer, folder)
    return folder


def _text_shape(tokenizer: Any) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def _tokenizer(template: str, heard: Sequence[str], tokens: int) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=tokens, special_tokens=list(_SPECIAL), initial_alphabet=sorted(alphabet))
    raw.train_from_iterator(heard, trainer)
    raw.add_tokens([AddedToken(mark, normalized=False, special=False) for mark in _MARKS])
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(_SPECIAL),
        chat_template=template,
    )


def _save(model: Any, tokenizer: Any, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    # Both ends of an answer as the published models have them, and their taste for sampling, which no answer inherits.
    generation = {
        "do_sample": True,
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
        "repetition_penalty": 1.05,
        "eos_token_id": [tokenizer.eos_token_id, tokenizer.pad_token_id],
        "pad_token_id": tokenizer.pad_token_id,
    }
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n", "utf-8")
