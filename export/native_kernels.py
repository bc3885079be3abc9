# SPDX-License-Identifier: Apache-2.0
"""Choice of a layer's kernel in the native library: a compiled one, or the interpreter for user-defined cells."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from edgernn.cell_program import cell_program
from edgernn.cell_table import CellTable
from edgernn.cells import CELLS, COMPILED, Cell
from edgernn.errors import UsageError
from edgernn.imputers import IMPUTERS, Imputer
from edgernn.layer import RecurrentLayer
from edgernn.program import ProgramError
from edgernn.rules import RULES, UpdateRule


@dataclass(frozen=True)
class Kernel:
    """A kernel of the native library that computes a layer.

    Attributes:
        name: Name in the library: a cell and an update rule, such as gru+selective. The `*` in *+selective stands for
            any user-defined cell.
        program: Equations of a user-defined cell, which the kernel interprets, or None for a compiled kernel.
    """

    name: str
    program: CellTable | None = None


def find_kernel(layer: RecurrentLayer) -> Kernel:
    """Find the kernel that the native library has for a layer; the library need not be installed.

    UsageError is raised if a user-defined cell, rule or imputer has the name of a built-in one, whose kernel would run
    instead, and ProgramError if there is no kernel, so that the layer can only run as standard ONNX operators.
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
                f"{kind}: expected a name of its own for the class {type(part).__name__}, got {part.name!r}, the name "
                f"of a built-in {kind}; change the class attribute `name`"
            )
    for kind, part, known in parts[1:]:
        if part is not None and part.name not in known:
            raise ProgramError(
                f"{part.name}: the native library has no kernel for a user-defined {kind}; run the model with backend "
                f"portable (standard ONNX operators), or use a built-in {kind}"
            )
    if imputer is not None and cell.recurrent.rank is not None:
        raise ProgramError(
            f"{layer.kernel_name}: the native library has no kernel for low-rank weights with an imputer; run the "
            "model with backend portable (standard ONNX operators), or leave out rank or the imputer"
        )
    if rule.by_hand and cell.recurrent.rank is not None:
        raise ProgramError(
            f"{layer.kernel_name}: the native library has no kernel for low-rank weights with the rule {rule.name}; "
            "run the model with backend portable (standard ONNX operators), or leave out rank"
        )
    if cell.norm is not None:
        raise ProgramError(
            f"norm={cell.norm.name}: the native library has no kernel for a layer with a normalisation; run the model "
            "with backend portable (standard ONNX operators), or leave out norm"
        )
    if cell.name in COMPILED:
        return Kernel(layer.kernel_name)
    if not rule.runs_programs:
        raise ProgramError(
            f"{cell.name}: the native library has no kernel for this cell with the rule {rule.name}; run the model "
            "with backend portable (standard ONNX operators), or use gru, gru-before, pru or fastgrnn-split"
        )
    try:
        return Kernel(layer.kernel_name_of("*"), cell_program(cell))
    except ProgramError as error:
        raise ProgramError(
            f"{cell.name}: the native library cannot run this cell: {error}; or leave the cell unchanged, and "
            "run the model with backend portable (standard ONNX operators)"
        ) from None


def without_kernel(layers: Iterable[RecurrentLayer]) -> str | None:
    """Return the reason why the native library has no kernel for a layer, or None if it has one for each layer."""
    for layer in layers:
        try:
            find_kernel(layer)
        except ProgramError as error:
            return str(error)
    return None
