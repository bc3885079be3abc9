# SPDX-License-Identifier: Apache-2.0
"""What a cell is: a table of gates, a table of vectors, and one or two point-wise maps."""

import abc
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

State = tuple[Tensor, ...]


@dataclass(frozen=True)
class Gate:
    """One pre-activation p = [W x] + [R h] + [C c] + [V m] + [b]: which terms it has.

    x, h, c, m, bias: whether the gate has rows in W, R, C, V and b. h is the cell's first state, c its second.
    mid: it feeds `Cell.mid`, so it has M rows (the size of m) instead of H, and no c or m term.
    """

    name: str
    x: bool = True
    h: bool = True
    c: bool = False
    m: bool = False
    bias: bool = True
    mid: bool = False


@dataclass(frozen=True)
class Vector:
    """One vector of a cell's own, beside the weights of its gates: p finds `map` of it under its name.

    size: "H", "I" or "1". start: its first value; without one it starts as the weights do.
    learned: a parameter; else a constant, which is an input of the op all the same.
    """

    size: Literal["H", "I", "1"]
    start: float | None = None
    map: Callable[[Tensor], Tensor] | None = None
    learned: bool = True


class Gates:
    """By name: the pre-activations of a step, (B, H) or (B, M) each, the input `x` (B, I), the cell's vectors."""

    def __init__(self, values: dict[str, Tensor]) -> None:
        self._values = values

    def __getattr__(self, name: str) -> Tensor:
        return self._values[name]


class Cell(nn.Module, abc.ABC):
    """A recurrent cell: the table `gates`, the table `own`, the names of its states, and `update` (and `mid`).

    p_g = W_g x_t + R_g h_{t-1} + C_g c_{t-1} + V_g m_t + b_g      for each gate g, absent terms left out
    m_t = mid(p, state_{t-1})                                      two-stage cells only
    state_t = update(p, state_{t-1})

    Shapes: x (B, I), every state (B, H), m (B, M); W (rows of the gates with x, I), R and C (…, H), V (…, M), b (…,).
    The first state is the cell's output and the h that R sees. The initial state is zero.
    reads_last: W has 2I columns, for x_t and then for x_{t-1}, which is carried as a further state of size I.
    mid_vanishes: m is zero where the states are, so that whoever masks the states need not make it there.
    Parameters start as U(-1/√H, 1/√H), as in torch.nn.GRU, but for vectors with a first value.
    A subclass is final: it sets the class attributes and defines `update`, and nothing else of it is known elsewhere.
    """

    name: ClassVar[str]
    paper: ClassVar[str] = ""
    reads_last: ClassVar[bool] = False
    mid_vanishes: ClassVar[bool] = False
    states: ClassVar[tuple[str, ...]] = ("h",)
    # class attributes too, unless an option of the cell's constructor, or its sizes, change them
    op: str
    gates: tuple[Gate, ...]
    own: Mapping[str, Vector] = {}

    # those that the gates call for
    W: Tensor
    R: Tensor
    C: Tensor
    V: Tensor
    b: Tensor

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.input_size, self.hidden_size = input_size, hidden_size
        rows = {g.name: self.mid_size if g.mid else hidden_size for g in self.gates}
        self._rows = rows
        self._x = [g.name for g in self.gates if g.x]
        self._h = [g.name for g in self.gates if g.h]
        self._c = [g.name for g in self.gates if g.c]
        self._m = [g.name for g in self.gates if g.m]
        sizes = (
            ("W", self._x, input_size * (1 + self.reads_last)),
            ("R", self._h, hidden_size),
            ("C", self._c, hidden_size),
            ("V", self._m, self.mid_size),
        )
        for name, names, columns in sizes:
            if names:
                shape = (sum(rows[g] for g in names), columns)
                self.register_parameter(name, nn.Parameter(torch.empty(shape)))
        if any(g.bias for g in self.gates):
            self.b = nn.Parameter(torch.empty(sum(rows[g.name] for g in self.gates if g.bias)))
        for name, vector in self.own.items():
            made = torch.empty({"H": hidden_size, "I": input_size, "1": 1}[vector.size])
            if vector.learned:
                self.register_parameter(name, nn.Parameter(made))
            else:
                self.register_buffer(name, made, persistent=False)
        self.reset_parameters()

    @property
    def mid_size(self) -> int:
        """M, the size of m: H unless a cell says otherwise."""
        return self.hidden_size

    @torch.no_grad()
    def reset_parameters(self) -> None:
        bound = 1 / math.sqrt(self.hidden_size)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)
        for name, vector in self.own.items():
            if vector.start is not None:
                getattr(self, name).fill_(vector.start)

    def mid(self, p: Gates, state: State) -> Tensor:
        """m_t (B, M) from the gates marked `mid`; called only if some gate has the m term."""
        raise TypeError(f"{type(self).__name__} has a gate with an m term but defines no mid()")

    @abc.abstractmethod
    def update(self, p: Gates, state: State) -> State:
        """The next state from all pre-activations and the last state, point-wise."""

    def zero_state(self, batch: int, like: Tensor) -> State:
        return tuple(like.new_zeros(batch, self.hidden_size) for _ in self.states)

    def row_macs(self, inputs: int, hidden: int, middle: int) -> int:
        """Multiply-adds of one neuron's rows, if they read so many columns of x, of each state and of m."""
        columns = inputs * (1 + self.reads_last)
        return sum(g.x * columns + (g.h + g.c) * hidden + g.m * middle for g in self.gates if not g.mid)

    def mid_macs(self, inputs: int, hidden: int) -> int:
        """Multiply-adds of one row of every gate that feeds `mid`, as above."""
        return sum(g.x * inputs + g.h * hidden for g in self.gates if g.mid)

    def macs(self) -> tuple[int, int]:
        """Multiply-adds of a step in the gates that feed `mid`, and in all others."""
        inputs, hidden, middle = self.input_size, self.hidden_size, self.mid_size
        return middle * self.mid_macs(inputs, hidden), hidden * self.row_macs(inputs, hidden, middle)

    def constants(self, x: Tensor) -> dict[str, Tensor]:
        """What a sequence x (T, B, I) needs that depends on no step, by name: `mid` and `update` find it in p.

        Here the vectors of `own`, mapped, and bR, bC and bV, the biases of gates without x.
        """
        b = self._biases()
        made = {}
        for key, names in (("bR", self._h), ("bC", self._c), ("bV", self._m)):
            if any(name in b and name not in self._x for name in names):
                # a gate with several terms takes its bias with the first of them
                parts = [b.pop(n) if n in b and n not in self._x else self.b.new_zeros(self._rows[n]) for n in names]
                made[key] = torch.cat(parts)
        for name, vector in self.own.items():
            value = getattr(self, name)
            made[name] = value if vector.map is None else vector.map(value)
        return made

    def project(self, x: Tensor) -> Tensor:
        """The input part W x + b of every gate that has one, (…, columns of W) to (…, rows of W)."""
        if not self._x:
            return x.new_zeros(*x.shape[:-1], 0)
        b = self._biases()
        bias = torch.cat([b.get(g, x.new_zeros(self._rows[g])) for g in self._x]) if b else None
        return nn.functional.linear(x, self.W, bias)

    def thinned(self, mask: Tensor) -> dict[str, Tensor]:
        """R and C with the rows of every gate of size H multiplied by mask (H, H); those of mid gates stay whole."""
        mids = {g.name for g in self.gates if g.mid}
        made = {}
        for key, names in (("R", self._h), ("C", self._c)):
            if names:
                parts = self._split(getattr(self, key), names, 0)
                made[key] = torch.cat([part if name in mids else part * mask for name, part in parts.items()])
        return made

    def step(self, a: Tensor, x: Tensor, state: State, constants: dict[str, Tensor]) -> State:
        """One step from a (B, rows of W), a row of project(x); x (B, I), the state, and constants()."""
        p = self._split(a, self._x) if self._x else {}
        given = {"x": x, **constants}

        def add(names: list[str], factor: Tensor, weight: str) -> None:
            if names:
                value = given.get(weight)
                value = getattr(self, weight) if value is None else value
                _accumulate(p, self._split(nn.functional.linear(factor, value, given.get(f"b{weight}")), names))

        add(self._h, state[0], "R")
        add(self._c, state[-1], "C")
        if self._m:
            add(self._m, self.mid(Gates(p | given), state), "V")
        return self.update(Gates(p | given), state)

    def _biases(self) -> dict[str, Tensor]:
        names = [g.name for g in self.gates if g.bias]
        return self._split(self.b, names) if names else {}

    def _split(self, rows: Tensor, names: list[str], axis: int = -1) -> dict[str, Tensor]:
        return dict(zip(names, torch.split(rows, [self._rows[n] for n in names], axis), strict=True))


def _accumulate(p: dict[str, Tensor], terms: dict[str, Tensor]) -> None:
    for name, term in terms.items():
        p[name] = p[name] + term if name in p else term
