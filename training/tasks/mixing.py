# SPDX-License-Identifier: Apache-2.0
"""Changes of recorded words: shift in time and mixing with noise."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edgernn.training.tasks.recordings import Audio

# a frame is quiet if its power, divided by that of the clip's loudest frame, is at most this (-30 dB)
_QUIET = 1e-3
# levels of noise clips in dB of full scale, and share of the clips that are digital silence
_LEVELS = (-70.0, -10.0)
_SILENT = 0.1


def quiet_frames(clips: Audio, hop: int) -> npt.NDArray[np.bool_]:
    """Find the quiet frames: those with at most 1/1000 of the power of their clip's loudest frame.

    A clip of S samples is cut into S // hop frames. All frames of a clip of zeros are quiet.

    Args:
        clips: Samples (N, S) of N clips.
        hop: Number of samples in a frame.

    Returns:
        Mask (N, S // hop), True for quiet frames.
    """
    return _quiet(frame_power(clips, hop))


def _quiet(power: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
    """Find the quiet frames of clips (N, F) from the powers of their frames (N, F)."""
    quiet: npt.NDArray[np.bool_] = power <= _QUIET * power.max(1, keepdims=True)
    return quiet


def frame_power(clips: Audio, hop: int) -> npt.NDArray[np.float32]:
    """Compute the mean power of each frame of N clips; the clips are cut into frames of `hop` samples.

    Args:
        clips: Samples (N, S).
        hop: Number of samples in a frame.

    Returns:
        Mean of the squared samples of each frame (N, S // hop).
    """
    count = clips.shape[1] // hop
    frames = clips[:, : count * hop].reshape(len(clips), count, hop)
    power: npt.NDArray[np.float32] = np.einsum("nfs,nfs->nf", frames, frames) / np.float32(hop)
    return power


def word_power(clips: Audio, hop: int) -> npt.NDArray[np.float64]:
    """Compute the mean power of each clip's frames that are not quiet (`quiet_frames`).

    Args:
        clips: Samples (N, S) of N clips.
        hop: Number of samples in a frame.

    Returns:
        Mean of the squared samples (N,); 0 for a clip of zeros.
    """
    power = frame_power(clips, hop)
    loud = ~_quiet(power)
    mean: npt.NDArray[np.float64] = (power * loud).sum(1) / np.maximum(loud.sum(1), 1)
    return mean


def shifted(clips: Audio, rng: np.random.Generator, most: int) -> Audio:
    """Shift each of N clips in time by a random number of samples, and fill the gap with zeros.

    Args:
        clips: Samples (N, S).
        rng: Random generator.
        most: Largest shift in samples; a shift is uniform from -most to most.

    Returns:
        The shifted clips (N, S).
    """
    length = clips.shape[1]
    earlier = np.clip(rng.integers(2 * most + 1, size=len(clips)) - most, -length, length)
    moved = np.zeros_like(clips)
    for row, clip, count in zip(moved, clips, earlier, strict=True):
        if count < 0:
            row[-count:] = clip[:count]
        else:
            row[: length - count] = clip[count:]
    return moved


def faded(samples: Audio, count: int) -> Audio:
    """Fade samples (S,) in over the first `count` and out over the last `count` samples, linearly."""
    ramp = np.minimum(1, (np.arange(len(samples)) + 0.5) / max(1, count)).astype(np.float32)
    return samples * ramp * ramp[::-1]


def spoken_part(clip: Audio, hop: int) -> Audio:
    """Remove the silence before and after the word of a clip.

    Args:
        clip: Samples (S,).
        hop: Number of samples in a frame.

    Returns:
        The samples from the first to the last frame that is not quiet (`quiet_frames`), with one more frame on either
        side if the clip has it. The first `hop` samples are faded in and the last `hop` samples are faded out. An empty
        array if the clip is silent.
    """
    loud = np.flatnonzero(~quiet_frames(clip[None], hop)[0])
    if not len(loud):
        return clip[:0]
    return faded(clip[max(0, int(loud[0]) - 1) * hop : (int(loud[-1]) + 2) * hop], hop)


def noise_clips(noise: Sequence[Audio], rng: np.random.Generator, count: int, length: int) -> Audio:
    """Cut random stretches from recordings of noise, and scale each to a mean power of 1.

    Args:
        noise: Recordings of noise, samples (S,) each. A recording that is shorter than a stretch is repeated.
        rng: Random generator.
        count: Number of stretches.
        length: Number of samples of a stretch.

    Returns:
        The stretches (count, length). A silent stretch stays all zeros.
    """
    clips = np.empty((count, length), np.float32)
    for i, source in enumerate(rng.integers(len(noise), size=count)):
        recording = noise[source]
        begin = rng.integers(max(1, len(recording) - length + 1))
        clips[i] = recording[begin : begin + length] if len(recording) >= length else np.resize(recording, length)
    power = np.einsum("ns,ns->n", clips, clips) / np.float32(length)
    # the bound leaves clips of zeros as they are
    clips /= np.sqrt(np.maximum(power, np.float32(1e-20)))[:, None]
    return clips


def background_clips(noise: Sequence[Audio], rng: np.random.Generator, count: int, length: int) -> Audio:
    """Cut clips of background noise from recordings, at random places and levels.

    The level is uniform from -70 to -10 dB of full scale. A clip is all zeros with probability 0.1.

    Args:
        noise: Recordings of noise, samples (S,) each.
        rng: Random generator.
        count: Number of clips.
        length: Number of samples in a clip.

    Returns:
        The clips (count, length).
    """
    level = 10 ** (rng.uniform(*_LEVELS, (count, 1)) / 20) * (rng.random((count, 1)) >= _SILENT)
    return noise_clips(noise, rng, count, length) * level.astype(np.float32)


def mixed(
    clips: Audio, noise: Sequence[Audio], rng: np.random.Generator, hop: int, share: float, low: float, high: float
) -> Audio:
    """Add noise to clips of words at a random signal-to-noise ratio.

    The power of the signal is that of `word_power`.

    Args:
        clips: Samples (N, S) of N clips.
        noise: Recordings of noise, from which stretches are cut at random.
        rng: Random generator.
        hop: Number of samples in a frame.
        share: Probability that a clip is mixed; otherwise it stays unchanged.
        low: Lowest signal-to-noise ratio in dB; the ratio is uniform between low and high.
        high: Highest signal-to-noise ratio in dB.

    Returns:
        The mixtures (N, S).
    """
    signal = word_power(clips, hop)
    ratio = 10 ** (rng.uniform(low, high, len(clips)) / 10)
    gain = np.sqrt(signal / ratio) * (rng.random(len(clips)) < share)
    count, length = clips.shape
    mixtures = noise_clips(noise, rng, count, length)
    mixtures *= gain[:, None].astype(np.float32)
    mixtures += clips
    return mixtures
