# SPDX-License-Identifier: Apache-2.0
"""EINS, an LSTM whose gates read a mix of the input and its projection, weighted by a gate that reads the state.

Size: EINS has 2I² + 5IH + I weights and an LSTM 4IH + 4H² + 4H. At I = 100, H = 800 the LSTM is seven times as large;
at I = 1150, H = 400 EINS is twice as large.
Choose it if I is much smaller than H, as in a decoder. Drawback: the gates see the state only through I numbers.
"""

from typing import Unpack

import torch
from torch import Tensor

from edgernn.cells.base import Gate, Gates, Parts, State
from edgernn.cells.forget import ForgetBias
from edgernn.errors import UsageError


class EINS(ForgetBias):
    """Extrapolated input for network simplification: an LSTM whose gates read a mix v of x and W_e x.

    d_t = σ(W_d x_t + R_d h_{t-1} + b_d)
    e_t = W_e x_t
    v_t = (1 - d_t) ⊙ x_t + d_t ⊙ e_t
    f_t = σ(V_f v_t)
    i_t = σ(V_i v_t)
    o_t = σ(V_o v_t)
    a_t = V_a v_t
    c_t = f_t ⊙ c_{t-1} + i_t ⊙ a_t
    h_t = o_t ⊙ tanh(N(c_t))

    Shapes: x and v (B, I), h and c (B, H), W (2I, I) for d, e; R (I, H) for d; V (4H, I) for f, i, o, a;
    b (I,) for d.
    Gates and other pre-activations: d, e, f, i, o, a. h_0 = c_0 = 0. This is the paper's System 4.1.
    N is the identity unless `norm=recurrent-batch` normalises the cell state.
    Options: a="x" selects the paper's eq 11: a_t = W_a x_t, with W (2I + H, I) for d, e, a and V (3H, I) for f, i, o.
    Options: forget_bias is the initial value of a learned b_f (H,) in f_t = σ(V_f v_t + b_f), with b (I + H,) for d, f.
    The paper's appendix D asks for a forget bias of 1, which its equations do not have. Default: none.
    `ihc-lstm` mixes x with a projection of h, and computes a from x.
    Source: anonymous authors (under double-blind review), "EINS: Long Short-Term Memory with Extrapolated Input Network
    Simplification", section 4.
    """

    name = "eins"
    paper = "EINS, under double-blind review, System 4.1"
    gates: tuple[Gate, ...] = (
        Gate("d", mid=True),
        Gate("e", h=False, bias=False, mid=True),
        Gate("f", x=False, h=False, m=True, bias=False),
        Gate("i", x=False, h=False, m=True, bias=False),
        Gate("o", x=False, h=False, m=True, bias=False),
        Gate("a", x=False, h=False, m=True, bias=False),
    )
    choices = {**ForgetBias.choices, "a": ("v", "x")}  # noqa: RUF012
    normalises_c = True
    states = ("h", "c")

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        a: str = "v",
        forget_bias: float | None = None,
        **parts: Unpack[Parts],
    ) -> None:
        if a not in ("v", "x"):
            raise UsageError(f"a: expected 'v' or 'x', the vector from which a_t is computed, got {a!r}")
        if a == "x":
            self.gates = (*self.gates[:-1], Gate("a", h=False, bias=False))
            self.variant = "from-x"
        super().__init__(input_size, hidden_size, forget_bias, **parts)

    @property
    def mid_size(self) -> int:
        return self.input_size

    def mid(self, p: Gates, state: State) -> Tensor:
        d = torch.sigmoid(p.d)
        return torch.lerp(p.x, p.e, d)

    def update(self, p: Gates, state: State) -> State:
        _, c = state
        f = torch.sigmoid(p.f)
        i = torch.sigmoid(p.i)
        o = torch.sigmoid(p.o)
        c = f * c + i * p.a
        return (o * torch.tanh(p.norm_c(c)), c)
