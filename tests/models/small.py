"""A network and batches small enough for a test of a second."""

from __future__ import annotations

from typing import Any

import torch

from pipeline.models.batch import Batch, HardPairs, MaskedTokens, Tokens
from pipeline.models.build import build_network
from pipeline.models.config import (
    FACTORS,
    CmpOptions,
    GradcoOptions,
    ImageSize,
    LightairOptions,
    SedaOptions,
    Size,
    TextSize,
)
from pipeline.models.network import PairNetwork
from pipeline.models.recipes import changed

SIZE = Size(
    name="test",
    image=ImageSize(image_size=32, embed_dim=8, depths=(1, 2), heads=(1, 2), window=4, drop_path=0.0),
    text=TextSize(vocab_size=50, width=16, heads=2, ffn_width=32, text_layers=2, cross_layers=2, max_positions=16),
    pose_heads=2,
    feature_width=12,
    max_tokens=10,
)
PHRASES = ("falling", "running", "sitting", "walking")
"""Of a codebook of actions."""
NO_DROPOUT = {"size.text.dropout": 0.0, "projection_dropout": 0.0}


def small_network(model: str = "cmp", seed: int = 0, **changes: Any) -> PairNetwork:
    """An untrained network in evaluation mode whose weights are large enough to tell inputs apart."""
    kinds = {"cmp": CmpOptions, "seda": SedaOptions, "gradco": GradcoOptions, "lightair": LightairOptions}
    options = changed(kinds[model](size=SIZE), changes)
    if isinstance(options, LightairOptions) and not options.codebook.phrases:
        options = changed(options, {"codebook.phrases": PHRASES})
    network = build_network(options, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.3, generator=generator)
    return network.eval()


def small_tokens(count: int, generator: torch.Generator, length: int = 10) -> Tokens:
    """Texts of 3 to `length` real tokens."""
    ids = torch.randint(5, 50, (count, length), generator=generator)
    lengths = torch.randint(3, length + 1, (count, 1), generator=generator)
    mask = (torch.arange(length) < lengths).long()
    ids[:, 0] = 1
    return Tokens(ids * mask, mask)


def small_batch(count: int = 4, hard_rows: tuple[int, ...] | None = None, seed: int = 0) -> Batch:
    """Pairs of different identities; hard pairs for some rows (all where None is given)."""
    generator = torch.Generator().manual_seed(seed)

    def pictures(number: int) -> torch.Tensor:
        return torch.randn(number, 3, 32, 32, generator=generator)

    rows = tuple(range(count)) if hard_rows is None else hard_rows
    captions = small_tokens(count, generator)
    positions = torch.randint(1, 3, (count, 2), generator=generator)
    return Batch(
        images=pictures(count),
        poses=pictures(count),
        captions=captions,
        identities=torch.arange(count),
        augmented=small_tokens(count, generator),
        masked=MaskedTokens(captions.ids, positions, captions.ids.gather(1, positions)),
        hard=HardPairs(torch.tensor(rows), pictures(len(rows)), small_tokens(len(rows), generator), pictures(len(rows)))
        if rows
        else None,
        parts={factor: small_tokens(count, generator) for factor in FACTORS},
        actions=torch.arange(count) % len(PHRASES),
    )
