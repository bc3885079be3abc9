# SPDX-License-Identifier: Apache-2.0
"""Where batches come from. A batch is a function of seed and step, so that a resumed run needs no iterator's state."""

import abc
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

# how many sequences are evaluated at once
EVALUATION_BATCH = 250
# numpy pads short seeds with zeros, so every use has its own first word and the same length
_SHUFFLE, _GENERATE, _SPLIT = 1, 2, 3


@dataclass(frozen=True)
class Batch:
    """x (T, B, I) float32, or (T, B) int64 words; target (B, ...), or (T, B, ...) per step, with one target a step."""

    x: Tensor
    target: Tensor
    per_step: bool = field(default=False, kw_only=True)

    def to(self, device: str) -> Self:
        return replace(self, x=self.x.to(device), target=self.target.to(device))

    def part(self, first: int, every: int) -> Self:
        """The sequences first, first + every, first + 2 every and so on."""
        target = self.target[:, first::every] if self.per_step else self.target[first::every]
        return replace(self, x=self.x[:, first::every].contiguous(), target=target.contiguous())


class Source(abc.ABC):
    """An endless, repeatable row of batches to train on."""

    @abc.abstractmethod
    def steps_per_epoch(self, batch_size: int) -> int:
        """How many batches make an epoch."""

    @abc.abstractmethod
    def batch(self, step: int, batch_size: int) -> Batch:
        """The batch of a step, counted from 0 over all epochs."""

    def continues(self, step: int, batch_size: int) -> bool:
        """Whether the sequences of this step's batch go on where those of the step before ended."""
        return False

    def lr_scale(self, step: int, batch_size: int) -> float:
        """By what the learning rate of this step is multiplied."""
        return 1.0

    @property
    def fingerprint(self) -> str | None:
        """Tells two sets of stored sequences apart; None where they are made as they are needed."""
        return None


class Split(abc.ABC):
    """What is held out, to be gone through once and in order."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """The number of sequences."""

    @abc.abstractmethod
    def chunks(self, size: int = EVALUATION_BATCH) -> Iterator[Batch]:
        """All of them once, in order, so many at a time."""


class Sequences(Source, Split):
    """Stored sequences, shuffled anew for each epoch; the last batch of an epoch may be smaller.

    x (N, T, I) of any numeric type, or (N, T) whole numbers below `symbols`, which are made one-hot batch by batch:
    I = symbols. y (N, ...), or (N, T, ...) with one target a step; whole numbers of any type become int64.
    """

    def __init__(
        self, x: Tensor, y: Tensor, *, seed: int = 0, per_step: bool = False, symbols: int | None = None
    ) -> None:
        self.x, self.y, self.seed, self.per_step, self.symbols = x, y, seed, per_step, symbols
        self._epoch, self._order = -1, np.empty(0, np.int64)

    def __len__(self) -> int:
        return len(self.x)

    @property
    def fingerprint(self) -> str | None:
        found = hashlib.sha256(repr((self.x.shape, self.y.shape)).encode())
        for stored in (self.x, self.y):
            found.update(stored.numpy().tobytes())
        return found.hexdigest()

    def steps_per_epoch(self, batch_size: int) -> int:
        return -(-len(self) // batch_size)

    def batch(self, step: int, batch_size: int) -> Batch:
        epoch, i = divmod(step, self.steps_per_epoch(batch_size))
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = np.random.default_rng([_SHUFFLE, self.seed, epoch]).permutation(len(self))
        chosen = torch.from_numpy(self._order[i * batch_size : (i + 1) * batch_size])
        return self._batch(self.x[chosen], self.y[chosen])

    def chunks(self, size: int = EVALUATION_BATCH) -> Iterator[Batch]:
        """All of them once, in order."""
        for x, y in zip(torch.split(self.x, size), torch.split(self.y, size), strict=True):
            yield self._batch(x, y)

    def _batch(self, x: Tensor, y: Tensor) -> Batch:
        x = x.transpose(0, 1)
        x = x.float().contiguous() if self.symbols is None else one_hot(x, self.symbols)
        y = y if y.is_floating_point() else y.long()
        return Batch(x, y.transpose(0, 1).contiguous() if self.per_step else y, per_step=self.per_step)


class Generated(Source):
    """Sequences that are made as they are needed and never come twice.

    make(rng, n) returns x (T, n, I) and the target (n, ...), or (T, n, ...) per step, with one target a step.
    """

    def __init__(
        self,
        make: Callable[[np.random.Generator, int], tuple[Tensor, Tensor]],
        epoch_steps: int,
        seed: int,
        per_step: bool = False,
    ) -> None:
        self._make, self._epoch_steps, self._seed, self._per_step = make, epoch_steps, seed, per_step

    def steps_per_epoch(self, batch_size: int) -> int:
        return self._epoch_steps

    def batch(self, step: int, batch_size: int) -> Batch:
        made = self._make(np.random.default_rng([_GENERATE, self._seed, step]), batch_size)
        return Batch(*made, per_step=self._per_step)


def one_hot(symbols: Tensor, count: int) -> Tensor:
    """(..., count) float32, 1 at each whole number and 0 elsewhere."""
    return torch.zeros(*symbols.shape, count).scatter_(-1, symbols.long()[..., None], 1.0)


def random_split(count: int, sizes: list[int], seed: int) -> list[Tensor]:
    """Indices of disjoint parts: what is left over first, then one part a size."""
    order = torch.from_numpy(np.random.default_rng([_SPLIT, seed, 0]).permutation(count))
    return list(torch.split(order, [count - sum(sizes), *sizes]))
