# SPDX-License-Identifier: Apache-2.0
"""The prototypical recurrent unit (PRU), a GRU without the reset gate.

Saves: a third of the weights and multiply-adds of a GRU, half of those of an LSTM, at every size.
Choose it as the first replacement of a GRU to try: it has one gate, one product
with the state per step, and no options.
"""

import torch

from edgernn.cells.base import Cell, Gate, Gates, State, UpdateGate


class PRU(Cell):
    """Prototypical recurrent unit: a GRU without the reset gate.

    u_t = tanh(W_u x_t + R_u s_{t-1} + b_u)
    c_t = σ(W_c x_t + R_c s_{t-1} + b_c)
    s_t = c_t ⊙ s_{t-1} + (1 - c_t) ⊙ u_t

    Shapes: x (B, I), s (B, H), W (2H, I), R (2H, H), b (2H,). Gates: u, c. s_0 = 0.
    The transposes in the paper's eq 11 are read as typing errors. The cell does not include the paper's eq 13, which
    maps the state to the output; the model's output layer does this.
    Source: Long, Zhang, Mao, "Prototypical Recurrent Unit", 2016, eqs 10-13.
    """

    name = "pru"
    paper = "Long, Zhang, Mao 2016, eqs 10-13"
    gates = (Gate("u"), Gate("c"))
    states = ("s",)
    update_gate = UpdateGate("c", -1)

    def update(self, p: Gates, state: State) -> State:
        (s,) = state
        u = torch.tanh(p.u)
        c = torch.sigmoid(p.c)
        return (torch.lerp(u, s, c),)
