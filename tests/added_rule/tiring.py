# SPDX-License-Identifier: Apache-2.0
"""A rule with one-value-per-neuron memories, whose equations read every input that the interface offers."""

import math

import torch
from torch import Tensor, nn

from edgernn.cells.base import State
from edgernn.rules import Memory, PerNeuron


class Tiring(PerNeuron):
    """A neuron tires when it changes, and its state and score press it to change.

        v_t = U x_t + b + d ⊙ h_{t-1} - m_{t-1} + κ r_{t-1}
        u_t = 1 where v_t >= 0, else 0
        m_t = σ(g) ⊙ m_{t-1} + u_t
        r_t = (1 - u_t) ⊙ (r_{t-1} / 2 + v_t / 4) + tanh(κ d ⊙ s_t)

    Shapes: rule_W = U (H, I), rule_d = d, rule_b = b, rule_g = g (H,), rule_k = κ (1,); s (B, H) is the state after the
    step, c if the cell has one. Memories: rule_m = m, initially 0.5, and rule_r = r, initially 0, (B, H) each.
    """

    name = "tiring"
    inclusive = True
    counts_likelihoods = True
    memory = {"rule_m": Memory(0.5, "H"), "rule_r": Memory(0, "H")}  # noqa: RUF012

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size)
        bound = 1 / math.sqrt(input_size + hidden_size)
        self.rule_W = nn.Parameter(torch.empty(hidden_size, input_size).uniform_(-bound, bound))
        self.rule_d = nn.Parameter(torch.empty(hidden_size).uniform_(-bound, bound))
        self.rule_b = nn.Parameter(torch.empty(hidden_size).uniform_(0, 1))
        self.rule_g = nn.Parameter(torch.empty(hidden_size).uniform_(-1, 1))
        self.rule_k = nn.Parameter(torch.full((1,), 0.3))

    def project(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.rule_W, self.rule_b)

    def score(self, e: Tensor, state: State, memory: State) -> Tensor:
        m, r = memory
        return e + self.rule_d * state[0] - m + self.rule_k * r

    def likelihood(self, score: Tensor, slope: float) -> Tensor:
        return ((slope * score + 1) / 2).clamp(0, 1)

    def evidence(self, state: State) -> Tensor:
        return self.rule_d * super().evidence(state)

    def drive(self, evidence: Tensor) -> Tensor:
        return torch.tanh(self.rule_k * evidence)

    def advance(self, u: Tensor, score: Tensor, memory: State, drive: Tensor) -> State:
        m, r = memory
        return torch.sigmoid(self.rule_g) * m + u, (1 - u) * (0.5 * r + 0.25 * score) + drive

    @torch.no_grad()
    def force(self, rate: float) -> None:
        # the cost of U x dominates the rest of the score
        nn.init.normal_(self.rule_W)
        self.rule_W.div_(self.rule_W.norm(dim=1, keepdim=True)).mul_(1000)
        self.rule_d.zero_()
        self.rule_k.zero_()
        self.rule_b.fill_(float(torch.special.ndtri(torch.tensor(rate)).clamp(-10, 10)) * 1000)

    def macs(self) -> int:
        return self.hidden_size * self.input_size + self.hidden_size
