# SPDX-License-Identifier: Apache-2.0
"""Features of audio in float64 NumPy, written from the definitions and one step at a time.

test_frontends.py compares the features log and pcen with stored ones of librosa, see librosa_features.py.
"""

import dataclasses

import numpy as np


def slaney(frequency):
    return 3 * frequency / 200 if frequency < 1000 else 15 + 27 * np.log(frequency / 1000) / np.log(6.4)


def hertz(mel):
    return 200 * mel / 3 if mel < 15 else 1000 * 6.4 ** ((mel - 15) / 27)


def filter_bank(config, size):
    """Return the weights (bands, size/2 + 1) of triangles of equal area, one frequency at a time."""
    high = config.high_frequency or config.sample_rate / 2
    edges = [hertz(m) for m in np.linspace(slaney(config.low_frequency), slaney(high), config.bands + 2)]
    bank = np.zeros((config.bands, size // 2 + 1))
    for b in range(config.bands):
        lower, centre, upper = edges[b : b + 3]
        for k in range(size // 2 + 1):
            f = k * config.sample_rate / size
            if lower < f <= centre:
                bank[b, k] = (f - lower) / (centre - lower)
            elif centre < f < upper:
                bank[b, k] = (upper - f) / (upper - centre)
        bank[b] *= 2 / (upper - lower)
    return bank


def follow(config, last, value):
    """Return the next noise floor or smooth energy of one band."""
    if config.normalise == "pcen":
        silent, rate = 0.01 * config.energy_floor, config.pcen_smoothing
    else:
        silent, rate = 0.01, config.floor_fall if value < last else config.floor_rise
    if last >= silent:
        return max(silent, (1 - rate) * last + rate * value)
    rate = max(rate, 1 - (last / silent) ** 2)
    return max(last, (1 - rate) * last + rate * value)


def features(x, config, alpha=0.98, delta=2.0, r=0.5):
    """Return the features (T, B, stack * bands) of samples x (T, B, stack * hop)."""
    if config.stack > 1:
        hops = [hop for step in x for hop in np.split(step, config.stack, axis=1)]
        frames = features(np.stack(hops), dataclasses.replace(config, stack=1), alpha, delta, r)
        return np.stack([np.concatenate(frames[t : t + config.stack], 1) for t in range(0, len(frames), config.stack)])
    steps, batch, _ = x.shape
    size = 1
    while size < config.window_size:
        size *= 2
    bank = filter_bank(config, size)
    n = np.arange(config.window_size)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * n / config.window_size)
    result = np.zeros((steps, batch, config.bands))
    for stream in range(batch):
        heard = np.zeros(config.window_size)
        followed = np.zeros(config.bands)
        for t in range(steps):
            heard = np.concatenate([heard, x[t, stream].astype(np.float64)])[-config.window_size :]
            energy = bank @ np.abs(np.fft.rfft(heard * window, size)) ** 2
            value = energy if config.normalise == "pcen" else np.log(1 + energy / config.energy_floor)
            if config.normalise == "log":
                result[t, stream] = value
                continue
            for b in range(config.bands):
                followed[b] = follow(config, followed[b], value[b])
            if config.normalise == "floor":
                result[t, stream] = value - followed
            else:
                result[t, stream] = (energy / (config.energy_floor + followed) ** alpha + delta) ** r - delta**r
    return result
