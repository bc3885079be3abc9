# SPDX-License-Identifier: Apache-2.0
"""Batches of recorded words, unknown words and silence, as features with marked background."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from edgernn.training.tasks.logmel import log_mel
from edgernn.training.tasks.mixing import background_clips, masked, mixed, quiet_frames, shifted
from edgernn.training.tasks.recordings import Audio
from edgernn.training.tasks.sources import EVALUATION_BATCH, Batch, Source, Split

# index of a clip that is drawn from the noise
_DRAWN = -1
# random keys: order of an epoch, changes of a batch, and the drawn clips of a held-out part
_ORDER, _CHANGES, _FIXED = 61, 62, 63


@dataclass(frozen=True)
class MarkedBatch(Batch):
    """A batch with its background steps: background (T, B) is True where nothing happens."""

    background: Tensor = field(kw_only=True)

    def to(self, device: str) -> Self:
        return replace(super().to(device), background=self.background.to(device))

    def part(self, first: int, every: int) -> Self:
        return replace(super().part(first, every), background=self.background[:, first::every].contiguous())


@dataclass(frozen=True)
class Changes:
    """Random changes of the training clips.

    Attributes:
        shift: Largest shift in samples.
        noisy: Probability that a clip is mixed with noise.
        low: Lowest signal-to-noise ratio in dB; the ratio is uniform between low and high.
        high: Highest signal-to-noise ratio in dB.
        frames: Largest number of masked frames.
        bands: Largest number of masked bands.
    """

    shift: int
    noisy: float
    low: float
    high: float
    frames: int
    bands: int


@dataclass
class Clips(Source, Split):
    """Recorded clips of one part of the data.

    An epoch has every clip of a word and of recorded silence, `unknown` clips of other words, and `drawn` clips of
    noise or digital silence. With `changes`, the last two are drawn anew in each epoch, and the clips are changed at
    random. Without, as for validation and test, each is the same in every pass, in order and unchanged.

    Attributes:
        samples: All recorded clips (N, S) int16.
        label: Class of each clip (N,).
        pool: Indices of the clips of unknown words.
        unknown: Number of these in an epoch.
        drawn: Number of clips in an epoch that are drawn from the noise.
        silence: Class of silence, -1 if there is none.
        noise: Recordings of noise.
        seed: Random seed of the order and of the changes.
        changes: Random changes; None: none.
    """

    samples: npt.NDArray[np.int16]
    label: npt.NDArray[np.int64]
    pool: npt.NDArray[np.int64]
    unknown: int
    drawn: int
    silence: int
    noise: list[Audio]
    seed: int = 0
    changes: Changes | None = None

    def __post_init__(self) -> None:
        self._epoch, self._order = -1, np.empty(0, np.int64)
        self._kept = np.setdiff1d(np.arange(len(self.label)), self.pool)

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
        return -(-len(self) // batch_size)

    def batch(self, step: int, batch_size: int) -> MarkedBatch:
        epoch, i = divmod(step, self.steps_per_epoch(batch_size))
        if epoch != self._epoch:
            rng = np.random.default_rng([_ORDER, self.seed, epoch])
            self._epoch, self._order = epoch, rng.permutation(self._members(rng))
        chosen = self._order[i * batch_size : (i + 1) * batch_size]
        return self._batch(chosen, np.random.default_rng([_CHANGES, self.seed, step]))

    def chunks(self, size: int = EVALUATION_BATCH) -> Iterator[MarkedBatch]:
        """Iterate over all clips once and in order, `size` at a time."""
        rng = np.random.default_rng([_FIXED, 0, 0])
        members = self._members(rng)
        for begin in range(0, len(members), size):
            yield self._batch(members[begin : begin + size], rng)

    def features(self, most: int) -> Tensor:
        """Return the features (T, n, I) of up to `most` recorded clips, evenly chosen and unchanged."""
        chosen = np.linspace(0, len(self.label) - 1, min(most, len(self.label))).astype(np.int64)
        return log_mel(torch.from_numpy(self._recorded(chosen)))

    def _members(self, rng: np.random.Generator) -> npt.NDArray[np.int64]:
        """Return the clips of a pass over the part: indices, or _DRAWN."""
        others = rng.choice(self.pool, self.unknown, replace=False)
        return np.concatenate([self._kept, others, np.full(self.drawn, _DRAWN)])

    def _recorded(self, chosen: npt.NDArray[np.int64]) -> Audio:
        return self.samples[chosen].astype(np.float32) / np.float32(2**15)

    def _batch(self, chosen: npt.NDArray[np.int64], rng: np.random.Generator) -> MarkedBatch:
        drawn = chosen == _DRAWN
        label = np.where(drawn, self.silence, self.label[chosen])
        clips = self._recorded(chosen)
        clips[drawn] = 0
        if self.changes is not None:
            clips = shifted(clips, rng, self.changes.shift)
        background = quiet_frames(clips) | (label == self.silence)[:, None]
        if self.changes is not None:
            clips = mixed(clips, self.noise, rng, self.changes.noisy, self.changes.low, self.changes.high)
        if drawn.any():
            clips[drawn] = background_clips(self.noise, rng, int(drawn.sum()), clips.shape[1])
        x = log_mel(torch.from_numpy(clips))
        if self.changes is not None:
            x = masked(x, rng, self.changes.frames, self.changes.bands)
        marks = torch.from_numpy(background.T.copy())
        return MarkedBatch(x, torch.from_numpy(label), background=marks)
