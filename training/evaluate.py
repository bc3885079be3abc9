# SPDX-License-Identifier: Apache-2.0
"""A model's metrics over a split."""

import math

import torch

from edgernn.errors import EdgernnError
from edgernn.model import RecurrentModel
from edgernn.training.tasks import Split, Task


def evaluate(model: RecurrentModel, task: Task, split: Split, device: str = "cpu") -> dict[str, float]:
    """The task's metrics and skip_percent, as means over all sequences of a split; the same at every call.

    Raises EdgernnError where a metric is not finite.
    """
    was_training = model.training
    model.eval()
    with torch.no_grad(), torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(0)
        means = task.evaluate(model, split, device)
    model.train(was_training)
    for name, value in means.items():
        if not math.isfinite(value):
            raise EdgernnError(f"{name} is {value} on the held-out sequences: the training diverged; lower lr")
    return means
