"""Text-to-image retrieval as the field measures it: first by features, then the first candidates by the matching head.

The gallery is walked image by image (in chunks): an image's keys and values are made once, serve all queries whose
candidate it is, and are gone before the next chunk. Memory grows with queries + gallery, never with their product times
tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipeline.core.errors import UserError
from pipeline.core.images import ImageError, read_image
from pipeline.models.batch import Tokens
from pipeline.models.build import AnyNetwork
from pipeline.models.dual import DualEncoder
from pipeline.models.network import PairNetwork
from pipeline.retrieval import protocols
from pipeline.retrieval.candidates import first_candidates
from pipeline.retrieval.fusion import Fusion, extremes_of, fuse
from pipeline.retrieval.metrics import (
    Metrics,
    MetricsCounter,
    PairAccuracy,
    first_ranked,
    id_order,
    pair_accuracy,
)
from pipeline.training.pictures import normalised, read_square
from pipeline.training.samples import Sample, SampleSet
from pipeline.training.texts import TextReader

RANKED = 10
"""Images of each query that are written down."""

Progress = Callable[[str, int, int], None]
"""Called with (what is done, so many, of how many)."""


@dataclass(frozen=True)
class EvaluationSettings:
    """top_k: candidates a query that the matching head sees. image_chunk, text_chunk, pair_chunk: how many at once.

    held_tokens: bytes of image tokens that may be kept between the two passes; beyond it images are encoded twice.
    Kept as float32: rounded, scores would depend on which images were kept.
    """

    top_k: int = 128
    fusion: Fusion = field(default_factory=Fusion)
    image_chunk: int = 22
    text_chunk: int = 150
    pair_chunk: int = 256
    held_tokens: int = 1 << 30


@dataclass(frozen=True)
class Query:
    """A text that is searched for. image: the gallery index of the image whose caption it is, or None.

    right: ids of the images that answer it, for a query that is nobody's; None where nobody tells.
    """

    id: str
    text: str
    image: int | None
    right: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Ranking:
    """The first images of a query: gallery indices and fused scores, best first."""

    query: Query
    images: tuple[int, ...]
    scores: tuple[float, ...]


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found. metrics: by protocol, those that the data allows. unreadable: id and why."""

    gallery: tuple[Sample, ...]
    metrics: dict[str, Metrics]
    pairs: PairAccuracy
    rankings: tuple[Ranking, ...]
    fusion: str
    top_k: int
    unreadable: tuple[tuple[str, str], ...] = ()
    counts: dict[str, int] = field(default_factory=dict)


@torch.no_grad()
def evaluate(
    network: AnyNetwork,
    data: SampleSet,
    vocabulary: TextReader,
    settings: EvaluationSettings = EvaluationSettings(),
    progress: Progress | None = None,
    names: Sequence[str] = protocols.PAB,
    held: HeldTexts | None = None,
) -> Evaluation:
    """Search the data's images with each of their captions, or with its queries where it has any.

    names: the protocols that are counted, as far as the data can answer them (`retrieval.protocols`). held: what the
    last evaluation of this network encoded, for one of the same queries. Pair accuracy: a query's own image against its
    hard negative, by the final score. Raises UserError where no image can be read or a score is not a number.
    """
    was_training = network.training
    network.eval()
    try:
        return _evaluate(network, data, vocabulary, settings, progress or (lambda *_: None), names, held or HeldTexts())
    finally:
        network.train(was_training)


def _evaluate(
    network: AnyNetwork,
    data: SampleSet,
    vocabulary: TextReader,
    settings: EvaluationSettings,
    progress: Progress,
    names: Sequence[str],
    held: HeldTexts,
) -> Evaluation:
    images = encoded_images(network, data, settings, progress)
    gallery = images.samples
    queries = queries_of(data, gallery, vocabulary)
    if not queries:
        raise UserError(f"{data.name}: no caption of its {data.split} split has a word to search for")
    asked = [query.text for query in queries]
    if held.encoded is None or held.texts != asked:
        held.texts, held.encoded = asked, _encoded_texts(network, asked, vocabulary, settings, progress)
    texts = held.encoded
    order = id_order([sample.id for sample in gallery])
    if isinstance(network, DualEncoder) or not (network.matches and settings.fusion.matches):
        settings = replace(settings, top_k=0, fusion=Fusion("similarity"))
        candidates, logits = nothing_matched(len(queries))
    else:
        candidates, _ = first_candidates(texts.features, images.features, settings.top_k, order)
        logits = matching_logits(network, data, images, texts, candidates, settings, progress)
    return judged(data, images, queries, texts.features, candidates, logits, order, settings, names)


def queries_of(data: SampleSet, gallery: Sequence[Sample], vocabulary: TextReader) -> list[Query]:
    """The data's own queries, else each caption of each image that says something."""
    if data.queries:
        return [Query(each.id, text, None, each.right) for each in data.queries if (text := vocabulary.text(each.text))]
    return [
        Query(sample.id if number == 0 else f"{sample.id}#{number}", text, index)
        for index, sample in enumerate(gallery)
        for number, caption in enumerate(sample.captions)
        if (text := vocabulary.text(caption))
    ]


def nothing_matched(queries: int) -> tuple[np.ndarray, np.ndarray]:
    """Candidates int64 (Q, 0) and logits float32 (Q, 0) where similarity alone ranks."""
    return np.empty((queries, 0), dtype=np.int64), np.empty((queries, 0), dtype=np.float32)


@dataclass
class EncodedGallery:
    """features: float32 (G, F). tokens: by gallery index, those that were kept."""

    samples: tuple[Sample, ...]
    features: np.ndarray
    tokens: Mapping[int, Tensor]
    unreadable: list[tuple[str, str]]


def encoded_images(
    network: AnyNetwork, data: SampleSet, settings: EvaluationSettings, progress: Progress
) -> EncodedGallery:
    """Features of all images that can be read, in the order of the samples."""
    samples: list[Sample] = []
    features: list[np.ndarray] = []
    unreadable: list[tuple[str, str]] = []
    tokens: dict[int, Tensor] = {}
    held = 0
    if network.options.pose and any(sample.pose is None for sample in data.samples):
        raise UserError(
            f"{data.name}: there are no pose maps, and this model reads them; train one without pose encoding (--model "
            "m1, or --set model.pose=false)"
        )
    for start in range(0, len(data), settings.image_chunk):
        chunk = data.samples[start : start + settings.image_chunk]
        good, pictures, poses = [], [], []
        for sample in chunk:
            try:
                picture, pose = _pictures(network, data, sample)
            except (ImageError, OSError) as error:
                unreadable.append((sample.id, str(error)))
                continue
            good.append(sample)
            pictures.append(picture)
            poses.append(pose)
        if good:
            encoded = network.encode_images(*_on_device(network, pictures, poses))
            for index, each in enumerate(encoded.tokens):
                held += each.numel() * each.element_size()
                if held <= settings.held_tokens:
                    tokens[len(samples) + index] = each.float().cpu()
            features.append(encoded.features.float().cpu().numpy())
            samples += good
        progress("images", min(start + settings.image_chunk, len(data)), len(data))
    if not samples:
        why = f" ({unreadable[0][1]})" if unreadable else ""
        raise UserError(f"{data.name}: none of the {len(data)} images of its {data.split} split can be read{why}")
    return EncodedGallery(tuple(samples), np.concatenate(features), tokens, unreadable)


def _pictures(network: AnyNetwork, data: SampleSet, sample: Sample) -> tuple[np.ndarray, np.ndarray | None]:
    if isinstance(network, DualEncoder):
        return network.pictures(read_image(data.picture(sample.image, "image"), sample.id)), None
    side = network.options.size.image.image_size
    image = normalised(read_square(data.picture(sample.image, "image"), sample.id, side))
    if not network.options.pose or sample.pose is None:
        return image, None
    return image, normalised(read_square(data.picture(sample.pose, "pose"), f"pose map of {sample.id}", side))


def _on_device(
    network: AnyNetwork, pictures: Sequence[np.ndarray], poses: Sequence[np.ndarray | None]
) -> tuple[Tensor, Tensor | None]:
    device = next(network.parameters()).device
    shown = torch.from_numpy(np.stack(pictures)).to(device)
    maps = [each for each in poses if each is not None]
    return shown, torch.from_numpy(np.stack(maps)).to(device) if maps else None


@dataclass
class EncodedTexts:
    """hidden: (Q, L, D) on the CPU; mask: (Q, L); features: float32 (Q, F); weights: those of `encode_texts`."""

    hidden: Tensor
    mask: Tensor
    features: np.ndarray
    weights: Tensor | None = None


@dataclass
class HeldTexts:
    """Queries that several evaluations of one network have in common, and what they were encoded to."""

    texts: list[str] = field(default_factory=list)
    encoded: EncodedTexts | None = None


def _encoded_texts(
    network: AnyNetwork, texts: Sequence[str], vocabulary: TextReader, settings: EvaluationSettings, progress: Progress
) -> EncodedTexts:
    device = next(network.parameters()).device
    hidden, masks, features, weights = [], [], [], []
    for start in range(0, len(texts), settings.text_chunk):
        ids = torch.from_numpy(vocabulary.ids(texts[start : start + settings.text_chunk])).to(device)
        encoded = network.encode_texts(Tokens(ids, (ids != 0).long()))
        hidden.append(encoded.hidden.float().cpu())
        masks.append(encoded.mask.cpu())
        if encoded.weights is not None:
            weights.append(encoded.weights.float().cpu())
        features.append(encoded.features.float().cpu().numpy())
        progress("queries", min(start + settings.text_chunk, len(texts)), len(texts))
    joined = torch.cat(weights) if weights else None
    return EncodedTexts(torch.cat(hidden), torch.cat(masks), np.concatenate(features), joined)


def matching_logits(
    network: PairNetwork,
    data: SampleSet,
    images: EncodedGallery,
    texts: EncodedTexts,
    candidates: np.ndarray,
    settings: EvaluationSettings,
    progress: Progress,
) -> np.ndarray:
    """float32 (Q, k): the logit that query and candidate match; candidates int64 (Q, k), gallery indices."""
    logits = np.empty(candidates.shape, dtype=np.float32)
    by_image: dict[int, list[tuple[int, int]]] = {}
    for query, row in enumerate(candidates):
        for place, image in enumerate(row):
            by_image.setdefault(int(image), []).append((query, place))
    wanted = sorted(by_image)
    for start in range(0, len(wanted), settings.image_chunk):
        chunk = wanted[start : start + settings.image_chunk]
        keys_values = network.keys_values(_tokens_of(network, data, images, chunk))
        pairs = [(query, place, number) for number, image in enumerate(chunk) for query, place in by_image[image]]
        for part in _parts(pairs, settings.pair_chunk):
            for (query, place, _), logit in zip(part, _logits(network, texts, keys_values, part), strict=True):
                logits[query, place] = logit
        progress("matching", min(start + settings.image_chunk, len(wanted)), len(wanted))
    return logits


def _parts(pairs: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(pairs), size):
        yield pairs[start : start + size]


def _logits(
    network: PairNetwork, texts: EncodedTexts, keys_values: Any, pairs: Sequence[tuple[int, int, int]]
) -> np.ndarray:
    """The logits of (query, _, image) triples. Texts are cut after the longest one's last real token."""
    device = next(network.parameters()).device
    queries = sorted({query for query, _, _ in pairs})
    mask = texts.mask[queries]
    length = int(mask.sum(dim=1).max())
    rows = {query: number for number, query in enumerate(queries)}
    text_rows = torch.tensor([rows[query] for query, _, _ in pairs], device=device)
    image_rows = torch.tensor([image for _, _, image in pairs], device=device)
    hidden = texts.hidden[queries, :length].to(device)
    weights = None if texts.weights is None else texts.weights[queries].to(device)
    found = network.match(hidden, mask[:, :length].to(device), keys_values, text_rows, image_rows, weights)
    return found[:, 1].float().cpu().numpy()


def _tokens_of(network: PairNetwork, data: SampleSet, images: EncodedGallery, chunk: Sequence[int]) -> Tensor:
    device = next(network.parameters()).device
    missing = [index for index in chunk if index not in images.tokens]
    again: dict[int, Tensor] = {}
    if missing:
        read = [_pictures(network, data, images.samples[index]) for index in missing]
        tokens = network.encode_images(*_on_device(network, [a for a, _ in read], [b for _, b in read])).tokens
        again = dict(zip(missing, tokens, strict=True))
    return torch.stack([again[index] if index in again else images.tokens[index].to(device) for index in chunk])


def judged(
    data: SampleSet,
    images: EncodedGallery,
    queries: Sequence[Query],
    features: np.ndarray,
    candidates: np.ndarray,
    logits: np.ndarray,
    order: np.ndarray,
    settings: EvaluationSettings,
    names: Sequence[str] = protocols.PAB,
) -> Evaluation:
    """Scores, metrics and rankings of queries with these features (Q, F) and matching logits (Q, k), chunk by chunk.

    order: `id_order` of the gallery's ids. Raises UserError where a score is not a number.
    """
    if not (np.isfinite(logits).all() and np.isfinite(features).all() and np.isfinite(images.features).all()):
        raise UserError("evaluation: a score is not a number; the checkpoint's weights are damaged or have diverged")
    gallery = images.samples
    places = {sample.id: index for index, sample in enumerate(gallery)}
    counterparts = [places.get(sample.hard.id) if sample.hard else None for sample in gallery]
    counted = _counted(names, queries, gallery)
    counters = {each.protocol: MetricsCounter(order) for each in counted}
    relevant = {each.protocol: dict(zip(each.rows, each.relevant, strict=True)) for each in counted}
    pairs = PairAccuracy(0, 0)
    rankings = []
    extremes = extremes_of(settings.fusion, _extremes(features, images.features, settings.text_chunk), logits)
    for start in range(0, len(queries), settings.text_chunk):
        rows = range(start, min(start + settings.text_chunk, len(queries)))
        part = slice(rows.start, rows.stop)
        similarity = features[part] @ images.features.T
        scores = fuse(settings.fusion, extremes, similarity, candidates[part], logits[part], start, len(queries))
        for name, counter in counters.items():
            own = [row for row in rows if row in relevant[name]]
            if own:
                counter.add(scores[[row - start for row in own]], [relevant[name][row] for row in own])
        paired = [(row - start, image) for row in rows if (image := queries[row].image) is not None]
        own_images = [image for _, image in paired]
        pairs += pair_accuracy(
            scores[[row for row, _ in paired]], own_images, [counterparts[image] for image in own_images]
        )
        for row, scored in zip(rows, scores, strict=True):
            first = first_ranked(scored, order, RANKED)
            rankings.append(
                Ranking(queries[row], tuple(int(each) for each in first), tuple(float(each) for each in scored[first]))
            )
    metrics = {name: counter.metrics() for name, counter in counters.items()}
    return Evaluation(
        gallery=gallery,
        metrics={name: found for name, found in metrics.items() if found.queries or found.without_relevant},
        pairs=pairs,
        rankings=tuple(rankings),
        fusion=settings.fusion.name,
        top_k=candidates.shape[1],
        unreadable=tuple(images.unreadable),
        counts={"queries": len(queries), "gallery": len(gallery), "left out": data.left_out + len(images.unreadable)},
    )


def _counted(names: Sequence[str], queries: Sequence[Query], gallery: Sequence[Sample]) -> list[protocols.Counted]:
    """The protocols over these queries; without any where nobody tells which images answer them."""
    images = [protocols.Judged(each.match, each.person, each.normal) for each in gallery]
    if all(query.image is not None for query in queries):
        asked = [images[query.image] for query in queries if query.image is not None]
        return protocols.counted(names, asked, images)
    if all(query.right is None for query in queries):
        return []
    places = {each.id: index for index, each in enumerate(gallery)}
    relevant = tuple(
        np.array(sorted(places[name] for name in query.right or () if name in places), dtype=np.int64)
        for query in queries
    )
    return [protocols.Counted(name, tuple(range(len(queries))), relevant) for name in names]


def _extremes(queries: np.ndarray, gallery: np.ndarray, chunk: int) -> tuple[float, float]:
    """The least and the largest similarity of the whole matrix, without holding it."""
    lowest, highest = np.inf, -np.inf
    for start in range(0, len(queries), chunk):
        part = queries[start : start + chunk] @ gallery.T
        lowest, highest = min(lowest, float(part.min())), max(highest, float(part.max()))
    return lowest, highest
