"""Saved weights put to a test: figures under each protocol, and what goes on inside a GradCO.

`--evaluate` and `--analyse` of pipeline.train_eval; the weights of a run that was just trained are judged here too.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline import cli
from pipeline.core.errors import UserError
from pipeline.train_options import (
    check_numbers,
    digest_of,
    evaluation_settings,
    given_scoring,
    processes_together,
    set_threads,
)

if TYPE_CHECKING:
    from pipeline.models.config import Recipe
    from pipeline.training.evaluate import EvaluationSettings
    from pipeline.training.samples import SampleSet
    from pipeline.training.texts import TextReader

WEIGHTS = ("last", "best")
EVALUATION = "evaluation"
_PAPER_SIZES = (("0.1M", 100_000), ("1M", 1_013_605))


def evaluate_only(options: argparse.Namespace) -> int:
    """`--evaluate`: put a checkpoint to the protocols that are asked for. Returns the exit code; raises UserError."""
    from pipeline.training.evaluate import EvaluationSettings

    check_numbers(options)
    set_threads(options)
    if not processes_together().is_main_process:
        return cli.DONE
    checkpoint: Path = options.checkpoint
    run = _run_of(checkpoint)
    test = test_set(options)
    about = {"weights": checkpoint.name, "data": test.name}
    for note in test.problems:
        print(f"note: {note}")
    if run is None:
        settings = EvaluationSettings(**given_scoring(options))
    else:
        settings = evaluation_settings(options, run[0])
        about = {"weights": checkpoint.name, **whose_figures(run[1]), "data": test.name}
    if options.distractors is not None:
        about["distractors"] = options.distractors
    folder = options.out or _folder_alone(checkpoint, test, settings)
    judge(checkpoint, folder, test, settings, about, asked=options)
    return cli.DONE


def _run_of(checkpoint: Path) -> tuple[Recipe, Mapping[str, Any]] | None:
    """The recipe and the settings of the run whose weights these are; None where they lie alone."""
    from pydantic import ValidationError

    from pipeline.models.config import Recipe
    from pipeline.training.state import SETTINGS, read_settings

    if not (checkpoint.parent / SETTINGS).is_file():
        return None
    settings = read_settings(checkpoint.parent)
    try:
        return Recipe.model_validate(settings["recipe"]), settings
    except (ValidationError, KeyError):
        raise UserError(
            f"{checkpoint.parent / SETTINGS}: is of no run of this version; evaluate a copy of {checkpoint} elsewhere"
        ) from None


def _folder_alone(checkpoint: Path, test: SampleSet, settings: EvaluationSettings) -> Path:
    """Where the results of weights that are evaluated by themselves go: a place for each data and way of scoring, and
    never that of the run's own figures."""
    told = f"{digest_of(test)} {settings.fusion.name} {settings.top_k}"
    digest = hashlib.sha256(told.encode()).hexdigest()[:8]
    return checkpoint.parent / EVALUATION / f"{checkpoint.resolve().name}-{settings.fusion.kind}-{digest}"


def test_set(options: argparse.Namespace) -> SampleSet:
    """What the first protocol searches in. Raises UserError, also where there is nothing to search among."""
    from pipeline.training.protocol_runs import protocols_of, set_of

    test = set_of(options.data, protocols_of(options.data, options.protocol)[0], options.ground_truth,
                  options.distractors)  # fmt: skip
    _check_test(test)
    return test


def _check_test(test: SampleSet) -> None:
    if len(test) < 2:
        raise UserError(
            f"{test.name}: its test split has {records_in_words(len(test))}, so there is nothing to search among; give "
            "more test images"
        )


def records_in_words(count: int) -> str:
    """`one record`, `5 records`."""
    return "one record" if count == 1 else f"{count} records"


def judge(
    checkpoint: Path,
    folder: Path,
    test: SampleSet,
    settings: EvaluationSettings,
    about: Mapping[str, Any],
    network: Any = None,
    asked: argparse.Namespace | None = None,
) -> float:
    """Evaluate saved weights (or a network that is not saved) on `test` by the first protocol that is asked for, then
    by the others, each into a folder of its own; print the figures and write them down.

    Returns the milliseconds a query: from the gallery's features being there to the end of scoring (encoding the
    queries, ranking by features, matching the candidates, fusing and ranking anew), over the number of queries. Raises
    UserError.
    """
    import time

    import torch

    from pipeline.models.build import load_network
    from pipeline.training.protocol_runs import SHORT, Searcher, protocols_of, run_protocol, set_of

    names = protocols_of(test.name, asked.protocol if asked else None)
    distractors = asked.distractors if asked else None
    shown = str(checkpoint) if network is None else network.options.weights
    network = load_network(checkpoint) if network is None else network
    network.to("cuda" if torch.cuda.is_available() else "cpu")
    words = _reader_of(network)
    bars: dict[str, cli.Bar] = {}
    since = time.perf_counter()

    def progress(what: str, done: int, total: int) -> None:
        nonlocal since
        if what == "images":
            since = time.perf_counter()
        bars.setdefault(what, cli.Bar(f"{checkpoint.name}: {what}"))(done, total)

    searcher, milliseconds = Searcher(network, words, settings, progress), 0.0
    for number, protocol in enumerate(names):
        place, data = folder, test
        if number:
            place, data = folder / SHORT.get(protocol, protocol), set_of(test.name, protocol, None, distractors)
        cut = tell_cut(words, data, print)
        found = run_protocol(protocol, searcher, data, place, {**about, "captions cut": cut})
        if not number:
            milliseconds = 1000 * (time.perf_counter() - since) / found.queries
        for bar in bars.values():
            bar.close()
        bars.clear()
        print(f"\n{protocol}: {data.split} split of {data.name}, weights {shown}{_beside(about)}\n{found.text}")
        for path in found.paths:
            print(f"wrote {path}")
    return milliseconds


def _beside(about: Mapping[str, Any]) -> str:
    """What a figure says little without: the size of what was trained on, and who else is in the gallery."""
    pairs, size, crowd = (about.get(name) for name in ("training pairs", "train size", "distractors"))
    told = "" if pairs is None else f", trained on {pairs} pairs{f' ({size})' if size else ''}"
    return told if crowd is None else f"{told}, with distractors from {crowd}"


def _reader_of(network: Any) -> Any:
    """What makes captions into the network's tokens."""
    from pipeline.models.dual import DualEncoder
    from pipeline.training.texts import vocabulary

    return network.texts if isinstance(network, DualEncoder) else vocabulary(network.options.size.max_tokens)


def tell_cut(words: TextReader, data: SampleSet, say: Callable[[str], None]) -> int:
    """How many captions (or queries) are longer than the network reads, said where there are any."""
    captions = [each.text for each in data.queries] or [each for sample in data.samples for each in sample.captions]
    cut = words.cut(captions)
    if cut:
        say(f"note: {cut} of {len(captions)} captions of the {data.split} split are longer than {words.max_tokens} "
            "tokens and are cut there")  # fmt: skip
    return cut


def whose_figures(about: Mapping[str, Any]) -> dict[str, Any]:
    """Whose figures these are, with the size of what was trained on (0.1M and 1M are the papers')."""
    told = {"model": about["recipe"]["name"]}
    told |= {name: about[name] for name in ("preset", "reproduce", "data", "seed")}
    return told | {name: about[name] for name in ("fraction", "training pairs", "train size") if name in about}


def train_size(pairs: int) -> str | None:
    """`0.1M` or `1M`, for about as many training pairs as the papers' settings have; None for others.

    About: a tenth may be held out, and a fraction is drawn by ids.
    """
    return next((name for name, size in _PAPER_SIZES if abs(pairs - size) <= size * 0.15), None)


def figures(folder: Path) -> str:
    """The figures of a finished run as Markdown: a table of the first protocol, weights under each other, then one of
    each other protocol. Raises UserError."""
    from pipeline.training.results import METRICS

    others = sorted(
        {path.parent.name for name in WEIGHTS for path in (folder / EVALUATION / name).glob(f"*/{METRICS}")}
    )
    tables = [_figures(folder, each) for each in ("", *others)]
    return "\n\n".join([*tables, f"* examples: `{folder / EVALUATION}`"])


def _figures(folder: Path, protocol: str) -> str:
    """A table of the evaluations that lie in this folder of each of the weights."""
    from pipeline.training.results import METRICS

    head = ("weights", "protocol", "R@1", "R@5", "R@10", "mAP", "mINP", "queries")
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    notes = []
    for name in WEIGHTS:
        path = folder / EVALUATION / name / protocol / METRICS
        if not path.is_file():
            continue
        found = json.loads(path.read_text("utf-8"))
        for counted, each in found["protocols"].items():
            numbers = " | ".join(f"{each[key]:.2f}" for key in head[2:-1])
            lines.append(f"| {name} | {counted} | {numbers} | {each['queries']} |")
        pairs = found["pair accuracy"]
        if pairs["queries"]:
            low, high = pairs["95 % interval"]
            notes.append(
                f"* {name}: pair accuracy {pairs['percent']:.1f} % (95 % interval {low:.1f} to {high:.1f}; chance "
                f"50 %), gallery of {found['gallery']} images, fusion {found['fusion']}"
            )
    if len(lines) == 2:
        raise UserError(f"{folder}: holds no evaluation yet")
    return "\n".join([*lines, "", *notes]).rstrip()


def analyse_only(options: argparse.Namespace) -> int:
    """`--analyse`: figures and numbers of what goes on inside a GradCO. Returns the exit code; raises UserError."""
    if options.checkpoint is None:
        raise UserError("--analyse wants --checkpoint FOLDER, e.g. runs/gradco-small-seed42/last")
    check_numbers(options)
    folder = options.out or options.checkpoint.parent / "analysis" / options.checkpoint.resolve().name
    set_threads(options)
    paths, summary = analysed(options.checkpoint, options.data, folder)
    width = max(len(name) for name, _ in summary)
    for name, value in summary:
        print(f"{name.ljust(width)}  {value}")
    for path in paths:
        print(f"wrote {path}")
    return cli.DONE


def analysed(checkpoint: Path, data: str, folder: Path) -> tuple[list[Path], list[tuple[str, str]]]:
    """Look into a GradCO's saved weights on the test split of `data`. Returns the paths that were written into
    `folder`, the summary first, and the main numbers. Raises UserError for another model."""
    import torch

    from pipeline.models.build import load_network
    from pipeline.models.pretrained import saved_config
    from pipeline.training.samples import load_samples

    model = saved_config(checkpoint).get("model")
    if model != "gradco":
        raise UserError(f"{checkpoint}: --analyse looks into GradCO's streams and anchors, and this is {model}")
    from pipeline.training.analysis_figures import summary_of, write_analysis
    from pipeline.training.mechanisms import EPOCHS, FOLDER, analyse, read_epochs
    from pipeline.training.texts import vocabulary

    test = load_samples(data, "test")
    _check_test(test)
    network: Any = load_network(checkpoint).to("cuda" if torch.cuda.is_available() else "cpu")
    # Epochs are those of the last weights' run; the best ones are from one of them.
    epochs = read_epochs(checkpoint.parent / FOLDER / EPOCHS)
    bars: dict[str, cli.Bar] = {}

    def progress(what: str, done: int, total: int) -> None:
        bars.setdefault(what, cli.Bar(f"{checkpoint.name}: {what}"))(done, total)

    found = analyse(network, test, vocabulary(network.options.size.max_tokens), epochs, progress)
    for bar in bars.values():
        bar.close()
    queries = sum(len(each.captions) for each in test.samples)
    about = {"weights": str(checkpoint), "data": f"test split of {test.name}, {len(test)} images, {queries} captions"}
    return write_analysis(folder, found, about), summary_of(found)
