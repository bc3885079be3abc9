# SPDX-License-Identifier: Apache-2.0
"""Facts that stand in the metadata and in the graph of an exported file: a file with two versions of one is refused."""

import json
import tracemalloc

import numpy as np
import onnx
import pytest

import edgernn
from edgernn.errors import EdgernnError
from edgernn.export.exported_model import read_exported
from edgernn.export.graph import build
from edgernn.runtime import Session
from edgernn.runtime.fourier import factors
from edgernn.runtime.packed import pack
from tests.test_frontends import model_of

MODELS = {
    "floor": lambda: model_of("floor", cell="sarnn", mean=0.5, std=2.0),
    "pcen": lambda: model_of("pcen", cell="gru"),
    "words": lambda: edgernn.SequenceModel("gru", 4, 6, 3, vocabulary=9),
    "blocks": lambda: edgernn.SequenceModel("mingru", 4, 6, 3, block="gated"),
    "channels": lambda: edgernn.SequenceModel("gru", 2, 6, 3, mean=[1.0, 2.0], std=[0.5, 4.0]),
}


@pytest.fixture(scope="module")
def protos():
    return {name: build(make().eval(), portable=False) for name, make in MODELS.items()}


def settings(**changes):
    return lambda info: info["model"]["frontend"].update(changes)


def of_input(**changes):
    return lambda info: info["model"]["input"].update(changes)


# a model, a change of its metadata, and the fact that the error names
METADATA = [
    ("floor", settings(energy_floor=2e-6), "frontend.energy_floor"),
    ("floor", settings(floor_rise=0.03), "frontend.rise"),
    ("floor", settings(floor_fall=0.3), "frontend.fall"),
    ("floor", settings(sample_rate=16010), "frontend.filters"),
    ("floor", settings(low_frequency=30.0), "frontend.filters"),
    ("floor", settings(high_frequency=7000.0), "frontend.filters"),
    ("floor", settings(normalise="pcen"), "front end"),
    ("floor", settings(normalise="log"), "front end"),
    ("floor", settings(window_size=1 << 30, hop=(1 << 30) - 240), "front end"),
    ("pcen", settings(pcen_smoothing=0.03), "frontend.fall"),
    ("floor", of_input(mean=[0.4]), "input.mean"),
    ("channels", of_input(std=[0.5, 5.0]), "input.std"),
    ("channels", of_input(mean=[0.0], std=[1.0]), "input.mean"),
    ("words", of_input(vocabulary=8), "vocabulary"),
    ("words", of_input(mean=[1.0]), "input.mean"),
    ("blocks", lambda info: info["model"].update(block="linear"), "block"),
    ("channels", lambda info: info.update(kernels=["gru-before"]), "kernels"),
]


def assert_refused(proto, fact, path):
    onnx.save(proto, path)
    for read in (lambda path: Session(path, backend="native"), lambda p: pack(p.read_bytes(), p), read_exported):
        with pytest.raises(EdgernnError, match=f"{path}: {fact}.*expected .*export the model again"):
            read(path)


@pytest.mark.parametrize(("name", "change", "fact"), METADATA)
def test_metadata_that_differ_from_the_graph_are_refused(protos, name, change, fact, tmp_path):
    proto = onnx.ModelProto()
    proto.CopyFrom(protos[name])
    (entry,) = proto.metadata_props
    info = json.loads(entry.value)
    change(info)
    entry.value = json.dumps(info)
    assert_refused(proto, fact, tmp_path / "m.onnx")


def insert_before(graph, reader, op):
    """Let the first input of the node `reader` pass through a node of this op."""
    place, node = next((i, node) for i, node in enumerate(graph.node) if node.name == reader)
    graph.node.insert(place, onnx.helper.make_node(op, [node.input[0]], ["added"], "added"))
    node.input[0] = "added"


def append_softmax(graph):
    graph.node[[node.name for node in graph.node].index("y")].output[0] = "scores"
    graph.node.append(onnx.helper.make_node("Softmax", ["scores"], ["y"], "Softmax_0"))


ADDED = {
    "before the layer": lambda graph: insert_before(graph, "layer0", "Neg"),
    "before the head": lambda graph: insert_before(graph, "head.product", "Relu"),
    "after the head": append_softmax,
}


@pytest.mark.parametrize("change", ADDED.values(), ids=ADDED)
def test_a_node_that_a_packed_model_would_leave_out_is_refused(protos, change, tmp_path):
    proto, path = onnx.ModelProto(), tmp_path / "m.onnx"
    proto.CopyFrom(protos["channels"])
    change(proto.graph)
    onnx.save(proto, path)
    # the graph itself can run
    session = Session(path, backend="native")
    assert session.run(np.zeros((2, 2), np.float32)).shape == (3,)
    for read in (lambda: pack(path.read_bytes(), path), lambda: session.step([1.0, 2.0]), lambda: read_exported(path)):
        with pytest.raises(EdgernnError, match=r"nodes that edgernn writes, got (Neg|Relu|Softmax|Add) for"):
            read()


CONSTANTS = [
    "dft.cos",
    "dft.sin",
    "dft.rows",
    "twiddle.cos",
    "twiddle.sin",
    "window",
    "filters",
    "offsets",
    "hop",
]


@pytest.mark.parametrize("name", [*CONSTANTS, "energy_floor", "one"])
def test_a_constant_of_a_front_end_that_differs_from_the_metadata_is_refused(protos, name, tmp_path):
    proto = onnx.ModelProto()
    proto.CopyFrom(protos["floor"])
    (tensor,) = (tensor for tensor in proto.graph.initializer if tensor.name == f"frontend.{name}")
    array = onnx.numpy_helper.to_array(tensor).copy()
    largest = np.unravel_index(np.argmax(array), array.shape)
    array[largest] = array[largest] + 1 if array.dtype == np.int64 else array[largest] * np.float32(1.001)
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    assert_refused(proto, f"frontend.{name}", tmp_path / "m.onnx")


def test_a_small_file_that_claims_a_long_window_takes_little_memory(protos, tmp_path):
    """The tensors have the shapes of the metadata, but no numbers; the filters of that window would take 1.3 GB."""
    proto = onnx.ModelProto()
    proto.CopyFrom(protos["floor"])
    (entry,) = proto.metadata_props
    info = json.loads(entry.value)
    size = 1 << 23
    settings(window_size=size, hop=size - 240)(info)
    entry.value = json.dumps(info)
    first, second = factors(size)
    shapes = {"window": [size], "filters": [(first // 2 + 1) * second, 40]}
    for name, shape in shapes.items():
        (tensor,) = (tensor for tensor in proto.graph.initializer if tensor.name == f"frontend.{name}")
        tensor.CopyFrom(onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=shape))
    onnx.save(proto, tmp_path / "m.onnx")
    tracemalloc.start()
    try:
        for read in (lambda path: pack(path.read_bytes(), path), read_exported):
            with pytest.raises(EdgernnError, match=r"front end: expected hop \* stack = 160, the size of x"):
                read(tmp_path / "m.onnx")
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["fall", "rise", "silent"])
def test_a_constant_of_a_recursion_that_differs_from_the_metadata_is_refused(protos, name, tmp_path):
    proto = onnx.ModelProto()
    proto.CopyFrom(protos["floor"])
    (scan,) = (node for node in proto.graph.node if node.op_type == "Scan")
    (body,) = (a.g for a in scan.attribute if a.name == "body")
    (constant,) = (node for node in body.node if name in node.output)
    constant.attribute[0].f *= 1.5
    assert_refused(proto, f"frontend.{name}", tmp_path / "m.onnx")


def test_layers_that_differ_from_the_metadata_are_not_evaluated(tmp_path):
    """Both sizes make two groups, so that the shapes of the weights are the same."""
    model = edgernn.SequenceModel("gru", 2, 6, 3, rule="selective", rule_options={"group_size": 4})
    proto = build(model.eval(), portable=False)
    (entry,) = proto.metadata_props
    info = json.loads(entry.value)
    info["model"]["layer"]["rule"]["options"]["group_size"] = 5
    entry.value = json.dumps(info)
    onnx.save(proto, tmp_path / "m.onnx")
    with pytest.raises(EdgernnError, match=r"group_size of its layers: expected \[5\] as in .*, got \[4\]; export"):
        read_exported(tmp_path / "m.onnx")
