# SPDX-License-Identifier: Apache-2.0
"""Features of librosa for a synthetic signal: `python -m tests.librosa_features` writes tests/librosa_features.npz.

librosa is no dependency of the tests, as it takes 527 MB with what it needs. So the features are stored, and
test_frontends.py compares the front end with them. The stored file is from librosa 0.11.0, with NumPy alone beside it:

    python -m venv librosa && librosa/bin/pip install librosa==0.11.0
    librosa/bin/python -m tests.librosa_features
"""

from pathlib import Path

import numpy as np

FILE = Path(__file__).with_suffix(".npz")
STEPS = 40
# the settings of the front end, by name: 10 ms of 16 kHz; a window that is a power of two; a window without overlap
DEFINITIONS = {
    "16 kHz": {"sample_rate": 16000, "hop": 160, "window_size": 400, "bands": 40, "low_frequency": 20.0},
    "8 kHz": {
        "sample_rate": 8000,
        "hop": 64,
        "window_size": 256,
        "bands": 20,
        "low_frequency": 60.0,
        "high_frequency": 3500.0,
    },
    "no overlap": {
        "sample_rate": 22050,
        "hop": 300,
        "window_size": 300,
        "bands": 12,
        "low_frequency": 20.0,
        "energy_floor": 1e-3,
    },
}
# of pcen, as the front end starts it
_GAIN, _BIAS, _POWER, _SMOOTHING = 0.98, 2.0, 0.5, 0.025


def signal(sample_rate: int, hop: int) -> np.ndarray:
    """Compute samples (STEPS * hop,) float32: noise, a chirp in noise, digital silence, and quiet noise."""
    size = STEPS * hop
    # raw numbers of a bit generator are the same in every version of NumPy
    noise = np.random.PCG64(0).random_raw(size) / 2.0**63 - 1
    seconds = np.arange(size) / sample_rate
    chirp = np.sin(2 * np.pi * (200 + 0.2 * sample_rate * seconds / seconds[-1]) * seconds)
    quarter = np.arange(size) * 4 // size
    level = np.array([1e-2, 3e-2, 0.0, 1e-3])[quarter]
    return (level * noise + 0.3 * chirp * (quarter == 1)).astype(np.float32)


def compute(definition: dict[str, float]) -> dict[str, np.ndarray]:
    """Return librosa's features (STEPS, bands) float32 of `signal`, by normalisation: log and pcen."""
    import librosa
    import scipy.signal

    rate, hop, window = (definition[name] for name in ("sample_rate", "hop", "window_size"))
    floor = definition.get("energy_floor", 1e-6)
    size = 1 << (window - 1).bit_length()
    # step t reads the last window_size samples up to the end of hop t; librosa puts the window amid size samples
    side = (size - window) // 2
    samples = np.pad(signal(rate, hop).astype(np.float64), (window - hop + side, size - window - side))
    energy = librosa.feature.melspectrogram(
        y=samples,
        sr=rate,
        n_fft=size,
        hop_length=hop,
        win_length=window,
        window="hann",
        center=False,
        power=2.0,
        n_mels=definition["bands"],
        fmin=definition["low_frequency"],
        fmax=definition.get("high_frequency"),
    )
    decibels = librosa.power_to_db(energy + floor, ref=floor, amin=floor, top_db=None)
    pcen = librosa.pcen(
        energy,
        sr=rate,
        hop_length=hop,
        gain=_GAIN,
        bias=_BIAS,
        power=_POWER,
        b=_SMOOTHING,
        eps=floor,
        # the smooth energy starts as the energy of the first step; librosa starts it as 1
        zi=scipy.signal.lfilter_zi([_SMOOTHING], [1, _SMOOTHING - 1]) * energy[:, :1],
    )
    return {"log": (decibels * np.log(10) / 10).T.astype(np.float32), "pcen": pcen.T.astype(np.float32)}


def main() -> None:
    """Write the features of all definitions, and the version of librosa."""
    import librosa

    arrays = {
        f"{name}, {normalise}": features
        for name, definition in DEFINITIONS.items()
        for normalise, features in compute(definition).items()
    }
    np.savez_compressed(FILE, librosa=librosa.__version__, **arrays)


if __name__ == "__main__":
    main()
