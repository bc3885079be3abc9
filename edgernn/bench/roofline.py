# SPDX-License-Identifier: Apache-2.0
"""Lower bounds of a recurrent layer's time on this processor, measured in the same rounds as the runtimes.

For one sequence the bound is the product y = R h with the recurrent weights R alone, once per step, with R packed in
access order and warm in cache. For a batch it is all multiply-adds at the peak rate of one thread times the number of
threads. The measured C functions, called probes, are declared in `csrc/tests/probe.h`.
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
    """Callable that computes y = R h `repeats` times. Write `h` (columns,) before a call; read `y` (rows,) after it.

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
    """Build a function that computes matrix-vector products, the lower bound of a recurrent step.

    Args:
        rows: Rows of the matrix.
        columns: Columns of the matrix.
        times: Number of matrix-vector products to do.

    Returns:
        The function, and the number of its calls that do `times` products, which may be below 1.
    """
    product = MatVec(np.full((rows, columns), 1e-3, np.float32))
    return product, times / product.repeats


def multiply_adds(count: float, threads: int) -> tuple[Callable[[], float], float]:
    """Build a function that does multiply-adds at the peak rate of a thread.

    It runs on one thread, because the system may schedule two threads on one processor for the length of a call.

    Args:
        count: Number of multiply-adds to do.
        threads: Number of threads that share the multiply-adds.

    Returns:
        The function, and the number of its calls that take as long as `count` multiply-adds on `threads` threads at
        peak rate.
    """
    library = probes()
    repeats = 20 * _WORK // (PANEL * int(library.edgernn_probe_lanes()))
    done = repeats * PANEL * int(library.edgernn_probe_lanes())
    return lambda: float(library.edgernn_probe_fma(repeats)), count / done / threads


def steps_in_c(stepper: Stepper, macs: float) -> tuple[Callable[[], None], float]:
    """Build a function that runs many steps of a packed model in a C loop.

    Args:
        stepper: The loaded packed model, with its input x.
        macs: Number of multiply-adds of a step, from which the number of steps of a call is chosen.

    Returns:
        The function, and one divided by the number of steps of a call. The function raises EdgernnError if the model
        rejects the input.
    """
    library, repeats = probes(), max(1, int(_WORK / macs))
    arguments = *stepper.native, ctypes.c_int64(repeats)

    def call() -> None:
        if library.edgernn_probe_steps(*arguments) != 0:
            raise EdgernnError(f"the packed model rejects the input: {stepper.refusal()}; report a bug")

    return call, 1 / repeats


def _aligned(size: int) -> NDArray[np.float32]:
    """Allocate an array of `size` float32 zeros, aligned to a cache line of 64 bytes."""
    return aligned(4 * size).view(np.float32)
