"""What goes on inside a trained GradCO: its features, anchors, weights and gradients, measured on a split.

`analyse` reads a network and a split and gives sections of plain values, one a figure; `Snapshots` measures a few pairs
after each epoch of a training run. The measures are those of `analysis`, the figures those of `analysis_figures`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipeline.core.errors import UserError
from pipeline.core.seeds import seed_of
from pipeline.core.store import write_atomically
from pipeline.models.batch import Tokens
from pipeline.models.gradco import GradCO
from pipeline.training import analysis
from pipeline.training.analysis import as_values
from pipeline.training.pictures import normalised, read_square
from pipeline.training.samples import Sample, SampleSet
from pipeline.training.texts import Vocabulary, cleaned

FOLDER, EPOCHS = "analysis", "epochs.jsonl"
SECTIONS = ("anchors", "conflicts", "coverage", "experts", "weights", "hard_negatives")
SNAPSHOT_PAIRS = 32
COVERAGE_TEXTS = 64
"""Texts whose anchors with as many images are compared, drawn by their ids."""
SHOWN_PERSONS, SHOWN_IMAGES = 6, 3
_CHUNK = 32

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Texts:
    """features: (T, S, F), of any length. weights: (T, S). projected: (T, S, W), what the projection was given."""

    features: Tensor
    weights: Tensor
    projected: Tensor


@contextmanager
def _as_in_use(network: GradCO) -> Iterator[None]:
    """Evaluation mode, and back; no random number is drawn in it."""
    was_training = network.training
    network.eval()
    try:
        yield
    finally:
        network.train(was_training)


@torch.no_grad()
def encoded_texts(network: GradCO, texts: Sequence[str], vocabulary: Vocabulary) -> Texts:
    """What the network makes of texts, on its device. The texts are given as they are read: cleaned."""
    device = next(network.parameters()).device
    inputs: list[Tensor] = []
    hook = network.text_projection.register_forward_pre_hook(lambda _, given: inputs.append(given[0].float()))
    features, weights = [], []
    try:
        for start in range(0, len(texts), _CHUNK):
            ids = torch.from_numpy(vocabulary.ids(texts[start : start + _CHUNK])).to(device)
            found = network.analysed_texts(Tokens(ids, (ids != 0).long()))
            features.append(found.features)
            weights.append(found.weights)
    finally:
        hook.remove()
    return Texts(torch.cat(features), torch.cat(weights), torch.cat(inputs))


@torch.no_grad()
def encoded_images(network: GradCO, data: SampleSet, where: Sequence[tuple[Any, Any, str]]) -> Tensor:
    """(I, S, F) of pictures, each told by its image, its pose map and its name. Raises ImageError for one that cannot
    be read."""
    device = next(network.parameters()).device
    side = network.options.size.image.image_size
    found = []
    for start in range(0, len(where), _CHUNK):
        images, poses = [], []
        for image, pose, name in where[start : start + _CHUNK]:
            images.append(normalised(read_square(data.picture(image, "image"), name, side)))
            if network.options.pose:
                poses.append(normalised(read_square(data.picture(pose, "pose"), f"pose map of {name}", side)))
        maps = torch.from_numpy(np.stack(poses)).to(device) if poses else None
        found.append(network.analysed_images(torch.from_numpy(np.stack(images)).to(device), maps).features)
    return torch.cat(found)


def pair_anchors(network: GradCO, texts: Tensor, images: Tensor) -> Tensor:
    """t (P, S, F), v (P, S, F) -> the anchor of each text with its image, (P, S, F), as it is added."""
    rows = []
    for start in range(0, len(texts), _CHUNK):
        part = slice(start, start + _CHUNK)
        rows.append(
            _scaled(network, network.anchors(texts[part], images[part])).diagonal(dim1=0, dim2=1).permute(2, 0, 1)
        )
    return torch.cat(rows)


def _scaled(network: GradCO, anchors: Tensor) -> Tensor:
    scale = None if network.offload is None else network.offload.scale
    return anchors if scale is None else anchors * scale[:, None]


def text_gradients(network: GradCO, texts: Tensor, images: Tensor, anchors: bool, is_hard: bool) -> Tensor:
    """(P, S, F): the gradient to each text's features of the term that its pair gives to the loss.

    A positive pair's term falls, a hard negative's grows with its similarity; how much each counts (temperature,
    softmax) changes lengths alone. anchors: whether the similarity has them. The weights, which the text says, take
    part. With `col.stop_text_on_hard` hard pairs are stopped as in training.
    """
    rows = []
    for start in range(0, len(texts), _CHUNK):
        t = texts[start : start + _CHUNK].detach().clone().requires_grad_(True)
        v = images[start : start + _CHUNK].detach()
        weights = network.weights(t)
        if anchors and network.offload is not None:
            stops = is_hard and network.options.col.stop_text_on_hard
            stopped = torch.eye(len(t), dtype=torch.bool, device=t.device) if stops else None
            by_stream = network.offload.scores(t, v, stopped).similarity
            similarity = (by_stream * weights[:, None]).sum(dim=2)
        else:
            similarity = network.similarities(t, v, weights, anchors=False)
        term = similarity.diagonal().sum() * (1 if is_hard else -1)
        (gradient,) = torch.autograd.grad(term, t)
        rows.append(gradient.detach())
    return torch.cat(rows)


def _array(tensor: Tensor) -> np.ndarray:
    found: np.ndarray = tensor.detach().float().cpu().numpy()
    return found


def _anchors_by_stream(network: GradCO, texts: Tensor, images: Tensor) -> dict[str, Any]:
    with torch.no_grad():
        anchors = pair_anchors(network, texts, images)
    found = analysis.anchor_measures(_array(anchors), _array(texts), _array(images))
    return {name: as_values(each) for name, each in zip(network.options.bmoe.streams, found, strict=True)}


def _conflicts(network: GradCO, texts: Texts, images: Tensor, hard: Tensor) -> tuple[dict[str, Any], dict[str, Any]]:
    """Figures with anchors, as training has them, and without; and the cosines they are made of, (P,) each."""
    shared = network.options.bmoe.proj == "shared"
    inputs = _array(texts.projected)
    figures: dict[str, Any] = {}
    values: dict[str, Any] = {}
    negatives = {}
    for name, anchors in (("with anchors", True), ("without anchors", False)):
        if anchors and network.offload is None:
            continue
        positive = _array(text_gradients(network, texts.features, images, anchors, is_hard=False))
        negative = negatives[name] = _array(text_gradients(network, texts.features, hard, anchors, is_hard=True))
        features = analysis.feature_conflicts(positive, negative)
        projection = analysis.projection_conflicts(positive, negative, inputs, shared)
        values[name] = {"features": features, "projection": projection}
        figures[name] = {
            "features": as_values(analysis.conflict_of(features)),
            "projection": as_values(analysis.conflict_of(projection)),
        }
    if len(negatives) == 2:
        figures["hard gradient, with over without anchors"] = analysis.gradient_ratio(
            negatives["with anchors"], negatives["without anchors"]
        )
    return figures, values


# --- after each epoch -------------------------------------------------------------------------------------------------


class Snapshots:
    """Measures the same few held-out pairs after each epoch of a run, into `analysis/epochs.jsonl` of its folder.

    Draws no random number and leaves no gradient: training goes on as if nobody had looked. A line an epoch, 0 being
    the start; an epoch that is done again after a stop replaces its own line.
    """

    def __init__(self, network: GradCO, data: SampleSet, vocabulary: Vocabulary, folder: Path) -> None:
        self._network, self._data, self._vocabulary = network, data, vocabulary
        self._path = folder / FOLDER / EPOCHS
        self._pairs = drawn_pairs(data.samples, SNAPSHOT_PAIRS)

    def take(self, epoch: int) -> None:
        """Measure the network as it stands after so many epochs; nothing where no pair is held out."""
        if not self._pairs:
            return
        lines = {each["epoch"]: each for each in read_epochs(self._path)}
        lines[epoch] = {"epoch": epoch, **self._measured()}
        text = "".join(f"{json.dumps(lines[number])}\n" for number in sorted(lines) if number <= epoch)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._path, text.encode())

    def begin(self) -> None:
        """Measure the start, unless it was."""
        if not any(each["epoch"] == 0 for each in read_epochs(self._path)):
            self.take(0)

    def _measured(self) -> dict[str, Any]:
        network = self._network
        with _as_in_use(network):
            texts = encoded_texts(network, [cleaned(each.caption, each.id) for each in self._pairs], self._vocabulary)
            images = encoded_images(network, self._data, [(each.image, each.pose, each.id) for each in self._pairs])
            others = [each.hard for each in self._pairs if each.hard is not None]
            hard = encoded_images(network, self._data, [(each.image, each.pose, each.id) for each in others])
            with torch.no_grad():
                similarity = network.similarities(texts.features, images, texts.weights, anchors=False).diagonal()
            return {
                "pairs": len(self._pairs),
                "positive": _anchors_by_stream(network, texts.features, images),
                "hard": _anchors_by_stream(network, texts.features, hard),
                "conflicts": _conflicts(network, texts, images, hard)[0],
                "distance": round(float(analysis.pair_distances(_array(similarity)).mean()), 6),
            }


def drawn_pairs(samples: Sequence[Sample], count: int) -> list[Sample]:
    """At most so many samples that have a hard negative, drawn by their ids alone."""
    return sorted((each for each in samples if each.hard is not None), key=lambda each: seed_of(FOLDER, each.id))[
        :count
    ]


def read_epochs(path: Path) -> list[dict[str, Any]]:
    """The lines of `epochs.jsonl`; none where it is not there. Raises UserError where it is damaged."""
    if not path.is_file():
        return []
    try:
        lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        if not all(isinstance(each, dict) and isinstance(each.get("epoch"), int) for each in lines):
            raise ValueError("a line without an epoch")
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is damaged ({error}): delete it; its figures begin anew") from None
    return lines


# --- a whole split ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Split:
    """A split as the network sees it: T queries (the captions), I images. own: int64 (T,), each query's image.

    counterparts: gallery index of the same person's image with the other behaviour, or None, one an image.
    """

    samples: tuple[Sample, ...]
    queries: tuple[str, ...]
    own: np.ndarray
    texts: Texts
    images: Tensor
    counterparts: tuple[int | None, ...]

    @property
    def normal(self) -> list[bool | None]:
        """Behaviour of each query."""
        return [self.samples[image].normal for image in self.own]


def analyse(
    network: GradCO,
    data: SampleSet,
    vocabulary: Vocabulary,
    epochs: Sequence[Mapping[str, Any]] = (),
    progress: Progress = lambda *_: None,
) -> dict[str, dict[str, Any]]:
    """The sections of SECTIONS by name, plain values for JSON and for the figures.

    epochs: the lines that `Snapshots` wrote in training. A section that the data cannot fill holds `missing`, why.
    Raises UserError where a picture cannot be read or no query is left.
    """
    with _as_in_use(network):
        split = _split(network, data, vocabulary, progress)
        makers: dict[str, Callable[[], dict[str, Any]]] = {
            "anchors": lambda: _anchor_section(network, split, epochs),
            "conflicts": lambda: _conflict_section(network, split, epochs),
            "coverage": lambda: _coverage_section(network, split),
            "experts": lambda: _expert_section(network, split),
            "weights": lambda: _weight_section(network, split, vocabulary),
            "hard_negatives": lambda: _hard_section(network, split),
        }
        found = {}
        for number, name in enumerate(SECTIONS, 1):
            found[name] = {"streams": list(network.options.bmoe.streams), **makers[name]()}
            progress("figures", number, len(SECTIONS))
        return found


def _split(network: GradCO, data: SampleSet, vocabulary: Vocabulary, progress: Progress) -> Split:
    from pipeline.core.images import ImageError

    samples = data.samples
    queries = [(text, number) for number, each in enumerate(samples) for caption in each.captions
               if (text := cleaned(caption, ""))]  # fmt: skip
    if len(samples) < 2 or not queries:
        raise UserError(f"{data.name}: its {data.split} split has too few images or captions to look at")
    progress("images", 0, len(samples))
    try:
        images = encoded_images(network, data, [(each.image, each.pose, each.id) for each in samples])
    except (ImageError, OSError) as error:
        raise UserError(f"{data.name}: {error}") from None
    progress("images", len(samples), len(samples))
    texts = encoded_texts(network, [text for text, _ in queries], vocabulary)
    own = np.array([number for _, number in queries], dtype=np.int64)
    return Split(samples, tuple(text for text, _ in queries), own, texts, images, _counterparts(samples))


def _counterparts(samples: Sequence[Sample]) -> tuple[int | None, ...]:
    """Of each sample its hard negative in the split, else the first image of its person with the other behaviour."""
    places = {each.id: number for number, each in enumerate(samples)}
    by_person: dict[tuple[str, bool], int] = {}
    for number, each in enumerate(samples):
        if each.person is not None and each.normal is not None:
            by_person.setdefault((each.person, each.normal), number)
    found = []
    for each in samples:
        place = places.get(each.hard.id) if each.hard is not None else None
        if place is None and each.person is not None and each.normal is not None:
            place = by_person.get((each.person, not each.normal))
        found.append(place)
    return tuple(found)


def _with_counterparts(split: Split) -> tuple[Texts, Tensor, Tensor, np.ndarray]:
    """Texts, own images and hard images of the queries that have a hard negative, and which queries these are."""
    rows = [row for row, image in enumerate(split.own) if split.counterparts[image] is not None]
    own = torch.as_tensor(split.own[rows], device=split.images.device)
    hard = torch.as_tensor([split.counterparts[split.own[row]] for row in rows], dtype=torch.int64, device=own.device)
    index = torch.as_tensor(rows, dtype=torch.int64, device=own.device)
    texts = Texts(*(each[index] for each in (split.texts.features, split.texts.weights, split.texts.projected)))
    return texts, split.images[own], split.images[hard], np.array(rows, dtype=np.int64)


def _anchor_section(network: GradCO, split: Split, epochs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    if network.offload is None:
        return {"missing": "this network has no anchors"}
    texts, images, hard, rows = _with_counterparts(split)
    own = split.images[torch.as_tensor(split.own, device=split.images.device)]
    section: dict[str, Any] = {"positive": _anchors_by_stream(network, split.texts.features, own)}
    if len(rows):
        section["hard"] = _anchors_by_stream(network, texts.features, hard)
        for name, wanted in (("normal", True), ("anomaly", False)):
            kept = [place for place, row in enumerate(rows) if split.normal[row] is wanted]
            if kept:
                section[f"{name} queries"] = _anchors_by_stream(network, texts.features[kept], images[kept])
    section["epochs"] = [dict(each) for each in epochs]
    return section


def _conflict_section(network: GradCO, split: Split, epochs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    texts, images, hard, rows = _with_counterparts(split)
    if not len(rows):
        return {"missing": "no query of the split has a hard negative"}
    figures, values = _conflicts(network, texts, images, hard)
    told = [{"epoch": each["epoch"], **each["conflicts"]} for each in epochs]
    return {"pairs": len(rows), **figures, "cosines": as_values(values), "epochs": told}


def _coverage_section(network: GradCO, split: Split) -> dict[str, Any]:
    own = torch.as_tensor(split.own, device=split.images.device)
    with torch.no_grad():
        rows = [_diagonal_similarity(network, split.texts, split.images[own], start) for start in
                range(0, len(own), _CHUNK)]  # fmt: skip
    distances = analysis.pair_distances(np.concatenate(rows))
    embeddings = np.concatenate([_joined(split.texts.features), _joined(split.images)])
    section: dict[str, Any] = {
        "positive distance": {"mean": as_values(distances.mean()), "std": as_values(distances.std())},
        "distances": as_values(distances),
        "embeddings": as_values(analysis.coverage_of(embeddings)),
        "texts": as_values(analysis.coverage_of(_joined(split.texts.features))),
        "images": as_values(analysis.coverage_of(_joined(split.images))),
    }
    if network.offload is not None:
        chosen = sorted(range(len(split.own)), key=lambda row: seed_of(FOLDER, split.samples[split.own[row]].id, row))
        index = torch.as_tensor(chosen[:COVERAGE_TEXTS], device=own.device)
        with torch.no_grad():
            images = split.images[own[index]]
            parts = [_array(network.anchors(split.texts.features[each], images)) for each in index.split(_CHUNK)]
        section["anchors"] = {
            name: as_values(each)
            for name, each in zip(
                network.options.bmoe.streams, analysis.anchor_coverage(np.concatenate(parts)), strict=True
            )
        }
    return section


def _diagonal_similarity(network: GradCO, texts: Texts, images: Tensor, start: int) -> np.ndarray:
    part = slice(start, start + _CHUNK)
    found = network.similarities(texts.features[part], images[part], texts.weights[part], anchors=False)
    return _array(found.diagonal())


def _joined(features: Tensor) -> np.ndarray:
    """(B, S, F) -> (B, S F): the streams' directions side by side, each stream counting alike."""
    return analysis.unit(_array(features)).reshape(len(features), -1) / np.sqrt(features.shape[1])


def _cosines_of_streams(split: Split) -> np.ndarray:
    """(T, I, S): of retrieval, without anchors."""
    texts, images = analysis.unit(_array(split.texts.features)), analysis.unit(_array(split.images))
    return np.stack([texts[:, s] @ images[:, s].T for s in range(texts.shape[1])], axis=2)


def _expert_section(network: GradCO, split: Split) -> dict[str, Any]:
    by_stream, weights = _cosines_of_streams(split), _array(split.texts.weights)
    section: dict[str, Any] = {"all queries": as_values(analysis.expert_measures(by_stream, weights, split.own))}
    for name, wanted in (("normal queries", True), ("anomaly queries", False)):
        rows = [row for row, each in enumerate(split.normal) if each is wanted]
        if rows:
            section[name] = as_values(analysis.expert_measures(by_stream[rows], weights[rows], split.own[rows]))
    ranks = np.stack(
        [analysis.ranks_of(np.einsum("tis,ts->ti", by_stream, weights), split.own).ranks]
        + [analysis.ranks_of(by_stream[:, :, s], split.own).ranks for s in range(by_stream.shape[2])]
    )
    section["ranks"] = {name: as_values(each) for name, each in zip(("fused", *network.options.bmoe.streams), ranks,
                                                                    strict=True)}  # fmt: skip
    section["images"] = len(split.samples)
    return section


def _weight_section(network: GradCO, split: Split, vocabulary: Vocabulary) -> dict[str, Any]:
    weights = _array(split.texts.weights)
    by_kind = analysis.weights_by_kind(weights, split.normal)
    section: dict[str, Any] = {"by kind": as_values(by_kind)}
    section["examples"] = [
        {"kind": kind, "stream": name, "query": split.queries[each.query], "weights": as_values(weights[each.query])}
        for kind, own in by_kind.items()
        for name, each in zip(network.options.bmoe.streams, own, strict=True)
    ]
    section["queries"] = {
        kind: as_values(weights[[row for row, each in enumerate(split.normal) if each is wanted]])
        for kind, wanted in (("normal", True), ("anomaly", False))
        if kind in by_kind
    }
    edits: dict[str, Any] = {}
    for edit in analysis.EDITS:
        rows, texts = _edited(split, edit)
        if not rows:
            continue
        after = _array(encoded_texts(network, texts, vocabulary).weights)
        edits[edit] = {"all": as_values(analysis.weight_shift(weights[rows], after))}
        for kind, wanted in (("normal", True), ("anomaly", False)):
            kept = [place for place, row in enumerate(rows) if split.normal[row] is wanted]
            if kept:
                shift = analysis.weight_shift(weights[rows][kept], after[kept])
                edits[edit][kind] = as_values(shift)
        edits[edit]["example"] = {"before": split.queries[rows[0]], "after": texts[0]}
    section["edits"] = edits
    return section


def _edited(split: Split, edit: analysis.Edit) -> tuple[list[int], list[str]]:
    rows, texts = [], []
    for row, text in enumerate(split.queries):
        sample = split.samples[split.own[row]]
        if sample.caption and cleaned(sample.caption, "") != text:
            continue  # factors are those of the first caption
        other = split.counterparts[split.own[row]]
        hard = sample.hard.factors if sample.hard is not None else (
            split.samples[other].factors if other is not None else (None, None, None)
        )  # fmt: skip
        changed = analysis.edited(text, sample.factors, hard, edit)
        if changed is not None:
            rows.append(row)
            texts.append(changed)
    return rows, texts


def _hard_section(network: GradCO, split: Split) -> dict[str, Any]:
    persons: dict[str, list[int]] = {}
    for number, each in enumerate(split.samples):
        if each.person is not None:
            persons.setdefault(each.person, []).append(number)
    several = {name: own for name, own in persons.items() if len(own) > 1}
    if len(several) < 2:
        return {"missing": "the split does not show two persons twice each"}
    images = _joined(split.images)
    known = [number for own in persons.values() for number in own]
    first_query = {int(image): row for row, image in reversed(list(enumerate(split.own)))}
    asked = [number for number in known if number in first_query]
    shown = [
        number
        for name in sorted(several, key=lambda each: seed_of(FOLDER, each))[:SHOWN_PERSONS]
        for number in several[name][:SHOWN_IMAGES]
    ]
    names = [split.samples[number].person or "" for number in known]
    section: dict[str, Any] = {
        "persons": len(persons),
        "images": as_values(analysis.blocks_of(images[known] @ images[known].T, names)),
    }
    weights = _array(split.texts.weights)
    by_stream = _cosines_of_streams(split)
    if asked:
        rows = [first_query[number] for number in asked]
        matrix = np.einsum("tis,ts->ti", by_stream[rows][:, asked], weights[rows])
        section["text to image"] = as_values(
            analysis.blocks_of(matrix, [split.samples[number].person or "" for number in asked])
        )
    numbers = {name: place for place, name in enumerate(dict.fromkeys(split.samples[n].person for n in shown), 1)}
    counts: dict[str, int] = {}
    labels = []
    for number in shown:
        sample = split.samples[number]
        kind = "normal" if sample.normal else "anomaly" if sample.normal is False else "image"
        label = f"ID{numbers[sample.person]} {kind}"
        counts[label] = counts.get(label, 0) + 1
        labels.append(label if counts[label] == 1 else f"{label} {counts[label]}")
    section["shown"] = {
        "labels": labels,
        "ids": [split.samples[number].id for number in shown],
        "images": as_values(images[shown] @ images[shown].T),
    }
    if all(number in first_query for number in shown):
        rows = [first_query[number] for number in shown]
        section["shown"]["text to image"] = as_values(np.einsum("tis,ts->ti", by_stream[rows][:, shown], weights[rows]))
    return section
