# SPDX-License-Identifier: Apache-2.0
"""Storage of a cell's recurrent weights R: dense, low-rank or block-sparse."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from edgernn.errors import UsageError

# neurons in a block of sparse weights, the SIMD width of the widest native kernels
BLOCK = 16


@dataclass(frozen=True)
class Recurrent:
    """Base class of the ways to store the recurrent weights R (rows, H): dense, low-rank (with a `rank`) or sparse.

    Sparse weights have a `density`, the share of them that is not zero.
    """

    rank: ClassVar[int | None] = None
    density: ClassVar[float | None] = None

    def check(self, cell: str, weights: bool) -> None:
        """Raise UsageError if the cell named `cell` cannot store R in this way; `weights` is True if it has an R."""

    def columns(self, hidden: int) -> int:
        """Number of columns of the parameter R: H, or the rank."""
        return self.rank or hidden

    def parameters(self, hidden: int) -> dict[str, nn.Parameter]:
        """Create the parameters that the cell needs besides R, as a dict from name to uninitialised parameter."""
        return {}

    def buffers(self, weight: Tensor) -> dict[str, Tensor]:
        """Create the buffers that the cell needs for its parameter R, here `weight`, as a dict from name to buffer."""
        return {}

    def reset(self, weights: Mapping[str, Tensor], bound: float) -> None:
        """Initialise recurrent weights in place; they already are U(-bound, bound), which a subclass may replace.

        Elements of R, or of the product R Q, must have the variance of U(-bound, bound).

        Args:
            weights: Dict from the names of the cell's parameters to the parameters.
            bound: 1/√H.
        """


@dataclass(frozen=True)
class Dense(Recurrent):
    """Dense recurrent weights R (rows, H)."""


DENSE = Dense()


@dataclass(frozen=True)
class LowRank(Recurrent):
    """Low-rank recurrent weights, stored as the factors R (rows, rank) and Q (rank, H) of the product R Q.

    It saves weights and multiply-adds if rank < rows·H / (rows + H). The factors start with a wider range, so that the
    product has the variance of U(-1/√H, 1/√H). A rank below 1 raises UsageError.
    Source: the low rank of Kusupati et al. 2018, arXiv:1901.02358.
    """

    rank: int  # type: ignore[misc]

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise UsageError(f"rank: expected at least 1, got {self.rank}")

    def check(self, cell: str, weights: bool) -> None:
        if not weights:
            raise UsageError(f"rank: {cell} has no recurrent weights to factorise; leave it out")

    def parameters(self, hidden: int) -> dict[str, nn.Parameter]:
        return {"Q": nn.Parameter(torch.empty(self.rank, hidden))}

    def reset(self, weights: Mapping[str, Tensor], bound: float) -> None:
        # bounds of the factors for which their product, summed over the rank, has the variance of U(-bound, bound)
        for name in ("R", "Q"):
            nn.init.uniform_(weights[name], -1, 1).mul_(math.sqrt(bound * math.sqrt(3 / self.rank)))


@dataclass(frozen=True)
class BlockSparse(Recurrent):
    """Block-sparse recurrent weights with a share `density` of nonzero blocks.

    A block is BLOCK neighbouring neurons by one column, the same in all gates. R starts dense; in training
    `Cell.threshold` selects the blocks to keep and sets the others to zero. The native kernels of update rules with
    `skips_zeros` skip zero blocks. A density outside (0, 1] raises UsageError.
    Source: the method of Kusupati et al. 2018, arXiv:1901.02358, who set single weights to zero.
    """

    density: float  # type: ignore[misc]

    def __post_init__(self) -> None:
        if not 0 < self.density <= 1:
            raise UsageError(f"density: expected above 0 and at most 1, got {self.density}")

    def check(self, cell: str, weights: bool) -> None:
        if not weights:
            raise UsageError(f"density: {cell} has no recurrent weights to prune; leave it out")

    def buffers(self, weight: Tensor) -> dict[str, Tensor]:
        return {"kept": torch.ones_like(weight, dtype=torch.bool)}

    def largest(self, gates: Tensor) -> Tensor:
        """Return a mask (H, columns) that is True in the blocks to keep, those with the largest sums of squares.

        `gates` (gates, H, columns) is R, split by gate; the sum over a block includes all gates.
        """
        size = gates.shape[1]
        energy = gates.square().sum(0)
        energy = nn.functional.pad(energy, (0, 0, 0, -size % BLOCK)).reshape(-1, BLOCK, energy.shape[1]).sum(1)
        count = max(1, round(self.density * energy.numel()))
        mask = torch.zeros_like(energy, dtype=torch.bool)
        mask.view(-1)[energy.flatten().topk(count).indices] = True
        return mask.repeat_interleave(BLOCK, 0)[:size]


def recurrent_weights(rank: int | None = None, density: float | None = None) -> Recurrent:
    """Create the storage of recurrent weights; raise UsageError if both rank and density are set, or one is invalid."""
    if rank is not None and density is not None:
        raise UsageError("density, rank: expected at most one of the two, got both; leave one out")
    if rank is not None:
        return LowRank(rank)
    return DENSE if density is None else BlockSparse(density)
