# SPDX-License-Identifier: Apache-2.0
"""Serialisation of a user-defined cell for the native training library: gates, equations and their derivatives."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from edgernn.cell_program import Equations, check_table, gate_terms, mixes, trace_equations
from edgernn.cell_table import SIZES, VECTOR
from edgernn.cells.base import Cell
from edgernn.differentiate import gradient
from edgernn.program import Program, ProgramError

# argument key of the first result's gradient in a derivative; those of other results follow
RESULT_GRAD = 64
# limits of derivatives, as in runtime/csrc/program/program.h
_MOST_VALUES, _MOST_RESULTS = 512, 32


class _Program(ctypes.Structure):
    """C struct EdgernnTrainProgram of runtime/csrc/train/edgernn_train.h: serialised equations."""

    _fields_ = (
        ("ints", ctypes.POINTER(ctypes.c_int64)),
        ("int_count", ctypes.c_int64),
        ("numbers", ctypes.POINTER(ctypes.c_float)),
        ("number_count", ctypes.c_int64),
    )


class _CellSource(ctypes.Structure):
    """C struct EdgernnTrainCellSource of runtime/csrc/train/edgernn_train.h: a user-defined cell."""

    _fields_ = (
        ("gates", ctypes.POINTER(ctypes.c_int64)),
        ("gate_count", ctypes.c_int64),
        ("vectors", ctypes.POINTER(ctypes.c_int64)),
        ("vector_count", ctypes.c_int64),
        ("layout", ctypes.POINTER(ctypes.c_int64)),
        ("layout_count", ctypes.c_int64),
        *((name, _Program) for name in ("update", "update_back", "mid", "mid_back")),
    )


@dataclass(frozen=True)
class ProgramNumbers:
    """A program (list of elementary operations), serialised by `Program.serialise`.

    `ints` encodes the operations, and `numbers` has the constants. Both are empty where the cell has no such program:
    a cell without the method `Cell.mid` has no program of it.
    """

    ints: tuple[int, ...] = ()
    numbers: tuple[float, ...] = ()


@dataclass(frozen=True)
class CellSource:
    """A user-defined cell, serialised for the native training library.

    Attributes:
        gates: Terms of each gate, such as W x and R h, as bits of `cell_table.TERMS`.
        vectors: Size of each parameter vector that the equations read, as a code of `cell_table.SIZES`.
        layout: Five integers that the library needs about the cell, such as its number of states and whether it reads
            the previous input. `CellTable.layout` lists them. The last one is always 0 here, as training never skips
            zeros of the intermediate vector m.
        update: Program of `Cell.update`, which computes the next states.
        update_back: Program of the gradients of `update`.
        mid: Program of `Cell.mid`, which computes the intermediate vector m; empty for cells without it.
        mid_back: Program of the gradients of `mid`; empty for cells without it.
    """

    gates: tuple[int, ...]
    vectors: tuple[int, ...]
    layout: tuple[int, ...]
    update: ProgramNumbers
    update_back: ProgramNumbers
    mid: ProgramNumbers = ProgramNumbers()
    mid_back: ProgramNumbers = ProgramNumbers()


def describe_cell(cell: Cell) -> tuple[CellSource, tuple[str, ...]]:
    """Serialise a user-defined cell for the native training library, and name the vectors that its equations read.

    ProgramError is raised if the cell overrides `project` or exceeds a limit of the library, its equations cannot be
    traced, or the gradients of the traced equations differ from those of torch.
    """
    if type(cell).project is not Cell.project:
        raise ProgramError("a cell that overrides project() cannot be translated to native code; remove the override")
    # tracing draws random numbers, which must not change those of the training
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        equations = trace_equations(cell, differentiable=True)
    equations = _without_unread_vectors(equations)
    mid_is_input = equations.mid_is_input
    sizes = [_size(equations, i, mid_is_input) for i in range(len(equations.vectors))]
    square = mixes(equations, sizes, mid_is_input)
    check_table(cell, len(equations.vectors), square)
    update, update_back = _both_ways(equations.update, with_results=True)
    mid = mid_back = ProgramNumbers()
    if equations.mid is not None:
        mid, mid_back = _both_ways(equations.mid, with_results=False)
    source = CellSource(
        tuple(gate_terms(gate) for gate in cell.gates),
        tuple(SIZES[size] for size in sizes),
        (len(cell.states), int(mid_is_input), int(cell.reads_last), int(square), 0),
        update,
        update_back,
        mid,
        mid_back,
    )
    return source, tuple(equations.vectors)


def to_c(source: CellSource) -> ctypes.Structure:
    """Convert a serialised cell to the library's C struct; the returned object keeps the arrays alive."""
    structure = _CellSource()
    for name in ("gates", "vectors", "layout"):
        numbers = getattr(source, name)
        setattr(structure, name, (ctypes.c_int64 * len(numbers))(*numbers))
        setattr(structure, f"{name.removesuffix('s')}_count", len(numbers))
    for name in ("update", "update_back", "mid", "mid_back"):
        program = getattr(source, name)
        field = getattr(structure, name)
        field.ints = (ctypes.c_int64 * len(program.ints))(*program.ints)
        field.numbers = (ctypes.c_float * len(program.numbers))(*program.numbers)
        field.int_count, field.number_count = len(program.ints), len(program.numbers)
    return structure


def _without_unread_vectors(equations: Equations) -> Equations:
    """Return a cell's equations without the parameter vectors that no equation reads; the others are renumbered."""
    programs = [program for program in (equations.update, equations.mid) if program is not None]
    keys = {VECTOR + i: name for i, name in enumerate(equations.vectors)}
    kept = [key for key in keys if any(key in program.arguments for program in programs)]
    places = {key: VECTOR + i for i, key in enumerate(kept)}

    def renumber(program: Program) -> Program:
        return replace(program, arguments=tuple(places.get(key, key) for key in program.arguments))

    vectors = {keys[key]: equations.vectors[keys[key]] for key in kept}
    mid = None if equations.mid is None else renumber(equations.mid)
    return Equations(renumber(equations.update), mid, vectors, equations.mid_is_input)


def _size(equations: Equations, i: int, mid_is_input: bool) -> str:
    """Return the symbol of the size of a cell's parameter vector, from the equations that read it."""
    if list(equations.vectors.values())[i] == 1:
        return "1"
    return "I" if mid_is_input and VECTOR + i not in equations.update.arguments else "H"


def _both_ways(program: Program, *, with_results: bool) -> tuple[ProgramNumbers, ProgramNumbers]:
    grads = range(RESULT_GRAD, RESULT_GRAD + len(program.results))
    back = gradient(program, grads, with_results=with_results)
    forward = program.serialise()
    return _numbers(*forward), _numbers(*back.serialise(_MOST_VALUES, _MOST_RESULTS))


def _numbers(ints: Sequence[int], numbers: Sequence[float]) -> ProgramNumbers:
    return ProgramNumbers(tuple(ints), tuple(numbers))
