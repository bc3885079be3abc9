# SPDX-License-Identifier: Apache-2.0
"""Remaining life task: predict how many cycles a turbofan engine has left."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from edgernn.errors import EdgernnError
from edgernn.training.datasets.find import find_files
from edgernn.training.formats import read_numbers
from edgernn.training.tasks.base import Objective, Tally, Task
from edgernn.training.tasks.parts import HELD_OUT, Array, Folds, standardisation
from edgernn.training.tasks.sources import Batch, Sequences, Split

FILES = ["train_FD001.txt", "test_FD001.txt", "RUL_FD001.txt"]
# columns: engine, cycle, then 3 settings and 21 sensors
_COLUMNS, _CHANNELS = 26, 24


def _capped_error(y: Tensor, target: Tensor) -> Tensor:
    return functional.mse_loss(y, target.clamp(max=1))


class _LifeTally(Tally):
    """Accumulates squared errors over batches, and computes two metrics: root mean squared errors in cycles.

    The metric rmse compares the outputs with the true remaining life capped at `cap` cycles; the metric rmse_uncapped
    compares them with the true remaining life itself.
    """

    def __init__(self, cap: int) -> None:
        self._cap, self._capped, self._whole, self._count = cap, 0.0, 0.0, 0

    def add(self, y: Tensor, batch: Batch) -> None:
        outputs, target = y.double() * self._cap, batch.target.double() * self._cap
        self._capped += float((outputs - target.clamp(max=self._cap)).square().sum())
        self._whole += float((outputs - target).square().sum())
        self._count += len(outputs)

    def result(self) -> dict[str, float]:
        return {
            "rmse": (self._capped / self._count) ** 0.5,
            "rmse_uncapped": (self._whole / self._count) ** 0.5,
        }


@dataclass
class RemainingLife(Folds, Task):
    """Remaining life of simulated turbofan engines (C-MAPSS FD001), in cycles.

    x (window, B, 24): 3 settings and 21 sensors of successive cycles of an engine. target (B, 1): the number of cycles
    that are left after the last step, divided by `cap`. The loss is the mean squared error, with targets above 1
    replaced by 1: the sensors of an engine with more than `cap` cycles left show no wear from which the number could be
    predicted. The model's output times `cap` is a number of cycles.

    Every window of the training engines is a sequence. Of these engines, the seed or the setting `folds` chooses those
    for validation, a tenth by default. The test part has the last window of each test engine. Metrics in cycles: rmse,
    the root mean squared error with the true remaining life capped at `cap` as in the loss; rmse_uncapped, the same
    without the cap.

    Settings:

    - `window`: Number of cycles of a sequence, at most 31, the number of cycles of the shortest test engine.
    - `cap`: Number of cycles at which the remaining life is capped in the loss; 125 in Li et al.

    Files: train_FD001.txt, test_FD001.txt, RUL_FD001.txt.

    Source: Li, Ding, Sun, "Remaining useful life estimation in prognostics using deep convolution neural networks",
    Reliability Engineering & System Safety 172, 2018. Data: Saxena, Goebel, Simon, Eklund, "Damage Propagation Modeling
    for Aircraft Engine Run-to-Failure Simulation", PHM 2008.
    """

    window: Annotated[int, Field(ge=1)] = 30
    cap: Annotated[int, Field(ge=1)] = 125

    name = "remaining-life"
    help = "Predict the cycles that an engine has left (needs C-MAPSS FD001)."
    defaults = {"epochs": 15, "hidden_size": 48, "batch_size": 100, "lr": 2e-3, "clip": 1.0, "lambda": 1e-4}  # noqa: RUF012
    objective = Objective("rmse", False, _capped_error, lambda y, target: {})
    card_metrics = ("rmse_uncapped",)
    input_size, output_size = _CHANNELS, 1

    def open(self, source: Path | None, seed: int) -> None:
        paths = find_files(self.name, "cmapss-fd001", FILES, source)
        engines, tested = (_engines(path, read_numbers(path, _COLUMNS)) for path in paths[:2])
        left = read_numbers(paths[2], 1)[:, 0].astype(np.float32)
        if len(left) != len(tested):
            raise EdgernnError(
                f"{paths[2]}: expected a line for each of {len(tested)} test engines, got {len(left)} lines; get the "
                "file again"
            )
        if (left < 0).any():
            raise EdgernnError(
                f"{paths[2]}: expected remaining lives of at least 0, got {left.min():g}; get the file again"
            )
        if len(engines) < 2:
            raise EdgernnError(f"{paths[0]}: expected at least 2 engines, got {len(engines)}; get the file again")
        for path, part in zip(paths, (engines, tested), strict=False):
            if short := [i for i, engine in enumerate(part, 1) if len(engine) < self.window]:
                got = f"{len(part[short[0] - 1])} of engine {short[0]}"
                raise EdgernnError(
                    f"{path}: expected at least window={self.window} cycles per engine, got {got}; lower the setting "
                    "window"
                )
        chosen = self.split_groups(paths[0], len(engines), HELD_OUT, seed)
        self.train, self.validation = (self._windows([engines[i] for i in part], seed) for part in chosen)
        last = np.stack([engine[-self.window :] for engine in tested])
        self.test = Sequences(torch.from_numpy(last), torch.from_numpy(left[:, None] / np.float32(self.cap)))
        self.mean, self.std = standardisation(self.train.x)

    def tally(self, split: Split) -> Tally:
        return _LifeTally(self.cap)

    def baselines(self) -> dict[str, dict[str, float]]:
        """Return the mean remaining life of the training windows, each capped at `cap` cycles as in the loss."""
        mean = self.train.targets().clamp(max=1).double().mean(0)
        return {"mean of the targets": self.score(self.constant(mean), self.test)}

    def _windows(self, engines: list[Array], seed: int) -> Sequences:
        """Return all windows of the engines (cycles, 24) as sequences, which training shuffles by `seed`."""
        x = [np.lib.stride_tricks.sliding_window_view(engine, self.window, 0).swapaxes(1, 2) for engine in engines]
        left = [np.arange(len(windows) - 1, -1, -1, dtype=np.float32)[:, None] for windows in x]
        target = torch.from_numpy(np.concatenate(left) / np.float32(self.cap))
        return Sequences(torch.from_numpy(np.concatenate(x)), target, seed=seed)


def _engines(path: Path, table: Array) -> list[Array]:
    """Split the table of a file into an array (cycles, 24) for each engine, without the columns 0 and 1."""
    starts = np.flatnonzero(table[:, 1] == 1)
    engines = np.split(table, starts[1:])
    for i, engine in enumerate(engines, 1):
        if (engine[:, 0] != i).any() or (engine[:, 1] != np.arange(1, len(engine) + 1)).any():
            raise EdgernnError(
                f"{path}: expected engines and their cycles numbered from 1, got other numbers at engine {i}; get "
                "the file again"
            )
    return [engine[:, 2:].astype(np.float32) for engine in engines]
