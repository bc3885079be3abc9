# SPDX-License-Identifier: Apache-2.0
"""The learned update rule of Skip RNN, which updates all neurons or none."""

import math

import torch
from torch import Tensor, nn

from edgernn.cells.base import Cell, State
from edgernn.rules.decision import Memory, Rates
from edgernn.rules.kinds.scored import PerSample


class Skip(PerSample):
    """Skipped steps: the whole state changes or none of it; a pressure to change grows at each skipped step.

    u_t = 1 where ũ_t >= 1/2, else 0
    Δ_t = σ(w · s_t + b)                                   s_t: c after the step if the cell has one, else h
    ũ_{t+1} = u_t Δ_t + (1 - u_t) (ũ_t + min(Δ_t, 1 - ũ_t))

    Shapes: s (B, H), rule_w = w (H,), rule_b = b (1,); the rule's state rule_pressure = ũ (B, 1), initially 1, so that
    the first step is an update. Δ is constant while steps are skipped, so that the number of skipped steps is known in
    advance.
    If the cell has several states, s_t is the second one, usually called c. b starts at 1; the cell's initial state is
    learned and starts as N(0, 1). The penalty on updates is the mean over B of Σ_t u_t; the loss contains it times λ
    (setting lambda). The gradient of u_t is that of ũ_t (straight-through).
    In the authors' code, the biases of the GRU's gates and of the LSTM's forget gate start at 1; here they start like
    the cell's other weights. With several layers, the top layer decides for all layers there; here each layer decides
    for itself.
    Source: Campos et al., "Skip RNN: Learning to Skip State Updates in Recurrent Neural Networks", ICLR 2018,
    https://arxiv.org/abs/1708.06834
    """

    name = "skip"
    paper = "Campos et al. 2018, arXiv:1708.06834"
    # a bias of 1, so that few steps are skipped at first
    keeps_start = True
    inclusive = True
    memory = {"rule_pressure": Memory(1)}  # noqa: RUF012
    learns_start = True
    skips_zeros = True

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size)
        bound = 1 / math.sqrt(hidden_size)
        self.rule_w = nn.Parameter(torch.empty(hidden_size).uniform_(-bound, bound))
        self.rule_b = nn.Parameter(torch.ones(1))

    def score(self, e: Tensor, state: State, memory: State) -> Tensor:
        return memory[0] - 0.5

    def evidence(self, state: State) -> Tensor:
        return super().evidence(state) * self.rule_w

    def drive(self, evidence: Tensor) -> Tensor:
        return torch.sigmoid(evidence + self.rule_b)

    def advance(self, u: Tensor, score: Tensor, memory: State, drive: Tensor) -> State:
        (pressure,) = memory
        return (u * drive + (1 - u) * (pressure + torch.minimum(drive, 1 - pressure)),)

    @torch.no_grad()
    def force(self, rate: float) -> None:
        # with a constant Δ the pressure reaches 1/2 after `steps` steps
        steps = max(1, round(1 / rate)) if rate > 0 else 2**20
        self.rule_w.zero_()
        self.rule_b.fill_(math.log(1.001 * 0.5 / steps / (1 - 1.001 * 0.5 / steps)))

    def executed_macs(self, cell: Cell, rates: Rates) -> float:
        # nothing is computed between updates, as Δ is constant there
        return rates.updates * (sum(cell.macs()) - cell.skipped_zeros() + self.macs())

    def macs(self) -> int:
        return self.hidden_size

    def flops_paper(self) -> float:
        return 2 * self.hidden_size - 1
