# SPDX-License-Identifier: Apache-2.0
"""Pieces of trivial baselines: class frequencies, and a threshold on one number."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional


def log_counts(labels: Tensor, classes: int) -> Tensor:
    """Compute the logarithm of the number of labels of each class: scores whose softmax are the class frequencies.

    Args:
        labels: Labels int64 of any shape; negative ones are left out.
        classes: Number of classes.

    Returns:
        The scores (classes,) float64. A class without labels counts as if it had one, so that its score is finite.
    """
    return torch.bincount(labels[labels >= 0], minlength=classes).clamp(min=1).double().log()


def fit_threshold(statistic: Tensor, labels: Tensor, classes: int) -> Callable[[Tensor], Tensor]:
    """Find the threshold on a number that separates labels best if each side predicts its most frequent class.

    Args:
        statistic: The number for each of N sequences (N,).
        labels: Their labels (N,) int64.
        classes: Number of classes.

    Returns:
        A function from numbers (B,) to scores (B, classes): the logarithms of the class counts (`log_counts`) of the
        labels at most at the threshold, or above it.
    """
    ordered, order = statistic.sort()
    below = functional.one_hot(labels[order], classes).cumsum(0)
    right = below.max(1).values + (below[-1] - below).max(1).values
    # a threshold lies between two different numbers, or above all
    upper = torch.cat([ordered[1:], ordered.new_tensor([torch.inf])])
    right[ordered == upper] = -1
    best = int(right.argmax())
    threshold = (ordered[best] + upper[best]) / 2
    scores = [log_counts(labels[side], classes).float() for side in (statistic <= threshold, statistic > threshold)]
    return lambda numbers: torch.where((numbers > threshold)[..., None], scores[1], scores[0])
