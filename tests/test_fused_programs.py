# SPDX-License-Identifier: Apache-2.0
"""User-defined cells in the native training library, run as programs, compared with the layer's loop in float64."""

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import edgernn
from edgernn.cells import COMPILED, Cell, Gate, Gates, Vector
from edgernn.cells.base import State
from edgernn.cells.recurrent import BlockSparse
from edgernn.kernels import attach, cpu
from edgernn.kernels.common import ANY_CELL
from edgernn.layer import RecurrentLayer
from edgernn.rules import RULES
from tests.fused import LOSSES, assert_equals_loop, fused, inputs, make, run, whole_loss
from tests.fused_cells import USER_CELLS, Gru, Highway, Memory, TwoStages, user_layer
from tests.tolerances import FLOAT32

pytestmark = pytest.mark.usefixtures("training_library")

# T, B, I, H: odd; all 1; H = I; whole vectors; several blocks of vectors in a row
SIZES = [(7, 3, 5, 11), (1, 1, 3, 5), (5, 9, 17, 17), (9, 4, 16, 32), (3, 2, 4, 300)]
CASES = [
    (cell, rule, size)
    for cell in USER_CELLS
    for rule in ANY_CELL
    for size in SIZES
    if rule in ("always", "selective") or size == SIZES[0]
    # a cell that reads x_{t-1} runs under periodic in the loop
    if rule != "periodic" or not cell.reads_last
]


@pytest.mark.parametrize(("cell", "rule", "size"), CASES)
def test_forward_and_all_gradients_equal_the_loop(cell: type[Cell], rule: str, size: tuple[int, int, int, int]) -> None:
    T, B, I, H = size
    layer = user_layer(cell, rule, H if cell is Highway else I, H)
    assert_equals_loop(layer, fused(layer), T, B)


@pytest.mark.parametrize(("G", "H"), [(4, 11), (16, 40), (7, 300)])
@pytest.mark.parametrize("cell", USER_CELLS)
def test_groups_of_neurons_equal_the_loop(cell: type[Cell], G: int, H: int) -> None:
    layer = user_layer(cell, "selective", H if cell is Highway else 5, H, group_size=G)
    torch.nn.init.normal_(layer.rule.rule_d)
    assert_equals_loop(layer, fused(layer), 5, 3)


def renamed_cell(cell: Cell) -> type[Cell]:
    """Return the class of a cell under a name that the library does not have."""
    return type("Mine", (type(cell),), {"name": f"my-{cell.name}"})


@pytest.mark.parametrize("rule", ["always", "selective"])
@pytest.mark.parametrize("cell", COMPILED)
def test_program_of_each_cell_of_ours_gives_what_its_kernel_gives(cell: str, rule: str) -> None:
    layer = fused(make(cell, rule, 20, 20))
    builtin = make(cell, rule, 20, 20)
    builtin.cell = renamed_cell(builtin.cell)(20, 20)
    builtin.load_state_dict(layer.state_dict())
    builtin.unroller = cpu.CpuUnroller(builtin)
    assert (layer.unroller.program is None, builtin.unroller.program is None) == (True, False)
    x, state = inputs(layer, 12, 5)
    y, last, _, grads = run(layer, x, state, whole_loss)
    own_y, own_last, _, own_grads = run(builtin, x, state, whole_loss)
    torch.testing.assert_close(own_y, y, rtol=0, atol=FLOAT32)
    for a, b in zip(own_last, last, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=FLOAT32)
    for name, grad in grads.items():
        if grad is None or own_grads[name] is None:
            assert name == "cell.length"
            continue
        # both have rounding errors
        close = 2 * FLOAT32 * max(0.1, float(grad.abs().max()))
        torch.testing.assert_close(own_grads[name], grad, rtol=0, atol=close, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("loss", ["last", "second", "budget", "y"])
@pytest.mark.parametrize("rule", ["selective", "skip"])
@pytest.mark.parametrize("cell", [Memory, TwoStages])
def test_any_part_of_the_result_may_be_left_out_of_the_loss(cell: type[Cell], rule: str, loss: str) -> None:
    layer = user_layer(cell, rule, 6, 21)
    assert_equals_loop(layer, fused(layer), 5, 3, LOSSES[loss])


@pytest.mark.parametrize("rule", ["always", "selective", "skip", "clockwork"])
@pytest.mark.parametrize("cell", [Memory, TwoStages])
def test_threads_agree(cell: type[Cell], rule: str) -> None:
    layer = fused(user_layer(cell, rule, 7, 50))
    x, state = inputs(layer, 40, 37)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 3, 3):
            torch.set_num_threads(threads)
            layer.zero_grad()
            results.append(run(layer, x, state, whole_loss))
    finally:
        torch.set_num_threads(before)
    (y, _, _, grads), (other_y, _, _, others), (_, _, _, again) = results
    assert torch.equal(other_y, y)
    for name, grad in grads.items():
        if grad is None:
            continue
        assert torch.equal(again[name], others[name]), name
        torch.testing.assert_close(others[name], grad, rtol=FLOAT32, atol=FLOAT32 * float(grad.abs().max()))


@pytest.mark.parametrize("rule", ["selective", "skip"])
@pytest.mark.parametrize("cell", USER_CELLS)
def test_without_gradients_nothing_is_kept_and_the_result_is_the_same(cell: type[Cell], rule: str) -> None:
    layer = fused(user_layer(cell, rule, 21, 21))
    x, state = inputs(layer, 8, 3)
    y, last, trace = layer(x, state)
    with torch.no_grad():
        other_y, other_last, other_trace = layer(x, state)
    assert torch.equal(other_y, y)
    assert all(map(torch.equal, other_last, last))
    assert torch.equal(other_trace.decisions, trace.decisions)


def test_sparse_weights_equal_the_loop() -> None:
    cell = Gru(3, 33, recurrent=BlockSparse(0.5))
    layer = RecurrentLayer(cell, RULES["always"](3, 33))
    cell.threshold(hold=True)
    assert_equals_loop(layer, fused(layer), 5, 4)


def random_update(seed: int) -> Callable[[Cell, Gates, State], State]:
    """An update of random operators with finite values, which reads all gates and both states."""

    def update(self: Cell, p: Gates, state: State) -> State:
        rng = np.random.default_rng(seed)
        values = [p.a, p.b, p.v * torch.ones_like(p.a), *state]
        unary = (torch.tanh, torch.sigmoid, torch.sin, torch.cos, torch.neg, torch.abs, F.relu, F.softsign, F.softplus)
        binary = (torch.add, torch.sub, torch.minimum, torch.maximum, lambda a, b: torch.tanh(a) * b)
        for _ in range(12):
            a, b, c = (values[i] for i in rng.integers(len(values), size=3))
            kind = rng.integers(5)
            if kind < 2:
                values.append(unary[rng.integers(len(unary))](a))
            elif kind < 4:
                values.append(binary[rng.integers(len(binary))](a, b))
            else:
                values.append(torch.lerp(a, b, torch.sigmoid(c)) if rng.integers(2) else torch.where(a > b, c, b))
        total = torch.tanh(sum(values[:5]))
        return torch.tanh(values[-1]) + 0.1 * total, torch.sigmoid(values[-2]) - total

    return update


@pytest.mark.parametrize("rule", ["always", "selective"])
@pytest.mark.parametrize("seed", range(20))
def test_random_equations_equal_the_loop(seed: int, rule: str) -> None:
    members = {
        "name": "my-random",
        "gates": (Gate("a"), Gate("b", c=True)),
        "states": ("h", "c"),
        "vectors": {"v": Vector("H", 0.4)},
        "update": random_update(seed),
    }
    layer = user_layer(type("Random", (Cell,), members), rule, 4, 19)
    assert_equals_loop(layer, fused(layer), 3, 4)


def test_attaching_draws_no_numbers_and_copies_have_cells_of_their_own() -> None:
    torch.manual_seed(3)
    model = edgernn.SequenceModel(Gru, 3, 8)
    before = torch.get_rng_state()
    assert attach(model, "auto", "cpu") == "fused"
    assert torch.equal(torch.get_rng_state(), before)
    # copies own their cells, which outlive the original
    other = copy.deepcopy(model)
    x = torch.randn(4, 2, 3)
    expected = model(x)[0]
    del model
    assert torch.equal(other(x)[0], expected)


def test_backward_outlives_the_layer() -> None:
    layer = fused(user_layer(Memory, "always", 3, 9))
    x, state = inputs(layer, 4, 2)
    y, _, _ = layer(x, state)
    weight = layer.cell.W
    del layer
    (grad,) = torch.autograd.grad(y.sum(), [weight])
    assert grad.any()
