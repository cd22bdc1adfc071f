"""The experiments of the papers by name, each a change to a model's configuration, and the modes they run in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pipeline.core.errors import UserError
from pipeline.models.config import (
    FACTORS,
    STREAMS,
    AugmentationOptions,
    CmpOptions,
    DualOptions,
    EvaluationOptions,
    Factor,
    GradcoOptions,
    LightairOptions,
    OptimiserOptions,
    PaperRow,
    Recipe,
    SedaOptions,
    Size,
)

Mode = Literal["published", "paper"]

CMP_WORLD_SIZE = 4
SEDA_WORLD_SIZE = 2
"""Processes that the published evaluations ran in; their number is part of the published scores."""


def changed(options: Any, changes: Mapping[str, Any]) -> Any:
    """A validated copy of an option group with some options changed; a dotted name reaches into a nested group.

    >>> changed(CmpOptions(), {"mlm.mask_pad": True}).mlm.mask_pad
    True
    """
    for name, value in changes.items():
        head, _, rest = name.partition(".")
        if head not in type(options).model_fields:
            raise UserError(f"{type(options).__name__} has no option {head!r}: {', '.join(type(options).model_fields)}")
        if rest:
            value = changed(getattr(options, head), {rest: value})
        values = {each: getattr(options, each) for each in type(options).model_fields}
        options = type(options).model_validate({**values, head: value})
    return options


def reproduce(recipe: Recipe, mode: Mode | None) -> Recipe:
    """The recipe in a mode: None as it is (faults mended), `published` with the published code's faults, `paper` with
    the papers' equations where they differ from the code."""
    if mode is None:
        return recipe
    if isinstance(recipe.model, DualOptions):
        raise UserError(f"--reproduce: {recipe.name} is nobody's recipe, it has no published code here to follow")
    if isinstance(recipe.model, GradcoOptions):
        raise UserError("--reproduce: GradCO has no published code, and its paper no equations that differ from this")
    seda = isinstance(recipe.model, SedaOptions)
    if mode == "published":
        changes: dict[str, Any] = {
            "model.mlm.mask_pad": True,
            "model.gather_gradients": "local",
            "augmentation.independent": True,
            "augmentation.erase_pose": True,
            "augmentation.shared_flip": False,
            "augmentation.swap_sides": False,
            "evaluation.fusion": "ref_world",
            "evaluation.ref_world": SEDA_WORLD_SIZE if seda else CMP_WORLD_SIZE,
        }
        if seda:
            changes |= {"model.mlm.tie": False, "model.stp.bn_on_subcaptions": True}
        if isinstance(recipe.model, LightairOptions):
            # Its evaluation is right in one process alone.
            changes |= {
                "model.codebook.rectify": "detach_projection",
                "model.codebook.eval_mode": False,
                "evaluation.fusion": "single",
                "evaluation.ref_world": 1,
            }
    elif mode == "paper" and isinstance(recipe.model, LightairOptions):
        changes = {"model.codebook.rectify": "detach_pi", "model.mlm.mask_pad": False}
    elif mode == "paper":
        changes = {
            "model.pool": "avg_cls",
            "model.pose_conv": False,
            "model.label_smooth": 0.0,
            "model.mlm.mask_pad": False,
            "model.mlm.max_masks": None,
            "optimiser.schedule": "linear_floor",
            "evaluation.fusion": "itm_only",
        }
        if recipe.model.ihnm == "extra":
            changes["model.ihnm"] = "replace"
        if seda:
            changes["model.fd.form"] = "infonce_anchor"
    else:
        raise UserError(f"no such mode: {mode!r}; there are published and paper")
    return changed(recipe, changes)


def with_size(recipe: Recipe, size: Size) -> Recipe:
    """The same recipe for a network of another size."""
    return changed(recipe, {"model.size": size})


def recipe_named(name: str) -> Recipe:
    """A recipe of `RECIPES`, whatever the case of its name; UserError naming all of them when there is none."""
    wanted = {each.lower(): recipe for each, recipe in RECIPES.items()}.get(name.lower())
    if wanted is None:
        raise UserError(f"no such recipe: {name!r}; there are {', '.join(RECIPES)}")
    return wanted


DUAL_PREFIX = "hf:"
"""Of the names of other people's dual encoders: `hf:openai/clip-vit-base-patch16`, `hf:FOLDER`."""


def shown_name(weights: str) -> str:
    """A dual encoder's name as others may read it: of a folder its last part, whatever lies above it."""
    return Path(weights).resolve().name if Path(weights).is_dir() else weights


def dual_recipe(name: str, finetuned: bool) -> Recipe:
    """Fine-tuning of `hf:NAME` on pairs of image and caption, or, not `finetuned`, the model as it is."""
    weights = name.removeprefix(DUAL_PREFIX).strip()
    if not weights:
        raise UserError(f"--model {name}: name a model of the hub or a folder, e.g. hf:openai/clip-vit-base-patch16")
    return Recipe(
        name=f"{DUAL_PREFIX}{weights}",
        title=f"{shown_name(weights)} of transformers, {'fine-tuned' if finetuned else 'zero-shot'}",
        model=DualOptions(weights=weights),
        optimiser=OptimiserOptions(lr=1e-5, lr_multiple=1.0, schedule="linear", warmup=0.1),
        augmentation=AugmentationOptions(erase_prob=0.0),
        evaluation=EvaluationOptions(fusion="similarity"),
        epochs=10,
        init="none",
    )


def _row(
    train_pairs: Literal["0.1M", "1M"],
    *numbers: float,
    generation: Literal[1, 2] = 2,
    note: str = "",
    **named: float,
) -> PaperRow:
    names = ("r1", "r5", "r10", "map")
    values = dict(zip(names, numbers, strict=False)) | named
    return PaperRow(generation=generation, train_pairs=train_pairs, note=note, **values)


def _cmp(name: str, title: str, rows: tuple[PaperRow, ...], **changes: Any) -> Recipe:
    return Recipe(name=name, title=title, model=changed(CmpOptions(), changes), rows=rows)


def _seda(name: str, title: str, row: PaperRow, changes: Mapping[str, Any], *more: PaperRow) -> Recipe:
    return Recipe(name=name, title=title, model=changed(SedaOptions(), changes), rows=(row, *more))


def _gradco(name: str, title: str, rows: tuple[PaperRow, ...] = (), **changes: Any) -> Recipe:
    """changes: of options, `__` standing for the dot between a group and its option."""
    return Recipe(
        name=name,
        title=title,
        model=changed(GradcoOptions(), {each.replace("__", "."): value for each, value in changes.items()}),
        optimiser=OptimiserOptions(lr=2e-5),
        epochs=10,
        init="x2vlm",
        rows=rows,
    )


def _lightair() -> Recipe:
    return Recipe(
        name="lightair",
        title="LightAIR: actions told in a codebook and taken out of appearance",
        model=LightairOptions(),
        optimiser=OptimiserOptions(lr=2e-5),
        epochs=20,
        init="x2vlm",
        rows=(
            _row("1M", r1=85.49, r5=99.65, map=92.20, note=f"{_LEADERBOARD}; its R@10 of 99.99 no 1,978 queries give"),
        ),
    )


def _without(removed: str) -> tuple[str, ...]:
    return tuple(each for each in STREAMS if each != removed)


def _factors(*names: Factor) -> dict[str, Any]:
    return {"factors": names}


_LEADERBOARD = "the benchmark's leaderboard; training size inferred"
_CMP_01M = _row("0.1M", 83.06, 98.89, 99.49, 90.41)
_SEDA_01M = _row("0.1M", 85.14, 99.24, 99.80, 91.83)
_NO_MATCHING: dict[str, Any] = {"itm_sem.enabled": False}
_SEDA_TITLE = "SeDA: factors of image and caption, tied to caption parts"

_RECIPES = (
    _cmp(
        "baseline",
        "CMP without pose encoding and without identity-based hard negatives",
        (_row("0.1M", 69.92, 95.60, 97.32, 81.53, generation=1), _row("1M", 83.47, note=_LEADERBOARD)),
        pose=False,
        ihnm="off",
    ),
    _cmp(
        "m1",
        "M1: the baseline with identity-based hard negatives (IHNM)",
        (_row("0.1M", 72.25, 95.91, 98.03, 83.07, generation=1), _row("1M", 84.48, note=_LEADERBOARD)),
        pose=False,
    ),
    _cmp(
        "m2",
        "M2: the baseline with pose encoding (PE)",
        (_row("0.1M", 71.79, 95.40, 97.83, 82.79, generation=1), _row("1M", 84.13, note=_LEADERBOARD)),
        ihnm="off",
    ),
    _cmp(
        "cmp",
        "CMP: pose encoding and identity-based hard negatives",
        (
            _row("0.1M", 72.80, 96.01, 97.47, 83.47, generation=1),
            _row("1M", 79.53, 97.93, 98.84, 88.17, generation=1),
            _CMP_01M,
            _row("1M", 84.93, 99.09, 99.75, 91.66),
        ),
    ),
    _seda("seda", _SEDA_TITLE, _SEDA_01M, {}, _row("1M", 86.45, 99.44, 99.85, 92.59)),
    _cmp("seda-0", "SeDA's ablation 0: CMP", (_CMP_01M,)),
    _seda(
        "seda-I",
        "SeDA's ablation I: softmax over the tokens, without matching of caption parts",
        _row("0.1M", 83.82, 99.04, 99.65, 90.95),
        {**_NO_MATCHING, "stp.weighting": "softmax"},
    ),
    _seda(
        "seda-II",
        "SeDA's ablation II: cross-attention to the tokens, without matching of caption parts",
        _row("0.1M", 83.92, 98.94, 99.44, 90.92),
        {**_NO_MATCHING, "stp.weighting": "cross_attention"},
    ),
    _seda(
        "seda-III",
        "SeDA's ablation III: sigmoid weights, without matching of caption parts",
        _row("0.1M", 84.78, 99.04, 99.59, 91.54),
        _NO_MATCHING,
    ),
    _seda(
        "seda-IV",
        "SeDA's ablation IV: as III, without the factor loss",
        _row("0.1M", 83.15, 99.09, 99.39, 90.52),
        {**_NO_MATCHING, "fd.enabled": False},
    ),
    _seda("seda-V", "SeDA's ablation V: all of SeDA", _SEDA_01M, {}),
    _seda(
        "seda-VI",
        "SeDA's ablation VI: appearance only",
        _row("0.1M", 83.67, 98.43, 98.69, 90.64),
        _factors("appearance"),
    ),
    _seda("seda-VII", "SeDA's ablation VII: action only", _row("0.1M", 83.92, 97.42, 97.92, 90.39), _factors("action")),
    _seda(
        "seda-VIII",
        "SeDA's ablation VIII: background only",
        _row("0.1M", 82.10, 97.07, 97.52, 89.33),
        _factors("background"),
    ),
    _seda(
        "seda-IX",
        "SeDA's ablation IX: appearance and action",
        _row("0.1M", 84.50, 98.94, 99.34, 91.41),
        _factors("appearance", "action"),
    ),
    _seda("seda-X", "SeDA's ablation X: all three factors", _SEDA_01M, _factors(*FACTORS)),
    _lightair(),
    _gradco(
        "gradco",
        "GradCO: expert streams, offload anchors, weights read from the query",
        (
            _row("0.1M", r1=85.39, map=92.13),
            _row("1M", r1=86.60, r10=99.75, map=92.88, note="told as gains over CMP, R@10 as equal to it"),
        ),
    ),
    *(
        _gradco(f"gradco-D{number}", f"GradCO's ablation D{number}: without the {stream} stream",
                bmoe__streams=_without(stream))
        for number, stream in enumerate(STREAMS, start=1)
    ),
    _gradco(
        "gradco-D4",
        "GradCO's ablation D4: without image-side experts (UCC-Avg 62.95, all of GradCO 76.08)",
        bmoe__image_experts=False,
    ),
    _gradco(
        "gradco-D5",
        "GradCO's ablation D5: without text-side experts (UCC-Avg 63.13, all of GradCO 76.08)",
        bmoe__text_experts=False,
    ),
    _gradco(
        "gradco-D6",
        "GradCO's ablation D6: without experts (UCC-Avg 62.60, all of GradCO 76.08)",
        bmoe__image_experts=False,
        bmoe__text_experts=False,
    ),
    _gradco(
        "gradco-no-anchors",
        "GradCO without offload anchors (UCC-Avg 55.43, all of GradCO 76.08)",
        col__anchors=False,
    ),
    _gradco(
        "gradco-no-dir",
        "GradCO without the direction regulariser (UCC-Avg 70.58, all of GradCO 76.08)",
        col__gamma=0.0,
    ),
    _gradco(
        "gradco-no-similarity",
        "GradCO without weighing similarities (PAB-Avg lower by 4.69)",
        hia__similarity=False,
    ),
    _gradco("gradco-no-feature", "GradCO without weighing tokens for matching", hia__feature=False),
    _gradco("gradco-no-intent", "GradCO with streams that all count alike", hia__intent=False),
    _gradco(
        "gradco-no-matching",
        "GradCO without matching (PAB-Avg 83.70, weather 47.66, UCC-Avg 56.86)",
        hia__matching=False,
    ),
    _gradco("gradco-no-contrast", "GradCO without the contrastive loss (nearly collapses)", hia__contrast=False),
    *(
        _gradco(f"gradco-K{count}", f"GradCO with {count} sub-expert{'s' * (count > 1)} a stream (4 in GradCO)",
                bmoe__experts=count)
        for count in (1, 2, 6, 8)
    ),
    *(
        _gradco(f"gradco-gamma{gamma:g}", f"GradCO with the direction regulariser times {gamma:g} (0.5 in GradCO)",
                col__gamma=gamma)
        for gamma in (0.0, 0.1, 1.0, 2.0)
    ),
)  # fmt: skip

RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in _RECIPES}
"""All recipes by name: `baseline`, `m1`, `m2`, `cmp`, `seda`, SeDA's ablations `seda-0` to `seda-X`, `lightair`,
`gradco`, and its ablations."""
