"""Weights of this project under the published code's names, and back.

`--export-published` and `--import-published` of pipeline.train_eval.
"""

from __future__ import annotations

import argparse

from pipeline import cli
from pipeline.core.errors import UserError
from pipeline.train_options import recipe_of, seed_of_weights


def export_published(options: argparse.Namespace) -> int:
    """`--export-published`: write a checkpoint under the published names. Returns the exit code; raises UserError."""
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


def import_published(options: argparse.Namespace) -> int:
    """`--import-published`: write published weights as a folder of this project. Returns the exit code.

    Raises UserError where they are no whole checkpoint of the recipe, or the folder holds weights already.
    """
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
    network = build_network(recipe.model, seed_of_weights(options.seed))
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
