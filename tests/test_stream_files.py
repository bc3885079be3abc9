# SPDX-License-Identifier: Apache-2.0
"""States for ONNX files of other tools: chunks give the outputs of the whole sequence, in every way of cutting."""

import itertools
import json

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from edgernn.bench.step_graphs import bench_graph
from edgernn.cli.frame import main
from edgernn.errors import EdgernnError, UsageError
from edgernn.export.streaming.stream_file import stream_file, stream_model
from edgernn.runtime.open_model import open_session
from edgernn.runtime.timing import Rounds

T, B, I, H = 6, 2, 3, 4
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
FLOATS = TensorProto.FLOAT


def model(nodes, weights, inputs, outputs, opset=17):
    """Make a model; inputs and outputs are pairs of a name and its axes."""
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info(name, FLOATS, axes) for name, axes in inputs],
        [helper.make_tensor_value_info(name, FLOATS, axes) for name, axes in outputs],
        [numpy_helper.from_array(np.asarray(weight), name) for name, weight in weights.items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def weights_of(kind, seed=0, I=I, H=H):
    rng, rows = np.random.default_rng(seed), GATES[kind] * H
    shapes = {"W": (1, rows, I), "R": (1, rows, H), "B": (1, 2 * rows)}
    return {name: (0.5 * rng.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}


def layer(kind, *further, inputs=("X", "W", "R", "B"), **attributes):
    outputs = ["Y", "Y_h", "Y_c"][: 3 if kind == "LSTM" else 2]
    return helper.make_node(kind, [*inputs, *further], outputs, "rnn", hidden_size=H, **attributes)


def plain(kind, *further, weights=(), nodes=(), opset=17, **attributes):
    return model(
        [*nodes, layer(kind, *further, **attributes)],
        weights_of(kind) | dict(weights),
        [("X", ["T", "B", I])],
        [("Y", ["T", 1, "B", H]), ("Y_h", [1, "B", H])],
        opset,
    )


def noise(*shape, seed=3):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def run(proto, feeds):
    session = open_session("m.onnx", proto.SerializeToString(), None, 1)
    names = {value.name for value in session.get_inputs()}
    values = session.run(None, {name: array for name, array in feeds.items() if name in names})
    return dict(zip([o.name for o in session.get_outputs()], values, strict=True))


def cuts(count):
    """Return every way of cutting a sequence of so many units."""
    return [
        np.diff([0, *places, count]).tolist()
        for k in range(count)
        for places in itertools.combinations(range(1, count), k)
    ]


def in_chunks(streamed, x, name, axis, lengths, batch=B):
    """Run a streamed model on chunks of the input `name`; return the outputs of all calls, and the last states."""
    states = {
        s.input: np.zeros([a if isinstance(a, int) else batch for a in s.axes], np.float32) for s in streamed.states
    }
    results, start = [], 0
    for length in lengths:
        part = x.take(range(start, start + length), axis)
        results.append(run(streamed.proto, {name: part, **states}))
        states = {s.input: results[-1][s.output] for s in streamed.states}
        start += length
    return results, states


def check_every_cut(proto, x, output="Y", axis=0, unit=1, along=None, **options):
    """Check a streamed model against the original in every way of cutting x along an axis."""
    streamed = stream_model(proto, "m.onnx", **options)
    assert streamed.unit == unit
    name = proto.graph.input[0].name
    expected = run(proto, {name: x})[output]
    for lengths in cuts(x.shape[axis] // unit):
        results, _ = in_chunks(streamed, x, name, axis, [n * unit for n in lengths])
        got = np.concatenate([r[output] for r in results], axis if along is None else along)
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)
    return streamed


ZEROS = [
    helper.make_node("Shape", ["X"], ["batch"], start=1, end=2),
    helper.make_node("Concat", ["one", "batch", "width"], ["shape"], axis=0),
    helper.make_node("ConstantOfShape", ["shape"], ["zeros"]),
]
ENDS = {"one": np.array([1]), "width": np.array([H])}
CASES = {
    "gru": ("GRU", (), {"linear_before_reset": 1}),
    "gru, reset before": ("GRU", (), {}),
    "lstm": ("LSTM", (), {}),
    "rnn": ("RNN", (), {}),
    "zeros of the batch's size": ("GRU", ("", "zeros"), {"nodes": ZEROS, "weights": ENDS}),
    "a trained start": (
        "LSTM",
        ("", "start"),
        {
            "nodes": [*ZEROS[:2], helper.make_node("Expand", ["h0", "shape"], ["start"])],
            "weights": ENDS | {"h0": noise(1, 1, H, seed=5)},
        },
    ),
    "peepholes": ("LSTM", ("", "", "", "P"), {"weights": {"P": noise(1, 3 * H, seed=6)}}),
    "clip and activations": ("GRU", (), {"clip": 0.5, "activations": ["HardSigmoid", "Relu"]}),
    "coupled gates": ("LSTM", (), {"input_forget": 1}),
    "old operators": ("LSTM", (), {"opset": 11}),
}


@pytest.mark.parametrize("case", CASES)
def test_chunks_of_a_recurrent_operator_equal_the_whole(case):
    kind, further, options = CASES[case]
    streamed = check_every_cut(plain(kind, *further, **options), noise(T, B, I))
    assert [state.input for state in streamed.states] == [f"rnn.{s}" for s in "hc"[: 1 + (kind == "LSTM")]]
    assert all(state.output == f"{state.input}.next" and state.axes == (1, "B", H) for state in streamed.states)
    onnx.checker.check_model(streamed.proto, full_check=True)


def test_lengths_of_a_chunk_are_an_input():
    proto = plain("GRU", "lengths", linear_before_reset=1)
    proto.graph.input.append(helper.make_tensor_value_info("lengths", TensorProto.INT32, ["B"]))
    streamed, x = stream_model(proto, "m.onnx"), noise(T, B, I)
    whole = run(proto, {"X": x, "lengths": np.array([5, 2], np.int32)})
    h = np.zeros((1, B, H), np.float32)
    parts = []
    for part, lengths in ((x[:3], [3, 2]), (x[3:], [2, 0])):
        result = run(streamed.proto, {"X": part, "lengths": np.array(lengths, np.int32), "rnn.h": h})
        parts.append(result["Y"])
        # ONNX Runtime answers 0 for a sequence of length 0, and not its state
        h = np.where(np.array(lengths)[:, None] > 0, result["rnn.h.next"], h)
    np.testing.assert_allclose(np.concatenate(parts), whole["Y"], rtol=0, atol=1e-6)
    np.testing.assert_allclose(h, whole["Y_h"], rtol=0, atol=1e-6)


def conv(weight, pads, before=(), after=(), name="conv", out=None, **attributes):
    """Make a model of a convolution over T of x (B, 3, T), between further nodes."""
    source = before[-1].output[0] if before else "x"
    first = helper.make_node("Conv", [source, "w"], ["c"], name, pads=pads, **attributes)
    consts = {"w": weight, "zero": np.array([0]), "axis": np.array([2])} | dict(out or {})
    last = after[-1].output[0] if after else "c"
    return model([*before, first, *after], consts, [("x", ["B", 3, "T"])], [(last, ["B", weight.shape[0], "T2"])])


def pad(*pads, mode="constant"):
    return helper.make_node("Pad", ["x", "pads"], ["padded"], mode=mode), {"pads": np.array(pads)}


W3 = noise(4, 3, 3, seed=8)
LEFT, LEFT_PADS = pad(0, 0, 4, 0, 0, 0)
CHOMP = helper.make_node("Slice", ["c", "zero", "end", "axis"], ["y"])
CONVS = {
    "pads": (conv(W3, [2, 0]), 1, (B, 3, 2)),
    "a Pad before it": (conv(W3, [0, 0], [LEFT], out=LEFT_PADS, dilations=[2]), 1, (B, 3, 4)),
    "outputs cut off": (conv(W3, [2, 2], after=[CHOMP], out={"end": np.array([-2])}), 1, (B, 3, 2)),
    "groups": (conv(noise(3, 1, 4, seed=9), [3, 0], group=3), 1, (B, 3, 3)),
    "a stride": (conv(W3, [1, 0], strides=[2]), 2, (B, 3, 1)),
    "a stride of its width": (conv(W3, [0, 0], strides=[3]), 3, None),
}


@pytest.mark.parametrize("case", CONVS)
def test_chunks_of_a_causal_convolution_equal_the_whole(case):
    proto, unit, shape = CONVS[case]
    x = noise(B, 3, 4 * unit)
    output = proto.graph.output[0].name
    if shape is None:
        # nothing is kept, so that the file streams as it is
        with pytest.raises(UsageError, match="expected a recurrent operator or a causal convolution"):
            stream_model(proto, "m.onnx")
        return
    streamed = check_every_cut(proto, x, output, axis=2, unit=unit)
    (state,) = streamed.states
    assert state.axes == ("B", *shape[1:])


def test_convolutions_in_two_dimensions_keep_the_other_padding():
    """Time is the first of two axes; the other one is padded on both sides."""
    before = helper.make_node("Pad", ["x", "pads"], ["padded"])
    nodes = [before, helper.make_node("Conv", ["padded", "w"], ["y"], "conv2d")]
    weights = {"w": noise(2, 1, 3, 3, seed=8), "pads": np.array([0, 0, 2, 1, 0, 0, 0, 1])}
    proto = model(nodes, weights, [("x", ["B", 1, "T", 5])], [("y", ["B", 2, "T", 5])])
    streamed = check_every_cut(proto, noise(B, 1, T, 5), "y", axis=2)
    assert [state.axes for state in streamed.states] == [("B", 1, 2, 7)]


def test_states_follow_strides_and_a_batch_of_two_axes():
    """A GRU runs over every sixth step, for each of B sequences and N channels."""
    strided = [
        helper.make_node("Reshape", ["x", "rows"], ["steps"]),
        helper.make_node("Transpose", ["steps"], ["flat"], perm=[1, 2, 0]),
        helper.make_node("Conv", ["flat", "w"], ["y"], "conv1", pads=[2, 0], strides=[2]),
        helper.make_node("Conv", ["y", "v"], ["z"], "conv2", pads=[3, 0], strides=[3]),
        helper.make_node("Transpose", ["z"], ["X"], perm=[2, 0, 1]),
    ]
    weights = weights_of("GRU") | {"w": noise(I, I, 3), "v": noise(I, I, 4), "rows": np.array([0, -1, I])}
    proto = model([*strided, layer("GRU")], weights, [("x", ["T", "B", "N", I])], [("Y", ["S", 1, "M", H])])
    streamed = stream_model(proto, "m.onnx")
    assert streamed.unit == 6
    assert [state.axes for state in streamed.states] == [(1, "B*N", H), ("B*N", I, 2), ("B*N", I, 3)]


class Network(torch.nn.Module):
    """Convolution, two GRUs and a linear map."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv1d(3, 8, 3, padding=2)
        self.rnn = torch.nn.GRU(8, 5, num_layers=2, batch_first=True)
        self.head = torch.nn.Linear(5, 2)

    def forward(self, x):
        y = torch.relu(self.conv(x.transpose(1, 2))[..., :-2])
        return self.head(self.rnn(y.transpose(1, 2))[0])


def exported(module, arguments, path, inputs, axes, **options):
    torch.manual_seed(0)
    torch.onnx.export(
        module.eval(), arguments, path, input_names=inputs, dynamic_axes=axes, dynamo=False, opset_version=17, **options
    )
    return onnx.load(path)


@pytest.mark.filterwarnings("ignore")
def test_a_network_of_torch_streams(tmp_path, capsys):
    axes = {"x": {0: "batch", 1: "time"}, "y": {0: "batch", 1: "time"}}
    path = tmp_path / "net.onnx"
    proto = exported(Network(), (torch.randn(2, 5, 3),), path, ["x"], axes, output_names=["y"])
    streamed = check_every_cut(proto, noise(B, T, 3), "y", axis=1)
    assert streamed.time == "time"
    assert [s.axes for s in streamed.states] == [(1, "batch", 5), (1, "batch", 5), ("batch", 3, 2)]
    assert main(["stream", str(path)]) == 0
    text = capsys.readouterr().out
    assert "the length time of a call is any number" in text
    assert "input x (batch, time, 3)" in text
    assert "zeros at first, then the output" in text
    assert (tmp_path / "net-stream.onnx").exists()
    assert main(["stream", str(path), str(tmp_path / "out.onnx"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["error"] <= 1e-6
    assert result["change"] <= 1e-6


class Cell(torch.nn.Module):
    """A step of a cell that torch exports as single operators, with its states packed in one."""

    def __init__(self, cell):
        super().__init__()
        self.cell, self.is_lstm = cell(3, 4), cell is torch.nn.LSTMCell

    def forward(self, x, state):
        if not self.is_lstm:
            h = self.cell(x, state[0])
            return h * 2, h[None]
        h, c = self.cell(x, (state[0], state[1]))
        return h * 2, torch.stack((h, c))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("cell", [torch.nn.LSTMCell, torch.nn.GRUCell])
def test_a_step_of_single_operators_becomes_one(cell, tmp_path):
    count = 1 + (cell is torch.nn.LSTMCell)
    arguments = torch.randn(2, 3), torch.randn(count, 2, 4)
    axes = {"x": {0: "B"}, "state": {1: "B"}, "y": {0: "B"}, "state.next": {1: "B"}}
    names = {"output_names": ["y", "state.next"]}
    proto = exported(Cell(cell), arguments, tmp_path / "m.onnx", ["x", "state"], axes, **names)
    streamed = stream_model(proto, "m.onnx")
    kind = cell.__name__.removesuffix("Cell")
    assert streamed.fused == [f"{kind.lower()}0"]
    assert [node.op_type for node in streamed.proto.graph.node].count(kind) == 1
    assert [(s.input, s.output) for s in streamed.states] == [("state", "state.next")]
    feeds = {"x": noise(B, 3), "state": noise(count, B, 4, seed=4)}
    for name, expected in run(proto, feeds).items():
        np.testing.assert_allclose(run(streamed.proto, feeds)[name], expected, rtol=0, atol=1e-6)


def test_one_number_is_the_bias_of_a_gate():
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["products"]),
        helper.make_node("MatMul", ["h", "R"], ["recurrent"]),
        helper.make_node("Add", ["products", "recurrent"], ["sums"]),
        helper.make_node("Split", ["sums"], ["i", "g", "f", "o"], axis=1),
        helper.make_node("Add", ["f", "one"], ["kept"]),
        *(helper.make_node("Sigmoid", [name], [f"{name}.gate"]) for name in ("i", "kept", "o")),
        helper.make_node("Tanh", ["g"], ["new"]),
        helper.make_node("Mul", ["kept.gate", "c"], ["old"]),
        helper.make_node("Mul", ["i.gate", "new"], ["added"]),
        helper.make_node("Add", ["old", "added"], ["c.next"]),
        helper.make_node("Tanh", ["c.next"], ["squashed"]),
        helper.make_node("Mul", ["o.gate", "squashed"], ["h.next"]),
    ]
    weights = {"W": noise(I, 4 * H), "R": noise(H, 4 * H), "one": np.float32(1)}
    axes = {name: ["B", H] for name in ("h", "c")}
    proto = model(nodes, weights, [("x", ["B", I]), *axes.items()], [(f"{s}.next", a) for s, a in axes.items()], 13)
    streamed = stream_model(proto, "m.onnx")
    assert streamed.fused == ["lstm0"]
    assert streamed.change <= 1e-6


def branching(known):
    """Make a file with a GRU in each branch of an If, whose condition compares the input `rate` with a number."""
    branches = {}
    for i, name in enumerate(("then_branch", "else_branch")):
        weights = [numpy_helper.from_array(w, f"{k}{i}") for k, w in weights_of("GRU", seed=i).items()]
        node = helper.make_node("GRU", ["X", f"W{i}", f"R{i}", f"B{i}"], [f"Y{i}"], f"gru{i}", hidden_size=H)
        value = helper.make_tensor_value_info(f"Y{i}", FLOATS, None)
        branches[name] = helper.make_graph([node], name, [], [value], weights)
    nodes = [
        helper.make_node("Equal", ["rate", "known"], ["is"]),
        helper.make_node("If", ["is"], ["Y"], "choice", **branches),
    ]
    proto = model(nodes, {"known": np.array(known)}, [("X", ["T", "B", I])], [("Y", ["T", 1, "B", H])])
    proto.graph.input.append(helper.make_tensor_value_info("rate", TensorProto.INT64, []))
    return proto


def test_an_if_on_a_fixed_input_becomes_its_branch():
    proto = branching(16000)
    with pytest.raises(UsageError, match="If choice: expected GRU in the graph itself, got one in the body"):
        stream_model(proto, "m.onnx")
    for rate in (0.5, np.nan, 2.0**80):
        with pytest.raises(UsageError, match="input rate: expected a number of the type int64, got"):
            stream_model(proto, "m.onnx", values={"rate": np.array(rate)})
    x = noise(T, B, I)
    for rate in (16000, 8000):
        streamed = stream_model(proto, "m.onnx", values={"rate": np.array(rate)})
        assert [value.name for value in streamed.proto.graph.input if value.name != streamed.states[0].input] == ["X"]
        results, _ = in_chunks(streamed, x, "X", 0, [2, 4])
        expected = run(proto, {"X": x, "rate": np.array(rate)})["Y"]
        np.testing.assert_allclose(np.concatenate([r["Y"] for r in results]), expected, rtol=0, atol=1e-6)


def quantised():
    """Make a model with a DynamicQuantizeLSTM, and one with an LSTM of its weights."""
    weights, parts = weights_of("LSTM"), {}
    for name in "WR":
        columns = weights[name].transpose(0, 2, 1)
        scale = np.abs(columns).max() / 127
        parts |= {name: np.rint(columns / scale).astype(np.int8)}
        parts |= {f"{name}s": np.array([scale], np.float32), f"{name}z": np.array([0], np.int8)}
        weights[name] = (parts[name] * scale).transpose(0, 2, 1).astype(np.float32)
    inputs = ["X", "W", "R", "B", "", "", "", "", "Ws", "Wz", "Rs", "Rz"]
    node = helper.make_node(
        "DynamicQuantizeLSTM", inputs, ["Y"], "rnn", domain="com.microsoft", hidden_size=H, direction="forward"
    )
    ends = [("X", ["T", "B", I])], [("Y", ["T", 1, "B", H])]
    return model([node], parts | {"B": weights["B"]}, *ends), model([layer("LSTM")], weights, *ends)


def test_a_quantised_lstm_becomes_one_with_integer_weights():
    proto, floats = quantised()
    streamed, x = stream_model(proto, "m.onnx"), noise(T, B, I)
    assert streamed.quantised == ["rnn"]
    assert 0 < streamed.change < 0.1
    assert {t.data_type for t in streamed.proto.graph.initializer if len(t.dims) == 3} == {TensorProto.INT8}
    results, _ = in_chunks(streamed, x, "X", 0, [1, 3, 2])
    got = np.concatenate([r["Y"] for r in results])
    np.testing.assert_allclose(got, run(floats, {"X": x})["Y"], rtol=0, atol=1e-6)


def test_an_axis_becomes_variable_by_its_name():
    proto = plain("GRU")
    for values in (proto.graph.input, proto.graph.output):
        for value in values:
            for dim in value.type.tensor_type.shape.dim:
                dim.dim_value = {"T": 3, "B": B}.get(dim.dim_param, dim.dim_value)
    with pytest.raises(UsageError, match=r"rnn: runs over an axis of 3 within a call.*--shape X=B,T,40"):
        stream_model(proto, "m.onnx")
    loose, x = plain("GRU"), noise(T, B, I)
    streamed = stream_model(proto, "m.onnx", shapes={"X": ["T", B, I]})
    results, _ = in_chunks(streamed, x, "X", 0, [1, 5])
    got = np.concatenate([r["Y"] for r in results])
    np.testing.assert_allclose(got, run(loose, {"X": x})["Y"], rtol=0, atol=1e-6)


def mean(name):
    nodes = [layer("GRU"), helper.make_node("ReduceMean", ["Y"], ["m"], name, axes=[0], keepdims=1)]
    nodes.append(helper.make_node("Sub", ["Y", "m"], ["y"], "minus"))
    return model(nodes, weights_of("GRU"), [("X", ["T", "B", I])], [("y", ["T", 1, "B", H])])


def from_input(*outputs):
    nodes = [layer("GRU", "", "h0"), *(helper.make_node("Identity", ["Y_h"], [name]) for name in outputs)]
    values = [("Y", ["T", 1, "B", H]), *((name, [1, "B", H]) for name in outputs)]
    return model(nodes, weights_of("GRU"), [("X", ["T", "B", I]), ("h0", [1, "B", H])], values)


def computed():
    nodes = [
        helper.make_node("Slice", ["X", "zero", "one", "zero"], ["first"]),
        helper.make_node("MatMul", ["first", "V"], ["product"]),
        helper.make_node("Tanh", ["product"], ["start"]),
        layer("GRU", "", "start"),
    ]
    weights = weights_of("GRU") | {"V": noise(I, H), "zero": np.array([0]), "one": np.array([1])}
    return model(nodes, weights, [("X", ["T", "B", I])], [("Y", ["T", 1, "B", H])])


def contradictory():
    proto = plain("GRU")
    proto.graph.value_info.append(helper.make_tensor_value_info("W", TensorProto.FLOAT, [1, 3 * H, I + 1]))
    return proto


def listed():
    proto = plain("GRU")
    proto.graph.node.append(helper.make_node("SplitToSequence", ["Y"], ["list"], axis=0))
    proto.graph.output.append(helper.make_tensor_sequence_value_info("list", TensorProto.FLOAT, None))
    return proto


REVERSE = weights_of("GRU")
BOTH = {name: np.concatenate([w, w]) for name, w in REVERSE.items()}
REFLECT, REFLECT_PADS = pad(0, 0, 2, 0, 0, 0, mode="reflect")
REFUSED = {
    "reverse": (plain("GRU", direction="reverse"), "m.onnx: rnn: expected the direction forward, got reverse"),
    "both directions": (
        model([layer("GRU", direction="bidirectional")], BOTH, [("X", ["T", "B", I])], [("Y", ["T", 2, "B", H])]),
        "rnn: expected the direction forward, got bidirectional",
    ),
    "lengths of the whole": (
        plain("GRU", "n", weights={"n": np.array([3, 3, 3], np.int32)}),
        "rnn: sequence_lens: expected an input of the graph, or none, got constant lengths",
    ),
    "acausal": (
        conv(W3, [1, 1]),
        "conv: expected a causal convolution, with 2 zeros before the first step and none after the last, got 1 before "
        "and 1 after",
    ),
    "no padding": (conv(W3, [0, 0]), "conv: expected a causal convolution"),
    "reflected": (conv(W3, [0, 0], [REFLECT], out=REFLECT_PADS), "conv: expected a causal convolution"),
    "mean over time": (mean("average"), "ReduceMean average is the first node that reads other steps"),
    "mean over time of a convolution": (
        conv(W3, [2, 0], after=[helper.make_node("ReduceMean", ["c"], ["y"], "average", axes=[2])]),
        "ReduceMean average is the first node that reads other steps",
    ),
    "noise": (
        conv(W3, [2, 0], [helper.make_node("RandomNormalLike", ["x"], ["noise"], "noise")]),
        "RandomNormalLike noise is the first node that reads other steps",
    ),
    "state that does not come back": (
        from_input(),
        "rnn: state h: expected its last value as an output of the graph, as its first one comes from the input h0",
    ),
    "computed start": (computed(), "rnn: state h: expected an initial state that is an input or a constant"),
    "weights that are no numbers": (
        conv(np.full_like(W3, np.nan), [2, 0]),
        "expected finite numbers for the inputs of the check, got none",
    ),
    "no inputs": (
        model([helper.make_node("GRU", [], ["Y"], "rnn")], {}, [("X", ["T", "B", I])], [("Y", ["T", 1, "B", H])]),
        "expected a valid ONNX file, got one with an error",
    ),
    "shapes that contradict": (contradictory(), "m.onnx: rnn: expected shapes that fit, got: "),
    "weights of another input": (
        plain("GRU", weights={"W": noise(1, 3 * H, I + 1)}),
        "m.onnx: does not run in ONNX Runtime with X (",
    ),
    "an input that is a constant": (
        plain("GRU", weights={"X": noise(2, 1, I)}),
        "m.onnx: expected an input, got a graph of constants alone; export the model with its input x",
    ),
    "a list of tensors": (
        listed(),
        "m.onnx: list: expected a tensor, got a sequence; export the model with tensors as inputs and outputs",
    ),
    "nothing to stream": (
        model([helper.make_node("Relu", ["x"], ["y"])], {}, [("x", ["T", 3])], [("y", ["T", 3])]),
        "expected a recurrent operator or a causal convolution over an axis of variable length, got none",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_stream_is_named(case, tmp_path):
    proto, message = REFUSED[case]
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(EdgernnError) as error:
        stream_file(tmp_path / "m.onnx")
    assert message in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_states_of_a_file_stay_as_they_are():
    streamed = stream_model(from_input("h_out"), "m.onnx")
    assert [(s.input, s.output) for s in streamed.states] == [("h0", "h_out")]
    with pytest.raises(UsageError, match="state h0=y: expected an input and an output of the graph"):
        stream_model(from_input("h_out"), "m.onnx", pairs={"h0": "y"})


def test_layers_run_over_a_multiple_of_time():
    """Each step of the input holds two steps of the layer, and of a convolution."""
    nodes = [
        helper.make_node("Reshape", ["x", "rows"], ["steps"]),
        helper.make_node("Transpose", ["steps"], ["columns"], perm=[1, 2, 0]),
        helper.make_node("Conv", ["columns", "w"], ["c"], "conv", pads=[2, 0]),
        helper.make_node("Transpose", ["c"], ["X"], perm=[2, 0, 1]),
        layer("GRU"),
    ]
    weights = weights_of("GRU") | {"w": noise(I, I, 3), "rows": np.array([-1, B, I])}
    proto = model(nodes, weights, [("x", ["T", 2, B, I])], [("Y", ["S", 1, B, H])])
    streamed = check_every_cut(proto, noise(T, 2, B, I))
    assert [state.input for state in streamed.states] == ["rnn.h", "conv.x"]


def test_states_of_one_layer_are_a_pair_whatever_their_order():
    second = helper.make_node("GRU", ["y", "V", "R", "B", "", "s2"], ["Z", "v"], "second", hidden_size=H)
    nodes = [layer("GRU", "", "s1"), helper.make_node("Squeeze", ["Y", "one"], ["y"]), second]
    weights = weights_of("GRU") | {"V": noise(1, 3 * H, H), "one": np.array([1])}
    state = [1, 1, H]
    inputs, outputs = [("X", [1, 1, I]), ("s1", state), ("s2", state)], [("v", state), ("Y_h", state)]
    streamed = stream_model(model(nodes, weights, inputs, outputs), "m.onnx")
    assert [(s.input, s.output) for s in streamed.states] == [("s1", "Y_h"), ("s2", "v")]


def test_a_mask_of_each_step_is_no_state():
    mask = helper.make_node("Mul", ["x", "m"], ["X"])
    inputs = [("x", ["T", "B", I]), ("m", ["T", "B", 1])]
    proto = model(
        [mask, layer("GRU"), helper.make_node("ReduceMax", ["Y"], ["y"], axes=[1], keepdims=0)],
        weights_of("GRU"),
        inputs,
        [("y", ["T", "B", None])],
    )
    assert [state.input for state in stream_model(proto, "m.onnx").states] == ["rnn.h"]


def test_states_have_the_type_of_the_layer():
    proto = model([layer("GRU")], {}, [("X", ["T", "B", I])], [("Y", ["T", 1, "B", H])])
    proto.graph.initializer.extend(
        numpy_helper.from_array(w.astype(np.float16), name) for name, w in weights_of("GRU").items()
    )
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    streamed = stream_model(proto, "m.onnx")
    assert [v.type.tensor_type.elem_type for v in streamed.proto.graph.input] == [TensorProto.FLOAT16] * 2


def test_a_convolution_that_reads_zeros_in_each_call_is_named():
    turned = helper.make_node("Transpose", ["c"], ["X"], perm=[2, 0, 1])
    proto = conv(noise(I, 3, 3), [2, 0], after=[turned, layer("GRU")], out=weights_of("GRU"))
    frame = {"shapes": {"x": [1, 3, 1]}}
    (reason,) = stream_model(proto, "m.onnx", **frame).left
    assert reason.startswith("conv: reads zeros before the one step of a call, so it has no state")
    assert stream_model(proto, "m.onnx").left == []


def test_layers_over_another_axis_have_no_state():
    """A GRU runs over the 5 bands of each step, in both directions, and another one over the steps."""
    nodes = [
        # x (B, T, 5, I) → (5, B T, I) for the bands
        helper.make_node("Reshape", ["x", "rows"], ["flat"]),
        helper.make_node("Transpose", ["flat"], ["bands"], perm=[1, 0, 2]),
        helper.make_node(
            "GRU", ["bands", "W2", "R2", "B2"], ["", "last"], "over_bands", hidden_size=H, direction="bidirectional"
        ),
        helper.make_node("Shape", ["x"], ["batch"], start=0, end=2),
        helper.make_node("Concat", ["batch", "width"], ["shape"], axis=0),
        helper.make_node("Transpose", ["last"], ["ends"], perm=[1, 0, 2]),
        helper.make_node("Reshape", ["ends", "shape"], ["features"]),
        helper.make_node("Transpose", ["features"], ["X"], perm=[1, 0, 2]),
        layer("GRU", inputs=("X", "W", "R", "B")),
    ]
    weights = weights_of("GRU", I=2 * H) | {f"{name}2": w for name, w in BOTH.items()}
    weights |= {"rows": np.array([-1, 5, I]), "width": np.array([2 * H])}
    proto = model(nodes, weights, [("x", ["B", "T", 5, I])], [("Y", ["T", 1, "B", H])])
    streamed = check_every_cut(proto, noise(B, T, 5, I), axis=1, along=0)
    assert [state.input for state in streamed.states] == ["rnn.h"]
    assert streamed.left == ["over_bands: runs over an axis of 5 within a call, so it has no state"]


def test_large_weights_are_judged_by_their_rounding():
    """Recurrent weights of 8 amplify the rounding of sums, in the original file as well."""
    weights = {name: 8 * w for name, w in weights_of("LSTM", H=H).items()}
    streamed = stream_model(
        model([layer("LSTM")], weights, [("X", ["T", "B", I])], [("Y", ["T", 1, "B", H])]), "m.onnx"
    )
    assert streamed.error < 1e-3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--shape", "X=3"], "input X: expected a shape of 3 axes, got 1"),
        (["--shape", "X=T,0,3"], "--shape: expected NAME=LENGTH,LENGTH, such as x=1,T,40, got X=T,0,3"),
        (["--shape", "Z=1"], "unknown input 'Z'"),
        (["--value", "X=a"], "--value: expected NAME=NUMBER, such as sr=16000, got X=a"),
        (["--value", "X=1", "--value", "X=2"], "--value: expected X once, got X=2, too; leave one out"),
        (["--state", "X"], "--state: expected INPUT=OUTPUT, got X"),
    ],
)
def test_wrong_options_are_refused(words, message, tmp_path, capsys):
    path = tmp_path / "m.onnx"
    path.write_bytes(plain("GRU").SerializeToString())
    assert main(["stream", str(path), *words]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "m-stream.onnx").exists()


def test_inputs_of_the_user_replace_random_ones(tmp_path, capsys):
    path, npz = tmp_path / "m.onnx", tmp_path / "x.npz"
    path.write_bytes(plain("GRU").SerializeToString())
    # float64 numbers, of a batch and a length of their own
    np.savez(npz, X=noise(7, 3, I).astype(float))
    assert main(["stream", str(path), "--data", str(npz)]) == 0
    assert "chunks against the whole sequence: worst difference" in capsys.readouterr().out
    for arrays, message in (
        ({"Z": noise(7, 3, I)}, "data: expected an array for each input that is no state, X, got Z; add X"),
        ({"X": noise(7, I)}, "data: X: expected 3 axes, and perhaps one of calls before them, got the shape (7, 3)"),
    ):
        np.savez(npz, **arrays)
        assert main(["stream", str(path), "--data", str(npz)]) == 1
        assert message in capsys.readouterr().err


def test_a_wrong_length_of_an_output_is_mended():
    proto = plain("GRU")
    proto.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 7
    streamed = stream_model(proto, "m.onnx")
    assert streamed.proto.graph.output[0].type.tensor_type.shape.dim[0].dim_param == "T"


def test_a_length_of_the_user_is_cut_to_the_strides():
    proto = conv(W3, [1, 0], strides=[2])
    streamed = stream_model(proto, "m.onnx", example={"x": noise(B, 3, 9)})
    assert streamed.unit == 2
    assert streamed.error <= 1e-6
    with pytest.raises(EdgernnError, match="data: expected a length T of at least 4, got 3; give more"):
        stream_model(proto, "m.onnx", example={"x": noise(B, 3, 3)})


def test_steps_of_the_user_are_calls_of_a_file_of_one_step():
    steps = from_input("h_out")
    steps.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    streamed = stream_model(steps, "m.onnx", example={"X": noise(9, 1, B, I)})
    assert streamed.time is None
    assert streamed.change <= 1e-6


@pytest.mark.parametrize("axis", [0, 1])
def test_an_input_with_an_empty_axis_is_refused(axis, tmp_path):
    axes = ["T", "B", I]
    axes[axis] = 0
    proto = model([layer("GRU")], weights_of("GRU"), [("X", axes)], [("Y", [None, 1, None, H])])
    onnx.save(proto, tmp_path / "m.onnx")
    with pytest.raises(EdgernnError, match=r"expected axes of at least 1, got \[.*0.*\]; correct it with --shape"):
        stream_file(tmp_path / "m.onnx")


def test_a_nan_weight_is_named_and_an_output_that_is_an_input_is_timed(tmp_path):
    def save(path, fill):
        rng = np.random.default_rng(0)
        weights = {name: rng.normal(0, 0.3, (1, 12, size)).astype(np.float32) for name, size in (("W", 3), ("R", 4))}
        weights["W"][0, 0, 0] = fill
        shapes = {"x": [1, 1, 3], "h": [1, 1, 4], "y": [1, 1, 1, 4], "h.next": [1, 1, 4]}
        values = {n: onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s) for n, s in shapes.items()}
        graph = onnx.helper.make_graph(
            [onnx.helper.make_node("GRU", ["x", "W", "R", "", "", "h"], ["y", "h.next"], hidden_size=4)],
            "step",
            [values["x"], values["h"]],
            [values["y"], values["h.next"], values["x"]],
            [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()],
        )
        opset = [onnx.helper.make_opsetid("", 17)]
        onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=8), path)

    path = tmp_path / "step.onnx"
    save(path, 0.5)
    assert bench_graph(path, Rounds(rounds=1, block_ms=1))["error"] < 1e-5
    save(path, np.nan)
    with pytest.raises(EdgernnError, match="expected finite outputs of ONNX Runtime, got others; check weights"):
        bench_graph(path)
    with pytest.raises(EdgernnError, match=r"y: expected finite numbers for the inputs of the check, .* check the we"):
        stream_file(path, tmp_path / "out.onnx")
