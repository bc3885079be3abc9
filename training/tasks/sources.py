# SPDX-License-Identifier: Apache-2.0
"""Sources of batches. A batch depends on seed and step alone, so that a resumed run needs no iterator state."""

import abc
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from edgernn.runtime.answers import IGNORED

# number of sequences evaluated at once
EVALUATION_BATCH = 250
# number of sequences in a batch from which `Source.targets` takes the targets
_TARGETS_BATCH = 100
# random keys, one per use: first of the three words of a numpy seed (three, because numpy pads shorter seeds with 0)
_SHUFFLE, _GENERATE, _SPLIT = 1, 2, 3


@dataclass(frozen=True)
class Batch:
    """A batch of B sequences: the inputs x, and the targets that the model should predict.

    x is (T, B, I) float32, or (T, B) int64 word indices. target is (B, ...), one per sequence, or (T, B, ...), one per
    step, if `per_step` is true. lengths (B,) int64 are the numbers of steps of the sequences, of which the longest has
    T; None: all have T. Later steps are padding, with x = 0. Targets to ignore, as those of padding, are -1 if they are
    labels, and NaN if they are numbers. background (T, B) is True at steps at which nothing happens, such as silence;
    None: no step is marked. With `energies`, x has mel energies in place of samples (`LogMel.on_energies`).
    """

    x: Tensor
    target: Tensor
    per_step: bool = field(default=False, kw_only=True)
    lengths: Tensor | None = field(default=None, kw_only=True)
    background: Tensor | None = field(default=None, kw_only=True)
    energies: bool = field(default=False, kw_only=True)

    def to(self, device: str) -> Self:
        lengths, background = (None if t is None else t.to(device) for t in (self.lengths, self.background))
        x, target = self.x.to(device), self.target.to(device)
        return replace(self, x=x, target=target, lengths=lengths, background=background)

    def part(self, first: int, every: int) -> Self:
        """Return a batch with every `every`-th sequence of this batch, from the sequence with index `first` on."""
        target = self.target[:, first::every] if self.per_step else self.target[first::every]
        lengths = None if self.lengths is None else self.lengths[first::every]
        background = None if self.background is None else self.background[:, first::every].contiguous()
        x = self.x[:, first::every].contiguous()
        return replace(self, x=x, target=target.contiguous(), lengths=lengths, background=background)

    @property
    def steps(self) -> int:
        """Number of steps of all sequences."""
        return self.x.shape[0] * self.x.shape[1] if self.lengths is None else int(self.lengths.sum())

    @property
    def counted(self) -> float:
        """Number of sequences, or of steps if `per_step`, whose targets are not ignored."""
        places = self.x.shape[1] * (len(self.target) if self.per_step else 1)
        return places * float(is_counted(self.target).double().mean())


class Source(abc.ABC):
    """Base class of the training data: an endless, reproducible series of batches.

    Attributes:
        varies_steps: True if the number of steps T differs from batch to batch, except at the end of an epoch.
    """

    varies_steps: bool = False

    @abc.abstractmethod
    def steps_per_epoch(self, batch_size: int) -> int:
        """Number of batches in an epoch."""

    @abc.abstractmethod
    def batch(self, step: int, batch_size: int) -> Batch:
        """Return the batch of a training step; `step` counts from 0 over all epochs."""

    def targets(self) -> Tensor:
        """Return the targets of one epoch, joined along the axis of sequences, for baselines that are fitted on them.

        A source that generates sequences has as many as 100 in each batch of the epoch.
        """
        batches = [self.batch(step, _TARGETS_BATCH) for step in range(self.steps_per_epoch(_TARGETS_BATCH))]
        return torch.cat([batch.target for batch in batches], 1 if batches[0].per_step else 0)

    def continues(self, step: int, batch_size: int) -> bool:
        """Return True if the sequences of this step's batch continue those of the previous step's batch.

        If True, the training starts this batch from the last states of the previous batch. Otherwise it starts from the
        initial states.
        """
        return False

    def lr_scale(self, step: int, batch_size: int) -> float:
        """Return the factor by which the learning rate is multiplied at this training step, 1 by default."""
        return 1.0

    @property
    def fingerprint(self) -> str | None:
        """SHA-256 of the stored sequences; None if they are not hashed, for example because they are generated."""
        return None


class Split(abc.ABC):
    """Base class of the data for evaluation (validation or test), which an evaluation reads once and in order.

    Attributes:
        origins: Integers (N,) that identify the recording or patient from which each of the N sequences comes.
            Confidence intervals treat sequences with the same integer as dependent. None if all sequences are
            independent.
    """

    origins: Tensor | None = None

    @abc.abstractmethod
    def __len__(self) -> int:
        """Number of sequences in this part of the data."""

    @abc.abstractmethod
    def chunks(self, size: int = EVALUATION_BATCH) -> Iterator[Batch]:
        """Iterate over all sequences once and in order, `size` at a time."""


class EpochOrder:
    """Random order of the sequences of each epoch, cut into batches.

    Args:
        size: Number of sequences in an epoch.
        key: Two numbers: a constant that no other use of random numbers shares, and the random seed of the run. The
            order of an epoch is drawn with the seed [*key, epoch].
        draw: Function that gets a random generator and returns the indices of the sequences of an epoch (size,), in
            random order.
    """

    def __init__(
        self, size: int, key: tuple[int, int], draw: Callable[[np.random.Generator], npt.NDArray[np.int64]]
    ) -> None:
        self._size, self._key, self._draw = size, key, draw
        self._epoch, self._members = -1, np.empty(0, np.int64)

    def steps(self, batch_size: int) -> int:
        """Return the number of batches in an epoch."""
        return -(-self._size // batch_size)

    def chosen(self, step: int, batch_size: int) -> npt.NDArray[np.int64]:
        """Return the indices (batch_size,) of the sequences in the batch of a training step.

        The last batch of an epoch may have fewer. `step` counts from 0 over all epochs.
        """
        epoch, i = divmod(step, self.steps(batch_size))
        if epoch != self._epoch:
            self._epoch, self._members = epoch, self._draw(np.random.default_rng([*self._key, epoch]))
        return self._members[i * batch_size : (i + 1) * batch_size]


def fingerprint(items: Iterable[Tensor | str | Sequence[str] | None]) -> str:
    """Return the SHA-256 of tensors and texts, in their order."""
    digest = hashlib.sha256()
    for item in items:
        if isinstance(item, Tensor):
            digest.update(repr((item.shape, item.dtype)).encode())
            digest.update(item.contiguous().numpy().data)
        else:
            digest.update(repr(item).encode())
    return digest.hexdigest()


class Sequences(Source, Split):
    """Stored sequences, reshuffled in each epoch; the last batch of an epoch may be smaller.

    x is (N, T, I) of any numeric type, or (N, T) integers below `symbols`, which become one-hot vectors batch by batch
    (I = symbols). y is (N, ...), or (N, T, ...) with one target per step; integers of any type become int64.
    background (N, T), if there is one, is True at steps at which nothing happens. origins (N,), if there are any, are
    the recordings of the sequences, see `Split`. lengths (N,) int64, if there are any, are the numbers of steps of the
    sequences, from 1 to T: later steps of x and of a y per step are padding, which is not read. A batch is padded to
    its longest sequence. Targets to ignore are -1 if they are labels, and NaN if they are numbers (`Batch`).
    `augment`, if set, changes the batches of the training at random: it gets a batch and the step.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        *,
        seed: int = 0,
        per_step: bool = False,
        symbols: int | None = None,
        background: Tensor | None = None,
        origins: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> None:
        if lengths is not None:
            padding = torch.arange(x.shape[1]) >= lengths[:, None]
            x = _filled(x, padding, 0)
            if per_step:
                y = _filled(y, padding, math.nan) if y.is_floating_point() else _filled(y.long(), padding, IGNORED)
        self.x, self.y, self.seed, self.per_step, self.symbols = x, y, seed, per_step, symbols
        self.background, self.origins, self.lengths = background, origins, lengths
        self.varies_steps = lengths is not None
        self.augment: Callable[[Batch, int], Batch] | None = None
        self._order = EpochOrder(len(x), (_SHUFFLE, seed), lambda rng: rng.permutation(len(x)))

    def __len__(self) -> int:
        return len(self.x)

    @property
    def fingerprint(self) -> str | None:
        digest = hashlib.sha256(repr((self.x.shape, self.y.shape)).encode())
        for stored in (self.x, self.y) if self.lengths is None else (self.x, self.y, self.lengths):
            digest.update(stored.numpy().tobytes())
        return digest.hexdigest()

    def steps_per_epoch(self, batch_size: int) -> int:
        return self._order.steps(batch_size)

    def batch(self, step: int, batch_size: int) -> Batch:
        batch = self._batch(torch.from_numpy(self._order.chosen(step, batch_size)))
        return batch if self.augment is None else self.augment(batch, step)

    def chunks(self, size: int = EVALUATION_BATCH) -> Iterator[Batch]:
        """Iterate over all sequences once and in order, `size` at a time."""
        for first in range(0, len(self), size):
            yield self._batch(slice(first, first + size))

    def targets(self) -> Tensor:
        return self.y if self.y.is_floating_point() else self.y.long()

    def every_step(self) -> Tensor:
        """Return x without padding as (N, T, I), or as one sequence of all steps (1, n, I) if lengths differ."""
        return self.x if self.lengths is None else self.x[torch.arange(self.x.shape[1]) < self.lengths[:, None]][None]

    def _batch(self, chosen: Tensor | slice) -> Batch:
        lengths = None if self.lengths is None else self.lengths[chosen]
        T = self.x.shape[1] if lengths is None else int(lengths.max())
        x, y = self.x[chosen, :T].transpose(0, 1), self.y[chosen]
        x = x.float().contiguous() if self.symbols is None else one_hot(x, self.symbols)
        y = y if y.is_floating_point() else y.long()
        target = y[:, :T].transpose(0, 1).contiguous() if self.per_step else y
        background = None if self.background is None else self.background[chosen, :T].T.contiguous()
        return Batch(x, target, per_step=self.per_step, lengths=lengths, background=background)


class Generated(Source):
    """Source that generates new sequences for every batch.

    The function `make(rng, n)` generates n sequences from the random generator rng: it returns x (T, n, I) and the
    target (n, ...), or (T, n, ...) if `per_step` is true.
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
        x, target = self._make(np.random.default_rng([_GENERATE, self._seed, step]), batch_size)
        return Batch(x, target, per_step=self._per_step)


def _filled(values: Tensor, where: Tensor, value: float) -> Tensor:
    """Return values (N, T, ...) with one value in the places that `where` (N, T) marks."""
    return values.masked_fill(where.view(*where.shape, *[1] * (values.ndim - 2)), value)


def is_counted(target: Tensor) -> Tensor:
    """Return a mask of the targets that are not ignored."""
    return ~target.isnan() if target.is_floating_point() else target != IGNORED


def one_hot(symbols: Tensor, count: int) -> Tensor:
    """Convert integers (...) from 0 to count - 1 to one-hot vectors (..., count) float32."""
    return torch.zeros(*symbols.shape, count).scatter_(-1, symbols.long()[..., None], 1.0)


def random_split(count: int, sizes: list[int], seed: int) -> list[Tensor]:
    """Split the indices 0 to count - 1 at random into parts.

    Args:
        count: Number of indices.
        sizes: Sizes of all parts but the first.
        seed: Random seed.

    Returns:
        The indices of each part. The first part has count - sum(sizes) indices, and the others have `sizes`.
    """
    order = torch.from_numpy(np.random.default_rng([_SPLIT, seed, 0]).permutation(count))
    return list(torch.split(order, [count - sum(sizes), *sizes]))
