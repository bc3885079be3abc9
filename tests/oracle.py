# SPDX-License-Identifier: Apache-2.0
"""The reference equations of all cells in float64 NumPy, written from the papers independently of the package.

Each cell is a function (parameters, x_t, state) -> state on plain arrays, gate by gate; `run` loops over time. A new
cell needs one row in CELLS. Parameters are the op's inputs: W, R, C, V and b stack the gates' rows in gate order. `T`
is the number of steps. A cell that reads the previous input gets both as one array, [x_t, x_{t-1}].
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tests.oracle_paths import KernelPaths
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


def output(p: Parameters, o: Array, c: Array) -> Array:
    # Cooijmans et al. 2016, eq 8, with fixed statistics as a scale and a shift; without them N is the identity
    return o * np.tanh(p.get("N_scale", 1.0) * c + p.get("N_shift", 0.0))


def lstm(p: Parameters, x: Array, state: State) -> State:
    # torch.nn.LSTM's documented equations
    h, c = state
    H = h.shape[-1]
    i, f, g, o = (x @ rows(p["W"], k, H).T + h @ rows(p["R"], k, H).T + rows(p["b"], k, H) for k in range(4))
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return output(p, sigmoid(o), c), c


def lstm_peephole(p: Parameters, x: Array, state: State) -> State:
    # pru.md eqs 3-8; the rows of C belong to i, f, o, and o reads c_{t-1}
    h, c = state
    H = h.shape[-1]
    i, f, g, o = (x @ rows(p["W"], k, H).T + h @ rows(p["R"], k, H).T + rows(p["b"], k, H) for k in range(4))
    i, f, o = (v + c @ rows(p["C"], k, H).T for k, v in enumerate((i, f, o)))
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return output(p, sigmoid(o), c), c


def decaynet(p: Parameters, x: Array, state: State) -> State:
    # decaynet.md System 2 with the remaining equations of System 1; the state is pi/2 - p; b is b_i, b_g, b_o
    h, c, decay = state
    H = h.shape[-1]
    D = p["length"][0] or p["T"]
    i, f, g, o = (x @ rows(p["W"], k, H).T + h @ rows(p["R"], k, H).T for k in range(4))
    i, g, o = (v + rows(p["b"], k, H) for k, v in enumerate((i, g, o)))
    polar = np.pi / 2 - decay - np.pi / (2 * D) / 6 * (f + 3)
    f = np.where(polar > np.pi / 2, 1, np.where(polar < 0, 0, np.sin(polar)))
    c = f * c + sigmoid(i) * np.tanh(g)
    return output(p, sigmoid(o), c), c, np.pi / 2 - polar


def sru(p: Parameters, x: Array, state: State) -> State:
    # irc.md eqs 27-30; W is W_F, W_P, W_A, and where sizes differ the fourth matrix of facts.md 4.1
    _, c = state
    H = c.shape[-1]
    f = sigmoid(x @ rows(p["W"], 0, H).T + p["w_f"] * c + rows(p["b"], 0, H))
    highway = sigmoid(x @ rows(p["W"], 1, H).T + p["w_p"] * c + rows(p["b"], 1, H))
    carried = x if x.shape[-1] == H else x @ rows(p["W"], 3, H).T
    c = f * c + (1 - f) * (x @ rows(p["W"], 2, H).T)
    return highway * c + (1 - highway) * carried, c


def t_lstm(p: Parameters, x: Array, state: State) -> State:
    # irc.md eqs 36-39; W is W and U side by side, as columns
    _, c = state
    H = c.shape[-1]
    f, o, a = (x @ rows(p["W"], k, H).T + rows(p["b"], k, H) for k in range(3))
    c = sigmoid(f) * c + (1 - sigmoid(f)) * a
    return sigmoid(o) * c, c


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
    # eins.md System 4.1; W is W_D, W_rho and with eq 11 also W_A; b is b_D and optionally a forget bias
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
    return output(p, o, s), s


def irc(p: Parameters, x: Array, h: Array) -> Array:
    # irc.md eq 15 with alpha "parameterised by the sigmoid function"
    return x + sigmoid(p["alpha"]) * (h @ p["R"].T)


def irc_diagonal(p: Parameters, x: Array, h: Array) -> Array:
    # irc.md eqs 31 and 40 with omega "parameterised by the hyperbolic tangent"; eq 15 where sizes differ
    return x + sigmoid(p["alpha"]) * np.tanh(p["omega"]) * h if "omega" in p else irc(p, x, h)


def forget_bias(p: Parameters, H: int) -> Array:
    # facts.md 3.1: a learned vector that the code adds to the forget gate and the paper omits; the last H of b
    return p["b"][-H:] if "b" in p else np.zeros(H)


def irc_gru(p: Parameters, x: Array, state: State) -> State:
    # irc.md eqs 14-17; the optional b is minus the code's bias of F = 1 - i, as 1 - sigmoid(z) = sigmoid(-z)
    (h,) = state
    M = h.shape[-1]
    v = irc(p, x, h)
    i, r = 1 - sigmoid(-(v @ p["V"][:M].T) - forget_bias(p, M)), sigmoid(v @ p["V"][M:].T)
    return ((1 - i) * h + i * (r * (x @ p["W"].T)),)


def gated_cell(p: Parameters, v: Array, bias: Array | float, a: Array, c: Array) -> State:
    # irc.md eqs 23, 25, 26
    M = c.shape[-1]
    f, i, o = (v @ rows(p["V"], k, M).T for k in range(3))
    c = sigmoid(f + bias) * c + sigmoid(i) * a
    return output(p, sigmoid(o), c), c


def irc_lstm(p: Parameters, x: Array, state: State) -> State:
    # irc.md eqs 22-26
    h, c = state
    return gated_cell(p, irc(p, x, h), forget_bias(p, c.shape[-1]), x @ p["W"].T, c)


def irc_sru(p: Parameters, x: Array, state: State) -> State:
    # irc.md eqs 31-35; W is W_A and, where sizes differ, the matrix of the highway
    h, c = state
    H = h.shape[-1]
    v = irc_diagonal(p, x, h)
    f, highway = sigmoid(v @ p["V"][:H].T + forget_bias(p, H)), sigmoid(v @ p["V"][H:].T)
    c = f * c + (1 - f) * (x @ p["W"][:H].T)
    return highway * c + (1 - highway) * (x if x.shape[-1] == H else x @ p["W"][H:].T), c


def irc_t_lstm(p: Parameters, x: Array, state: State) -> State:
    # irc.md eqs 40-44
    h, c = state
    H = h.shape[-1]
    v = irc_diagonal(p, x, h)
    f, o = sigmoid(v @ p["V"][:H].T + forget_bias(p, H)), sigmoid(v @ p["V"][H:].T)
    c = f * c + (1 - f) * (x @ p["W"].T)
    return o * c, c


def ihc_lstm(p: Parameters, x: Array, state: State) -> State:
    # irc.md eqs 52, 53 and 23-26; W is W_G, W_A; R is Gamma (N by M), U_V; b is b_G and optionally a forget bias
    h, c = state
    N = x.shape[-1]
    g = sigmoid(x @ p["W"][:N].T + h @ p["R"][:N].T + p["b"][:N])
    v = (1 - g) * x + g * (h @ p["R"][N:].T)
    bias = p["b"][N:] if len(p["b"]) > N else 0
    return gated_cell(p, v, bias, x @ p["W"][N:].T, c)


def irc_fastgrnn(p: Parameters, x: Array, state: State) -> State:
    # irc.md eqs 48-51
    (h,) = state
    f = sigmoid(irc(p, x, h) @ p["V"].T + forget_bias(p, h.shape[-1]))
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
    """A cell's step function and the sizes that its costs follow from.

    states: Number of states. x, h, m: Number of matrices with H rows that read x (or x_{t-1}), h or c, and m.
    middle: The size of m, I or H. mid_x, mid_h: Number of matrices with that many rows that read x and h to compute m,
    which is needed in full if any neuron changes. gate: The place of the update gate among the gates in W, R and b, and
    -1 if a neuron changes less where it is larger, else 1; only if the gate reads x and h alone.
    """

    step: Callable[[Parameters, Array, State], State]
    states: int
    x: int
    h: int = 0
    m: int = 0
    middle: Literal["I", "H"] = "I"
    mid_x: int = 0
    mid_h: int = 0
    reads_last: bool = False
    gate: tuple[int, int] | None = None

    def row_macs(self, nx: int, nh: int, nm: int) -> int:
        """Multiply-adds of one neuron in a step, if it reads nx columns of x, nh of each state and nm of m."""
        return self.x * nx + self.h * nh + self.m * nm

    def mid_macs(self, nx: int, nh: int) -> int:
        """Multiply-adds of one element of m in a step, if it reads nx columns of x and nh of h."""
        return self.mid_x * nx + self.mid_h * nh

    @property
    def keeps_sums(self) -> bool:
        """True if kernels may keep the products of h that m is made of."""
        return self.mid_h > 0

    def middle_size(self, I: int, H: int) -> int:
        return I if self.middle == "I" else H

    def step_macs(self, k: NDArray[np.int64], I: int, H: int) -> NDArray[np.int64]:
        """Multiply-adds of a step that changes k neurons."""
        M = self.middle_size(I, H)
        return k * self.row_macs(I, H, M) + (k > 0) * M * self.mid_macs(I, H)


CELLS = {
    "gru": Row(gru, 1, x=3, h=3, gate=(1, -1)),
    "gru-before": Row(gru_before, 1, x=2, h=1, m=1, middle="H", mid_x=1, mid_h=1, gate=(1, 1)),
    "lstm": Row(lstm, 2, x=4, h=4),
    "lstm-peephole": Row(lstm_peephole, 2, x=4, h=4 + 3),
    "decaynet": Row(decaynet, 3, x=4, h=4),
    "sru": Row(sru, 2, x=3),
    "t-lstm": Row(t_lstm, 2, x=6, reads_last=True),
    "pru": Row(pru, 1, x=2, h=2, gate=(1, -1)),
    "rnn": Row(rnn, 1, x=1, h=1),
    "eins": Row(eins, 2, x=0, m=4, mid_x=2, mid_h=1),
    "irc-gru": Row(irc_gru, 1, x=1, m=2, mid_h=1),
    "irc-lstm": Row(irc_lstm, 2, x=1, m=3, mid_h=1),
    "irc-sru": Row(irc_sru, 2, x=1, m=2),
    "irc-t-lstm": Row(irc_t_lstm, 2, x=1, m=2),
    "irc-fastgrnn": Row(irc_fastgrnn, 1, x=1, m=1, mid_h=1),
    "ihc-lstm": Row(ihc_lstm, 2, x=1, m=3, mid_x=1, mid_h=2),
    "fastgrnn": Row(fastgrnn, 1, x=1, h=1),
    "fastgrnn-split": Row(fastgrnn_split, 1, x=2, h=2, gate=(0, -1)),
}
# cells whose papers require I = H: the variants for other sizes
RESIZED = {
    "sru": replace(CELLS["sru"], x=3 + 1),
    "irc-sru": replace(CELLS["irc-sru"], x=1 + 1, mid_h=1),
    "irc-t-lstm": replace(CELLS["irc-t-lstm"], mid_h=1),
}


def row_of(cell: str, I: int, H: int) -> Row:
    return CELLS[cell] if I == H else RESIZED.get(cell, CELLS[cell])


@dataclass(frozen=True)
class Result:
    """The results of a sequence.

    y: (T, B, H). state, memory: The last states of the cell and of the rule. updates: (T, B). macs: (B,), as kernels
    execute them. margin: The smallest distance of a decision from its threshold. needed: macs (B,) that the updates
    need.
    """

    y: Array
    state: State
    memory: State
    updates: NDArray[np.int64]
    macs: NDArray[np.int64]
    margin: float
    needed: NDArray[np.int64]


def run(
    cell: str | Row, rule: str, parameters: dict[str, Any], x: Any, state: Any, lanes: int = 1, weight_bits: int = 32
) -> Result:
    """Run the sequence x (T, B, I) in float64.

    Args:
        cell: A name in CELLS, or any other row.
        rule: A name in RULES, with the number of neurons in a group after a slash if there are groups.
        parameters: By the names of the op's inputs.
        x: The input.
        state: The states of the layer. Only those of the cell and the last input are read; memories start at their
            initial values.
        lanes: Number of neurons in a vector of the kernel whose `macs` are counted.
        weight_bits: Bits of that kernel's weights.
    """
    p = {k: np.asarray(v, np.float64) for k, v in parameters.items()}
    x = np.asarray(x, np.float64)
    T, B, I = x.shape
    H = np.shape(state[0])[-1]
    row = cell if isinstance(cell, Row) else row_of(cell, I, H)
    last = np.asarray(state[-1], np.float64)
    state = tuple(np.asarray(s, np.float64) for s in state[: row.states])
    rule, _, group_size = rule.partition("/")
    decider = RULES[rule](p, B, I, H)
    if group_size:
        decider.group_size = int(group_size)
    costs = decider.fit(row)
    p["T"] = np.array(T)
    mid_rows = {"R": row.mid_h * row.middle_size(I, H), "C": 0}
    p |= {name: _thinned(p[name], decider, mid_rows[name], H) for name in mid_rows if name in p}
    y, updates, margin = [], np.zeros((T, B), np.int64), np.inf
    macs, needed = np.zeros(B, np.int64), np.zeros(B, np.int64)
    # kernels compute W x of a chunk of steps at once, for all neurons, if most steps of the chunk before read it
    chunk, ahead, from_whole = -(-16 // B), False, np.zeros((T, B), np.int64)
    mid_ahead = False
    kernel_paths = KernelPaths(costs, I, H, lanes, weight_bits, decider.keeps_sums)
    for t in range(T):
        decider.see(np.concatenate([x[t], last], -1) if row.reads_last else x[t], state[0])
        u, closest = decider.decide(x[t], state)
        margin = min(margin, closest)
        x_mask, state_mask = decider.masks(x[t], state) or (1, 1)
        read = [x[t] * x_mask, last * x_mask] if row.reads_last else [x[t] * x_mask]
        before = state[0]
        new = row.step(p, *decider.send(np.concatenate(read, -1), tuple(s * state_mask for s in state)))
        state = tuple(_blend(u, n, s) for n, s in zip(new, state, strict=True))
        last = x[t]
        k = updates[t] = decider.count(u)
        needed += decider.step_macs(k, costs, I, H)
        if t % chunk == 0 and t > 0:
            ahead = 5 * from_whole[t - chunk : t].sum() > 3 * chunk * B * kernel_paths.padded
        computed = projected = np.zeros_like(k)
        if decider.blocks:
            computed, projected, from_whole[t] = kernel_paths.choose(u > 0, decider.blocks == "all")
        macs += decider.kernel_macs(np.maximum(k, computed), costs, I, H) - kernel_paths.unread(k, before)
        macs += np.where(ahead | (projected > 0), H - computed - projected, 0) * row.x * I
        if t % chunk == 0 and t > 0:
            mid_ahead = kernel_paths.projects_mid(updates[t - chunk : t])
        macs += np.where(mid_ahead & (k == 0), kernel_paths.mid_input, 0)
        decider.after(u, state)
        y.append(state[0])
    return Result(np.stack(y), state, decider.memory, updates, macs, margin, needed)


def _blend(u: Array | NDArray[np.bool_], new: Array, old: Array) -> Array:
    return np.where(u, new, old) if u.dtype == bool else u * new + (1 - u) * old


def _thinned(weight: Array, decider: Always, mid_rows: int, H: int) -> Array:
    """Apply the rule's mask to R or C; the rows of gates marked `mid` come first and are not masked."""
    mid, others = weight[:mid_rows], weight[mid_rows:]
    return np.concatenate([mid, *(decider.thin(others[i : i + H]) for i in range(0, len(others), H))])
