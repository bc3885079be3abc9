# SPDX-License-Identifier: Apache-2.0
"""Order of the frequencies in the ONNX graph of a front end (audio features), whose FFT is two matrix products."""

import numpy as np
from numpy.typing import NDArray


def factors(size: int) -> tuple[int, int]:
    """Split the size N of an FFT, a power of two, into two factors (N1, N2), where N2 is N1 or 2 N1."""
    first = 1 << (size.bit_length() - 1) // 2
    return first, size // first


def frequency_order(size: int) -> NDArray[np.int64]:
    """Return the FFT bin that belongs to each row of the matrix of mel filters in an exported file.

    The matrix has (N1/2 + 1) N2 rows, with N1 and N2 from `factors`. Row k1 N2 + k2 belongs to bin k = k1 + N1 k2 or
    to its mirror N - k, whichever is smaller. Some bins occur twice.

    Args:
        size: N, the size of the FFT, a power of two.

    Returns:
        Bins from 0 to N/2, in the order of the rows.
    """
    first, second = factors(size)
    frequencies = (np.arange(first // 2 + 1)[:, None] + first * np.arange(second)).ravel()
    order: NDArray[np.int64] = np.minimum(frequencies, size - frequencies)
    return order
