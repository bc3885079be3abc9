# SPDX-License-Identifier: Apache-2.0
"""Properties of single rules in the native ops. test_native_op.py repeats these tests for every instruction set."""

import numpy as np
import pytest

from edgernn.cells import CELLS
from edgernn.rules import RULES
from tests import oracle, oracle_rules
from tests.native import assert_equal, draw, draw_call, layer, oracle_result, output_names, session
from tests.tolerances import FLOAT32

SKIPPING = [rule for rule in RULES if RULES[rule].can_skip]


@pytest.mark.parametrize("share", [0.0, 1.0])
@pytest.mark.parametrize("cell", CELLS)
def test_none_and_all_neurons_updated(cell: str, share: float) -> None:
    weights = draw(cell, "selective", 33, 3)
    weights["rule_b"][:] = 100.0 * (2.0 * share - 1.0)
    feed = draw_call(cell, "selective", 33, 3, 5, 2)
    got = session(cell, "selective", weights).run(None, feed)
    assert_equal(cell, "selective", got, oracle_result(cell, "selective", weights | feed))
    np.testing.assert_array_equal(got[-2], np.full((5, 2), int(33 * share)))
    if share == 0.0:
        np.testing.assert_array_equal(got[0], np.broadcast_to(feed[list(feed)[1]], (5, 2, 33)))


@pytest.mark.parametrize("batch", [1, 3, 20])
@pytest.mark.parametrize("cell", CELLS)
def test_work_done_ahead_is_reported_where_neurons_stop_to_change(cell: str, batch: int) -> None:
    steps, inputs = 75, 3
    weights = draw(cell, "selective", 33, inputs)
    weights["rule_W"][:] = [100.0, 0.0, 0.0]
    # few neurons change between the two bounds
    weights["rule_b"][:] = np.where(np.arange(33) < 5, 50.0, 0.0)
    feed = draw_call(cell, "selective", 33, inputs, steps, batch)
    feed["X"][:, :, 0] = 1.0
    feed["X"][35:40, :, 0] = -0.25
    feed["X"][52, -1, 0] = -1.0
    expected = oracle_result(cell, "selective", weights | feed)
    got = session(cell, "selective", weights).run(None, feed)
    # c of decaynet reaches 9
    assert_equal(cell, "selective", got, expected, rtol=1e-6)
    assert set(expected.updates.flat) == {0, 5, 33}


def test_zero_is_not_above_zero() -> None:
    weights = draw("gru", "selective", 16, 1)
    for name in ("rule_W", "rule_d", "rule_b"):
        weights[name][:] = 0.0
    got = session("gru", "selective", weights).run(None, draw_call("gru", "selective", 16, 1, 3, 1))
    np.testing.assert_array_equal(got[-2], np.zeros((3, 1)))


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_random_can_update_none_and_all(rate: float) -> None:
    weights = draw("gru", "random", 33, 3)
    weights["rule_rate"][:] = rate
    got = session("gru", "random", weights).run(None, draw_call("gru", "random", 33, 3, 50, 2))
    np.testing.assert_array_equal(got[-2], np.full((50, 2), int(33 * rate)))


@pytest.mark.parametrize("share", [0.0, 1.0])
@pytest.mark.parametrize("cell", CELLS)
def test_variable_can_update_none_and_all(cell: str, share: float) -> None:
    weights = draw(cell, "variable", 33, 3)
    weights["rule_b"][:] = 1e3 * (2 * share - 1)
    weights["rule_sharpness"][:] = 100.0
    feed = draw_call(cell, "variable", 33, 3, 5, 2)
    got = session(cell, "variable", weights).run(None, feed)
    assert_equal(cell, "variable", got, oracle_result(cell, "variable", weights | feed))
    np.testing.assert_array_equal(got[-2], np.full((5, 2), int(33 * share)))


@pytest.mark.parametrize("cell", ["gru", "gru-before", "lstm-peephole", "irc-lstm", "fastgrnn"])
def test_clockwork_of_any_order_is_the_sorted_one_in_another_order(cell: str) -> None:
    hidden = 33
    weights = draw(cell, "clockwork", hidden, 3)
    feed = draw_call(cell, "clockwork", hidden, 3, 20, 2)
    names = output_names(cell, "clockwork")
    expected = dict(zip(names, session(cell, "clockwork", weights).run(None, feed), strict=True))
    order = np.random.default_rng(0).permutation(hidden)
    mixed = {n: _reordered(a, order) for n, a in weights.items()}
    states = layer(cell, "clockwork", hidden, 3).cell.states
    mixed_feed = feed | {n: feed[n][:, order] for n in states}
    got = dict(zip(names, session(cell, "clockwork", mixed).run(None, mixed_feed), strict=True))
    np.testing.assert_allclose(got["Y"], expected["Y"][..., order], rtol=0, atol=FLOAT32)
    for name in states:
        np.testing.assert_allclose(got[f"{name}_out"], expected[f"{name}_out"][:, order], rtol=0, atol=FLOAT32)
    np.testing.assert_array_equal(got["updates"], expected["updates"])
    # the unread columns are no prefix, so all are read
    assert (got["macs"] >= expected["macs"]).all()
    if cell == "gru":
        np.testing.assert_array_equal(got["macs"], got["updates"].sum(0) * 3 * (hidden + 3))


def _reordered(weight: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Permute every axis over neurons, or over gates of neurons."""
    for axis, size in enumerate(weight.shape):
        if size % len(order) == 0:
            blocks = np.arange(size).reshape(-1, len(order))[:, order].ravel()
            weight = np.take(weight, blocks, axis)
    return weight


def test_steps_are_counted_on_where_float32_ends() -> None:
    weights = draw("gru", "clockwork", 5, 3)
    feed = draw_call("gru", "clockwork", 5, 3, 4, 1) | {"rule_t": np.array([[2**24 - 2]], np.float32)}
    got = session("gru", "clockwork", weights).run(None, feed)
    # 2^24 + 1 is 2^24 in float32: the clock stands still, and every period divides it
    assert got[-3].item() == 2**24
    assert got[-2].ravel().tolist() == [2, 1, 5, 5]


@pytest.mark.parametrize("batch", [1, 3])
def test_skip_waits_as_long_as_its_pressure_says(batch: int) -> None:
    # Δ is 1/8 for any state, so every fourth step is an update; exact in float32
    weights = draw("gru", "skip", 5, 3)
    weights["rule_w"][:] = 0.0
    weights["rule_b"][:] = -np.log(7)
    feed = draw_call("gru", "skip", 5, 3, 21, batch)
    feed["rule_pressure"] = np.array([[1.0], [0.25], [0.0]], np.float32)[:batch]
    got = session("gru", "skip", weights).run(None, feed)
    firsts = [0, 2, 4][:batch]
    for b, first in enumerate(firsts):
        steps = np.arange(21)
        expected = np.where((steps >= first) & ((steps - first) % 4 == 0), 5, 0)
        np.testing.assert_array_equal(got[-2][:, b], expected)
        assert got[-1][b] == (expected > 0).sum() * (5 * 3 * (5 + 3) + 5) + (first > 0) * 5


ODD = [np.nan, np.inf, -np.inf, 0.0, -1.0, 1e-30, 1e30]


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("rule", SKIPPING)
def test_odd_weights_and_memories_of_a_rule_do_no_harm(rule: str, odd: float) -> None:
    """Only checks that the call returns and counts no more than the maximum."""
    weights = draw("gru-before", rule, 33, 3)
    feed = draw_call("gru-before", rule, 33, 3, 7, 2)
    # skip evaluates a product of 33 numbers
    rule_macs = max(oracle_rules.RULES[rule](weights | feed, 2, 3, 33).macs(), 33)
    full = 7 * (oracle.row_of("gru-before", 3, 33).step_macs(33, 3, 33) + rule_macs)
    for name in [n for n in (*weights, *feed) if n.startswith("rule_")]:
        changed = {n: np.full_like(a, odd) if n == name else a for n, a in (weights | feed).items()}
        run = session("gru-before", rule, {n: changed[n] for n in weights})
        got = run.run(None, {n: changed[n] for n in feed})
        assert ((got[-2] >= 0) & (got[-2] <= 33)).all()
        assert ((got[-1] >= 0) & (got[-1] <= full)).all()
