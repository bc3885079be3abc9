# SPDX-License-Identifier: Apache-2.0
"""Reader of HAPT, recordings of human activities and postural transitions, in its publisher's files.

The archive of UCI has a folder RawData with two files for each recording, such as acc_exp01_user01.txt (acceleration in
g) and gyro_exp01_user01.txt (angular velocity in rad/s). A line has three numbers, for the axes x, y and z, at 50 Hz.
RawData/labels.txt has a line for each labelled stretch: experiment, user, activity (1 to 12), first and last sample,
counted from 1. Train/subject_id_train.txt and Test/subject_id_test.txt have the user of each window of the publisher's
features, which give the users of both parts.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgernn.errors import EdgernnError
from edgernn.npz import Array, read_npz
from edgernn.training.formats.csv_text import read_numbers

# names of the arrays of hapt.npz
ARRAYS = ("x", "label", "offset", "exp_user", "train_users", "test_users")
_NAME = re.compile(r"acc_exp(\d{1,4})_user(\d{1,4})")
_ACTIVITIES = 12


def read_hapt(files: Sequence[Path]) -> dict[str, Array]:
    """Read the recordings of HAPT; EdgernnError if a file is missing or invalid.

    `files` is one path, that of hapt.npz (plain, .gz or .xz), whose arrays are not checked further; or three, those of
    the folder RawData, of subject_id_train.txt and of subject_id_test.txt.

    The arrays are x (N, 6): acceleration and angular velocity of all N steps of all recordings; label (N,): from 0
    (unlabelled) to 12; offset (recordings + 1,): the first row of each recording and, at the end, N; exp_user
    (recordings, 2): numbers of the experiment and the user; and train_users and test_users, the numbers of the users of
    each part.
    """
    if len(files) == 1:
        return read_npz(files[0], ARRAYS)
    folder, *users = files
    train, test = (np.unique(read_numbers(path, 1, whole=True)).astype(np.int64) for path in users)
    names = sorted(
        (int(match[1]), int(match[2]), path.name)
        for path in folder.iterdir()
        if path.suffix == ".txt" and (match := _NAME.fullmatch(path.stem))
    )
    if not names:
        raise EdgernnError(f"{folder}: expected files such as acc_exp01_user01.txt, got none; unpack RawData there")
    recordings = [_recording(folder, name) for *_, name in names]
    offset = np.cumsum([0, *map(len, recordings)])
    exp_user = np.array([name[:2] for name in names], np.int64)
    return {
        "x": np.concatenate(recordings),
        "label": _labels(folder / "labels.txt", exp_user, offset),
        "offset": offset,
        "exp_user": exp_user,
        "train_users": train,
        "test_users": test,
    }


def _recording(folder: Path, name: str) -> npt.NDArray[np.float32]:
    """Read the recording (T, 6) whose acceleration is in the file `name`."""
    paths = folder / name, folder / name.replace("acc_", "gyro_", 1)
    acceleration, velocity = (read_numbers(path, 3) for path in paths)
    if len(acceleration) != len(velocity):
        raise EdgernnError(
            f"{paths[1]}: expected {len(acceleration)} lines, as {name} has, got {len(velocity)}; get the file again"
        )
    return np.concatenate([acceleration, velocity], 1).astype(np.float32)


def _labels(path: Path, exp_user: Array, offset: Array) -> npt.NDArray[np.uint8]:
    """Read labels.txt as the label of each step (N,); `exp_user` and `offset` are as in the result of `read_hapt`."""
    place = {(experiment, user): i for i, (experiment, user) in enumerate(exp_user.tolist())}
    label = np.zeros(offset[-1], np.uint8)
    for line, row in enumerate(read_numbers(path, 5, whole=True).astype(np.int64).tolist(), 1):
        experiment, user, activity, begin, end = row
        if (i := place.get((experiment, user))) is None:
            raise EdgernnError(
                f"{path}: line {line}: expected the experiment and the user of a recording, got {experiment} and "
                f"{user}; get the missing recording"
            )
        length = int(offset[i + 1] - offset[i])
        if not 1 <= begin <= end <= length or not 1 <= activity <= _ACTIVITIES:
            raise EdgernnError(
                f"{path}: line {line}: expected an activity from 1 to {_ACTIVITIES} and samples from 1 to {length} in "
                f"ascending order, got {activity}, {begin} and {end}; get the file again"
            )
        label[offset[i] + begin - 1 : offset[i] + end] = activity
    return label
