# SPDX-License-Identifier: Apache-2.0
"""Conversion of cells to data (`CellTable`): their equations are traced to programs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from torch import Tensor

from edgernn.cell_table import GATE, INPUT, SIZES, STATE, TERMS, VECTOR, CellTable
from edgernn.cells.base import Cell, Gate, Gates
from edgernn.cells.vector import Vector
from edgernn.program import Builder, Program, ProgramError
from edgernn.tracing import check_gradient, trace

# limits of the native library, the same as in runtime/csrc/cells/gate.h
MOST_GATES, MOST_VECTORS, MOST_STATES = 8, 4, 4
# limit on the gates with the same term, among those that feed mid and among all others
MOST_PRODUCTS = 4
# entries of Cell.constants that are not vectors of the cell
_WEIGHTS = ("R", "C", "V", "bR", "bC", "bV")


@dataclass(frozen=True)
class Equations:
    """Equations of a cell, traced to programs (lists of elementary operations).

    Attributes:
        update: Program of `Cell.update`, with one result per state.
        mid: Program of `Cell.mid`, which computes the intermediate vector m; None for cells without m.
        vectors: Dict from the name of each parameter vector to its length, in the order in which programs number them.
        mid_is_input: True if m has the size I; False if it has the size H or there is no m.
    """

    update: Program
    mid: Program | None
    vectors: Mapping[str, int]
    mid_is_input: bool


def trace_equations(cell: Cell, *, differentiable: bool = False) -> Equations:
    """Trace the equations of a cell, its methods `update` and `mid`, to programs (lists of elementary operations).

    Args:
        cell: The cell.
        differentiable: True to check also that the programs have the gradients that torch computes for the methods.

    Returns:
        The traced equations.

    Raises:
        ProgramError: The equations are not point-wise or use an operator that programs do not support, or the cell
            overrides step(), which may compute anything.
    """
    if type(cell).step is not Cell.step:
        raise ProgramError(
            "a cell that overrides step() cannot be translated to native code; override update() and mid() instead"
        )
    constants = cell.constants(next(cell.parameters()).new_zeros(1, 1, cell.input_size))
    vectors = {name: value.numel() for name, value in constants.items() if name not in _WEIGHTS}
    mids = [gate for gate in cell.gates if gate.mid]
    mid, mid_is_input = None, False
    if any(gate.m for gate in cell.gates):
        mid_is_input = _mid_is_input(cell)
        mid = _trace(cell, "mid", mids, cell.mid_size, vectors, differentiable)
    elif mids:
        raise ProgramError(
            f"gate {mids[0].name}: mid=True needs a gate with m=True, which reads the result of mid(); "
            "got none; add one"
        )
    gates = [gate for gate in cell.gates if not gate.mid]
    update = _trace(cell, "update", gates, cell.hidden_size, vectors, differentiable)
    return Equations(update, mid, vectors, mid_is_input)


def _mid_is_input(cell: Cell) -> bool:
    """Return True if the intermediate vector m, the result of `Cell.mid`, has size I; False if it has size H."""
    # copy.copy refuses a parametrised cell
    probe = type(cell).__new__(type(cell))
    vars(probe).update(vars(cell))
    probe.input_size, probe.hidden_size = 3, 5
    if probe.mid_size not in (3, 5):
        raise ProgramError(
            f"mid_size: expected H or I in a cell that is translated to native code, got {cell.mid_size}"
        )
    return probe.mid_size == 3


def _trace(
    cell: Cell, method: str, gates: list[Gate], size: int, vectors: Mapping[str, int], differentiable: bool
) -> Program:
    if max(len(cell.gates), len(vectors), len(cell.states)) > INPUT:
        raise ProgramError(
            f"gates, vectors, states: expected at most {INPUT} each in a cell that is translated to native code, got "
            "more; use fewer"
        )
    inputs = cell.input_size * (1 + cell.reads_last)
    names = {GATE + i: gate.name for i, gate in enumerate(cell.gates) if gate in gates} | {INPUT: "x"}
    sizes = dict.fromkeys(names, size) | {INPUT: inputs}
    for i, (name, count) in enumerate(vectors.items()):
        names[VECTOR + i], sizes[VECTOR + i] = name, size if count == 1 else count
    # each distinct size gets its own tile width, so that equations that mix sizes fail
    tiles = {count: 3 + i for i, count in enumerate(dict.fromkeys((size, cell.hidden_size, inputs, *sizes.values())))}
    widths = {key: tiles[count] for key, count in sizes.items()}
    widths |= {STATE + i: tiles[cell.hidden_size] for i in range(len(cell.states))}

    def function(values: Mapping[int, Tensor]) -> tuple[Tensor, ...]:
        p = Gates({name: values[key] for key, name in names.items()})
        states = tuple(values[STATE + i] for i in range(len(cell.states)))
        return cell.update(p, states) if method == "update" else (cell.mid(p, states),)

    program = trace(method, function, widths, tiles[size])
    results = len(cell.states) if method == "update" else 1
    if len(program.results) != results:
        raise ProgramError(
            f"{method}(): expected it to return {results} tensors, got {len(program.results)}; return one tensor per "
            "state from update(), and one from mid()"
        )
    if differentiable:
        check_gradient(method, program, function, widths)
    return program


def cell_program(cell: Cell) -> CellTable:
    """Convert a cell to data that the native library interprets; raise ProgramError if that is impossible."""
    for method in ("constants", "project", "thinned", "zero_state"):
        if getattr(type(cell), method) is not getattr(Cell, method):
            raise ProgramError(
                f"a cell that overrides {method}() cannot be translated to native code; remove the override"
            )
    if cell.norm is not None:
        raise ProgramError(
            "a cell with normalised products (setting norm) cannot be translated to native code; leave out norm"
        )
    equations = trace_equations(cell)
    sizes = [vector.size for vector in cell.vectors.values()]
    mid_is_input = equations.mid_is_input
    program = CellTable(
        tuple(gate_terms(gate) for gate in cell.gates),
        tuple(SIZES[size] for size in sizes),
        len(cell.states),
        mid_is_input,
        cell.reads_last,
        mixes(equations, sizes, mid_is_input),
        cell.mid_vanishes and equations.mid is not None and not mid_is_input,
        equations.update,
        equations.mid,
        joined_maps(cell),
    )
    check_table(cell, len(cell.vectors), program.square)
    _require(_inference_limits(cell, program))
    program.attributes()
    return program


def check_table(cell: Cell, vectors: int, square: bool) -> None:
    """Check that a cell's gates, vectors and states meet the limits of the native libraries (see `_table_limits`).

    Args:
        cell: The cell.
        vectors: Number of vectors that the cell's equations read.
        square: True if an equation combines values of size I with values of size H (see `mixes`).

    Raises:
        ProgramError: A limit is not met.
    """
    _require(_table_limits(cell, vectors, square))


def _require(limits: Iterator[tuple[bool, str]]) -> None:
    for is_met, expected in limits:
        if not is_met:
            raise ProgramError(f"the native library needs {expected}; change the cell, see docs/how-to/add-a-cell.md")


def _table_limits(cell: Cell, vectors: int, square: bool) -> Iterator[tuple[bool, str]]:
    """Yield whether a cell meets each limit of native code, and the limit's text, such as "at most 8 gates, got 9"."""
    gates, states = cell.gates, len(cell.states)
    yield len(gates) <= MOST_GATES, f"at most {MOST_GATES} gates, got {len(gates)}"
    yield vectors <= MOST_VECTORS, f"at most {MOST_VECTORS} `vectors`, got {vectors}"
    yield states <= MOST_STATES, f"at most {MOST_STATES} states, got {states}"
    yield any(gate.x for gate in gates), "a gate with x"
    for gate in gates:
        yield gate.x or gate.h or gate.c or gate.m, f"a term other than the bias in gate {gate.name}"
        yield not gate.mid or not (gate.c or gate.m), f"no c and no m in gate {gate.name}, which feeds mid"
        yield not gate.c or states > 1, f"a second state for gate {gate.name}, which reads c"
    has_mid = any(gate.m for gate in gates)
    yield not has_mid or not cell.reads_last, "no gate with m in a cell with reads_last=True"
    yield not square or not cell.reads_last, "no equation that reads p.x in a cell with reads_last=True"


def _inference_limits(cell: Cell, program: CellTable) -> Iterator[tuple[bool, str]]:
    """Yield the limits, as `_table_limits`, that a cell must meet for inference but not for training."""
    for term, mid in product("xhcm", (False, True)):
        count = sum(getattr(gate, term) for gate in cell.gates if gate.mid == mid)
        stage = "feed mid" if mid else "do not feed mid"
        yield count <= MOST_PRODUCTS, f"at most {MOST_PRODUCTS} gates with {term} that {stage}, got {count}"
    for name, vector in cell.vectors.items():
        yield not vector.steps, f"no vector like {name}, which stands for the sequence length"
        if vector.size == "I":
            yield program.mid_is_input or program.square, f"m of size I for {name}, which has size I"


def gate_terms(gate: Gate) -> int:
    """Encode a gate as a bit mask: which terms it has (W x, R h, C c, V m, bias), and whether `Cell.mid` reads it."""
    return sum(bit for term, bit in TERMS.items() if getattr(gate, term))


def mixes(equations: Equations, vectors: Sequence[str], mid_is_input: bool) -> bool:
    """Determine whether an equation of a cell combines values of size I with values of size H.

    Args:
        equations: Traced equations of the cell.
        vectors: Size of each parameter vector of the cell: "H", "I" or "1".
        mid_is_input: True if m, the result of `Cell.mid`, has size I.

    Returns:
        True if such an equation exists, which requires I = H.
    """
    inputs = {INPUT} | {VECTOR + i for i, size in enumerate(vectors) if size == "I"}
    hidden = {VECTOR + i for i, size in enumerate(vectors) if size == "H"}
    mixed = not inputs.isdisjoint(equations.update.arguments)
    if equations.mid is not None:
        read = set(equations.mid.arguments)
        states = {key for key in read if key >= STATE}
        mixed = mixed or not read.isdisjoint(hidden | states if mid_is_input else inputs)
    return mixed


def maps(cell: Cell) -> list[Program | None]:
    """Trace `Vector.map`, the function that is applied to a parameter vector before use, for each vector of a cell.

    The result is a list of programs in the order of `cell.vectors`, with None for a vector without such a function.
    """

    def program(name: str, vector: Vector) -> Program | None:
        mapped = vector.map
        if mapped is None:
            return None
        return trace(f"map of {name}", lambda values: (mapped(values[0]),), {0: 3}, 3)

    return [program(name, vector) for name, vector in cell.vectors.items()]


def joined_maps(cell: Cell) -> Program | None:
    """Create one program that applies `Vector.map` to all vectors of a cell, or return None if no vector has a map."""
    programs = maps(cell)
    if not any(programs):
        return None
    builder = Builder()
    results = []
    for i, program in enumerate(programs):
        value = builder.argument(VECTOR + i)
        results.append(value if program is None else builder.include(program, [value])[program.results[0]])
    return builder.finish(results)
