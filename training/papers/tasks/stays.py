# SPDX-License-Identifier: Apache-2.0
"""Stays in intensive care as hourly series with missing values, for the mortality task `brits`."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from edgernn.training.papers.formats.physionet import OUTCOMES, PARAMETERS, Stays
from edgernn.training.tasks.parts import split_each

Array = npt.NDArray[Any]
HOURS = 48
# the 37 time series without the weight and without MechVent, which is 1 wherever it is recorded
FEATURES = tuple(name for name in PARAMETERS[6:] if name != "MechVent")
# one in 10 observed values of each stay is held out
_HELD_OUT_VALUES = 10
# one in 10 stays is for validation, one in 5 for the test
_VALIDATION, _TEST = 10, 5
# random key of the held-out values
_HOLD_OUT = 41


def hourly(stays: Stays) -> Array:
    """Convert N stays of 48 hours to hourly series (N, 48, 35): the last value of each of the FEATURES in each hour.

    It is NaN in an hour without a measurement. A measurement at exactly 48:00 is dropped.
    """
    column = np.full(len(PARAMETERS), -1)
    column[[PARAMETERS.index(name) for name in FEATURES]] = np.arange(len(FEATURES))
    count = len(stays.record_id)
    stay = np.repeat(np.arange(count), np.diff(stays.row_start))
    # lexsort is stable: of two measurements at the same minute, the later row wins
    order = np.lexsort((stays.minute, stay))
    order = order[(stays.minute[order] < 60 * HOURS) & (column[stays.param[order]] >= 0)]
    cell = (stay[order], stays.minute[order] // 60, column[stays.param[order]])
    shape = (count, HOURS, len(FEATURES))
    filled, last = np.unique(np.ravel_multi_index(cell, shape)[::-1], return_index=True)
    values = np.full(shape, np.nan, np.float32)
    values.reshape(-1)[filled] = stays.value[order][::-1][last]
    return values


def died(stays: Stays) -> Array:
    """Return booleans (N,), true for each of the N stays in intensive care that ended with death in the hospital."""
    outcome: Array = stays.outcomes[:, OUTCOMES.index("In-hospital_death")]
    return np.equal(outcome, 1)


def hold_out(values: Array, seed: int) -> Array:
    """Choose values to hold out at random: a tenth of the observed values of each stay, rounded down.

    Args:
        values: Values (N, T, F) of N stays at T hours, for F features; NaN if missing.
        seed: Random seed.

    Returns:
        Booleans (N, T, F), true for a held-out value.
    """
    rng = np.random.default_rng([_HOLD_OUT, seed, 0])
    chosen = np.zeros(values.shape, bool)
    for stay, flags in zip(values.reshape(len(values), -1), chosen.reshape(len(values), -1), strict=True):
        observed = np.flatnonzero(~np.isnan(stay))
        flags[rng.choice(observed, len(observed) // _HELD_OUT_VALUES, replace=False)] = True
    return chosen


def stratified_parts(label: Tensor, seed: int) -> list[Tensor]:
    """Split the stays of each class into 70 % for training, 10 % for validation and 20 % for the test, at random.

    Args:
        label: 0 or 1 for each stay (N,).
        seed: Random seed.

    Returns:
        The indices of the stays of the training, validation and test parts, in this order.
    """
    classes = [(label == value).nonzero().flatten().tolist() for value in (0, 1)]
    return [torch.tensor(part) for part in split_each(classes, (_VALIDATION, _TEST), seed)]
