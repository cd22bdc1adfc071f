from pathlib import Path

import pytest

from pipeline.core.errors import UserError
from pipeline.models.recipes import recipe_named, reproduce
from pipeline.training.presets import InitialWeights, parse_initial, preset_for, with_preset


def test_auto_is_small_without_a_gpu(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert preset_for("auto") == "small"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert preset_for("auto") == "paper"
    with pytest.raises(UserError, match="there are auto, paper, small"):
        preset_for("huge")


@pytest.mark.parametrize("name", ["baseline", "m1", "cmp", "seda", "seda-II", "seda-IX"])
def test_a_preset_changes_the_size_and_not_the_method(name):
    paper = recipe_named(name)
    small = with_preset(paper, "small")
    assert with_preset(paper, "paper") == paper
    same = {"ihnm", "pose", "factors", "fd", "itm_sem", "label_smooth", "eda_weight", "pool"}
    for option in same & set(type(paper.model).model_fields):
        assert getattr(small.model, option) == getattr(paper.model, option), option
    if name.startswith("seda"):  # padding is left out of the sums over tokens, which saves encoding it
        assert small.model.stp.mask_pad
        assert small.model.stp.weighting == paper.model.stp.weighting
    assert small.model.size.image.image_size < paper.model.size.image.image_size


@pytest.mark.parametrize("mode", ["published", "paper"])
def test_a_mode_ranks_as_its_source_did_at_any_size(mode):
    small = reproduce(with_preset(recipe_named("cmp"), "small"), mode)
    assert small.evaluation.fusion == {"published": "ref_world", "paper": "itm_only"}[mode]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("none", InitialWeights("none")),
        ("minilm", InitialWeights("minilm")),
        ("xvlm16m:/w/x.th", InitialWeights("xvlm16m", Path("/w/x.th"))),
    ],
)
def test_initial_weights_are_named_with_their_file(text, expected):
    assert parse_initial(text) == expected


@pytest.mark.parametrize("text", ["", "xvlm16m", "minilm:file", "bert"])
def test_other_initial_weights_are_told_what_there_is(text):
    with pytest.raises(UserError, match="use minilm"):
        parse_initial(text)
