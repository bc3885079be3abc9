# SPDX-License-Identifier: Apache-2.0
"""Tables of cells and update rules from which C code is printed: their gates, weights and point-wise equations.

The tables of built-in cells and rules are in equations.json. A packed model contains the table of a user's own cell.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgernn.program import Program

# bits of a gate's terms, as in runtime/csrc/cells/gate.h
X, H, M, BIAS, MID, C, OPTIONAL_BIAS = 1, 2, 4, 8, 16, 32, 64
# size of a vector, H, I or 1, by its code
EXTENTS = "HI1"
# kind of an argument of a cell's program, by its key divided by 16
_KINDS = ("gate", "x", "vector", "state")


@dataclass(frozen=True)
class Equation:
    """Point-wise program with the name of each of its arguments, such as "gate 0"."""

    program: Program
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class CellTable:
    """A recurrent cell: its gates (pre-activations), parameter vectors and states, and its equations.

    A gate is a sum of the terms W x, R h, C c, V m and a bias b, each of which it may lack. m is an intermediate
    vector, the result of the cell's equation `mid`.

    Attributes:
        gates: Terms of each gate, as a sum of the bits X (W x), H (R h), C (C c), M (V m) and BIAS. OPTIONAL_BIAS marks
            a bias that a model may leave out, and MID a gate that the equation `mid` reads.
        vectors: Size of each parameter vector: "H", "I" or "1".
        states: Number of state vectors, such as 2 for h and c.
        mid_is_input: True if m and the gates that it reads have the size I, not H.
        reads_last: True if W has 2I columns, for x_t and then x_{t-1}.
        square: True if `update` reads x, so that I = H.
        update: Equation of the next states.
        mid: Equation of m, or None for a cell without m.
        map: Equation that converts the stored vectors to those that the cell reads, or None to use them as stored.
        constants: Number of vectors that are not trained; they are the last ones.
    """

    gates: tuple[int, ...]
    vectors: tuple[str, ...]
    states: int
    mid_is_input: bool
    reads_last: bool
    square: bool
    update: Equation
    mid: Equation | None
    map: Equation | None
    constants: int

    def group(self, *, mid: bool) -> list[int]:
        """Return the indices of the gates that the equation `mid` reads (mid=True), or of all other gates."""
        return [g for g, terms in enumerate(self.gates) if bool(terms & MID) == mid]

    def with_term(self, term: int, *, mid: bool) -> list[int]:
        """Return the indices of the gates that have a term, among the gates that `mid` reads or among all others.

        Args:
            term: Bit of the term, such as X for W x.
            mid: True to search the gates that the equation `mid` reads, False to search all others.

        Returns:
            The indices.
        """
        return [g for g in self.group(mid=mid) if self.gates[g] & term]

    def rows(self, gate: int, hidden: int, inputs: int) -> int:
        """Return the number of rows of a gate's weights.

        The number is `inputs` (I) if the cell's intermediate vector m has the size I and the equation `mid`, which
        computes m, reads this gate. Otherwise the number is `hidden` (H).

        Args:
            gate: Index of the gate.
            hidden: H, the number of neurons of the layer.
            inputs: I, the size of the layer's input.

        Returns:
            The number of rows.
        """
        return inputs if self.gates[gate] & MID and self.mid_is_input else hidden


@dataclass(frozen=True)
class RuleTable:
    """An update rule, which decides which neurons a step updates: its weights, own states (memories) and equations.

    A rule with equations computes a score, and updates the neurons whose score is above 0. A memory is a state of the
    rule itself.

    Attributes:
        kind: TIME if the step number alone decides, NEURON if the rule decides for each neuron, SAMPLE if it makes one
            decision for all neurons. COLUMN if the rule updates all neurons, but keeps the sums W x + R h + b from step
            to step, and adds to them only the effect of those values of x and h that changed by more than a threshold.
        dense: True if every neuron is updated at every step.
        inclusive: True if a neuron whose score is exactly 0 is updated, too.
        memories: Dict from the name of each memory to its size: "H", "I", "1", "W" (number of columns of W) or "P"
            (total number of rows of the gates that read x or h).
        weights: Names of the rule's weights, in the order in which a packed model stores them.
        equations: Dict from the name of a method of `UpdateRule` to its equation. `score` computes the score. `advance`
            computes the next memories; one of its arguments is the result of `drive`, which reads the result of
            `evidence`, which reads the cell's new states. Empty for a rule that is written in C++.
        matrix: Name of the weight (H, I) whose product with x is part of the score, or None.
        bias: Name of the bias that is added to this product, or None.
        numbers: Names of the weights that are a single number.
        pool: For the kind SAMPLE: name of a weight n, or "". If n > 0, the cell reads the sum of the inputs since the
            last update, divided by n, in place of x. The last memory is the sum of the inputs that no update has read
            yet; the equations neither read nor compute it.
        period: For the kind COLUMN: number of steps after which the sums are computed in full.
        largest_change: For the kind COLUMN: if a value of x or h changes by more than this, the sums are computed in
            full at once.
    """

    kind: str
    dense: bool
    inclusive: bool
    memories: Mapping[str, str]
    weights: Sequence[str]
    equations: Mapping[str, Equation] = field(default_factory=dict)
    matrix: str | None = None
    bias: str | None = None
    numbers: Sequence[str] = ()
    pool: str = ""
    period: int = 0
    largest_change: float = 0.0

    @property
    def equation_memories(self) -> list[str]:
        """Names of the memories that the equations read and compute."""
        return list(self.memories)[: -1 if self.pool else None]

    @property
    def has_drive(self) -> bool:
        """True if the rule makes one decision for all neurons, and its memories depend on the cell's states."""
        return self.kind == "SAMPLE" and "drive" in self.equations["advance"].arguments

    @property
    def decides_per_neuron(self) -> bool:
        return self.kind == "NEURON"

    @property
    def keeps_sums(self) -> bool:
        """True if the rule keeps the sums W x + R h + b from step to step."""
        return self.kind == "COLUMN"

    @property
    def has_code(self) -> bool:
        """True if C code can be generated for the rule."""
        return self.dense or bool(self.equations) or self.keeps_sums


@functools.cache
def _tables() -> dict[str, Any]:
    tables: dict[str, Any] = json.loads(Path(__file__).with_name("equations.json").read_text(encoding="utf-8"))
    return tables


@functools.cache
def built_in_cell(name: str) -> CellTable | None:
    """Return the table of the built-in cell with this name, such as sru-projected, or None if there is none."""
    lists = _tables()["cells"].get(name)
    return None if lists is None else cell_table(lists)


@functools.cache
def built_in_rules() -> dict[str, RuleTable]:
    """Return a dict from the name of each built-in update rule to its table."""
    return {name: _rule_table(entry) for name, entry in _tables()["rules"].items()}


def kind_of_rule(name: str) -> str | None:
    """Return the kind of the built-in update rule with this name, such as COLUMN, or None if there is none."""
    rule = built_in_rules().get(name)
    return None if rule is None else rule.kind


def cell_table(lists: Mapping[str, Any]) -> CellTable:
    """Build the table of a cell from its description in equations.json or in a packed model.

    Args:
        lists: Dict from name to a list of numbers. The list `gates` has the terms of each gate, as in `CellTable`. The
            list `vectors` has a code for the size of each vector: 0 for H, 1 for I, 2 for 1. The list `layout` has the
            attributes `states`, `mid_is_input`, `reads_last` and `square` of the table, and a number that is not used.
            Each of the lists `update`, `mid` and `map` has the integers of an equation. The lists `update_numbers`,
            `mid_numbers` and `map_numbers` have the constants of these equations. `gates`, `layout` and `update` are
            required; any other missing list counts as empty. The entry `constants` is a single number, 0 if missing.

    Returns:
        The table.
    """
    states, mid_is_input, reads_last, square, _ = lists["layout"]
    update, mid, map = (_cell_equation(lists, name) for name in ("update", "mid", "map"))
    assert update is not None
    return CellTable(
        tuple(lists["gates"]),
        tuple(EXTENTS[code] for code in lists.get("vectors", ())),
        states,
        bool(mid_is_input),
        bool(reads_last),
        bool(square),
        update,
        mid,
        map,
        lists.get("constants", 0),
    )


def _cell_equation(lists: Mapping[str, Any], name: str) -> Equation | None:
    ints = lists.get(name, ())
    if not len(ints):
        return None
    program = Program.deserialise(ints, lists.get(f"{name}_numbers", ()))
    return Equation(program, tuple(f"{_KINDS[key // 16]} {key % 16}" for key in program.arguments))


def _rule_table(entry: dict[str, Any]) -> RuleTable:
    equations = {}
    for method, stored in entry["programs"].items():
        program = Program.deserialise(stored["ints"], stored["numbers"])
        equations[method] = Equation(program, tuple(stored["names"][str(key)] for key in program.arguments))
    return RuleTable(**{key: value for key, value in entry.items() if key != "programs"}, equations=equations)


def mapped_vectors(equation: Equation | None, vectors: Sequence[NDArray[Any]]) -> list[NDArray[np.float32]]:
    """Convert the parameter vectors that a model stores to those that the cell's other equations read.

    Args:
        equation: The cell's equation `map`, which is computed in float64. None if the vectors are used as stored.
        vectors: The stored vectors.

    Returns:
        One float32 vector for each stored vector, of the same shape.
    """
    if equation is None:
        return [vector.astype(np.float32) for vector in vectors]
    results = equation.program.run([vectors[int(name.split()[1])] for name in equation.arguments])
    return [np.broadcast_to(r, v.shape).astype(np.float32) for r, v in zip(results, vectors, strict=True)]
