# SPDX-License-Identifier: Apache-2.0
"""A cell as data: the table of its gates and the programs of its equations, as nodes of exported files carry them."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from torch import Tensor

from edgernn.cells.base import Cell, Gate, Gates, Vector
from edgernn.program import Builder, Program, ProgramError
from edgernn.tracing import check_gradient, trace

# what an argument of a program is: a kind, and the place in its table
GATE, INPUT, VECTOR, STATE = 0, 16, 32, 48
# terms of a gate, and sizes of a vector, as runtime/csrc/cells/gate.h has them
TERMS = {"x": 1, "h": 2, "m": 4, "bias": 8, "mid": 16, "c": 32}
SIZES = {"H": 0, "I": 1, "1": 2}
# what the native library takes, as runtime/csrc/cells/gate.h has it
MOST_GATES, MOST_VECTORS, MOST_STATES = 8, 4, 4
# gates of one stage, those that feed mid or the others, with the same term
MOST_PRODUCTS = 4
# weights that are in `constants` beside a cell's own vectors
_WEIGHTS = ("R", "C", "V", "bR", "bC", "bV")


@dataclass(frozen=True)
class Equations:
    """The programs of a cell's `update` and `mid` (None in cells without m).

    vectors: the names of the own vectors that arguments are numbered by, and how many numbers each has.
    mid_is_input: True if m has the size I, False if it has the size H or there is no m.
    """

    update: Program
    mid: Program | None
    vectors: Mapping[str, int]
    mid_is_input: bool


def trace_equations(cell: Cell, *, differentiable: bool = False) -> Equations:
    """The equations of a cell, one result a state, and m.

    differentiable: their gradients have to be torch's as well. Raises ProgramError where they are not point-wise, or
    use operators that programs lack, and for a cell with a step() of its own, which may do anything.
    """
    if type(cell).step is not Cell.step:
        raise ProgramError("a cell with a step() of its own has no program")
    constants = cell.constants(next(cell.parameters()).new_zeros(1, 1, cell.input_size))
    vectors = {name: value.numel() for name, value in constants.items() if name not in _WEIGHTS}
    mids = [gate for gate in cell.gates if gate.mid]
    mid, mid_is_input = None, False
    if any(gate.m for gate in cell.gates):
        mid_is_input = _mid_is_input(cell)
        mid = _trace(cell, "mid", mids, cell.mid_size, vectors, differentiable)
    elif mids:
        raise ProgramError(f"gate {mids[0].name} feeds mid, which no gate reads")
    gates = [gate for gate in cell.gates if not gate.mid]
    update = _trace(cell, "update", gates, cell.hidden_size, vectors, differentiable)
    return Equations(update, mid, vectors, mid_is_input)


def _mid_is_input(cell: Cell) -> bool:
    """True if `mid_size` is I, False if it is H, whatever these sizes are in this cell."""
    probe = copy.copy(cell)
    probe.input_size, probe.hidden_size = 3, 5
    if probe.mid_size not in (3, 5):
        raise ProgramError(f"a program needs m of size H or I, got {cell.mid_size}")
    return probe.mid_size == 3


def _trace(
    cell: Cell, method: str, gates: list[Gate], size: int, vectors: Mapping[str, int], differentiable: bool
) -> Program:
    """The program of one method, of its gates, whose results have such a size."""
    if max(len(cell.gates), len(vectors), len(cell.states)) > INPUT:
        raise ProgramError(f"expected at most {INPUT} gates, vectors and states each")
    inputs = cell.input_size * (1 + cell.reads_last)
    names = {GATE + i: gate.name for i, gate in enumerate(cell.gates) if gate in gates} | {INPUT: "x"}
    sizes = dict.fromkeys(names, size) | {INPUT: inputs}
    for i, (name, count) in enumerate(vectors.items()):
        names[VECTOR + i], sizes[VECTOR + i] = name, size if count == 1 else count
    # tiles of other widths: sizes that differ are not to be mixed
    places = {count: 3 + i for i, count in enumerate(dict.fromkeys((size, cell.hidden_size, inputs, *sizes.values())))}
    widths = {key: places[count] for key, count in sizes.items()}
    widths |= {STATE + i: places[cell.hidden_size] for i in range(len(cell.states))}

    def function(values: Mapping[int, Tensor]) -> tuple[Tensor, ...]:
        p = Gates({name: values[key] for key, name in names.items()})
        states = tuple(values[STATE + i] for i in range(len(cell.states)))
        return cell.update(p, states) if method == "update" else (cell.mid(p, states),)

    program = trace(method, function, widths, places[size])
    results = len(cell.states) if method == "update" else 1
    if len(program.results) != results:
        raise ProgramError(f"{method}: expected {results} results, got {len(program.results)}")
    if differentiable:
        check_gradient(method, program, function, widths)
    return program


@dataclass(frozen=True)
class CellProgram:
    """A cell as the native library runs it without knowing it.

    gates: the terms of each. vectors: the size of each own vector. square: I must be H, as some neuron reads both.
    map: from all own vectors to the mapped ones; None where none is mapped.
    """

    gates: tuple[int, ...]
    vectors: tuple[int, ...]
    states: int
    mid_is_input: bool
    reads_last: bool
    square: bool
    mid_vanishes: bool
    update: Program
    mid: Program | None
    map: Program | None

    @property
    def layout(self) -> tuple[int, ...]:
        """What is neither a gate, a vector nor an equation, as whole numbers."""
        return self.states, int(self.mid_is_input), int(self.reads_last), int(self.square), int(self.mid_vanishes)

    def attributes(self) -> dict[str, list[int] | list[float]]:
        """The attributes of a node of such a cell; those without a number are left out."""
        lists: dict[str, list[int] | list[float]] = {"gates": list(self.gates), "vectors": list(self.vectors)}
        lists["layout"] = list(self.layout)
        for name, program in (("update", self.update), ("mid", self.mid), ("map", self.map)):
            if program is not None:
                lists[name], lists[f"{name}_numbers"] = program.serialise()
        return {name: numbers for name, numbers in lists.items() if numbers}


def cell_program(cell: Cell) -> CellProgram:
    """The program of a cell for the native library. Raises ProgramError where it has none."""
    for method in ("constants", "project", "thinned", "zero_state"):
        if getattr(type(cell), method) is not getattr(Cell, method):
            raise ProgramError(f"a cell with a {method}() of its own has no program")
    if cell.norm is not None:
        raise ProgramError("a cell with a norm has no program")
    equations = trace_equations(cell)
    sizes = [vector.size for vector in cell.own.values()]
    mid_is_input = equations.mid_is_input
    program = CellProgram(
        tuple(gate_terms(gate) for gate in cell.gates),
        tuple(SIZES[size] for size in sizes),
        len(cell.states),
        mid_is_input,
        cell.reads_last,
        mixes(equations, sizes, mid_is_input),
        cell.mid_vanishes and equations.mid is not None and not mid_is_input,
        equations.update,
        equations.mid,
        _map(cell),
    )
    _require(_table_limits(cell, len(cell.own)))
    _require(_inference_limits(cell, program))
    program.attributes()
    return program


def check_table(cell: Cell, vectors: int) -> None:
    """Raise ProgramError for a cell whose table is beyond what native libraries take; vectors: how many it reads."""
    _require(_table_limits(cell, vectors))


def _require(limits: Iterator[tuple[bool, str]]) -> None:
    for fits, expected in limits:
        if not fits:
            raise ProgramError(f"a program needs {expected}")


def _table_limits(cell: Cell, vectors: int) -> Iterator[tuple[bool, str]]:
    """What native libraries expect of the table of a cell, and whether it is so."""
    gates, states = cell.gates, len(cell.states)
    yield len(gates) <= MOST_GATES, f"at most {MOST_GATES} gates, got {len(gates)}"
    yield vectors <= MOST_VECTORS, f"at most {MOST_VECTORS} vectors of the cell's own, got {vectors}"
    yield states <= MOST_STATES, f"at most {MOST_STATES} states, got {states}"
    yield any(gate.x for gate in gates), "a gate with x"
    for gate in gates:
        yield gate.x or gate.h or gate.c or gate.m, f"a term of gate {gate.name} beside its bias"
        yield not gate.mid or not (gate.c or gate.m), f"no c and no m in gate {gate.name}, which feeds mid"
        yield not gate.c or states > 1, f"a second state for gate {gate.name}, which reads c"
    has_mid = any(gate.m for gate in gates)
    yield not has_mid or not cell.reads_last, "no m where the cell reads the last input"


def _inference_limits(cell: Cell, program: CellProgram) -> Iterator[tuple[bool, str]]:
    """What the library that runs models expects besides."""
    for term, mid in product("xhcm", (False, True)):
        count = sum(getattr(gate, term) for gate in cell.gates if gate.mid == mid)
        stage = "feed mid" if mid else "do not feed mid"
        yield count <= MOST_PRODUCTS, f"at most {MOST_PRODUCTS} gates with {term} that {stage}, got {count}"
    for name, vector in cell.own.items():
        yield not vector.steps, f"no vector like {name}, which stands for the length of the sequence"
        if vector.size == "I":
            yield program.mid_is_input or program.square, f"m of size I for {name}, which has that size"


def gate_terms(gate: Gate) -> int:
    """The terms of a gate as the bits of TERMS."""
    return sum(bit for term, bit in TERMS.items() if getattr(gate, term))


def mixes(equations: Equations, vectors: Sequence[str], mid_is_input: bool) -> bool:
    """Whether an equation of neurons of one size reads what has the other one; vectors: their sizes."""
    inputs = {INPUT} | {VECTOR + i for i, size in enumerate(vectors) if size == "I"}
    hidden = {VECTOR + i for i, size in enumerate(vectors) if size == "H"}
    mixed = not inputs.isdisjoint(equations.update.arguments)
    if equations.mid is not None:
        read = set(equations.mid.arguments)
        states = {key for key in read if key >= STATE}
        mixed = mixed or not read.isdisjoint(hidden | states if mid_is_input else inputs)
    return mixed


def maps(cell: Cell) -> list[Program | None]:
    """The map of each own vector, None where the equations read it as it is."""

    def program(name: str, vector: Vector) -> Program | None:
        mapped = vector.map
        if mapped is None:
            return None
        return trace(f"map of {name}", lambda values: (mapped(values[0]),), {0: 3}, 3)

    return [program(name, vector) for name, vector in cell.own.items()]


def _map(cell: Cell) -> Program | None:
    """From the own vectors as they are learned to what the equations read."""
    programs = maps(cell)
    if not any(programs):
        return None
    builder = Builder()
    results = []
    for i, program in enumerate(programs):
        value = builder.argument(VECTOR + i)
        results.append(value if program is None else builder.include(program, [value])[program.results[0]])
    return builder.finish(results)
