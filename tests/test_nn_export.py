# SPDX-License-Identifier: Apache-2.0
"""Export of networks of one's own: nodes of edgernn, names, states, and a check that judges itself."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import edgernn
from edgernn.errors import EdgernnWarning, UsageError
from edgernn.export import add_functions, to_onnx
from edgernn.nn import CausalConv1d, Recurrent, RecurrentCell, convert
from edgernn.runtime import NetworkSession
from edgernn.runtime.library import register
from edgernn.runtime.packed import pack_file
from edgernn.runtime.stepper import Stepper
from tests.native import library

States = tuple[Tensor, ...]


def sessions(path: Path | bytes) -> list[onnxruntime.InferenceSession]:
    """Open a file in stock ONNX Runtime, and with the native library."""
    model = path if isinstance(path, bytes) else str(path)
    found = []
    for native in (False, True):
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        if native:
            register(options, library())
        found.append(onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"]))
    return found


class Streaming(nn.Module):
    """Convolution, one layer in two places, torch's own GRU, and two outputs; the caller keeps all states."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = CausalConv1d(3, 6, 3, dilation=2)
        self.rnn = Recurrent("gru", 6, 6, rule="selective", batch_first=True)
        self.gru = nn.GRU(6, 4, 2, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor, states: States) -> tuple[Tensor, Tensor, States]:
        conv, first, second, last = states
        y, conv = self.conv(x.transpose(1, 2), conv)
        y, first = self.rnn(y.transpose(1, 2).relu(), first)
        y, second = self.rnn(y, second)
        z, last = self.gru(y, last)
        return self.head(z), y.square().mean(2), (conv, first, second, last)

    def start(self, batch: int) -> States:
        return (torch.zeros(batch, 3, 4), *(torch.zeros(1, batch, 6) for _ in range(2)), torch.zeros(2, batch, 4))


STATES = ["conv", "first", "second", "last"]
OUTPUTS = ["y", "energy", *(f"{name}.next" for name in STATES)]


@pytest.fixture(scope="module")
def streaming(tmp_path_factory: pytest.TempPathFactory) -> tuple[Streaming, Path]:
    torch.manual_seed(0)
    net, path = Streaming(), tmp_path_factory.mktemp("nets") / "net.onnx"
    arguments = (torch.randn(2, 5, 3), net.start(2))
    with torch.autocast("cpu", torch.bfloat16):
        checks = to_onnx(net, path, arguments, inputs=["x", *STATES], outputs=OUTPUTS, metadata={"made": "so"})
    assert [check.backend for check in checks] == ["portable", "native"]
    assert all(check.worst < 1e-5 for check in checks)
    return net, path


def run(session: onnxruntime.InferenceSession, x: Tensor, states: Any) -> list[Any]:
    return session.run(OUTPUTS, dict(zip(["x", *STATES], (np.asarray(t) for t in (x, *states)), strict=True)))


def test_network_runs_in_parts_of_any_length_and_batch(streaming: tuple[Streaming, Path]) -> None:
    net, path = streaming
    x = torch.randn(3, 11, 3)
    with torch.no_grad():
        y, energy, last = net.eval()(x, net.start(3))
    for session in sessions(path):
        results, states, begin = [], net.start(3), 0
        for steps in (4, 1, 6):
            y_part, energy_part, *states = run(session, x[:, begin : begin + steps], states)
            results.append((y_part, energy_part))
            begin += steps
        for got, expected in zip(zip(*results, strict=True), (y, energy), strict=True):
            np.testing.assert_allclose(np.concatenate(got, 1), expected, rtol=0, atol=2e-6)
        for got, expected in zip(states, last, strict=True):
            np.testing.assert_allclose(got, expected, rtol=0, atol=2e-6)


def test_file_has_nodes_names_and_shared_weights(streaming: tuple[Streaming, Path]) -> None:
    _, path = streaming
    proto = onnx.load(path)
    ours = [node for node in proto.graph.node if node.domain == "ai.edgernn"]
    assert [node.op_type for node in ours] == ["Recurrent", "Recurrent", "Recurrent2", "Recurrent2"]
    assert not {"GRU", "Scan", "Loop"} & {node.op_type for node in proto.graph.node}
    assert ours[0].input[1:3] == ours[1].input[1:3]
    assert [function.name for function in proto.functions] == ["Recurrent", "Recurrent2"]
    assert [value.name for value in proto.graph.input] == ["x", *STATES]
    assert [value.name for value in proto.graph.output] == OUTPUTS
    info = json.loads(proto.metadata_props[0].value)
    assert (info["made"], info["states"], info["kernels"]) == ("so", STATES, ["gru+selective", "gru"])
    assert not any(node.metadata_props for node in proto.graph.node)
    # the module was not changed
    assert isinstance(streaming[0].gru, nn.GRU)


# torch.onnx.export itself calls what torch deprecates
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
def test_users_own_export_is_completed_by_one_call() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), convert(nn.LSTM(4, 5)).module)
    x = torch.randn(4, 2, 3)
    program = torch.onnx.export(net.eval(), (x,), dynamo=True, verbose=False, dynamic_shapes=[{0: "T", 1: "B"}])
    with torch.no_grad():
        again = torch.randn(7, 3, 3)
        y, (h, c) = net(again)
    for session in sessions(add_functions(program).SerializeToString()):
        got = session.run(None, {session.get_inputs()[0].name: again.numpy()})
        for ours, expected in zip(got, (y, h, c), strict=True):
            np.testing.assert_allclose(ours, expected, rtol=0, atol=2e-6)
    plain = torch.onnx.export(nn.Linear(3, 4).eval(), (x,), dynamo=True, verbose=False)
    with pytest.raises(edgernn.UsageError, match="expected a module with a recurrent layer of edgernn, got none"):
        add_functions(plain)


def test_check_allows_the_rounding_of_large_weights(tmp_path: Path) -> None:
    """Recurrent weights up to 8.5 amplify rounding to differences of the size of the values themselves."""
    torch.manual_seed(0)
    for module in (nn.GRU(4, 24, bidirectional=True), nn.LSTM(4, 24)):
        with torch.no_grad():
            for name, weight in module.named_parameters():
                weight.mul_(8.5 / weight.abs().max() if "weight_hh" in name else 1)
        x = torch.randn(60, 3, 4)
        with torch.no_grad():
            exact = module.double()(x.double())[0]
            rounding = float((module.float()(x)[0] - exact).abs().max())
        assert rounding > 1e-2
        to_onnx(module, tmp_path / "large.onnx", x)
        if isinstance(module, nn.LSTM):
            to_onnx(edgernn.from_torch(module), tmp_path / "model.onnx", x)


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = Recurrent("gru", 3, 4)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.rnn(x)
        return y if y.sum() > 0 else -y


class Remembering(Branching):
    """Keeps its state from call to call, as nobody else knows of."""

    state: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        y, self.state = self.rnn(x, self.state)
        return y


class Stateful(nn.Module):
    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.rnn, self.parts = Recurrent("gru", 3, 4, bidirectional=len(parts) == 0), nn.ModuleList(parts)

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return self.rnn(x, state)


class Timed(nn.Module):
    """Returns a number that is no tensor."""

    def forward(self, x: Tensor) -> tuple[Tensor, float]:
        return x, 0.5


class Sized(nn.Module):
    """A layer whose input depends on the sizes of x (T, B, I) in Python."""

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.rnn, self.change = Recurrent("gru", 3, 4), change

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.rnn(self.change(x))[0]
        return y


class Loop(nn.Module):
    """A loop in Python over the steps of x (T, B, I)."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = RecurrentCell("gru", 3, 4)

    def forward(self, x: Tensor) -> Tensor:
        h, y = None, []
        for x_t in x.unbind(0):
            h = self.cell(x_t, h)
            y.append(h)
        return torch.stack(y)


def pooled(x: Tensor) -> Tensor:
    return nn.functional.max_pool1d(x.permute(1, 2, 0), 2).permute(2, 0, 1)


@pytest.mark.parametrize(
    ("module", "shape", "limits"),
    [
        (Sized(pooled), ["axis0", "axis1", 3], {}),
        (Loop(), [6, "axis0", 3], {}),
        (Sized(lambda x: x if len(x) > 3 else -x), [6, "axis0", 3], {}),
        (Sized(lambda x: x if x.shape[0] % 2 == 0 else -x), [6, "axis0", 3], {}),
        (Sized(lambda x: x if x.shape[0] > x.shape[1] else -x), [6, 2, 3], {}),
        (Sized(lambda x: -x if x.shape[0] == 1 else x), ["axis0", "axis1", 3], {"axis0": [2, None]}),
        (Sized(lambda x: -x if x.shape[1] == 1 else x), ["axis0", "axis1", 3], {"axis1": [2, None]}),
        (Sized(lambda x: x if 3 < x.shape[0] < 100 else -x), ["axis0", "axis1", 3], {"axis0": [4, 99]}),
    ],
)
def test_file_takes_no_size_for_which_the_module_computes_something_else(
    module: nn.Module, shape: list[int | str], limits: dict[str, list[int | None]], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    path = tmp_path / "net.onnx"
    to_onnx(module, path, torch.randn(6, 2, 3))
    session = NetworkSession(path)
    assert session.onnx.get_inputs()[0].shape == shape
    assert session.info["sizes"] == limits
    low, high = limits.get("axis0", [2, None])
    for steps, batch in ((6, 2), (6, 5), (9, 2), (3, 2), (120, 2)):
        x = torch.randn(steps, batch, 3)
        if shape[0] in ("axis0", steps) and shape[1] in ("axis0", "axis1", batch) and low <= steps <= (high or steps):
            np.testing.assert_allclose(session.run(x)["y"], module.eval()(x).detach(), rtol=0, atol=2e-6)
        else:
            with pytest.raises(edgernn.UsageError, match=r"x: expected (shape|axis0 = 4 to 99)"):
                session.run(x)


X, BOTH = torch.ones(5, 2, 3), torch.zeros(2, 2, 4)
STATE = {"inputs": ["x", "h"], "outputs": ["y", "h.next"]}


@pytest.mark.parametrize(
    ("module", "example", "options", "message"),
    [
        (Branching(), X, {}, r"module: Branching, line \d+ of .*; use torch operators in place of Python branch"),
        (
            nn.Sequential(Branching()),
            X,
            {},
            r"module: 0 \(Branching\), line \d+ of test_nn_export.py, cannot be exported: ",
        ),
        (
            Remembering(),
            X,
            {},
            "module: expected the same outputs in two calls, got others of Remembering, which keeps",
        ),
        (Stateful(), (X, BOTH), STATE, r"outputs: expected no state, as rnn \(Recurrent\) reads the sequence in both"),
        (
            Stateful(nn.Conv1d(3, 3, 5)),
            (X, BOTH[:1]),
            STATE,
            r"outputs: expected no state, as parts.0 \(Conv1d\) reads steps of other calls, got h.next; use",
        ),
        (
            Stateful(nn.Identity()),
            (X, BOTH[:1]),
            STATE | {"inputs": ["x", "c"]},
            "outputs: expected an input for each next state, got none named h",
        ),
        (
            Recurrent("gru", 3, 4),
            X,
            {"outputs": ["y"]},
            "outputs: expected 2 different names, one for each",
        ),
        (nn.Linear(3, 4), X, {}, "program: expected a module with a recurrent layer of edgernn, got none"),
        (
            nn.Sequential(nn.LazyLinear(3)),
            X,
            {},
            "weights: expected known sizes, got 0.weight without one; call the mod",
        ),
        (Recurrent("gru", 3, 4).to("meta"), X, {}, "weights: expected numbers, got layers.0.cell.W on the device meta"),
        (Recurrent("gru", 3, 4).double(), X.double(), {}, "dtype: expected float32 weights, got float64 in layers.0"),
        (Recurrent("gru", 3, 4), X[:, :0], {}, r"example: expected tensors with no empty axis, got shape \(5, 0, 3\)"),
        (
            Recurrent("gru", 3, 4),
            X,
            {"inputs": [""]},
            "inputs: expected 1 different names, one for each tensor, got ''",
        ),
        (Recurrent("gru", 3, 4), X, {"outputs": ["x", "h"]}, "outputs: expected other names than the inputs, got x"),
        (Recurrent("gru", 3, 4), None, {}, r"example: expected the arguments of forward\(\), got none"),
        (Recurrent("gru", 3, 4), (X, 3), {}, "example: expected the tensors that the module is called with"),
        (Timed(), X, {}, "module: expected tensors as outputs, got float; return torch.as_tensor of it"),
        (Recurrent("gru", 3, 4), X, {"weights": "int8"}, "weights: expected float32 for Recurrent, got int8"),
    ],
)
def test_what_cannot_be_exported_is_named(
    module: nn.Module, example: Any, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(edgernn.UsageError, match=message):
        to_onnx(module, tmp_path / "net.onnx", example, **options)
    assert not list(tmp_path.iterdir())


class Decoder(nn.Module):
    """Reads a sequence, then decodes three steps from a start token of its own, in float32 whatever its weights are."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder, self.head = Recurrent("gru", 3, 4), RecurrentCell("gru", 2, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        _, (h,) = self.encoder(x)
        token, outputs = torch.zeros(x.shape[1], 2, dtype=torch.float32), []
        for _ in range(3):
            h = self.decoder(token, h)
            token = self.head(h)
            outputs.append(token)
        return torch.stack(outputs)


def test_a_module_may_make_float32_tensors_itself(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, x = Decoder().eval(), torch.randn(7, 3, 3)
    to_onnx(net, tmp_path / "net.onnx", torch.randn(5, 2, 3))
    with torch.no_grad():
        y = net(x)
    for backend in ("portable", "native"):
        got = NetworkSession(tmp_path / "net.onnx", backend=backend).run(x)["y"]  # type: ignore[arg-type]
        np.testing.assert_allclose(got, y, rtol=0, atol=2e-6)


def test_wrong_file_is_not_blamed_on_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file whose numbers are wrong is refused, and not written."""
    from edgernn.export import network

    completed = network._completed

    def damaged(program: Any) -> Any:
        proto, layers = completed(program)
        (bias,) = (tensor for tensor in proto.graph.initializer if tensor.name.endswith("cell.b"))
        bias.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(bias) + 0.01, bias.name))
        return proto, layers

    monkeypatch.setattr(network, "_completed", damaged)
    with pytest.raises(edgernn.EdgernnError, match=r"portable: y0 differs from torch in float64 by 0\.0"):
        to_onnx(Recurrent("gru", 3, 4), tmp_path / "net.onnx", torch.randn(5, 2, 3))
    assert not list(tmp_path.iterdir())


def test_session_keeps_states_and_names_wrong_inputs(streaming: tuple[Streaming, Path], tmp_path: Path) -> None:
    net, path = streaming
    x = torch.randn(3, 11, 3)
    with torch.no_grad():
        y, energy, last = net.eval()(x, net.start(3))
    for backend in ("portable", "native"):
        session = NetworkSession(path, backend=backend)  # type: ignore[arg-type]
        assert (session.backend, session.state_names) == (backend, tuple(STATES))
        whole = session.run(x)
        assert list(whole) == ["y", "energy"]
        np.testing.assert_allclose(whole["y"], y, rtol=0, atol=2e-6)
        parts = [session.step(x[:, :4]), session.step(x=x[:, 4:])]
        np.testing.assert_allclose(np.concatenate([p["energy"] for p in parts], 1), energy, rtol=0, atol=2e-6)
        for name, state in zip(STATES, last, strict=True):
            np.testing.assert_allclose(session.states[name], state, rtol=0, atol=2e-6)
        again = session.run(x[:, 4:], **dict(zip(STATES, net.start(3), strict=True)))
        session.reset()
        np.testing.assert_array_equal(session.step(x[:, 4:])["y"], again["y"])
    for wrong, message in (
        (session.run, "inputs: expected x, got none; pass each of them once"),
        (lambda: session.run(x, x), "inputs: expected x, got x, and 1 more"),
        (lambda: session.step(x / 0), "x: expected finite numbers, got NaN or infinity"),
        (lambda: session.run(x, z=x), "inputs: expected x, got the unknown z"),
        (lambda: session.run(x[0]), r"x: expected shape \(.*\), got \(11, 3\); reshape it"),
        (lambda: session.run([[1.0], [1.0, 2.0]]), "x: expected an array, got list"),
        (lambda: session.run(np.ma.masked_less(x.numpy(), 0)), "x: expected no masked entries, got a masked array"),
        (lambda: session.run(x.to_sparse()), "x: expected an array, got Tensor"),
        (lambda: NetworkSession(path, backend="cuda"), "backend: expected auto, native or portable, got 'cuda'"),  # type: ignore[arg-type]
        (lambda: NetworkSession(path, threads=0), "threads: expected at least 1, got 0"),
        (lambda: session.run(x.to(torch.complex64)), r"x: expected tensor\(float\), got complex64; convert it"),
        (lambda: session.run(x, conv=torch.zeros(2, 3, 4)), r"conv: expected axis0 = 3 as in the inputs before, got 2"),
        (lambda: session.step(x[:2]), r"conv: expected shape \(3, 3, 4\) as in the last step, got \(2, 3, 4\); call"),
    ):
        with pytest.raises(edgernn.UsageError, match=message):
            wrong()
    for change in (lambda axis: axis.Clear(), lambda axis: setattr(axis, "dim_value", 2**45)):
        damaged = onnx.load(path)
        change(damaged.graph.input[1].type.tensor_type.shape.dim[-1])
        onnx.save(damaged, tmp_path / "damaged.onnx")
        with pytest.raises(edgernn.EdgernnError, match=r"expected (axes with a name or a size|values of at most)"):
            NetworkSession(tmp_path / "damaged.onnx")
    with pytest.raises(edgernn.EdgernnError, match="network of one's own; open it with NetworkSession"):
        edgernn.runtime.Session(path)
    damaged = onnx.load(path)
    (entry,) = (entry for entry in damaged.metadata_props if entry.key == "edgernn")
    for part in ({"programs": {"gru": 5}}, {"programs": []}, {"kernels": "gru"}, {"sizes": {"axis0": [1, "2"]}}):
        entry.value = json.dumps({**session.info, **part})
        onnx.save(damaged, tmp_path / "damaged.onnx")
        with pytest.raises(edgernn.EdgernnError, match=r"expected a file that edgernn\.export\.to_onnx wrote of a n"):
            NetworkSession(tmp_path / "damaged.onnx")
    model = tmp_path / "model.onnx"
    to_onnx(edgernn.SequenceModel("gru", 2, 3), model)
    with pytest.raises(edgernn.EdgernnError, match=r"expected a file that edgernn\.export\.to_onnx wrote of a n"):
        NetworkSession(model)


class Counting(nn.Module):
    """Two states before the input, one of one axis, an output that looks like the input m, and the parameter itself."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(3, 4)
        self.scale = nn.Parameter(torch.rand(1, 1, 4))

    def forward(self, h: Tensor, c: Tensor, x: Tensor, m: Tensor, n: Tensor) -> tuple[Tensor, ...]:
        y, (h, c) = self.rnn(x, (h, c))
        return y * n, self.scale * m, self.scale, h, c, n + 1


# names that the graph has already
COUNTING = {"inputs": ["h", "c", "x", "getitem", "n"], "outputs": ["y", "z", "scale", "h.next", "c.next", "n.next"]}


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.float16])
def test_states_go_by_name_and_begin_in_their_type(tmp_path: Path, dtype: torch.dtype) -> None:
    # the example has one object for two inputs
    net, zero, path = Counting().eval(), torch.zeros(1, 1, 4), tmp_path / "net.onnx"
    start = torch.zeros(1, dtype=dtype)
    to_onnx(net, path, (zero, zero, torch.randn(1, 1, 3), torch.ones(1, 1, 4), start), **COUNTING)
    x, m = torch.randn(5, 1, 1, 3), torch.randn(5, 1, 1, 4)
    for backend in ("portable", "native"):
        session, states = NetworkSession(path, backend=backend), (zero, zero, start)  # type: ignore[arg-type]
        for i in range(5):
            with torch.no_grad():
                y, z, _, *states = net(*states[:2], x[i], m[i], states[2])  # type: ignore[assignment]
            results = session.step(x[i].numpy(), m[i].numpy())
            assert np.allclose(results["y"], y, atol=1e-5)
            assert np.allclose(results["z"], z, atol=1e-5)
        assert session.states["n"].dtype == start.numpy().dtype


@pytest.mark.parametrize("axes", [({0: "T"}, {0: "T"}), ({0: torch.export.Dim("T", min=10)},)])
def test_axes_that_do_not_fit_are_not_blamed_on_the_module(axes: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="dynamic_shapes: expected axes of the example"):
        to_onnx(Recurrent("gru", 3, 4), tmp_path / "net.onnx", torch.randn(5, 2, 3), dynamic_shapes=axes)


def test_a_packed_network_has_the_states_of_its_file(tmp_path: Path) -> None:
    class Chosen(Counting):
        def forward(self, h: Tensor, c: Tensor, x: Tensor, m: Tensor, n: Tensor) -> tuple[Tensor, ...]:
            y, z, _, *states = super().forward(h, c, x, m, n)
            return y, z, y.argmax(-1), *states

    net, zero, path = Chosen().eval(), torch.zeros(1, 1, 4), tmp_path / "net.onnx"
    example = (zero, zero, torch.randn(1, 1, 3), torch.ones(1, 1, 4), torch.zeros(1))
    to_onnx(net, path, example, dynamic_shapes=(None,) * 5, **COUNTING)
    with pytest.warns(EdgernnWarning, match="not packed: scale, as outputs are float32"):
        pack_file(path, tmp_path / "net.edgernn")
    stepper, states = Stepper((tmp_path / "net.edgernn").read_bytes(), 1), [zero, zero, torch.zeros(1)]
    for _ in range(5):
        x, m = torch.randn(1, 1, 3), torch.randn(1, 1, 4)
        with torch.no_grad():
            y, z, _, *states = net(*states[:2], x, m, states[2])
        stepper.x[0] = np.concatenate([x.ravel(), m.ravel()])
        assert stepper.step()
        assert np.allclose(stepper.y[0], torch.cat([y.ravel(), z.ravel()]), atol=1e-5)


class Padded(nn.Module):
    """A layer that reads lengths, in both directions."""

    def __init__(self, cell: str) -> None:
        super().__init__()
        self.rnn = Recurrent(cell, 3, 5, bidirectional=True, batch_first=True)

    def forward(self, x: Tensor, lengths: Tensor, *masks: Tensor) -> tuple[Tensor, Tensor]:
        return self.rnn(x * masks[0], lengths=lengths)


class LastOutputs(Padded):
    def forward(self, x: Tensor, lengths: Tensor, *masks: Tensor) -> tuple[Tensor, Tensor]:
        y, states = super().forward(x, lengths, *masks)
        return y, states[0]


@pytest.mark.parametrize("net", [Padded("gru"), LastOutputs("lstm"), LastOutputs("sarnn")])
def test_lengths_are_an_input_of_the_file(net: nn.Module, tmp_path: Path) -> None:
    torch.manual_seed(0)
    path = tmp_path / "net.onnx"
    net.eval()
    example = torch.randn(3, 7, 3), torch.tensor([7, 2, 4], dtype=torch.int32), torch.ones(3, 7, 1)
    to_onnx(net, path, example, inputs=["x", "lengths", "self"], outputs=["y", "h"])
    x, lengths, mask = torch.randn(4, 9, 3), torch.tensor([3, 9, 1, 8], dtype=torch.int32), torch.rand(4, 9, 1)
    with torch.no_grad():
        y, h = net(x, lengths, mask)
    for backend in ("portable", "native"):
        got = NetworkSession(path, backend=backend).run(x, lengths, **{"self": mask})  # type: ignore[arg-type]
        np.testing.assert_allclose(got["y"], y, rtol=0, atol=2e-6)
        np.testing.assert_allclose(got["h"], h, rtol=0, atol=2e-6)
    with pytest.raises(edgernn.UsageError, match="lengths: expected outputs that read y and the state h alone"):
        to_onnx(Padded("lstm"), tmp_path / "lstm.onnx", (x, lengths, mask))
    assert not (tmp_path / "lstm.onnx").exists()


def test_a_state_that_starts_elsewhere_than_at_zero_is_named(tmp_path: Path) -> None:
    class Skipping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = Recurrent("gru", 3, 4, rule="skip")

        def forward(self, x: Tensor, h: Tensor, pressure: Tensor) -> tuple[Tensor, ...]:
            y, state = self.rnn(x, (h, pressure))
            return y, *state

    net, path, x = Skipping().eval(), tmp_path / "net.onnx", torch.randn(5, 1, 3)
    names = ["h", "pressure"]
    start = net.rnn.initial_state(1, x)
    with pytest.warns(EdgernnWarning, match=r"state of rnn \(Recurrent\) is not zero.*initial_state"):
        to_onnx(net, path, (x, *start), inputs=["x", *names], outputs=["y", *(f"{name}.next" for name in names)])
    with torch.no_grad():
        expected = net(x, *start)[0].numpy()
    session, feeds = NetworkSession(path), {name: s.detach().numpy() for name, s in zip(names, start, strict=True)}
    assert np.allclose(session.run(x.numpy(), **feeds)["y"], expected, atol=1e-6)
    assert not np.allclose(session.run(x.numpy())["y"], expected, atol=1e-3)
