"""Networks with random weights and inputs of real shapes for them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pipeline.models.batch import Batch, HardPairs, MaskedTokens, Tokens
from pipeline.models.build import build_network
from pipeline.models.config import FACTORS, SIZES, GradcoOptions, LightairOptions, NetworkOptions
from pipeline.models.masking import CLS_ID, SEP_ID, masks_per_caption
from pipeline.models.network import PairNetwork
from pipeline.models.recipes import changed, recipe_named

PHRASES = 875
"""Of LightAIR's published codebook."""
_FIRST_WORD = 1000
"""Ids below are special tokens and letters."""


def random_network(model: str, size: str, seed: int = 0) -> PairNetwork:
    """A recipe's network of a size of `SIZES`, untrained, in evaluation mode.

    Recipes on X2-VLM's encoders get these in that size; LightAIR gets as many phrases as its published codebook has.

    Matching weights are drawn wide enough for its scores to differ from pair to pair.
    """
    options = recipe_named(model).model
    if isinstance(options, GradcoOptions | LightairOptions):
        size = {"paper": "x2vlm", "small": "x2vlm-small", "tiny": "x2vlm-tiny"}.get(size, size)
    if isinstance(options, LightairOptions):
        options = changed(options, {"codebook.phrases": tuple(f"action {number}" for number in range(PHRASES))})
    network = build_network(changed(options, {"size": SIZES[size]}), seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for part in (network.cross_encoder, network.matching_head):
            for module in part.modules():
                if isinstance(module, nn.Linear):
                    module.weight.normal_(std=module.in_features**-0.5, generator=generator)
    return network.eval()


def random_tokens(
    count: int, length: int, vocab_size: int, generator: torch.Generator, real: int | None = None
) -> Tokens:
    """Texts of `real` tokens, [CLS] and [SEP] among them (all of `length` where None), padded to `length`."""
    real = length if real is None else real
    ids = torch.randint(min(_FIRST_WORD, vocab_size - 1), vocab_size, (count, length), generator=generator)
    ids[:, 0], ids[:, real - 1], ids[:, real:] = CLS_ID, SEP_ID, 0
    return Tokens(ids, (torch.arange(length) < real).long().expand(count, -1).contiguous())


def random_pictures(count: int, side: int, generator: torch.Generator) -> Tensor:
    """float32 (count, 3, side, side), as pictures are after normalising."""
    return torch.randn(count, 3, side, side, generator=generator)


def random_batch(options: NetworkOptions, count: int, seed: int = 0) -> Batch:
    """A training batch in which every pair has all that training may use, captions of full length."""
    generator = torch.Generator().manual_seed(seed)
    side, length, vocab_size = options.size.image.image_size, options.size.max_tokens, options.size.text.vocab_size

    def texts() -> Tokens:
        return random_tokens(count, length, vocab_size, generator)

    captions = texts()
    positions = torch.stack(
        [1 + torch.randperm(length - 2, generator=generator)[: masks_per_caption(options.mlm, length)]
         for _ in range(count)]
    )  # fmt: skip
    return Batch(
        images=random_pictures(count, side, generator),
        poses=random_pictures(count, side, generator),
        captions=captions,
        identities=torch.arange(count),
        augmented=texts(),
        masked=MaskedTokens(captions.ids, positions, captions.ids.gather(1, positions)),
        hard=HardPairs(
            torch.arange(count),
            random_pictures(count, side, generator),
            texts(),
            random_pictures(count, side, generator),
            torch.arange(count, 2 * count),
        ),
        parts={factor: texts() for factor in FACTORS},
        actions=torch.zeros(count, dtype=torch.int64),
    )
