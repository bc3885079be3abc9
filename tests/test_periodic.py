# SPDX-License-Identifier: Apache-2.0
"""The rule periodic: a cell that runs at every n-th step, on the mean of n inputs, in training and in all engines."""

import numpy as np
import pytest
import torch
from torch import Tensor

import edgernn
from edgernn.cells import CELLS
from edgernn.export import to_onnx
from edgernn.kernels import attach
from edgernn.layer import RecurrentLayer
from edgernn.rules import Always, Periodic
from edgernn.runtime import Session
from tests.models import named_cost

INPUTS = ["mean", "last"]


def layer_of(cell: str = "gru", **options: object) -> RecurrentLayer:
    return RecurrentLayer(CELLS[cell](3, 8), Periodic(3, 8, **options)).double()


def step_by_step(layer: RecurrentLayer, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Run the layer's method `step` at every step."""
    constants, y = layer.constants(x), []
    a, e = layer.projected(x, x, None)
    for values in zip(a, e, x, strict=True):
        state = layer.step(*values, state, constants).state
        y.append(state[0])
    return torch.stack(y), state


@pytest.mark.parametrize("input", INPUTS)
@pytest.mark.parametrize("cell", ["gru", "lstm", "decaynet", "irc-sru"])
@pytest.mark.parametrize(("period", "waited"), [(4, 0), (4, 3), (1, 0), (5, 2), (30, 6)])
def test_a_layer_that_runs_the_updates_alone_equals_all_steps(cell: str, input: str, period: int, waited: int) -> None:
    layer = layer_of(cell, period=period, input=input)
    x = torch.randn(21, 2, 3, dtype=torch.float64, requires_grad=True)
    state = {name: torch.randn(2, width, dtype=torch.float64) for name, width in layer.widths.items()}
    state["rule_t"].fill_(waited)
    state["h"].requires_grad_()
    results = []
    for run in (lambda *given: layer(*given)[:2], lambda *given: step_by_step(layer, *given)):
        y, last = run(x, tuple(state.values()))
        wanted = [x, state["h"], *layer.cell.parameters()]
        grads = torch.autograd.grad(y.sin().sum() + sum(s.cos().sum() for s in last), wanted, allow_unused=True)
        results.append([y, *last, *(0 * t if g is None else g for g, t in zip(grads, wanted, strict=True))])
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


def test_it_is_the_dense_cell_on_means_of_inputs() -> None:
    layer = layer_of(period=4)
    dense = RecurrentLayer(layer.cell, Always(3, 8))
    x = torch.randn(27, 2, 3, dtype=torch.float64)
    slow = dense(x[:24].unflatten(0, (6, 4)).mean(1))[0]
    y, _, trace = layer(x)
    assert not y[:3].any()
    torch.testing.assert_close(y[3:], slow.repeat_interleave(4, 0), rtol=0, atol=1e-12)
    assert trace.decisions is not None
    assert trace.decisions[:, 0, 0].nonzero().flatten().tolist() == [3, 7, 11, 15, 19, 23]
    # an update at every fourth step, and the sum of three inputs
    assert layer.executed_macs(trace) == 6 / 27 * sum(layer.cell.macs()) + 3


@pytest.mark.parametrize("backend", ["torch", "fused"])
def test_training_runs_the_updates_alone(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = edgernn.SequenceModel("gru", 3, 8, 2, rule="periodic", rule_options={"period": 5})
    assert attach(model, backend, "cpu") == backend
    cell, steps = model.recurrent_layers()[0].cell, []
    project = type(cell).project
    monkeypatch.setattr(
        type(cell), "step", lambda *given: pytest.fail("a step") if backend == "fused" else STEP(*given)
    )
    monkeypatch.setattr(type(cell), "project", lambda c, x, t=None: steps.append(len(x)) or project(c, x, t))
    unrolled = model.recurrent_layers()[0].unrolled
    constants = RecurrentLayer.constants
    monkeypatch.setattr(RecurrentLayer, "constants", lambda layer, x: steps.append(len(x)) or constants(layer, x))
    model(torch.randn(23, 2, 3))[0].sum().backward()
    assert unrolled.unroller is model.recurrent_layers()[0].unroller
    # 23 steps have four updates
    assert set(steps) == {4}


STEP = CELLS["gru"].step


def test_sequences_that_update_at_different_steps_run_in_the_loop() -> None:
    layer = layer_of(period=3)
    x, starts = torch.randn(8, 2, 3, dtype=torch.float64), layer.initial_state(2, torch.zeros(1, dtype=torch.float64))
    starts = (starts[0], torch.tensor([[0.0], [2.0]], dtype=torch.float64), starts[2])
    y, last, trace = layer(x, starts)
    for b in range(2):
        alone, after, _ = layer(x[:, b : b + 1], tuple(s[b : b + 1] for s in starts))
        torch.testing.assert_close(y[:, b], alone[:, 0], rtol=0, atol=1e-12)
        for got, expected in zip(last, after, strict=True):
            torch.testing.assert_close(got[b], expected[0], rtol=0, atol=1e-12)
    assert trace.decisions is not None
    assert trace.decisions[..., 0].sum(0).tolist() == [2, 3]


@pytest.mark.parametrize("input", INPUTS)
@pytest.mark.parametrize(("cell", "layers"), [("gru", 1), ("t-lstm", 2)])
def test_files_equal_training_in_any_calls(cell: str, layers: int, input: str, tmp_path) -> None:
    options = {"period": 3, "input": input}
    model = edgernn.SequenceModel(
        cell, 3, 8, 2, rule="periodic", rule_options=options, layers=layers, output="all"
    ).eval()
    to_onnx(model, tmp_path / "m.onnx")
    x = torch.randn(14, 2, 3)
    with torch.no_grad():
        expected = model(x)[0].numpy()
    for backend in ("native", "portable"):
        session = Session(tmp_path / "m.onnx", backend=backend)
        np.testing.assert_allclose(session.run(x.numpy()), expected, rtol=0, atol=1e-5)
        # a call may end between two updates
        state, parts = session.initial_state(2), []
        for first, end in ((0, 1), (1, 2), (2, 8), (8, 14)):
            y, state = session.run_from(x[first:end].numpy(), state)
            parts.append(y)
        np.testing.assert_allclose(np.concatenate(parts), expected, rtol=0, atol=1e-5)


def test_streams_of_a_batch_update_at_their_own_steps(tmp_path) -> None:
    model = edgernn.SequenceModel("gru", 3, 8, 2, rule="periodic", rule_options={"period": 4}, output="all").eval()
    to_onnx(model, tmp_path / "m.onnx")
    x = torch.randn(9, 2, 3).numpy()
    session = Session(tmp_path / "m.onnx", backend="native")
    # the second stream began two steps ago
    before = session.run_from(x[:2, 1:], session.initial_state(1))[1]
    start = session.initial_state(2)
    mixed = {name: np.concatenate([start[name][:1], before[name]]) for name in start}
    y, _ = session.run_from(x[2:], mixed)
    np.testing.assert_allclose(y[:, :1], session.run(x[2:, :1]), rtol=0, atol=1e-6)
    np.testing.assert_allclose(y[:, 1:], session.run(x[:, 1:])[2:], rtol=0, atol=1e-6)


def test_a_cell_that_reads_the_input_before_has_no_kernels_and_says_so() -> None:
    model = edgernn.SequenceModel("t-lstm", 3, 8, rule="periodic")
    assert attach(model, "auto", "cpu") == "torch"
    with pytest.raises(edgernn.UsageError, match="its memory rule_sum has size I, and kernels need size 1"):
        attach(model, "fused", "cpu")


def test_costs_follow_from_the_period() -> None:
    dense, mean = named_cost("gru", None, 40, 96), named_cost("gru", "periodic", 40, 96, update_rate=0.25)
    assert mean.macs_executed == 0.25 * dense.macs + 40
    last = named_cost("gru", "periodic", 40, 96, update_rate=0.25, rule_options={"input": "last"})
    assert last.macs_executed == 0.25 * dense.macs


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"period": 0}, "period: expected a whole number from 1 to 16777215, got 0"),
        ({"period": 2**24}, "period: expected a whole number from 1 to 16777215, got 16777216"),
        ({"input": "first"}, "input: expected one of mean, last, got 'first'"),
    ],
)
def test_wrong_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(edgernn.UsageError, match=message):
        Periodic(1, 4, **options)
