from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from pipeline.models.config import OffloadOptions
from pipeline.models.layers import unit
from pipeline.models.offload import OffloadAnchors, conflicting

STREAMS, WIDTH = 3, 8


def features(count: int, seed: int) -> Tensor:
    """(count, S, F) of lengths other than 1."""
    generator = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(count, STREAMS, WIDTH, generator=generator)).requires_grad_()


def offload(started: bool = False, **options: Any) -> OffloadAnchors:
    """Anchors that are not 0, unless only `started`."""
    torch.manual_seed(0)
    module = OffloadAnchors(STREAMS, WIDTH, OffloadOptions(**options))
    if not started:
        with torch.no_grad():
            for each in module.streams:
                each.last.weight.normal_()
                each.last.bias.normal_()
            if module.scale is not None:
                module.scale.copy_(torch.tensor([0.5, -1.0, 2.0]))
    return module


def cosines(texts: Tensor, images: Tensor) -> Tensor:
    return torch.einsum("tsf,isf->tis", unit(texts), unit(images))


@pytest.mark.parametrize("norm_inputs", [True, False])
def test_an_anchor_is_made_of_a_pair_its_product_and_its_difference(norm_inputs):
    module, texts, images = offload(norm_inputs=norm_inputs), features(3, 1), features(4, 2)
    found = module(texts, images)
    for text, image, stream in itertools.product(range(3), range(4), range(STREAMS)):
        t, v = texts[text, stream], images[image, stream]
        if norm_inputs:
            t, v = t / t.norm(), v / v.norm()
        layers = module.streams[stream]
        expected = layers.last(functional.gelu(layers.first(torch.cat([t, v, t * v, (t - v).abs()]))))
        assert torch.allclose(found[text, image, stream], expected, atol=1e-5)


@pytest.mark.parametrize("form", ["add_text", "add_image", "add_scaled"])
def test_training_starts_at_the_plain_similarity_and_its_gradients(form):
    texts, images = features(5, 1), features(6, 2)
    weight = torch.randn(5, 6, STREAMS, generator=torch.Generator().manual_seed(3))
    plain = torch.autograd.grad((cosines(texts, images) * weight).sum(), (texts, images))
    scores = offload(started=True, form=form, chunk=2).scores(texts, images)
    assert torch.allclose(scores.similarity, cosines(texts, images), atol=1e-6)
    assert torch.equal(scores.direction, torch.zeros(5))
    learnt = torch.autograd.grad((scores.similarity * weight).sum() + scores.direction.sum(), (texts, images))
    for one, other in zip(plain, learnt, strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_an_anchor_is_added_where_its_form_says():
    texts, images = features(3, 1), features(4, 2)
    for form in ("add_text", "add_image", "add_scaled"):
        module = offload(form=form)
        anchors, t, v = module(texts, images), texts[:, None], images[None]
        if form == "add_image":
            expected = functional.cosine_similarity(t.expand_as(anchors), v + anchors, dim=3)
        else:
            scale = torch.tensor([0.5, -1.0, 2.0])[:, None] if form == "add_scaled" else 1.0
            expected = functional.cosine_similarity(t + scale * anchors, v.expand_as(anchors), dim=3)
        assert torch.allclose(module.scores(texts, images).similarity, expected, atol=1e-5), form


@pytest.mark.parametrize("form", ["hinge", "square", "raw"])
def test_the_regulariser_is_the_mean_over_pairs_of_images_and_streams(form):
    module, texts, images = offload(dir_form=form, gamma=0.5), features(3, 1), features(5, 2)
    directions = unit(module(texts, images)).detach()
    shape = {"hinge": lambda c: max(c, 0.0), "square": lambda c: c * c, "raw": lambda c: c}[form]
    for text in range(3):
        terms = [
            shape(float(directions[text, one, stream] @ directions[text, other, stream]))
            for stream in range(STREAMS)
            for one, other in itertools.combinations(range(5), 2)
        ]
        found = module.scores(texts, images).direction[text]
        assert float(found.detach()) == pytest.approx(sum(terms) / len(terms), abs=1e-5)


def test_one_image_has_no_pair_of_anchors_to_tell_apart():
    scores = offload().scores(features(2, 1), features(1, 2))
    assert torch.equal(scores.direction, torch.zeros(2))


def learnt(chunk: int, stopped: Tensor | None = None) -> list[Tensor]:
    """Values and gradients of everything, with these many texts at once."""
    module, texts, images = offload(chunk=chunk), features(7, 1), features(5, 2)
    scores = module.scores(texts, images, stopped)
    weight = torch.randn(7, 5, STREAMS, generator=torch.Generator().manual_seed(3))
    ((scores.similarity * weight).sum() + 0.5 * scores.direction.sum()).backward()
    gradients = [each.grad for each in (texts, images, *module.parameters())]
    return [scores.similarity.detach(), scores.direction.detach(), *(each for each in gradients if each is not None)]


def test_how_many_texts_are_held_at_once_changes_neither_values_nor_gradients():
    stopped = torch.rand(7, 5, generator=torch.Generator().manual_seed(4)) < 0.3
    for mask in (None, stopped):
        whole = learnt(7, mask)
        assert len(whole) == 2 + 2 + STREAMS * 4
        for chunk in (1, 3, 50):
            for one, other in zip(learnt(chunk, mask), whole, strict=True):
                assert torch.allclose(one, other, rtol=1e-5, atol=1e-6), chunk


def test_stopped_pairs_leave_the_text_alone_and_change_no_value():
    texts, images, stopped = features(4, 1), features(4, 2), torch.eye(4, dtype=torch.bool)
    module = offload(chunk=3)
    scores = module.scores(texts, images, stopped)
    assert torch.allclose(scores.similarity, module.scores(texts, images).similarity, atol=1e-6)
    scores.similarity[stopped].sum().backward(retain_graph=True)
    assert texts.grad is not None
    assert texts.grad.abs().max() == 0.0
    assert images.grad is not None
    assert images.grad.abs().max() > 1e-3
    assert all(each.grad is not None and each.grad.abs().max() > 0 for each in module.parameters())
    scores.similarity[~stopped].sum().backward()
    assert texts.grad.abs().max() > 1e-3


class Largest(TorchDispatchMode):
    """Remembers how many numbers the largest tensor had that was computed."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for each in found if isinstance(found, tuple | list) else (found,):
            if isinstance(each, Tensor):
                self.numbers = max(self.numbers, each.numel())
        return found


def memory(texts: int, images: int, chunk: int) -> tuple[int, int]:
    """Numbers of the largest tensor of a forward and backward pass, and how many are kept between the two."""
    module, t, v = offload(chunk=chunk, gamma=0.5), features(texts, 1), features(images, 2)
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.data_ptr()] = tensor.numel()
        return tensor

    with Largest() as largest:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            scores = module.scores(t, v)
        (scores.similarity.sum() + scores.direction.sum()).backward()
    return largest.numbers, sum(kept.values())


def test_memory_grows_with_the_texts_held_at_once_and_not_with_all_of_them():
    (few, _), (many, kept), (more, _) = memory(16, 20, 4), memory(64, 20, 4), memory(64, 20, 8)
    assert few == many == 4 * STREAMS * 20 * 20
    assert more == 2 * many
    assert kept < 64 * 20 * STREAMS * WIDTH / 2  # all anchors at once would be twice that, without what makes them


def test_float_precision_stays_under_autocast():
    module, texts, images = offload(), features(4, 1), features(5, 2)
    exact = module.scores(texts, images)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = module.scores(texts, images)
    assert found.similarity.dtype == torch.float32
    assert torch.equal(found.similarity, exact.similarity)


def test_conflicts_are_the_two_behaviours_of_one_person_wherever_they_stand():
    # 0 and 10 are one person, 1 and 11 another; 2 has no counterpart, and 11 is also a pair of its own.
    everyone = torch.tensor([0, 1, 2, 11, 10, 11])
    found = conflicting(everyone, everyone, (torch.tensor([0, 1]), torch.tensor([10, 11])))
    people = {0: {0, 10}, 10: {0, 10}, 1: {1, 11}, 11: {1, 11}, 2: {2}}
    for t, i in itertools.product(range(6), repeat=2):
        one, other = int(everyone[t]), int(everyone[i])
        assert bool(found[t, i]) == (one != other and other in people[one]), (one, other)
