# SPDX-License-Identifier: Apache-2.0
"""Batches for learning to learn: a batch has the image minibatches of some training steps of one classifier."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from edgernn.training.tasks.sources import EVALUATION_BATCH, Batch, Source, Split


class ImageSplit(Split):
    """A data set of images and labels; the images of a batch are standardised per channel.

    Args:
        x: Images (N, channels, rows, columns) uint8.
        y: Labels (N,) int64.
        mean: Mean of each channel (channels, 1, 1).
        std: Standard deviation of each channel (channels, 1, 1).
    """

    def __init__(self, x: Tensor, y: Tensor, mean: Tensor, std: Tensor) -> None:
        self.x, self.y, self._mean, self._std = x, y, mean, std

    def __len__(self) -> int:
        return len(self.x)

    def take(self, chosen: Tensor) -> Batch:
        """Return the images with the indices `chosen` (...), standardised, and their labels, as a batch.

        x is (..., channels, rows, columns) float32, and target (...) int64.
        """
        return Batch((self.x[chosen].float() - self._mean) / self._std, self.y[chosen])

    def chunks(self, size: int = EVALUATION_BATCH) -> Iterator[Batch]:
        for chosen in torch.split(torch.arange(len(self)), size):
            yield self.take(chosen)


def channel_scales(x: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the mean and the standard deviation of each channel of uint8 images, (channels, 1, 1) each.

    The images are (N, channels, rows, columns). A constant channel gets a standard deviation of 1.
    """
    # from counts of the 256 values, because all images in float32 take four times the memory
    counts = torch.stack([torch.bincount(channel.flatten(), minlength=256) for channel in x.unbind(1)]).double()
    share, values = counts / counts.sum(1, keepdim=True), torch.arange(256.0, dtype=torch.float64)
    mean = share @ values
    std = (share @ values.square() - mean.square()).clamp(min=0).sqrt()
    return mean.float()[:, None, None], torch.where(std > 0, std, 1.0).float()[:, None, None]


class Unrolls(Source):
    """Minibatches for a learned optimiser, which trains one image classifier (optimisee) after another.

    A batch is one unroll: `unroll` successive training steps of one optimisee. It has unroll + 1 minibatches, x
    (unroll + 1, minibatch, ...) and target (unroll + 1, minibatch). A step computes the gradient on one minibatch, and
    the next one can serve to measure the loss after the step. The last minibatch of a batch is therefore also the
    first of the next batch. An optimisee's last batch may be shorter. Images are drawn at random with replacement.

    Args:
        images: The images to draw from.
        steps: Number of training steps of an optimisee.
        unroll: Number of training steps of an optimisee in a batch.
        minibatch: Number of images in a minibatch.
        key: Random key; sources with different keys draw different images.
        seed: Random seed.
        optimisees: Number of optimisees in an epoch.
    """

    def __init__(
        self,
        images: ImageSplit,
        steps: int,
        unroll: int,
        minibatch: int,
        *,
        key: int,
        seed: int = 0,
        optimisees: int = 1,
    ) -> None:
        self._images, self._steps, self._unroll, self._minibatch = images, steps, unroll, minibatch
        self._key, self._seed, self._optimisees = key, seed, optimisees

    @property
    def parts(self) -> int:
        """Number of batches in the training of one classifier (optimisee)."""
        return -(-self._steps // self._unroll)

    def steps_per_epoch(self, batch_size: int) -> int:
        return self._optimisees * self.parts

    def batch(self, step: int, batch_size: int) -> Batch:
        return self.part(*divmod(step, self.parts))

    def continues(self, step: int, batch_size: int) -> bool:
        return step % self.parts != 0

    def part(self, optimisee: int, number: int) -> Batch:
        """Return batch `number` of the training of classifier `optimisee`, both counted from 0."""
        rng = np.random.default_rng([self._key, self._seed, optimisee])
        chosen = torch.from_numpy(rng.integers(len(self._images), size=(self._steps + 1, self._minibatch)))
        return self._images.take(chosen[number * self._unroll : (number + 1) * self._unroll + 1])
