# SPDX-License-Identifier: Apache-2.0
"""Buzz on Twitter."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgernn.errors import EdgernnError
from edgernn.training.data import find_files
from edgernn.training.formats import read_csv
from edgernn.training.tasks.detection import Detection, zero_or_one
from edgernn.training.tasks.parts import finite

FILE = "Twitter-Absolute-Sigma-500.data"
FEATURES = 77
# rows in the mean of a step
_MEAN = 5
_T = 15


@dataclass
class Twitter(Detection):
    """Whether the talk about some topics holds a spike.

    x (15, B, 77): the mean of every 5 rows of the file. target (B,): 1 where any of a sequence's 75 rows is labelled as
    buzz. Sequences follow one another in the order of the file without overlap; rows left at the end are dropped. As
    many without buzz are drawn by the seed as there are with, or the other way round where those are fewer; the paper
    has 776 of each, 1,552 sequences. Parts, output and loss: see `Detection`.
    What the paper leaves open, and what is done here: whose mean "centred around zero" means (each channel's over the
    training part, which the model subtracts before it divides by the deviation); whether the labels are averaged, too
    (a single row is enough); how 28,000 steps give 2,800 sequences of 15 steps, which is possible only where they
    overlap or begin every 10 steps (without overlap there are 1,876, and no step is in two parts).
    The file: Twitter-Absolute-Sigma-500.data of "Buzz in social media": 140,707 rows of 77 numbers and a label of 0 or
    1, separated by commas, without a header.
    Source: see `Detection`. Data: Kawala et al., "Prédictions d'activité dans les réseaux sociaux en ligne", 2013.
    """

    name = "twitter"
    help = "find a spike in the talk on Twitter (needs the UCI file)"
    defaults = {**Detection.defaults, "lambda": 2e-3}  # noqa: RUF012
    input_size = FEATURES
    classes = ("no buzz", "buzz")

    def open(self, source: Path | None, seed: int) -> None:
        (path,) = find_files(self.name, "twitter", [FILE], source)
        values = read_csv(path).values
        if values.shape[1] != FEATURES + 1:
            raise EdgernnError(f"{path}: expected {FEATURES} numbers and a label a row, got {values.shape[1]} columns")
        finite(str(path), values)
        buzz = zero_or_one(path, values[:, -1])
        count = len(values) // (_T * _MEAN)
        used = count * _T * _MEAN
        x = values[:used, :-1].reshape(count, _T, _MEAN, FEATURES).mean(2)
        self._share_out(path, x, np.any(buzz[:used].reshape(count, _T * _MEAN), 1), seed)
