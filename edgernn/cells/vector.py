# SPDX-License-Identifier: Apache-2.0
"""Declaration of a parameter vector of a cell, a value of the dict `Cell.vectors`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor


@dataclass(frozen=True)
class Vector:
    """Declaration of a parameter vector that a cell has besides the weights of its gates.

    A cell lists its vectors in `Cell.vectors`, a dict from name to Vector. The methods `mid` and `update`, which have
    the cell's equations, read the vector as p.NAME.

    Attributes:
        size: Length of the vector: "H" (neurons), "I" (inputs) or "1".
        start: Initial value of all elements. None: random from U(-1/√H, 1/√H), as for the weights.
        map: Function that is applied to the vector before the equations read it. None: no function.
        learned: True for a trained parameter, False for a constant.
        steps: True if each element of the vector that is 0 is replaced by T, the number of time steps of the current
            sequence, before the equations read it.
    """

    size: Literal["H", "I", "1"]
    start: float | None = None
    map: Callable[[Tensor], Tensor] | None = None
    learned: bool = True
    steps: bool = False
