# SPDX-License-Identifier: Apache-2.0
"""A cell under a rule, over time. This is the only Python loop over time."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from edgernn.cells.base import Cell, State
from edgernn.rules.base import Decision, UpdateRule, blend


@dataclass(frozen=True)
class Trace:
    """What the rule decided in one forward: u (T, B, H), or None where everything was updated, and the budget."""

    decisions: Tensor | None
    budget: Tensor


class RecurrentLayer(nn.Module):
    """One cell under one update rule, unrolled over a sequence in one direction.

    forward(x (T, B, I), state) returns y (T, B, H), the last state, and a Trace. The state is that of the cell and then
    the rule's memory, named by `states`.
    """

    def __init__(self, cell: Cell, rule: UpdateRule) -> None:
        super().__init__()
        self.cell, self.rule = cell, rule
        self.states = (*cell.states, *rule.memory)
        if rule.learns_start:
            self.start = nn.ParameterList(nn.Parameter(torch.randn(cell.hidden_size)) for _ in cell.states)

    def initial_state(self, batch: int, like: Tensor) -> State:
        state = self.cell.zero_state(batch, like)
        if self.rule.learns_start:
            state = tuple(start.expand(batch, -1) for start in self.start)
        return (*state, *self.rule.initial_memory(batch, like))

    def constants(self) -> dict[str, Tensor]:
        """What is computed once a sequence from the parameters of cell and rule."""
        made = self.cell.constants()
        mask = self.rule.recurrent_mask()
        return made if mask is None else {**made, "R": self.cell.thinned(mask)}

    def step(
        self, a: Tensor, e: Tensor, x: Tensor, state: State, constants: dict[str, Tensor]
    ) -> tuple[State, Decision]:
        """One step from the input parts a and e of cell and rule: the next state and the decision."""
        count = len(self.cell.states)
        old, memory = state[:count], state[count:]
        decision = self.rule.decide(e, old, memory)
        new = blend(decision.u, self.cell.step(a, x, old, constants), old)
        return (*new, *self.rule.remember(decision.u, new, memory)), decision

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State, Trace]:
        if state is None:
            state = self.initial_state(x.shape[1], x)
        constants = self.constants()
        y, u, likelihoods = [], [], []
        for a, e, x_t in zip(self.cell.project(x).unbind(0), self.rule.project(x).unbind(0), x.unbind(0), strict=True):
            state, decision = self.step(a, e, x_t, state, constants)
            y.append(state[0])
            if decision.u is not None:
                u.append(decision.u)
            if decision.likelihood is not None:
                likelihoods.append(decision.likelihood)
        if not u:
            return torch.stack(y), state, Trace(None, x.new_zeros(()))
        decisions = torch.stack(u)
        budget = self.rule.budget(decisions.to(x.dtype), torch.stack(likelihoods) if likelihoods else None)
        return torch.stack(y), state, Trace(decisions.detach().expand(-1, -1, self.cell.hidden_size), budget)

    def macs(self) -> int:
        """Multiply-adds of a step, nothing skipped."""
        return sum(self.cell.macs()) + self.rule.macs()
