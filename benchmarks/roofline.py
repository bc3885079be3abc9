# SPDX-License-Identifier: Apache-2.0
"""Lower bounds of a recurrent layer's time on this processor, measured in the same rounds as the compared runtimes.

The bound for one sequence is the time of one matrix-vector product per step, such as R h with the recurrent weights R.
The matrix is packed in the order in which it is read, and stays in the cache if it fits. The bound for a batch is the
time of all multiply-adds, if each thread does them at the peak rate of one thread. The measured C functions, called
probes, are declared in `runtime/csrc/train/probe.h`.
"""

import ctypes
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from edgernn.errors import EdgernnError
from edgernn.runtime.probes import probes
from edgernn.runtime.stepper import Stepper, aligned

# height in vector registers of most panels of the packed matrix, and of the panels with the remaining rows
PANEL, REMAINDER = 12, 4
# multiply-adds of a call: long beside the clock's resolution, short beside a round
_WORK = 4_000_000


class MatVec:
    """Callable that computes the product y = R h many times in each call.

    Write `h` (columns,) before a call, and read `y` (rows,), the last product, after it. Each product sets h[0] to
    y[0] / 1000, so that the next product must wait for its result. The attribute `repeats` is the number of products
    in a call, chosen so that a call does about four million multiply-adds. To do another number of products, pass that
    number to the call.

    Args:
        R: Matrix (rows, columns) in float32, which is copied.
    """

    def __init__(self, R: NDArray[np.float32]) -> None:
        lanes = int(probes().edgernn_probe_lanes())
        self.rows, columns = R.shape
        padded = -(-self.rows // (REMAINDER * lanes)) * REMAINDER * lanes
        whole = padded // (PANEL * lanes) * PANEL * lanes
        widths = [PANEL * lanes] * (whole // (PANEL * lanes)) + [REMAINDER * lanes] * (
            (padded - whole) // (REMAINDER * lanes)
        )
        full = np.zeros((padded, columns), np.float32)
        full[: self.rows] = R
        self._packed = _aligned(full.size)
        panels = np.split(full, np.cumsum(widths)[:-1])
        self._packed[:] = np.concatenate([panel.T.ravel() for panel in panels])
        self.h, self._y = _aligned(columns), _aligned(padded)
        self.repeats = max(1, _WORK // full.size)
        sizes = (padded, columns)
        self._arguments = (self._packed.ctypes.data, *sizes, self.h.ctypes.data, self._y.ctypes.data)

    @property
    def y(self) -> NDArray[np.float32]:
        return self._y[: self.rows]

    def __call__(self, repeats: int | None = None) -> None:
        probes().edgernn_probe_matvec(*self._arguments, repeats or self.repeats)


def matvec(rows: int, columns: int, times: float) -> tuple[Callable[[], None], float]:
    """Build a function that computes matrix-vector products, the lower bound of a recurrent step."""
    product = MatVec(np.full((rows, columns), 1e-3, np.float32))
    return product, times / product.repeats


def multiply_adds(count: float, threads: int) -> tuple[Callable[[], float], float]:
    """Build a function whose time tells how long multiply-adds take at the peak rate of several threads.

    The function itself runs on one thread only: the system might run two threads on the same processor during a call,
    and the time would be too long. The time on several threads is computed from that on one thread.
    """
    library = probes()
    repeats = 20 * _WORK // (PANEL * int(library.edgernn_probe_lanes()))
    done = repeats * PANEL * int(library.edgernn_probe_lanes())
    return lambda: float(library.edgernn_probe_fma(repeats)), count / done / threads


def steps_in_c(stepper: Stepper, macs: float) -> tuple[Callable[[], None], float]:
    """Build a function that runs many steps of a packed model in a C loop."""
    library, repeats = probes(), max(1, int(_WORK / macs))
    arguments = *stepper.native, ctypes.c_int64(repeats)

    def call() -> None:
        if library.edgernn_probe_steps(*arguments) != 0:
            raise EdgernnError(f"the packed model rejects the input: {stepper.refusal()}; report a bug")

    return call, 1 / repeats


def _aligned(size: int) -> NDArray[np.float32]:
    """Allocate an array of `size` float32 zeros, aligned to a cache line of 64 bytes."""
    return aligned(4 * size).view(np.float32)
