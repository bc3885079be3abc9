# SPDX-License-Identifier: Apache-2.0
"""The reference equations of the cells in tests/own_cells.py, in float64 NumPy, and the test cases.

`CASES` lists what every target runs: the class, the row of its oracle, I and H.
"""

from dataclasses import dataclass

import numpy as np

from edgernn.cells import Cell
from tests import own_cells
from tests.oracle import Row
from tests.oracle_cells import Array, Parameters, State, rows, sigmoid


def janet(p: Parameters, x: Array, state: State) -> State:
    # with β = 1: s_t is the pre-activation of the forget gate
    (c,) = state
    H = c.shape[-1]
    s = c @ rows(p["R"], 0, H).T + x @ rows(p["W"], 0, H).T + p["b"][:H]
    candidate = np.tanh(c @ rows(p["R"], 1, H).T + x @ rows(p["W"], 1, H).T + p["b"][H:])
    return (sigmoid(s) * c + (1 - sigmoid(s - 1)) * candidate,)


def ran(p: Parameters, x: Array, state: State) -> State:
    # W is W_cx, W_ix, W_fx and R is W_ih, W_fh
    h, c = state
    H = h.shape[-1]
    content = x @ rows(p["W"], 0, H).T
    i = sigmoid(h @ rows(p["R"], 0, H).T + x @ rows(p["W"], 1, H).T + rows(p["b"], 0, H))
    f = sigmoid(h @ rows(p["R"], 1, H).T + x @ rows(p["W"], 2, H).T + rows(p["b"], 1, H))
    c = i * content + f * c
    return np.tanh(c), c


def cfn(p: Parameters, x: Array, state: State) -> State:
    # U is R, V the first two matrices of W
    (h,) = state
    H = h.shape[-1]
    theta = sigmoid(h @ rows(p["R"], 0, H).T + x @ rows(p["W"], 0, H).T + rows(p["b"], 0, H))
    eta = sigmoid(h @ rows(p["R"], 1, H).T + x @ rows(p["W"], 1, H).T + rows(p["b"], 1, H))
    return (theta * np.tanh(h) + eta * np.tanh(x @ rows(p["W"], 2, H).T),)


def li_gru(p: Parameters, x: Array, state: State) -> State:
    # with the identity for batch normalisation
    (h,) = state
    H = h.shape[-1]
    z = sigmoid(x @ rows(p["W"], 0, H).T + h @ rows(p["R"], 0, H).T + rows(p["b"], 0, H))
    candidate = np.maximum(0, x @ rows(p["W"], 1, H).T + h @ rows(p["R"], 1, H).T + rows(p["b"], 1, H))
    return (z * h + (1 - z) * candidate,)


def indrnn(p: Parameters, x: Array, state: State) -> State:
    # eq 2
    return (np.maximum(0, x @ p["W"].T + p["u"] * state[0] + p["b"]),)


def atr(p: Parameters, x: Array, state: State) -> State:
    # the twin gates
    (h,) = state
    p_t, q_t = x @ p["W"].T, h @ p["R"].T
    i, f = sigmoid(p_t + q_t), sigmoid(p_t - q_t)
    return (i * p_t + f * h,)


def cornn(p: Parameters, x: Array, state: State) -> State:
    # eq 3; W is V there, R is W, C is the calligraphic W
    y, z = state
    z = z + 0.3 * np.tanh(y @ p["R"].T + z @ p["C"].T + x @ p["W"].T + p["b"]) - 0.3 * 1.0 * y - 0.3 * 1.5 * z
    return y + 0.3 * z, z


def brc(p: Parameters, x: Array, state: State) -> State:
    # W is U_a, U_c, U
    (h,) = state
    H = h.shape[-1]
    a = 1 + np.tanh(x @ rows(p["W"], 0, H).T + p["w_a"] * h)
    c = sigmoid(x @ rows(p["W"], 1, H).T + p["w_c"] * h)
    return (c * h + (1 - c) * np.tanh(x @ rows(p["W"], 2, H).T + a * h),)


def qrnn(p: Parameters, x: Array, state: State) -> State:
    # fo-pooling; W is W² and W¹ side by side
    _, c = state
    H = c.shape[-1]
    z, f, o = (x @ rows(p["W"], k, H).T for k in range(3))
    c = sigmoid(f) * c + (1 - sigmoid(f)) * np.tanh(z)
    return sigmoid(o) * c, c


def mut1(p: Parameters, x: Array, state: State) -> State:
    # the three equations of MUT1; W is W_xr, W_xz, R is W_hr and V is W_hh; b is b_r, b_z, b_h
    (h,) = state
    H = h.shape[-1]
    z = sigmoid(x @ rows(p["W"], 1, H).T + rows(p["b"], 1, H))
    r = sigmoid(x @ rows(p["W"], 0, H).T + h @ p["R"].T + rows(p["b"], 0, H))
    return (np.tanh((r * h) @ p["V"].T + np.tanh(x) + rows(p["b"], 2, H)) * z + h * (1 - z),)


@dataclass(frozen=True)
class Case:
    """A cell with the row of its oracle, I and H."""

    cell: type[Cell]
    row: Row
    I: int = 3
    H: int = 33


CASES = {
    case.cell.name: case
    for case in (
        Case(own_cells.JANET, Row(janet, 1, x=2, h=2)),
        Case(own_cells.RAN, Row(ran, 2, x=3, h=2)),
        Case(own_cells.CFN, Row(cfn, 1, x=3, h=2)),
        Case(own_cells.LiGRU, Row(li_gru, 1, x=2, h=2)),
        Case(own_cells.IndRNN, Row(indrnn, 1, x=1)),
        Case(own_cells.ATR, Row(atr, 1, x=1, h=1)),
        Case(own_cells.CoRNN, Row(cornn, 2, x=1, h=1 + 1)),
        Case(own_cells.BRC, Row(brc, 1, x=3)),
        Case(own_cells.QRNN, Row(qrnn, 2, x=3 * 2, reads_last=True)),
        Case(own_cells.MUT1, Row(mut1, 1, x=1, m=1, middle="H", mid_x=1, mid_h=1), I=33),
    )
}
# one rule of each kind: all neurons, single neurons, whole samples
CASE_RULES = ("always", "selective", "skip")
