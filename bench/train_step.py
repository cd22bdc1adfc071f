"""One training step, beside the same step computed pair by pair as the published code does.

python -m bench.train_step [--model cmp] [--size paper] [--batch 2]
python -m bench.train_step --beside cmp,gradco,lightair      time and memory of their steps beside each other

One thread of the processor, float32, random weights and inputs, captions of full length. Multiply-adds are counted
while the steps run, backward passes included (bench/counting.py says which). Both ways hold the same weights and give
the same losses; bench/pair_by_pair.py says what differs.

With --beside each model does its steps in a process of its own, so that the memory is its alone: the most that the
process held, with weights, gradients, AdamW's moments and about 0.4 GB of libraries.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.counting import Cost, Target, billions, fastest, judged, largest_memory, measured, one_thread, table

BESIDE = ("cmp", "seda", "gradco", "lightair")
AT_MOST = 0.95
"""Of the multiply-adds of the published step, at full width."""


@dataclass(frozen=True)
class StepCosts:
    """Costs of one step; forward and backward of both ways, the optimiser's step is the same."""

    forward: Cost
    backward: Cost
    optimiser: Cost
    published_forward: Cost
    published_backward: Cost

    @property
    def ratio(self) -> Cost:
        """Of both passes: ours over published."""
        ours, published = self.forward + self.backward, self.published_forward + self.published_backward
        return Cost(ours.multiply_adds / published.multiply_adds, ours.seconds / published.seconds)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; 1 where the target is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.train_step", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=("cmp", "seda"), default="cmp")
    parser.add_argument("--size", choices=("paper", "small", "tiny"), default="paper", help="paper: full width")
    parser.add_argument("--batch", type=int, default=2, metavar="PAIRS", help="at least 2 (default: 2)")
    parser.add_argument("--repeats", type=int, default=2, help="of which the fastest counts (default: 2)")
    parser.add_argument("--beside", metavar="MODELS", help="only measure steps of several: cmp,seda,gradco,lightair")
    options = parser.parse_args(argv)
    if options.batch < 2 or options.repeats < 1:
        parser.error("--batch must be at least 2, without a second pair there is no negative, and --repeats at least 1")

    if options.beside:
        models = options.beside.split(",")
        unknown = [each for each in models if each not in BESIDE]
        if unknown:
            parser.error(f"--beside {options.beside}: there are {', '.join(BESIDE)}, with commas between them")
        found = {each: beside_in_a_process(each, options.size, options.batch, options.repeats) for each in models}
        print(f"one step of each, size {options.size}, {options.batch} pairs, one thread\n")
        print(format_beside(found))
        return 0

    from bench.random_inputs import random_batch, random_network

    network = random_network(options.model, options.size)
    costs = step_costs(network, random_batch(network.options, options.batch), options.repeats)
    print(f"one step of {options.model}, size {options.size}, {options.batch} pairs, one thread\n")
    print(format_costs(costs, options.batch))
    print()
    if options.size != "paper":
        print(f"the target, at most {AT_MOST:g} of the published multiply-adds, is for --size paper")
        return 0
    return judged([Target("multiply-adds of a step, ours over published", costs.ratio.multiply_adds, AT_MOST)])


@dataclass(frozen=True)
class OneStep:
    """What a step of a model costs. parameters: of the network; memory: the most of its process, bytes."""

    parameters: int
    passes: Cost
    optimiser: Cost
    memory: int


def beside_in_a_process(model: str, size: str, batch: int, repeats: int) -> OneStep:
    """The cost of a model's step, measured in a process that does nothing else."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(one_step, model, size, batch, repeats).result()


def one_step(model: str, size: str, batch: int, repeats: int) -> OneStep:
    """The fastest of several steps of a model in this process, and what it held at most."""
    from bench.random_inputs import random_batch, random_network
    from pipeline.models.config import OptimiserOptions
    from pipeline.models.gather import one_process
    from pipeline.models.losses import HardestNegatives
    from pipeline.models.optimiser import adamw, parameter_count

    network = random_network(model, size).train()
    inputs = random_batch(network.options, batch)
    optimiser = adamw(network, OptimiserOptions())
    passes, steps = [], []
    with one_thread():
        for _ in range(repeats):
            losses, forward = measured(lambda: network(inputs, one_process, HardestNegatives()))
            _, backward = measured(losses.total.backward)
            _, step = measured(optimiser.step)
            optimiser.zero_grad()
            passes.append(forward + backward)
            steps.append(step)
    return OneStep(parameter_count(network), fastest(passes), fastest(steps), largest_memory())


def format_beside(found: Mapping[str, OneStep]) -> str:
    """A row a model, each beside the first."""
    rows = [("", "parameters", "multiply-adds", "s", "of the first", "optimiser s", "memory")]
    first = next(iter(found.values())).passes.seconds
    for model, each in found.items():
        rows.append(
            (model, f"{each.parameters / 1e6:.2f} M", billions(each.passes.multiply_adds), f"{each.passes.seconds:.2f}",
             f"{each.passes.seconds / first:.2f}", f"{each.optimiser.seconds:.2f}", f"{each.memory / 1e9:.2f} GB")
        )  # fmt: skip
    return table(rows)


def step_costs(network: Any, batch: Any, repeats: int) -> StepCosts:
    """Costs of a step of a network in training; both ways by turns, of each the fastest run."""
    from bench.pair_by_pair import pair_by_pair
    from pipeline.models.config import OptimiserOptions
    from pipeline.models.gather import one_process
    from pipeline.models.losses import HardestNegatives
    from pipeline.models.optimiser import adamw

    network.train()
    ways = {"ours": network, "published": pair_by_pair(network)}
    optimiser = adamw(network, OptimiserOptions())
    seen: dict[tuple[str, str], list[Cost]] = {}

    def note(way: str, part: str, work: Any) -> Any:
        result, cost = measured(work)
        seen.setdefault((way, part), []).append(cost)
        return result

    with one_thread():
        for _ in range(repeats):
            for way, own in ways.items():
                losses = note(way, "forward", lambda own=own: own(batch, one_process, HardestNegatives()))
                note(way, "backward", losses.total.backward)
                if own is network:
                    note(way, "optimiser", optimiser.step)
                network.zero_grad()
    found = {name: fastest(costs) for name, costs in seen.items()}
    return StepCosts(
        found["ours", "forward"],
        found["ours", "backward"],
        found["ours", "optimiser"],
        found["published", "forward"],
        found["published", "backward"],
    )


def format_costs(costs: StepCosts, batch: int) -> str:
    """The costs as a table."""
    both = [("forward", costs.forward, costs.published_forward), ("backward", costs.backward, costs.published_backward)]
    ours, published = costs.forward + costs.backward, costs.published_forward + costs.published_backward
    rows = [("", "multiply-adds", "published", "ratio", "s", "published", "ratio")]
    for name, own, other in [*both, ("both", ours, published), ("both, a pair", ours.per(batch), published.per(batch))]:
        rows.append(
            (name, billions(own.multiply_adds), billions(other.multiply_adds),
             f"{own.multiply_adds / other.multiply_adds:.3f}", f"{own.seconds:.2f}", f"{other.seconds:.2f}",
             f"{own.seconds / other.seconds:.3f}")
        )  # fmt: skip
    rows.append(("optimiser", "", "", "", f"{costs.optimiser.seconds:.2f}", "the same", ""))
    return table(rows)


if __name__ == "__main__":
    raise SystemExit(main())
