# SPDX-License-Identifier: Apache-2.0
"""Imputers: layers in front of a cell that fill in missing values of its input and decay the cell's state over time.

The input of such a layer is (T, B, 3F): F values (any number where one is missing), F masks m (1: observed, 0:
missing) and F durations δ, the time since each value was last observed. The cell reads 2F numbers: the filled values
and the masks.

Saves: a separate step that fills in values before training. An imputer is trained together with the cell.
Choose `gru-d` if a value hardly changes until it is measured again, and `rits` if the features predict one another.
Either works with any cell, so a light cell makes a light model: `SequenceModel("pru", ..., imputer="rits")`.
"""

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from edgernn.cells.base import State
from edgernn.errors import UsageError


@dataclass(frozen=True)
class Imputed:
    """Result of one step of an imputer, the layer that fills in missing values.

    Attributes:
        inputs: Input of the cell (B, 2F) for F features: the values with missing ones filled in, then the masks (1:
            observed, 0: missing).
        state: State of the cell after its decay, from which the cell computes the step.
        memory: New states of the imputer itself, (B, F) each, in the order of `Imputer.memory`.
        x: Values with missing ones filled in (B, F).
        estimates: Estimates of all values, observed or not, (B, F) each. The loss compares them with the observed ones.
    """

    inputs: Tensor
    state: State
    memory: State
    x: Tensor
    estimates: tuple[Tensor, ...] = ()


class Imputer(nn.Module, abc.ABC):
    """Base class of imputers, which fill in missing values of F = input_size / 3 features for a cell with H neurons.

    The input has 3F channels: F values, F masks (1: observed, 0: missing), and F times since the last observation.
    Class attributes: `name`, the name on the command line; `paper`, the source; and `memory`, the names of the
    imputer's own states, (B, F) each.
    Attribute `total`: None, except in data-parallel training, which sets it to a function that sums a tensor over the
    processes.
    Parameters start as U(-1/√H, 1/√H). An input_size that is not a multiple of 3 raises UsageError.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    memory: ClassVar[tuple[str, ...]] = ()
    total: Callable[[Tensor], Tensor] | None = None

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        if input_size % 3:
            expected = f"a multiple of 3 (values, masks and times of {self.name})"
            raise UsageError(f"input_size: expected {expected}, got {input_size}; append the masks and times to x")
        self.features, self.hidden_size = input_size // 3, hidden_size

    def _start(self) -> None:
        bound = 1 / math.sqrt(self.hidden_size)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    @abc.abstractmethod
    def forward(self, x: Tensor, state: State, memory: State) -> Imputed:
        """Fill in the missing values of one step, and decay the state of the cell.

        x (B, 3F) has the values, masks and times since the last observation of F features. `state` is the cell's state
        and `memory` holds the imputer's own states, both after the previous step.
        """

    def loss(self, x: Tensor, estimates: tuple[Tensor, ...]) -> Tensor:
        """Compute the imputation loss: the mean absolute error on observed values, summed over steps and estimates.

        Args:
            x: Input (T, B, 3F): values, masks and times since the last observation.
            estimates: Estimates of the values, (T, B, F) each.

        Returns:
            The loss, a scalar. In data-parallel training, the losses of all processes add up to that of the batch.
        """
        values, masks, _ = x.chunk(3, -1)
        observed = masks.sum((1, 2))
        # in evaluation a single process runs, with nothing to sum
        if self.training and self.total is not None:
            observed = self.total(observed)
        observed = observed + 1e-5
        parts = [(((values - estimate).abs() * masks).sum((1, 2)) / observed).sum() for estimate in estimates]
        return torch.stack(parts).sum() if parts else x.new_zeros(())

    def macs(self) -> int:
        """Count the multiply-adds of the imputer's matrix-vector products per step of one sequence."""
        return sum(p.numel() for p in self.parameters() if p.ndim > 1)

    def flops_paper(self) -> float:
        """Count multiplications and additions per step as the SA-RNN paper does: 2n - 1 for a row of n weights."""
        return sum(2 * p.numel() - p.shape[0] for p in self.parameters() if p.ndim > 1)


class GRUD(Imputer):
    """Decay towards the mean: a missing value decays from its last observation to the mean over time.

    γx_t = exp(-max(0, d ⊙ δ_t + e))
    γh_t = exp(-max(0, D δ_t + g))
    x̂_t = m_t ⊙ x_t + (1 - m_t) ⊙ (γx_t ⊙ x'_t + (1 - γx_t) ⊙ mean)       x'_t: the last observed value
    the cell then steps from γh_t ⊙ h_{t-1} on [x̂_t, m_t]

    m_t is the mask (1: observed, 0: missing), and δ_t the time since each value was last observed, (B, F) each.
    Shapes: impute_d = d and impute_e = e (F,), impute_D = D (H, F), impute_g = g (H,); constant impute_mean (F,), by
    default 0. The imputer's state x_seen = x' starts at 0. F is the number of values. Of the states of a cell, such
    as h and c, only the first decays. Observed values are not estimated, so the imputation loss is 0.
    Che et al. write d as a diagonal matrix; the EINS paper has a full matrix. The masks are inputs of the cell: every
    gate that reads x also reads the masks, with weights that Che et al. call V. Their GRU multiplies h by the reset
    gate before the matrix product with R, as the cell `gru-before` does.
    Source: Che et al., "Recurrent Neural Networks for Multivariate Time Series with Missing Values", 2018,
    https://arxiv.org/abs/1606.01865; System C.1 of the EINS paper.
    """

    name = "gru-d"
    paper = "Che et al. 2018, arXiv:1606.01865; EINS, System C.1"
    memory = ("x_seen",)

    impute_mean: Tensor

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size)
        self.impute_D = nn.Parameter(torch.empty(hidden_size, self.features))
        self.impute_g = nn.Parameter(torch.empty(hidden_size))
        self.impute_d = nn.Parameter(torch.empty(self.features))
        self.impute_e = nn.Parameter(torch.empty(self.features))
        self.register_buffer("impute_mean", torch.zeros(self.features))
        self._start()

    def forward(self, x: Tensor, state: State, memory: State) -> Imputed:
        values, masks, times = x.chunk(3, -1)
        (last_seen,) = memory
        x_decay = torch.exp(-torch.relu(self.impute_d * times + self.impute_e))
        h_decay = torch.exp(-torch.relu(nn.functional.linear(times, self.impute_D, self.impute_g)))
        last_seen = torch.where(masks > 0, values, last_seen)
        filled = torch.where(masks > 0, values, x_decay * last_seen + (1 - x_decay) * self.impute_mean)
        return Imputed(torch.cat([filled, masks], -1), (h_decay * state[0], *state[1:]), (last_seen,), filled)


class RITS(Imputer):
    """Recurrent imputation: a missing value is a mix of two estimates, from the state and from the other features.

    γh_t = exp(-max(0, D δ_t + g))                      h decays first: h' = γh_t ⊙ h_{t-1}
    x̂_t = A h' + a
    x^c_t = m_t ⊙ x_t + (1 - m_t) ⊙ x̂_t
    ẑ_t = Z x^c_t + z                                   the diagonal of Z is 0
    γx_t = exp(-max(0, d ⊙ δ_t + e))
    β_t = σ(B [γx_t, m_t] + k)
    ĉ_t = β_t ⊙ ẑ_t + (1 - β_t) ⊙ x̂_t
    the cell then steps from h' on [m_t ⊙ x_t + (1 - m_t) ⊙ ĉ_t, m_t]

    m_t is the mask (1: observed, 0: missing), and δ_t the time since each value was last observed, (B, F) each.
    Shapes: impute_D (H, F), impute_g (H,), impute_A (F, H), impute_a (F,), impute_Z (F, F), impute_z (F,), impute_d and
    impute_e (F,), impute_B (F, 2F), impute_k (F,); impute_D is D above, and so on. `Imputer.loss` is the loss of BRITS,
    the error of x̂, ẑ and ĉ.
    x̂ reads the decayed h, and γx is a decay of its own with diagonal weights, as in the authors' code and unlike the
    paper's equations 1 and 8. The authors' code has no σ in β. The paper uses an LSTM as the cell. BRITS, the model of
    the paper, consists of two RITS models, one for each direction of time.
    Source: Cao et al., "BRITS: Bidirectional Recurrent Imputation for Time Series", NeurIPS 2018, section 4.3,
    https://arxiv.org/abs/1805.10572; appendix C.2 of the EINS paper.
    """

    name = "rits"
    paper = "Cao et al. 2018, arXiv:1805.10572; EINS, appendix C.2"

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size)
        F, H = self.features, hidden_size
        self.impute_D = nn.Parameter(torch.empty(H, F))
        self.impute_g = nn.Parameter(torch.empty(H))
        self.impute_A = nn.Parameter(torch.empty(F, H))
        self.impute_a = nn.Parameter(torch.empty(F))
        self.impute_Z = nn.Parameter(torch.empty(F, F))
        self.impute_z = nn.Parameter(torch.empty(F))
        self.impute_d = nn.Parameter(torch.empty(F))
        self.impute_e = nn.Parameter(torch.empty(F))
        self.impute_B = nn.Parameter(torch.empty(F, 2 * F))
        self.impute_k = nn.Parameter(torch.empty(F))
        self._start()

    def forward(self, x: Tensor, state: State, memory: State) -> Imputed:
        values, masks, times = x.chunk(3, -1)
        linear = nn.functional.linear
        h = torch.exp(-torch.relu(linear(times, self.impute_D, self.impute_g))) * state[0]
        from_state = linear(h, self.impute_A, self.impute_a)
        complement = torch.where(masks > 0, values, from_state)
        off_diagonal = self.impute_Z * (1 - torch.eye(self.features, dtype=x.dtype, device=x.device))
        from_features = linear(complement, off_diagonal, self.impute_z)
        decay = torch.exp(-torch.relu(self.impute_d * times + self.impute_e))
        beta = torch.sigmoid(linear(torch.cat([decay, masks], -1), self.impute_B, self.impute_k))
        mixed = torch.lerp(from_state, from_features, beta)
        filled = torch.where(masks > 0, values, mixed)
        estimates = (from_state, from_features, mixed)
        return Imputed(torch.cat([filled, masks], -1), (h, *state[1:]), memory, filled, estimates)


IMPUTERS: dict[str, type[Imputer]] = {imputer.name: imputer for imputer in (GRUD, RITS)}
