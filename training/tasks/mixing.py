# SPDX-License-Identifier: Apache-2.0
"""Changes of recorded words: shift in time and mixing with noise."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edgernn.training.tasks.recordings import Audio

# a frame is quiet if its power, divided by that of the clip's loudest frame, is below this (30 dB)
_QUIET = 1e-3
# levels of noise clips in dB of full scale, and share of the clips that are digital silence
_LEVELS = (-70.0, -10.0)
_SILENT = 0.1


def quiet_frames(clips: Audio, hop: int) -> npt.NDArray[np.bool_]:
    """Find the quiet frames: those with less than 1/1000 of the power of their clip's loudest frame.

    Args:
        clips: Samples (N, S).
        hop: Number of samples of a frame.

    Returns:
        True for quiet frames (N, S // hop).
    """
    power = frame_power(clips, hop)
    quiet: npt.NDArray[np.bool_] = power <= _QUIET * power.max(1, keepdims=True)
    return quiet


def frame_power(clips: Audio, hop: int) -> npt.NDArray[np.float32]:
    """Return the mean power (N, S // hop) of each frame of clips (N, S)."""
    count = clips.shape[1] // hop
    power: npt.NDArray[np.float32] = np.square(clips[:, : count * hop]).reshape(len(clips), count, hop).mean(2)
    return power


def shifted(clips: Audio, rng: np.random.Generator, most: int) -> Audio:
    """Shift each clip (N, S) in time by a random number of samples, up to `most` either way, and fill with zeros."""
    padded = np.pad(clips, ((0, 0), (most, most)))
    begins = rng.integers(2 * most + 1, size=len(clips))
    return np.stack([row[begin : begin + clips.shape[1]] for row, begin in zip(padded, begins, strict=True)])


def faded(samples: Audio, count: int) -> Audio:
    """Fade samples (S,) in over the first `count` and out over the last `count` samples, linearly."""
    ramp = np.minimum(1, (np.arange(len(samples)) + 0.5) / max(1, count)).astype(np.float32)
    return samples * ramp * ramp[::-1]


def spoken_part(clip: Audio, hop: int) -> Audio:
    """Remove the silence before and after the word of a clip.

    Args:
        clip: Samples (S,).
        hop: Number of samples of a frame.

    Returns:
        The frames from the first to the last that is not quiet, and one more frame, faded, at each end. Empty if the
        clip is silent.
    """
    loud = np.flatnonzero(~quiet_frames(clip[None], hop)[0])
    if not len(loud):
        return clip[:0]
    return faded(clip[max(0, int(loud[0]) - 1) * hop : (int(loud[-1]) + 2) * hop], hop)


def noise_clips(noise: Sequence[Audio], rng: np.random.Generator, count: int, length: int) -> Audio:
    """Draw stretches of noise (count, length), scaled to a mean power of 1; a silent stretch stays 0.

    Args:
        noise: Recordings of noise. One that is shorter than a stretch is repeated.
        rng: Random generator.
        count: Number of stretches.
        length: Number of samples of a stretch.

    Returns:
        The stretches.
    """
    clips = np.empty((count, length), np.float32)
    for i, source in enumerate(rng.integers(len(noise), size=count)):
        begin = rng.integers(max(1, len(noise[source]) - length + 1))
        clips[i] = np.take(noise[source], np.arange(begin, begin + length), mode="wrap")
    power = np.square(clips).mean(1, keepdims=True)
    return np.where(power > 0, clips / np.sqrt(np.maximum(power, np.float32(1e-20))), 0).astype(np.float32)


def background_clips(noise: Sequence[Audio], rng: np.random.Generator, count: int, length: int) -> Audio:
    """Draw clips (count, length) of noise at -70 to -10 dB of full scale; a tenth of them are zeros."""
    level = 10 ** (rng.uniform(*_LEVELS, (count, 1)) / 20) * (rng.random((count, 1)) >= _SILENT)
    return noise_clips(noise, rng, count, length) * level.astype(np.float32)


def mixed(
    clips: Audio, noise: Sequence[Audio], rng: np.random.Generator, hop: int, share: float, low: float, high: float
) -> Audio:
    """Mix clips with noise at a random signal-to-noise ratio.

    The signal's power is the mean over the frames that are not quiet.

    Args:
        clips: Words (N, S).
        noise: The noise to draw from.
        rng: Random generator.
        hop: Number of samples of a frame.
        share: Probability that a clip is mixed.
        low: Lowest ratio in dB.
        high: Highest ratio in dB.

    Returns:
        The mixtures (N, S).
    """
    loud = ~quiet_frames(clips, hop)
    signal = (frame_power(clips, hop) * loud).sum(1) / np.maximum(loud.sum(1), 1)
    ratio = 10 ** (rng.uniform(low, high, len(clips)) / 10)
    gain = np.sqrt(signal / ratio) * (rng.random(len(clips)) < share)
    count, length = clips.shape
    mixtures: Audio = clips + noise_clips(noise, rng, count, length) * gain[:, None].astype(np.float32)
    return mixtures
