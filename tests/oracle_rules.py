# SPDX-License-Identifier: Apache-2.0
"""The reference equations of all update rules in float64 NumPy, written from the papers; each is an entry of RULES."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Counts = NDArray[np.int64]
State = tuple[Array, ...]


class Always:
    """Every neuron changes at every step; base class of the other rules.

    p: Parameters by the names of the op's inputs. B, I, H: Batch size, input size, hidden size. blocks: Which neurons
    kernels compute if most of these change: "active" for the vectors of neurons in which any changes, "all" for all
    neurons, None for the neurons that change. keeps_sums: Kernels may keep R h of a cell's first stage between steps.
    """

    blocks: str | None = None
    keeps_sums = False

    def __init__(self, p: dict[str, Array], B: int, I: int, H: int) -> None:
        self.p, self.B, self.I, self.H = p, B, I, H
        self.t = 0

    def fit(self, row: Any) -> Any:
        """Read the cell's row of the table of oracles, and return the row that its costs under the rule follow from."""
        return row

    def decide(self, x: Array, state: State) -> tuple[NDArray[np.bool_], float] | tuple[Array, float]:
        """Return u (B, H), in [0, 1] for soft rules, and the smallest distance of a decision from its threshold."""
        return np.ones((self.B, self.H), bool), np.inf

    def after(self, u: NDArray[np.bool_], state: State) -> None:
        self.t += 1

    def see(self, x: Array, h: Array) -> None:
        """Read what the products of the step would read, before `decide`: all columns of x, and h."""

    def send(self, x: Array, state: State) -> tuple[Array, State]:
        """Return x and the states as the cell reads them."""
        return x, state

    def count(self, u: Array | NDArray[np.bool_]) -> Counts:
        """Return the number (B,) of updated neurons."""
        updated: Counts = (u > 0).sum(-1)
        return updated

    @property
    def memory(self) -> State:
        """The rule's memories, (B, size) each."""
        return ()

    def restore(self, memory: State) -> None:
        """Go on from the memories (B, size) of another run, in the order of the kernel."""
        raise NotImplementedError(f"{type(self).__name__} starts from its initial memories only")

    def thin(self, rows: Array) -> Array:
        """Apply the rule's mask to R (H, H) of one gate."""
        return rows

    def masks(self, x: Array, state: State) -> tuple[Array, Array] | None:
        """Return the factors by which x and all states are multiplied before the cell reads them, or None."""
        return None

    def macs(self) -> int:
        return 0

    def step_macs(self, k: Counts, row: Any, I: int, H: int) -> Counts:
        """Multiply-adds (B,) of a step that changes k (B,) neurons of a cell with this row of the table of oracles."""
        return self.macs() + row.step_macs(k, I, H)

    def kernel_macs(self, k: Counts, row: Any, I: int, H: int) -> Counts:
        """Multiply-adds (B,) that kernels execute where they compute k neurons."""
        return self.step_macs(k, row, I, H)


class Selective(Always):
    """The coordinator of SA-RNN, for groups of `group_size` neurons."""

    blocks = "active"
    keeps_sums = True
    group_size = 1

    def decide(self, x: Array, state: State) -> tuple[NDArray[np.bool_], float]:
        # sarnn.md section 3.2: hard sigmoid of the coordinator above one half
        firsts = np.arange(0, self.H, self.group_size)
        h = np.add.reduceat(state[0], firsts, -1) / np.diff(firsts, append=self.H)
        v = x @ self.p["rule_W"].T + self.p["rule_b"] + self.p["rule_d"] * h
        return np.repeat(v > 0, self.group_size, -1)[:, : self.H], float(np.nanmin(np.abs(v)))

    def macs(self) -> int:
        groups = -(-self.H // self.group_size)
        # the means add up all neurons
        return groups * (self.I + 1) + (self.H if self.group_size > 1 else 0)


class Timed(Always):
    """A rule whose only memory is the step."""

    keeps_sums = True

    @property
    def memory(self) -> State:
        return (np.full((self.B, 1), self.t, np.float64),)


_MODULUS = 2**31 - 1


@cache
def _random_key(t: int, neuron: int, seed: int) -> int:
    key = (7919 * t + 104729 * neuron + 15485863 * seed) % _MODULUS
    for _ in range(2):
        key = (key**5 + 12345) % _MODULUS
    return key


class Random(Timed):
    """The definition of the rule, in Python's unbounded integers."""

    blocks = "active"

    def decide(self, x: Array, state: State) -> tuple[NDArray[np.bool_], float]:
        keys = [_random_key(self.t, j, int(self.p["rule_seed"][0])) for j in range(self.H)]
        u = np.array(keys) < self.p["rule_rate"][0] * _MODULUS
        return np.broadcast_to(u, (self.B, self.H)), np.inf


class Clockwork(Timed):
    groups = 5

    def _periods(self) -> NDArray[np.int64]:
        # modules of adjacent neurons, the fastest first
        return np.array([2 ** (j * self.groups // self.H) for j in range(self.H)])

    def decide(self, x: Array, state: State) -> tuple[NDArray[np.bool_], float]:
        return np.broadcast_to(self.t % self._periods() == 0, (self.B, self.H)), np.inf

    def thin(self, rows: Array) -> Array:
        # a neuron reads from its module and from slower ones
        T = self._periods()
        return np.where(T[None, :] < T[:, None], 0, rows)

    def step_macs(self, k: Counts, row: Any, I: int, H: int) -> Counts:
        # the first k neurons change, as every period divides the slower ones; none reads columns of faster modules
        T, M = self._periods(), row.middle_size(I, H)
        one = np.array([row.row_macs(I, int((T[j] <= T).sum()), M) for j in range(H)])
        return np.concatenate([[0], np.cumsum(one)])[k] + (k > 0) * M * row.mid_macs(I, H)


class Phased(Timed):
    """The time gate of Phased LSTM with a leak of 0, as after training."""

    blocks = "all"

    def decide(self, x: Array, state: State) -> tuple[Array, float]:
        tau, r = self.p["rule_tau"], self.p["rule_open"]
        phi = np.mod(self.t + self.p["rule_s"], tau) / tau
        k = np.where(phi < r / 2, 2 * phi / r, np.where(phi < r, 2 - 2 * phi / r, 0))
        margin = min(float(np.abs(phi - edge).min()) for edge in (0, r, 1))
        return np.broadcast_to(k, (self.B, self.H)), margin


class Skip(Always):
    """Skip RNN's eqs 4-8 with the pressure ũ as in section 3.1; the first step is an update."""

    def __init__(self, p: dict[str, Array], B: int, I: int, H: int) -> None:
        super().__init__(p, B, I, H)
        self.pressure = np.ones((B, 1))
        self.knows_delta = False

    def decide(self, x: Array, state: State) -> tuple[NDArray[np.bool_], float]:
        u = np.broadcast_to(self.pressure >= 0.5, (self.B, self.H))
        return u, float(np.abs(self.pressure - 0.5).min())

    @property
    def memory(self) -> State:
        return (self.pressure,)

    def after(self, u: NDArray[np.bool_], state: State) -> None:
        delta = 1 / (1 + np.exp(-(state[1 if len(state) > 1 else 0] @ self.p["rule_w"] + self.p["rule_b"])))[:, None]
        waited = self.pressure + np.minimum(delta, 1 - self.pressure)
        self.pressure = np.where(u[:, :1], delta, waited)

    def step_macs(self, k: Counts, row: Any, I: int, H: int) -> Counts:
        # delta depends only on the state, and is unknown when a call begins
        evaluates = (k > 0) | (not self.knows_delta)
        self.knows_delta = True
        return row.step_macs(k, I, H) + evaluates * H


class Periodic(Always):
    """Every n-th step is an update, on the mean of the n inputs up to it, or on the last of them."""

    def __init__(self, p: dict[str, Array], B: int, I: int, H: int) -> None:
        super().__init__(p, B, I, H)
        self.inputs = [np.zeros((B, I))]

    def decide(self, x: Array, state: State) -> tuple[NDArray[np.bool_], float]:
        self.inputs.append(x)
        return np.full((self.B, self.H), (self.t + 1) % self.p["rule_period"][0] == 0), np.inf

    def send(self, x: Array, state: State) -> tuple[Array, State]:
        # after x comes the input of the step before, if the cell reads it
        mean = np.sum(self.inputs, 0) / self.p["rule_period"]
        return (np.concatenate([mean, x[:, self.I :]], -1) if self.means else x), state

    def after(self, u: NDArray[np.bool_], state: State) -> None:
        self.t += 1
        self.inputs = self.inputs[:0] if u.any() else self.inputs

    @property
    def means(self) -> bool:
        return bool(self.p["rule_pool"][0] > 0)

    @property
    def memory(self) -> State:
        waited = np.full((self.B, 1), self.t % self.p["rule_period"][0])
        return waited, np.sum([np.zeros((self.B, self.I)), *(self.inputs if self.means else [])], 0)

    def restore(self, memory: State) -> None:
        # all sequences have waited as long
        self.t, self.inputs = int(memory[0].flat[0]), [memory[1]]

    def macs(self) -> int:
        return self.I if self.means else 0


class Variable(Always):
    """VC-RNN's scheduler and mask (section 3), for both state and input."""

    def _share(self, x: Array, state: State) -> Array:
        return 1 / (1 + np.exp(-(state[0] @ self.p["rule_h"] + x @ self.p["rule_x"] + self.p["rule_b"])))[:, None]

    def _mask(self, m: Array, size: int) -> tuple[Array, float]:
        sharpness, epsilon = self.p["rule_sharpness"], self.p["rule_epsilon"]
        i = np.arange(1, size + 1)
        e = 1 / (1 + np.exp(-sharpness * (m * size - i)))
        e = np.where(e > 1 - epsilon, 1, np.where(e < epsilon, 0, e))
        # the values of m at which a neuron's e is epsilon or 1 - epsilon
        soft = np.log(1 / epsilon - 1) / sharpness
        return e, min(float(np.abs(m - (i + side * soft) / size).min()) for side in (-1, 1))

    def decide(self, x: Array, state: State) -> tuple[Array, float]:
        m = self._share(x, state)
        e, margin = self._mask(m, self.H)
        self.x_mask, x_margin = self._mask(m, self.I)
        self.state_mask = e
        return e, min(margin, x_margin)

    def masks(self, x: Array, state: State) -> tuple[Array, Array]:
        return self.x_mask, self.state_mask

    def macs(self) -> int:
        return self.H + self.I

    def step_macs(self, k: Counts, row: Any, I: int, H: int) -> Counts:
        # k rows read the columns of x and of the states that are not masked to 0. An m of size H is a gate times the
        # state, so only as much of it is needed
        nx, M = (self.x_mask > 0).sum(-1), row.middle_size(I, H)
        nm = k if row.middle == "H" else np.full_like(k, M)
        return self.macs() + k * row.row_macs(nx, k, nm) + (k > 0) * nm * row.mid_macs(nx, k)


class _Factor(np.ndarray):
    """An array whose matrix products are those of the array `sent`."""

    sent: Array

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        product = ufunc is np.matmul
        plain = [i if type(i) is not _Factor else i.sent if product else i.view(np.ndarray) for i in inputs]
        return getattr(ufunc, method)(*plain, **options)


def _factor(value: Array, sent: Array) -> Array:
    factor = value.copy().view(_Factor)
    factor.sent = sent
    return factor


class Delta(Always):
    """Delta networks, eqs 5-9: products of x and h read the values that were last sent."""

    period = 256

    def __init__(self, p: dict[str, Array], B: int, I: int, H: int) -> None:
        super().__init__(p, B, I, H)
        self.sent_x, self.sent_h = np.zeros((B, p["W"].shape[1])), np.zeros((B, H))

    def see(self, x: Array, h: Array) -> None:
        x_change, h_change = np.abs(x - self.sent_x), np.abs(h - self.sent_h)
        x_moved, h_moved = x_change > self.p["rule_theta_x"], h_change > self.p["rule_theta_h"]
        self.margin = min(
            float(np.nanmin(np.abs(x_change - self.p["rule_theta_x"]))),
            float(np.nanmin(np.abs(h_change - self.p["rule_theta_h"]))),
        )
        self.sent_x, self.sent_h = np.where(x_moved, x, self.sent_x), np.where(h_moved, h, self.sent_h)
        self.moved = x_moved.sum(-1), h_moved.sum(-1)
        self.jumps = (x_change > 1024).any(-1) | (h_change > 1024).any(-1)

    def decide(self, x: Array, state: State) -> tuple[NDArray[np.bool_], float]:
        return np.ones((self.B, self.H), bool), self.margin

    def send(self, x: Array, state: State) -> tuple[Array, State]:
        return _factor(x, self.sent_x), (_factor(state[0], self.sent_h), *state[1:])

    def count(self, u: Array | NDArray[np.bool_]) -> Counts:
        return self.moved[1]

    @property
    def memory(self) -> State:
        # the kept sums follow from these
        return self.sent_x, self.sent_h, np.full((self.B, 1), self.t % self.period, np.float64)

    def restore(self, memory: State) -> None:
        # all sequences have the same age
        self.sent_x, self.sent_h, self.t = memory[0], memory[1], int(memory[2].flat[0])

    def _column_macs(self, reads: Callable[[Counts, int], NDArray[np.bool_]]) -> Counts:
        """Return the multiply-adds (B,) of the values that moved, or of all of them where reads(moved, all) is true."""
        whole = sum(self.p[name].size for name in ("C", "V") if name in self.p)
        rows = len(self.p["W"]), len(self.p["R"]) if "R" in self.p else 0
        # the sums are computed anew
        anew = (self.t % self.period == 0) | self.jumps
        sizes = self.sent_x.shape[1], self.H
        columns = (np.where(anew | reads(moved, n), n, moved) for moved, n in zip(self.moved, sizes, strict=True))
        return sum((n * c for n, c in zip(rows, columns, strict=True)), np.full(self.B, whole))

    def step_macs(self, k: Counts, row: Any, I: int, H: int) -> Counts:
        return self._column_macs(lambda moved, size: np.zeros_like(moved, bool))

    def kernel_macs(self, k: Counts, row: Any, I: int, H: int) -> Counts:
        # all columns are read from seven eighths of them on
        return self._column_macs(lambda moved, size: 8 * moved > 7 * size)


class TopK(Always):
    """D-GRU of Cheng et al. 2024, section 2.2: the k neurons with the largest update gates change.

    The update gate is one more gate of the first stage, which is computed for all neurons.
    """

    keeps_sums = True

    def fit(self, row: Any) -> Any:
        self.gate = row.gate
        return replace(row, x=row.x - 1, h=row.h - 1, middle="H", mid_x=row.mid_x + 1, mid_h=row.mid_h + 1)

    def decide(self, x: Array, state: State) -> tuple[NDArray[np.bool_], float]:
        index, sign = self.gate
        W, R, b = (self.p[name][index * self.H : (index + 1) * self.H] for name in ("W", "R", "b"))
        score = sign * (x @ W.T + state[0] @ R.T + b)
        k, u, margin = int(self.p["rule_k"][0]), np.zeros((self.B, self.H), bool), np.inf
        for sample, values in enumerate(np.where(np.isnan(score), -np.inf, score)):
            order = sorted(range(self.H), key=lambda j: (-values[j], j))
            u[sample, order[:k]] = True
            if k < self.H:
                margin = min(margin, values[order[k - 1]] - values[order[k]])
        return u, margin


RULES = {
    "always": Always,
    "periodic": Periodic,
    "random": Random,
    "clockwork": Clockwork,
    "phased": Phased,
    "skip": Skip,
    "variable": Variable,
    "selective": Selective,
    "delta": Delta,
    "topk": TopK,
}
