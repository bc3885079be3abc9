# SPDX-License-Identifier: Apache-2.0
"""Matrices of the FFT in the ONNX graph of a front end (audio features), which is two matrix products.

An FFT of size N = N1 N2 is two matrix products. With the sample index n = N2 n1 + n2 and the frequency k = k1 + N1 k2,
the spectrum X of the samples s is

    X_k = Σ_n2 exp(-2πi n2 k2 / N2) · exp(-2πi n2 k1 / N) · Σ_n1 s_n exp(-2πi n1 k1 / N1)

The samples are real, so only frequencies k with k1 from 0 to N1/2 are computed. The mirror image N - k of every
other frequency k is among them.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def factors(size: int) -> tuple[int, int]:
    """Split the size N of an FFT, a power of two, into two factors (N1, N2), where N2 is N1 or 2 N1."""
    first = 1 << (size.bit_length() - 1) // 2
    return first, size // first


def frequency_order(size: int) -> NDArray[np.int64]:
    """Return the FFT bin, from 0 to N/2, of each row of the matrix of mel filters in an exported file.

    N = `size` is the size of the FFT, a power of two. The matrix has (N1/2 + 1) N2 rows, with N1 and N2 from `factors`.
    Row k1 N2 + k2 belongs to bin k = k1 + N1 k2 or to its mirror N - k, whichever is smaller. Some bins occur twice.
    """
    first, second = factors(size)
    frequencies = (np.arange(first // 2 + 1)[:, None] + first * np.arange(second)).ravel()
    order: NDArray[np.int64] = np.minimum(frequencies, size - frequencies)
    return order


@dataclass(frozen=True)
class FourierParts:
    """Matrices of an FFT that is computed as two matrix products, and mel filters in the order of its frequencies.

    Attributes:
        n1: N1, the first factor of the FFT's size N = N1 N2.
        n2: N2, the second factor.
        first: Matrix F (2 K1, N1) of the first product, K1 = N1/2 + 1: K1 rows of cosines, then K1 of negative sines.
        first_turned: Matrix G (2 K1, N1), the rows of F in another order: negative sines, then cosines.
        twiddle: Matrix P (2 K1, N2), the real parts (K1, N2) of the twiddle factors twice, one below the other.
        twiddle_turned: Matrix Q (2 K1, N2), the negated imaginary parts (K1, N2) of the twiddle factors, and below them
            the imaginary parts. For samples S (N1, N2) and the element-wise product ∘, F S ∘ P + G S ∘ Q is the
            first product times the twiddle factors: K1 rows of real parts, then K1 rows of imaginary parts.
        second: Matrix (2 N2, 2 N2) of the second product. The first result is rearranged to (K1, 2 N2) for it, with
            N2 real and then N2 imaginary parts in each row. The spectrum has the same layout.
        filters: Weights (K1 N2, bands) of the mel filters. Row k1 N2 + k2 has the weights of the frequency
            k = k1 + N1 k2, or of its mirror image N - k if that is smaller. If two rows belong to the same frequency,
            the second is zero, so that the frequency counts once.
    """

    n1: int
    n2: int
    first: Array
    first_turned: Array
    twiddle: Array
    twiddle_turned: Array
    second: Array
    filters: Array


def _wave(rows: Array, columns: Array, period: int) -> tuple[Array, Array]:
    """Return the real and imaginary parts (rows, columns) of exp(-2πi r c / period)."""
    angles = 2 * np.pi * (np.outer(rows, columns) % period) / period
    return np.cos(angles), -np.sin(angles)


def fourier_parts(size: int, filters: Array) -> FourierParts:
    """Compute the matrices for an FFT as two matrix products, and mel filters that read its output.

    Args:
        size: N, the size of the FFT, a power of two.
        filters: Weights (bands, N/2 + 1) of the frequencies in each mel band, in ascending order of frequency.

    Returns:
        The matrices, and the filters with their weights in the order in which the FFT returns the frequencies.
    """
    n1, n2 = factors(size)
    k1, k2 = np.arange(n1 // 2 + 1), np.arange(n2)
    real, imaginary = _wave(k1, np.arange(n1), n1)
    turn_real, turn_imaginary = _wave(k1, k2, size)
    last_real, last_imaginary = _wave(k2, k2, n2)
    order = frequency_order(size)
    # a frequency that occurs twice counts once
    chosen = np.unique(order, return_index=True)[1]
    weights = np.zeros((len(order), len(filters)))
    weights[chosen] = filters.T[order[chosen]]
    return FourierParts(
        n1=n1,
        n2=n2,
        first=np.concatenate([real, imaginary]),
        first_turned=np.concatenate([imaginary, real]),
        twiddle=np.concatenate([turn_real, turn_real]),
        twiddle_turned=np.concatenate([-turn_imaginary, turn_imaginary]),
        second=np.block([[last_real, last_imaginary], [-last_imaginary, last_real]]),
        filters=weights,
    )
