"""An example of a user-defined cell, see docs/how-to/add-a-cell.md."""

import torch

from edgernn import Cell, Gate


class JANET(Cell):
    """An LSTM with a forget gate only: c_t = σ(s) ⊙ c_{t-1} + (1 - σ(s - 1)) ⊙ tanh(a)."""

    name = "janet"
    paper = "van der Westhuizen, Lasenby 2018, arXiv:1804.04849"
    states = ("c",)
    gates = (Gate("s"), Gate("a"))

    def update(self, p, state):
        (c,) = state
        return (torch.sigmoid(p.s) * c + (1 - torch.sigmoid(p.s - 1)) * torch.tanh(p.a),)
