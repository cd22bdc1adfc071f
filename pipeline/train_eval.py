"""Trains and evaluates a model on a published dataset: `python -m pipeline.train_eval --model seda`.

The run's folder holds its settings, its latest state (a stopped run goes on from there), the last and the best weights,
the log, its curves, its costs, and for each of the two weights the figures, rankings and examples on the test split.
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
    from pipeline.training.costs import Costs
    from pipeline.training.evaluate import Evaluation, EvaluationSettings
    from pipeline.training.samples import Sample, SampleSet
    from pipeline.training.texts import TextReader
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
    options = _parsed(argv)

    def run() -> int:
        if options.list:
            print(list_of_recipes())
            return cli.DONE
        if options.analyse and (options.compare or options.sweep):
            raise UserError("--analyse is for one run, not for --compare or --sweep")
        if options.compare or options.sweep:
            from pipeline.compare import several_runs

            return several_runs(options, _parser())
        if options.seeds is not None or options.jobs is not None or options.background:
            raise UserError("--seeds, --jobs and --background go with --compare or --sweep")
        if not options.evaluate and (options.distractors is not None or options.ground_truth is not None):
            raise UserError("--distractors and --ground-truth go with --evaluate")
        if options.evaluate:
            if options.checkpoint is None:
                raise UserError("--evaluate wants --checkpoint FOLDER, e.g. runs/seda-small-seed42/best")
            return _evaluate_only(options)
        if options.analyse:
            return _analyse(options)
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
    what.add_argument(
        "--model",
        default="cmp",
        metavar="NAME",
        help="a recipe of --list (default: cmp), or hf:NAME (or hf:FOLDER) for a dual encoder of transformers, e.g. "
        "hf:openai/clip-vit-base-patch16: evaluated as it is, or trained further with --finetune",
    )
    what.add_argument("--finetune", action="store_true", help="train the dual encoder of --model hf:NAME on the data")
    what.add_argument("--list", action="store_true", help="show the recipes with the papers' rows, and stop")
    what.add_argument(
        "--data",
        default=DEFAULT_DATA,
        metavar="DATA",
        help=f"a dataset of this project, pab:FOLDER for PAB as released, tipr:SET:FOLDER (CUHK-PEDES, ...), or, to "
        f"evaluate, track4:FOLDER (default: {DEFAULT_DATA})",
    )
    what.add_argument(
        "--fraction",
        type=float,
        default=1.0,
        metavar="SHARE",
        help="of the training samples, by id; 0 evaluates the weights that training would begin with",
    )
    what.add_argument(
        "--reproduce",
        choices=("published", "paper"),
        help="the published code, faults included, or the papers' equations where they differ from it",
    )
    what.add_argument("--preset", default="auto", metavar="NAME", help="paper, small, or auto (paper with a GPU)")
    what.add_argument(
        "--init",
        metavar="WEIGHTS",
        help="where to start: none (default), minilm (a text side of width 384), or FILE of published weights: "
        "xvlm16m:FILE, x2vlm:FILE, aptm:FILE or swin:FILE",
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
    judged.add_argument(
        "--analyse",
        action="store_true",
        help="only look into --checkpoint, a GradCO: figures and numbers of its anchors, gradients, geometry, streams "
        "and weights on the test split (to RUN/analysis/WEIGHTS, or --out)",
    )
    judged.add_argument("--checkpoint", type=Path, metavar="FOLDER", help="weights that save_pretrained wrote")
    judged.add_argument(
        "--protocol",
        metavar="NAME[,NAME]",
        help="pab, ucc, multi-weather (default: pab); what tipr: and track4: data stand for needs no name",
    )
    judged.add_argument(
        "--distractors",
        metavar="DATA",
        help="with --evaluate: its test images are in the gallery too, and answer nothing",
    )
    judged.add_argument(
        "--ground-truth", type=Path, metavar="FILE", help="of track4: data, lines of query index and image name"
    )
    judged.add_argument(
        "--fusion", metavar="KIND", help="single, itm_only, similarity, linear:WEIGHT or ref_world:PROCESSES"
    )
    judged.add_argument("--top-k", type=int, help="candidates a query that are matched (default: 128)")
    several = parser.add_argument_group("several runs (each a process and a folder of its own; repeat it to go on)")
    several.add_argument("--compare", metavar="MODELS", help="train and evaluate several models: cmp,seda,gradco")
    several.add_argument(
        "--sweep",
        metavar="OPTION=VALUES",
        help="--model (or several: cmp,seda) at several values: fraction=0,0.1,0.5,1, or any option of the recipe, "
        "e.g. optimiser.lr=1e-4,3e-4",
    )
    several.add_argument("--seeds", metavar="N", help="how many seeds from 42 on, or a list: 7,8 (default: 3)")
    several.add_argument(
        "--jobs", type=int, metavar="N", help="runs at a time, which share the threads evenly (default: 1)"
    )
    several.add_argument("--background", action="store_true", help="go on after the terminal is closed")
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


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options; a dual encoder that is not fine-tuned is trained on nothing."""
    options = _parser().parse_args(arguments)
    if is_dual(options.model) and not options.finetune and not (options.compare or options.sweep):
        options.fraction, options.validation = 0.0, 0.0
    return options


def is_dual(model: str) -> bool:
    """Whether a model's name is that of somebody else's dual encoder."""
    return model.lower().startswith("hf:")


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
    parts.append(
        "hf:NAME or hf:FOLDER: a dual encoder of transformers (CLIP, SigLIP, ALIGN, ...), zero-shot or with --finetune"
    )
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
    from pipeline.models.recipes import dual_recipe, recipe_named, reproduce
    from pipeline.training.presets import preset_for, with_preset

    preset = preset_for(options.preset)
    if is_dual(options.model):
        own = dual_recipe(options.model, options.finetune)
        if options.init is not None:
            raise UserError(f"--init {options.init}: {own.name} brings its own weights; leave --init out")
    elif options.finetune:
        raise UserError("--finetune goes with --model hf:NAME; the recipes of --list are trained anyway")
    else:
        own = recipe_named(options.model)
    recipe = reproduce(with_preset(own, preset), options.reproduce)
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
        kinds = {(1, recipe.model.model), (4, "swin"), (4, "beit")}  # which of several forms was tried is no option
        place = ".".join(str(part) for number, part in enumerate(first["loc"]) if (number, part) not in kinds)
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
    if options.out is not None:
        return Path(options.out)
    if not is_dual(recipe.name):
        return Path("runs") / f"{recipe.name}-{preset}-seed{options.seed}"
    parts = [part for part in recipe.name.partition(":")[2].split("/") if part.strip(".")]
    name = "-".join(["hf", *parts[-2:]])
    return Path("runs") / (f"{name}-{preset}-seed{options.seed}" if options.finetune else f"{name}-zero-shot")


def folder_of(arguments: Sequence[str]) -> Path:
    """Where the files of a run with these arguments go. Raises UserError for a recipe that there is not."""
    options = _parsed(arguments)
    return run_folder(options, *recipe_of(options))


def planned(arguments: Sequence[str]) -> tuple[dict[str, Any], str, int]:
    """What a run with these arguments would be: the settings that its folder will hold, as far as they are known before
    the data is read, the fusion's name, and how many candidates are matched. Raises UserError as the run would."""
    options = _parsed(arguments)
    _check_numbers(options)
    recipe, preset = recipe_of(options)
    scoring = _scoring(options, recipe)
    return _settings_of(options, recipe, preset), scoring["fusion"].name, scoring["top_k"]


def digests_of(arguments: Sequence[str]) -> tuple[str, str]:
    """(what a run with these arguments would be trained on, what it would be tested on), as they are now."""
    from pipeline.training.samples import drawn, load_samples, parted_by_source

    options = _parsed(arguments)
    if is_dual(options.model) and not options.finetune:
        return _digest_of(), _digest_of(load_samples(options.data, "test"))
    data = load_samples(options.data, "train", hard=recipe_of(options)[0].model.ihnm != "off")
    parts = parted_by_source(drawn(data.samples, options.fraction), options.validation)
    return _digest_of(*(data.of(each) for each in parts)), _digest_of(load_samples(options.data, "test"))


def _settings_of(options: argparse.Namespace, recipe: Recipe, preset: str) -> dict[str, Any]:
    return {
        "recipe": recipe.model_dump(mode="json"),
        "preset": preset,
        "reproduce": options.reproduce,
        "init": options.init or "none",
        "fraction": options.fraction,
        "validation": options.validation,
        "seed": options.seed,
        "accumulate": options.accumulate,
    }


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


def _train(options: argparse.Namespace) -> int:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # or cuBLAS sums in another order each time

    import torch

    from pipeline.models.build import build_network
    from pipeline.models.config import DualOptions
    from pipeline.models.dual import load_dual
    from pipeline.models.recipes import shown_name
    from pipeline.training.batches import Preparer, Preparing
    from pipeline.training.costs import read_costs, write_costs
    from pipeline.training.dual_batches import DualPreparer
    from pipeline.training.presets import initialise, parse_initial
    from pipeline.training.results import write_curves
    from pipeline.training.state import alone_in, check_settings
    from pipeline.training.texts import vocabulary
    from pipeline.training.trainer import Clock, LoopSettings, Trained, train

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
    if not is_dual(recipe.name):
        recipe = _with_phrases(recipe, training if len(training) else _all_training(options, recipe))
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
        **_settings_of(options, recipe, preset),
        "data": test.name,
        "precision": settings.precision,
        "processes": processes,
        "samples": _digest_of(training, validation),
        "training pairs": len(training),
        "train size": train_size(len(training)),
        "synonyms": synonyms is not None,
    }
    preparer: Preparing
    if isinstance(recipe.model, DualOptions):
        network: Any = load_dual(recipe.model)
        if len(training):
            network.scale()  # or there is nothing to train with, which is said before anything is written
        start = f"pretrained: all weights, from hf:{shown_name(recipe.model.weights)}"
        words: Any = network.texts
        preparer = DualPreparer(training, recipe.augmentation, network.pictures, words, options.seed)
    else:
        network = build_network(recipe.model, _seed(options.seed))
        start = initialise(network, initial)
        words = vocabulary(recipe.model.size.max_tokens)
        network.prepare(words.tokens_of)
        preparer = Preparer(training, recipe.model, recipe.augmentation, words, synonyms, stop_words, options.seed)
    say(start)
    if len(training):
        _tell_cut(words, training, say)
    check_settings(folder, about)

    def validate() -> Evaluation | None:
        from pipeline.training.evaluate import evaluate

        return evaluate(network, held, words, evaluation) if len(held) else None

    def save_weights(name: str) -> None:
        done = f"Trained on {test.name}" if len(training) else "Not trained"
        epoch = f"; weights of the {name} epoch" if len(training) else ""
        notes = [
            f"{done}, seed {options.seed}, preset {preset}{epoch}.",
            f"Where it started: {start}.",
        ]
        network.save_pretrained(folder / name, recipe, notes)

    with alone_in(folder) if main_process else contextlib.nullcontext():
        costs = read_costs(folder)
        costs.parameters, costs.start, costs.test = _count(network), start, _digest_of(test)
        watch = _Watch(folder, recipe.epochs, main_process, clock, costs)
        try:
            if len(training):
                observers = _looked_into(watch.observers(), network, held, words, folder, clock)
                trained = train(network, recipe, preparer, folder, settings, validate, save_weights, observers)
            else:
                trained = Trained()
                if not is_dual(recipe.name):  # whose weights are where they came from
                    save_weights(WEIGHTS[0])
        finally:
            watch.close()
        if not main_process:
            return cli.DONE
        watch.tell_costs()
        write_curves(folder, trained.log)
        if trained.left_out:
            say(f"left out: {trained.left_out} times a sample whose picture cannot be read, see {folder / UNREADABLE}")
        for name in WEIGHTS:
            as_it_is = network if is_dual(recipe.name) and not len(training) and name == WEIGHTS[0] else None
            if (folder / name).is_dir() or as_it_is is not None:
                who = {"weights": name, **_who(about)}
                where = folder / EVALUATION / name
                spent = _judge(folder / name, where, test, evaluation, who, as_it_is, options)
                costs.query_milliseconds[name] = round(spent, 3)
        clock.lap("evaluation")
        _tell_times(folder, clock.seconds)
        costs.finished = True
        write_costs(folder, costs)
    return cli.DONE


def _looked_into(observers: Any, network: Any, held: SampleSet, words: Any, folder: Path, clock: Clock) -> Any:
    """The observers; for a network with anchors they also measure a few held-out pairs at the start and after each
    epoch (`analysis/epochs.jsonl`). Training is the same with it and without."""
    if observers is None or getattr(network, "offload", None) is None or not len(held):
        return observers
    from pipeline.training.mechanisms import Snapshots

    snapshots, tell = Snapshots(network, held, words, folder), observers.epoch

    def epoch(line: Mapping[str, Any]) -> None:
        tell(line)
        clock.lap("saving")
        snapshots.take(line["epoch"] + 1)
        clock.lap("analysis")

    snapshots.begin()
    observers.epoch = epoch
    return observers


def _count(network: Any) -> int:
    return sum(each.numel() for each in network.parameters())


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

    test = _test_set(options)
    if is_dual(recipe.name) and not options.finetune:
        return test.of(()), test.of(()), test
    data = load_samples(options.data, "train", hard=recipe.model.ihnm != "off")
    training, validation = parted_by_source(drawn(data.samples, options.fraction), options.validation)
    if options.fraction:
        _check_data(data, training, options, processes)
    for each in (data, test):
        _check_poses(each, recipe)
    return data.of(training), data.of(validation), test


def _test_set(options: argparse.Namespace) -> SampleSet:
    """What the first protocol searches in. Raises UserError."""
    from pipeline.training.protocol_runs import protocols_of, set_of

    test = set_of(options.data, protocols_of(options.data, options.protocol)[0], options.ground_truth,
                  options.distractors)  # fmt: skip
    _check_test(test)
    return test


def _who(about: Mapping[str, Any]) -> dict[str, Any]:
    """Whose figures these are, with the size of what was trained on (0.1M and 1M are the papers')."""
    told = {"model": about["recipe"]["name"]}
    told |= {name: about[name] for name in ("preset", "reproduce", "data", "seed")}
    return told | {name: about[name] for name in ("fraction", "training pairs", "train size") if name in about}


_PAPER_SIZES = (("0.1M", 100_000), ("1M", 1_013_605))


def train_size(pairs: int) -> str | None:
    """`0.1M` or `1M`, for about as many training pairs as the papers' settings have; None for others.

    About: a tenth may be held out, and a fraction is drawn by ids.
    """
    return next((name for name, size in _PAPER_SIZES if abs(pairs - size) <= size * 0.15), None)


def _evaluate_only(options: argparse.Namespace) -> int:
    from pipeline.training.evaluate import EvaluationSettings

    _check_numbers(options)
    _threads(options)
    if not _together().is_main_process:
        return cli.DONE
    checkpoint: Path = options.checkpoint
    run = _run_of(checkpoint)
    test = _test_set(options)
    about = {"weights": checkpoint.name, "data": test.name}
    for note in test.problems:
        print(f"note: {note}")
    if run is None:
        settings = EvaluationSettings(**_given(options))
    else:
        settings = _evaluation_settings(options, run[0])
        about = {"weights": checkpoint.name, **_who(run[1]), "data": test.name}
    if options.distractors is not None:
        about["distractors"] = options.distractors
    folder = options.out or _folder_alone(checkpoint, test, settings)
    _judge(checkpoint, folder, test, settings, about, asked=options)
    return cli.DONE


def _analyse(options: argparse.Namespace) -> int:
    """Figures and numbers of what goes on inside a GradCO."""
    if options.checkpoint is None:
        raise UserError("--analyse wants --checkpoint FOLDER, e.g. runs/gradco-small-seed42/last")
    _check_numbers(options)
    folder = options.out or options.checkpoint.parent / "analysis" / options.checkpoint.resolve().name
    _threads(options)
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


def _folder_alone(checkpoint: Path, test: SampleSet, settings: EvaluationSettings) -> Path:
    """Where the results of weights that are evaluated by themselves go: a place for each data and way of scoring, and
    never that of the run's own figures."""
    told = f"{_digest_of(test)} {settings.fusion.name} {settings.top_k}"
    digest = hashlib.sha256(told.encode()).hexdigest()[:8]
    return checkpoint.parent / EVALUATION / f"{checkpoint.resolve().name}-{settings.fusion.kind}-{digest}"


def _export(options: argparse.Namespace) -> int:
    """A checkpoint under the published names."""
    from pipeline.models.build import load_network
    from pipeline.models.network import PairNetwork
    from pipeline.models.published import write_published

    if options.checkpoint is None:
        raise UserError("--export-published wants --checkpoint FOLDER, e.g. runs/seda-paper-seed42/best")
    network = load_network(options.checkpoint)
    if not isinstance(network, PairNetwork):
        raise UserError(f"--export-published: {options.checkpoint} is transformers' own, it has no published code here")
    write_published(network, options.export_published)
    print(f"wrote {options.export_published}")
    return cli.DONE


def _import(options: argparse.Namespace) -> int:
    """Published weights as a folder of this project."""
    from pipeline.models.build import build_network
    from pipeline.models.config import DualOptions
    from pipeline.models.pretrained import CONFIG_FILE
    from pipeline.models.published import load_published

    if options.out is None:
        raise UserError("--import-published wants --out FOLDER, for the weights by this project's names")
    if (options.out / CONFIG_FILE).exists():
        raise UserError(f"--out {options.out}: weights are there already; use another folder")
    if options.preset == "auto":
        options.preset = "paper"  # that of all published weights, whatever this machine has
    recipe, _ = recipe_of(options)
    if isinstance(recipe.model, DualOptions):
        raise UserError(f"--import-published: {recipe.name} is read by its name or folder as it is")
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
    queries, ranking by features, matching the candidates, fusing and ranking anew), over the number of queries.
    """
    import time

    import torch

    from pipeline.models.build import load_network
    from pipeline.training.protocol_runs import SHORT, protocols_of, run_protocol, set_of

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

    milliseconds = 0.0
    for number, protocol in enumerate(names):
        place, data = folder, test
        if number:
            place, data = folder / SHORT.get(protocol, protocol), set_of(test.name, protocol, None, distractors)
        cut = _tell_cut(words, data, print)
        found = run_protocol(protocol, network, data, words, settings, place, {**about, "captions cut": cut}, progress)
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


def _tell_cut(words: TextReader, data: SampleSet, say: Callable[[str], None]) -> int:
    """How many captions (or queries) are longer than the network reads, said where there are any."""
    captions = [each.text for each in data.queries] or [each for sample in data.samples for each in sample.captions]
    cut = words.cut(captions)
    if cut:
        say(f"note: {cut} of {len(captions)} captions of the {data.split} split are longer than {words.max_tokens} "
            "tokens and are cut there")  # fmt: skip
    return cut


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
    from pipeline.training.evaluate import EvaluationSettings

    return EvaluationSettings(**_scoring(options, recipe))


def _scoring(options: argparse.Namespace, recipe: Recipe) -> dict[str, Any]:
    """fusion and top_k: what the options say, else the recipe."""
    from pipeline.retrieval.fusion import Fusion

    own = recipe.evaluation
    fusion = Fusion(own.fusion, own.ref_world if own.fusion == "ref_world" else 1, own.itc_weight)
    found = {"top_k": own.top_k, "fusion": fusion, **_given(options)}
    if is_dual(recipe.name) and found["fusion"].matches:
        raise UserError(f"fusion {found['fusion'].name}: {recipe.name} has no matching head, so similarity alone ranks")
    return found if found["fusion"].matches else {**found, "top_k": 0}


def _check_numbers(options: argparse.Namespace) -> None:
    if not 0 <= options.fraction <= 1:
        raise UserError(f"--fraction {options.fraction}: a share from 0 to 1")
    if not 0 <= options.validation < 1:
        raise UserError(f"--validation {options.validation}: a share of the sources, from 0 to below 1")
    for name, least in (("accumulate", 1), ("save_every", 0), ("workers", 0), ("threads", 1)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise UserError(f"--{name.replace('_', '-')} {value}: at least {least}")


def _check_data(data: SampleSet, training: Sequence[Sample], options: argparse.Namespace, processes: int) -> None:
    """A batch is two samples with different matches in each process, so that every sample has a negative."""
    wanted = 2 * processes
    if len({each.match for each in training}) >= wanted:
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


def _all_training(options: argparse.Namespace, recipe: Recipe) -> SampleSet:
    """The whole training split: what names an untrained network's phrases."""
    from pipeline.training.samples import load_samples

    return load_samples(options.data, "train", hard=recipe.model.ihnm != "off")


def _with_phrases(recipe: Recipe, training: SampleSet) -> Recipe:
    """The recipe with the action codebook of the training data, where the model has one and none is given."""
    from pipeline.models.config import LightairOptions
    from pipeline.models.recipes import changed
    from pipeline.training.phrases import action_phrases

    if not isinstance(recipe.model, LightairOptions) or recipe.model.codebook.phrases:
        return recipe
    phrases = action_phrases(each.label for each in training.samples)
    if not phrases:
        raise UserError(
            f"{training.name}: no action or anomaly is named twice, so {recipe.name} has no codebook; give data that "
            "has them, or --set 'model.codebook.phrases=[walking, falling]'"
        )
    return changed(recipe, {"model.codebook.phrases": phrases})


def _without_parts(data: SampleSet, recipe: Recipe) -> list[str]:
    if recipe.model.model != "seda" or not len(data) or any(part for each in data.samples for part in each.factors):
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
    lines = [
        f"{part}\t{each.id}\t{''.join(each.captions[:1])}" for part, own in enumerate(sets) for each in own.samples
    ]
    lines += [f"{part}\t{each.id}\t{each.text}" for part, own in enumerate(sets) for each in own.queries]
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

    All images that were held out. Those of one source and behaviour were drawn from the same words, so each answers the
    captions of the others.
    """
    from dataclasses import replace

    if len(validation) > 1 and _some_readable(validation):
        return validation.of(
            [replace(each, match_id=each.match_id or f"{each.source} {each.normal}") for each in validation.samples]
        )
    if len(validation):
        why = "there is but one" if len(validation) == 1 else "no picture can be read"
        say(f"note: the best epoch is not chosen: of the {len(validation)} samples held out for it {why}")
    return validation.of(())


class _Watch:
    """A bar with ETA on a terminal, a line an epoch, and TensorBoard's file."""

    def __init__(self, folder: Path, epochs: int, shown: bool, clock: Clock, costs: Costs) -> None:
        self._folder, self._epochs, self._shown, self._clock = folder, epochs, shown, clock
        self._costs, self._seconds_before = costs, costs.seconds
        self._bar = cli.Bar("training", unit="steps")
        self._board: Any = None
        self._told: set[str] | None = None

    def observers(self) -> Any:
        from pipeline.training.trainer import Observers

        if not self._shown:
            return None
        return Observers(step=self._step, epoch=self._epoch, unreadable=self._unreadable, saved=self.tell_costs,
                         clock=self._clock)  # fmt: skip

    def close(self) -> None:
        self._bar.close()
        if self._board is not None:
            self._board.close()

    def tell_costs(self) -> None:
        """Write down what training cost so far; a process that did no step adds nothing."""
        import torch

        from pipeline.training.costs import peak_memory, write_costs

        costs = self._costs
        costs.device = costs.device or (torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu")
        if "steps" in self._clock.seconds:
            own = sum(spent for what, spent in self._clock.seconds.items() if what != "analysis")
            costs.seconds = round(self._seconds_before + own, 3)
            costs.peak_memory = max(costs.peak_memory or 0, round(peak_memory() or 0, 1)) or None
            if torch.cuda.is_available():
                allocated = round(torch.cuda.max_memory_allocated() / 2**20, 1)
                costs.peak_gpu_memory = max(costs.peak_gpu_memory or 0, allocated)
            costs.threads = sorted({*costs.threads, torch.get_num_threads()})
        write_costs(self._folder, costs)

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
