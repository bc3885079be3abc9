# SPDX-License-Identifier: Apache-2.0
"""Corrupted exported files are refused with a one-sentence error, before memory is allocated."""

import itertools
import json
import os
import re
import shutil
import signal
import threading
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgernn.bench import bench
from edgernn.cli.frame import main
from edgernn.errors import EdgernnError, EdgernnWarning
from edgernn.export.exported_model import read_exported
from edgernn.export.streaming.stream_file import stream_file
from edgernn.runtime import Session
from edgernn.runtime.library import run_interruptibly
from edgernn.runtime.open_model import open_session
from edgernn.runtime.packed import pack
from edgernn.training.calibration.calibrate_file import calibrate_file
from edgernn.training.calibration.calibrated_graph import open_graph
from tests.use_mutants import MODELS, find_faults

# `make check-models` uses many more
COUNT = 50
WEIGHTS = {"W": (1, 12, 3), "R": (1, 12, 4)}


@pytest.mark.slow
def test_mutants_run_or_are_refused():
    assert find_faults(0, COUNT) == []


@pytest.mark.parametrize("number", [20919, 23054])
def test_mutants_with_states_of_another_shape_are_refused(number):
    # the bench of both ended in a traceback
    assert find_faults(number, number + 1) == []


def change_info(change):
    """Return a function that edits the metadata of a model."""

    def of_model(model):
        (entry,) = model.metadata_props
        info = json.loads(entry.value)
        change(info)
        entry.value = json.dumps(info)

    return of_model


def resize(name, *axes):
    """Return a function that sets the axes of an input; None means an unknown size."""

    def of_model(model):
        value = item(model.graph.input, name)
        value.CopyFrom(helper.make_tensor_value_info(name, TensorProto.FLOAT, axes))

    return of_model


def item(values, name):
    return next(value for value in values if value.name == name)


def move_out(tensor, place="secret"):
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=place)


def external(place="secret"):
    tensor = helper.make_tensor("numbers", TensorProto.FLOAT, [4], bytes(16), raw=True)
    move_out(tensor, place)
    return tensor


def in_a_branch(model):
    body = helper.make_graph(
        [helper.make_node("Constant", [], ["branch"], value=external())],
        "body",
        [],
        [helper.make_tensor_value_info("branch", TensorProto.FLOAT, [4])],
    )
    model.graph.node.add().CopyFrom(helper.make_node("If", ["c"], ["d"], then_branch=body, else_branch=body))


OUTSIDE = {
    "an initialiser": lambda model: move_out(item(model.graph.initializer, "layer0.W")),
    "an address in memory": lambda model: move_out(item(model.graph.initializer, "layer0.W"), "*/_ORT_MEM_ADDR_/*"),
    "a constant": lambda model: model.graph.node.insert(0, helper.make_node("Constant", [], ["c"], value=external())),
    "a list of tensors": lambda model: (
        model.graph.node[0].attribute.add(name="list", type=9).tensors.append(external())
    ),
    "a branch": in_a_branch,
    "a function": lambda model: (
        model.functions[0].node.add(op_type="Constant").attribute.add(name="value", type=4, t=external())
    ),
    "a sparse initialiser": lambda model: model.graph.sparse_initializer.add().indices.CopyFrom(external()),
    "a sparse constant": lambda model: (
        model.graph.node.add(op_type="Constant").attribute.add(name="sparse_value", type=11).sparse_tensor.values
    ).CopyFrom(external()),
    "a graph for training": lambda model: model.training_info.add().initialization.initializer.append(external()),
}


@pytest.mark.parametrize("case", OUTSIDE)
def test_numbers_outside_the_file_are_refused(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in (tmp_path, tmp_path / "service"):
        folder.mkdir(exist_ok=True)
        (folder / "secret").write_bytes(bytes(1 << 16))
    monkeypatch.chdir(tmp_path / "service")
    path = changed(tmp_path, OUTSIDE[case])
    ways = [lambda backend=backend: Session(path, backend=backend) for backend in ("auto", "native", "portable")]
    ways += [lambda: bench(path), lambda: packed(path), lambda: read_exported(path), lambda: open_graph(path)]
    for way in ways:
        with pytest.raises(EdgernnError, match=r"model\.onnx: tensor .*: expected its numbers in this file, got"):
            way()


def write_beside(folder):
    """Write a model of another tool that keeps its weights W and R in the file `weights`."""
    folder.mkdir(exist_ok=True)
    generator = np.random.default_rng(0)
    weights = {n: generator.normal(size=s).astype(np.float32) for n, s in WEIGHTS.items()}
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("GRU", ["X", "W", "R"], ["Y"], hidden_size=4)],
            "graph",
            [helper.make_tensor_value_info("X", TensorProto.FLOAT, ["T", "B", 3])],
            [helper.make_tensor_value_info("Y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(array, name) for name, array in weights.items()],
        ),
        opset_imports=[helper.make_opsetid("", 20)],
        ir_version=9,
    )
    path = folder / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights", size_threshold=0)
    return path, weights


def test_numbers_in_a_file_beside_one_of_another_tool_are_read(tmp_path, monkeypatch, capsys):
    path, weights = write_beside(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    graph = open_graph(path)
    assert [layer.name for layer in graph.nodes] == ["gru0"]
    for tensor in graph.proto.graph.initializer:
        assert not tensor.external_data
        assert (numpy_helper.to_array(tensor) == weights[tensor.name]).all()
    assert main(["info", str(path)]) == 0
    assert "GRU" in capsys.readouterr().out
    np.savez("x.npz", x=np.random.default_rng(1).normal(size=(20, 4, 3)).cumsum(0).astype(np.float32))
    # the file that is written stands alone
    result = calibrate_file(path, Path("x.npz"), Path("new.onnx"), loss=20)
    (tmp_path / "weights").unlink()
    assert onnxruntime.InferenceSession(result["model"], providers=["CPUExecutionProvider"]).get_outputs()
    with pytest.raises(EdgernnError, match=r"reference to another file, which is not read: .*No such file"):
        open_graph(path)


def link(path):
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")


def replace(path, make):
    path.unlink()
    make(path)


# what is changed of the tensor W (144 bytes) or of the file `weights` (336 bytes), and the reason of the refusal
HOSTILE = {
    "another folder": ({"location": "../weights"}, None, "name of a file in the folder of the model, got '../weights'"),
    "an absolute path": ({"location": "/etc/hostname"}, None, "name of a file in the folder of the model"),
    "the folder": ({"location": ".."}, None, "expected a regular file, got another kind"),
    "no name": ({"location": ""}, None, "name of a file in the folder of the model"),
    "an address in memory": ({"location": "*/_ORT_MEM_ADDR_/*"}, None, "name of a file in the folder of the model"),
    "a link": ({}, link, "expected a regular file, got a link"),
    "a FIFO": ({}, lambda path: replace(path, os.mkfifo), "expected a regular file, got another kind"),
    "a directory": ({}, lambda path: replace(path, os.mkdir), "expected a regular file, got another kind"),
    "beyond the end": ({"offset": "200"}, None, "expected 144 bytes at 200, got a file of 336"),
    "a negative offset": ({"offset": "-1"}, None, "expected a whole number as offset, got '-1'"),
    "another length": ({"length": "100"}, None, "expected 144 bytes for its shape, got 100"),
    "a file that is too short": ({}, lambda path: os.truncate(path, 300), "192 bytes at 144, got a file of 300"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_unsafe_references_to_other_files_are_refused(case, tmp_path):
    entries, change, reason = HOSTILE[case]
    path, _ = write_beside(tmp_path / "model")
    shutil.copy(tmp_path / "model/weights", tmp_path / "weights")
    model = onnx.load(path, load_external_data=False)
    for entry in item(model.graph.initializer, "W").external_data:
        entry.value = entries.get(entry.key, entry.value)
    path.write_bytes(model.SerializeToString())
    if change:
        change(path.with_name("weights"))
    with pytest.raises(EdgernnError, match=rf"tensor '[WR]': .*, which is not read: .*({reason})"):
        open_graph(path)


def test_references_do_not_multiply_memory(tmp_path):
    """100 tensors that name the same bytes, and one with a shape of many gigabytes."""
    path, _ = write_beside(tmp_path)
    model = onnx.load(path, load_external_data=False)
    (first, *_) = model.graph.initializer
    for i in range(100):
        model.graph.initializer.add().CopyFrom(first)
        model.graph.initializer[-1].name = f"copy{i}"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(EdgernnError, match="expected numbers of its own, got some that other tensors refer to as well"):
        open_graph(path)
    del first.dims[:], first.external_data[:]
    first.dims.extend([1 << 40])
    first.external_data.add(key="location", value="weights")
    path.write_bytes(model.SerializeToString())
    with pytest.raises(EdgernnError, match="expected at most 2 GB in all, got more"):
        open_graph(path)


@pytest.mark.parametrize("backend", ["native", "portable"])
def test_layers_that_share_weights_take_no_more_memory_than_the_file_allows(backend, tmp_path):
    """100 nodes with the weights of one layer, as a file of its size has 16 times its bytes at most."""

    def repeat(model):
        node = item(model.graph.node, "layer0")
        for i in range(100):
            model.graph.node.add().CopyFrom(node)
            model.graph.node[-1].output[:] = [name and f"{name}.{i}" for name in node.output]
        item(model.graph.initializer, "layer0.W").raw_data *= 1000
        item(model.graph.initializer, "layer0.W").dims[0] *= 1000

    path = changed(tmp_path, repeat)
    message = r"expected weights that take at most 16 times the file's .* bytes in memory, got .* as many layers share"
    for way in (packed, lambda path: Session(path, backend=backend), bench):
        with pytest.raises(EdgernnError, match=message):
            way(path)


@pytest.mark.parametrize("value", [0, -1, -(2**63), 2**31, 2**63 - 1])
def test_a_size_of_groups_out_of_range_is_refused(value, tmp_path, capsys):
    def regroup(model):
        node = item(model.graph.node, "layer0")
        node.attribute.add(name="group_size", type=onnx.AttributeProto.INT, i=value)

    path = changed(tmp_path, regroup)
    assert main(["pack", str(path)]) == 1
    error = capsys.readouterr().err
    assert re.fullmatch(rf"edgernn: error: .*group_size: expected [^\n]*, got {value}[^\n]*\n", error), error
    with pytest.raises(EdgernnError, match=f"group_size: expected .*, got {value}"):
        Session(path, backend="native")
    session = Session(path, backend="portable")
    session.step(np.zeros((1, session.input_size), np.float32))
    if value < 1:
        with pytest.raises(EdgernnError, match=f"group_size: expected .*, got {value}"):
            session.save_state()


def changed(tmp_path, change, original="layers"):
    model = onnx.load(MODELS / f"{original}.onnx")
    change(model)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def packed(path):
    return pack(path.read_bytes(), path)


@pytest.mark.parametrize(
    ("change", "message"),
    {
        "no sizes": (lambda info: info.pop("model"), r"lacks the value model\.layer\.cell\.name"),
        "no list": (lambda info: info.update(kernels=None), r"kernels in .*: expected a list of names, got None"),
        "a negative size": (
            lambda info: info["model"]["input"].update(size=-3),
            r"model\.input\.size in .*: expected a whole number of at least 1, got -3",
        ),
        "a word for a flag": (lambda info: info.update(streaming="no"), "streaming in .*: expected true or false"),
        "a list of states": (
            lambda info: info.update(initial_state=[[]]),
            "initial_state in .*: expected a table of lists of",
        ),
        "an unknown state": (
            lambda info: info.update(initial_state={"layer0.c": [1.0]}),
            r"initial value of the state layer0\.c: expected 0 numbers, got 1",
        ),
        "NaN": (lambda info: info.update(version=float("nan")), "metadata cannot be read"),
        "infinite as float32": (lambda info: info["cost"].update(parameters=1e308), "expected a number, got 1e.308"),
        "an enormous size": (
            lambda info: info["model"]["input"].update(size=2**40),
            r"model\.input\.size in .*, got 1099511627776",
        ),
        "another input": (
            lambda info: info["model"]["input"].update(size=2**30),
            r"input x of its graph: expected tensor\(float\) \(T, B, 1073741824\), got tensor\(float\) \(T, B, 3\)",
        ),
        "layers beyond number": (
            lambda info: info["model"].update(layers=2**30),
            "states of 107374182. layers in the graph, got states of 2 layers",
        ),
        "other neurons": (lambda info: info["model"].update(hidden_size=2**30), "layer0: expected a state of 1073741"),
        "another head": (
            lambda info: info["model"]["head"].update(size=7),
            r"output y of its graph: expected tensor\(float\) \(B, 7\), got tensor\(float\) \(B, 2\)",
        ),
    }.values(),
)
def test_a_description_that_is_wrong_is_refused(change, message, tmp_path):
    path = changed(tmp_path, change_info(change))
    for use in (Session, bench, packed):
        with pytest.raises(EdgernnError, match=rf"model\.onnx: .*{message}"):
            use(path)


@pytest.mark.parametrize(
    ("original", "change", "message"),
    {
        "a state without a size": (
            "layers",
            resize("layer0.h", "B", None),
            r"input layer0\.h of its graph: expected tensor\(float\) \(B, H\), got",
        ),
        "a state without axes": ("layers", resize("layer0.h"), r"input layer0\.h .* got tensor\(float\) \(\)"),
        "an enormous state": (
            "layers",
            resize("layer1.h", "B", 2**40),
            r"damaged: 10995116277\d\d channels and states cannot fit in a file of \d+ bytes",
        ),
        "an enormous input": (
            "imputer",
            resize("x", "T", "B", 2**40),
            r"\(Identity\): expected values of at most 4,294,967,296 bytes, got one of 4,398,046,511,104",
        ),
        "no output": (
            "layers",
            lambda model: model.graph.output.remove(item(model.graph.output, "layer1.h.next")),
            r"output layer1\.h\.next of its graph: expected .*, got none",
        ),
        "nested metadata": (
            "layers",
            lambda model: setattr(model.metadata_props[0], "value", '{"a":' * 100_000),
            "metadata cannot be read",
        ),
    }.values(),
)
def test_a_graph_that_is_not_the_one_described_is_refused(original, change, message, tmp_path):
    path = changed(tmp_path, change, original)
    with pytest.raises(EdgernnError, match=rf"model\.onnx: .*{message}"):
        packed(path)
    for use in (Session, bench):
        with pytest.raises(
            EdgernnError, match=rf"model\.onnx: .*({message}|ONNX Runtime cannot load the model: .*ShapeInference)"
        ):
            use(path)


def test_a_file_without_metadata_is_opened_as_that_of_another_tool(tmp_path):
    with pytest.warns(EdgernnWarning, match="not packed: updates, macs, as outputs are float32"):
        lost = Session(changed(tmp_path, lambda model: model.ClearField("metadata_props"), "layers"))
    own = Session(MODELS / "layers.onnx")
    x = np.random.default_rng(0).normal(size=(7, 2, own.input_size)).astype(np.float32)
    # the file does not say that its answer is that of the last step
    np.testing.assert_allclose(lost.run(x)[-1], own.run(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    {
        "no weight": (
            lambda model: setattr(item(model.graph.initializer, "layer0.W"), "name", "W"),
            r"expected the weight layer0\.W, got none",
        ),
        "half the numbers": (
            lambda model: setattr(item(model.graph.initializer, "head.b"), "raw_data", b"\0" * 4),
            r"the weight head\.b: expected raw",
        ),
        "an enormous weight": (
            lambda model: item(model.graph.initializer, "head.b").dims.append(2**40),
            r"the weight head\.b: expected raw",
        ),
        "another mean": (
            lambda model: model.graph.initializer.append(helper.make_tensor("input.mean", 1, [2], [0.0, 0.0])),
            r"input\.mean of its graph: expected the numbers",
        ),
        "a node without inputs": (
            lambda model: item(model.graph.node, "layer0").ClearField("input"),
            "expected the inputs X, W, R, b, .*, got 1 inputs",
        ),
        "a kernel too many": (
            change_info(lambda info: info["kernels"].append("gru")),
            r"kernels of its graph: expected \['gru\+selective', 'gru'\] as in its edgernn metadata, got \['gru",
        ),
    }.values(),
)
def test_a_model_is_not_packed_without_its_weights(change, message, tmp_path, capsys):
    path = changed(tmp_path, change)
    assert main(["pack", str(path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("edgernn: error: ")
    assert error.count("\n") == 1
    assert re.search(message, error), error
    assert not path.with_suffix(".edgernn").exists()


@pytest.mark.parametrize("name", ["layer1.h", "layer0.W", "Recurrent"])
def test_a_name_that_is_not_utf8_is_refused(name, tmp_path, capfd):
    path = tmp_path / "model.onnx"
    path.write_bytes((MODELS / "layers.onnx").read_bytes().replace(name.encode(), b"\xff" * len(name)))
    with pytest.raises(EdgernnError, match=r"model\.onnx: expected names in UTF-8, got other bytes"):
        packed(path)
    # ONNX Runtime accepts any bytes as a name
    with pytest.raises(EdgernnError, match=r"model\.onnx: expected names in UTF-8, got other bytes"):
        Session(path).step(np.zeros((2, 3)))
    # otherwise ONNX Runtime prints its next attempt
    assert capfd.readouterr() == ("", "")


def test_counts_of_one_anothers_shape_are_refused(tmp_path):
    def swap(model):
        outputs = model.functions[0].output
        outputs.insert(1, outputs.pop(2))

    with pytest.raises(EdgernnError, match=r"output updates of its graph: expected tensor\(int64\) \(T, B\), got"):
        Session(changed(tmp_path, swap, "imputer"), backend="portable")


def add_nodes(*nodes, **arrays):
    """Return a function that adds nodes and constants to a graph."""

    def of_model(model):
        model.graph.node.extend(nodes)
        model.graph.initializer.extend(numpy_helper.from_array(np.array(a), name) for name, a in arrays.items())

    return of_model


def doubled(first, count):
    """Nodes that double the length of a value `count` times."""
    names = itertools.pairwise([first, *(f"double{i}" for i in range(count))])
    return [helper.make_node("Concat", [a, a], [b], f"double.{b}", axis=0) for a, b in names]


def loop(condition, turns="turns"):
    """Make a Loop of at most this value's turns whose body computes the condition by this node."""
    kinds = {"i": TensorProto.INT64, "goes": TensorProto.BOOL, "sum": TensorProto.FLOAT}
    inputs = [helper.make_tensor_value_info(name, kind, []) for name, kind in kinds.items()]
    outputs = [helper.make_tensor_value_info(f"{name}.next", kinds[name], []) for name in ("goes", "sum")]
    nodes = [condition, helper.make_node("Add", ["sum", "sum"], ["sum.next"])]
    body = helper.make_graph(nodes, "body", inputs, outputs)
    return helper.make_node("Loop", [turns, "", "zero"], ["total"], "endless", body=body)


EARLY = helper.make_node("Less", ["i", "last"], ["goes.next"])


def nested_functions(model):
    """Add functions of which each calls the next one twice."""
    opset = [helper.make_opsetid("", 18), helper.make_opsetid("test", 1)]
    for i in range(30):
        nodes = [helper.make_node(f"F{i + 1}", [a], [b], domain="test") for a, b in (("a", "b"), ("b", "c"))]
        model.functions.append(helper.make_function("test", f"F{i}", ["a"], ["c"], nodes, opset))
    last = [helper.make_node("Neg", ["a"], ["c"])]
    model.functions.append(helper.make_function("test", "F30", ["a"], ["c"], last, opset))
    model.opset_import.append(helper.make_opsetid("test", 1))
    model.graph.node.append(helper.make_node("F0", ["x"], ["deep"], domain="test"))


@pytest.mark.parametrize(
    ("change", "message"),
    {
        "constants": (
            add_nodes(*doubled("one", 40), one=[1.0]),
            r"'double.double2\d' \(Concat\): expected values com",
        ),
        "values": (add_nodes(*doubled("x", 40)), r"\(Concat\): expected values of at most 4,294,967,296 bytes"),
        "shapes": (
            add_nodes(
                helper.make_node("Mul", ["many", "many"], ["product"]),
                helper.make_node("ConstantOfShape", ["product"], ["filled"], "fill"),
                many=[2**14],
            ),
            r"'fill' \(ConstantOfShape\): expected values computed from constants",
        ),
        "turns": (
            add_nodes(loop(helper.make_node("Identity", ["goes"], ["goes.next"])), turns=2**40, zero=np.float32(0)),
            r"'endless' \(Loop\): expected loops whose limits of turns allow 16,777,216 nodes in all, got 1,099,511",
        ),
        "turns until a condition": (add_nodes(loop(EARLY), turns=2**40, zero=np.float32(0), last=7), r"\(Loop\)"),
        "turns without a limit": (add_nodes(loop(EARLY, ""), zero=np.float32(0), last=7), r"\(Loop\): expected loops"),
        "turns for each step": (
            add_nodes(
                helper.make_node("Size", ["x"], ["size"]),
                helper.make_node("Mul", ["size", "many"], ["turns"]),
                loop(EARLY),
                many=2**40,
                zero=np.float32(0),
                last=7,
            ),
            r"'endless' \(Loop\): expected loops",
        ),
        "functions": (nested_functions, r"expected functions that have about as many nodes as its [\d,]+ bytes"),
        "text": (
            add_nodes(
                *(helper.make_node("StringConcat", [f"s{i}"] * 2, [f"s{i + 1}"]) for i in range(40)), s0=["letters"]
            ),
            r"\(StringConcat\): expected constants of a size that is known before",
        ),
    }.values(),
)
def test_a_graph_that_asks_for_more_work_than_its_size_is_refused(change, message, tmp_path):
    def grown(model):
        change(model)
        next(entry for entry in model.opset_import if entry.domain == "").version = 20

    path = changed(tmp_path, grown)
    for use in (Session, bench, packed, stream_file):
        with pytest.raises(EdgernnError, match=rf"model\.onnx: node .*{message}"):
            use(path)


def test_a_loop_with_a_limit_is_read(tmp_path):
    change = add_nodes(loop(EARLY), turns=2**20, zero=np.float32(0), last=7)
    Session(changed(tmp_path, change), backend="portable")


def test_an_interrupt_stops_a_loop_whose_turns_the_numbers_of_an_input_set(tmp_path):
    change = add_nodes(
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Cast", ["most"], ["turns"], to=TensorProto.INT64),
        loop(helper.make_node("Identity", ["goes"], ["goes.next"])),
        zero=np.float32(0),
    )
    proto = onnx.load(changed(tmp_path, change))
    proto.graph.output.append(helper.make_tensor_value_info("total", TensorProto.FLOAT, []))
    session = open_session(tmp_path, proto, None, 1)
    feeds = {
        v.name: np.full([1 if isinstance(n, str) else n for n in v.shape], 1e18, "f") for v in session.get_inputs()
    }
    press = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    press.start()
    with pytest.raises(KeyboardInterrupt):
        run_interruptibly(session, ["total"], feeds)
    press.join()
