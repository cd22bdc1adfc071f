"""Trains and evaluates a model on a published dataset: `python -m pipeline.train_eval --model seda`.

The run's folder holds its settings, its latest state (a stopped run goes on from there), the last and the best weights,
the log, its curves, its costs, and for each of the two weights the figures, rankings and examples on the test split.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pipeline import cli
from pipeline.convert_weights import export_published, import_published
from pipeline.core.errors import UserError
from pipeline.evaluate_weights import (
    EVALUATION,
    WEIGHTS,
    analyse_only,
    evaluate_only,
    judge,
    records_in_words,
    tell_cut,
    test_set,
    train_size,
    whose_figures,
)
from pipeline.train_options import (
    check_numbers,
    digest_of,
    evaluation_settings,
    is_dual,
    list_of_recipes,
    parsed,
    parser,
    precision_of,
    processes_together,
    recipe_of,
    run_folder,
    seed_of_weights,
    set_threads,
    settings_of,
)

if TYPE_CHECKING:
    from pipeline.models.config import Recipe
    from pipeline.training.evaluate import Evaluation
    from pipeline.training.samples import Sample, SampleSet


def main(argv: Sequence[str] | None = None) -> int:
    """The command line. Exit codes: 0 done, 2 wrong input; a stopped run goes on when the command is repeated."""
    options = parsed(argv)

    def run() -> int:
        if options.list:
            print(list_of_recipes())
            return cli.DONE
        if options.analyse and (options.compare or options.sweep):
            raise UserError("--analyse is for one run, not for --compare or --sweep")
        if options.compare or options.sweep:
            from pipeline.compare import several_runs

            return several_runs(options, parser())
        if options.seeds is not None or options.jobs is not None or options.background:
            raise UserError("--seeds, --jobs and --background go with --compare or --sweep")
        if not options.evaluate and (options.distractors is not None or options.ground_truth is not None):
            raise UserError("--distractors and --ground-truth go with --evaluate")
        if options.evaluate:
            if options.checkpoint is None:
                raise UserError("--evaluate wants --checkpoint FOLDER, e.g. runs/seda-small-seed42/best")
            return evaluate_only(options)
        if options.analyse:
            return analyse_only(options)
        if options.export_published is not None:
            return export_published(options)
        if options.import_published is not None:
            return import_published(options)
        return _train(options)

    return cli.guarded(run)


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
    from pipeline.training.watch import UNREADABLE, Watch, looked_into, tell_times

    clock = Clock()
    check_numbers(options)
    recipe, preset = recipe_of(options)
    initial = parse_initial(options.init or "none")
    evaluation = evaluation_settings(options, recipe)
    folder = run_folder(options, recipe, preset)
    set_threads(options)
    together = processes_together()
    processes, main_process = together.num_processes, together.is_main_process
    training, validation, test = _sets(options, recipe, processes)
    if not is_dual(recipe.name):
        recipe = _with_phrases(recipe, training if len(training) else _all_training(options, recipe))
    settings = LoopSettings(
        seed=options.seed,
        accumulate=options.accumulate,
        precision=precision_of(options),
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
        **settings_of(options, recipe, preset),
        "data": test.name,
        "precision": settings.precision,
        "processes": processes,
        "samples": digest_of(training, validation),
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
        network = build_network(recipe.model, seed_of_weights(options.seed))
        start = initialise(network, initial)
        words = vocabulary(recipe.model.size.max_tokens)
        network.prepare(words.tokens_of)
        preparer = Preparer(training, recipe.model, recipe.augmentation, words, synonyms, stop_words, options.seed)
    say(start)
    if len(training):
        tell_cut(words, training, say)
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
        costs.parameters, costs.start, costs.test = _count(network), start, digest_of(test)
        watch = Watch(folder, recipe.epochs, main_process, clock, costs, cli.Bar("training", unit="steps"))
        try:
            if len(training):
                observers = looked_into(watch.observers(), network, held, words, folder, clock)
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
                who = {"weights": name, **whose_figures(about)}
                where = folder / EVALUATION / name
                spent = judge(folder / name, where, test, evaluation, who, as_it_is, options)
                costs.query_milliseconds[name] = round(spent, 3)
        clock.lap("evaluation")
        tell_times(folder, clock.seconds)
        costs.finished = True
        write_costs(folder, costs)
    return cli.DONE


def _count(network: Any) -> int:
    return sum(each.numel() for each in network.parameters())


def _sets(options: argparse.Namespace, recipe: Recipe, processes: int) -> tuple[SampleSet, SampleSet, SampleSet]:
    """What is trained on, what is held out of it by source, and the test split. Raises UserError where one is not fit
    for the recipe."""
    from pipeline.training.samples import drawn, load_samples, parted_by_source

    test = test_set(options)
    if is_dual(recipe.name) and not options.finetune:
        return test.of(()), test.of(()), test
    data = load_samples(options.data, "train", hard=recipe.model.ihnm != "off")
    training, validation = parted_by_source(drawn(data.samples, options.fraction), options.validation)
    if options.fraction:
        _check_data(data, training, options, processes)
    for each in (data, test):
        _check_poses(each, recipe)
    return data.of(training), data.of(validation), test


def _check_data(data: SampleSet, training: Sequence[Sample], options: argparse.Namespace, processes: int) -> None:
    """A batch is two samples with different matches in each process, so that every sample has a negative."""
    wanted = 2 * processes
    if len({each.match for each in training}) >= wanted:
        return
    there = f"{data.name}: its train split has {records_in_words(len(data))}"
    if len(data) > len(training):
        there += (
            f", of which {len(training)} are left to train on (--fraction {options.fraction:g}, "
            f"--validation {options.validation:g})"
        )
    raise UserError(
        f"{there}; {wanted} with different ids are needed at least: give more data, or hold less of it back"
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


if __name__ == "__main__":
    raise SystemExit(main())
