# SPDX-License-Identifier: Apache-2.0
"""Base class of the tasks on a user's own data."""

import abc
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from edgernn.errors import EdgernnError, EdgernnWarning, UsageError, some
from edgernn.model import RecurrentModel
from edgernn.runtime.answers import IGNORED
from edgernn.settings import Expected
from edgernn.training.tasks.augment import Augmentation
from edgernn.training.tasks.base import (
    CLASSIFICATION,
    REGRESSION,
    Task,
    class_weights,
    cross_entropy,
)
from edgernn.training.tasks.confusion import save_confusion
from edgernn.training.tasks.parts import HELD_OUT, Folds, standardisation
from edgernn.training.tasks.sources import Batch, Sequences, is_counted

TARGETS, NEXT = "targets", "next"
# integer labels are refused if the largest reaches both this and the number of labels: they are hardly class labels
MANY_CLASSES = 1000
# few sequences for validation have the same accuracy at many evaluations
_LABELS = replace(CLASSIFICATION, tie="cross_entropy")


@dataclass
class OwnData(Folds, Augmentation, Task):
    """Base class of tasks on a user's own sequences x (N, T, I): predict targets, or the next step.

    The input is standardised per channel by mean and standard deviation of the training part.

    Settings:

    - `predict`: What the model predicts. targets: the targets in the data, one per sequence or one per step. For labels
      the loss is the cross entropy and the main metric the accuracy. For numbers the loss is the mean squared error of
      targets that are standardised as the input is; the main metric is that in the squared unit of the data. The
      trained model answers in the unit of the data. next: all I channels of the next step, which are numbers; targets
      in the data are ignored.
    - `background_label`: Label of steps at which nothing happens (background steps), for data with one label per step.
      The penalty on neuron updates is multiplied by the training setting `background` at these steps. Default: none.
    - `balance`: Weight the classes in the loss, inversely to their number of labels in the training part, so that each
      class counts as much as every other one. config.json has the weights; a label has the weight 1 on average.
    """

    predict: Annotated[str, Expected(f"{TARGETS} or {NEXT}")] = TARGETS
    background_label: Annotated[int | None, Field(ge=0)] = None
    balance: bool = False

    defaults: ClassVar[Mapping[str, Any]] = {
        # patience ends the training earlier, but small data have few steps in an epoch
        "epochs": 100,
        "hidden_size": 64,
        "batch_size": 32,
        "lr": 1e-3,
        "keep": "best",
        "patience": 10,
    }

    calibrates = True

    def __post_init__(self) -> None:
        if self.predict not in (TARGETS, NEXT):
            raise UsageError(f"predict: expected {TARGETS} or {NEXT}, got {self.predict!r}")
        if self.augments and self.predict == NEXT:
            raise UsageError(
                "jitter, scaling, rotation, warp: expected none with predict=next, whose targets are the inputs; leave "
                "them out"
            )

    @property
    def marks_background(self) -> bool:
        return self.background_label is not None

    def background(self, batch: Batch) -> Tensor | None:
        return None if self.background_label is None else batch.target == self.background_label

    @abc.abstractmethod
    def _read(self, source: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Read the user's data; set `fingerprint` and `older_fingerprint`, and `classes` if the labels have names.

        The result is two dicts from part to tensor, x and y. The parts are "train", which is required, "validation" and
        "test". The x of a part is (N, T, I), for N sequences. Its y is int64 labels (N,) or (N, T), or float32 numbers
        (N, O) or (N, T, O), for O outputs. With the setting predict=next the dict y is empty. The dict `_lengths` gets
        the lengths (N,) int64, from 1 to T, of the parts whose sequences differ in length; later steps of x and of a y
        per step are padding. Targets to ignore are -1 or NaN (`Batch`).
        """

    def open(self, source: Path | None, seed: int) -> None:
        if source is None:
            raise UsageError(f"task {self.name}: expected the path of your own data, got none; pass it as --task PATH")
        x, y = self._examples(source)
        labels = not y["train"].is_floating_point()
        if labels:
            self.output_size = len(self.classes or ()) or max(int(part.max()) for part in y.values()) + 1
        else:
            self.output_size = y["train"].shape[-1]
        self._hold_out(source, x, y, seed)
        parts = {part: self._sequences(source, part, x[part], y[part], seed) for part in x}
        self.train, self.validation, self.test = (parts[part] for part in ("train", "validation", "test"))
        if labels and self.output_size <= MANY_CLASSES:
            self._warn_of_rare_classes(source, {part: sequences.y for part, sequences in parts.items()})
        steps = parts["train"].every_step()
        self._warn_of_constant_channels(source, steps)
        self.mean, self.std = self._statistics(steps)
        if not labels:
            y_train = parts["train"].y
            statistics = standardisation(y_train if y_train.ndim == 3 else y_train[None])
            self.target_scale = torch.tensor(statistics[0]), torch.tensor(statistics[1])
        if self.balance:
            self._weigh_classes(source, parts["train"].y)
        if self.augments:
            self.check_channels(source, self.input_size)
            std = torch.tensor(self.std)
            parts["train"].augment = lambda batch, step: self.augmented(batch, std, seed, step)

    def _hold_out(self, source: Path, x: dict[str, Tensor], y: dict[str, Tensor], seed: int) -> None:
        """Move a tenth of the training sequences to each part that is missing: validation, maybe a fold, or test."""
        missing = [part for part in ("validation", "test") if part not in x]
        count = len(x["train"])
        held_out = max(1, count // HELD_OUT)
        if count <= held_out * len(missing):
            raise EdgernnError(
                f"{source}: expected at least {len(missing) + 1} training sequences, because the missing parts "
                f"({', '.join(missing)}) are taken from them, got {count}; add sequences"
            )
        per_sequence: list[list[int]] = [[]] * count
        if not y["train"].is_floating_point() and self.output_size <= MANY_CLASSES:
            per_sequence = [labels[labels != IGNORED].unique().tolist() for labels in y["train"]]
        indices = self.draw(source, range(count), missing, seed, dict(enumerate(per_sequence)))
        for part in (*missing, "train"):
            for tensors in (x, y, self._lengths) if "train" in self._lengths else (x, y):
                tensors[part] = tensors["train"][indices[part]]

    def _statistics(self, x: Tensor) -> tuple[list[float], list[float]]:
        return standardisation(x)

    def _sequences(self, source: Path, part: str, x: Tensor, y: Tensor, seed: int = 0) -> Sequences:
        """Return the sequences of a part, or raise EdgernnError if all of its targets are ignored."""
        data = Sequences(x, y, seed=seed, per_step=self.output == "all", lengths=self._lengths.get(part))
        if not is_counted(data.y).any():
            raise EdgernnError(f"{source}: {part} part: expected a target, got none that counts; add targets")
        # the loss of a batch is a mean over the targets that count, not over sequences
        self.divides = self.divides and (self.output == "last" or bool(is_counted(data.y).all()))
        return data

    def _weigh_classes(self, source: Path, labels: Tensor) -> None:
        if labels.is_floating_point():
            raise EdgernnError(f"{source}: expected labels with balance=true, got numbers; leave balance out")
        weights = class_weights(labels, self.output_size)
        self.class_weights = weights.tolist()
        self.objective = replace(_LABELS, loss=lambda y, target: cross_entropy(y, target, weights.to(y)))

    def check_network(self, network: RecurrentModel) -> None:
        if self._lengths:
            network.check_lengths()

    def open_test(self, source: Path, output_size: int) -> None:
        x, y = self._examples(source)
        part = "test" if "test" in x else "train"
        target = y[part]
        if target.is_floating_point():
            self.output_size = target.shape[-1]
        elif (largest := int(target.max())) >= output_size:
            raise EdgernnError(
                f"{source}: expected labels from 0 to {output_size - 1}, as in the training, got {largest}; number the "
                "classes as in the training"
            )
        else:
            self.output_size = output_size
        self.test = self._sequences(source, part, x[part], target)

    def _examples(self, source: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the inputs and targets of each part as `_read` does, and set `objective`, `output`, `input_size`."""
        self._lengths: dict[str, Tensor] = {}
        x, y = self._read(source)
        if self.predict == NEXT:
            x, y = _next(source, x, self._lengths)
        labels = not y["train"].is_floating_point()
        self.objective = _LABELS if labels else REGRESSION
        self.output = "all" if y["train"].ndim == (2 if labels else 3) else "last"
        if self.background_label is not None and not (labels and self.output == "all"):
            raise EdgernnError(
                f"{source}: expected one label per step with background_label={self.background_label}, got other "
                "targets; leave background_label out"
            )
        self.input_size = x["train"].shape[2]
        return x, y

    def _warn_of_rare_classes(self, source: Path, y: dict[str, Tensor]) -> None:
        """Warn of classes without a training sequence, and of those of one sequence; `y` has the labels by part."""
        counts = {
            part: torch.bincount(labels[is_counted(labels)], minlength=self.output_size) for part, labels in y.items()
        }
        total = torch.stack(list(counts.values())).sum(0)
        names = self.classes or [str(i) for i in range(self.output_size)]
        if missing := [name for name, count in zip(names, counts["train"], strict=True) if not count]:
            text = f"{source}: no sequence for training has the class {some(missing)}; "
            numbers = "labels count from 0; to predict numbers, store y as float"
            text += numbers if self.classes is None else "the model cannot learn it"
            warnings.warn(text, EdgernnWarning, stacklevel=3)
        single = [name for name, count in zip(names, total, strict=True) if count == 1 and name not in missing]
        if single and self.output == "last":
            text = f"{source}: one sequence alone has the class {some(single)}, so no part tests it; add more"
            warnings.warn(text, EdgernnWarning, stacklevel=3)

    def _warn_of_constant_channels(self, source: Path, x: Tensor) -> None:
        """Warn of channels of x (N, T, I) with one value."""
        constant = (x == x[:1, :1]).flatten(0, 1).all(0).nonzero().flatten().tolist()
        if constant and len(x) * x.shape[1] > 1:
            names = [self.channels[i] if self.channels else f"x[..., {i}]" for i in constant]
            text = f"{source}: constant in float32 in all sequences for training: {', '.join(names)}"
            warnings.warn(text, EdgernnWarning, stacklevel=3)

    def pictures(self, model: RecurrentModel, folder: Path, device: str) -> None:
        """Write the confusion matrix of the test part, with the precision, recall and F1 of each class."""
        if self.objective.metric == _LABELS.metric:
            save_confusion(model, self, folder, device)

    def baselines(self) -> dict[str, dict[str, float]]:
        """Add, with predict=next, the last value: the next step equals this one."""
        if self.predict != NEXT:
            return super().baselines()
        return super().baselines() | {"last value": self.score(lambda batch: batch.x, self.test)}


def _next(
    source: Path, x: dict[str, Tensor], lengths: dict[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Make inputs and targets for predict=next, all steps but the last and all but the first, from x (N, T, I) by part.

    The lengths of sequences that differ are changed in place. EdgernnError is raised for sequences of one step.
    """
    shortest = {part: int(lengths[part].min()) if part in lengths else values.shape[1] for part, values in x.items()}
    if short := [part for part, steps in shortest.items() if steps < 2]:
        raise EdgernnError(
            f"{source}: {short[0]} part: expected sequences of at least 2 steps with predict=next, got 1; use longer "
            "sequences"
        )
    lengths.update({part: steps - 1 for part, steps in lengths.items()})
    return {part: values[:, :-1] for part, values in x.items()}, {part: values[:, 1:] for part, values in x.items()}
