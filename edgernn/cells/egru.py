# SPDX-License-Identifier: Apache-2.0
"""The event-based GRU (EGRU): a neuron's output is its state where that exceeds a threshold, and 0 elsewhere.

Saves: under the rule `delta`, products read a column of R only when the output of its neuron changes. A single event
changes the output twice, when it begins and when it ends, and the column is read both times. Thresholds of 0
(`rule=delta theta_x=0 theta_h=0`) leave the results as they are. Under other rules all columns are read, as in a `gru`,
which has the same matrices.
Choose it to study events, and not to save work: on three of the four tasks of `docs/background/rivals.md` it is less
accurate than a `gru` with delta, on digits by 7 points, and on the fourth it needs more multiply-adds. Train it with
the rule `always`, which is fast, and then add delta with `edgernn calibrate`.
"""

import math
from typing import Unpack

import torch
from torch import Tensor

from edgernn.cells.base import Cell, Gate, Gates, Parts, State
from edgernn.cells.vector import Vector
from edgernn.errors import UsageError
from edgernn.surrogate import event


class EGRU(Cell):
    """Event-based gated recurrent unit: y is the state c where it exceeds a learned threshold, else 0.

    r_t = σ(W_r x_t + R_r y_{t-1} + b_r)
    u_t = σ(W_u x_t + R_u y_{t-1} + b_u)
    k_t = R_k y_{t-1} + b_k
    z_t = tanh(W_z x_t + b_z + r_t ⊙ k_t)
    c_t = u_t ⊙ z_t + (1 - u_t) ⊙ c_{t-1} - y_{t-1}
    y_t = c_t ⊙ H(c_t - ϑ)        H(v) = 1 where v > 0, else 0        ϑ = σ(theta)

    Shapes: x (B, I), y and c (B, H), W (3H, I) for r, u, z; R (3H, H) for r, u, k; b (4H,) for r, u, z, k; theta (H,).
    y_0 = c_0 = 0. The term -y_{t-1} takes from c what the neuron has sent, so that it rarely sends twice in a row.
    In training the derivative of H is a triangle: dH/dv = height · max(0, 1 - |v| / width), see `edgernn.event`.
    The reset gate is after the matrix product, as in the authors' code: all recurrent products then read y itself. The
    paper has W_z [x_t, r_t ⊙ y_{t-1}]. The term -y_{t-1} is the paper's; the authors' code subtracts ϑ from c where the
    neuron has sent. Their optional output, a moving average of y, is not part of this cell.
    Initial values: theta normal with standard deviation √2 around the value for ϑ = start_threshold, and all other
    parameters U(-1/√H, 1/√H). The authors' code draws ϑ from a Beta distribution with this mean and clamps it to
    [0, 1]; its weights start as Xavier normal numbers, and its biases at 0.
    Options: start_threshold, above 0 and below 1; surrogate_height and surrogate_width, above 0, with the defaults of
    the authors' code.
    Source: Subramoney et al., "Efficient recurrent architectures through activity sparsity and sparse back-propagation
    through time", ICLR 2023, section 3, https://arxiv.org/abs/2206.06178
    """

    name = "egru"
    paper = "Subramoney et al. 2023, arXiv:2206.06178"
    states = ("y", "c")
    gates = (Gate("r"), Gate("u"), Gate("z", h=False), Gate("k", x=False))
    vectors = {"theta": Vector("H", map=torch.sigmoid)}  # noqa: RUF012

    theta: Tensor

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        start_threshold: float = 0.3,
        surrogate_height: float = 0.7,
        surrogate_width: float = 1.0,
        **parts: Unpack[Parts],
    ) -> None:
        if not 0 < start_threshold < 1:
            raise UsageError(f"start_threshold: expected above 0 and below 1, got {start_threshold}")
        for name, number in (("surrogate_height", surrogate_height), ("surrogate_width", surrogate_width)):
            if not 0 < number < math.inf:
                raise UsageError(f"{name}: expected a number above 0, got {number}")
        self.start_threshold = start_threshold
        self.surrogate_height, self.surrogate_width = surrogate_height, surrogate_width
        super().__init__(input_size, hidden_size, **parts)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        super().reset_parameters()
        center = math.log(self.start_threshold / (1 - self.start_threshold))
        torch.nn.init.normal_(self.theta, center, 2**0.5)

    def update(self, p: Gates, state: State) -> State:
        y, c = state
        u = torch.sigmoid(p.u)
        z = torch.tanh(p.z + torch.sigmoid(p.r) * p.k)
        c = torch.lerp(c, z, u) - y
        return c * event(c - p.theta, self.surrogate_height, self.surrogate_width), c
