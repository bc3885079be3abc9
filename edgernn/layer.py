# SPDX-License-Identifier: Apache-2.0
"""A cell under a rule, over time. This is the only Python loop over time."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from edgernn.cells.base import Cell, State
from edgernn.imputers import Imputer
from edgernn.rules.base import Decision, UpdateRule, blend

# the state of a cell that reads the input before
LAST = "x_last"
# the state of a cell whose steps are counted
COUNT = "t"


@dataclass(frozen=True)
class Trace:
    """What came of one forward.

    decisions: which neurons changed (T, B, H), or None where all did. budget: what λ multiplies.
    imputed: where an imputer fills gaps, x without them (T, B, F); imputation_loss: its loss.
    """

    decisions: Tensor | None
    budget: Tensor
    imputed: Tensor | None = None
    imputation_loss: Tensor | None = None


@dataclass(frozen=True)
class Step:
    """The state after a step, the last input aside; the decision; what was imputed: x and the estimates."""

    state: State
    decision: Decision
    imputed: tuple[Tensor, ...] = ()


class Unroller(Protocol):
    """Runs all steps of a layer at once, or returns None where it cannot run these tensors; `name` says what it is."""

    name: str

    def __call__(self, layer: "RecurrentLayer", x: Tensor, state: State) -> tuple[Tensor, State, Trace] | None: ...


class RecurrentLayer(nn.Module):
    """One cell under one update rule, unrolled over a sequence in one direction.

    forward(x (T, B, I), state) returns y (T, B, H), the last state, and a Trace. The state is that of the cell, then
    the memories of the rule and of the imputer, the number of steps where the cell counts them, and the last input
    where the cell reads it; `widths` has their names and sizes. An `unroller` takes the place of the loop over time
    wherever it can: same results, same gradients.
    """

    def __init__(self, cell: Cell, rule: UpdateRule, imputer: Imputer | None = None) -> None:
        super().__init__()
        self.cell, self.rule = cell, rule
        self.imputer = imputer
        self.unroller: Unroller | None = None
        self.widths = dict.fromkeys(cell.states, cell.hidden_size) | rule.widths
        if imputer is not None:
            self.widths |= dict.fromkeys(imputer.memory, imputer.features)
        if cell.counts_steps:
            self.widths[COUNT] = 1
        if cell.reads_last:
            self.widths[LAST] = cell.input_size
        if rule.learns_start:
            self.start = nn.ParameterList(nn.Parameter(torch.randn(cell.hidden_size)) for _ in cell.states)

    @property
    def shifts_input(self) -> bool:
        """Whether the last input is that of the layer, so that all steps have it at once, before the first."""
        return self.cell.reads_last and self.imputer is None

    @property
    def backend(self) -> str:
        """What runs the steps: the name of the unroller, or "torch"."""
        return "torch" if self.unroller is None else self.unroller.name

    @property
    def kind(self) -> str:
        """The names of what the layer is made of, as gru-d+gru-before+selective; its kernel goes by them."""
        return self.kind_of(self.cell.form)

    def kind_of(self, form: str) -> str:
        """The kind of such a layer of another cell, by the name of its equations."""
        cell = self.cell
        parts = [] if self.imputer is None else [self.imputer.name]
        parts += [form] if self.rule.implied else [form, self.rule.name]
        parts += ["groups"] if self.rule.group_size > 1 else []
        parts += [] if cell.recurrent.rank is None else ["low-rank"]
        return "+".join(parts if cell.norm is None else [*parts, cell.norm.name])

    @property
    def states(self) -> tuple[str, ...]:
        return tuple(self.widths)

    @property
    def input_size(self) -> int:
        """I of what the layer is given."""
        return self.cell.input_size if self.imputer is None else 3 * self.imputer.features

    def initial_state(self, batch: int, like: Tensor) -> State:
        state = self.cell.zero_state(batch, like)
        if self.rule.learns_start:
            state = tuple(start.expand(batch, -1) for start in self.start)
        state = (*state, *self.rule.initial_memory(batch, like))
        return (*state, *(like.new_zeros(batch, width) for width in list(self.widths.values())[len(state) :]))

    def constants(self, x: Tensor) -> dict[str, Tensor]:
        """What is computed once a sequence x (T, B, I), whatever happens at its steps."""
        mask = self.rule.recurrent_mask()
        return self.cell.constants(x) | ({} if mask is None else self.cell.thinned(mask))

    def inputs(self, x: Tensor, last: Tensor | None) -> Tensor:
        """What a step reads (T, B, I or 2I): x, and beside it the input before, where the cell reads that."""
        if last is None:
            return x
        return torch.cat([x, torch.cat([last.unsqueeze(0), x[:-1]])], -1)

    def projected(self, inputs: Tensor, x: Tensor, t: Tensor | None) -> tuple[Tensor, Tensor]:
        """The input parts of cell and rule for all steps at once; of no size where an imputer makes the inputs."""
        if self.imputer is not None:
            nothing = x.new_zeros(*x.shape[:-1], 0)
            return nothing, nothing
        return self.cell.project(inputs, t), self.rule.project(x)

    def step(self, a: Tensor, e: Tensor, x: Tensor, state: State, constants: dict[str, Tensor]) -> Step:
        """One step from the input parts a and e of cell and rule, and x, of inputs().

        state: without the last input where the layer shifts its inputs.
        """
        count, rules = len(self.cell.states), len(self.rule.memory)
        old, memory = state[:count], state[count : count + rules]
        rest = dict(zip(self.states[count + rules :], state[count + rules :], strict=False))
        t = rest.get(COUNT)
        imputed: tuple[Tensor, ...] = ()
        if self.imputer is not None:
            made = self.imputer(x, old, tuple(rest[name] for name in self.imputer.memory))
            rest |= zip(self.imputer.memory, made.memory, strict=True)
            x, old, imputed = made.inputs, made.state, (made.x, *made.estimates)
            e = self.rule.project(x)
            if LAST in rest:
                x, rest[LAST] = torch.cat([x, rest[LAST]], -1), x
            a = self.cell.project(x, t)
        decision = self.rule.decide(e, old, memory)
        seen = old
        if decision.masks is not None:
            x_mask, state_mask = decision.masks
            x = x * torch.cat([x_mask] * (1 + self.cell.reads_last), -1)
            a = self.cell.project(x, t)
            seen = tuple(s * state_mask for s in old)
        new = blend(decision.u, self.cell.step(a, x, seen, constants, t), old)
        if t is not None:
            rest[COUNT] = t + 1
        return Step((*new, *self.rule.remember(decision, new, memory), *rest.values()), decision, imputed)

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State, Trace]:
        if state is None:
            state = self.initial_state(x.shape[1], x)
        if self.unroller is not None and (unrolled := self.unroller(self, x, state)) is not None:
            return unrolled
        last: State = ()
        constants, inputs = self.constants(x), self.inputs(x, state[-1] if self.shifts_input else None)
        a, e = self.projected(inputs, x, dict(zip(self.states, state, strict=True)).get(COUNT))
        if self.shifts_input:
            state, last = state[:-1], (x[-1],)
        y, steps = [], []
        for a_t, e_t, x_t in zip(a.unbind(0), e.unbind(0), inputs.unbind(0), strict=True):
            step = self.step(a_t, e_t, x_t, state, constants)
            state = step.state
            y.append(state[0])
            steps.append(step)
        return torch.stack(y), (*state, *last), self._trace(x, steps)

    def _trace(self, x: Tensor, steps: list[Step]) -> Trace:
        imputed, loss = None, None
        if self.imputer is not None:
            imputed, *estimates = (torch.stack(parts) for parts in zip(*(s.imputed for s in steps), strict=True))
            loss = self.imputer.loss(x, tuple(estimates))
        u = [s.decision.u for s in steps if s.decision.u is not None]
        if not u:
            return Trace(None, x.new_zeros(()), imputed, loss)
        likelihoods = [s.decision.likelihood for s in steps if s.decision.likelihood is not None]
        decisions = torch.stack(u)
        budget = self.rule.budget(decisions.to(x.dtype), torch.stack(likelihoods) if likelihoods else None)
        updated = (decisions != 0).expand(-1, -1, self.cell.hidden_size)
        return Trace(updated, budget, imputed, loss)

    def macs(self) -> int:
        """Multiply-adds of a step, nothing skipped."""
        return sum(self.cell.macs()) + self.rule.macs() + (0 if self.imputer is None else self.imputer.macs())
