# SPDX-License-Identifier: Apache-2.0
"""The laws of single update rules; that every rule equals its oracle on every cell is in test_cells."""

import pytest
import torch

import edgernn
from edgernn.costs import named_cost
from edgernn.layer import RecurrentLayer
from edgernn.names import resolve
from edgernn.rules import RULES, Clockwork, Random


def pattern(model: edgernn.SequenceModel, T: int, B: int = 2) -> torch.Tensor:
    """u (T, B, H) of the first layer on random input."""
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
        # Δ = 0.2: the pressure is 0.2, 0.4, 0.6 after an update, so every third step is one
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


@pytest.mark.parametrize(
    ("rule", "I", "T", "skip", "printed"),
    [
        ("random", 1, 17, 0.76, 6.2e4),
        # the paper prints 76 % beside the FLOPs of 77 %
        ("random", 77, 15, 0.77, 13.1e4),
        ("random", 1, 25, 0.89, 4.2e4),
        ("skip", 1, 17, 0.82, 4.8e4),
        ("skip", 77, 15, 0.87, 7.5e4),
        ("skip", 1, 25, 0.88, 4.8e4),
    ],
    ids=["random-seizures", "random-twitter", "random-yahoo", "skip-seizures", "skip-twitter", "skip-yahoo"],
)
def test_flops_paper_reproduces_the_printed_numbers(rule, I, T, skip, printed):
    """sarnn.md Tables 1-3, to the digits printed and the whole percents of their skip column."""
    flops = T * named_cost("gru", rule, I, 50, update_rate=1 - skip).flops_paper
    low = T * named_cost("gru", rule, I, 50, update_rate=1 - skip - 0.005).flops_paper
    high = T * named_cost("gru", rule, I, 50, update_rate=1 - skip + 0.005).flops_paper
    assert low - 500 <= printed <= high + 500, flops


def test_skip_does_all_or_nothing():
    cost = named_cost("gru-before", "skip", 3, 8, update_rate=0.25)
    assert cost.macs_executed == 0.25 * (named_cost("gru-before", "always", 3, 8).macs) + 8


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Random(1, 4, rate=1.5), "rate: expected between 0 and 1, got 1.5"),
        (lambda: Clockwork(1, 4, groups=0), "groups: expected between 1 and 20, got 0"),
    ],
)
def test_wrong_options_are_named(make, message):
    with pytest.raises(edgernn.UsageError, match=message):
        make()


def test_every_rule_has_an_oracle():
    from tests import oracle_rules

    assert set(oracle_rules.RULES) == set(RULES)
