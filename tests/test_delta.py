# SPDX-License-Identifier: Apache-2.0
"""Properties of the rule delta; test_cells and test_native_op compare it with its oracle on every cell."""

import numpy as np
import pytest
import torch

import edgernn
from edgernn.cells import CELLS
from edgernn.export import to_onnx
from edgernn.export.native_kernels import without_kernel
from edgernn.layer import RecurrentLayer
from edgernn.random_models import random_model
from edgernn.rules import Delta
from edgernn.runtime import Session
from tests.layers import gru_step
from tests.models import contractive, write_alone
from tests.random_layers import assert_gradients_are_right, layer_of

THETA = {"theta_x": 0.3, "theta_h": 0.2}


@pytest.mark.parametrize("cell", CELLS)
def test_thresholds_of_zero_give_the_dense_layer(cell):
    dense = layer_of(cell, "always", 3, 5)
    layer = RecurrentLayer(dense.cell, Delta(3, 5, **Delta.check_options)).double()
    x = torch.randn(9, 2, 3, dtype=torch.float64)
    torch.testing.assert_close(layer(x)[0], dense(x)[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("cell", CELLS)
def test_gradients_equal_finite_differences_without_thresholds(cell):
    dense = layer_of(cell, "always", 3, 5)
    assert_gradients_are_right(RecurrentLayer(dense.cell, Delta(3, 5, **Delta.check_options)).double(), 3)


@pytest.mark.parametrize("straight", [True, False])
def test_gradients_pass_through_the_thresholds(straight):
    def send(value, last, theta):
        sent = torch.where((value - last).abs() > theta, value, last)
        return sent.detach() + (value - value.detach()) if straight else sent

    cell = layer_of("gru", "always", 3, 5).cell
    layer = RecurrentLayer(cell, Delta(3, 5, **THETA, straight_through=straight)).double()
    x = torch.randn(7, 2, 3, dtype=torch.float64, requires_grad=True)
    y, _, trace = layer(x)
    assert 0 < trace.decisions.double().mean() < 1
    got = torch.autograd.grad(y.sin().sum() + trace.budget, [x, cell.W, cell.R])

    h = sent_h = torch.zeros(2, 5, dtype=torch.float64)
    sent_x, outputs, budget = torch.zeros(2, 3, dtype=torch.float64), [], 0
    for x_t in x:
        sent_x = send(x_t, sent_x, 0.3)
        last, sent_h = sent_h, send(h, sent_h, 0.2)
        budget = budget + (sent_h - last).abs().mean()
        h = gru_step(cell, sent_x, sent_h, h)
        outputs.append(h)
    expected = torch.autograd.grad(torch.stack(outputs).sin().sum() + budget, [x, cell.W, cell.R])
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("straight", [True, False])
def test_only_straight_through_gradients_grow_where_products_read_an_old_value(straight):
    """A neuron h = tanh(3 ĥ), where ĥ stays 0: h is 0, but its straight-through gradient triples at each step."""
    rule = Delta(1, 1, theta_h=0.5, straight_through=straight).double()
    h = start = torch.full((1, 1), 0.1, dtype=torch.float64, requires_grad=True)
    sent_h = torch.zeros_like(h)
    for _ in range(20):
        _, sent_h = rule.decide(torch.zeros_like(h), (h,), (torch.zeros_like(h), sent_h)).sent
        h = torch.tanh(3 * sent_h)
    assert h.item() == 0
    h.sum().backward()
    assert start.grad.item() == (3**20 if straight else 0)


def test_gradients_equal_finite_differences_with_thresholds():
    cell = layer_of("gru", "always", 3, 5).cell
    assert_gradients_are_right(RecurrentLayer(cell, Delta(3, 5, **THETA, straight_through=False)).double(), 3)


def test_training_moves_values_less_with_a_penalty():
    rates = []
    for weight in (0.0, 3.0):
        torch.manual_seed(0)
        model = edgernn.SequenceModel("gru", 2, 8, 1, rule="delta")
        optimizer, x = torch.optim.Adam(model.parameters(), 0.02), torch.randn(20, 16, 2)
        for _ in range(30):
            y, _ = model(x)
            loss = ((y - x[:, :, :1].mean(0)) ** 2).mean() + weight * model.budget
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        rates.append(model.update_rate)
    assert rates[1] < rates[0]


@pytest.mark.parametrize("name", ["gru", "lstm", "eins"])
def test_kept_sums_stay_exact_over_many_steps(name, tmp_path):
    """Errors in 100,000 steps. Without sums that are computed anew they would grow with the number of steps."""
    options = {"theta_x": 0.5, "theta_h": 0.05}
    model = random_model(name, 3, 16, rule="delta", rule_options=options, output="all")
    layer = model.recurrent_layers()[0]
    for name, theta in options.items():
        # a model with random weights has thresholds for a share of updates
        layer.get_buffer(f"rule.rule_{name}").fill_(theta)
    session = Session(write_alone(model, tmp_path / "m.onnx"), backend="native")
    generator = np.random.default_rng(0)
    x = generator.standard_normal((100_000, 1, 3)).cumsum(0) % 8 - 4
    state, worst, rates = session.initial_state(1), 0.0, []
    cell = layer.cell.double()
    for part in np.split(x.astype(np.float32), 100):
        _, state = session.run_from(part, state)
        rates.append(session.updates.mean() / 16)
        sent_x, sent_h, kept = (torch.from_numpy(state[f"layer0.rule_{n}"]).double() for n in ("x", "h", "p"))
        sums = cell.joined_sums(cell.sums(cell.project(sent_x), sent_h, cell.constants(sent_x[None])))
        worst = max(worst, float((sums.detach() - kept).abs().max()))
    assert 0.02 < np.mean(rates) < 0.98
    assert worst < 1e-4


@pytest.mark.parametrize("value", [1e5, -1e30, 3e38])
def test_a_spike_leaves_nothing_in_the_sums(value, tmp_path):
    to_onnx(random_model("gru", 3, 16, rule="delta", skip=0.5, output="all"), tmp_path / "m.onnx")
    x = np.random.default_rng(1).standard_normal((40, 1, 3)).astype(np.float32)
    x[20, 0, 1] = value
    x[21:, 0, 1] = 0
    sums = []
    for backend in ("native", "portable"):
        session = Session(tmp_path / "m.onnx", backend=backend)
        _, state = session.run_from(x, session.initial_state(1))
        sums.append(state["layer0.rule_p"])
    assert np.isfinite(sums[0]).all()
    np.testing.assert_allclose(*sums, rtol=0, atol=1e-4)


def test_low_rank_weights_run_as_standard_operators(tmp_path):
    model = contractive("gru", "delta", rank=2)
    assert without_kernel(model.recurrent_layers()) == (
        "gru+delta+low-rank: the native library has no kernel for low-rank weights with the rule delta; run the model "
        "with backend portable (standard ONNX operators), or leave out rank"
    )
    (check,) = to_onnx(model, tmp_path / "m.onnx")
    assert check.backend == "portable"
