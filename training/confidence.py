# SPDX-License-Identifier: Apache-2.0
"""Confidence interval of a trained model's metric on the test sequences of its task."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from edgernn.model import SequenceModel
from edgernn.training.statistics import CONFIDENCE
from edgernn.training.tasks import Batch, Task
from edgernn.training.tasks.base import Means, Objective

# number of groups of sequences that are left out in turn
GROUPS = 50
# least number of groups for an interval
FEWEST = 10


@dataclass(frozen=True)
class Interval:
    """A 95 % confidence interval.

    Attributes:
        low: Lower end.
        high: Upper end.
        method: How it was computed.
    """

    low: float
    high: float
    method: str


def metric_interval(model: SequenceModel, task: Task) -> Interval | None:
    """Estimate the confidence interval of the main metric for other test sequences of the same kind.

    A grouped jackknife: the test sequences are divided into at most 50 groups in their order, or into those that a task
    has, such as records. The metric is computed without each of the m groups in turn, which gives θ_i. The variance is
    (m - 1)/m Σ (θ_i - mean θ)², and the interval is the metric ± t times its root, with Student's t of m - 1 degrees of
    freedom. It does not cover other seeds of the training.

    Args:
        model: The trained model.
        task: Its task, opened.

    Returns:
        The interval, or None with fewer than 10 groups.
    """
    from scipy.stats import t

    batches = _outputs(model, task)
    everything, groups = _metric(task, batches)
    left = groups or [_metric(task, batches[:i] + batches[i + 1 :])[0] for i in range(len(batches))]
    count = len(left)
    if count < FEWEST:
        return None
    mean = sum(left) / count
    deviation = math.sqrt((count - 1) / count * sum((value - mean) ** 2 for value in left))
    half = float(t.ppf((1 + CONFIDENCE) / 2, count - 1)) * deviation
    method = f"jackknife over {count} {'groups of the test sequences' if groups is None else 'groups of the task'}"
    return Interval(everything - half, everything + half, method)


def _outputs(model: SequenceModel, task: Task) -> list[tuple[Tensor, Batch]]:
    """Run the model on the test sequences, a group at a time."""
    model.eval()
    size = max(1, math.ceil(len(task.test) / GROUPS))
    with torch.no_grad():
        return [(model(batch.x)[0], batch) for batch in task.test.chunks(size)]


def _metric(task: Task, batches: list[tuple[Tensor, Batch]]) -> tuple[float, list[float] | None]:
    """Compute the main metric of some groups of sequences, and without each of the task's own groups, if it has any."""
    assert isinstance(task.objective, Objective)
    metric = task.objective.metric
    means, tally = Means(), task.tally(task.test)
    for y, batch in batches:
        means.add(batch.x.shape[1], task.objective.metrics(y, batch.target))
        if tally is not None:
            tally.add(y, batch)
    if tally is None:
        return means.result()[metric], None
    groups = tally.without_each()
    left = None if groups is None else [figures[metric] for figures in groups]
    return (means.result() | tally.result())[metric], left
