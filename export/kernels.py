# SPDX-License-Identifier: Apache-2.0
"""Choice of the native kernel of a layer: a compiled one, or an interpreter of a user-defined cell's program."""

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
    """Native kernel of a layer.

    Attributes:
        name: Name in the library: `RecurrentLayer.kind`, with `*` in place of a user-defined cell.
        program: Equations of a user-defined cell, which the kernel interprets, or None for a compiled kernel.
    """

    name: str
    program: CellProgram | None = None


def find_kernel(layer: RecurrentLayer) -> Kernel:
    """Find the native kernel of a layer; whether the library is installed does not matter.

    Args:
        layer: The layer.

    Returns:
        The kernel.

    Raises:
        UsageError: A user-defined part has the name of a built-in one, whose kernel would run instead.
        ProgramError: The layer has no kernel and runs only as its portable function.
    """
    cell, rule, imputer = layer.cell, layer.rule, layer.imputer
    parts: list[tuple[str, Cell | UpdateRule | Imputer | None, Mapping[str, type]]] = [
        ("cell", cell, CELLS),
        ("rule", rule, RULES),
        ("imputer", imputer, IMPUTERS),
    ]
    for kind, part, known in parts:
        if part is not None and known.get(part.name, type(part)) is not type(part):
            raise UsageError(
                f"{kind}: expected a unique name for {type(part).__name__}, got the built-in {part.name!r}; rename it"
            )
    for kind, part, known in parts[1:]:
        if part is not None and part.name not in known:
            raise ProgramError(f"{part.name}: a user-defined {kind} has no kernel")
    if imputer is not None and cell.recurrent.rank is not None:
        raise ProgramError(f"{layer.kind}: weights of low rank behind an imputer have no kernel")
    if cell.norm is not None:
        raise ProgramError(f"{cell.norm.name}: a norm has no kernel")
    if cell.name in CELLS:
        return Kernel(layer.kind)
    try:
        return Kernel(layer.kind_of("*"), cell_program(cell))
    except ProgramError as error:
        raise ProgramError(f"{cell.name}: {error}") from None


def without_kernel(layers: Iterable[RecurrentLayer]) -> str | None:
    """Return why one of the layers has no native kernel, or None if all have one."""
    for layer in layers:
        try:
            find_kernel(layer)
        except ProgramError as error:
            return str(error)
    return None
