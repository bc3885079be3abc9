# SPDX-License-Identifier: Apache-2.0
"""A user-defined rule with one-value-per-neuron memories: the loop, the portable function, Triton.

`make check-added-rule` also builds and tests its native kernels.
"""

import os
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import edgernn
from edgernn.cells import CELLS
from edgernn.cells.base import State
from edgernn.export import to_onnx
from edgernn.kernels import attach
from edgernn.layer import RecurrentLayer
from edgernn.rules import Memory, PerNeuron
from edgernn.runtime import Session
from tests import oracle_rules
from tests.added_rule import oracle
from tests.added_rule.tiring import Tiring
from tests.fused import assert_equals_loop
from tests.layers import oracle_run
from tests.tolerances import FLOAT64

triton = pytest.mark.skipif(
    find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") != "1",
    reason="triton is not installed, or TRITON_INTERPRET=1 is not set",
)


def tiring(cell: str, I: int, H: int) -> RecurrentLayer:
    layer = RecurrentLayer(CELLS[cell](I, H), Tiring(I, H))
    layer.rule.anneal(30)
    return layer


@pytest.mark.parametrize("cell", ["gru", "lstm", "gru-before"])
def test_loop_equals_oracle(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(oracle_rules.RULES, "tiring", oracle.Tiring)
    layer = tiring(cell, 3, 11).double()
    x = torch.randn(20, 4, 3, dtype=torch.float64)
    expected = oracle_run(cell, layer, x)
    y, last, trace = layer(x)
    np.testing.assert_allclose(y.detach(), expected.y, rtol=0, atol=FLOAT64)
    for got, want in zip(last[len(layer.cell.states) :], expected.memory, strict=True):
        np.testing.assert_allclose(got.detach(), want, rtol=0, atol=FLOAT64)
    assert (trace.decisions.sum(-1).numpy() == expected.updates).all()
    assert 0 < expected.updates.mean() < 11


def test_gradient_passes_through_the_memory() -> None:
    layer = tiring("gru", 2, 5)
    y, _, _ = layer(torch.randn(9, 3, 2))
    y[-1].sum().backward()
    # it changes only the memory, which later decisions read
    assert layer.rule.rule_g.grad.abs().min() > 0


def test_memory_starts_and_goes_on_in_a_portable_file(tmp_path) -> None:
    model = edgernn.SequenceModel("lstm", 2, 7, rule=Tiring, output="all").eval()
    to_onnx(model, tmp_path / "m.onnx")
    session, x = Session(tmp_path / "m.onnx", backend="portable"), torch.randn(8, 3, 2)
    state = session.initial_state(3)
    assert state["layer0.rule_m"].shape == (3, 7)
    assert (state["layer0.rule_m"] == 0.5).all()
    with torch.no_grad():
        expected, last = model(x)
    y, middle = session.run_from(x[:5].numpy(), state)
    z, after = session.run_from(x[5:].numpy(), middle)
    torch.testing.assert_close(torch.from_numpy(np.concatenate([y, z])), expected, rtol=0, atol=1e-5)
    for name, tensor in zip(model.state_names, last, strict=True):
        torch.testing.assert_close(torch.from_numpy(after[name]), tensor, rtol=0, atol=1e-5)


@triton
@pytest.mark.parametrize("resident", [True, False], ids=["resident", "streamed"])
@pytest.mark.parametrize("cell", ["gru", "lstm", "irc-sru"])
def test_triton_equals_the_loop(cell: str, resident: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from edgernn.kernels import gpu
    from edgernn.kernels.kernel_form import KernelForm

    form = KernelForm(True, held=1, rows=2) if resident else KernelForm(False, rows=2, block=4, block_k=4)
    monkeypatch.setattr(gpu, "choose", lambda layout, precision, shared=0: form)
    layer = tiring(cell, 3, 5)
    fused = tiring(cell, 3, 5)
    fused.load_state_dict(layer.state_dict())
    fused.unroller = gpu.GpuUnroller(fused)
    with torch.backends.cudnn.flags(allow_tf32=False):
        assert_equals_loop(layer, fused, 3, 3)


class OfInputs(PerNeuron):
    """Changes neurons by the difference of x and a memory with one value per input."""

    name = "of-inputs"
    memory = {"rule_x": Memory(0, "I")}  # noqa: RUF012

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size)
        self.rule_W = nn.Parameter(torch.randn(hidden_size, input_size))

    def project(self, x: Tensor) -> Tensor:
        return x

    def score(self, e: Tensor, state: State, memory: State) -> Tensor:
        return nn.functional.linear(e - memory[0], self.rule_W)

    def remember(self, decision: object, state: State, memory: State) -> State:
        return (0.5 * memory[0] + 0.25,)


def test_memory_that_kernels_cannot_read_is_left_to_the_loop_and_the_portable_function(tmp_path) -> None:
    model = edgernn.SequenceModel("gru", 2, 5, rule=OfInputs, output="all").eval()
    assert attach(model, "auto", "cpu") == "torch"
    why = "rule of-inputs: its memory rule_x has size I, and kernels need size H"
    for device in ("cpu", "cuda"):
        with pytest.raises(edgernn.UsageError, match=why):
            attach(model, "fused", device)
    to_onnx(model, tmp_path / "m.onnx")
    x = torch.randn(6, 3, 2)
    with torch.no_grad():
        expected, _ = model(x)
    y = Session(tmp_path / "m.onnx", backend="portable").run(x.numpy())
    torch.testing.assert_close(torch.from_numpy(y), expected, rtol=0, atol=1e-5)


def test_memory_of_another_size_is_refused() -> None:
    with pytest.raises(edgernn.UsageError, match="size: expected one of 1, H, I, W, P, got 'M'"):
        Memory(0, "M")
