# SPDX-License-Identifier: Apache-2.0
"""The oracle of the rule `tiring`, in float64 NumPy."""

import numpy as np
from numpy.typing import NDArray

from tests.oracle_rules import Always, Array, State


class Tiring(Always):
    blocks = "active"
    keeps_sums = True

    def __init__(self, p: dict[str, Array], B: int, I: int, H: int) -> None:
        super().__init__(p, B, I, H)
        self.m, self.r = np.full((B, H), 0.5), np.zeros((B, H))

    @property
    def memory(self) -> State:
        return self.m, self.r

    def decide(self, x: Array, state: State) -> tuple[NDArray[np.bool_], float]:
        p = self.p
        self.v = x @ p["rule_W"].T + p["rule_b"] + p["rule_d"] * state[0] - self.m + p["rule_k"] * self.r
        return self.v >= 0, float(np.nanmin(np.abs(self.v)))

    def after(self, u: NDArray[np.bool_], state: State) -> None:
        p, s = self.p, state[1] if len(state) > 1 else state[0]
        self.m = self.m / (1 + np.exp(-p["rule_g"])) + u
        self.r = (1 - u) * (self.r / 2 + self.v / 4) + np.tanh(p["rule_k"] * p["rule_d"] * s)

    def macs(self) -> int:
        return self.H * self.I + self.H
