# SPDX-License-Identifier: Apache-2.0
"""Layer and recurrent batch normalisation of the matrix-vector products of any cell.

A cell multiplies W by the input, R by the output h, C by the cell state c, and V by an intermediate vector, if it has
these matrices. Each of the products is normalised separately. `recurrent-batch` also normalises the cell state for the
output, in every cell with the equation h_t = o_t ⊙ tanh(N(c_t)). The c that the next step reads is not normalised.

Set the normalisation with `SequenceModel(..., norm="layer")` or `norm="recurrent-batch"`; on the command line with
`norm=layer`.

Two more options change how a cell stores its recurrent weights R (rows, H), if it has them. Here, rows is the sum of
the sizes of the gates that read h. `rank=r` stores R as the product of two matrices (rows, r) and (r, H). `density=d`
divides R into blocks of 16 neighbouring neurons by one column, and keeps a share d of the blocks, from 0
(exclusive) to 1. Training sets the other blocks to zero on the schedule of `SequenceModel.prune`.

Saves: a normalisation saves nothing, it helps training. `rank=r` needs r (rows + H) weights and multiply-adds instead
of rows · H. With `density=d`, d · rows · H weights are not zero. Kernels skip the zeros under the rules `always` and
`skip` if that saves a quarter or more; files store them. Sparse weights need `weights=float32`. These are savings of
inference: training kernels multiply by the whole matrix. On a CPU, `backend=auto` trains layers with a rank and more
than 256 neurons in the torch loop, which multiplies by the factors.
Choose `layer` for batches of any size and sequences of any length, and `recurrent-batch` for long sequences of one
length and large batches. Choose rank or density for a state so wide that R is most of the model.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from edgernn.errors import UsageError, nearest


class LayerNorm(nn.Module):
    """Layer normalisation of a matrix-vector product p: mean 0 and variance 1 over its elements, times a learned gain.

    N(p) = γ ⊙ (p - mean(p)) / √(var(p) + ε)

    Shapes: p (…, rows), one element for each row of the matrix; mean and var (biased) are over this last dimension.
    γ = gain (rows,), initially 1; ε = 1e-5. It has no shift, because the cell's biases are added afterwards. The cell
    state is not normalised.
    Source: Ba, Kiros, Hinton, "Layer Normalization", 2016, https://arxiv.org/abs/1607.06450, eq 20. As here, the
    DecayNet paper (section 6.2) normalises the product with the input and the product with the state separately.
    """

    name = "layer"
    # a row's value depends on all other rows
    couples = True
    counts_steps = False

    def __init__(self, rows: int, steps: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(rows))

    @classmethod
    def of_state(cls, size: int, steps: int) -> nn.Module | None:
        """Return None, because layer normalisation leaves the cell state unchanged."""
        return None

    def forward(self, p: Tensor, t: Tensor | None) -> Tensor:
        return nn.functional.layer_norm(p, self.gain.shape, self.gain, None, 1e-5)


class StepAffine(nn.Module):
    """Recurrent batch normalisation of an exported model: an affine map N_t(p) = scale_t ⊙ p + shift_t at time step t.

    The constants scale and shift (steps, rows) have a row for each of the first time steps. Later time steps use the
    last row. p is (B, rows) or (T, B, rows).
    """

    couples = False
    counts_steps = True

    scale: Tensor
    shift: Tensor

    def __init__(self, scale: Tensor, shift: Tensor) -> None:
        super().__init__()
        self.register_buffer("scale", scale)
        self.register_buffer("shift", shift)

    def forward(self, p: Tensor, t: Tensor | None) -> Tensor:
        assert t is not None
        return _affine(p, t, self.scale, self.shift)


class RecurrentBatchNorm(nn.Module):
    """Recurrent batch normalisation of p, which is W x, R h, another product of a cell, or its cell state c.

    Each time step is normalised over the batch, then scaled by γ and shifted by β:

    N_t(p) = γ ⊙ (p - mean_t) / √(var_t + ε) + β

    In training, mean_t and var_t (biased) are those of the batch. Evaluation uses their moving averages, which are
    updated with momentum 0.1. The averages are kept for the first time steps, as many as the setting `norm_steps` says
    (by default 1000); in evaluation, later time steps use those of the last one. An exported file holds one scale and
    one shift per time step, computed from γ, β and the averages.
    Shapes: p (B, rows) for one step or (T, B, rows) for T steps. t (B, 1) has the index of the first of these steps for
    each sequence. γ = gain (rows,), initially 0.1, and β = shift (rows,), initially 0, are shared over time; ε = 1e-5.
    Only the cell state has a β, because the cell's biases are added to the products.
    The attribute `total` is None in a single process. In data-parallel training it is a differentiable function that
    sums a tensor over the processes, each of which has a part of the batch.
    Source: Cooijmans et al., "Recurrent Batch Normalization", 2016, https://arxiv.org/abs/1603.09025. Its population
    statistics are averages over the training set; the authors' code has moving averages with a weight of 0.01. That
    code also learns h_0 and c_0, which are 0 here. It initialises the forget bias to 1, and R to the identity or to an
    orthogonal matrix.
    """

    name = "recurrent-batch"
    couples = False
    counts_steps = True
    eps, momentum = 1e-5, 0.1
    total: Callable[[Tensor], Tensor] | None = None

    mean: Tensor
    var: Tensor

    def __init__(self, rows: int, steps: int, shifts: bool = False) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.full((rows,), 0.1))
        self.shift = nn.Parameter(torch.zeros(rows)) if shifts else None
        self.register_buffer("mean", torch.zeros(steps, rows))
        self.register_buffer("var", torch.ones(steps, rows))

    @classmethod
    def of_state(cls, size: int, steps: int) -> "RecurrentBatchNorm":
        """Create the normalisation of a cell state (B, size), with a shift β and statistics for `steps` time steps."""
        return cls(size, steps, shifts=True)

    def forward(self, p: Tensor, t: Tensor | None) -> Tensor:
        assert t is not None
        if not self.training:
            return _affine(p, t, *self._fold())
        var, mean = torch.var_mean(p, -2, correction=0) if self.total is None else self._shared(p, self.total)
        with torch.no_grad():
            # all sequences of a training batch are at the same step
            self._average(mean.reshape(-1, mean.shape[-1]), var.reshape(-1, var.shape[-1]), t[0])
        normalised = self.gain * (p - mean.unsqueeze(-2)) * torch.rsqrt(var.unsqueeze(-2) + self.eps)
        return normalised if self.shift is None else normalised + self.shift

    def _average(self, mean: Tensor, var: Tensor, first: Tensor) -> None:
        """Update the moving averages of T time steps with the mean and the variance (T, rows) of a batch."""
        at = first.to(torch.int64) + torch.arange(len(mean), device=mean.device)
        has_average = (at < len(self.mean)).unsqueeze(-1)
        at = at.clamp(max=len(self.mean) - 1)
        for average, now in ((self.mean, mean), (self.var, var)):
            change = self.momentum * (now.to(average.dtype) - average[at])
            average.index_add_(0, at, torch.where(has_average, change, 0.0))

    def _shared(self, p: Tensor, total: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Compute the biased variance and the mean (…, rows) of p (…, B, rows) over the batches of all processes."""
        count = total(p.new_tensor(float(p.shape[-2])))
        mean = total(p.sum(-2)) / count
        return total((p - mean.unsqueeze(-2)).square().sum(-2)) / count, mean

    def folded(self) -> StepAffine:
        """Return a module for export: one affine map per time step, equal to this module in evaluation mode."""
        return StepAffine(*self._fold())

    def _fold(self) -> tuple[Tensor, Tensor]:
        scale = self.gain * torch.rsqrt(self.var + self.eps)
        shift = -self.mean * scale
        return scale, shift if self.shift is None else shift + self.shift


def _affine(p: Tensor, t: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    step = t.squeeze(-1).to(torch.int64)
    if p.ndim == 3:
        step = step + torch.arange(p.shape[0], device=p.device).unsqueeze(-1)
    step = step.clamp(max=scale.shape[0] - 1)
    return scale[step] * p + shift[step]


NORMS: dict[str, type[LayerNorm] | type[RecurrentBatchNorm]] = {
    norm.name: norm for norm in (LayerNorm, RecurrentBatchNorm)
}


@dataclass(frozen=True)
class Norm:
    """Choice of a cell's normalisation; an unknown name or `steps` below 1 raises UsageError.

    Attributes:
        name: "layer" or "recurrent-batch".
        steps: Number of time steps for which "recurrent-batch" keeps separate statistics.
    """

    name: str
    steps: int = 1000

    def __post_init__(self) -> None:
        if self.name not in NORMS:
            raise nearest("norm", self.name, NORMS)
        if self.steps < 1:
            raise UsageError(
                f"norm_steps: expected at least 1, got {self.steps}; set it to the number of time steps of a sequence"
            )

    @property
    def couples(self) -> bool:
        """True if the normalised value of a neuron depends on all other neurons, as in layer normalisation."""
        return NORMS[self.name].couples

    @property
    def counts_steps(self) -> bool:
        """True if the normalisation depends on the index of the time step, as recurrent batch normalisation does."""
        return NORMS[self.name].counts_steps

    def modules(self, weights: Mapping[str, Tensor], state_size: int) -> dict[str, nn.Module]:
        """Create the normalisation modules of a cell.

        Args:
            weights: Dict from name to weight. Each product with a weight matrix W, R, C or V is normalised.
            state_size: H if the cell state c is normalised before the output, else 0.

        Returns:
            A dict from "W", "R", "C" and "V" to the module of the weight's product, and from "c" to that of c.
        """
        names = [name for name in ("W", "R", "C", "V") if name in weights]
        modules = {name: self.of_product(len(weights[name])) for name in names}
        of_state = self.of_state(state_size) if state_size else None
        return modules if of_state is None else modules | {"c": of_state}

    def of_product(self, rows: int) -> nn.Module:
        """Create the normalisation module for a matrix-vector product (…, rows)."""
        return NORMS[self.name](rows, self.steps)

    def of_state(self, size: int) -> nn.Module | None:
        """Create the module that normalises a cell state (B, size); None if this kind does not normalise states."""
        return NORMS[self.name].of_state(size, self.steps)
