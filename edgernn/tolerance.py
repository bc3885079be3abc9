# SPDX-License-Identifier: Apache-2.0
"""Allowed errors of an exported file's outputs and states, for the check of an export and before a benchmark."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

# float32 sums in another order differ by rounding
TOLERANCE = 1e-4
# for int8 weights in the native library on a CPU, which multiplies 16-bit integers
WHOLE_NUMBERS = 1e-3
# in longer sequences, rounding errors of more steps add up
STEPS = 24


def allowed_error(expected: NDArray[Any], steps: int, tolerance: float = TOLERANCE) -> float:
    """Return the largest allowed absolute error of an output or a state.

    Args:
        expected: Values of the output or state. The error is relative to the largest of them if that is above 1, as a
            head's output may be.
        steps: Number of steps that are computed one after the other, without a correction of the state.
        tolerance: Allowed error of up to 24 steps if no value is above 1. It grows in proportion to further steps.

    Returns:
        The largest allowed absolute error.
    """
    return tolerance * max(1.0, steps / STEPS) * max(1.0, float(np.abs(expected).max(initial=0.0)))
