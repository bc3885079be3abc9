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

from tests.oracle_rules import RULES, Always

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


def rnn(p: Parameters, x: Array, state: State) -> State:
    # torch.nn.RNN's documented equation; b is b_ih + b_hh
    (h,) = state
    return (np.tanh(x @ p["W"].T + h @ p["R"].T + p["b"]),)


def eins(p: Parameters, x: Array, state: State) -> State:
    # eins.md System 4.1; W is W_D, W_rho and with eq 11 also W_A; b is b_D and where given also a forget bias
    q, s = state
    xi, theta = x.shape[-1], q.shape[-1]
    d = sigmoid(x @ p["W"][:xi].T + q @ p["R"].T + p["b"][:xi])
    v = (1 - d) * x + d * (x @ p["W"][xi : 2 * xi].T)
    f = v @ rows(p["V"], 0, theta).T
    if len(p["b"]) > xi:
        f = f + p["b"][xi:]
    i, o = (sigmoid(v @ rows(p["V"], k, theta).T) for k in (1, 2))
    a = x @ p["W"][2 * xi :].T if len(p["W"]) > 2 * xi else v @ rows(p["V"], 3, theta).T
    s = sigmoid(f) * s + i * a
    return o * np.tanh(s), s


def irc(p: Parameters, x: Array, h: Array) -> Array:
    # irc.md eq 15 with alpha "parameterised by the sigmoid function"
    return x + sigmoid(p["alpha"]) * (h @ p["R"].T)


def irc_gru(p: Parameters, x: Array, state: State) -> State:
    # irc.md eqs 14-17
    (h,) = state
    M = h.shape[-1]
    v = irc(p, x, h)
    i, r = sigmoid(v @ p["V"][:M].T), sigmoid(v @ p["V"][M:].T)
    return ((1 - i) * h + i * (r * (x @ p["W"].T)),)


def gated_cell(v: Array, V: Array, a: Array, c: Array) -> State:
    # irc.md eqs 23, 25, 26
    M = c.shape[-1]
    f, i, o = (sigmoid(v @ rows(V, k, M).T) for k in range(3))
    c = f * c + i * a
    return o * np.tanh(c), c


def irc_lstm(p: Parameters, x: Array, state: State) -> State:
    # irc.md eqs 22-26
    h, c = state
    return gated_cell(irc(p, x, h), p["V"], x @ p["W"].T, c)


def ihc_lstm(p: Parameters, x: Array, state: State) -> State:
    # irc.md eqs 52, 53 and 23-26; W is W_G, W_A; R is Gamma (N by M), U_V
    h, c = state
    N = x.shape[-1]
    g = sigmoid(x @ p["W"][:N].T + h @ p["R"][:N].T + p["b"])
    v = (1 - g) * x + g * (h @ p["R"][N:].T)
    return gated_cell(v, p["V"], x @ p["W"][N:].T, c)


def irc_fastgrnn(p: Parameters, x: Array, state: State) -> State:
    # irc.md eqs 48-51
    (h,) = state
    f = sigmoid(irc(p, x, h) @ p["V"].T)
    return (f * h + sigmoid(p["beta"]) * (1 - f) * (x @ p["W"].T),)


def fastgrnn(p: Parameters, x: Array, state: State) -> State:
    # Kusupati et al. 2018 as in EdgeML: one W and one U
    (h,) = state
    pre = x @ p["W"].T + h @ p["R"].T
    z, n = sigmoid(pre + p["b_z"]), np.tanh(pre + p["b_n"])
    return (z * h + (sigmoid(p["zeta"]) * (1 - z) + sigmoid(p["nu"])) * n,)


def fastgrnn_split(p: Parameters, x: Array, state: State) -> State:
    # irc.md eqs 45-47
    (h,) = state
    M = h.shape[-1]
    f = sigmoid(x @ p["W"][:M].T + h @ p["R"][:M].T + p["b"][:M])
    a = np.tanh(x @ p["W"][M:].T + h @ p["R"][M:].T + p["b"][M:])
    beta, kappa = sigmoid(p["zeta"]), sigmoid(p["nu"])
    return (f * h + (beta * (1 - f) + kappa) * a,)


@dataclass(frozen=True)
class Row:
    """step; multiply-adds a step of one neuron's rows, and of a stage needed in full if anything changes.

    mid_rows: how many rows of R belong to that stage.
    """

    step: Callable[[Parameters, Array, State], State]
    states: int
    row_macs: Callable[[int, int], int]
    stage_macs: Callable[[int, int], int]
    mid_rows: Callable[[int, int], int] = lambda I, H: 0


CELLS = {
    "gru": Row(gru, 1, lambda I, H: 3 * (I + H), lambda I, H: 0),
    "gru-before": Row(gru_before, 1, lambda I, H: 2 * (I + H), lambda I, H: H * (I + H), lambda I, H: H),
    "lstm": Row(lstm, 2, lambda I, H: 4 * (I + H), lambda I, H: 0),
    "pru": Row(pru, 1, lambda I, H: 2 * (I + H), lambda I, H: 0),
    "rnn": Row(rnn, 1, lambda I, H: I + H, lambda I, H: 0),
    "eins": Row(eins, 2, lambda I, H: 4 * I, lambda I, H: I * (2 * I + H), lambda I, H: I),
    "irc-gru": Row(irc_gru, 1, lambda I, H: 3 * I, lambda I, H: I * H, lambda I, H: I),
    "irc-lstm": Row(irc_lstm, 2, lambda I, H: 4 * I, lambda I, H: I * H, lambda I, H: I),
    "irc-fastgrnn": Row(irc_fastgrnn, 1, lambda I, H: 2 * I, lambda I, H: I * H, lambda I, H: I),
    "ihc-lstm": Row(ihc_lstm, 2, lambda I, H: 4 * I, lambda I, H: I * (I + 2 * H), lambda I, H: 2 * I),
    "fastgrnn": Row(fastgrnn, 1, lambda I, H: I + H, lambda I, H: 0),
    "fastgrnn-split": Row(fastgrnn_split, 1, lambda I, H: 2 * (I + H), lambda I, H: 0),
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
    """The whole sequence x (T, B, I) from a state of the cell, in float64; a rule's own memory starts as it should."""
    row = CELLS[cell]
    p = {k: np.asarray(v, np.float64) for k, v in parameters.items()}
    x = np.asarray(x, np.float64)
    state = tuple(np.asarray(s, np.float64) for s in state[: row.states])
    T, B, I = x.shape
    H = state[0].shape[-1]
    decider = RULES[rule](p, B, I, H)
    if "R" in p:
        p["R"] = _thinned(p["R"], decider, row.mid_rows(I, H), H)
    y, updates, macs, margin = [], np.zeros((T, B), np.int64), np.zeros(B, np.int64), np.inf
    for t in range(T):
        new = row.step(p, x[t], state)
        u, closest = decider.decide(x[t], state)
        margin = min(margin, closest)
        state = tuple(np.where(u, n, s) for n, s in zip(new, state, strict=True))
        decider.after(u, state)
        k = u.sum(-1)
        updates[t] = k
        macs += decider.macs() + k * row.row_macs(I, H) + (k > 0) * row.stage_macs(I, H)
        y.append(state[0])
    return Result(np.stack(y), state, updates, macs, margin)


def _thinned(R: Array, decider: Always, mid_rows: int, H: int) -> Array:
    """R as the rule leaves it; the rows of gates that feed the middle stage come first and stay whole."""
    mid, rest = R[:mid_rows], R[mid_rows:]
    return np.concatenate([mid, *(decider.thin(rest[i : i + H]) for i in range(0, len(rest), H))])
