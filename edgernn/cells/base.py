# SPDX-License-Identifier: Apache-2.0
"""Base class of cells, which declare gates, parameter vectors and one or two point-wise functions of a time step."""

import abc
import math
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product
from typing import Any, ClassVar, Self, TypedDict

import torch
from torch import Tensor, nn

from edgernn.cells.gate import Gate, Gates, UpdateGate
from edgernn.cells.norm import Norm
from edgernn.cells.recurrent import DENSE, BlockSparse, Recurrent, skipped_zeros
from edgernn.cells.vector import Vector
from edgernn.constants import Constants

__all__ = ["Cell", "Gate", "Gates", "Parts", "State", "UpdateGate"]

State = tuple[Tensor, ...]


class Parts(TypedDict, total=False):
    """Keyword arguments of every cell, passed on to `Cell`: storage of the recurrent weights, and normalisation."""

    recurrent: Recurrent
    norm: Norm | None


class Cell(Constants, abc.ABC):
    """Base class of recurrent cells, defined by tables of `gates`, `vectors` and `states` and one or two functions.

    p_g = W_g x_t + R_g h_{t-1} + C_g c_{t-1} + V_g m_t + b_g      for each gate g, without the terms it lacks
    m_t = mid(p, state_{t-1})                                      only if a gate has the term V m
    state_t = update(p, state_{t-1})

    p_g is the pre-activation of gate g, and m an intermediate vector of size M = `mid_size`.
    Shapes: x (B, I), every state (B, H), m (B, M), W (rows, I), R and C (rows, H), V (rows, M), b (rows,). The rows are
    those of all gates with the term, in the order of `gates`. The first state is h, the cell's output; the second is c.
    The initial state is zero. Parameters start as U(-1/√H, 1/√H), as in torch.nn.GRU, except vectors with an initial
    value. A subclass sets the class attributes and defines `update`. Derive a new cell from this class,
    not from another cell.

    Args:
        input_size: I.
        hidden_size: H.
        recurrent: Storage of R. Default: dense.
        norm: Normalisation of the products W x, R h, C c and V m, and of c before the output. Default: none.

    Attributes:
        name: Name on the command line.
        paper: Paper that the equations are from.
        reads_last: True if W has 2I columns, for x_t and then x_{t-1}, which is carried as a further state of size I.
        mid_vanishes: True if m is zero where the states are zero, so that kernels may skip these elements of m.
        normalises_c: True if `update` computes the output from `p.norm_c(c)`; the state c is not normalised.
        choices: Dict from option of the constructor to its possible values, for options that change the gate table.
        other_if_square: True if the gate table differs between I = H and I != H.
        states: Names of the states.
        update_gate: Gate that decides how much of its new value a neuron takes. None if the cell has no such gate.
        variant: Name of the gate table if an option or the sizes change it; "" for the usual table.
        gates: Table of gates.
        vectors: Table of the parameter vectors other than biases.
        W: Weights that multiply x.
        R: Weights that multiply h.
        C: Weights that multiply c.
        V: Weights that multiply m.
        b: Biases of the gates that have one.
        Q: Second factor of low-rank recurrent weights, which are the product R Q.
        kept: Boolean mask with the shape of R, if R is block-sparse: False where a weight is held at zero.
    """

    name: ClassVar[str]
    paper: ClassVar[str] = ""
    reads_last: ClassVar[bool] = False
    mid_vanishes: ClassVar[bool] = False
    normalises_c: ClassVar[bool] = False
    choices: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    other_if_square: ClassVar[bool] = False
    states: ClassVar[tuple[str, ...]] = ("h",)
    update_gate: ClassVar[UpdateGate | None] = None
    # class attributes, which a constructor may override on the instance, for its options or sizes
    variant: str = ""
    gates: tuple[Gate, ...]
    vectors: Mapping[str, Vector] = {}

    # each exists only if a gate has its term; Q and kept only if `recurrent` is low-rank or block-sparse
    W: Tensor
    R: Tensor
    C: Tensor
    V: Tensor
    b: Tensor
    Q: Tensor
    kept: Tensor

    def __init__(
        self, input_size: int, hidden_size: int, *, recurrent: Recurrent = DENSE, norm: Norm | None = None
    ) -> None:
        super().__init__()
        self.input_size, self.hidden_size = input_size, hidden_size
        self.recurrent, self.norm = recurrent, norm
        rows = self._rows = {g.name: self.mid_size if g.mid else hidden_size for g in self.gates}
        self._x = [g.name for g in self.gates if g.x]
        self._h = [g.name for g in self.gates if g.h]
        stages = [[g.name for g in self.gates if g.h and g.mid == mid] for mid in (True, False)]
        self._stages = [names for names in stages if names]
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
        for name, vector in self.vectors.items():
            size = {"H": hidden_size, "I": input_size, "1": 1}[vector.size]
            if vector.learned:
                self.register_parameter(name, nn.Parameter(torch.empty(size)))
            else:
                self.register_constant(name, [vector.start or 0.0] * size)
        if self._h:
            for name, parameter in recurrent.parameters(hidden_size).items():
                self.register_parameter(name, parameter)
            for name, buffer in recurrent.buffers(self.R).items():
                self.register_buffer(name, buffer)
        named = dict(self.named_parameters())
        self.norms = nn.ModuleDict({} if norm is None else norm.modules(named, hidden_size * self.normalises_c))
        # on meta, torch would import its compiler to draw no values
        if not next(iter(named.values())).is_meta:
            self.reset_parameters()

    @torch.no_grad()
    def threshold(self, hold: bool) -> None:
        """Prune block-sparse recurrent weights R: keep the blocks with the largest norms and set the others to zero.

        If `hold` is True, pruned blocks stay zero; else training may change them again.
        """
        assert isinstance(self.recurrent, BlockSparse)
        parts = self._split(self.R, self._h, 0)
        masks: dict[str, Tensor] = {}
        for names in self._stages:
            mask = self.recurrent.largest(torch.stack([parts[name] for name in names]))
            masks |= dict.fromkeys(names, mask)
        kept = torch.cat([masks[name] for name in parts])
        self.R.mul_(kept)
        if hold:
            self.kept.copy_(kept)

    @classmethod
    def forms(cls) -> Iterator[Self]:
        """Yield a small cell for each gate table that this class may have; C++ kernels are generated from them."""
        for sizes in ((3, 3), (2, 3)) if cls.other_if_square else ((2, 3),):
            for values in product(*cls.choices.values()):
                yield cls(*sizes, **dict(zip(cls.choices, values, strict=True)))

    @property
    def form(self) -> str:
        """Name of the cell's equations: its name, with the suffix -`variant` if there is one, as in sru-projected."""
        return f"{self.name}-{self.variant}" if self.variant else self.name

    @property
    def biases(self) -> int:
        """Number of gates that have a bias."""
        return sum(g.bias for g in self.gates)

    @property
    def is_sparse(self) -> bool:
        """True if the recurrent weights R are block-sparse, before or after pruning."""
        return self.recurrent.density is not None

    def held_zeros(self) -> int:
        """Count the recurrent weights that pruning holds at zero; 0 if R is not block-sparse."""
        return int((~self.kept).sum()) if self.is_sparse else 0

    def skipped_zeros(self) -> int:
        """Count those of `held_zeros` that the native library skips, see `skipped_zeros` in `cells.recurrent`."""
        parts = self._split(self.kept, self._h, 0) if self.is_sparse else {}
        return sum(skipped_zeros(torch.cat([parts[n] for n in names])) for names in self._stages if parts)

    @property
    def couples(self) -> bool:
        """True if a normalisation combines values of all neurons, so that single neurons cannot be skipped."""
        return self.norm is not None and self.norm.couples

    @property
    def counts_steps(self) -> bool:
        """True if a step depends on its index in the sequence, which is then carried as a state."""
        return self.norm is not None and self.norm.counts_steps

    @property
    def streaming(self) -> bool:
        """True if a sequence may be processed in parts, each starting from the last state of the one before."""
        return True

    @property
    def mid_size(self) -> int:
        """Size M of the intermediate vector m that `mid` computes; H unless a subclass overrides it."""
        return self.hidden_size

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialise all parameters of the cell in place."""
        bound = 1 / math.sqrt(self.hidden_size)
        for parameter in self.parameters(recurse=False):
            nn.init.uniform_(parameter, -bound, bound)
        if self._h:
            self.recurrent.reset(dict(self.named_parameters(recurse=False)), bound)
        for name, vector in self.vectors.items():
            if vector.start is not None:
                getattr(self, name).fill_(vector.start)

    def mid(self, p: Gates, state: State) -> Tensor:
        """Compute the intermediate vector m_t (B, M). A cell must override this method if a gate has the term V m.

        `p` holds pre-activations (of gates with mid=True), x, and parameter vectors; `state` the previous states.
        """
        raise TypeError(f"{type(self).__name__}: expected a method mid(p, state), as a gate has m=True; define it")

    @abc.abstractmethod
    def update(self, p: Gates, state: State) -> State:
        """Compute the next states (B, H), in the order of `states`, by point-wise operations.

        `p` holds pre-activations (of gates without mid=True), x, and parameter vectors; `state` the previous states.
        """

    def zero_state(self, batch: int, like: Tensor) -> State:
        return tuple(like.new_zeros(batch, self.hidden_size) for _ in self.states)

    def row_macs(self, inputs: int, hidden: int, middle: int) -> int:
        """Count a neuron's multiply-adds in the gates that `update` reads, from the sizes of x, h and the vector m."""
        columns, factor = inputs * (1 + self.reads_last), self.recurrent.columns(hidden)
        return sum(g.x * columns + g.h * factor + g.c * hidden + g.m * middle for g in self.gates if not g.mid)

    def mid_macs(self, inputs: int, hidden: int) -> int:
        """Count the multiply-adds of the gates that `mid` reads, per element of m; the arguments are I and H."""
        columns, factor = inputs * (1 + self.reads_last), self.recurrent.columns(hidden)
        return sum(g.x * columns + g.h * factor for g in self.gates if g.mid)

    @property
    def sum_size(self) -> int:
        """Number P of pre-activations in all gates that have a term W x or R h."""
        return sum(self._rows[g.name] for g in self.gates if g.x or g.h)

    def joined_sums(self, p: Mapping[str, Tensor]) -> Tensor:
        """Concatenate `p`, the dict that `sums` returns, to one tensor (B, `sum_size`), in the order of the gates."""
        return torch.cat([p[g.name] for g in self.gates if g.x or g.h], -1)

    def macs(self) -> tuple[int, int]:
        """Count the multiply-adds of one step of one sequence, as a pair of numbers.

        The first number is for the gates that `mid` reads and, if the recurrent weights are a low-rank product R Q,
        for the product Q h. The second number is for all other gates.
        """
        inputs, hidden, middle = self.input_size, self.hidden_size, self.mid_size
        mid = middle * self.mid_macs(inputs, hidden) + (self.recurrent.rank or 0) * hidden
        return mid, hidden * self.row_macs(inputs, hidden, middle)

    def kept_macs(self, update_gate: bool = False) -> int:
        """Count the multiply-adds of R h in the gates that `mid` reads, which kernels skip for unchanged neurons.

        Kernels keep R h from the last step, and add only what changed neurons contribute. The count is 0 if R is
        low-rank or block-sparse, because kernels then compute R h anew at each step. With the argument True, the gate
        that decides the updates (attribute `update_gate`) is counted, too.
        """
        whole = self.recurrent.rank is None and not self.is_sparse
        return whole * (self.mid_size * self.mid_macs(0, self.hidden_size) + update_gate * self.update_gate_macs()[1])

    def update_gate_macs(self) -> tuple[int, int]:
        """Count the multiply-adds of the gate `update_gate`: those of W x, and those of R h; 0 if there is no gate."""
        gate = Gate("", x=False, h=False) if self.update_gate is None else self.update_gate.find(self.gates)
        inputs, hidden = self.input_size * (1 + self.reads_last), self.recurrent.columns(self.hidden_size)
        return self.hidden_size * gate.x * inputs, self.hidden_size * gate.h * hidden

    def constants(self, x: Tensor) -> dict[str, Tensor]:
        """Compute the tensors that are the same at all steps of a sequence x (T, B, I), as a dict from name to tensor.

        They are: each vector of `vectors`, converted by its function `map` if it has one; "bR", "bC" and "bV", biases
        of gates without W x, which are added to R h, C c or V m; and a block-sparse "R", with zeros for pruned blocks.
        """
        b = self._biases()
        constants = {}
        for key, names in (("bR", self._h), ("bC", self._c), ("bV", self._m)):
            if any(name in b and name not in self._x for name in names):
                # the bias of a gate with several terms is added to the first of them
                parts = [b.pop(n) if n in b and n not in self._x else self.b.new_zeros(self._rows[n]) for n in names]
                constants[key] = torch.cat(parts)
        if self.is_sparse:
            constants["R"] = self.R * self.kept
        for name, vector in self.vectors.items():
            value = getattr(self, name)
            if vector.steps:
                # T as a sum, so that an exported sequence may have any length
                value = torch.where(value == 0, x.new_ones(x.shape[0]).sum(), value)
            constants[name] = value if vector.map is None else vector.map(value)
        return constants

    def project(self, x: Tensor, t: Tensor | None = None) -> Tensor:
        """Compute the input part W x + b of all gates that read x.

        Args:
            x: Input (…, columns of W): one step or a sequence.
            t: Index (B, 1) of the step, or of the first step if x is a sequence. Needed if `counts_steps`.

        Returns:
            The projections (…, rows of W).
        """
        if not self._x:
            return x.new_zeros(*x.shape[:-1], 0)
        b = self._biases()
        bias = torch.cat([b.get(g, x.new_zeros(self._rows[g])) for g in self._x]) if b else None
        return self._product("W", x, self.W, bias, t)

    def thinned(self, mask: Tensor) -> dict[str, Tensor]:
        """Return the weights R (of h) and C (of c), with elements set to zero where a mask (H, H) is zero.

        The result is a dict with the keys "R" and "C", without those that the cell lacks. The mask is applied to the
        weights (H, H) of each gate, except gates that `mid` reads. R must not be low-rank (`UpdateRule.refusal`).
        """
        mids = {g.name for g in self.gates if g.mid}
        masked = {}
        for key, names in (("R", self._h), ("C", self._c)):
            if names:
                weight = getattr(self, key)
                parts = self._split(weight * self.kept if key == "R" and self.is_sparse else weight, names, 0)
                masked[key] = torch.cat([part if name in mids else part * mask for name, part in parts.items()])
        return masked

    def step(self, a: Tensor, x: Tensor, state: State, constants: dict[str, Tensor], t: Tensor | None = None) -> State:
        """Compute one step: the next state from the input and the last state.

        Args:
            a: Input part W x + b (B, rows of W), one step of the result of `project`.
            x: Input (B, I), or x_t and then x_{t-1} (B, 2I) if `reads_last`.
            state: State before the step.
            constants: Result of `constants`. If a rule masks R and C, the entries that `thinned` returns are added.
            t: Index (B, 1) of the step. Needed if `counts_steps`.

        Returns:
            The next state.
        """
        return self.finish(self.sums(a, state[0], constants, t), x, state, constants, t)

    def sums(self, a: Tensor, h: Tensor, constants: dict[str, Tensor], t: Tensor | None = None) -> dict[str, Tensor]:
        """Compute W x + R h + b of each gate that has W x or R h, as a dict by gate. See `step` for the arguments."""
        p = self._split(a, self._x) if self._x else {}
        if self._h:
            factor = h if self.recurrent.rank is None else nn.functional.linear(h, self.Q)
            self._add(p, self._h, factor, "R", constants, t)
        return p

    def finish(
        self, p: dict[str, Tensor], x: Tensor, state: State, constants: dict[str, Tensor], t: Tensor | None = None
    ) -> State:
        """Compute the next state from `p`, a result of `sums`. For the other arguments, see `step`.

        The method adds C c and V m, as in the equations of `Cell`, to `p` in place, and calls `update`.
        """
        values = {"x": x, **constants}
        if self._c:
            self._add(p, self._c, state[1], "C", constants, t)
        if self._m:
            self._add(p, self._m, self.mid(Gates(p | values), state), "V", constants, t)
        norm_c = partial(self.norms["c"], t=t) if "c" in self.norms else None
        return self.update(Gates(p | values, norm_c), state)

    def _add(
        self,
        p: dict[str, Tensor],
        names: list[str],
        factor: Tensor,
        key: str,
        constants: dict[str, Tensor],
        t: Tensor | None,
    ) -> None:
        weight = constants[key] if key in constants else getattr(self, key)
        product = self._product(key, factor, weight, constants.get(f"b{key}"), t)
        for name, term in self._split(product, names).items():
            p[name] = p[name] + term if name in p else term

    def _product(self, key: str, factor: Tensor, weight: Tensor, bias: Tensor | None, t: Tensor | None) -> Tensor:
        """Multiply `factor` by a weight matrix, normalise the product if the cell has a `norm`, and add the bias."""
        if key not in self.norms:
            return nn.functional.linear(factor, weight, bias)
        product: Tensor = self.norms[key](nn.functional.linear(factor, weight), t)
        return product if bias is None else product + bias

    def _biases(self) -> dict[str, Tensor]:
        names = [g.name for g in self.gates if g.bias]
        return self._split(self.b, names) if names else {}

    def _split(self, rows: Tensor, names: list[str], axis: int = -1) -> dict[str, Tensor]:
        return dict(zip(names, torch.split(rows, [self._rows[n] for n in names], axis), strict=True))
