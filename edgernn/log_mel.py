# SPDX-License-Identifier: Apache-2.0
"""Definition of the log-mel features as numbers: window, filters and smoothing. It needs NumPy alone.

A `config` has the fields of `edgernn.frontends.FrontendConfig`.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgernn.errors import UsageError

# largest E / energy_floor, and value of log(1 + E / energy_floor), of digital silence: the level of one bit of 16
SILENT = 0.01


def fft_size(window_size: int) -> int:
    """Return the size N of the FFT: the smallest power of two that is at least `window_size`, in samples."""
    return 1 << (window_size - 1).bit_length()


def _mel(frequency: float) -> float:
    """Convert Hz to mel as Slaney does: linear up to 1 kHz, then 27 logarithmic steps for a factor of 6.4."""
    return 3 * frequency / 200 if frequency < 1000 else 15 + 27 * math.log(frequency / 1000) / math.log(6.4)


def _hertz(mel: float) -> float:
    return 200 * mel / 3 if mel < 15 else 1000 * math.exp((mel - 15) * math.log(6.4) / 27)


def mel_filters(config: Any) -> NDArray[np.float64]:
    """Compute the mel filters of Slaney, "Auditory Toolbox", version 2, 1998; UsageError for invalid settings.

    Filter b is a triangle over the frequencies f_b, f_{b+1}, f_{b+2}, which are equally spaced in mel from
    low_frequency to high_frequency. Its height is 2 / (f_{b+2} - f_b), so that all filters have the same area. The
    result has the weights (bands, N/2 + 1) of the frequencies of an FFT of size N = `fft_size(window_size)`. The
    frequencies must be in order, up to half the sample rate, and each filter must cover a frequency of the FFT.
    """
    half = config.sample_rate / 2
    low, high = config.low_frequency, half if config.high_frequency is None else config.high_frequency
    if high > half:
        raise UsageError(
            f"high_frequency: expected at most half of sample_rate={config.sample_rate}, got {high:g}; lower it"
        )
    if low >= high:
        raise UsageError(f"low_frequency: expected below the highest frequency, {high:g} Hz, got {low:g}; lower it")
    points = [_hertz(mel) for mel in np.linspace(_mel(low), _mel(high), config.bands + 2)]
    size = fft_size(config.window_size)
    frequencies = np.arange(size // 2 + 1) * (config.sample_rate / size)
    filters = np.zeros((config.bands, len(frequencies)))
    for b, (lower, centre, upper) in enumerate(zip(points, points[1:], points[2:], strict=False)):
        rising, falling = (frequencies - lower) / (centre - lower), (upper - frequencies) / (upper - centre)
        filters[b] = np.maximum(0, np.minimum(rising, falling)) * 2 / (upper - lower)
        if not filters[b].any():
            spacing = f"every {config.sample_rate / size:g} Hz"
            raise UsageError(
                f"bands: expected a frequency of the FFT ({spacing}) in every band, got none from {lower:.0f} to "
                f"{upper:.0f} Hz with bands={config.bands}; use fewer bands or a longer window_size"
            )
    return filters


def hann_window(window_size: int) -> NDArray[np.float64]:
    """Compute the weights (window_size,) of the samples of a window: 1/2 - 1/2 cos(2πn / window_size)."""
    window: NDArray[np.float64] = 0.5 - 0.5 * np.cos(np.arange(window_size) * (2 * np.pi / window_size))
    return window


def smoothing(config: Any) -> tuple[float, float, float]:
    """Return the constants fall, rise and c of the state that follows a value, in the equations of `LogMel`."""
    if config.normalise == "pcen":
        return config.pcen_smoothing, config.pcen_smoothing, SILENT * config.energy_floor
    return config.floor_fall, config.floor_rise, SILENT
