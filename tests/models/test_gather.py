"""Two processes on the CPU against one with the whole batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed
import torch.multiprocessing
from torch import Tensor

from pipeline.models.gather import ProcessGather, one_process
from pipeline.models.layers import unit
from pipeline.models.losses import contrastive_loss

WORLD = 2
IDENTITIES = torch.tensor([0, 1, 1, 2, 0, 3])


def start() -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, and the two things that are learnt: a matrix and the temperature."""
    generator = torch.Generator().manual_seed(0)
    inputs, weight = torch.randn(2, 6, 5, generator=generator), torch.randn(5, 4, generator=generator)
    return inputs, weight.requires_grad_(), torch.tensor(0.3, requires_grad=True)


def loss_of(inputs: Tensor, weight: Tensor, temperature: Tensor, identities: Tensor, gather: object) -> Tensor:
    assert callable(gather)
    images, texts = (gather(unit(each @ weight)) for each in inputs)
    return contrastive_loss(images, texts, gather(identities), temperature, 0.2)


def in_a_process(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=WORLD)
    own = slice(3 * rank, 3 * rank + 3)
    for gradients in ("summed", "local"):
        inputs, weight, temperature = start()
        gather = ProcessGather(gradients)  # type: ignore[arg-type]
        loss = loss_of(inputs[:, own], weight, temperature, IDENTITIES[own], gather)
        loss.backward()
        for parameter in (weight, temperature):
            assert parameter.grad is not None
            torch.distributed.all_reduce(parameter.grad)
            parameter.grad /= WORLD
        if rank == 1:
            torch.save([loss.detach(), weight.grad, temperature.grad], f"{folder}/{gradients}.pt")
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gather")
    torch.multiprocessing.start_processes(in_a_process, (str(path),), WORLD, start_method="spawn")
    return path


@pytest.fixture(scope="module")
def whole() -> list[Tensor]:
    inputs, weight, temperature = start()
    loss = loss_of(inputs, weight, temperature, IDENTITIES, one_process)
    loss.backward()
    assert weight.grad is not None
    assert temperature.grad is not None
    return [loss.detach(), weight.grad, temperature.grad]


def test_summed_gradients_of_two_processes_are_those_of_one_with_the_whole_batch(folder, whole):
    for ours, expected in zip(torch.load(folder / "summed.pt", weights_only=True), whole, strict=True):
        assert torch.allclose(ours, expected, atol=1e-6)


def test_local_gradients_are_smaller_by_the_number_of_processes_as_in_the_published_code(folder, whole):
    loss, weight, temperature = torch.load(folder / "local.pt", weights_only=True)
    assert torch.allclose(loss, whole[0], atol=1e-6)
    assert torch.allclose(weight, whole[1] / WORLD, atol=1e-6)
    assert torch.allclose(temperature, whole[2], atol=1e-6)
