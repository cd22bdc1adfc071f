import json

import pytest
import torch

from pipeline.core.errors import UserError
from pipeline.training.state import TrainingState, check_settings, load_state, recovered, save_state, swapped_in


def state(step: int = 3) -> TrainingState:
    tensors = {"network.a": torch.arange(4.0) * step, "optimiser.0.step": torch.tensor(float(step))}
    return TrainingState(1, 2, step, tensors, ({"epoch": 0},), {"itc": 0.5}, (20.0, 30.5))


def test_a_state_comes_back_as_it_was(tmp_path):
    assert load_state(tmp_path) is None
    save_state(tmp_path, state())
    found = load_state(tmp_path)
    assert (found.epoch, found.batch, found.step, found.log, found.sums, found.best) == (
        1, 2, 3, ({"epoch": 0},), {"itc": 0.5}, (20.0, 30.5))  # fmt: skip
    assert torch.equal(found.tensors["network.a"], state().tensors["network.a"])


@pytest.mark.parametrize("killed", ["before the new is whole", "between the two names", "after the swap"])
def test_a_kill_at_any_moment_leaves_a_whole_state(tmp_path, killed):
    save_state(tmp_path, state(3))
    place = tmp_path / "state"
    if killed == "before the new is whole":
        (tmp_path / ".state.new").mkdir()
        (tmp_path / ".state.new" / "state.json").write_text("{half")
    elif killed == "between the two names":
        place.rename(tmp_path / ".state.old")
    else:
        (tmp_path / ".state.old").mkdir()
    assert load_state(tmp_path).step == 3
    save_state(tmp_path, state(4))
    assert load_state(tmp_path).step == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state"]


def test_a_write_that_fails_leaves_what_was(tmp_path):
    def fails(place):
        (place / "half").touch()
        raise OSError("disk full")

    save_state(tmp_path, state(3))
    with pytest.raises(OSError, match="disk full"):
        swapped_in(tmp_path / "state", fails)
    recovered(tmp_path / "state")
    assert load_state(tmp_path).step == 3


def test_a_folder_of_other_settings_is_not_gone_on_with(tmp_path):
    check_settings(tmp_path, {"seed": 1, "model": {"a": 2}})
    check_settings(tmp_path, {"model": {"a": 2}, "seed": 1})
    with pytest.raises(UserError, match=r"other settings: seed \(1 there, 2 here\)"):
        check_settings(tmp_path, {"seed": 2, "model": {"a": 2}})
    assert json.loads((tmp_path / "run.json").read_text())["seed"] == 1
