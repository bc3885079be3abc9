# SPDX-License-Identifier: Apache-2.0
"""Decaying states become zero: no native call computes with subnormal numbers, which are slow."""

import numpy as np
import pytest
import torch

from edgernn.export import to_onnx
from edgernn.runtime import Session
from edgernn.runtime.packed import pack_file
from edgernn.training.kernels import attach
from tests.models import contractive
from tests.test_packed import steps

CELLS = ("rnn", "gru", "lstm", "pru", "sru", "fastgrnn-split")
TINY = np.finfo(np.float32).tiny
# a state of 1 that halves at each step is subnormal from step 127 to step 149
SILENCE = 400


def without_biases(model):
    """Set every bias to zero, so that zero input drives the state to zero."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.rpartition(".")[2].startswith("b"):
                parameter.zero_()
    return model


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Files of models whose output is their state, by cell."""
    folder = tmp_path_factory.mktemp("silent")
    files = {}
    for cell in CELLS:
        files[cell] = folder / f"{cell}.onnx"
        to_onnx(without_biases(contractive(cell, output_size=None, output="all")), files[cell])
    return files


def silent_input():
    x = np.zeros((SILENCE, 1, 3), np.float32)
    x[:3] = np.random.default_rng(0).standard_normal((3, 1, 3))
    return x


def assert_decays_without_subnormals(y):
    y = np.asarray(y)
    size = np.abs(y)
    assert not ((size > 0) & (size < TINY)).any()
    # the state reacted to the input and has decayed
    assert size[2].max() > 1e-3
    assert size[-1].max() < 1e-6


def computes_with_subnormals():
    return np.float32(1e-40) * np.float32(0.5) != 0


@pytest.mark.parametrize("cell", CELLS)
def test_a_session_flushes_them(cell, models):
    y = Session(models[cell], backend="native").run(silent_input()[:, 0])
    assert_decays_without_subnormals(y)
    assert computes_with_subnormals()


@pytest.mark.parametrize("cell", CELLS)
def test_a_packed_model_flushes_them(cell, models, tmp_path):
    packed = tmp_path / "model.edgernn"
    pack_file(models[cell], packed)
    y, *_ = steps(packed.read_bytes(), silent_input())
    assert_decays_without_subnormals(y)
    assert computes_with_subnormals()


@pytest.mark.parametrize("cell", CELLS)
def test_fused_training_flushes_them(cell):
    model = without_biases(contractive(cell, output_size=None, output="all")).train()
    assert attach(model, "fused", "cpu") == "fused"
    x = torch.from_numpy(silent_input()).requires_grad_()
    y, _ = model(x)
    y[-1].sum().backward()
    assert_decays_without_subnormals(y.detach())
    gradient = x.grad.abs()
    assert gradient[-1].max() > 0
    assert not ((gradient > 0) & (gradient < TINY)).any()
    assert computes_with_subnormals()
