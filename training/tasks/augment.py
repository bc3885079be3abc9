# SPDX-License-Identifier: Apache-2.0
"""Random changes of training sequences, such as those of a motion sensor: noise, scale, rotation and time warp."""

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor

from edgernn.errors import EdgernnError
from edgernn.training.tasks.sources import Batch

Numbers = npt.NDArray[np.float64]
# random key of the changes of a batch
_KEY = 71
# number of channels of a sensor that is rotated, and of points between which the speed of a warp is linear
_AXES, _KNOTS = 3, 5


@dataclass
class Augmentation:
    """Random changes of the training sequences, drawn anew for each sequence of each batch; a base of tasks.

    Settings:

    - `jitter`: Standard deviation of noise on each value, in units of the standard deviation of its channel.
    - `scaling`: Standard deviation of the factor, about 1, of each channel.
    - `rotation`: Standard deviation, in degrees, of the rotation about a random axis of each sensor with 3 channels x,
      y and z; the channels are taken in threes, all rotated alike.
    - `warp`: Standard deviation of the logarithm of the speed in time, which varies smoothly; the steps stay as many.
    """

    jitter: Annotated[float, Field(ge=0)] = 0.0
    scaling: Annotated[float, Field(ge=0)] = 0.0
    rotation: Annotated[float, Field(ge=0)] = 0.0
    warp: Annotated[float, Field(ge=0)] = 0.0

    @property
    def augments(self) -> bool:
        return bool(self.jitter or self.scaling or self.rotation or self.warp)

    def check_channels(self, source: object, channels: int) -> None:
        """Raise EdgernnError if so many channels are no sensors with 3 axes, which the setting rotation needs."""
        if self.rotation and channels % _AXES:
            raise EdgernnError(
                f"{source}: rotation: expected channels in threes, x, y and z of each sensor, got {channels}; choose "
                "them with features, or leave rotation out"
            )

    def augmented(self, batch: Batch, std: Tensor, seed: int, step: int) -> Batch:
        """Return a training batch with random changes.

        Args:
            batch: The batch, with numbers x (T, B, I).
            std: Standard deviation of each channel (I,).
            seed: Random seed of the training.
            step: Index of the training step.

        Returns:
            The changed batch. Targets and marks of steps are those of the nearest step before the warp.
        """
        rng = np.random.default_rng([_KEY, seed, step])
        x = batch.x.double().numpy()
        T, B, I = x.shape
        if self.warp:
            lengths = np.full(B, T) if batch.lengths is None else batch.lengths.numpy()
            places = _warped(rng, self.warp, T, lengths)
            below = np.minimum(places.astype(np.int64), T - 2) if T > 1 else np.zeros((T, B), np.int64)
            share = (places - below)[..., None]
            rows = np.arange(B)
            x = x[below, rows] * (1 - share) + x[np.minimum(below + 1, T - 1), rows] * share
            nearest = torch.from_numpy(places.round().astype(np.int64))
            batch = _moved(batch, nearest)
        if self.rotation:
            turns = _rotations(rng, np.deg2rad(self.rotation), B)
            x = np.einsum("bij,tbkj->tbki", turns, x.reshape(T, B, -1, _AXES)).reshape(T, B, I)
        if self.scaling:
            x = x * (1 + self.scaling * rng.standard_normal((1, B, I)))
        if self.jitter:
            x = x + self.jitter * std.numpy() * rng.standard_normal(x.shape)
        changed = torch.from_numpy(x).float()
        if batch.lengths is not None:
            changed[torch.arange(T)[:, None] >= batch.lengths] = 0
        return replace(batch, x=changed)


def _warped(rng: np.random.Generator, deviation: float, T: int, lengths: npt.NDArray[np.int64]) -> Numbers:
    """Return the places (T, B) in the sequences that are read at each step, from 0 to their last steps."""
    knots = np.exp(deviation * rng.standard_normal((_KNOTS, len(lengths))))
    places = np.zeros((T, len(lengths)))
    for b, length in enumerate(lengths):
        speed = np.interp(np.linspace(0, _KNOTS - 1, length - 1), np.arange(_KNOTS), knots[:, b])
        passed = np.cumsum(speed)
        places[1:length, b] = passed / passed[-1:] * (length - 1)
        places[length:, b] = np.arange(length, T)
    return places


def _moved(batch: Batch, nearest: Tensor) -> Batch:
    """Return a batch whose targets of steps, if any, and marks are taken from other steps (T, B)."""
    rows = torch.arange(nearest.shape[1])
    target = batch.target[nearest, rows] if batch.per_step else batch.target
    background = None if batch.background is None else batch.background[nearest, rows]
    return replace(batch, target=target, background=background)


def _rotations(rng: np.random.Generator, deviation: float, count: int) -> Numbers:
    """Return rotation matrices (count, 3, 3) about random axes by normal angles, by the formula of Rodrigues."""
    axis = rng.standard_normal((count, _AXES))
    axis /= np.linalg.norm(axis, axis=1, keepdims=True)
    angle = (deviation * rng.standard_normal(count))[:, None, None]
    cross = np.cross(np.eye(_AXES)[None], axis[:, None])
    return np.eye(_AXES) + np.sin(angle) * cross + (1 - np.cos(angle)) * (cross @ cross)
