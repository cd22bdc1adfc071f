"""What it costs to encode an image with its pose map, and a text.

python -m bench.embed [--model cmp] [--size paper] [--batch 4]

One thread of the processor, float32, random weights and inputs, texts of full length. Multiply-adds are counted while
the encoders run (bench/counting.py says which). An image is what comes out ready for retrieval: tokens with the pose
fused in, and the feature.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from bench.counting import Cost, billions, fastest, measured, one_thread, table


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.embed", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=("cmp", "seda"), default="cmp")
    parser.add_argument("--size", choices=("paper", "small", "tiny"), default="paper", help="paper: full width")
    parser.add_argument("--batch", type=int, default=4, help="measured beside single items (default: 4)")
    parser.add_argument("--repeats", type=int, default=2, help="of which the fastest counts (default: 2)")
    options = parser.parse_args(argv)
    if options.batch < 1 or options.repeats < 1:
        parser.error("--batch and --repeats must be at least 1")

    from bench.random_inputs import random_network

    network = random_network(options.model, options.size)
    batches = sorted({1, options.batch})
    costs = {count: embedding_costs(network, count, options.repeats) for count in batches}
    print(f"{options.model}, size {options.size}, one thread; for each item\n")
    rows = [("", "multiply-adds", *(f"s, {count} at once" for count in batches))]
    for name in costs[1]:
        shown = [costs[count][name] for count in batches]
        rows.append((name, billions(shown[-1].multiply_adds), *(f"{each.seconds:.3f}" for each in shown)))
    print(table(rows))
    return 0


def embedding_costs(network: Any, count: int, repeats: int) -> dict[str, Cost]:
    """Cost of one of `count` items encoded at once, by what it is."""
    import torch

    from bench.random_inputs import random_pictures, random_tokens

    size, generator = network.options.size, torch.Generator().manual_seed(count)
    side = size.image.image_size
    images, poses = random_pictures(count, side, generator), random_pictures(count, side, generator)
    texts = random_tokens(count, size.max_tokens, size.text.vocab_size, generator)
    works: dict[str, Callable[[], Any]] = {
        "image and pose map": lambda: network.encode_images(images, poses),
        "the image encoder alone": lambda: network.image_encoder(images),
        f"text, {size.max_tokens} tokens": lambda: network.encode_texts(texts),
    }
    with one_thread(), torch.no_grad():
        return {name: fastest([measured(work)[1] for _ in range(repeats)]).per(count) for name, work in works.items()}


if __name__ == "__main__":
    raise SystemExit(main())
