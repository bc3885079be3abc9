# SPDX-License-Identifier: Apache-2.0
"""Recordings in time: gaps, another rate, and windows."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from edgernn.training.tasks.sources import IGNORED

Numbers = npt.NDArray[np.float64]
Targets = npt.NDArray[Any]


@dataclass(frozen=True)
class Recording:
    """Successive rows of a table that belong together.

    Attributes:
        name: Name of the file or of the sequence.
        group: Name of its group, such as a person.
        part: "train", "validation" or "test".
        rows: Indices of the rows in the table (T,).
        x: Channels (T, I).
        y: Labels (T,) int64, -1 where there is none, or target numbers (T, O) float64; None without targets.
        seconds: Times (T,), or None if they are unknown.
    """

    name: str
    group: str
    part: str
    rows: npt.NDArray[np.int64]
    x: Numbers
    y: Targets | None
    seconds: Numbers | None = None

    def __len__(self) -> int:
        return len(self.x)

    @property
    def changes(self) -> bool:
        """True if two rows have different targets; rows without a label do not count."""
        if self.y is None:
            return False
        y = self.y[self.y != IGNORED] if self.y.ndim == 1 else self.y
        return bool((y != y[:1]).any())

    def between(self, begin: int, end: int) -> "Recording":
        """Return the rows from `begin` to before `end` as a recording."""
        chosen = slice(begin, end)
        return replace(
            self,
            rows=self.rows[chosen],
            x=self.x[chosen],
            y=None if self.y is None else self.y[chosen],
            seconds=None if self.seconds is None else self.seconds[chosen],
        )

    def pieces(self, gap: float) -> list["Recording"]:
        """Split the recording where two successive times differ by more than `gap` seconds."""
        assert self.seconds is not None
        cuts = [0, *(np.flatnonzero(np.diff(self.seconds) > gap) + 1).tolist(), len(self)]
        return [self.between(begin, end) for begin, end in pairwise(cuts)]

    def resampled(self, rate: float) -> "Recording":
        """Return the recording with `rate` rows a second: numbers are interpolated linearly, labels are the nearest."""
        assert self.seconds is not None
        times, first = np.unique(self.seconds, return_index=True)
        grid = times[0] + np.arange(int((times[-1] - times[0]) * rate + 1e-6) + 1) / rate
        nearest = first[np.searchsorted((times[1:] + times[:-1]) / 2, grid)]
        y = self.y
        if y is not None:
            y = _interpolated(grid, times, y[first]) if y.ndim == 2 else y[nearest]
        x = _interpolated(grid, times, self.x[first])
        return replace(self, rows=self.rows[nearest], x=x, y=y, seconds=grid)

    def windows(self, length: int, stride: int) -> Iterator["Recording"]:
        """Iterate over the windows of `length` rows, which begin every `stride` rows; a shorter rest is left out."""
        for begin in range(0, len(self) - length + 1, stride):
            yield self.between(begin, begin + length)

    def common_target(self) -> Targets | None:
        """Return one target of all rows: the most frequent label, or the mean of each target number (O,).

        Rows without a label do not count. None: no row has one.
        """
        assert self.y is not None
        if self.y.ndim == 2:
            # the mean of equal numbers may differ from them in the last digit
            return np.asarray(np.where((self.y == self.y[0]).all(0), self.y[0], self.y.mean(0)))
        labels = self.y[self.y != IGNORED]
        return np.asarray(np.bincount(labels).argmax()) if len(labels) else None


def _interpolated(grid: Numbers, times: Numbers, columns: Numbers) -> Numbers:
    return np.stack([np.interp(grid, times, column) for column in columns.T], 1)
