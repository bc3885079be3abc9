# SPDX-License-Identifier: Apache-2.0
"""Binary addition task: add two binary numbers digit by digit."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from edgernn.errors import UsageError
from edgernn.training.tasks.base import Objective
from edgernn.training.tasks.synthetic import Synthetic

# sums are computed in int64
_MOST_DIGITS = 62


def _loss(y: Tensor, target: Tensor) -> Tensor:
    return functional.mse_loss(y.tanh(), target)


def _metrics(y: Tensor, target: Tensor) -> dict[str, Tensor]:
    correct = y.tanh().round() == target  # (T, B, 1)
    return {
        "sum_accuracy": correct.all(0).double().mean(),
        "digit_accuracy": correct.double().mean(),
        "mse": _loss(y, target),
    }


@dataclass
class BinaryAddition(Synthetic):
    """Binary addition task: the sum of two numbers, one pair of digits per step, lowest digit first.

    x (digits, B, 2): the binary digits of two integers, uniform in [0, 2^(digits-1)] and in [0, 2^(digits-1) - 1].
    Their sum therefore has no more digits than `digits`. target (digits, B, 1): the digits of the sum.

    The predicted digit is tanh(y), rounded; y is the model's output. Metrics: mse, the mean squared error of tanh(y),
    which is the loss; digit_accuracy, the share of correct digits; sum_accuracy, the share of sums with all digits
    correct. The task counts as solved at a sum_accuracy of 1.

    Settings:

    - `digits`: Number of digits, at most 62.

    Source: anonymous authors (under double-blind review), "DecayNet: A Study on the Cell States of Long-Short Term
    Memories", appendix B: 16 digits, 32 neurons, gradient descent with a learning rate of 0.1. The paper names no loss.
    """

    digits: Annotated[int, Field(ge=1)] = 16

    name = "binary-addition"
    help = "Add two binary numbers, digit by digit."
    defaults = {"steps": 3000, "hidden_size": 32, "batch_size": 100, "lr": 1e-2}  # noqa: RUF012
    objective = Objective("sum_accuracy", True, _loss, _metrics)
    input_size, output_size, output = 2, 1, "all"
    solved = 1.0

    def __post_init__(self) -> None:
        if self.digits > _MOST_DIGITS:
            raise UsageError(f"digits: expected a whole number from 1 to {_MOST_DIGITS}, got {self.digits}")

    def make(self, rng: np.random.Generator, count: int) -> tuple[Tensor, Tensor]:
        half = 2 ** (self.digits - 1)
        first = rng.integers(half, size=count, endpoint=True)
        second = rng.integers(half, size=count)
        x = np.stack([self._digits(first), self._digits(second)], -1)
        return torch.from_numpy(x), torch.from_numpy(self._digits(first + second)[..., None])

    def baselines(self) -> dict[str, dict[str, float]]:
        """Return the mean digit of the training part, and the sum of each pair of digits without carries."""
        mean = self.train.targets().double().mean()
        predictors = {
            "mean digit": self.constant(mean.atanh()[None]),
            "sum without carries": lambda batch: (batch.x.sum(-1, keepdim=True) % 2).atanh(),
        }
        return {name: self.score(predict, self.test) for name, predict in predictors.items()}

    def _digits(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Convert numbers (count,) to their binary digits (digits, count), lowest digit first."""
        return (numbers >> np.arange(self.digits)[:, None] & 1).astype(np.float32)
