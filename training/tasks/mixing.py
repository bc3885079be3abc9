# SPDX-License-Identifier: Apache-2.0
"""Changes of recorded words: shift in time, mixing with noise, and masks on the features."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from edgernn.training.tasks.logmel import HOP
from edgernn.training.tasks.recordings import Audio

# a frame is quiet if its power is less than this share of the power of the clip's loudest frame (30 dB)
_QUIET = 1e-3
# levels of noise clips in dB of full scale, and share of the clips that are digital silence
_LEVELS = (-70.0, -10.0)
_SILENT = 0.1


def quiet_frames(clips: Audio) -> npt.NDArray[np.bool_]:
    """Return True for the frames (N, T) of clips (N, S) with less than 1/1000 of the power of the loudest frame."""
    power = frame_power(clips)
    quiet: npt.NDArray[np.bool_] = power <= _QUIET * power.max(1, keepdims=True)
    return quiet


def frame_power(clips: Audio) -> npt.NDArray[np.float32]:
    """Return the mean power (N, T) of each frame's new samples."""
    count = clips.shape[1] // HOP
    power: npt.NDArray[np.float32] = np.square(clips[:, : count * HOP]).reshape(len(clips), count, HOP).mean(2)
    return power


def shifted(clips: Audio, rng: np.random.Generator, most: int) -> Audio:
    """Shift each clip (N, S) in time by up to `most` samples either way; zeros enter."""
    padded = np.pad(clips, ((0, 0), (most, most)))
    begins = rng.integers(2 * most + 1, size=len(clips))
    return np.stack([row[begin : begin + clips.shape[1]] for row, begin in zip(padded, begins, strict=True)])


def noise_clips(noise: Sequence[Audio], rng: np.random.Generator, count: int, length: int) -> Audio:
    """Draw stretches of noise of power 1 (count, length); a stretch without sound stays 0."""
    clips = np.empty((count, length), np.float32)
    for i, source in enumerate(rng.integers(len(noise), size=count)):
        begin = rng.integers(len(noise[source]) - length + 1)
        clips[i] = noise[source][begin : begin + length]
    power = np.square(clips).mean(1, keepdims=True)
    return np.where(power > 0, clips / np.sqrt(np.maximum(power, np.float32(1e-20))), 0).astype(np.float32)


def background_clips(noise: Sequence[Audio], rng: np.random.Generator, count: int, length: int) -> Audio:
    """Draw clips (count, length) without a word: noise at -70 to -10 dB of full scale; one clip of ten is zeros."""
    level = 10 ** (rng.uniform(*_LEVELS, (count, 1)) / 20) * (rng.random((count, 1)) >= _SILENT)
    return noise_clips(noise, rng, count, length) * level.astype(np.float32)


def mixed(
    clips: Audio, noise: Sequence[Audio], rng: np.random.Generator, share: float, low: float, high: float
) -> Audio:
    """Mix clips with noise at a random signal-to-noise ratio.

    The signal's power is the mean over the frames that are not quiet.

    Args:
        clips: Words (N, S).
        noise: The noise to draw from.
        rng: Random generator.
        share: Probability that a clip is mixed.
        low: Lowest ratio in dB.
        high: Highest ratio in dB.

    Returns:
        The mixtures (N, S).
    """
    loud = ~quiet_frames(clips)
    signal = (frame_power(clips) * loud).sum(1) / np.maximum(loud.sum(1), 1)
    ratio = 10 ** (rng.uniform(low, high, len(clips)) / 10)
    gain = np.sqrt(signal / ratio) * (rng.random(len(clips)) < share)
    count, length = clips.shape
    mixtures: Audio = clips + noise_clips(noise, rng, count, length) * gain[:, None].astype(np.float32)
    return mixtures


def masked(x: Tensor, rng: np.random.Generator, frames: int, bands: int) -> Tensor:
    """Mask a stretch of frames and a stretch of bands of each sequence, as SpecAugment does.

    Source: Park et al., "SpecAugment: A Simple Data Augmentation Method for Automatic Speech Recognition",
    Interspeech 2019, without time warping.

    Args:
        x: Features (T, N, I).
        rng: Random generator.
        frames: Largest number of masked frames; each number from 0 is equally likely.
        bands: Largest number of masked bands.

    Returns:
        The features; the masked ones are replaced by the mean of their sequence.
    """
    T, N, I = x.shape
    hidden = _stretches(rng, N, T, frames).T[:, :, None] | _stretches(rng, N, I, bands)[None]
    return torch.where(torch.from_numpy(hidden), x.mean((0, 2), keepdim=True), x)


def _stretches(rng: np.random.Generator, count: int, size: int, most: int) -> npt.NDArray[np.bool_]:
    """Draw a stretch of up to `most` of `size` places, `count` times: booleans (count, size)."""
    length = rng.integers(min(most, size) + 1, size=(count, 1))
    begin = rng.integers(size - length + 1)
    places = np.arange(size)
    return (places >= begin) & (places < begin + length)
