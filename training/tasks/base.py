# SPDX-License-Identifier: Apache-2.0
"""What a task is: sequences and targets, a loss, and the metrics that say how well it is done."""

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from torch import Tensor
from torch.nn import functional

from edgernn.training.tasks.sources import Sequences, Source


@dataclass(frozen=True)
class Objective:
    """A loss, and metrics that are means over the elements of a batch.

    loss(y, target) is differentiable; metrics(y, target) maps plain names to scalars, `metric` among them the main one.
    y is the model's output: (B, O), or (T, B, O) with one target a step.
    """

    metric: str
    higher_is_better: bool
    loss: Callable[[Tensor, Tensor], Tensor]
    metrics: Callable[[Tensor, Tensor], dict[str, Tensor]]

    def better(self, value: float, than: float) -> bool:
        return value > than if self.higher_is_better else value < than


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

    name, help: for the command line. defaults: a small recipe, settings of TrainConfig by Python name.
    objective: loss and metrics. solved: the value of the main metric at which the task counts as solved.
    input_size, output_size, output: of the model ("all": one target a step). mean, std: its input standardisation.
    train, validation, test: the splits.
    fingerprint: tells two data files of one name apart.
    """

    name: ClassVar[str]
    help: ClassVar[str]
    defaults: ClassVar[Mapping[str, Any]] = {}

    objective: Objective
    input_size: int
    output_size: int
    output: Literal["last", "all"] = "last"
    mean: Sequence[float] = (0.0,)
    std: Sequence[float] = (1.0,)
    solved: float | None = None
    fingerprint: str | None = None
    train: Source
    validation: Sequences
    test: Sequences

    @abc.abstractmethod
    def open(self, source: Path | None, seed: int) -> None:
        """Read or make the data. source: the user's data folder, or the file of a task that is a file.

        Raises EdgernnError where data is missing or bad.
        """

    def is_solved(self, value: float) -> bool:
        """Whether a value of the main metric reaches the threshold."""
        return self.solved is not None and (value == self.solved or self.objective.better(value, self.solved))
