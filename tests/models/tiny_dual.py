"""Tiny dual encoders of transformers with random weights, saved as others save theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

WORDS = (
    *("<pad>", "<s>", "</s>", "<unk>", "a", "person", "in", "red", "green", "blue", "white", "number", "stands"),
    *("falls", "man", "woman", "street", "jacket", "jumps", "left", "right", "0", "1", "2", "3", "4", "5", "6"),
)
SIDE, MAX_TOKENS = 32, 8
_SMALL = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}


def tokenizer(mask: bool = True) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        model_max_length=MAX_TOKENS,
        model_input_names=["input_ids", "attention_mask"] if mask else ["input_ids"],
    )


def network(kind: str) -> Any:
    """A `clip` or `siglip` whose weights are drawn from seed 0."""
    from transformers import CLIPConfig, CLIPModel, SiglipConfig, SiglipModel

    text = {**_SMALL, "vocab_size": len(WORDS), "max_position_embeddings": MAX_TOKENS, "pad_token_id": 0}
    text |= {"bos_token_id": 1, "eos_token_id": 2}
    image = {**_SMALL, "image_size": SIDE, "patch_size": 8}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if kind == "clip":
            return CLIPModel(CLIPConfig(text_config=text, vision_config=image, projection_dim=12)).eval()
        return SiglipModel(SiglipConfig(text_config=text, vision_config=image)).eval()


def saved(folder: Path, kind: str) -> Path:
    """The folder, with model, tokenizer and image processor in it."""
    from transformers import CLIPImageProcessorPil, SiglipImageProcessorPil
    from transformers.utils import logging

    logging.disable_progress_bar()
    network(kind).save_pretrained(folder)
    tokenizer(mask=kind == "clip").save_pretrained(folder)
    if kind == "clip":
        processor = CLIPImageProcessorPil(
            size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE}, image_mean=[0.5, 0.4, 0.3]
        )
    else:
        processor = SiglipImageProcessorPil(size={"height": SIDE, "width": SIDE})
    processor.save_pretrained(folder)
    return folder
