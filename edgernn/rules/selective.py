# SPDX-License-Identifier: Apache-2.0
"""The learned update rule of SA-RNN, which selects single neurons."""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from edgernn.cells.base import State
from edgernn.errors import UsageError
from edgernn.rules.kinds.scored import PerNeuron

BUDGETS = ("decisions", "likelihoods")


class Selective(PerNeuron):
    """Selective updates: each neuron, or group of neurons, decides by a learned rule whether to update.

    v_t = U x_t + b + d ⊙ h_{t-1}
    ũ_t = clamp((α v_t + 1) / 2, 0, 1)         the update likelihood
    u_t = 1 where ũ_t > 1/2, else 0            that is, where v_t > 0

    Shapes: x (B, I), h (B, H), rule_W = U (H, I), rule_d = d (H,), rule_b = b (H,).
    A neuron decides from the input and from its own state. With u_t = 0 it keeps its state.
    The slope α is min(5, 1 + 0.04·epoch) in training; decisions do not depend on it. The gradient of u_t is that of
    ũ_t (straight-through). The paper omits b from its equations; its code has it.
    Options: budget selects the penalty on updates, which the loss contains times λ (setting lambda). "decisions"
    averages u_t over B and H at each step, then sums over the steps, as the authors' code does; "likelihoods" has ũ_t
    in place of u_t, as in the paper's eq 9. group_size=G lets each G neighbouring neurons share one decision: U, d and
    b have ⌈H/G⌉ rows, and h_{t-1} is the mean over the group. The paper has G = 1. detach_state=true detaches h_{t-1}
    in v_t: no gradient flows from a decision to the state. Without it, as in the paper, a neuron that keeps its state
    multiplies its gradient at each step by 1 + α d (h̃_t - h_{t-1}) / 2, if 0 < ũ_t < 1. h̃_t is the state that the cell
    computes. Where the factor stays above 1 for hundreds of steps, the gradient overflows.
    Source: Hartvigsen et al., "Learning to Selectively Update State Neurons in Recurrent Networks", CIKM 2020,
    eqs 5-9, https://doi.org/10.1145/3340531.3412018
    """

    name = "selective"
    paper = "Hartvigsen et al. 2020"
    has_groups = True

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        budget: Literal["decisions", "likelihoods"] = "decisions",
        group_size: int = 1,
        detach_state: bool = False,
    ) -> None:
        super().__init__(input_size, hidden_size)
        if not 1 <= group_size <= hidden_size:
            raise UsageError(f"group_size: expected from 1 to {hidden_size}, the number of neurons, got {group_size}")
        if budget not in BUDGETS:
            raise UsageError(f"budget: expected one of {', '.join(BUDGETS)}, got {budget!r}")
        self.counts_likelihoods = budget == "likelihoods"
        self.group_size, self.detaches_state = group_size, detach_state
        self.rule_W = nn.Parameter(torch.empty(self.groups, input_size))
        self.rule_d = nn.Parameter(torch.empty(self.groups))
        self.rule_b = nn.Parameter(torch.empty(self.groups))
        bound = 1 / math.sqrt(input_size + hidden_size)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def project(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.rule_W, self.rule_b)

    def score(self, e: Tensor, state: State, memory: State) -> Tensor:
        return e + self.rule_d * state[0]

    def likelihood(self, score: Tensor, slope: float) -> Tensor:
        return ((slope * score + 1) / 2).clamp(0, 1)

    def remedy(self) -> str | None:
        return None if self.detaches_state else "set detach_state=true"

    def anneal(self, epoch: int) -> None:
        self.slope = min(5.0, 1.0 + 0.04 * epoch)

    @torch.no_grad()
    def force(self, rate: float) -> None:
        # v = w·x + b with |w| = 1 is N(b, 1) on standard normal input, so that neurons change at different steps
        nn.init.normal_(self.rule_W)
        self.rule_W.div_(self.rule_W.norm(dim=1, keepdim=True))
        self.rule_d.zero_()
        score = math.sqrt(2) * float(torch.erfinv(torch.tensor(2 * rate - 1, dtype=torch.float64)))
        # finite, as an exported weight must be
        self.rule_b.fill_(max(-1e30, min(score, 1e30)))

    def macs(self) -> int:
        return self.groups * self.input_size + self.groups + self._additions

    def flops_paper(self) -> float:
        # one row of I inputs per decision, and two operations for the diagonal d
        return self.groups * (2 * self.input_size - 1) + 2 * self.groups + self._additions

    @property
    def _additions(self) -> int:
        """Number of additions per step for the means of h over groups of neurons; 0 if each neuron decides alone."""
        return self.hidden_size if self.group_size > 1 else 0
