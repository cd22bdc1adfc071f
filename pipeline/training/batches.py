"""Samples become the tensors of a training step.

Everything random is drawn from the run's seed, the epoch and the sample's id: the same batches come out whatever the
number of workers, and a resumed epoch goes on with the pictures it would have had.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch

from pipeline.core.images import ImageError
from pipeline.core.seeds import generator_of, seed_of
from pipeline.models.batch import Batch, HardPairs, MaskedTokens, Tokens
from pipeline.models.config import (
    FACTORS,
    AugmentationOptions,
    Factor,
    LightairOptions,
    NetworkOptions,
    SedaOptions,
)
from pipeline.models.lightair import NO_PHRASE
from pipeline.models.masking import IGNORED_LABEL, MaskedCaption, continuations, mask_caption
from pipeline.training.eda import Synonyms, augment
from pipeline.training.mirror import mirrored
from pipeline.training.phrases import phrase_finder
from pipeline.training.pictures import Draw, draw_erased_box, mirrored_pose_map, normalised, read_square
from pipeline.training.samples import Sample, SampleSet
from pipeline.training.texts import Vocabulary, cleaned

PAD = 0
HELD_BYTES = 1 << 29
"""Of decoded pictures at their final size, kept for the next epoch: a small data set is decoded once."""


@dataclass(frozen=True)
class Prepared:
    """One sample, ready to be put in a batch: float32 (3, S, S) pictures and int64 (L,) token ids."""

    identity: int
    image: np.ndarray
    pose: np.ndarray | None
    caption: np.ndarray
    augmented: np.ndarray | None
    masked: MaskedCaption | None
    parts: dict[Factor, np.ndarray]
    hard_image: np.ndarray | None = None
    hard_pose: np.ndarray | None = None
    hard_caption: np.ndarray | None = None
    hard_identity: int | None = None
    action: int | None = None


@dataclass(frozen=True)
class Unreadable:
    """A sample whose picture cannot be decoded: it costs itself alone."""

    id: str
    why: str


class Preparing(Protocol):
    """Prepares samples of an epoch: a torch dataset over (epoch, number)."""

    def __len__(self) -> int: ...

    def __getitem__(self, key: tuple[int, int]) -> Prepared | Unreadable: ...


class Preparer:
    """Prepares samples of one epoch; a torch dataset, and cheap to send to a worker.

    identities: number of each sample id; samples with one number (one match key) are positives of each other.
    """

    def __init__(
        self,
        data: SampleSet,
        model: NetworkOptions,
        augmentation: AugmentationOptions,
        vocabulary: Vocabulary,
        synonyms: Synonyms | None,
        stop_words: frozenset[str],
        seed: int,
    ) -> None:
        self._data, self._model, self._options = data, model, augmentation
        self._vocabulary, self._synonyms, self._stop_words = vocabulary, synonyms, stop_words
        self._seed = seed
        self._is_continuation = continuations(vocabulary.tokens)
        self._actions: dict[str | None, int] = {}
        self._held: dict[tuple[Any, str], np.ndarray] = {}
        self._identities = identities_of(data.samples)
        self._phrases = model.codebook.phrases if isinstance(model, LightairOptions) else ()

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, key: tuple[int, int]) -> Prepared | Unreadable:
        """The sample of (epoch, number)."""
        epoch, number = key
        sample = self._data.samples[number]
        try:
            return self._prepared(sample, random.Random(seed_of("augment", self._seed, epoch, sample.id)), epoch)
        except (ImageError, OSError) as error:
            return Unreadable(sample.id, str(error))

    def _prepared(self, sample: Sample, rng: random.Random, epoch: int) -> Prepared:
        image, pose, flipped = self._pictures(sample.image, sample.pose, sample.id, rng)
        caption = cleaned(self._turned(sample.caption, flipped), sample.id)
        others: dict[str, Any] = {}
        if self._model.ihnm != "off" and sample.hard is not None:
            hard = sample.hard
            hard_image, hard_pose, hard_flipped = self._pictures(hard.image, hard.pose, hard.id, rng)
            hard_caption = self._ids(cleaned(self._turned(hard.caption, hard_flipped), hard.id))
            others = {
                "hard_image": hard_image,
                "hard_pose": hard_pose,
                "hard_caption": hard_caption,
                "hard_identity": self._identities[hard.id],
            }
        augmented = None
        if self._model.eda_weight > 0:
            text = caption
            if rng.random() < self._options.eda_prob:
                text = augment(caption, rng, self._synonyms, self._stop_words) or caption
            augmented = self._ids(cleaned(text, caption))
        ids = self._ids(caption)
        masked = mask_caption(
            ids,
            int((ids != PAD).sum()),
            self._model.mlm,
            self._is_continuation,
            generator_of("mask", self._seed, epoch, sample.id),
        )
        parts: dict[Factor, np.ndarray] = {}
        if isinstance(self._model, SedaOptions):
            for name, part in zip(FACTORS, sample.factors, strict=True):
                if name in self._model.factors:
                    parts[name] = self._ids(cleaned(self._turned(part or "", flipped), caption))
        return Prepared(
            identity=self._identities[sample.id],
            image=image,
            pose=pose,
            caption=ids,
            augmented=augmented,
            masked=masked,
            parts=parts,
            action=self._action(sample.label) if self._phrases else None,
            **others,
        )

    def _pictures(
        self, image: Any, pose: Any, name: str, rng: random.Random
    ) -> tuple[np.ndarray, np.ndarray | None, bool]:
        """The image, its pose map where the model reads one, and whether the image was mirrored."""
        options, side = self._options, self._model.size.image.image_size
        flip = rng.random() < options.flip_prob
        array = normalised(self._square(image, "image", name), Draw(flip, self._erased(rng, side)))
        if not self._model.pose or pose is None:
            return array, None, flip
        pose_flip = rng.random() < options.flip_prob if options.independent or not options.shared_flip else flip
        erase = self._erased(rng, side) if options.erase_pose else None
        pose_map = self._square(pose, "pose", f"pose map of {name}")
        if pose_flip and not options.independent:
            pose_map = mirrored_pose_map(pose_map)
        return array, normalised(pose_map, Draw(pose_flip, erase)), flip

    def _square(self, where: Any, column: Literal["image", "pose"], name: str) -> np.ndarray:
        """A picture at the network's size, read-only; decoded once where there is room to keep it."""
        held = self._held.get((where, column))
        if held is None:
            held = read_square(self._data.picture(where, column), name, self._model.size.image.image_size)
            if len(self._held) * held.nbytes < HELD_BYTES:
                held.setflags(write=False)
                self._held[where, column] = held
        return held

    def _erased(self, rng: random.Random, side: int) -> tuple[int, int, int, int] | None:
        return draw_erased_box(
            rng, side, self._options.erase_prob, self._options.erase_area, self._options.erase_aspect
        )

    def _turned(self, text: str, flipped: bool) -> str:
        return mirrored(text) if flipped and self._options.swap_sides else text

    def _action(self, label: str | None) -> int:
        """The label's phrase; looked up once a label."""
        if label not in self._actions:
            number = phrase_finder(self._phrases)(label)
            self._actions[label] = NO_PHRASE if number is None else number
        return self._actions[label]

    def _ids(self, text: str) -> np.ndarray:
        return self._vocabulary.ids([text])[0]


def identities_of(samples: Sequence[Sample]) -> dict[str, int]:
    """A number for the id of every sample and hard negative; samples with one match key have one number.

    It is the key's place in the order of all keys: the same in every process. A hard negative that is no sample here
    has its id for a key.
    """
    keys = {sample.hard.id: sample.hard.id for sample in samples if sample.hard is not None}
    keys |= {sample.id: sample.match for sample in samples}
    places = {each: number for number, each in enumerate(sorted(set(keys.values())))}
    return {name: places[key] for name, key in keys.items()}


@dataclass(frozen=True)
class Collated:
    """A batch, None where fewer than two different ids are left, and the samples that could not be read."""

    batch: Batch | None
    unreadable: tuple[Unreadable, ...]


def collated(prepared: Sequence[Prepared | Unreadable], fill: bool = False) -> Collated:
    """Prepared samples under each other. A batch needs two ids: with one there is no negative.

    fill: whether good samples are repeated in the place of unreadable ones; processes that gather features need batches
    of one size.
    """
    good = [each for each in prepared if isinstance(each, Prepared)]
    if fill and good:
        good = [good[number % len(good)] for number in range(len(prepared))]
    bad = tuple(each for each in prepared if isinstance(each, Unreadable))
    if len({each.identity for each in good}) < 2:
        return Collated(None, bad)
    return Collated(
        Batch(
            images=_stacked([each.image for each in good]),
            captions=_tokens([each.caption for each in good]),
            identities=torch.tensor([each.identity for each in good], dtype=torch.int64),
            poses=_all_or_none([each.pose for each in good]),
            augmented=_tokens(_without_none([each.augmented for each in good]))
            if good[0].augmented is not None
            else None,
            masked=_masked([each.masked for each in good if each.masked is not None]),
            hard=_hard_pairs(good),
            parts={name: _tokens([each.parts[name] for each in good]) for name in good[0].parts} or None,
            actions=None if good[0].action is None else torch.tensor([each.action for each in good], dtype=torch.int64),
        ),
        bad,
    )


def _masked(captions: Sequence[MaskedCaption]) -> MaskedTokens | None:
    if not captions:
        return None
    masks = max(len(each.positions) for each in captions)
    return MaskedTokens(
        ids=_stacked([each.ids for each in captions]),
        positions=_stacked([_filled(each.positions, masks, 0) for each in captions]),
        labels=_stacked([_filled(each.labels, masks, IGNORED_LABEL) for each in captions]),
    )


def _hard_pairs(good: Sequence[Prepared]) -> HardPairs | None:
    rows = [number for number, each in enumerate(good) if each.hard_image is not None]
    if not rows:
        return None
    own = [good[number] for number in rows]
    return HardPairs(
        rows=torch.tensor(rows, dtype=torch.int64),
        images=_stacked(_without_none([each.hard_image for each in own])),
        captions=_tokens(_without_none([each.hard_caption for each in own])),
        poses=_all_or_none([each.hard_pose for each in own]),
        identities=torch.tensor([each.hard_identity for each in own], dtype=torch.int64),
    )


def _without_none(arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
    found = [each for each in arrays if each is not None]
    assert len(found) == len(arrays), "some samples have what others lack"
    return found


def _all_or_none(arrays: Sequence[np.ndarray | None]) -> torch.Tensor | None:
    return None if all(each is None for each in arrays) else _stacked(_without_none(arrays))


def _stacked(arrays: Sequence[np.ndarray]) -> torch.Tensor:
    return torch.from_numpy(np.stack(arrays))


def _filled(array: np.ndarray, length: int, value: int) -> np.ndarray:
    return np.concatenate([array, np.full(length - len(array), value, dtype=array.dtype)])


def _tokens(ids: Sequence[np.ndarray]) -> Tokens:
    stacked = _stacked(ids)
    return Tokens(stacked, (stacked != PAD).long())


class EpochOrder:
    """Which samples each batch of an epoch holds: every process the same order, cut among them.

    The last batch is dropped where it is not full (batch normalisation and contrast want their size), unless it is the
    only one. Iterating gives lists of (epoch, number); `start` leaves out batches that a resumed run has behind it.
    """

    def __init__(self, count: int, batch_size: int, seed: int, processes: int = 1, rank: int = 0) -> None:
        self._count, self._size, self._seed = count, batch_size, seed
        self._processes, self._rank = processes, rank
        self.epoch, self.start = 0, 0

    def __len__(self) -> int:
        step = self._size * self._processes
        return self._count // step if self._count >= step else int(self._count >= 2 * self._processes)

    def __iter__(self) -> Any:
        order = generator_of("order", self._seed, self.epoch).permutation(self._count)
        step = min(self._size, self._count // self._processes)
        for number in range(self.start, len(self)):
            first = (number * self._processes + self._rank) * step
            yield [(self.epoch, int(index)) for index in order[first : first + step]]


def loader_of(preparer: Preparing, order: EpochOrder, workers: int, collate: Callable[..., Collated] = collated) -> Any:
    """A torch DataLoader over an epoch's batches of `Collated`; its workers decode pictures."""
    from torch.utils.data import DataLoader

    return DataLoader(
        preparer,  # type: ignore[arg-type]
        batch_sampler=order,
        num_workers=workers,
        collate_fn=collate,
        persistent_workers=workers > 0,
        multiprocessing_context="spawn" if workers else None,
    )
