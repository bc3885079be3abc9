# SPDX-License-Identifier: Apache-2.0
"""Tables of the built-in cells and update rules, from equations.json: gates, weights and point-wise equations."""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgernn.cell_table import INPUT, VECTOR, CellTable
from edgernn.program import OPS, Program

# kind of an argument of a cell's program, by its key divided by 16
_KINDS = ("gate", "x", "vector", "state")


@dataclass(frozen=True)
class Equation:
    """Point-wise program with the name of each of its arguments, such as "gate 0"."""

    program: Program
    arguments: tuple[str, ...]


def cell_equation(program: Program) -> Equation:
    """Name the arguments of a cell's program: "gate 0", "x 0", "vector 1", "state 1" and so on."""
    return Equation(program, tuple(f"{_KINDS[key // INPUT]} {key % INPUT}" for key in program.arguments))


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
    return None if lists is None else CellTable.from_attributes(lists, lists["constants"])


@functools.cache
def built_in_rules() -> dict[str, RuleTable]:
    """Return a dict from the name of each built-in update rule to its table."""
    return {name: _rule_table(entry) for name, entry in _tables()["rules"].items()}


def kind_of_rule(name: str) -> str | None:
    """Return the kind of the built-in update rule with this name, such as COLUMN, or None if there is none."""
    rule = built_in_rules().get(name)
    return None if rule is None else rule.kind


def _rule_table(entry: dict[str, Any]) -> RuleTable:
    equations = {}
    for method, stored in entry["programs"].items():
        program = Program.deserialise(stored["ints"], stored["numbers"])
        equations[method] = Equation(program, tuple(stored["names"][str(key)] for key in program.arguments))
    return RuleTable(**{key: value for key, value in entry.items() if key != "programs"}, equations=equations)


def mapped_vectors(program: Program | None, vectors: Sequence[NDArray[Any]]) -> list[NDArray[np.float32]]:
    """Convert the parameter vectors that a model stores to those that the cell's other equations read.

    Args:
        program: The cell's equation `map`, which is computed in float64. None if the vectors are used as stored.
        vectors: The stored vectors.

    Returns:
        One float32 vector for each stored vector, of the same shape.
    """
    if program is None:
        return [vector.astype(np.float32) for vector in vectors]
    # unlike Program.run, keeps vectors of size I and of one number apart
    arrays = [np.asarray(vectors[key - VECTOR], np.float64) for key in program.arguments]
    with np.errstate(all="ignore"):
        results = program.evaluate([*arrays, *program.constants], {name: op.compute for name, op in OPS.items()})
    return [np.broadcast_to(r, v.shape).astype(np.float32) for r, v in zip(results, vectors, strict=True)]
