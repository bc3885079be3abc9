# SPDX-License-Identifier: Apache-2.0
"""Confusion matrices, the recall, precision and F1 of each class with intervals, and calibrated probabilities."""

import csv
import io
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from edgernn.files import write_text
from edgernn.model import RecurrentModel
from edgernn.runtime.answers import IGNORED
from edgernn.training import pictures
from edgernn.training.tasks.base import CLASSIFICATION, CONFUSION, CONFUSION_TABLE, Objective, Tally, Task
from edgernn.training.tasks.output_layer import output_layer, scale_layer
from edgernn.training.tasks.sources import Batch, Split, is_counted

# standard deviation of the prior of log temperature: few validation sequences hardly change the probabilities
_PRIOR = 0.5
# quantile of the normal distribution for 95 % confidence
_Z = 1.959964
# most classes of a confusion matrix in the run directory
_SHOWN_CLASSES = 50
# number of bins of the calibration error
_BINS = 10


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
        self._by_sequence: list[Tensor] = []

    def add(self, y: Tensor, batch: Batch) -> None:
        counted = batch.target >= 0
        target, scores = batch.target[counted], y[counted]
        n = len(self.classes)
        self.counts += torch.bincount(target * n + scores.argmax(-1), minlength=n * n).view(n, n).cpu()
        self._entropy += float(functional.cross_entropy(scores, target, reduction="sum"))

    def add_sequences(self, y: Tensor, batch: Batch) -> None:
        """Add a batch as `add` does, and count its sequences apart, for intervals in `table`."""
        self.add(y, batch)
        labels = batch.target if batch.per_step else batch.target[None]
        shown = (y if batch.per_step else y[None]).argmax(-1).masked_fill(labels < 0, IGNORED)
        right = labels.masked_fill(labels != shown, IGNORED)
        # (B, 3, classes): right predictions, targets and predictions
        kinds = torch.arange(len(self.classes), device=labels.device)
        self._by_sequence.append(
            torch.stack([(values[..., None] == kinds).sum(0) for values in (right, labels, shown)], 1).int().cpu()
        )

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

    def table(self, origins: Tensor | None = None) -> str:
        """Return the confusion matrix, and the precision, recall and F1 of each class with intervals, as csv text.

        The intervals are 95 % Wilson intervals of the shares in the sequences of `add_sequences`. Steps of a sequence,
        and sequences of one origin, the recording or person (N,) in `origins`, depend on each other: the number of
        cases is divided by the design effect, by which the variance between origins exceeds that of independent cases.
        The interval of F1 = 2s / (1 + s) is that of the share s of the right predictions among the targets and wrong
        predictions of the class.
        """
        counts = torch.cat(self._by_sequence).numpy().astype(np.float64)
        if origins is not None:
            _, number = np.unique(origins.numpy(), return_inverse=True)
            totals = np.zeros((number.max() + 1, *counts.shape[1:]))
            np.add.at(totals, number, counts)
            counts = totals
        right, targets, predictions = counts.swapaxes(0, 1)
        names = ["precision", "recall", "f1"]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        ends = [f"{name}_{end}" for name in names for end in ("low", "high")]
        writer.writerow(["true class", *self.classes, *names, *ends])
        shares = zip(self.precision(), self.recall(), self.f1(), strict=True)
        for i, (name, cells, row) in enumerate(zip(self.classes, self.counts.tolist(), shares, strict=True)):
            hits, real, said = right[:, i], targets[:, i], predictions[:, i]
            low, high = interval(hits, real + said - hits)
            bounds = (*interval(hits, said), *interval(hits, real), 2 * low / (1 + low), 2 * high / (1 + high))
            writer.writerow([name, *cells, *(f"{share:.4f}" for share in (*row, *bounds))])
        return text.getvalue()


@torch.no_grad()
def save_confusion(
    model: RecurrentModel, task: Task, folder: Path, device: str, scores: Callable[[Tensor], Tensor] = lambda y: y
) -> None:
    """Write the confusion matrix of a task's test part as picture and table, if it has at most 50 classes.

    Args:
        model: The trained model.
        task: The task, with its data loaded.
        folder: The run directory.
        device: Device of the model.
        scores: Function that converts the outputs of a model to scores (B, classes), or (T, B, classes) with a target
            at each step.
    """
    if task.output_size > _SHOWN_CLASSES:
        return
    confusion = Confusion(task.classes or [str(i) for i in range(task.output_size)])
    for batch in task.test.chunks():
        moved = batch.to(device)
        confusion.add_sequences(scores(model.outputs(moved.x, moved.lengths)), moved)
    write_text(folder / CONFUSION_TABLE, confusion.table(task.test.origins))
    pictures.confusion_matrix(folder / CONFUSION, confusion.counts, confusion.classes)


def _shares(part: Tensor, whole: Tensor) -> list[float]:
    shares: list[float] = (part.double() / whole.clamp(min=1)).tolist()
    return shares


def interval(hits: NDArray[np.float64], cases: NDArray[np.float64]) -> tuple[float, float]:
    """Compute the 95 % Wilson interval of a share of cases that come from groups.

    Args:
        hits: Number of hits in each group (G,).
        cases: Number of cases in each group (G,); groups without a case do not count.

    Returns:
        The lower and the upper end, 0 and 1 without cases.
    """
    hits, cases = hits[cases > 0], cases[cases > 0]
    groups, n = len(cases), cases.sum()
    if not n:
        return 0.0, 1.0
    share = hits.sum() / n
    independent = share * (1 - share) / n
    if independent and groups > 1:
        between = groups / (groups - 1) * ((hits - share * cases) ** 2).sum() / n**2
        n /= max(1.0, between / independent)
    else:
        # nothing tells how the cases of a group depend on each other
        n = groups
    middle = (share + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z / (1 + _Z**2 / n) * math.sqrt(share * (1 - share) / n + _Z**2 / (4 * n**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def calibrate(model: RecurrentModel, task: Task, device: str) -> dict[str, float]:
    """Divide the scores of a model by a temperature, so that its probabilities fit the validation part of a task.

    The temperature goes into the output layer, so that every runtime of an exported file has the probabilities. It
    does not change the likeliest class.

    Args:
        model: The trained model, changed in place; one whose outputs are not those of a linear layer is left as it is.
        task: The task, with its data loaded.
        device: Device of the model.

    Returns:
        "temperature", and "calibration_error" and "calibration_error_before" of the test part: the mean difference of
        probability and accuracy over bins of the likeliest class's probability. Empty if the model is unchanged.

    Source: Guo et al., "On Calibration of Modern Neural Networks", 2017, https://arxiv.org/abs/1706.04599, section 4.2.
    """
    if task.objective.metric != CLASSIFICATION.metric:
        return {}
    layer = output_layer(model, next(task.validation.chunks()).to(device))
    if layer is None:
        return {}
    model.eval()
    temperature = fit_temperature(*_scores(model, task.validation, device))
    y, labels = _scores(model, task.test, device)
    scale_layer(layer, 1 / temperature)
    return {
        "temperature": temperature,
        "calibration_error": calibration_error(y / temperature, labels),
        "calibration_error_before": calibration_error(y, labels),
    }


@torch.no_grad()
def _scores(model: RecurrentModel, split: Split, device: str) -> tuple[Tensor, Tensor]:
    """Return the scores (n, classes) and labels (n,) of the targets of a split that are not ignored."""
    scores, labels = [], []
    for batch in split.chunks():
        moved = batch.to(device)
        counted = is_counted(moved.target)
        scores.append(model.outputs(moved.x, moved.lengths)[counted].double().cpu())
        labels.append(moved.target[counted].cpu())
    return torch.cat(scores), torch.cat(labels)


def fit_temperature(scores: Tensor, labels: Tensor) -> float:
    """Return the temperature by which to divide scores (n, classes), so that they fit labels (n,) best.

    It minimises the cross entropy, with a normal prior of its logarithm, which keeps it near 1 for few labels.
    """
    from scipy.optimize import minimize_scalar

    def loss(log: float) -> float:
        entropy = functional.cross_entropy(scores / math.exp(log), labels, reduction="sum")
        return float(entropy) + (log / _PRIOR) ** 2 / 2

    return math.exp(minimize_scalar(loss, bounds=(-3.0, 3.0), method="bounded").x)


def calibration_error(scores: Tensor, labels: Tensor) -> float:
    """Return the expected calibration error of scores (n, classes) for labels (n,), over 10 bins of probability."""
    likelihood, predicted = scores.softmax(-1).max(-1)
    excess = likelihood - (predicted == labels).double()
    number = (likelihood * _BINS).long().clamp(max=_BINS - 1)
    return float(torch.zeros(_BINS, dtype=torch.float64).index_add_(0, number, excess).abs().sum()) / len(labels)


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
