from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from pipeline.core.errors import UserError
from pipeline.models.config import SIZES, CmpOptions, ImageSize, Recipe, SedaOptions
from pipeline.models.recipes import RECIPES, changed, recipe_named, reproduce, with_size
from tests.models.golden import golden

ROMAN = ("0", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X")


def test_every_experiment_of_both_papers_has_a_recipe():
    own = [name for name in RECIPES if RECIPES[name].model.model in ("cmp", "seda")]
    assert own == ["baseline", "m1", "m2", "cmp", "seda", *(f"seda-{each}" for each in ROMAN)]
    assert all(RECIPES[name].rows for name in own)


def test_every_experiment_of_gradco_has_a_recipe():
    removed = ("anchors", "dir", "similarity", "feature", "intent", "matching", "contrast")
    assert [name for name in RECIPES if RECIPES[name].model.model == "gradco"] == [
        "gradco",
        *(f"gradco-D{number}" for number in range(1, 7)),
        *(f"gradco-no-{each}" for each in removed),
        *(f"gradco-K{count}" for count in (1, 2, 6, 8)),
        *(f"gradco-gamma{each}" for each in ("0", "0.1", "1", "2")),
    ]
    assert [(row.train_pairs, row.r1, row.map) for row in RECIPES["gradco"].rows] == [
        ("0.1M", 85.39, 92.13),
        ("1M", 86.60, 92.88),
    ]
    with pytest.raises(UserError, match="no published code"):
        reproduce(RECIPES["gradco"], "published")


def test_the_four_steps_of_cmp_differ_in_pose_and_hard_negatives_alone():
    full = RECIPES["cmp"].model
    for name, pose, ihnm in (("baseline", False, "off"), ("m1", False, "extra"), ("m2", True, "off")):
        assert RECIPES[name].model == changed(full, {"pose": pose, "ihnm": ihnm})


def test_the_ablations_of_seda_are_what_their_rows_say():
    def model(numeral: str) -> SedaOptions:
        options = RECIPES[f"seda-{numeral}"].model
        assert isinstance(options, SedaOptions)
        return options

    assert RECIPES["seda-0"].model == RECIPES["cmp"].model
    assert [model(each).stp.weighting for each in ROMAN[1:4]] == ["softmax", "cross_attention", "sigmoid"]
    assert not any(model(each).itm_sem.enabled for each in ROMAN[1:5])
    assert [model(each).fd.enabled for each in ROMAN[1:6]] == [True, True, True, False, True]
    assert model("V") == model("X") == RECIPES["seda"].model
    assert model("IX").factors == ("appearance", "action")


def test_generations_are_told_apart():
    assert {row.generation for row in RECIPES["cmp"].rows} == {1, 2}
    assert {row.generation for name, recipe in RECIPES.items() if "seda" in name for row in recipe.rows} == {2}


def test_published_is_the_code_with_its_faults():
    cmp, seda = (reproduce(RECIPES[name], "published") for name in ("cmp", "seda"))
    for recipe, world in ((cmp, 4), (seda, 2)):
        assert recipe.model.mlm.mask_pad
        assert recipe.model.gather_gradients == "local"
        assert recipe.augmentation.independent
        assert (recipe.evaluation.fusion, recipe.evaluation.ref_world) == ("ref_world", world)
        assert recipe.model.label_smooth == golden("cmp_tiny")[0]["config"]["label_smooth"]
    assert isinstance(seda.model, SedaOptions)
    assert seda.model.stp.bn_on_subcaptions
    assert not seda.model.mlm.tie
    assert cmp.model.mlm.tie


def test_paper_is_the_equations():
    cmp, seda = (reproduce(RECIPES[name], "paper") for name in ("cmp", "seda"))
    assert isinstance(seda.model, SedaOptions)
    assert seda.model.fd.form == "infonce_anchor"
    for recipe in (cmp, seda):
        assert (recipe.model.pool, recipe.model.ihnm, recipe.model.label_smooth) == ("avg_cls", "replace", 0)
        assert (recipe.optimiser.schedule, recipe.optimiser.lr_end) == ("linear_floor", 1e-5)
        assert (recipe.evaluation.fusion, recipe.evaluation.top_k) == ("itm_only", 128)
        assert not recipe.model.mlm.mask_pad
        assert recipe.model.mlm.max_masks is None
    assert reproduce(RECIPES["m2"], "paper").model.ihnm == "off"


def test_no_mode_changes_nothing_and_another_is_an_error():
    assert reproduce(RECIPES["cmp"], None) is RECIPES["cmp"]
    with pytest.raises(UserError, match="published and paper"):
        reproduce(RECIPES["cmp"], "code")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("mode", [None, "published", "paper"])
def test_a_recipe_comes_back_from_json_as_it_was(name, mode):
    if mode and name.startswith("gradco"):
        pytest.skip("has no modes")
    recipe = with_size(reproduce(RECIPES[name], mode), SIZES["small"])
    assert Recipe.model_validate_json(recipe.model_dump_json()) == recipe


def test_names_are_found_in_any_case_and_unknown_ones_listed():
    assert recipe_named("SEDA-iii") is RECIPES["seda-III"]
    with pytest.raises(UserError, match="baseline, m1"):
        recipe_named("m3")
    with pytest.raises(UserError, match="no option 'poes'"):
        changed(CmpOptions(), {"poes": True})


def test_options_are_checked_when_they_are_changed():
    with pytest.raises(ValidationError):
        changed(CmpOptions(), {"label_smooth": 2})
    with pytest.raises(ValidationError, match="in this order"):
        changed(SedaOptions(), {"factors": ("action", "appearance")})
    with pytest.raises(ValidationError, match="whole windows"):
        ImageSize(image_size=128)
    with pytest.raises(ValidationError):
        CmpOptions().pose = False  # type: ignore[misc]


def test_listing_recipes_loads_no_torch():
    code = "import sys, pipeline.models.recipes, pipeline.models.masking; print('torch' in sys.modules)"
    output = subprocess.check_output([sys.executable, "-c", code], cwd=Path(__file__).parents[2], text=True)
    assert output.strip() == "False"
