"""The parts of LightAIR; its head against recorded numbers is in test_lightair_golden.py."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pipeline.core.errors import UserError
from pipeline.models.batch import Tokens
from pipeline.models.build import load_network
from pipeline.models.config import CodebookOptions, LightairOptions, OptimiserOptions
from pipeline.models.gather import one_process
from pipeline.models.layers import unit
from pipeline.models.lightair import NO_PHRASE, ActionParts, LightAIR
from pipeline.models.losses import HardestNegatives
from pipeline.models.optimiser import parameter_groups
from pipeline.models.recipes import recipe_named, reproduce
from tests.models.small import NO_DROPOUT, PHRASES, SIZE, small_batch, small_network

EPSILON = 1e-6


def tokenised(texts) -> Tokens:
    """[CLS] and a token a letter."""
    ids = torch.zeros(len(texts), 10, dtype=torch.long)
    for row, text in enumerate(texts):
        letters = torch.tensor([1, *(5 + ord(each) % 40 for each in text)][:10])
        ids[row, : len(letters)] = letters
    return Tokens(ids, (ids != 0).long())


def lightair(prepared: bool = True, **changes) -> LightAIR:
    network = small_network("lightair", **changes)
    assert isinstance(network, LightAIR)
    if prepared:
        network.prepare(tokenised)
    return network


def losses_of(network, batch):
    return network(batch, one_process, HardestNegatives())


# -- rectification -----------------------------------------------------------------------------------------------------


def parts_of(rectify: str) -> ActionParts:
    torch.manual_seed(0)
    return ActionParts(8, 6, CodebookOptions(phrases=PHRASES, rectify=rectify))


def jacobians(rectify: str, sureness: float) -> tuple[Tensor, Tensor]:
    """(by the feature, by the direction) of what is left of one feature, (6, 6) each."""
    feature, action = unit(torch.randn(2, 6, generator=torch.Generator().manual_seed(4)))
    sure = torch.tensor([[sureness]])

    def left(feature: Tensor, action: Tensor) -> Tensor:
        return feature - parts_of(rectify)._projection(feature[None], action[None], sure)[0]

    by_feature, by_action = torch.autograd.functional.jacobian(left, (feature, action))
    return by_feature, by_action


def whole_jacobians() -> tuple[Tensor, Tensor]:
    """By the formulas: I - P, and the derivative of the projection by its direction."""
    feature, action = unit(torch.randn(2, 6, generator=torch.Generator().manual_seed(4)))
    length = action @ action + EPSILON
    along = feature @ action
    by_action = torch.outer(action, feature) / length + along / length * torch.eye(6)
    by_action = by_action - 2 * along / length**2 * torch.outer(action, action)
    return torch.eye(6) - torch.outer(action, action) / length, -by_action


@pytest.mark.parametrize(
    ("rectify", "sureness", "projected", "turned"),
    [
        ("detach_pi", 0.0, True, True),
        ("detach_pi", 1.0, True, False),
        ("detach_projection", 0.0, True, True),
        ("detach_projection", 1.0, False, False),
        ("none", 0.0, True, True),
        ("none", 1.0, True, True),
    ],
)
def test_rectification_leaves_out_the_gradient_that_it_names_where_an_image_is_sure(
    rectify, sureness, projected, turned
):
    """projected: the part along the direction gives the feature no gradient; turned: the direction has a gradient."""
    by_feature, by_action = jacobians(rectify, sureness)
    whole_feature, whole_action = whole_jacobians()
    torch.testing.assert_close(by_feature, whole_feature if projected else torch.eye(6), atol=1e-5, rtol=0)
    torch.testing.assert_close(by_action, whole_action if turned else torch.zeros(6, 6), atol=1e-5, rtol=0)


def test_rectification_changes_no_value():
    found = []
    for rectify in ("detach_pi", "detach_projection", "none"):
        generator = torch.Generator().manual_seed(1)
        first, feature = torch.randn(3, 8, generator=generator), torch.randn(3, 6, generator=generator)
        found.append(parts_of(rectify)(first, feature, unit(torch.randn(4, 6, generator=generator))))
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            torch.testing.assert_close(one, two)


def test_appearance_holds_nothing_of_the_action_which_few_phrases_tell():
    network = lightair(**{"codebook.top_k": 2})
    with torch.no_grad():
        found = network.decoupled(network.image_encoder(small_batch().images))
    assert torch.allclose((found.action * found.appearance).sum(dim=1), torch.zeros(4), atol=1e-4)
    for action, logits in zip(found.action, found.logits, strict=True):
        best = logits.topk(2)
        told = (best.values / 0.1).softmax(dim=0) @ network.codebook[best.indices]
        torch.testing.assert_close(action, unit(told))


# -- the codebook ------------------------------------------------------------------------------------------------------


def test_the_codebook_is_the_phrases_as_captions_are_encoded_without_dropout():
    network = lightair(prepared=False, **{"size.text.dropout": 0.5}).train()
    network.prepare(tokenised)
    assert network.training
    made = network.codebook.clone()
    with torch.no_grad():
        wanted = network.eval().encode_texts(tokenised(PHRASES)).features
    torch.testing.assert_close(made, wanted)
    assert not made.requires_grad


def test_the_published_way_encodes_phrases_with_dropout():
    network = lightair(**{"size.text.dropout": 0.5, "codebook.eval_mode": False})
    with torch.no_grad():
        assert not torch.allclose(network.codebook, network.encode_texts(tokenised(PHRASES)).features, atol=1e-2)


@pytest.mark.parametrize(("every", "made"), [(0, []), (2, [2, 4]), (1, [1, 2, 3, 4])])
def test_the_codebook_is_made_anew_after_as_many_epochs_as_asked(every, made):
    network, seen = lightair(**{"codebook.refresh_epochs": every}), []
    for epoch in range(5):
        network.codebook.zero_()
        network.begin_epoch(epoch)
        if network.codebook.any():
            seen.append(epoch)
    assert seen == made


def test_a_saved_network_brings_phrases_and_codebook(tmp_path):
    network = lightair()
    network.save_pretrained(tmp_path)
    again = load_network(tmp_path)
    assert isinstance(again, LightAIR)
    assert again.options.codebook.phrases == PHRASES
    assert torch.equal(again.codebook, network.codebook)
    with torch.no_grad():
        images = small_batch().images
        assert torch.equal(again.encode_images(images).features, network.encode_images(images).features)


def test_without_phrases_it_is_told_what_to_do():
    with pytest.raises(UserError, match=r"--set 'model\.codebook\.phrases="):
        LightAIR(LightairOptions(size=SIZE))


@pytest.mark.parametrize(("mode", "other"), [("raw", "mapper_projected"), ("projected", "mapper")])
def test_there_is_one_mapper_the_one_that_is_used(mode, other):
    network = lightair(**{"codebook.input": mode})
    assert getattr(network.action_parts, other) is None
    losses_of(network.train(), small_batch()).total.backward()
    learning = {name: each for name, each in network.named_parameters() if each.requires_grad}
    assert not [name for name, each in learning.items() if each.grad is None]
    assert {name for name, _ in network.named_parameters()} - set(learning) == {
        name for name, _ in network.named_parameters() if name.startswith("language_head.")
    }


# -- losses ------------------------------------------------------------------------------------------------------------


def test_the_terms_add_up_with_their_weights():
    network = lightair(**NO_DROPOUT, eda_weight=0.5, cls_weight=3.0, itm_weight=2.0)
    found = losses_of(network, small_batch())
    terms = {name: float(each) for name, each in found.terms.items()}
    assert set(terms) == {"itc", "itc_eda", "action", "itm", "itm_eda", "itm_hard", "mlm"}
    contrast = terms["itc"] + 0.5 * terms["itc_eda"] + 3 * terms["action"]
    matching = 2 * (terms["itm"] + 0.5 * terms["itm_eda"] + terms["itm_hard"])
    assert float(found.itc.detach()) == pytest.approx(contrast, rel=1e-5)
    assert float(found.itm.detach()) == pytest.approx(matching, rel=1e-5)
    assert terms["mlm"] == 0


def test_masked_captions_count_where_that_is_asked():
    network = lightair(**NO_DROPOUT, mlm_weight=0.5)
    found = losses_of(network, small_batch())
    whole = losses_of(lightair(**NO_DROPOUT, mlm_weight=1.0), small_batch())
    assert float(found.mlm.detach()) == pytest.approx(0.5 * float(whole.mlm.detach()), rel=1e-5)
    assert float(found.mlm.detach()) > 0


@pytest.mark.parametrize("target", ["query", "codebook"])
def test_the_action_loss_is_over_samples_whose_label_is_a_phrase(target):
    network = lightair(**{"codebook.target": target})
    generator = torch.Generator().manual_seed(2)
    actions, texts = unit(torch.randn(2, 4, SIZE.feature_width, generator=generator))
    actions, texts = actions.requires_grad_(), texts.requires_grad_()
    labels = torch.tensor([2, NO_PHRASE, 0, NO_PHRASE])
    loss = network.action_loss(actions, texts, labels)
    wanted = [texts[0], texts[2]] if target == "query" else [network.codebook[2], network.codebook[0]]
    each = [1 - functional.cosine_similarity(actions[row], to, dim=0) for row, to in zip((0, 2), wanted, strict=True)]
    assert float(loss.detach()) == pytest.approx(float(torch.stack(each).mean()), rel=1e-5)
    loss.backward()
    assert texts.grad is None
    assert actions.grad is not None
    assert actions.grad[0].any()
    assert not actions.grad[1].any()


def test_without_a_known_label_the_action_loss_is_zero_and_everything_still_has_a_gradient():
    network = lightair().train()
    found = losses_of(network, replace(small_batch(), actions=torch.full((4,), NO_PHRASE)))
    assert float(found.terms["action"]) == 0
    found.total.backward()
    assert not [name for name, each in network.named_parameters() if each.requires_grad and each.grad is None]


def test_padding_counts_for_nothing():
    network = lightair()
    texts = tokenised(["running", "to"])
    longer = Tokens(*(functional.pad(each, (0, 4)) for each in (texts.ids, texts.mask)))
    with torch.no_grad():
        short, long = network.encode_texts(texts).features, network.encode_texts(longer).features
    torch.testing.assert_close(short, long, atol=1e-5, rtol=0)


# -- how it is trained -------------------------------------------------------------------------------------------------


def test_what_x2vlm_does_not_have_learns_at_the_multiple_and_the_rest_does_not():
    from tests.models.test_beit import network_of

    groups = parameter_groups(network_of(1), OptimiserOptions(lr=2e-5))
    rate = {name: group["lr"] for group in groups for name in group["names"]}
    assert {name for name, each in rate.items() if each == 4e-5} == {
        name for name in rate if name.startswith("action_parts.")
    }
    assert set(rate.values()) == {2e-5, 4e-5}


def test_the_modes_differ_in_what_the_code_and_the_paper_differ_in():
    recipe = recipe_named("lightair")
    model = recipe.model
    assert isinstance(model, LightairOptions)
    assert (model.itm_weight, model.cls_weight, model.mlm_weight, model.label_smooth) == (4, 1, 0, 0)
    assert (model.mlm.mask_prob, model.mlm.max_masks, model.size.max_tokens, model.pose) == (0.4, 12, 77, False)
    assert (recipe.optimiser.lr, recipe.optimiser.warmup, recipe.optimiser.schedule) == (2e-5, 500, "step")
    assert (recipe.epochs, recipe.batch_size, recipe.init) == (20, 22, "x2vlm")
    published, paper = reproduce(recipe, "published"), reproduce(recipe, "paper")
    assert (published.model.codebook.rectify, published.model.codebook.eval_mode) == ("detach_projection", False)
    assert published.evaluation.fusion == "single"
    assert paper.model.codebook.rectify == model.codebook.rectify == "detach_pi"
    assert (recipe.rows[0].r1, recipe.rows[0].r10) == (85.49, None)
