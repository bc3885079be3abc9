# SPDX-License-Identifier: Apache-2.0
"""What a cell is: a table of gates and one or two point-wise maps."""

import abc
import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

State = tuple[Tensor, ...]


@dataclass(frozen=True)
class Gate:
    """One pre-activation p = [W x] + [R h] + [V m] + [b]: which terms it has.

    x, h, m, bias: whether the gate has rows in W, R, V and b.
    mid: it feeds `Cell.mid`, so it has M rows (the size of m) instead of H, and no m term.
    """

    name: str
    x: bool = True
    h: bool = True
    m: bool = False
    bias: bool = True
    mid: bool = False


class Gates:
    """By name: the pre-activations of a step, (B, H) or (B, M) each, the input `x` (B, I), the cell's constants."""

    def __init__(self, values: dict[str, Tensor]) -> None:
        self._values = values

    def __getattr__(self, name: str) -> Tensor:
        return self._values[name]


class Cell(nn.Module, abc.ABC):
    """A recurrent cell: the table `gates`, the names of its states, and `update` (and `mid`).

    p_g = W_g x_t + R_g h_{t-1} + V_g m_t + b_g      for each gate g, absent terms left out
    m_t = mid(p, state_{t-1})                        two-stage cells only
    state_t = update(p, state_{t-1})

    Shapes: x (B, I), every state (B, H), m (B, M); W (rows of the gates with x, I), R (…, H), V (…, M), b (…,).
    The first state is the cell's output and the h that R sees. The initial state is zero.
    Parameters start as U(-1/√H, 1/√H), as in torch.nn.GRU.
    A subclass is final: it sets the class attributes and defines `update`, and nothing else of it is known elsewhere.
    """

    name: ClassVar[str]
    paper: ClassVar[str] = ""
    # class attributes too, unless an option of the cell's constructor changes them
    op: str
    gates: tuple[Gate, ...]
    states: ClassVar[tuple[str, ...]] = ("h",)

    # those that the gates call for
    W: Tensor
    R: Tensor
    V: Tensor
    b: Tensor

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.input_size, self.hidden_size = input_size, hidden_size
        rows = {g.name: self.mid_size if g.mid else hidden_size for g in self.gates}
        self._rows = rows
        self._x = [g.name for g in self.gates if g.x]
        self._h = [g.name for g in self.gates if g.h]
        self._m = [g.name for g in self.gates if g.m]
        sizes = (("W", self._x, input_size), ("R", self._h, hidden_size), ("V", self._m, self.mid_size))
        for name, names, columns in sizes:
            if names:
                shape = (sum(rows[g] for g in names), columns)
                self.register_parameter(name, nn.Parameter(torch.empty(shape)))
        if any(g.bias for g in self.gates):
            self.b = nn.Parameter(torch.empty(sum(rows[g.name] for g in self.gates if g.bias)))
        self.reset_parameters()

    @property
    def mid_size(self) -> int:
        """M, the size of m: H unless a cell says otherwise."""
        return self.hidden_size

    def reset_parameters(self) -> None:
        bound = 1 / math.sqrt(self.hidden_size)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def mid(self, p: Gates, state: State) -> Tensor:
        """m_t (B, M) from the gates marked `mid`; called only if some gate has the m term."""
        raise TypeError(f"{type(self).__name__} has a gate with an m term but defines no mid()")

    @abc.abstractmethod
    def update(self, p: Gates, state: State) -> State:
        """The next state from all pre-activations and the last state, point-wise."""

    def zero_state(self, batch: int, like: Tensor) -> State:
        return tuple(like.new_zeros(batch, self.hidden_size) for _ in self.states)

    def macs(self) -> tuple[int, int]:
        """Multiply-adds of a step in the gates that feed `mid`, and in all others."""
        mid = update = 0
        for gate in self.gates:
            columns = gate.x * self.input_size + gate.h * self.hidden_size + gate.m * self.mid_size
            mid += gate.mid * self._rows[gate.name] * columns
            update += (not gate.mid) * self._rows[gate.name] * columns
        return mid, update

    def constants(self) -> dict[str, Tensor]:
        """What a sequence needs that depends on the parameters alone, by name: `mid` and `update` find it in p.

        Here bR and bV, the biases of gates without x. A cell adds what it derives from parameters of its own.
        """
        b = self._biases()
        made = {}
        for key, names in (("bR", self._h), ("bV", self._m)):
            if any(name in b and name not in self._x for name in names):
                # a gate with several terms takes its bias with the first of them
                parts = [b.pop(n) if n in b and n not in self._x else self.b.new_zeros(self._rows[n]) for n in names]
                made[key] = torch.cat(parts)
        return made

    def project(self, x: Tensor) -> Tensor:
        """The input part W x + b of every gate that has one, (T, B, I) to (T, B, rows of W)."""
        if not self._x:
            return x.new_zeros(*x.shape[:-1], 0)
        b = self._biases()
        bias = torch.cat([b.get(g, x.new_zeros(self._rows[g])) for g in self._x]) if b else None
        return nn.functional.linear(x, self.W, bias)

    def thinned(self, mask: Tensor) -> Tensor:
        """R with the rows of every gate of size H multiplied by mask (H, H); those of mid gates stay whole."""
        mids = {g.name for g in self.gates if g.mid}
        parts = self._split(self.R, self._h, 0)
        return torch.cat([part if name in mids else part * mask for name, part in parts.items()])

    def step(self, a: Tensor, x: Tensor, state: State, constants: dict[str, Tensor]) -> State:
        """One step from a (B, rows of W), a row of project(x); x (B, I), the state, and constants()."""
        p = self._split(a, self._x) if self._x else {}
        given = {"x": x, **constants}
        if self._h:
            _accumulate(
                p, self._split(nn.functional.linear(state[0], constants.get("R", self.R), constants.get("bR")), self._h)
            )
        if self._m:
            m = self.mid(Gates(p | given), state)
            _accumulate(p, self._split(nn.functional.linear(m, self.V, constants.get("bV")), self._m))
        return self.update(Gates(p | given), state)

    def _biases(self) -> dict[str, Tensor]:
        names = [g.name for g in self.gates if g.bias]
        return self._split(self.b, names) if names else {}

    def _split(self, rows: Tensor, names: list[str], axis: int = -1) -> dict[str, Tensor]:
        return dict(zip(names, torch.split(rows, [self._rows[n] for n in names], axis), strict=True))


def _accumulate(p: dict[str, Tensor], terms: dict[str, Tensor]) -> None:
    for name, term in terms.items():
        p[name] = p[name] + term if name in p else term
