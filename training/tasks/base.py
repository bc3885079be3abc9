# SPDX-License-Identifier: Apache-2.0
"""Base class of training tasks: data, network, loss and metrics."""

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

from edgernn.cells.base import State
from edgernn.config import ModelConfig
from edgernn.costs import executed_macs
from edgernn.errors import UsageError
from edgernn.model import RecurrentModel, SequenceModel
from edgernn.runtime.answers import IGNORED
from edgernn.training.tasks.sources import Batch, Source, Split, is_counted
from edgernn.training.tasks.trivial import log_counts

# files that `Task.pictures` writes into the run's directory: samples; the DET curve of detected words, probabilities
# over time, and a minute of the test room with its words; or a confusion matrix
SAMPLES, DETECTIONS, SCORES, ROOM, ROOM_WORDS = "samples.png", "detections.png", "scores.png", "room.wav", "room.csv"
CONFUSION, CONFUSION_TABLE = "confusion.png", "confusion.csv"
# name of a metric: percentage of updates skipped at the steps that are not background
FOREGROUND = "skip_percent_foreground"


# function from a batch to outputs y, as a model has them
Predictor = Callable[[Batch], Tensor]


@dataclass(frozen=True)
class Score:
    """The main metric of a task: its name, and True in `higher_is_better` if a higher value is better.

    `tie` names a further metric, of which a lower value is better between equal values of the main one; or None.
    `least` is the name of a further metric and its wanted value, or None: keep=best prefers evaluations that reach it.
    """

    metric: str
    higher_is_better: bool
    tie: str | None = field(default=None, kw_only=True)
    least: tuple[str, float] | None = field(default=None, kw_only=True)

    def better(self, value: float, than: float) -> bool:
        return value > than if self.higher_is_better else value < than

    def missed(self, metrics: Mapping[str, float]) -> float:
        """Return by how much the metrics miss `least`; 0 if they reach it."""
        return 0.0 if self.least is None else max(0.0, self.least[1] - metrics[self.least[0]])


@dataclass(frozen=True)
class Objective(Score):
    """Main metric, loss and further metrics of a supervised task for a `SequenceModel`.

    `loss(y, target)` returns a differentiable scalar. `metrics(y, target)` returns a dict from metric name to its mean
    over the batch, without the metrics that a `Tally` computes over a whole split. y is the model's output: (B, O) with
    one target per sequence, (T, B, O) with one target per step.
    """

    loss: Callable[[Tensor, Tensor], Tensor]
    metrics: Callable[[Tensor, Tensor], dict[str, Tensor]]


class Means:
    """Weighted mean of each metric over the batches of an evaluation.

    `add` takes a batch's weight, such as its number of sequences, and its metrics, a dict from name to value. `result`
    returns the means as such a dict.
    """

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._weight = 0.0

    def add(self, weight: float, figures: Mapping[str, Tensor | float]) -> None:
        if not weight:
            # the metrics of no targets are NaN
            return
        self._weight += weight
        for name, value in figures.items():
            self._sums[name] = self._sums.get(name, 0.0) + weight * float(value)

    def result(self) -> dict[str, float]:
        return {name: total / self._weight for name, total in self._sums.items()}


def work(model: RecurrentModel) -> dict[str, float]:
    """Return metrics of the work in a model's last forward pass.

    skip_percent is the percentage of skipped neuron updates, and macs_executed the mean number of multiply-adds of the
    recurrent layers per step, without skipped work.
    """
    return {"skip_percent": 100 * (1 - model.update_rate), "macs_executed": executed_macs(model)}


class Tally(abc.ABC):
    """Accumulator of metrics that are not means over batches, such as the precision of a class over a whole split."""

    @abc.abstractmethod
    def add(self, y: Tensor, batch: Batch) -> None:
        """Add the outputs and targets of a batch to the accumulated counts.

        Args:
            y: The model's outputs, (B, O), or (T, B, O) with one target per step.
            batch: The batch, on the device of y.
        """

    @abc.abstractmethod
    def result(self) -> dict[str, float]:
        """Return the metrics over all batches added so far, as a dict from name to value."""

    def without_each(self) -> list[dict[str, float]] | None:
        """Compute the metrics with one group of sequences left out, for each group in turn (for the jackknife).

        A group is for example all windows of one electrocardiogram record, which are scored together.

        Returns:
            A list with one dict from metric name to value per group. None if sequences are scored one by one, without
            groups.
        """
        return None


def cross_entropy(y: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
    """Compute the mean cross entropy over the labels that are not ignored; 0 if all are.

    Args:
        y: Scores before softmax (..., classes).
        target: Labels (...) int64; `IGNORED` does not count.
        weight: Weights of the classes (classes,), by which the entropies are multiplied. Default: 1.

    Returns:
        The loss, a scalar tensor.
    """
    scores, labels = y.flatten(0, -2), target.flatten()
    count = int(is_counted(labels).sum())
    if weight is None and count:
        return functional.cross_entropy(scores, labels, ignore_index=IGNORED)
    return functional.cross_entropy(scores, labels, weight, ignore_index=IGNORED, reduction="sum") / max(1, count)


def class_weights(labels: Tensor, classes: int, power: float = 1.0) -> Tensor:
    """Compute weights of classes in a loss, with which rare classes count more.

    Args:
        labels: Labels int64 of any shape; negative ones are left out.
        classes: Number of classes.
        power: 1: each class counts as much as every other one; 0: each label does.

    Returns:
        The weights (classes,) float32, 0 for a class without labels. A label has the weight 1 on average.
    """
    counts = torch.bincount(labels[labels >= 0], minlength=classes).double()
    weight = torch.where(counts > 0, (counts / counts.sum()).pow(-power), 0.0)
    return (weight * counts.sum() / (weight * counts).sum()).float()


def _classification(y: Tensor, target: Tensor) -> dict[str, Tensor]:
    right = (y.argmax(-1) == target)[is_counted(target)]
    return {"accuracy": right.double().mean(), "cross_entropy": cross_entropy(y, target)}


def _known(y: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return outputs and target numbers without those that are ignored, NaN."""
    known = is_counted(target)
    return (y, target) if known.all() else (y[known], target[known])


def _squared_error(y: Tensor, target: Tensor) -> Tensor:
    y, target = _known(y, target)
    return functional.mse_loss(y, target) if target.numel() else y.sum()


def _regression(y: Tensor, target: Tensor) -> dict[str, Tensor]:
    # squares of numbers in float32 may overflow
    y, target = _known(y.double(), target.double())
    return {"mse": functional.mse_loss(y, target), "mae": functional.l1_loss(y, target)}


def standardised(objective: Objective, mean: Tensor, std: Tensor) -> Objective:
    """Return the objective of a model whose outputs are the target numbers standardised as (target - mean) / std.

    Args:
        objective: The objective of a model with outputs in the units of the targets.
        mean: Mean of each target number (O,).
        std: Standard deviation of each target number (O,).

    Returns:
        An objective with the loss of standardised targets, and with metrics in the units of the targets.
    """

    def loss(y: Tensor, target: Tensor) -> Tensor:
        return objective.loss(y, (target - mean.to(y)) / std.to(y))

    def metrics(y: Tensor, target: Tensor) -> dict[str, Tensor]:
        return objective.metrics(y * std.to(y) + mean.to(y), target)

    return replace(objective, loss=loss, metrics=metrics)


# target (...) int64, y (..., classes)
CLASSIFICATION = Objective("accuracy", True, cross_entropy, _classification)
# target and y (..., O) float32
REGRESSION = Objective("mse", False, _squared_error, _regression)


class Task(abc.ABC):
    """Base class of tasks. A subclass is a dataclass; its fields are the task's settings. `open` reads the data.

    Class attributes:
        name, help: Name and help text for the command line.
        defaults: Training and model settings of a small run, as a dict from the setting's name to its value.
        network: Class of the network that is trained.
        without: Names of model settings that this network does not support.
        limits: Sentence for cards and pages: what trained models must not be used for, and on which data they were
            trained. Empty by default.
        card_metrics: Names of metrics that the card of a trained model states beside the main metric.
        repeats_layers: True if the network runs a recurrent layer several times in a training step.

    Set by the class or by `open`:
        calibrates: True if the scores of classes are scaled after the training, so that probabilities fit the
            validation part.
        divides: True if the sequences of a batch can be divided among processes: the loss is a mean over sequences, and
            the state that `loss` returns has the batch as its first axis.
        target_scale: Mean and standard deviation (O,) of target numbers, by which they are standardised in the loss; or
            None if they are taken as they are.
        class_weights: Weights of the classes in the loss, or None if they count alike.
        objective: Main metric, a `Score`; for a supervised task an `Objective`, which adds loss and further metrics.
        input_size, output_size: Numbers of input channels I and outputs O of the model.
        output: "last" for one target per sequence, "all" for one target per step.
        mean, std: Mean and standard deviation of each input channel; the model standardises x by them.
        vocabulary: Number of words if the input is word indices, else None.
        solved: Value of the main metric at which the task counts as solved, or None.
        fingerprint: Hash of the data as they are read, in the order of the channels. None: `train.fingerprint`, the
            hash of the training part, takes its place.
        older_fingerprint: Hash of the bytes of a user's own files, which runs of earlier versions have, or None.
        classes: Names of the labels, or None.
        channels: Names of the input channels in their order, or None. To open the data of a trained model, they are set
            before `open`.
        reading: Entries of `edgernn.runtime.timeline.read_recording` by which a file of the user is read in runs, or
            "samples", the length of a clip of sound; or None.
        detector: Settings of word detection (`PostProcessing`) for the exported file, or None.
        summary: Lines that say how the user's own data were read.
        division: Names of the groups or recordings in the parts "train", "validation" and "test", and "by", their
            kind; None if the task draws no parts of named recordings.
        train: The training part of the data, a `Source` of batches.
        validation, test: The validation and the test part of the data, a `Split` each.

    By default a task trains a `SequenceModel`, or a network of one's own (`OwnNetwork`), on an `Objective`. A task with
    another network sets `network` and `without`, and overrides `build_network`, `loss`, `evaluate` and `baselines`.
    """

    name: ClassVar[str]
    help: ClassVar[str]
    defaults: ClassVar[Mapping[str, Any]] = {}
    network: ClassVar[type[RecurrentModel]] = SequenceModel
    without: ClassVar[frozenset[str]] = frozenset()
    limits: ClassVar[str] = ""
    card_metrics: ClassVar[tuple[str, ...]] = ()
    repeats_layers: ClassVar[bool] = False

    calibrates: bool = False
    divides: bool = True
    target_scale: tuple[Tensor, Tensor] | None = None
    class_weights: Sequence[float] | None = None
    objective: Score
    input_size: int
    output_size: int
    output: Literal["last", "all"] = "last"
    mean: Sequence[float] = (0.0,)
    std: Sequence[float] = (1.0,)
    vocabulary: int | None = None
    solved: float | None = None
    fingerprint: str | None = None
    older_fingerprint: str | None = None
    classes: Sequence[str] | None = None
    channels: Sequence[str] | None = None
    reading: Mapping[str, Any] | None = None
    detector: Mapping[str, float] | None = None
    summary: Sequence[str] = ()
    division: Mapping[str, Any] | None = None
    train: Source
    validation: Split
    test: Split

    @property
    def fingerprints(self) -> tuple[str | None, str | None]:
        """Hash of the data for config.json, and the one that runs of earlier versions have there."""
        return self.fingerprint or self.train.fingerprint, self.older_fingerprint

    @abc.abstractmethod
    def open(self, source: Path | None, seed: int) -> None:
        """Read or generate the data of the task.

        Args:
            source: The folder of data sets (`--data`), or the user's file or folder if `--task` is a path. None if
                neither is set.
            seed: Random seed of the split, of the order of sequences, and of generated sequences.

        Raises:
            EdgernnError: Data is missing or invalid.
        """

    def open_test(self, source: Path, output_size: int) -> None:
        """Read new data with targets as the test part alone, to test a trained model.

        `classes` and `channels` must be those of the training. Data that are split into parts have a test part, which
        is read alone.

        Args:
            source: The user's file or folder, as `open` reads it.
            output_size: Number of the model's outputs.

        Raises:
            UsageError: The task has its own data set.
            EdgernnError: The data are missing or invalid, or have other classes or channels.
        """
        raise UsageError(f"task {self.name}: expected no new data, as the task has its own; leave it out")

    def test_on_validation(self) -> None:
        """Take the validation part for the test part, so that models can be chosen without the test."""
        self.test = self.validation

    def adapted(self, model: ModelConfig) -> ModelConfig:
        """Return the model configuration with the changes that the task needs, such as a default imputer.

        UsageError is raised if the task does not support the configuration. The method is called before the data is
        read.
        """
        return model

    def build_network(self, model: ModelConfig) -> RecurrentModel:
        """Build a new network from a configuration whose input and output sizes are those of the task."""
        return SequenceModel(model)

    def check_network(self, network: RecurrentModel) -> None:  # noqa: B027
        """Raise UsageError if the task cannot train a network, such as one that needs whole sequences."""

    @property
    def marks_background(self) -> bool:
        """True if `background` marks steps at which nothing happens, such as silence in a recording."""
        return False

    def background(self, batch: Batch) -> Tensor | None:
        """Return a mask (T, B), True at steps of a batch at which nothing happens, or None if the task marks none.

        With the setting `background`, the penalty on neuron updates has another weight at these steps. The network must
        be a `SequenceModel`.
        """
        return batch.background

    def loss(self, model: RecurrentModel, batch: Batch, carry: State | None) -> tuple[Tensor, State | None]:
        """Compute the loss of a batch, and the state that is carried to the next training step.

        The training loop adds the update rule's penalty on neuron updates (`Trace.budget`) and the loss of the imputer.

        Args:
            model: The network that `build_network` returned.
            batch: The batch of this training step.
            carry: State that the previous training step returned. None at the first step, and if the sequences of this
                batch do not continue those of the previous one.

        Returns:
            The loss, a scalar tensor; and `carry` for the next training step: detached tensors of fixed shapes, or None
            if nothing is carried.
        """
        assert isinstance(self.objective, Objective)
        return self.objective.loss(model.outputs(batch.x, batch.lengths), batch.target), None

    def before_step(self, model: RecurrentModel, step: int, total: int, device: str) -> None:  # noqa: B027
        """Prepare a training step, such as by a new choice of difficult data; `total` is the number of all steps.

        The choice must follow from model, step and seed alone, and be in `state_dict`.
        """

    def state_dict(self) -> dict[str, Tensor]:
        """Return what `before_step` has chosen, for the checkpoint, as a dict from name to tensor."""
        return {}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:  # noqa: B027
        """Restore the result of `state_dict` from a checkpoint."""

    def tally(self, split: Split) -> Tally | None:
        """Return an empty `Tally` for the metrics of a split that are not means, or None if all metrics are means."""
        return None

    def test_parts(self) -> Mapping[str, Split]:
        """Return the parts of the test split for which a model's card states the main metric and the work separately.

        Returns:
            A dict from the name of each part, such as "words", to its sequences. Empty by default.
        """
        return {}

    def evaluate(self, model: RecurrentModel, split: Split, device: str) -> dict[str, float]:
        """Return the metrics of a whole split as a dict, with those of the function `work`.

        The metrics of `objective` are means over sequences, or over steps with one target per step; those with an
        ignored target do not count, as in `Batch`. The metrics of `tally` are added, and replace those of the
        same name. If the task marks background steps (at which nothing happens), the metric skip_percent_foreground is
        the percentage of skipped updates at all other steps. The method is called without gradients and with torch's
        random generator seeded.
        """
        costs, foreground = Means(), Means()

        def predict(batch: Batch) -> Tensor:
            background = self.background(batch)
            with model.marked(background):
                y = model.outputs(batch.x, batch.lengths)
            costs.add(batch.steps, work(model))
            if background is not None and (count := round(model.foreground * batch.steps)):
                foreground.add(count, {FOREGROUND: 100 * (1 - model.foreground_rate)})
            return y

        return self.score(predict, split, device) | costs.result() | foreground.result()

    def score(self, predict: Predictor, split: Split, device: str = "cpu") -> dict[str, float]:
        """Compute the metrics of predictions over a whole split, without metrics of the work.

        Args:
            predict: Function from a batch to outputs y, (B, O), or (T, B, O) with one target per step.
            split: The split.
            device: Device of the batches.

        Returns:
            Dict from metric to value: means of the metrics of `objective`, and those of `tally`.
        """
        assert isinstance(self.objective, Objective)
        means, tally = Means(), self.tally(split)
        for batch in split.chunks():
            moved = batch.to(device)
            y = predict(moved)
            means.add(moved.counted, self.objective.metrics(y, moved.target))
            if tally is not None:
                tally.add(y, moved)
        return means.result() | ({} if tally is None else tally.result())

    def baselines(self) -> dict[str, dict[str, float]]:
        """Score trivial predictors, which need no training, on the test split, to set beside models.

        By default there is one. For labels it is the majority class of the training part: its scores are the logarithms
        of the class frequencies, so that the cross entropy is that of the frequencies. For numbers it is the mean of
        the training targets. A task overrides the method to add a better trivial rule, such as a threshold.

        Returns:
            Dict from the name of each baseline to its metrics, a dict from name to value as `evaluate` returns it. A
            metric that the baseline does not have is left out.
        """
        targets = self.train.targets()
        if targets.is_floating_point():
            name, y = "mean of the targets", targets.double().flatten(0, -2).nanmean(0)
        else:
            name, y = "majority class", log_counts(targets, self.output_size)
        return {name: self.score(self.constant(y), self.test)}

    def constant(self, y: Tensor) -> Predictor:
        """Return a predictor whose output is y (O,) for each sequence, or for each step with one target per step."""

        def predict(batch: Batch) -> Tensor:
            places = batch.x.shape[:2] if self.output == "all" else batch.x.shape[1:2]
            return y.float().expand(*places, -1)

        return predict

    def pictures(self, model: RecurrentModel, folder: Path, device: str) -> None:  # noqa: B027
        """Write the task's own images of the trained network, such as samples, into the run directory.

        Called after `evaluate` on the test split.
        """

    def series(self, model: RecurrentModel, device: str) -> Mapping[str, Sequence[float]]:
        """Return results that are lists of numbers, such as the loss at each step, as a dict from name to list.

        They are plotted when a paper's table is reproduced. The method is called without gradients, after `evaluate` on
        the test split.
        """
        return {}

    def is_solved(self, value: float) -> bool:
        """Return True if a value of the main metric is at least as good as `solved`, the task's target."""
        return self.solved is not None and (value == self.solved or self.objective.better(value, self.solved))
