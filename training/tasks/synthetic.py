# SPDX-License-Identifier: Apache-2.0
"""Base class of the tasks with generated sequences."""

import abc
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field
from torch import Tensor

from edgernn.training.tasks.base import Task
from edgernn.training.tasks.sources import Generated, Sequences

# random keys of the stored sets, which are the same for every seed
_VALIDATION, _TEST, _TRAIN = 11, 12, 13


@dataclass
class Synthetic(Task):
    """Base class of tasks whose sequences a subclass generates.

    Settings:

    - `train_size`: Number of training sequences, generated once, the same for every seed, and shuffled in each epoch.
      none: new sequences are generated for every batch.
    - `test_size`: Number of validation sequences, and of test sequences.
    - `epoch_steps`: Number of batches that count as an epoch if train_size is not set.
    """

    train_size: Annotated[int | None, Field(ge=1)] = None
    test_size: Annotated[int, Field(ge=1)] = 1000
    epoch_steps: Annotated[int, Field(ge=1)] = 100

    @abc.abstractmethod
    def make(self, rng: np.random.Generator, count: int) -> tuple[Tensor, Tensor]:
        """Generate `count` sequences.

        Args:
            rng: Random generator.
            count: Number of sequences.

        Returns:
            x (T, count, I), and the target (count, ...), or (T, count, ...) with one target per step.
        """

    def open(self, source: Path | None, seed: int) -> None:
        if self.train_size is None:
            self.train = Generated(self.make, self.epoch_steps, seed, self.output == "all")
        else:
            self.train = self._stored(_TRAIN, self.train_size, seed)
        self.validation = self._stored(_VALIDATION, self.test_size)
        self.test = self._stored(_TEST, self.test_size)

    def _stored(self, key: int, count: int, seed: int = 0) -> Sequences:
        x, y = self.make(np.random.default_rng([key, 0, 0]), count)
        per_step = self.output == "all"
        return Sequences(x.transpose(0, 1), y.transpose(0, 1) if per_step else y, seed=seed, per_step=per_step)
