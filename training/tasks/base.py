# SPDX-License-Identifier: Apache-2.0
"""What a task is: sequences and targets, a network, a loss, and the metrics that say how well it is done."""

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from torch import Tensor
from torch.nn import functional

from edgernn.cells.base import State
from edgernn.config import ModelConfig
from edgernn.model import RecurrentModel, SequenceModel
from edgernn.training.tasks.sources import Batch, Source, Split

# the picture that a task's `pictures` draws into the run's directory
SAMPLES = "samples.png"


@dataclass(frozen=True)
class Score:
    """The main one of a task's metrics, and which way is better."""

    metric: str
    higher_is_better: bool

    def better(self, value: float, than: float) -> bool:
        return value > than if self.higher_is_better else value < than


@dataclass(frozen=True)
class Objective(Score):
    """The score of a task that asks a SequenceModel for targets: a loss, and metrics that are means over a batch.

    loss(y, target) is differentiable; metrics(y, target) maps plain names to scalars, `metric` among them the main one.
    y is the model's output: (B, O), or (T, B, O) with one target a step.
    """

    loss: Callable[[Tensor, Tensor], Tensor]
    metrics: Callable[[Tensor, Tensor], dict[str, Tensor]]


class Means:
    """Weighted means of named figures, gathered part by part."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._weight = 0.0

    def add(self, weight: float, figures: Mapping[str, Tensor | float]) -> None:
        self._weight += weight
        for name, value in figures.items():
            self._sums[name] = self._sums.get(name, 0.0) + weight * float(value)

    def result(self) -> dict[str, float]:
        return {name: total / self._weight for name, total in self._sums.items()}


def _cross_entropy(y: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(y.flatten(0, -2), target.flatten())


def _classification(y: Tensor, target: Tensor) -> dict[str, Tensor]:
    return {"accuracy": (y.argmax(-1) == target).double().mean(), "cross_entropy": _cross_entropy(y, target)}


def _regression(y: Tensor, target: Tensor) -> dict[str, Tensor]:
    return {"mse": functional.mse_loss(y, target), "mae": functional.l1_loss(y, target)}


# target (...) int64, y (..., classes)
CLASSIFICATION = Objective("accuracy", True, _cross_entropy, _classification)
# target and y (..., O) float32
REGRESSION = Objective("mse", False, functional.mse_loss, _regression)


class Task(abc.ABC):
    """A task. A subclass is a final dataclass whose fields are its settings; `open` sets the rest.

    name, help: for the command line. defaults: a small recipe, settings of training and model by short name.
    objective: loss and metrics. solved: the value of the main metric at which the task counts as solved.
    input_size, output_size, output: of the model ("all": one target a step). mean, std: its input standardisation.
    vocabulary: the number of words, where the input is words.
    train, validation, test: the splits.
    fingerprint: tells two data files of one name apart, where those of `train` do not. classes: what the numbers of a
    target mean, if that has names.

    What trains is a SequenceModel on an Objective, unless a task says otherwise: then it sets `network` and `without`,
    the settings that the network does not know, and overrides `build_network`, `loss` and `evaluate`.
    divides: a batch may be shared out among processes, sequence by sequence: the loss is a mean over its sequences, and
    what is carried has them along its first axis.
    """

    name: ClassVar[str]
    help: ClassVar[str]
    defaults: ClassVar[Mapping[str, Any]] = {}
    network: ClassVar[type[RecurrentModel]] = SequenceModel
    without: ClassVar[frozenset[str]] = frozenset()
    divides: ClassVar[bool] = True

    objective: Score
    input_size: int
    output_size: int
    output: Literal["last", "all"] = "last"
    mean: Sequence[float] = (0.0,)
    std: Sequence[float] = (1.0,)
    vocabulary: int | None = None
    solved: float | None = None
    fingerprint: str | None = None
    classes: Sequence[str] | None = None
    train: Source
    validation: Split
    test: Split

    @abc.abstractmethod
    def open(self, source: Path | None, seed: int) -> None:
        """Read or make the data. source: the user's data folder, or the file of a task that is a file.

        Raises EdgernnError where data is missing or bad.
        """

    def adapted(self, model: ModelConfig) -> ModelConfig:
        """The model that the settings ask for, as the task needs it; called before the data is read.

        Raises UsageError for a model that the task cannot train.
        """
        return model

    def build_network(self, model: ModelConfig) -> RecurrentModel:
        """A new network; the model's input and head are those of the data."""
        return SequenceModel(model)

    def loss(self, model: RecurrentModel, batch: Batch, carry: State | None) -> tuple[Tensor, State | None]:
        """The loss of a batch, and what the next step gets as `carry`: tensors of fixed shapes, without a gradient.

        carry is None at the first step and wherever the training source does not go on (`Source.continues`). The
        update budget and the loss of an imputer are added by the loop.
        """
        assert isinstance(self.objective, Objective)
        y, _ = model(batch.x)
        return self.objective.loss(y, batch.target), None

    def evaluate(self, model: RecurrentModel, split: Split, device: str) -> dict[str, float]:
        """The metrics over a whole split, and skip_percent; called without gradients, with torch's generator seeded."""
        assert isinstance(self.objective, Objective)
        means = Means()
        for batch in split.chunks():
            moved = batch.to(device)
            y, _ = model(moved.x)
            figures = self.objective.metrics(y, moved.target)
            means.add(batch.x.shape[1], {**figures, "skip_percent": 100 * (1 - model.update_rate)})
        return means.result()

    def pictures(self, model: RecurrentModel, folder: Path, device: str) -> None:  # noqa: B027
        """Draw into a finished run's directory what is to be seen of the trained network beside its learning curve.

        Called after `evaluate` on the test split.
        """

    def series(self, model: RecurrentModel, device: str) -> Mapping[str, Sequence[float]]:
        """Rows of numbers that one figure does not tell, such as a loss by step, for pictures of a table.

        Called without gradients, after `evaluate` on the test split.
        """
        return {}

    def is_solved(self, value: float) -> bool:
        """Whether a value of the main metric reaches the threshold."""
        return self.solved is not None and (value == self.solved or self.objective.better(value, self.solved))
