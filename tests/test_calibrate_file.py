# SPDX-License-Identifier: Apache-2.0
"""Calibration of ONNX files of other tools: replaced operators equal ONNX Runtime's own, and all else stays."""

import json
import warnings

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from edgernn.cli.frame import main
from edgernn.errors import EdgernnError, EdgernnWarning, UsageError
from edgernn.export import recurrent_nodes, to_onnx
from edgernn.export.delta_graph import with_delta
from edgernn.export.recurrent_nodes import find_recurrent_nodes
from edgernn.model import SequenceModel
from edgernn.runtime.library import library_path
from edgernn.runtime.open_model import open_session
from edgernn.runtime.weights import PACKED_MAGIC
from edgernn.training.calibration.calibrate_file import calibrate_file

T, B, I, H = 9, 2, 3, 5


def operator(kind, initial=True, bias=True, outputs=("Y", "Y_h"), opset=20, **attributes):
    """Make a model with one operator GRU or LSTM, whose initial state is an input, and a product behind it."""
    gates, rng = {"GRU": 3, "LSTM": 4}[kind], np.random.default_rng(0)
    states = ["h", "c"] if kind == "LSTM" else ["h"]
    shapes = {"W": (1, gates * H, I), "R": (1, gates * H, H)} | ({"B": (1, 2 * gates * H)} if bias else {})
    weights = {name: (rng.standard_normal(shape) * 0.5).astype(np.float32) for name, shape in shapes.items()}
    weights["V"] = rng.standard_normal((H, 2)).astype(np.float32)
    given = [f"{state}0" for state in states] if initial else []
    inputs = ["X", "W", "R", "B" * bias, "", *given]
    while not inputs[-1]:
        inputs.pop()
    names = ["Y", "Y_h", "Y_c"][: 1 + len(states)]
    node = helper.make_node(
        kind, inputs, [name if name in outputs else "" for name in names], hidden_size=H, **attributes
    )
    nodes = [node, helper.make_node("MatMul", [outputs[-1], "V"], ["out"])]
    floats = TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info("X", floats, ["T", "B", I])]
        + [helper.make_tensor_value_info(name, floats, [1, "B", H]) for name in given],
        [helper.make_tensor_value_info(name, floats, None) for name in (*outputs, "out")],
        [numpy_helper.from_array(weight, name) for name, weight in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def data(states=(), steps=T, batch=B, seed=1):
    rng = np.random.default_rng(seed)
    x = (0.3 * rng.standard_normal((steps, batch, I))).cumsum(0).astype(np.float32)
    return {"X": x} | {f"{s}0": rng.uniform(-0.5, 0.5, (1, batch, H)).astype(np.float32) for s in states}


def run(proto, feeds, library=None):
    """Return the outputs of a model by name."""
    session = open_session("m.onnx", proto.SerializeToString(), library, 1)
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))


def zeros(proto, feeds, batch=B):
    """Return zeros for the inputs that a graph has besides `feeds`."""
    added = [value for value in proto.graph.input if value.name not in feeds]
    return {v.name: np.zeros((batch, v.type.tensor_type.shape.dim[1].dim_value), np.float32) for v in added}


CASES = {
    "gru": ("GRU", {"linear_before_reset": 1}),
    "gru, reset before": ("GRU", {}),
    "gru without biases": ("GRU", {"bias": False, "linear_before_reset": 1, "outputs": ("Y",)}),
    "gru, last state alone": ("GRU", {"linear_before_reset": 1, "outputs": ("Y_h",), "initial": False}),
    "lstm": ("LSTM", {"outputs": ("Y", "Y_h", "Y_c")}),
    "lstm from zero": ("LSTM", {"initial": False, "activations": ["Sigmoid", "Tanh", "Tanh"]}),
    "gru, old operators": ("GRU", {"linear_before_reset": 1, "opset": 14}),
    "gru, new operators": ("GRU", {"linear_before_reset": 1, "opset": 22, "layout": 0}),
}


@pytest.mark.parametrize("native", [True, False], ids=["native", "portable"])
@pytest.mark.parametrize("case", CASES)
def test_with_thresholds_of_zero_the_outputs_are_those_of_the_operator(case, native):
    kind, options = CASES[case]
    proto = operator(kind, **options)
    feeds = data(() if options.get("initial") is False else ("h", "c")[: 1 + (kind == "LSTM")])
    operators = find_recurrent_nodes(proto, "m.onnx")
    assert operators.left == []
    changed = with_delta(operators, [(0.0, 0.0)], True)
    got = run(changed, feeds | zeros(changed, feeds), library_path() if native else None)
    for name, expected in run(proto, feeds).items():
        np.testing.assert_allclose(got[name], expected, rtol=0, atol=1e-5, err_msg=name)
    (counts,) = (value for name, value in got.items() if name.endswith(".macs"))
    assert (counts > 0).all()
    # the operator and its weights are gone
    assert not {node.op_type for node in changed.graph.node} & {"GRU", "LSTM"}
    assert not {tensor.name for tensor in changed.graph.initializer} & {"W", "R", "B"}


def test_a_stream_carries_the_states_of_the_rule():
    """Steps one by one, with all states fed back, equal one call with all steps."""
    proto = operator("LSTM", outputs=("Y", "Y_h", "Y_c"))
    changed = with_delta(find_recurrent_nodes(proto, "m.onnx"), [(0.1, 0.05)], True)
    feeds = data(("h", "c"), steps=40)
    feeds |= zeros(changed, feeds)
    whole = run(changed, feeds, library_path())
    session = open_session("m.onnx", changed.SerializeToString(), library_path(), 1)
    names = [output.name for output in session.get_outputs()]
    steps, macs, current = [], np.zeros(B, np.int64), feeds
    for x in np.split(feeds["X"], 40):
        got = dict(zip(names, session.run(None, current | {"X": x}), strict=True))
        steps.append(got["Y"])
        macs += got["lstm0.macs"]
        current = {name.removesuffix(".next"): value for name, value in got.items() if name.endswith(".next")}
        current |= {"h0": got["Y_h"], "c0": got["Y_c"]}
    np.testing.assert_allclose(np.concatenate(steps), whole["Y"], rtol=0, atol=1e-5)
    np.testing.assert_array_equal(macs, whole["lstm0.macs"])
    assert (macs < 0.9 * 40 * 4 * H * (I + H)).all()


def store(tmp_path, proto, **arrays):
    onnx.save(proto, tmp_path / "m.onnx")
    np.savez(tmp_path / "m.npz", **arrays)
    return tmp_path / "m.onnx", tmp_path / "m.npz"


def test_a_file_is_calibrated_by_the_change_of_its_outputs(tmp_path):
    model, npz = store(tmp_path, operator("GRU", initial=False, linear_before_reset=1), **data(steps=60, batch=8))
    result = calibrate_file(model, npz, loss=5.0)
    assert result["model"] == str(tmp_path / "m-delta.onnx")
    assert result["chosen"]["executed"] < 0.8
    assert result["states"] == result["left"] == []
    ours, theirs = (
        onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, data(steps=60, batch=8))
        for path in (result["model"], model)
    )
    for y, expected in zip(ours, theirs, strict=True):
        assert np.sqrt(np.square(y - expected).mean() / np.square(expected).mean()) <= 0.05
    with pytest.raises(EdgernnError, match="loss: expected thresholds that lose at most 1e-09, found none"):
        calibrate_file(model, npz, tmp_path / "none.onnx", loss=1e-9)
    assert not (tmp_path / "none.onnx").exists()


def test_labels_are_the_metric(tmp_path, capsys):
    proto, feeds = operator("GRU", initial=False, linear_before_reset=1, outputs=("Y_h",)), data(steps=60, batch=50)
    # the class of the first output, (1, B, H)
    y = run(proto, feeds)["Y_h"]
    model, npz = store(tmp_path, proto, y=y.argmax(-1), **feeds)
    assert main(["calibrate", str(model), "--data", str(npz), "--loss", "10", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["metric"], result["dense"]) == ("accuracy", 1.0)
    assert result["chosen"]["value"] >= 0.9
    model, npz = store(tmp_path, proto, y=y + 0.1, **feeds)
    assert main(["calibrate", str(model), "--data", str(npz), "--loss", "20"]) == 0
    text = capsys.readouterr().out
    assert "mse" in text
    assert "gru0: gru (3, 5), theta_x" in text
    model, npz = store(tmp_path, proto, y=y[0], **feeds)
    assert main(["calibrate", str(model), "--data", str(npz)]) != 0
    assert (
        "y: expected integer classes of shape (1, 50) or float targets of shape (1, 50, 5)" in capsys.readouterr().err
    )


def test_labels_that_no_output_can_have_are_refused(tmp_path):
    """An output of one number is no class, whatever its value."""
    proto, feeds = operator("GRU", initial=False, linear_before_reset=1, outputs=("Y_h",)), data(steps=9, batch=4)
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((5, 1), np.float32), "ones"))
    proto.graph.node[-1].input[1] = "ones"
    del proto.graph.output[0]
    for labels, message in (
        (np.zeros((1, 4), np.int64), "expected float targets, as the model's output is one number"),
        (np.full((1, 4, 1), np.nan, np.float32), "y: expected integers, or floats without NaN and infinity"),
    ):
        model, npz = store(tmp_path, proto, y=labels, **feeds)
        with pytest.raises(EdgernnError, match=message):
            calibrate_file(model, npz)


def test_the_original_file_is_not_overwritten(tmp_path):
    model, npz = store(tmp_path, operator("GRU", initial=False), **data(steps=9))
    content = model.read_bytes()
    for out, expected in (
        (model, "file other than the input"),
        (tmp_path / "x" / ".." / "m.onnx", "file other than the input"),
        (npz, "file other than the input"),
        (tmp_path, "regular file"),
    ):
        with pytest.raises(UsageError, match=f"--out: expected a {expected}"):
            calibrate_file(model, npz, out)
    assert model.read_bytes() == content


def joined(*nodes, inputs=(), outputs=("y",), weights=None):
    """Make a model of several operators of size I = H, from X to y."""
    rng, floats = np.random.default_rng(0), TensorProto.FLOAT
    arrays = {"W": (rng.standard_normal((1, 3 * H, H)) * 0.5).astype(np.float32)} | (weights or {})
    shapes = {"X": ["T", "B", H], "U": ["T", "D", H], "h0": [1, "B", H], "g0": [1, "D", H]}
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info(name, floats, shapes[name]) for name in ("X", *inputs)],
        [helper.make_tensor_value_info(name, floats, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def gru(x, ends, start="", name="", W="W"):
    inputs = [x, W, W, "", "", start] if start else [x, W, W]
    return helper.make_node("GRU", inputs, ends, name, hidden_size=H, linear_before_reset=1)


def numbers(*shape):
    return np.random.default_rng(2).uniform(-1, 1, shape).astype(np.float32)


def equals_the_original(proto, feeds):
    """Assert that the operators, replaced with thresholds of 0, compute the same; return the new model."""
    operators = find_recurrent_nodes(proto, "m.onnx")
    changed = with_delta(operators, [(0.0, 0.0)] * len(operators.nodes), False)
    sizes = {"X": B, "U": 4}
    known = feeds.keys() | {tensor.name for tensor in changed.graph.initializer}
    added = [value for value in changed.graph.input if value.name not in known]
    batches = {node.name: sizes.get(node.input("X"), B) for node in operators.nodes}
    states = {
        v.name: np.zeros((batches[v.name.rpartition(".")[0]], v.type.tensor_type.shape.dim[1].dim_value), np.float32)
        for v in added
    }
    for library in (library_path(), None):
        got = run(changed, feeds | states, library)
        for name, expected in run(proto, feeds).items():
            np.testing.assert_allclose(got[name], expected, rtol=0, atol=1e-5, err_msg=name)
    return changed


def test_a_decoder_that_starts_from_an_encoder_is_no_stream():
    proto = joined(gru("X", ["", "h"], name="a"), gru("X", ["y"], "h", name="b"))
    changed = equals_the_original(proto, {"X": numbers(7, B, H)})
    assert [value.name for value in changed.graph.input] == ["X"]


def test_names_of_the_graph_are_kept():
    weights = {"r.R": numbers(H, H), "r.b": numbers(H), "gru1.Y": numbers(H)}
    shifted = [
        helper.make_node("Add", ["X", "r.b"], ["r.Y"]),
        helper.make_node("Mul", ["r.Y", "gru1.Y"], ["r.h.next"]),
        gru("r.h.next", ["Y"], name="r"),
        helper.make_node("Squeeze", ["Y", "one"], ["Z"]),
        gru("Z", ["y"]),
    ]
    equals_the_original(joined(*shifted, weights=weights | {"one": np.array([1])}), {"X": numbers(7, B, H)})


def test_layers_with_and_without_outputs_of_all_steps_and_of_other_batches():
    nodes = [gru("X", ["", "a"], "h0"), gru("U", ["", "b"], "g0"), gru("X", ["", "c"])]
    nodes += [helper.make_node("Add", ["a", "c"], ["y"])]
    proto = joined(*nodes, inputs=("U", "h0", "g0"), outputs=("y", "b"))
    feeds = {"X": numbers(7, B, H), "U": numbers(7, 4, H), "h0": numbers(1, B, H), "g0": numbers(1, 4, H)}
    changed = equals_the_original(proto, feeds)
    assert len(changed.graph.input) == 4 + 2 * 4


def test_weights_may_be_inputs_with_a_default():
    proto = joined(gru("X", ["y"]), weights={"kept": numbers(2)})
    floats = TensorProto.FLOAT
    proto.graph.input.extend(
        [
            helper.make_tensor_value_info("W", floats, [1, 3 * H, H]),
            helper.make_tensor_value_info("kept", floats, [2]),
        ]
    )
    changed = equals_the_original(proto, {"X": numbers(7, B, H)})
    assert [value.name for value in changed.graph.input] == ["X", "kept"]
    assert "kept" in {tensor.name for tensor in changed.graph.initializer}


def test_operators_in_bodies_are_named():
    body = helper.make_graph(
        [gru("X", ["z"])], "body", [], [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)]
    )
    branch = helper.make_node("If", ["yes"], ["y"], "choice", then_branch=body, else_branch=body)
    proto = joined(branch, weights={"yes": np.array(True)})
    with pytest.raises(UsageError, match="choice: expected an operator of the graph, got GRU in its body"):
        find_recurrent_nodes(proto, "m.onnx")


def test_the_long_name_of_the_standard_domain_is_accepted():
    proto = joined(helper.make_node("Identity", ["W"], ["V"]), gru("X", ["y"], W="V"))
    proto.opset_import[0].domain = "ai.onnx"
    equals_the_original(proto, {"X": numbers(7, B, H)})


class Network(torch.nn.Module):
    """Two layers of GRU with the batch first, between other operators."""

    def __init__(self):
        super().__init__()
        self.rnn = torch.nn.GRU(I, 16, 2, batch_first=True)
        self.head = torch.nn.Linear(16, 4)

    def forward(self, x):
        y, _ = self.rnn(x * 2)
        return torch.softmax(self.head(y[:, -1]), -1)


@pytest.mark.slow
@pytest.mark.parametrize("dynamo", [True, False])
def test_a_file_of_torch_is_calibrated(dynamo, tmp_path):
    torch.manual_seed(0)
    model, x = tmp_path / "m.onnx", data(steps=50, batch=16)["X"].swapaxes(0, 1)
    shapes = (
        {"dynamic_shapes": ({0: torch.export.Dim("B"), 1: torch.export.Dim("T")},), "external_data": True}
        if dynamo
        else {"dynamic_axes": {"x": {0: "B", 1: "T"}}}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Network().eval(), (torch.zeros(3, 7, I),), model, dynamo=dynamo, input_names=["x"], verbose=False, **shapes
        )
    np.savez(tmp_path / "m.npz", x=x)
    result = calibrate_file(model, tmp_path / "m.npz", loss=5.0)
    assert [layer["cell"] for layer in result["layers"]] == ["gru", "gru"]
    assert result["chosen"]["executed"] < 0.7
    # in stock ONNX Runtime, and with the library
    expected = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    proto = onnx.load(result["model"])
    for library in (None, library_path()):
        (y,) = run(proto, {"x": x}, library).values()
        assert np.sqrt(np.square(y - expected).mean() / np.square(expected).mean()) <= 0.051


def masked(*nodes, inputs=(), weights=None):
    """Make a model whose GRU reads the initial state s, which these nodes compute from the input h0."""
    proto = operator("GRU", linear_before_reset=1)
    node = proto.graph.node[0]
    node.input[5] = "s"
    for i, one in enumerate(nodes):
        proto.graph.node.insert(i, one)
    proto.graph.input.extend(inputs)
    for name, value in (weights or {}).items():
        proto.graph.initializer.append(numpy_helper.from_array(value, name))
    return proto


def keep(kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info("keep", kind, [1, "B", 1])


ZERO = {"zero": np.zeros((1, 1, 1), np.float32)}
MASKS = {
    "product": ([helper.make_node("Mul", ["h0", "keep"], ["s"])], [keep()], {}),
    "choice": ([helper.make_node("Where", ["keep", "h0", "zero"], ["s"])], [keep(TensorProto.BOOL)], ZERO),
    "sum with a reset state": (
        [helper.make_node("Mul", ["h0", "keep"], ["kept"]), helper.make_node("Add", ["kept", "zero"], ["s"])],
        [keep()],
        ZERO,
    ),
    "half precision": (
        [helper.make_node("Cast", ["h0"], ["half"], to=10), helper.make_node("Cast", ["half"], ["s"], to=1)],
        [],
        {},
    ),
}


@pytest.mark.parametrize("case", MASKS)
def test_a_masked_state_is_carried(case):
    nodes, inputs, weights = MASKS[case]
    operators = find_recurrent_nodes(masked(*nodes, inputs=inputs, weights=weights), "m.onnx")
    assert (operators.nodes[0].carried, operators.restarted) == (True, [])
    added = [v.name for v in with_delta(operators, [(0.1, 0.1)], False).graph.input if v.name.startswith("gru0.")]
    assert len(added) == 4


def test_a_state_that_the_graph_computes_is_named_and_one_of_zeros_is_not():
    product = helper.make_node("MatMul", ["h0", "V2"], ["s"])
    operators = find_recurrent_nodes(masked(product, weights={"V2": np.eye(H, dtype=np.float32)}), "m.onnx")
    assert (operators.nodes[0].carried, operators.restarted) == (False, ["gru0"])
    zeros = [helper.make_node("Shape", ["h0"], ["size"]), helper.make_node("ConstantOfShape", ["size"], ["s"])]
    operators = find_recurrent_nodes(masked(*zeros), "m.onnx")
    assert (operators.nodes[0].carried, operators.restarted) == (False, [])


def test_a_domain_without_nodes_is_no_result_of_a_calibration():
    """ONNX Runtime lists edgernn's domain in files that it saves while the library is registered."""
    proto = operator("GRU", initial=False)
    proto.opset_import.append(helper.make_opsetid("ai.edgernn", 1))
    changed = with_delta(find_recurrent_nodes(proto, "m.onnx"), [(0.0, 0.0)], False)
    assert [opset.domain for opset in changed.opset_import] == ["", "ai.edgernn"]
    np.testing.assert_allclose(run(changed, data())["out"], run(proto, data())["out"], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("DynamicQuantizeLSTM", "which quantize_dynamic wrote; calibrate the float32 file"),
        ("RNN", "which edgernn does"),
    ],
)
def test_other_recurrent_operators_are_named(kind, reason):
    proto = operator("GRU")
    proto.graph.node[0].op_type = kind
    with pytest.raises(UsageError, match=f"number 0: expected GRU or LSTM, got {kind}, {reason}"):
        find_recurrent_nodes(proto, "m.onnx")


@pytest.mark.parametrize(
    ("kind", "array"),
    [
        (TensorProto.INT64, np.full((T, B), 0.5)),
        (TensorProto.UINT8, np.full((T, B), 300)),
        (TensorProto.INT32, np.full((T, B), -(2**40))),
        (TensorProto.BOOL, np.full((T, B), 2)),
    ],
    ids=["fractions", "too large", "too small", "no flags"],
)
def test_numbers_that_an_integer_input_does_not_hold_are_refused(kind, array, tmp_path):
    proto = operator("GRU", initial=False)
    proto.graph.input.append(helper.make_tensor_value_info("words", kind, ["T", "B"]))
    model, npz = store(tmp_path, proto, words=array, **data())
    with pytest.raises(EdgernnError, match=r"words: expected whole numbers of the type \w+, got \w+ with values that"):
        calibrate_file(model, npz)


def test_data_whose_offset_hides_their_changes_in_float32_are_named(tmp_path):
    x = data()["X"].astype(np.float64)
    x[..., 1] += 1.7e9
    model, npz = store(tmp_path, operator("GRU", initial=False), X=x)
    with pytest.warns(EdgernnWarning, match=r"X: float32 cannot tell apart the values of x\[\.\.\., 1\]"):
        calibrate_file(model, npz, loss=50)
    to_onnx(SequenceModel("gru", I, 4, 2), tmp_path / "e.onnx", metadata={"channels": ["ax", "height", "ay"]})
    np.savez(npz, x=x.swapaxes(0, 1))
    with pytest.warns(EdgernnWarning, match="x: float32 cannot tell apart the values of height"):
        calibrate_file(tmp_path / "e.onnx", npz, loss=50)


@pytest.mark.parametrize(("to", "name"), [(TensorProto.FLOAT16, "half"), (TensorProto.FLOAT, "scaled")])
def test_rounding_of_the_output_is_no_bug(to, name, tmp_path):
    """Outputs in half precision, or scaled up by operators behind the layer, differ by rounding alone."""
    proto = operator("GRU", initial=False, linear_before_reset=1)
    first = helper.make_node("ReduceMax", ["out"], ["top"], keepdims=1)
    nodes = [first, helper.make_node("Sub", ["out", "top"], ["d"]), helper.make_node("Mul", ["d", "big"], ["large"])]
    proto.graph.initializer.append(numpy_helper.from_array(np.float32(1e4 if name == "scaled" else 1), "big"))
    proto.graph.node.extend([*nodes, helper.make_node("Cast", ["large"], ["end"], to=to)])
    del proto.graph.output[:]
    proto.graph.output.append(helper.make_tensor_value_info("end", to, None))
    model, npz = store(tmp_path, proto, **data(steps=60, batch=8))
    assert calibrate_file(model, npz, loss=20.0)["chosen"]["executed"] < 1


def test_a_wrong_layer_is_reported_after_a_comparison_with_float64(tmp_path, monkeypatch):
    model, npz = store(tmp_path, operator("GRU", initial=False, linear_before_reset=1), **data(steps=20, batch=2))
    right = recurrent_nodes._cell

    def wrong(node, arrays):
        cell = right(node, arrays)
        with torch.no_grad():
            cell.R[0] += 0.1
        return cell

    with monkeypatch.context() as patch:
        patch.setattr(recurrent_nodes, "_cell", wrong)
        with pytest.raises(EdgernnError, match="nothing was written") as error:
            calibrate_file(model, npz, loss=20.0)
    assert "float64; report a bug" in str(error.value)
    assert not (tmp_path / "m-delta.onnx").exists()


@pytest.mark.parametrize("axis", [0, 1], ids=["steps", "batch"])
def test_a_length_that_the_file_keeps_is_warned_of(axis, tmp_path):
    """The file declares T and B as variable, but a Reshape has the length of the example."""
    proto = operator("GRU", initial=False, outputs=("Y",))
    shape = [8, 1, -1, H] if axis == 0 else [-1, 1, 4, H]
    proto.graph.initializer.append(numpy_helper.from_array(np.array(shape), "shape"))
    proto.graph.node.append(helper.make_node("Reshape", ["Y", "shape"], ["end"]))
    del proto.graph.output[:]
    proto.graph.output.append(helper.make_tensor_value_info("end", TensorProto.FLOAT, ["T", 1, "B", H]))
    model, npz = store(tmp_path, proto, **data(steps=8, batch=4))
    with pytest.warns(EdgernnWarning, match=f"declares the axis of length {(8, 4)[axis]} as variable, but with"):
        calibrate_file(model, npz, loss=50.0)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"direction": "reverse"}, "direction: expected forward, got reverse"),
        ({"activations": ["Relu", "Tanh"]}, "activations: expected Sigmoid, Tanh, got Relu, Tanh"),
        ({"clip": 1.0}, "clip: expected 0, got 1.0"),
    ],
)
def test_what_no_cell_computes_is_left(options, reason):
    with pytest.raises(UsageError, match=f"m.onnx: expected an operator GRU or LSTM that can be .*number 0: {reason}"):
        find_recurrent_nodes(operator("GRU", **options), "m.onnx")


def test_weights_that_are_computed_are_left():
    proto = operator("GRU")
    proto.graph.input.append(helper.make_tensor_value_info("scale", TensorProto.FLOAT, [1]))
    proto.graph.node.insert(0, helper.make_node("Mul", ["W", "scale"], ["scaled"]))
    proto.graph.node[1].input[1] = "scaled"
    with pytest.raises(UsageError, match="input W: expected a constant, got scaled, which the graph computes"):
        find_recurrent_nodes(proto, "m.onnx")


@pytest.mark.parametrize(("number", "got"), [(np.nan, "NaN or infinity"), (np.inf, "NaN or infinity"), (None, "none")])
def test_weights_that_are_no_numbers_are_left(number, got):
    proto = operator("GRU")
    weight = np.zeros((1, 3 * H, H) if number else (1, 0, 0), np.float32)
    weight[..., :1] = number
    next(w for w in proto.graph.initializer if w.name == "R").CopyFrom(numpy_helper.from_array(weight, "R"))
    with pytest.raises(UsageError, match=f"number 0: input R: expected finite numbers, got {got}"):
        find_recurrent_nodes(proto, "m.onnx")


def test_results_and_other_files_are_refused(tmp_path):
    result = with_delta(find_recurrent_nodes(operator("GRU", initial=False), "m.onnx"), [(0.1, 0.1)], False)
    onnx.save(result, tmp_path / "m.onnx")
    with pytest.raises(UsageError, match="got another with edgernn's operators, such as a result of `edgernn calib"):
        calibrate_file(tmp_path / "m.onnx", tmp_path / "m.npz")
    (tmp_path / "m.onnx").write_bytes(b"\x00 no model")
    with pytest.raises(EdgernnError, match="expected an ONNX file, got another or a damaged one"):
        calibrate_file(tmp_path / "m.onnx", tmp_path / "m.npz")
    (tmp_path / "m.edgernn").write_bytes(PACKED_MAGIC)
    with pytest.raises(EdgernnError, match=r"packed model, which Session, C programs and browsers run; pass"):
        calibrate_file(tmp_path / "m.edgernn", tmp_path / "m.npz")
    with pytest.raises(EdgernnError, match="no such file"):
        calibrate_file(tmp_path / "none.onnx", tmp_path / "m.npz")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"z": np.zeros((T, B, I), np.float32)}, "expected the arrays X, which are the inputs of the graph"),
        ({"x": np.zeros((T, B, I + 1), np.float32)}, "does not run with these arrays"),
        ({"x": np.zeros((1, B, I), np.float32)}, "expected sequences of at least 2 steps, got 1"),
        (
            {"x": np.zeros((T, 0, I), np.float32)},
            r"X: expected at least one step and one sequence, got shape .9, 0, 3.",
        ),
        ({"x": np.zeros((T, B, I)) + 1j}, "X: expected finite numbers of the type float32, got complex128"),
        ({"x": np.full((T, B, I), 1e300)}, "X: expected finite numbers of the type float32, got float64"),
    ],
)
def test_data_that_do_not_fit_are_refused(arrays, message, tmp_path):
    model, npz = store(tmp_path, operator("GRU", initial=False), **arrays)
    with pytest.raises(EdgernnError, match=message):
        calibrate_file(model, npz)


def test_a_file_needs_data(tmp_path, capsys):
    assert main(["calibrate", str(tmp_path / "m.onnx")]) == 2
    assert "--data: expected an npz file with the inputs of" in capsys.readouterr().err
