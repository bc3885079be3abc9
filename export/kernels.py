# SPDX-License-Identifier: Apache-2.0
"""How the native library runs a layer: by the kernel of its cell, or by the program of a user's own cell."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from edgernn.cell_program import CellProgram, cell_program
from edgernn.cells import CELLS, Cell
from edgernn.errors import UsageError
from edgernn.imputers import IMPUTERS, Imputer
from edgernn.layer import RecurrentLayer
from edgernn.program import ProgramError
from edgernn.rules import RULES, UpdateRule


@dataclass(frozen=True)
class Kernel:
    """What runs a layer natively.

    name: as the library lists it, the layer's `kind`, with `*` for a cell that is run by its program. program: that of
    the cell, None where the library has a kernel for it.
    """

    name: str
    program: CellProgram | None = None


def find_kernel(layer: RecurrentLayer) -> Kernel:
    """The kernel of a layer, wherever the library is built.

    Raises UsageError for a user's own part with the name of one of ours, whose kernel would take its place, and
    ProgramError for a layer that runs as its portable function alone.
    """
    cell, rule, imputer = layer.cell, layer.rule, layer.imputer
    parts: list[tuple[str, Cell | UpdateRule | Imputer | None, Mapping[str, type]]] = [
        ("cell", cell, CELLS),
        ("rule", rule, RULES),
        ("imputer", imputer, IMPUTERS),
    ]
    for what, part, known in parts:
        if part is not None and known.get(part.name, type(part)) is not type(part):
            raise UsageError(
                f"{what}: expected a name of its own for {type(part).__name__}, got {part.name!r}; rename it"
            )
    for what, part, known in parts[1:]:
        if part is not None and part.name not in known:
            raise ProgramError(f"{part.name}: a {what} of one's own has no kernel")
    if imputer is not None and cell.recurrent.rank is not None:
        raise ProgramError(f"{layer.kind}: weights of low rank behind an imputer have no kernel")
    if cell.norm is not None:
        raise ProgramError(f"{cell.norm.name}: a norm has no kernel")
    if rule.group_size > 1:
        raise ProgramError(f"{rule.name}: decisions of groups (group_size={rule.group_size}) have no kernel")
    if cell.name in CELLS:
        return Kernel(layer.kind)
    try:
        return Kernel(layer.kind_of("*"), cell_program(cell))
    except ProgramError as error:
        raise ProgramError(f"{cell.name}: {error}") from None


def without_kernel(layers: Iterable[RecurrentLayer]) -> str | None:
    """Why one of the layers has no kernel anywhere, None where all have one."""
    for layer in layers:
        try:
            find_kernel(layer)
        except ProgramError as error:
            return str(error)
    return None
