# SPDX-License-Identifier: Apache-2.0
"""What a cell is: a table of gates, a table of vectors, and one or two point-wise maps."""

import abc
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from edgernn.cells.norm import NORMS
from edgernn.errors import UsageError, nearest

State = tuple[Tensor, ...]
# neurons in a block of sparse weights: the widest vector of the native kernels
BLOCK = 16


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
    Any cell may be changed once it is made: `factorise` stores R as a product, `sparsify` keeps blocks of it,
    `normalise` normalises the terms.
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
    # R is R Q where it is factorised, and 0 but where it is kept
    Q: Tensor
    kept: Tensor

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
        self.norms = nn.ModuleDict()
        self.rank: int | None = None
        self.density: float | None = None
        self.reset_parameters()

    def factorise(self, rank: int) -> None:
        """Store R as the product R Q of R (rows, rank) and Q (rank, H), both new; H·rank more multiply-adds a step.

        Saves where rank < rows·H / (rows + H). The start of R is wider, so that the product is as U(-1/√H, 1/√H) is.
        Source: the low rank of Kusupati et al. 2018, arXiv:1901.02358. Raises UsageError for a rank below 1 or a cell
        without R.
        """
        if not self._h:
            raise UsageError(f"rank: {self.name} has no recurrent weights to factorise")
        if rank < 1:
            raise UsageError(f"rank: expected at least 1, got {rank}")
        self.rank = rank
        self.R = nn.Parameter(self.R.new_empty(self.R.shape[0], rank))
        self.Q = nn.Parameter(self.R.new_empty(rank, self.hidden_size))
        self.op += "LowRank"
        self.reset_parameters()

    def sparsify(self, density: float) -> None:
        """Allow R only a share `density` of its blocks: BLOCK neighbouring neurons of one column, in all gates at once.

        R starts whole; `threshold` picks the blocks. The dense native kernels skip the others.
        Source: the sparsity of Kusupati et al. 2018, arXiv:1901.02358, there of single weights. Raises UsageError for a
        density outside (0, 1], a cell without R, or one that is factorised.
        """
        if not self._h:
            raise UsageError(f"density: {self.name} has no recurrent weights to thin out")
        if not 0 < density <= 1:
            raise UsageError(f"density: expected above 0 and at most 1, got {density}")
        if self.rank is not None:
            raise UsageError("density: expected either rank or density, not both")
        self.density = density
        self.register_buffer("kept", torch.ones_like(self.R, dtype=torch.bool))

    @torch.no_grad()
    def threshold(self, hold: bool) -> None:
        """Set all but the largest blocks of R to zero; hold: from now on, else they may grow again."""
        assert self.density is not None
        parts = self._split(self.R, self._h, 0)
        mids = {g.name for g in self.gates if g.mid}
        masks: dict[str, Tensor] = {}
        for names in ([n for n in parts if n in mids], [n for n in parts if n not in mids]):
            if not names:
                continue
            size = self._rows[names[0]]
            energy = torch.stack([parts[name] for name in names]).square().sum(0)
            energy = nn.functional.pad(energy, (0, 0, 0, -size % BLOCK)).reshape(-1, BLOCK, energy.shape[1]).sum(1)
            count = max(1, round(self.density * energy.numel()))
            mask = torch.zeros_like(energy, dtype=torch.bool)
            mask.view(-1)[energy.flatten().topk(count).indices] = True
            masks |= dict.fromkeys(names, mask.repeat_interleave(BLOCK, 0)[:size])
        kept = torch.cat([masks[name] for name in parts])
        self.R.mul_(kept)
        if hold:
            self.kept.copy_(kept)

    def held_zeros(self) -> int:
        """How many weights of R are zero for good."""
        return 0 if self.density is None else int((~self.kept).sum())

    def normalise(self, kind: str, steps: int) -> None:
        """Normalise each of the terms W x, R h, C c and V m: kind is a name in NORMS, steps the longest sequence.

        Raises UsageError for an unknown kind or steps below 1.
        """
        if kind not in NORMS:
            raise nearest("norm", kind, NORMS)
        if steps < 1:
            raise UsageError(f"norm_steps: expected at least 1, got {steps}")
        for name in ("W", "R", "C", "V"):
            if name in self._parameters:
                self.norms[name] = NORMS[kind](getattr(self, name).shape[0], steps)
        self.op += NORMS[kind].suffix

    @property
    def norm(self) -> nn.Module | None:
        """One of the normalisations, if there are any."""
        return next(iter(self.norms.values()), None)

    @property
    def couples(self) -> bool:
        """Whether a neuron needs the rows of all others, so that single rows cannot be skipped."""
        return self.norm is not None and bool(self.norm.couples)

    @property
    def counts_steps(self) -> bool:
        """Whether a step depends on its place in the sequence, which then is a state."""
        return self.norm is not None and bool(self.norm.counts_steps)

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
        if self.rank is not None:
            # a product of two uniform factors, summed over the rank, has the variance of one
            for factor in (self.R, self.Q):
                nn.init.uniform_(factor, -1, 1).mul_(math.sqrt(bound * math.sqrt(3 / self.rank)))
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
        columns, factor = inputs * (1 + self.reads_last), self.rank or hidden
        return sum(g.x * columns + g.h * factor + g.c * hidden + g.m * middle for g in self.gates if not g.mid)

    def mid_macs(self, inputs: int, hidden: int) -> int:
        """Multiply-adds of one row of every gate that feeds `mid`, as above."""
        return sum(g.x * inputs + g.h * (self.rank or hidden) for g in self.gates if g.mid)

    def macs(self) -> tuple[int, int]:
        """Multiply-adds of a step in Q and the gates that feed `mid`, and in all others."""
        inputs, hidden, middle = self.input_size, self.hidden_size, self.mid_size
        mid = middle * self.mid_macs(inputs, hidden) + (self.rank or 0) * hidden
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
        if self.density is not None:
            made["R"] = self.R * self.kept
        for name, vector in self.own.items():
            value = getattr(self, name)
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
        if self.rank is not None:
            raise UsageError("rank: a rule that thins the recurrent weights needs them whole")
        mids = {g.name for g in self.gates if g.mid}
        made = {}
        for key, names in (("R", self._h), ("C", self._c)):
            if names:
                weight = getattr(self, key)
                parts = self._split(weight * self.kept if key == "R" and self.density is not None else weight, names, 0)
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
            add(self._h, state[0] if self.rank is None else nn.functional.linear(state[0], self.Q), "R")
        if self._c:
            add(self._c, state[1], "C")
        if self._m:
            add(self._m, self.mid(Gates(p | given), state), "V")
        return self.update(Gates(p | given), state)

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
