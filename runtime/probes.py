# SPDX-License-Identifier: Apache-2.0
"""Steps of a packed model in a loop in C, to time them without Python."""

import ctypes
from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from edgernn.errors import EdgernnError
from edgernn.runtime.library import train_library
from edgernn.runtime.stepper import Stepper


@cache
def probes() -> ctypes.CDLL:
    """Load the training library, which has the loop in C, `edgernn_probe_sequences`.

    EdgernnError is raised if it is missing, or lacks the function because it was built from another version.
    """
    path = train_library()
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    try:
        library = ctypes.CDLL(str(path))
        library.edgernn_probe_sequences.argtypes = [pointer] * 4 + [number] * 3 + [pointer]
    except (OSError, AttributeError):
        raise EdgernnError(
            f"{path}: the library cannot be loaded, or lacks a C function that this edgernn version calls; build "
            "it again with: pip install ."
        ) from None
    return library


def streamed(stepper: Stepper, x: NDArray[np.float32] | NDArray[np.int64]) -> Callable[[], None]:
    """Return a function without arguments that runs a model on N sequences, step by step in a loop in C.

    Args:
        stepper: The packed model, loaded with a batch size of 1.
        x: The N sequences: float32 (N, T, I), or int64 word indices (N, T). Each starts from the initial state.

    Returns:
        The function. It leaves the output of the last step in `stepper.y`. It raises EdgernnError if the model rejects
        an input, such as NaN.
    """
    kind = stepper.x.dtype
    array = np.ascontiguousarray(x, kind)
    sequences, steps = array.shape[:2]
    stride = stepper.x.size * kind.itemsize // ctypes.sizeof(ctypes.c_float)
    library = probes()
    step, model, _, y = stepper.native
    # data_as keeps the array alive
    data = array.ctypes.data_as(ctypes.c_void_p)
    arguments = step, stepper.native_reset, model, data, sequences, steps, stride, y

    def call() -> None:
        if library.edgernn_probe_sequences(*arguments) != 0:
            raise EdgernnError(f"the packed model rejects x: {stepper.refusal()}; correct the data")

    return call
