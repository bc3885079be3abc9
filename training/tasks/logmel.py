# SPDX-License-Identifier: Apache-2.0
"""Log-mel features of audio, in causal frames."""

import math

import torch
from torch import Tensor
from torch.nn import functional

# sample rate in Hz
RATE = 16_000
# samples per frame step (20 ms) and per analysis window (32 ms, also the length of the FFT)
HOP, WINDOW = 320, 512
BANDS = 40
# edges of the lowest and of the highest band in Hz
_LOWEST, _HIGHEST = 20.0, 8000.0
# added to the energies before the logarithm
_FLOOR = 1e-6


def log_mel(samples: Tensor) -> Tensor:
    """Compute log-mel features, as a stream would: a frame reads no sample after its end.

    Frame t weighs the 512 samples that end with sample 320 (t + 1) by a periodic Hann window; samples before the start
    are 0. Its features are log(1e-6 + e), where e are the energies |FFT|² / 512 in 40 triangular bands, whose edges are
    equidistant from 20 to 8000 Hz on the mel scale 2595 log10(1 + f / 700).

    Args:
        samples: Audio (N, S) at 16 kHz, in [-1, 1].

    Returns:
        Features (T, N, 40) of T = S // 320 frames.
    """
    frames = functional.pad(samples, (WINDOW - HOP, 0)).unfold(1, WINDOW, HOP)
    spectrum = torch.fft.rfft(frames * torch.hann_window(WINDOW)).abs().square() / WINDOW
    energies: Tensor = spectrum @ _filters()
    return (energies + _FLOOR).log().transpose(0, 1).contiguous()


def _filters() -> Tensor:
    """Return the weights (257, 40) of the bands."""
    low, high = (2595 * math.log10(1 + frequency / 700) for frequency in (_LOWEST, _HIGHEST))
    edges = 700 * (10 ** (torch.linspace(low, high, BANDS + 2, dtype=torch.float64) / 2595) - 1)
    frequencies = torch.arange(WINDOW // 2 + 1, dtype=torch.float64)[:, None] * RATE / WINDOW
    rising = (frequencies - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - frequencies) / (edges[2:] - edges[1:-1])
    return torch.minimum(rising, falling).clamp(min=0).float()
