# SPDX-License-Identifier: Apache-2.0
"""C files of exported models: printed equations, refusals and compiled models. `make check-mcu` has all others."""

import errno
import math
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

import edgernn
from edgernn.bench.microcontroller import missing_tool, targets
from edgernn.cells import COMPILED
from edgernn.cli import bench as bench_command
from edgernn.cli.frame import main
from edgernn.errors import UsageError
from edgernn.program import STORED_OPS
from edgernn.rules import RULES
from edgernn.runtime.firmware import equations, pointwise_c
from edgernn.runtime.firmware.folder import c_files
from edgernn.runtime.firmware.layer_parts import largest_quantised
from edgernn.runtime.graph_options import GraphOptions
from edgernn.runtime.packed import pack
from edgernn.runtime.step_graph.content import CODES
from edgernn.runtime.step_graph.pack import pack_graph
from tests.apps import ROOT, need, run
from tests.firmware import STRICT, step_in_c, write_files
from tests.models import contractive, exported, exported_alone, packed_alone
from tests.test_packed import random_input, steps
from tests.test_step_graph import Net, fourier, native, normal, periodic, random_net, small_file
from tests.tolerances import FLOAT32


def is_printed(rule):
    """Return whether a rule has C code."""
    return equations.built_in_rules()[rule].has_code


def test_every_cell_and_op_is_in_the_table():
    for cell in COMPILED.values():
        for form in cell.forms():
            table = equations.built_in_cell(form.form)
            assert table is not None
            assert (len(table.gates), table.states) == (len(form.gates), len(form.states))
            assert (table.mid is None) == (not any(gate.m for gate in form.gates))
    assert STORED_OPS.keys() == pointwise_c.ExpressionPrinter.expressions.keys()


@pytest.mark.parametrize(("cell", "sizes"), [("irc-gru", [5]), ("irc-fastgrnn", [5, 1]), ("fastgrnn", [7, 7, 1, 1])])
def test_maps_are_those_of_the_cell(cell, sizes):
    layer = edgernn.SequenceModel(cell, 5, 7, 1).recurrent_layers()[0]
    stored = [np.linspace(-2, 2, size, dtype=np.float32) for size in sizes]
    mapped = equations.mapped_vectors(equations.built_in_cell(cell).map, stored)
    for vector, before, after in zip(layer.cell.vectors.values(), stored, mapped, strict=True):
        expected = torch.from_numpy(before)
        np.testing.assert_allclose(after, expected if vector.map is None else vector.map(expected), rtol=1e-6)


def test_literals_are_exact():
    numbers = [0.0, 1.0, -0.5, 1 / 3, 1e-30, 3.4e38, 16777216.0, -1.5e-7]
    for number in map(np.float32, numbers):
        text = pointwise_c.float_literal(number)
        assert text.endswith("f")
        assert "." in text or "e" in text
        assert np.float32(text[:-1]) == number


def test_names_of_a_file_end_no_comment():
    hostile = 'a*/ int x;\n#include "b"\x1b'
    text = pointwise_c.block_comment(f"A layer of {hostile}.")
    assert text.count("*/") == 1
    assert text.endswith("*/")
    assert "\n#" not in text
    assert pointwise_c.identifier(hostile) == "a___int_x___include__b__"


@pytest.mark.parametrize("depth", [1, 128, 516, 517, 10_000])
def test_sums_of_quantised_products_fit_into_32_bits(depth):
    most = largest_quantised(depth)
    assert 0 < most <= 32639
    assert 127 * most * depth < 2**31


@pytest.mark.parametrize("rule", [rule for rule in RULES if is_printed(rule)])
@pytest.mark.slow
@pytest.mark.parametrize("cell", ["irc-gru", "t-lstm", "egru"])
def test_a_compiled_model_equals_the_library(cell, rule):
    content, x = exported_alone(contractive(cell, rule)), random_input(9, 1, 3)
    got, (y, updates, _) = step_in_c(content, x[:, 0]), steps(pack(content, Path("model.onnx")), x)
    np.testing.assert_allclose(got.y, y[:, 0], rtol=0, atol=FLOAT32)
    np.testing.assert_array_equal(got.updates, np.full(9, 33) if updates is None else updates[:, 0])


def test_weights_and_state_have_the_sizes_that_pack_reports():
    files = c_files(exported_alone(contractive("gru", "selective")), Path("model.onnx"))
    floats = 33 * (3 * 3 + 3 * 33 + 4) + 33 * 5 + 2 * 34
    assert files.weight_bytes == 4 * floats
    # h, the new states and a list of 16-bit numbers
    assert files.state_bytes == 4 * 33 * 2 + 2 * 34 + 4


def test_what_c_lacks_is_refused():
    for model, message in (
        (contractive("gru", "phased"), r"gru\+phased: expected an update rule with C code"),
        (contractive("lstm", input_size=9, imputer="rits"), "C code needs a layer without imputer and normalisation"),
    ):
        with pytest.raises(UsageError, match=message):
            c_files(exported_alone(model), Path("model.onnx"))
    with pytest.raises(UsageError, match="--name: expected a C identifier"):
        c_files(exported_alone(contractive("gru")), Path("model.onnx"), "9lives")
    with pytest.raises(UsageError, match="--name: expected a name that does not begin with edgernn_"):
        c_files(exported_alone(contractive("gru")), Path("model.onnx"), "edgernn_math")
    for name in ("errno", "math", "stdatomic", "unistd", "edgernn"):
        with pytest.raises(UsageError, match=f"--name: expected a name other than that of a header, got {name!r}"):
            c_files(exported_alone(contractive("gru")), Path("model.onnx"), name)
    model = contractive("gru")
    with torch.no_grad():
        model.head.bias[0] = torch.inf
    with pytest.raises(UsageError, match="array bias: expected finite numbers for C code, got a NaN or an infin"):
        c_files(exported_alone(model), Path("model.onnx"))


@pytest.mark.parametrize("target", ["c", "library"])
def test_the_command_refuses_files_that_are_no_model(target, tmp_path, capsys):
    path, out = tmp_path / "a.onnx", tmp_path / "out"
    model = Path(exported("gru")[1]).read_bytes()
    for content in (b"", b"RIFF" + bytes(500), packed_alone(contractive("gru")), model[: len(model) // 2], model[:-9]):
        path.write_bytes(content)
        assert main(["pack", str(path), "--target", target, "--out", str(out)]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"edgernn: error: {path}: ")
        assert not out.exists()


@pytest.mark.slow
def test_the_command_writes_a_folder(tmp_path, capsys):
    path = exported("gru", "selective", layers=2)[1]
    assert main(["pack", str(path), "--target", "c", "--out", str(tmp_path), "--name", "a"]) == 0
    names = {"a.c", "a.h", "a.cmake", "clang.flags", "gcc.flags", "edgernn_math.h", "edgernn_products.h"}
    assert {file.name for file in tmp_path.iterdir()} == names
    assert "bytes of weights" in capsys.readouterr().out


@pytest.mark.parametrize("file", ["model.c", "model.h", "model.cmake", "model_detector.h"])
def test_a_file_of_the_users_own_is_not_replaced(file, tmp_path, capsys):
    words = ["pack", "english-room-delta", "--target", "c", "--out", str(tmp_path)]
    assert main(words) == main(words) == 0
    (tmp_path / file).write_text("int mine;\n")
    assert main(words) == 2
    assert f"{file}: expected none, or a file that edgernn wrote, got another; choose" in capsys.readouterr().err
    assert (tmp_path / file).read_text() == "int mine;\n"


def test_a_full_disk_leaves_the_files_of_the_last_model(tmp_path, monkeypatch, capsys):
    assert main(["pack", str(exported("gru")[1]), "--target", "c", "--out", str(tmp_path)]) == 0
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    write = Path.write_bytes

    def full(path, content):
        if ".model.cmake." in path.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    assert main(["pack", str(exported("gru", "selective", layers=2)[1]), "--target", "c", "--out", str(tmp_path)]) == 1
    assert "model.cmake: No space left on device; existing files are unchanged" in capsys.readouterr().err
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.mark.parametrize("size", [2, 3])
def test_the_example_names_a_model_with_other_inputs(size, tmp_path):
    need("gcc")
    write_files(exported_alone(contractive("gru", input_size=size)), tmp_path)
    folders = [word for folder in (tmp_path, ROOT / "runtime/firmware/qemu") for word in ("-I", folder)]
    process = run("gcc", *STRICT, "-fsyntax-only", *folders, ROOT / "examples/mcu/main.c")
    assert (process.returncode == 0) == (size == 2), process.stderr
    assert ("expected a model with two inputs, value and marker" in process.stderr) == (size != 2)


def test_the_commands_list_every_target():
    (option,) = (p for p in bench_command.command.params if p.name == "target")
    assert tuple(option.type.choices) == tuple(targets())
    for target in targets():
        reason = missing_tool(target)
        assert reason is None or "apt-get install" in reason


def every_step():
    """A network with every kind of step, and layers that run over an axis of a step, in both directions."""
    net = Net(x=[1, 160], s=[1, 3, 6])
    wave = net("Unsqueeze", "x", np.array([1]))
    parts = net("Conv", wave, fourier(64, np.hanning(65)[:-1]), strides=[32])
    turned = net("Transpose", net("Tanh", parts), perm=[2, 0, 1])
    weights = normal(2, 18, 66), normal(2, 18, 6), normal(2, 36)
    y = net("GRU", turned, *weights, hidden_size=6, direction="bidirectional", linear_before_reset=1)
    both = net("Reshape", y, np.array([1, 4, 12]))
    rows = net("Gather", both, np.array([3, 0, 0, 2]), axis=1)
    deep = net("Conv", rows, normal(4, 1, 3), normal(4), group=4, pads=[1, 1])
    wide = net("Add", net("MatMul", net("Relu", deep), normal(12, 40)), normal(40))
    peak = net("ReduceMax", net("Transpose", wide, perm=[0, 2, 1]), axes=[2], keepdims=0)
    mean = net("ReduceMean", "s", axes=[1, 2], keepdims=0)
    index = net(
        "Clip", net("Cast", net("Mul", mean, np.float32(9)), to=onnx.TensorProto.INT64), np.int64(0), np.int64(4)
    )
    less = net("Sub", net("Add", peak, net("Gather", normal(5, 40), index, axis=0)), mean)
    runs, states = net.every(2)
    less = net.choose(runs, lambda: [net("MatMul", less, normal(40, 40))], lambda: [net("Neg", less)])
    joined = net(
        "Concat", "s", net("Unsqueeze", net("Slice", less, *map(np.array, ([2], [8], [1]))), np.array([1])), axis=1
    )
    after = net("Slice", joined, np.array([1]), np.array([4]), np.array([1]))
    return net, net("Exp", net("Neg", net("Abs", net("Div", less, np.float32(3))))), {"s": after, **states}


def assert_graph_equals_library(net, y, states, weights="float32", tolerance=FLOAT32, steps=4):
    """Compare the C code of a network with the native library; return the names of its steps."""
    content = net.model(y, **states).SerializeToString()
    graph = pack_graph(onnx.load_from_string(content), Path("net.onnx"), len(content), GraphOptions(weights=weights))
    engine = native(graph.content.data)
    inputs = sum(map(math.prod, graph.lowered.inputs.values()))
    x = np.random.default_rng(0).standard_normal((steps, inputs), np.float32)
    expected = np.array([engine(row).copy() for row in x])
    assert np.abs(expected).max() > 100 * tolerance
    got = step_in_c(content, x, weights=weights)
    np.testing.assert_allclose(got.y, expected, rtol=tolerance, atol=tolerance)
    return set(graph.content.names)


# a float that is rounded otherwise may be quantised to a neighbouring number, a 32,639th of the largest one
@pytest.mark.parametrize(("weights", "tolerance"), [("float32", FLOAT32), ("bfloat16", FLOAT32), ("int8", 1e-4)])
@pytest.mark.slow
def test_every_kind_of_step(weights, tolerance):
    kinds = assert_graph_equals_library(*every_step(), weights, tolerance)
    assert kinds == {kind.__name__.upper() for kind in CODES}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(9))
def test_random_networks(seed):
    assert_graph_equals_library(*random_net(seed), tolerance=3e-5)


@pytest.mark.slow
def test_a_part_of_a_network_is_held():
    kinds = assert_graph_equals_library(*periodic(), steps=8)
    assert "BRANCH" in kinds


def test_a_network_of_another_tool_becomes_a_folder(tmp_path, capsys):
    path = small_file(tmp_path)
    assert main(["pack", str(path), "--target", "c", "--weights", "int8", "--out", str(tmp_path / "c")]) == 0
    assert "bytes of weights" in capsys.readouterr().out
    source = (tmp_path / "c" / "model.c").read_text()
    assert "lstm (5, 4). Generated by `edgernn pack --target c` from small.onnx. x has, one after" in source
    assert "static const int8_t" in source
    own = str(exported("gru")[1])
    assert main(["pack", own, "--target", "c", "--weights", "int8"]) == 2
    assert "expected a file of another tool" in capsys.readouterr().err
    assert main(["pack", own, "--weights", "int8"]) == 2
    assert "store its weights with: edgernn export RUN --weights int8" in capsys.readouterr().err
