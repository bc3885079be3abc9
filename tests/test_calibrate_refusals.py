# SPDX-License-Identifier: Apache-2.0
"""Refusals of exported files that cannot be calibrated, that are damaged, and of data that do not fit."""

import json

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import edgernn
from edgernn.errors import EdgernnError, UsageError
from edgernn.export import graph
from edgernn.runtime import Session
from edgernn.training.calibration.calibrate_file import calibrate_file
from edgernn.training.calibration.calibrated_graph import open_graph
from tests.models import exported
from tests.own_cells import JANET
from tests.test_calibrate_exported import inputs, model_of, store


def changed(path, tmp_path, change):
    """Write a copy of a file after `change(proto, info)`; return its path."""
    proto = onnx.load(path)
    info = json.loads(proto.metadata_props[0].value)
    change(proto, info)
    if info is not None:
        helper.set_model_props(proto, {"edgernn": json.dumps(info)})
    out = tmp_path / "changed.onnx"
    out.write_bytes(proto.SerializeToString())
    return out


def set_weight(name, shape):
    def change(proto, info):
        (tensor,) = (t for t in proto.graph.initializer if t.name == name)
        tensor.CopyFrom(numpy_helper.from_array(np.zeros(shape, np.float32), name))

    return change


def set_node(change):
    return lambda proto, info: change(next(n for n in proto.graph.node if n.name == "layer0"))


def add_input(node):
    node.input.append("layer0.h")


def other_cell(node):
    next(a for a in node.attribute if a.name == "cell").s = b"lstm"


def rename(node):
    node.name = "layer7"


BROKEN = {
    "cell": (lambda p, info: info["model"]["layer"]["cell"].update(name="x.py:A"), "expected a cell of edgernn, got"),
    "other cell": (lambda p, info: info["model"]["layer"]["cell"].update(name="rnn"), "expected shape"),
    "options": (
        lambda p, info: info["model"]["layer"]["cell"].update(options={"a": 1}),
        "expected the description of a model, got one with the error",
    ),
    "setting": (
        lambda p, info: info["model"].update(further=1),
        "expected the description of a model, got one with the error",
    ),
    "imputer": (lambda p, info: info["model"]["layer"].update(imputer="mine"), "expected an imputer of edgernn"),
    "layers": (lambda p, info: info["model"].update(layers=3), "expected states of 3 layers in the graph"),
    "missing weight": (lambda p, info: p.graph.initializer.remove(p.graph.initializer[0]), "expected the weight"),
    "shape": (set_weight("layer0.W", (3, 3)), r"layer0.W: expected shape \(99, 3\), got \(3, 3\)"),
    "inputs": (set_node(add_input), "inputs of the node layer0: expected"),
    "attributes": (set_node(other_cell), "attributes of the node layer0: expected"),
    "name": (set_node(rename), "name of the node layer0: expected"),
    "no nodes": (
        lambda p, info: p.graph.node.remove(next(n for n in p.graph.node if n.name == "layer0")),
        "expected 2 nodes of edgernn's layers in its graph, got 1",
    ),
    "no info": (lambda p, info: info.clear(), "its edgernn metadata cannot be read"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_damaged_files_are_refused(case, tmp_path):
    _, path = exported("gru", layers=2)
    change, message = BROKEN[case]
    with pytest.raises(EdgernnError, match=message) as error:
        open_graph(changed(path, tmp_path, change))
    assert "\n" not in str(error.value)


def test_a_large_size_in_the_metadata_takes_no_memory(tmp_path):
    """The states of the graph have this size, but not the weights."""

    def change(proto, info):
        info["model"]["hidden_size"] = 20_000
        for value in [*proto.graph.input, *proto.graph.output]:
            if ".h" in value.name:
                value.type.tensor_type.shape.dim[1].dim_value = 20_000

    _, path = exported("gru", layers=2)
    with pytest.raises(EdgernnError, match=r"layer0.W: expected shape \(60000, 3\), got \(99, 3\)"):
        open_graph(changed(path, tmp_path, change))


@pytest.mark.parametrize(
    ("cell", "options", "message"),
    [
        ("gru", {"rule": "selective"}, "expected a model with the rule always or delta, got the rule 'selective'"),
        ("gru", {"rank": 4}, "the native library has no kernel for low-rank weights with the rule delta"),
        ("gru", {"norm": "layer"}, "the native library has no kernel for a layer with a normalisation"),
        (JANET, {}, "expected a cell of edgernn, got 'janet', whose Python file is not in the exported file"),
    ],
    ids=["rule", "rank", "norm", "own cell"],
)
def test_models_that_cannot_skip_are_refused(cell, options, message, tmp_path):
    model = edgernn.SequenceModel(cell, 3, 8, **options)
    (tmp_path / "m.onnx").write_bytes(graph.build(model, portable=False).SerializeToString())
    with pytest.raises(UsageError, match=message):
        calibrate_file(tmp_path / "m.onnx", tmp_path / "m.npz")


def nan(x):
    return np.where(np.arange(x.size).reshape(x.shape) == 7, np.nan, x)


@pytest.mark.parametrize(
    ("case", "arrays", "message"),
    [
        ("gru", lambda x: {"z": x}, "data.npz: expected the array x, and perhaps labels y, got z"),
        ("gru", lambda x: {"x": x[0]}, r"data.npz: x: expected shape \(N, T, 3\), as `edgernn run` reads it, got"),
        ("gru", lambda x: {"x": x[..., :2]}, r"data.npz: x: expected shape \(N, T, 3\)"),
        ("gru", lambda x: {"x": nan(x)}, "data.npz: x: expected finite numbers, got nan"),
        ("gru", lambda x: {"x": x[:, :1]}, "expected sequences of at least 2 steps, got 1"),
        ("gru", lambda x: {"x": x, "y": np.zeros(3, int)}, r"y: expected integer classes of shape \(6,\)"),
        ("words", lambda x: {"x": x + 11}, "data.npz: x: expected word indices from 0 to 10"),
    ],
    ids=["names", "axes", "channels", "nan", "one step", "labels", "words"],
)
def test_data_that_do_not_fit_are_refused(case, arrays, message, tmp_path):
    _, path = model_of(case)
    npz = store(tmp_path, **arrays(inputs(Session(path))))
    with pytest.raises(EdgernnError, match=message):
        calibrate_file(path, npz, tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()


def test_operators_of_other_tools_that_share_weights_take_no_more_memory_than_the_file_allows(tmp_path):
    H, weights = 128, [numpy_helper.from_array(np.zeros((1, 384, 128), np.float32), name) for name in "WR"]
    x, *states = [
        helper.make_tensor_value_info(f"h{i}", 1, ["T", "B", H] if i == 0 else [1, "B", H]) for i in range(41)
    ]
    nodes = [helper.make_node("GRU", ["h0", "W", "R"], ["", f"h{i + 1}"], f"gru{i}", hidden_size=H) for i in range(40)]
    proto = helper.make_model(helper.make_graph(nodes, "shared", [x], states, weights), ir_version=9)
    del proto.opset_import[:]
    proto.opset_import.append(helper.make_opsetid("", 17))
    onnx.save(proto, tmp_path / "shared.onnx")
    with pytest.raises(
        EdgernnError, match=r"weights that take at most 16 times the file's .* as many layers share them"
    ):
        open_graph(tmp_path / "shared.onnx")
