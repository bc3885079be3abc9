# SPDX-License-Identifier: Apache-2.0
"""Confusion matrices, and the recall, precision and F1 of each class that follow from them."""

import csv
import io
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from edgernn.training.tasks.base import Objective, Tally
from edgernn.training.tasks.sources import IGNORED, Batch


class Confusion(Tally):
    """Confusion matrix and mean cross entropy over a split; sequences or steps with a negative target are left out.

    The metrics are accuracy, cross_entropy, macro_f1 (the mean of the F1 of all classes), and for each class
    recall_NAME (the share of its targets that are predicted as this class) and precision_NAME (the share of its
    predictions that are right). The recall of a class without targets is 0. The precision of a class that is never
    predicted is 0.
    `counts` (classes, classes) is the confusion matrix: a row is a true class, a column a predicted class.

    Args:
        classes: Names of the classes.
    """

    def __init__(self, classes: Sequence[str]) -> None:
        self.classes = classes
        self.counts = torch.zeros(len(classes), len(classes), dtype=torch.int64)
        self._entropy = 0.0

    def add(self, y: Tensor, batch: Batch) -> None:
        counted = batch.target >= 0
        target, scores = batch.target[counted], y[counted]
        n = len(self.classes)
        self.counts += torch.bincount(target * n + scores.argmax(-1), minlength=n * n).view(n, n).cpu()
        self._entropy += float(functional.cross_entropy(scores, target, reduction="sum"))

    def result(self) -> dict[str, float]:
        total = max(1, int(self.counts.sum()))
        figures = {
            "accuracy": int(self.counts.diagonal().sum()) / total,
            "cross_entropy": self._entropy / total,
            "macro_f1": sum(self.f1()) / len(self.classes),
        }
        for name, recall, precision in zip(self.classes, self.recall(), self.precision(), strict=True):
            figures |= {f"recall_{name}": recall, f"precision_{name}": precision}
        return figures

    def recall(self) -> list[float]:
        """Return the recall of each class, in the order of `classes`; 0 for a class without targets."""
        return _shares(self.counts.diagonal(), self.counts.sum(1))

    def precision(self) -> list[float]:
        """Return the precision of each class, in the order of `classes`; 0 for a class that is never predicted."""
        return _shares(self.counts.diagonal(), self.counts.sum(0))

    def f1(self) -> list[float]:
        """Return the F1 score of each class, the harmonic mean of recall and precision, in the order of `classes`."""
        return _shares(2 * self.counts.diagonal(), self.counts.sum(0) + self.counts.sum(1))

    def table(self) -> str:
        """Return the confusion matrix and the precision, recall and F1 of each class as text in csv format."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["true class", *self.classes, "precision", "recall", "f1"])
        shares = zip(self.precision(), self.recall(), self.f1(), strict=True)
        for name, counts, row in zip(self.classes, self.counts.tolist(), shares, strict=True):
            writer.writerow([name, *counts, *(f"{share:.4f}" for share in row)])
        return text.getvalue()


def _shares(part: Tensor, whole: Tensor) -> list[float]:
    shares: list[float] = (part.double() / whole.clamp(min=1)).tolist()
    return shares


def masked_cross_entropy(y: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
    """Sum the cross entropy over the steps with a label, and divide the sum by the number of all steps.

    A negative target marks a step without a label. A labelled step thus has the same weight in the loss, no matter how
    many other steps of the batch have a label.

    Args:
        y: Scores before softmax (..., classes).
        target: Labels (...) int64.
        weight: Weights of the classes (classes,); None: all are 1.

    Returns:
        The loss, a scalar tensor.
    """
    scores, labels = y.flatten(0, -2), target.flatten()
    entropy = functional.cross_entropy(scores, labels.clamp(min=IGNORED), weight, ignore_index=IGNORED, reduction="sum")
    return entropy / labels.numel()


# target (...) int64, negative without a label; y (..., classes); the metrics are those of a `Confusion`
LABELLED_STEPS = Objective("accuracy", True, masked_cross_entropy, lambda y, target: {})
