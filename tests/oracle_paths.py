# SPDX-License-Identifier: Apache-2.0
"""The work that kernels do beyond the changing neurons, or leave out, so that the oracle counts what they execute."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


# the percentage of active neurons in blocks from which kernels compute whole blocks, by the bits of the weights, for
# blocks of 16 and of fewer neurons
BLOCK_PERCENT = {32: (92, 75), 16: (60, 50), 8: (45, 30)}
# the largest percentage of active neurons with which kernels keep R h of the gates marked `mid`, if all states are
# below the largest one
KEPT_PERCENT = 50
LARGEST_STATE = 4.0
# the product of the first stage with x takes as long as that of this many more columns
MID_OVERHEAD = 10


class KernelPaths:
    """How many neurons a kernel computes beyond the active ones, and which columns of the first stage it leaves out.

    Args:
        row: The cell.
        I: Input size.
        H: Hidden size.
        lanes: Number of neurons in a block.
        weight_bits: Bits of the weights.
        keeps: The rule may keep sums of the first stage.
    """

    def __init__(self, row: Any, I: int, H: int, lanes: int, weight_bits: int, keeps: bool = False) -> None:
        self.members = np.array([min(lanes, H - first) for first in range(0, H, lanes)])
        self.padded = lanes * len(self.members)
        self.lanes, self.percent = lanes, BLOCK_PERCENT[weight_bits][lanes < 16]
        self.reads_state = row.h + row.m > 0
        vectors = 1 + row.reads_last
        packed = -(-I // lanes) * lanes * vectors
        projects = weight_bits == 32 and row.x > 0
        self.min_projected = H * ((70 * I * vectors + 600) * 100 // (109 * packed)) // 100 + 1 if projects else H + 1

        # multiply-adds of the first stage with x, which kernels may compute for a chunk of steps at once
        self.I, self.mid_input = I, row.middle_size(I, H) * row.mid_x * I if keeps else 0
        keeps &= weight_bits == 32 and row.keeps_sums
        self.max_kept = H * KEPT_PERCENT // 100 if keeps else 0
        self.column = row.middle_size(I, H) * row.mid_macs(0, 1)
        self.kept: Array = np.zeros(H)

    def projects_mid(self, updates: NDArray[np.int64]) -> bool:
        """Tell if the first stage's product with x is computed at once for the chunk after these updates (T, B)."""
        return bool(5 * (updates > 0).sum() * (self.I + MID_OVERHEAD) > 3 * updates.size * self.I)

    def unread(self, k: NDArray[np.int64], h: Array) -> NDArray[np.int64]:
        """Return the multiply-adds (B,) that the first stage saves in a step which changes k neurons of the states h.

        It adds the columns of those that changed since its last sums, which begin with states of zero.
        """
        keeps = (k > 0) & (k <= self.max_kept) & (np.abs(h) < LARGEST_STATE).all(-1)
        saved = (h == self.kept).sum(-1)
        self.kept = np.where(keeps[:, None], h, self.kept)
        return np.where(keeps, saved, 0) * self.column

    def choose(self, active: Array, every_block: bool) -> tuple[Array, Array, Array]:
        """Return three numbers per sample for the active neurons (B, H).

        These are the neurons computed in whole blocks, the active neurons of samples that compute W x of all neurons
        and the rest row by row, and the neurons, with padding, whose W x comes from whole blocks.
        """
        k = active.sum(-1)
        blocks = np.stack(
            [part.any(-1) for part in np.split(active, range(self.lanes, active.shape[1], self.lanes), -1)], -1
        )
        blocks |= every_block
        projects = k >= self.min_projected
        whole = (k > 0) & (100 * k > self.percent * self.lanes * blocks.sum(-1)) | (projects & (not self.reads_state))
        projects &= ~whole
        computed, projected = np.where(whole, blocks @ self.members, 0), np.where(projects, k, 0)
        return computed, projected, np.where(whole, self.lanes * blocks.sum(-1), projects * self.padded)
