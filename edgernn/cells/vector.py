# SPDX-License-Identifier: Apache-2.0
"""Declaration of a parameter vector, an entry of the table `Cell.vectors`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor


@dataclass(frozen=True)
class Vector:
    """Parameter vector that a cell has besides the weights of its gates; its equations read it as p.NAME.

    Attributes:
        size: Length: "H", "I" or "1".
        start: Initial value of all elements. None: random, as for the weights.
        map: Function that is applied to the vector before the equations read it. None: no function.
        learned: True for a trained parameter, False for a constant.
        steps: True if a value of 0 is replaced by T, the length of the current sequence.
    """

    size: Literal["H", "I", "1"]
    start: float | None = None
    map: Callable[[Tensor], Tensor] | None = None
    learned: bool = True
    steps: bool = False
