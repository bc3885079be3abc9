# SPDX-License-Identifier: Apache-2.0
"""How stored sequences become a training, a validation and a test part, and how they are standardised."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from edgernn.errors import EdgernnError
from edgernn.training.tasks.sources import random_split

Array = npt.NDArray[Any]
# one in 10 of the sequences is for validation, one for the test
HELD_OUT = 10


def finite(what: str, array: Array) -> Tensor:
    """The numbers of an array in float32. Raises EdgernnError, which begins with `what`, where one is not finite."""
    if array.dtype.kind not in "iubf":
        raise EdgernnError(f"{what}: expected numbers, got {array.dtype}")
    with np.errstate(over="ignore"):
        values = array.astype(np.float32)
    if not np.isfinite(values).all():
        index = first(~np.isfinite(values))
        raise EdgernnError(f"{what}: expected finite numbers (float32), got {array[index]} at index {index}")
    return torch.from_numpy(values)


def first(where: Array) -> tuple[int, ...]:
    """The index of the first true element."""
    return tuple(int(i) for i in np.unravel_index(int(where.argmax()), where.shape))


def standardisation(x: Tensor) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel of x (N, T, I); a channel that never changes is only centred."""
    std, mean = torch.std_mean(x.double(), (0, 1), correction=0)
    changes = std > 1e-12 * mean.abs().clamp(min=1e-20)
    return mean.float().tolist(), torch.where(changes, std, 1.0).float().tolist()


def balanced_parts(label: Array, groups: Array, seed: int) -> list[Tensor]:
    """Indices of the training, validation and test parts, each with as many sequences of class 1 as of class 0.

    label (N,): 0 or 1. groups (N,): whole numbers; sequences of one group have one label and stay in one part.
    A tenth of the groups of each class, at least one, is for validation, as many for the test. Then every part keeps
    all sequences of its smaller class and draws as many of the other. The seed decides both.
    """
    parts: list[list[Tensor]] = [[], [], []]
    for value in (0, 1):
        own = np.unique(groups[label == value])
        held_out = max(1, len(own) // HELD_OUT)
        for part, chosen in zip(parts, random_split(len(own), [held_out, held_out], seed), strict=True):
            members = torch.from_numpy(np.flatnonzero(np.isin(groups, own[chosen.numpy()])))
            part.append(members[random_split(len(members), [], seed)[0]])
    return [torch.cat([members[: min(map(len, part))] for members in part]) for part in parts]
