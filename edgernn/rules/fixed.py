# SPDX-License-Identifier: Apache-2.0
"""Rules without learned parameters: neurons change at random or at fixed periods."""

from typing import Any

import torch
from torch import Tensor

from edgernn.cells.base import Cell, State
from edgernn.errors import UsageError
from edgernn.rules.decision import Rates
from edgernn.rules.kinds.timed import Timed

# M is a prime for which k -> k^5 mod M is one-to-one; products of two numbers below M fit into 64 bits
_M, _C = 2**31 - 1, 12345
# limit of seeds: they are stored as float32, which is exact for whole numbers below it
_SEEDS = 2**24


class Random(Timed):
    """Random updates: each neuron changes at each step with the same probability, in training and inference.

    k_{t,j} = g(g(7919 t + 104729 j + 15485863 seed mod M))      g(k) = (k^5 + 12345) mod M,  M = 2^31 - 1
    u_{t,j} = 1 where k_{t,j} < M·rate, else 0

    The mask depends only on the step t (the rule's state rule_t), the neuron j and the seed. In training every sequence
    of a batch starts from a different t, so that their masks differ. The B start values of t are consecutive integers
    in random order; the smallest is a random integer below 2^20. In inference t counts from 0, so that the mask is the
    same for every sequence and every runtime.
    Options: rate is the share of updates, in [0, 1]. seed is below 2^24; by default it is the seed of the training.
    Constants rule_rate and rule_seed (1,); k and M·rate are compared in the dtype of the state.
    Source: the baseline "Random Updates" of Hartvigsen et al., "Learning to Selectively Update State Neurons in
    Recurrent Networks", CIKM 2020, section 4.1, which does not say how the numbers are drawn.
    """

    name = "random"
    paper = "Hartvigsen et al. 2020, section 4.1"

    rule_rate: Tensor
    rule_seed: Tensor

    def __init__(self, input_size: int, hidden_size: int, rate: float = 0.5, seed: int = 0) -> None:
        super().__init__(input_size, hidden_size)
        if not 0 <= rate <= 1:
            raise UsageError(f"rate: expected between 0 and 1, got {rate}")
        if not 0 <= seed < _SEEDS:
            raise UsageError(f"seed: expected a whole number from 0 to {_SEEDS - 1}, got {seed}")
        self.register_constant("rule_rate", [float(rate)])
        self.register_constant("rule_seed", [float(seed)])

    @classmethod
    def training_options(cls, seed: int, *, steered: bool) -> dict[str, Any]:
        return {"seed": seed % _SEEDS}

    def share(self, t: Tensor) -> Tensor:
        neurons = torch.arange(self.hidden_size, device=t.device) * 104729 + self.rule_seed.to(torch.int64) * 15485863
        k = (t.to(torch.int64) * 7919 + neurons) % _M
        for _ in range(2):
            square = k * k % _M
            k = (square * square % _M * k + _C) % _M
        return k.to(t.dtype) < self.rule_rate * _M

    def initial_memory(self, batch: int, like: Tensor) -> State:
        if not self.training:
            return super().initial_memory(batch, like)
        first = torch.randint(0, 2**20, (), device=like.device)
        return ((first + torch.randperm(batch, device=like.device)).unsqueeze(1).to(like.dtype),)

    def force(self, rate: float) -> None:
        self.rule_rate.fill_(rate)


class Clockwork(Timed):
    """Clockwork updates: groups of neurons change at periods 1, 2, 4, ..., and read only themselves and slower groups.

    u_{t,j} = 1 where t mod T_j = 0, else 0        T_j = 2^⌊j·groups/H⌋, t from 0
    R_{i,j} = 0 where T_j < T_i                    in every gate, and C likewise

    The rule's state rule_t counts the steps. The periods T_j are the constant rule_periods (H,).
    Options: groups is the number of periods.
    In cells with an intermediate vector m (`Cell.mid`), V and the part of R from which m is computed are not masked.
    Source: Koutník et al., "A Clockwork RNN", ICML 2014, https://arxiv.org/abs/1402.3511
    """

    name = "clockwork"
    paper = "Koutník et al. 2014, arXiv:1402.3511"

    rule_periods: Tensor

    def __init__(self, input_size: int, hidden_size: int, groups: int = 5) -> None:
        super().__init__(input_size, hidden_size)
        if not 1 <= groups <= 20:
            raise UsageError(f"groups: expected between 1 and 20, got {groups}")
        self.exponents = self._exponents(groups)
        self.register_constant("rule_periods", [2.0**exponent for exponent in self.exponents])

    def _exponents(self, groups: int) -> list[int]:
        return [j * groups // self.hidden_size for j in range(self.hidden_size)]

    def share(self, t: Tensor) -> Tensor:
        return torch.fmod(t, self.rule_periods) == 0

    def recurrent_mask(self) -> Tensor:
        return (self.rule_periods[None, :] >= self.rule_periods[:, None]).to(self.rule_periods.dtype)

    def executed_macs(self, cell: Cell, rates: Rates) -> float:
        # the inputs and the period of each neuron are fixed, so the rates are not needed
        mid, _ = cell.macs()
        rows = 0.0
        for exponent in self.exponents:
            slower = self.hidden_size - self.exponents.index(exponent)
            share = 1.0 if cell.couples else 0.5**exponent
            rows += share * cell.row_macs(self.input_size, slower, cell.mid_size)
        return mid + rows

    def force(self, rate: float) -> None:
        if rate == 0:
            raise UsageError(
                f"skip: expected below 1 with the rule {self.name}, which updates its first group at every step, got 1"
            )
        # search the number of groups; with equal sizes the share of updates is (2 - 2^(1 - groups)) / groups
        choices = [self._exponents(groups) for groups in range(1, 21)]
        self.exponents = min(
            choices, key=lambda exponents: abs(sum(0.5**exponent for exponent in exponents) / self.hidden_size - rate)
        )
        self.rule_periods.copy_(torch.tensor([2.0**exponent for exponent in self.exponents]))
