# SPDX-License-Identifier: Apache-2.0
"""A cell's gates: the table of their terms, and their values at one step."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Gate:
    """One pre-activation p = [W x] + [R h] + [C c] + [V m] + [b]; the terms in brackets are optional.

    Attributes:
        name: Name by which `Cell.mid` and `Cell.update` read the pre-activation.
        x: True if the gate has the term W x, where x is the input of the step.
        h: True if the gate has the term R h, where h is the cell's first state.
        c: True if the gate has the term C c, where c is the cell's second state.
        m: True if the gate has the term V m, where m is the result of `Cell.mid`.
        bias: True if the gate has a bias in b.
        mid: True if `Cell.mid` reads the gate, not `Cell.update`. It then has the size of m, and no c or m term.
    """

    name: str
    x: bool = True
    h: bool = True
    c: bool = False
    m: bool = False
    bias: bool = True
    mid: bool = False


class Gates:
    """Argument p of `Cell.mid` and `Cell.update`: the values that one step reads, as attributes.

    They are the gates' pre-activations, (B, H) or (B, M) each, the input `x` (B, I) and the cell's `vectors`.

    Args:
        values: Dict from attribute name to value.
        norm_c: Normalisation of the cell state at this step. Default: none.
    """

    def __init__(self, values: dict[str, Tensor], norm_c: Callable[[Tensor], Tensor] | None = None) -> None:
        self._values, self._norm_c = values, norm_c

    def __getattr__(self, name: str) -> Tensor:
        return self._values[name]

    def norm_c(self, c: Tensor) -> Tensor:
        """Normalise the cell state c (B, H) before the output's non-linearity; return c itself without such a norm."""
        return c if self._norm_c is None else self._norm_c(c)
