# SPDX-License-Identifier: Apache-2.0
"""Low-rank recurrent weights in the native training kernels, compared with the layer's loop in float64."""

import pytest
import torch

import edgernn
from edgernn.cells import CELLS
from edgernn.cells.recurrent import LowRank
from edgernn.kernels import WIDEST_LOW_RANK, attach
from edgernn.layer import RecurrentLayer
from edgernn.rules import RULES
from tests.fused import assert_equals_loop, fused, inputs, make, run, whole_loss
from tests.fused_cells import Gru

pytestmark = pytest.mark.usefixtures("training_library")

RECURRENT = [name for name, cell in CELLS.items() if hasattr(cell(1, 1), "R")]
OPTIONS = {"delta": {"theta_x": 0.4, "theta_h": 0.1}, "topk": {"k": 4}}


@pytest.mark.parametrize("rule", ["always", "selective", "delta"])
@pytest.mark.parametrize("cell", RECURRENT)
def test_every_cell_equals_the_loop(cell: str, rule: str) -> None:
    layer = make(cell, rule, 11, 11, recurrent=LowRank(2), **OPTIONS.get(rule, {}))
    assert_equals_loop(layer, fused(layer), 6, 5)


@pytest.mark.parametrize("rule", ["skip", "phased", "topk"])
def test_every_kind_of_rule_equals_the_loop(rule: str) -> None:
    layer = make("gru", rule, 5, 19, recurrent=LowRank(3), **OPTIONS.get(rule, {}))
    assert_equals_loop(layer, fused(layer), 6, 5)


def test_a_cell_of_ones_own_equals_the_loop() -> None:
    layer = RecurrentLayer(Gru(4, 9, recurrent=LowRank(2)), RULES["selective"](4, 9))
    assert_equals_loop(layer, fused(layer), 6, 5)


def test_frozen_factors_get_no_gradient() -> None:
    layer = make("gru", "always", 4, 9, recurrent=LowRank(2))
    layer.cell.R.requires_grad_(False)
    x, state = inputs(layer, 5, 3)
    grads, loop_grads = (run(each, x, state, whole_loss)[3] for each in (fused(layer), layer))
    assert grads["cell.R"] is None
    torch.testing.assert_close(grads["cell.Q"], loop_grads["cell.Q"])


@pytest.mark.parametrize("settings", [{"norm": "recurrent-batch", "norm_steps": 5}, {"weights": "int8"}], ids=str)
def test_normalised_and_rounded_weights_equal_the_loop(settings: dict[str, object]) -> None:
    torch.manual_seed(0)
    model = edgernn.SequenceModel("lstm", 3, 10, rank=2, output="all", **settings)
    x = torch.randn(5, 6, 3)
    results = []
    for backend in ("torch", "fused"):
        assert attach(model, backend, "cpu") == backend
        model.zero_grad()
        y = model(x)[0]
        y.sin().sum().backward()
        results.append([y, *(p.grad for p in model.parameters())])
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_the_loop_runs_wide_states_unless_kernels_are_asked_for() -> None:
    for hidden, chosen in ((WIDEST_LOW_RANK, "fused"), (WIDEST_LOW_RANK + 1, "torch")):
        model = edgernn.SequenceModel("gru", 3, hidden, rank=2)
        assert attach(model, "auto", "cpu") == chosen
        assert attach(model, "fused", "cpu") == "fused"
