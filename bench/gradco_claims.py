"""GradCO's claims, tried on our data: held, not held, or not testable here, with the numbers.

python -m bench.gradco_claims [--data ./out/pab] [--runs runs/gradco-claims] [--seeds 42,43,44] [--jobs 2] [--only 1,2]

Trains what each claim needs (small preset, three epochs, last weights; a run serves every claim that wants it; repeat
the command to go on), evaluates it on the test split and under rendered weather, looks into it, and writes
RUNS/claims.md and RUNS/claims.json after every run. Exit code 1 where a run failed.

When a comparison holds: the difference has the claimed sign for every seed (runs are paired by seed), and its mean is
larger than the seeds' spread, the larger of the two rows' standard deviations over seeds. Any other difference does not
hold; where it is no larger than the spread, that is said. A claim holds where all its parts that can be tested here do.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pipeline.core.errors import UserError

if TYPE_CHECKING:
    from pipeline.compare import PlannedRun, Row
    from pipeline.training.comparison import Result
    from pipeline.training.samples import SampleSet

HELD, NOT_HELD, SPREAD = "held", "not held", "not held (within the seeds' spread)"
NOT_TESTABLE, NOT_YET = "not testable here", "not measured yet"
NO_UCC = "needs UCF-Crime"
_MARKS = {HELD: "yes,", NOT_HELD: "no,", SPREAD: "no, within the spread,", NOT_TESTABLE: "not testable here",
          NOT_YET: "not measured yet"}  # fmt: skip
SEEDS = (42, 43, 44)
EPOCHS = 3
"""Of the preset's eight: by then a run has nine tenths of the held-out mAP it ends with, and there are 69 to make."""
SHARED = ("evaluation.top_k=32",)
"""Options of every run; figures up to R@10 need no more candidates, and each run ranks ten test splits."""
SECONDS_A_RUN = 130
"""What such a run takes about, for an estimate before any is done."""
WEATHER_SECONDS = 15
"""Of nine rendered conditions and the look inside, a run."""
NEAR_ZERO = 0.15
"""A mean cosine of at most this size is near 0."""
COLLAPSE = 0.5
"""Below this share of the full model's figure it has nearly collapsed."""
WEATHER = "weather.json"

Values = Mapping[int, float]
"""A figure by seed."""
Figures = Mapping[str, Mapping[int, Mapping[str, float]]]
"""Row -> seed -> figure by name, those that are there."""

STREAMS = ("appearance", "normal", "anomalous")
FULL = "gradco"
BASELINE = "x2vlm"
# X2-VLM fine-tuned with its own two losses: no experts, no anchors, no weights from the query, no hard negatives.
_BASELINE_CHANGES = ("bmoe.image_experts=false", "bmoe.text_experts=false", "col.anchors=false", "col.use_hard=false",
                     "hia.intent=false", "hia.feature=false", "ihnm=off")  # fmt: skip
EXPERTS = {1: "gradco-K1", 2: "gradco-K2", 4: FULL, 6: "gradco-K6", 8: "gradco-K8"}
GAMMAS = {0.0: "gradco-no-dir", 0.1: "gradco-gamma0.1", 0.5: FULL, 1.0: "gradco-gamma1", 2.0: "gradco-gamma2"}


@dataclass(frozen=True)
class Part:
    """One thing that a claim says. verdict: HELD, NOT_HELD, SPREAD, NOT_TESTABLE or NOT_YET. here: all its numbers.
    short: the one that decides."""

    what: str
    verdict: str
    here: str
    short: str = ""


@dataclass(frozen=True)
class Claim:
    """What the paper says, in words and in its figures, the rows it needs, and how it is judged."""

    number: int
    says: str
    paper: str
    rows: tuple[str, ...]
    judge: Callable[[Figures, Sequence[int]], list[Part]]


# --- the rule ---------------------------------------------------------------------------------------------------------


def told(values: Values, digits: int = 2) -> str:
    """Mean and range over seeds: `83.06 (82.10 to 84.00)`."""
    every = list(values.values())
    mean = f"{statistics.fmean(every):.{digits}f}"
    return mean if len(every) == 1 else f"{mean} ({min(every):.{digits}f} to {max(every):.{digits}f})"


def verdict_of(larger: Values, smaller: Values) -> str:
    """Whether the first figure is above the second by the rule of this module. Both have the same seeds, two at least.

    >>> verdict_of({1: 5.0, 2: 6.0}, {1: 1.0, 2: 2.0}), verdict_of({1: 1.0, 2: 2.0}, {1: 1.1, 2: 1.9})
    ('held', "not held (within the seeds' spread)")
    """
    differences = [larger[seed] - smaller[seed] for seed in larger]
    mean = statistics.fmean(differences)
    spread = max(statistics.stdev(each.values()) for each in (larger, smaller))
    alike = all(each > 0 for each in differences) or all(each < 0 for each in differences)
    if not alike or abs(mean) <= spread:
        return SPREAD
    return HELD if mean > 0 else NOT_HELD


def values_of(figures: Figures, row: str, name: str) -> dict[int, float]:
    """A row's figure by seed, of the seeds that have it."""
    return {seed: each[name] for seed, each in figures.get(row, {}).items() if name in each}


def above(
    what: str, larger: Values, smaller: Values, seeds: Sequence[int], digits: int = 2, names: tuple[str, str] = ("", "")
) -> Part:
    """The part that says the first figure is above the second."""
    missing = [seed for seed in seeds if seed not in larger or seed not in smaller]
    if missing:
        there = len(seeds) - len(missing)
        return Part(what, NOT_YET, f"{there} of {len(seeds)} seeds")
    one, other = {seed: larger[seed] for seed in seeds}, {seed: smaller[seed] for seed in seeds}
    here = " against ".join(
        f"{name} {told(each, digits)}".strip() for name, each in zip(names, (one, other), strict=True)
    )
    if len(seeds) < 2:
        return Part(what, SPREAD, f"{here}; one seed shows no spread")
    differences = {seed: one[seed] - other[seed] for seed in seeds}
    mean = statistics.fmean(differences.values())
    return Part(what, verdict_of(one, other), f"{here}; difference {told(differences, digits)}", f"{mean:+.{digits}f}")


def above_number(what: str, values: Values, bound: float, seeds: Sequence[int], digits: int = 2) -> Part:
    """The part that says a figure is above a number."""
    return above(what, values, dict.fromkeys(seeds, bound), seeds, digits, ("", "the bound"))


def below_full(figures: Figures, row: str, name: str, seeds: Sequence[int]) -> Part:
    """The part that says an ablation lowers a figure of the full model."""
    what = f"{row.removeprefix('gradco-')} lowers {name}"
    full, other = values_of(figures, FULL, name), values_of(figures, row, name)
    if name == "UCC-Avg" and not full:
        return Part(what, NOT_TESTABLE, NO_UCC)
    return above(what, full, other, seeds, names=("full", row.removeprefix("gradco-")))


def verdict_of_parts(parts: Sequence[Part]) -> str:
    """Of a whole claim: held where every part that can be tested is."""
    verdicts = {each.verdict for each in parts} - {NOT_TESTABLE}
    if not verdicts:
        return NOT_TESTABLE
    if NOT_YET in verdicts:
        return NOT_YET
    return HELD if verdicts == {HELD} else NOT_HELD


# --- the nine claims --------------------------------------------------------------------------------------------------


def _streams_matter(figures: Figures, seeds: Sequence[int]) -> list[Part]:
    """Claim 1. Held: each of D1 to D3 is below the full model on both averages, each of D4 to D6 on UCC-Avg."""
    parts = [below_full(figures, f"gradco-D{n}", name, seeds) for name in ("PAB-Avg", "Weather-Avg") for n in (1, 2, 3)]
    return parts + [below_full(figures, f"gradco-D{n}", "UCC-Avg", seeds) for n in (4, 5, 6)]


def _anchors_matter(figures: Figures, seeds: Sequence[int]) -> list[Part]:
    """Claim 2. Held: both lower UCC-Avg, leaving out anchors more. The paper says it of UCC-Avg alone."""
    parts = [below_full(figures, row, "UCC-Avg", seeds) for row in ("gradco-no-anchors", "gradco-no-dir")]
    one, other = (values_of(figures, row, "UCC-Avg") for row in ("gradco-no-dir", "gradco-no-anchors"))
    what = "UCC-Avg lower without anchors than without the regulariser"
    if not values_of(figures, FULL, "UCC-Avg"):
        return [*parts, Part(what, NOT_TESTABLE, NO_UCC)]
    return [*parts, above(what, one, other, seeds, names=("no-dir", "no-anchors"))]


def _aggregation_matters(figures: Figures, seeds: Sequence[int]) -> list[Part]:
    """Claim 3. Held: each row is below the full model on what the paper names; without contrast below half of it."""
    wanted = (
        ("gradco-no-similarity", ("PAB-Avg",)),
        ("gradco-no-matching", ("PAB-Avg", "Weather-Avg", "UCC-Avg")),
        ("gradco-no-intent", ("PAB-Avg", "Weather-Avg")),
        ("gradco-no-feature", ("PAB-Avg", "Weather-Avg")),
    )
    parts = [below_full(figures, row, name, seeds) for row, names in wanted for name in names]
    half = {seed: COLLAPSE * each for seed, each in values_of(figures, FULL, "PAB-Avg").items()}
    collapsed = values_of(figures, "gradco-no-contrast", "PAB-Avg")
    what = f"no-contrast brings PAB-Avg below {COLLAPSE:g} of the full model's"
    return [*parts, above(what, half, collapsed, seeds, names=("that is", "no-contrast"))]


def _best_in_the_middle(figures: Figures, seeds: Sequence[int]) -> list[Part]:
    """Claim 4. Held: mean PAB-Avg rises to K = 4 and gamma = 0.5 and falls after, and is above that of every other
    value by the rule."""
    parts: list[Part] = []
    for name, rows, best in (("K", EXPERTS, 4), ("gamma", GAMMAS, 0.5)):
        by_value = {value: values_of(figures, row, "PAB-Avg") for value, row in rows.items()}
        parts.append(rises_then_falls(name, by_value, best, seeds))
        parts += [
            above(f"{name} = {best:g} above {value:g}", by_value[best], own, seeds,
                  names=(f"{best:g}:", f"{value:g}:"))
            for value, own in by_value.items() if value != best
        ]  # fmt: skip
    return parts


def rises_then_falls(name: str, by_value: Mapping[float, Values], best: float, seeds: Sequence[int]) -> Part:
    """The part that says mean PAB-Avg rises up to `best` and falls after it."""
    what = f"PAB-Avg rises to {name} = {best:g}, then falls"
    if any(seed not in own for own in by_value.values() for seed in seeds):
        done = sum(seed in own for own in by_value.values() for seed in seeds)
        return Part(what, NOT_YET, f"{done} of {len(by_value) * len(seeds)} runs")
    means = {value: statistics.fmean(own[seed] for seed in seeds) for value, own in sorted(by_value.items())}
    places, heights = list(means), list(means.values())
    right = all(
        (one < other) == (place < best) for place, one, other in zip(places, heights, heights[1:], strict=False)
    )
    here = ", ".join(f"{value:g}: {mean:.2f}" for value, mean in means.items())
    return Part(what, HELD if right else NOT_HELD, here, here)


def _anchors_grow(figures: Figures, seeds: Sequence[int]) -> list[Part]:
    """Claim 5. Held: in each stream anchors are longer after the last epoch than after the first; the anomalous are the
    longest, the normal the shortest; mean cosine to text - image at most NEAR_ZERO in size for appearance and normal
    with every seed; that of the anomalous stream below 0."""
    end = {stream: values_of(figures, FULL, f"anchor length {stream}") for stream in STREAMS}
    parts = [
        above(
            f"anchors of the {stream} stream grow",
            values_of(figures, FULL, f"anchor length {stream}, last epoch"),
            values_of(figures, FULL, f"anchor length {stream}, first epoch"),
            seeds, names=("last epoch", "first"),
        )
        for stream in STREAMS
    ]  # fmt: skip
    for one, other in (("anomalous", "appearance"), ("appearance", "normal")):
        parts.append(above(f"{one} anchors longer than {other}", end[one], end[other], seeds, names=(one, other)))
    for stream in STREAMS[:2]:
        cosine = values_of(figures, FULL, f"anchor cosine {stream}")
        parts.append(
            _all_of(f"cosine of {stream} anchors near 0", cosine, seeds, lambda each: abs(each) <= NEAR_ZERO)
        )  # fmt: skip
    cosine = values_of(figures, FULL, "anchor cosine anomalous")
    return [*parts, above("cosine of anomalous anchors below 0", dict.fromkeys(seeds, 0.0), cosine, seeds, 3)]


def _all_of(what: str, values: Values, seeds: Sequence[int], right: Callable[[float], bool]) -> Part:
    there = [seed for seed in seeds if seed in values]
    if len(there) < len(seeds):
        return Part(what, NOT_YET, f"{len(there)} of {len(seeds)} seeds")
    own = {seed: values[seed] for seed in seeds}
    verdict = HELD if all(map(right, own.values())) else NOT_HELD
    return Part(what, verdict, told(own, 3), f"{statistics.fmean(own.values()):.3f}")


def _alignment_improves(figures: Figures, seeds: Sequence[int]) -> list[Part]:
    """Claim 6. Held: the full model has the smaller positive distance and the more even angles, against both rows."""
    parts = []
    for name, higher in (("positive distance", False), ("angular evenness", True)):
        full = values_of(figures, FULL, name)
        for row in ("gradco-no-anchors", "gradco-no-dir"):
            other, short = values_of(figures, row, name), row.removeprefix("gradco-")
            what = f"{name} {'higher' if higher else 'lower'} than {short}"
            ordered = (full, other) if higher else (other, full)
            parts.append(above(what, *ordered, seeds, 3, ("full", short) if higher else (short, "full")))
    return parts


def _weights_follow(figures: Figures, seeds: Sequence[int]) -> list[Part]:
    """Claim 7. Held: the normal stream weighs more in normal queries, the anomalous in anomaly queries (streams by
    name), and hiding appearance words moves the two behaviour weights less than hiding action words."""
    parts = []
    for stream, kind, other in (("normal", "normal", "anomaly"), ("anomalous", "anomaly", "normal")):
        one, less = (values_of(figures, FULL, f"weight {stream}, {each}") for each in (kind, other))
        what = f"{stream} stream weighs more in {kind} queries"
        parts.append(above(what, one, less, seeds, 3, (f"{kind} queries", f"{other} queries")))
    more, less = (
        values_of(figures, FULL, f"behaviour weights moved, {each} masked") for each in ("action", "appearance")
    )
    what = "hiding appearance words moves behaviour weights less than hiding action words"
    return [*parts, above(what, more, less, seeds, 4, ("action hidden", "appearance hidden"))]


def _blocks_form(figures: Figures, seeds: Sequence[int]) -> list[Part]:
    """Claim 8. Held: similarity within a person is above that across persons, by more than in the X2-VLM baseline
    (image to image, all persons of the test split)."""
    within, across, gap = (values_of(figures, FULL, f"similarity {each}") for each in ("within", "across", "gap"))
    other = values_of(figures, BASELINE, "similarity gap")
    return [
        above("similarity within a person above across persons", within, across, seeds, names=("within", "across")),
        above("a wider gap than the X2-VLM baseline", gap, other, seeds, 3, ("full", "baseline")),
    ]


def _costs_more(figures: Figures, seeds: Sequence[int]) -> list[Part]:
    """Claim 9. Held: parameters at full width within 1 % of both published numbers; memory of training and milliseconds
    a query above CMP's by the rule."""
    full, cmp = counted_parameters("gradco"), counted_parameters("cmp")
    near = abs(full / 247.36e6 - 1) <= 0.01 and abs(cmp / 226.13e6 - 1) <= 0.01
    parts = [
        Part("parameters at full width, as published", HELD if near else NOT_HELD,
             f"GradCO {full / 1e6:.2f}M against CMP {cmp / 1e6:.2f}M", f"{full / 1e6:.2f}M, {cmp / 1e6:.2f}M")
    ]  # fmt: skip
    for name, what in (("memory, MiB", "more memory than CMP"), ("ms a query", "more ms a query than CMP")):
        one, other = values_of(figures, FULL, name), values_of(figures, "cmp", name)
        part = above(f"{what} (small preset)", one, other, seeds, names=("GradCO", "CMP"))
        if part.verdict != NOT_YET:
            ratio = statistics.fmean(one[seed] for seed in seeds) / statistics.fmean(other[seed] for seed in seeds)
            part = Part(part.what, part.verdict, f"{part.here}; ratio {ratio:.2f}", f"x {ratio:.2f}")
        parts.append(part)
    return parts


CLAIMS = (
    Claim(
        1,
        "Removing any stream lowers PAB-Avg and Weather-Avg; without image-side, text-side or all experts UCC-Avg "
        "falls",
        "UCC-Avg 76.08; 62.95, 63.13, 62.60",
        (FULL, *(f"gradco-D{number}" for number in range(1, 7))),
        _streams_matter,
    ),
    Claim(
        2,
        "Anchors matter most: without them UCC-Avg falls furthest, without the direction regulariser less",
        "UCC-Avg 76.08; 55.43 without anchors, 70.58 without the regulariser",
        (FULL, "gradco-no-anchors", "gradco-no-dir"),
        _anchors_matter,
    ),
    Claim(
        3,
        "Similarity aggregation, matching, intent and feature aggregation each matter; without the contrastive loss it "
        "nearly collapses",
        "PAB-Avg -4.69 without similarity; without matching PAB / Weather / UCC-Avg 83.70 / 47.66 / 56.86",
        (FULL, *(f"gradco-no-{each}" for each in ("similarity", "matching", "intent", "feature", "contrast"))),
        _aggregation_matters,
    ),
    Claim(
        4,
        "With K and gamma figures rise, then fall; best at K = 4 and gamma = 0.5",
        "best K = 4, gamma = 0.5",
        tuple(dict.fromkeys((*EXPERTS.values(), *GAMMAS.values()))),
        _best_in_the_middle,
    ),
    Claim(
        5,
        "Anchors grow in training, longest in the anomaly stream; their cosine to text - image is near 0",
        "lengths 9.0 anomaly, 7.5 appearance, 7.0 normal; cosine of anomaly about -0.1",
        (FULL,),
        _anchors_grow,
    ),
    Claim(
        6,
        "COL brings positive pairs closer and covers angles more evenly",
        "mean positive distance 1.078; 1.206 without COL, 1.238 without the regulariser",
        (FULL, "gradco-no-anchors", "gradco-no-dir"),
        _alignment_improves,
    ),
    Claim(
        7,
        "Normal queries weigh the normal stream more, anomaly queries the anomaly stream; hiding appearance words "
        "barely moves the behaviour weights",
        "examples: 0.594 anomaly for an anomaly query; 0.529 normal, 0.137 anomaly for a normal one",
        (FULL,),
        _weights_follow,
    ),
    Claim(
        8,
        "Hard negatives form blocks: similarity stays within a person and falls across, more clearly than in X2-VLM",
        "0.86 within, 0.44 across (examples)",
        (FULL, BASELINE),
        _blocks_form,
    ),
    Claim(
        9,
        "It costs more than CMP: parameters, memory of training, time a query",
        "247.36M / 226.13M; 18,413 / 14,575 MiB (1.26); 2.3 / 1.5 ms a sample (1.53)",
        (FULL, "cmp"),
        _costs_more,
    ),
)


def counted_parameters(model: str) -> int:
    """Parameters at full width as a profiler with hooks counts them: of linear layers, convolutions and norms that are
    called. Left out are pose modules, embeddings, bare tensors, and BEiT's queries, keys and values, which are computed
    by a function; the tied decoder is counted as the linear layer it stands for."""
    import torch

    from pipeline.models.beit import BeitEncoder
    from pipeline.models.build import NETWORKS
    from pipeline.models.recipes import recipe_named

    with torch.device("meta"):
        network: Any = NETWORKS[model](cast(Any, recipe_named(model).model))
    kinds = (torch.nn.Linear, torch.nn.modules.conv._ConvNd, torch.nn.modules.batchnorm._BatchNorm, torch.nn.LayerNorm)
    by_function = (".query", ".key", ".value", ".q_proj", ".k_proj", ".v_proj")
    computed = by_function if isinstance(network.image_encoder, BeitEncoder) else ()
    total = 0
    for name, module in network.named_modules():
        if not isinstance(module, kinds) or name.startswith("pose_"):
            continue
        if name.startswith("image_encoder.") and any(map(name.endswith, computed)):
            continue
        total += sum(each.numel() for each in module.parameters(recurse=False))
    # Sub-experts lie side by side in one matrix, their biases in a tensor of its own.
    total += sum(each.numel() for name, each in network.named_parameters() if name.endswith("down_bias"))
    return total + int(network.text_encoder.word_embeddings.numel()) + int(network.language_head.bias.numel())


# --- figures of a run -------------------------------------------------------------------------------------------------


@dataclass
class Weathered:
    """The test split under each condition; a picture is rendered once, whatever the number of networks it is shown to.

    held: encoded pictures by condition and place, up to `most` bytes.
    """

    test: SampleSet
    most: int = 1 << 30
    _held: dict[tuple[str, Any], bytes] = field(default_factory=dict)
    _bytes: int = 0

    def under(self, condition: str) -> SampleSet:
        """The split with its images as the condition shows them."""
        from dataclasses import replace

        from pipeline.training.protocol_runs import weather_set

        shown, _ = weather_set(self.test, condition)

        def read(where: Any, column: str) -> bytes:
            if column != "image":
                return shown.read(where, column)
            key = (condition, where)
            if key not in self._held:
                made = shown.read(where, column)
                if self._bytes + len(made) > self.most:
                    return made
                self._held[key] = made
                self._bytes += len(made)
            return self._held[key]

        return replace(shown, name=f"{self.test.name}, {condition}", read=read)


def measure_weather(run: Result, images: Weathered) -> None:
    """Evaluate a run's last weights under every condition and write the figures beside its own."""
    from pipeline.core.store import write_atomically
    from pipeline.core.weather import CONDITIONS
    from pipeline.models.build import load_network
    from pipeline.retrieval.fusion import parse_fusion
    from pipeline.training.evaluate import EvaluationSettings, evaluate
    from pipeline.training.results import metrics_of
    from pipeline.training.texts import vocabulary

    known = run.metrics["last"]
    settings = EvaluationSettings(top_k=max(1, known["candidates"]), fusion=parse_fusion(known["fusion"]))
    network: Any = load_network(run.folder / "last")
    words = vocabulary(network.options.size.max_tokens)
    found = {}
    for condition in CONDITIONS:
        if condition == "normal":
            found[condition] = known["protocols"][run.protocol]
        else:
            told = metrics_of(evaluate(network, images.under(condition), words, settings))
            found[condition] = next(iter(told["protocols"].values()))
    text = json.dumps({"test": run.costs.test, "conditions": found}, indent=1) + "\n"
    write_atomically(_weather_file(run), text.encode())


def _weather_file(run: Result) -> Path:
    return run.folder / "evaluation" / "last" / WEATHER


def figures_of(run: Result) -> dict[str, float]:
    """All figures of a finished run that the claims read, those that are there."""
    protocols = run.metrics["last"]["protocols"]
    figures = {"PAB-Avg": _average(protocols[run.protocol])}
    if "UCC" in protocols:
        figures["UCC-Avg"] = _average(protocols["UCC"])
    weather = _read(_weather_file(run))
    if weather:
        figures["Weather-Avg"] = statistics.fmean(each["R@1"] for each in weather["conditions"].values())
    if run.costs.peak_memory:
        figures["memory, MiB"] = run.costs.peak_gpu_memory or run.costs.peak_memory
    if "last" in run.costs.query_milliseconds:
        figures["ms a query"] = run.costs.query_milliseconds["last"]
    sections = {path.stem: _read(path) for path in sorted((run.folder / "analysis" / "last").glob("*.json"))}
    return figures | inner_figures({name: each for name, each in sections.items() if "missing" not in each})


def inner_figures(sections: Mapping[str, Any]) -> dict[str, float]:
    """Those of the sections of `--analyse`, by the names that the claims use."""
    figures: dict[str, float | None] = {}
    if "anchors" in sections:
        epochs = sections["anchors"]["epochs"]
        for stream, each in sections["anchors"]["positive"].items():
            figures[f"anchor length {stream}"] = each["norm"]
            figures[f"anchor cosine {stream}"] = each["cosine"]
            if len(epochs) > 2:  # epoch 0 is the start, where anchors are 0
                figures[f"anchor length {stream}, first epoch"] = epochs[1]["positive"][stream]["norm"]
                figures[f"anchor length {stream}, last epoch"] = epochs[-1]["positive"][stream]["norm"]
    if "coverage" in sections:
        figures["positive distance"] = sections["coverage"]["positive distance"]["mean"]
        figures["angular evenness"] = sections["coverage"]["embeddings"]["evenness"]
    if "weights" in sections:
        weights = sections["weights"]
        streams = weights["streams"]
        for kind, own in weights["by kind"].items():
            for stream, each in zip(streams, own, strict=True):
                figures[f"weight {stream}, {kind}"] = each["mean"]
        for edit, shift in weights["edits"].items():
            moved = dict(zip(streams, shift["all"]["moved"], strict=True))
            if {"normal", "anomalous"} <= moved.keys():
                figures[f"behaviour weights moved, {edit}"] = (moved["normal"] + moved["anomalous"]) / 2
    if "hard_negatives" in sections:
        blocks = sections["hard_negatives"]["images"]
        figures |= {f"similarity {name}": blocks[name] for name in ("within", "across", "gap")}
    return {name: value for name, value in figures.items() if value is not None}


def _average(protocol: Mapping[str, float]) -> float:
    """The mean of R@1, R@5 and R@10."""
    return statistics.fmean(protocol[name] for name in ("R@1", "R@5", "R@10"))


def _read(path: Path) -> dict[str, Any]:
    """A JSON file; empty where it is not there. Raises UserError where it is damaged."""
    if not path.is_file():
        return {}
    try:
        found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}): delete it, and it is made anew") from None
    return found


# --- the command ------------------------------------------------------------------------------------------------------


def judged(figures: Figures, seeds: Sequence[int], only: Sequence[int]) -> list[tuple[Claim, str, list[Part]]]:
    """(claim, verdict, parts) of the claims that are wanted."""
    found = []
    for claim in CLAIMS:
        if claim.number in only:
            parts = claim.judge(figures, seeds)
            found.append((claim, verdict_of_parts(parts), parts))
    return found


def markdown(found: Sequence[tuple[Claim, str, list[Part]]], notes: Sequence[str]) -> str:
    """A row a claim with what decides each of its parts, then every part with all its numbers."""
    lines = ["| | claim | the paper says | here | verdict |", "| --- | --- | --- | --- | --- |"]
    for claim, verdict, parts in found:
        here = [f"{each.what}: {_MARKS[each.verdict]} {each.short}".rstrip() for each in parts if each.here != NO_UCC]
        untested = sum(each.here == NO_UCC for each in parts)
        if untested:
            here.append(f"{untested} of UCC-Avg not testable ({NO_UCC})")
        lines.append(f"| {claim.number} | {claim.says} | {claim.paper} | {'; '.join(here)} | **{verdict}** |")
    lines += ["", "| claim | part | verdict | here: mean (least to largest) over seeds |", "| --- | --- | --- | --- |"]
    lines += [
        f"| {claim.number} | {part.what} | {part.verdict} | {part.here} |"
        for claim, _, parts in found
        for part in parts
    ]
    return "\n".join([*lines, "", *(f"* {note}" for note in notes)]) + "\n"


def rows_for(only: Sequence[int]) -> list[Row]:
    """The rows that these claims need, each once, in the order they are first needed."""
    from pipeline.compare import Row

    names = dict.fromkeys(row for claim in CLAIMS if claim.number in only for row in claim.rows)
    rows = []
    for name in names:
        if name == BASELINE:
            changes = [part for each in _BASELINE_CHANGES for part in ("--set", f"model.{each}")]
            rows.append(Row(name, ("--model", FULL, *changes)))
        else:
            rows.append(Row(name, ("--model", name)))
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Train and measure what is missing, print the table; 1 where a run failed, 2 for wrong input."""
    from pipeline import cli

    parser = argparse.ArgumentParser(
        prog="python -m bench.gradco_claims", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="./out/pab", help="a published dataset (default: ./out/pab)")
    parser.add_argument("--runs", type=Path, default=Path("runs/gradco-claims"), help="(default: runs/gradco-claims)")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="runs at a time (default: 2)")
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)), help="(default: 42,43,44)")
    parser.add_argument("--only", metavar="CLAIMS", help="numbers of claims, e.g. 1,2,3 (default: all nine)")
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE", dest="changes",
                        help="an option of every run, as for pipeline.train_eval")  # fmt: skip
    parser.add_argument("--epochs", type=int, default=EPOCHS, help=f"of every run (default: {EPOCHS})")
    parser.add_argument("--no-training", action="store_true", help="only measure and judge the runs that are done")
    parser.add_argument("--dry-run", action="store_true", help="say what would be trained and how long it takes")
    options = parser.parse_args(argv)
    return cli.guarded(lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    from pipeline import cli
    from pipeline.compare import plan_runs, run_missing, seeds_of
    from pipeline.training.state import alone_in

    if options.jobs < 1:
        raise UserError("--jobs: at least 1")
    seeds = seeds_of(options.seeds if "," in options.seeds else f"{options.seeds},")
    only = _claims_of(options.only)
    shared = ["--preset", "small", f"--data={options.data}", f"--epochs={options.epochs}"]
    shared += [f"--set={each}" for each in (*SHARED, *options.changes)]
    runs = plan_runs(rows_for(only), seeds, options.runs, shared)
    if options.dry_run:
        return _tell_plan(runs, options.jobs, only)
    options.runs.mkdir(parents=True, exist_ok=True)
    bench = _Bench(options.runs, options.data, options.epochs, runs, seeds, only)
    with alone_in(options.runs):
        bench.update({})
        failed = {}
        if not options.no_training:
            failed = run_missing(runs, options.jobs, finished=bench.look)
        text = bench.update(failed)
    print(f"\n{text}\nwrote {options.runs / 'claims.md'}\nwrote {options.runs / 'claims.json'}")
    return cli.SOME_FAILED if failed else cli.DONE


def _claims_of(text: str | None) -> tuple[int, ...]:
    known = tuple(claim.number for claim in CLAIMS)
    if text is None:
        return known
    try:
        wanted = tuple(sorted({int(each) for each in text.split(",") if each.strip()}))
    except ValueError:
        wanted = ()
    if not wanted or not set(wanted) <= set(known):
        raise UserError(f"--only {text}: numbers from 1 to {known[-1]} with commas, e.g. 1,2,3")
    return wanted


def _tell_plan(runs: Sequence[PlannedRun], jobs: int, only: Sequence[int]) -> int:
    from pipeline import cli
    from pipeline.compare import done
    from pipeline.training.costs import read_costs

    missing = [run for run in runs if not done(run)]
    known = [read_costs(run.folder).seconds for run in runs if run not in missing]
    known = [each for each in known if each]
    a_run = statistics.fmean(known) if known else SECONDS_A_RUN
    hours = len(missing) * (a_run / jobs + WEATHER_SECONDS) / 3600
    print(f"claims {', '.join(map(str, only))}: {len(runs)} runs, {len(runs) - len(missing)} of them done")
    for row in dict.fromkeys(run.row.name for run in runs):
        own = [run.seed for run in missing if run.row.name == row]
        print(f"  {row}: {'done' if not own else 'seeds ' + ', '.join(map(str, own))}")
    how = "as long as those done" if known else f"about {SECONDS_A_RUN} s each"
    print(f"about {hours:.1f} h for the other {len(missing)}, {jobs} at a time, {how}, weather and analysis with them")
    return cli.DONE


@dataclass
class _Bench:
    """Measures runs as they end, and writes the table as it stands."""

    folder: Path
    data: str
    epochs: int
    runs: Sequence[PlannedRun]
    seeds: Sequence[int]
    only: Sequence[int]
    _images: Weathered | None = None

    def look(self, failed: Mapping[PlannedRun, str]) -> None:
        """`update`, for whom the text is nothing."""
        self.update(failed)

    def update(self, failed: Mapping[PlannedRun, str]) -> str:
        """Measure the runs that are done and were not yet; write the tables. Returns the Markdown."""
        from pipeline.compare import done
        from pipeline.core.store import write_atomically
        from pipeline.training.comparison import results_of

        figures: dict[str, dict[int, dict[str, float]]] = {}
        for run in self.runs:
            found = results_of(run.folder) if done(run) else None
            if found is not None:
                self._measure(run, found)
                figures.setdefault(run.row.name, {})[run.seed] = figures_of(found)
        parts = judged(figures, self.seeds, self.only)
        text = markdown(parts, self._notes(figures, failed))
        write_atomically(self.folder / "claims.md", text.encode())
        values = {
            "seeds": list(self.seeds),
            "data": self.data,
            "claims": [
                {"number": claim.number, "claim": claim.says, "paper": claim.paper, "verdict": verdict,
                 "parts": [{"what": each.what, "verdict": each.verdict, "here": each.here} for each in own]}
                for claim, verdict, own in parts
            ],
            "figures": {row: {str(seed): each for seed, each in own.items()} for row, own in figures.items()},
            "failed": {run.name: why for run, why in failed.items()},
        }  # fmt: skip
        write_atomically(self.folder / "claims.json", (json.dumps(values, indent=1) + "\n").encode())
        return text

    def _measure(self, run: PlannedRun, found: Result) -> None:
        from pipeline.evaluate_weights import analysed
        from pipeline.training.samples import load_samples

        wanted = [claim for claim in CLAIMS if claim.number in self.only and run.row.name in claim.rows]
        if any(claim.number <= 3 for claim in wanted) and _read(_weather_file(found)).get("test") != found.costs.test:
            if self._images is None:
                self._images = Weathered(load_samples(self.data, "test"))
            measure_weather(found, self._images)
        inside = self.folder_of_analysis(run)
        if any(5 <= claim.number <= 8 for claim in wanted) and not (inside / "index.md").is_file():
            analysed(run.folder / "last", self.data, inside)

    @staticmethod
    def folder_of_analysis(run: PlannedRun) -> Path:
        """Where what is seen inside the last weights lies."""
        return run.folder / "analysis" / "last"

    def _notes(self, figures: Figures, failed: Mapping[PlannedRun, str]) -> list[str]:
        done = sum(len(own) for own in figures.values())
        notes = [
            f"{done} of {len(self.runs)} runs done; data {self.data}, small preset, {self.epochs} epochs, last "
            f"weights, {', '.join(SHARED)}, seeds {', '.join(map(str, self.seeds))}.",
            "Held: the difference has the claimed sign with every seed and its mean is above the larger of the two "
            "rows' standard deviations over seeds; a claim holds where all parts that can be tested do.",
            "PAB-Avg: mean of R@1, R@5, R@10 on the test split. Weather-Avg: mean R@1 over ten conditions, nine "
            "of them rendered from it. UCC-Avg wants footage of UCF-Crime.",
            "Streams are told apart by their random start alone: their names here are the places they have in the "
            "configuration, and D1 to D3, with one stream fewer, are the same network three times.",
        ]
        return notes + [f"Failed: {run.name}: {why}" for run, why in failed.items()]


if __name__ == "__main__":
    raise SystemExit(main())
