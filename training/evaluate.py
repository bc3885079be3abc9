# SPDX-License-Identifier: Apache-2.0
"""A model's metrics over a split."""

import math

import torch

from edgernn.errors import EdgernnError
from edgernn.model import SequenceModel
from edgernn.training.tasks import Objective, Sequences


def evaluate(model: SequenceModel, objective: Objective, split: Sequences, device: str = "cpu") -> dict[str, float]:
    """The objective's metrics and skip_percent, as means over all sequences of a split.

    Raises EdgernnError where a metric is not finite.
    """
    sums: dict[str, float] = {}
    was_training = model.training
    model.eval()
    with torch.no_grad():
        for batch in split.chunks():
            count = batch.x.shape[1]
            moved = batch.to(device)
            y, _ = model(moved.x)
            found = {name: float(value) for name, value in objective.metrics(y, moved.target).items()}
            found["skip_percent"] = 100 * (1 - model.update_rate)
            for name, value in found.items():
                sums[name] = sums.get(name, 0.0) + count * value
    model.train(was_training)
    means = {name: total / len(split) for name, total in sums.items()}
    for name, value in means.items():
        if not math.isfinite(value):
            raise EdgernnError(f"{name} is {value} on the held-out sequences: the training diverged; lower lr")
    return means
