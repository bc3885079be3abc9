# SPDX-License-Identifier: Apache-2.0
"""The cell egru: its events, and the surrogate gradients of a sequence against a backward pass written in NumPy."""

import numpy as np
import pytest
import torch

import edgernn
from edgernn.cells import CELLS
from edgernn.errors import UsageError
from edgernn.export import to_onnx
from edgernn.kernels import cpu
from edgernn.layer import RecurrentLayer
from edgernn.rules import RULES
from edgernn.runtime import Session
from tests.fused import train_library
from tests.fused_cells import Events
from tests.native import draw, draw_call, output_names, session
from tests.oracle_cells import sigmoid
from tests.tolerances import FLOAT32, FLOAT64


def layer_of(I, H, **options):
    """Return a layer with weights and thresholds such that about half of the neurons send, most near the threshold."""
    layer = RecurrentLayer(CELLS["egru"](I, H, **options), RULES["always"](I, H)).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=1.5 / parameter.shape[-1] ** 0.5)
    torch.nn.init.normal_(layer.cell.theta, -2.0, 0.5)
    return layer


def random_call(T, B, I, H):
    state = tuple(torch.randn(B, H, dtype=torch.float64) * 0.3 for _ in range(2))
    return torch.randn(T, B, I, dtype=torch.float64), state


def derivatives(p, x, y0, c0, grad_y, grad_c, height, width):
    """Return the gradients of sum(grad_y · y) + sum(grad_c · c_T), by backpropagation through time, step by step.

    The derivative of the step is that of arXiv:2206.06178, section 3: height · max(0, 1 - |c - ϑ| / width). Arrays:
    x (T, B, I), y0, c0 and grad_c (B, H), grad_y (T, B, H). The result has the keys of `p` and x, y and c.
    """
    H = y0.shape[-1]
    theta = sigmoid(p["theta"])
    W, R, b = (np.split(p[name], len(p[name]) // H) for name in ("W", "R", "b"))
    steps, y, c = [], y0, c0
    for x_t in x:
        r, u = (sigmoid(x_t @ W[i].T + y @ R[i].T + b[i]) for i in range(2))
        k = y @ R[2].T + b[3]
        z = np.tanh(x_t @ W[2].T + b[2] + r * k)
        new = u * z + (1 - u) * c - y
        steps.append((x_t, y, c, r, u, k, z, new))
        y, c = new * (new > theta), new
    grads = {name: np.zeros_like(value) for name, value in p.items()} | {"x": np.zeros_like(x)}
    dW, dR, db = (np.split(grads[name], len(grads[name]) // H) for name in ("W", "R", "b"))
    dy, dc = np.zeros_like(y0), grad_c
    for t in reversed(range(len(x))):
        x_t, y, c, r, u, k, z, new = steps[t]
        dy = dy + grad_y[t]
        slope = height * np.maximum(0, 1 - np.abs(new - theta) / width)
        dc = dc + dy * ((new > theta) + new * slope)
        grads["theta"] -= (dy * new * slope * theta * (1 - theta)).sum(0)
        da_z = dc * u * (1 - z**2)
        da_u = dc * (z - c) * u * (1 - u)
        da_r, dk = da_z * k * r * (1 - r), da_z * r
        for i, da in enumerate((da_r, da_u, da_z)):
            dW[i] += da.T @ x_t
            db[i] += da.sum(0)
            grads["x"][t] += da @ W[i]
        db[3] += dk.sum(0)
        for i, da in enumerate((da_r, da_u, dk)):
            dR[i] += da.T @ y
        dy = da_r @ R[0] + da_u @ R[1] + dk @ R[2] - dc
        dc = dc * (1 - u)
    return grads | {"y": dy, "c": dc}


SURROGATES = [(0.7, 1.0), (0.3, 0.4)]


def gradients(layer, x, state, grad_y, grad_c):
    inputs = [t.clone().requires_grad_() for t in (x, *state)]
    y, (_, c), _ = layer(inputs[0], tuple(inputs[1:]))
    ((y * grad_y).sum() + (c * grad_c).sum()).backward()
    named = {name.removeprefix("cell."): parameter.grad for name, parameter in layer.named_parameters()}
    return y.detach(), named | dict(zip(("x", "y", "c"), (t.grad for t in inputs), strict=True))


@pytest.mark.parametrize(("height", "width"), SURROGATES)
@pytest.mark.parametrize(("T", "B", "I", "H"), [(1, 1, 1, 1), (6, 2, 3, 5), (9, 3, 4, 40)], ids=str)
def test_gradients_are_those_of_a_backward_pass_in_numpy(T, B, I, H, height, width):
    layer = layer_of(I, H, surrogate_height=height, surrogate_width=width)
    x, state = random_call(T, B, I, H)
    grad_y, grad_c = torch.randn(T, B, H, dtype=torch.float64), torch.randn(B, H, dtype=torch.float64)
    p = {name: value.detach().numpy() for name, value in layer.cell.named_parameters()}
    wanted = derivatives(p, *(t.numpy() for t in (x, *state, grad_y, grad_c)), height, width)
    y, computed = gradients(layer, x, state, grad_y, grad_c)
    if H == 40:
        # else the surrogate would decide nothing
        assert 0.1 < (y != 0).double().mean() < 0.7
    assert wanted.keys() == computed.keys()
    for name, grad in wanted.items():
        np.testing.assert_allclose(computed[name], grad, rtol=0, atol=FLOAT64 * max(1, abs(grad).max()), err_msg=name)
    with train_library():
        layer = layer.float()
        layer.zero_grad()
        layer.unroller = cpu.CpuUnroller(layer)
        _, computed = gradients(layer, *(x.float(), tuple(s.float() for s in state)), grad_y.float(), grad_c.float())
    for name, grad in wanted.items():
        close = FLOAT32 * max(1, abs(grad).max())
        np.testing.assert_allclose(computed[name], grad, rtol=0, atol=close, err_msg=name)


def test_delta_reads_the_columns_of_outputs_that_changed_and_no_others():
    T, B, I, H = 60, 3, 4, 40
    weights = draw("egru", "delta", H, I)
    for name in ("W", "R", "b"):
        weights[name] *= 3
    weights |= {"theta": np.full(H, -1.0, np.float32), **dict.fromkeys(("rule_theta_x", "rule_theta_h"), np.zeros(1))}
    weights = {name: value.astype(np.float32) for name, value in weights.items()}
    feed = draw_call("egru", "delta", H, I, T, B)
    feed |= {name: np.zeros((B, H), np.float32) for name in ("y", "c")}
    # x changes every tenth step
    feed["X"] = np.repeat(feed["X"][::10], 10, axis=0)
    results = dict(zip(output_names("egru", "delta"), session("egru", "delta", weights).run(None, feed), strict=True))
    y = results["Y"]
    assert 0.02 < (y != 0).mean() < 0.3
    before = np.concatenate([np.zeros((2, B, H), np.float32), y[:-1]])
    changed = (before[1:] != before[:-1]).sum(-1)
    # the first step computes all products
    changed[0] = H
    inputs = np.where(np.arange(T) % 10 == 0, I, 0)[:, None]
    np.testing.assert_array_equal(results["macs"], (3 * H * (changed + inputs)).sum(0))
    dense = {name: value for name, value in weights.items() if not name.startswith("rule")}
    whole = session("egru", "always", dense).run(None, {name: feed[name] for name in ("X", "y", "c")})
    np.testing.assert_allclose(y, whole[0], rtol=0, atol=FLOAT32)
    assert results["macs"].sum() < 0.5 * T * B * 3 * H * (I + H)


def test_a_neuron_sends_above_its_threshold_and_pays_for_it():
    cell = CELLS["egru"](1, 3)
    with torch.no_grad():
        for parameter in (cell.W, cell.R, cell.b):
            parameter.zero_()
        # u = 1/2 and z = tanh(x): c moves halfway from its last value to tanh(x)
        cell.W[6:] = 1.0
        cell.theta.copy_(torch.tensor([0.5, 0.26, 0.2]).logit())
    layer = RecurrentLayer(cell, RULES["always"](1, 3)).double()
    x = torch.full((3, 1, 1), 0.5, dtype=torch.float64).atanh()
    x[2] = 0
    y, (_, c), _ = layer(x, layer.initial_state(1, x))
    # c_1 = 1/4 in all neurons; then the third one loses its event: c_2 = 3/8 - 1/4
    expected = [[0, 0, 0.25], [0, 0.375, 0], [0, 0, 0]]
    np.testing.assert_allclose(y[:, 0].detach(), expected, rtol=0, atol=1e-7)
    # the second neuron loses its event of 3/8, and half of the rest as x is 0
    np.testing.assert_allclose(c[0].detach(), [0.1875, 0.1875 - 0.375, 0.0625], rtol=0, atol=1e-7)


def test_the_surrogate_changes_gradients_alone():
    torch.manual_seed(0)
    models = [edgernn.SequenceModel("egru", 3, 20, 2, cell_options={"surrogate_width": w}) for w in (0.5, 2.0)]
    models[1].load_state_dict(models[0].state_dict())
    x = torch.randn(7, 4, 3)
    outputs = [model(x)[0] for model in models]
    assert torch.equal(*outputs)
    grads = [
        torch.autograd.grad(y.sum(), m.recurrent_layers()[0].cell.W)[0] for y, m in zip(outputs, models, strict=True)
    ]
    assert not torch.allclose(*grads)


def test_thresholds_start_around_an_option():
    torch.manual_seed(0)
    for start in (0.1, 0.3):
        theta = CELLS["egru"](4, 4000, start_threshold=start).theta.detach()
        assert abs(float(torch.sigmoid(theta.median())) - start) < 0.02
        assert abs(theta.std() - 2**0.5) < 0.05


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start_threshold": 0.0}, "start_threshold: expected above 0 and below 1, got 0.0"),
        ({"start_threshold": float("nan")}, "start_threshold: expected above 0 and below 1, got nan"),
        ({"surrogate_height": -1.0}, "surrogate_height: expected a number above 0, got -1.0"),
        ({"surrogate_width": float("inf")}, "surrogate_width: expected a number above 0, got inf"),
    ],
)
def test_options_without_a_meaning_are_refused(options, message):
    with pytest.raises(UsageError, match=f"^{message}$"):
        CELLS["egru"](2, 3, **options)


def test_event_is_a_step_in_every_dtype_and_on_tensors_without_values():
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        v = torch.tensor([-torch.inf, -1.0, -0.0, 0.0, 1e-7, 2.0, torch.inf, torch.nan], dtype=dtype)
        expected = torch.tensor([0, 0, 0, 0, 1, 1, 1, 0], dtype=dtype)
        assert torch.equal(edgernn.event(v), expected)
    assert edgernn.event(torch.empty(2, 3, device="meta")).shape == (2, 3)
    with pytest.raises(UsageError, match=r"^width: expected above 0, got 0\.0$"):
        edgernn.event(torch.zeros(1), width=0.0)


@pytest.mark.parametrize("backend", ["native", "portable"])
def test_events_of_a_cell_of_a_user_run_from_an_exported_file(tmp_path, backend):
    torch.manual_seed(0)
    model = edgernn.SequenceModel(Events, 3, 9, output="all").eval()
    checks = to_onnx(model, tmp_path / "m.onnx")
    assert all(check.worst <= FLOAT32 for check in checks)
    x = torch.randn(30, 1, 3)
    wanted = model(x)[0][:, 0].detach()
    assert 0.1 < wanted.mean() < 0.9
    session = Session(tmp_path / "m.onnx", backend=backend)
    y = np.stack([session.step(x_t) for x_t in x[:, 0].numpy()])
    # outputs are exactly 0 or 1
    np.testing.assert_array_equal(y.reshape(wanted.shape), wanted)
