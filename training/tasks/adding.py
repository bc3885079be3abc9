# SPDX-License-Identifier: Apache-2.0
"""The adding task."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from edgernn.training.settings import setting
from edgernn.training.tasks.base import REGRESSION, Task
from edgernn.training.tasks.sources import Generated, Sequences

HELD_OUT = 1000
# the held-out sets are the same for every seed
_VALIDATION, _TEST = 11, 12


@dataclass
class Adding(Task):
    """Remember two of T numbers and add them.

    x (T, B, 2): a value from U[0, 1], and a marker that is 1 at two random steps and 0 elsewhere.
    target (B, 1): the sum of the two marked values. Its variance is 1/6; solved is a hundredth of that.
    Training sequences never come twice; `epoch_steps` batches count as an epoch.
    Source: Hartvigsen et al., "Learning to Selectively Update State Neurons in Recurrent Networks", CIKM 2020, section
    4.5 (there T = 500); the threshold: Campos et al., "Skip RNN", ICLR 2018.
    """

    T: int = setting(50, at_least=2)
    epoch_steps: int = setting(100, at_least=1)

    name = "adding"
    help = "add the two marked ones of T random numbers"
    defaults = {  # noqa: RUF012
        "steps": 6000,
        "hidden_size": 128,
        "batch_size": 100,
        "lr": 1e-3,
        "lambda_": 1e-4,
        "clip": 1.0,
        "skip_target": 85.0,
    }
    objective = REGRESSION
    input_size, output_size = 2, 1
    solved = 1 / 600

    def open(self, source: Path | None, seed: int) -> None:
        self.train = Generated(self.make, self.epoch_steps, seed)
        self.validation = self._held_out(_VALIDATION)
        self.test = self._held_out(_TEST)

    def make(self, rng: np.random.Generator, count: int) -> tuple[Tensor, Tensor]:
        """x (T, count, 2) and the target (count, 1)."""
        x = np.zeros((self.T, count, 2), np.float32)
        x[..., 0] = rng.random((self.T, count), np.float32)
        first = rng.integers(self.T, size=count)
        second = rng.integers(self.T - 1, size=count)
        second += second >= first
        sequences = np.arange(count)
        x[first, sequences, 1] = x[second, sequences, 1] = 1
        target = x[first, sequences, :1] + x[second, sequences, :1]
        return torch.from_numpy(x), torch.from_numpy(target)

    def _held_out(self, key: int) -> Sequences:
        x, y = self.make(np.random.default_rng([key, 0, 0]), HELD_OUT)
        return Sequences(x.transpose(0, 1), y)
