# SPDX-License-Identifier: Apache-2.0
"""A cell under a rule, over time. This is the only Python loop over time."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from edgernn.cells.base import Cell, State
from edgernn.rules.base import Decision, UpdateRule, blend

# the state of a cell that reads the input before
LAST = "x_last"


@dataclass(frozen=True)
class Trace:
    """What the rule decided in one forward: which neurons changed (T, B, H), or None where all did, and the budget."""

    decisions: Tensor | None
    budget: Tensor


class RecurrentLayer(nn.Module):
    """One cell under one update rule, unrolled over a sequence in one direction.

    forward(x (T, B, I), state) returns y (T, B, H), the last state, and a Trace. The state is that of the cell, then
    the rule's memory, then the last input where the cell reads it; `widths` has their names and sizes.
    """

    def __init__(self, cell: Cell, rule: UpdateRule) -> None:
        super().__init__()
        self.cell, self.rule = cell, rule
        self.widths = dict.fromkeys(cell.states, cell.hidden_size) | dict.fromkeys(rule.memory, 1)
        if cell.reads_last:
            self.widths[LAST] = cell.input_size
        if rule.learns_start:
            self.start = nn.ParameterList(nn.Parameter(torch.randn(cell.hidden_size)) for _ in cell.states)

    @property
    def states(self) -> tuple[str, ...]:
        return tuple(self.widths)

    def initial_state(self, batch: int, like: Tensor) -> State:
        state = self.cell.zero_state(batch, like)
        if self.rule.learns_start:
            state = tuple(start.expand(batch, -1) for start in self.start)
        last = (like.new_zeros(batch, self.cell.input_size),) if self.cell.reads_last else ()
        return (*state, *self.rule.initial_memory(batch, like), *last)

    def constants(self, x: Tensor) -> dict[str, Tensor]:
        """What is computed once a sequence x (T, B, I), whatever happens at its steps."""
        mask = self.rule.recurrent_mask()
        return self.cell.constants(x) | ({} if mask is None else self.cell.thinned(mask))

    def inputs(self, x: Tensor, state: State) -> Tensor:
        """What W reads (T, B, I or 2I): x, and beside it the input before, where the cell reads that."""
        if not self.cell.reads_last:
            return x
        return torch.cat([x, torch.cat([state[-1].unsqueeze(0), x[:-1]])], -1)

    def step(
        self, a: Tensor, e: Tensor, x: Tensor, state: State, constants: dict[str, Tensor]
    ) -> tuple[State, Decision]:
        """One step from the input parts a and e of cell and rule, and x, of inputs(): the next state, the decision.

        The last input is not part of the state here.
        """
        count = len(self.cell.states)
        old, memory = state[:count], state[count:]
        decision = self.rule.decide(e, old, memory)
        seen = old
        if decision.masks is not None:
            x_mask, state_mask = decision.masks
            x = x * torch.cat([x_mask] * (1 + self.cell.reads_last), -1)
            a = self.cell.project(x)
            seen = tuple(s * state_mask for s in old)
        new = blend(decision.u, self.cell.step(a, x, seen, constants), old)
        return (*new, *self.rule.remember(decision.u, new, memory)), decision

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State, Trace]:
        if state is None:
            state = self.initial_state(x.shape[1], x)
        constants, inputs = self.constants(x), self.inputs(x, state)
        last = (x[-1],) if self.cell.reads_last else ()
        state = state[: len(state) - len(last)]
        y, u, likelihoods = [], [], []
        parts = (self.cell.project(inputs), self.rule.project(x), inputs)
        for a, e, x_t in zip(*(part.unbind(0) for part in parts), strict=True):
            state, decision = self.step(a, e, x_t, state, constants)
            y.append(state[0])
            if decision.u is not None:
                u.append(decision.u)
            if decision.likelihood is not None:
                likelihoods.append(decision.likelihood)
        state = (*state, *last)
        if not u:
            return torch.stack(y), state, Trace(None, x.new_zeros(()))
        decisions = torch.stack(u)
        budget = self.rule.budget(decisions.to(x.dtype), torch.stack(likelihoods) if likelihoods else None)
        return torch.stack(y), state, Trace((decisions != 0).expand(-1, -1, self.cell.hidden_size), budget)

    def macs(self) -> int:
        """Multiply-adds of a step, nothing skipped."""
        return sum(self.cell.macs()) + self.rule.macs()
