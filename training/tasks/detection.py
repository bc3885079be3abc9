# SPDX-License-Identifier: Apache-2.0
"""What the tasks share that find an event in a sequence."""

from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from edgernn.errors import EdgernnError
from edgernn.training.tasks.base import CLASSIFICATION, Task
from edgernn.training.tasks.parts import Array, balanced_parts, standardisation
from edgernn.training.tasks.sources import Sequences

# a training, a validation and a test part need one each
_LEAST = 3


@dataclass
class Detection(Task, ABC):
    """Whether an event happens in a sequence, of data with as many sequences that hold one as that do not.

    target (B,): 1 where it happens, else 0. Of each class 80 % are to train on, 10 % to validate and 10 % to test. The
    data hold fewer sequences of one class, most often those with an event; as many of the other are drawn, and both
    this and the split are by the seed.
    The model has one output a class and is trained on the cross entropy. That is the binary cross entropy of the paper,
    taken of the difference of both outputs. The input is standardised by the training part, channel by channel: it is
    centred, and with scale=true divided by the standard deviation too. The paper only centres its series.
    Source: Hartvigsen et al., "Learning to Selectively Update State Neurons in Recurrent Networks", CIKM 2020, sections
    4.2 and 4.3; the number of epochs and the batch size are not there.
    """

    scale: bool = True

    defaults: ClassVar[Mapping[str, Any]] = {"epochs": 100, "hidden_size": 50, "batch_size": 32, "lr": 1e-3}
    objective = CLASSIFICATION
    output_size = 2

    def _share_out(self, source: Path, x: Array, event: Array, seed: int, groups: Array | None = None) -> None:
        """Set the parts from all sequences: x (N, T, I), event (N,) true or false, groups (N,) to keep together.

        Raises EdgernnError where one of the classes has too few.
        """
        members = "sequences" if groups is None else "recordings"
        groups = np.arange(len(x)) if groups is None else groups
        for value, name in enumerate(self.classes or ()):
            count = len(np.unique(groups[event == value]))
            if count < _LEAST:
                raise EdgernnError(f"{source}: expected at least {_LEAST} {members} of the class {name!r}, got {count}")
        parts = balanced_parts(event, groups, seed)
        inputs, label = torch.from_numpy(x.astype(np.float32)), torch.from_numpy(event.astype(np.int64))
        self.train, self.validation, self.test = (Sequences(inputs[part], label[part], seed=seed) for part in parts)
        self.mean, self.std = standardisation(self.train.x)
        if not self.scale:
            self.std = [1.0] * len(self.std)


def zero_or_one(path: Path, label: Array) -> Array:
    """Labels (N,) as truth values. Raises EdgernnError where one is neither 0 nor 1."""
    if len(wrong := np.flatnonzero((label != 0) & (label != 1))):
        raise EdgernnError(f"{path}: expected labels 0 or 1, got {label[wrong[0]]:g} in row {wrong[0] + 1}")
    return np.asarray(label == 1)
