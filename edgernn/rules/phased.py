# SPDX-License-Identifier: Apache-2.0
"""The update rule of Phased LSTM, in which each neuron has its own learned period."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from edgernn.cells.base import State
from edgernn.errors import UsageError
from edgernn.rules.kinds.timed import Timed


class Phased(Timed):
    """Phased updates: each neuron is open (updated) for a share of its own period and keeps its value otherwise.

    φ_t = mod(t + s, τ) / τ                                        t from 0
    u_t = 2 φ_t / r        where φ_t < r/2
          2 - 2 φ_t / r    where r/2 <= φ_t < r
          α φ_t            else

    Shapes: rule_tau = τ (H,), rule_s = s (H,), the constant rule_open = r (1,); the rule's state rule_t = t (B, 1). mod
    has the sign of τ, so that φ is in [0, 1) for any shift s. A neuron counts as updated where u > 0.
    The leak α passes gradients to closed neurons. It acts in training only, where every neuron therefore counts as
    updated. In inference closed neurons keep their values bit for bit.
    Options: open is r, and leak is α. τ starts log-uniform in [shortest, longest], by default exp(U(1, 6)) as the
    authors recommend; s starts as U(0, τ). r is the same for all neurons and is not learned, as in the paper. The paper
    has the time stamp of each input in place of the step index t. The paper's LSTM has peepholes, and the authors' code
    starts its forget bias at 2; `phasedlstm` has the plain cell `lstm`, whose biases start like its weights.
    t is exact up to 2^24 in float32. t and s are reduced modulo τ before they are added, so that φ does not lose
    precision at late steps.
    Source: Neil et al., "Phased LSTM: Accelerating Recurrent Network Training for Long or Event-based Sequences",
    NIPS 2016, https://arxiv.org/abs/1610.09513; α in training alone as in the authors' code.
    """

    name = "phased"
    paper = "Neil et al. 2016, arXiv:1610.09513"
    # periods are positive, and those of the paper go up to hundreds of steps
    keeps_start = True
    # tighter than the default, because φ does not depend on the order of any sum
    tie = 1e-6
    # with a short open phase, u is a steep function of t
    check_options: ClassVar[Mapping[str, Any]] = {"open": 1.0}

    rule_open: Tensor

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        open: float = 0.05,
        leak: float = 1e-3,
        shortest: float = math.exp(1),
        longest: float = math.exp(6),
    ) -> None:
        super().__init__(input_size, hidden_size)
        if not 0 < open <= 1:
            raise UsageError(f"open: expected above 0 and at most 1, got {open}")
        if not 0 <= leak <= 1:
            raise UsageError(f"leak: expected between 0 and 1, got {leak}")
        if not 0 < shortest <= longest:
            raise UsageError(f"shortest, longest: expected 0 < shortest <= longest, got {shortest} and {longest}")
        self.leak = leak
        tau, shift = torch.empty(hidden_size).uniform_(math.log(shortest), math.log(longest)), torch.rand(hidden_size)
        # on meta, torch would import its compiler for arithmetic
        if not tau.is_meta:
            tau = tau.exp()
            shift = shift * tau
        self.rule_tau, self.rule_s = nn.Parameter(tau), nn.Parameter(shift)
        self.register_constant("rule_open", [float(open)])

    def share(self, t: Tensor) -> Tensor:
        phase = self._phase(t)
        rising = 2 * phase / self.rule_open
        closed = self.leak * phase if self.training else torch.zeros_like(phase)
        return torch.where(phase < self.rule_open, torch.minimum(rising, 2 - rising), closed)

    def margin(self, e: Tensor, state: State, memory: State) -> Tensor:
        # the error of φ is a few roundings of 1 for any t; a neuron opens where φ wraps from 1 to 0 and closes at r
        phase = self._phase(memory[0])
        return torch.minimum(torch.minimum(phase, 1 - phase), (phase - self.rule_open).abs()).amin(-1)

    @torch.no_grad()
    def force(self, rate: float) -> None:
        # equidistant phases, shuffled: at every step the number of open neurons is the same within one;
        # period and phases are irrational, so that no neuron opens or closes exactly at a step
        golden = (math.sqrt(5) - 1) / 2
        self.rule_open.fill_(rate)
        self.rule_tau.fill_(16 * math.pi)
        order = torch.randperm(self.hidden_size, device=self.rule_s.device)
        self.rule_s.copy_((order + golden) / self.hidden_size * self.rule_tau)

    def _phase(self, t: Tensor) -> Tensor:
        """Compute the phase φ (..., H) in [0, 1) of each neuron in its period, at the steps t (..., 1)."""
        # fmod is exact, and differs from mod by a whole period at most, so its gradient is the same
        turns = (torch.fmod(t, self.rule_tau) + torch.fmod(self.rule_s, self.rule_tau)) / self.rule_tau
        return turns - torch.floor(turns)
