# SPDX-License-Identifier: Apache-2.0
"""The update rules once more, in float64 NumPy, from the papers and not from our code. Each is a row of RULES."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
State = tuple[Array, ...]


class Always:
    """Every neuron at every step. Also what the others are told: sizes, parameters by the op's names, batch."""

    def __init__(self, p: dict[str, Array], B: int, I: int, H: int) -> None:
        self.p, self.B, self.I, self.H = p, B, I, H
        self.t = 0

    def decide(self, x: Array, state: State) -> tuple[NDArray[np.bool_], float]:
        """u (B, H), and the distance of the closest decision from its threshold."""
        return np.ones((self.B, self.H), bool), np.inf

    def after(self, u: NDArray[np.bool_], state: State) -> None:
        self.t += 1

    def thin(self, rows: Array) -> Array:
        """R of one gate (H, H) as the rule leaves it."""
        return rows

    def macs(self) -> int:
        return 0


class Selective(Always):
    def decide(self, x: Array, state: State) -> tuple[NDArray[np.bool_], float]:
        # sarnn.md section 3.2: hard sigmoid of the coordinator above one half
        v = x @ self.p["rule_W"].T + self.p["rule_b"] + self.p["rule_d"] * state[0]
        return v > 0, float(np.nanmin(np.abs(v)))

    def macs(self) -> int:
        return self.H * self.I + self.H


class Random(Always):
    """The rule's own definition, in Python's unbounded integers."""

    def decide(self, x: Array, state: State) -> tuple[NDArray[np.bool_], float]:
        u, M = [], 2**31 - 1
        for j in range(self.H):
            k = (7919 * self.t + 104729 * j + 15485863 * int(self.p["rule_seed"][0])) % M
            for _ in range(2):
                k = (k**5 + 12345) % M
            u.append(k < self.p["rule_rate"][0] * M)
        return np.broadcast_to(np.array(u), (self.B, self.H)), np.inf


class Clockwork(Always):
    groups = 5

    def _periods(self) -> NDArray[np.int64]:
        # modules of neighbouring neurons, the first the fastest
        return np.array([2 ** (j * self.groups // self.H) for j in range(self.H)])

    def decide(self, x: Array, state: State) -> tuple[NDArray[np.bool_], float]:
        return np.broadcast_to(self.t % self._periods() == 0, (self.B, self.H)), np.inf

    def thin(self, rows: Array) -> Array:
        # a neuron reads from its own module and from slower ones
        T = self._periods()
        return np.where(T[None, :] < T[:, None], 0, rows)


class Skip(Always):
    """Skip RNN's eqs 4-8 with the pressure ũ as in its section 3.1; the first step is an update."""

    def __init__(self, p: dict[str, Array], B: int, I: int, H: int) -> None:
        super().__init__(p, B, I, H)
        self.pressure = np.ones((B, 1))

    def decide(self, x: Array, state: State) -> tuple[NDArray[np.bool_], float]:
        u = np.broadcast_to(self.pressure >= 0.5, (self.B, self.H))
        return u, float(np.abs(self.pressure - 0.5).min())

    def after(self, u: NDArray[np.bool_], state: State) -> None:
        delta = 1 / (1 + np.exp(-(state[-1] @ self.p["rule_w"] + self.p["rule_b"])))[:, None]
        waited = self.pressure + np.minimum(delta, 1 - self.pressure)
        self.pressure = np.where(u[:, :1], delta, waited)

    def macs(self) -> int:
        return self.H


RULES = {"always": Always, "random": Random, "clockwork": Clockwork, "skip": Skip, "selective": Selective}
