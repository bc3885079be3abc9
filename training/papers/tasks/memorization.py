# SPDX-License-Identifier: Apache-2.0
"""Memorization task: reproduce bits after noise."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from edgernn.training.tasks.base import Objective
from edgernn.training.tasks.synthetic import Synthetic


def _squared_error(y: Tensor, target: Tensor) -> Tensor:
    return (y - target).square().sum(-1).mean()


def _metrics(y: Tensor, target: Tensor) -> dict[str, Tensor]:
    # an output of exactly 0 counts as wrong
    return {"squared_error": _squared_error(y, target), "bit_accuracy": (y * target > 0).double().mean()}


@dataclass
class Memorization(Synthetic):
    """Memorization task: reproduce the first values of a sequence after noise.

    x (bits + noise, B, 1): random bits, +1 or -1, then Gaussian noise. target (B, bits): the bits.
    Metrics: squared_error, the loss, summed over the bits and averaged over sequences; bit_accuracy, the share of bits
    with the correct sign.

    Settings:

    - `bits`: Number of bits.
    - `noise`: Number of noise steps.
    - `delta2`: Variance of the noise.

    Source: Long, Zhang, Mao, "Prototypical Recurrent Unit", 2016, where bits is I, noise is N, delta2 is δ² and
    squared_error, eq 14, is called MSE.
    """

    train_size: Annotated[int | None, Field(ge=1)] = 50_000
    bits: Annotated[int, Field(ge=1)] = 2
    noise: Annotated[int, Field(ge=0)] = 10
    delta2: Annotated[float, Field(ge=0)] = 1.0

    name = "memorization"
    help = "Reproduce the first bits of a sequence after noise."
    defaults = {"epochs": 5, "hidden_size": 32, "batch_size": 100, "lr": 1e-2}  # noqa: RUF012
    objective = Objective("squared_error", False, _squared_error, _metrics)
    input_size = 1

    def __post_init__(self) -> None:
        self.output_size = self.bits

    def baselines(self) -> dict[str, dict[str, float]]:
        """Add the exact rule: update at the steps of the bits alone, and keep them."""
        metrics = self.score(lambda batch: batch.x[: self.bits, :, 0].T, self.test)
        skipped = 100 * self.noise / (self.bits + self.noise)
        return super().baselines() | {"first steps, kept": {**metrics, "skip_percent": skipped}}

    def make(self, rng: np.random.Generator, count: int) -> tuple[Tensor, Tensor]:
        x = np.empty((self.bits + self.noise, count, 1), np.float32)
        x[: self.bits, :, 0] = 2 * rng.integers(2, size=(self.bits, count)) - 1
        x[self.bits :, :, 0] = self.delta2**0.5 * rng.standard_normal((self.noise, count))
        return torch.from_numpy(x), torch.from_numpy(x[: self.bits, :, 0].T.copy())
