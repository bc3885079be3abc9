# SPDX-License-Identifier: Apache-2.0
"""The errors of the native ops."""

import ctypes
import os
import subprocess
import sys

import numpy as np
import pytest

from tests.native import draw, draw_call, library, session

BAD_CALLS = {
    "no steps": ("lstm", "selective", "X", (0, 2, 3), r"X: expected \(T, B, I\) with T of at least 1, got \(0, 2, 3\)"),
    "no samples": (
        "lstm",
        "selective",
        "X",
        (2, 0, 3),
        r"X: expected \(T, B, I\) with B of at least 1, got \(2, 0, 3\)",
    ),
    "rank of X": ("lstm", "selective", "X", (2, 3), r"X: expected \(T, B, I\), got \(2, 3\)"),
    "axes of X": ("lstm", "selective", "X", (2, 1, 1, 1, 3), r"X: expected \(T, B, I\), got \(2, 1, 1, 1, \.\.\.\)"),
    "I of X": ("lstm", "selective", "X", (2, 2, 4), r"X: expected \(T, B, 3\), got \(2, 2, 4\)"),
    "H of h": ("lstm", "selective", "h", (2, 6), r"h: expected \(2, 5\), got \(2, 6\)"),
    "B of c": ("lstm", "selective", "c", (3, 5), r"c: expected \(2, 5\), got \(3, 5\)"),
    "rank of c": ("lstm", "selective", "c", (5,), r"c: expected \(2, 5\), got \(5,\)"),
    "memory": ("t-lstm", "skip", "rule_pressure", (2, 5), r"rule_pressure: expected \(2, 1\), got \(2, 5\)"),
    "B of memory": ("t-lstm", "phased", "rule_t", (1, 1), r"rule_t: expected \(2, 1\), got \(1, 1\)"),
    "columns of a memory": ("t-lstm", "delta", "rule_x", (2, 3), r"rule_x: expected \(2, 6\), got \(2, 3\)"),
    "sums in a memory": ("gru", "delta", "rule_p", (2, 15), r"rule_p: expected \(2, 20\), got \(2, 15\)"),
    "I of x_last": ("t-lstm", "skip", "x_last", (2, 5), r"x_last: expected \(2, 3\), got \(2, 5\)"),
}


@pytest.mark.parametrize("case", BAD_CALLS)
@pytest.mark.parametrize("constant", [True, False], ids=["constant", "given"])
def test_bad_call_is_refused_by_name(case: str, constant: bool) -> None:
    cell, rule, name, shape, message = BAD_CALLS[case]
    weights = draw(cell, rule, 5, 3)
    feed = draw_call(cell, rule, 5, 3, 2, 2)
    feed[name] = np.zeros(shape, np.float32)
    run = session(cell, rule, weights, constant=constant)
    with pytest.raises(Exception, match=rf"INVALID_ARGUMENT.*edgernn: {cell}\+{rule}: {message}"):
        run.run(None, feed if constant else weights | feed)


BAD_WEIGHTS = {
    "rows of W": ("gru-before", "selective", "W", (16, 3), r"W: expected \(3 \* H, I\), got \(16, 3\)"),
    "rank of W": ("gru-before", "selective", "W", (15,), r"W: expected \(3 \* H, I\), got \(15,\)"),
    "axes of W": (
        "gru-before",
        "selective",
        "W",
        (15, 1, 1, 1, 3),
        r"W: expected \(3 \* H, I\), got \(15, 1, 1, 1, \.\.\.\)",
    ),
    "empty W": ("gru-before", "selective", "W", (0, 3), r"W: expected \(3 \* H, I\), got \(0, 3\)"),
    "H of R": ("gru-before", "selective", "R", (10, 6), r"R: expected \(10, 5\) as W is \(15, 3\), got \(10, 6\)"),
    "rows of V": ("gru-before", "selective", "V", (10, 5), r"V: expected \(5, 5\)"),
    "b": ("gru-before", "selective", "b", (20,), r"b: expected \(15,\)"),
    "rule_W": ("gru-before", "selective", "rule_W", (5, 4), r"rule_W: expected \(5, 3\)"),
    "rule_d": ("gru-before", "selective", "rule_d", (5, 5), r"rule_d: expected \(5,\)"),
    "rule_b": ("gru-before", "selective", "rule_b", (1,), r"rule_b: expected \(5,\)"),
    "C": ("lstm-peephole", "always", "C", (20, 5), r"C: expected \(15, 5\) as W is \(20, 3\), got \(20, 5\)"),
    "columns of W": ("t-lstm", "always", "W", (15, 5), r"W: expected \(3 \* H, 2 \* I\), got \(15, 5\)"),
    "rows of W without R": ("t-lstm", "always", "W", (14, 6), r"W: expected \(3 \* H, 2 \* I\), got \(14, 6\)"),
    "b without R": ("t-lstm", "always", "b", (12,), r"b: expected \(15,\) as W is \(15, 6\), got \(12,\)"),
    "vector without R": ("sru", "always", "w_f", (4,), r"w_f: expected \(5,\) as W is \(20, 3\), got \(4,\)"),
    "W of m alone": ("eins", "always", "W", (7, 3), r"W: expected \(2 \* I, I\), got \(7, 3\)"),
    "periods": ("gru", "clockwork", "rule_periods", (1,), r"rule_periods: expected \(5,\)"),
    "rate": ("gru", "random", "rule_rate", (5,), r"rule_rate: expected \(1,\) as W is \(15, 3\), got \(5,\)"),
    "w": ("gru", "skip", "rule_w", (3,), r"rule_w: expected \(5,\)"),
    "k": ("gru", "topk", "rule_k", (5,), r"rule_k: expected \(1,\)"),
    "theta": ("gru", "delta", "rule_theta_h", (5,), r"rule_theta_h: expected \(1,\)"),
    "tau": ("gru", "phased", "rule_tau", (5, 1), r"rule_tau: expected \(5,\)"),
    "rule_x": ("gru", "variable", "rule_x", (5,), r"rule_x: expected \(3,\)"),
}


@pytest.mark.parametrize("case", BAD_WEIGHTS)
@pytest.mark.parametrize("constant", [True, False], ids=["constant", "given"])
def test_bad_weights_are_refused_by_name(case: str, constant: bool) -> None:
    cell, rule, name, shape, message = BAD_WEIGHTS[case]
    weights = draw(cell, rule, 5, 3)
    weights[name] = np.zeros(shape, np.float32)
    feed = draw_call(cell, rule, 5, 3, 2, 2)

    def build_and_run() -> None:
        run = session(cell, rule, weights, constant=constant)
        run.run(None, feed if constant else weights | feed)

    with pytest.raises(Exception, match=rf"edgernn: [a-z+-]+: {message}"):
        build_and_run()


@pytest.mark.parametrize("constant", [True, False], ids=["constant", "given"])
def test_cell_whose_states_meet_its_inputs_is_refused_other_sizes(constant: bool) -> None:
    """SRU requires I = H; other sizes have other gates."""
    weights = draw("sru", "always", 5, 5)
    weights["W"] = np.zeros((15, 3), np.float32)
    feed = draw_call("sru", "always", 5, 3, 2, 2)

    def build_and_run() -> None:
        run = session("sru", "always", weights, constant=constant, sizes=(5, 5))
        run.run(None, feed if constant else weights | feed)

    message = r"edgernn: sru: W: expected I = H = 5 columns, got \(15, 3\)"
    with pytest.raises(Exception, match=message):
        build_and_run()


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"schema": 3}, "schema: expected 2, got 3; update edgernn"),
        ({"schema": 1}, "schema: expected 2, got 1; export the file again"),
        ({"schema": None}, "schema: expected 2, got none; export the file again"),
        ({"cell": None}, "cell: expected a name, got none"),
        ({"rule": None}, "rule: expected a name, got none"),
        ({"cell": "mine"}, "this library has no kernel for mine; update edgernn"),
        ({"rule": "sometimes"}, r"this library has no kernel for pru\+sometimes; update"),
        ({"norm": "layer"}, r"this library has no kernel for pru\+layer; update"),
        ({"imputer": "mean"}, r"this library has no kernel for mean\+pru; update"),
        ({"weight_bits": 4}, "pru: weight_bits: expected 32, 16 or 8, got 4"),
    ],
    ids=lambda value: "-".join(map(str, *value.items())) if isinstance(value, dict) else "",
)
def test_other_attributes_are_refused(attributes: dict[str, str | int | None], message: str) -> None:
    with pytest.raises(Exception, match="edgernn: " + message):
        session("pru", "always", draw("pru", "always", 5, 3), attributes=attributes)


def test_rank_that_is_not_that_of_the_weights_is_refused() -> None:
    weights = draw("gru/2", "always", 5, 3)
    with pytest.raises(Exception, match=r"edgernn: gru\+low-rank: rank: expected 2, the columns of R, got 3"):
        session("gru/2", "always", weights, attributes={"rank": 3})


@pytest.mark.parametrize(
    ("cell", "names"),
    [("gru", "X, W, R, b, h"), ("irc-gru", r"X, W, R, V, b \(optional\), alpha, h")],
)
def test_wrong_number_of_inputs_is_refused_with_their_names(cell: str, names: str) -> None:
    weights = draw(cell, "always", 5, 3)
    del weights["R"]
    if cell == "irc-gru":
        del weights["V"]
    count = 2 + len(weights)
    with pytest.raises(Exception, match=f"edgernn: {cell}: expected the inputs {names}, got {count} inputs"):
        session(cell, "always", weights)


@pytest.mark.parametrize(
    ("cell", "expected"),
    [("irc-gru-forget", r"\(5,\)"), ("eins-forget", r"\(3,\) or \(8,\)")],
)
def test_optional_bias_of_another_size_is_refused(cell: str, expected: str) -> None:
    weights = draw(cell, "always", 5, 3)
    weights["b"] = np.zeros(4, np.float32)
    with pytest.raises(Exception, match=f"b: expected {expected} as W is .*, got \\(4,\\)"):
        session(cell, "always", weights)


def test_kernel_that_skips_nothing_counts_nothing() -> None:
    weights, feed = draw("gru", "always", 5, 3), draw_call("gru", "always", 5, 3, 2, 2)
    run = session("gru", "always", weights, counts=True)
    *_, updates, macs = run.run(None, feed)
    assert (updates.shape, macs.shape) == ((0, 0), (0,))


def test_library_tells_its_schema() -> None:
    assert ctypes.CDLL(library()).edgernn_schema_version() == 2


@pytest.mark.slow
def test_unknown_instruction_set_is_refused() -> None:
    code = "import onnxruntime as ort, sys; " + ("ort.SessionOptions().register_custom_ops_library(sys.argv[1])")
    process = subprocess.run(
        [sys.executable, "-c", code, library()],
        env=os.environ | {"EDGERNN_ISA": "mmx"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode != 0
    assert "EDGERNN_ISA: expected one of " in process.stderr
