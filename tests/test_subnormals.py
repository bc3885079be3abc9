# SPDX-License-Identifier: Apache-2.0
"""Decaying states become zero: no native call computes with subnormal numbers, which are slow."""

import ctypes

import numpy as np
import pytest
import torch

from edgernn.kernels import attach
from edgernn.layer import python_loop
from edgernn.runtime import Session
from edgernn.runtime.packed import pack_file
from edgernn.runtime.stepper import Stepper
from tests.models import contractive, packed_alone, state_of, write_alone
from tests.oracle_frontend import features
from tests.test_frontends import model_of, room

TINY = np.finfo(np.float32).tiny
# a cell and a rule, and a number of silent steps. A state of 1 that halves at each step is subnormal from step 127 to
# step 149. The sums of delta are computed anew every 256 steps, and until then keep the rounding errors of larger sums.
CASES = {
    **{(cell, "always"): 400 for cell in ("rnn", "gru", "lstm", "pru", "sru", "fastgrnn-split")},
    **{(cell, "always"): 400 for cell in ("mingru", "minlstm", "lru")},
    **{("gru", "delta"): 2000, ("mingru", "delta"): 400},
}
every_case = pytest.mark.parametrize("case", CASES, ids="+".join)
THRESHOLDS = {"delta": {"theta_x": 0.0, "theta_h": 0.0}}


def silent_model(cell, rule):
    """Return a model whose output is its state, without biases, so that zero input drives the state to zero."""
    model = contractive(cell, rule, output_size=None, output="all", rule_options=THRESHOLDS.get(rule))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.rpartition(".")[2].startswith("b"):
                parameter.zero_()
    return model


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Files of models whose output is their state, by cell and rule."""
    folder = tmp_path_factory.mktemp("silent")
    files = {}
    for case in CASES:
        files[case] = folder / f"{'-'.join(case)}.onnx"
        write_alone(silent_model(*case), files[case])
    return files


def silent_input(case):
    x = np.zeros((CASES[case], 1, 3), np.float32)
    x[:3] = np.random.default_rng(0).standard_normal((3, 1, 3))
    return x


def count_subnormals(values):
    size = np.abs(np.asarray(values))
    return int(((size > 0) & (size < TINY)).sum())


def assert_decays_without_subnormals(y):
    y = np.asarray(y)
    assert count_subnormals(y) == 0
    # the state reacted to the input and has decayed
    assert np.abs(y[2]).max() > 1e-3
    assert np.abs(y[-1]).max() < 1e-6


def computes_with_subnormals():
    return np.float32(1e-40) * np.float32(0.5) != 0


@every_case
def test_torch_does_not_flush_them(case):
    """Each case has subnormal numbers unless they are flushed, so that the tests below can fail."""
    model = silent_model(*case)
    with torch.no_grad(), python_loop(model):
        y, _ = model(torch.from_numpy(silent_input(case)))
    assert count_subnormals(y) > 0


@every_case
def test_a_session_flushes_them(case, models):
    y = Session(models[case], backend="native").run(silent_input(case)[:, 0])
    assert_decays_without_subnormals(y)
    assert computes_with_subnormals()


@every_case
def test_a_packed_model_flushes_them(case, models, tmp_path):
    packed = tmp_path / "model.edgernn"
    pack_file(models[case], packed)
    stepper, y = Stepper(packed.read_bytes(), 1), []
    state = state_of(stepper)
    for x_t in silent_input(case):
        stepper.x[...] = x_t
        assert stepper.step()
        assert count_subnormals(state) == 0
        y.append(stepper.y.copy())
    assert_decays_without_subnormals(y)
    assert computes_with_subnormals()


@pytest.mark.parametrize("normalise", ["floor", "pcen"])
def test_a_front_end_flushes_them(normalise):
    """The followed states decay in digital silence, and follow the first sound after it from there, not anew."""
    model = model_of(normalise, **({"pcen_smoothing": 0.2} if normalise == "pcen" else {})).eval()
    x = np.concatenate([room(12, 1, 160), np.zeros((600, 1, 160), np.float32), room(12, 1, 160)[3:]])
    stepper, y = Stepper(packed_alone(model), 1), []
    state, values, bands = state_of(stepper), ctypes.POINTER(ctypes.c_float)(), ctypes.c_int64()
    got = ctypes.byref(values), ctypes.byref(bands)
    assert stepper._library.edgernn_features(stepper._model, *got) == 0
    for x_t in x:
        stepper.x[...] = x_t
        assert stepper.step()
        assert count_subnormals(state) == 0
        y.append(np.ctypeslib.as_array(values, (bands.value,)).copy())
    np.testing.assert_allclose(y, features(x, model.config.frontend)[:, 0], rtol=1e-4, atol=1e-4)
    assert computes_with_subnormals()


@every_case
def test_fused_training_flushes_them(case):
    model = silent_model(*case).train()
    assert attach(model, "fused", "cpu") == "fused"
    x = torch.from_numpy(silent_input(case)).requires_grad_()
    y, _ = model(x)
    y[-1].sum().backward()
    assert_decays_without_subnormals(y.detach())
    assert x.grad[-1].abs().max() > 0
    assert count_subnormals(x.grad) == 0
    assert computes_with_subnormals()
