# SPDX-License-Identifier: Apache-2.0
"""The rule delta in the GPU kernels, on an emulated GPU: its sums, its counts and its refreshes.

tests/test_cuda.py compares it with the oracle on every cell.
"""

from typing import Any

import numpy as np
import pytest

from benchmarks.cuda_calls import CudaCalls
from tests.native import Inputs, draw, draw_call, oracle_result
from tests.test_cuda import GEOMETRIES, assert_equal, emulated, path, run, set_geometry

__all__ = ["emulated", "path", "set_geometry"]

PERIOD = 256
# test_cuda.py has the cases of `make quick`
pytestmark = pytest.mark.slow


def sums(cell: str, weights: Inputs, x: np.ndarray, h: np.ndarray) -> np.ndarray:
    """Return W x + R h + b (B, P) in float64, for the gates that read x or h, from x (B, I) and h (B, H)."""
    W, R, b = (weights[name].astype(np.float64) for name in ("W", "R", "b"))
    (I, H), a, c = (x.shape[1], h.shape[1]), x @ W.T, h @ R.T
    if cell == "gru":
        # the gate n reads x, and the gate k reads h
        return np.concatenate([a[:, : 2 * H] + c[:, : 2 * H], a[:, 2 * H :], c[:, 2 * H :]], -1) + b
    if cell == "eins":
        return np.concatenate([a[:, :I] + c + b, a[:, I:]], -1)
    assert cell == "lstm"
    return a + c + b


def error_of_sums(cell: str, weights: Inputs, memory: list[np.ndarray]) -> float:
    sent_x, sent_h, _, kept = (each.astype(np.float64) for each in memory)
    return float(np.abs(sums(cell, weights, sent_x, sent_h) - kept).max())


def memory_of(got: list[np.ndarray]) -> list[np.ndarray]:
    """Return the four memories of the rule, which come before updates and macs."""
    return got[-6:-2]


@pytest.mark.parametrize("cell", ["gru", "lstm", "eins"])
def test_sums_are_those_of_the_sent_values(emulated, set_geometry, cell) -> None:
    weights, feed = draw(cell, "delta", 33, 5), draw_call(cell, "delta", 33, 5, 6, 3)
    for geometry in GEOMETRIES:
        set_geometry(*geometry)
        assert error_of_sums(cell, weights, memory_of(run(emulated, cell, "delta", weights, feed))) < 1e-5


def random_walk(steps: int, inputs: int) -> np.ndarray:
    x = np.random.default_rng(0).standard_normal((steps, 1, inputs)).cumsum(0) % 8 - 4
    return x.astype(np.float32)


def run_long(library: CudaCalls, cell: str, steps: int) -> tuple[float, float]:
    """Run a stream in calls of 100 steps, and return the largest error of the sums and the share of updates."""
    weights, feed = draw(cell, "delta", 16, 3), draw_call(cell, "delta", 16, 3, 1, 1)
    weights["rule_theta_x"][:], weights["rule_theta_h"][:] = 0.5, 0.02
    names, worst, updates = list(feed)[1:], 0.0, 0
    for part in np.split(random_walk(steps, 3), steps // 100):
        got = run(library, cell, "delta", weights, feed | {"X": part})
        feed |= dict(zip(names, got[1:], strict=False))
        worst = max(worst, error_of_sums(cell, weights, memory_of(got)))
        updates += int(got[-2].sum())
    return worst, updates / (16 * steps)


@pytest.mark.parametrize("cell", ["gru", "eins"])
def test_sums_stay_exact_over_many_steps(emulated, set_geometry, cell) -> None:
    set_geometry(1, 2, 32, 0)
    worst, share = run_long(emulated, cell, 1_000)
    assert 0.02 < share < 0.98
    assert worst < 1e-4


def test_sums_are_computed_anew_every_period(emulated, set_geometry) -> None:
    """Wrong sums stay until the next refresh, whose multiply-adds are counted."""
    weights, feed = draw("gru", "delta", 5, 3), draw_call("gru", "delta", 5, 3, PERIOD + 20, 1)
    set_geometry(1, 2, 32, 0)
    assert_equal("delta", run(emulated, "gru", "delta", weights, feed), oracle_result("gru", "delta", weights | feed))
    first = run(emulated, "gru", "delta", weights, feed | {"X": feed["X"][:PERIOD]})
    names = list(feed)[1:]
    after = feed | dict(zip(names, first[1:], strict=False))
    assert after["rule_age"] == 0
    after["rule_p"] = after["rule_p"] + 1
    got = run(emulated, "gru", "delta", weights, after | {"X": feed["X"][PERIOD:]})
    assert error_of_sums("gru", weights, memory_of(got)) < 1e-5
    after["rule_age"][:] = 1
    got = run(emulated, "gru", "delta", weights, after | {"X": feed["X"][PERIOD:]})
    assert error_of_sums("gru", weights, memory_of(got)) > 0.9


@pytest.mark.parametrize("value", [1e5, -1e30, 3e38, np.inf, np.nan])
def test_a_spike_leaves_nothing_in_the_sums(emulated, set_geometry, value) -> None:
    weights, feed = draw("lstm", "delta", 16, 3), draw_call("lstm", "delta", 16, 3, 12, 2)
    feed["X"][5, 0, 1] = value
    feed["X"][6:, 0, 1] = 0
    for geometry in GEOMETRIES:
        set_geometry(*geometry)
        got = run(emulated, "lstm", "delta", weights, feed)
        assert_equal("delta", got, oracle_result("lstm", "delta", weights | feed))
        kept = memory_of(got)
        # an infinite sum is NaN once it is left
        if np.isfinite(kept[1]).all():
            assert error_of_sums("lstm", weights, kept) < 1e-5


@pytest.mark.parametrize("cell", ["gru", "lstm-peephole", "eins", "t-lstm"])
def test_thresholds_that_all_values_or_none_exceed(emulated, set_geometry, cell) -> None:
    """Padding is never sent, not even if every value is."""
    H, I, T, B = 9, 5, 4, 2
    weights, feed = draw(cell, "delta", H, I), draw_call(cell, "delta", H, I, T, B)
    columns = weights["W"].shape[1]
    rows: dict[str, Any] = {name: weights[name].shape[0] if name in weights else 0 for name in ("W", "R")}
    others = sum(weights[name].size for name in ("C", "V") if name in weights)
    full = columns * rows["W"] + H * rows["R"]
    for theta, moved, macs in ((-1.0, H, T * (full + others)), (np.inf, 0, full + T * others)):
        weights["rule_theta_x"][:] = weights["rule_theta_h"][:] = theta
        for geometry in GEOMETRIES:
            set_geometry(*geometry)
            got = run(emulated, cell, "delta", weights, feed)
            assert_equal("delta", got, oracle_result(cell, "delta", weights | feed))
            np.testing.assert_array_equal(got[-2], np.full((T, B), moved))
            np.testing.assert_array_equal(got[-1], np.full(B, macs))
