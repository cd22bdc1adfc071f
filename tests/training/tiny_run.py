"""A tiny network and a few made-up samples, for tests of training and evaluation."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline.core.images import encode_png
from pipeline.models.cmp import CMP
from pipeline.models.config import AugmentationOptions, CmpOptions, ImageSize, OptimiserOptions, Recipe, Size, TextSize
from pipeline.models.recipes import changed, recipe_named
from pipeline.training.batches import Preparer
from pipeline.training.samples import Hard, Sample, SampleSet
from pipeline.training.texts import vocabulary

SIZE = Size(
    name="test",
    image=ImageSize(image_size=32, embed_dim=8, depths=(1, 1), heads=(1, 2), window=4, drop_path=0.1),
    text=TextSize(width=24, heads=2, ffn_width=48, text_layers=1, cross_layers=1),
    pose_heads=2,
    feature_width=32,
    max_tokens=16,
)
COLOURS = {"red": (200, 20, 20), "green": (20, 180, 20), "blue": (20, 20, 220), "white": (240, 240, 240)}


@functools.cache
def picture(number: int, column: str) -> bytes:
    """Colour by person, light by behaviour."""
    colour = list(COLOURS.values())[number // 2 % 4]
    image = np.full((32, 32, 3), colour if column == "image" else (0, 0, 0), dtype=np.uint8)
    half = slice(0, 16) if number % 2 == 0 else slice(16, 32)
    image[half, 8:24] = 255 if column == "pose" else 128
    image[number % 7, :, number % 3] = 40
    return encode_png(image)


class Pictures:
    """Reads made-up pictures; those of `broken` are cut off."""

    def __init__(self, broken: tuple[int, ...] = ()) -> None:
        self.broken = broken

    def __call__(self, where: int | Path, column: str) -> bytes:
        assert isinstance(where, int)
        data = picture(where, column)
        return data[: len(data) // 2] if where in self.broken else data


def caption(number: int) -> str:
    return (
        f"a person in {list(COLOURS)[number // 2 % 4]} number {number // 2} {'stands' if number % 2 == 0 else 'falls'}"
    )


def sample(number: int) -> Sample:
    other = number ^ 1
    return Sample(
        id=f"s{number:03d}",
        source=f"v{number // 2}",
        person=f"p{number // 2}",
        normal=number % 2 == 0,
        captions=(caption(number),),
        factors=("a person", "stands", None),
        image=number,
        pose=number,
        hard=Hard(f"s{other:03d}", caption(other), ("a person", "falls", None), other, other),
    )


def sample_set(count: int, broken: tuple[int, ...] = ()) -> SampleSet:
    return SampleSet("made-up", "train", tuple(sample(n) for n in range(count)), Pictures(broken))


def recipe(epochs: int = 2, batch_size: int = 4, **changes: Any) -> Recipe:
    return recipe_named("cmp").model_copy(
        update={
            "model": changed(CmpOptions(size=SIZE), changes),
            "epochs": epochs,
            "batch_size": batch_size,
            "optimiser": OptimiserOptions(lr=1e-3, warmup=2),
        }
    )


def network(of: Recipe, seed: int = 0) -> CMP:
    torch.manual_seed(seed)
    assert isinstance(of.model, CmpOptions)
    return CMP(of.model)


def preparer(of: Recipe, data: SampleSet) -> Preparer:
    augmentation = AugmentationOptions()
    return Preparer(data, of.model, augmentation, vocabulary(of.model.size.max_tokens), None, frozenset(), 5)
