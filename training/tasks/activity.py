# SPDX-License-Identifier: Apache-2.0
"""Activity task: label each step of a recording of an accelerometer and a gyroscope with the person's activity."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from pydantic import Field

from edgernn.errors import EdgernnError, UsageError
from edgernn.runtime.answers import IGNORED
from edgernn.training.datasets.find import find_either
from edgernn.training.datasets.registry import SETS
from edgernn.training.formats import read_hapt
from edgernn.training.tasks.base import Tally, Task
from edgernn.training.tasks.confusion import LABELLED_STEPS, Confusion
from edgernn.training.tasks.parts import (
    Array,
    Folds,
    check_apart,
    check_offsets,
    checked_array,
    finite,
    standardisation,
)
from edgernn.training.tasks.sources import Sequences, Split
from edgernn.training.tasks.windows import UNCOUNTED, windows_of

# labels 1 to 6 of the data; 7 to 12 are transitions between postures, 0 is unlabelled
ACTIVITIES = ("walking", "upstairs", "downstairs", "sitting", "standing", "lying")
_POSTURES = tuple(ACTIVITIES.index(name) for name in ("sitting", "standing", "lying"))
_LABELS = 13
# one in 7 users of the training part is for validation: 3 of 21
_VALIDATION = 7


@dataclass
class Activity(Folds, Task):
    """Activity recognition: label each step of a stream of acceleration (g) and angular velocity (rad/s) at 50 Hz.

    x (window, B, 6): acceleration and angular velocity along three axes each. target (window, B): index of the activity
    (walking, upstairs, downstairs, sitting, standing or lying). Steps without a label and transitions between postures
    are left out of the loss and of the metrics. The streams (recordings) are cut into windows. Every window except the
    first of a stream begins with `lead` or more steps of the window before it. These repeated steps are left out of
    loss and metrics, so that every labelled step counts once.

    The split is the publisher's, by user: 21 users for training and 9 for the test. Of the 21, the seed or the setting
    `folds` chooses those for validation, 3 by default. Background steps, at which nothing happens, are the steps
    without a label. With rest=true, the steps of sitting, standing and lying are background steps, too.

    Metrics, over all labelled steps of a split: accuracy, cross_entropy, macro_f1, and recall and precision of each
    class, such as recall_walking.

    Settings:

    - `window`: Number of steps in a window.
    - `lead`: Number of steps at the start of a window that repeat the window before it and are not counted again.
    - `rest`: Count sitting, standing and lying as background, too.

    Files: hapt.npz, or the folders RawData, Train and Test of the publisher's archive. hapt.npz has x (N, 6), the rows
    of all streams; label (N,), from 0 to 12 as in the data set's activity_labels.txt; offset (streams + 1,), the first
    row of each stream and, at the end, N; exp_user (streams, 2), the numbers of the experiment and the user;
    train_users and test_users, the numbers of the users of each part.

    Source: Reyes-Ortiz, Oneto, Samà, Parra, Anguita, "Transition-Aware Human Activity Recognition Using Smartphones",
    Neurocomputing 171, 2016.
    """

    window: Annotated[int, Field(ge=2)] = 600
    lead: Annotated[int, Field(ge=0)] = 100
    rest: bool = False

    name = "activity"
    help = "Label each step of accelerometer and gyroscope (needs the HAPT data)."
    defaults = {"epochs": 15, "hidden_size": 48, "batch_size": 32, "lr": 2e-3, "clip": 1.0, "lambda": 1e-3}  # noqa: RUF012
    objective = LABELLED_STEPS
    input_size, output_size = 6, len(ACTIVITIES)
    output = "all"
    classes = ACTIVITIES

    def __post_init__(self) -> None:
        if self.lead >= self.window:
            raise UsageError(f"lead: expected fewer steps than window={self.window}, got {self.lead}; lower lead")

    def open(self, source: Path | None, seed: int) -> None:
        paths = find_either(self.name, "hapt", SETS["hapt"].forms, source)
        path = paths[0]
        x, target, offset, user, train, test = _read(paths)
        if len(train) < 2:
            raise EdgernnError(f"{path}: train_users: expected at least 2 users, got {len(train)}; get the file again")
        training, validation = self.split_groups(path, len(train), _VALIDATION, seed)
        background = np.isin(target, [IGNORED, *(_POSTURES if self.rest else ())])
        parts = {}
        for part, users in (("train", train[training]), ("validation", train[validation]), ("test", test)):
            streams = np.flatnonzero(np.isin(user, users))
            if not len(streams):
                raise EdgernnError(
                    f"{path}: exp_user: expected at least one recording of a user in the {part} part, got none; get "
                    "the file again"
                )
            cuts = [slice(offset[i], offset[i + 1]) for i in streams]
            if short := [stream for stream in cuts if stream.stop - stream.start < self.window]:
                got = short[0].stop - short[0].start
                raise EdgernnError(
                    f"{path}: expected recordings of at least window={self.window} steps, got one of {got} steps; "
                    "lower window"
                )
            pieces = [
                windows_of(x[stream], target[stream], background[stream], self.window, self.lead) for stream in cuts
            ]
            inputs, targets, marks = (torch.from_numpy(np.concatenate(arrays)) for arrays in zip(*pieces, strict=True))
            if not (targets >= 0).any():
                raise EdgernnError(
                    f"{path}: label: expected steps with a label from 1 to 6 in the {part} part, got none; get the "
                    "file again"
                )
            parts[part] = Sequences(inputs, targets, seed=seed, per_step=True, background=marks)
        self.train, self.validation, self.test = parts.values()
        self.mean, self.std = standardisation(self.train.x)

    @property
    def marks_background(self) -> bool:
        return True

    def tally(self, split: Split) -> Tally:
        return Confusion(ACTIVITIES)


def _read(paths: Sequence[Path]) -> tuple[Array, Array, Array, Array, Array, Array]:
    """Read x (N, 6), targets (N,), the first row and the user of each stream, and the users of each part."""
    names = ("x", "label", "offset", "exp_user", "train_users", "test_users")
    path, arrays = paths[0], read_hapt(paths)
    for name, kinds, rank in zip(names, ("iuf", *["iu"] * 5), (2, 1, 1, 2, 1, 1), strict=True):
        checked_array(path, arrays, name, kinds, rank)
    x, label, offset, exp_user, train, test = (arrays[name] for name in names)
    if x.shape[1] != Activity.input_size or len(label) != len(x):
        wanted = f"x (N, {Activity.input_size}) and label (N,)"
        raise EdgernnError(f"{path}: expected {wanted}, got {x.shape} and {label.shape}; get the file again")
    if exp_user.shape[1] != 2:
        raise EdgernnError(f"{path}: exp_user: expected shape (streams, 2), got {exp_user.shape}; get the file again")
    check_offsets(path, "offset", offset, len(exp_user), len(x))
    if len(label) and not 0 <= int(label.min()) <= int(label.max()) < _LABELS:
        raise EdgernnError(f"{path}: label: expected 0 to 12, got {label.min()} to {label.max()}; get the file again")
    parts = {f"{path}: train_users": train.tolist(), f"{path}: test_users": test.tolist()}
    check_apart("user", parts, "get the file again")
    # unlabelled steps are background, transitions are not
    classes = np.array([IGNORED, *range(len(ACTIVITIES)), *[UNCOUNTED] * 6])
    return finite(f"{path}: x", x).numpy(), classes[label], offset, exp_user[:, 1], train, test
