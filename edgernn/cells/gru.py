# SPDX-License-Identifier: Apache-2.0
"""The gated recurrent unit, with its reset gate after (`gru`) or before (`gru-before`) the matrix product.

Saves: a quarter of the weights and multiply-adds of an LSTM. It is the baseline for the lighter cells.
Choose it if you want a cell that is known to train well. An update rule may skip neurons at a step: `gru` then skips
all work of these neurons. `gru-before` needs the reset gate of all neurons if any neuron is updated: W x of this gate
in full, and of R h the columns of neurons that changed, or all of them if more than half did.
"""

import torch
from torch import Tensor

from edgernn.cells.base import Cell, Gate, Gates, State, UpdateGate


class GRU(Cell):
    """Gated recurrent unit with the reset gate after the matrix product.

    r_t = σ(W_r x_t + R_r h_{t-1} + b_r)
    z_t = σ(W_z x_t + R_z h_{t-1} + b_z)
    k_t = R_k h_{t-1} + b_k
    n_t = tanh(W_n x_t + b_n + r_t ⊙ k_t)
    h_t = (1 - z_t) ⊙ n_t + z_t ⊙ h_{t-1}

    Shapes: x (B, I), h (B, H), W (3H, I) for r, z, n; R (3H, H) for r, z, k; b (4H,) for r, z, n, k. h_0 = 0.
    This is torch.nn.GRU and ONNX GRU with linear_before_reset = 1, without their redundant second bias.
    `gru-before` applies r before the product, and has 1 - z_t in place of z_t.
    Source: Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder for Statistical Machine Translation",
    https://arxiv.org/abs/1406.1078v1 (its third version has the reset gate before the product).
    """

    name = "gru"
    paper = "Cho et al. 2014, arXiv:1406.1078v1"
    gates = (Gate("r"), Gate("z"), Gate("n", h=False), Gate("k", x=False))
    update_gate = UpdateGate("z", -1)

    def update(self, p: Gates, state: State) -> State:
        (h,) = state
        r = torch.sigmoid(p.r)
        z = torch.sigmoid(p.z)
        n = torch.tanh(p.n + r * p.k)
        return (torch.lerp(n, h, z),)


class GRUBefore(Cell):
    """Gated recurrent unit with the reset gate before the matrix product, as in the SA-RNN paper.

    r_t = σ(W_r x_t + R_r h_{t-1} + b_r)
    z_t = σ(W_z x_t + R_z h_{t-1} + b_z)
    m_t = r_t ⊙ h_{t-1}
    n_t = tanh(W_n x_t + V_n m_t + b_n)
    h_t = (1 - z_t) ⊙ h_{t-1} + z_t ⊙ n_t

    Shapes: x (B, I), h (B, H), W (3H, I) for r, z, n; R (2H, H) for r, z; V (H, H) for n; b (3H,) for r, z, n. h_0 = 0.
    ONNX GRU with linear_before_reset = 0 is the same with z_t replaced by 1 - z_t (negate the rows of z).
    `gru` needs one matrix product per step; this cell needs two, one after the other.
    The code of SA-RNN starts all weights as U(-1/√(I + H), 1/√(I + H)), and not as U(-1/√H, 1/√H).
    Source: Hartvigsen et al., "Learning to Selectively Update State Neurons in Recurrent Networks", CIKM 2020,
    eqs 1-4, https://doi.org/10.1145/3340531.3412018
    """

    name = "gru-before"
    paper = "Hartvigsen et al. 2020, eqs 1-4"
    mid_vanishes = True
    update_gate = UpdateGate("z", 1)
    gates = (Gate("r", mid=True), Gate("z"), Gate("n", h=False, m=True))

    def mid(self, p: Gates, state: State) -> Tensor:
        return torch.sigmoid(p.r) * state[0]

    def update(self, p: Gates, state: State) -> State:
        (h,) = state
        z = torch.sigmoid(p.z)
        n = torch.tanh(p.n)
        return (torch.lerp(h, n, z),)
