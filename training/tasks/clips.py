# SPDX-License-Identifier: Apache-2.0
"""Batches of audio clips. A clip has a known word, an unknown word or silence; a mask marks steps without a word."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from edgernn.runtime.wav import FULL_SCALE
from edgernn.training.tasks.mixing import background_clips, mixed, quiet_frames, shifted, spoken_part
from edgernn.training.tasks.recordings import Audio
from edgernn.training.tasks.sources import EVALUATION_BATCH, Batch, EpochOrder, Source, Split

# stands for the index of a clip that is cut from the noise
DRAWN = -1
# random keys: order of an epoch, augmentation of a batch, and noise clips of the validation or test part
_ORDER, _CHANGES, _FIXED = 61, 62, 63


@dataclass(frozen=True)
class Changes:
    """Settings of the random augmentation of training clips.

    Attributes:
        shift: Largest shift in time, earlier or later, in samples.
        noisy: Probability that a clip is mixed with noise.
        low: Lowest signal-to-noise ratio in dB. The ratio of a clip is drawn uniformly between low and high.
        high: Highest signal-to-noise ratio in dB.
    """

    shift: int
    noisy: float
    low: float
    high: float


@dataclass
class Clips(Source, Split):
    """Recorded clips of one part of the data (training, validation or test), each with one word or silence.

    Unknown words are those that are not classes of their own. An epoch has all clips of known words, all clips of
    recorded silence, `unknown` clips of unknown words, and `drawn` clips of noise or digital silence. The method
    `batch`, for training, makes a new random choice of the clips of unknown words and of noise in each epoch, and
    augments clips at random if `changes` is set. The method `chunks`, for validation and test, yields the same clips
    in every pass.

    Attributes:
        samples: All recorded clips (N, S) int16; S is a multiple of hop.
        hop: Number of samples per step.
        label: Index of the class of each recorded clip (N,).
        pool: Indices, into `samples`, of all clips of unknown words.
        unknown: Number of clips of unknown words in an epoch, at most len(pool).
        drawn: Number of further clips of silence in an epoch: cut from the noise at random, or digital silence.
        silence: Index of the class silence, -1 if there is none.
        noise: Recordings of noise, float samples (S,) from -1 to 1 each.
        after: Number of steps of digital silence after each clip.
        seed: Random seed of the order of the clips and of their augmentation.
        changes: Settings of the random augmentation of training clips; None: no augmentation.
    """

    samples: npt.NDArray[np.int16]
    hop: int
    label: npt.NDArray[np.int64]
    pool: npt.NDArray[np.int64]
    unknown: int
    drawn: int
    silence: int
    noise: list[Audio]
    after: int = 0
    seed: int = 0
    changes: Changes | None = None

    def __post_init__(self) -> None:
        self._kept = np.setdiff1d(np.arange(len(self.label)), self.pool)
        self._order = EpochOrder(len(self), (_ORDER, self.seed), lambda rng: rng.permutation(self.members(rng)))

    def __len__(self) -> int:
        return len(self._kept) + self.unknown + self.drawn

    @property
    def fingerprint(self) -> str | None:
        digest = hashlib.sha256(repr((self.samples.shape, self.unknown, self.drawn)).encode())
        arrays: list[npt.NDArray[Any]] = [self.samples, self.label, self.pool, *self.noise]
        for array in arrays:
            digest.update(array.tobytes())
        return digest.hexdigest()

    def steps_per_epoch(self, batch_size: int) -> int:
        return self._order.steps(batch_size)

    def batch(self, step: int, batch_size: int) -> Batch:
        return self._batch(self._order.chosen(step, batch_size), np.random.default_rng([_CHANGES, self.seed, step]))

    def targets(self) -> torch.Tensor:
        return torch.from_numpy(self._labels(self.members(np.random.default_rng(self.seed))))

    def chunks(self, size: int = EVALUATION_BATCH) -> Iterator[Batch]:
        """Iterate over the clips in batches of `size`; every pass yields the same clips in the same order."""
        rng = _fixed()
        members = self.members(rng)
        for begin in range(0, len(members), size):
            yield self._batch(members[begin : begin + size], rng)

    def members(self, rng: np.random.Generator) -> npt.NDArray[np.int64]:
        """Choose the clips of one pass over the data: indices (len(self),) into `samples`, one per clip.

        -1 (DRAWN) stands for a clip of noise or digital silence. `rng` chooses the clips of unknown words.
        """
        others = rng.choice(self.pool, self.unknown, replace=False)
        return np.concatenate([self._kept, others, np.full(self.drawn, DRAWN)])

    def set_origins(self, speakers: Sequence[str]) -> None:
        """Set `origins` by the names (N,) of the speakers of the recorded clips; a clip of noise has its own."""
        numbers = np.unique(np.array(speakers), return_inverse=True)[1]
        members = self.members(_fixed())
        self.origins = torch.from_numpy(np.where(members == DRAWN, -1 - np.arange(len(members)), numbers[members]))

    def spoken(self, rng: np.random.Generator) -> npt.NDArray[np.int64]:
        """Choose the clips of one pass over the data, and return the indices (n,) of those that have a word."""
        members = self.members(rng)
        spoken: npt.NDArray[np.int64] = members[(members != DRAWN) & (self.label[members] != self.silence)]
        return spoken

    def of_words(self) -> Self:
        """Return the recorded clips of known words, without those of unknown words and of silence."""
        kept = self._kept[self.label[self._kept] != self.silence]
        return replace(self, samples=self.samples[kept], label=self.label[kept], pool=self.pool[:0], unknown=0, drawn=0)

    def recorded(self, chosen: npt.NDArray[np.int64]) -> Audio:
        """Return the recorded clips with the indices `chosen` (n,) as float samples (n, S) from -1 to 1."""
        clips = self.samples[chosen].astype(np.float32)
        clips *= np.float32(1 / FULL_SCALE)
        return clips

    def word(self, index: int) -> tuple[int, Audio] | None:
        """Return the class of a recorded clip and the float samples (n,) of its word, without the silence around it.

        The result is None if the whole clip is silent.
        """
        part = spoken_part(self.recorded(np.array([index]))[0], self.hop)
        return (int(self.label[index]), part) if len(part) else None

    def _labels(self, chosen: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.where(chosen == DRAWN, self.silence, self.label[chosen])

    def _batch(self, chosen: npt.NDArray[np.int64], rng: np.random.Generator) -> Batch:
        drawn, label = chosen == DRAWN, self._labels(chosen)
        clips = self.recorded(chosen)
        clips[drawn] = 0
        if self.changes is not None:
            clips = shifted(clips, rng, self.changes.shift)
        background = quiet_frames(clips, self.hop) | (label == self.silence)[:, None]
        if self.changes is not None:
            noisy, low, high = self.changes.noisy, self.changes.low, self.changes.high
            clips = mixed(clips, self.noise, rng, self.hop, noisy, low, high)
        if drawn.any():
            clips[drawn] = background_clips(self.noise, rng, int(drawn.sum()), clips.shape[1])
        if self.after:
            clips = np.pad(clips, ((0, 0), (0, self.after * self.hop)))
            background = np.pad(background, ((0, 0), (0, self.after)), constant_values=True)
        # (T, B, hop), a view: a front end reads the samples of a clip in their order
        x = torch.from_numpy(clips).view(len(clips), -1, self.hop).transpose(0, 1)
        marks = torch.from_numpy(background.T.copy())
        return Batch(x, torch.from_numpy(label), background=marks)


def _fixed() -> np.random.Generator:
    """Return the random generator that chooses the clips of validation and test."""
    return np.random.default_rng([_FIXED, 0, 0])
