# SPDX-License-Identifier: Apache-2.0
"""FastGRNN, with a shared pre-activation for gate and candidate or with one for each.

Saves: `fastgrnn` has one matrix each for input and state, a GRU three. The paper also makes both low-rank and sparse.
Here, the options `rank` and `density` do so for the recurrent matrix of any cell that has one.
Choose it for the smallest devices, where every kilobyte counts: `fastgrnn` computes gate and candidate from one sum.
"""

import torch

from edgernn.cells.base import Cell, Gate, Gates, State, UpdateGate
from edgernn.cells.vector import Vector

_SCALARS = {"zeta": Vector("1", 1.0, torch.sigmoid), "nu": Vector("1", -4.0, torch.sigmoid)}


class FastGRNN(Cell):
    """Gated recurrent network whose gate and candidate share their weights.

    p_t = W_p x_t + R_p h_{t-1}
    z_t = σ(p_t + b_z)
    n_t = tanh(p_t + b_n)
    h_t = z_t ⊙ h_{t-1} + (σ(zeta) (1 - z_t) + σ(nu)) ⊙ n_t

    Shapes: x (B, I), h (B, H), W (H, I), R (H, H), b_z and b_n (H,), zeta and nu (1,). Gate: p. h_0 = 0.
    b_z, b_n and zeta start at 1, nu at -4, as in EdgeML, where W and R start as 0.1 · N(0, 1).
    W and R are dense: the low rank, sparsity and quantisation of the paper are not part of the cell.
    `fastgrnn-split` has separate weights for z and n.
    Source: Kusupati et al., "FastGRNN: A Fast, Accurate, Stable and Tiny Kilobyte Sized Gated Recurrent Neural
    Network", NeurIPS 2018, https://arxiv.org/abs/1901.02358; the authors' code: https://github.com/microsoft/EdgeML
    """

    name = "fastgrnn"
    paper = "Kusupati et al. 2018, arXiv:1901.02358"
    gates = (Gate("p", bias=False),)
    vectors = {"b_z": Vector("H", 1.0), "b_n": Vector("H", 1.0), **_SCALARS}  # noqa: RUF012

    def update(self, p: Gates, state: State) -> State:
        (h,) = state
        z = torch.sigmoid(p.p + p.b_z)
        n = torch.tanh(p.p + p.b_n)
        return (z * h + (p.zeta * (1 - z) + p.nu) * n,)


class FastGRNNSplit(Cell):
    """FastGRNN with separate weights for the gate and for the candidate.

    z_t = σ(W_z x_t + R_z h_{t-1} + b_z)
    n_t = tanh(W_n x_t + R_n h_{t-1} + b_n)
    h_t = z_t ⊙ h_{t-1} + (σ(zeta) (1 - z_t) + σ(nu)) ⊙ n_t

    Shapes: x (B, I), h (B, H), W (2H, I), R (2H, H), b (2H,), zeta and nu (1,). Gates: z, n. h_0 = 0.
    zeta starts at 1, nu at -4, as in `fastgrnn`, which has half the weights.
    This is the FastGRNN that the IRC paper defines and compares with, not that of Kusupati et al.
    Source: Kuo et al., "An Input Residual Connection for Simplifying Gated Recurrent Neural Networks", IJCNN 2020,
    eqs 45-47, where z is f, n is a, σ(zeta) is β and σ(nu) is κ.
    """

    name = "fastgrnn-split"
    paper = "Kuo et al. 2020, eqs 45-47"
    gates = (Gate("z"), Gate("n"))
    update_gate = UpdateGate("z", -1)
    vectors = _SCALARS

    def update(self, p: Gates, state: State) -> State:
        (h,) = state
        z = torch.sigmoid(p.z)
        n = torch.tanh(p.n)
        return (z * h + (p.zeta * (1 - z) + p.nu) * n,)
