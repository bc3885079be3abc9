# SPDX-License-Identifier: Apache-2.0
"""A cell as data: its gates, vectors, states and equations, as exported files and generated C code have them.

This module needs NumPy alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgernn.program import Program

# key of a program's argument: the first key of its kind plus the index of the gate, vector or state
GATE, INPUT, VECTOR, STATE = 0, 16, 32, 48
# codes of a gate's terms (bits) and of a vector's size, the same as in runtime/csrc/cells/gate.h
TERMS = {"x": 1, "h": 2, "m": 4, "bias": 8, "mid": 16, "c": 32}
# marks a bias that a model may leave out
OPTIONAL_BIAS = 64
SIZES = {"H": 0, "I": 1, "1": 2}


@dataclass(frozen=True)
class CellTable:
    """A recurrent cell as data. A node of a user-defined cell has this table as its attributes.

    A gate is a sum of the terms W x, R h, C c, V m and a bias b, each of which it may lack. m is the intermediate
    vector that a cell may compute from some of its gates, before its other gates read it.

    Attributes:
        gates: Terms of each gate as a bit mask, with the bits in `TERMS`. `OPTIONAL_BIAS` marks a bias that a model may
            leave out.
        vectors: Size of each parameter vector of the cell, as a code of `SIZES`.
        states: Number of states, such as 2 for h and c.
        mid_is_input: True if m has size I; it has size H otherwise.
        reads_last: True if W has 2I columns, for x_t and then x_{t-1}.
        square: True if an equation mixes vectors of size I and H, so that I must equal H.
        mid_vanishes: True if m has size H and is zero where the states are zero.
        update: Program (list of elementary operations) that computes the next states.
        mid: Program that computes m, or None for cells without m.
        map: Program that transforms the stored parameter vectors before they are used (`Vector.map`), or None if
            none is transformed.
        constants: Number of vectors that are not trained; they are the last ones.
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
    constants: int = 0

    @property
    def layout(self) -> tuple[int, ...]:
        """The integers `states`, `mid_is_input`, `reads_last`, `square` and `mid_vanishes`, in this order."""
        return self.states, int(self.mid_is_input), int(self.reads_last), int(self.square), int(self.mid_vanishes)

    def attributes(self) -> dict[str, list[int] | list[float]]:
        """Attributes of an ONNX node that runs this cell: a dict from name to numbers, without empty lists."""
        lists: dict[str, list[int] | list[float]] = {"gates": list(self.gates), "vectors": list(self.vectors)}
        lists["layout"] = list(self.layout)
        for name, program in (("update", self.update), ("mid", self.mid), ("map", self.map)):
            if program is not None:
                lists[name], lists[f"{name}_numbers"] = program.serialise()
        return {name: numbers for name, numbers in lists.items() if numbers}

    @classmethod
    def from_attributes(cls, lists: Mapping[str, Sequence[int] | Sequence[float]], constants: int = 0) -> "CellTable":
        """Restore the table from `attributes`; raise ProgramError if a program in them is invalid."""
        states, mid_is_input, reads_last, square, mid_vanishes = map(int, lists["layout"])
        update, mid, vector_map = (
            Program.deserialise([*map(int, lists[name])], lists.get(f"{name}_numbers", ())) if lists.get(name) else None
            for name in ("update", "mid", "map")
        )
        assert update is not None
        gates, vectors = (tuple(map(int, lists.get(name, ()))) for name in ("gates", "vectors"))
        flags = bool(mid_is_input), bool(reads_last), bool(square), bool(mid_vanishes)
        return cls(gates, vectors, states, *flags, update, mid, vector_map, constants)

    def group(self, *, mid: bool) -> list[int]:
        """Return the indices of the gates that the equation `mid` reads (mid=True), or of all other gates."""
        return [g for g, terms in enumerate(self.gates) if bool(terms & TERMS["mid"]) == mid]

    def rows(self, gate: int, hidden: int, inputs: int) -> int:
        """Return the number of rows of a gate's weights: H, or I for a gate from which an m of size I is computed."""
        return inputs if self.gates[gate] & TERMS["mid"] and self.mid_is_input else hidden
