"""Trains and evaluates a model on a published dataset: `python -m pipeline.train_eval --model seda`.

The run's folder holds its settings, its latest state (a stopped run goes on from there), the last and the best weights,
the log, its curves, and for each of the two weights the figures, rankings and examples on the test split.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline import cli
from pipeline.core.errors import UserError

if TYPE_CHECKING:
    from pipeline.models.config import Recipe
    from pipeline.training.evaluate import Evaluation, EvaluationSettings
    from pipeline.training.samples import Sample, SampleSet
    from pipeline.training.trainer import Clock

DEFAULT_DATA = "./out/pab"
WEIGHTS = ("last", "best")
EVALUATION = "evaluation"
SEVERAL_PROCESSES = """\
Several processes, each with its share of every batch's samples (--batch-size is that of one):
  accelerate launch --multi_gpu --num_processes 4 -m pipeline.train_eval --model seda
  torchrun --nproc-per-node 2 -m pipeline.train_eval --model seda          (also on CPUs)
"""
UNREADABLE = "unreadable.jsonl"
TIMES = "times.json"
_SEED_OF_WEIGHTS = "weights"


def main(argv: Sequence[str] | None = None) -> int:
    """The command line. Exit codes: 0 done, 2 wrong input; a stopped run goes on when the command is repeated."""
    options = _parser().parse_args(argv)

    def run() -> int:
        if options.list:
            print(list_of_recipes())
            return cli.DONE
        if options.evaluate:
            if options.checkpoint is None:
                raise UserError("--evaluate wants --checkpoint FOLDER, e.g. runs/seda-small-seed42/best")
            return _evaluate_only(options)
        if options.export_published is not None:
            return _export(options)
        if options.import_published is not None:
            return _import(options)
        return _train(options)

    return cli.guarded(run)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.train_eval",
        description=(__doc__ or "").splitlines()[0].partition(":")[0] + ".",
        epilog=SEVERAL_PROCESSES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_argument_group("what")
    what.add_argument("--model", default="cmp", metavar="NAME", help="a recipe of --list (default: cmp)")
    what.add_argument("--list", action="store_true", help="show the recipes with the papers' rows, and stop")
    what.add_argument(
        "--data",
        default=DEFAULT_DATA,
        metavar="DATA",
        help=f"a dataset of this project, or pab:FOLDER for PAB as released (default: {DEFAULT_DATA})",
    )
    what.add_argument("--fraction", type=float, default=1.0, metavar="SHARE", help="of the training samples, by id")
    what.add_argument(
        "--reproduce",
        choices=("published", "paper"),
        help="the published code, faults included, or the papers' equations where they differ from it",
    )
    what.add_argument("--preset", default="auto", metavar="NAME", help="paper, small, or auto (paper with a GPU)")
    what.add_argument(
        "--init",
        metavar="WEIGHTS",
        help="where to start: none (default), minilm (a text side of width 384), xvlm16m:FILE, aptm:FILE or swin:FILE",
    )
    what.add_argument(
        "--set",
        action="append",
        default=[],
        dest="changes",
        metavar="OPTION=VALUE",
        help="change an option of the recipe, e.g. --set model.ihnm=off --set optimiser.lr=3e-4; or some of a group: "
        "--set 'model.size={name: mine, image: {image_size: 64}}'",
    )
    how = parser.add_argument_group("how")
    how.add_argument("--seed", type=int, default=42)
    how.add_argument("--epochs", type=int)
    how.add_argument("--batch-size", type=int, help="pairs a process and step")
    how.add_argument("--accumulate", type=int, default=1, help="batches an optimiser step (default: 1)")
    how.add_argument("--precision", choices=("auto", "no", "bf16"), default="auto", help="auto: bf16 on a GPU")
    how.add_argument("--compile", action="store_true", help="torch.compile")
    how.add_argument("--gradient-checkpointing", action="store_true", help="less memory, more time")
    how.add_argument("--workers", type=int, default=None, help="processes that decode pictures (default: 0 on a CPU)")
    how.add_argument("--threads", type=int, default=None, help="CPU threads of torch (default: what torch takes)")
    how.add_argument("--save-every", type=int, default=50, metavar="STEPS", help="between saved states (default: 50)")
    how.add_argument(
        "--validation",
        type=float,
        default=0.1,
        metavar="SHARE",
        help="of the training sources, held out to choose the best epoch on (default: 0.1; 0: none)",
    )
    how.add_argument("--out", type=Path, metavar="FOLDER", help="of the run (default: runs/MODEL-PRESET-seedN)")
    how.add_argument("--dry-run", action="store_true", help="say what would be done, and stop")
    judged = parser.add_argument_group("evaluation")
    judged.add_argument("--evaluate", action="store_true", help="only evaluate --checkpoint")
    judged.add_argument("--checkpoint", type=Path, metavar="FOLDER", help="weights that save_pretrained wrote")
    judged.add_argument("--fusion", metavar="KIND", help="single, itm_only, linear:WEIGHT or ref_world:PROCESSES")
    judged.add_argument("--top-k", type=int, help="candidates a query that are matched (default: 128)")
    named = parser.add_argument_group("published names")
    named.add_argument(
        "--export-published",
        type=Path,
        metavar="FILE",
        help="only write --checkpoint under the published code's names: .safetensors, or .pth, which that code reads",
    )
    named.add_argument(
        "--import-published",
        type=Path,
        metavar="FILE",
        help="only turn a published checkpoint of --model into a folder --out that --evaluate takes",
    )
    return parser


def list_of_recipes() -> str:
    """The recipes with the papers' rows they stand for; the two generations of CMP stand in tables of their own."""
    from pipeline.models.recipes import RECIPES

    parts = [_table([("recipe", "what it is"), *((name, recipe.title) for name, recipe in RECIPES.items())])]
    for generation, note in ((1, "first preprint, from APTM's weights"), (2, "from X-VLM's weights")):
        lines: list[tuple[str, ...]] = [("recipe", "train pairs", "R@1", "R@5", "R@10", "mAP", "")]
        for name, recipe in RECIPES.items():
            lines += [
                (name, row.train_pairs, *(_number(each) for each in (row.r1, row.r5, row.r10, row.map)), row.note)
                for row in recipe.rows
                if row.generation == generation
            ]
        parts.append(f"published, generation {generation} ({note}); PAB behaviour, percent\n{_table(lines)}")
    return "\n\n".join(parts)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _table(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def recipe_of(options: argparse.Namespace) -> tuple[Recipe, str]:
    """The recipe that the options describe, and the preset's name. Raises UserError."""
    import yaml
    from pydantic import ValidationError

    from pipeline.models.config import Recipe
    from pipeline.models.recipes import recipe_named, reproduce
    from pipeline.training.presets import preset_for, with_preset

    preset = preset_for(options.preset)
    recipe = reproduce(with_preset(recipe_named(options.model), preset), options.reproduce)
    values = recipe.model_dump()
    for text in options.changes:
        name, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"--set {text}: use OPTION=VALUE, e.g. --set optimiser.lr=3e-4")
        try:
            meant = yaml.safe_load(value)
        except yaml.YAMLError:
            raise UserError(f"--set {text}: the value is not YAML; use e.g. 3e-4, off, or {{lr: 3e-4}}") from None
        # YAML takes `off` and `no` for truth values; an option that is one understands the word as well.
        _put(values, recipe, name, value.strip() if isinstance(meant, bool) else meant, f"--set {name}")
    for name in ("epochs", "batch_size"):
        if getattr(options, name) is not None:
            values[name] = getattr(options, name)
    try:
        return Recipe.model_validate(values), preset
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(
            str(part) for number, part in enumerate(first["loc"]) if (number, part) != (1, recipe.model.model)
        )
        raise UserError(f"{place or options.model}: {first['msg'].removeprefix('Value error, ')}") from None


def _put(values: dict[str, Any], group: Any, name: str, value: Any, where: str) -> None:
    """Change an option by its dotted name; a mapping changes those options of a group that it names.

    All changes are put in before any is checked: a size is right or wrong as a whole.
    """
    head, _, rest = name.partition(".")
    if head not in type(group).model_fields:
        raise UserError(f"{where}: there is no option {head!r} here; there are {', '.join(type(group).model_fields)}")
    inner = getattr(group, head)
    is_group = hasattr(type(inner), "model_fields")
    if rest and not is_group:
        raise UserError(f"{where}: {head!r} is one value and has no option {rest!r}")
    if rest:
        _put(values[head], inner, rest, value, where)
    elif is_group and isinstance(value, dict):
        for each, own in value.items():
            _put(values[head], inner, str(each), own, where)
    else:
        values[head] = value


def run_folder(options: argparse.Namespace, recipe: Recipe, preset: str) -> Path:
    """Where a run's files go."""
    return options.out or Path("runs") / f"{recipe.name}-{preset}-seed{options.seed}"


def folder_of(arguments: Sequence[str]) -> Path:
    """Where the files of a run with these arguments go. Raises UserError for a recipe that there is not."""
    options = _parser().parse_args(arguments)
    return run_folder(options, *recipe_of(options))


def figures(folder: Path) -> str:
    """The figures of a finished run as a Markdown table, weights and protocols under each other. Raises UserError."""
    from pipeline.training.results import METRICS

    head = ("weights", "protocol", "R@1", "R@5", "R@10", "mAP", "mINP", "queries")
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    notes = []
    for name in WEIGHTS:
        path = folder / EVALUATION / name / METRICS
        if not path.is_file():
            continue
        found = json.loads(path.read_text("utf-8"))
        for protocol, each in found["protocols"].items():
            numbers = " | ".join(f"{each[key]:.2f}" for key in head[2:-1])
            lines.append(f"| {name} | {protocol} | {numbers} | {each['queries']} |")
        pairs = found["pair accuracy"]
        if pairs["queries"]:
            low, high = pairs["95 % interval"]
            notes.append(
                f"* {name}: pair accuracy {pairs['percent']:.1f} % (95 % interval {low:.1f} to {high:.1f}; chance "
                f"50 %), gallery of {found['gallery']} images, fusion {found['fusion']}"
            )
    if len(lines) == 2:
        raise UserError(f"{folder}: holds no evaluation yet")
    return "\n".join([*lines, "", *notes, f"* examples: `{folder / EVALUATION}`"])


def _train(options: argparse.Namespace) -> int:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # or cuBLAS sums in another order each time

    import torch

    from pipeline.models.build import build_network
    from pipeline.training.batches import Preparer
    from pipeline.training.presets import initialise, parse_initial
    from pipeline.training.results import write_curves
    from pipeline.training.state import alone_in, check_settings
    from pipeline.training.texts import vocabulary
    from pipeline.training.trainer import Clock, LoopSettings, train

    clock = Clock()
    _check_numbers(options)
    recipe, preset = recipe_of(options)
    initial = parse_initial(options.init or "none")
    evaluation = _evaluation_settings(options, recipe)
    folder = run_folder(options, recipe, preset)
    _threads(options)
    together = _together()
    processes, main_process = together.num_processes, together.is_main_process
    training, validation, test = _sets(options, recipe, processes)
    settings = LoopSettings(
        seed=options.seed,
        accumulate=options.accumulate,
        precision=_precision(options),
        compile=options.compile,
        gradient_checkpointing=options.gradient_checkpointing,
        save_every=options.save_every,
        workers=options.workers if options.workers is not None else (4 if torch.cuda.is_available() else 0),
    )
    say: Callable[[str], None] = print if main_process else lambda _: None
    say(f"{recipe.name}: {recipe.title}; preset {preset}{f', as {options.reproduce}' if options.reproduce else ''}")
    say(
        f"data {test.name}: {len(training)} samples to train on, {len(validation)} of other sources to choose the best "
        f"epoch on, {len(test)} to test on; {recipe.epochs} epochs, {recipe.batch_size} a batch"
        f"{f' in each of {processes} processes' if processes > 1 else ''}"
    )
    notes = (
        *training.problems,
        *test.problems,
        *_without_parts(training, recipe),
        *_other_start(options, recipe, preset),
    )
    for note in notes:
        say(f"note: {note}")
    synonyms, stop_words = _synonyms(recipe, say)
    held = _held_out(validation, say)
    if options.dry_run:
        say(f"would write to {folder}")
        return cli.DONE
    about = {
        "recipe": recipe.model_dump(mode="json"),
        "preset": preset,
        "reproduce": options.reproduce,
        "init": options.init or initial.kind,
        "data": test.name,
        "fraction": options.fraction,
        "validation": options.validation,
        "seed": options.seed,
        "accumulate": options.accumulate,
        "precision": settings.precision,
        "processes": processes,
        "samples": _digest_of(training, validation),
        "synonyms": synonyms is not None,
    }
    network = build_network(recipe.model, _seed(options.seed))
    start = initialise(network, initial)
    say(start)
    check_settings(folder, about)
    words = vocabulary(recipe.model.size.max_tokens)
    preparer = Preparer(training, recipe.model, recipe.augmentation, words, synonyms, stop_words, options.seed)

    def validate() -> Evaluation | None:
        from pipeline.training.evaluate import evaluate

        return evaluate(network, held, words, evaluation) if len(held) else None

    def save_weights(name: str) -> None:
        notes = [
            f"Trained on {test.name}, seed {options.seed}, preset {preset}; weights of the {name} epoch.",
            f"Where it started: {start}.",
        ]
        network.save_pretrained(folder / name, recipe, notes)

    with alone_in(folder) if main_process else contextlib.nullcontext():
        watch = _Watch(folder, recipe.epochs, main_process, clock)
        try:
            trained = train(network, recipe, preparer, folder, settings, validate, save_weights, watch.observers())
        finally:
            watch.close()
        if not main_process:
            return cli.DONE
        write_curves(folder, trained.log)
        if trained.left_out:
            say(f"left out: {trained.left_out} times a sample whose picture cannot be read, see {folder / UNREADABLE}")
        for name in WEIGHTS:
            if (folder / name).is_dir():
                _judge(folder / name, folder / EVALUATION / name, test, evaluation, {"weights": name, **_who(about)})
        clock.lap("evaluation")
        _tell_times(folder, clock.seconds)
    return cli.DONE


def _tell_times(folder: Path, seconds: Mapping[str, float]) -> None:
    """Where this process's time went, in words and in the run's folder. A run that was resumed counts from there."""
    from pipeline.core.store import write_atomically

    parts = ", ".join(f"{what} {100 * spent / sum(seconds.values()):.0f} %" for what, spent in seconds.items())
    print(f"\n{sum(seconds.values()):.0f} s: {parts}")
    if "steps" not in seconds:
        return  # a finished run that was only evaluated again keeps the times of its training
    told = {what: round(spent, 3) for what, spent in seconds.items()}
    write_atomically(folder / TIMES, (json.dumps(told, indent=1) + "\n").encode())


def _sets(options: argparse.Namespace, recipe: Recipe, processes: int) -> tuple[SampleSet, SampleSet, SampleSet]:
    """What is trained on, what is held out of it by source, and the test split. Raises UserError where one is not fit
    for the recipe."""
    from pipeline.training.samples import drawn, load_samples, parted_by_source

    data = load_samples(options.data, "train", hard=recipe.model.ihnm != "off")
    test = load_samples(options.data, "test")
    training, validation = parted_by_source(drawn(data.samples, options.fraction), options.validation)
    _check_data(data, training, options, processes)
    _check_test(test)
    for each in (data, test):
        _check_poses(each, recipe)
    return data.of(training), data.of(validation), test


def _who(about: Mapping[str, Any]) -> dict[str, Any]:
    return {"model": about["recipe"]["name"], **{name: about[name] for name in ("preset", "reproduce", "data", "seed")}}


def _evaluate_only(options: argparse.Namespace) -> int:
    from pipeline.training.evaluate import EvaluationSettings
    from pipeline.training.samples import load_samples

    _check_numbers(options)
    _threads(options)
    if not _together().is_main_process:
        return cli.DONE
    checkpoint: Path = options.checkpoint
    run = _run_of(checkpoint)
    test = load_samples(options.data, "test")
    _check_test(test)
    about = {"weights": checkpoint.name, "data": test.name}
    if run is None:
        settings = EvaluationSettings(**_given(options))
    else:
        settings = _evaluation_settings(options, run[0])
        about = {"weights": checkpoint.name, **_who(run[1]), "data": test.name}
    folder = options.out or _folder_alone(checkpoint, test, settings)
    _judge(checkpoint, folder, test, settings, about)
    return cli.DONE


def _folder_alone(checkpoint: Path, test: SampleSet, settings: EvaluationSettings) -> Path:
    """Where the results of weights that are evaluated by themselves go: a place for each data and way of scoring, and
    never that of the run's own figures."""
    told = f"{_digest_of(test)} {settings.fusion.name} {settings.top_k}"
    digest = hashlib.sha256(told.encode()).hexdigest()[:8]
    return checkpoint.parent / EVALUATION / f"{checkpoint.resolve().name}-{settings.fusion.kind}-{digest}"


def _export(options: argparse.Namespace) -> int:
    """A checkpoint under the published names."""
    from pipeline.models.build import load_network
    from pipeline.models.published import write_published

    if options.checkpoint is None:
        raise UserError("--export-published wants --checkpoint FOLDER, e.g. runs/seda-paper-seed42/best")
    write_published(load_network(options.checkpoint), options.export_published)
    print(f"wrote {options.export_published}")
    return cli.DONE


def _import(options: argparse.Namespace) -> int:
    """Published weights as a folder of this project."""
    from pipeline.models.build import build_network
    from pipeline.models.pretrained import CONFIG_FILE
    from pipeline.models.published import load_published

    if options.out is None:
        raise UserError("--import-published wants --out FOLDER, for the weights by this project's names")
    if (options.out / CONFIG_FILE).exists():
        raise UserError(f"--out {options.out}: weights are there already; use another folder")
    if options.preset == "auto":
        options.preset = "paper"  # that of all published weights, whatever this machine has
    recipe, _ = recipe_of(options)
    network = build_network(recipe.model, _seed(options.seed))
    found = load_published(network, options.import_published)
    if found.missing:
        raise UserError(
            f"{options.import_published}: has no {found.missing[0]} (and {len(found.missing) - 1} more), so it is no "
            f"whole checkpoint of {recipe.name}; to start training from it, see --init"
        )
    network.save_pretrained(options.out, recipe, [f"Converted from {options.import_published.name}, not trained here."])
    print(f"wrote {options.out}")
    if found.ignored:
        print(f"note: {len(found.ignored)} weights have no place in {recipe.name}, e.g. {found.ignored[0]}")
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


def _judge(
    checkpoint: Path, folder: Path, test: SampleSet, settings: EvaluationSettings, about: Mapping[str, Any]
) -> None:
    """Evaluate saved weights on the test split, print the figures and write them down."""
    import torch

    from pipeline.models.build import load_network
    from pipeline.training.evaluate import evaluate
    from pipeline.training.results import format_metrics, write_results
    from pipeline.training.texts import vocabulary

    network = load_network(checkpoint).to("cuda" if torch.cuda.is_available() else "cpu")
    bars: dict[str, cli.Bar] = {}

    def progress(what: str, done: int, total: int) -> None:
        bars.setdefault(what, cli.Bar(f"{checkpoint.name}: {what}"))(done, total)

    found = evaluate(network, test, vocabulary(network.options.size.max_tokens), settings, progress)
    for bar in bars.values():
        bar.close()
    print(f"\ntest split of {test.name}, weights {checkpoint}\n{format_metrics(found)}")
    for path in write_results(folder, found, test, about):
        print(f"wrote {path}")


def _given(options: argparse.Namespace) -> dict[str, Any]:
    from pipeline.retrieval.fusion import parse_fusion

    found: dict[str, Any] = {}
    if options.fusion is not None:
        found["fusion"] = parse_fusion(options.fusion)
    if options.top_k is not None:
        if options.top_k < 1:
            raise UserError(f"--top-k {options.top_k}: at least one candidate")
        found["top_k"] = options.top_k
    return found


def _evaluation_settings(options: argparse.Namespace, recipe: Recipe) -> EvaluationSettings:
    from pipeline.retrieval.fusion import Fusion
    from pipeline.training.evaluate import EvaluationSettings

    own = recipe.evaluation
    fusion = Fusion(own.fusion, own.ref_world if own.fusion == "ref_world" else 1, own.itc_weight)
    return EvaluationSettings(**{"top_k": own.top_k, "fusion": fusion, **_given(options)})


def _check_numbers(options: argparse.Namespace) -> None:
    if not 0 < options.fraction <= 1:
        raise UserError(f"--fraction {options.fraction}: a share above 0, up to 1")
    if not 0 <= options.validation < 1:
        raise UserError(f"--validation {options.validation}: a share of the sources, from 0 to below 1")
    for name, least in (("accumulate", 1), ("save_every", 0), ("workers", 0), ("threads", 1)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise UserError(f"--{name.replace('_', '-')} {value}: at least {least}")


def _check_data(data: SampleSet, training: Sequence[Sample], options: argparse.Namespace, processes: int) -> None:
    """A batch is two different samples in each process, so that every sample has a negative."""
    wanted = 2 * processes
    if len({each.id for each in training}) >= wanted:
        return
    there = f"{data.name}: its train split has {_records(len(data))}"
    if len(data) > len(training):
        there += (
            f", of which {len(training)} are left to train on (--fraction {options.fraction:g}, "
            f"--validation {options.validation:g})"
        )
    raise UserError(
        f"{there}; {wanted} with different ids are needed at least: give more data, or hold less of it back"
    )


def _check_test(test: SampleSet) -> None:
    if len(test) < 2:
        raise UserError(
            f"{test.name}: its test split has {_records(len(test))}, so there is nothing to search among; give "
            "more test images"
        )


def _check_poses(data: SampleSet, recipe: Recipe) -> None:
    if recipe.model.pose and any(each.pose is None for each in data.samples):
        raise UserError(
            f"{data.name}: its {data.split} split has no pose maps (pose/...), and {recipe.name} reads them; put them "
            "there, or use a model without pose encoding (--model m1, or --set model.pose=false)"
        )


def _without_parts(data: SampleSet, recipe: Recipe) -> list[str]:
    if recipe.model.model != "seda" or any(part for each in data.samples for part in each.factors):
        return []
    return [f"{data.name}: no caption has parts (annotation/train_decouple), so that the whole caption stands for each"]


def _other_start(options: argparse.Namespace, recipe: Recipe, preset: str) -> list[str]:
    """That the paper's run began elsewhere, where its size is trained from nothing because nobody said otherwise."""
    if preset != "paper" or options.init is not None or recipe.init == "none":
        return []
    return [
        f"the paper's {recipe.name} started from {recipe.init}'s weights, this run starts at random: pass "
        f"--init {recipe.init}:FILE for the same start"
    ]


def _records(count: int) -> str:
    return "one record" if count == 1 else f"{count} records"


def _digest_of(*sets: SampleSet) -> str:
    """Changes with what is trained on, so that a run is not gone on with over a dataset that was built anew."""
    lines = [f"{part}\t{each.id}\t{each.caption}" for part, own in enumerate(sets) for each in own.samples]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _some_readable(data: SampleSet) -> bool:
    """Whether the first picture that can be read is found; all are tried only where none can."""
    from pipeline.core.images import ImageError, read_image

    for sample in data.samples:
        try:
            for where, column in ((sample.image, "image"), (sample.pose, "pose")):
                if where is not None:
                    read_image(data.read(where, column), sample.id)
        except (ImageError, OSError):
            continue
        return True
    return not len(data)


def _together() -> Any:
    """The processes that this one was started with: `num_processes`, `is_main_process`."""
    import torch
    from accelerate import PartialState

    return PartialState(cpu=not torch.cuda.is_available())


def _precision(options: argparse.Namespace) -> str:
    import torch

    if options.precision != "auto":
        return str(options.precision)
    return "bf16" if torch.cuda.is_available() else "no"


def _threads(options: argparse.Namespace) -> None:
    import torch

    if options.threads is not None:
        torch.set_num_threads(options.threads)


def _seed(seed: int) -> int:
    from pipeline.core.seeds import seed_of

    return seed_of(_SEED_OF_WEIGHTS, seed)


def _synonyms(recipe: Recipe, say: Callable[[str], None]) -> tuple[Any, frozenset[str]]:
    from pipeline.training.eda import english_stop_words, wordnet_folder, wordnet_synonyms

    if recipe.model.eda_weight <= 0:
        return None, frozenset()
    folder = wordnet_folder()
    if folder is None:
        say("note: WordNet is not here (apt install wordnet-base): captions are augmented by swapping and dropping "
            "words, without synonyms")  # fmt: skip
        return None, frozenset()
    return wordnet_synonyms(folder), english_stop_words()


def _held_out(validation: SampleSet, say: Callable[[str], None]) -> SampleSet:
    """What each epoch is judged on; empty, with a note, where that cannot be.

    One image of each kind and source, so that the gallery holds no person drawn from the same words twice.
    """
    chosen: dict[tuple[str, bool | None], Sample] = {}
    for sample in sorted(validation.samples, key=lambda each: each.id):
        chosen.setdefault((sample.source, sample.normal), sample)
    held = validation.of(sorted(chosen.values(), key=lambda each: each.id))
    if len(held) > 1 and _some_readable(held):
        return held
    if len(validation):
        why = "there is but one" if len(held) == 1 else "no picture can be read"
        say(f"note: the best epoch is not chosen: of the {len(validation)} samples held out for it {why}")
    return held.of(())


class _Watch:
    """A bar with ETA on a terminal, a line an epoch, and TensorBoard's file."""

    def __init__(self, folder: Path, epochs: int, shown: bool, clock: Clock) -> None:
        self._folder, self._epochs, self._shown, self._clock = folder, epochs, shown, clock
        self._bar = cli.Bar("training", unit="steps")
        self._board: Any = None
        self._told: set[str] | None = None

    def observers(self) -> Any:
        from pipeline.training.trainer import Observers

        if not self._shown:
            return None
        return Observers(step=self._step, epoch=self._epoch, unreadable=self._unreadable, clock=self._clock)

    def close(self) -> None:
        self._bar.close()
        if self._board is not None:
            self._board.close()

    def _step(self, done: int, total: int, losses: Mapping[str, float]) -> None:
        self._bar(done, total)
        if done == 1 or done % 10 == 0:
            board = self._tensorboard(done)
            for name, value in losses.items():
                board.add_scalar(f"loss/{name}", value, done)

    def _epoch(self, line: Mapping[str, Any]) -> None:
        figures = "".join(
            f"  {name.removeprefix('validation_')} {line[name]:.1f}"
            for name in ("validation_R@1", "validation_mAP", "validation_pair accuracy")
            if name in line
        )
        best = "  best so far" if line.get("best") else ""
        print(f"epoch {line['epoch'] + 1:>3} of {self._epochs}  loss {line['loss']:.3f}{figures}{best}", flush=True)
        for name, value in line.items():
            if name.startswith("validation_"):
                board = self._tensorboard(line["step"])
                board.add_scalar(f"validation/{name.removeprefix('validation_')}", value, line["step"])

    def _unreadable(self, name: str, why: str) -> None:
        """A line a sample, however many epochs leave it out and however often the run is stopped."""
        path = self._folder / UNREADABLE
        if self._told is None:
            self._told = set(path.read_text("utf-8").splitlines(keepends=True)) if path.is_file() else set()
        line = json.dumps({"id": name, "why": why}) + "\n"
        if line not in self._told:
            self._told.add(line)
            with path.open("a", encoding="utf-8") as file:
                file.write(line)

    def _tensorboard(self, step: int) -> Any:
        if self._board is None:
            from torch.utils.tensorboard import SummaryWriter

            # What a killed run had told of steps that are now done again is taken back.
            self._board = SummaryWriter(str(self._folder / "tensorboard"), purge_step=step)
        return self._board


if __name__ == "__main__":
    raise SystemExit(main())
