# SPDX-License-Identifier: Apache-2.0
"""Order of the frequencies in an exported front end, whose FFT is two matrix products."""

import numpy as np
from numpy.typing import NDArray


def factors(size: int) -> tuple[int, int]:
    """Split the size of an FFT, a power of two, into N1 and N2 = N1 or 2 N1."""
    first = 1 << (size.bit_length() - 1) // 2
    return first, size // first


def frequency_order(size: int) -> NDArray[np.int64]:
    """Return the frequencies of the (N1/2 + 1) N2 rows of an exported front end's filters.

    Row k1 N2 + k2 is the frequency k = k1 + N1 k2 or its mirror N - k, whichever is smaller. Some occur twice.

    Args:
        size: N, a power of two.

    Returns:
        Numbers from 0 to N/2.
    """
    first, second = factors(size)
    frequencies = (np.arange(first // 2 + 1)[:, None] + first * np.arange(second)).ravel()
    order: NDArray[np.int64] = np.minimum(frequencies, size - frequencies)
    return order
