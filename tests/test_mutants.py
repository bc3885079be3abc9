# SPDX-License-Identifier: Apache-2.0
"""Corrupted exported files are refused with a one-sentence error, before memory is allocated."""

import json
import re

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edgernn.bench import bench
from edgernn.cli.frame import main
from edgernn.errors import EdgernnError
from edgernn.runtime import Session
from edgernn.runtime.packed import pack
from tests.use_mutants import MODELS, find_faults

COUNT = 400


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


def move_out(model):
    weight = item(model.graph.initializer, "layer0.W")
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="/etc/passwd")


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
            r"damaged: an axis of length 1099511627776 cannot fit in a file of \d+ bytes",
        ),
        "an enormous input": (
            "imputer",
            resize("x", "T", "B", 2**40),
            r"input x of its graph: .* got tensor\(float\) \(T, B, 1099511627776\)",
        ),
        "no metadata": (
            "layers",
            lambda model: model.ClearField("metadata_props"),
            "expected a file that `edgernn export` wrote",
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


@pytest.mark.parametrize(
    ("change", "message"),
    {
        "numbers in another file": (move_out, r"the weight layer0\.W: expected raw"),
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
            r"the weight input\.mean: expected raw",
        ),
        "a node without inputs": (
            lambda model: item(model.graph.node, "layer0").ClearField("input"),
            "expected the inputs X, W, R, b, .*, got 1 inputs",
        ),
        "a kernel too many": (
            change_info(lambda info: info["kernels"].append("gru")),
            r"expected one kernel name for each kind of layer \(1 in the graph\), got gru\+selective, gru",
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
