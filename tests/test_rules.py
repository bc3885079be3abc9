# SPDX-License-Identifier: Apache-2.0
"""Properties of single update rules; test_cells compares every rule on every cell with its oracle."""

import numpy as np
import pytest
import torch

import edgernn
from edgernn.cells.recurrent import recurrent_weights
from edgernn.costs import cost
from edgernn.layer import RecurrentLayer
from edgernn.names import resolve
from edgernn.random_models import random_model
from edgernn.rules import RULES, Clockwork, Delta, Phased, Random, TopK, Variable
from edgernn.rules.base import KEPT_SHARE
from tests import oracle, oracle_rules
from tests.layers import layer_of, oracle_run
from tests.models import named_cost
from tests.pairs import PAIRS, fits


def pattern(model: edgernn.SequenceModel, T: int, B: int = 2) -> torch.Tensor:
    """Return u (T, B, H) of the first layer on random input."""
    with torch.no_grad():
        model(torch.randn(T, B, model.input_size))
    decisions = model.traces[0].decisions
    assert decisions is not None
    return decisions


def test_random_updates_have_the_rate_and_no_structure():
    u = pattern(edgernn.SequenceModel("gru", 1, 64, rule="random", rule_options={"rate": 0.3}).eval(), 400)
    assert torch.equal(u[:, 0], u[:, 1])
    shares = u[:, 0].double()
    assert float(shares.mean()) == pytest.approx(0.3, abs=0.01)
    assert float(shares.mean(0).std()) < 0.04
    assert float(shares.mean(1).std()) < 0.1
    centred = shares - shares.mean()
    neighbours = [(centred[1:] * centred[:-1]).mean(), (centred[:, 1:] * centred[:, :-1]).mean()]
    assert all(abs(float(c)) < 0.02 for c in neighbours)


def test_random_pattern_depends_on_the_seed_alone():
    models = [edgernn.SequenceModel("gru", 1, 16, rule="random", rule_options={"seed": s}).eval() for s in (0, 0, 1)]
    first, again, other = (pattern(m, 30) for m in models)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_random_patterns_are_new_for_every_sequence_in_training():
    model = edgernn.SequenceModel("gru", 1, 16, rule="random").train()
    first, second = pattern(model, 30), pattern(model, 30)
    assert not torch.equal(first[:, 0], first[:, 1])
    assert not torch.equal(first, second)


def test_clockwork_ticks_at_powers_of_two():
    u = pattern(edgernn.SequenceModel("gru", 1, 10, rule="clockwork"), 32)[:, 0]
    assert u[0].all()
    assert u.sum(0).tolist() == [32, 32, 16, 16, 8, 8, 4, 4, 2, 2]


def test_clockwork_neurons_do_not_read_from_faster_ones():
    cell, rule = (t(1, 10) for t in resolve("gru", "clockwork"))
    layer = RecurrentLayer(cell, rule).double()
    state = [torch.randn(1, 10, dtype=torch.float64, requires_grad=True), torch.zeros(1, 1, dtype=torch.float64)]
    _, (h, _), _ = layer(torch.randn(1, 1, 1, dtype=torch.float64), tuple(state))
    (slowest,) = torch.autograd.grad(h[0, -1], state[0])
    assert slowest[0, :8].abs().max() == 0
    assert slowest[0, 8:].abs().min() > 0


def test_skip_updates_at_the_first_step_and_then_after_a_fixed_wait():
    model = edgernn.SequenceModel("gru", 1, 8, rule="skip")
    layer = model.recurrent_layers()[0]
    with torch.no_grad():
        layer.rule.rule_w.zero_()
        # Δ = 0.2: the pressure is 0.2, 0.4, 0.6 after an update, so every third step is an update
        layer.rule.rule_b.fill_(float(torch.logit(torch.tensor(0.2))))
    u = pattern(model, 10)
    assert u[:, 0, 0].int().tolist() == [1, 0, 0, 1, 0, 0, 1, 0, 0, 1]
    assert (u == u[..., :1]).all()


def test_skip_keeps_the_whole_state_between_updates():
    model = edgernn.SequenceModel("lstm", 1, 8, rule="skip", output="all")
    with torch.no_grad():
        model.recurrent_layers()[0].rule.rule_b.fill_(-2.0)
        y, _ = model(torch.randn(12, 3, 1))
    u = model.traces[0].decisions
    held = ~u[1:, :, 0]
    assert held.any()
    assert torch.equal(y[1:][held], y[:-1][held])


def test_skip_learns_where_it_starts_and_the_file_knows(tmp_path):
    from edgernn.export import to_onnx
    from edgernn.runtime import Session

    model = edgernn.SequenceModel("gru", 2, 5, 1, rule="skip")
    start = model.recurrent_layers()[0].start[0]
    assert any(p is start for p in model.parameters())
    to_onnx(model, tmp_path / "m.onnx")
    session = Session(tmp_path / "m.onnx", backend="portable")
    state = session.initial_state(3)
    torch.testing.assert_close(torch.from_numpy(state["layer0.h"]), start.detach().expand(3, -1))
    assert (state["layer0.rule_pressure"] == 1).all()
    x = torch.randn(7, 3, 2)
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(session.run(x.numpy())), model(x)[0], rtol=0, atol=1e-5)


def test_skip_gradient_reaches_the_pressure():
    model = edgernn.SequenceModel("gru", 2, 5, 1, rule="skip")
    y, _ = model(torch.randn(9, 4, 2))
    (y.sum() + 0.1 * model.budget).backward()
    rule = model.recurrent_layers()[0].rule
    assert rule.rule_b.grad.abs() > 0
    assert rule.rule_w.grad.abs().min() > 0


def test_skip_budget_counts_updates_of_a_sample():
    model = edgernn.SequenceModel("gru", 2, 5, rule="skip")
    model(torch.randn(9, 4, 2))
    u = model.traces[0].decisions
    assert float(model.budget.detach()) == pytest.approx(float(u[..., 0].sum() / 4))


@pytest.mark.parametrize("rule", [r for r in RULES if RULES[r].can_skip])
@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_a_forced_rate_is_had(rule, rate):
    model = random_model("gru", 16, 100, rule=rule, skip=1 - rate)
    with torch.no_grad():
        model(torch.randn(500, 2, 16))
    # the update rates of clockwork for equal groups
    near = {"clockwork": 0.04, "selective": 0.02, "random": 0.02, "delta": 0.03}
    assert model.update_rate == pytest.approx(rate, abs=near.get(rule, 0.005))


@pytest.mark.parametrize("rule", [r for r in RULES if RULES[r].can_skip])
@pytest.mark.parametrize("rate", [0, 1])
def test_all_or_nothing_can_be_forced(rule, rate):
    always = {
        "clockwork": "the rule clockwork, which updates its first group at every step",
        "topk": "the rule topk, which updates at least one neuron at every step",
    }
    if rule in always and rate == 0:
        with pytest.raises(edgernn.UsageError, match=always[rule]):
            random_model("gru", 3, 10, rule=rule, skip=1.0)
        return
    u = pattern(random_model("gru", 3, 10, rule=rule, skip=1 - rate), 50)
    # skip always changes at the first step
    assert (u[rule == "skip" :] == rate).all()


@pytest.mark.parametrize(("cell", "rule"), PAIRS)
def test_executed_macs_are_what_the_oracle_counts(cell, rule):
    """The cost follows from rates: for `variable` with I = H and one rate for both."""
    layer = layer_of(cell, rule, 8, 8)
    if rule == "variable":
        layer.rule.force(0.5)
    x = torch.randn(32, 2, 8, dtype=torch.float64)
    counted = oracle_run(cell, layer, x)
    measured = layer.executed_macs(layer(x)[2])
    if isinstance(layer.rule, Delta):
        # x and h have a rate each; the first step computes all sums in full, which `executed_macs` leaves out
        first = layer.executed_macs(layer(x[:1])[2]), oracle_run(cell, layer, x[:1]).needed
        assert 32 * measured - first[0] == pytest.approx((counted.needed - first[1]).mean())
        return
    busy = float((counted.updates > 0).mean())
    costs = cost(layer.cell, layer.rule, float(counted.updates.mean()) / 8, busy)
    row = oracle_rules.RULES[rule]({}, 2, 8, 8).fit(oracle.row_of(cell, 8, 8))
    saved = 0.0
    if rule not in ("clockwork", "variable") and counted.updates.mean() / 8 <= KEPT_SHARE * busy:
        # columns of the first stage for neurons that did not change
        saved = row.middle_size(8, 8) * row.mid_macs(0, 1) * (8 * busy - float(counted.updates.mean()))
    assert costs.macs_executed == pytest.approx(counted.needed.mean() / 32 - saved)
    assert measured == pytest.approx(costs.macs_executed)


@pytest.mark.parametrize("rank", [None, 3])
@pytest.mark.parametrize("rule", [r for r in RULES if r != "clockwork"])
def test_nothing_skipped_costs_everything(rule, rank):
    for cell in ("lstm", "gru-before", "eins"):
        if not fits(cell, rule):
            continue
        layer = layer_of(cell, rule, 4, 8, recurrent_weights(rank))
        costs = cost(layer.cell, layer.rule, 1.0)
        assert costs.macs_executed == costs.macs
        nothing = cost(layer.cell, layer.rule, 0.0).macs_executed
        # delta does not skip the products with m, nor with Q h
        whole = layer.cell.V.numel() if hasattr(layer.cell, "V") else 0
        whole += 0 if rank is None else layer.cell.R.numel()
        assert nothing == {"skip": 0, "delta": whole}.get(rule, layer.rule.macs())


def test_variable_executes_a_part_of_every_row():
    # 2 of 8 rows read 1 of 4 inputs; r of gru-before as well, but eins needs its mid gates in full
    for cell, macs in (("gru", 2 * 3 * (1 + 2)), ("gru-before", 2 * 3 * (1 + 2)), ("eins", 2 * 4 * 4 + 4 * (2 + 2))):
        assert named_cost(cell, "variable", 4, 8, update_rate=0.25).macs_executed == macs + 4 + 8


def test_skip_computes_nothing_between_updates():
    costs = named_cost("gru-before", "skip", 3, 8, update_rate=0.25)
    assert costs.macs_executed == 0.25 * costs.macs
    # the paper's figures: a GRU of 110 units on the adding task, T = 50, with all and with 50.7 % of the updates
    assert 50 * named_cost("gru", None, 2, 110).macs == pytest.approx(1.85e6, rel=2e-3)
    assert 50 * named_cost("gru", "skip", 2, 110, update_rate=0.507).macs_executed == pytest.approx(9.40e5, rel=1e-3)


def test_skip_evaluates_its_unit_once_where_a_call_begins_between_updates():
    decider, row = oracle_rules.Skip({}, 2, 3, 8), oracle.CELLS["gru"]
    full = 8 * row.row_macs(3, 8, 8)
    assert decider.step_macs(np.array([0, 8]), row, 3, 8).tolist() == [8, full + 8]
    assert decider.step_macs(np.array([0, 8]), row, 3, 8).tolist() == [0, full + 8]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Random(1, 4, rate=1.5), "rate: expected between 0 and 1, got 1.5"),
        (lambda: Clockwork(1, 4, groups=0), "groups: expected between 1 and 20, got 0"),
        (lambda: Phased(1, 4, open=0), "open: expected above 0 and at most 1, got 0"),
        (lambda: Phased(1, 4, leak=2), "leak: expected between 0 and 1, got 2"),
        (lambda: Phased(1, 4, shortest=9, longest=8), "expected 0 < shortest <= longest, got 9 and 8"),
        (lambda: Variable(1, 4, sharpness=0), "sharpness: expected above 0, got 0"),
        (lambda: Variable(1, 4, epsilon=0.6), "epsilon: expected above 0 and at most 0.5, got 0.6"),
        (lambda: Variable(1, 4, target=-1), "target: expected between 0 and 1, got -1"),
        (lambda: Delta(1, 4, theta_h=-0.1), "theta_h: expected a finite number of at least 0, got -0.1"),
        (lambda: TopK(1, 4, k=0), "k: expected from 1 to 4, the number of neurons, got 0"),
        (lambda: TopK(1, 4, k=5), "k: expected from 1 to 4, the number of neurons, got 5"),
    ],
)
def test_wrong_options_are_named(make, message):
    with pytest.raises(edgernn.UsageError, match=message):
        make()


def test_every_rule_has_an_oracle():
    assert set(oracle_rules.RULES) == set(RULES)
