# SPDX-License-Identifier: Apache-2.0
"""A recurrent layer but for its sizes."""

from dataclasses import dataclass
from typing import Any

from edgernn.cells.base import Cell
from edgernn.imputers import Imputer
from edgernn.layer import RecurrentLayer
from edgernn.names import resolve
from edgernn.rules.base import UpdateRule


@dataclass(frozen=True)
class LayerSpec:
    """A cell under a rule, with what is changed of the cell once it is made; fields as in SequenceModel.

    Raises UsageError, when it is asked for `types`, for an unknown name.
    """

    cell: str | type[Cell]
    rule: str | type[UpdateRule] | None = None
    cell_options: dict[str, Any] | None = None
    rule_options: dict[str, Any] | None = None
    rank: int | None = None
    density: float | None = None
    norm: str | None = None
    norm_steps: int = 1000

    @property
    def types(self) -> tuple[type[Cell], type[UpdateRule]]:
        return resolve(self.cell, self.rule)

    def make(self, input_size: int, hidden_size: int, imputer: Imputer | None = None) -> RecurrentLayer:
        """A new layer; an imputer gives the cell its own estimates and masks to read."""
        cell_type, rule_type = self.types
        size = input_size if imputer is None else 2 * imputer.features
        cell = cell_type(size, hidden_size, **(self.cell_options or {}))
        if self.rank is not None:
            cell.factorise(self.rank)
        if self.density is not None:
            cell.sparsify(self.density)
        if self.norm is not None:
            cell.normalise(self.norm, self.norm_steps)
        return RecurrentLayer(cell, rule_type(size, hidden_size, **(self.rule_options or {})), imputer)
