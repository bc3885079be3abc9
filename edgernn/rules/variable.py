# SPDX-License-Identifier: Apache-2.0
"""Update rule of the variable computation RNN: each step updates the first n neurons; a learned function computes n."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from edgernn.cells.base import Cell, State
from edgernn.errors import UsageError
from edgernn.rules.decision import Decision, Rates
from edgernn.rules.kinds.scored import PerNeuron


class Variable(PerNeuron):
    """Variable computation: a step updates only the first neurons, a learned share m, and reads only this share of x.

    m_t = σ(w_h · h_{t-1} + w_x · x_t + b)                               the share, one number, learned
    e_i = Thres_ε(σ(λ (m_t H - i)))    i = 1 … H                         ẽ_j likewise, with I for H, j = 1 … I
    u_t = e_t, and the cell reads ẽ_t ⊙ x_t and e_t ⊙ state_{t-1}

    Thres_ε rounds values below ε to 0 and values above 1 - ε to 1. The code rounds where |λ (m H - i)| > ln(1/ε - 1),
    which is equivalent. e decreases with i: the first n neurons have e > 0 and count as updated. All others keep their
    values bit for bit. Rounded values pass no gradient; all other operations are differentiable.
    Shapes: rule_h = w_h (H,), rule_x = w_x (I,), rule_b = b (1,), all initially 0, so that m is 1/2; the constants
    rule_sharpness = λ (1,) and rule_epsilon = ε (1,). About 2 ln(1/ε) / λ neurons, 230 by default, have an e
    strictly between 0 and 1. A layer with hardly more neurons than that skips little unless the option `sharpness`
    raises λ. The penalty on updates is the mean over B of Σ_t |m_t - target|; the loss contains it times the setting
    lambda, which is not the λ above. Trainings with the setting skip have target 0 by default, so that the penalty
    counts updates.
    Source: Jernite et al., "Variable Computation in Recurrent Neural Networks", ICLR 2017,
    https://arxiv.org/abs/1611.06188
    """

    name = "variable"
    paper = "Jernite et al. 2016, arXiv:1611.06188"

    rule_sharpness: Tensor
    rule_epsilon: Tensor

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        sharpness: float = 0.1,
        epsilon: float = 1e-5,
        target: float = 0.35,
    ) -> None:
        super().__init__(input_size, hidden_size)
        if not 0 < sharpness < math.inf:
            raise UsageError(f"sharpness: expected above 0, got {sharpness}")
        if not 0 < epsilon <= 0.5:
            raise UsageError(f"epsilon: expected above 0 and at most 0.5, got {epsilon}")
        if not 0 <= target <= 1:
            raise UsageError(f"target: expected between 0 and 1, got {target}")
        self.target = target
        self.rule_h = nn.Parameter(torch.zeros(hidden_size))
        self.rule_x = nn.Parameter(torch.zeros(input_size))
        self.rule_b = nn.Parameter(torch.zeros(1))
        self.register_constant("rule_sharpness", [float(sharpness)])
        self.register_constant("rule_epsilon", [float(epsilon)])

    @classmethod
    def training_options(cls, seed: int, *, steered: bool) -> dict[str, Any]:
        # the budget then counts updates, so that any share can be reached
        return {"target": 0.0} if steered else {}

    def project(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.rule_x.unsqueeze(0), self.rule_b)

    def decide(self, e: Tensor, state: State, memory: State) -> Decision:
        m = self._active_share(e, state)
        u = self._mask(self._logits(m, self.rule_h))
        return Decision(u, m, (self._mask(self._logits(m, self.rule_x)), u))

    def margin(self, e: Tensor, state: State, memory: State) -> Tensor:
        # a distance in m, whose rounding error does not depend on λ and H
        m = self._active_share(e, state)
        margins = []
        for weight in (self.rule_h, self.rule_x):
            distance = (self._logits(m, weight).abs() - self._limit()).abs()
            margins.append(distance.amin(-1) / (self.rule_sharpness * len(weight)))
        return torch.minimum(*margins)

    def budget(self, decisions: Tensor, likelihoods: Tensor | None, weights: Tensor | None = None) -> Tensor:
        assert likelihoods is not None
        return super().budget((likelihoods - self.target).abs(), None, weights)

    def executed_macs(self, cell: Cell, rates: Rates) -> float:
        # only the first rows (all rows of a coupled cell), and in each row the first columns of x and of the states;
        # m is truncated too if it vanishes with the states, and is read in full otherwise
        inputs, hidden, middle = self.input_size, self.hidden_size, cell.mid_size
        mid, _ = cell.macs()
        update_rate, busy = rates.updates, rates.busy_steps
        changed = busy if cell.couples else update_rate
        shrinks = cell.mid_vanishes and not cell.couples

        def interpolate(least: int, most: int) -> float:
            return least + update_rate * (most - least)

        row = interpolate(cell.row_macs(0, 0, 0 if shrinks else middle), cell.row_macs(inputs, hidden, middle))
        mid_row = interpolate(cell.mid_macs(0, 0), cell.mid_macs(inputs, hidden))
        mid_rows = middle * (update_rate if shrinks else busy)
        # product with Q of low-rank weights, over the columns of the state
        factor = update_rate * (mid - middle * cell.mid_macs(inputs, hidden))
        return changed * hidden * row + mid_rows * mid_row + factor + self.macs()

    @torch.no_grad()
    def force(self, rate: float) -> None:
        # m lies between two neurons, and e falls from 1 to 0 between them; the factor π keeps inputs off the thresholds
        # for any ratio of H and I
        n = round(rate * self.hidden_size)
        share = torch.tensor((n + 0.5) / self.hidden_size, dtype=torch.float64)
        self.rule_sharpness.copy_(math.pi * self._limit().clamp(min=1))
        self.rule_h.zero_()
        self.rule_x.zero_()
        self.rule_b.fill_(float(torch.logit(share, eps=1e-12)))

    def macs(self) -> int:
        return self.hidden_size + self.input_size

    def flops_paper(self) -> float:
        return 2 * (self.hidden_size + self.input_size) - 1

    def _active_share(self, e: Tensor, state: State) -> Tensor:
        """Compute the share m (B, 1) of neurons that change at a step; e (B, 1) is one step of `project(x)`."""
        return torch.sigmoid(e + (state[0] * self.rule_h).sum(-1, keepdim=True))

    def _logits(self, m: Tensor, weight: Tensor) -> Tensor:
        """Compute the logits λ (m n - i) of a mask (B, n), for i = 1 … n, where n is the length of `weight`."""
        # indices from the weight itself, so that one traced step serves layers of any n
        indices = (weight == weight).cumsum(0).to(m.dtype)
        return self.rule_sharpness * (m * indices[-1:] - indices)

    def _limit(self) -> Tensor:
        """Return the logit (1,) at which σ is 1 - ε. Comparing logits is more exact than comparing values of σ."""
        return torch.log(1 / self.rule_epsilon - 1)

    def _mask(self, logits: Tensor) -> Tensor:
        """Compute the mask Thres_ε(σ(logits)) with values in [0, 1], of the shape of `logits`."""
        rounded = (logits > 0).to(logits.dtype)
        return torch.where(logits.abs() > self._limit(), rounded, torch.sigmoid(logits))
