# SPDX-License-Identifier: Apache-2.0
"""Confidence interval of a trained model's metric on the test sequences of its task."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from edgernn.model import SequenceModel
from edgernn.training.statistics import CONFIDENCE
from edgernn.training.tasks.base import Means, Objective, Task
from edgernn.training.tasks.sources import Batch, Split

# outputs of a model for some test sequences, their batch, and the means of the metrics in it
Group = tuple[Tensor, Batch, Mapping[str, Tensor | float]]
# number of groups of sequences that are left out in turn
GROUPS = 50
# least number of groups for an interval
FEWEST = 10


@dataclass(frozen=True)
class Interval:
    """A 95 % confidence interval of a metric.

    Attributes:
        low: Lower end.
        high: Upper end.
        method: How it was computed, in words, such as "jackknife over 50 groups of the test sequences".
        by_record: True if each record of the test, such as a patient, was left out as a whole.
    """

    low: float
    high: float
    method: str
    by_record: bool

    @property
    def scope(self) -> str | None:
        """Sentence that says for which other test sequences the interval holds; None if it is one over records."""
        if self.by_record:
            return None
        return (
            "The interval treats the test sequences as independent. Sequences of one speaker or another common origin "
            "are not: it holds for other sequences of the same origins, and is too narrow for those of new ones."
        )


def metric_interval(model: SequenceModel, task: Task, split: Split | None = None) -> Interval | None:
    """Estimate the 95 % confidence interval of the main metric, as if test sequences of the same kind were drawn anew.

    A grouped jackknife: the test sequences are divided into m groups. θ_i is the metric without group i. The variance
    of the metric is (m - 1)/m Σ (θ_i - mean θ)², and the interval is the metric ± t times the root of the variance,
    with Student's t of m - 1 degrees of freedom. The interval does not cover the variation between training seeds.

    If the task knows from which recording or patient each sequence comes (`Split.origins` or `Tally.without_each`), all
    sequences of one recording or patient are a group. Otherwise there are at most 50 groups. Sequences with a target at
    each step, such as windows of a recording, are grouped in their order, as neighbours depend on each other. Other
    sequences are grouped at random, as a test set may be sorted by class. This treats them as independent, also those
    of one speaker: such an interval holds for other sequences of the same speakers, and is too narrow for new ones.

    Args:
        model: The trained model.
        task: The model's task, with its data loaded.
        split: The test sequences: the task's test split by default, or one of `Task.test_parts`.

    Returns:
        The interval, or None if there are fewer than 10 groups.
    """
    from scipy.stats import t

    split = task.test if split is None else split
    if not len(split):
        return None
    assert isinstance(task.objective, Objective)
    groups = [(y, batch, task.objective.metrics(y, batch.target)) for y, batch in _groups(model, split)]
    everything, left = _metric(task, split, groups)
    by_record = left is not None or split.origins is not None
    if left is None:
        if len(groups) < FEWEST:
            return None
        left = [_metric(task, split, groups[:i] + groups[i + 1 :])[0] for i in range(len(groups))]
    count = len(left)
    if count < FEWEST:
        return None
    mean = sum(left) / count
    deviation = math.sqrt((count - 1) / count * sum((value - mean) ** 2 for value in left))
    half = float(t.ppf((1 + CONFIDENCE) / 2, count - 1)) * deviation
    parts = "records of the test" if by_record else "groups of the test sequences"
    return Interval(everything - half, everything + half, f"jackknife over {count} {parts}", by_record)


def _groups(model: SequenceModel, split: Split) -> list[tuple[Tensor, Batch]]:
    """Run the model on the test sequences, and divide them into groups for a jackknife (see `metric_interval`)."""
    model.eval()
    count = min(GROUPS, len(split))
    size = math.ceil(len(split) / count)
    with torch.no_grad():
        if next(split.chunks(1)).per_step:
            return [(model.outputs(batch.x, batch.lengths), batch) for batch in split.chunks(size)]
        outputs = [(model.outputs(batch.x, batch.lengths), batch.target) for batch in split.chunks()]
    y, target = torch.cat([y for y, _ in outputs], -2), torch.cat([target for _, target in outputs])
    if split.origins is None:
        parts = torch.randperm(len(target), generator=torch.Generator().manual_seed(0)).chunk(count)
    else:
        origins = sorted(set(split.origins.tolist()))
        parts = tuple((split.origins == origin).nonzero()[:, 0] for origin in origins)
    # the inputs are not needed any more
    return [(y[..., rows, :], Batch(torch.empty(1, len(rows), 0), target[rows])) for rows in parts]


def _metric(task: Task, split: Split, groups: Sequence[Group]) -> tuple[float, list[float] | None]:
    assert isinstance(task.objective, Objective)
    metric = task.objective.metric
    means, tally = Means(), task.tally(split)
    for y, batch, figures in groups:
        means.add(batch.counted, figures)
        if tally is not None:
            tally.add(y, batch)
    if tally is None:
        return means.result()[metric], None
    by_record = tally.without_each()
    left = None if by_record is None else [figures[metric] for figures in by_record]
    return (means.result() | tally.result())[metric], left
