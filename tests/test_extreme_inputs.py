# SPDX-License-Identifier: Apache-2.0
"""Inputs from 1e-30 to 1e4, and exact zeros: every cell and rule is finite in all forms, and close to float64."""

import copy
import os

import numpy as np
import onnx
import pytest
import torch

import edgernn
from edgernn.cells import CELLS
from edgernn.export.graph import build
from edgernn.imputers import IMPUTERS
from edgernn.rules import RULES
from edgernn.runtime import Session
from edgernn.runtime.stepper import Stepper
from tests.fused import inputs, make
from tests.models import contractive, packed_alone
from tests.native import OPS, draw, draw_call, oracle_result, session
from tests.pairs import covering, fits
from tests.test_fused import fused

# one stream for each
SCALES = (0.0, 1e-30, 1.0, 1e2, 1e3, 1e4)
STEPS = 8


def streams(width, seed=0):
    """Draw an input (T, B, width) whose streams differ in their scale."""
    x = np.random.default_rng(seed).standard_normal((STEPS, len(SCALES), width))
    return (x * np.array(SCALES)[:, None]).astype(np.float32)


def assert_close(got, wanted, name=""):
    """Compare outputs (T, B, ...); float32 rounds pre-activations in proportion to the scale of the stream."""
    for b, scale in enumerate(SCALES):
        error = np.abs(np.asarray(got)[:, b] - np.asarray(wanted)[:, b]).max()
        largest = max(1, np.abs(np.asarray(wanted)[:, b]).max())
        assert error <= 2e-5 * largest + 1e-6 * scale, f"{name}, scale {scale:g}: error {error:.3g}"


@pytest.mark.parametrize(("cell", "rule"), covering(OPS, ("gru", "eins")))
def test_kernels_are_close_to_the_oracle(cell, rule):
    x = streams(3)
    for b, scale in enumerate(SCALES):
        for seed in range(20):
            weights = draw(cell, rule, 5, 3, seed)
            feed = draw_call(cell, rule, 5, 3, STEPS, 1, seed) | {"X": x[:, b : b + 1]}
            expected = oracle_result(cell, rule, weights | feed)
            # a rule of time does not read the input
            if RULES[rule].schedules or expected.margin > 1e-6 * max(1, scale):
                break
        else:
            raise AssertionError("no draw without a near-tie")
        got = session(cell, rule, weights).run(None, feed)[0]
        largest = max(1, np.abs(expected.y).max())
        np.testing.assert_allclose(got, expected.y, rtol=0, atol=2e-5 * largest + 1e-6 * scale)


MODELS = {
    **{cell: (cell, {}) for cell in CELLS},
    **{f"minlstm-{rule}": ("minlstm", {"rule": rule}) for rule in RULES if fits("minlstm", rule)},
    **{f"gru-{norm}": ("gru", {"norm": norm}) for norm in ("layer", "recurrent-batch")},
    **{f"gru-{imputer}": ("gru", {"imputer": imputer}) for imputer in IMPUTERS},
}


@pytest.mark.parametrize("name", MODELS)
def test_every_form_of_a_model_is_close_to_float64(name, tmp_path):
    cell, options = MODELS[name]
    model = contractive(cell, output_size=None, output="all", **options)
    x = streams(model.input_size)
    if "imputer" in options:
        # masks
        x[..., 1] = np.random.default_rng(1).integers(0, 2, x.shape[:2])
        # durations
        x[..., 2] = np.abs(x[..., 2])
    with torch.no_grad():
        expected = copy.deepcopy(model).double()(torch.from_numpy(x).double())[0].numpy()
        assert_close(model(torch.from_numpy(x))[0], expected, "torch")
    onnx.save(build(model), tmp_path / "model.onnx")
    forms = ["portable"] if "norm" in options else ["portable", "native"]
    for backend in forms:
        assert_close(Session(tmp_path / "model.onnx", backend=backend).run(x), expected, backend)
    if model.streaming and "norm" not in options and "imputer" not in options:
        stepper, y = Stepper(packed_alone(model), len(SCALES)), []
        for x_t in x:
            stepper.x[...] = x_t
            assert stepper.step()
            y.append(stepper.y.copy())
        assert_close(np.stack(y), expected, "packed")


def assert_training_is_close(layer, trained, steps=STEPS):
    _, state = inputs(layer, steps, len(SCALES))
    x = torch.from_numpy(streams(layer.input_size)[:steps]).requires_grad_()
    with torch.no_grad():
        expected = copy.deepcopy(layer).double()(x.double(), tuple(s.double() for s in state))[0]
    y = trained(x, state)[0]
    assert_close(y.detach(), expected)
    y.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in trained.parameters())
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("cell", CELLS)
def test_fused_training_is_close_to_float64(cell):
    torch.manual_seed(0)
    layer = make(cell, "always", 3, 5)
    assert_training_is_close(layer, fused(layer))
    assert_training_is_close(layer, copy.deepcopy(layer))


# one for each function of a cell's equations that overflows: sigmoid and tanh, cos, ratios of exponentials, thresholds
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="TRITON_INTERPRET=1 is not set")
@pytest.mark.parametrize("cell", ["lstm", "decaynet", "minlstm", "egru", "lru", "irc-t-lstm"])
def test_training_on_a_gpu_is_close_to_float64(cell, monkeypatch):
    pytest.importorskip("triton", reason="triton, which makes the kernels for GPUs, is not installed")
    from tests.triton_layers import RESIDENT, use_form
    from tests.triton_layers import fused as fused_on_gpu

    use_form(RESIDENT, monkeypatch)
    torch.manual_seed(0)
    layer = make(cell, "always", 3, 5)
    # the exponential in a sigmoid may be infinite, where the sigmoid is 0
    with torch.backends.cudnn.flags(allow_tf32=False), np.errstate(over="ignore"):
        # interpreted kernels take a tenth of a second a step
        assert_training_is_close(layer, fused_on_gpu(layer), steps=3)


def test_minlstm_takes_the_limit_where_both_gates_underflow():
    cell = edgernn.SequenceModel("minlstm", 1, 1, None, output="all").recurrent_layers()[0].cell
    gates = torch.tensor([[-1e4, -1e4], [-200.0, -199.0], [-1e4, 1e4], [1e4, -1e4], [1e4, 1e4], [-90.0, -1e4]])
    f, i = gates.T

    class Values:
        n = torch.ones(len(gates))

    Values.f, Values.i = f, i
    (h,) = cell.update(Values, (torch.zeros(len(gates)),))
    expected = [0.5, 1 / (1 + np.exp(-1)), 1, 0, 0.5, 0]
    np.testing.assert_allclose(h, expected, atol=1e-6)
