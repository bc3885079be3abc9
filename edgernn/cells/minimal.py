# SPDX-License-Identifier: Apache-2.0
"""Minimal gated cells, whose gates read only the input: `mingru` and `minlstm`.

Saves: `mingru` has two matrices for the input, `minlstm` three, and they have none for the state; a GRU has six in all,
an LSTM eight. All products of a sequence can be computed at once, before the first step.
Choose them for long sequences, with two layers or more: within one layer, no gate sees the state. Their paper uses them
inside a block with normalisation and a residual connection: the setting `block` of a model.
"""

import torch

from edgernn.cells.base import Cell, Gate, Gates, State


class MinGRU(Cell):
    """Minimal gated recurrent unit: a GRU without reset gate, tanh and matrices for the state.

    z_t = σ(W_z x_t + b_z)
    n_t = W_n x_t + b_n
    h_t = (1 - z_t) ⊙ h_{t-1} + z_t ⊙ n_t

    Shapes: x (B, I), h (B, H), W (2H, I) and b (2H,) for z, n. Gates: z, n. h_0 = 0.
    The authors' code for training by a parallel scan has g(W_n x_t + b_n) in place of n_t, with g(a) = a + 1/2 where
    a ≥ 0, else σ(a). That keeps h positive; it is not part of this cell.
    Source: Feng et al., "Were RNNs All We Needed?", 2024, section 3.1, https://arxiv.org/abs/2410.01201
    """

    name = "mingru"
    paper = "Feng et al. 2024, arXiv:2410.01201"
    gates = (Gate("z", h=False), Gate("n", h=False))

    def update(self, p: Gates, state: State) -> State:
        (h,) = state
        return (torch.lerp(h, p.n, torch.sigmoid(p.z)),)


class MinLSTM(Cell):
    """Minimal long short-term memory: forget and input gate that sum to 1, without tanh and matrices for the state.

    f_t = σ(W_f x_t + b_f)
    i_t = σ(W_i x_t + b_i)
    n_t = W_n x_t + b_n
    h_t = (f_t ⊙ h_{t-1} + i_t ⊙ n_t) / (f_t + i_t)

    Shapes: x (B, I), h (B, H), W (3H, I) and b (3H,) for f, i, n. Gates: f, i, n. h_0 = 0.
    Where both gates underflow, the step still takes the limit of i_t / (f_t + i_t).
    The authors' code for training by a parallel scan replaces n_t by a positive function, as for `mingru`.
    Source: Feng et al., "Were RNNs All We Needed?", 2024, section 3.2, https://arxiv.org/abs/2410.01201
    """

    name = "minlstm"
    paper = "Feng et al. 2024, arXiv:2410.01201"
    gates = (Gate("f", h=False), Gate("i", h=False), Gate("n", h=False))

    def update(self, p: Gates, state: State) -> State:
        (h,) = state
        # i / (f + i) = (1 + e^-f) / (2 + e^-f + e^-i), times e^most: the largest exponent becomes 0
        least = max(-1e30, torch.finfo(p.f.dtype).min)
        low_f, low_i = (gate.clamp(min=least) for gate in (p.f, p.i))
        most = torch.minimum(low_f, low_i).clamp(max=0.0)
        one, f, i = torch.exp(most), torch.exp(most - low_f), torch.exp(most - low_i)
        return (torch.lerp(h, p.n, (one + f) / (2 * one + f + i)),)
