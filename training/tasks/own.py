# SPDX-License-Identifier: Apache-2.0
"""What is asked of a user's own sequences, whatever files they come in."""

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from edgernn.errors import EdgernnError, UsageError
from edgernn.training.tasks.base import CLASSIFICATION, REGRESSION, Task
from edgernn.training.tasks.parts import HELD_OUT, standardisation
from edgernn.training.tasks.sources import Sequences, random_split

TARGETS, NEXT = "targets", "next"


@dataclass
class OwnData(Task):
    """A user's own sequences, x (N, T, I), and what is to be said of them.

    predict=targets: what comes with them, one a sequence or one a step. Labels: cross entropy, accuracy; numbers: mean
    squared error, in their own unit.
    predict=next: what comes next. The target of every step but the last is x of the step after, all I channels: mean
    squared error. Targets need not be there, and are not read.
    Parts to validate and to test may be given; for each that is not, a tenth is held out by the seed. The input is
    standardised by mean and standard deviation of the training part, channel by channel.
    """

    predict: str = TARGETS

    defaults: ClassVar[Mapping[str, Any]] = {"epochs": 20, "hidden_size": 64, "batch_size": 32, "lr": 1e-3}

    def __post_init__(self) -> None:
        if self.predict not in (TARGETS, NEXT):
            raise UsageError(f"predict: expected {TARGETS} or {NEXT}, got {self.predict!r}")

    @abc.abstractmethod
    def _read(self, source: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """X (N, T, I) and, unless what comes next is predicted, y of each part that is given.

        The parts are train, validation and test; the first is always there. y is int64 labels (N,) or (N, T), or
        float32 numbers (N, O) or (N, T, O). Sets fingerprint, and classes where labels have names.
        """

    def open(self, source: Path | None, seed: int) -> None:
        if source is None:
            raise UsageError(f"task: expected the path of your own data ({self.name})")
        x, y = self._read(source)
        if self.predict == NEXT:
            x, y = _next(source, x)
        labels = not y["train"].is_floating_point()
        self.objective = CLASSIFICATION if labels else REGRESSION
        self.output = "all" if y["train"].ndim == (2 if labels else 3) else "last"
        self.input_size = x["train"].shape[2]
        if labels:
            self.output_size = len(self.classes or ()) or max(int(part.max()) for part in y.values()) + 1
        else:
            self.output_size = y["train"].shape[-1]
        _hold_out(source, x, y, seed)
        self.mean, self.std = standardisation(x["train"])
        per_step = self.output == "all"
        self.train = Sequences(x["train"], y["train"], seed=seed, per_step=per_step)
        self.validation = Sequences(x["validation"], y["validation"], per_step=per_step)
        self.test = Sequences(x["test"], y["test"], per_step=per_step)


def _next(source: Path, x: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Every step as input but the last, and as target but the first."""
    if short := [part for part, values in x.items() if values.shape[1] < 2]:
        raise EdgernnError(f"{source}: {short[0]}: expected at least 2 steps, the last to be predicted, got 1")
    return {part: values[:, :-1] for part, values in x.items()}, {part: values[:, 1:] for part, values in x.items()}


def _hold_out(source: Path, x: dict[str, Tensor], y: dict[str, Tensor], seed: int) -> None:
    """Take the parts that are not given from the training part."""
    missing = [part for part in ("validation", "test") if part not in x]
    count = len(x["train"])
    held_out = max(1, count // HELD_OUT)
    if count <= held_out * len(missing):
        raise EdgernnError(f"{source}: expected at least {len(missing) + 1} sequences, got {count}")
    indices = random_split(count, [held_out] * len(missing), seed)
    for part, chosen in zip([*missing, "train"], [*indices[1:], indices[0]], strict=True):
        x[part], y[part] = x["train"][chosen], y["train"][chosen]
