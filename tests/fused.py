# SPDX-License-Identifier: Apache-2.0
"""Helpers of tests of fused training: layers, and the comparison of their results with the loop."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from edgernn.cells import CELLS, Cell
from edgernn.cells.recurrent import DENSE, Recurrent
from edgernn.kernels import cpu, training_library
from edgernn.kernels.common import ANY_CELL
from edgernn.layer import RecurrentLayer, Trace
from edgernn.names import resolve
from edgernn.rules import RULES, Phased
from tests.fused_cells import Highway
from tests.native import VARIANTS, library
from tests.tolerances import FLOAT32

# a cell that reads x_{t-1} runs under periodic in the loop
CELLS_AND_RULES = [pair for pair in product([*CELLS, *VARIANTS], ANY_CELL) if pair != ("t-lstm", "periodic")]
# the pairs with a rule whose decisions have no equations
COLUMN_AND_GATE = [
    (cell, rule)
    for cell, rule in product([*CELLS, *VARIANTS], RULES)
    if RULES[rule].by_hand and RULES[rule].refusal((VARIANTS.get(cell) or CELLS[cell])(1, 1)) is None
]
# a name of a cell or of a variant, or a user-defined cell
AnyCell = str | type[Cell]
Gradients = dict[str, Tensor | None]


@contextmanager
def train_library() -> Iterator[None]:
    """Use the training library in the same folder as the library under test."""
    with pytest.MonkeyPatch.context() as patch:
        ops = Path(library())
        patch.setattr(training_library, "train_library_path", lambda: ops.with_name("libedgernn_train" + ops.suffix))
        training_library.library.cache_clear()
        yield
    training_library.library.cache_clear()


def fused(layer: RecurrentLayer) -> RecurrentLayer:
    """Return a copy of a layer that runs in the native training kernels."""
    clone = copy.deepcopy(layer)
    clone.unroller = cpu.CpuUnroller(clone)
    return clone


def make(cell: AnyCell, rule: str, I: int, H: int, recurrent: Recurrent = DENSE, **options: Any) -> RecurrentLayer:
    cell_type = cell if isinstance(cell, type) else VARIANTS.get(cell) or resolve(cell)[0]
    I = H if cell is Highway else I
    if rule == "phased":
        options.setdefault("open", 0.5)
    layer = RecurrentLayer(cell_type(I, H, recurrent=recurrent), RULES[rule](I, H, **options))
    # a slope other than 1, to detect code that ignores it
    layer.rule.anneal(30)
    return layer


def make_groups(cell: AnyCell, I: int, H: int, G: int, **options: Any) -> RecurrentLayer:
    """Return a layer whose groups of G neurons change at some steps, with likelihoods clipped at both ends."""
    layer = make(cell, "selective", I, H, group_size=G, **options)
    torch.nn.init.normal_(layer.rule.rule_W)
    torch.nn.init.normal_(layer.rule.rule_d)
    return layer


def inputs(layer: RecurrentLayer, T: int, B: int) -> tuple[Tensor, tuple[Tensor, ...]]:
    x = torch.randn(T, B, layer.input_size)
    state = {name: 0.5 * torch.randn(B, width) for name, width in layer.widths.items()}
    # mixed, so that only some neurons change at the first step
    steps = layer.rule.schedules
    together = layer.unrolled is not layer
    for name, width in layer.rule.widths.items():
        whole = steps or name == "rule_age"
        if together and name == "rule_t":
            # layers that run the steps that update alone need sequences that update together
            state[name] = torch.ones(B, width)
            continue
        state[name] = torch.randint(0, 9, (B, width)).float() if whole else torch.rand(B, width)
    return x, tuple(state.values())


def run(
    layer: RecurrentLayer, x: Tensor, state: tuple[Tensor, ...], loss: Callable[..., Tensor]
) -> tuple[Tensor, tuple[Tensor, ...], Trace, Gradients]:
    """Return the outputs of a layer and the gradients of all its inputs and parameters."""
    kind = next(layer.parameters()).dtype
    x, *state = (t.detach().to(kind, copy=True).requires_grad_() for t in (x, *state))
    y, last, trace = layer(x, tuple(state))
    loss(y, last, trace).backward()
    names = ("x", *(f"state {name}" for name in layer.states))
    grads = {name: t.grad for name, t in zip(names, (x, *state), strict=True)}
    return y, last, trace, grads | {name: p.grad for name, p in layer.named_parameters()}


def whole_loss(y: Tensor, last: tuple[Tensor, ...], trace: Trace) -> Tensor:
    """A loss with a different gradient for every element that a layer returns."""
    return y.sin().sum() + sum((s * (i + 2)).cos().sum() for i, s in enumerate(last)) + 3 * trace.budget


# losses of a part of what a layer returns
LOSSES: dict[str, Callable[..., Tensor]] = {
    "last": lambda y, last, trace: last[0].sin().sum(),
    "second": lambda y, last, trace: last[-1].sin().sum(),
    "budget": lambda y, last, trace: trace.budget * 2,
    "y": lambda y, last, trace: y[1].sin().sum(),
    "whole": whole_loss,
}


def assert_equals_loop(
    layer: RecurrentLayer, fused: RecurrentLayer, T: int, B: int, loss: Callable[..., Tensor] = whole_loss
) -> None:
    """Assert that outputs and gradients of the fused layer equal those of the loop in float64."""
    x, state = inputs(layer, T, B)
    y, last, trace, grads = run(fused, x, state, loss)
    loop_y, loop_last, loop_trace, loop_grads = run(copy.deepcopy(layer).double(), x, state, loss)
    results = {"y": y, "budget": trace.budget, **{f"last {i}": s for i, s in enumerate(last)}, **grads}
    wanted = {"y": loop_y, "budget": loop_trace.budget}
    wanted |= {**{f"last {i}": s for i, s in enumerate(loop_last)}, **loop_grads}
    assert results.keys() == wanted.keys()
    # the slope of u multiplies the rounding error of the phase
    slope = 2 / float(layer.rule.rule_open) if isinstance(layer.rule, Phased) else 1
    for name, expected in wanted.items():
        got = results[name]
        if expected is None or got is None:
            # where the loop has no gradient, the kernels return 0
            assert all(t is None or not t.any() for t in (expected, got)), name
            continue
        # gradients are sums of terms of magnitude 1, which may cancel
        scale = max(0.1, float(expected.detach().abs().max()))
        if "rule_theta" in name:
            # one sum over all values, whose errors add up
            scale = max(scale, 0.1 * y.numel() ** 0.5)
        close = FLOAT32 * slope * scale
        torch.testing.assert_close(got.double(), expected, rtol=0, atol=close, msg=lambda m, n=name: f"{n}: {m}")
    if loop_trace.decisions is None:
        assert trace.decisions is None
    else:
        assert trace.decisions is not None
        assert torch.equal(trace.decisions, loop_trace.decisions)
    assert (trace.sent_inputs is None) == (loop_trace.sent_inputs is None)
    if trace.sent_inputs is not None:
        assert torch.equal(trace.sent_inputs, loop_trace.sent_inputs)
