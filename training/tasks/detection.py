# SPDX-License-Identifier: Apache-2.0
"""Base class of the tasks that detect an event in a sequence."""

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
from edgernn.training.tasks.trivial import fit_threshold

# least number of sequences (or recordings) of each class: one for each of the three parts
_LEAST = 3


@dataclass
class Detection(Task, ABC):
    """Binary classification of sequences by whether they contain an event, with balanced classes.

    The seed splits each class at random: 80 % of its sequences are for training, 10 % for validation and 10 % for the
    test. Each part keeps all sequences of its smaller class, and equally many sequences, chosen by the seed, of its
    larger class; all others are dropped. The model has one output per class, and its loss is the softmax cross entropy.
    Hartvigsen et al. (the source below) use the binary cross entropy of one logit; both losses are equal if the logit
    is the difference of the two outputs.

    Settings:

    - `scale`: true: standardise each input channel by its mean and standard deviation over the training part. false:
      only subtract the mean, as Hartvigsen et al. do.

    Source: Hartvigsen et al., "Learning to Selectively Update State Neurons in Recurrent Networks", CIKM 2020, sections
    4.2 and 4.3. It gives neither the number of epochs nor the batch size.
    """

    scale: bool = True

    defaults: ClassVar[Mapping[str, Any]] = {"epochs": 100, "hidden_size": 50, "batch_size": 32, "lr": 1e-3}
    objective = CLASSIFICATION
    output_size = 2

    def baselines(self) -> dict[str, dict[str, float]]:
        """Add a threshold on the mean of |x| over the steps and channels of a sequence, chosen on the training part."""
        assert isinstance(self.train, Sequences)
        predict = fit_threshold(self.train.x.abs().mean((1, 2)), self.train.targets(), self.output_size)
        metrics = self.score(lambda batch: predict(batch.x.abs().mean((0, 2))), self.test)
        return super().baselines() | {"threshold on the mean magnitude": metrics}

    def _split(self, source: Path, x: Array, event: Array, seed: int, groups: Array | None = None) -> None:
        """Split all sequences at random, and set `train`, `validation`, `test`, `mean` and `std`."""
        members = "sequences" if groups is None else "recordings"
        recordings = None if groups is None else torch.from_numpy(groups.astype(np.int64))
        groups = np.arange(len(x)) if groups is None else groups
        for value, name in enumerate(self.classes or ()):
            count = len(np.unique(groups[event == value]))
            if count < _LEAST:
                raise EdgernnError(
                    f"{source}: expected at least {_LEAST} {members} of the class {name!r}, got {count}; add {members}"
                )
        parts = balanced_parts(event, groups, seed)
        inputs, label = torch.from_numpy(x.astype(np.float32)), torch.from_numpy(event.astype(np.int64))
        self.train, self.validation, self.test = (
            Sequences(inputs[part], label[part], seed=seed, origins=None if recordings is None else recordings[part])
            for part in parts
        )
        self.mean, self.std = standardisation(self.train.x)
        if not self.scale:
            self.std = [1.0] * len(self.std)


def zero_or_one(path: Path, label: Array) -> Array:
    """Convert labels 0 and 1 (N,) to False and True.

    Args:
        path: The file of the labels, for errors.
        label: The labels.

    Returns:
        The booleans (N,).

    Raises:
        EdgernnError: A label is neither 0 nor 1.
    """
    if len(wrong := np.flatnonzero((label != 0) & (label != 1))):
        raise EdgernnError(
            f"{path}: expected labels 0 or 1, got {label[wrong[0]]:g} in row {wrong[0] + 1}; correct the row"
        )
    return np.asarray(label == 1)
