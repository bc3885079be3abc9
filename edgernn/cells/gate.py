# SPDX-License-Identifier: Apache-2.0
"""Declaration of a cell's gates (`Gate`), and the values that the gates have at one time step (`Gates`)."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor

from edgernn.errors import UsageError


@dataclass(frozen=True)
class Gate:
    """Declaration of one gate: which terms its pre-activation p = W x + R h + C c + V m + b has; each is optional.

    Attributes:
        name: Name of the gate. The methods `Cell.mid` and `Cell.update` read its pre-activation as p.NAME.
        x: True if the gate has the term W x, where x is the input of the step.
        h: True if the gate has the term R h, where h is the cell's first state.
        c: True if the gate has the term C c, where c is the cell's second state.
        m: True if the gate has the term V m, where m is the intermediate vector that `Cell.mid` computes.
        bias: True if the gate has the term b, a learned bias.
        mid: True if `Cell.mid` reads the gate to compute m, False if `Cell.update` reads it. A gate with mid=True has
            as many elements as m, and neither the term C c nor the term V m.
    """

    name: str
    x: bool = True
    h: bool = True
    c: bool = False
    m: bool = False
    bias: bool = True
    mid: bool = False


@dataclass(frozen=True)
class UpdateGate:
    """Declaration of the gate that decides how much of its new value a neuron takes at a step.

    Attributes:
        name: Name of the gate. Its pre-activation is W x + R h + b, without the terms C c and V m, and `Cell.mid` does
            not read it.
        sign: 1 if a neuron takes more of its new value where the pre-activation is larger, -1 if it takes less.
    """

    name: str
    sign: int

    def find(self, gates: Iterable[Gate]) -> Gate:
        """Return the gate with the name `name` among a cell's `gates`.

        UsageError is raised if there is no such gate, it has other terms than W x, R h and b, `Cell.mid` reads it, or
        `sign` is neither 1 nor -1.
        """
        for gate in gates:
            is_plain = (gate.x or gate.h) and not (gate.c or gate.m or gate.mid)
            if gate.name == self.name and is_plain and self.sign in (1, -1):
                return gate
        raise UsageError(
            f"update_gate: expected the name of a gate with the terms W x, R h and b alone, and a sign of 1 or -1, got "
            f"{self.name!r} and {self.sign}; correct the class attribute"
        )

    def scores(self, p: Mapping[str, Tensor]) -> Tensor:
        """Return the gate's pre-activations (B, H) times `sign`. `p` is a dict from gate name to pre-activations."""
        return p[self.name] * self.sign


class Gates:
    """Values that a cell's equations read at one time step, as attributes: the argument p of `Cell.update`.

    The attributes are the pre-activation of each gate by the gate's name, the input `x` (B, I), and the parameter
    vectors that `Cell.vectors` declares. If `Cell.reads_last` is True, `x` has x_t and then x_{t-1}, (B, 2I).
    A pre-activation has the shape (B, H), or (B, M) if `Cell.mid` reads it, where M is the size of the intermediate
    vector m. `Cell.mid` gets such an object, too.

    Args:
        values: Dict from attribute name to value.
        norm_c: Function that normalises the cell state c (B, H) at this step. Default: no normalisation.
    """

    def __init__(self, values: dict[str, Tensor], norm_c: Callable[[Tensor], Tensor] | None = None) -> None:
        self._values, self._norm_c = values, norm_c

    def __getattr__(self, name: str) -> Tensor:
        if name not in self._values:
            raise AttributeError(f"p has no {name!r}; it has {', '.join(self._values)}")
        return self._values[name]

    def norm_c(self, c: Tensor) -> Tensor:
        """Normalise the cell state c (B, H) before the tanh of the output; return c itself if the cell has no norm."""
        return c if self._norm_c is None else self._norm_c(c)
