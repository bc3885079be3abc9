# SPDX-License-Identifier: Apache-2.0
"""The long short-term memory cell, without and with peepholes.

Saves: nothing; it is the baseline for the lighter cells. `lstm-peephole` has 3H² weights more.
Choose it if accuracy matters more than size. `lstm-peephole` is the baseline of the PRU paper.
"""

import torch

from edgernn.cells.base import Cell, Gate, Gates, State


class _LSTM(Cell):
    """Base class of the LSTM cells, which share the equations of the states and differ in their gates i, f, g and o.

    c_t = f_t ⊙ c_{t-1} + i_t ⊙ g_t
    h_t = o_t ⊙ tanh(N(c_t))

    N is the identity unless `norm=recurrent-batch` normalises the cell state.
    """

    normalises_c = True
    states = ("h", "c")

    def update(self, p: Gates, state: State) -> State:
        _, c = state
        i = torch.sigmoid(p.i)
        f = torch.sigmoid(p.f)
        g = torch.tanh(p.g)
        o = torch.sigmoid(p.o)
        c = f * c + i * g
        return (o * torch.tanh(p.norm_c(c)), c)


class LSTM(_LSTM):
    """Long short-term memory with a forget gate and no peepholes.

    i_t = σ(W_i x_t + R_i h_{t-1} + b_i)
    f_t = σ(W_f x_t + R_f h_{t-1} + b_f)
    g_t = tanh(W_g x_t + R_g h_{t-1} + b_g)
    o_t = σ(W_o x_t + R_o h_{t-1} + b_o)
    c_t = f_t ⊙ c_{t-1} + i_t ⊙ g_t
    h_t = o_t ⊙ tanh(N(c_t))

    Shapes: x (B, I), h and c (B, H), W (4H, I), R (4H, H), b (4H,). Gates: i, f, g, o. h_0 = c_0 = 0.
    N is the identity unless `norm=recurrent-batch` normalises the cell state.
    This is torch.nn.LSTM without its redundant second bias.
    Source: Hochreiter and Schmidhuber, "Long Short-Term Memory", 1997; forget gate: Gers et al., "Learning to Forget",
    2000, https://doi.org/10.1162/089976600300015015
    """

    name = "lstm"
    paper = "Hochreiter and Schmidhuber 1997; Gers et al. 2000"
    gates = (Gate("i"), Gate("f"), Gate("g"), Gate("o"))


class LSTMPeephole(_LSTM):
    """Long short-term memory whose gates also read the cell state, through full matrices.

    i_t = σ(W_i x_t + R_i h_{t-1} + C_i c_{t-1} + b_i)
    f_t = σ(W_f x_t + R_f h_{t-1} + C_f c_{t-1} + b_f)
    g_t = tanh(W_g x_t + R_g h_{t-1} + b_g)
    o_t = σ(W_o x_t + R_o h_{t-1} + C_o c_{t-1} + b_o)
    c_t = f_t ⊙ c_{t-1} + i_t ⊙ g_t
    h_t = o_t ⊙ tanh(N(c_t))

    Shapes: x (B, I), h and c (B, H), W (4H, I), R (4H, H), C (3H, H) for i, f, o; b (4H,). Gates: i, f, g, o.
    h_0 = c_0 = 0.
    N is the identity unless `norm=recurrent-batch` normalises the cell state.
    This is the LSTM that the PRU paper compares with. Two things differ in the LSTM of Gers et al. and in the ONNX
    operator LSTM (input P): each peephole is a vector, which is a diagonal C, and the output gate reads c_t.
    Source: Long, Zhang, Mao, "Prototypical Recurrent Unit", 2016, eqs 3-8.
    """

    name = "lstm-peephole"
    paper = "Long, Zhang, Mao 2016, eqs 3-8"
    gates = (Gate("i", c=True), Gate("f", c=True), Gate("g"), Gate("o", c=True))
