# SPDX-License-Identifier: Apache-2.0
"""Saved states: a restarted app goes on bit for bit, and states that do not fit are refused."""

import ctypes
import subprocess
import sys
import zlib

import numpy as np
import onnx
import pytest

import edgernn
from edgernn.rules import RULES
from edgernn.runtime import Session
from edgernn.runtime.stepper import Stepper
from tests.models import exported, state_of, written
from tests.source_tree import ROOT
from tests.tolerances import FLOAT32

backends = pytest.mark.parametrize("backend", ["portable", "native"])
models = pytest.mark.parametrize(
    ("cell", "rule", "options"),
    [
        *(pytest.param("gru", rule, {"layers": 2}, id=rule) for rule in RULES),
        pytest.param("t-lstm", "selective", {"mean": 0.5, "std": 2.0}, id="last input"),
        pytest.param("gru-before", "selective", {"input_size": 9, "imputer": "gru-d"}, id="imputer"),
        pytest.param("mingru", "always", {"layers": 2, "block": "gated"}, id="blocks"),
        pytest.param("lstm", "always", {"vocabulary": 11, "input_size": 4, "output": "all"}, id="words"),
    ],
)
STEPS, BATCH, HEADER = 100, 3, 64


def random_input(options):
    rng = np.random.default_rng(6)
    if "vocabulary" in options:
        return rng.integers(0, options["vocabulary"], (STEPS, BATCH))
    x = rng.standard_normal((STEPS, BATCH, options.get("input_size", 3)), np.float32)
    if "imputer" in options:
        x[..., 3:6] = x[..., 3:6] > 0
        x[..., 6:] = np.abs(x[..., 6:])
    # bad samples before and after the save
    x[40, 1, 0] = x[50, 0, 1] = x[60:62, 2, 2] = np.inf
    return x


def run(session, x):
    """Step on x and return y, the updates, the macs and the counts of bad samples of every step."""
    outputs = []
    for x_t in x:
        y = session.step(x_t)
        outputs.append((y, session.updates, session.macs, session.nonfinite))
    return [None if part[0] is None else np.stack(part) for part in zip(*outputs, strict=True)]


def assert_same(got, expected):
    for a, b in zip(got, expected, strict=True):
        if b is None:
            assert a is None
        else:
            np.testing.assert_array_equal(a, b)


def assert_goes_on(path, x, backend):
    first, second, whole = (Session(path, backend=backend, on_nonfinite="hold") for _ in range(3))
    expected = run(whole, x)
    run(first, x[:50])
    saved = first.save_state()
    second.restore_state(saved)
    assert second.save_state() == saved
    assert_same(run(second, x[50:]), [None if part is None else part[50:] for part in expected])
    # the first one goes on too, and back in time
    run(first, x[50:70])
    first.restore_state(saved)
    np.testing.assert_array_equal(first.nonfinite, expected[3][49])
    assert_same(run(first, x[50:]), [None if part is None else part[50:] for part in expected])


@models
def test_a_restored_session_goes_on_bit_for_bit(cell, rule, options):
    assert_goes_on(written(cell, rule, **options), random_input(options), "native")


@pytest.mark.parametrize("rule", ["always", "selective", "skip", "delta"])
def test_a_restored_portable_session_goes_on_bit_for_bit(rule):
    assert_goes_on(exported("gru", rule, layers=2)[1], random_input({}), "portable")


@pytest.mark.parametrize(("rule", "norm"), [("always", "layer"), ("always", "recurrent-batch"), ("delta", "layer")])
def test_a_model_without_a_kernel_goes_on_bit_for_bit(rule, norm):
    assert_goes_on(exported("lstm", rule, norm=norm)[1], random_input({}), "portable")


@pytest.mark.slow
def test_a_restarted_process_goes_on_bit_for_bit(tmp_path):
    path = exported("lstm", "skip", layers=2)[1]
    session = Session(path, backend="native")
    x = np.random.default_rng(0).standard_normal((STEPS, 3), np.float32)
    before = [session.step(x_t) for x_t in x[:50]]
    (tmp_path / "state").write_bytes(session.save_state())
    np.save(tmp_path / "x.npy", x[50:])
    code = (
        "import sys, numpy as np; from pathlib import Path; from edgernn.runtime import Session; "
        "model, folder = sys.argv[1], Path(sys.argv[2]); s = Session(model, backend='native'); "
        "s.restore_state((folder / 'state').read_bytes()); "
        "np.save(folder / 'y.npy', [s.step(x) for x in np.load(folder / 'x.npy')])"
    )
    subprocess.run([sys.executable, "-c", code, path, tmp_path], check=True, cwd=ROOT)
    after = np.load(tmp_path / "y.npy")
    whole = Session(path, backend="native")
    np.testing.assert_array_equal([*before, *after], [whole.step(x_t) for x_t in x])


@models
def test_a_state_passes_between_backends_and_c(cell, rule, options):
    path = exported(cell, rule, **options)[1]
    native, portable = (Session(path, backend=backend, on_nonfinite="hold") for backend in ("native", "portable"))
    x = random_input(options)
    run(native, x[:50])
    saved = native.save_state()
    # the same bytes in every form
    portable.restore_state(saved)
    assert portable.save_state() == saved
    stepper = Stepper(native._packed_model(), BATCH, "hold")
    stepper.restore_state(saved)
    assert stepper.save_state() == saved
    expected = []
    for x_t in x[50:]:
        expected.append(native.step(x_t))
        stepper.x[...] = x_t
        assert stepper.step()
        np.testing.assert_array_equal(stepper.y, expected[-1])
        np.testing.assert_array_equal(stepper.nonfinite, native.nonfinite)
    assert stepper.save_state() == native.save_state()
    # backends differ in the last digits, so a decision at a near-tie may differ, and then all later outputs
    compared = 1 if RULES[rule].can_skip else 10
    outputs = [portable.step(x_t) for x_t in x[50:60]]
    np.testing.assert_allclose(outputs[:compared], expected[:compared], rtol=0, atol=FLOAT32)
    again = Session(path, backend="native", on_nonfinite="hold")
    again.restore_state(portable.save_state())
    for x_t in x[60 : 60 + compared]:
        np.testing.assert_allclose(again.step(x_t), portable.step(x_t), rtol=0, atol=FLOAT32)


@backends
def test_the_saved_batch_is_that_of_the_next_step(backend):
    path = exported("gru", "selective")[1]
    session, other = (Session(path, backend=backend) for _ in range(2))
    x = np.random.default_rng(0).standard_normal((4, 2, 3), np.float32)
    session.step(x[0])
    saved = session.save_state()
    other.step(x[0, 0])
    other.restore_state(saved)
    with pytest.raises(edgernn.UsageError, match="x_t: expected the batch size of the kept state, 2, got 1"):
        other.step(x[1, :1])
    np.testing.assert_array_equal(other.step(x[1]), session.step(x[1]))
    other.reset()
    other.step(x[1, 0])


def test_sessions_without_a_state_say_so():
    session = Session(exported("gru")[1])
    with pytest.raises(edgernn.UsageError, match="save_state: expected a kept state, got none; call step first"):
        session.save_state()
    both = Session(exported("gru", bidirectional=True)[1])
    for call in (both.save_state, lambda: both.restore_state(b"")):
        with pytest.raises(edgernn.UsageError, match="got one that needs the whole sequence; use run"):
            call()


def changed(saved, at, value, whole=True):
    """Replace some bytes and update the checksum."""
    content = bytearray(saved)
    content[at : at + len(value)] = value
    if whole:
        content[24:28] = zlib.crc32(content[HEADER:]).to_bytes(4, "little")
    return bytes(content)


def word(value):
    return int(value).to_bytes(4, "little")


NAN, INFINITE = np.float32(np.nan).tobytes(), np.float32(-np.inf).tobytes()
MINUS_ONE = b"\xff" * 8
# (change of a state of 2 sequences, message of Session, message of C if it differs, status in C)
BAD_STATES = [
    (lambda s: b"", "expected at least 64 bytes, got 0; it is truncated or damaged, start anew", None, 6),
    (lambda s: s[:63], "expected at least 64 bytes, got 63", None, 6),
    (lambda s: s[:-1], r"expected (\d+) bytes, got \d+; it is truncated or damaged, start anew", None, 6),
    (lambda s: s + b"\0", r"expected (\d+) bytes, got \d+; it is truncated", None, 6),
    (lambda s: changed(s, 0, b"EDGERNN\0"), "expected bytes that start with RNNSTATE, got another format", None, 6),
    (lambda s: changed(s, 8, word(2)), "expected version 1 and schema 2, got 2 and 2; start anew", None, 3),
    (lambda s: changed(s, 12, word(1)), "expected version 1 and schema 2, got 1 and 1; start anew", None, 3),
    (lambda s: changed(s, 80, b"\1", whole=False), "the checksum does not match the content; it is damaged", None, 6),
    (lambda s: changed(s, 48, b"\1"), "expected zeros at the end of its header, got others; it is damaged", None, 6),
    (lambda s: changed(s, 63, b"\1"), "expected zeros at the end of its header", None, 6),
    (lambda s: changed(s, 28, word(1)), "expected a state of this model, got one of another model; open", None, 6),
    (lambda s: changed(s, 32, word(1)), "expected a state of this model, got one of another model", None, 6),
    (lambda s: changed(s, 40, word(3)), r"expected \d+ bytes for a batch of 3", "expected a batch of 2, got 3", 6),
    (
        lambda s: changed(s, 40, word(0)),
        "expected a batch of at least 1, got 0; it is damaged",
        "expected a batch of 2, got 0",
        6,
    ),
    (lambda s: changed(s, 80, NAN), "expected numbers, got NaN in sequence 0 of the batch; reset that", None, 6),
    (lambda s: changed(s, 80 + 4 * 33, NAN), "expected numbers, got NaN in sequence 1", None, 6),
    (lambda s: changed(s, len(s) - 4, NAN), "expected numbers, got NaN in sequence 1", None, 6),
    (lambda s: changed(s, len(s) - 8, INFINITE), "expected numbers, got an infinite one in sequence 1", None, 6),
    (lambda s: changed(s, 64, MINUS_ONE), r"expected a count of steps from 0 to \d+, got -1 in sequence 0", None, 6),
    (lambda s: changed(s, 79, b"\x7f"), r"expected a count of steps from 0 to \d+, got \d+ in sequence 1", None, 6),
    (
        lambda s: changed(s[:-4], 16, word(len(s) - 4)),
        r"expected \d+ bytes for a batch of 2, got",
        r"expected \d+ bytes, got \d+; it is damaged, start anew",
        6,
    ),
]


@pytest.mark.parametrize(("change", "message", "in_c", "status"), BAD_STATES)
def test_a_bad_state_is_refused_and_nothing_changes(change, message, in_c, status):
    path = exported("gru", "selective")[1]
    x = np.random.default_rng(0).standard_normal((4, 2, 3), np.float32)
    for backend in ("portable", "native"):
        session, other = (Session(path, backend=backend) for _ in range(2))
        for each in (session, other):
            each.step(x[0])
        bad = change(session.save_state())
        with pytest.raises(edgernn.EdgernnError, match=f"saved state: {message}"):
            session.restore_state(bad)
        np.testing.assert_array_equal(session.step(x[1]), other.step(x[1]))
    stepper = Stepper(session._packed_model(), 2)
    stepper.x[...] = x[0]
    assert stepper.step()
    before = stepper.save_state()
    with pytest.raises(edgernn.EdgernnError, match=f"saved state: {in_c or message}"):
        stepper.restore_state(bad)
    assert stepper._library.edgernn_restore_state(stepper._model, bad, ctypes.c_size_t(len(bad))) == status
    assert stepper.save_state() == before


def test_a_state_is_bytes_of_any_kind():
    session, other = (Session(exported("gru", "selective")[1]) for _ in range(2))
    session.step(np.zeros(3))
    saved = session.save_state()
    for same in (bytearray(saved), memoryview(saved)):
        other.restore_state(same)
        assert other.save_state() == saved
    with pytest.raises(edgernn.UsageError, match="saved: expected the bytes that save_state returned, got str"):
        other.restore_state("state.bin")


def test_no_cut_of_a_state_is_restored():
    session = Session(exported("gru", "selective")[1], backend="native")
    session.step(np.zeros((2, 3)))
    saved, stepper = session.save_state(), Stepper(session._packed_model(), 2)
    for size in range(len(saved)):
        for restore in (session.restore_state, stepper.restore_state):
            with pytest.raises(edgernn.EdgernnError, match=rf"saved state: expected .* bytes, got {size}; "):
                restore(saved[:size])


def test_no_changed_bit_of_a_state_is_restored():
    session = Session(exported("gru", "selective")[1], backend="native")
    session.step(np.zeros((2, 3)))
    saved, stepper = session.save_state(), Stepper(session._packed_model(), 2)
    # the last 16 bytes of the header have no meaning yet
    for at in (*range(48), *range(64, len(saved))):
        for bit in range(8):
            content = bytearray(saved)
            content[at] ^= 1 << bit
            for restore in (session.restore_state, stepper.restore_state):
                with pytest.raises(edgernn.EdgernnError, match="saved state: "):
                    restore(bytes(content))
    assert session.save_state() == saved


def test_a_state_of_other_weights_is_refused(tmp_path):
    path = exported("gru", "selective")[1]
    proto = onnx.load(path)
    weight = next(tensor for tensor in proto.graph.initializer if tensor.name == "head.b")
    weight.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight) + 1, weight.name))
    onnx.save(proto, tmp_path / "m.onnx")
    session, other = Session(path), Session(tmp_path / "m.onnx")
    session.step(np.zeros(3))
    with pytest.raises(edgernn.EdgernnError, match="got one of another model"):
        other.restore_state(session.save_state())


def test_a_graph_whose_states_have_another_order_is_refused(tmp_path):
    proto = onnx.load(exported("lstm")[1])
    inputs = list(proto.graph.input)
    assert [value.name for value in inputs] == ["x", "layer0.h", "layer0.c"]
    del proto.graph.input[:]
    proto.graph.input.extend([inputs[0], inputs[2], inputs[1]])
    onnx.save(proto, tmp_path / "m.onnx")
    session = Session(tmp_path / "m.onnx", backend="portable")
    session.step(np.zeros(3))
    message = r"m\.onnx: expected the states in the order of the nodes that read them, got another order"
    with pytest.raises(edgernn.EdgernnError, match=message):
        session.save_state()


@backends
def test_a_state_with_nan_is_not_saved(backend):
    session = Session(exported("gru")[1], backend=backend)
    session.step(np.zeros((2, 3)))
    if backend == "native":
        state_of(session._stream._stepper)[33] = np.nan
    else:
        spoiled = np.zeros((2, 33), np.float32)
        spoiled[1, 0] = np.nan
        session._stream._states[session._stream._turn]["layer0.h"].update_inplace(spoiled)
    message = "saved state: expected numbers, got NaN in sequence 1 of the batch; reset that sequence"
    with pytest.raises(edgernn.EdgernnError, match=message):
        session.save_state()
    session.reset(rows=[1])
    session.save_state()


def test_bad_arguments_are_answered_with_a_status():
    session = Session(exported("gru")[1], backend="native")
    session.step(np.zeros(3))
    stepper = Stepper(session._packed_model(), 1)
    lib, model, size = stepper._library, stepper._model, ctypes.c_size_t()
    assert lib.edgernn_state_bytes(model, ctypes.byref(size)) == 0
    assert size.value == len(session.save_state()) == HEADER + 8 + 4 * (33 + 3)
    data = ctypes.create_string_buffer(size.value)
    for name, arguments in (
        ("state_bytes", (None, ctypes.byref(size))),
        ("state_bytes", (model, None)),
        ("save_state", (None, data, size)),
        ("save_state", (model, None, size)),
        ("restore_state", (None, data, size)),
        ("restore_state", (model, None, size)),
    ):
        assert getattr(lib, f"edgernn_{name}")(*arguments) == 1
        assert lib.edgernn_message().decode().endswith("expected a pointer, got null")
    assert lib.edgernn_save_state(model, data, ctypes.c_size_t(size.value - 1)) == 1
    expected = f"data: expected {size.value} bytes, got {size.value - 1}; ask edgernn_state_bytes"
    assert lib.edgernn_message().decode() == expected
    assert not any(data.raw)
