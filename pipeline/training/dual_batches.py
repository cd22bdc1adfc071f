"""Samples become the tensors of a training step of somebody else's dual encoder: its pictures, its tokens."""

from __future__ import annotations

import random

import numpy as np

from pipeline.core.images import ImageError, read_image
from pipeline.core.seeds import seed_of
from pipeline.models.config import AugmentationOptions
from pipeline.models.dual import DualPictures, DualTexts
from pipeline.training.batches import HELD_BYTES, Prepared, Unreadable, identities_of
from pipeline.training.mirror import mirrored
from pipeline.training.pictures import draw_erased_box
from pipeline.training.samples import Sample, SampleSet


class DualPreparer:
    """Prepares samples of an epoch; a torch dataset, and cheap to send to a worker.

    Pictures go through the model's own image processor, are then mirrored (with left and right in the caption) and
    erased as the options say; captions are read as they were written.
    """

    def __init__(
        self, data: SampleSet, augmentation: AugmentationOptions, pictures: DualPictures, texts: DualTexts, seed: int
    ) -> None:
        self._data, self._options, self._pictures, self._texts = data, augmentation, pictures, texts
        self._seed = seed
        self._held: dict[int, np.ndarray] = {}
        self._identities = identities_of(data.samples)

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, key: tuple[int, int]) -> Prepared | Unreadable:
        """The sample of (epoch, number)."""
        epoch, number = key
        sample = self._data.samples[number]
        rng = random.Random(seed_of("augment", self._seed, epoch, sample.id))
        try:
            picture = self._picture(sample, number)
        except (ImageError, OSError) as error:
            return Unreadable(sample.id, str(error))
        flip = rng.random() < self._options.flip_prob
        if flip:
            picture = picture[:, :, ::-1]
        caption = mirrored(sample.caption) if flip and self._options.swap_sides else sample.caption
        return Prepared(
            identity=self._identities[sample.id],
            image=self._erased(picture, rng),
            pose=None,
            caption=self._texts.ids([self._texts.text(caption) or sample.id])[0],
            augmented=None,
            masked=None,
            parts={},
        )

    def _picture(self, sample: Sample, number: int) -> np.ndarray:
        """The processed picture, read-only; made once where there is room to keep it."""
        held = self._held.get(number)
        if held is None:
            held = self._pictures(read_image(self._data.picture(sample.image, "image"), sample.id))
            if len(self._held) * held.nbytes < HELD_BYTES:
                held.setflags(write=False)
                self._held[number] = held
        return held

    def _erased(self, picture: np.ndarray, rng: random.Random) -> np.ndarray:
        """What is erased is 0, the processor's mean colour. Only squares are erased in: others stay whole."""
        side = picture.shape[1]
        options = self._options
        box = draw_erased_box(rng, side, options.erase_prob, options.erase_area, options.erase_aspect)
        if box is None or picture.shape[2] != side:
            return np.ascontiguousarray(picture)
        top, left, bottom, right = box
        found = picture.copy()
        found[:, top:bottom, left:right] = 0
        return found
