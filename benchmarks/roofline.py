# SPDX-License-Identifier: Apache-2.0
"""Lower bounds of a recurrent layer's time on this processor, measured in the same rounds as the compared runtimes.

The bound for one sequence is the time of one matrix-vector product per step, such as R h with the recurrent weights R.
The matrix is packed in the order in which it is read, and stays in the cache if it fits. The bound for a batch is the
time of all multiply-adds, if each thread does them at the peak rate of one thread. The compiler `cc` compiles the
measured C functions, `roofline.c`, for the instruction set in use.
"""

import ctypes
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgernn.errors import EdgernnError
from edgernn.runtime.library import instruction_set
from edgernn.runtime.probes import probes
from edgernn.runtime.stepper import Stepper, aligned

# height in vector registers of most panels of the packed matrix, and of the panels with the remaining rows; the sums
# of a panel hide the latency of a multiply-add, and fit 16 registers
PANEL, REMAINDER = 12, 4
# floats in a register of an instruction set, and options of the compiler; four floats in all others
_REGISTERS = {"avx512": (16, ("-mavx512f", "-mfma")), "avx2": (8, ("-mavx2", "-mfma"))}
# multiply-adds of a call: long beside the clock's resolution, short beside a round
_WORK = 4_000_000


@cache
def library() -> tuple[ctypes.CDLL, int]:
    """Compile and load `roofline.c`; return the library, and the number of floats in a register."""
    isa = instruction_set() or ""
    lanes, options = next((value for name, value in _REGISTERS.items() if isa.startswith(name)), (4, ()))
    with tempfile.TemporaryDirectory() as folder:
        file, source = f"{folder}/roofline.so", str(Path(__file__).with_suffix(".c"))
        flags = ["-shared", "-fPIC", "-O3", "-ffp-contract=fast", f"-DLANES={lanes}", *options]
        flags += [f"-DPANEL={PANEL}", f"-DREMAINDER={REMAINDER}"]
        subprocess.run(["cc", *flags, source, "-o", file], check=True)
        loaded = ctypes.CDLL(file)
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    loaded.matvec.argtypes, loaded.matvec.restype = [pointer, number, number, pointer, pointer, number], None
    loaded.multiply_add.argtypes, loaded.multiply_add.restype = [number], ctypes.c_float
    return loaded, lanes


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
        loaded, lanes = library()
        self._matvec = loaded.matvec
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
        self._matvec(*self._arguments, repeats or self.repeats)


def matvec(rows: int, columns: int, times: float) -> tuple[Callable[[], None], float]:
    """Build a function that computes matrix-vector products, the lower bound of a recurrent step."""
    product = MatVec(np.full((rows, columns), 1e-3, np.float32))
    return product, times / product.repeats


def multiply_adds(count: float, threads: int) -> tuple[Callable[[], float], float]:
    """Build a function whose time tells how long multiply-adds take at the peak rate of several threads.

    The function itself runs on one thread only: the system might run two threads on the same processor during a call,
    and the time would be too long. The time on several threads is computed from that on one thread.
    """
    loaded, lanes = library()
    repeats = 20 * _WORK // (PANEL * lanes)
    return lambda: float(loaded.multiply_add(repeats)), count / (repeats * PANEL * lanes) / threads


def steps_in_c(stepper: Stepper, macs: float) -> tuple[Callable[[], None], float]:
    """Build a function that runs many steps of a packed model in a C loop."""
    repeats = max(1, int(_WORK / macs))
    step, model, x, y = stepper.native
    arguments = step, stepper.native_reset, model, x, 1, repeats, 0, y

    def call() -> None:
        if probes().edgernn_probe_sequences(*arguments) != 0:
            raise EdgernnError(f"the packed model rejects the input: {stepper.refusal()}; report a bug")

    return call, 1 / repeats


def _aligned(size: int) -> NDArray[np.float32]:
    """Allocate an array of `size` float32 zeros, aligned to a cache line of 64 bytes."""
    return aligned(4 * size).view(np.float32)
