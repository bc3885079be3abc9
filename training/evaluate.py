# SPDX-License-Identifier: Apache-2.0
"""Evaluation of a model on the validation or test split of a task."""

import math

import torch

from edgernn.errors import EdgernnError
from edgernn.model import RecurrentModel
from edgernn.training.tasks.base import Task
from edgernn.training.tasks.sources import Split


def evaluate(model: RecurrentModel, task: Task, split: Split, device: str = "cpu") -> dict[str, float]:
    """Compute a task's metrics over a whole split, with the skipped neuron updates and the executed multiply-adds.

    The random seed is fixed, so that two calls return the same values.

    Args:
        model: The network.
        task: The task, whose data `Task.open` has read.
        split: The split of the task's data, such as `task.validation`.
        device: The device of the model.

    Returns:
        Dict from the name of each metric to its value. "skip_percent" is the percentage of skipped neuron updates, and
        "macs_executed" the mean number of multiply-adds per step that remain.

    Raises:
        EdgernnError: A metric is not finite.
    """
    was_training = model.training
    model.eval()
    with torch.no_grad(), torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(0)
        means = task.evaluate(model, split, device)
    model.train(was_training)
    for name, value in means.items():
        if not math.isfinite(value):
            raise EdgernnError(
                f"{name} is {value} on the held-out sequences: the training diverged; lower the setting lr"
            )
    return means
