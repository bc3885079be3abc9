# SPDX-License-Identifier: Apache-2.0
"""Cells unknown to the library, run as programs. test_native_op.py repeats these tests for every instruction set.

Most are built-in cells under another name, so that the oracle and the kernels give the expected results.
"""

from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest

from edgernn.cell_program import cell_program
from edgernn.cell_table import STATE
from edgernn.cells import CELLS
from edgernn.program import Builder
from edgernn.rules import RULES
from tests.native import (
    assert_batch_equals_samples,
    assert_equal,
    assert_steps_equal_sequence,
    draw,
    draw_call,
    draw_clear_call,
    layer,
    node_session,
    output_names,
    session,
)
from tests.pairs import covering
from tests.programs import TERMS, program_attributes
from tests.test_native_weights import WHOLE_RULES, draw_sparse
from tests.tolerances import FLOAT32

# a 1 stands for the sequence length, which no program reads
KNOWN = [cell for cell in CELLS if cell != "decaynet"]
# topk reads a gate that the program does not name
PAIRS = [pair for pair in product(KNOWN, RULES) if pair[1] != "topk"]
# every rule on cells of one and two stages, with I = H, and with the previous input
WHOLE = ("gru", "eins", "irc-sru", "t-lstm")
# the interpreter of a cell does not know the rule: test_native_op.py has the kernels of all pairs
SOME_PAIRS = covering(PAIRS, WHOLE)
some_pairs = pytest.mark.parametrize(("cell", "rule"), SOME_PAIRS)


@cache
def attributes(cell, hidden=5, inputs=3, **others):
    """Return the attributes of a node whose cell has the equations of a built-in one under another name."""
    return {"cell": "mine", **cell_program(layer(cell, "always", hidden, inputs).cell).attributes(), **others}


def program_session(cell, rule, weights, hidden, inputs, **options):
    node_attributes = attributes(cell.partition("/")[0], hidden, inputs) | options.pop("attributes", {})
    return session(cell, rule, weights, sizes=(hidden, inputs), attributes=node_attributes, **options)


SIZES = [(1, 1), (5, 3), (33, 33), (128, 17)]
# of cells that are not whole, neighbouring rules of a cell and neighbouring cells of a rule share no size
SIZED_PAIRS = [
    (*pair, *size)
    for place, pair in enumerate(SOME_PAIRS)
    for number, size in enumerate(SIZES)
    if pair[0] in WHOLE or (place + number) % 2 == 0
]


@pytest.mark.parametrize(("cell", "rule", "hidden", "inputs"), SIZED_PAIRS)
def test_program_equals_oracle(cell, rule, hidden, inputs):
    weights = draw(cell, rule, hidden, inputs)
    run = program_session(cell, rule, weights, hidden, inputs)
    for steps, batch in ((1, 1), (37, 1), (6, 5)):
        feed, expected = draw_clear_call(cell, rule, weights, (hidden, inputs, steps, batch))
        assert_equal(cell, rule, run.run(None, feed), expected)


@some_pairs
def test_steps_with_carried_state_equal_whole_sequence(cell, rule):
    run = program_session(cell, rule, draw(cell, rule, 33, 3), 33, 3)
    feed = draw_call(cell, rule, 33, 3, 19, 2)
    assert_steps_equal_sequence(run, layer(cell, rule, 33, 3).states, feed)


@some_pairs
def test_batch_equals_its_samples_one_by_one(cell, rule):
    run = program_session(cell, rule, draw(cell, rule, 33, 3), 33, 3)
    feed = draw_call(cell, rule, 33, 3, 21, 5)
    assert_batch_equals_samples(run, output_names(cell, rule), feed)


@pytest.mark.parametrize("rule", ["always", "selective"])
def test_weights_given_at_run_equal_constant_weights(rule):
    weights, feed = draw("irc-sru", rule, 33, 33), draw_call("irc-sru", rule, 33, 33, 5, 2)
    constant = program_session("irc-sru", rule, weights, 33, 33).run(None, feed)
    outputs = program_session("irc-sru", rule, weights, 33, 33, constant=False).run(None, weights | feed)
    for a, b in zip(constant, outputs, strict=True):
        np.testing.assert_array_equal(a, b)


def assert_as_kernel(cell, rule, weights, hidden=33, inputs=17, steps=9, batch=3, close=FLOAT32, **options):
    """Assert that the program computes what the kernel of the same cell computes."""
    feed = draw_call(cell, rule, hidden, inputs, steps, batch)
    expected = session(cell, rule, weights, sizes=(hidden, inputs), attributes=options).run(None, feed)
    got = program_session(cell, rule, weights, hidden, inputs, attributes=options).run(None, feed)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=close)


def reorder(blocks, gates, order, terms):
    """Return an array whose first axis has a block of rows for each gate with one of the terms, in another order."""
    present = [g for g in range(len(gates)) if gates[g] & terms]
    parts = dict(zip(present, np.split(blocks, len(present)), strict=True))
    return np.concatenate([parts[g] for g in order if g in parts])


@pytest.mark.parametrize("rule", ["always", "selective", "delta"])
def test_gates_in_another_order(rule):
    hidden, inputs, order = 33, 17, [2, 3, 1, 0]
    weights, feed = draw("gru", rule, hidden, inputs), draw_call("gru", rule, hidden, inputs, 9, 3)
    expected = session("gru", rule, weights, sizes=(hidden, inputs)).run(None, feed)
    known = cell_program(layer("gru", "always", hidden, inputs).cell)
    keys = tuple(order.index(key) if key < len(order) else key for key in known.update.arguments)
    gates = tuple(known.gates[g] for g in order)
    mine = replace(known, gates=gates, update=replace(known.update, arguments=keys))
    for name, term in (("W", "x"), ("R", "h"), ("b", "bias")):
        weights[name] = reorder(weights[name], known.gates, order, TERMS[term])
    run = session("gru", rule, weights, sizes=(hidden, inputs), attributes={"cell": "mine", **mine.attributes()})
    for name, got, result in zip(output_names("gru", rule), run.run(None, feed), expected, strict=True):
        # the kept sums of each gate
        kept = name == "rule_p_out"
        same = reorder(result.T, known.gates, order, TERMS["x"] | TERMS["h"]).T if kept else result
        np.testing.assert_allclose(got, same, rtol=0, atol=FLOAT32)


@pytest.mark.parametrize("cell", ["gru", "lstm-peephole", "eins", "t-lstm"])
def test_samples_share_rows_as_in_the_kernel(cell):
    assert_as_kernel(cell, "selective", draw(cell, "selective", 33, 17), batch=40)


@pytest.mark.parametrize("bits", [16, 8])
@pytest.mark.parametrize("rule", ["always", "skip", "selective", "variable"])
@pytest.mark.parametrize("cell", ["gru", "lstm-peephole", "gru-before", "eins", "t-lstm", "fastgrnn"])
def test_weights_of_fewer_bytes_are_those_of_the_kernel(cell, rule, bits):
    # an integer next to a tie may round either way
    close = 2e-4 if bits == 8 else FLOAT32
    assert_as_kernel(cell, rule, draw(cell, rule, 33, 17), close=close, weight_bits=bits)


@pytest.mark.parametrize("rule", WHOLE_RULES)
@pytest.mark.parametrize("cell", ["gru", "lstm-peephole", "gru-before", "eins"])
def test_low_rank_is_that_of_the_kernel(cell, rule):
    assert_as_kernel(f"{cell}/4", rule, draw(f"{cell}/4", rule, 33, 17))


@pytest.mark.parametrize("rule", ["always", "skip", "selective"])
@pytest.mark.parametrize("cell", ["gru", "gru-before", "lstm-peephole"])
def test_sparse_weights_are_those_of_the_kernel(cell, rule):
    assert_as_kernel(cell, rule, draw_sparse(cell, rule, 33, 17, 0.2))


@pytest.mark.parametrize("rule", ["always", "selective", "skip"])
@pytest.mark.parametrize("hidden", [5, 300])
def test_states_that_change_places(rule, hidden):
    """New states are written in-place."""
    builder = Builder()
    states = [builder.argument(STATE + i) for i in range(4)]
    program = program_attributes(update=builder.finish([*states[1:], states[0]]))
    weights = {"W": np.zeros((hidden, 3), np.float32)}
    if rule == "selective":
        weights |= {"rule_W": np.zeros((hidden, 3)), "rule_d": np.zeros(hidden), "rule_b": np.ones(hidden)}
        # one in two
        weights["rule_b"][::2] = -1
    if rule == "skip":
        weights |= {"rule_w": np.zeros(hidden), "rule_b": np.zeros(1)}
    weights = {name: value.astype(np.float32) for name, value in weights.items()}
    node_attributes = {"schema": 2, "cell": "rotates", "rule": rule, "macs": 0, "gates": [1], "layout": [4, 0, 0, 0, 0]}
    names = [f"s{i}" for i in range(4)]
    memory = ["pressure"] if rule == "skip" else []
    run = node_session(weights, names + memory, ["", "", "", *(f"{n}_out" for n in names)], node_attributes | program)
    before = np.random.default_rng(0).standard_normal((4, 2, hidden)).astype(np.float32)
    feed = dict(zip(names, before, strict=True)) | {"X": np.zeros((1, 2, 3), np.float32)}
    got = run.run(None, feed | {name: np.ones((2, 1), np.float32) for name in memory})
    for i in range(4):
        expected = before[(i + 1) % 4].copy()
        if rule == "selective":
            expected[:, ::2] = before[i][:, ::2]
        np.testing.assert_array_equal(got[i], expected)


# eight gates, in both stages, with the maximum number of gates per term
ALL_GATES = ["x h mid", "x bias mid", "h mid", "x c bias", "h m", "x h c m bias", "m", "c"]
# the values of h and c: tanh(... tanh(tanh(p) + p') + p'' ...) over gates
ALL_ORDERS = ([3, 4, 5, 6, 7], [7, 6, 5, 4, 3])


def chain(values, add, tanh):
    total = values[0]
    for value in values[1:]:
        total = add(tanh(total), value)
    return tanh(total)


def chains(*orders):
    """Return a program with such chains of arguments."""
    builder = Builder()

    def add(a, b):
        return builder.op("add", a, b)

    def tanh(a):
        return builder.op("tanh", a)

    return builder.finish([chain([builder.argument(key) for key in keys], add, tanh) for keys in orders])


def all_gates_program():
    """m reads c, and h in the second state."""
    first, second = ALL_ORDERS
    return program_attributes(
        update=chains(first, [*second, STATE]),
        mid=chains([0, 1, 2, STATE + 1]),
    )


def all_gates_oracle(p, x, h, c):
    """One step with the weights p."""
    factors = {"W": ("x", x), "R": ("h", h), "C": ("c", c)}
    row = dict.fromkeys("WRCVb", 0)
    sums = []
    for g, terms in enumerate(gate.split() for gate in ALL_GATES):
        if g == 3:
            factors["V"] = ("m", chain([*sums, c], np.add, np.tanh))
        total = 0
        for name, (term, factor) in factors.items():
            if term in terms:
                total = total + factor @ p[name][row[name] : row[name] + h.shape[1]].T
                row[name] += h.shape[1]
        if "bias" in terms:
            total = total + p["b"][row["b"] : row["b"] + h.shape[1]]
            row["b"] += h.shape[1]
        sums.append(total)
    first, second = ALL_ORDERS
    return chain([sums[g] for g in first], np.add, np.tanh), chain([*(sums[g] for g in second), h], np.add, np.tanh)


@pytest.mark.parametrize("bias", [0.0, 3.0])
def test_gates_of_every_term(bias):
    hidden, inputs = 21, 6
    rng = np.random.default_rng(0)
    rows = {term: sum(term in gate.split() for gate in ALL_GATES) for term in TERMS}
    shapes = {"W": (rows["x"], inputs), "R": (rows["h"], hidden), "C": (rows["c"], hidden), "V": (rows["m"], hidden)}
    weights = {name: rng.standard_normal((count * hidden, columns)) * 0.2 for name, (count, columns) in shapes.items()}
    weights["b"] = rng.standard_normal(rows["bias"] * hidden)
    weights |= {"rule_W": rng.standard_normal((hidden, inputs)), "rule_d": np.zeros(hidden)}
    weights["rule_b"] = np.full(hidden, bias)
    call = {"X": rng.standard_normal((4, 2, inputs)), "h": rng.standard_normal((2, hidden))}
    call["c"] = rng.standard_normal((2, hidden))
    weights, call = ({name: a.astype(np.float32) for name, a in part.items()} for part in (weights, call))
    node_attributes = {"schema": 2, "cell": "all", "rule": "selective", "macs": 0, "layout": [2, 0, 0, 0, 0]}
    node_attributes["gates"] = [sum(TERMS[term] for term in gate.split()) for gate in ALL_GATES]
    outputs = ["Y", "updates", "macs", "h_out", "c_out"]
    y, updates, _, *last = node_session(weights, ["h", "c"], outputs, node_attributes | all_gates_program()).run(
        None, call
    )
    p = {name: a.astype(np.float64) for name, a in weights.items()}
    h, c = (call[name].astype(np.float64) for name in ("h", "c"))
    for t, x in enumerate(call["X"].astype(np.float64)):
        u = x @ p["rule_W"].T + p["rule_b"] > 0
        np.testing.assert_array_equal(updates[t], u.sum(-1))
        h, c = (np.where(u, new, old) for new, old in zip(all_gates_oracle(p, x, h, c), (h, c), strict=True))
        np.testing.assert_allclose(y[t], h, rtol=0, atol=FLOAT32)
    np.testing.assert_allclose(last, [h, c], rtol=0, atol=FLOAT32)
    assert 0 < updates.mean() < hidden


def test_node_with_gates_runs_by_them_whatever_its_name():
    weights, feed = draw("gru", "always", 5, 3), draw_call("gru", "always", 5, 3, 4, 2)
    builder = Builder()
    keeps = program_attributes(update=builder.finish([builder.argument(STATE)]))
    run = session("gru", "always", weights, attributes=attributes("gru") | {"cell": "gru"} | keeps)
    got = run.run(None, feed)
    np.testing.assert_array_equal(got[1], feed["h"])
