"""What is trained on and searched in: samples of the built dataset or of the released PAB folder, in one form.

`./out/pab` is a dataset this project published or imported; `pab:FOLDER` is PAB as its authors released it;
`tipr:SET:FOLDER` is one of the sets of text-based person retrieval; `track4:FOLDER` is the AI City Challenge's test
set, whose queries belong to no image that anybody knows. Texts are held in memory, pictures are read when they are
wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pipeline.core.errors import UserError
from pipeline.core.seeds import seed_of
from pipeline.formats import tipr, track4
from pipeline.formats.pab import PabRow, read_pab

Split = str
"""train, test, ucc or weather_CONDITION; in TIPR sets also val."""
Factors = tuple[str | None, str | None, str | None]
"""Appearance, action and background of a caption; None where it says nothing of one."""

PAB_PREFIX, TIPR_PREFIX, TRACK4_PREFIX = "pab:", "tipr:", "track4:"
_TEXT_COLUMNS = ("caption", "image_id", "kind", "behavior", "action", "anomaly", "scene", "factors", "hard_image_id",
                 "hard_caption", "hard_factors", "pair_id", "video", "source_id")  # fmt: skip
_OPTIONAL = ("captions", "match_id")
"""Columns of datasets in which an image has several captions, or a query several images."""
_SCALE = 1 << 63


@dataclass(frozen=True)
class Hard:
    """The hard negative of a sample: the same person with the opposite behaviour."""

    id: str
    caption: str
    factors: Factors
    image: int | Path
    pose: int | Path | None


@dataclass(frozen=True)
class Sample:
    """One image with its captions: one in train, one or more in test.

    source: what must not be parted between training and validation. person: what images of one person share; None where
    nobody knows. normal: None where the data does not say. image, pose: a row of the dataset or a path, for
    `SampleSet.picture`; pose is None where there are no pose maps.
    """

    id: str
    source: str
    person: str | None
    normal: bool | None
    captions: tuple[str, ...]
    factors: Factors
    image: int | Path
    pose: int | Path | None
    label: str | None = None
    scene: str | None = None
    hard: Hard | None = None
    match_id: str | None = None

    @property
    def match(self) -> str:
        """What an image shares with the captions that it answers, and with the images that answer them too."""
        return self.match_id or self.id

    @property
    def caption(self) -> str:
        return self.captions[0]


@dataclass(frozen=True)
class FreeQuery:
    """A query that is no image's caption. right: ids of the images that answer it; None where nobody tells."""

    id: str
    text: str
    right: tuple[str, ...] | None = None


@dataclass(frozen=True)
class SampleSet:
    """The samples of a split. queries: those that are searched for in place of the samples' own captions. left_out:
    rows that could not be used; problems: a line for each file that had any."""

    name: str
    split: Split
    samples: tuple[Sample, ...]
    read: Callable[[int | Path, str], bytes]
    left_out: int = 0
    problems: tuple[str, ...] = field(default_factory=tuple)
    queries: tuple[FreeQuery, ...] = ()

    def __len__(self) -> int:
        return len(self.samples)

    def picture(self, where: int | Path, column: Literal["image", "pose"]) -> bytes:
        """The encoded bytes of an image or pose map."""
        return self.read(where, column)

    def of(self, samples: Sequence[Sample]) -> SampleSet:
        """The set with these samples alone."""
        return replace(self, samples=tuple(samples))


def load_samples(data: str, split: Split, *, hard: bool = True, ground_truth: Path | None = None) -> SampleSet:
    """A split of `./out/pab`, `pab:FOLDER` or another of the forms above, sorted by id.

    hard: whether training samples of a released folder must have hard negatives. ground_truth: of `track4:FOLDER`, in
    place of the folder's own (`query_index image_name`, a line each). Raises UserError where the folder is
    not there or holds something else, or where the split is empty.
    """
    check_there(data)
    if data.startswith(PAB_PREFIX):
        return _released(Path(data.removeprefix(PAB_PREFIX)), split, hard)
    if data.startswith(TIPR_PREFIX):
        return _tipr(data, split)
    if data.startswith(TRACK4_PREFIX):
        return _track4(data, split, ground_truth)
    return _published(Path(data), split)


class _Columns:
    """Reads pictures out of a dataset; may be sent to another process."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __call__(self, where: int | Path, column: str) -> bytes:
        assert isinstance(where, int)
        return self._dataset[where][column]["bytes"]


def _read_file(where: int | Path, _column: str) -> bytes:
    assert isinstance(where, Path)
    return where.read_bytes()


def check_there(data: str) -> None:
    """Raises UserError where no data is at `./out/pab`, `pab:FOLDER` or the like; opens no picture and no library."""
    from pipeline.core.card import TAG

    folder = None
    if data.startswith(TIPR_PREFIX):
        folder = _tipr_parts(data)[1]
    for prefix in (PAB_PREFIX, TRACK4_PREFIX):
        if data.startswith(prefix):
            folder = Path(data.removeprefix(prefix))
    if folder is not None:
        if not folder.is_dir():
            raise UserError(f"--data {data}: the folder is not there")
        return
    card = Path(data) / "README.md"
    if not card.is_file() or TAG not in card.read_text("utf-8", errors="replace"):
        raise UserError(
            f"--data {data}: no dataset of this project is there; build one with python -m pipeline.build, or give "
            f"{PAB_PREFIX}FOLDER for PAB as released, {TIPR_PREFIX}SET:FOLDER or {TRACK4_PREFIX}FOLDER"
        )


def _published(folder: Path, split: Split) -> SampleSet:
    files = sorted((folder / "data").glob(f"{split}-*.parquet"))
    if not files:
        raise UserError(f"--data {folder}: its {split} split is empty; look at its README.md for what was dropped")
    dataset = _dataset(folder, split, files)
    rows = dataset.remove_columns(["image", "pose"]).to_list()
    places = {row["image_id"]: number for number, row in enumerate(rows)}
    samples = [_published_sample(row, number, places) for number, row in enumerate(rows)]
    without_pose = {number for number, absent in enumerate(dataset.data.column("pose").is_null().to_pylist()) if absent}
    if without_pose:  # imported rows may have none
        samples = [_posed(each, without_pose) for each in samples]
    pictures = dataset.select_columns(["image", "pose"])
    return SampleSet(str(folder), split, tuple(sorted(samples, key=lambda each: each.id)), _Columns(pictures))


def _dataset(folder: Path, split: Split, files: Sequence[Path]) -> Any:
    """The rows of these files, encoded pictures among them, from a cache that is mapped and not read.

    Loaded by the files' names: for a folder the cache knows no more than its last name and its card, and would give the
    rows of another folder, or of this one before it was built anew.
    """
    import datasets
    from datasets.exceptions import DatasetsError

    datasets.disable_progress_bars()
    try:
        dataset = datasets.load_dataset(
            "parquet", data_files={split: [str(path.resolve()) for path in files]}, split=split
        )
        for column in ("image", "pose"):
            dataset = dataset.cast_column(column, datasets.Image(decode=False))
        more = [name for name in _OPTIONAL if name in dataset.column_names]
        return dataset.select_columns(["image", "pose", *_TEXT_COLUMNS, *more])
    except (DatasetsError, OSError, ValueError, KeyError) as error:
        cause = error.__cause__ or error
        why = (str(cause) or type(cause).__name__).splitlines()[0]
        raise UserError(
            f"--data {folder}: its {split} split cannot be read ({why}); look at it with python -m pipeline.verify, or "
            "build it again"
        ) from None


def _published_sample(row: Mapping[str, Any], number: int, places: Mapping[str, int]) -> Sample:
    hard = None
    if row["hard_image_id"] in places and row["hard_caption"]:
        place = places[row["hard_image_id"]]
        hard = Hard(row["hard_image_id"], row["hard_caption"], _factors(row["hard_factors"]), place, place)
    return Sample(
        id=row["image_id"],
        source=row["video"] or row["pair_id"] or row["image_id"],
        person=row["pair_id"],
        normal=None if row["behavior"] is None else row["behavior"] == "normal",
        captions=tuple(row.get("captions") or (row["caption"],)),
        factors=_factors(row["factors"]),
        image=number,
        pose=number,
        label=row["action"] or row["anomaly"],
        scene=row["scene"],
        hard=hard,
        match_id=row.get("match_id"),
    )


def _posed(sample: Sample, without: set[int]) -> Sample:
    hard = sample.hard
    if hard is not None and hard.pose in without:
        hard = replace(hard, pose=None)
    return replace(sample, pose=None if sample.pose in without else sample.pose, hard=hard)


def _factors(value: Mapping[str, str | None] | None) -> Factors:
    if value is None:
        return None, None, None
    return value["appearance"], value["action"], value["background"]


def _released(root: Path, split: Split, hard: bool) -> SampleSet:
    found = read_pab(root, split, hard=hard and split == "train")
    samples = sorted((_released_sample(row) for row in found.rows), key=lambda each: each.id)
    return SampleSet(f"{PAB_PREFIX}{root}", split, tuple(samples), _read_file, found.left_out, tuple(found.problems))


def _released_sample(row: PabRow) -> Sample:
    hard = None
    if row.hard is not None:
        hard = Hard(row.hard.id, row.hard.caption, row.hard.factors, row.hard.image, row.hard.pose)
    return Sample(
        id=row.id,
        source=row.person or row.id,
        person=row.person,
        normal=row.normal,
        captions=row.captions,
        factors=row.factors,
        image=row.image,
        pose=row.pose,
        label=row.label,
        scene=row.scene,
        hard=hard,
        match_id=row.match_id,
    )


def _tipr_parts(data: str) -> tuple[str, Path]:
    name, colon, folder = data.removeprefix(TIPR_PREFIX).partition(":")
    if not colon or not folder:
        raise UserError(f"--data {data}: write {TIPR_PREFIX}SET:FOLDER, SET one of {', '.join(tipr.SETS)}")
    return tipr.set_named(name).name, Path(folder)


def tipr_name(data: str) -> str:
    """The set of `tipr:SET:FOLDER`. Raises UserError."""
    return _tipr_parts(data)[0]


def _tipr(data: str, split: Split) -> SampleSet:
    """A picture is a person's, and answers the captions of all pictures of that person."""
    name, root = _tipr_parts(data)
    found = tipr.read_tipr(name, root, split)
    samples = [
        Sample(
            id=row.id,
            source=row.person,
            person=row.person,
            normal=None,
            captions=row.captions,
            factors=(None, None, None),
            image=row.image,
            pose=None,
            match_id=row.person,
        )
        for row in sorted(found.rows, key=lambda each: each.id)
    ]
    if split == "train":  # in training a picture is one sample a caption
        samples = [
            replace(each, id=each.id if number == 0 else f"{each.id}#{number}", captions=(caption,))
            for each in samples
            for number, caption in enumerate(each.captions)
        ]
    return SampleSet(data, split, tuple(samples), _read_file, found.left_out, tuple(found.problems))


def _track4(data: str, split: Split, ground_truth: Path | None) -> SampleSet:
    if split != "test":
        raise UserError(f"--data {data}: is a test set, there is nothing to train on")
    found = track4.read_track4(Path(data.removeprefix(TRACK4_PREFIX)), ground_truth)
    samples = [
        Sample(
            id=path.name, source=path.name, person=None, normal=None, captions=(), factors=(None, None, None),
            image=path, pose=pose,
        )
        for path, pose in zip(found.gallery, found.poses, strict=True)
    ]  # fmt: skip
    queries = tuple(FreeQuery(each.index, each.caption, each.right) for each in found.queries)
    return SampleSet(data, split, tuple(samples), _read_file, queries=queries)


_DISTRACTORS = 1 << 40
"""Rows of distractors are told from the data's own by being so much higher."""


def with_distractors(data: SampleSet, others: SampleSet) -> SampleSet:
    """The data with the other set's images in the gallery too: nobody searches for them, and they answer nothing."""

    def moved(where: int | Path) -> int | Path:
        return where + _DISTRACTORS if isinstance(where, int) else where

    crowd = [
        Sample(
            id=(name := f"distractor {others.name} {each.id}"), source=name, person=name, normal=None, captions=(),
            factors=(None, None, None), image=moved(each.image), pose=None if each.pose is None else moved(each.pose),
        )
        for each in others.samples
    ]  # fmt: skip
    return replace(
        data, samples=(*data.samples, *crowd), read=_Crowded(data.read, others.read),
        left_out=data.left_out + others.left_out, problems=(*data.problems, *others.problems),
    )  # fmt: skip


@dataclass(frozen=True)
class _Crowded:
    """Reads pictures of a set and of its distractors."""

    own: Callable[[int | Path, str], bytes]
    others: Callable[[int | Path, str], bytes]

    def __call__(self, where: int | Path, column: str) -> bytes:
        if isinstance(where, Path):
            return _read_file(where, column)
        return self.others(where - _DISTRACTORS, column) if where >= _DISTRACTORS else self.own(where, column)


def drawn(samples: Sequence[Sample], fraction: float) -> list[Sample]:
    """About that share of the samples, drawn by their ids alone: the same for every process and every run.

    A smaller fraction is part of a larger one. fraction: above 0 up to 1.
    """
    return [each for each in samples if seed_of("fraction", each.id) < fraction * _SCALE]


def parted_by_source(samples: Sequence[Sample], share: float) -> tuple[list[Sample], list[Sample]]:
    """(training, validation): about `share` of the sources, at least one where there are two, with all their samples.

    Drawn by the sources' names alone; a source is never on both sides. share 0: no validation.
    """
    sources = sorted({each.source for each in samples}, key=lambda source: seed_of("validation", source))
    count = min(len(sources) - 1, max(1, round(share * len(sources)))) if share > 0 else 0
    held = set(sources[: max(count, 0)])
    return [each for each in samples if each.source not in held], [each for each in samples if each.source in held]
