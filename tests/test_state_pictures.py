# SPDX-License-Identifier: Apache-2.0
"""Pictures of states: trajectories, maps and memory, compared with equations in NumPy."""

import numpy as np
import pytest
import torch
from matplotlib import image

from edgernn.errors import UsageError
from edgernn.model import SequenceModel
from edgernn.training.papers.state_pictures import (
    Equation,
    equations,
    first_layer,
    kept_share,
    map_at,
    memory_of,
    track_of,
)


def sigmoid(p):
    return 1 / (1 + np.exp(-p))


@pytest.mark.parametrize(
    ("cell", "options"), [("gru", {}), ("lstm", {}), ("decaynet", {"length": 7}), ("decaynet", {})]
)
def test_a_map_goes_through_the_states_of_the_sequence(cell, options):
    torch.manual_seed(1)
    model = SequenceModel(cell, 2, 5, cell_options=options).eval()
    x = torch.randn(7, 1, 2)
    _, last, _ = model.recurrent_layers()[0](x)
    layer = first_layer(model, 7)
    which = memory_of(layer)
    assert which == (0 if cell == "gru" else 1)
    start = layer.initial_state(1, x)
    states = track_of(layer, x, which, start)
    torch.testing.assert_close(states[-1], last[which][0].detach())
    for t in (0, 3, 6):
        for neuron in (0, 4):
            here = states[t, neuron].numpy().reshape(1)
            after = map_at(layer, x, t, which, neuron, here, start)
            np.testing.assert_allclose(after, states[t + 1, neuron], atol=1e-6)


@pytest.mark.parametrize("cell", ["lstm", "decaynet"])
def test_what_is_kept_is_the_forget_gate(cell):
    T, size = 6, 4
    torch.manual_seed(2)
    model = SequenceModel(cell, 3, size, cell_options={"length": T} if cell == "decaynet" else None).double().eval()
    layer = model.recurrent_layers()[0]
    x = torch.randn(T, 1, 3, dtype=torch.float64)
    W, R, b = (getattr(layer.cell, name).detach().numpy() for name in "WRb")
    i, f, g, o = (slice(k * size, (k + 1) * size) for k in range(4))
    gates = "ifgo" if cell == "lstm" else "igo"
    bias = dict(zip(gates, b.reshape(len(gates), size), strict=True))
    h, c, angle = np.zeros(size), np.zeros(size), np.full(size, np.pi / 2)
    shares = kept_share(layer, x, 1).numpy()
    for t in range(T):
        p = W @ x[t, 0].numpy() + R @ h
        if cell == "lstm":
            forget = sigmoid(p[f] + bias["f"])
        else:
            angle = angle - np.pi / (12 * T) * (p[f] + 3)
            forget = np.sin(np.clip(angle, 0, np.pi / 2))
        np.testing.assert_allclose(shares[t], forget, rtol=1e-10)
        c = forget * c + sigmoid(p[i] + bias["i"]) * np.tanh(p[g] + bias["g"])
        h = sigmoid(p[o] + bias["o"]) * np.tanh(c)


def test_an_equation_moves_as_it_is_written(tmp_path):
    equation = Equation(title="T", start=2.0, f=[1.0, 0.25, 1.0], i=[1.0, 0.0, 0.75], k=3.0)
    layer, x = equation.layer()
    start = (x.new_full((1, 1), equation.start),)
    track = track_of(layer, x, 0, start)[:, 0].tolist()
    s = 2.0
    for t, (f, i) in enumerate(zip(equation.f, equation.i, strict=True)):
        grid = np.array([-1.0, 0.0, 0.5])
        np.testing.assert_allclose(
            map_at(layer, x, t, 0, 0, grid, start), f * grid + i * np.tanh(3.0 * grid), rtol=1e-12
        )
        s = f * s + i * np.tanh(3.0 * s)
        assert track[t + 1] == pytest.approx(s, rel=1e-12)


def test_equations_have_a_row_of_plots_each_if_drawn_apart(tmp_path):
    step = {"start": 1.0, "f": [0.5, 0.5], "i": [0.0, 0.0]}
    equations(tmp_path / "together.png", [Equation(title="a", **step), Equation(title="b", **step)])
    equations(
        tmp_path / "apart.png", [Equation(title="a", **step, apart=True), Equation(title="b", **step, apart=True)]
    )
    together, apart = (image.imread(tmp_path / f"{name}.png").shape[:2] for name in ("together", "apart"))
    assert together[1] == apart[1]
    assert apart[0] == pytest.approx(2 * together[0], rel=0.01)


def test_an_equation_has_both_gates_at_each_step():
    with pytest.raises(
        UsageError, match="T: expected as many forget gates f as input gates i, at least one, got 2 and 1"
    ):
        Equation(title="T", start=1.0, f=[1.0, 1.0], i=[1.0])
