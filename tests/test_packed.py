# SPDX-License-Identifier: Apache-2.0
"""Packed models, stepped by the library's C functions without ONNX Runtime."""

import ctypes
import re
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

import edgernn
from edgernn.cells import CELLS, Cell, ForgetBias, Gate, Vector
from edgernn.export import to_onnx
from edgernn.export.graph import build
from edgernn.export.rounding import rounded
from edgernn.imputers import IMPUTERS
from edgernn.random_models import random_model
from edgernn.rules import RULES
from edgernn.runtime import Session
from edgernn.runtime.info import read_model
from edgernn.runtime.packed import pack
from edgernn.runtime.packed_format import HEADER as HEADER_RECORD
from edgernn.runtime.packed_format import LAYER, TENSOR
from edgernn.runtime.step_graph.pack import pack_graph
from edgernn.runtime.stepper import Stepper, aligned, memory
from tests.models import contractive, exported, packed_alone, state_of
from tests.native import library
from tests.tolerances import FLOAT32

HEADER = 64


def packed(*arguments, **options):
    return packed_alone(contractive(*arguments, **options))


def random_input(*shape):
    return np.random.default_rng(3).standard_normal(shape, np.float32)


def steps(content, x):
    """Return y and the counts of every step of x (T, B, …)."""
    stepper = Stepper(content, x.shape[1])
    outputs = []
    for x_t in x:
        stepper.x[...] = x_t
        assert stepper.step(), stepper.refusal()
        outputs.append((stepper.y.copy(), stepper.updates, stepper.macs))
    return [np.stack(part) if part[0] is not None else None for part in zip(*outputs, strict=True)]


def torch_outputs(model, x):
    """Return y of every step of x (T, B, …) from torch."""
    state, outputs = None, []
    with torch.no_grad():
        for x_t in torch.from_numpy(x)[:, None]:
            y, state = model(x_t, state)
            outputs.append(y[0] if model.output == "all" else y)
    return torch.stack(outputs).numpy()


def assert_steps_equal_torch(x, *arguments, **options):
    model = contractive(*arguments, **options)
    y, updates, macs = steps(packed(*arguments, **options), x)
    np.testing.assert_allclose(y, torch_outputs(model, x), rtol=0, atol=2e-6)
    assert (updates is None) == (macs is None) == (not model.rule_type.can_skip)


@pytest.mark.slow
def test_a_packed_file_is_the_packed_model():
    path = exported("gru", "selective", layers=2)[1]
    assert pack(read_model(path), path) == packed("gru", "selective", layers=2)


@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell != "decaynet"])
def test_every_cell(cell):
    assert_steps_equal_torch(random_input(6, 2, 3), cell)


@pytest.mark.parametrize("rule", ["always", "selective"])
@pytest.mark.parametrize("cell", [name for name, kind in CELLS.items() if issubclass(kind, ForgetBias)])
def test_a_forget_bias(cell, rule, tmp_path):
    """The packed model, and for two cells the file, as rules do not affect it.

    Layers with 3 and with H inputs are two variants of `irc-sru` and `irc-t-lstm`.
    """
    torch.manual_seed(0)
    model = edgernn.SequenceModel(cell, 3, 33, 2, rule=rule, layers=2, cell_options={"forget_bias": 1.0}).eval()
    with torch.no_grad():
        # not the initial value, and different for each neuron
        for layer in model.recurrent_layers():
            layer.cell.b += 0.3 * torch.randn_like(layer.cell.b)
    if rule == "always" and cell in ("eins", "irc-t-lstm"):
        # compares the portable function and the kernel with torch
        checks = to_onnx(model, tmp_path / "model.onnx")
        assert {check.backend for check in checks} == {"portable", "native"}
        assert max(check.worst for check in checks) <= FLOAT32
    x = random_input(6, 2, 3)
    np.testing.assert_allclose(steps(packed_alone(model), x)[0], torch_outputs(model, x), rtol=0, atol=FLOAT32)


class Softsign(Cell):
    """A cell unknown to the library, with a mapped vector and a constant other than 0 and 1 in its equations."""

    name = "softsign"
    gates = (Gate("z"), Gate("f", mid=True), Gate("n", h=False, m=True))
    vectors = {"slope": Vector("H", 1.0, torch.nn.functional.softplus), "rest": Vector("1", 0.5)}  # noqa: RUF012

    def mid(self, p, state):
        return torch.sigmoid(p.f) * state[0]

    def update(self, p, state):
        return (torch.lerp(state[0], 0.3 * p.rest + torch.nn.functional.softsign(p.slope * p.n), torch.sigmoid(p.z)),)


@pytest.mark.parametrize("rule", ["always", "selective", "skip"])
def test_a_users_own_cell(rule):
    torch.manual_seed(0)
    model = edgernn.SequenceModel(Softsign, 3, 33, 2, rule=rule, layers=2).eval()
    x = random_input(6, 2, 3)
    np.testing.assert_allclose(steps(packed_alone(model), x)[0], torch_outputs(model, x), rtol=0, atol=2e-6)


def test_a_cell_that_is_told_its_length():
    model = edgernn.SequenceModel("decaynet", 3, 33, 2, cell_options={"length": 9}).eval()
    x = random_input(6, 2, 3)
    np.testing.assert_allclose(steps(packed_alone(model), x)[0], torch_outputs(model, x), rtol=0, atol=2e-6)


@pytest.mark.parametrize("rule", RULES)
def test_every_rule(rule):
    assert_steps_equal_torch(random_input(12, 2, 3), "gru", rule)


@pytest.mark.parametrize("imputer", IMPUTERS)
def test_every_imputer(imputer):
    x = np.abs(random_input(6, 2, 9))
    x[..., 3:6] = x[..., 3:6] > 0.7
    assert_steps_equal_torch(x, "lstm", input_size=9, imputer=imputer)


@pytest.mark.parametrize(
    "options",
    [
        {"layers": 3, "output": "all", "mean": 0.5, "std": 2.0, "last_size": 17},
        {"output_size": None},
        {"rank": 4},
        {"density": 0.25},
    ],
    ids=["stack", "no head", "low rank", "sparse"],
)
@pytest.mark.parametrize("rule", ["always", "selective"])
def test_every_shape_of_model(rule, options):
    assert_steps_equal_torch(random_input(6, 3, 3), "gru", rule, **options)


@pytest.mark.parametrize("tied", [False, True])
def test_words(tied):
    sizes = {"input_size": 33, "output_size": 40} if tied else {"input_size": 8, "output_size": 5}
    options = {"vocabulary": 40, "output": "all", "tied": tied, **sizes}
    x = np.random.default_rng(0).integers(0, 40, (7, 2))
    assert_steps_equal_torch(x, "lstm", **options)
    stepper = Stepper(packed("lstm", **options), 2)
    stepper.x[...] = x[0]
    assert stepper.step()
    saved, y = stepper.save_state(), stepper.y.copy()
    stepper.x[...] = (3, 40)
    assert not stepper.step()
    assert stepper.refusal() == "x: expected word indices from 0 to 39, got 40 at index 1"
    assert stepper.save_state() == saved
    np.testing.assert_array_equal(stepper.y, y)


def test_counts_equal_those_of_the_whole_sequence():
    # short enough that nothing is computed for several steps at once
    x = random_input(12, 1, 3)
    _, updates, macs = steps(packed("gru", "selective", layers=2), x)
    session = Session(exported("gru", "selective", layers=2)[1], backend="native")
    session.run(x)
    np.testing.assert_array_equal(updates, session.updates)
    np.testing.assert_array_equal(macs.sum(0), session.macs)
    assert 0 < updates.mean() < 2 * 33


def test_reset_starts_anew_and_a_refused_step_changes_nothing():
    stepper = Stepper(packed("lstm", "skip"), 1)
    x = random_input(4, 1, 3)

    def run():
        outputs = []
        for x_t in x:
            stepper.x[...] = np.nan
            assert not stepper.step()
            assert stepper.refusal() == "x: expected finite numbers, got nan at index 0"
            stepper.x[...] = x_t
            assert stepper.step()
            outputs.append(stepper.y.copy())
        return np.stack(outputs)

    first = run()
    assert not np.array_equal(run(), first)
    stepper.restart()
    np.testing.assert_array_equal(run(), first)
    np.testing.assert_array_equal(first, steps(packed("lstm", "skip"), x)[0])


LAYER_NORM = {"norm": "layer", "frontend": "logmel", "input_size": 320, "stack": 2, "bands": 12}
WITHOUT_KERNEL = {
    "decaynet": {"norm": "recurrent-batch", "norm_steps": 5, "cell_options": {"length": 7}},
    "eins": {"norm": "recurrent-batch", "norm_steps": 3},
    "gru": {**LAYER_NORM, "normalise": "floor"},
    "lstm": {**LAYER_NORM, "normalise": "pcen"},
}


@pytest.mark.parametrize("cell", WITHOUT_KERNEL)
def test_a_layer_without_a_kernel_runs_as_the_steps_of_its_function(cell):
    options = {"input_size": 3} | WITHOUT_KERNEL[cell]
    model = random_model(cell, options.pop("input_size"), 6, output_size=2, output="all", **options).eval()
    x = random_input(12, 2, model.input_size)
    proto = build(model)
    content = pack(proto.SerializeToString(), Path("model.onnx"))
    # a front end is transformed fast though its file has matrix products
    graph = pack_graph(proto, Path("model.onnx"), proto.ByteSize())
    assert graph.content.names.count("FFT") == (model.frontend is not None)
    with torch.no_grad():
        expected = model.double()(torch.from_numpy(x).double())[0].numpy()
    np.testing.assert_allclose(steps(content, x)[0], expected, rtol=0, atol=FLOAT32)


def test_a_layer_without_a_kernel_does_not_pretend_to_skip():
    model = random_model("gru", 3, 6, rule="selective", norm="layer")
    with pytest.raises(edgernn.UsageError, match=r"layer gru\+selective\+layer: expected a layer with a kernel"):
        pack(build(model).SerializeToString(), Path("model.onnx"))


def test_an_op_without_a_kernel_is_named():
    with pytest.raises(edgernn.EdgernnError, match=r"the library has no kernel for gru\+layer; update edgernn"):
        memory(packed("gru", norm="layer"))


def test_a_model_that_needs_the_whole_sequence_is_refused():
    path = exported("gru", bidirectional=True)[1]
    with pytest.raises(edgernn.UsageError, match="got one that needs whole sequences"):
        pack(read_model(path), path)


def damaged(content, at, value, whole=True):
    """Replace some bytes and update the checksum."""
    changed = bytearray(content)
    changed[at : at + len(value)] = value
    if whole:
        changed[28 - 4 : 28] = zlib.crc32(changed[HEADER:]).to_bytes(4, "little")
    return bytes(changed)


def word(value):
    return int(value).to_bytes(4, "little")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: b"", "expected at least 64 bytes, got 0"),
        (lambda c: c[:40], "expected at least 64 bytes, got 40"),
        (lambda c: c[:-1], r"expected \d+ bytes, got \d+"),
        (lambda c: damaged(c, 0, b"ONNX"), "expected a file that starts with EDGERNN"),
        (lambda c: damaged(c, 8, word(1)), "expected version 4 to 6 and schema 2, got 1 and 2; pack it again"),
        (lambda c: damaged(c, 12, word(9)), "expected version 4 to 6 and schema 2, got 4 and 9"),
        (lambda c: damaged(c, len(c) - 8, b"\xff", whole=False), "the checksum does not match the content"),
        (lambda c: damaged(c, 28, word(0)), "output: expected 33, as there is no head, got 2"),
        (lambda c: damaged(c, 32, word(0)), "input, vocabulary, output: expected sizes up to 1073741824, got 0, 0, 2"),
        (lambda c: damaged(c, 32, word(4)), "layer 0: expected weights for 4 inputs, got weights for 3"),
        (lambda c: damaged(c, 40, word(7)), r"W of the head: expected \(7, 33\), got \(2, 33\)"),
        (lambda c: damaged(c, 44, word(0)), "layers: expected 1 to 1024, got 0"),
        (lambda c: damaged(c, 48, word(1)), "tensors: expected more for the layers, got 1"),
        (lambda c: damaged(c, 64, b"lstm\0"), r"edgernn: lstm: expected the inputs X, W, R, b, h, c, got 5 inputs"),
        (lambda c: damaged(c, 64, b"XYZ"), "the library has no kernel for XYZ; update edgernn"),
        (lambda c: damaged(c, 160, word(7)), "type of a tensor: expected 0, 1 or 2, got 7"),
        (lambda c: damaged(c, 164, word(1)), "tensor 0: expected 1 or 2 axes of 1 to 1073741824, got 1 of 99 and 3"),
        (lambda c: damaged(c, 164, word(3)), "tensor 0: expected 1 or 2 axes of 1 to 1073741824, got 3 of 99 and 3"),
        (lambda c: damaged(c, 168, word(1 << 31)), "tensor 0: expected 1 or 2 axes of 1 to 1073741824, got 2 of"),
        (lambda c: damaged(c, 168, word(1 << 29)), r"expected \d+ bytes at offset \d+, got a file of \d+ bytes"),
        (lambda c: damaged(c, 176, word(len(c))), r"expected \d+ bytes at offset \d+, got a file of \d+ bytes"),
        (lambda c: damaged(c, 176, word(513)), "expected offsets that are multiples of 32, got"),
    ],
)
def test_a_bad_file_is_named(change, message):
    with pytest.raises(edgernn.EdgernnError, match=message):
        Stepper(change(packed("gru")), 1)


def test_a_name_that_is_too_long_is_refused():
    named = type("Named", (Softsign,), {"name": "softsign-" * 7})
    message = "expected a cell and rule whose names take at most 60 bytes, got softsign-"
    with pytest.raises(edgernn.EdgernnError, match=message):
        packed_alone(edgernn.SequenceModel(named, 3, 5, 2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c, at: damaged(c, at + 60, word(9)), "gates: expected 1 to 8 numbers, got 9"),
        (lambda c, at: damaged(c, 128, word(at + 4)), "expected offsets that are multiples of 32, got"),
        (lambda c, at: damaged(c, 128, word(len(c))), r"expected \d+ bytes at offset \d+, got a file of \d+ bytes"),
        (lambda c, at: damaged(c, at + 96, word(64)), "gates: "),
    ],
)
def test_a_bad_cell_is_named(change, message):
    content = packed_alone(edgernn.SequenceModel(Softsign, 3, 33, 2))
    at = int.from_bytes(content[128:136], "little")
    with pytest.raises(edgernn.EdgernnError, match=message):
        Stepper(change(content, at), 1)


def test_no_cut_of_a_file_is_read():
    content = packed("gru")
    for size in range(0, len(content), 61):
        with pytest.raises(edgernn.EdgernnError, match=r"packed model: expected (at least )?\d+ bytes, got \d+"):
            memory(content[:size])


@pytest.mark.parametrize("huge", [True, False])
@pytest.mark.parametrize("size", [100, 5 << 20])
def test_memory_of_a_model_is_aligned(size, huge, monkeypatch):
    if not huge:
        monkeypatch.delattr("mmap.MADV_HUGEPAGE", raising=False)
    content = np.random.default_rng(0).bytes(size)
    copy, zeros = aligned(content), aligned(size)
    assert copy.tobytes() == content
    assert not zeros.any()
    assert copy.ctypes.data % 64 == zeros.ctypes.data % 64 == 0
    zeros[:] = 1


def test_bad_arguments_are_answered_with_a_status():
    content = packed("gru")
    lib = ctypes.CDLL(library())
    lib.edgernn_message.restype = ctypes.c_char_p
    data, need, model = aligned(content), ctypes.c_size_t(), ctypes.c_void_p()
    size, one = ctypes.c_size_t(len(content)), ctypes.c_int64(1)

    def assert_refused(status, message, name, *arguments):
        assert getattr(lib, f"edgernn_{name}")(*arguments) == status
        assert re.search(message, lib.edgernn_message().decode())

    def at(array, offset=0):
        return ctypes.c_void_p(array.ctypes.data + offset)

    assert_refused(1, "data: expected a pointer, got null", "memory", None, size, one, ctypes.byref(need))
    assert_refused(1, "memory: expected a pointer, got null", "memory", at(data), size, one, None)
    assert_refused(1, "data: expected an alignment of 8 bytes", "memory", at(data, 4), size, one, ctypes.byref(need))
    for batch in (0, -1, 1 << 40):
        assert_refused(
            1, f"batch: expected 1 to 65536, got {batch}", "memory", at(data), size, ctypes.c_int64(batch), at(data)
        )
    assert lib.edgernn_memory(at(data), size, one, ctypes.byref(need)) == 0
    room = aligned(need.value + 64)
    few, enough = ctypes.c_size_t(need.value - 1), need
    assert_refused(1, "memory: expected .* bytes, got", "open", at(data), size, one, at(room), few, ctypes.byref(model))
    assert_refused(1, "memory: .* of 64 bytes", "open", at(data), size, one, at(room, 8), enough, ctypes.byref(model))
    assert_refused(
        1, "memory: expected a pointer, got null", "open", at(data), size, one, None, enough, ctypes.byref(model)
    )
    assert_refused(1, "model: expected a pointer, got null", "open", at(data), size, one, at(room), enough, None)
    assert lib.edgernn_open(at(data), size, one, at(room), enough, ctypes.byref(model)) == 0
    x, y, words = np.zeros(3, np.float32), np.zeros(2, np.float32), np.zeros(3, np.int64)
    for arguments in ((None, at(x), at(y)), (model, None, at(y)), (model, at(x), None)):
        assert_refused(1, "expected a pointer, got null", "step", *arguments)
        assert_refused(1, "expected a pointer, got null", "step_words", *arguments)
    assert_refused(1, "got words; use edgernn_step", "step_words", model, at(words), at(y))
    for name in ("sizes", "state"):
        assert_refused(1, "expected a pointer, got null", name, model, None)
        assert_refused(1, "expected a pointer, got null", name, None, at(y))
    assert_refused(1, "expected a pointer, got null", "work", model, None, None)
    assert_refused(1, "expected a pointer, got null", "reset", None)


def test_the_state_can_be_kept_and_put_back():
    stepper = Stepper(packed("lstm"), 2)
    kept = state_of(stepper)
    assert kept.shape == (2 * 2 * 33,)
    x = random_input(3, 2, 3)
    stepper.x[...] = x[0]
    assert stepper.step()
    then = kept.copy()
    outputs = []
    for _ in range(2):
        kept[:] = then
        stepper.x[...] = x[1]
        assert stepper.step()
        outputs.append(stepper.y.copy())
    np.testing.assert_array_equal(*outputs)


def stacked(content, count):
    """Return the packed model of one gru layer with I = H, `count` times that layer, whose tensors are the same."""
    header = list(HEADER_RECORD.unpack_from(content))
    first = HEADER_RECORD.size + LAYER.size
    tensors = [TENSOR.unpack_from(content, first + i * TENSOR.size) for i in range(header[10])]
    start = min(tensor[4] for tensor in tensors)
    header[9], header[10] = count, count * len(tensors)
    size = HEADER_RECORD.size + count * (LAYER.size + len(tensors) * TENSOR.size)
    move = size + -size % 64 - start
    records = b"".join(TENSOR.pack(*fields, data + move, 0) for *fields, data, _ in tensors)
    layers = content[HEADER_RECORD.size : first] * count + records * count
    body = layers + bytes(-size % 64) + content[start:]
    header[3], header[4] = HEADER_RECORD.size + len(body), zlib.crc32(body)
    return HEADER_RECORD.pack(*header) + body


def test_layers_that_share_their_weights_do_not_ask_for_more_memory_than_the_file_can_fill():
    layer = packed("gru", input_size=200, hidden_size=200, output_size=None)
    x = random_input(5, 1, 200)
    np.testing.assert_array_equal(steps(stacked(layer, 1), x)[0], steps(layer, x)[0])
    few, many = stacked(layer, 12), stacked(layer, 1000)
    # a sequence more takes its states only
    assert memory(few, 2) - memory(few, 1) < memory(few, 1) < 16 * len(few) + 2**20
    assert len(many) < 2**20 + len(layer)
    for batch in (1, 3, 1 << 16):
        most = 16 * len(many) + 2**20
        with pytest.raises(edgernn.EdgernnError, match=f"expected one that needs at most {most} bytes of memory, as"):
            memory(many, batch)
        with pytest.raises(edgernn.EdgernnError, match="packed model"):
            Stepper(many, batch)


@pytest.mark.parametrize(
    ("cell", "rule", "sizes", "weights"),
    [
        # a neuron takes as many lanes as the longest vectors have
        ("lstm", "always", {"input_size": 50_000, "hidden_size": 1}, "float32"),
        ("gru", "always", {"input_size": 50_000, "hidden_size": 1}, "int8"),
        # matrices and columns of float32
        ("gru", "delta", {"input_size": 400, "hidden_size": 600}, "int8"),
        ("mingru", "selective", {"input_size": 2, "hidden_size": 30_000, "output_size": 1}, "int8"),
    ],
)
def test_legal_models_of_extreme_sizes_open(cell, rule, sizes, weights):
    content = packed_alone(rounded(contractive(cell, rule, **sizes), weights), weights)
    assert memory(content, 3) > len(content) > 100_000


def test_memory_that_is_needed_is_that_of_the_weights_and_little_more():
    content = packed("gru", hidden_size=128)
    weights = 4 * (3 * 128 * (128 + 3 + 1) + 2 * 129)
    assert weights < memory(content) < 1.3 * weights
    assert len(content) < 1.05 * weights
