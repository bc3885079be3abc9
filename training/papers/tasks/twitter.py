# SPDX-License-Identifier: Apache-2.0
"""Buzz detection task: find spikes in the discussion of topics on Twitter."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgernn.errors import EdgernnError
from edgernn.training.datasets.find import find_files
from edgernn.training.formats import read_csv
from edgernn.training.tasks.detection import Detection, zero_or_one
from edgernn.training.tasks.parts import finite

FILE = "Twitter-Absolute-Sigma-500.data"
FEATURES = 77
# rows averaged for a step
_MEAN = 5
_T = 15


@dataclass
class Twitter(Detection):
    """Detection of spikes ("buzz") in the discussion of topics on Twitter.

    x (15, B, 77): means of 5 successive rows of the file. target (B,): 1 if any of a sequence's 75 rows is labelled as
    buzz. Sequences are successive and do not overlap; rows left at the end are dropped.

    The paper of Hartvigsen et al. has 776 sequences of each class. It leaves three points open. This task resolves them
    as follows:

    - "Centred around zero": the mean of each channel over the training part is subtracted.
    - Labels are not averaged: one row with buzz is enough.
    - The paper takes 2,800 sequences of 15 steps from 28,000 steps, so that sequences must overlap. Here they do not
      overlap, which gives 1,876 sequences.

    File: Twitter-Absolute-Sigma-500.data of "Buzz in social media": 140,707 rows of 77 numbers and a label of 0 or 1,
    separated by commas, without a header.

    Source of the data: Kawala et al., "Prédictions d'activité dans les réseaux sociaux en ligne", 2013.
    """

    name = "twitter"
    help = "Detect a spike in the discussion of topics on Twitter (needs the UCI file)."
    defaults = {**Detection.defaults, "lambda": 2e-3}  # noqa: RUF012
    input_size = FEATURES
    classes = ("no buzz", "buzz")

    def open(self, source: Path | None, seed: int) -> None:
        (path,) = find_files(self.name, "twitter", [FILE], source)
        values = read_csv(path).values
        if values.shape[1] != FEATURES + 1:
            raise EdgernnError(
                f"{path}: expected {FEATURES} numbers and a label per row, got {values.shape[1]} columns; get the "
                "file again"
            )
        finite(str(path), values)
        buzz = zero_or_one(path, values[:, -1])
        count = len(values) // (_T * _MEAN)
        used = count * _T * _MEAN
        x = values[:used, :-1].reshape(count, _T, _MEAN, FEATURES).mean(2)
        self._split(path, x, np.any(buzz[:used].reshape(count, _T * _MEAN), 1), seed)
