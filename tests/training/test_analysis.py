from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import tiny_run
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.errors import UserError
from pipeline.models.build import build_network
from pipeline.models.config import SIZES, GradcoOptions
from pipeline.models.recipes import changed
from pipeline.training import analysis, mechanisms
from pipeline.training.analysis_figures import FIGURES, index_of, png_of, summary_of, write_analysis
from pipeline.training.texts import vocabulary


def rows(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


# --- pure measures ----------------------------------------------------------------------------------------------------


def test_anchors_are_measured_stream_by_stream():
    texts, images = rows(5, 2, 4), rows(5, 2, 4, seed=1)
    anchors = np.stack([3 * (texts - images)[:, 0], -0.5 * (texts - images)[:, 1]], axis=1)
    one, other = analysis.anchor_measures(anchors, texts, images)
    assert (one.cosine, other.cosine) == (pytest.approx(1), pytest.approx(-1))
    assert one.norm == pytest.approx(np.mean([3 * np.linalg.norm(texts[p, 0] - images[p, 0]) for p in range(5)]))
    assert other.relative == pytest.approx(
        np.mean([np.linalg.norm(anchors[p, 1]) / np.linalg.norm(texts[p, 1]) for p in range(5)])
    )


def test_anchors_of_length_0_have_no_direction():
    (only,) = analysis.anchor_measures(np.zeros((3, 1, 4)), rows(3, 1, 4), rows(3, 1, 4, seed=1))
    assert (only.norm, only.cosine) == (0, None)


@pytest.mark.parametrize("shared", [True, False])
def test_the_conflict_in_a_projection_is_that_of_its_weights_gradients(shared):
    streams, width, features = 3, 5, 4
    inputs = torch.tensor(rows(2, streams, width))
    targets = {name: torch.tensor(rows(2, streams, features, seed=seed)) for name, seed in (("pos", 1), ("neg", 2))}
    layers = [torch.nn.Linear(width, features).double() for _ in range(1 if shared else streams)]
    parameters = [each for layer in layers for each in layer.parameters()]
    brute, given_gradients = [], {}
    for pair in range(2):
        found = {}
        for name, target in targets.items():
            out = torch.stack([layers[s % len(layers)](inputs[pair, s]) for s in range(streams)])
            out.retain_grad()
            gradients = torch.autograd.grad(torch.tanh(out * target[pair]).sum(), [out, *parameters])
            given_gradients.setdefault(name, []).append(gradients[0])
            found[name] = torch.cat([each.flatten() for each in gradients[1:]])
        brute.append(torch.cosine_similarity(found["pos"], found["neg"], dim=0).item())
    positive, negative = (torch.stack(given_gradients[name]).numpy() for name in targets)
    assert analysis.projection_conflicts(positive, negative, inputs.numpy(), shared) == pytest.approx(brute)


def test_a_share_of_conflicts_counts_cosines_below_0_and_leaves_out_what_has_no_direction():
    one = np.array([[[1.0, 0]], [[1, 0]], [[1, 0]], [[0, 0]]])
    other = np.array([[[-1.0, 0]], [[-1, 2]], [[1, 1]], [[1, 1]]])
    found = analysis.conflict_of(analysis.feature_conflicts(one, other))
    assert (found.pairs, found.share, found.strong) == (3, pytest.approx(2 / 3), pytest.approx(1 / 3))
    assert analysis.conflict_of(np.array([math.nan])).share is None


def test_coverage_tells_an_even_circle_from_a_bundle():
    angles = np.arange(72) * 2 * math.pi / 72 + 0.01
    circle = analysis.coverage_of(np.stack([np.cos(angles), np.sin(angles)], axis=1))
    bundle = analysis.coverage_of(np.array([1.0, 0]) + 1e-3 * rows(72, 2))
    assert circle.resultant == pytest.approx(0, abs=1e-9)
    assert circle.evenness == pytest.approx(1, abs=0.01)
    assert circle.effective_rank == pytest.approx(2)
    assert bundle.resultant > 0.999
    assert bundle.effective_rank < 1.01
    assert sum(circle.angles) == pytest.approx(1)
    assert sum(bundle.circle) == pytest.approx(1)


@given(st.integers(2, 12), st.integers(2, 6), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_coverage_is_that_of_its_pairs_and_the_same_whatever_their_lengths(count, width, seed):
    vectors = rows(count, width, seed=seed)
    found = analysis.coverage_of(vectors)
    directions = [each / np.linalg.norm(each) for each in vectors]
    pairs = [float(directions[i] @ directions[j]) for i in range(count) for j in range(i)]
    assert found.mean_cosine == pytest.approx(np.mean(pairs))
    assert found.resultant == pytest.approx(np.linalg.norm(sum(directions)) / count)
    assert 1 <= found.effective_rank <= min(count, width) + 1e-9
    assert 0 <= found.evenness <= 1 + 1e-9
    longer = analysis.coverage_of(vectors * np.arange(1, count + 1)[:, None])
    assert longer.effective_rank == pytest.approx(found.effective_rank)


def test_the_spread_of_anchors_is_that_of_each_text_by_itself():
    alike = np.broadcast_to(rows(2, 1, 1, 3), (2, 4, 1, 3))  # each text's anchors all alike, the texts' different
    (found,) = analysis.anchor_coverage(alike)
    assert found.effective_rank == pytest.approx(1)
    assert found.mean_cosine == pytest.approx(1)
    assert analysis.anchor_coverage(np.zeros((2, 4, 1, 3)))[0].resultant is None


@given(st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_streams_and_their_fusion_are_ranked_as_by_sorting(seed):
    by_stream, weights = rows(6, 5, 3, seed=seed), np.abs(rows(6, 3, seed=seed + 1))
    weights /= weights.sum(axis=1, keepdims=True)
    own = np.random.default_rng(seed).integers(0, 5, 6)

    def rank(scores, target):
        return sorted(range(5), key=lambda image: -scores[image]).index(target) + 1

    fused = [[sum(weights[t, s] * by_stream[t, i, s] for s in range(3)) for i in range(5)] for t in range(6)]
    found = analysis.expert_measures(by_stream, weights, own)
    fused_ranks = [rank(fused[t], own[t]) for t in range(6)]
    assert found.fused == pytest.approx(100 * np.mean([each == 1 for each in fused_ranks]))
    for s in range(3):
        ranks = [rank(by_stream[t, :, s], own[t]) for t in range(6)]
        assert found.streams[s].recall == pytest.approx(100 * np.mean([each == 1 for each in ranks]))
        assert found.streams[s].better == pytest.approx(100 * np.mean(np.array(ranks) < fused_ranks))
        same = [int(np.argmax(by_stream[t, :, s]) == np.argmax(fused[t])) for t in range(6)]
        assert found.streams[s].agreement == pytest.approx(100 * np.mean(same))


def test_equal_scores_count_against_the_own_image():
    assert list(analysis.ranks_of(np.zeros((1, 4)), np.array([0])).ranks) == [4]


def test_weights_are_averaged_by_kind_and_an_unknown_kind_is_left_out():
    weights = np.array([[0.7, 0.3], [0.5, 0.5], [0.1, 0.9], [0, 1]])
    found = analysis.weights_by_kind(weights, [True, True, False, None])
    assert [each.mean for each in found["normal"]] == [pytest.approx(0.6), pytest.approx(0.4)]
    assert found["anomaly"][1].largest == 0.9
    assert found["anomaly"][1].query == 2
    assert "normal" not in analysis.weights_by_kind(weights, [None] * 4)


def test_a_shift_keeps_its_direction_apart_from_its_size():
    found = analysis.weight_shift(np.array([[0.5, 0.5], [0.5, 0.5]]), np.array([[0.6, 0.4], [0.4, 0.6]]))
    assert found.signed == (pytest.approx(0), pytest.approx(0))
    assert found.moved == (pytest.approx(0.1), pytest.approx(0.1))


CAPTION = "A person in a red coat is falling from a bench. The place is a red park."
FACTORS = ("a person in a red coat", "is falling from a bench", "the place is a red park")
HARD = ("a person in a coat", "is sitting on a bench", None)


def test_an_edit_hides_the_content_words_that_only_its_factor_has():
    found = analysis.edited(CAPTION, FACTORS, HARD, "appearance masked")
    # "red" is of the background too, "a" and "in" say nothing
    assert found == "a [MASK] in a red [MASK] is falling from a bench the place is a red park"
    found = analysis.edited(CAPTION, FACTORS, HARD, "action masked")
    assert found == "a person in a red coat is [MASK] from a [MASK] the place is a red park"


def test_an_action_is_exchanged_for_that_of_the_hard_negative():
    found = analysis.edited(CAPTION, FACTORS, HARD, "action exchanged")
    assert found == "a person in a red coat is sitting on a bench the place is a red park"
    apart = ("a person", "falling a bench", None)  # not in one piece: words of its own alone make way
    assert analysis.edited("A person is falling from a bench", apart, HARD, "action exchanged") == (
        "a person is is sitting on a bench from a"
    )


@pytest.mark.parametrize(
    ("factors", "hard", "edit"),
    [
        ((None, "is falling", None), HARD, "appearance masked"),
        (FACTORS, (None, None, None), "action exchanged"),
        (FACTORS, FACTORS, "action exchanged"),
    ],
)
def test_a_caption_that_cannot_be_edited_is_none(factors, hard, edit):
    assert analysis.edited(CAPTION, factors, hard, edit) is None


def test_the_mask_is_a_word_of_the_vocabulary():
    assert analysis.MASK in vocabulary(16).tokens
    ids = vocabulary(16).ids(["a [MASK] falls"])[0]
    assert vocabulary(16).tokens[ids[2]] == analysis.MASK


def test_blocks_are_means_over_pairs_of_different_images():
    similarity = rows(5, 5)
    persons = ["a", "a", "b", "b", "c"]
    within = [similarity[i, j] for i in range(5) for j in range(5) if i != j and persons[i] == persons[j]]
    across = [similarity[i, j] for i in range(5) for j in range(5) if persons[i] != persons[j]]
    found = analysis.blocks_of(similarity, persons)
    assert (found.within, found.across) == (pytest.approx(np.mean(within)), pytest.approx(np.mean(across)))
    assert found.separated == pytest.approx(np.mean([w > a for w in within for a in across]))
    with pytest.raises(ValueError, match="two images"):
        analysis.blocks_of(similarity, ["a", "b", "c", "d", "e"])


# --- a network --------------------------------------------------------------------------------------------------------


def gradco(**changes):
    options = changed(GradcoOptions(size=SIZES["x2vlm-tiny"]), {"bmoe.hidden": 8, "eda_weight": 0.0, **changes})
    network = build_network(options, 1)
    if network.offload is not None:  # as after training: anchors that are not 0
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(2)
            for each in network.offload.streams:
                torch.nn.init.normal_(each.last.weight, std=0.3)
    return network


@pytest.fixture(scope="module")
def split():
    return replace(tiny_run.sample_set(8), split="test")


@pytest.fixture(scope="module")
def found(split):
    network = gradco()
    return mechanisms.analyse(network, split, vocabulary(network.options.size.max_tokens), epochs=[])


def test_gradients_to_the_text_are_those_of_the_similarities(split):
    network = gradco().eval()
    texts = mechanisms.encoded_texts(network, [each.caption for each in split.samples], vocabulary(40))
    images = mechanisms.encoded_images(network, split, [(each.image, each.pose, each.id) for each in split.samples])
    positive = mechanisms.text_gradients(network, texts.features, images, anchors=True, is_hard=False)
    step, row, stream, place = 1e-2, 3, 1, 5

    def similarity(moved):
        t = texts.features.clone()
        t[row, stream, place] += moved
        return float(network.similarities(t, images, network.weights(t))[row, row])

    with torch.no_grad():
        numeric = (similarity(step) - similarity(-step)) / (2 * step)
    assert float(positive[row, stream, place]) == pytest.approx(-numeric, rel=0.05, abs=1e-4)
    plain = mechanisms.text_gradients(network, texts.features, images, anchors=False, is_hard=False)
    assert not torch.allclose(plain, positive)


def test_a_stopped_text_has_no_gradient_from_its_hard_negative_but_by_the_weights(split):
    network = gradco(**{"col.stop_text_on_hard": True, "hia.intent": False})
    t, v = torch.randn(4, 3, 32), torch.randn(4, 3, 32)
    assert float(mechanisms.text_gradients(network, t, v, anchors=True, is_hard=True).abs().max()) == 0
    assert float(mechanisms.text_gradients(network, t, v, anchors=True, is_hard=False).abs().max()) > 0


def test_an_anchor_of_a_pair_is_that_of_its_text_and_image():
    network = gradco()
    t, v = torch.randn(40, 3, 32), torch.randn(40, 3, 32)
    with torch.no_grad():
        one = mechanisms.pair_anchors(network, t, v)[35]
        assert torch.allclose(one, network.anchors(t[35:36], v[35:36])[0, 0], atol=1e-5)


def test_every_section_is_drawn_and_can_be_read_again(found, tmp_path):
    assert list(found) == list(mechanisms.SECTIONS)
    paths = write_analysis(tmp_path, found, {"weights": "w"})
    assert {each.name for each in paths} == {"index.md", *(f"{n}.{e}" for n in found for e in ("png", "json"))}
    for name, section in found.items():
        assert json.loads((tmp_path / f"{name}.json").read_text()) == section
        assert (tmp_path / f"{name}.png").stat().st_size > 5000
    anchors = found["anchors"]
    assert (tmp_path / "anchors.png").read_bytes() == png_of(FIGURES["anchors"](anchors))
    assert "hard negatives' gradient" in (tmp_path / "index.md").read_text()


def test_the_fused_recall_is_that_of_retrieval(found, split):
    network = gradco().eval()
    with torch.no_grad():
        texts = network.encode_texts(vocabulary(40).tokens_of([each.caption for each in split.samples]))
        pictures = mechanisms.encoded_images(network, split, [(e.image, e.pose, e.id) for e in split.samples])
        similarity = (texts.features @ analysis_features(pictures).t()).numpy()
    expected = analysis.ranks_of(similarity, np.arange(8)).recall
    assert found["experts"]["all queries"]["fused"] == pytest.approx(expected)


def analysis_features(images: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.normalize(images, dim=2).flatten(1)


def test_words_are_edited_by_the_factors_of_the_data(found):
    assert found["weights"]["edits"]["appearance masked"]["example"]["after"].startswith("a [MASK] in red")
    assert found["weights"]["edits"]["action exchanged"]["all"]["queries"] == 4  # a half says already "falls"


def test_a_network_without_anchors_has_no_anchor_figure(split, tmp_path):
    network = gradco(**{"col.anchors": False})
    found = mechanisms.analyse(network, split, vocabulary(40))
    assert "missing" in found["anchors"]
    assert "with anchors" not in found["conflicts"]
    paths = write_analysis(tmp_path, {"anchors": found["anchors"]}, {})
    assert [each.name for each in paths] == ["index.md", "anchors.json"]
    assert "no anchors" in index_of(found, {})
    assert not any("anchors" in what for what, _ in summary_of(found) if "without anchors" not in what)


def test_without_hard_negatives_the_person_tells_them(split):
    alone = split.of([replace(each, hard=None) for each in split.samples])
    assert mechanisms._counterparts(alone.samples) == (1, 0, 3, 2, 5, 4, 7, 6)
    nobody = split.of([replace(each, hard=None, person=None) for each in split.samples])
    network = gradco()
    found = mechanisms.analyse(network, nobody, vocabulary(40))
    assert "missing" in found["conflicts"]
    assert "missing" in found["hard_negatives"]


# --- snapshots --------------------------------------------------------------------------------------------------------


def test_a_snapshot_leaves_weights_gradients_mode_and_random_state_as_they_were(split, tmp_path):
    network = gradco().train()
    before = {name: each.clone() for name, each in network.state_dict().items()}
    state = torch.random.get_rng_state()
    mechanisms.Snapshots(network, split, vocabulary(40), tmp_path).take(1)
    assert network.training
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(torch.equal(each, before[name]) for name, each in network.state_dict().items())
    assert all(each.grad is None for each in network.parameters())


def test_an_epoch_done_again_replaces_its_line_and_those_after_it(split, tmp_path):
    network = gradco()
    snapshots = mechanisms.Snapshots(network, split, vocabulary(40), tmp_path)
    snapshots.begin()
    for epoch in (1, 2):
        snapshots.take(epoch)
    path = tmp_path / "analysis" / "epochs.jsonl"
    whole = path.read_bytes()
    with torch.no_grad():
        network.text_projection.weight.mul_(2)
    snapshots.take(1)
    lines = mechanisms.read_epochs(path)
    assert [each["epoch"] for each in lines] == [0, 1]
    assert lines[0] == json.loads(whole.splitlines()[0])
    assert lines[1] != json.loads(whole.splitlines()[1])
    mechanisms.Snapshots(network, split, vocabulary(40), tmp_path).begin()
    assert mechanisms.read_epochs(path) == lines


def test_snapshots_show_the_epochs_in_the_figure(split, tmp_path):
    network = gradco()
    snapshots = mechanisms.Snapshots(network, split, vocabulary(40), tmp_path)
    for epoch in (0, 1, 2):
        snapshots.take(epoch)
    epochs = mechanisms.read_epochs(tmp_path / "analysis" / "epochs.jsonl")
    found = mechanisms.analyse(network, split, vocabulary(40), epochs)
    assert len(FIGURES["anchors"](found["anchors"]).axes) == 2
    assert len(FIGURES["conflicts"](found["conflicts"]).axes) == 3


def test_damaged_epochs_are_told(tmp_path):
    path = tmp_path / "epochs.jsonl"
    path.write_text('{"epoch": 0}\n{"ep')
    with pytest.raises(UserError, match=r"epochs\.jsonl is damaged"):
        mechanisms.read_epochs(path)


class _Stopped(Exception):  # noqa: N818
    pass


def trained(folder, data, looks: bool, stop_after: int | None = None):
    """A tiny GradCO after two epochs, with the measuring of pairs between them or without."""
    from accelerate.state import AcceleratorState

    from pipeline.models.recipes import recipe_named
    from pipeline.training.trainer import Clock, LoopSettings, Observers, train
    from pipeline.training.watch import looked_into

    network = gradco()
    recipe = recipe_named("gradco").model_copy(update={"model": network.options, "epochs": 2, "batch_size": 4})

    def epoch(line):
        if line["epoch"] == stop_after:
            raise _Stopped

    observers = Observers()
    if looks:
        observers = looked_into(observers, network, data, vocabulary(40), folder, Clock())
    tell = observers.epoch
    observers.epoch = lambda line: (tell(line), epoch(line))
    AcceleratorState._reset_state(True)
    train(
        network,
        recipe,
        tiny_run.preparer(recipe, data),
        folder,
        LoopSettings(),
        lambda: None,
        lambda _: None,
        observers,
    )
    return network.state_dict()


def test_training_is_the_same_whether_somebody_looks_or_stops_it_while_looking(tmp_path):
    data = tiny_run.sample_set(8)
    plain = trained(tmp_path / "plain", data, looks=False)
    looked = trained(tmp_path / "looked", data, looks=True)
    with pytest.raises(_Stopped):
        trained(tmp_path / "stopped", data, looks=True, stop_after=0)
    resumed = trained(tmp_path / "stopped", data, looks=True)
    for found in (looked, resumed):
        assert all(torch.equal(each, plain[name]) for name, each in found.items())
    paths = [tmp_path / name / "analysis" / "epochs.jsonl" for name in ("looked", "stopped")]
    assert [each["epoch"] for each in mechanisms.read_epochs(paths[0])] == [0, 1, 2]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert not (tmp_path / "plain" / "analysis").exists()
