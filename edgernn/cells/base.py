# SPDX-License-Identifier: Apache-2.0
"""What a cell is: a table of gates, a table of vectors, and one or two point-wise maps."""

import abc
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, ClassVar, Literal, Self, TypedDict

import torch
from torch import Tensor, nn

from edgernn.cells.norm import Norm
from edgernn.cells.recurrent import DENSE, BlockSparse, Recurrent
from edgernn.errors import UsageError

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
    steps: 0 stands for the number of steps T of the sequence at hand.
    """

    size: Literal["H", "I", "1"]
    start: float | None = None
    map: Callable[[Tensor], Tensor] | None = None
    learned: bool = True
    steps: bool = False


class Gates:
    """By name: the pre-activations of a step, (B, H) or (B, M) each, the input `x` (B, I), the cell's vectors.

    norm_c: The normalisation of the cell state at this step. Default: none.
    """

    def __init__(self, values: dict[str, Tensor], norm_c: Callable[[Tensor], Tensor] | None = None) -> None:
        self._values, self._norm_c = values, norm_c

    def __getattr__(self, name: str) -> Tensor:
        return self._values[name]

    def norm_c(self, c: Tensor) -> Tensor:
        """N(c) (B, H), which the output's non-linearity reads; c itself where there is no normalisation of it."""
        return c if self._norm_c is None else self._norm_c(c)


class Parts(TypedDict, total=False):
    """Arguments of every cell beside its sizes and options; a subclass passes them on to its base."""

    recurrent: Recurrent
    norm: Norm | None


class Cell(nn.Module, abc.ABC):
    """A recurrent cell: the table `gates`, the table `own`, the names of its states, and `update` (and `mid`).

    p_g = W_g x_t + R_g h_{t-1} + C_g c_{t-1} + V_g m_t + b_g      for each gate g, absent terms left out
    m_t = mid(p, state_{t-1})                                      two-stage cells only
    state_t = update(p, state_{t-1})

    Shapes: x (B, I), every state (B, H), m (B, M); W (rows of the gates with x, I), R and C (…, H), V (…, M), b (…,).
    The first state is the cell's output and the h that R sees. The initial state is zero.
    variant: Which of its tables of gates the cell has, if a choice of its constructor leads to another one.
    reads_last: W has 2I columns, for x_t and then for x_{t-1}, which is carried as a further state of size I.
    mid_vanishes: m is zero where the states are, so that whoever masks the states need not compute it there.
    choices: Values of options that change the table of gates. other_if_square: It is another one where I = H.
    normalises_c: `update` reads the new c as `p.norm_c(c)` for the output's non-linearity; the c that it returns is as
    it was. N(c) = c unless the cell has a norm with a normalisation of c.
    recurrent: How R is stored, whole unless given. norm: What normalises the terms W x, R h, C c and V m, and c before
    the output; nothing unless given.
    Parameters start as U(-1/√H, 1/√H), as in torch.nn.GRU, but for vectors with a first value.
    A subclass is final: it sets the class attributes and defines `update`, and nothing else of it is known elsewhere.
    """

    name: ClassVar[str]
    paper: ClassVar[str] = ""
    reads_last: ClassVar[bool] = False
    mid_vanishes: ClassVar[bool] = False
    normalises_c: ClassVar[bool] = False
    choices: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    other_if_square: ClassVar[bool] = False
    states: ClassVar[tuple[str, ...]] = ("h",)
    # class attributes too, unless an option of the cell's constructor, or its sizes, change them
    variant: str = ""
    gates: tuple[Gate, ...]
    own: Mapping[str, Vector] = {}

    # those that the gates call for
    W: Tensor
    R: Tensor
    C: Tensor
    V: Tensor
    b: Tensor
    # those of `recurrent`: R is R Q where it has a rank, and 0 but where it is kept
    Q: Tensor
    kept: Tensor

    def __init__(
        self, input_size: int, hidden_size: int, *, recurrent: Recurrent = DENSE, norm: Norm | None = None
    ) -> None:
        super().__init__()
        self.input_size, self.hidden_size = input_size, hidden_size
        self.recurrent, self.norm = recurrent, norm
        rows = {g.name: self.mid_size if g.mid else hidden_size for g in self.gates}
        self._rows = rows
        self._x = [g.name for g in self.gates if g.x]
        self._h = [g.name for g in self.gates if g.h]
        self._c = [g.name for g in self.gates if g.c]
        self._m = [g.name for g in self.gates if g.m]
        recurrent.check(self.name, bool(self._h))
        sizes = (
            ("W", self._x, input_size * (1 + self.reads_last)),
            ("R", self._h, recurrent.columns(hidden_size)),
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
            value = torch.empty({"H": hidden_size, "I": input_size, "1": 1}[vector.size])
            if vector.learned:
                self.register_parameter(name, nn.Parameter(value))
            else:
                self.register_buffer(name, value, persistent=False)
        if self._h:
            for name, parameter in recurrent.parameters(hidden_size).items():
                self.register_parameter(name, parameter)
            for name, buffer in recurrent.buffers(self.R).items():
                self.register_buffer(name, buffer)
        self.norms = nn.ModuleDict({} if norm is None else self._normalisations(norm))
        self.reset_parameters()

    def _normalisations(self, norm: Norm) -> dict[str, nn.Module]:
        """By the names of the weights whose products they normalise, and "c"."""
        norms: dict[str, nn.Module] = {}
        for name in ("W", "R", "C", "V"):
            if name in self._parameters:
                norms[name] = norm.of_product(len(getattr(self, name)))
        norm_c = norm.of_state(self.hidden_size) if self.normalises_c else None
        return norms if norm_c is None else norms | {"c": norm_c}

    @torch.no_grad()
    def threshold(self, hold: bool) -> None:
        """Set all but the largest blocks of R to zero; hold: from now on, else they may grow again."""
        assert isinstance(self.recurrent, BlockSparse)
        parts = self._split(self.R, self._h, 0)
        mids = {g.name for g in self.gates if g.mid}
        masks: dict[str, Tensor] = {}
        for names in ([n for n in parts if n in mids], [n for n in parts if n not in mids]):
            if names:
                mask = self.recurrent.largest(torch.stack([parts[name] for name in names]))
                masks |= dict.fromkeys(names, mask)
        kept = torch.cat([masks[name] for name in parts])
        self.R.mul_(kept)
        if hold:
            self.kept.copy_(kept)

    @classmethod
    def forms(cls) -> Iterator[Self]:
        """A cell of each table of gates that it may have; the native kernels are made from them."""
        for sizes in ((3, 3), (2, 3)) if cls.other_if_square else ((2, 3),):
            for values in product(*cls.choices.values()):
                yield cls(*sizes, **dict(zip(cls.choices, values, strict=True)))

    @property
    def form(self) -> str:
        """The name of the equations: that of the cell, and its variant."""
        return f"{self.name}-{self.variant}" if self.variant else self.name

    @property
    def biases(self) -> int:
        """How many gates have a bias."""
        return sum(g.bias for g in self.gates)

    @property
    def is_sparse(self) -> bool:
        """Whether R has blocks of zeros, or is to get them."""
        return self.recurrent.density is not None

    def held_zeros(self) -> int:
        """How many weights of R are zero for good."""
        return int((~self.kept).sum()) if self.is_sparse else 0

    @property
    def couples(self) -> bool:
        """Whether a neuron needs the rows of all others, so that single rows cannot be skipped."""
        return self.norm is not None and self.norm.couples

    @property
    def counts_steps(self) -> bool:
        """Whether a step depends on its place in the sequence, which then is a state."""
        return self.norm is not None and self.norm.counts_steps

    @property
    def streaming(self) -> bool:
        """Whether a sequence may be given in parts."""
        return True

    @property
    def mid_size(self) -> int:
        """M, the size of m: H unless a cell says otherwise."""
        return self.hidden_size

    @torch.no_grad()
    def reset_parameters(self) -> None:
        bound = 1 / math.sqrt(self.hidden_size)
        for parameter in self.parameters(recurse=False):
            nn.init.uniform_(parameter, -bound, bound)
        if self._h:
            self.recurrent.reset(dict(self.named_parameters(recurse=False)), bound)
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
        columns, factor = inputs * (1 + self.reads_last), self.recurrent.columns(hidden)
        return sum(g.x * columns + g.h * factor + g.c * hidden + g.m * middle for g in self.gates if not g.mid)

    def mid_macs(self, inputs: int, hidden: int) -> int:
        """Multiply-adds of one row of every gate that feeds `mid`, as above."""
        return sum(g.x * inputs + g.h * (self.recurrent.columns(hidden)) for g in self.gates if g.mid)

    def macs(self) -> tuple[int, int]:
        """Multiply-adds of a step in Q and the gates that feed `mid`, and in all others."""
        inputs, hidden, middle = self.input_size, self.hidden_size, self.mid_size
        mid = middle * self.mid_macs(inputs, hidden) + (self.recurrent.rank or 0) * hidden
        return mid, hidden * self.row_macs(inputs, hidden, middle)

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
        if self.is_sparse:
            made["R"] = self.R * self.kept
        for name, vector in self.own.items():
            value = getattr(self, name)
            if vector.steps:
                # T as a sum, so that an exported sequence may have any length
                value = torch.where(value == 0, x.new_ones(x.shape[0]).sum(), value)
            made[name] = value if vector.map is None else vector.map(value)
        return made

    def project(self, x: Tensor, t: Tensor | None = None) -> Tensor:
        """The input part W x + b of every gate that has one, (…, columns of W) to (…, rows of W).

        t (B, 1): the place in the sequence of x, or of its first step if x is (T, B, columns), where `counts_steps`.
        """
        if not self._x:
            return x.new_zeros(*x.shape[:-1], 0)
        b = self._biases()
        bias = torch.cat([b.get(g, x.new_zeros(self._rows[g])) for g in self._x]) if b else None
        return self._product("W", x, self.W, bias, t)

    def thinned(self, mask: Tensor) -> dict[str, Tensor]:
        """R and C with the rows of every gate of size H multiplied by mask (H, H); those of mid gates stay whole."""
        if self.recurrent.rank is not None:
            raise UsageError("rank: a rule that thins the recurrent weights needs them whole")
        mids = {g.name for g in self.gates if g.mid}
        made = {}
        for key, names in (("R", self._h), ("C", self._c)):
            if names:
                weight = getattr(self, key)
                parts = self._split(weight * self.kept if key == "R" and self.is_sparse else weight, names, 0)
                made[key] = torch.cat([part if name in mids else part * mask for name, part in parts.items()])
        return made

    def step(self, a: Tensor, x: Tensor, state: State, constants: dict[str, Tensor], t: Tensor | None = None) -> State:
        """One step from a (B, rows of W), a row of project(x); x (B, I), the state, constants(), and t as there."""
        p = self._split(a, self._x) if self._x else {}
        given = {"x": x, **constants}

        def add(names: list[str], factor: Tensor, key: str) -> None:
            if names:
                weight = given[key] if key in given else getattr(self, key)
                _accumulate(p, self._split(self._product(key, factor, weight, given.get(f"b{key}"), t), names))

        if self._h:
            add(self._h, state[0] if self.recurrent.rank is None else nn.functional.linear(state[0], self.Q), "R")
        if self._c:
            add(self._c, state[1], "C")
        if self._m:
            add(self._m, self.mid(Gates(p | given), state), "V")
        norm_c = partial(self.norms["c"], t=t) if "c" in self.norms else None
        return self.update(Gates(p | given, norm_c), state)

    def _product(self, key: str, factor: Tensor, weight: Tensor, bias: Tensor | None, t: Tensor | None) -> Tensor:
        """A weight times a factor, normalised if it is to be, and a bias."""
        if key not in self.norms:
            return nn.functional.linear(factor, weight, bias)
        product: Tensor = self.norms[key](nn.functional.linear(factor, weight), t)
        return product if bias is None else product + bias

    def _biases(self) -> dict[str, Tensor]:
        names = [g.name for g in self.gates if g.bias]
        return self._split(self.b, names) if names else {}

    def _split(self, rows: Tensor, names: list[str], axis: int = -1) -> dict[str, Tensor]:
        return dict(zip(names, torch.split(rows, [self._rows[n] for n in names], axis), strict=True))


def _accumulate(p: dict[str, Tensor], terms: dict[str, Tensor]) -> None:
    for name, term in terms.items():
        p[name] = p[name] + term if name in p else term
