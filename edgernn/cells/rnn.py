# SPDX-License-Identifier: Apache-2.0
"""The simple recurrent network (Elman network), without gates.

Saves: two thirds of the weights and multiply-adds of a GRU, as it has no gates.
Choose it for short-term dependencies. For longer ones, combine it with the update rule `clockwork`: neurons that are
rarely updated keep information, as gates do in other cells.
"""

import torch

from edgernn.cells.base import Cell, Gate, Gates, State


class RNN(Cell):
    """Simple recurrent network with tanh.

    n_t = W_n x_t + R_n h_{t-1} + b_n
    h_t = tanh(n_t)

    Shapes: x (B, I), h (B, H), W (H, I), R (H, H), b (H,). Gate: n. h_0 = 0.
    This is torch.nn.RNN with nonlinearity="tanh", without its redundant second bias.
    Source: Elman, "Finding Structure in Time", 1990, https://doi.org/10.1207/s15516709cog1402_1
    """

    name = "rnn"
    paper = "Elman 1990"
    gates = (Gate("n"),)

    def update(self, p: Gates, state: State) -> State:
        return (torch.tanh(p.n),)
