from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed
import torch.multiprocessing
from pydantic import ValidationError
from torch import Tensor
from torch.nn import functional

from pipeline.models.batch import Batch, HardPairs, Tokens
from pipeline.models.build import NETWORKS, load_network
from pipeline.models.config import SIZES, STREAMS, GradcoOptions, Stream
from pipeline.models.experts import ExpertStreams, weighted_rows
from pipeline.models.gather import ProcessGather, one_process
from pipeline.models.gradco import GradCO
from pipeline.models.layers import unit
from pipeline.models.losses import HardestNegatives, similarity_loss
from pipeline.models.network import Losses
from pipeline.models.optimiser import adamw
from pipeline.models.recipes import RECIPES, changed
from pipeline.retrieval.candidates import first_candidates
from tests.models.small import NO_DROPOUT, SIZE, small_batch, small_network

HARDEST = HardestNegatives()
BEIT = {"size": changed(SIZES["x2vlm-tiny"], {"image.image_size": 32, "text.vocab_size": 50, "max_tokens": 10})}


def gradco(**changes: Any) -> GradCO:
    network = small_network("gradco", **changes)
    assert isinstance(network, GradCO)
    return network


def started(**changes: Any) -> GradCO:
    """A network as training starts it."""
    torch.manual_seed(3)
    return GradCO(changed(GradcoOptions(size=SIZE), changes)).eval()


def step(network: GradCO, batch: Batch) -> Losses:
    losses = network(batch, one_process, HARDEST)
    assert isinstance(losses, Losses)
    return losses


def gradients(network: GradCO, batch: Batch) -> dict[str, Tensor]:
    network.zero_grad(set_to_none=True)
    step(network, batch).total.backward()
    return {name: each.grad.clone() for name, each in network.named_parameters() if each.grad is not None}


# -- experts -----------------------------------------------------------------------------------------------------------


def test_a_stream_is_the_normed_token_plus_the_sub_experts_by_their_shares():
    network = gradco()
    experts, tokens = network.image_experts, torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))
    assert isinstance(experts, ExpertStreams)
    found, routing = experts(tokens), experts.routing(tokens)
    assert found.shape == (2, 3, 5, 16)
    assert torch.allclose(routing.sum(dim=2), torch.ones(2, 3))
    for number, stream in enumerate(experts.streams):
        shares = (stream.router(tokens[:, 0])).softmax(dim=1)
        assert torch.allclose(shares, routing[:, number], atol=1e-6)
        total = tokens.clone()
        for k in range(4):
            rows = slice(k * 384, (k + 1) * 384)
            hidden = functional.gelu(functional.linear(tokens, stream.up.weight[rows], stream.up.bias[rows]))
            own = functional.linear(hidden, stream.down.weight[:, rows], stream.down_bias[k])
            total = total + shares[:, k, None, None] * own
        assert torch.allclose(found[:, number], stream.norm(total), atol=1e-4)


def test_one_sub_expert_alone_is_asked_where_routing_says_so():
    soft, top1 = gradco(), gradco(**{"bmoe.routing": "top1"})
    tokens = torch.randn(4, 5, 16, generator=torch.Generator().manual_seed(0))
    shares, chosen = soft.image_experts.routing(tokens), top1.image_experts.routing(tokens)
    assert torch.equal((chosen > 0).sum(dim=2), torch.ones(4, 3, dtype=torch.long))
    assert torch.equal(chosen.amax(dim=2), shares.amax(dim=2))


def test_training_starts_with_streams_that_are_alike():
    tokens = torch.randn(2, 5, 16)
    found = started().image_experts(tokens)
    for number in range(3):
        assert torch.allclose(found[:, number], functional.layer_norm(tokens, (16,)), atol=1e-6)


def test_the_balance_term_is_zero_for_even_routing_and_grows_to_the_logarithm_of_the_sub_experts():
    experts = started().image_experts
    tokens = torch.randn(6, 5, 16)
    with torch.no_grad():
        for stream in experts.streams:
            stream.router.weight.zero_()
            stream.router.bias.zero_()
        assert float(experts.imbalance(tokens)) == pytest.approx(0, abs=1e-6)
        for stream in experts.streams:
            stream.router.bias[1] = 50.0
        assert float(experts.imbalance(tokens)) == pytest.approx(np.log(4), abs=1e-4)


# -- weights, features, matching ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, BEIT], ids=["swin", "beit"])
def test_the_similarity_is_one_inner_product_and_a_search_finds_what_brute_force_finds(changes):
    network = gradco(**changes)
    one, other = small_batch(6, seed=1), small_batch(6, seed=2)
    with torch.no_grad():
        images = [network.encode_images(each.images) for each in (one, other)]
        features = torch.cat([each.features for each in images])
        texts = network.encode_texts(one.captions)
        t, w = network.analysed_texts(one.captions)[:2]
        v = torch.cat([network.analysed_images(each.images).features for each in (one, other)])
        width = network.options.size.feature_width
        assert features.shape == (12, 3 * width)
        expected = torch.zeros(6, 12)
        for text, image, stream in itertools.product(range(6), range(12), range(3)):
            cosine = functional.cosine_similarity(t[text, stream], v[image, stream], dim=0)
            expected[text, image] += w[text, stream] * cosine
        assert torch.allclose(texts.features @ features.t(), expected, atol=1e-5)
        assert torch.allclose(network.similarities(t, v, w, anchors=False), expected, atol=1e-5)
        assert not torch.allclose(network.similarities(t, v, w), expected, atol=1e-2)
    assert torch.allclose(texts.features.norm(dim=1), w.norm(dim=1), atol=1e-5)
    found, values = first_candidates(texts.features.numpy(), features.numpy(), 5, np.arange(12))
    assert np.array_equal(found, expected.argsort(dim=1, descending=True)[:, :5].numpy())
    np.testing.assert_allclose(values, expected.sort(dim=1, descending=True).values[:, :5].numpy(), atol=1e-5)


def test_weights_sum_to_one_and_depend_on_the_text_alone():
    network, batch = gradco(), small_batch(5)
    with torch.no_grad():
        weights = network.encode_texts(batch.captions).weights
        assert weights is not None
        assert torch.allclose(weights.sum(dim=1), torch.ones(5))
        assert (weights[0] - weights[1]).abs().max() > 1e-3
        alone = network.encode_texts(Tokens(batch.captions.ids[:1], batch.captions.mask[:1])).weights
        assert torch.allclose(alone, weights[:1], atol=1e-6)
        seen: list[Tensor] = []
        network.weights = lambda features, own=network.weights: seen.append(own(features)) or seen[-1]  # type: ignore
        for images in (batch.images, torch.randn_like(batch.images)):
            step(network, replace(batch, images=images))
        assert torch.equal(seen[0], seen[len(seen) // 2])
        assert torch.equal(
            gradco(**{"hia.intent": False}).encode_texts(batch.captions).weights, torch.full((5, 3), 1 / 3)
        )


@pytest.mark.parametrize("changes", [{}, BEIT], ids=["swin", "beit"])
def test_keys_and_values_weighed_a_pair_are_those_of_tokens_weighed_first(changes):
    network, batch = gradco(**changes), small_batch(4)
    text_rows, image_rows = torch.tensor([0, 1, 2, 3, 0, 2]), torch.tensor([0, 1, 3, 2, 3, 0])
    with torch.no_grad():
        texts, tokens = network.encode_texts(batch.captions), network.encode_images(batch.images).tokens
        found = network.match(
            texts.hidden, texts.mask, network.keys_values(tokens), text_rows, image_rows, texts.weights
        )
        streams, base = network.image_experts(tokens), network.text_encoder(batch.captions.ids, batch.captions.mask)
        own = torch.arange(6)
        mixed = torch.stack(
            [
                sum(texts.weights[t, s] * streams[i, s] for s in range(3))
                for t, i in zip(text_rows, image_rows, strict=True)
            ]
        )
        hidden = sum(texts.weights[:, s, None, None] * network.text_experts(base)[:, s] for s in range(3))
        crossed = network.cross_encoder(
            hidden, texts.mask, network.cross_encoder.keys_values(mixed), text_rows, own, torch.zeros(6, 1).long()
        )
        assert torch.allclose(found, network.matching_head(crossed[:, 0]), atol=1e-4)
    with pytest.raises(ValueError, match="weights of the texts"):
        network.match(texts.hidden, texts.mask, network.keys_values(tokens), text_rows, image_rows)


def test_weighing_rows_has_the_gradients_of_gathering_and_adding_them():
    generator = torch.Generator().manual_seed(0)
    stored = torch.randn(12, 2, 3, dtype=torch.float64, generator=generator).requires_grad_()
    weights = torch.rand(5, 3, dtype=torch.float64, generator=generator).requires_grad_()
    rows = torch.tensor([0, 3, 3, 1, 2])
    expected = torch.einsum("psab,ps->pab", stored.view(4, 3, 2, 3)[rows], weights)
    assert torch.allclose(weighted_rows(stored, weights, rows), expected)
    assert torch.autograd.gradcheck(lambda a, b: weighted_rows(a, b, rows), (stored, weights))


# -- the step ----------------------------------------------------------------------------------------------------------


def test_the_terms_add_up():
    losses = step(gradco(), small_batch())
    terms = {name: float(loss) for name, loss in losses.terms.items()}
    assert set(terms) == {"itc", "itc_eda", "dir", "itm", "itm_eda", "itm_hard", "mlm"}
    assert float(losses.itc.detach()) == pytest.approx(
        terms["itc"] + 0.8 * terms["itc_eda"] + 0.5 * terms["dir"], abs=1e-5
    )
    assert float(losses.itm.detach()) == pytest.approx(
        terms["itm"] + 0.8 * terms["itm_eda"] + terms["itm_hard"], abs=1e-5
    )
    assert terms["mlm"] == 0
    assert terms["dir"] > 0


def test_without_anchors_the_loss_is_that_of_the_plain_similarity_with_hard_pairs_as_pairs_of_their_own():
    network, batch = gradco(**{"col.anchors": False, "eda_weight": 0.0}), small_batch(4, hard_rows=(1, 2))
    assert network.offload is None
    assert batch.hard is not None
    # The hard pair of 1 is pair 3 of the batch, so that both are positives of each other.
    hard = replace(batch.hard, identities=torch.tensor([3, 9]))
    with torch.no_grad():
        images = torch.cat([network.encode_images(each.images).features for each in (batch, hard)])
        texts = torch.cat([network.encode_texts(each.captions).features for each in (batch, hard)])
        logits = texts @ images.t() / network.temperature
        ids = torch.tensor([0, 1, 2, 3, 3, 9])
        targets = (ids[:, None] == ids[None]).float()
        targets = targets / targets.sum(dim=1, keepdim=True)
        expected = -(targets * (logits.log_softmax(1) + logits.t().log_softmax(1))).sum(dim=1).mean() / 2
        found = step(network, replace(batch, hard=hard)).terms["itc"]
        assert float(found) == pytest.approx(float(expected), abs=1e-4)
        unknown = step(network, batch).terms["itc"]  # hard pairs of whom nobody says who they are
        others = similarity_loss((texts @ images.t()).t(), torch.tensor([0, 1, 2, 3, 8, 9]), network.temperature, 0.0)
        assert float(unknown) == pytest.approx(float(others), abs=1e-4)
        alone = step(gradco(**{"col.anchors": False, "col.use_hard": False}), batch).terms["itc"]
        plain = similarity_loss((texts[:4] @ images[:4].t()).t(), torch.arange(4), network.temperature, 0.0)
        assert float(alone) == pytest.approx(float(plain), abs=1e-4)


def test_the_augmented_captions_stand_before_the_same_images_as_the_captions():
    network, batch = gradco(), small_batch()
    assert batch.augmented is not None
    swapped = replace(batch, captions=batch.augmented, augmented=batch.captions)
    with torch.no_grad():
        one, other = step(network, batch).terms, step(network, swapped).terms
    assert float(one["itc_eda"]) == pytest.approx(float(other["itc"]), abs=1e-5)
    assert float(one["itc"]) == pytest.approx(float(other["itc_eda"]), abs=1e-5)
    assert float(one["itc"]) != pytest.approx(float(one["itc_eda"]), abs=1e-3)


def test_a_step_starts_as_one_without_anchors_but_for_the_anchors_own_gradients():
    batch = small_batch()
    network = started()
    plain = started(**{"col.anchors": False})
    plain.load_state_dict({name: each for name, each in network.state_dict().items() if "offload" not in name})
    with torch.no_grad():
        assert float(step(network, batch).total) == pytest.approx(float(step(plain, batch).total), abs=1e-5)
    ours, expected = gradients(network, batch), gradients(plain, batch)
    assert set(ours) - set(expected) == {name for name in ours if name.startswith("offload.")}
    assert any(ours[name].abs().max() > 1e-4 for name in set(ours) - set(expected))
    for name, gradient in expected.items():
        assert torch.allclose(ours[name], gradient, atol=1e-5), name


def test_chunks_of_texts_change_nothing_of_a_step():
    batch = small_batch(5)
    whole = gradients(gradco(**{"col.chunk": 100}), batch)
    for chunk in (1, 4):
        found = gradients(gradco(**{"col.chunk": chunk}), batch)
        for name, gradient in whole.items():
            assert torch.allclose(found[name], gradient, rtol=1e-4, atol=1e-5), (chunk, name)


def recorded(scores: Any, into: list[tuple[Tensor, Tensor]]) -> Any:
    """The scores, each with the text features that they were made of written down."""

    def record(texts: Tensor, images: Tensor, stopped: Tensor | None) -> Any:
        found = scores(texts, images, stopped)
        texts.retain_grad()
        into.append((texts, found.similarity))
        return found

    return record


def test_conflicting_pairs_leave_the_text_feature_alone_where_that_is_asked():
    batch = small_batch(3)
    seen: dict[bool, Tensor] = {}
    for stop in (False, True):
        network = gradco(**{"col.stop_text_on_hard": stop, "col.chunk": 2})
        scored: list[tuple[Tensor, Tensor]] = []
        network.offload.scores = recorded(network.offload.scores, scored)  # type: ignore[union-attr, method-assign]
        step(network, batch)
        ((texts, similarity),) = scored
        assert similarity.shape == (9, 6, 3)  # captions, hard captions, augmented captions by images, hard images
        pairs = [(row, 3 + row) for row in range(3)] + [(3 + row, row) for row in range(3)]
        pairs += [(6 + row, 3 + row) for row in range(3)]
        sum(similarity[t, i].sum() for t, i in pairs).backward()
        assert texts.grad is not None
        seen[stop] = texts.grad
    assert seen[True].abs().max() == 0.0
    assert seen[False].abs().amax(dim=(1, 2)).min() > 1e-4


def test_negatives_are_drawn_by_the_similarity_with_anchors():
    network, batch = gradco(), small_batch(4)
    drawn: list[Tensor] = []

    def choose(weights: Tensor) -> Tensor:
        drawn.append(weights)
        return HARDEST(weights)

    network(batch, one_process, choose)
    with torch.no_grad():
        t, w = network.analysed_texts(batch.captions)[:2]
        similarity = network.similarities(t, network.analysed_images(batch.images).features, w)
        of_texts = ((similarity / network.temperature).softmax(dim=1) + 1e-5).masked_fill(torch.eye(4).bool(), 0)
    assert len(drawn) == 4
    assert torch.allclose(drawn[0], of_texts, atol=1e-4)


def test_padding_counts_for_nothing():
    network, batch = gradco(), small_batch(3)
    assert batch.augmented is not None
    assert batch.hard is not None

    def padded(tokens: Tokens) -> Tokens:
        return Tokens(functional.pad(tokens.ids, (0, 3)), functional.pad(tokens.mask, (0, 3)))

    longer = padded(batch.captions)
    with torch.no_grad():
        one, cut = network.encode_texts(longer), network.encode_texts(batch.captions)
        assert torch.allclose(one.features, cut.features, atol=1e-5)
        real = batch.captions.mask.bool()
        assert torch.allclose(one.hidden[:, : real.shape[1]][real], cut.hidden[real], atol=1e-4)
        hard = replace(batch.hard, captions=padded(batch.hard.captions))
        other = replace(batch, captions=longer, augmented=padded(batch.augmented), hard=hard)
        assert float(step(network, other).total) == pytest.approx(float(step(network, batch).total), abs=1e-4)


def test_masked_captions_are_read_where_masked_language_modelling_counts():
    network, batch = gradco(mlm_weight=0.5), small_batch(3)
    with torch.no_grad():
        losses = step(network, batch)
        assert float(losses.mlm) > 0
        other = step(network, replace(batch, images=torch.randn_like(batch.images)))
    assert float(losses.mlm) != pytest.approx(float(other.mlm), abs=1e-6)


# -- ablations ---------------------------------------------------------------------------------------------------------


def changed_by(**changes: Any) -> set[str]:
    """What an option changes, the weights being the same: similarity, matching, terms of the step."""
    found, batch = [], small_batch(4)
    for own in ({}, changes):
        network = gradco(**own)
        weights = gradco().state_dict()
        network.load_state_dict({name: weights[name] for name in network.state_dict()})
        rows = torch.arange(4)
        with torch.no_grad():
            texts, images = network.encode_texts(batch.captions), network.encode_images(batch.images)
            logits = network.match(
                texts.hidden, texts.mask, network.keys_values(images.tokens), rows, rows, texts.weights
            )
            terms = step(network, batch).terms
            found.append({"similarity": texts.features @ images.features.t(), "matching": logits, **terms})
    one, other = found
    return {
        name
        for name in one.keys() | other.keys()
        if name not in one or name not in other or not torch.allclose(one[name], other[name], atol=1e-5)
    }


LOSSES = {"itc", "itc_eda", "dir"}
MATCHED = {"itm", "itm_eda", "itm_hard"}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"hia.similarity": False}, {"similarity", *LOSSES}),
        ({"hia.feature": False}, {"matching", *MATCHED}),
        ({"hia.intent": False}, {"similarity", "matching", "itc", "itc_eda", *MATCHED}),
        ({"hia.matching": False}, {"matching", *MATCHED}),
        ({"hia.contrast": False}, LOSSES),
        ({"col.anchors": False}, LOSSES),
        ({"col.gamma": 0.0}, {"dir"}),
        ({"col.use_hard": False}, LOSSES),
        ({"bmoe.image_experts": False}, {"similarity", "matching", *LOSSES, *MATCHED}),
        ({"bmoe.text_experts": False}, {"similarity", "matching", *LOSSES, *MATCHED}),
        ({"bmoe.tau": 0.2}, {"similarity", "matching", *LOSSES, *MATCHED}),
        ({"hia.tau": 0.2}, {"similarity", "matching", "itc", "itc_eda", *MATCHED}),
    ],
    ids=lambda each: (
        next(iter(each)) if isinstance(each, dict) else ""
    ),  # a set's order changes from process to process
)
def test_each_switch_changes_what_it_should_and_nothing_else(change, expected):
    # In-batch negatives follow the similarity, so that two matching terms may move with it.
    assert changed_by(**change) - {"itm", "itm_eda"} == expected - {"itm", "itm_eda"}


@pytest.mark.parametrize("removed", STREAMS)
def test_a_removed_stream_is_nowhere(removed: Stream):
    kept = tuple(each for each in STREAMS if each != removed)
    network, batch = gradco(**{"bmoe.streams": kept}), small_batch(3)
    with torch.no_grad():
        assert network.analysed_texts(batch.captions).weights.shape == (3, 2)
        assert network.encode_images(batch.images).features.shape == (3, 2 * SIZE.feature_width)
        step(network, batch)
    assert len(network.offload.streams) == 2


def test_a_network_that_would_learn_nothing_of_its_streams_is_refused():
    for change in (
        {"hia.similarity": False, "hia.feature": False},
        {"hia.similarity": False, "hia.matching": False},
        {"hia.contrast": False, "hia.matching": False},
    ):
        with pytest.raises(ValidationError, match="no loss would reach the streams"):
            GradcoOptions.model_validate({"hia": {name.removeprefix("hia."): value for name, value in change.items()}})
    with pytest.raises(ValidationError, match="per_stream"):
        GradcoOptions.model_validate({"hia": {"similarity": False}, "bmoe": {"proj": "per_stream"}})


def test_every_ablation_of_the_paper_is_one_change_to_gradco():
    full = GradcoOptions().model_dump()
    for name, recipe in RECIPES.items():
        if name.startswith("gradco-"):
            other = recipe.model.model_dump()
            moved = [
                f"{group}.{option}"
                for group in ("bmoe", "col", "hia")
                for option in full[group]
                if other[group][option] != full[group][option]
            ]
            assert len(moved) == (2 if name == "gradco-D6" else 1), name
            assert {each: other[each] for each in other if each not in ("bmoe", "col", "hia")} == {
                each: full[each] for each in full if each not in ("bmoe", "col", "hia")
            }
    assert RECIPES["gradco"].model.model_dump() == full


# -- size --------------------------------------------------------------------------------------------------------------


def counted(network: torch.nn.Module) -> int:
    """Parameters as a profiler with hooks counts them: of linear layers, convolutions and norms that are called.

    Embeddings and bare tensors are not counted, the tied decoder is (as the linear layer it stands for), and the
    queries, keys and values of the image encoder are not, being computed by a function.
    """
    kinds = (torch.nn.Linear, torch.nn.Conv2d, torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.LayerNorm)
    total = sum(
        parameter.numel()
        for name, module in network.named_modules()
        if isinstance(module, kinds) and not (name.startswith("image_encoder.") and _is_query_key_or_value(name))
        for parameter in module.parameters(recurse=False)
    )
    decoder = network.text_encoder.word_embeddings.numel() + network.language_head.bias.numel()
    biases = sum(each.numel() for name, each in network.named_parameters() if name.endswith("down_bias"))
    return total + decoder + biases


def _is_query_key_or_value(name: str) -> bool:
    return any(name.endswith(each) for each in (".query", ".key", ".value", ".q_proj", ".k_proj", ".v_proj"))


def test_full_width_has_the_published_number_of_parameters():
    with torch.device("meta"):
        network = NETWORKS["gradco"](GradcoOptions())  # type: ignore[call-arg]
    own = {
        name: sum(each.numel() for each in getattr(network, name).parameters())
        for name in ("image_experts", "text_experts", "offload", "gate")
    }
    assert own["image_experts"] == own["text_experts"] == 12 * 590_976 + 3 * 2 * 768 + 3 * (4 * 768 + 4)
    assert (own["offload"], own["gate"]) == (3 * 328_192, 197_635)
    assert sum(own.values()) == 15_393_307
    assert counted(network) == pytest.approx(247_360_000, rel=0.01)


# -- saving, several processes -----------------------------------------------------------------------------------------


def test_a_saved_network_comes_back_as_it_was(tmp_path):
    network, batch = gradco(**{"bmoe.streams": ("appearance", "anomalous")}), small_batch(2)
    network.save_pretrained(tmp_path)
    again = load_network(tmp_path)
    assert isinstance(again, GradCO)
    assert again.options == network.options
    with torch.no_grad():
        for one, other in zip(network.encode_texts(batch.captions), again.encode_texts(batch.captions), strict=True):
            assert torch.equal(one, other)


def test_the_optimiser_takes_all_that_learns_and_new_parts_at_the_multiple():
    network = gradco()
    groups = adamw(network, RECIPES["gradco"].optimiser).param_groups
    names = {name: group["lr"] for group in groups for name in group["names"]}
    assert set(names) == {name for name, each in network.named_parameters() if each.requires_grad}
    for part in ("image_experts", "text_experts", "offload", "gate", "image_projection", "text_projection"):
        assert {rate for name, rate in names.items() if name.startswith(part)} == {4e-5}, part


def test_the_same_seed_gives_the_same_step():
    found = []
    for _ in range(2):
        network = gradco().train()
        torch.manual_seed(5)
        found.append(gradients(network, small_batch()))
    for name, gradient in found[0].items():
        assert torch.equal(gradient, found[1][name]), name


WORLD = 2


def shared_batch(rank: int | None) -> Batch:
    """Of four pairs the share of a process: the second has no hard pair at all, or (None) all of them."""
    whole = small_batch(4, hard_rows=(1,))
    assert whole.augmented is not None
    assert whole.hard is not None
    hard = replace(whole.hard, identities=torch.tensor([7]))
    if rank is None:
        return replace(whole, hard=hard, masked=None)
    own = slice(2 * rank, 2 * rank + 2)

    def cut(tokens: Tokens) -> Tokens:
        return Tokens(tokens.ids[own], tokens.mask[own])

    return Batch(
        images=whole.images[own],
        captions=cut(whole.captions),
        identities=whole.identities[own],
        augmented=cut(whole.augmented),
        hard=HardPairs(hard.rows, hard.images, hard.captions, None, hard.identities) if rank == 0 else None,
    )


def contrast_gradients(rank: int | None, gather: Any, drawn: list[Tensor] | None = None) -> dict[str, Tensor]:
    """Gradients of what is compared among all processes; `itm` draws its negatives in each process (into `drawn`)."""
    network = gradco(**{"col.stop_text_on_hard": True, "col.chunk": 3})

    def choose(weights: Tensor) -> Tensor:
        if drawn is not None:
            drawn.append(weights)
        return HARDEST(weights)

    network(shared_batch(rank), gather, choose).itc.backward()
    return {
        name: torch.zeros_like(each) if each.grad is None else each.grad for name, each in network.named_parameters()
    }


def in_a_process(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=WORLD)
    drawn: list[Tensor] = []
    found = contrast_gradients(rank, ProcessGather(), drawn)
    for gradient in found.values():
        torch.distributed.all_reduce(gradient)
        gradient /= WORLD
    if rank == 1:
        torch.save(found | {"drawn": torch.stack(drawn)}, f"{folder}/gradients.pt")
    torch.distributed.destroy_process_group()


def test_two_processes_learn_what_one_with_the_whole_batch_learns(tmp_path: Path):
    torch.multiprocessing.start_processes(in_a_process, (str(tmp_path),), WORLD, start_method="spawn")
    whole = contrast_gradients(None, one_process)
    found = torch.load(tmp_path / "gradients.pt", weights_only=True)
    alone: list[Tensor] = []  # the second process draws by its own pairs' similarities, whatever the others are
    contrast_gradients(1, one_process, alone)
    assert torch.allclose(found["drawn"], torch.stack(alone), atol=1e-5)
    assert max(float(each.abs().max()) for each in whole.values()) > 1e-2
    for name, gradient in whole.items():
        assert torch.allclose(found[name], gradient, rtol=1e-3, atol=2e-5), name


def test_features_of_a_direction_are_compared_whatever_their_length():
    network = gradco()
    t, v = torch.randn(2, 3, 12), torch.randn(2, 3, 12)
    w = network.weights(t)
    assert torch.allclose(network.weights(5 * t), w, atol=1e-6)
    one = network.similarities(t, v, w, anchors=False)
    assert torch.allclose(network.similarities(3 * t, 2 * v, w, anchors=False), one, atol=1e-6)
    assert network.anchors(t, v).shape == (2, 2, 3, 12)
    assert torch.equal(gradco(**{"col.anchors": False}).anchors(t, v), torch.zeros(2, 2, 3, 12))
    assert unit(t).norm(dim=2).allclose(torch.ones(2, 3))


def test_dropout_off_leaves_a_step_the_same_with_checkpointed_encoders():
    found = []
    for enabled in (False, True):
        network = gradco(**{"size.text.dropout": NO_DROPOUT["size.text.dropout"]}).train()
        network.gradient_checkpointing(enabled)
        found.append(gradients(network, small_batch()))
    for name, gradient in found[0].items():
        assert torch.allclose(gradient, found[1][name], atol=1e-4), name
