# SPDX-License-Identifier: Apache-2.0
"""An LSTM whose forget gate decays over the sequence.

Saves: only the bias of the forget gate. The forget gate becomes predictable, not cheaper to compute.
Choose it for sequences of one known length if only the last output is used, as in classification.
"""

import math
from typing import Unpack

import torch

from edgernn.cells.base import Cell, Gate, Gates, Parts, State
from edgernn.cells.vector import Vector
from edgernn.errors import UsageError


class DecayNet(Cell):
    """Long short-term memory whose forget gate is the sine of an angle that falls over the sequence.

    i_t = σ(W_i x_t + R_i h_{t-1} + b_i)
    f_t = Φ(p_t)        p_t = p_{t-1} - π / (12 D) (W_f x_t + R_f h_{t-1} + 3)
    g_t = tanh(W_g x_t + R_g h_{t-1} + b_g)
    o_t = σ(W_o x_t + R_o h_{t-1} + b_o)
    c_t = f_t ⊙ c_{t-1} + i_t ⊙ g_t
    h_t = o_t ⊙ tanh(N(c_t))
    Φ(p) = 1 where p > π/2, 0 where p < 0, else sin(p)        p_0 = π/2

    Shapes: x (B, I), h, c and decay (B, H), W (4H, I), R (4H, H), b (3H,) for i, g, o. Gates: i, f, g, o.
    h_0 = c_0 = decay_0 = 0. The state holds decay_t = π/2 - p_t instead of p_t, so that it starts at zero. Then
    f_t = cos(clamp(decay_t, 0, π/2)).
    N is the identity unless `norm=recurrent-batch` normalises the cell state.
    Options: length is D, at least 1, stored as the constant `length` (1,); f_t continues to decay after step D.
    Default: none (stored as 0). D is then the length T of the sequence, which must be processed as a whole.
    The paper's initialisation of W_f and R_f, U(-1, 1), is not part of the cell.
    Unlike this cell, `lstm` has a bias b_f.
    Source: anonymous authors (under double-blind review), "DecayNet: A Study on the Cell States of Long-Short Term
    Memories", System 2.
    """

    name = "decaynet"
    paper = "DecayNet, under double-blind review, System 2"
    gates = (Gate("i"), Gate("f", bias=False), Gate("g"), Gate("o"))
    vectors = {"length": Vector("1", 0.0, learned=False, steps=True)}  # noqa: RUF012
    normalises_c = True
    states = ("h", "c", "decay")

    def __init__(self, input_size: int, hidden_size: int, length: int | None = None, **parts: Unpack[Parts]) -> None:
        if length is not None and (isinstance(length, bool) or not isinstance(length, int) or length < 1):
            raise UsageError(f"length: expected a whole number of at least 1 or None, got {length!r}")
        self.knows_length = length is not None
        self.vectors = {"length": Vector("1", float(length or 0), learned=False, steps=True)}
        super().__init__(input_size, hidden_size, **parts)

    @property
    def streaming(self) -> bool:
        return self.knows_length

    def update(self, p: Gates, state: State) -> State:
        _, c, decay = state
        i = torch.sigmoid(p.i)
        decay = decay + math.pi / 12 / p.length * (p.f + 3)
        f = torch.cos(decay.clamp(0.0, math.pi / 2))
        g = torch.tanh(p.g)
        o = torch.sigmoid(p.o)
        c = f * c + i * g
        return (o * torch.tanh(p.norm_c(c)), c, decay)
