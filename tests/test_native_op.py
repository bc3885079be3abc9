# SPDX-License-Identifier: Apache-2.0
"""The native ops compared with the float64 oracle, for every instruction set of this machine.

The instruction set is chosen once per process. This process uses the best one; for each other one, a subprocess with
`EDGERNN_ISA` repeats the tests of this file, those in LAWS and those of test_weight_types.py, without the slow cases.
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from edgernn.cells import CELLS
from edgernn.rules import RULES
from tests import oracle, oracle_cells
from tests.models import exported
from tests.native import (
    MARGIN,
    OPS,
    VARIANTS,
    assert_batch_equals_samples,
    assert_equal,
    assert_steps_equal_sequence,
    draw,
    draw_call,
    draw_clear_call,
    in_use,
    layer,
    library,
    oracle_result,
    output_names,
    sample,
    session,
)
from tests.pairs import covering

# H, I and T, B for every op; the longest sequences of a batch are three chunks of steps and a part of one
SIZES = [(1, 1), (5, 3), (33, 33), (128, 17)]
LENGTHS = [(1, 1), (37, 1), (2, 3), (10, 7)]
# sizes of which an op runs one, so that every cell and every rule runs all of them
OTHER_SIZES = [(1, 17), (16, 1), (16, 16), (33, 3), (5, 33)]
OTHER_LENGTHS = [(2, 1), (19, 3), (1, 7)]
# every rule on a one-stage and two two-stage cells
WHOLE = ("gru", "gru-before", "eins")
# cases of `make quick`
SPINE = [(cell, rule) for cell, rule in OPS if rule == "always" or cell in ("gru", "eins")]


def every(*cases: tuple[Any, ...], names: str = "cell, rule") -> pytest.MarkDecorator:
    """Parametrise a test by operations and further values."""
    marked = [case if case[:2] in SPINE else pytest.param(*case, marks=pytest.mark.slow) for case in cases]
    return pytest.mark.parametrize(names, marked, ids=["-".join(map(str, case)) for case in cases])


EVERY_OP = every(*OPS)
# what does not depend on the kernel of a cell under a rule
SOME_OPS = every(*covering(OPS, WHOLE))
# of the other operations, neighbouring rules of a cell and neighbouring cells of a rule share no size
SIZED_OPS = every(
    *(
        (*op, *size)
        for place, op in enumerate(OPS)
        for number, size in enumerate(SIZES)
        if op[0] in WHOLE or (place + number) % 2 == 0
    ),
    names="cell, rule, hidden, inputs",
)


def equals_oracle(cell: str, rule: str, hidden: int, inputs: int, lengths: list[tuple[int, int]]) -> None:
    weights = draw(cell, rule, hidden, inputs)
    run = session(cell, rule, weights, sizes=(hidden, inputs))
    for steps, batch in lengths:
        feed, expected = draw_clear_call(cell, rule, weights, (hidden, inputs, steps, batch))
        assert_equal(cell, rule, run.run(None, feed), expected)


@SIZED_OPS
def test_op_equals_oracle(cell: str, rule: str, hidden: int, inputs: int) -> None:
    equals_oracle(cell, rule, hidden, inputs, LENGTHS)


@pytest.mark.slow
@EVERY_OP
def test_op_of_any_size_equals_oracle(cell: str, rule: str) -> None:
    place = [*CELLS, *VARIANTS].index(cell) + [*RULES].index(rule)
    hidden, inputs = OTHER_SIZES[place % len(OTHER_SIZES)]
    equals_oracle(cell, rule, hidden, inputs, OTHER_LENGTHS)


@SOME_OPS
def test_steps_with_carried_state_equal_whole_sequence(cell: str, rule: str) -> None:
    weights = draw(cell, rule, 33, 3)
    if "length" in weights:
        weights["length"][:] = 19  # otherwise it is the call's number of steps
    run = session(cell, rule, weights)
    feed = draw_call(cell, rule, 33, 3, 19, 2)
    assert_steps_equal_sequence(run, layer(cell, rule, 33, 3).states, feed)


@SOME_OPS
def test_batch_equals_its_samples_one_by_one(cell: str, rule: str) -> None:
    run = session(cell, rule, draw(cell, rule, 33, 3))
    feed = draw_call(cell, rule, 33, 3, 21, 5)
    rng = np.random.default_rng(0)
    if "rule_t" in feed:
        feed["rule_t"] = np.array([[0], [3], [3], [100], [2**20]], np.float32)
    if "rule_pressure" in feed:
        feed["rule_pressure"] = rng.uniform(size=(5, 1)).astype(np.float32)
    assert_batch_equals_samples(run, output_names(cell, rule), feed)


# more samples than a set of them has bits, and steps in two chunks: the first one and one whose activity is known
@pytest.mark.parametrize(("batch", "steps"), [(70, 2), (9, 40)], ids=str)
@pytest.mark.parametrize("inputs", [1, 40])
@pytest.mark.parametrize("cell", CELLS)
def test_samples_that_share_gathered_rows_have_the_same_bits_alone(
    cell: str, inputs: int, batch: int, steps: int
) -> None:
    run = session(cell, "selective", draw(cell, "selective", 33, inputs))
    feed = draw_call(cell, "selective", 33, inputs, steps, batch)
    whole = dict(zip(output_names(cell, "selective"), run.run(None, feed), strict=True))
    counts = whole["updates"]
    assert counts.sum() / steps > 3 * 33, "too few neurons change for samples to share rows"
    assert ((counts > 0) & (counts < 28)).any(), "whole blocks are computed, not rows"
    for b in (0, batch // 2, batch - 1):
        one = slice(b, b + 1)
        alone = run.run(None, {name: sample(name, a, one) for name, a in feed.items()})
        for (name, a), part in zip(whole.items(), alone, strict=True):
            if name != "macs":
                np.testing.assert_array_equal(part, sample(name, a, one))


@SOME_OPS
def test_weights_given_at_run_equal_constant_weights(cell: str, rule: str) -> None:
    weights = draw(cell, rule, 33, 3)
    feed = draw_call(cell, rule, 33, 3, 5, 2)
    constant = session(cell, rule, weights).run(None, feed)
    outputs = session(cell, rule, weights, constant=False).run(None, weights | feed)
    for a, b in zip(constant, outputs, strict=True):
        np.testing.assert_array_equal(a, b)


@SOME_OPS
def test_any_output_may_be_left_out(cell: str, rule: str) -> None:
    weights = draw(cell, rule, 33, 3)
    feed = draw_call(cell, rule, 33, 3, 5, 2)
    names = output_names(cell, rule)
    whole = dict(zip(names, session(cell, rule, weights).run(None, feed), strict=True))
    for kept in names:
        only = [n if n == kept else "" for n in names[: names.index(kept) + 1]]
        (got,) = session(cell, rule, weights, outputs=only).run(None, feed)
        np.testing.assert_array_equal(got, whole[kept])


@SOME_OPS
def test_outputs_are_written_in_full(cell: str, rule: str) -> None:
    weights = draw(cell, rule, 33, 3)
    run = session(cell, rule, weights)
    feed = draw_call(cell, rule, 33, 3, 5, 2)
    expected = run.run(None, feed)
    binding = run.io_binding()
    for name, a in feed.items():
        binding.bind_cpu_input(name, a)
    buffers = []
    for name, a in zip(output_names(cell, rule), expected, strict=True):
        poison = np.nan if a.dtype == np.float32 else -1
        buffers.append(ort.OrtValue.ortvalue_from_numpy(np.full(a.shape, poison, a.dtype)))
        binding.bind_ortvalue_output(name, buffers[-1])
    run.run_with_iobinding(binding)
    for a, buffer in zip(expected, buffers, strict=True):
        np.testing.assert_array_equal(buffer.numpy(), a)


@SOME_OPS
def test_final_state_may_share_memory_with_initial_state(cell: str, rule: str) -> None:
    run = session(cell, rule, draw(cell, rule, 33, 3))
    feed = draw_call(cell, rule, 33, 3, 5, 2)
    expected = run.run(None, feed)
    binding = run.io_binding()
    binding.bind_cpu_input("X", feed["X"])
    shared = {}
    for name in layer(cell, rule, 33, 3).states:
        shared[name] = ort.OrtValue.ortvalue_from_numpy(feed[name].copy())
        binding.bind_ortvalue_input(name, shared[name])
        binding.bind_ortvalue_output(f"{name}_out", shared[name])
    binding.bind_output("Y")
    for name in output_names(cell, rule)[1 + len(shared) :]:
        binding.bind_output(name)
    run.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.get_outputs()[-3 if RULES[rule].can_skip else -1].numpy(), expected[0])
    for value, a in zip(shared.values(), expected[1:], strict=False):
        np.testing.assert_array_equal(value.numpy(), a)


@SOME_OPS
def test_threads_on_one_session_agree_with_one_thread(cell: str, rule: str) -> None:
    run = session(cell, rule, draw(cell, rule, 33, 3))
    feeds = [draw_call(cell, rule, 33, 3, 37, batch, seed=batch) for batch in (1, 2, 3, 4)]
    expected = [run.run(None, feed) for feed in feeds]
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda i: run.run(None, feeds[i % 4]), range(64)))
    for i, result in enumerate(got):
        for a, b in zip(result, expected[i % 4], strict=True):
            np.testing.assert_array_equal(a, b)


@SOME_OPS
def test_extreme_input_gives_what_the_equations_give(cell: str, rule: str) -> None:
    weights = draw(cell, rule, 5, 3)
    run = session(cell, rule, weights)
    for value in (np.nan, np.inf, -np.inf, 1e30, -1e30):
        feed = draw_call(cell, rule, 5, 3, 4, 3)
        feed["X"][1, 1, 2] = value
        assert_one_extreme_sample(cell, rule, run.run(None, feed), oracle_result(cell, rule, weights | feed))


def assert_one_extreme_sample(cell: str, rule: str, got: list[np.ndarray], expected: oracle.Result) -> None:
    """Compare the outputs of three samples with the oracle; the second one reads an extreme value."""
    assert expected.margin > MARGIN
    untouched = [0, 2]
    assert np.isfinite(got[0][:, untouched]).all()
    if rule in ("phased", "variable"):
        # a closed neuron keeps its value instead of 0 times NaN; so exclude that sample
        names = output_names(cell, rule)
        got = [a[:, untouched] if n in ("Y", "updates") else a[untouched] for n, a in zip(names, got, strict=True)]
        state, memory = (tuple(a[untouched] for a in part) for part in (expected.state, expected.memory))
        y, updates = expected.y[:, untouched], expected.updates[:, untouched]
        expected = oracle.Result(
            y, state, memory, updates, expected.macs[untouched], expected.margin, expected.needed[untouched]
        )
    # some cells copy the input to the state, and 1e30 in float32 is not exact to 1e-5
    states = (expected.y, *expected.state, *expected.memory)
    huge = max(float(np.nanmax(np.abs(a), initial=0, where=np.isfinite(a))) for a in states) > 1e3
    assert_equal(cell, rule, got, expected, rtol=1e-5 if huge else 0)


def test_gates_saturate_exactly() -> None:
    # z = 1 keeps h, z = 0 and r * k = 0 give n = tanh(W_n x)
    h = np.array([[0.25]], dtype=np.float32)
    weights = draw("gru", "always", 1, 1)
    for name in weights:
        weights[name][:] = 0.0
    weights["W"][2] = 1.0
    for z, expected in ((1e4, 0.25), (-1e4, np.tanh(np.float32(0.5)))):
        weights["b"][1] = z
        feed = {"X": np.full((1, 1, 1), 0.5, np.float32), "h": h}
        (y, _) = session("gru", "always", weights).run(None, feed)
        np.testing.assert_allclose(y[0], expected, rtol=3e-7)


def run_pru(gate: str, x: np.ndarray) -> np.ndarray:
    """Compute tanh(x) or sigmoid(x) in the library, by a PRU with one neuron and one live gate."""
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
    exact = np.tanh(x.astype(np.float64)) if gate == "tanh" else oracle_cells.sigmoid(x.astype(np.float64))
    np.testing.assert_allclose(run_pru(gate, x), exact, rtol=0, atol=2e-7)


def test_tanh_keeps_its_relative_precision_near_zero() -> None:
    x = np.logspace(-37, 1, 10_000).astype(np.float32)
    np.testing.assert_allclose(run_pru("tanh", x), np.tanh(x.astype(np.float64)), rtol=4e-7)


def test_cosine_is_exact_to_rounding_and_at_its_ends() -> None:
    # with all weights 0 and D huge, c_t = cos(decay) c_{t-1}
    weights = {name: np.zeros_like(a) for name, a in draw("decaynet", "always", 1, 1).items()}
    weights["length"][:] = 1e9
    decay = np.concatenate([np.linspace(-1.0, 3.0, 200_001), [0.0, np.pi / 2, np.inf]]).astype(np.float32)[:, None]
    zeros = np.zeros_like(decay)
    feed = {"X": zeros[None], "h": zeros, "c": zeros + 1, "decay": decay}
    _, _, got, last = session("decaynet", "always", weights).run(None, feed)
    angle = np.clip(last.astype(np.float64), 0, np.pi / 2)
    np.testing.assert_allclose(got, np.cos(angle), rtol=0, atol=2e-7)
    np.testing.assert_array_equal(got[-3:, 0], [1.0, 0.0, 0.0])


# in files test_native_….py
LAWS = ("rules", "weights", "programs", "functions")
# tests of test_weight_types.py that need only the library
LAWS_OF_BYTES = (
    "test_op_equals_oracle",
    "test_low_rank_equals_oracle",
    "test_sums_of_bytes_do_not_depend_on_the_batch",
    "test_the_largest_sums_do_not_overflow",
    "test_what_is_not_finite_stays_so",
)


@cache
def supported() -> list[str]:
    """Return the instruction sets that the library supports on this machine."""
    code = "import ctypes, sys; f = ctypes.CDLL(sys.argv[1]).edgernn_isa; " + (
        "f.restype = ctypes.c_char_p; print((f() or b'').decode())"
    )
    names: list[str] = []
    for name in ("baseline", "avx2", "avx512", "avx512vnni", "native"):
        command = [sys.executable, "-c", code, library()]
        process = subprocess.run(
            command, env=os.environ | {"EDGERNN_ISA": name}, capture_output=True, text=True, check=False
        )
        if process.stdout.strip() == name:
            names.append(name)
    return names


@pytest.mark.slow
def test_instruction_set_in_use_is_the_one_asked_for_or_one_of_those_here() -> None:
    expected = os.environ.get("EDGERNN_ISA")
    assert in_use() in ([expected] if expected else supported())


@pytest.mark.slow
def test_an_instruction_set_that_is_not_here_is_named(tmp_path: Path) -> None:
    code = (
        "import sys; from edgernn.runtime import Session; from edgernn.runtime.library import instruction_set;"
        "print(instruction_set()); Session(sys.argv[1], backend='native')"
    )
    process = subprocess.run(
        [sys.executable, "-c", code, exported("gru")[1]],
        env=os.environ | {"EDGERNN_ISA": "avx1024"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.stdout == "None\n"
    assert "EDGERNN_ISA: expected an instruction set that this processor has, got 'avx1024'; unset it" in process.stderr


@pytest.mark.check("instruction-sets")
@pytest.mark.skipif("EDGERNN_ISA" in os.environ, reason="EDGERNN_ISA already names a set")
@pytest.mark.parametrize("name", ["baseline", "avx2", "avx512", "avx512vnni"])
@pytest.mark.slow
def test_laws_hold_for_instruction_set(name: str) -> None:
    if name not in supported():
        pytest.skip(f"this machine lacks {name}")
    if name == in_use():
        return  # the instruction set in use is covered by this process
    folder = Path(__file__).parent
    files = [f"{folder}/test_weight_types.py::{law}" for law in LAWS_OF_BYTES]
    if {name, in_use()} != {"avx512", "avx512vnni"}:  # they differ in int8 products
        files += [__file__, *(f"{folder}/test_native_{laws}.py" for laws in LAWS)]
    process = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not slow", *files],
        cwd=Path(__file__).parents[1],
        env=os.environ | {"EDGERNN_ISA": name, "EDGERNN_LIBRARY": library()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout[-4000:]


def test_every_cell_and_rule_has_an_op() -> None:
    assert {*CELLS, *VARIANTS} == {cell for cell, _ in OPS}
    assert set(RULES) == {rule for _, rule in OPS}
