# SPDX-License-Identifier: Apache-2.0
"""The rule that updates all neurons at a fixed period, and keeps the state between."""

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor

from edgernn.cells.base import Cell, State
from edgernn.errors import UsageError
from edgernn.rules.decision import Memory, Rates
from edgernn.rules.kinds.scored import PerSample

INPUTS = ("mean", "last")
# limit of periods: they are stored as float32, which is exact for whole numbers below it
_PERIODS = 2**24


class Periodic(PerSample):
    """Periodic updates: the whole state changes at every n-th step, on the mean of the last n inputs, and else is kept.

    u_t = 1 where (t + 1) mod n = 0, else 0                t from 0
    x̄_t = (x_{t-n+1} + … + x_t) / n                        the cell reads x̄_t in place of x_t

    The baseline of rules that learn when to update: the same share of the steps, and no decision. All work of the cell
    is left out at n - 1 of n steps; the mean costs I additions at each. In training, a layer runs the steps that update
    alone, if its sequences share the period's position.
    Options: period is n; input=last lets the cell read x_t in place of the mean.
    Constants: rule_period = n (1,), and rule_pool = n (1,), or 0 for input=last. The rule's states are rule_t (B, 1),
    the number of steps since the last update, and rule_sum (B, I), the sum of the inputs in these steps, or 0. Steps at
    the end of a sequence that do not fill a period change nothing. A cell that reads x_{t-1} reads that input itself.
    """

    name = "periodic"
    memory: ClassVar[Mapping[str, Memory]] = {"rule_t": Memory(0), "rule_sum": Memory(0, "I")}
    pool = "rule_pool"
    skips_zeros = True

    rule_period: Tensor
    rule_pool: Tensor

    def __init__(
        self, input_size: int, hidden_size: int, period: int = 4, input: Literal["mean", "last"] = "mean"
    ) -> None:
        super().__init__(input_size, hidden_size)
        if not 1 <= period < _PERIODS:
            raise UsageError(f"period: expected a whole number from 1 to {_PERIODS - 1}, got {period}")
        if input not in INPUTS:
            raise UsageError(f"input: expected one of {', '.join(INPUTS)}, got {input!r}")
        self.means = input == "mean"
        self.register_constant("rule_period", [float(period)])
        self.register_constant("rule_pool", [float(period) if self.means else 0.0])

    @classmethod
    def steerable(cls) -> bool:
        return False

    def score(self, e: Tensor, state: State, memory: State) -> Tensor:
        # whole numbers and a half, so that no rounding changes the sign
        return memory[0] + 1.5 - self.rule_period

    def advance(self, u: Tensor, score: Tensor, memory: State, drive: Tensor) -> State:
        return ((1 - u) * (memory[0] + 1),)

    def updates(self, memory: State, steps: int) -> range | None:
        waited = memory[0].detach()
        if (
            waited.is_meta
            or not waited.numel()
            or bool((waited != waited[0]).any())
            or not float(waited[0]).is_integer()
        ):
            return None
        return range(max(0, int(self.rule_period) - 1 - int(waited[0])), steps, int(self.rule_period))

    def read(self, x: Tensor, memory: State, updates: range) -> tuple[Tensor, State]:
        waited, unread = memory
        first, end = (updates[0], updates[-1] + 1) if updates else (len(x), 0)
        waited = torch.full_like(waited, len(x) - end) if updates else waited + len(x)
        if not self.means:
            return x[updates.start :: updates.step], (waited, unread)
        head = unread + x[: first + 1].sum(0)
        if not updates:
            return x[:0], (waited, head)
        periods = x[first + 1 : end].reshape(len(updates) - 1, updates.step, *x.shape[1:]).sum(1)
        return torch.cat([head[None], periods]) / self.rule_pool, (waited, x[end:].sum(0))

    @torch.no_grad()
    def force(self, rate: float) -> None:
        period = max(1, round(1 / rate)) if rate > 0 else 2**20
        self.rule_period.fill_(period)
        self.rule_pool.fill_(period if self.means else 0)

    def executed_macs(self, cell: Cell, rates: Rates) -> float:
        return rates.updates * (sum(cell.macs()) - cell.skipped_zeros()) + self.macs()

    def macs(self) -> int:
        return self.input_size if self.means else 0

    def flops_paper(self) -> float:
        return self.macs()
