# SPDX-License-Identifier: Apache-2.0
"""Properties of the rule topk; test_cells and test_native_op compare it with its oracle on every cell that it fits."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

import edgernn
from edgernn.cells import CELLS, Cell, Gate, UpdateGate
from edgernn.export import to_onnx
from edgernn.export.graph import build
from edgernn.export.native_kernels import without_kernel
from edgernn.kernels.common import refusal
from edgernn.layer import RecurrentLayer
from edgernn.random_models import random_model
from edgernn.rules import TopK, UpdateRule
from edgernn.runtime import Session
from edgernn.runtime.firmware.folder import c_files
from tests.models import contractive, exported_alone, named_cost
from tests.native import assert_equal, draw, draw_clear_call, session
from tests.pairs import fits
from tests.random_layers import assert_gradients_are_right, layer_of

FITTING = [cell for cell in CELLS if fits(cell, "topk")]


def save(model, path):
    """Export without a check, which compares no decisions at ties."""
    onnx.save(build(model), path)


def test_cells_with_an_update_gate():
    assert FITTING == ["gru", "gru-before", "pru", "fastgrnn-split"]


@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell not in FITTING])
def test_other_cells_are_refused(cell):
    with pytest.raises(edgernn.UsageError) as error:
        edgernn.SequenceModel(cell, 3, 4, rule="topk")
    assert str(error.value) == (
        f"rule: expected a cell with an update gate for the rule topk, got {cell}, which declares none; use one of "
        "gru, gru-before, pru, fastgrnn-split, or another rule"
    )


@pytest.mark.parametrize("cell", FITTING)
def test_all_neurons_give_the_dense_layer(cell):
    dense = layer_of(cell, "always", 3, 5)
    layer = RecurrentLayer(dense.cell, TopK(3, 5, k=5)).double()
    x = torch.randn(9, 2, 3, dtype=torch.float64)
    torch.testing.assert_close(layer(x)[0], dense(x)[0], rtol=0, atol=0)


@pytest.mark.parametrize("cell", FITTING)
def test_gradients_equal_finite_differences(cell):
    """The choice is constant near a point without ties, so that its gradient is zero."""
    assert_gradients_are_right(RecurrentLayer(layer_of(cell, "always", 3, 5).cell, TopK(3, 5, k=2)).double(), 3)


def test_the_gate_of_a_gru_says_who_changes():
    layer = layer_of("gru", "topk", 3, 6)
    layer.rule.force(1 / 3)
    x, h = torch.randn(1, 4, 3, dtype=torch.float64), torch.randn(4, 6, dtype=torch.float64)
    W, R, b = (layer.cell.get_parameter(name)[6:12] for name in ("W", "R", "b"))
    z = torch.sigmoid(x[0] @ W.T + h @ R.T + b)
    y, _, trace = layer(x, (h,))
    for sample in range(4):
        largest = torch.topk(1 - z[sample], 2).indices
        assert trace.decisions[0, sample].nonzero().ravel().tolist() == sorted(largest.tolist())
    assert ((y[0] == h) == ~trace.decisions[0]).all()


@pytest.mark.parametrize("k", [1, 5, 16, 33])
@pytest.mark.parametrize("cell", FITTING)
def test_ties_go_to_the_lower_index_everywhere(cell, k, tmp_path):
    """All weights of the gate are 0, so that its pre-activations are biases of three values."""
    model = contractive(cell, "topk", rule_options={"k": k}, output="all", output_size=None)
    layer = model.recurrent_layers()[0]
    gate = [g.name for g in layer.cell.gates].index(layer.cell.update_gate.name)
    rows, values = slice(33 * gate, 33 * gate + 33), torch.arange(33) % 3
    with torch.no_grad():
        layer.cell.W[rows] = 0
        layer.cell.R[rows] = 0
        layer.cell.b[rows] = (values - 1.0) * layer.cell.update_gate.sign
    expected = torch.zeros(33, dtype=torch.bool)
    expected[sorted(range(33), key=lambda j: (-int(values[j]), j))[:k]] = True
    x = torch.randn(6, 2, 3)
    with torch.no_grad():
        y, _ = model(x)
    assert (model.traces[0].decisions == expected).all()
    save(model, tmp_path / "m.onnx")
    for backend in ("native", "portable"):
        run = Session(tmp_path / "m.onnx", backend=backend)
        np.testing.assert_allclose(run.run(x.numpy()), y, rtol=0, atol=1e-6)
        assert (run.updates == k).all()


@pytest.mark.parametrize("hidden", [5, 33, 128])
@pytest.mark.parametrize("cell", FITTING)
def test_every_k_equals_the_oracle(cell, hidden):
    for k in dict.fromkeys([1, 2, hidden // 2, hidden // 2 + 1, hidden - 1, hidden]):
        weights = draw(cell, "topk", hidden, 3)
        weights["rule_k"][:] = k
        feed, expected = draw_clear_call(cell, "topk", weights, (hidden, 3, 19, 3))
        assert_equal(cell, "topk", session(cell, "topk", weights).run(None, feed), expected)
        assert (expected.updates == k).all()


@pytest.mark.parametrize("values", [[np.nan], [np.nan, 1.0], [np.inf, -np.inf, np.nan, 0.0, -0.0], [0.0, -0.0, 1e-40]])
@pytest.mark.parametrize("backend", ["native", "portable"])
def test_odd_scores_select_as_many_neurons(values, backend, tmp_path):
    """NaN counts as the smallest value. Subnormal numbers are zeros in the native library."""
    hidden, k = 37, 11
    model = contractive("pru", "topk", hidden_size=hidden, rule_options={"k": k}, output="all", output_size=None)
    cell = model.recurrent_layers()[0].cell
    scores = np.resize(np.array(values, np.float32), hidden)
    with torch.no_grad():
        cell.W[hidden:], cell.R[hidden:], cell.b[hidden:] = 0, 0, -torch.from_numpy(scores)
    save(model, tmp_path / "m.onnx")
    x = np.random.default_rng(0).standard_normal((1, 1, 3)).astype(np.float32)
    run = Session(tmp_path / "m.onnx", backend=backend)
    h = np.full((1, hidden), 0.25, np.float32)
    y, _ = run.run_from(x, {"layer0.s": h})
    assert (run.updates == k).all()
    ranks = np.where(np.isnan(scores), -np.inf, scores)
    if backend == "native":
        ranks = np.where(np.abs(ranks) < 1e-38, 0, ranks)
    order = sorted(range(hidden), key=lambda j: (-ranks[j], j))
    assert (y[0, 0, order[k:]] == 0.25).all()
    assert (y[0, 0, order[:k]] != 0.25).all()


def test_low_rank_weights_and_own_cells_run_as_standard_operators(tmp_path):
    class Own(Cell):
        """A gated unit."""

        name = "own"
        gates = (Gate("z"), Gate("n"))
        update_gate = UpdateGate("z", 1)

        def update(self, p, state):
            return (torch.lerp(state[0], torch.tanh(p.n), torch.sigmoid(p.z)),)

    for model, reason in (
        (contractive("gru", "topk", rank=2), "no kernel for low-rank weights with the rule topk"),
        (contractive(Own, "topk"), "own: the native library has no kernel for this cell with the rule topk"),
    ):
        assert reason in without_kernel(model.recurrent_layers())
        (check,) = to_onnx(model, tmp_path / "m.onnx")
        assert check.backend == "portable"


@pytest.mark.parametrize(
    ("gates", "gate"),
    [
        ((Gate("z"), Gate("n")), UpdateGate("f", 1)),
        ((Gate("z"), Gate("n")), UpdateGate("z", 2)),
        ((Gate("r", mid=True), Gate("n", m=True)), UpdateGate("r", 1)),
        ((Gate("z"), Gate("n", m=True)), UpdateGate("n", 1)),
    ],
)
def test_a_wrong_update_gate_is_refused(gates, gate):
    cell = type("Wrong", (CELLS["rnn"],), {"name": "wrong", "gates": gates, "update_gate": gate})
    with pytest.raises(edgernn.UsageError, match="update_gate: expected the name of a gate with the terms W x, R h"):
        edgernn.SequenceModel(cell, 3, 4, rule="topk")


class SmallestK(TopK):
    """A user's own rule, with the name of a rule of the library."""

    def decide(self, e, state, memory):
        return super().decide(-e, state, memory)


class AboveThreshold(TopK):
    """A user's own rule of the same kind, which decides by a score."""

    name = "above"
    decide = UpdateRule.decide

    def score(self, e, state, memory):
        return e - self.rule_k


@pytest.mark.parametrize("rule", [SmallestK, AboveThreshold])
def test_training_kernels_refuse_a_users_rule_of_its_kind(rule):
    assert refusal(RecurrentLayer(CELLS["gru"](3, 4), TopK(3, 4))) is None
    assert refusal(RecurrentLayer(CELLS["gru"](3, 4), rule(3, 4))) == (
        f"there is no kernel for this rule {rule.name}: of the kind GATE, kernels run the library's own rules only"
    )


def test_c_code_refuses_the_rule():
    with pytest.raises(edgernn.UsageError, match=r"gru\+topk: expected an update rule with C code"):
        c_files(exported_alone(contractive("gru", "topk")), Path("model.onnx"))


def test_an_imputer_before_the_cell(tmp_path):
    model = contractive("gru-before", "topk", input_size=9, imputer="gru-d")
    checks = to_onnx(model, tmp_path / "m.onnx")
    assert [check.backend for check in checks] == ["portable", "native"]


@pytest.mark.parametrize("options", [{"density": 0.25}, {"norm": "layer"}, {"layers": 2, "bidirectional": True}])
def test_shapes_of_models(options, tmp_path):
    checks = to_onnx(contractive("gru", "topk", **options), tmp_path / "m.onnx")
    assert len(checks) == (1 if "norm" in options else 2)


def test_a_share_to_skip_is_refused_in_training(tmp_path):
    with pytest.raises(edgernn.UsageError, match="skip: expected an update rule with a penalty on updates, got topk"):
        edgernn.training.train("adding", "gru", "topk", out=tmp_path / "run", settings={"skip": 0.8})


def test_a_model_learns():
    torch.manual_seed(0)
    model = edgernn.SequenceModel("gru", 2, 16, 1, rule="topk", rule_options={"k": 4})
    optimizer, x, losses = torch.optim.Adam(model.parameters(), 0.02), torch.randn(12, 32, 2), []
    for _ in range(60):
        y, _ = model(x)
        loss = (y - x[:, :, :1].mean(0)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.3 * losses[0]
    assert model.update_rate == 0.25


def test_costs_are_those_of_the_gate_and_of_k_neurons():
    # the gate reads x, and the columns of the 2 neurons of 8 that changed; r, n and k have 2 rows each
    assert named_cost("gru", "topk", 3, 8, update_rate=0.25).macs_executed == 8 * (3 + 2) + 2 * (2 * 3 + 2 * 8)
    # with more than half of the neurons, the gate reads all columns
    assert named_cost("gru", "topk", 3, 8, update_rate=0.75).macs_executed == 8 * (3 + 8) + 6 * (2 * 3 + 2 * 8)
    costs = named_cost("gru", "topk", 3, 8, update_rate=0.25)
    # a row of r, z and n has 3 + 8 weights; those of k are part of the rows of n
    assert costs.flops_paper == 8 * (2 * 11 - 1) + 2 * 2 * (2 * 11 - 1)
    model = random_model("gru", 2, 128, rule="topk", skip=0.9)
    assert int(model.recurrent_layers()[0].rule.rule_k) == 13
