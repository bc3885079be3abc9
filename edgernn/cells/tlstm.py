# SPDX-License-Identifier: Apache-2.0
"""The strongly-typed LSTM (T-LSTM), whose gates read the last two inputs and not the state.

Saves: it has 6IH weights, an LSTM 4IH + 4H². No matrix multiplies the state, so that all products of a sequence can be
computed at once, before the first step.
Choose it for long sequences that are known as a whole, if I is below 2H and two inputs are enough for the gates.
"""

import torch

from edgernn.cells.base import Cell, Gate, Gates, State


class TLSTM(Cell):
    """Strongly-typed long short-term memory: its gates read the last two inputs and not the state.

    f_t = σ(W_f x_t + U_f x_{t-1} + b_f)
    o_t = σ(W_o x_t + U_o x_{t-1} + b_o)
    a_t = W_a x_t + U_a x_{t-1} + b_a
    c_t = f_t ⊙ c_{t-1} + (1 - f_t) ⊙ a_t
    h_t = o_t ⊙ c_t

    Shapes: x (B, I), h and c (B, H), b (3H,); the parameter W (3H, 2I) is [W U], the two matrices side by side.
    Gates: f, o, a. h_0 = c_0 = 0.
    x_{t-1} is zero at the first step. The previous input is carried from step to step as a third state x_last (B, I).
    These are the equations of the IRC paper.
    Source: Kuo et al., "An Input Residual Connection for Simplifying Gated Recurrent Neural Networks", IJCNN 2020,
    eqs 36-39, after Balduzzi and Ghifary, "Strongly-Typed Recurrent Neural Networks", ICML 2016,
    https://arxiv.org/abs/1602.02218
    """

    name = "t-lstm"
    paper = "Balduzzi and Ghifary 2016, arXiv:1602.02218"
    reads_last = True
    gates = (Gate("f", h=False), Gate("o", h=False), Gate("a", h=False))
    states = ("h", "c")

    def update(self, p: Gates, state: State) -> State:
        _, c = state
        f = torch.sigmoid(p.f)
        o = torch.sigmoid(p.o)
        c = torch.lerp(p.a, c, f)
        return (o * c, c)
