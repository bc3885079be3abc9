# SPDX-License-Identifier: Apache-2.0
"""Ten cells of the literature as user-defined cells: `edgernn train --cell tests/own_cells.py:JANET`."""

import torch
from torch import Tensor

from edgernn import Cell, Gate, Vector
from edgernn.cells import Gates, State


class JANET(Cell):
    """c_t = σ(s) ⊙ c_{t-1} + (1 - σ(s - 1)) ⊙ tanh(p_c): van der Westhuizen, Lasenby 2018, arXiv:1804.04849, β = 1."""

    name, paper = "janet", "van der Westhuizen, Lasenby 2018, arXiv:1804.04849"
    gates = (Gate("s"), Gate("c"))

    def update(self, p: Gates, state: State) -> State:
        (c,) = state
        return (torch.sigmoid(p.s) * c + (1 - torch.sigmoid(p.s - 1)) * torch.tanh(p.c),)


class RAN(Cell):
    """c_t = i ⊙ W_c x_t + f ⊙ c_{t-1}, h_t = tanh(c_t): Lee, Levy, Zettlemoyer 2017, arXiv:1705.07393."""

    name, paper = "ran", "Lee, Levy, Zettlemoyer 2017, arXiv:1705.07393"
    states = ("h", "c")
    gates = (Gate("c", h=False, bias=False), Gate("i"), Gate("f"))

    def update(self, p: Gates, state: State) -> State:
        c = torch.sigmoid(p.i) * p.c + torch.sigmoid(p.f) * state[1]
        return torch.tanh(c), c


class CFN(Cell):
    """h_t = θ ⊙ tanh(h_{t-1}) + η ⊙ tanh(W x_t): Laurent, von Brecht 2016, arXiv:1612.06212."""

    name, paper = "cfn", "Laurent, von Brecht 2016, arXiv:1612.06212"
    gates = (Gate("theta"), Gate("eta"), Gate("w", h=False, bias=False))

    def update(self, p: Gates, state: State) -> State:
        (h,) = state
        return (torch.sigmoid(p.theta) * torch.tanh(h) + torch.sigmoid(p.eta) * torch.tanh(p.w),)


class LiGRU(Cell):
    """h_t = z ⊙ h_{t-1} + (1 - z) ⊙ ReLU(p_n): Ravanelli et al. 2018, arXiv:1803.10225.

    The batch normalisation of W x_t, with fixed statistics, is folded into W and b.
    """

    name, paper = "li-gru", "Ravanelli et al. 2018, arXiv:1803.10225"
    gates = (Gate("z"), Gate("n"))

    def update(self, p: Gates, state: State) -> State:
        (h,) = state
        return (torch.lerp(torch.relu(p.n), h, torch.sigmoid(p.z)),)


class IndRNN(Cell):
    """h_t = ReLU(W x_t + u ⊙ h_{t-1} + b): Li et al. 2018, arXiv:1803.04831, eq 2."""

    name, paper = "indrnn", "Li et al. 2018, arXiv:1803.04831"
    gates = (Gate("n", h=False),)
    vectors = {"u": Vector("H")}  # noqa: RUF012

    def update(self, p: Gates, state: State) -> State:
        (h,) = state
        return (torch.relu(p.n + p.u * h),)


class ATR(Cell):
    """h_t = σ(p + q) ⊙ p + σ(p - q) ⊙ h_{t-1}, p = W x_t, q = U h_{t-1}: Zhang et al. 2018, arXiv:1810.12546."""

    name, paper = "atr", "Zhang et al. 2018, arXiv:1810.12546"
    gates = (Gate("p", h=False, bias=False), Gate("q", x=False, bias=False))

    def update(self, p: Gates, state: State) -> State:
        (h,) = state
        return (torch.sigmoid(p.p + p.q) * p.p + torch.sigmoid(p.p - p.q) * h,)


class CoRNN(Cell):
    """Coupled oscillators, Rusch, Mishra 2021, arXiv:2010.00951, eq 3 with n - 1 for its second index.

    z_n = z_{n-1} + Δt (tanh(W y_{n-1} + C z_{n-1} + V u_n + b) - γ y_{n-1} - ε z_{n-1}), y_n = y_{n-1} + Δt z_n
    """

    name, paper = "cornn", "Rusch, Mishra 2021, arXiv:2010.00951"
    states = ("y", "z")
    gates = (Gate("n", c=True),)
    step_size, gamma, epsilon = 0.3, 1.0, 1.5

    def update(self, p: Gates, state: State) -> State:
        y, z = state
        z = z + self.step_size * (torch.tanh(p.n) - self.gamma * y - self.epsilon * z)
        return y + self.step_size * z, z


class BRC(Cell):
    """h_t = c ⊙ h_{t-1} + (1 - c) ⊙ tanh(U x_t + a ⊙ h_{t-1}): Vecoven et al. 2021, arXiv:2006.05252.

    a = 1 + tanh(U_a x_t + w_a ⊙ h_{t-1}), c = σ(U_c x_t + w_c ⊙ h_{t-1})
    """

    name, paper = "brc", "Vecoven et al. 2021, arXiv:2006.05252"
    gates = tuple(Gate(name, h=False, bias=False) for name in ("a", "c", "n"))
    vectors = {"w_a": Vector("H"), "w_c": Vector("H")}  # noqa: RUF012

    def update(self, p: Gates, state: State) -> State:
        (h,) = state
        a, c = 1 + torch.tanh(p.a + p.w_a * h), torch.sigmoid(p.c + p.w_c * h)
        return (c * h + (1 - c) * torch.tanh(p.n + a * h),)


class QRNN(Cell):
    """c_t = f ⊙ c_{t-1} + (1 - f) ⊙ tanh(p_z), h_t = σ(p_o) ⊙ c_t: Bradbury et al. 2016, arXiv:1611.01576.

    Convolutions of width 2: every gate reads x_t and x_{t-1}.
    """

    name, paper = "qrnn", "Bradbury et al. 2016, arXiv:1611.01576"
    states, reads_last = ("h", "c"), True
    gates = tuple(Gate(name, h=False, bias=False) for name in ("z", "f", "o"))

    def update(self, p: Gates, state: State) -> State:
        c = torch.lerp(torch.tanh(p.z), state[1], torch.sigmoid(p.f))
        return torch.sigmoid(p.o) * c, c


class MUT1(Cell):
    """h_t = z ⊙ tanh(V (r ⊙ h_{t-1}) + tanh(x_t) + b) + (1 - z) ⊙ h_{t-1}: Jozefowicz et al. 2015, MUT1. I = H."""

    name, paper = "mut1", "Jozefowicz, Zaremba, Sutskever 2015"
    mid_vanishes = True
    gates = (Gate("r", mid=True), Gate("z", h=False), Gate("n", x=False, h=False, m=True))

    def mid(self, p: Gates, state: State) -> Tensor:
        return torch.sigmoid(p.r) * state[0]

    def update(self, p: Gates, state: State) -> State:
        return (torch.lerp(state[0], torch.tanh(p.n + torch.tanh(p.x)), torch.sigmoid(p.z)),)
