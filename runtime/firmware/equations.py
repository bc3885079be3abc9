# SPDX-License-Identifier: Apache-2.0
"""Gates and equations of cells and rules as data: those of the library, and those that a packed model contains."""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# bits of a gate's terms, as in runtime/csrc/cells/gate.h
X, H, M, BIAS, MID, C, OPTIONAL_BIAS = 1, 2, 4, 8, 16, 32, 64
# letter of a vector's size, by its code
EXTENTS = "HI1"
# kind of an argument of a cell's program, by its key divided by 16
_KINDS = ("gate", "x", "vector", "state")


@dataclass(frozen=True)
class Operation:
    """Computation of one value of an equation: an op, and the indices of its operands, which are earlier values."""

    op: str
    operands: tuple[int, ...]


@dataclass(frozen=True)
class PointwiseEquation:
    """Point-wise function as a list of operations; see `edgernn.program.Program`, whose serialised form it reads.

    Attributes:
        arguments: Name of each argument, such as "gate 0".
        constants: float32 numbers.
        operations: Operations in the order of execution.
        results: Indices of the values that are returned.
    """

    arguments: tuple[str, ...]
    constants: tuple[float, ...]
    operations: tuple[Operation, ...]
    results: tuple[int, ...]


@dataclass(frozen=True)
class CellTable:
    """A cell: the terms of its gates, its vectors and states, and its equations.

    Attributes:
        gates: Terms of each gate as bits.
        vectors: Size of each vector: H, I or 1.
        states: Number of states.
        mid_is_input: True if m and the gates that it reads have the size I, not H.
        reads_last: True if W has 2I columns, for x_t and then x_{t-1}.
        square: True if `update` reads x, so that I = H.
        update: PointwiseEquation of the next states.
        mid: PointwiseEquation of m, or None for a cell without m.
        map: PointwiseEquation that maps all vectors, or None if none is mapped.
        constants: Number of vectors that are constants; they come last.
    """

    gates: tuple[int, ...]
    vectors: tuple[str, ...]
    states: int
    mid_is_input: bool
    reads_last: bool
    square: bool
    update: PointwiseEquation
    mid: PointwiseEquation | None
    map: PointwiseEquation | None
    constants: int

    def group(self, *, mid: bool) -> list[int]:
        """Return the indices of the gates that `mid` reads, or of all others."""
        return [g for g, terms in enumerate(self.gates) if bool(terms & MID) == mid]

    def with_term(self, term: int, *, mid: bool) -> list[int]:
        """Return the indices of a group's gates that have a term."""
        return [g for g in self.group(mid=mid) if self.gates[g] & term]

    def rows(self, gate: int, hidden: int, inputs: int) -> int:
        """Return the number of rows of a gate."""
        return inputs if self.gates[gate] & MID and self.mid_is_input else hidden


@dataclass(frozen=True)
class RuleTable:
    """An update rule: what decides, its weights and memories, and its equations by method.

    Attributes:
        kind: TIME, NEURON or SAMPLE.
        dense: True if every neuron is updated at every step.
        inclusive: True if a neuron is updated at a score of 0 as well.
        memories: Size of each memory, by name.
        weights: Names of the weights in the order of the file.
        equations: `score`, `evidence`, `drive` and `advance`; empty for a rule that decides by code of its own.
        matrix: Name of the weight (H, I) of the scores' input part, or None.
        bias: Name of the bias of that part, or None.
        numbers: Names of the weights that are one number.
    """

    kind: str
    dense: bool
    inclusive: bool
    memories: Mapping[str, str]
    weights: Sequence[str]
    equations: Mapping[str, PointwiseEquation] = field(default_factory=dict)
    matrix: str | None = None
    bias: str | None = None
    numbers: Sequence[str] = ()


@functools.cache
def _tables() -> dict[str, Any]:
    tables: dict[str, Any] = json.loads(Path(__file__).with_name("equations.json").read_text(encoding="utf-8"))
    return tables


@functools.cache
def built_in_cell(name: str) -> CellTable | None:
    """Return the cell of the library with this name, such as sru-projected, or None if there is none."""
    lists = _tables()["cells"].get(name)
    return None if lists is None else cell_table(lists)


@functools.cache
def built_in_rules() -> dict[str, RuleTable]:
    """Return all rules of the library by name."""
    return {name: _rule_table(entry) for name, entry in _tables()["rules"].items()}


def cell_table(lists: Mapping[str, Any]) -> CellTable:
    """Read a cell from the lists of numbers that describe it in a file: gates, vectors, layout and programs."""
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


def _cell_equation(lists: Mapping[str, Any], name: str) -> PointwiseEquation | None:
    ints = lists.get(name, ())
    if not len(ints):
        return None
    return _equation(ints, lists.get(f"{name}_numbers", ()), lambda key: f"{_KINDS[key // 16]} {key % 16}")


def _rule_table(entry: dict[str, Any]) -> RuleTable:
    equations = {}
    for method, program in entry["programs"].items():
        names = {int(key): name for key, name in program["names"].items()}
        equations[method] = _equation(program["ints"], program["numbers"], names.__getitem__)
    return RuleTable(**{key: value for key, value in entry.items() if key != "programs"}, equations=equations)


def _equation(ints: Sequence[int], numbers: Sequence[float], name: Callable[[int], str]) -> PointwiseEquation:
    """Read a serialised program; `name` maps the key of an argument to its name."""
    names = {code: (op, arity) for op, (code, arity) in _tables()["ops"].items()}
    arguments, constants, operations, results = (int(count) for count in ints[:4])
    first, last = 4 + arguments, len(ints) - results
    decoded = []
    for at in range(first, last, 4):
        op, arity = names[int(ints[at])]
        decoded.append(Operation(op, tuple(int(number) for number in ints[at + 1 : at + 1 + arity])))
    assert (len(numbers), len(decoded)) == (constants, operations)
    keys = (int(key) for key in ints[4:first])
    return PointwiseEquation(
        tuple(map(name, keys)), tuple(map(float, numbers)), tuple(decoded), tuple(map(int, ints[last:]))
    )


# ops on float64 arrays, for the maps of vectors, which packing applies
_COMPUTE: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "min": np.minimum,
    "max": np.maximum,
    "neg": np.negative,
    "abs": np.abs,
    "sqrt": np.sqrt,
    "exp": np.exp,
    "log": np.log,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "sigmoid": lambda a: 1 / (1 + np.exp(-a)),
    "sign": np.sign,
    "less": np.less,
    "less_equal": np.less_equal,
    "equal": np.equal,
    "select": lambda a, b, c: np.where(a != 0, b, c),
    "lerp": lambda a, b, c: (1 - c) * a + c * b,
}


def mapped_vectors(equation: PointwiseEquation | None, vectors: Sequence[NDArray[Any]]) -> list[NDArray[np.float32]]:
    """Apply the map of a cell to its vectors, in float64."""
    if equation is None:
        return [vector.astype(np.float32) for vector in vectors]
    values: list[Any] = [vectors[int(name.split()[1])].astype(np.float64) for name in equation.arguments]
    values += equation.constants
    with np.errstate(all="ignore"):
        for operation in equation.operations:
            values.append(_COMPUTE[operation.op](*(values[number] for number in operation.operands)) * 1.0)
    results = [np.asarray(values[number]) for number in equation.results]
    return [np.broadcast_to(r, v.shape).astype(np.float32) for r, v in zip(results, vectors, strict=True)]
