from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.functional import pad

from pipeline.core.errors import UserError
from pipeline.models.batch import Tokens
from pipeline.models.config import FACTORS
from pipeline.models.gather import one_process
from pipeline.models.losses import DrawnNegatives, HardestNegatives
from pipeline.models.network import Losses, PairNetwork, Texts
from pipeline.models.recipes import RECIPES
from tests.models.small import NO_DROPOUT, small_batch, small_network, small_tokens

HARDEST = HardestNegatives()


def losses_of(network: PairNetwork, batch: object) -> Losses:
    result = network(batch, one_process, HARDEST)
    assert isinstance(result, Losses)
    return result


def test_the_terms_of_cmp_add_up():
    losses = losses_of(small_network(), small_batch())
    terms = {name: float(loss) for name, loss in losses.terms.items()}
    assert set(terms) == {"itc", "itc_eda", "itm", "itm_eda", "itm_hard", "mlm"}
    assert float(losses.itc.detach()) == pytest.approx(terms["itc"] + 0.8 * terms["itc_eda"], abs=1e-5)
    assert float(losses.itm.detach()) == pytest.approx(
        terms["itm"] + 0.8 * terms["itm_eda"] + terms["itm_hard"], abs=1e-5
    )
    assert torch.equal(losses.total, losses.itc + losses.itm + losses.mlm)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_trains_each_of_its_parameters(name):
    """Whoever trains in several processes may rely on it: none is left without a gradient that is not told to be."""
    options = RECIPES[name].model
    changes = {each: getattr(options, each) for each in type(options).model_fields if each not in ("size", "model")}
    network = small_network(options.model, **changes).train()
    losses_of(network, small_batch()).total.backward()
    assert not [name for name, each in network.named_parameters() if each.requires_grad and each.grad is None]


def test_switched_off_parts_are_not_there():
    plain = small_network(pose=False, ihnm="off", eda_weight=0.0)
    assert plain.pose_block is None
    assert set(losses_of(plain, replace(small_batch(), poses=None, masked=None)).terms) == {"itc", "itm", "mlm"}
    network = small_network("seda", **{"fd.enabled": False, "itm_sem.enabled": False})
    terms = losses_of(network, replace(small_batch(), parts=None)).terms
    assert not [each for each in terms if "appearance" in each]


def test_a_subset_of_factors_narrows_features_and_losses():
    network = small_network("seda", factors=("action",))
    terms = losses_of(network, small_batch()).terms
    assert {each for each in terms if each.startswith(("fd", "itm_a", "itm_b"))} == {
        "fd_img_action",
        "fd_txt_action",
        "itm_action",
    }
    assert network.image_projection.linear.in_features == 16


def test_pairs_without_a_hard_partner_are_left_out_of_the_hard_term():
    network, batch = small_network(), small_batch(4)
    rows = torch.tensor([1, 3])
    assert batch.hard is not None
    assert batch.hard.poses is not None
    hard = replace(
        batch.hard,
        rows=rows,
        images=batch.hard.images[rows],
        poses=batch.hard.poses[rows],
        captions=type(batch.captions)(batch.hard.captions.ids[rows], batch.hard.captions.mask[rows]),
    )
    some = losses_of(network, replace(batch, hard=hard)).terms
    own = torch.arange(4)
    with torch.no_grad():
        tokens = network.step_images(batch)
        texts = network.step_texts(batch)
        images = network.keys_values_of(tokens)
        hard_texts = network.match(texts.hidden_of("hard"), texts.mask_of("hard"), images, own, own)
        hard_images = network.match(texts.hidden_of("caption"), texts.mask_of("caption"), images, own, own + 4)
    no_match = [-each.log_softmax(1)[rows, 0] for each in (hard_texts, hard_images)]
    assert float(some["itm_hard"]) == pytest.approx(float(torch.cat(no_match).mean()), abs=1e-5)
    assert float(some["itm"]) == pytest.approx(float(losses_of(network, batch).terms["itm"]), abs=1e-6)
    assert "itm_hard" not in losses_of(network, replace(batch, hard=None)).terms


def test_hard_pairs_may_stand_in_place_of_in_batch_negatives():
    network, batch = small_network(ihnm="replace"), small_batch(4)
    terms = losses_of(network, batch).terms
    assert "itm_hard" not in terms
    extra = small_network(ihnm="extra")
    own = torch.arange(4)
    with torch.no_grad():
        tokens, texts = extra.step_images(batch), extra.step_texts(batch)
        images = extra.keys_values_of(tokens)
        positives = extra.match(texts.hidden_of("caption"), texts.mask_of("caption"), images, own, own)
    matched = -positives.log_softmax(1)[:, 1].sum()
    negatives = 8 * losses_of(extra, batch).terms["itm_hard"]
    assert float(terms["itm"]) == pytest.approx(float((matched + negatives) / 12), abs=1e-5)


def test_what_a_batch_lacks_is_told():
    with pytest.raises(UserError, match="decompose the captions first"):
        losses_of(small_network("seda"), replace(small_batch(), parts=None))
    with pytest.raises(ValueError, match="pose maps"):
        losses_of(small_network(), replace(small_batch(), poses=None))
    with pytest.raises(ValueError, match="augmented captions"):
        losses_of(small_network(), replace(small_batch(), augmented=None))


def test_caption_parts_enter_the_running_statistics_in_published_mode_alone():
    means = []
    for published in (True, False):
        network = small_network("seda", **{"stp.bn_on_subcaptions": published, **NO_DROPOUT}).train()
        losses_of(network, small_batch())
        means.append(int(network.text_projection.norm.num_batches_tracked))
    assert means == [5, 2]


def test_anchors_may_choose_the_negatives():
    batch = small_batch(5)
    chosen: dict[str, list[list[int]]] = {}
    for mine in ("full_caption_factor", "anchor"):
        chosen[mine] = []

        def choose(weights: torch.Tensor, record: list[list[int]] = chosen[mine]) -> torch.Tensor:
            record.append(weights.flatten().tolist())
            return HARDEST(weights)

        small_network("seda", **{"itm_sem.mine": mine})(batch, one_process, choose)
    differ = [one != other for one, other in zip(*chosen.values(), strict=True)]
    assert differ == [False, False, True, True, True, True, True, True, False, False]


def test_a_step_with_the_same_generators_is_the_same_step():
    totals = []
    for _ in range(2):
        network = small_network("seda").train()
        with torch.random.fork_rng():
            torch.manual_seed(5)
            choose = DrawnNegatives(torch.Generator().manual_seed(7))
            totals.append(float(network(small_batch(), one_process, choose).total.detach()))
    assert totals[0] == totals[1]


def test_gradient_checkpointing_leaves_a_step_as_it_is():
    gradients = []
    for enabled in (False, True):
        network = small_network(**NO_DROPOUT).train()
        network.gradient_checkpointing(enabled)
        losses_of(network, small_batch()).total.backward()
        gradients.append({name: each.grad for name, each in network.named_parameters()})
    for name, gradient in gradients[0].items():
        assert torch.allclose(gradient, gradients[1][name], atol=1e-4), name


def padded(tokens: Tokens, length: int = 13) -> Tokens:
    width = (0, length - tokens.ids.shape[1])
    return Tokens(pad(tokens.ids, width), pad(tokens.mask, width))


@pytest.mark.parametrize(
    ("model", "changes"), [("cmp", {"pool": "avg_cls"}), ("seda", {"stp.mask_pad": True})], ids=["cmp", "seda"]
)
def test_texts_cut_at_their_last_real_token_give_the_same_step_where_padding_counts_for_nothing(
    model, changes, monkeypatch
):
    """The parts of a caption are much shorter than it is, so that they are encoded apart."""
    generator = torch.Generator().manual_seed(3)
    plain = small_batch()
    full = Tokens(plain.captions.ids, torch.ones_like(plain.captions.mask))
    batch = replace(
        plain,
        captions=padded(full),
        augmented=padded(plain.augmented),
        hard=replace(plain.hard, captions=padded(plain.hard.captions)),
        masked=replace(plain.masked, ids=pad(plain.masked.ids, (0, 3))),
        parts={factor: padded(small_tokens(4, generator, 4), 13) for factor in FACTORS},
    )
    lengths, found = [], []
    for counts in (False, True):
        network = small_network(model, **NO_DROPOUT, **changes).train()
        assert not network.padding_counts
        monkeypatch.setattr(type(network), "padding_counts", counts)
        encoder = network.text_encoder.forward
        network.text_encoder.forward = lambda ids, mask, encoder=encoder, counts=counts: (
            lengths.append((counts, ids.shape[1])) or encoder(ids, mask)
        )
        losses = losses_of(network, batch)
        losses.total.backward()
        gradients = {name: each.grad for name, each in network.named_parameters()}
        found.append((losses.terms, gradients))
        monkeypatch.undo()
    assert lengths == [(False, 10), *([(False, 4)] if model == "seda" else []), (True, 13)]
    for (name, one), other in zip(found[0][0].items(), found[1][0].values(), strict=True):
        assert torch.allclose(one, other, atol=1e-5), name
    for name, gradient in found[0][1].items():
        assert torch.allclose(gradient, found[1][1][name], atol=1e-4), name


def test_groups_keep_their_rows_whichever_of_them_are_short():
    generator = torch.Generator().manual_seed(1)
    encoder = small_network().text_encoder
    texts = small_tokens(2, generator)
    long = Tokens(texts.ids, torch.ones_like(texts.mask))
    groups = {
        "short": padded(small_tokens(3, generator, 4)),
        "long": padded(long),
        "last": padded(small_tokens(2, generator, 5)),
    }
    with torch.no_grad():
        trimmed, whole = Texts(encoder, groups, trimmed=True), Texts(encoder, groups)
    assert (trimmed.hidden.shape[1], whole.hidden.shape[1]) == (10, 13)
    for name in groups:
        real = whole.mask_of(name)[:, :10].bool()
        assert torch.equal(trimmed.mask_of(name).bool(), real)
        assert torch.allclose(trimmed.hidden_of(name)[real], whole.hidden_of(name)[:, :10][real], atol=1e-5), name


def test_retrieval_scores_do_not_depend_on_how_texts_and_images_are_grouped():
    network, batch = small_network(), small_batch(4)
    with torch.no_grad():
        images = network.encode_images(batch.images, batch.poses)
        alone = [network.encode_images(batch.images[i : i + 1], batch.poses[i : i + 1]) for i in range(4)]
        assert torch.allclose(images.features, torch.cat([each.features for each in alone]), atol=1e-5)
        texts = network.encode_texts(batch.captions)
        keys_values = network.keys_values(images.tokens)
        every = torch.arange(16)
        logits = network.match(texts.hidden, texts.mask, keys_values, every // 4, every % 4).view(4, 4, 2)
        for image in range(4):
            own = torch.arange(4)
            one = network.match(texts.hidden, texts.mask, network.keys_values(alone[image].tokens), own, own * 0)
            assert torch.allclose(one, logits[:, image], atol=1e-5)
    assert torch.allclose(texts.features.norm(dim=1), torch.ones(4))


def test_a_batch_moves_with_all_it_holds():
    moved = small_batch().to("meta")
    assert moved.parts is not None
    assert moved.hard is not None
    assert {moved.images.device.type, moved.parts["action"].ids.device.type, moved.hard.captions.mask.device.type} == {
        "meta"
    }


def test_a_step_under_bfloat16_is_near_the_one_in_float32():
    network, batch = small_network("seda"), small_batch()
    with torch.no_grad():
        exact = losses_of(network, batch)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            rounded = losses_of(network, batch)
    assert rounded.total.dtype == torch.float32
    for name, loss in exact.terms.items():
        assert float(rounded.terms[name]) == pytest.approx(float(loss), rel=0.2), name


ONE_CHANGE: list[Any] = [
    *((model, change) for model in ("cmp", "seda") for change in (
        {"eda_weight": 0.0}, {"ihnm": "off"}, {"ihnm": "replace"}, {"mlm.tie": False}, {"pose": False},
        {"pose_conv": False},
    )),
    *(("cmp", change) for change in ({"pool": "avg_cls"}, {"label_smooth": 0.0})),
    *(("seda", change) for change in (
        {"stp.weighting": "softmax"}, {"stp.weighting": "cross_attention"}, {"factors": ("action",)},
        {"fd.enabled": False, "itm_sem.enabled": False}, {"fd.form": "infonce_anchor"}, {"itm_sem.mine": "anchor"},
    )),
]  # fmt: skip


@pytest.mark.parametrize(("model", "change"), ONE_CHANGE, ids=str)
def test_no_option_leaves_a_weight_without_a_gradient_nor_does_a_batch_without_hard_pairs(model, change):
    network = small_network(model, **change).train()
    for batch in (small_batch(), small_batch(hard_rows=())):
        network.zero_grad(set_to_none=True)
        losses_of(network, batch).total.backward()
        assert not [name for name, each in network.named_parameters() if each.grad is None]
