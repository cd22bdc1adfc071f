import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from bench.counting import Cost, Target, fastest, judged, largest_memory, measured, one_thread

BATCH, INPUTS, OUTPUTS = 3, 5, 7


def test_a_linear_layer_costs_once_forward_and_twice_backward():
    layer, rows = nn.Linear(INPUTS, OUTPUTS), torch.randn(BATCH, INPUTS, requires_grad=True)
    out, forward = measured(lambda: layer(rows))
    _, backward = measured(out.sum().backward)
    assert (forward.multiply_adds, backward.multiply_adds) == (BATCH * INPUTS * OUTPUTS, 2 * BATCH * INPUTS * OUTPUTS)
    assert forward.seconds >= 0


def test_attention_costs_the_same_fused_or_not_forward_and_backward():
    counts = []
    for backend in (torch.nn.attention.SDPBackend.FLASH_ATTENTION, torch.nn.attention.SDPBackend.MATH):
        query, key, value = (torch.randn(2, 3, length, 8, requires_grad=True) for length in (4, 6, 6))
        with torch.nn.attention.sdpa_kernel(backend):
            out, forward = measured(lambda q=query, k=key, v=value: functional.scaled_dot_product_attention(q, k, v))
            _, backward = measured(out.sum().backward)
        counts.append((forward.multiply_adds, backward.multiply_adds))
    products = 2 * (2 * 3 * 4 * 6 * 8)
    assert counts[1] == (products, 2 * products)
    # The fused backward computes the shares a second time instead of keeping them.
    assert counts[0] == (products, 2 * products + products / 2)


def test_what_is_done_element_by_element_costs_nothing_and_results_come_through():
    result, cost = measured(lambda: functional.gelu(torch.ones(4)) + 1)
    assert cost.multiply_adds == 0
    assert result.shape == (4,)


def test_costs_add_up_and_the_fastest_run_counts():
    assert (Cost(3, 2.0) + Cost(5, 1.0)).per(2) == Cost(4, 1.5)
    assert fastest([Cost(1, 3.0), Cost(1, 1.0), Cost(1, 2.0)]).seconds == 1.0


@pytest.mark.parametrize(
    ("target", "met"),
    [
        (Target("a", 0.7, at_most=0.7), True),
        (Target("a", 0.71, at_most=0.7), False),
        (Target("a", 3.0, at_least=3.0), True),
        (Target("a", 2.9, at_least=3.0), False),
        (Target("a", float("nan"), at_most=0.7), False),
    ],
)
def test_a_target_says_whether_it_is_met_and_a_missed_one_is_the_exit_code(target, met, capsys):
    assert judged([target]) == (0 if met else 1)
    assert ("met" if met else "MISSED") in capsys.readouterr().out
    assert judged([target, Target("b", 1.0, at_most=0.5)]) == 1


def test_the_number_of_threads_is_put_back():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_the_largest_memory_grows_with_what_was_held_and_is_not_that_of_the_parent():
    ballast = np.ones(40_000_000)
    mine = largest_memory()
    assert mine > ballast.nbytes
    program = "from bench.counting import largest_memory; print(largest_memory())"
    told = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert int(told) < ballast.nbytes
    del ballast


@pytest.mark.parametrize("name", ["train_step", "embed", "rerank", "loading"])
def test_every_bench_tells_what_it_does_without_loading_torch(name):
    program = (
        f"import sys; from bench.{name} import main\n"
        "try: main(['--help'])\n"
        "finally: assert not {'torch', 'transformers', 'faiss', 'PIL'} & set(sys.modules), 'heavy'"
    )
    told = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert f"python -m bench.{name}" in told.stdout
