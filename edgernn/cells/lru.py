# SPDX-License-Identifier: Apache-2.0
"""The linear recurrent unit (LRU): each neuron is a complex number that turns and decays on its own.

Saves: it has two matrices for the input and none for the state; a GRU has six in all. All products of a sequence can be
computed at once, before the first step.
Choose it for long sequences, with two layers or more. The cell is linear: a model is nonlinear only between its layers.
The paper uses it inside a block with normalisation, a gated linear unit and a residual connection: the setting `block`
of a model.
"""

import math
from typing import Unpack

import torch
from torch import Tensor

from edgernn.cells.base import Cell, Gate, Gates, Parts, State
from edgernn.cells.vector import Vector
from edgernn.errors import UsageError


class LRU(Cell):
    """Linear recurrent unit with a diagonal complex state s_t = re_t + i im_t, of which the output is the real part.

    s_t = λ ⊙ s_{t-1} + γ ⊙ (W_re x_t + i W_im x_t)        λ = exp(-exp(nu) + i exp(theta))        γ = exp(gamma)
    h_t = re_t

    Shapes: x (B, I), re and im (B, H), W (2H, I) for re, im; nu, theta and gamma (H,). Gates: re, im. s_0 = 0.
    |λ| = exp(-exp(nu)) is always below 1, so that the state cannot grow without bound.
    The paper's output is Re(C s_t) + D x_t with a complex matrix C. Here, the real matrix that reads h_t next takes the
    place of C: the head, the next layer, or the block's linear map. The block's residual connection replaces D x_t.
    Initial values, as in the paper: λ uniform in the ring r_min ≤ |λ| ≤ r_max with phase from 0 to max_phase,
    γ = √(1 - |λ|²), and W normal with variance 1/(2I).
    Options: r_min, r_max, with 0 ≤ r_min < r_max ≤ 1, and max_phase, above 0 and at most 2π.
    Source: Orvieto et al., "Resurrecting Recurrent Neural Networks for Long Sequences", ICML 2023, section 3,
    https://arxiv.org/abs/2303.06349
    """

    name = "lru"
    paper = "Orvieto et al. 2023, arXiv:2303.06349"
    states = ("re", "im")
    gates = (Gate("re", h=False, bias=False), Gate("im", h=False, bias=False))
    # the step computes cos θ and sin θ from tan(θ/2), without trigonometric functions
    vectors = {  # noqa: RUF012
        "nu": Vector("H", map=lambda nu: torch.exp(-torch.exp(nu))),
        "theta": Vector("H", map=lambda theta: torch.tan(torch.exp(theta) / 2)),
        "gamma": Vector("H", map=torch.exp),
    }

    nu: Tensor
    theta: Tensor
    gamma: Tensor

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        r_min: float = 0.0,
        r_max: float = 1.0,
        max_phase: float = 2 * math.pi,
        **parts: Unpack[Parts],
    ) -> None:
        if not 0 <= r_min < r_max <= 1:
            raise UsageError(f"r_min, r_max: expected 0 <= r_min < r_max <= 1, got {r_min} and {r_max}")
        if not 0 < max_phase <= 2 * math.pi:
            raise UsageError(f"max_phase: expected above 0 and at most 2π (6.2832), got {max_phase}")
        self.r_min, self.r_max, self.max_phase = r_min, r_max, max_phase
        super().__init__(input_size, hidden_size, **parts)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        super().reset_parameters()
        torch.nn.init.normal_(self.W, std=(2 * self.input_size) ** -0.5)
        # away from 0 and 1, at which the logarithms are infinite
        share, phase = torch.empty(2, self.hidden_size).uniform_(1e-4, 1 - 1e-4)
        squares = self.r_min**2 + share * (self.r_max**2 - self.r_min**2)
        # nor rounded to 1 by a narrow ring
        squares.clamp_(max=1 - 2**-20)
        self.nu.copy_(torch.log(-torch.log(squares) / 2))
        self.theta.copy_(torch.log(self.max_phase * phase))
        self.gamma.copy_(torch.log1p(-squares) / 2)

    def update(self, p: Gates, state: State) -> State:
        re, im = state
        # with t = tan(θ/2): sin θ = 2t / (1 + t²), cos θ = 2 / (1 + t²) - 1
        double = 2 / (1 + p.theta * p.theta)
        sin, cos = p.theta * double, double - 1
        return (
            p.nu * (cos * re - sin * im) + p.gamma * p.re,
            p.nu * (sin * re + cos * im) + p.gamma * p.im,
        )
