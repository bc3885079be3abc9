# SPDX-License-Identifier: Apache-2.0
"""The errors of the native library for invalid cells in files."""

from typing import Any

import numpy as np
import pytest

from edgernn.cell_program import cell_program
from tests.native import draw, draw_call, layer, node_session, session

Attributes = dict[str, Any]
# one gate with x and h, one state: h_t = p_0
PLAIN = {"gates": [3], "layout": [1, 0, 0, 0, 0], "update": [1, 0, 0, 1, 0, 0]}


def refusal(attributes: Attributes, rule: str = "always") -> str:
    """Return the error for a node; its weights are arbitrary."""
    node_attributes = {"schema": 2, "cell": "mine", "rule": rule, "macs": 0, **attributes}
    weights = {"W": np.zeros((2, 2), np.float32), "R": np.zeros((2, 2), np.float32)}
    with pytest.raises(Exception, match="edgernn: mine") as caught:
        node_session(weights, ["h"], ["Y", "", "", "h_out"], node_attributes)
    return str(caught.value)


def update(
    arguments: list[int] | None = None,
    constants: list[float] | None = None,
    instructions: list[tuple[int, int, int, int]] | None = None,
    results: list[int] | None = None,
) -> Attributes:
    """Return an update with these parts, by default those of PLAIN."""
    arguments = [0] if arguments is None else arguments
    constants, instructions = constants or [], instructions or []
    results = [0] if results is None else results
    ints = [len(arguments), len(constants), len(instructions), len(results), *arguments]
    ints += [number for instruction in instructions for number in instruction]
    return {"update": [*ints, *results]} | ({"update_numbers": constants} if constants else {})


PROGRAMS = {
    "no counts": ({"update": [1, 0]}, "update: expected four counts, got 2"),
    "no program": ({"update": None}, "update: expected four counts, got 0"),
    "arguments below 0": ({"update": [-1, 0, 0, 1]}, "update: expected 0 to 32 arguments, got -1"),
    "too many arguments": ({"update": [33, 0, 0, 1]}, "update: expected 0 to 32 arguments, got 33"),
    "too many constants": ({"update": [1, 129, 0, 1]}, "update: expected 0 to 128 constants, got 129"),
    "too many instructions": ({"update": [1, 0, 1 << 40, 1]}, "update: expected 0 to 128 instructions, got"),
    "too many results": ({"update": [1, 0, 0, 2, 0, 0, 0]}, "update: expected 0 to 1 results, got 2"),
    "too few results": ({"update": [1, 0, 0, 0, 0]}, "update: expected 1 results, got 0"),
    "too many values": (
        update(constants=[1.0] * 64, instructions=[(6, 0, 0, 0)] * 64),
        "update: expected at most 128 values, got 129",
    ),
    "missing ints": ({"update": [1, 0, 1, 1, 0, 6, 0, 0]}, "update: expected 10 ints, got 8"),
    "more ints": ({"update": [1, 0, 0, 1, 0, 0, 0]}, "update: expected 6 ints, got 7"),
    "missing constants": ({"update": [1, 1, 0, 1, 0, 0]}, "update: expected 1 constants, got 0"),
    "more constants": ({"update_numbers": [1.0]}, "update: expected 0 constants, got 1"),
    "constant NaN": (update(constants=[float("nan")]), "update: expected finite constants"),
    "constant infinity": (update(constants=[float("inf")]), "update: expected finite constants"),
    "argument twice": (update([0, 0]), "update: expected distinct arguments, got 0"),
    "negative argument": (update([-1]), "update: expected arguments that this stage of the cell has, got -1"),
    "unknown kind": (update([80]), "update: expected arguments that this stage of the cell has, got 80"),
    "gradient": (update([64]), "update: expected arguments that this stage of the cell has, got 64"),
    "gate that is not there": (update([1]), "update: expected arguments that this stage of the cell has, got 1"),
    "vector that is not there": (update([32]), "update: expected arguments that this stage of the cell has, got 32"),
    "state that is not there": (update([49]), "update: expected arguments that this stage of the cell has, got 49"),
    "x of another size": (update([16]), "update: expected arguments that this stage of the cell has, got 16"),
    "second x": (
        update([17]) | {"layout": [1, 0, 0, 1, 0]},
        "update: expected arguments that this stage of the cell has, got 17",
    ),
    "unknown op": (update(instructions=[(21, 0, 0, 0)]), "update: expected operation codes below 21, got 21"),
    "negative op": (update(instructions=[(-1, 0, 0, 0)]), "update: expected operation codes below 21, got -1"),
    "operand of its own": (update(instructions=[(6, 1, 0, 0)]), "update: expected numbers of values below 1, got 1"),
    "negative operand": (update(instructions=[(0, 0, -1, 0)]), "update: expected numbers of values below 1, got -1"),
    "operand too many": (
        update(instructions=[(6, 0, 1, 0)]),
        "update: expected 0 for an operand that an op lacks, got 1",
    ),
    "result beyond": (update(results=[1]), "update: expected numbers of values below 1, got 1"),
    "negative result": (update(results=[-1]), "update: expected numbers of values below 1, got -1"),
}

CELLS = {
    "too many gates": ({"gates": [1] * 9}, "gates: expected 1 to 8 numbers, got 9"),
    "unknown term": ({"gates": [64]}, "gates: expected numbers from 0 to 63, got 64"),
    "negative terms": ({"gates": [-1]}, "gates: expected numbers from 0 to 63, got -1"),
    "bias alone": ({"gates": [3, 8]}, "gates: a gate has no term besides its bias"),
    "no x": ({"gates": [2]}, "gates: no gate reads x, whose weights set I"),
    "a term five times": ({"gates": [1] * 5}, "gates: more than 4 gates of a stage have the same term"),
    "c of one state": ({"gates": [1 + 32]}, "gates: a gate reads c, which needs two states"),
    "mid without m": ({"gates": [1, 1 + 16]}, "gates: gates are marked mid and none reads m"),
    "mid that reads m": ({"gates": [5, 1 + 4 + 16]}, "gates: a gate that m is made from reads m or c"),
    "mid that reads c": (
        {"gates": [5, 1 + 16 + 32], "layout": [2, 0, 0, 0, 0]},
        "gates: a gate that m is made from reads m or c",
    ),
    "m of the last input": (
        {"gates": [5, 17], "layout": [1, 0, 1, 0, 0]},
        "gates: m has no part of the last input",
    ),
    "no m of size I": ({"layout": [1, 1, 0, 0, 0]}, "gates: m has the size of the input and no gate reads it"),
    "no m that vanishes": ({"layout": [1, 0, 0, 0, 1]}, "gates: only an m of the size of the states vanishes"),
    "m of size I that vanishes": (
        {"gates": [5, 17], "layout": [1, 1, 0, 0, 1]},
        "gates: only an m of the size of the states vanishes",
    ),
    "vector of size I": ({"vectors": [1]}, "gates: a vector has the size of the input, which no stage has"),
    "too many vectors": ({"vectors": [0] * 5}, "vectors: expected 0 to 4 numbers, got 5"),
    "unknown size": ({"vectors": [3]}, "vectors: expected numbers from 0 to 2, got 3"),
    "short layout": ({"layout": [1, 0, 0, 0]}, "layout: expected 5 numbers, got 4"),
    "no layout": ({"layout": None}, "layout: expected 5 numbers, got 0"),
    "no state": ({"layout": [0, 0, 0, 0, 0]}, "layout: expected 1 to 4 states, got 0"),
    "too many states": ({"layout": [5, 0, 0, 0, 0]}, "layout: expected numbers from 0 to 4, got 5"),
    "a flag of 2": ({"layout": [1, 0, 0, 2, 0]}, "layout: expected numbers from 0 to 1, got 2"),
    "mid that nothing reads": ({"mid": [1, 0, 0, 1, 0, 0]}, "mid: no gate reads m"),
    "no mid": ({"gates": [5, 17], **update([0])}, "mid: expected four counts, got 0"),
    "update of a gate of mid": (
        {"gates": [5, 17], **update([1]), "mid": [1, 0, 0, 1, 1, 0]},
        "update: expected arguments that this stage of the cell has, got 1",
    ),
    "mid of a gate of update": (
        {"gates": [5, 17], "mid": [1, 0, 0, 1, 0, 0]},
        "mid: expected arguments that this stage of the cell has, got 0",
    ),
    "mid of size I with a state": (
        {"gates": [5, 17], "layout": [1, 1, 0, 0, 0], "mid": [1, 0, 0, 1, 48, 0]},
        "mid: expected arguments that this stage of the cell has, got 48",
    ),
    "mid of size H with x": (
        {"gates": [5, 17], "mid": [1, 0, 0, 1, 16, 0]},
        "mid: expected arguments that this stage of the cell has, got 16",
    ),
    "mid of size I with a vector of size H": (
        {"gates": [5, 17], "layout": [1, 1, 0, 0, 0], "vectors": [0], "mid": [1, 0, 0, 1, 32, 0]},
        "mid: expected arguments that this stage of the cell has, got 32",
    ),
    "update with a vector of size I": (
        {"gates": [5, 17], "layout": [1, 1, 0, 0, 0], "vectors": [1], "mid": [1, 0, 0, 1, 32, 0], **update([32])},
        "update: expected arguments that this stage of the cell has, got 32",
    ),
    "map of a gate": (
        {"vectors": [0], "map": [1, 0, 0, 1, 0, 0]},
        "map: expected arguments that this stage of the cell has, got 0",
    ),
    "map of too few": ({"vectors": [0, 0], "map": [1, 0, 0, 1, 32, 0]}, "map: expected 2 results, got 1"),
    "map that mixes sizes": (
        {"layout": [1, 0, 0, 1, 0], "vectors": [0, 1], "map": [2, 0, 0, 2, 32, 33, 1, 0]},
        "map: vector 0: expected a map of vectors of its size and numbers, got one of another size",
    ),
    "map of a number by a vector": (
        {"vectors": [0, 2], "map": [2, 0, 1, 2, 32, 33, 0, 0, 1, 0, 0, 2]},
        "map: vector 1: expected a map of vectors of its size and numbers, got one of another size",
    ),
}


@pytest.mark.parametrize("case", [*PROGRAMS, *CELLS])
def test_bad_cell_is_refused_with_a_sentence(case: str) -> None:
    attributes, message = {**PROGRAMS, **CELLS}[case]
    assert f"edgernn: mine: {message}" in refusal(PLAIN | attributes)


def test_plain_cell_is_taken() -> None:
    """The cases above differ from this cell only in the refused part."""
    node_attributes = {"schema": 2, "cell": "mine", "rule": "always", "macs": 0, **PLAIN}
    weights = {"W": np.ones((2, 2), np.float32), "R": np.zeros((2, 2), np.float32)}
    run = node_session(weights, ["h"], ["Y", "", "", "h_out"], node_attributes)
    y, _ = run.run(None, {"X": np.ones((1, 1, 2), np.float32), "h": np.zeros((1, 2), np.float32)})
    np.testing.assert_array_equal(y, np.full((1, 1, 2), 2.0))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"rule": "sometimes"}, r"mine\+sometimes"),
        ({"norm": "layer"}, r"mine\+layer"),
        ({"imputer": "mean"}, r"mean\+mine"),
    ],
    ids=["rule", "norm", "imputer"],
)
def test_other_parts_are_refused(change: Attributes, name: str) -> None:
    attributes = cell_program(layer("gru", "always", 5, 3).cell).attributes() | {"cell": "mine"} | change
    with pytest.raises(Exception, match=f"edgernn: this library has no kernel for {name}; update edgernn"):
        session("gru", "always", draw("gru", "always", 5, 3), attributes=attributes)


def user_cell_attributes(cell: str, hidden: int = 5, inputs: int = 3) -> Attributes:
    return {"cell": "mine", **cell_program(layer(cell, "always", hidden, inputs).cell).attributes()}


BAD_WEIGHTS: dict[str, tuple[str, str, tuple[int, ...], str]] = {
    "W": ("gru", "W", (16, 3), r"W: expected \(3 \* H, I\), got \(16, 3\)"),
    "R": ("gru", "R", (15, 4), r"R: expected \(15, 5\) as W is \(15, 3\), got \(15, 4\)"),
    "b": ("gru", "b", (15,), r"b: expected \(20,\) as W is \(15, 3\), got \(15,\)"),
    "first vector": ("fastgrnn", "b_z", (4,), r"vector 0: expected \(5,\) as W is \(5, 3\), got \(4,\)"),
    "last vector": ("fastgrnn", "nu", (5,), r"vector 3: expected \(1,\) as W is \(5, 3\), got \(5,\)"),
    "V": ("eins", "V", (20, 5), r"V: expected \(20, 3\)"),
}


@pytest.mark.parametrize("constant", [True, False], ids=["constant", "given"])
@pytest.mark.parametrize("case", BAD_WEIGHTS)
def test_bad_weights_are_refused_by_name(case: str, constant: bool) -> None:
    cell, name, shape, message = BAD_WEIGHTS[case]
    weights = draw(cell, "always", 5, 3)
    assert name in weights
    weights[name] = np.zeros(shape, np.float32)
    feed = draw_call(cell, "always", 5, 3, 2, 2)

    def build_and_run() -> None:
        run = session(cell, "always", weights, constant=constant, attributes=user_cell_attributes(cell))
        run.run(None, feed if constant else weights | feed)

    with pytest.raises(Exception, match=f"edgernn: mine: {message}"):
        build_and_run()


def test_cell_whose_states_meet_its_inputs_is_refused_other_sizes() -> None:
    weights = draw("sru", "always", 5, 5)
    weights["W"] = np.zeros((15, 3), np.float32)
    with pytest.raises(Exception, match=r"edgernn: mine: W: expected I = H = 5 columns"):
        session("sru", "always", weights, sizes=(5, 5), attributes=user_cell_attributes("sru", 5, 5))


def test_bad_state_is_refused_by_its_number() -> None:
    run = session("lstm", "always", draw("lstm", "always", 5, 3), attributes=user_cell_attributes("lstm"))
    feed = draw_call("lstm", "always", 5, 3, 2, 2)
    feed["c"] = np.zeros((2, 6), np.float32)
    with pytest.raises(Exception, match=r"edgernn: mine: state 1: expected \(2, 5\), got \(2, 6\)"):
        run.run(None, feed)


def test_wrong_number_of_inputs_is_refused_with_what_there_should_be() -> None:
    weights = draw("gru", "always", 5, 3)
    del weights["b"]
    with pytest.raises(Exception, match="edgernn: mine: expected the inputs X, W, R, b, state 0, got 4 inputs"):
        session("gru", "always", weights, attributes=user_cell_attributes("gru"))


def test_program_without_gates_is_left_alone() -> None:
    """Such a node runs the built-in cell of its name."""
    weights, feed = draw("gru", "always", 5, 3), draw_call("gru", "always", 5, 3, 2, 2)
    expected = session("gru", "always", weights).run(None, feed)
    got = session("gru", "always", weights, attributes={"update": [1, 0]}).run(None, feed)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_array_equal(a, b)
