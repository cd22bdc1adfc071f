"""The options of pipeline.train_eval and what they come to: a recipe, the run's settings and folder, how it is scored.

Nothing here trains or evaluates, and data is read for digests alone: runs are planned without loading torch.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core.errors import UserError

if TYPE_CHECKING:
    from pipeline.models.config import Recipe
    from pipeline.training.evaluate import EvaluationSettings
    from pipeline.training.samples import SampleSet

DEFAULT_DATA = "./out/pab"
SEVERAL_PROCESSES = """\
Several processes, each with its share of every batch's samples (--batch-size is that of one):
  accelerate launch --multi_gpu --num_processes 4 -m pipeline.train_eval --model seda
  torchrun --nproc-per-node 2 -m pipeline.train_eval --model seda          (also on CPUs)
"""
_SEED_OF_WEIGHTS = "weights"


def parser() -> argparse.ArgumentParser:
    """The options of the command, by what they are for."""
    made = argparse.ArgumentParser(
        prog="python -m pipeline.train_eval",
        description="Trains and evaluates a model on a published dataset.",
        epilog=SEVERAL_PROCESSES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = made.add_argument_group("what")
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
        "--set 'model.size={name: mine, image: {image_size: 64}}'; @FILE takes the value from a YAML file",
    )
    how = made.add_argument_group("how")
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
    judged = made.add_argument_group("evaluation")
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
    several = made.add_argument_group("several runs (each a process and a folder of its own; repeat it to go on)")
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
    named = made.add_argument_group("published names")
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
    return made


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options (None: those of this process); a dual encoder that is not fine-tuned is trained on nothing."""
    options = parser().parse_args(arguments)
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


def check_numbers(options: argparse.Namespace) -> None:
    """Raises UserError for a share or a number that is out of its range."""
    if not 0 <= options.fraction <= 1:
        raise UserError(f"--fraction {options.fraction}: a share from 0 to 1")
    if not 0 <= options.validation < 1:
        raise UserError(f"--validation {options.validation}: a share of the sources, from 0 to below 1")
    for name, least in (("accumulate", 1), ("save_every", 0), ("workers", 0), ("threads", 1)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise UserError(f"--{name.replace('_', '-')} {value}: at least {least}")


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
        if value.startswith("@"):
            try:
                value = Path(value[1:]).read_text("utf-8")
            except (OSError, ValueError) as error:
                why = getattr(error, "strerror", None) or "no UTF-8 text"
                raise UserError(f"--set {text}: {value[1:]} cannot be read ({why})") from None
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
    """Where a run's files go: what --out says, else a folder under runs/."""
    if options.out is not None:
        return Path(options.out)
    if not is_dual(recipe.name):
        return Path("runs") / f"{recipe.name}-{preset}-seed{options.seed}"
    parts = [part for part in recipe.name.partition(":")[2].split("/") if part.strip(".")]
    name = "-".join(["hf", *parts[-2:]])
    return Path("runs") / (f"{name}-{preset}-seed{options.seed}" if options.finetune else f"{name}-zero-shot")


def folder_of(arguments: Sequence[str]) -> Path:
    """Where the files of a run with these arguments go. Raises UserError for a recipe that there is not."""
    options = parsed(arguments)
    return run_folder(options, *recipe_of(options))


def planned(arguments: Sequence[str]) -> tuple[dict[str, Any], str, int]:
    """What a run with these arguments would be: the settings that its folder will hold, as far as they are known before
    the data is read, the fusion's name, and how many candidates are matched. Raises UserError as the run would."""
    options = parsed(arguments)
    check_numbers(options)
    recipe, preset = recipe_of(options)
    scoring = _scoring(options, recipe)
    return settings_of(options, recipe, preset), scoring["fusion"].name, scoring["top_k"]


def settings_of(options: argparse.Namespace, recipe: Recipe, preset: str) -> dict[str, Any]:
    """What a run's folder tells of its settings, as far as they are known before the data is read."""
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


def digests_of(arguments: Sequence[str]) -> tuple[str, str]:
    """(what a run with these arguments would be trained on, what it would be tested on), as they are now."""
    from pipeline.training.samples import drawn, load_samples, parted_by_source

    options = parsed(arguments)
    if is_dual(options.model) and not options.finetune:
        return digest_of(), digest_of(load_samples(options.data, "test"))
    data = load_samples(options.data, "train", hard=recipe_of(options)[0].model.ihnm != "off")
    parts = parted_by_source(drawn(data.samples, options.fraction), options.validation)
    return digest_of(*(data.of(each) for each in parts)), digest_of(load_samples(options.data, "test"))


def digest_of(*sets: SampleSet) -> str:
    """Hex digits that change with these sets, so that a run is not gone on with over a dataset that was built anew."""
    lines = [
        f"{part}\t{each.id}\t{''.join(each.captions[:1])}" for part, own in enumerate(sets) for each in own.samples
    ]
    lines += [f"{part}\t{each.id}\t{each.text}" for part, own in enumerate(sets) for each in own.queries]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def evaluation_settings(options: argparse.Namespace, recipe: Recipe) -> EvaluationSettings:
    """How the run's weights are evaluated: as the options say, else as the recipe does. Raises UserError."""
    from pipeline.training.evaluate import EvaluationSettings

    return EvaluationSettings(**_scoring(options, recipe))


def _scoring(options: argparse.Namespace, recipe: Recipe) -> dict[str, Any]:
    """fusion and top_k: what the options say, else the recipe."""
    from pipeline.retrieval.fusion import Fusion

    own = recipe.evaluation
    fusion = Fusion(own.fusion, own.ref_world if own.fusion == "ref_world" else 1, own.itc_weight)
    found = {"top_k": own.top_k, "fusion": fusion, **given_scoring(options)}
    if is_dual(recipe.name) and found["fusion"].matches:
        raise UserError(f"fusion {found['fusion'].name}: {recipe.name} has no matching head, so similarity alone ranks")
    return found if found["fusion"].matches else {**found, "top_k": 0}


def given_scoring(options: argparse.Namespace) -> dict[str, Any]:
    """fusion and top_k, as far as the options say them. Raises UserError."""
    from pipeline.retrieval.fusion import parse_fusion

    found: dict[str, Any] = {}
    if options.fusion is not None:
        found["fusion"] = parse_fusion(options.fusion)
    if options.top_k is not None:
        if options.top_k < 1:
            raise UserError(f"--top-k {options.top_k}: at least one candidate")
        found["top_k"] = options.top_k
    return found


def processes_together() -> Any:
    """The processes that this one was started with: `num_processes`, `is_main_process`."""
    import torch
    from accelerate import PartialState

    return PartialState(cpu=not torch.cuda.is_available())


def precision_of(options: argparse.Namespace) -> str:
    """`bf16` or `no`; `auto` is bf16 with a GPU."""
    import torch

    if options.precision != "auto":
        return str(options.precision)
    return "bf16" if torch.cuda.is_available() else "no"


def set_threads(options: argparse.Namespace) -> None:
    """Hold torch to the threads that the options name, if any."""
    import torch

    if options.threads is not None:
        torch.set_num_threads(options.threads)


def seed_of_weights(seed: int) -> int:
    """What a network's weights are drawn from in a run of this seed."""
    from pipeline.core.seeds import seed_of

    return seed_of(_SEED_OF_WEIGHTS, seed)
