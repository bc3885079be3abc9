# SPDX-License-Identifier: Apache-2.0
"""Rules that learn nothing: neurons change at random, or by the clock."""

import torch
from torch import Tensor

from edgernn.cells.base import State
from edgernn.errors import UsageError
from edgernn.rules.base import Decision, UpdateRule

# the prime M is such that k -> k^5 mod M is one to one; products of two numbers below it fit 64 bits
_M, _C = 2**31 - 1, 12345


class Random(UpdateRule):
    """Each neuron changes at each step with the same probability, in training and after it.

    k_{t,j} = g(g(7919 t + 104729 j + 15485863 seed mod M))      g(k) = (k^5 + 12345) mod M,  M = 2^31 - 1
    u_{t,j} = 1 where k_{t,j} < M rate, else 0

    The numbers depend on the step t (the memory rule_t), the neuron j and the seed alone. In training every sequence
    starts from a t of its own, drawn below 2^20, so that patterns do not repeat; after it t counts from 0, so that
    every run and every runtime sees the same one. rate in [0, 1]: of updates.
    Source: the baseline "Random Updates" of Hartvigsen et al., "Learning to Selectively Update State Neurons in
    Recurrent Networks", CIKM 2020, section 4.1, which does not say how the numbers are drawn.
    """

    name = "random"
    prefix = "Random"
    paper = "Hartvigsen et al. 2020, section 4.1"
    memory = {"rule_t": 0.0}  # noqa: RUF012

    def __init__(self, input_size: int, hidden_size: int, rate: float = 0.5, seed: int = 0) -> None:
        super().__init__(input_size, hidden_size)
        if not 0 <= rate <= 1:
            raise UsageError(f"rate: expected between 0 and 1, got {rate}")
        self.rate, self.seed = rate, seed

    def decide(self, e: Tensor, state: State, memory: State) -> Decision:
        (t,) = memory
        neurons = torch.arange(self.hidden_size, device=t.device) * 104729 + self.seed * 15485863
        k = (t.to(torch.int64) * 7919 + neurons) % _M
        for _ in range(2):
            square = k * k % _M
            k = (square * square % _M * k + _C) % _M
        return Decision(k < int(self.rate * _M))

    def initial_memory(self, batch: int, like: Tensor) -> State:
        if not self.training:
            return super().initial_memory(batch, like)
        return (torch.randint(0, 2**20, (batch, 1), device=like.device).to(like.dtype),)

    def remember(self, u: Tensor | None, state: State, memory: State) -> State:
        return (memory[0] + 1,)

    def force(self, rate: float) -> None:
        self.rate = rate


class Clockwork(UpdateRule):
    """Groups of neurons change at fixed periods 1, 2, 4, ..., and read from themselves and slower ones.

    u_{t,j} = 1 where t mod T_j = 0, else 0        T_j = 2^⌊j·groups/H⌋, t from 0
    R_{i,j} = 0 where T_j < T_i                    in every gate

    The memory rule_t counts the steps. groups: how many periods. R of a gate that feeds `mid` stays whole, as does V.
    Source: Koutník et al., "A Clockwork RNN", ICML 2014, https://arxiv.org/abs/1402.3511
    """

    name = "clockwork"
    prefix = "Clockwork"
    paper = "Koutník et al. 2014, arXiv:1402.3511"
    memory = {"rule_t": 0.0}  # noqa: RUF012

    periods: Tensor

    def __init__(self, input_size: int, hidden_size: int, groups: int = 5) -> None:
        super().__init__(input_size, hidden_size)
        if not 1 <= groups <= 20:
            raise UsageError(f"groups: expected between 1 and 20, got {groups}")
        exponents = torch.arange(hidden_size) * groups // hidden_size
        self.register_buffer("periods", 2.0**exponents, persistent=False)

    def decide(self, e: Tensor, state: State, memory: State) -> Decision:
        (t,) = memory
        return Decision(torch.fmod(t, self.periods) == 0)

    def remember(self, u: Tensor | None, state: State, memory: State) -> State:
        return (memory[0] + 1,)

    def recurrent_mask(self) -> Tensor:
        return (self.periods[None, :] >= self.periods[:, None]).to(self.periods.dtype)
