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
    """Base class of the ways to store a cell's recurrent weights (rows, H): dense, low-rank or block-sparse.

    The rows are those of all gates that read the output h. Low-rank weights have a `rank`, block-sparse weights a
    `density`, the share of their blocks that is not zero; both are None otherwise.
    """

    rank: ClassVar[int | None] = None
    density: ClassVar[float | None] = None

    def check(self, cell: str, weights: bool) -> None:
        """Raise UsageError if the cell named `cell` cannot store recurrent weights in this way.

        Dense storage suits any cell. Low-rank and block-sparse storage suit only a cell that has recurrent weights.

        Args:
            cell: Name of the cell, for the error message.
            weights: True if the cell has recurrent weights.
        """

    def columns(self, hidden: int) -> int:
        """Return the number of columns of the parameter R: the rank if R is low-rank, else `hidden`, the size H."""
        return self.rank or hidden

    def parameters(self, hidden: int) -> dict[str, nn.Parameter]:
        """Return a dict of the uninitialised parameters that this storage needs besides R.

        Low-rank storage needs the factor Q (rank, H), with the key "Q". For other storage the dict is empty. `hidden`
        is H.
        """
        return {}

    def buffers(self, weight: Tensor) -> dict[str, Tensor]:
        """Create the buffers that belong to the weights R, in a dict by name.

        Block-sparse storage has one buffer, `kept`: a mask (rows, H), True at the weights that are not pruned. Other
        storage has none. `weight` is R.
        """
        return {}

    def reset(self, weights: Mapping[str, Tensor], bound: float) -> None:
        """Draw the recurrent weights again, in place, if their storage needs another distribution.

        The cell calls this hook after it has filled all its parameters from U(-bound, bound). That is right for one
        matrix R (rows, H), but not for the factors R and Q of low-rank storage. After the call, the recurrent weights
        (R, or the product R Q) must have the variance of U(-bound, bound), which is bound²/3.

        Args:
            weights: Dict from the names of all parameters of the cell to the parameters.
            bound: 1/√H for a cell with H neurons.
        """


@dataclass(frozen=True)
class Dense(Recurrent):
    """Dense recurrent weights, stored as one matrix R (rows, H)."""


DENSE = Dense()


@dataclass(frozen=True)
class LowRank(Recurrent):
    """Low-rank recurrent weights, stored as the factors R (rows, rank) and Q (rank, H) of the product R Q.

    The product R Q has one row for each row of the gates that read h. Low rank saves weights and multiply-adds if
    rank < rows·H / (rows + H). The initial R and Q are drawn from a uniform distribution such that the elements of R Q
    have the variance of U(-1/√H, 1/√H). A rank below 1 raises UsageError.
    Source: Kusupati et al. 2018, arXiv:1901.02358, the paper of the cell `fastgrnn`, which has low-rank weights.
    """

    rank: int  # type: ignore[misc]

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise UsageError(f"rank: expected at least 1, got {self.rank}; leave it out for dense weights")

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
    """Block-sparse recurrent weights R (rows, H), where `density` is the share of the blocks that are not zero.

    A block is 16 neighbouring neurons (BLOCK) by one column. The gates of a cell share one pattern of zero blocks. If
    the cell has an intermediate vector, its gates have two patterns: one for the gates that `Cell.mid` reads to compute
    this vector, one for the others. R starts dense; in training `Cell.threshold` keeps the blocks with the largest
    weights and sets the others to zero. The native library skips zero blocks if the update rule has the attribute
    skips_zeros = True, as the rules "always" and "skip" do, and if at least a quarter of a pattern is zero. A density
    outside (0, 1] raises UsageError.
    Source: the method of Kusupati et al. 2018, arXiv:1901.02358, who set single weights to zero.
    """

    density: float  # type: ignore[misc]

    def __post_init__(self) -> None:
        if not 0 < self.density <= 1:
            raise UsageError(
                f"density: expected above 0 and at most 1, got {self.density}; leave it out for dense weights"
            )

    def check(self, cell: str, weights: bool) -> None:
        if not weights:
            raise UsageError(f"density: {cell} has no recurrent weights to prune; leave it out")

    def buffers(self, weight: Tensor) -> dict[str, Tensor]:
        return {"kept": torch.ones_like(weight, dtype=torch.bool)}

    def largest(self, gates: Tensor) -> Tensor:
        """Return a mask (neurons, H) that is True in the blocks of R to keep, those with the largest sums of squares.

        `gates` (number of gates, neurons, H) holds the rows of R of several gates. The gates share the mask: the sum of
        squares of a block is taken over all of them.
        """
        size = gates.shape[1]
        energy = gates.square().sum(0)
        energy = nn.functional.pad(energy, (0, 0, 0, -size % BLOCK)).reshape(-1, BLOCK, energy.shape[1]).sum(1)
        count = max(1, round(self.density * energy.numel()))
        mask = torch.zeros_like(energy, dtype=torch.bool)
        mask.view(-1)[energy.flatten().topk(count).indices] = True
        return mask.repeat_interleave(BLOCK, 0)[:size]


def skipped_zeros(kept: Tensor) -> int:
    """Count the zeros that the native library skips in block-sparse recurrent weights R; 0 if the product is dense.

    `kept` is a mask of rows of R, False where a weight is held at zero. The library multiplies R as a dense matrix if
    less than a quarter of it is zero. If the cell has an intermediate vector, this holds for the rows of the gates that
    `Cell.mid` reads and for all other rows separately.
    """
    zeros = int((~kept).sum())
    return zeros if 4 * zeros >= kept.numel() else 0


def recurrent_weights(rank: int | None = None, density: float | None = None) -> Recurrent:
    """Create the storage of recurrent weights: low-rank, block-sparse, or dense if both arguments are None.

    Raise UsageError if both are set, or one is invalid.
    """
    if rank is not None and density is not None:
        raise UsageError("density, rank: expected at most one of the two, got both; leave one out")
    if rank is not None:
        return LowRank(rank)
    return DENSE if density is None else BlockSparse(density)
