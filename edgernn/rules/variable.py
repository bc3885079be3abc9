# SPDX-License-Identifier: Apache-2.0
"""The learned rule of the variable computation RNN: how many neurons change, always the first ones."""

import math

import torch
from torch import Tensor, nn

from edgernn.cells.base import Cell, State
from edgernn.errors import UsageError
from edgernn.rules.base import Decision, Kind, UpdateRule


class Variable(UpdateRule):
    """One number a step says what share of the neurons changes; they are the first ones, and read the first inputs.

    m_t = σ(w_h · h_{t-1} + w_x · x_t + b)                               the share, one number
    e_i = Thres_ε(σ(λ (m_t H - i)))    i = 1 … H                         ẽ_j likewise, with I for H, j = 1 … I
    u_t = e_t, and the cell sees ẽ_t ⊙ x_t and e_t ⊙ state_{t-1}

    Thres_ε makes 0 of what is below ε and 1 of what is above 1 - ε. Both hold where |λ (m H - i)| > ln(1/ε - 1), and
    so they are decided: e falls with i, the first n neurons have e > 0 and count as updated, all others keep their
    values to the bit. Snapped values pass no gradient; all else is differentiable as it is.
    Shapes: rule_h = w_h (H,), rule_x = w_x (I,), rule_b = b (1,), all 0 at the start, which makes m 1/2; the constants
    rule_sharpness = λ (1,) and rule_epsilon = ε (1,). About 2 ln(1/ε) / λ neurons are between 0 and 1: 230 with the
    initial values, so that a layer with H near or below that skips little until λ is raised by the option `sharpness`.
    The budget is the mean over B of Σ_t |m_t - target|; its weight is that of the budget in training.
    Source: Jernite et al., "Variable Computation in Recurrent Neural Networks", ICLR 2017,
    https://arxiv.org/abs/1611.06188
    """

    name = "variable"
    paper = "Jernite et al. 2016, arXiv:1611.06188"
    kind = Kind.NEURON
    masks = True

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
        self.register_buffer("rule_sharpness", torch.tensor([float(sharpness)]), persistent=False)
        self.register_buffer("rule_epsilon", torch.tensor([float(epsilon)]), persistent=False)

    def project(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.rule_x.unsqueeze(0), self.rule_b)

    def decide(self, e: Tensor, state: State, memory: State) -> Decision:
        m = self._share(e, state)
        u = self._mask(self._depth(m, self.rule_h))
        return Decision(u, m, (self._mask(self._depth(m, self.rule_x)), u))

    def margin(self, e: Tensor, state: State, memory: State) -> Tensor:
        # as a distance of m, which is a sigmoid and has one rounding error whatever λ and H are
        m = self._share(e, state)
        found = []
        for weight in (self.rule_h, self.rule_x):
            distance = (self._depth(m, weight).abs() - self._limit()).abs()
            found.append(distance.amin(-1) / (self.rule_sharpness * len(weight)))
        return torch.minimum(*found)

    def budget(self, decisions: Tensor, likelihoods: Tensor | None) -> Tensor:
        assert likelihoods is not None
        return super().budget((likelihoods - self.target).abs(), None)

    def executed_macs(self, cell: Cell, update_rate: float, busy_rate: float | None = None) -> float:
        # the first rows alone (all, if they are coupled), and of each of them the first columns of x and of the states;
        # m is as long as the prefix if it vanishes with the states, and else read in full
        inputs, hidden, middle = self.input_size, self.hidden_size, cell.mid_size
        mid, _ = cell.macs()
        busy = self._busy(update_rate, busy_rate)
        changed = busy if cell.couples else update_rate
        shrinks = cell.mid_vanishes and not cell.couples

        def read(nothing: int, everything: int) -> float:
            return nothing + update_rate * (everything - nothing)

        row = read(cell.row_macs(0, 0, 0 if shrinks else middle), cell.row_macs(inputs, hidden, middle))
        mid_row = read(cell.mid_macs(0, 0), cell.mid_macs(inputs, hidden))
        mid_rows = middle * (update_rate if shrinks else busy)
        # what of `mid` belongs to no row has as many columns as a state
        rest = update_rate * (mid - middle * cell.mid_macs(inputs, hidden))
        return changed * hidden * row + mid_rows * mid_row + rest + self.macs()

    @torch.no_grad()
    def force(self, rate: float) -> None:
        # m is the middle between two neurons, and the step from 1 to 0 fits between them. π, because no ratio of H and
        # I then puts an input exactly at a threshold
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

    def _share(self, e: Tensor, state: State) -> Tensor:
        """M (B, 1)."""
        return torch.sigmoid(e + (state[0] * self.rule_h).sum(-1, keepdim=True))

    def _depth(self, m: Tensor, weight: Tensor) -> Tensor:
        """λ (m n - i) for i = 1 … n, the length of a weight: (B, n)."""
        # counted off the weight's values: one traced step serves layers of any n
        places = (weight == weight).cumsum(0).to(m.dtype)
        return self.rule_sharpness * (m * places[-1:] - places)

    def _limit(self) -> Tensor:
        """Where σ is 1 - ε. To compare with it is exact to a rounding, to compare σ with ε is not."""
        return torch.log(1 / self.rule_epsilon - 1)

    def _mask(self, depth: Tensor) -> Tensor:
        """Thres_ε(σ(depth))."""
        snapped = (depth > 0).to(depth.dtype)
        return torch.where(depth.abs() > self._limit(), snapped, torch.sigmoid(depth))
