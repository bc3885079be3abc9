# SPDX-License-Identifier: Apache-2.0
"""How a cell stores its recurrent weights R: whole, as a product of low rank, or as the largest of their blocks."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from edgernn.errors import UsageError

# neurons in a block of sparse weights: the widest vector of the native kernels
BLOCK = 16


@dataclass(frozen=True)
class Recurrent:
    """Dense recurrent weights R (rows, H); a subclass stores them in another way.

    rank, density: None where R has neither.
    """

    rank: ClassVar[int | None] = None
    density: ClassVar[float | None] = None

    def check(self, cell: str, weights: bool) -> None:
        """Raises UsageError where a cell of this name cannot have such weights; weights: whether it has an R."""

    def columns(self, hidden: int) -> int:
        """Columns of the parameter R."""
        return self.rank or hidden

    def parameters(self, hidden: int) -> dict[str, nn.Parameter]:
        """Further parameters of the cell by name, not yet initialised."""
        return {}

    def buffers(self, weight: Tensor) -> dict[str, Tensor]:
        """Further buffers of the cell by name; weight: the parameter R."""
        return {}

    def reset(self, weights: Mapping[str, Tensor], bound: float) -> None:
        """Initialise R and the further parameters, so that R as a whole is as U(-bound, bound) is."""


@dataclass(frozen=True)
class Dense(Recurrent):
    """R (rows, H) as it is."""


DENSE = Dense()


@dataclass(frozen=True)
class LowRank(Recurrent):
    """R stored as the product R Q of R (rows, rank) and Q (rank, H): H·rank more multiply-adds a step.

    Saves where rank < rows·H / (rows + H). The factors start wider, so that the product is as U(-1/√H, 1/√H) is.
    Source: the low rank of Kusupati et al. 2018, arXiv:1901.02358. Raises UsageError for a rank below 1.
    """

    rank: int  # type: ignore[misc]

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise UsageError(f"rank: expected at least 1, got {self.rank}")

    def check(self, cell: str, weights: bool) -> None:
        if not weights:
            raise UsageError(f"rank: {cell} has no recurrent weights to factorise")

    def parameters(self, hidden: int) -> dict[str, nn.Parameter]:
        return {"Q": nn.Parameter(torch.empty(self.rank, hidden))}

    def reset(self, weights: Mapping[str, Tensor], bound: float) -> None:
        # a product of two uniform factors, summed over the rank, has the variance of one
        for name in ("R", "Q"):
            nn.init.uniform_(weights[name], -1, 1).mul_(math.sqrt(bound * math.sqrt(3 / self.rank)))


@dataclass(frozen=True)
class BlockSparse(Recurrent):
    """R with a share `density` of its blocks: BLOCK neighbouring neurons of one column, in all gates at once.

    R starts whole; `Cell.threshold` picks the blocks. The dense native kernels skip the others.
    Source: the sparsity of Kusupati et al. 2018, arXiv:1901.02358, there of single weights. Raises UsageError for a
    density outside (0, 1].
    """

    density: float  # type: ignore[misc]

    def __post_init__(self) -> None:
        if not 0 < self.density <= 1:
            raise UsageError(f"density: expected above 0 and at most 1, got {self.density}")

    def check(self, cell: str, weights: bool) -> None:
        if not weights:
            raise UsageError(f"density: {cell} has no recurrent weights to thin out")

    def buffers(self, weight: Tensor) -> dict[str, Tensor]:
        return {"kept": torch.ones_like(weight, dtype=torch.bool)}

    def largest(self, gates: Tensor) -> Tensor:
        """The mask (H, columns) of the blocks with the most energy, of weights (gates, H, columns)."""
        size = gates.shape[1]
        energy = gates.square().sum(0)
        energy = nn.functional.pad(energy, (0, 0, 0, -size % BLOCK)).reshape(-1, BLOCK, energy.shape[1]).sum(1)
        count = max(1, round(self.density * energy.numel()))
        mask = torch.zeros_like(energy, dtype=torch.bool)
        mask.view(-1)[energy.flatten().topk(count).indices] = True
        return mask.repeat_interleave(BLOCK, 0)[:size]


def recurrent_weights(rank: int | None = None, density: float | None = None) -> Recurrent:
    """The kind of weights that two settings choose. Raises UsageError for both, and as the kinds do."""
    if rank is not None and density is not None:
        raise UsageError("density: expected either rank or density, not both")
    if rank is not None:
        return LowRank(rank)
    return DENSE if density is None else BlockSparse(density)
