# SPDX-License-Identifier: Apache-2.0
"""Groups of neurons that share one decision."""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import edgernn
from edgernn.cli.frame import main
from edgernn.costs import model_cost
from edgernn.export import to_onnx
from edgernn.export.rounding import rounded
from edgernn.kernels import attach
from edgernn.random_models import random_model
from edgernn.rules import Selective
from edgernn.runtime import Session, library_path
from edgernn.runtime.library import register
from edgernn.runtime.packed import pack_file
from edgernn.runtime.stepper import Stepper
from edgernn.store import load_model
from edgernn.training import pictures
from tests.models import write_alone

# sizes H and G: whole groups, a last group with fewer neurons, one group, and more inputs than groups
SIZES = [(12, 4), (10, 4), (7, 7), (16, 16), (9, 2)]
T, B, I = 12, 3, 4
CELL = ("cell.W", "cell.R", "cell.b")
RULE = ("rule.rule_W", "rule.rule_d", "rule.rule_b")


def model_of(
    H: int, G: int, cell: str = "gru", rule_budget: str = "decisions", **settings: object
) -> edgernn.SequenceModel:
    torch.manual_seed(H + G)
    options = {"group_size": G, "budget": rule_budget}
    model = edgernn.SequenceModel(cell, I, H, rule="selective", rule_options=options, **settings)
    with torch.no_grad():
        for layer in model.recurrent_layers():
            # so that groups change at some steps and not at others
            layer.rule.rule_W.normal_()
            layer.rule.rule_d.normal_()
    return model.eval()


def oracle(model: edgernn.SequenceModel, x: np.ndarray, H: int, G: int) -> tuple[np.ndarray, np.ndarray]:
    """y and u (T, B, H) of one layer in float64, a neuron and a group at a time."""
    (layer,) = model.recurrent_layers()
    p = {name: value.detach().double().numpy() for name, value in layer.named_parameters()}
    W, R, b = (p[f"cell.{name}"] for name in ("W", "R", "b"))
    h = np.zeros((x.shape[1], H))
    y, u = [], []
    for x_t in x:
        a, k = x_t @ W.T + b[: 3 * H], h @ R.T
        reset, keep = (1 / (1 + np.exp(-(a[:, rows] + k[:, rows]))) for rows in (slice(0, H), slice(H, 2 * H)))
        candidate = np.tanh(a[:, 2 * H :] + reset * (k[:, 2 * H :] + b[3 * H :]))
        new = (1 - keep) * candidate + keep * h
        u_t = np.zeros_like(h)
        for first in range(0, H, G):
            g, members = first // G, slice(first, first + G)
            v = x_t @ p["rule.rule_W"][g] + p["rule.rule_b"][g] + p["rule.rule_d"][g] * h[:, members].mean(1)
            u_t[:, members] = (v > 0)[:, None]
        h = np.where(u_t > 0, new, h)
        y.append(h)
        u.append(u_t)
    return np.stack(y), np.stack(u)


@pytest.mark.parametrize(("H", "G"), SIZES)
def test_torch_and_the_portable_function_equal_the_oracle(H, G, tmp_path):
    model = model_of(H, G, output="all")
    x = np.random.default_rng(0).standard_normal((T, B, I))
    y, u = oracle(model, x, H, G)
    assert 0 < u.mean() < 1
    given = torch.from_numpy(x).float()
    with torch.no_grad():
        result = model(given)[0]
    np.testing.assert_allclose(result.numpy(), y, atol=1e-6)
    (trace,) = model.traces
    assert np.array_equal(trace.decisions.numpy(), u > 0)
    np.testing.assert_allclose(float(trace.budget), u.mean((1, 2)).sum(), rtol=1e-6)
    # a ONNX Runtime without our library
    path = tmp_path / "m.onnx"
    to_onnx(model, path)
    session = onnxruntime.InferenceSession(str(path))
    outputs = dict(
        zip(
            [output.name for output in session.get_outputs()],
            session.run(None, {"x": given.numpy(), "layer0.h": np.zeros((B, H), np.float32)}),
            strict=True,
        )
    )
    np.testing.assert_allclose(outputs["y"], y, atol=1e-6)
    assert np.array_equal(outputs["updates"], u.sum(2))


def test_layers_of_several_sizes_share_a_file(tmp_path):
    model = model_of(10, 4, layers=2, bidirectional=True, output="all")
    path = tmp_path / "m.onnx"
    assert all(check.sequence_error < 1e-5 for check in to_onnx(model, path))


def test_gradients_are_those_of_neurons_with_one_row_in_common():
    H, G = 10, 4
    model = model_of(H, G).train()
    alone = edgernn.SequenceModel("gru", I, H, rule="selective").train()
    (layer,), (single,) = model.recurrent_layers(), alone.recurrent_layers()
    members = torch.arange(H) // G
    with torch.no_grad():
        layer.rule.rule_d.zero_()
        single.cell.load_state_dict(layer.cell.state_dict())
        for name, value in layer.rule.named_parameters():
            getattr(single.rule, name).copy_(value[members])
    x = torch.randn(T, B, I)
    gradients = []
    for each in (layer, single):
        y, _, trace = each(x)
        (y.square().sum() + 0.3 * trace.budget).backward()
        gradients.append((y, each.rule.rule_W.grad, each.rule.rule_b.grad, each.cell.R.grad))
    for ours, theirs in zip(*gradients, strict=True):
        is_shared = len(ours) != len(theirs)
        torch.testing.assert_close(ours, torch.zeros_like(ours).index_add(0, members, theirs) if is_shared else theirs)


@pytest.mark.parametrize("backend", ["torch", "fused"])
@pytest.mark.parametrize("budget", ["decisions", "likelihoods"])
@pytest.mark.parametrize(("H", "G"), SIZES)
def test_gradients_equal_those_of_the_formulas(H, G, budget, backend):
    model = model_of(H, G, output="all", layers=2, bidirectional=True, rule_budget=budget).train()
    attach(model, backend, "cpu")
    layer = model.recurrent_layers()[-1]
    assert layer.backend == backend
    x = torch.randn(T, B, layer.input_size, requires_grad=True)
    y, _, trace = layer(x)
    (y.sin().sum() + 0.3 * trace.budget).backward()
    # the same in float64, with the means and the sums of groups as products with a matrix
    members = torch.nn.functional.one_hot(torch.arange(H) // G).double()
    means = members / members.sum(0)
    parameters = {name: p.detach().double().requires_grad_() for name, p in layer.named_parameters()}
    W, R, b, U, d, bias = (parameters[name] for name in (*CELL, *RULE))
    given = x.detach().double().requires_grad_()
    h, loss = torch.zeros(B, H, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for x_t in given:
        v = x_t @ U.T + bias + d * (h @ means)
        likelihood = ((layer.rule.slope * v + 1) / 2).clamp(0, 1)
        u = ((v > 0).double() + likelihood - likelihood.detach()) @ members.T
        counted = likelihood @ members.T if budget == "likelihoods" else u
        a, k = (x_t @ W.T + b[: 3 * H]).chunk(3, 1), (h @ R.T).chunk(3, 1)
        r, z = torch.sigmoid(a[0] + k[0]), torch.sigmoid(a[1] + k[1])
        new = (1 - z) * torch.tanh(a[2] + r * (k[2] + b[3 * H :])) + z * h
        h = u * new + (1 - u) * h
        loss = loss + h.sin().sum() + 0.3 * counted.mean()
    loss.backward()
    for name, p in (*layer.named_parameters(), ("x", x)):
        expected = (given if name == "x" else parameters[name]).grad
        torch.testing.assert_close(p.grad.double(), expected, rtol=0, atol=1e-5 * max(1, float(expected.abs().max())))


def test_what_groups_cost():
    single, groups = Selective(40, 96), Selective(40, 96, group_size=16)
    assert single.macs() == 96 * 40 + 96
    # six decisions, and the sums of the groups
    assert groups.macs() == 6 * 40 + 6 + 96
    cost = model_cost(model_of(12, 4), update_rate=0.0)
    assert cost.macs_executed == 3 * I + 3 + 12
    assert Selective(3, 10, group_size=4).groups == 3


@pytest.mark.parametrize("size", [0, 13])
def test_a_size_that_is_no_groups_is_refused(size):
    with pytest.raises(edgernn.UsageError, match=f"group_size: expected from 1 to 12, .* got {size}"):
        model_of(12, size)


# the kernel computes groups by vectors of 4, 8 or 16 neurons
@pytest.mark.parametrize(("H", "G"), [*SIZES, (40, 16), (48, 8), (33, 32), (130, 16), (64, 64)])
@pytest.mark.parametrize("cell", ["gru", "lstm", "gru-before", "irc-sru", "t-lstm"])
def test_the_kernel_equals_torch(cell, H, G, tmp_path):
    model = model_of(H, G, cell=cell, output="all")
    session = Session(write_alone(model, tmp_path / "m.onnx"), backend="native")
    # more steps than the kernel projects at once, and batches of which samples share loads
    for steps, batch in ((1, 1), (40, 1), (19, 6)):
        x = np.random.default_rng(steps).standard_normal((steps, batch, I)).astype(np.float32)
        assert_equals_torch(session, model, x)


def assert_equals_torch(session, model, x):
    with torch.no_grad():
        y = model(torch.from_numpy(x))[0]
    np.testing.assert_allclose(session.run(x), y, atol=2e-6)
    np.testing.assert_array_equal(session.updates, model.traces[0].decisions.sum(-1))


@pytest.mark.parametrize("cell", ["gru", "lstm-peephole", "gru-before"])
@pytest.mark.parametrize("settings", [{"rank": 5}, {"density": 0.3}], ids=str)
def test_the_kernel_has_weights_of_low_rank_and_sparse_ones(cell, settings, tmp_path):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = random_model(cell, I, 48, rule="selective", skip=0.5, rule_options={"group_size": 16}, **settings)
    session = Session(write_alone(model, tmp_path / "m.onnx"), backend="native")
    assert_equals_torch(session, model, np.random.default_rng(0).standard_normal((40, 5, I)).astype(np.float32))


@pytest.mark.parametrize("weights", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize(("H", "G"), [(48, 16), (10, 4)])
def test_a_sample_is_the_same_in_any_batch_and_call(H, G, weights, tmp_path):
    model = rounded(model_of(H, G), weights)
    session = Session(write_alone(model, tmp_path / "m.onnx", weights), backend="native")
    x = np.random.default_rng(0).standard_normal((40, 5, I)).astype(np.float32)
    whole = session.run(x)
    for sample in range(5):
        assert np.array_equal(session.run(x[:, sample : sample + 1]), whole[sample : sample + 1])
    session.reset()
    for x_t in x:
        last = session.step(x_t)
    assert np.array_equal(last, whole)


@pytest.mark.parametrize("weights", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize(("H", "G"), [(48, 16), (10, 4)])
def test_a_packed_model_equals_the_session(H, G, weights, tmp_path):
    path = write_alone(rounded(model_of(H, G), weights), tmp_path / "m.onnx", weights)
    pack_file(path, tmp_path / "m.edgernn")
    stepper, session = Stepper((tmp_path / "m.edgernn").read_bytes(), 1), Session(path, backend="native")
    session.reset()
    for x in np.random.default_rng(0).standard_normal((9, 1, I)).astype(np.float32):
        stepper.x[...] = x
        assert stepper.step()
        assert np.array_equal(stepper.y, session.step(x))


def test_the_kernel_counts_the_work_of_the_active_groups(tmp_path):
    H, G = 64, 16
    model = model_of(H, G)
    path = tmp_path / "m.onnx"
    to_onnx(model, path)
    session = Session(path, backend="native")
    # a call of few steps projects nothing in advance
    session.run(np.random.default_rng(0).standard_normal((12, 1, I)).astype(np.float32))
    decisions = 12 * (H // G * (I + 1) + H)
    assert session.macs == decisions + session.updates.sum() * 3 * (I + H)


@pytest.mark.parametrize(("size", "limit"), [(0, "1 to 12"), (13, "1 to 12")])
def test_a_bad_group_size_of_a_file_is_refused(size, limit, tmp_path):
    path = tmp_path / "m.onnx"
    to_onnx(model_of(12, 4), path)
    file = onnx.load(path)
    (node,) = (node for node in file.graph.node if node.domain == "ai.edgernn")
    (attribute,) = (a for a in node.attribute if a.name == "group_size")
    attribute.i = size
    options = onnxruntime.SessionOptions()
    register(options, library_path())
    with pytest.raises(Exception, match=f"group_size: expected {limit}, got {size}"):
        onnxruntime.InferenceSession(file.SerializeToString(), options)


def test_pictures_and_cards_show_groups(tmp_path):
    model = model_of(10, 4)
    pattern, updated = pictures._pattern(model, torch.randn(T, 1, I))
    assert pattern.shape == (3, T)
    # the last group has two neurons
    assert updated == pytest.approx((pattern * np.array([[4], [4], [2]])).sum() / (10 * T))
    pictures.update_pattern(tmp_path / "p.png", model, torch.randn(T, 1, I))
    assert (tmp_path / "p.png").stat().st_size > 5000


def test_the_command_line_trains_with_groups(tmp_path, capsys):
    words = ["train", "--task", "adding", "--cell", "sarnn", "T=8", "hidden_size=6", "group_size=4", "steps=4"]
    assert main([*words, "--out", str(tmp_path / "run")]) == 0
    model, _ = load_model(tmp_path / "run")
    assert model.recurrent_layers()[0].rule.rule_W.shape == (2, 2)
    assert main(["export", str(tmp_path / "run")]) == 0
    assert "gru + selective in groups of 4 neurons, " in (tmp_path / "run" / "model.md").read_text()
    assert main([*words[:-2], "group_size=9", "--out", str(tmp_path / "other")]) == 2
    assert "group_size: expected from 1 to 6, the number of neurons, got 9" in capsys.readouterr().err
