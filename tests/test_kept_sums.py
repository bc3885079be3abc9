# SPDX-License-Identifier: Apache-2.0
"""Sums of a two-stage cell's first stage, which kernels keep from step to step."""

from pathlib import Path

import numpy as np
import pytest
import torch

from edgernn.costs import executed_macs, model_cost
from edgernn.export import to_onnx
from edgernn.export.graph import build
from edgernn.model import SequenceModel
from edgernn.random_models import random_model
from edgernn.runtime import Session
from edgernn.runtime.packed import pack
from edgernn.runtime.stepper import Stepper
from tests.models import packed_alone
from tests.native import (
    Inputs,
    assert_equal,
    assert_steps_equal_sequence,
    draw,
    draw_call,
    layer,
    oracle_result,
    sample,
    session,
)
from tests.tolerances import FLOAT32

# cells whose first stage reads h: with one and two gates, of the size of the states and of the input
TWO_STAGES = ["gru-before", "eins", "irc-gru", "irc-lstm", "ihc-lstm", "irc-fastgrnn"]
H, I, STEPS = 45, 19, 60


def few_updates(cell: str, rule: str = "selective", share: float = 0.2) -> Inputs:
    """Draw weights with which about this share of the neurons changes, more at some steps than at others."""
    weights = draw(cell, rule, H, I)
    if rule == "random":
        weights["rule_rate"][:] = share
    else:
        weights["rule_W"][:] *= 4
        weights["rule_W"][:, 0] += 1.5
        weights["rule_b"][:] = np.quantile(
            weights["rule_W"] @ np.random.default_rng(1).standard_normal((I, 200)), share
        )
    return weights


@pytest.mark.parametrize("rule", ["selective", "random"])
@pytest.mark.parametrize("cell", TWO_STAGES)
def test_outputs_and_counts_equal_the_oracle(cell: str, rule: str) -> None:
    weights = few_updates(cell, rule)
    run = session(cell, rule, weights, sizes=(H, I))
    for batch in (1, 3):
        feed = draw_call(cell, rule, H, I, STEPS, batch)
        expected = oracle_result(cell, rule, weights | feed)
        if rule == "selective":
            # sums are kept at some steps and not at others
            assert (expected.updates > H // 2).any()
            assert ((expected.updates > 0) & (expected.updates <= H // 2)).mean() > 0.5
        assert (expected.macs < expected.needed).all()
        assert_equal(cell, rule, run.run(None, feed), expected)


@pytest.mark.parametrize("cell", TWO_STAGES)
def test_bits_do_not_depend_on_calls_and_batches(cell: str) -> None:
    weights = few_updates(cell)
    run = session(cell, "selective", weights, sizes=(H, I))
    feed = draw_call(cell, "selective", H, I, STEPS, 3)
    for length in (1, 7):
        assert_steps_equal_sequence(run, layer(cell, "selective", H, I).states, feed, length)
    y = run.run(None, feed)[0]
    for b in range(3):
        one = {name: sample(name, a, slice(b, b + 1)) for name, a in feed.items()}
        np.testing.assert_array_equal(run.run(None, one)[0], y[:, b : b + 1])


@pytest.mark.parametrize("cell", ["gru-before", "ihc-lstm"])
@pytest.mark.slow
def test_no_error_accumulates(cell: str) -> None:
    weights, steps = few_updates(cell, "random", 0.1), 20000
    feed = draw_call(cell, "random", H, I, steps, 1)
    y = session(cell, "random", weights, sizes=(H, I)).run(None, feed)[0]
    error = np.abs(y - oracle_result(cell, "random", weights | feed).y).max((1, 2))
    assert error.max() < 1e-6
    assert error[-1000:].mean() < 2 * error[:1000].mean()


@pytest.mark.parametrize("value", [3.99, 4.0, -5.0, 1e30, np.inf, np.nan])
def test_states_that_have_no_exact_sums(value: float) -> None:
    weights = few_updates("gru-before")
    feed = draw_call("gru-before", "selective", H, I, STEPS, 2)
    feed["h"][1, 7] = value
    # that neuron changes in the middle, or never
    for changes in (True, False):
        weights["rule_d"][7], weights["rule_b"][7] = 0, 100 if changes else -100
        weights["rule_W"][7] = 0
        expected = oracle_result("gru-before", "selective", weights | feed)
        outputs = session("gru-before", "selective", weights, sizes=(H, I)).run(None, feed)
        # 1e30 in float32 is not exact to 1e-5
        assert_equal("gru-before", "selective", outputs, expected, rtol=1e-5)


@pytest.mark.parametrize("value", [0.0, 1e-30, 1e30, np.inf, np.nan])
def test_weights_of_any_size(value: float) -> None:
    weights = few_updates("gru-before", "random")
    if np.isfinite(value):
        weights["R"][:H] *= value
    weights["R"][3, 5] = value
    feed = draw_call("gru-before", "random", H, I, STEPS, 1)
    expected = oracle_result("gru-before", "random", weights | feed)
    outputs = session("gru-before", "random", weights, sizes=(H, I)).run(None, feed)
    np.testing.assert_allclose(outputs[0], expected.y, rtol=0, atol=FLOAT32)


def steps_of(stepper: Stepper, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return y and the counts of every step of x (T, B, I)."""
    y, macs = [], []
    for x_t in x:
        stepper.x[...] = x_t
        assert stepper.step(), stepper.refusal()
        y.append(stepper.y.copy())
        macs.append(stepper.macs)
    return np.stack(y), np.stack(macs)


@pytest.mark.parametrize("cell", ["gru-before", "ihc-lstm"])
def test_steps_keep_sums_between_calls(cell: str, tmp_path: Path) -> None:
    model = random_model(cell, I, H, rule="selective", skip=0.8, output="all")
    proto = build(model, portable=False)
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    native = Session(tmp_path / "m.onnx", backend="native")
    content = pack(proto.SerializeToString(), tmp_path / "m.onnx")
    x = np.random.default_rng(0).standard_normal((15, 2, I)).astype(np.float32)
    stepper = Stepper(content, 2)
    y, macs = steps_of(stepper, x)
    np.testing.assert_array_equal(y, native.run(x))
    np.testing.assert_array_equal(macs.sum(0), native.macs)
    # results do not depend on the kept sums: after a reset, from another state, and in a fresh model
    stepper.restart()
    np.testing.assert_array_equal(steps_of(stepper, x)[0], y)
    saved = stepper.save_state()
    after, cost = steps_of(stepper, x)
    other = Stepper(content, 2)
    other.restore_state(saved)
    again, more = steps_of(other, x)
    np.testing.assert_array_equal(again, after)
    # it begins with the columns of all neurons
    assert (more[0] > cost[0]).all()
    np.testing.assert_array_equal(more[1:], cost[1:])
    stepper.restore_state(saved)
    np.testing.assert_array_equal(steps_of(stepper, x)[0], after)


def test_what_a_step_of_gru_before_costs() -> None:
    model = random_model("gru-before", 2, 128, rule="selective", skip=0.9)
    stepper = Stepper(packed_alone(model), 1)
    _, macs = steps_of(stepper, np.random.default_rng(0).standard_normal((500, 1, 2)).astype(np.float32))
    assert macs.mean() < 6500


@pytest.mark.parametrize("weights", ["float32", "bfloat16", "int8"])
def test_products_with_rounded_weights_count_in_full(weights: str, tmp_path: Path) -> None:
    options = {"rule": "random", "rule_options": {"rate": 0.2}, "weights": weights}
    model = SequenceModel("gru-before", I, H, **options).eval()
    to_onnx(model, tmp_path / "m.onnx")
    session, x = Session(tmp_path / "m.onnx", backend="native"), torch.randn(STEPS, 1, I)
    session.run(x.numpy())
    with torch.no_grad():
        model(x)
    # r of all neurons, and z and the candidate of the changing ones
    whole = H * (I + H) + session.updates.mean() * 2 * (I + H)
    if weights != "float32":
        assert executed_macs(model) == pytest.approx(whole)
        assert model_cost(model, session.updates.mean() / H).macs_executed == pytest.approx(whole)
        assert session.macs[0] >= STEPS * whole
    else:
        # the columns of the first stage for neurons that changed
        assert executed_macs(model) == pytest.approx(whole - H * (H - session.updates.mean()))
        assert session.macs[0] < STEPS * whole
