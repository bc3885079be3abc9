# SPDX-License-Identifier: Apache-2.0
"""Options of cells: every variant equals its oracle, and forget biases and lengths do what they say."""

import numpy as np
import pytest
import torch

from edgernn.cells import CELLS, ForgetBias
from edgernn.costs import cost
from edgernn.errors import UsageError
from edgernn.layer import RecurrentLayer
from edgernn.rules import RULES
from tests import oracle
from tests.random_layers import assert_gradients_are_right, layer_of, op_parameters, random_state
from tests.tolerances import FLOAT64

# options of a cell, I, H, and the resulting variant
OPTIONS = [
    ("eins", {"a": "x"}, 5, 11, "eins-from-x"),
    ("eins", {"forget_bias": 1.0}, 5, 11, "eins"),
    ("eins", {"a": "x", "forget_bias": -0.5}, 5, 11, "eins-from-x"),
    ("irc-gru", {"forget_bias": 1.0}, 5, 11, "irc-gru"),
    ("irc-lstm", {"forget_bias": 1}, 5, 11, "irc-lstm"),
    ("irc-sru", {"forget_bias": 1.0}, 7, 7, "irc-sru"),
    ("irc-sru", {"forget_bias": 1.0}, 5, 11, "irc-sru-projected"),
    ("irc-t-lstm", {"forget_bias": 1.0}, 7, 7, "irc-t-lstm"),
    ("irc-t-lstm", {"forget_bias": 1.0}, 5, 11, "irc-t-lstm-projected"),
    ("irc-fastgrnn", {"forget_bias": 1.0}, 5, 11, "irc-fastgrnn"),
    ("ihc-lstm", {"forget_bias": 1.0}, 5, 11, "ihc-lstm"),
]
every_option = pytest.mark.parametrize(
    ("cell", "options", "I", "H", "form"),
    OPTIONS,
    ids=[f"{row[-1]}{'-forget' * ('forget_bias' in row[1])}" for row in OPTIONS],
)


@every_option
@pytest.mark.parametrize("rule", ["always", "selective"])
def test_options_equal_oracle(cell, options, I, H, form, rule):
    T, B = 7, 3
    plain = CELLS[cell](I, H)
    assert plain.form == form.removesuffix("-from-x")
    layer = layer_of(cell, rule, I, H, **options)
    assert layer.cell.form == form
    assert layer.cell.biases == plain.biases + ("forget_bias" in options)
    x, state = torch.randn(T, B, I, dtype=torch.float64), random_state(layer, B)
    expected = oracle.run(cell, rule, op_parameters(layer), x.numpy(), [s.numpy() for s in state])
    y, last, _ = layer(x, state)
    np.testing.assert_allclose(y.detach(), expected.y, rtol=0, atol=FLOAT64)
    for got, wanted in zip(last[: len(expected.state)], expected.state, strict=True):
        np.testing.assert_allclose(got.detach(), wanted, rtol=0, atol=FLOAT64)
    more = cost(layer.cell, layer.rule).parameters - cost(plain, layer.rule).parameters
    assert more == H * ("forget_bias" in options)


@every_option
def test_gradients_of_options_equal_finite_differences(cell, options, I, H, form):
    assert_gradients_are_right(layer_of(cell, "always", I, H, **options), I)


@pytest.mark.parametrize("length", [None, 1, 4, 50])
@pytest.mark.parametrize("rule", ["always", "selective"])
def test_decaynet_length_equals_oracle(length, rule):
    T, B, I, H = 9, 3, 5, 11
    layer = layer_of("decaynet", rule, I, H, length=length)
    assert layer.cell.streaming == (length is not None)
    x, state = torch.randn(T, B, I, dtype=torch.float64), random_state(layer, B)
    expected = oracle.run("decaynet", rule, op_parameters(layer), x.numpy(), [s.numpy() for s in state])
    y, last, _ = layer(x, state)
    np.testing.assert_allclose(y.detach(), expected.y, rtol=0, atol=FLOAT64)
    np.testing.assert_allclose(last[2].detach(), expected.state[2], rtol=0, atol=FLOAT64)


def test_decaynet_forgets_all_by_the_end_of_its_length():
    """W x + R h = 3 decays by π / (2 D) per step, -3 not at all: the two ends of the paper's range."""
    for pre, forget in ((3.0, 0.0), (-3.0, 1.0)):
        cell = CELLS["decaynet"](1, 1, length=5).double()
        for parameter in cell.parameters():
            torch.nn.init.zeros_(parameter)
        with torch.no_grad():
            # i is closed, so c shows only the effect of f
            cell.W[1], cell.b[0] = pre, -1000
        layer = RecurrentLayer(cell, RULES["always"](1, 1))
        ones = torch.ones(1, 1, dtype=torch.float64)
        _, (_, c, decay), _ = layer(torch.ones(5, 1, 1, dtype=torch.float64), (ones, ones, 0 * ones))
        angles = torch.arange(1, 6, dtype=torch.float64) * torch.pi / 10 * (1 - forget)
        assert float(decay.detach()) == pytest.approx(float(angles[-1]))
        assert float(c.detach()) == pytest.approx(float(angles.cos().prod()))


@pytest.mark.parametrize("cell", [name for name, kind in CELLS.items() if issubclass(kind, ForgetBias)])
@pytest.mark.parametrize("I", [3, 40])
def test_forget_bias_starts_at_its_value(cell, I):
    module = CELLS[cell](I, 40, forget_bias=1.5)
    # the gate of irc-gru weighs the new value, 1 - f
    start = -1.5 if cell == "irc-gru" else 1.5
    # in two cells the bias of another gate comes first
    others = I if cell in ("eins", "ihc-lstm") else 0
    for _ in range(2):
        assert module.b.shape == (others + 40,)
        assert (module.b[others:] == start).all()
        assert ((module.b[:others] != start) & (module.b[:others].abs() <= 40**-0.5)).all()
        torch.nn.init.zeros_(module.b)
        module.reset_parameters()


def test_forget_bias_keeps_the_memory():
    """After a step on x = 0 the state is the part that f keeps, as the gate has no other input."""
    for cell, kept in (("irc-gru", 0), ("irc-lstm", 1), ("irc-sru", 1), ("irc-t-lstm", 1), ("irc-fastgrnn", 0)):
        module = CELLS[cell](3, 4, forget_bias=2.0).double()
        with torch.no_grad():
            module.V.zero_()
        layer = RecurrentLayer(module, RULES["always"](3, 4))
        state = random_state(layer, 2)
        _, last, _ = layer(torch.zeros(1, 2, 3, dtype=torch.float64), state)
        torch.testing.assert_close(last[kept], torch.sigmoid(torch.tensor(2.0, dtype=torch.float64)) * state[kept])


def test_lru_starts_in_a_ring():
    torch.manual_seed(0)
    cell = CELLS["lru"](4, 4000, r_min=0.5, r_max=0.9, max_phase=1.0)
    length, phase = torch.exp(-torch.exp(cell.nu)), torch.exp(cell.theta)
    assert 0.5 < length.min() < 0.51
    assert 0.89 < length.max() < 0.9
    # uniform in area: half of the squares are below the mean of the bounds' squares
    assert abs((length.square() < (0.25 + 0.81) / 2).float().mean() - 0.5) < 0.03
    assert 0 < phase.min() < 0.01 < 0.99 < phase.max() < 1
    torch.testing.assert_close(torch.exp(cell.gamma).square() + length.square(), torch.ones(4000))
    assert abs(cell.W.var() - 1 / 8) < 0.01


def test_lru_of_a_narrow_ring_starts_with_finite_parameters():
    cell = CELLS["lru"](3, 512, r_min=0.9999999, r_max=1.0)
    assert all(torch.isfinite(parameter).all() for parameter in cell.parameters())
    assert torch.exp(-torch.exp(cell.nu)).max() < 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"r_min": 0.9, "r_max": 0.9}, "r_min, r_max: expected 0 <= r_min < r_max <= 1, got 0.9 and 0.9"),
        ({"r_max": 1.1}, "r_min, r_max: expected 0 <= r_min < r_max <= 1, got 0.0 and 1.1"),
        ({"max_phase": 7.0}, "max_phase: expected above 0 and at most 2π .6.2832., got 7.0"),
        ({"max_phase": float("nan")}, "max_phase: expected above 0 and at most 2π .6.2832., got nan"),
    ],
)
def test_lru_refuses_other_rings(options, message):
    with pytest.raises(UsageError, match=f"^{message}$"):
        CELLS["lru"](2, 3, **options)


def test_minlstm_with_both_gates_closed_takes_the_mean():
    cell = CELLS["minlstm"](1, 1)
    with torch.no_grad():
        cell.W.zero_()
        cell.b.copy_(torch.tensor([-1e4, -1e4, 3.0]))
    (h,) = cell.step(cell.project(torch.zeros(1, 1)), torch.zeros(1, 1), (torch.ones(1, 1),), {})
    assert h.item() == 2
