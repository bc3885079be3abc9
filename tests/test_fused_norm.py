# SPDX-License-Identifier: Apache-2.0
"""Recurrent batch normalisation in the native training kernels, compared with the layer's loop in float64."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from edgernn.cells import COMPILED
from edgernn.cells.norm import Norm
from edgernn.errors import UsageError
from edgernn.kernels import cpu
from edgernn.layer import COUNT, RecurrentLayer
from edgernn.rules import RULES
from tests.fused import inputs, run, whole_loss
from tests.tolerances import FLOAT32

pytestmark = pytest.mark.usefixtures("training_library")

# T, B, I, H: small; H = I, which some cells require; several vectors; many vectors and rows
SIZES = [(3, 4, 3, 5), (4, 6, 17, 17), (5, 9, 20, 50), (6, 200, 2, 33)]
STEPS = 6


def make(cell: str, I: int, H: int, **options: Any) -> RecurrentLayer:
    """Make a layer with random gains, shifts and averages."""
    layer = RecurrentLayer(COMPILED[cell](I, H, norm=Norm("recurrent-batch", STEPS), **options), RULES["always"](I, H))
    for norm in layer.cell.norms.values():
        torch.nn.init.uniform_(norm.gain, -1, 1)
        torch.nn.init.normal_(norm.mean, std=0.3)
        torch.nn.init.uniform_(norm.var, 0.5, 2)
        if norm.shift is not None:
            torch.nn.init.uniform_(norm.shift, -1, 1)
    return layer


def fused(layer: RecurrentLayer) -> RecurrentLayer:
    clone = copy.deepcopy(layer)
    clone.unroller = cpu.CpuUnroller(clone)

    def step(*_: Any) -> None:
        raise AssertionError("the loop has run")

    clone.step = step
    return clone


def draw_inputs(layer: RecurrentLayer, step: int, T: int, B: int) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Draw inputs, with all samples at the same step."""
    x, state = inputs(layer, T, B)
    names = list(layer.states)
    return x, tuple(torch.full_like(s, step) if n == COUNT else s for n, s in zip(names, state, strict=True))


def assert_same(layer: RecurrentLayer, T: int, B: int, step: int = 0) -> None:
    """Assert that results, gradients and running averages equal those of the loop."""
    x, state = draw_inputs(layer, step, T, B)
    ours, loop = fused(layer), copy.deepcopy(layer).double()
    y, last, trace, grads = run(ours, x, state, whole_loss)
    loop_y, loop_last, _, loop_grads = run(loop, x, state, whole_loss)
    assert trace.decisions is None
    results = {"y": y, **{f"last {i}": s for i, s in enumerate(last)}, **grads, **dict(ours.named_buffers())}
    wanted = {"y": loop_y, **{f"last {i}": s for i, s in enumerate(loop_last)}, **loop_grads}
    wanted |= dict(loop.named_buffers())
    assert results.keys() == wanted.keys()
    assert any(".mean" in name for name in results)
    for name, expected in wanted.items():
        got = results[name]
        if expected is None or got is None:
            assert all(t is None or not t.any() for t in (expected, got)), name
            continue
        close = FLOAT32 * max(1.0, float(expected.detach().abs().max()))
        torch.testing.assert_close(
            got.double(), expected.double(), rtol=0, atol=close, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("cell", COMPILED)
def test_forward_gradients_and_averages_equal_the_loop(
    cell: str, size: tuple[int, int, int, int], training: bool
) -> None:
    T, B, I, H = size
    assert_same(make(cell, I, H).train(training), T, B)


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("step", [1, 4, 6, 9])
def test_a_sequence_may_begin_later_than_the_first_step(step: int, training: bool) -> None:
    """It may also continue past the last step with averages."""
    assert_same(make("lstm", 3, 7).train(training), 4, 5, step)


def test_equal_rows_are_not_divided_by_zero() -> None:
    layer = make("decaynet", 1, 20, length=5)
    x = torch.tensor([-0.4242, 0.0, 1.7]).reshape(3, 1, 1).expand(3, 50, 1)
    ours, loop = fused(layer), copy.deepcopy(layer).double()
    y = ours(x)[0]
    torch.testing.assert_close(y.double(), loop(x.double())[0], rtol=0, atol=100 * FLOAT32)
    y.sum().backward()
    assert all(p.grad.isfinite().all() for p in ours.parameters())


@pytest.mark.parametrize("training", [True, False])
def test_without_a_gradient_the_result_is_the_same(training: bool) -> None:
    layer = make("lstm-peephole", 4, 19).train(training)
    x, state = draw_inputs(layer, 0, 5, 8)
    with torch.no_grad():
        y, last, _ = fused(layer)(x, state)
    wanted_y, wanted_last, _ = fused(layer)(x, state)
    for got, expected in zip((y, *last), (wanted_y, *wanted_last), strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=0)


def test_only_asked_for_gradients_are_made() -> None:
    layer = make("lstm", 3, 8)
    layer.cell.norms["R"].gain.requires_grad_(False)
    layer.cell.norms["c"].shift.requires_grad_(False)
    layer.cell.W.requires_grad_(False)
    kernels = fused(layer)
    x, state = draw_inputs(layer, 0, 4, 6)
    whole_loss(*kernels(x, state)).backward()
    whole = fused(copy.deepcopy(layer).requires_grad_())
    whole_loss(*whole(x, state)).backward()
    for (name, got), expected in zip(kernels.named_parameters(), whole.parameters(), strict=True):
        assert (got.grad is None) == (not got.requires_grad), name
        if got.grad is not None:
            torch.testing.assert_close(got.grad, expected.grad, msg=lambda m, n=name: f"{n}: {m}")


def test_the_gradient_of_the_kernels_is_that_of_finite_differences() -> None:
    """Finite differences of the loop in float64, along a random direction of all parameters and inputs."""
    layer = make("lstm", 3, 6)
    x, state = draw_inputs(layer, 0, 5, 7)
    kernels = fused(layer)
    whole_loss(*kernels(x, state)).backward()
    torch.manual_seed(1)
    directions = [torch.randn_like(p) for p in layer.parameters()]
    slope = sum(float((p.grad * d).sum()) for p, d in zip(kernels.parameters(), directions, strict=True))
    values = []
    for step in (1e-5, -1e-5):
        moved = copy.deepcopy(layer).double()
        with torch.no_grad():
            for p, d in zip(moved.parameters(), directions, strict=True):
                p.add_(step * d.double())
            values.append(float(whole_loss(*moved(x.double(), tuple(s.double() for s in state)))))
    assert slope == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-4)


def test_threads_change_nothing() -> None:
    layer = make("lstm", 16, 40)
    x, state = draw_inputs(layer, 0, 6, 300)
    results = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 4):
            torch.set_num_threads(threads)
            results.append(fused(layer)(x, state)[0])
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(*results, rtol=0, atol=0)


def test_what_the_kernels_cannot_do_is_left_to_the_loop() -> None:
    layer = make("lstm", 3, 5)
    clone = copy.deepcopy(layer)
    clone.unroller = cpu.CpuUnroller(clone)
    x, state = draw_inputs(layer, 0, 3, 4)
    # samples at different steps, in evaluation
    t = torch.arange(4.0).unsqueeze(1)
    mixed = tuple(t if name == COUNT else s for name, s in zip(layer.states, state, strict=True))
    for each in (layer, clone):
        each.eval()
    assert clone.unroller(clone, x, mixed) is None
    torch.testing.assert_close(clone(x, mixed)[0], layer(x, mixed)[0], rtol=0, atol=0)
    # several processes that share the batch
    clone.train()
    clone.cell.norms["R"].total = lambda part: part
    assert clone.unroller(clone, x, state) is None
    for norm, rule, why in (
        ("layer", "always", r"there is no kernel for lstm\+layer"),
        ("recurrent-batch", "selective", "both a normalisation and the rule selective"),
        ("recurrent-batch", "skip", "both a normalisation and the rule skip"),
    ):
        other = RecurrentLayer(COMPILED["lstm"](3, 5, norm=Norm(norm, STEPS)), RULES[rule](3, 5))
        with pytest.raises(UsageError, match=why):
            cpu.CpuUnroller(other)
