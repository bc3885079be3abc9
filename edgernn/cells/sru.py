# SPDX-License-Identifier: Apache-2.0
"""The simple recurrent unit (SRU), without a matrix product with the state.

Saves: it has three matrices for the input (four if I and H differ) and none for the state; a GRU has six in all, an
LSTM eight. All products of a sequence can be computed at once, before the first step.
Choose it for long sequences that are known as a whole.
"""

from typing import Unpack

import torch

from edgernn.cells.base import Cell, Gate, Gates, Parts, State
from edgernn.cells.vector import Vector


class SRU(Cell):
    """Simple recurrent unit: matrices multiply only the input, and the state acts element by element.

    f_t = σ(W_f x_t + w_f ⊙ c_{t-1} + b_f)
    p_t = σ(W_p x_t + w_p ⊙ c_{t-1} + b_p)
    a_t = W_a x_t
    s_t = x_t where I = H, else W_s x_t
    c_t = f_t ⊙ c_{t-1} + (1 - f_t) ⊙ a_t
    h_t = p_t ⊙ c_t + (1 - p_t) ⊙ s_t

    Shapes: x (B, I), h and c (B, H), W (3H, I) for f, p, a, or (4H, I) with s; w_f and w_p (H,), b (2H,) for f, p.
    Gates: f, p, a; also s if I and H differ. h_0 = c_0 = 0.
    These are the equations of the IRC paper; W_s, which they omit, is from Lei et al. The cell has neither the factor
    √(1 + 2 exp(b_p)) of s nor the tanh of c, which are options of the authors' code. It has neither the authors'
    initialisation nor the initial biases of the IRC paper's code (b_f = 1, b_p = -1).
    Source: Kuo et al., "An Input Residual Connection for Simplifying Gated Recurrent Neural Networks", IJCNN 2020,
    eqs 27-30, after Lei et al., "Simple Recurrent Units for Highly Parallelizable Recurrence", EMNLP 2018,
    https://arxiv.org/abs/1709.02755; the authors' code: https://github.com/asappresearch/sru
    """

    name = "sru"
    paper = "Lei et al. 2018, arXiv:1709.02755"
    gates: tuple[Gate, ...] = (Gate("f", h=False), Gate("p", h=False), Gate("a", h=False, bias=False))
    vectors = {"w_f": Vector("H"), "w_p": Vector("H")}  # noqa: RUF012
    states = ("h", "c")
    other_if_square = True

    def __init__(self, input_size: int, hidden_size: int, **parts: Unpack[Parts]) -> None:
        self.projects = input_size != hidden_size
        if self.projects:
            self.variant = "projected"
            self.gates = (*self.gates, Gate("s", h=False, bias=False))
        super().__init__(input_size, hidden_size, **parts)

    def update(self, p: Gates, state: State) -> State:
        _, c = state
        f = torch.sigmoid(p.f + p.w_f * c)
        highway = torch.sigmoid(p.p + p.w_p * c)
        s = p.s if self.projects else p.x
        c = torch.lerp(p.a, c, f)
        return (torch.lerp(s, c, highway), c)
