# SPDX-License-Identifier: Apache-2.0
"""What this processor can do at best, measured in the same rounds as what is compared with it.

For one sequence it is the product y = R h once a step and nothing else, with R packed in the order in which it is read
and warm in cache; for a batch, the multiply-adds of all products at the peak rate, that of one thread times the
threads. `csrc/tests/probe.h` has both.
"""

import ctypes
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from edgernn.errors import EdgernnError
from edgernn.runtime.probes import probes
from edgernn.runtime.stepper import Stepper

# registers of rows of a panel, and of those that the rows left over are in
PANEL, REST = 12, 4
# of a call, so that it is long beside the clock and short beside a round
_WORK = 4_000_000


class MatVec:
    """y = R h with R (rows, columns), over and over; `y` and `h` as the last call left them."""

    def __init__(self, R: NDArray[np.float32]) -> None:
        lanes = int(probes().edgernn_probe_lanes())
        self.rows, columns = R.shape
        padded = -(-self.rows // (REST * lanes)) * REST * lanes
        whole = padded // (PANEL * lanes) * PANEL * lanes
        widths = [PANEL * lanes] * (whole // (PANEL * lanes)) + [REST * lanes] * ((padded - whole) // (REST * lanes))
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
    """A call of the first probe, and how many of them make `times` products of this size."""
    made = MatVec(np.full((rows, columns), 1e-3, np.float32))
    return made, times / made.repeats


def multiply_adds(count: float, threads: int) -> tuple[Callable[[], float], float]:
    """A call of the second probe, and how many of them make `count` multiply-adds if so many threads share them.

    It runs on one: two that are started together may be given the same processor for as long as this takes.
    """
    library = probes()
    repeats = 20 * _WORK // (PANEL * int(library.edgernn_probe_lanes()))
    done = repeats * PANEL * int(library.edgernn_probe_lanes())
    return lambda: float(library.edgernn_probe_fma(repeats)), count / done / threads


def steps_in_c(stepper: Stepper, macs: float) -> tuple[Callable[[], None], float]:
    """A call that steps a packed model over and over without Python, and how many of them make a step of `macs`."""
    library, repeats = probes(), max(1, int(_WORK / macs))
    given = *stepper.native, ctypes.c_int64(repeats)

    def call() -> None:
        if library.edgernn_probe_steps(*given) != 0:
            raise EdgernnError(stepper.refusal())

    return call, 1 / repeats


def _aligned(size: int) -> NDArray[np.float32]:
    """Zeros that begin at a multiple of 64 bytes."""
    memory = np.zeros(size + 16, np.float32)
    start = (-memory.ctypes.data % 64) // 4
    return memory[start : start + size]
