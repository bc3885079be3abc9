# SPDX-License-Identifier: Apache-2.0
"""The equations of the native ops as float64 loops, the reference for tests/test_native_op.py."""

from dataclasses import dataclass

import numpy as np

Array = np.ndarray


@dataclass(frozen=True)
class Layout:
    """How many blocks of H rows each weight has, and the names of the states."""

    w: int
    r: int
    v: int
    b: int
    states: tuple[str, ...]


LAYOUTS = {
    "GRU": Layout(w=3, r=3, v=0, b=4, states=("h",)),
    "GRUBefore": Layout(w=3, r=2, v=1, b=3, states=("h",)),
    "LSTM": Layout(w=4, r=4, v=0, b=4, states=("h", "c")),
    "PRU": Layout(w=2, r=2, v=0, b=2, states=("s",)),
}


@dataclass(frozen=True)
class Result:
    y: Array  # (T, B, H)
    states: list[Array]  # (B, H) each
    updates: Array  # (T, B)
    macs: Array  # (B,)
    margin: float  # the smallest |v| of a selective rule: how near its choices are to a tie


def sigmoid(p: Array) -> Array:
    with np.errstate(over="ignore"):
        return 1.0 / (1.0 + np.exp(-p))


def blocks(a: Array, count: int) -> list[Array]:
    return np.split(a, count, axis=-1)


def gru(x: Array, state: list[Array], weights: dict[str, Array]) -> list[Array]:
    (h,) = state
    w_r, w_z, w_n = blocks(x @ weights["W"].T, 3)
    r_r, r_z, r_k = blocks(h @ weights["R"].T, 3)
    b_r, b_z, b_n, b_k = blocks(weights["b"], 4)
    r = sigmoid(w_r + r_r + b_r)
    z = sigmoid(w_z + r_z + b_z)
    n = np.tanh(w_n + b_n + r * (r_k + b_k))
    return [(1 - z) * n + z * h]


def gru_before(x: Array, state: list[Array], weights: dict[str, Array]) -> list[Array]:
    (h,) = state
    w_r, w_z, w_n = blocks(x @ weights["W"].T, 3)
    r_r, r_z = blocks(h @ weights["R"].T, 2)
    b_r, b_z, b_n = blocks(weights["b"], 3)
    m = sigmoid(w_r + r_r + b_r) * h
    z = sigmoid(w_z + r_z + b_z)
    n = np.tanh(w_n + m @ weights["V"].T + b_n)
    return [(1 - z) * h + z * n]


def lstm(x: Array, state: list[Array], weights: dict[str, Array]) -> list[Array]:
    h, c = state
    i, f, g, o = blocks(x @ weights["W"].T + h @ weights["R"].T + weights["b"], 4)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return [sigmoid(o) * np.tanh(c), c]


def pru(x: Array, state: list[Array], weights: dict[str, Array]) -> list[Array]:
    (s,) = state
    u, c = blocks(x @ weights["W"].T + s @ weights["R"].T + weights["b"], 2)
    return [sigmoid(c) * s + (1 - sigmoid(c)) * np.tanh(u)]


STEPS = {"GRU": gru, "GRUBefore": gru_before, "LSTM": lstm, "PRU": pru}


def macs_per_step(cell: str, updated: Array, inputs: int, hidden: int) -> Array:
    """Multiply-adds of a selective step that updates so many neurons, for each sample: (B,)."""
    coordinator = hidden * inputs + hidden
    per_neuron = {
        "GRU": 3 * inputs + 3 * hidden,
        "GRUBefore": 2 * inputs + hidden + hidden,
        "LSTM": 4 * inputs + 4 * hidden,
        "PRU": 2 * inputs + 2 * hidden,
    }[cell]
    mid = hidden * (inputs + hidden) if cell == "GRUBefore" else 0
    return coordinator + updated * per_neuron + np.where(updated > 0, mid, 0)


def run(cell: str, selective: bool, inputs: dict[str, Array]) -> Result:
    """Runs the op's inputs, by name, through the loop of its equations."""
    data = {name: np.asarray(a, dtype=np.float64) for name, a in inputs.items()}
    x = data["X"]
    state = [data[name] for name in LAYOUTS[cell].states]
    batch, hidden = state[0].shape
    ys, updates, macs, margin = [], [], np.zeros(batch, dtype=np.int64), np.inf
    with np.errstate(invalid="ignore"):
        for x_t in x:
            new = STEPS[cell](x_t, state, data)
            if selective:
                v = x_t @ data["rule_W"].T + data["rule_b"] + data["rule_d"] * state[0]
                margin = min(margin, float(np.min(np.abs(v), initial=np.inf, where=~np.isnan(v))))
                new = [np.where(v > 0, a, b) for a, b in zip(new, state, strict=True)]
                updated = np.sum(v > 0, axis=1)
                updates.append(updated)
                macs += macs_per_step(cell, updated, x.shape[2], hidden)
            state = new
            ys.append(state[0])
    return Result(np.stack(ys), state, np.array(updates), macs, margin)
