# SPDX-License-Identifier: Apache-2.0
"""Parts of a network that run at some steps: in torch, in files for both backends, and packed."""

import copy
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import edgernn
from edgernn.cells.base import State
from edgernn.export import to_onnx
from edgernn.nn import CausalConv1d, Conditional, Recurrent, budget, update_rate
from edgernn.rules.kinds.scored import PerSample
from edgernn.runtime import NetworkSession, Session
from edgernn.runtime.packed import pack_file
from tests.native import library
from tests.source_tree import ROOT

STEPS, BATCH = 23, 3


class Loud(PerSample):
    """Runs a part where the mean size of the inputs is above 0.8."""

    name = "loud"

    def project(self, x: Tensor) -> Tensor:
        return x.abs().mean(-1, keepdim=True)

    def score(self, e: Tensor, state: State, memory: State) -> Tensor:
        return e - 0.8


class Slow(nn.Module):
    """A convolution over time, a GRU, and a linear map that runs at every second step of these."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.rnn = CausalConv1d(4, 5, 3), Recurrent("gru", 5, 6)
        self.head = Conditional(nn.Linear(6, 2), 6, 2, period=2, input="last")

    def forward(self, x: Tensor, state: tuple = (None, None, None)) -> tuple[Tensor, tuple]:
        y, conv = self.conv(x.permute(1, 2, 0), state[0])
        y, hidden = self.rnn(y.permute(2, 0, 1).tanh(), state[1])
        y, head = self.head(y, state[2])
        return y, (conv, hidden, head)


class Net(nn.Module):
    """A linear map, a part that runs at some steps, and another linear map."""

    def __init__(self, part: Conditional) -> None:
        super().__init__()
        self.first, self.part, self.last = nn.Linear(3, part.input_size), part, nn.Linear(part.output_size, 2)

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        y, state = self.part(self.first(x), state)
        return self.last(y), state


def numpy_of(module: nn.Module) -> dict[str, NDArray[np.float64]]:
    return {name: value.detach().double().numpy() for name, value in module.state_dict().items()}


def sigmoid(a: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1 / (1 + np.exp(-a))


def slow_oracle(net: Net, x: NDArray[np.float64], period: int) -> NDArray[np.float64]:
    """Compute `Net` with `Slow` at every n-th step for one sequence (T, 3), from the equations."""
    w = numpy_of(net)
    u = x @ w["first.weight"].T + w["first.bias"]
    W, R, b = (w[f"part.part.rnn.layers.0.cell.{name}"] for name in "WRb")
    kept, h, held, out, calls = np.zeros((2, 4)), np.zeros(6), np.zeros(2), [], 0
    for t in range(len(u)):
        if (t + 1) % period == 0:
            window = np.vstack([kept, u[t - period + 1 : t + 1].mean(0)])
            kept = window[1:]
            conv = np.einsum("ock,kc->o", w["part.part.conv.weight"], window) + w["part.part.conv.bias"]
            a = W @ np.tanh(conv) + b[:18]
            r, z = sigmoid(a[:6] + R[:6] @ h), sigmoid(a[6:12] + R[6:12] @ h)
            n = np.tanh(a[12:] + r * (R[12:] @ h + b[18:]))
            h = (1 - z) * n + z * h
            calls += 1
            if calls % 2 == 0:
                held = w["part.part.head.part.weight"] @ h + w["part.part.head.part.bias"]
        out.append(held)
    return np.array(out) @ w["last.weight"].T + w["last.bias"]


def loud_oracle(net: Net, x: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Compute `Net` with a linear map under `Loud` for one sequence (T, 3); return y and where the map runs."""
    w = numpy_of(net)
    u = x @ w["first.weight"].T + w["first.bias"]
    runs = np.abs(u).mean(1) > 0.8
    held, out = np.zeros(5), []
    for row, is_loud in zip(u, runs, strict=True):
        held = w["part.part.weight"] @ row + w["part.part.bias"] if is_loud else held
        out.append(held)
    return np.array(out) @ w["last.weight"].T + w["last.bias"], runs


def skip_oracle(net: Net, x: NDArray[np.float64], pressure: float) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Compute `Net` with `Recurrent("gru", 4, 5)` under skip for one sequence (T, 3); return y and where it runs."""
    w = numpy_of(net)
    W, R, b = (w[f"part.part.layers.0.cell.{name}"] for name in "WRb")
    h, out, runs = np.zeros(5), [], []
    for row in x @ w["first.weight"].T + w["first.bias"]:
        runs.append(pressure >= 0.5)
        if runs[-1]:
            a = W @ row + b[:15]
            r, z = sigmoid(a[:5] + R[:5] @ h), sigmoid(a[5:10] + R[5:10] @ h)
            h = (1 - z) * np.tanh(a[10:] + r * (R[10:] @ h + b[15:])) + z * h
        growth = sigmoid(w["part.rule.rule_w"] @ h + w["part.rule.rule_b"][0])
        pressure = growth if runs[-1] else pressure + min(growth, 1 - pressure)
        out.append(h)
    return np.array(out) @ w["last.weight"].T + w["last.bias"], np.array(runs)


def file_of(net: Net, x: Tensor, expected: NDArray[np.float64], folder: Path) -> Path:
    """Save a network as a file, which must give these outputs in parts of x on both backends; return its path."""
    path = saved(net, folder / "net.onnx")
    library()
    for backend in ("portable", "native"):
        session = NetworkSession(path, backend=backend)
        steps = [session.step(cut.numpy())["y"] for cut in x.split([1, 5, 1, 16])]
        np.testing.assert_allclose(np.concatenate(steps), expected, rtol=0, atol=1e-6)
    return path


def inputs(seed: int = 0) -> Tensor:
    return torch.randn(STEPS, BATCH, 3, generator=torch.Generator().manual_seed(seed))


def saved(net: Net, path: Path) -> Path:
    """Write the network with its states as inputs s0, s1, ..."""
    x = inputs()
    names = [f"s{i}" for i, _ in enumerate(net.part.initial_state(BATCH, x))]
    outputs = ["y", *(f"{name}.next" for name in names)]
    to_onnx(net, path, (x, net.part.initial_state(BATCH, x)), inputs=["x", *names], outputs=outputs)
    return path


def packed_file(path: Path) -> Path:
    out = path.with_suffix(".edgernn")
    pack_file(path, out)
    return out


@pytest.mark.parametrize(
    ("rule", "options"), [("periodic", {"period": 3}), ("periodic", {"period": 4, "input": "last"}), ("skip", {})]
)
def test_a_part_that_is_a_layer_equals_a_layer_with_the_rule(rule: str, options: dict) -> None:
    torch.manual_seed(1)
    layer = Recurrent("gru", 4, 5, rule=rule, **options).double()
    part = Conditional(Recurrent("gru", 4, 5), 4, 5, rule, **options).double()
    cell, inner = layer.layers[0].cell, part.part.layers[0].cell
    inner.load_state_dict(cell.state_dict())
    part.rule.load_state_dict(layer.layers[0].rule.state_dict())
    for module in (layer.layers[0].rule, part.rule):
        if rule == "skip":
            module.rule_b.data.fill_(-2)
    x = torch.randn(STEPS, BATCH, 4, dtype=torch.float64, requires_grad=True)
    h, *memory = layer.initial_state(BATCH, x)
    results = []
    for module, state in ((layer, (h * 0, *memory)), (part, None)):
        y, _ = module(x, state)
        assert update_rate(module) < 0.5
        loss = y.square().sum() + 0.1 * budget(nn.Sequential(module))
        weights = [cell.W, cell.R, *layer.layers[0].rule.parameters()]
        if module is part:
            weights = [inner.W, inner.R, *part.rule.parameters()]
        results.append([y, loss, *torch.autograd.grad(loss, [x, *weights])])
    for expected, value in zip(*results, strict=True):
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-12)
    assert part.share == pytest.approx(update_rate(layer))


def test_a_periodic_part_equals_its_equations_in_torch_in_files_and_packed(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, x = Net(Conditional(Slow(), 4, 2, period=3)).eval(), inputs()
    expected = np.stack([slow_oracle(net, row, 3) for row in x.double().numpy().swapaxes(0, 1)], 1)
    with torch.no_grad():
        whole, _ = net(x)
        np.testing.assert_allclose(whole, expected, rtol=0, atol=1e-6)
        assert net.part.share == pytest.approx(7 / STEPS)
        assert net.part.part.head.share == pytest.approx(3 / STEPS)
        assert update_rate(net) == pytest.approx(7 / STEPS)
        parts, state = [], None
        for cut in x.split([1, 1, 2, 7, 12]):
            y, state = net(cut, state)
            parts.append(y)
        torch.testing.assert_close(torch.cat(parts), whole, rtol=0, atol=1e-6)
    path = file_of(net, x, expected, tmp_path)
    session = Session(packed_file(path))
    work = []
    for row, y in zip(x.numpy(), expected, strict=True):
        np.testing.assert_allclose(session.step(row), y, rtol=0, atol=1e-6)
        work.append(session.macs.copy())
    # multiply-adds outside; with the part; with the map that runs at every second step of the part
    outside, part, inner = 3 * 4 + 2 * 2, 4 * 5 * 3 + 3 * 6 * (5 + 6), 6 * 2
    counts = [outside + part * ((t + 1) % 3 == 0) + inner * ((t + 1) % 6 == 0) for t in range(STEPS)]
    np.testing.assert_array_equal(np.array(work), np.array(counts)[:, None].repeat(BATCH, 1))


@pytest.fixture(scope="module")
def skipping() -> Net:
    torch.manual_seed(4)
    net = Net(Conditional(Recurrent("gru", 4, 5), 4, 5, "skip"))
    net.part.rule.rule_b.data.fill_(-1.5)
    net.part.rule.rule_w.data.normal_()
    return net


def test_a_recurrent_part_under_skip_equals_its_equations_in_torch_in_files_and_packed(
    skipping: Net, tmp_path: Path
) -> None:
    net, x = copy.deepcopy(skipping).eval(), inputs()
    rows = x.double().numpy().swapaxes(0, 1)
    for pressure in (1.0, 0.0):
        expected, runs = (np.stack(v, 1) for v in zip(*(skip_oracle(net, row, pressure) for row in rows), strict=True))
        assert 0.2 < runs.mean() < 0.6
        assert (runs.any(1) != runs.all(1)).any()
        start = (torch.full((BATCH, 1), pressure), *net.part.initial_state(BATCH, x)[1:])
        with torch.no_grad():
            np.testing.assert_allclose(net(x, start)[0], expected, rtol=0, atol=1e-6)
        assert net.part.share == pytest.approx(runs.mean())
    # states of a file start at 0
    path = file_of(net, x, expected, tmp_path)
    packed = Session(packed_file(path))
    np.testing.assert_allclose([packed.step(row) for row in x.numpy()], expected, rtol=0, atol=1e-6)


# torch.compile makes an object of each autograd function
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize(
    "call",
    [
        lambda net, x: copy.deepcopy(net)(x)[0],
        lambda net, x: checkpoint(lambda values: net(values)[0], x, use_reentrant=False),
        # the first call finds the layout of the part's state, which no program of torch.compile does
        lambda net, x: (net(x), torch.compile(net, backend="aot_eager", fullgraph=True)(x)[0])[1],
        lambda net, x: torch.cat([(first := net(x[:9]))[0], net(x[9:], first[1])[0]]),
    ],
    ids=["copy", "checkpoint", "compile", "parts"],
)
def test_other_calls_have_the_same_outputs_and_gradients(skipping: Net, call: Any) -> None:
    results = []
    for function in (lambda net, x: net(x)[0], call):
        x = inputs().double().requires_grad_()
        net = copy.deepcopy(skipping).double()
        y = function(net, x)
        results.append([y, *torch.autograd.grad(y.square().sum(), [x])])
    for value, expected in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-12)


def test_a_part_runs_where_a_threshold_of_a_rule_of_ones_own_says_so(tmp_path: Path) -> None:
    torch.manual_seed(2)
    net, x = Net(Conditional(nn.Linear(4, 5), 4, 5, Loud)).eval(), 1.5 * inputs(3)
    rows = [loud_oracle(net, row) for row in x.double().numpy().swapaxes(0, 1)]
    expected, runs = (np.stack(values, 1) for values in zip(*rows, strict=True))
    assert 0.2 < runs.mean() < 0.8
    assert (runs.any(1) != runs.all(1)).any()
    with torch.no_grad():
        np.testing.assert_allclose(net(x)[0], expected, rtol=0, atol=1e-6)
    assert net.part.share == pytest.approx(runs.mean())
    path = saved(net, tmp_path / "net.onnx")
    session = NetworkSession(path, backend="portable")
    np.testing.assert_allclose(session.run(x.numpy())["y"], expected, rtol=0, atol=1e-6)
    packed = Session(packed_file(path))
    for row, y, is_run in zip(x.numpy(), expected, runs, strict=True):
        np.testing.assert_allclose(packed.step(row), y, rtol=0, atol=1e-6)
        np.testing.assert_array_equal(packed.macs, 3 * 4 + 5 * 2 + 4 * 5 * is_run)


def test_a_training_step_gives_gradients_and_keeps_no_records_of_skipped_steps() -> None:
    net = Net(Conditional(Slow(), 4, 2, "skip"))
    y, _ = net(inputs())
    (y.square().mean() + budget(net)).backward()
    assert all(p.grad is not None for p in net.parameters())
    assert edgernn.nn.steer(net, 0.5, steps=3).weight >= 0


@pytest.mark.parametrize("rule", ["periodic", "skip", Loud])
@pytest.mark.parametrize("part", [lambda: nn.Linear(4, 2), Slow, lambda: Recurrent("lstm", 4, 2)])
def test_autocast_leaves_the_rule_and_the_held_output_in_float32(part, rule: str | type[PerSample]) -> None:
    torch.manual_seed(0)
    conditional, x = Conditional(part(), 4, 2, rule).eval(), torch.randn(STEPS, BATCH, 4).bfloat16()
    expected, _ = conditional(x.float())
    runs = conditional.traces[0].decisions
    with torch.autocast("cpu", torch.bfloat16):
        first, state = conditional(x[:9])
        second, state = conditional(x[9:], state)
        whole, _ = conditional(x)
    if rule != "skip":
        # the decisions of skip depend on y
        assert torch.equal(conditional.traces[0].decisions, runs)
        torch.testing.assert_close(whole, expected, rtol=0, atol=0.03)
    torch.testing.assert_close(torch.cat([first, second]), whole)
    assert {tensor.dtype for tensor in (whole, *state)} == {torch.float32}
    whole.sum().backward()
    assert all(p.grad is not None for p in conditional.part.parameters())


@pytest.mark.parametrize("part", [lambda: nn.Linear(4, 2), Slow])
def test_a_part_that_does_not_run_has_gradients_of_zero(part) -> None:
    conditional, x = Conditional(part(), 4, 2, period=3), torch.randn(2, 1, 4, requires_grad=True)
    y, state = conditional(x)
    assert not y.any()
    sum(tensor.sum() for tensor in (y, *state[1:])).backward()
    assert all(p.grad is not None and not p.grad.any() for p in conditional.parameters())
    # the sum of the inputs that the part reads at the next step
    assert torch.equal(x.grad, torch.ones_like(x))


def test_shapes_are_those_of_tensors_without_data() -> None:
    for rule in ("periodic", "skip"):
        y, _ = Conditional(nn.Linear(3, 2), 3, 2, rule).to("meta")(torch.ones(5, 2, 3, device="meta"))
        assert (y.shape, y.device.type) == ((5, 2, 2), "meta")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Conditional(None, 3, 2), "part: expected a torch.nn.Module, got NoneType; write one whose forward"),
        (lambda: Conditional(torch.tanh, 3, 3), "part: expected a torch.nn.Module, got tanh; write one whose forward"),
        (lambda: Conditional(nn.Linear(3, 2), 10**12, 2), "input_size: expected a whole number below 2.31, got 10000"),
        (
            lambda: Conditional(nn.Linear(3, 2), 3, 2)(torch.ones(4, 1, 3).int()),
            r"x: expected torch.float32, got torch.int32; convert it with x.to\(torch.float32\)$",
        ),
        (lambda: Conditional(nn.Tanh(), 3, 3)(torch.ones(4, 1, 3).int()), r"x: expected floats .*, got torch.int32"),
        (lambda: Conditional(nn.Linear(3, 2), 3, 2)(torch.ones(4, 1, 3, device="meta")), "x: expected a tensor on cpu"),
        (lambda: Conditional(nn.Linear(3, 2), 3, 2)(torch.ones(4, 1, 3).to_sparse()), "x: expected a dense tensor"),
        (lambda: Conditional(nn.Linear(3, 2), 3, 2)(np.ones((4, 1, 3))), "x: expected a torch.Tensor, got numpy"),
        (lambda: Conditional(nn.Linear(3, 2), 3, 2)(torch.ones(4, 1, 3), 5), "state: expected a torch.Tensor, got int"),
        (lambda: Conditional(nn.Linear(3, 2), 3, 0), "output_size: expected a whole number of at least 1, got 0"),
        (lambda: Conditional(nn.Linear(3, 2), 3, 2, "selective"), "rule: expected one with a decision for all neurons"),
        (lambda: Conditional(nn.Linear(3, 2), 3, 2, perod=2), "did you mean 'period'"),
        (lambda: Conditional(nn.Linear(3, 2), 3, 2, period=0), "period: expected a whole number from 1"),
        (lambda: Conditional(nn.Linear(3, 2), 3, 2, "skip").share, "share: expected a forward pass before"),
        (lambda: Conditional(nn.Linear(3, 2), 3, 2)(torch.zeros(4, 3)), r"x: expected floats \(T, B, 3\)"),
        (lambda: Conditional(nn.Linear(3, 2), 3, 2)(torch.zeros(4, 1, 3), ()), "state: expected shapes"),
        (lambda: Conditional(nn.Linear(3, 2), 3, 1, "skip")(torch.zeros(4, 1, 3)), r"part: expected y of shape"),
        (lambda: Conditional(nn.GRU(3, 2), 3, 2, "skip")(torch.zeros(4, 1, 3)), r"part: expected y of .* got tuple"),
    ],
)
def test_wrong_parts_rules_and_calls_are_refused(make, message: str) -> None:
    with pytest.raises(edgernn.UsageError, match=message):
        make()


def test_the_page_runs_a_part_at_every_fourth_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/how-to/run-a-part.md").read_text("utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(code, "run-a-part.md", "exec"), names)
    assert names["slow"].share == 12 / 50
    np.testing.assert_allclose(np.concatenate(names["slow_steps"]), names["held"], rtol=0, atol=1e-5)
