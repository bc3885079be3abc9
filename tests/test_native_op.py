# SPDX-License-Identifier: Apache-2.0
"""The native ops against the float64 oracle, for every instruction set here.

The instruction set is chosen once per process, so `EDGERNN_ISA` repeats this file's laws in one
subprocess per set; in this process the best one runs.
"""

import ctypes
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgernn.cells import CELLS
from edgernn.rules import RULES
from edgernn.runtime import library_path
from tests import oracle
from tests.tolerances import FLOAT32

Inputs = dict[str, np.ndarray]

OPS = [(cell, rule) for rule in ("always", "selective") for cell in CELLS]
OP_IDS = [RULES[rule].prefix + CELLS[cell].op for cell, rule in OPS]
SIZES = list(product((1, 5, 16, 33, 128), (1, 3, 17)))  # H, I
LENGTHS = list(product((1, 2, 37), (1, 3, 7)))  # T, B
# float32 and float64 may choose differently for a |v| smaller than this
MARGIN = 1e-6


def library() -> str:
    return os.environ.get("EDGERNN_LIBRARY") or library_path()


def op_name(cell: str, rule: str) -> str:
    return RULES[rule].prefix + CELLS[cell].op


def truth(cell: str, rule: str, inputs: Inputs) -> oracle.Result:
    with np.errstate(invalid="ignore"):
        return oracle.run(cell, rule, inputs, inputs["X"], [inputs[s] for s in CELLS[cell].states])


def draw(cell: str, rule: str, hidden: int, inputs: int, seed: int = 0) -> Inputs:
    """Contractive weights, by name, in the order of the op's inputs."""
    rng = np.random.default_rng((seed, hidden, inputs))
    modules = (CELLS[cell](inputs, hidden), RULES[rule](inputs, hidden))
    shapes = {name: tuple(p.shape) for module in modules for name, p in module.named_parameters()}
    scale = 0.5 / np.sqrt(hidden)
    return {n: (rng.standard_normal(s) * scale).astype(np.float32) for n, s in shapes.items()}


def draw_call(cell: str, hidden: int, inputs: int, steps: int, batch: int, seed: int = 0) -> Inputs:
    rng = np.random.default_rng((seed, hidden, inputs, steps, batch))
    feed = {"X": rng.standard_normal((steps, batch, inputs)).astype(np.float32)}
    for name in CELLS[cell].states:
        feed[name] = rng.standard_normal((batch, hidden)).astype(np.float32) * np.float32(0.5)
    return feed


def output_names(cell: str, rule: str) -> list[str]:
    states = [f"{name}_out" for name in CELLS[cell].states]
    return ["Y", *states, *(["updates", "macs"] if RULES[rule].can_skip else [])]


def session(
    cell: str,
    rule: str,
    weights: Inputs,
    constant: bool = True,
    outputs: list[str] | None = None,
    attributes: dict[str, int] | None = None,
) -> ort.InferenceSession:
    """A model of one node; outputs named "" are left out."""
    states = CELLS[cell].states
    outputs = output_names(cell, rule) if outputs is None else outputs
    attributes = {"schema": 1} if attributes is None else attributes
    names = ["X", *weights, *states]
    node = helper.make_node(op_name(cell, rule), names, outputs, domain="ai.edgernn", **attributes)
    free = [n for n in names if not (constant and n in weights)]
    integers = ("updates", "macs")
    graph = helper.make_graph(
        [node],
        "one_node",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in free],
        [
            helper.make_tensor_value_info(n, TensorProto.INT64 if n in integers else TensorProto.FLOAT, None)
            for n in outputs
            if n
        ],
        [numpy_helper.from_array(a, n) for n, a in weights.items()] if constant else [],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("ai.edgernn", 1)]
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.register_custom_ops_library(library())
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def assert_equal(cell: str, rule: str, got: list[np.ndarray], want: oracle.Result, rtol: float = 0) -> None:
    expected = [want.y, *want.state]
    for a, b in zip(got[: len(expected)], expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=FLOAT32)
    if RULES[rule].can_skip:
        updates, macs = got[len(expected) :]
        np.testing.assert_array_equal(updates, want.updates)
        np.testing.assert_array_equal(macs, want.macs)


@pytest.mark.parametrize(("hidden", "inputs"), SIZES, ids=str)
@pytest.mark.parametrize(("cell", "rule"), OPS, ids=OP_IDS)
def test_op_equals_oracle(cell: str, rule: str, hidden: int, inputs: int) -> None:
    weights = draw(cell, rule, hidden, inputs)
    run = session(cell, rule, weights)
    for steps, batch in LENGTHS:
        for seed in range(20):
            feed = draw_call(cell, hidden, inputs, steps, batch, seed)
            want = truth(cell, rule, weights | feed)
            if want.margin > MARGIN:
                break
        assert want.margin > MARGIN, "no draw without a near-tie"
        assert_equal(cell, rule, run.run(None, feed), want)


@pytest.mark.parametrize("share", [0.0, 1.0])
@pytest.mark.parametrize("cell", CELLS)
def test_none_and_all_neurons_updated(cell: str, share: float) -> None:
    weights = draw(cell, "selective", 33, 3)
    weights["rule_b"][:] = 100.0 * (2.0 * share - 1.0)
    feed = draw_call(cell, 33, 3, 5, 2)
    got = session(cell, "selective", weights).run(None, feed)
    assert_equal(cell, "selective", got, truth(cell, "selective", weights | feed))
    np.testing.assert_array_equal(got[-2], np.full((5, 2), int(33 * share)))
    if share == 0.0:
        np.testing.assert_array_equal(got[0], np.broadcast_to(feed[list(feed)[1]], (5, 2, 33)))


def test_zero_is_not_above_zero() -> None:
    weights = draw("gru", "selective", 16, 1)
    for name in ("rule_W", "rule_d", "rule_b"):
        weights[name][:] = 0.0
    got = session("gru", "selective", weights).run(None, draw_call("gru", 16, 1, 3, 1))
    np.testing.assert_array_equal(got[-2], np.zeros((3, 1)))


@pytest.mark.parametrize(("cell", "rule"), OPS, ids=OP_IDS)
def test_steps_with_carried_state_equal_whole_sequence(cell: str, rule: str) -> None:
    run = session(cell, rule, draw(cell, rule, 33, 3))
    feed = draw_call(cell, 33, 3, 19, 2)
    whole = run.run(None, feed)
    names = list(CELLS[cell].states)
    states = [feed[n] for n in names]
    for t in range(19):
        got = run.run(None, {"X": feed["X"][t : t + 1], **dict(zip(names, states, strict=True))})
        np.testing.assert_array_equal(got[0][0], whole[0][t])
        states = got[1 : 1 + len(names)]


@pytest.mark.parametrize(("cell", "rule"), OPS, ids=OP_IDS)
def test_weights_given_at_run_equal_constant_weights(cell: str, rule: str) -> None:
    weights = draw(cell, rule, 33, 3)
    feed = draw_call(cell, 33, 3, 5, 2)
    constant = session(cell, rule, weights).run(None, feed)
    given = session(cell, rule, weights, constant=False).run(None, weights | feed)
    for a, b in zip(constant, given, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("cell", "rule"), OPS, ids=OP_IDS)
def test_any_output_may_be_left_out(cell: str, rule: str) -> None:
    weights = draw(cell, rule, 33, 3)
    feed = draw_call(cell, 33, 3, 5, 2)
    names = output_names(cell, rule)
    whole = dict(zip(names, session(cell, rule, weights).run(None, feed), strict=True))
    for kept in names:
        only = [n if n == kept else "" for n in names[: names.index(kept) + 1]]
        (got,) = session(cell, rule, weights, outputs=only).run(None, feed)
        np.testing.assert_array_equal(got, whole[kept])


@pytest.mark.parametrize(("cell", "rule"), OPS, ids=OP_IDS)
def test_outputs_are_written_in_full(cell: str, rule: str) -> None:
    weights = draw(cell, rule, 33, 3)
    run = session(cell, rule, weights)
    feed = draw_call(cell, 33, 3, 5, 2)
    want = run.run(None, feed)
    binding = run.io_binding()
    for name, a in feed.items():
        binding.bind_cpu_input(name, a)
    buffers = []
    for name, a in zip(output_names(cell, rule), want, strict=True):
        poison = np.nan if a.dtype == np.float32 else -1
        buffers.append(ort.OrtValue.ortvalue_from_numpy(np.full(a.shape, poison, a.dtype)))
        binding.bind_ortvalue_output(name, buffers[-1])
    run.run_with_iobinding(binding)
    for a, buffer in zip(want, buffers, strict=True):
        np.testing.assert_array_equal(buffer.numpy(), a)


@pytest.mark.parametrize(("cell", "rule"), OPS, ids=OP_IDS)
def test_final_state_may_share_memory_with_initial_state(cell: str, rule: str) -> None:
    run = session(cell, rule, draw(cell, rule, 33, 3))
    feed = draw_call(cell, 33, 3, 5, 2)
    want = run.run(None, feed)
    binding = run.io_binding()
    binding.bind_cpu_input("X", feed["X"])
    shared = {}
    for name in CELLS[cell].states:
        shared[name] = ort.OrtValue.ortvalue_from_numpy(feed[name].copy())
        binding.bind_ortvalue_input(name, shared[name])
        binding.bind_ortvalue_output(f"{name}_out", shared[name])
    binding.bind_output("Y")
    for name in output_names(cell, rule)[1 + len(shared) :]:
        binding.bind_output(name)
    run.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.get_outputs()[-3 if RULES[rule].can_skip else -1].numpy(), want[0])
    for value, a in zip(shared.values(), want[1:], strict=False):
        np.testing.assert_array_equal(value.numpy(), a)


@pytest.mark.parametrize(("cell", "rule"), OPS, ids=OP_IDS)
def test_threads_on_one_session_agree_with_one_thread(cell: str, rule: str) -> None:
    run = session(cell, rule, draw(cell, rule, 33, 3))
    feeds = [draw_call(cell, 33, 3, 37, batch, seed=batch) for batch in (1, 2, 3, 4)]
    want = [run.run(None, feed) for feed in feeds]
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda i: run.run(None, feeds[i % 4]), range(64)))
    for i, result in enumerate(got):
        for a, b in zip(result, want[i % 4], strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30, -1e30])
@pytest.mark.parametrize(("cell", "rule"), OPS, ids=OP_IDS)
def test_extreme_input_gives_what_the_equations_give(cell: str, rule: str, value: float) -> None:
    weights = draw(cell, rule, 5, 3)
    feed = draw_call(cell, 5, 3, 4, 3)
    feed["X"][1, 1, 2] = value
    got = session(cell, rule, weights).run(None, feed)
    want = truth(cell, rule, weights | feed)
    assert want.margin > MARGIN
    # some cells let the input into the state as it is, and the float32 of 1e30 is not exact to 1e-5
    huge = max(float(np.nanmax(np.abs(a), initial=0, where=np.isfinite(a))) for a in (want.y, *want.state)) > 1e3
    assert_equal(cell, rule, got, want, rtol=1e-5 if huge else 0)
    untouched = [0, 2]
    assert np.isfinite(got[0][:, untouched]).all()


def test_gates_saturate_exactly() -> None:
    # z = 1 keeps h, z = 0 and r * k = 0 give n = tanh(W_n x)
    h = np.array([[0.25]], dtype=np.float32)
    weights = draw("gru", "always", 1, 1)
    for name in weights:
        weights[name][:] = 0.0
    weights["W"][2] = 1.0
    for z, want in ((1e4, 0.25), (-1e4, np.tanh(np.float32(0.5)))):
        weights["b"][1] = z
        feed = {"X": np.full((1, 1, 1), 0.5, np.float32), "h": h}
        (y, _) = session("gru", "always", weights).run(None, feed)
        np.testing.assert_allclose(y[0], want, rtol=3e-7)


def run_pru(gate: str, x: np.ndarray) -> np.ndarray:
    """tanh(x) or sigmoid(x) as the library computes them, from a PRU with one neuron and one live gate."""
    weights = {name: np.zeros_like(a) for name, a in draw("pru", "always", 1, 1).items()}
    weights["W"][0 if gate == "tanh" else 1] = 1.0
    # tanh: s_t = u where c = sigmoid(-1e4) = 0; sigmoid: s_t = c where u = 0 and s = 1
    weights["b"][1] = -1e4 if gate == "tanh" else 0.0
    state = np.full((len(x), 1), 0.0 if gate == "tanh" else 1.0, np.float32)
    (y, _) = session("pru", "always", weights).run(None, {"X": x.reshape(1, -1, 1), "s": state})
    return np.asarray(y, dtype=np.float64).ravel()


@pytest.mark.parametrize("gate", ["tanh", "sigmoid"])
def test_gate_is_exact_to_rounding_over_its_whole_range(gate: str) -> None:
    x = np.linspace(-120.0, 120.0, 200_001, dtype=np.float32)
    exact = np.tanh(x.astype(np.float64)) if gate == "tanh" else oracle.sigmoid(x.astype(np.float64))
    np.testing.assert_allclose(run_pru(gate, x), exact, rtol=0, atol=2e-7)


def test_tanh_keeps_its_relative_precision_near_zero() -> None:
    x = np.logspace(-37, 1, 10_000).astype(np.float32)
    np.testing.assert_allclose(run_pru("tanh", x), np.tanh(x.astype(np.float64)), rtol=4e-7)


BAD_CALLS = {
    "no steps": ("X", (0, 2, 3), r"X: T must be at least 1, got \(0, 2, 3\)"),
    "no samples": ("X", (2, 0, 3), r"X: B must be at least 1, got \(2, 0, 3\)"),
    "rank of X": ("X", (2, 3), r"X: expected \(T, B, I\), got \(2, 3\)"),
    "I of X": ("X", (2, 2, 4), r"X: expected \(T, B, 3\), got \(2, 2, 4\)"),
    "H of h": ("h", (2, 6), r"h: expected \(2, 5\), got \(2, 6\)"),
    "B of c": ("c", (3, 5), r"c: expected \(2, 5\), got \(3, 5\)"),
    "rank of c": ("c", (5,), r"c: expected \(2, 5\), got \(5,\)"),
}


@pytest.mark.parametrize("case", BAD_CALLS)
@pytest.mark.parametrize("constant", [True, False], ids=["constant", "given"])
def test_bad_call_is_refused_by_name(case: str, constant: bool) -> None:
    name, shape, message = BAD_CALLS[case]
    weights = draw("lstm", "selective", 5, 3)
    feed = draw_call("lstm", 5, 3, 2, 2)
    feed[name] = np.zeros(shape, np.float32)
    run = session("lstm", "selective", weights, constant=constant)
    with pytest.raises(Exception, match=r"INVALID_ARGUMENT.*ai\.edgernn\.SelectiveLSTM: " + message):
        run.run(None, feed if constant else weights | feed)


BAD_WEIGHTS = {
    "rows of W": ("W", (16, 3), r"W: expected \(3 \* H, I\), got \(16, 3\)"),
    "rank of W": ("W", (15,), r"W: expected \(3 \* H, I\), got \(15,\)"),
    "empty W": ("W", (0, 3), r"W: expected \(3 \* H, I\), got \(0, 3\)"),
    "H of R": ("R", (10, 6), r"R: expected \(10, 5\) as W is \(15, 3\), got \(10, 6\)"),
    "rows of V": ("V", (10, 5), r"V: expected \(5, 5\)"),
    "b": ("b", (20,), r"b: expected \(15,\)"),
    "rule_W": ("rule_W", (5, 4), r"rule_W: expected \(5, 3\)"),
    "rule_d": ("rule_d", (5, 5), r"rule_d: expected \(5,\)"),
    "rule_b": ("rule_b", (1,), r"rule_b: expected \(5,\)"),
}


@pytest.mark.parametrize("case", BAD_WEIGHTS)
@pytest.mark.parametrize("constant", [True, False], ids=["constant", "given"])
def test_bad_weights_are_refused_by_name(case: str, constant: bool) -> None:
    name, shape, message = BAD_WEIGHTS[case]
    weights = draw("gru-before", "selective", 5, 3)
    weights[name] = np.zeros(shape, np.float32)
    feed = draw_call("gru-before", 5, 3, 2, 2)

    def build_and_run() -> None:
        run = session("gru-before", "selective", weights, constant=constant)
        run.run(None, feed if constant else weights | feed)

    with pytest.raises(Exception, match=r"ai\.edgernn\.SelectiveGRUBefore: " + message):
        build_and_run()


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"schema": 2}, "this file needs schema 2, the library has 1; update edgernn"),
        ({}, "the node lacks the int attribute schema"),
    ],
    ids=["newer", "missing"],
)
def test_other_schema_is_refused(attributes: dict[str, int], message: str) -> None:
    with pytest.raises(Exception, match="ai.edgernn.PRU: " + message):
        session("pru", "always", draw("pru", "always", 5, 3), attributes=attributes)


def in_use() -> str:
    isa = ctypes.CDLL(library()).edgernn_isa
    isa.restype = ctypes.c_char_p
    return str(isa().decode())


def test_library_tells_its_schema_and_instruction_set() -> None:
    assert ctypes.CDLL(library()).edgernn_schema_version() == 1
    wanted = os.environ.get("EDGERNN_ISA")
    assert in_use() in ([wanted] if wanted else supported())


@cache
def supported() -> list[str]:
    """The instruction sets that the library offers on this machine."""
    code = "import ctypes, sys; f = ctypes.CDLL(sys.argv[1]).edgernn_isa; " + (
        "f.restype = ctypes.c_char_p; print((f() or b'').decode())"
    )
    names: list[str] = []
    for name in ("baseline", "avx2", "avx512", "native"):
        command = [sys.executable, "-c", code, library()]
        done = subprocess.run(
            command, env=os.environ | {"EDGERNN_ISA": name}, capture_output=True, text=True, check=False
        )
        if done.stdout.strip() == name:
            names.append(name)
    return names


def test_unknown_instruction_set_is_refused() -> None:
    code = "import onnxruntime as ort, sys; " + ("ort.SessionOptions().register_custom_ops_library(sys.argv[1])")
    done = subprocess.run(
        [sys.executable, "-c", code, library()],
        env=os.environ | {"EDGERNN_ISA": "mmx"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "EDGERNN_ISA=mmx: not known or not supported here" in done.stderr


@pytest.mark.skipif("EDGERNN_ISA" in os.environ, reason="EDGERNN_ISA already names a set")
@pytest.mark.parametrize("name", ["baseline", "avx2", "avx512"])
def test_laws_hold_for_instruction_set(name: str) -> None:
    if name not in supported():
        pytest.skip(f"this machine lacks {name}")
    if name == in_use():
        return  # this process has just run them
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__],
        cwd=Path(__file__).parents[1],
        env=os.environ | {"EDGERNN_ISA": name, "EDGERNN_LIBRARY": library()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
