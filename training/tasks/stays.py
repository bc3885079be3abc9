# SPDX-License-Identifier: Apache-2.0
"""Intensive care stays as hourly series with gaps."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from edgernn.training.formats.physionet import OUTCOMES, PARAMETERS, Stays
from edgernn.training.tasks.sources import random_split

Array = npt.NDArray[Any]
HOURS = 48
# of the 37 time series all but the weight, and the mark of mechanical ventilation, which is always 1
FEATURES = tuple(name for name in PARAMETERS[6:] if name != "MechVent")
# one in so many of the observed values is held out of each stay
_HELD_OUT_VALUES = 10
# one in so many of the stays
_VALIDATION, _TEST = 10, 5
_HOLD_OUT = 41


def hourly(stays: Stays) -> Array:
    """Values (N, 48, 35) of FEATURES, NaN where none was measured; the last of several in an hour.

    What is measured at the end of the 48th hour is in none.
    """
    column = np.full(len(PARAMETERS), -1)
    column[[PARAMETERS.index(name) for name in FEATURES]] = np.arange(len(FEATURES))
    count = len(stays.record_id)
    stay = np.repeat(np.arange(count), np.diff(stays.row_start))
    # stable: of two at the same minute the later row stands
    order = np.lexsort((stays.minute, stay))
    order = order[(stays.minute[order] < 60 * HOURS) & (column[stays.param[order]] >= 0)]
    cell = (stay[order], stays.minute[order] // 60, column[stays.param[order]])
    shape = (count, HOURS, len(FEATURES))
    filled, last = np.unique(np.ravel_multi_index(cell, shape)[::-1], return_index=True)
    values = np.full(shape, np.nan, np.float32)
    values.reshape(-1)[filled] = stays.value[order][::-1][last]
    return values


def died(stays: Stays) -> Array:
    """Whether each stay ended with death in the hospital (N,)."""
    outcome: Array = stays.outcomes[:, OUTCOMES.index("In-hospital_death")]
    return np.equal(outcome, 1)


def hold_out(values: Array, seed: int) -> Array:
    """Which of the values (N, T, F) are held out: of each stay a tenth of those observed, rounded down, by the seed."""
    rng = np.random.default_rng([_HOLD_OUT, seed, 0])
    chosen = np.zeros(values.shape, bool)
    for stay, flags in zip(values.reshape(len(values), -1), chosen.reshape(len(values), -1), strict=True):
        observed = np.flatnonzero(~np.isnan(stay))
        flags[rng.choice(observed, len(observed) // _HELD_OUT_VALUES, replace=False)] = True
    return chosen


def stratified_parts(label: Tensor, seed: int) -> list[Tensor]:
    """Indices of the training, validation and test parts, 70, 10 and 20 % of each class: label (N,) is 0 or 1."""
    parts: list[list[Tensor]] = [[], [], []]
    for value in (0, 1):
        own = (label == value).nonzero().flatten()
        sizes = [max(1, len(own) // _VALIDATION), max(1, len(own) // _TEST)]
        for part, chosen in zip(parts, random_split(len(own), sizes, seed), strict=True):
            part.append(own[chosen])
    return [torch.cat(part) for part in parts]


def statistics(values: Tensor) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of the observed values of each feature: values (N, T, F), NaN where one is missing.

    A feature that never changes has a deviation of 1, one that was never observed a mean of 0 too.
    """
    rows = values.double().flatten(0, 1)
    mean = rows.nanmean(0).nan_to_num(nan=0.0)
    std = (rows - mean).square().nanmean(0).sqrt()
    changes = std > 1e-12 * mean.abs().clamp(min=1e-20)
    return mean.float().tolist(), torch.where(changes, std, 1.0).float().tolist()
