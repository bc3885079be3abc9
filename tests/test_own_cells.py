# SPDX-License-Identifier: Apache-2.0
"""Ten user-defined cells train, export and run everywhere, and follow the equations of their papers."""

from itertools import product

import numpy as np
import pytest
import torch

from edgernn.cell_files import load_cell
from edgernn.cells import CELLS
from edgernn.export.layer_functions import layer_weights
from edgernn.runtime import Session
from tests import oracle, own_cells
from tests.apps import ROOT
from tests.models import contractive, packed_alone, write
from tests.native import MARGIN
from tests.own_cells_oracle import CASE_RULES, CASES
from tests.test_packed import steps
from tests.tolerances import FLOAT32

PAIRS = list(product(CASES, CASE_RULES))
# one rule per cell in `make quick`, as a portable function takes seconds to trace
EVERY_PAIR = pytest.mark.parametrize(
    ("name", "rule"),
    [
        pair
        if i // len(CASE_RULES) % len(CASE_RULES) == i % len(CASE_RULES)
        else pytest.param(*pair, marks=pytest.mark.slow)
        for i, pair in enumerate(PAIRS)
    ],
    ids=["-".join(pair) for pair in PAIRS],
)


def case_model(name, rule):
    """Make a model with random weights whose y (T, B, H) are the states."""
    case = CASES[name]
    return contractive(case.cell, rule, input_size=case.I, hidden_size=case.H, output_size=None, output="all")


def case_truth(name, rule, model):
    """Draw x (T, B, I) without near-ties, and return it with the oracle's results."""
    (layer,) = model.recurrent_layers()
    weights = {key: value.detach().numpy() for key, value in layer_weights(layer).items()}
    for seed in range(20):
        x = np.random.default_rng(seed).standard_normal((12, 2, CASES[name].I), np.float32)
        state = [s.detach().numpy() for s in layer.initial_state(2, torch.from_numpy(x))]
        expected = oracle.run(CASES[name].row, rule, weights, x, state)
        if expected.margin > MARGIN:
            return x, expected
    raise AssertionError("no draw without a near-tie")


def assert_matches(y, updates, want, rule):
    np.testing.assert_allclose(y, want.y, rtol=0, atol=FLOAT32)
    assert np.abs(want.y).max() > 0.1
    if rule != "always":
        np.testing.assert_array_equal(updates, want.updates)
        assert 0 < want.updates.mean() < want.y.shape[-1]


def test_the_cells_are_others_than_the_librarys():
    assert len(CASES) == 10
    assert not CASES.keys() & CELLS.keys()
    word = f"{ROOT / 'tests' / 'own_cells.py'}:JANET"
    assert load_cell(word).__doc__ == own_cells.JANET.__doc__


@EVERY_PAIR
def test_everything_that_runs_a_file_equals_the_oracle(name, rule, tmp_path):
    model, path = case_model(name, rule), tmp_path / "model.onnx"
    x, expected = case_truth(name, rule, model)
    write(model, path)
    for backend in ("portable", "native"):
        session = Session(path, backend=backend)
        assert session.backend == backend
        assert_matches(session.run(x), session.updates, expected, rule)


@pytest.mark.parametrize(("name", "rule"), PAIRS, ids=["-".join(pair) for pair in PAIRS])
def test_packed_equals_the_oracle(name, rule):
    model = case_model(name, rule)
    x, expected = case_truth(name, rule, model)
    y, updates, _ = steps(packed_alone(model), x)
    assert_matches(y, updates, expected, rule)


@EVERY_PAIR
def test_training_lowers_the_loss(name, rule):
    case = CASES[name]
    torch.manual_seed(0)
    x = torch.randn(8, 32, case.I)
    y = x[..., 0].cumsum(0).tanh()
    model = contractive(case.cell, rule, input_size=case.I, hidden_size=case.H, output_size=1, output="all").train()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(40):
        loss = (model(x)[0][..., 0] - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.75 * losses[0]
