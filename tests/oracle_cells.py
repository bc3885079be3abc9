# SPDX-License-Identifier: Apache-2.0
"""The reference equations of all cells in float64 NumPy, written from the papers independently of the package.

Each cell is a function (parameters, x_t, state) -> state on plain arrays, gate by gate. Parameters are the op's inputs:
W, R, C, V and b stack the gates' rows in gate order. `T` is the number of steps. A cell that reads the previous input
gets both as one array, [x_t, x_{t-1}].
"""

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


def mingru(p: Parameters, x: Array, state: State) -> State:
    # arXiv:2410.01201, section 3.1
    (h,) = state
    H = h.shape[-1]
    z, candidate = (x @ rows(p["W"], k, H).T + rows(p["b"], k, H) for k in range(2))
    return ((1 - sigmoid(z)) * h + sigmoid(z) * candidate,)


def minlstm(p: Parameters, x: Array, state: State) -> State:
    # arXiv:2410.01201, section 3.2, with the logarithms of the gates, which may underflow
    (h,) = state
    H = h.shape[-1]
    f, i, candidate = (x @ rows(p["W"], k, H).T + rows(p["b"], k, H) for k in range(3))
    log_f, log_i = (-np.logaddexp(0, -np.maximum(v, -1e30)) for v in (f, i))
    share = 1 / (1 + np.exp(log_f - log_i))
    return ((1 - share) * h + share * candidate,)


def lru(p: Parameters, x: Array, state: State) -> State:
    # arXiv:2303.06349, eq 7 and section 3.3; in real numbers, as an infinite input has no complex product
    re, im = state
    H = re.shape[-1]
    length, angle = np.exp(-np.exp(p["nu"])), np.exp(p["theta"])
    new_re = length * (np.cos(angle) * re - np.sin(angle) * im) + np.exp(p["gamma"]) * (x @ rows(p["W"], 0, H).T)
    new_im = length * (np.sin(angle) * re + np.cos(angle) * im) + np.exp(p["gamma"]) * (x @ rows(p["W"], 1, H).T)
    return new_re, new_im


def egru(p: Parameters, x: Array, state: State) -> State:
    # arXiv:2206.06178, eqs 1-5, with the reset gate after the product as in the authors' code; b is b_r, b_u, b_z, b_k
    y, c = state
    H = c.shape[-1]
    r = sigmoid(x @ rows(p["W"], 0, H).T + y @ rows(p["R"], 0, H).T + rows(p["b"], 0, H))
    u = sigmoid(x @ rows(p["W"], 1, H).T + y @ rows(p["R"], 1, H).T + rows(p["b"], 1, H))
    hidden = y @ rows(p["R"], 2, H).T + rows(p["b"], 3, H)
    z = np.tanh(x @ rows(p["W"], 2, H).T + rows(p["b"], 2, H) + r * hidden)
    c = u * z + (1 - u) * c - y
    return c * np.heaviside(c - sigmoid(p["theta"]), 0), c
