# SPDX-License-Identifier: Apache-2.0
"""Properties of the rules with u between 0 and 1: `phased` and `variable`."""

import math

import numpy as np
import pytest
import torch

import edgernn
from edgernn.cells import CELLS
from edgernn.layer import RecurrentLayer
from edgernn.names import resolve
from edgernn.random_models import random_model
from edgernn.rules import RULES
from tests.layers import layer_of, oracle_run
from tests.test_rules import pattern
from tests.tolerances import FLOAT64

# short soft zones and long open ones, so that both few and many neurons change
SHARP = [
    ("phased", {"open": 0.3}),
    ("phased", {"open": 0.9, "shortest": 0.3, "longest": 3.0}),
    ("variable", {"sharpness": 5.0}),
    ("variable", {"sharpness": 2.0, "epsilon": 0.1}),
    ("variable", {"epsilon": 0.5}),
]


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(("rule", "options"), SHARP, ids=[f"{r}-{'-'.join(map(str, o.values()))}" for r, o in SHARP])
def test_soft_rules_equal_oracle_where_they_skip(cell, rule, options):
    layer = layer_of(cell, rule, 7, 19, **options)
    x = torch.randn(9, 3, 7, dtype=torch.float64)
    state = tuple(torch.randn_like(s) if s.shape[-1] > 1 else s for s in layer.initial_state(3, x))
    expected = oracle_run(cell, layer, x, state)
    y, _, trace = layer(x, state)
    np.testing.assert_allclose(y.detach(), expected.y, rtol=0, atol=FLOAT64)
    assert (trace.decisions.sum(-1).numpy() == expected.updates).all()
    assert 0 < expected.updates.mean() < 19


@pytest.mark.parametrize(("rule", "options"), SHARP, ids=[f"{r}-{'-'.join(map(str, o.values()))}" for r, o in SHARP])
def test_margins_equal_oracle(rule, options):
    layer, x = layer_of("gru", rule, 7, 19, **options), torch.randn(1, 5, 7, dtype=torch.float64)
    (h, *memory) = layer.initial_state(5, x)
    margins = layer.rule.margin(layer.rule.project(x)[0], (h,), tuple(memory)).expand(5)
    for i in range(5):
        expected = oracle_run("gru", layer, x[:, i : i + 1])
        assert float(margins[i].detach()) == pytest.approx(expected.margin, abs=FLOAT64)


@pytest.mark.parametrize("rule", ["phased", "variable"])
def test_skipped_neurons_keep_their_values_to_the_bit(rule):
    model = random_model("lstm", 3, 24, rule=rule, skip=0.6)
    model.output = "all"
    with torch.no_grad():
        y, _ = model(torch.randn(30, 2, 3))
    held = ~model.traces[0].decisions[1:]
    assert held.any()
    assert torch.equal(y[1:][held], y[:-1][held])


def test_phased_neurons_are_open_for_their_share_of_the_period():
    rule = RULES["phased"](1, 3, open=0.4)
    with torch.no_grad():
        rule.rule_tau.copy_(torch.tensor([10.0, 10.0, 10.0]))
        rule.rule_s.copy_(torch.tensor([0.0, 8.0, -2.0]))
    layer = RecurrentLayer(resolve("gru", "phased")[0](1, 3), rule).eval()
    with torch.no_grad():
        u = torch.stack([rule.decide(None, (), (torch.tensor([[float(t)]]),)).u[0] for t in range(20)])
        _, _, trace = layer(torch.randn(20, 1, 1))
    torch.testing.assert_close(u[:10, 0], torch.tensor([0, 0.5, 1, 0.5, 0, 0, 0, 0, 0, 0]), rtol=0, atol=1e-6)
    torch.testing.assert_close(u[10:], u[:10], rtol=0, atol=1e-6)
    # a shift by a whole period, of either sign, has no effect
    torch.testing.assert_close(u[:, 1], u[:, 2], rtol=0, atol=1e-6)
    torch.testing.assert_close(u[:12, 1], u[8:, 0], rtol=0, atol=1e-6)
    assert torch.equal(trace.decisions[:, 0], u > 0)


def test_phased_leaks_in_training_alone():
    model = edgernn.SequenceModel("phasedlstm", 1, 64)
    x = torch.randn(20, 2, 1)
    model.train()(x)
    assert model.update_rate == 1
    model.eval()(x)
    assert 0 < model.update_rate < 0.3


@pytest.mark.parametrize("t", [0.0, 1e3, 1e6])
def test_phase_is_as_exact_late_as_at_the_start(t):
    rule = RULES["phased"](1, 200)
    with torch.no_grad():
        rule.rule_s.sub_(100)
        phase = rule._phase(torch.tensor([[t]]))[0].double()
        tau, s = rule.rule_tau.double(), rule.rule_s.double()
    expected = torch.remainder(t + s, tau) / tau
    apart = (phase - expected).abs()
    assert torch.minimum(apart, 1 - apart).max() < 1e-6


def test_phased_starts_as_the_authors_advise():
    rule = RULES["phased"](1, 20_000)
    logs, places = rule.rule_tau.detach().log(), (rule.rule_s / rule.rule_tau).detach()
    for values, low, high in ((logs, 1, 6), (places, 0, 1)):
        assert low <= values.min() + 1e-4
        assert values.max() - 1e-4 <= high
        assert float(values.mean()) == pytest.approx((low + high) / 2, rel=0.02)


def test_phased_file_knows_the_time(tmp_path):
    from edgernn.export import to_onnx
    from edgernn.runtime import Session

    model = edgernn.SequenceModel("phasedlstm", 2, 30, rule_options={"open": 0.3}, output="all").eval()
    to_onnx(model, tmp_path / "m.onnx")
    session, x = Session(tmp_path / "m.onnx", backend="portable"), torch.randn(9, 2, 2)
    state = [torch.randn_like(s) for s in model.initial_state(2, x)]
    state[model.state_names.index("layer0.rule_t")] = torch.tensor([[0.0], [1e6]])
    y, last = session.run_from(x.numpy(), dict(zip(model.state_names, (s.numpy() for s in state), strict=True)))
    with torch.no_grad():
        expected, _ = model(x, tuple(state))
    torch.testing.assert_close(torch.from_numpy(y), expected, rtol=0, atol=1e-5)
    assert last["layer0.rule_t"].ravel().tolist() == [9, 1e6 + 9]


def rule_gradcheck(layer, x, names):
    """Assert that the gradients of outputs and budget by these parameters equal finite differences."""
    values = [dict(layer.named_parameters())[n].detach().clone().requires_grad_() for n in names]

    def f(*parameters):
        y, last, trace = torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (x,))
        return (y, *last[: len(layer.cell.states)], trace.budget)

    assert torch.autograd.gradcheck(f, values)


@pytest.mark.slow
def test_phased_gradients_equal_finite_differences():
    layer = layer_of("lstm", "phased", 2, 6, open=0.5, leak=0.1, shortest=2, longest=6).train()
    with torch.no_grad():
        layer.rule.rule_s.sub_(4)
    rule_gradcheck(layer, torch.randn(8, 2, 2, dtype=torch.float64), ["rule.rule_tau", "rule.rule_s", "cell.R"])


@pytest.mark.slow
def test_variable_gradients_equal_finite_differences():
    layer = layer_of("gru", "variable", 3, 8, sharpness=5.0, epsilon=1e-3)
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    with torch.no_grad():
        u = layer.rule.decide(layer.rule.project(x)[0], layer.initial_state(2, x), ()).u
    assert (u == 0).any()
    assert (u == 1).any()
    assert ((u > 0) & (u < 1)).any()
    rule_gradcheck(layer, x, ["rule.rule_h", "rule.rule_x", "rule.rule_b", "cell.W", "cell.R"])


def test_variable_updates_the_first_neurons():
    u = pattern(edgernn.SequenceModel("vcrnn", 2, 64, rule_options={"sharpness": 3.0}), 20)
    assert (u[..., :-1] >= u[..., 1:]).all()
    # m is initially 1/2: half of the neurons, and the upper half of the soft zone
    assert (u.sum(-1) == 32 + int(math.log(1e5 - 1) / 3)).all()


def test_variable_reads_the_first_inputs():
    rule, x = RULES["variable"](40, 8, sharpness=5.0), torch.randn(3, 2, 40)
    x_mask, state_mask = rule.decide(rule.project(x)[0], (torch.randn(2, 8),), ()).masks
    assert (x_mask[:, :17] == 1).all()
    assert (x_mask[:, 23:] == 0).all()
    assert state_mask.shape == (2, 8)
    layer = RecurrentLayer(resolve("gru", None)[0](40, 8), rule)
    changed = x.clone()
    changed[..., 23:] = 7.0
    assert torch.equal(layer(x)[0], layer(changed)[0])
    changed[..., 16] = 7.0
    assert not torch.equal(layer(x)[0], layer(changed)[0])


def test_variable_budget_is_the_distance_from_the_target():
    model = edgernn.SequenceModel("vcrnn", 3, 8, rule_options={"target": 0.2})
    rule = model.recurrent_layers()[0].rule
    with torch.no_grad():
        rule.rule_x.copy_(torch.tensor([1.0, -2.0, 0.5]))
        rule.rule_b.fill_(-1.0)
    x = torch.randn(5, 4, 3)
    model(x)
    m = torch.sigmoid(x @ torch.tensor([1.0, -2.0, 0.5]) - 1)
    torch.testing.assert_close(model.budget, (m - 0.2).abs().mean(1).sum())


def test_phased_is_forced_at_every_step():
    u = pattern(random_model("gru", 3, 50, rule="phased", skip=0.9), 500)
    assert (u.sum(-1) == 5).all()
    assert float(u.double().mean((0, 1)).std()) < 0.02
