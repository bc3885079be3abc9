# SPDX-License-Identifier: Apache-2.0
"""The equations once more, in float64 NumPy, from the papers and not from our code: the definition of right.

Each cell here is a function (parameters, x_t, state) -> state on plain arrays, gate by gate; `run` loops over time.
A new cell needs one row in CELLS. Parameters come as the op's inputs: W, R, V, b with their rows in gate order.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Parameters = dict[str, Array]
State = tuple[Array, ...]


def sigmoid(v: Array) -> Array:
    return 0.5 * (1 + np.tanh(v / 2))


def rows(weight: Array, index: int, H: int) -> Array:
    return weight[index * H : (index + 1) * H]


def gru(p: Parameters, x: Array, state: State) -> State:
    # torch.nn.GRU's documented equations; b is (b_ir + b_hr, b_iz + b_hz, b_in, b_hn)
    (h,) = state
    H = h.shape[-1]
    r = sigmoid(x @ rows(p["W"], 0, H).T + h @ rows(p["R"], 0, H).T + rows(p["b"], 0, H))
    z = sigmoid(x @ rows(p["W"], 1, H).T + h @ rows(p["R"], 1, H).T + rows(p["b"], 1, H))
    hidden = h @ rows(p["R"], 2, H).T + rows(p["b"], 3, H)
    n = np.tanh(x @ rows(p["W"], 2, H).T + rows(p["b"], 2, H) + r * hidden)
    return ((1 - z) * n + z * h,)


def gru_before(p: Parameters, x: Array, state: State) -> State:
    # sarnn.md eqs 1-4 with biases
    (h,) = state
    H = h.shape[-1]
    r = sigmoid(x @ rows(p["W"], 0, H).T + h @ rows(p["R"], 0, H).T + rows(p["b"], 0, H))
    z = sigmoid(x @ rows(p["W"], 1, H).T + h @ rows(p["R"], 1, H).T + rows(p["b"], 1, H))
    s = np.tanh(x @ rows(p["W"], 2, H).T + (r * h) @ p["V"].T + rows(p["b"], 2, H))
    return ((1 - z) * h + z * s,)


def lstm(p: Parameters, x: Array, state: State) -> State:
    # torch.nn.LSTM's documented equations
    h, c = state
    H = h.shape[-1]
    i, f, g, o = (x @ rows(p["W"], k, H).T + h @ rows(p["R"], k, H).T + rows(p["b"], k, H) for k in range(4))
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def pru(p: Parameters, x: Array, state: State) -> State:
    # pru.md eqs 10-12
    (s,) = state
    H = s.shape[-1]
    u = np.tanh(s @ rows(p["R"], 0, H).T + x @ rows(p["W"], 0, H).T + rows(p["b"], 0, H))
    c = sigmoid(s @ rows(p["R"], 1, H).T + x @ rows(p["W"], 1, H).T + rows(p["b"], 1, H))
    return (c * s + (1 - c) * u,)


@dataclass(frozen=True)
class Row:
    """step; multiply-adds a step of one neuron's rows, and of a stage needed in full if anything changes."""

    step: Callable[[Parameters, Array, State], State]
    states: int
    row_macs: Callable[[int, int], int]
    stage_macs: Callable[[int, int], int]


CELLS = {
    "gru": Row(gru, 1, lambda I, H: 3 * (I + H), lambda I, H: 0),
    "gru-before": Row(gru_before, 1, lambda I, H: 2 * (I + H), lambda I, H: H * (I + H)),
    "lstm": Row(lstm, 2, lambda I, H: 4 * (I + H), lambda I, H: 0),
    "pru": Row(pru, 1, lambda I, H: 2 * (I + H), lambda I, H: 0),
}


@dataclass(frozen=True)
class Result:
    """y (T, B, H); the last state; updates (T, B) and macs (B,); the closest decision to its threshold."""

    y: Array
    state: State
    updates: NDArray[np.int64]
    macs: NDArray[np.int64]
    margin: float


def run(cell: str, rule: str, parameters: dict[str, Any], x: Any, state: Any) -> Result:
    """The whole sequence x (T, B, I) from a state, in float64."""
    row = CELLS[cell]
    p = {k: np.asarray(v, np.float64) for k, v in parameters.items()}
    x = np.asarray(x, np.float64)
    state = tuple(np.asarray(s, np.float64) for s in state)
    T, B, I = x.shape
    H = state[0].shape[-1]
    y, updates, macs, margin = [], np.full((T, B), H), np.zeros(B, np.int64), np.inf
    for t in range(T):
        new = row.step(p, x[t], state)
        if rule == "selective":
            # sarnn.md section 3.2: hard sigmoid of the coordinator above one half
            v = x[t] @ p["rule_W"].T + p["rule_b"] + p["rule_d"] * state[0]
            u = v > 0
            margin = min(margin, float(np.nanmin(np.abs(v))))
            new = tuple(np.where(u, n, s) for n, s in zip(new, state, strict=True))
            k = u.sum(-1)
            updates[t] = k
            macs += H * I + H + k * row.row_macs(I, H) + (k > 0) * row.stage_macs(I, H)
        else:
            macs += H * row.row_macs(I, H) + row.stage_macs(I, H)
        state = new
        y.append(state[0])
    return Result(np.stack(y), state, updates, macs, margin)
