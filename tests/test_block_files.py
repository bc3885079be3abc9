# SPDX-License-Identifier: Apache-2.0
"""Exported and packed models with residual blocks: the files against the oracle, streams, and refusals."""

import json
import wave
from pathlib import Path

import numpy as np
import onnx
import pytest

from edgernn.bench.measure import Settings, bench
from edgernn.bench.report import markdown
from edgernn.cli.frame import main
from edgernn.errors import EdgernnError
from edgernn.export import graph, to_onnx
from edgernn.export.rounding import rounded
from edgernn.runtime import Session
from edgernn.runtime.info import BLOCKS
from edgernn.runtime.packed import VERSION, VERSION_WITHOUT_BLOCKS, pack
from edgernn.runtime.packed_format import HEADER
from edgernn.runtime.stepper import Stepper, memory
from tests.firmware import step_in_c
from tests.models import contractive, packed_alone
from tests.test_blocks import every_block, expected, random_weights
from tests.test_packed import damaged, steps, torch_outputs, word
from tests.tolerances import FLOAT32

AUDIO = {"frontend": "logmel", "sample_rate": 8000, "hop": 160, "window_size": 256, "bands": 16}
# an encoder at the beginning and at the end
SIZES = {"input_size": 3, "hidden_size": 33, "output_size": 2, "layers": 3, "last_size": 17}
every_backend = pytest.mark.parametrize("backend", ["portable", "native"])


def model_of(block, cell="mingru", rule="always", **options):
    return random_weights(contractive(cell, rule, **SIZES | {"output": "all", "block": block} | options))


def random_input(*shape):
    return np.random.default_rng(3).standard_normal(shape, np.float32)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Export models; return a dict from block and weights to the model with rounded matrices and the file."""
    folder, exported = tmp_path_factory.mktemp("blocks"), {}
    for block, weights in (("linear", "float32"), ("gated", "float32"), ("gated", "int8"), ("linear", "bfloat16")):
        path = folder / f"{block}-{weights}.onnx"
        model = model_of(block)
        assert {check.backend for check in to_onnx(model, path, weights=weights)} == {"portable", "native"}
        exported[block, weights] = rounded(model, weights), path
    return exported


@every_backend
@every_block
def test_a_file_computes_the_equations(files, block, backend):
    model, path = files[block, "float32"]
    x, session = random_input(9, 2, 3), Session(path, backend=backend)
    np.testing.assert_allclose(session.run(x), expected(model, x), rtol=0, atol=FLOAT32)
    assert session.info["cost"]["block_macs"] == sum(part.macs() for part in model.residual_blocks())


@every_backend
@pytest.mark.parametrize(
    "key", [("linear", "float32"), ("gated", "float32"), ("gated", "int8"), ("linear", "bfloat16")]
)
def test_a_stream_equals_the_whole_sequence(files, key, backend):
    model, path = files[key]
    x, session = random_input(9, 2, 3), Session(path, backend=backend)
    y = np.stack([session.step(x_t) for x_t in x])
    # the native library rounds the vectors that it multiplies by int8 matrices
    atol = 1e-3 if key[1] == "int8" and backend == "native" else FLOAT32
    np.testing.assert_allclose(y, session.run(x), rtol=0, atol=FLOAT32)
    np.testing.assert_allclose(y, expected(model, x), rtol=0, atol=atol)


@every_backend
@every_block
def test_a_restored_state_continues_bit_for_bit(files, block, backend):
    _, path = files[block, "float32"]
    x, session = random_input(9, 2, 3), Session(path, backend=backend)
    before = [session.step(x_t) for x_t in x[:4]]
    saved = session.save_state()
    after = [session.step(x_t) for x_t in x[4:]]
    other = Session(path, backend=backend)
    other.restore_state(saved)
    np.testing.assert_array_equal([other.step(x_t) for x_t in x[4:]], after)
    assert len(before) == 4


@pytest.mark.parametrize(
    ("cell", "rule", "options"),
    [
        ("lru", "always", {}),
        ("gru", "selective", {}),
        ("lstm", "skip", {"output_size": None}),
        ("gru", "delta", {"mean": 0.5, "std": 2.0}),
        ("t-lstm", "random", {"input_size": 33, "layers": 1, "last_size": None}),
        ("sru", "always", {"hidden_size": 5, "last_size": 1}),
        ("irc-gru", "selective", {"rank": 2}),
    ],
)
@every_block
def test_packed_models_equal_torch(block, cell, rule, options):
    model = model_of(block, cell, rule, **options)
    x = random_input(8, 3, model.input_size)
    y, updates, _ = steps(packed_alone(model), x)
    np.testing.assert_allclose(y, torch_outputs(model, x), rtol=0, atol=FLOAT32)
    assert (updates is None) == (not model.rule_type.can_skip)


def test_a_sample_has_the_same_bits_in_any_batch():
    content, x = packed_alone(model_of("gated")), random_input(5, 7, 3)
    y = steps(content, x)[0]
    for row in (0, 6):
        np.testing.assert_array_equal(steps(content, np.ascontiguousarray(x[:, row : row + 1]))[0][:, 0], y[:, row])


def test_a_front_end_and_words_go_before_the_blocks():
    audio = {"frontend": "logmel", "window_size": 7, "hop": 3, "bands": 2, "low_frequency": 500.0}
    model = model_of("gated", **audio)
    x = 0.1 * random_input(6, 2, 3)
    np.testing.assert_allclose(steps(packed_alone(model), x)[0], torch_outputs(model, x), rtol=0, atol=FLOAT32)
    words = {"input_size": 33, "output_size": 40, "vocabulary": 40, "tied": True, "last_size": None}
    model = model_of("linear", **words)
    x = np.random.default_rng(0).integers(0, 40, (6, 2))
    np.testing.assert_allclose(steps(packed_alone(model), x)[0], torch_outputs(model, x), rtol=0, atol=FLOAT32)


def test_a_file_without_blocks_keeps_its_version():
    plain, blocks = (
        HEADER.unpack_from(packed_alone(contractive("mingru", **SIZES | {"block": b})))[1:6] for b in (None, "gated")
    )
    assert (plain[0], blocks[0]) == (VERSION_WITHOUT_BLOCKS, VERSION)
    assert blocks[-1] & BLOCKS["gated"]
    assert not plain[-1] & sum(BLOCKS.values())


def test_memory_that_is_needed_is_that_of_the_weights_and_little_more():
    content = packed_alone(contractive("mingru", hidden_size=128, layers=2, block="gated"))
    weights = 4 * (2 * (2 + 2) * 128 * 128 + 2 * (2 + 2 + 2) * 128 + 4 * 128 + 2 * 129)
    assert weights < memory(content) < 1.1 * weights
    assert weights < len(content) < 1.05 * weights


# flags are at 28; the records of two tensors of the first block, scale and W, come after those of layer 0
FLAGS, TENSORS = 28, 64 + 96


def flagged(content, flags):
    return damaged(content, FLAGS, word(flags))


def tensor_at(index):
    return TENSORS + 32 * index


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: flagged(c, 14), "flags: expected those of version 5, got 14"),
        (lambda c: flagged(c, 18), "flags: expected those of version 5, got 18"),
        (lambda c: damaged(c, 8, word(4)), "flags: expected those of version 4, got 10"),
        (lambda c: damaged(c, 8, word(7)), "expected version 4 to 6 and schema 2, got 7 and 2"),
        (lambda c: flagged(c, 2), "layer 0: expected weights for 3 inputs, got weights for 33"),
        (lambda c: flagged(c, 6), r"W of the head: expected \(2, 33\), got \(33, 33\)"),
        # W and b of the cell and h are the first tensors
        (lambda c: damaged(c, tensor_at(3) + 8, word(32)), r"W of the encoder: expected \(33, 3\), got \(32, 3\)"),
        (lambda c: damaged(c, tensor_at(4) + 8, word(32)), r"b of the encoder: expected \(33,\), got \(32,\)"),
        (lambda c: damaged(c, tensor_at(5) + 8, word(32)), r"scale of a block: expected \(33,\), got \(32,\)"),
        (lambda c: damaged(c, tensor_at(6) + 8, word(32)), r"shift of a block: expected \(33,\), got \(32,\)"),
        (lambda c: damaged(c, tensor_at(7) + 12, word(32)), r"W of a block: expected \(33, 33\), got \(33, 32\)"),
        (lambda c: damaged(c, tensor_at(9) + 12, word(32)), r"W of the gate of a block: expected \(33, 33\)"),
        (lambda c: damaged(c, 48, word(8)), "tensors: expected more for the layers, got 8"),
        (lambda c: damaged(c, tensor_at(7) + 16, word(len(c))), r"expected \d+ bytes at offset \d+"),
    ],
)
def test_a_bad_file_is_named(change, message):
    content = packed_alone(contractive("mingru", block="gated"))
    with pytest.raises(EdgernnError, match=message):
        Stepper(change(content), 1)


def test_blocks_that_the_metadata_does_not_name_are_not_dropped():
    model = model_of("linear")
    proto = graph.build(model, portable=False)
    (entry,) = (entry for entry in proto.metadata_props if entry.key == "edgernn")
    info = json.loads(entry.value)

    def packed_as(block):
        entry.value = json.dumps(info | {"model": info["model"] | {"block": block}})
        return pack(proto.SerializeToString(), Path("m.onnx"))

    for block in (None, "gated"):
        with pytest.raises(EdgernnError, match=f"block of its graph: expected {block} as in .* metadata, got linear"):
            packed_as(block)
    with pytest.raises(
        EdgernnError, match=r"model\.block in its edgernn metadata: expected null or one of linear, gated"
    ):
        packed_as("round")


@pytest.mark.parametrize("file", [("gated", "int8"), ("linear", "bfloat16"), ("linear", "float32")])
@pytest.mark.slow
def test_c_code_equals_the_library(files, file):
    content, x = files[file][1].read_bytes(), random_input(9, 1, 3)
    got, (y, _, _) = step_in_c(content, x[:, 0]), steps(pack(content, Path("m.onnx")), x)
    np.testing.assert_allclose(got.y, y[:, 0], rtol=0, atol=FLOAT32)


def test_the_blocks_have_standard_operators(files):
    _, path = files["gated", "float32"]
    nodes = {node.op_type for node in onnx.load(path).graph.node if not node.domain}
    assert {"LayerNormalization", "Sigmoid", "MatMul", "Add", "Mul"} <= nodes


def test_a_recording_tells_the_blocks_apart(tmp_path, capsys):
    model = contractive("mingru", input_size=160, hidden_size=8, output_size=2, block="gated", **AUDIO)
    to_onnx(model, tmp_path / "m.onnx", metadata={"classes": ["_unknown_", "yes"]})
    with wave.open(str(tmp_path / "r.wav"), "wb") as recording:
        recording.setparams((1, 2, 8000, 0, "NONE", ""))
        recording.writeframes(np.arange(1600, dtype="<i2").tobytes())
    assert main(["run", str(tmp_path / "m.onnx"), "--stream", str(tmp_path / "r.wav"), "--json"]) == 0
    # an encoder of 16 features, and A and G, 50 times a second
    assert json.loads(capsys.readouterr().out)["block_macs_a_second"] == 50 * (16 * 8 + 2 * 8 * 8)
    assert main(["run", str(tmp_path / "m.onnx"), "--stream", str(tmp_path / "r.wav")]) == 0
    assert "12,800 of the blocks" in capsys.readouterr().out


def test_reports_tell_the_blocks_apart(tmp_path, capsys):
    run = tmp_path / "run"
    words = ["train", "--task", "adding", "--cell", "gru", "--out", str(run), "block=linear", "hidden_size=8", "T=10"]
    assert main([*words, "steps=2"]) == 0
    assert main(["export", str(run), "--out", str(tmp_path / "m.onnx")]) == 0
    card = (tmp_path / "m.md").read_text()
    assert "| multiply-adds a step, blocks | 80 |" in card
    assert "H=8, 1 layer, linear blocks" in card
    report = bench(tmp_path / "m.onnx", Settings(rounds=2, warmup=0, block_ms=1, steps=20))
    # the GRU of ONNX Runtime has no block, so its outputs are not compared
    assert set(report["verified"]) == {"native against portable"}
    assert report["costs"]["block_macs"] == 2 * 8 + 8 * 8
    text = markdown(report)
    assert "| macs of the blocks | 80 |" in text
    assert "are timed without the blocks" in text
    capsys.readouterr()
