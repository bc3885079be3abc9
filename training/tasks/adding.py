# SPDX-License-Identifier: Apache-2.0
"""Adding task: sum two marked values of a sequence."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor

from edgernn.errors import UsageError, nearest
from edgernn.settings import Expected
from edgernn.training.tasks.base import REGRESSION, Objective
from edgernn.training.tasks.sources import Batch
from edgernn.training.tasks.synthetic import Synthetic

VALUES = ("uniform", "half", "gaussian")
MARKERS = ("any", "halves")


@dataclass
class Adding(Synthetic):
    """Adding task: regression of the sum of the two marked values of a sequence.

    x (T, B, 2): a value, and a marker that is 1 at two random steps and 0 elsewhere.
    target (B, 1): the sum of the two marked values. The task counts as solved at a mean squared error of 1/100 of the
    target's variance.

    Settings:

    - `T`: Number of steps.
    - `values`: Distribution of the values. uniform: in [0, 1]. half: uniform in [-1/2, 1/2]. The variance of the sum is
      1/6 in both. gaussian: mean 0 and variance delta2, so that the sum has variance 2 delta2.
    - `delta2`: Variance of the values, only with values=gaussian. The error is then also reported divided by delta2.
    - `markers`: Distribution of the markers. any: two different steps. halves: one step of the first tenth (the
      first step itself if T < 20) and one step of the last half. Silent steps do not count here.
    - `silence`: Share of the steps that are silent: one stretch at a random place, in which value and marker are 0.
      These are the task's background steps. Default: none.

    Source: Hartvigsen et al., "Learning to Selectively Update State Neurons in Recurrent Networks", CIKM 2020, section
    4.5 (T = 500). Campos et al., "Skip RNN", ICLR 2018, use values=half markers=halves T=50; the error at which the
    task counts as solved is theirs. Long, Zhang, Mao, "Prototypical Recurrent Unit", 2016, use values=gaussian
    train_size=2000 test_size=400 and write N for T.
    """

    T: Annotated[int, Field(ge=2)] = 50
    values: Annotated[str, Expected("uniform, half or gaussian")] = "uniform"
    delta2: Annotated[float | None, Field(gt=0)] = None
    markers: Annotated[str, Expected("any or halves")] = "any"
    silence: Annotated[float | None, Field(gt=0, lt=1)] = None

    name = "adding"
    help = "Regress the sum of two marked values among T random numbers."
    defaults = {  # noqa: RUF012
        "steps": 6000,
        "hidden_size": 128,
        "batch_size": 100,
        "lr": 1e-3,
        "lambda": 1e-4,
        "clip": 1.0,
        "skip_target": 85.0,
    }
    objective = REGRESSION
    input_size, output_size = 2, 1
    solved = 1 / 600

    def __post_init__(self) -> None:
        if self.values not in VALUES:
            raise nearest("values", self.values, VALUES)
        if self.markers not in MARKERS:
            raise nearest("markers", self.markers, MARKERS)
        if self._heard < 2:
            raise UsageError(
                f"silence: expected at least 2 of the T={self.T} steps outside the silent stretch, got {self._heard} "
                "steps; lower silence"
            )
        if (self.values == "gaussian") != (self.delta2 is not None):
            wanted = "a variance above 0" if self.delta2 is None else "none"
            got = "none" if self.delta2 is None else f"{self.delta2:g}"
            raise UsageError(
                f"delta2: expected {wanted} with values={self.values}, got {got}; set delta2 if values=gaussian, else "
                "leave it out"
            )
        if self.delta2 is not None:
            self.solved = 2 * self.delta2 / 100
            self.objective = _with_relative_error(self.delta2)

    def make(self, rng: np.random.Generator, count: int) -> tuple[Tensor, Tensor]:
        x = np.zeros((self._heard, count, 2), np.float32)
        x[..., 0] = self._values(rng, count)
        first, second = self._marked_steps(rng, count)
        sequences = np.arange(count)
        x[first, sequences, 1] = x[second, sequences, 1] = 1
        target = x[first, sequences, :1] + x[second, sequences, :1]
        return torch.from_numpy(self._with_silence(rng, x)), torch.from_numpy(target)

    @property
    def marks_background(self) -> bool:
        return self.silence is not None

    def background(self, batch: Batch) -> Tensor | None:
        return None if self.silence is None else (batch.x == 0).all(-1)

    def baselines(self) -> dict[str, dict[str, float]]:
        """Add the exact rule: update at the two marked steps, and add their values."""
        metrics = self.score(lambda batch: (batch.x[..., :1] * batch.x[..., 1:]).sum(0), self.test)
        return super().baselines() | {"marker as the gate": {**metrics, "skip_percent": 100 * (1 - 2 / self.T)}}

    @property
    def _heard(self) -> int:
        """Number of steps of a sequence that are not in its silent stretch (setting `silence`)."""
        return self.T - round((self.silence or 0) * self.T)

    def _with_silence(self, rng: np.random.Generator, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Insert a silent stretch, in which value and marker are 0, at a random step of each sequence."""
        heard, count, _ = x.shape
        if heard == self.T:
            return x
        begin = rng.integers(heard + 1, size=count)
        steps = np.arange(heard)[:, None]
        padded = np.zeros((self.T, count, 2), np.float32)
        padded[np.where(steps < begin, steps, steps + self.T - heard), np.arange(count)] = x
        return padded

    def _values(self, rng: np.random.Generator, count: int) -> npt.NDArray[np.float32]:
        if self.delta2 is not None:
            return rng.standard_normal((self._heard, count), np.float32) * np.float32(self.delta2**0.5)
        values = rng.random((self._heard, count), np.float32)
        return values - np.float32(0.5) if self.values == "half" else values

    def _marked_steps(
        self, rng: np.random.Generator, count: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Draw two different steps to mark in each of `count` sequences; return two arrays of step indices (count,)."""
        T = self._heard
        if self.markers == "halves":
            tenth, half = max(1, T // 10), -(-T // 2)
            return rng.integers(tenth, size=count), rng.integers(half, T, size=count)
        first = rng.integers(T, size=count)
        second = rng.integers(T - 1, size=count)
        second += second >= first
        return first, second


def _with_relative_error(delta2: float) -> Objective:
    """Return the objective of regression with one more metric, mse_over_delta2: the mean squared error / delta2."""

    def metrics(y: Tensor, target: Tensor) -> dict[str, Tensor]:
        figures = REGRESSION.metrics(y, target)
        return {**figures, "mse_over_delta2": figures["mse"] / delta2}

    return Objective(REGRESSION.metric, REGRESSION.higher_is_better, REGRESSION.loss, metrics)
