"""Re-ranking by the matching head: its cost beside the published way, and its memory at the size of a large gallery.

python -m bench.rerank [--k 128] [--tokens 56]
    One query and its k candidates. The published way runs every pair whole (bench/pair_by_pair.py); here an image's
    keys and values are made once for all its queries, and are counted apart. Both hold the same weights.

python -m bench.rerank --gallery 36773 --queries 1978 --reranked 20
    The evaluation of pipeline/training/evaluate.py from features to metrics, with random features and image tokens:
    candidates, fusion and metrics of all queries, encoding of one chunk of images and of queries, matching of the first
    few queries; the others get made-up logits. Prints the most memory it held; what a full run takes is extrapolated.

One thread of the processor, float32, random weights and inputs. Multiply-adds are counted while the networks run
(bench/counting.py says which).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.counting import Cost, Target, billions, fastest, judged, largest_memory, measured, one_thread, table

AT_MOST = 0.70
"""Of the published multiply-adds and time, at full width, k = 128 and 56 tokens."""
SCORES_WITHIN = 2e-4
MEMORY_GIB = 8.0


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; 1 where a target is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.rerank", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=("cmp", "seda"), default="cmp")
    parser.add_argument("--size", choices=("paper", "small", "tiny"), default="paper", help="paper: full width")
    parser.add_argument("--k", type=int, default=128, help="candidates of a query (default: 128)")
    parser.add_argument("--tokens", type=int, default=56, help="real tokens of the query (default: 56)")
    parser.add_argument("--repeats", type=int, default=4, help="of which the fastest counts (default: 4)")
    parser.add_argument("--gallery", type=int, metavar="IMAGES", help="evaluate over a gallery of so many images")
    parser.add_argument("--queries", type=int, default=1978, help="with --gallery (default: 1978)")
    parser.add_argument(
        "--reranked", type=int, default=20, help="queries that are matched, with --gallery (default: 20)"
    )
    options = parser.parse_args(argv)
    if min(options.k, options.repeats, options.queries, options.reranked, options.gallery or 2) < 1:
        parser.error("counts must be at least 1")

    from bench.random_inputs import random_network

    network = random_network(options.model, options.size)
    longest = network.options.size.max_tokens
    if not 2 <= options.tokens <= longest:
        parser.error(f"--tokens must be from 2 to {longest}")
    with one_thread():
        if options.gallery is None:
            return _one_query(network, options)
        return _gallery(network, options)


# --- one query ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RerankCosts:
    """Costs of one query. apart: the candidates' keys and values, which all their queries share.

    spread: standard deviation of the published scores; difference: the largest between the ways.
    """

    ours: Cost
    apart: Cost
    published: Cost
    spread: float
    difference: float


def rerank_costs(network: Any, k: int, real_tokens: int, repeats: int, *, compare: bool = True) -> RerankCosts:
    """Costs of re-ranking one query's k candidates; both ways by turns, of each the fastest run.

    compare: False where tensors have shapes alone and no numbers; spread and difference are then NaN.
    """
    import torch

    from bench.pair_by_pair import pair_by_pair

    size, generator = network.options.size, torch.Generator().manual_seed(k)
    device = next(network.parameters()).device
    image_tokens = torch.randn(k, 1 + size.image.patches, size.image.width, generator=generator).to(device)
    hidden = torch.randn(1, size.max_tokens, size.text.width, generator=generator).to(device)
    mask = (torch.arange(size.max_tokens, device=device) < real_tokens).long()[None]
    query, own = torch.zeros(k, dtype=torch.long, device=device), torch.arange(k, device=device)
    published: Any = pair_by_pair(network)  # takes image tokens where the network takes keys and values
    runs: dict[str, list[Cost]] = {"ours": [], "apart": [], "published": []}
    with torch.no_grad():
        # Padding is cut off, as in evaluation; the published code carries it along.
        cut, seen = hidden[:, :real_tokens], mask[:, :real_tokens]
        keys_values = network.keys_values(image_tokens)
        for _ in range(repeats):
            _, cost = measured(lambda: network.keys_values(image_tokens))
            runs["apart"].append(cost)
            scores, cost = measured(lambda: network.match(cut, seen, keys_values, query, own))
            runs["ours"].append(cost)
            expected, cost = measured(lambda: published.match(hidden, mask, image_tokens, query, own))
            runs["published"].append(cost)
    found = {name: fastest(costs) for name, costs in runs.items()}
    return RerankCosts(
        **found,
        spread=float(expected[:, 1].std()) if compare else np.nan,
        difference=float((scores - expected)[:, 1].abs().max()) if compare else np.nan,
    )


def _one_query(network: Any, options: argparse.Namespace) -> int:
    costs = rerank_costs(network, options.k, options.tokens, options.repeats)
    print(f"one query, {options.k} candidates, {options.tokens} real tokens; {options.model}, size {options.size}\n")
    whole = costs.ours + costs.apart
    rows = [("", "multiply-adds", "of published", "s", "of published")]
    for name, cost in (
        ("every pair whole (published)", costs.published),
        ("ours", costs.ours),
        ("keys and values of the candidates", costs.apart),
        ("ours with them", whole),
    ):
        rows.append(
            (name, billions(cost.multiply_adds), f"{cost.multiply_adds / costs.published.multiply_adds:.3f}",
             f"{cost.seconds:.2f}", f"{cost.seconds / costs.published.seconds:.3f}")
        )  # fmt: skip
    print(table(rows))
    print(f"\nscores: standard deviation {costs.spread:.3f}, largest difference {costs.difference:.1e}\n")
    targets = [Target("largest difference of a score", costs.difference, SCORES_WITHIN, digits=".1e")]
    if (options.size, options.k, options.tokens) == ("paper", 128, 56):
        ratio = costs.ours.multiply_adds / costs.published.multiply_adds
        targets.append(Target("multiply-adds, ours over published", ratio, AT_MOST))
        targets.append(Target("time, ours over published", costs.ours.seconds / costs.published.seconds, AT_MOST))
    else:
        print(f"the targets for cost, at most {AT_MOST:g} of published, are for --size paper --k 128 --tokens 56")
    return judged(targets)


# --- a gallery ----------------------------------------------------------------------------------------------------


class MadeTokens(Mapping[int, Any]):
    """Image tokens of a gallery: those of the first images are held, as evaluation holds what it may; the others are
    made when they are asked for, in place of being encoded a second time."""

    def __init__(self, images: int, shape: tuple[int, int], held_bytes: int) -> None:
        import torch

        self._images, self._shape = images, shape
        count = min(images, held_bytes // (4 * shape[0] * shape[1]))
        self.held = torch.randn(count, *shape, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return self._images

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._images))

    def __getitem__(self, image: int) -> Any:
        import torch

        if not 0 <= image < self._images:
            raise KeyError(image)
        if image < len(self.held):
            return self.held[image]
        return torch.randn(*self._shape, generator=torch.Generator().manual_seed(image))


@dataclass(frozen=True)
class GalleryCosts:
    """Seconds of the processor, by what was done. matched_images: different candidates of the matched queries.

    all_images: different candidates of all queries. memory: bytes at most.
    """

    candidates: float
    matching: float
    judging: float
    keys_values_per_image: float
    encoding_per_image: float
    encoding_per_text: float
    matched_images: int
    all_images: int
    held_images: int
    top_k: int
    memory: int


def gallery_costs(network: Any, gallery: int, queries: int, reranked: int, k: int) -> GalleryCosts:
    """Evaluates random features as evaluation does, matching the first queries alone."""
    import torch

    from bench.random_inputs import random_pictures, random_tokens
    from pipeline.retrieval.candidates import first_candidates
    from pipeline.retrieval.metrics import id_order
    from pipeline.training import evaluate
    from pipeline.training.samples import Hard, Sample, SampleSet

    size = network.options.size
    reranked = min(reranked, queries)
    generator = torch.Generator().manual_seed(1)

    def features(count: int) -> np.ndarray:
        made = torch.randn(count, size.feature_width, generator=generator)
        return torch.nn.functional.normalize(made, out=made).numpy()

    def sample(number: int) -> Sample:
        other = f"g{number ^ 1:06d}"
        return Sample(
            id=f"g{number:06d}",
            source=f"v{number // 2}",
            person=f"p{number // 2}",
            normal=number % 2 == 0,
            captions=("a person",),
            factors=(None, None, None),
            image=number,
            pose=number,
            hard=Hard(other, "a person", (None, None, None), number ^ 1, number ^ 1),
        )

    def unread(_where: object, _column: str) -> bytes:
        raise AssertionError("no picture is read here")

    samples = tuple(sample(number) for number in range(gallery))
    data = SampleSet("made-up", "test", samples, unread)
    settings = evaluate.EvaluationSettings(top_k=k)
    tokens = MadeTokens(gallery, (1 + size.image.patches, size.image.width), settings.held_tokens)
    images = evaluate.EncodedGallery(samples, features(gallery), tokens, [])
    asked = [evaluate.Query(f"q{number:06d}", "a person", number % gallery) for number in range(queries)]
    texts = evaluate.EncodedTexts(
        torch.randn(queries, size.max_tokens, size.text.width, generator=generator),
        torch.ones(queries, size.max_tokens, dtype=torch.long),
        features(queries),
    )
    order = id_order([each.id for each in samples])

    with torch.no_grad():
        # One chunk of each kind is encoded, for its time and its memory.
        side = size.image.image_size
        pictures, maps = (random_pictures(settings.image_chunk, side, generator) for _ in range(2))
        _, encoded_images = measured(lambda: network.encode_images(pictures, maps))
        captions = random_tokens(settings.text_chunk, size.max_tokens, size.text.vocab_size, generator)
        _, encoded_texts = measured(lambda: network.encode_texts(captions))
        chunk = torch.stack([tokens[number] for number in range(min(gallery, settings.image_chunk))])
        _, keys_values = measured(lambda: network.keys_values(chunk))

        start = time.process_time()
        candidates, _ = first_candidates(texts.features, images.features, settings.top_k, order)
        candidates_s = time.process_time() - start

        start = time.process_time()
        matched = evaluate.matching_logits(
            network, data, images, texts, candidates[:reranked], settings, lambda *_: None
        )
        matching_s = time.process_time() - start

    # The others' logits: those of the matched ones, again and again.
    logits = np.resize(matched, candidates.shape)
    start = time.process_time()
    found = evaluate.judged(data, images, asked, texts.features, candidates, logits, order, settings)
    judging_s = time.process_time() - start
    assert found.metrics["PAB behaviour"].queries == queries
    return GalleryCosts(
        candidates_s,
        matching_s,
        judging_s,
        keys_values.per(len(chunk)).seconds,
        encoded_images.per(settings.image_chunk).seconds,
        encoded_texts.per(settings.text_chunk).seconds,
        len(np.unique(candidates[:reranked])),
        len(np.unique(candidates)),
        len(tokens.held),
        candidates.shape[1],
        largest_memory(),
    )


def _gallery(network: Any, options: argparse.Namespace) -> int:
    gallery, queries, reranked = options.gallery, options.queries, min(options.reranked, options.queries)
    costs = gallery_costs(network, gallery, queries, reranked, options.k)
    pairs_s = costs.matching - costs.keys_values_per_image * costs.matched_images
    matching_s = pairs_s * queries / reranked + costs.keys_values_per_image * costs.all_images
    encoding_s = costs.encoding_per_image * gallery
    again_s = costs.encoding_per_image * max(0, costs.all_images - costs.held_images)
    texts_s = costs.encoding_per_text * queries
    whole_s = encoding_s + again_s + texts_s + costs.candidates + matching_s + costs.judging
    print(f"{queries:,} queries x {gallery:,} images, k = {costs.top_k}, {reranked} queries matched; ", end="")
    print(f"{options.model}, size {options.size}; seconds of one thread\n")
    rows = [
        ("", "measured, s", "all, s", ""),
        ("encoding the images", "", f"{encoding_s:,.0f}", "extrapolated from one chunk"),
        ("encoding again, where tokens are not held", "", f"{again_s:,.0f}", "extrapolated from one chunk"),
        ("encoding the queries", "", f"{texts_s:,.0f}", "extrapolated from one chunk"),
        ("candidates by features", f"{costs.candidates:,.1f}", f"{costs.candidates:,.0f}", "measured"),
        (f"matching, {costs.matched_images:,} of {costs.all_images:,} images as candidates",
         f"{costs.matching:,.1f}", f"{matching_s:,.0f}", f"extrapolated from {reranked} queries"),
        ("fusion, metrics and rankings", f"{costs.judging:,.1f}", f"{costs.judging:,.0f}", "measured"),
        ("together", "", f"{whole_s:,.0f}", f"extrapolated: {whole_s / 3600:.1f} hours"),
    ]  # fmt: skip
    print(table(rows))
    print()
    return judged([Target("most memory, GiB", costs.memory / 2**30, MEMORY_GIB, digits=".2f")])


if __name__ == "__main__":
    raise SystemExit(main())
