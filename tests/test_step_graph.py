# SPDX-License-Identifier: Apache-2.0
"""Step graphs of ONNX files: each operator against ONNX Runtime, states, memory, and refusals."""

import json
import re
import struct
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgernn.cli.frame import main
from edgernn.errors import EdgernnError, UsageError
from edgernn.runtime import Session
from edgernn.runtime.graph_options import GraphOptions
from edgernn.runtime.graph_queries import constant_of
from edgernn.runtime.library import onnxruntime
from edgernn.runtime.packed import pack_file
from edgernn.runtime.step_graph import operators
from edgernn.runtime.step_graph.content import encode
from edgernn.runtime.step_graph.plan import plan
from edgernn.runtime.stepper import Stepper
from edgernn.weight_types import WEIGHT_TYPES
from tests.models import exported
from tests.step_graph_oracle import Oracle

RNG = np.random.default_rng(5)


def normal(*shape):
    return (0.5 * RNG.standard_normal(shape)).astype(np.float32)


class Net:
    """A small ONNX graph: `net(op, *inputs, **attributes)` adds a node; arrays become initialisers."""

    def __init__(self, opset=17, **shapes):
        self.opset = opset
        self.inputs, self.nodes, self.tensors, self.outputs, self.states = shapes, [], [], [], {}
        self.count = 0

    def __call__(self, op, *inputs, outputs=1, **attributes):
        names = [self.name(value) for value in inputs]
        results = [f"{op}{self.count}.{k}" for k in range(outputs)]
        self.count += 1
        self.nodes.append(helper.make_node(op, names, results, results[0], **attributes))
        return results[0] if outputs == 1 else results

    def choose(self, condition, *builds):
        """Add an If node; two functions add the nodes of its branches and return the names of their results."""
        bodies, outer = [], self.nodes
        for build in builds:
            self.nodes = []
            results = [self("Identity", value) for value in build()]
            infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in results]
            bodies.append(helper.make_graph(self.nodes, "branch", [], infos))
        self.nodes = outer
        return self("If", condition, outputs=len(results), then_branch=bodies[0], else_branch=bodies[1])

    def every(self, period, start=0.0):
        """Return the condition that is true at each step of a multiple of `period`, and the state that counts."""
        count = f"count{self.count}"
        self.inputs[count] = [1, 1]
        later = self("Add", count, np.float32(1))
        after = self("Where", self("Less", later, np.float32(period)), later, np.zeros((1, 1), np.float32))
        return self("Less", count, np.float32(start + 0.5)), {count: after}

    def name(self, value):
        if isinstance(value, str):
            return value
        name = f"w{len(self.tensors)}"
        self.tensors.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def model(self, *outputs, **states):
        """Return the model; `states` maps inputs to outputs with their next values."""
        self.states = states
        values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in self.inputs.items()]
        shapes = {output: self.inputs[name] for name, output in states.items()}
        names = *outputs, *states.values()
        results = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shapes.get(n)) for n in names]
        graph = helper.make_graph(self.nodes, "net", values, results, self.tensors)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=9)
        return model


def packed(model, states):
    return encode(plan(model, Path("net.onnx"), states))


def native(content):
    """Return the step of a packed graph in the native library, whose other stream reads zeros."""
    stepper = Stepper(content, 2)

    def step(x):
        stepper.x[...] = 0
        stepper.x[1] = x
        assert stepper.step(), stepper.refusal()
        return stepper.y[1]

    return step


def assert_equals_runtime(net, *outputs, steps=3, tolerance=1e-5, in_float64=True, **states):
    """Compare a plan, in NumPy and in the native library, with ONNX Runtime over a few steps; return its content."""
    model = net.model(*outputs, **states)
    session = onnxruntime().InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    content = packed(model, states)
    engines = [native(content.data), *([Oracle(content.data).step] if in_float64 else [])]
    current = {name: np.zeros(net.inputs[name], np.float32) for name in states}
    rng = np.random.default_rng(0)
    for _ in range(steps):
        feeds = {n: rng.standard_normal(s).astype(np.float32) for n, s in net.inputs.items() if n not in states}
        results = session.run([*outputs, *states.values()], {**feeds, **current})
        current = dict(zip(states, results[len(outputs) :], strict=True))
        x = np.concatenate([value.ravel() for value in feeds.values()])
        expected = np.concatenate([value.ravel() for value in results[: len(outputs)]])
        for engine in engines:
            np.testing.assert_allclose(engine(x), expected, rtol=tolerance, atol=tolerance)
    return content


UNARY = [
    "Relu",
    "Sigmoid",
    "Tanh",
    "Neg",
    "Abs",
    "Exp",
    "Sin",
    "Cos",
    "Sign",
    "Softplus",
    "Softsign",
    "HardSwish",
    "Erf",
    "Gelu",
]


@pytest.mark.parametrize("op", UNARY)
def test_functions_of_one_number(op):
    net = Net(x=[1, 3, 5], opset=20)
    assert_equals_runtime(net, net(op, "x"))


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("LeakyRelu", {"alpha": 0.2}),
        ("Elu", {"alpha": 0.7}),
        ("Selu", {}),
        ("HardSigmoid", {"alpha": 0.3}),
        ("Gelu", {"approximate": "tanh"}),
    ],
)
def test_functions_with_attributes(op, attributes):
    net = Net(x=[1, 3, 5], opset=20)
    assert_equals_runtime(net, net(op, "x", **attributes))


def test_an_operator_transforms_real_numbers():
    net = Net(x=[2, 3, 16])
    spectrum = net("DFT", net("Unsqueeze", "x", np.array([3])), onesided=1, axis=2)
    content = assert_equals_runtime(net, net("ReduceSum", net("Mul", spectrum, spectrum), np.array([3]), keepdims=0))
    assert content.names.count("FFT") == 1


@pytest.mark.parametrize("exponent", [0.5, 2.0, 3.0, -1.0, 0.3, [1.7, -0.2, 0.5, 0.9, 0.1, 2.5]])
def test_powers(exponent):
    net = Net(x=[1, 6])
    assert_equals_runtime(net, net("Pow", net("Exp", "x"), np.float32(exponent)))


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Max", "Min"])
@pytest.mark.parametrize("shapes", [([1, 3, 5], [1, 3, 5]), ([1, 3, 1], [1, 1, 5]), ([2, 3, 4], [4])])
def test_two_operands_broadcast(op, shapes):
    net = Net(x=shapes[0], z=shapes[1])
    assert_equals_runtime(net, net(op, "x", net("Add", net("Abs", "z"), np.float32(0.1))))


def test_choices_and_comparisons():
    net = Net(x=[1, 3, 5], z=[1, 3, 5])
    chosen = net("Where", net("Greater", "x", "z"), "x", net("Neg", "z"))
    clipped = net("Clip", chosen, np.float32(-0.5), np.float32(0.8))
    assert_equals_runtime(net, clipped, net("Cast", net("LessOrEqual", "x", "z"), to=TensorProto.FLOAT))


@pytest.mark.parametrize("axes", [[0], [1], [2], [1, 2], [0, 1, 2]])
@pytest.mark.parametrize("op", ["ReduceMean", "ReduceMax", "ReduceMin", "ReduceSumSquare"])
def test_sums(op, axes):
    net = Net(x=[4, 3, 5])
    turned = net("Transpose", "x", perm=[2, 0, 1])
    wide = net("Expand", net("Slice", "x", np.array([1]), np.array([2]), np.array([1])), np.array([2, 4, 3, 5]))
    across = net(op, wide, axes=[0, *(axis + 1 for axis in axes)], keepdims=0)
    assert_equals_runtime(net, net(op, turned, axes=axes, keepdims=0), net(op, "x", axes=axes), across)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_softmax_of_an_old_operator_set_goes_over_all_later_axes(op):
    net = Net(x=[2, 3, 4], opset=12)
    assert_equals_runtime(net, net(op, "x"), net(op, "x", axis=2), net(op, "x", axis=-2))


def test_sums_over_no_axes_or_an_axis_twice():
    net = Net(x=[1, 3, 4], opset=18)
    assert_equals_runtime(net, *(net(f"Reduce{kind}", "x", noop_with_empty_axes=1) for kind in ("Mean", "SumSquare")))
    net = Net(x=[1, 3, 4])
    assert_equals_runtime(net, net("ReduceMean", "x", axes=[1, -2]))


def test_the_sign_of_no_number_is_none():
    net = Net(x=[1, 6])
    assert_equals_runtime(net, net("Sign", net("Sqrt", "x")), in_float64=False)


def test_softmax_and_normalisations():
    net = Net(x=[1, 4, 6])
    soft = [net("Softmax", "x", axis=axis) for axis in (1, 2)]
    layer = net("LayerNormalization", "x", normal(6), normal(6), axis=-1)
    instance = net("InstanceNormalization", "x", normal(4), normal(4))
    assert_equals_runtime(net, *soft, net("LogSoftmax", "x"), layer, instance, net("GlobalAveragePool", "x"))


def test_shapes_change_without_a_copy():
    net = Net(x=[2, 4, 6])
    turned = net("Transpose", "x", perm=[1, 0, 2])
    part = net("Slice", turned, np.array([3]), np.array([-9]), np.array([0]), np.array([-2]))
    merged = net("Reshape", net("Unsqueeze", part, np.array([1])), np.array([1, -1]))
    content = assert_equals_runtime(net, net("Relu", merged))
    assert content.names == ["POINTWISE"]


def test_parts_are_joined_and_padded():
    net = Net(x=[1, 4, 6])
    a, b = net("Split", "x", np.array([2, 4]), outputs=2, axis=2)
    joined = net("Concat", net("Relu", b), a, axis=2)
    zeros = net("Pad", joined, np.array([0, 1, 2, 0, 0, 1]))
    mirrored = net("Pad", "x", np.array([0, 0, 2, 0, 1, 3]), mode="reflect")
    edges = net("Pad", "x", np.array([0, 0, 1, 0, 2, 0]), mode="edge")
    gone = [net("Pad", "x", np.array(pads), np.float32(2)) for pads in ([0, 1, -6, 0, 0, 2], [0, 0, 3, 0, 0, -7])]
    assert_equals_runtime(net, zeros, net("Tanh", mirrored), edges, net("Tile", a, np.array([1, 2, 3])), *gone)


@pytest.mark.parametrize("indices", [3, [1, 3], [[0, 1, 2], [1, 2, 3]], [3, 0, 0, 2], [-1, 1]])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_chosen_rows(indices, axis):
    net = Net(x=[4, 5, 6])
    assert_equals_runtime(net, net("Gather", "x", np.array(indices), axis=axis))


def test_rows_are_looked_up_by_a_number_that_the_graph_computes():
    net = Net(x=[1, 6], s=[1, 1])
    count = net("Cast", net("Mul", "s", np.float32(1.3)), to=TensorProto.INT64)
    row = net("GatherND", normal(4, 6), net("Clip", count, np.int64(0), np.int64(3)))
    other = net("Gather", normal(9, 2, 3), net("Cast", net("Neg", net("Neg", "s")), to=TensorProto.INT64), axis=0)
    y = net("Mul", "x", row)
    z = net("Reshape", other, np.array([1, 6]))
    content = assert_equals_runtime(net, y, z, steps=6, s=net("Add", "s", np.float32(1)))
    assert content.names.count("LOOKUP") == 2


def test_a_table_that_is_too_large_is_refused(monkeypatch):
    monkeypatch.setattr(operators, "_MOST_NUMBERS", 19)
    net = Net(x=[1])
    y = net("Gather", normal(5, 4), net("Cast", "x", to=TensorProto.INT64), axis=0)
    with pytest.raises(UsageError, match=r"Gather Gather1.0: expected a table of at most 19 numbers, got 20; use few"):
        packed(net.model(y), {})


def test_computed_integers_have_no_fraction():
    net = Net(x=[1, 6], y=[1, 6])
    a, b = (net("Cast", net("Mul", name, np.float32(9)), to=TensorProto.INT64) for name in ("x", "y"))
    b = net("Add", net("Abs", b), np.int64(1))
    index = net("Sub", net("Clip", net("ReduceMax", a, axes=[0, 1], keepdims=0), np.int64(0), np.int64(3)), np.int64(4))
    numbers = [
        net("Div", a, b),
        net("Div", a, np.int64(4)),
        net("Div", np.int64(50), b),
        net("ReduceMean", a, axes=[1]),
    ]
    signs = net("Greater", "x", np.float32(0))
    word = net("Gather", np.array([7, 9, -5]), net("Reshape", net("Clip", index, np.int64(0), np.int64(2)), [1]))
    for chosen in (net("Where", signs, np.int64(7), np.int64(-4)), net("Neg", word)):
        numbers += [net("Div", chosen, net("Where", signs, np.int64(3), np.int64(2))), net("ReduceMean", chosen)]
    floats = [net("Cast", number, to=TensorProto.FLOAT) for number in numbers]
    # programs round in float32, by the addition of a large number
    assert_equals_runtime(net, *floats, net("Gather", normal(4, 6), index, axis=0), steps=6, in_float64=False)


def test_a_branch_in_a_scan_reads_a_product_at_each_turn():
    net = Net(x=[1, 4], parts=[3, 1, 4])
    product = net("MatMul", "x", normal(4, 4))
    outer, net.nodes = net.nodes, []
    y = net.choose(
        net("Greater", net("ReduceSum", "part", np.array([0, 1]), keepdims=0), np.float32(0)),
        lambda: [net("Mul", product, normal(4))],
        lambda: [net("Neg", "part")],
    )
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in ("part", y)]
    graph, net.nodes = helper.make_graph(net.nodes, "body", infos[:1], infos[1:]), outer
    assert_equals_runtime(net, net("Scan", "parts", num_scan_inputs=1, body=graph))


def test_a_scan_goes_over_the_rows_of_a_step():
    body = Net(last=[2], value=[2])
    low = body("Min", "last", "value")
    following = body("Add", body("Mul", low, np.float32(0.5)), "value")
    graph = body.model(following, low).graph
    net = Net(x=[4, 2], s=[1, 2])
    start = net("Reshape", "s", np.array([2]))
    last, rows = net("Scan", start, net("Relu", "x"), outputs=2, num_scan_inputs=1, body=graph)
    assert_equals_runtime(net, rows, s=net("Reshape", last, np.array([1, 2])))


def test_integers_of_a_scan_have_no_fraction():
    body = Net(count=[2], value=[2])
    whole = body("Cast", body("Mul", "value", np.float32(5)), to=TensorProto.INT64)
    following = body("Add", body("Div", "count", np.int64(2)), whole)
    graph = body.model(following, body("Div", following, np.int64(3))).graph
    for value in (graph.input[0], *graph.output):
        value.type.tensor_type.elem_type = TensorProto.INT64
    net = Net(x=[4, 2])
    last, rows = net("Scan", np.array([9, -7]), "x", outputs=2, num_scan_inputs=1, body=graph)
    halves = (net("Div", number, np.int64(2)) for number in (last, rows))
    assert_equals_runtime(net, *(net("Cast", n, to=TensorProto.FLOAT) for n in halves), in_float64=False)


def test_a_box_of_a_tensor_is_replaced():
    net = Net(x=[4, 3, 5], z=[2, 3, 5])
    indices = np.array([[1], [2]])
    replaced = net("ScatterND", "x", indices, "z")
    assert_equals_runtime(net, replaced, net("Exp", net("Slice", replaced, np.array([0]), np.array([3]))))


CONVS = [
    ([1, 3, 9], [4, 3, 3], {"pads": [1, 1]}),
    ([1, 3, 9], [4, 3, 3], {"strides": [2], "pads": [2, 0]}),
    ([1, 3, 9], [4, 3, 2], {"dilations": [3]}),
    ([1, 4, 9], [4, 1, 3], {"group": 4, "pads": [1, 1]}),
    ([1, 4, 9], [6, 2, 3], {"group": 2}),
    ([1, 4, 9], [8, 1, 3], {"group": 4, "auto_pad": "SAME_UPPER"}),
    ([1, 3, 9], [5, 3, 1], {}),
    ([1, 3, 6, 7], [4, 3, 3, 3], {"pads": [1, 1, 1, 1], "strides": [2, 1]}),
    ([1, 4, 6, 7], [4, 1, 3, 3], {"group": 4, "pads": [2, 1, 2, 1], "dilations": [2, 1]}),
    ([1, 4, 1, 9], [6, 2, 1, 5], {"group": 2, "pads": [0, 2, 0, 2], "strides": [1, 2]}),
    ([1, 4, 6, 7], [6, 2, 2, 3], {"group": 2}),
    ([1, 4, 6, 7], [6, 4, 1, 1], {"strides": [2, 3]}),
    # of which taps read only padding
    ([1, 3, 2], [4, 3, 3], {"strides": [2], "pads": [1, 1]}),
    ([1, 3, 2], [4, 3, 3], {"dilations": [3], "pads": [3, 3]}),
    ([1, 4, 2, 7], [4, 1, 5, 3], {"group": 4, "pads": [2, 1, 2, 1]}),
    ([1, 3, 1], [4, 3, 1], {"strides": [2], "pads": [1, 0]}),
]


@pytest.mark.parametrize(("x", "W", "attributes"), CONVS)
def test_convolutions(x, W, attributes):
    net = Net(x=x)
    y = net("Conv", "x", normal(*W), normal(W[0]), **attributes)
    scaled = net("Mul", net("BatchNormalization", y, *batch_norm(W[0])), np.float32(0.5))
    content = assert_equals_runtime(net, net("Relu", scaled))
    # both are part of the weights
    assert content.names.count("POINTWISE") == 1


def test_channels_that_lie_apart_are_convolved_in_groups():
    net = Net(x=[1, 1, 6], z=[1, 3, 6])
    joined = net("Concat", "x", net("Relu", "z"), axis=1)
    assert_equals_runtime(net, *(net("Conv", joined, normal(4, 2, k), group=2, pads=[k // 2, 0]) for k in (1, 3)))


def test_taps_that_read_only_padding_are_not_multiplied():
    net = Net(x=[1, 3, 2])
    content = assert_equals_runtime(net, net("Conv", "x", normal(4, 3, 5), pads=[2, 2]))
    # three of five taps
    assert content.macs == 2 * 4 * 3 * 3


def test_a_convolution_names_its_margins():
    net = Net(x=[1, 3, 4])
    content = assert_equals_runtime(net, net("Conv", "x", normal(5, 3, 3), pads=[1, 2]))
    begin, end = 3, 15
    assert struct.pack("<2i", begin, end) in bytes(content.data)


def batch_norm(channels):
    return normal(channels), normal(channels), normal(channels), np.exp(normal(channels))


TRANSPOSED = [
    ([1, 3, 9], [3, 4, 3], {"strides": [2], "pads": [1, 1]}),
    ([1, 3, 9], [3, 4, 5], {"strides": [3], "output_padding": [1]}),
    ([1, 3, 9], [3, 4, 2], {"strides": [3]}),
    ([1, 4, 9], [4, 3, 3], {"group": 2, "dilations": [2]}),
    ([1, 4, 5, 7], [4, 1, 3, 3], {"group": 4, "pads": [4, 1, 4, 1], "dilations": [2, 1]}),
    ([1, 4, 5, 7], [4, 2, 3, 3], {"strides": [2, 2], "pads": [1, 0, 1, 1]}),
    ([1, 4, 1, 7], [4, 2, 1, 5], {"strides": [1, 2], "pads": [0, 2, 0, 2], "group": 2}),
]


@pytest.mark.parametrize(("x", "W", "attributes"), TRANSPOSED)
def test_transposed_convolutions(x, W, attributes):
    net = Net(x=x)
    channels = W[1] * attributes.get("group", 1)
    y = net("ConvTranspose", "x", normal(*W), normal(channels), **attributes)
    content = assert_equals_runtime(net, net("BatchNormalization", y, *batch_norm(channels)))
    # outputs between the elements of a kernel that is shorter than the stride are its biases
    assert ("POINTWISE" in content.names) == (W[2] < attributes.get("strides", [1])[0])


def test_matrix_products():
    net = Net(x=[2, 3, 4], z=[1, 4])
    wide = net("Add", net("MatMul", "x", normal(4, 5)), normal(5))
    left = net("MatMul", normal(2, 3), "x")
    gemm = net("Gemm", "z", normal(6, 4), normal(6), transB=1, alpha=0.5, beta=2.0)
    row = net("MatMul", net("Reshape", "z", np.array([4])), normal(1, 4, 3))
    right = net("MatMul", net("Transpose", "x", perm=[1, 2, 0]), normal(2, 3))
    content = assert_equals_runtime(net, wide, left, right, gemm, row)
    assert content.names.count("POINTWISE") == 0


def test_weights_of_a_result_that_another_node_read_stay():
    net = Net(x=[1, 4])
    product = net("MatMul", "x", normal(4, 4))
    assert_equals_runtime(net, net("Relu", product), net("Mul", product, normal(4)))


def fourier(N, window, sign=-1):
    angles = 2 * np.pi * np.outer(np.arange(N // 2 + 1), np.arange(N)) / N
    kernel = np.concatenate([np.cos(angles), sign * np.sin(angles)]) * window
    return kernel[:, None].astype(np.float32)


def test_a_windowed_fourier_transform_becomes_fast():
    net = Net(x=[1, 160])
    wave = net("Unsqueeze", "x", np.array([1]))
    parts = net("Conv", wave, fourier(64, np.hanning(65)[:-1]), strides=[32])
    content = assert_equals_runtime(net, net("Tanh", parts), net("Conv", wave, fourier(64, 1.0, sign=1), strides=[32]))
    assert content.names.count("FFT") == 1
    assert content.names.count("LINEAR") == 1


RECURRENT = [
    ("LSTM", 4, {}),
    ("GRU", 3, {"linear_before_reset": 1}),
    ("GRU", 3, {}),
    ("RNN", 1, {}),
]


@pytest.mark.parametrize(("op", "gates", "attributes"), RECURRENT)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_recurrent_operators_within_a_step(op, gates, attributes, direction):
    """Runs over an axis of each step, such as that of frequencies, so it keeps no state."""
    count, H = 2 if direction == "bidirectional" else 1, 6
    net = Net(x=[5, 2, 3])
    weights = normal(count, gates * H, 3), normal(count, gates * H, H), normal(count, 2 * gates * H)
    start = normal(count, 2, H)
    extra = [start] if op == "LSTM" else []
    outputs = 3 if op == "LSTM" else 2
    results = net(
        op, "x", *weights, "", start, *extra, outputs=outputs, hidden_size=H, direction=direction, **attributes
    )
    assert_equals_runtime(net, *results, net(op, "x", *weights, hidden_size=H, direction=direction, **attributes))


def test_a_node_that_nothing_reads_is_left_out():
    """An input that is left out has the name of an output that is left out, and is not that output."""
    net = Net(x=[3, 1, 3])
    net("GRU", "x", normal(1, 12, 3), normal(1, 12, 4), hidden_size=4, activations=["Affine", "Affine"], outputs=2)
    net.nodes[-1].output[:] = ["", "unread"]
    y, _ = net("GRU", "x", normal(1, 12, 3), normal(1, 12, 4), "", "", outputs=2, hidden_size=4)
    assert assert_equals_runtime(net, y).names == ["RECURRENT"]


@pytest.mark.parametrize(("op", "gates", "attributes"), RECURRENT)
@pytest.mark.parametrize("layout", ["one", "packed", "interleaved"])
def test_states_of_recurrent_operators(op, gates, attributes, layout):
    """A packed state holds those of all layers, and is divided so that each layer works on its own in place."""
    H, kinds = 4, 2 if op == "LSTM" else 1
    shape = {"one": [kinds, 1, H], "packed": [2 * kinds, 1, H], "interleaved": [1, H, 2 * kinds]}[layout]
    net = Net(x=[1, 1, 3], s=shape)
    layers = 1 if layout == "one" else 2
    x, last = "x", []
    for k in range(layers):
        starts = []
        for j in range(kinds):
            index, axis = np.array([kinds * k + j]), 2 if layout == "interleaved" else 0
            part = net("Gather", "s", index, axis=axis)
            starts.append(net("Transpose", part, perm=[0, 2, 1]) if axis else part)
        weights = normal(1, gates * H, 3 if k == 0 else H), normal(1, gates * H, H), normal(1, 2 * gates * H)
        y, *ends = net(op, x, *weights, "", *starts, outputs=1 + kinds, hidden_size=H, **attributes)
        last += [net("Transpose", end, perm=[0, 2, 1]) if layout == "interleaved" else end for end in ends]
        x = net("Squeeze", y, np.array([1]))
    after = net("Concat", *last, axis=2 if layout == "interleaved" else 0)
    content = assert_equals_runtime(net, net("Relu", x), s=after, steps=5)
    assert content.names == ["RECURRENT"] * layers + ["POINTWISE"]


def test_a_cache_of_a_convolution():
    net = Net(x=[1, 3, 1], s=[1, 3, 4])
    joined = net("Concat", "s", "x", axis=2)
    y = net("Conv", joined, normal(5, 3, 3), dilations=[2])
    after = net("Slice", joined, np.array([1]), np.array([5]), np.array([2]))
    assert_equals_runtime(net, net("Relu", y), s=after, steps=8)


def test_states_exchange_their_values():
    net = Net(x=[1, 2], a=[1, 2], b=[1, 2], c=[1, 2])
    total = net("Add", "a", "x")
    assert_equals_runtime(net, net("Sub", "a", "b"), a=net("Identity", "b"), b=total, c="c", steps=6)


def test_constants_and_shapes_are_folded():
    net = Net(x=[1, 3, 4])
    shape = net("Shape", "x")
    count = net("Gather", shape, np.array([2]))
    target = net("Concat", np.array([1]), net("Mul", count, np.array([3])), axis=0)
    condition = net("Equal", net("Squeeze", count, np.array([0])), np.array(4))
    branches = {
        name: helper.make_graph(
            [helper.make_node(op, ["x"], [f"{name}.y"])], name, [], [onnx.ValueInfoProto(name=f"{name}.y")]
        )
        for name, op in (("then_branch", "Relu"), ("else_branch", "Exp"))
    }
    chosen = net("If", condition, **branches)
    content = assert_equals_runtime(net, net("Reshape", chosen, target))
    assert len(content.names) == 1


def small_file(folder):
    """Write a file of another tool: a linear map, an LSTM with its states, and another one."""
    net = Net(x=[1, 1, 3], h=[1, 1, 4], c=[1, 1, 4])
    wide = net("Relu", net("Add", net("MatMul", "x", normal(3, 5)), normal(5)))
    y, h, c = net(
        "LSTM", wide, normal(1, 16, 5), normal(1, 16, 4), normal(1, 32), "", "h", "c", outputs=3, hidden_size=4
    )
    path = folder / "small.onnx"
    path.write_bytes(net.model(net("MatMul", y, normal(4, 2)), h=h, c=c).SerializeToString())
    return path


def test_the_commands_take_a_file_of_another_tool(tmp_path, capsys):
    path = small_file(tmp_path)
    assert main(["pack", str(path)]) == 0
    text = capsys.readouterr().out
    assert "167 multiply-adds a step in 4 operations (2 LINEAR, 1 POINTWISE, 1 RECURRENT)" in text
    assert "x: x (1, 1, 3)" in text
    assert main(["info", str(path.with_suffix(".edgernn")), "--json"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert (described["version"], described["operations"], described["kernels"]) == (6, 4, ["lstm"])
    assert (described["input"]["size"], described["output"]["size"]) == (3, 2)
    assert main(["bench", str(path), "--rounds", "1", "--warmup", "0", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["error"] < 1e-5
    assert report["step"].keys() == {"edgernn packed", "ONNX Runtime"}
    words = ["bench", str(path), "--rounds", "1", "--warmup", "0", "--state", "h=LSTM3.1", "--state", "c=LSTM3.2"]
    assert main([*words, "--by-node", "--from-c", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["from_c"]["step"].keys() == report["step"].keys()
    assert report["from_c"]["streams"] > 0
    assert 0 < report["stream_memory"] < report["memory"]
    nodes = report["nodes"]
    assert {(row["operation"], row["node"].split()[0]) for row in nodes} == {
        ("LINEAR", "MatMul"),
        ("POINTWISE", "Relu"),
        ("RECURRENT", "LSTM"),
    }
    assert sum(row["share"] for row in nodes) == pytest.approx(1)
    assert "| RECURRENT | LSTM " in (tmp_path / "bench.md").read_text()
    assert main([*words, "--weights", "int8", "--json"]) == 0
    int8 = json.loads(capsys.readouterr().out)
    assert int8["bytes"] < report["bytes"]
    assert 0 < int8["error"] < 0.05
    assert main(["bench", str(path), "--shape", "y=1,1,3"]) == 2
    assert "'y'" in capsys.readouterr().err
    assert main(["pack", str(path), "--state", "h=z"]) == 2
    assert "state h=z: expected an input and an output of the graph" in capsys.readouterr().err
    assert main(["bench", str(exported("gru")[1]), "--state", "h=z"]) == 2
    assert "--state: not allowed for a model that edgernn exported" in capsys.readouterr().err
    assert main(["pack", str(path), "--value", "z=1"]) == 2
    assert "'z'" in capsys.readouterr().err


def test_matrices_are_stored_in_a_smaller_type(tmp_path):
    """Layers and linear maps multiply int8 rows; the smallest map stays bfloat16."""
    net = Net(x=[1, 1, 12], h=[1, 1, 16])
    y, h = net(
        "GRU",
        net("MatMul", "x", normal(12, 12)),
        normal(1, 48, 12),
        normal(1, 48, 16),
        "",
        "",
        "h",
        outputs=2,
        hidden_size=16,
        linear_before_reset=1,
    )
    path = tmp_path / "net.onnx"
    path.write_bytes(net.model(net("MatMul", y, normal(16, 1)), h=h).SerializeToString())
    sizes = dict[str, int]()
    for weights in WEIGHT_TYPES:
        sizes[weights] = pack_file(path, tmp_path / weights, GraphOptions(weights=weights))["bytes"]
        content = (tmp_path / weights).read_bytes()
        engines = [Oracle(content).step, native(content)]
        for x in normal(4, 12):
            expected, got = (engine(x).copy() for engine in engines)
            np.testing.assert_allclose(got, expected, rtol=0, atol=3e-4 if weights == "int8" else 1e-5)
    assert sizes["float32"] > sizes["bfloat16"] > sizes["int8"]


def test_a_file_without_states_is_given_them_first(tmp_path):
    net = Net(x=["T", 1, 3])
    y = net("GRU", "x", normal(1, 12, 3), normal(1, 12, 4), hidden_size=4)
    path = tmp_path / "net.onnx"
    path.write_bytes(net.model(y).SerializeToString())
    fixed = tmp_path / "fixed.onnx"
    net.inputs["x"] = [1, 1, 3]
    fixed.write_bytes(net.model(y).SerializeToString())
    for file in (path, fixed):
        with pytest.raises(UsageError, match="give the file its states with: edgernn stream"):
            pack_file(file, tmp_path / "net.edgernn")
    assert not (tmp_path / "net.edgernn").exists()


def loop(net, value):
    """Add `value` to zeros three times, in a Loop whose inputs are constants."""
    body = Net(turn=[], goes=[], total=[1, 4])
    total = body("Add", "total", value)
    graph = body.model(body("Identity", "goes"), total).graph
    for name, kind in (("turn", TensorProto.INT64), ("goes", TensorProto.BOOL)):
        next(v for v in graph.input if v.name == name).type.tensor_type.elem_type = kind
    graph.output[0].type.tensor_type.elem_type = TensorProto.BOOL
    return net("Loop", np.array(3), "", np.zeros((1, 4), np.float32), body=graph)


def test_a_loop_is_no_constant():
    net = Net(x=[1, 4])
    y = loop(net, np.ones((1, 4), np.float32))
    model = net.model(y)
    session = onnxruntime().InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (total,) = session.run(None, {"x": np.zeros((1, 4), np.float32)})
    assert (total == 3).all()
    # onnx's evaluator gives 0
    assert constant_of(model, y) is None


REFUSED = [
    (lambda net: loop(net, "x"), "Loop Loop0.0: expected an operator that a packed model has, got Loop"),
    (lambda net: loop(net, np.float32([[1, 2, 3, 4]])), "expected an operator that a packed model has, got Loop"),
    (lambda net: net("Cosh", "x"), "Cosh Cosh0.0: expected an operator that a packed model has, got Cosh"),
    (lambda net: net("MatMul", "x", net("Transpose", "x")), "expected one factor that is a constant matrix"),
    (lambda net: net("Pow", "x", np.float32(5)), "expected a fraction as exponent, or 0.5, 1, 2, 3"),
    (lambda net: net("Cast", "x", to=TensorProto.UINT8), "expected float, integers or bool, got uint8"),
    (lambda net: net("Gather", normal(3, 2), net("Cast", "x", to=TensorProto.INT64)), "expected one index of a const"),
    (lambda net: net("Add", "x", net("RandomNormal", shape=[1, 4])), "without chance, got RandomNormal"),
    (lambda net: net("Dropout", "x", np.float32(0.5), np.array(True)), "training_mode false, got true"),
    (lambda net: net("BatchNormalization", "x", *[np.ones(4, np.float32)] * 4, training_mode=1), "training_mode 0"),
    (lambda net: net("Split", "x", np.array([1, 2]), axis=1, outputs=2)[0], "2 parts of 4 elements, got [1, 2]"),
    (lambda net: net("Transpose", "x", perm=[0, 0]), "each of 2 axes once, got [0, 0]"),
    (
        lambda net: net("Pad", "x", np.array([0, 9, 0, 0]), mode="reflect"),
        "reflect with fewer than 4 elements, got ref",
    ),
    (lambda net: net("Pad", "x", np.array([0, 1])), "two pads for each of the axes [0, 1], got [0, 1]"),
    (lambda net: net("ScatterND", "x", np.array([[0, 4]]), normal(1)), "within the shape (1, 4), got 4"),
    (lambda net: net("ScatterND", "x", np.array([[0, -5]]), normal(1)), "within the shape (1, 4), got -5"),
    (lambda net: net("Gather", "x", np.array([3, -5, 4]), axis=1), "indices from -4 to 3, got -5"),
    (lambda net: net("Conv", net("Reshape", "x", np.array([2, 2, 1])), normal(1, 2, 1)), "a batch of 1, got 2"),
]


@pytest.mark.parametrize(("build", "message"), REFUSED)
def test_what_no_step_computes_is_refused_by_name(build, message):
    net = Net(x=[1, 4])
    with pytest.raises(UsageError) as error:
        packed(net.model(build(net)), {})
    assert message in str(error.value)
    assert str(error.value).startswith("net.onnx: ")
    assert "; " in str(error.value)


def test_old_operator_sets_and_outputs_of_one_name_are_refused():
    net = Net(x=[1, 4], opset=6)
    with pytest.raises(UsageError, match=r"net.onnx: expected operator set 7 or newer, got 6"):
        packed(net.model(net("Relu", "x")), {})
    net = Net(x=[1, 4])
    with pytest.raises(EdgernnError, match=r"outputs of different names, got Relu0.0 twice"):
        packed(net.model(net("Relu", "x"), "Relu0.0"), {})


def gru(net, x, h, inputs, hidden):
    """Add a GRU step of x (1, 1, inputs) from the state h; return y and the next state (1, 1, hidden)."""
    weights = normal(1, 3 * hidden, inputs), normal(1, 3 * hidden, hidden), normal(1, 6 * hidden)
    y, after = net("GRU", x, *weights, "", h, outputs=2, hidden_size=hidden, linear_before_reset=1)
    return net("Squeeze", y, np.array([1])), after


def periodic():
    """A network of a part that runs at every third step, whose output and state are held in between."""
    net = Net(x=[1, 1, 5], h=[1, 1, 8], held=[1, 1, 8])
    runs, states = net.every(3)
    wide = net("Tanh", net("MatMul", "x", normal(5, 7)))
    y, h = net.choose(runs, lambda: gru(net, wide, "h", 7, 8), lambda: ("held", "h"))
    return net, net("Concat", net("MatMul", y, normal(8, 4)), wide, axis=2), {**states, "h": h, "held": y}


def test_a_part_of_a_network_runs_at_some_steps():
    net, y, states = periodic()
    content = assert_equals_runtime(net, y, steps=8, **states)
    # the held output and state need no copy, and the layer works on its state in place
    assert content.names.count("BRANCH") == 1
    assert content.names.count("MOVE") <= 2
    assert content.macs == 5 * 7 + 3 * 8 * (7 + 8) + 8 * 4


def test_a_part_of_a_network_that_is_skipped_is_not_computed():
    net, y, states = periodic()
    stepper, part = Stepper(packed(net.model(y, **states), states).data, 3), 3 * 8 * (7 + 8)
    rng = np.random.default_rng(1)
    saved = []
    for t in range(7):
        stepper.x[...] = rng.standard_normal((3, 5))
        if t == 4:
            # the other streams go on in the middle of their period
            stepper.restart_row(1)
        saved.append(stepper.save_state())
        assert stepper.step(), stepper.refusal()
        runs = np.array([t % 3 == 0, (t - 4 * (t >= 4)) % 3 == 0, t % 3 == 0])
        np.testing.assert_array_equal(stepper.updates, 8 * runs)
        np.testing.assert_array_equal(stepper.macs, 5 * 7 + 8 * 4 + part * runs)
    last = stepper.y.copy()
    stepper.restore_state(saved[-1])
    assert stepper.step()
    np.testing.assert_array_equal(stepper.y, last)


def test_a_session_counts_the_work_of_a_network_that_skips_a_part(tmp_path, capsys):
    net, y, states = periodic()
    path = tmp_path / "periodic.onnx"
    path.write_bytes(net.model(y, **states).SerializeToString())
    session = Session(path)
    session.run(np.random.default_rng(2).standard_normal((7, 2, 5)).astype(np.float32))
    part = 3 * 8 * (7 + 8)
    np.testing.assert_array_equal(session.macs, [7 * (5 * 7 + 8 * 4) + 3 * part] * 2)
    np.testing.assert_array_equal(session.updates.sum(0), [3 * 8] * 2)
    assert main(["bench", str(path), "--rounds", "1", "--warmup", "0", "--by-node"]) == 0
    assert "| BRANCH | If " in capsys.readouterr().out


def test_branches_inside_branches_and_results_that_no_state_holds():
    net = Net(x=[1, 6], h=[1, 6], other=[1, 6])
    runs, states = net.every(2)
    loud = net("Greater", net("ReduceSum", "x", np.array([1])), np.float32(0))
    product = net("MatMul", "x", normal(6, 6))

    def inner():
        new = net.choose(loud, lambda: [net("Mul", product, normal(6))], lambda: [net("Sub", "h", "other")])
        return new, net("Add", "other", product)

    def outer():
        return net("Neg", "h"), net("MatMul", net("Relu", product), normal(6, 6))

    value, other = net.choose(runs, inner, outer)
    y = net("Add", net("Mul", value, "h"), product)
    assert_equals_runtime(net, y, steps=9, **states, h=value, other=other)


def test_invalid_branches_are_refused():
    net = Net(x=[1, 4])
    y = net.choose(net("Less", "x", np.float32(0)), lambda: ["x"], lambda: ["x"])
    with pytest.raises(UsageError, match=r"If If\d.*: expected a condition of one number, got \(1, 4\)"):
        packed(net.model(y), {})
    net = Net(x=[1, 4])
    loud = net("Less", net("ReduceSum", "x"), np.float32(0))
    y = net.choose(loud, lambda: ["x"], lambda: [net("Concat", "x", "x", axis=1)])
    with pytest.raises(UsageError, match=r"expected branches of equal shapes, got \[\(1, 4\)\] and \[\(1, 8\)\]"):
        packed(net.model(y), {})


def test_a_refusal_within_a_branch_names_the_condition():
    net = Net(x=[1, 4])
    branches = []
    for op in ("Relu", "Cosh"):
        nodes = [helper.make_node(op, ["x"], [op])]
        branches.append(helper.make_graph(nodes, op, [], [helper.make_tensor_value_info(op, TensorProto.FLOAT, None)]))
    y = net("If", net("Equal", np.int64(44100), np.int64(16000)), then_branch=branches[0], else_branch=branches[1])
    model = net.model(y)
    with pytest.raises(UsageError, match=r"as Equal\(w0 = 44100, w1 = 16000\) is false: try another --value"):
        plan(model, Path("net.onnx"), {}, fixed=["w0"])
    # constants of the file alone
    with pytest.raises(UsageError, match="got Cosh") as error:
        packed(model, {})
    assert "--value" not in str(error.value)


def test_an_output_taken_for_a_state_is_named():
    net = Net(x=[1, 4], z=[1, 4])
    y = net("Add", "x", "z")
    with pytest.raises(EdgernnError, match=r"got none besides z=Add0.0; name the states with --state"):
        packed(net.model(z=y), {"z": y})


def test_a_state_that_does_not_fit_is_refused():
    net = Net(x=[1, 4], s=[1, 3])
    with pytest.raises(UsageError, match="state s: expected its next value"):
        packed(net.model(net("Relu", "x"), s=net("Exp", "x")), {"s": net.nodes[-1].output[0]})


def test_damaged_graphs_are_refused():
    net = Net(x=[1, 4])
    model = net.model(net("Relu", "x"))
    model.graph.node[0].input[0] = "missing"
    with pytest.raises(EdgernnError, match="value missing: expected a node that computes it"):
        packed(model, {})


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (lambda net: net("Unsqueeze", "x", np.array([0, 0])), "Unsqueeze0.0: expected inputs and attributes that fit"),
        (lambda net: net("Conv", net("Unsqueeze", "x", np.array([0])), normal(1, 1, 2), strides=[0]), "Conv1.0: expec"),
        (lambda net: net("GRU", "x", "x", "x", direction="up"), "GRU0.0: expected x (T, B, I), got (1, 4)"),
        (lambda net: net("If", np.array(False)), "expected inputs, outputs and states whose shapes fit"),
        (
            lambda net: net.nodes.append(helper.make_node("Relu", ["x"], ["x"])),
            "values of different names, got x",
        ),
    ],
)
def test_invalid_nodes_are_refused(node, message):
    net = Net(x=[1, 4])
    node(net)
    with pytest.raises(EdgernnError, match=re.escape(message)):
        packed(net.model(net.nodes[-1].output[0]), {})


def random_net(seed):
    """Draw a network of blocks that keep a tensor (1, C, F), with a state for some of them."""
    rng = np.random.default_rng(seed)
    C, F = int(rng.integers(2, 6)), int(rng.integers(3, 8))
    net, states = Net(x=[1, C, F]), {}
    value = "x"
    for _ in range(rng.integers(3, 9)):
        kind = rng.integers(10)
        if kind == 0:
            value = net("Conv", value, normal(C, C, 3), normal(C), pads=[1, 1])
        elif kind == 1:
            value = net("Mul", value, net("Sigmoid", net("ReduceMean", value, axes=[2])))
        elif kind == 2:
            turned = net("Transpose", value, perm=[0, 2, 1])
            value = net("Transpose", net("Add", net("MatMul", turned, normal(C, C)), normal(C)), perm=[0, 2, 1])
        elif kind == 3:
            value = net("PRelu", value, normal(C, 1))
        elif kind == 4:
            name = f"s{len(states)}"
            net.inputs[name] = [1, C, F]
            states[name] = value = net("Tanh", net("Add", value, name))
        elif kind == 5:
            a, b = net("Split", value, np.array([1, C - 1]), outputs=2, axis=1)
            value = net("Concat", b, net("Relu", a), axis=1)
        elif kind == 6:
            name = f"s{len(states)}"
            net.inputs[name] = [1, F, C]
            x = net("Transpose", value, perm=[0, 2, 1])
            weights = normal(1, 3 * C, C), normal(1, 3 * C, C), normal(1, 6 * C)
            y, states[name] = net("GRU", x, *weights, "", name, outputs=2, hidden_size=C, linear_before_reset=1)
            value = net("Transpose", net("Squeeze", y, np.array([1])), perm=[0, 2, 1])
        elif kind == 7:
            name, wide = f"s{len(states)}", int(rng.integers(1, 4))
            net.inputs[name] = [1, C, wide, F]
            row = net("Unsqueeze", value, np.array([2]))
            joined = net("Concat", name, row, axis=2)
            states[name] = net("Slice", joined, np.array([1]), np.array([wide + 1]), np.array([2]))
            y = net("Conv", joined, normal(C, 1, wide + 1, 3), group=C, pads=[0, 1, 0, 1])
            value = net("Squeeze", y, np.array([2]))
        elif kind == 8:
            name, before = f"s{len(states)}", value
            net.inputs[name] = [1, C, F]
            runs, count = net.every(int(rng.integers(2, 4)), int(rng.integers(2)))
            if rng.integers(2):
                runs = net("Greater", net("ReduceMean", value, keepdims=0), np.float32(0))

            def part(before=before, name=name):
                return [net("Tanh", net("Add", net("Conv", before, normal(C, C, 3), pads=[1, 1]), name))]

            is_held = rng.integers(2)

            def otherwise(before=before, name=name, is_held=is_held):
                return [name if is_held else net("Sub", before, name)]

            value = net.choose(runs, part, otherwise)
            states |= {name: value, **count}
        else:
            shuffled = net("Reshape", net("Transpose", value, perm=[0, 2, 1]), np.array([1, C, F]))
            value = net("Div", shuffled, net("Add", net("Abs", value), np.float32(1)))
    return net, net("Neg", value), states


@pytest.mark.parametrize("seed", range(24))
def test_random_networks(seed):
    net, y, states = random_net(seed)
    assert_equals_runtime(net, y, steps=4, tolerance=3e-5, **states)
