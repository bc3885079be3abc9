# SPDX-License-Identifier: Apache-2.0
"""Cells with an input residual or highway connection: their gates read the state only through a modified input v.

Saves: one matrix (I, H) multiplies the state h instead of one matrix (H, H) per gate. `ihc-lstm` has two of them, and
`irc-sru` and `irc-t-lstm` have none if I = H. The gates have no biases, except g of `ihc-lstm`. `irc-gru` has 4IH
weights, a GRU 3IH + 3H². `irc-lstm` has 5IH and `ihc-lstm` I² + 6IH, an LSTM 4IH + 4H². If I = H, `irc-t-lstm` has half
the weights of `t-lstm`, and `irc-sru` has as many as `sru`.
The authors' code gives every forget gate a bias, which their equations do not have: the option `forget_bias` adds it.
Choose these cells if H is larger than I, where they save most. Their drawback: the gates see the state only through I
numbers.
"""

from typing import Unpack

import torch
from torch import Tensor

from edgernn.cells.base import Gate, Gates, Parts, State
from edgernn.cells.forget import ForgetBias
from edgernn.cells.vector import Vector


class _InputResidual(ForgetBias):
    """Base class of cells whose sigmoid gates read a vector v_t (B, I) in place of the input x_t and the state h_{t-1}.

    v_t = x_t + σ(alpha) ⊙ u_t, where alpha (I,) is learned and u_t = R_u h_{t-1} (B, I) with weights R_u (I, H). A
    subclass may compute u_t in another way: it overrides `feedback`.
    """

    vectors = {"alpha": Vector("I", 2.0, torch.sigmoid)}  # noqa: RUF012

    @property
    def mid_size(self) -> int:
        return self.input_size

    def feedback(self, p: Gates, h: Tensor) -> Tensor:
        """Compute u_t (B, I), the term of v_t = x_t + σ(alpha) ⊙ u_t that depends on the previous output h (B, H).

        `p` has an attribute for each pre-activation, such as p.u = R_u h, and for each learned vector, such as
        p.alpha = σ(alpha).
        """
        return p.u

    def mid(self, p: Gates, state: State) -> Tensor:
        v: Tensor = p.x + p.alpha * self.feedback(p, state[0])
        return v


class _DiagonalInputResidual(_InputResidual):
    """Base class of cells whose sigmoid gates read a vector v_t (B, I) in place of the input x_t and the state h_{t-1}.

    v_t = x_t + σ(alpha) ⊙ u_t with u_t = tanh(omega) ⊙ h_{t-1} if I = H, else u_t = R_u h_{t-1}. alpha (I,), omega (H,)
    and R_u (I, H) are learned.
    """

    other_if_square = True
    vectors = {**_InputResidual.vectors, "omega": Vector("H", map=torch.tanh)}  # noqa: RUF012

    def __init__(
        self, input_size: int, hidden_size: int, forget_bias: float | None = None, **parts: Unpack[Parts]
    ) -> None:
        self.projects = input_size != hidden_size
        if self.projects:
            self.variant = "projected"
            self.vectors = _InputResidual.vectors
            self.gates = (Gate("u", x=False, bias=False, mid=True), *self.gates)
        super().__init__(input_size, hidden_size, forget_bias, **parts)

    def feedback(self, p: Gates, h: Tensor) -> Tensor:
        u: Tensor = p.u if self.projects else p.omega * h
        return u


class IRCGRU(_InputResidual):
    """Gated recurrent unit with an input residual connection.

    u_t = R_u h_{t-1}
    v_t = x_t + σ(alpha) ⊙ u_t
    i_t = σ(V_i v_t)
    r_t = σ(V_r v_t)
    a_t = W_a x_t
    h_t = (1 - i_t) ⊙ h_{t-1} + i_t ⊙ (r_t ⊙ a_t)

    Shapes: x (B, I), h (B, H), v (B, I), W (H, I) for a; R (I, H) for u; V (2H, I) for i, r; alpha (I,). h_0 = 0.
    Gates: u, i, r, a. alpha starts at 2, as in the authors' code, where R starts as U(-1/√I, 1/√I), and V as
    U(-1/√(2H), 1/√(2H)).
    These are the paper's equations. The authors' code has a forget gate 1 - i_t with a learned bias that starts at 1.
    Options: forget_bias adds a learned bias b_i (H,), so that i_t = σ(V_i v_t + b_i). It starts at minus
    forget_bias, because 1 - i_t is the forget gate. Default: none.
    Source: Kuo et al., "An Input Residual Connection for Simplifying Gated Recurrent Neural Networks", IJCNN 2020,
    eqs 14-17; the authors' code: https://github.com/Nic5472K/IJCNN2020_IRC
    """

    name = "irc-gru"
    paper = "Kuo et al. 2020, eqs 14-17"
    forget_gate = "i"
    forget_sign = -1
    gates = (
        Gate("u", x=False, bias=False, mid=True),
        Gate("i", x=False, h=False, m=True, bias=False),
        Gate("r", x=False, h=False, m=True, bias=False),
        Gate("a", h=False, bias=False),
    )

    def update(self, p: Gates, state: State) -> State:
        (h,) = state
        i = torch.sigmoid(p.i)
        r = torch.sigmoid(p.r)
        return (torch.lerp(h, r * p.a, i),)


class IRCLSTM(_InputResidual):
    """Long short-term memory with an input residual connection.

    u_t = R_u h_{t-1}
    v_t = x_t + σ(alpha) ⊙ u_t
    f_t = σ(V_f v_t)
    i_t = σ(V_i v_t)
    o_t = σ(V_o v_t)
    a_t = W_a x_t
    c_t = f_t ⊙ c_{t-1} + i_t ⊙ a_t
    h_t = o_t ⊙ tanh(N(c_t))

    Shapes: x (B, I), h and c (B, H), v (B, I), W (H, I) for a; R (I, H) for u; V (3H, I) for f, i, o; alpha (I,).
    Gates: u, f, i, o, a. h_0 = c_0 = 0. alpha starts at 2, as in the authors' code of `irc-gru`.
    N is the identity unless `norm=recurrent-batch` normalises the cell state.
    Options: forget_bias is the initial value of a learned bias b_f (H,) in f_t = σ(V_f v_t + b_f). Default: none.
    The related cell `ihc-lstm` computes v_t with a gate that depends on x_t and h_{t-1}, in place of σ(alpha).
    Source: Kuo et al., "An Input Residual Connection for Simplifying Gated Recurrent Neural Networks", IJCNN 2020,
    eqs 22-26.
    """

    name = "irc-lstm"
    paper = "Kuo et al. 2020, eqs 22-26"
    gates = (
        Gate("u", x=False, bias=False, mid=True),
        Gate("f", x=False, h=False, m=True, bias=False),
        Gate("i", x=False, h=False, m=True, bias=False),
        Gate("o", x=False, h=False, m=True, bias=False),
        Gate("a", h=False, bias=False),
    )
    normalises_c = True
    states = ("h", "c")

    def update(self, p: Gates, state: State) -> State:
        _, c = state
        f = torch.sigmoid(p.f)
        i = torch.sigmoid(p.i)
        o = torch.sigmoid(p.o)
        c = f * c + i * p.a
        return (o * torch.tanh(p.norm_c(c)), c)


class IRCFastGRNN(_InputResidual):
    """FastGRNN with an input residual connection.

    u_t = R_u h_{t-1}
    v_t = x_t + σ(alpha) ⊙ u_t
    f_t = σ(V_f v_t)
    a_t = W_a x_t
    h_t = f_t ⊙ h_{t-1} + σ(beta) (1 - f_t) ⊙ a_t

    Shapes: x (B, I), h (B, H), v (B, I), W (H, I) for a; R (I, H) for u; V (H, I) for f; alpha (I,), beta (1,).
    Gates: u, f, a. h_0 = 0. alpha starts at 2, as in the authors' code of `irc-gru`. beta starts at 1.
    The authors' code has a vector (H,) in place of beta, and its weights start as 0.1 · N(0, 1).
    σ(beta) scales the update, like σ(zeta) in `fastgrnn`. The term σ(nu) of `fastgrnn` is left out.
    Options: forget_bias is the initial value of a learned bias b_f (H,) in f_t = σ(V_f v_t + b_f). Default: no
    bias. In the authors' code the bias starts at 1.
    The cell has 1.5 times as many weights as `fastgrnn` if I = H. The paper compares it with `fastgrnn-split`, which
    has separate weights for the gate and the candidate.
    Source: Kuo et al., "An Input Residual Connection for Simplifying Gated Recurrent Neural Networks", IJCNN 2020,
    eqs 48-51.
    """

    name = "irc-fastgrnn"
    paper = "Kuo et al. 2020, eqs 48-51"
    gates = (
        Gate("u", x=False, bias=False, mid=True),
        Gate("f", x=False, h=False, m=True, bias=False),
        Gate("a", h=False, bias=False),
    )
    vectors = {**_InputResidual.vectors, "beta": Vector("1", 1.0, torch.sigmoid)}  # noqa: RUF012

    def update(self, p: Gates, state: State) -> State:
        (h,) = state
        f = torch.sigmoid(p.f)
        return (f * h + p.beta * (1 - f) * p.a,)


class IRCSRU(_DiagonalInputResidual):
    """Simple recurrent unit with an input residual connection.

    u_t = tanh(omega) ⊙ h_{t-1} if I = H, else R_u h_{t-1}
    v_t = x_t + σ(alpha) ⊙ u_t
    f_t = σ(V_f v_t)
    p_t = σ(V_p v_t)
    a_t = W_a x_t
    s_t = x_t if I = H, else W_s x_t
    c_t = f_t ⊙ c_{t-1} + (1 - f_t) ⊙ a_t
    h_t = p_t ⊙ c_t + (1 - p_t) ⊙ s_t

    Shapes: x (B, I), h and c (B, H), v (B, I), W (H, I) for a; V (2H, I) for f, p; alpha (I,), omega (H,).
    Gates: f, p, a. h_0 = c_0 = 0. alpha starts at 2, as in the authors' code of `irc-gru`.
    The paper's cell has I = H. If I and H differ, u is computed as in `irc-gru` and s as in `sru`: W (2H, I) for
    a, s; R (I, H) for u; no omega; gates u, f, p, a, s.
    Options: forget_bias is the initial value of a learned bias b_f (H,) in f_t = σ(V_f v_t + b_f). Default: no
    bias. In the authors' code b_f starts at 1. That code also has a bias b_p, which starts at -1; no option adds it.
    The gates f and p of the plain cell `sru` also read c_{t-1} and have biases; the gates of this cell do not.
    Source: Kuo et al., "An Input Residual Connection for Simplifying Gated Recurrent Neural Networks", IJCNN 2020,
    eqs 31-35; the authors' code: https://github.com/Nic5472K/IJCNN2020_IRC
    """

    name = "irc-sru"
    paper = "Kuo et al. 2020, eqs 31-35"
    gates: tuple[Gate, ...] = (
        Gate("f", x=False, h=False, m=True, bias=False),
        Gate("p", x=False, h=False, m=True, bias=False),
        Gate("a", h=False, bias=False),
    )
    states = ("h", "c")

    def __init__(
        self, input_size: int, hidden_size: int, forget_bias: float | None = None, **parts: Unpack[Parts]
    ) -> None:
        if input_size != hidden_size:
            self.gates = (*self.gates, Gate("s", h=False, bias=False))
        super().__init__(input_size, hidden_size, forget_bias, **parts)

    def update(self, p: Gates, state: State) -> State:
        _, c = state
        f = torch.sigmoid(p.f)
        highway = torch.sigmoid(p.p)
        s = p.s if self.projects else p.x
        c = torch.lerp(p.a, c, f)
        return (torch.lerp(s, c, highway), c)


class IRCTLSTM(_DiagonalInputResidual):
    """Strongly-typed long short-term memory with an input residual connection.

    u_t = tanh(omega) ⊙ h_{t-1} if I = H, else R_u h_{t-1}
    v_t = x_t + σ(alpha) ⊙ u_t
    f_t = σ(V_f v_t)
    o_t = σ(V_o v_t)
    a_t = W_a x_t
    c_t = f_t ⊙ c_{t-1} + (1 - f_t) ⊙ a_t
    h_t = o_t ⊙ c_t

    Shapes: x (B, I), h and c (B, H), v (B, I), W (H, I) for a; V (2H, I) for f, o; alpha (I,), omega (H,).
    Gates: f, o, a. h_0 = c_0 = 0. alpha starts at 2, as in the authors' code of `irc-gru`.
    The paper's cell has I = H. If I and H differ, u is computed as in `irc-gru`, with R (I, H) for u; no omega;
    gates u, f, o, a.
    Options: forget_bias is the initial value of a learned bias b_f (H,) in f_t = σ(V_f v_t + b_f). Default: no
    bias. In the authors' code the bias starts at 1.
    These are the paper's equations; the authors' code has x_{t-1}, which `t-lstm` reads, in place of h_{t-1}.
    Source: Kuo et al., "An Input Residual Connection for Simplifying Gated Recurrent Neural Networks", IJCNN 2020,
    eqs 40-44; the authors' code: https://github.com/Nic5472K/IJCNN2020_IRC
    """

    name = "irc-t-lstm"
    paper = "Kuo et al. 2020, eqs 40-44"
    gates: tuple[Gate, ...] = (
        Gate("f", x=False, h=False, m=True, bias=False),
        Gate("o", x=False, h=False, m=True, bias=False),
        Gate("a", h=False, bias=False),
    )
    states = ("h", "c")

    def update(self, p: Gates, state: State) -> State:
        _, c = state
        f = torch.sigmoid(p.f)
        o = torch.sigmoid(p.o)
        c = torch.lerp(p.a, c, f)
        return (o * c, c)


class IHCLSTM(ForgetBias):
    """Long short-term memory with an input highway connection.

    g_t = σ(W_g x_t + R_g h_{t-1} + b_g)
    u_t = R_u h_{t-1}
    v_t = (1 - g_t) ⊙ x_t + g_t ⊙ u_t
    f_t = σ(V_f v_t)
    i_t = σ(V_i v_t)
    o_t = σ(V_o v_t)
    a_t = W_a x_t
    c_t = f_t ⊙ c_{t-1} + i_t ⊙ a_t
    h_t = o_t ⊙ tanh(N(c_t))

    Shapes: x (B, I), h and c (B, H), v (B, I), W (I + H, I) for g, a; R (2I, H) for g, u; V (3H, I) for
    f, i, o; b (I,) for g.
    Gates: g, u, f, i, o, a. h_0 = c_0 = 0.
    N is the identity unless `norm=recurrent-batch` normalises the cell state.
    Options: forget_bias is the initial value of a learned bias b_f (H,) in f_t = σ(V_f v_t + b_f). The parameter b then
    has the shape (I + H,), for g and f. Default: no b_f. In the authors' code b_f starts at 1.
    These are the paper's equations. R_g is the paper's Γ, taken as a matrix (I, H). The authors' code has neither W_g
    nor b_g.
    The similar cell `eins` has W_e x_t in place of u_t, and computes a_t from v_t.
    Source: Kuo et al., "An Input Residual Connection for Simplifying Gated Recurrent Neural Networks", IJCNN 2020,
    eqs 23-26, 52, 53; the authors' code: https://github.com/Nic5472K/IJCNN2020_IRC
    """

    name = "ihc-lstm"
    paper = "Kuo et al. 2020, eqs 23-26, 52, 53"
    gates = (
        Gate("g", mid=True),
        Gate("u", x=False, bias=False, mid=True),
        Gate("f", x=False, h=False, m=True, bias=False),
        Gate("i", x=False, h=False, m=True, bias=False),
        Gate("o", x=False, h=False, m=True, bias=False),
        Gate("a", h=False, bias=False),
    )
    normalises_c = True
    states = ("h", "c")

    @property
    def mid_size(self) -> int:
        return self.input_size

    def mid(self, p: Gates, state: State) -> Tensor:
        g = torch.sigmoid(p.g)
        return torch.lerp(p.x, p.u, g)

    def update(self, p: Gates, state: State) -> State:
        _, c = state
        f = torch.sigmoid(p.f)
        i = torch.sigmoid(p.i)
        o = torch.sigmoid(p.o)
        c = f * c + i * p.a
        return (o * torch.tanh(p.norm_c(c)), c)
