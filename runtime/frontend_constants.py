# SPDX-License-Identifier: Apache-2.0
"""Constants of an audio front end in an ONNX graph, which follow from its settings in the metadata of the file."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgernn.log_mel import fft_size, hann_window, mel_filters
from edgernn.runtime.fourier import fourier_parts

Array = NDArray[Any]


def frontend_constants(settings: Mapping[str, Any]) -> dict[str, Array]:
    """Compute the constants of a front end's graph, by their names, from the fields of a `FrontendConfig`.

    They are float32 or int64. The graph has no node for some of them, such as "pad" of a window as long as the FFT.
    UsageError is raised if the settings define no mel filters.
    """
    window_size, hop, stack = settings["window_size"], settings["hop"], settings["stack"]
    size = fft_size(window_size)
    parts = fourier_parts(size, mel_filters(SimpleNamespace(**settings)))
    n1, n2, k1 = parts.n1, parts.n2, len(parts.first) // 2
    numbers: dict[str, Any] = {
        "flat": [0, -1],
        "last.from": [hop - window_size],
        "last.to": [2**31],
        "last.axis": [1],
        "step": 1,
        "zero": 0,
        "hop": hop,
        "stack": stack,
        "stacked": [0, -1, stack * settings["bands"]],
        "last_axis": [-1],
        "offsets": np.arange(window_size),
        "window": hann_window(window_size),
        "pad": [0, 0, 0, 0, 0, size - window_size],
        "grid": [0, 0, n1, n2],
        # the real parts of all k1 and then the imaginary ones, each times the twiddle factor
        "dft.cos": parts.first,
        "dft.sin": parts.first_turned,
        "twiddle.cos": parts.twiddle,
        "twiddle.sin": parts.twiddle_turned,
        "complex": [0, 0, 2, k1, n2],
        "rows.shape": [0, 0, k1, 2 * n2],
        "dft.rows": parts.second,
        "squares.shape": [0, 0, k1, 2, n2],
        "squares.axis": [3],
        "power.shape": [0, 0, k1 * n2],
        "filters": parts.filters,
        "energy_floor": float(settings["energy_floor"]),
        "one": 1.0,
    }
    arrays = {name: np.asarray(number) for name, number in numbers.items()}
    return {name: array.astype(np.float32 if array.dtype.kind == "f" else np.int64) for name, array in arrays.items()}
