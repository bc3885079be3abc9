# SPDX-License-Identifier: Apache-2.0
"""Seizure detection task: classify EEG recordings of one second."""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgernn.errors import EdgernnError, UsageError
from edgernn.training.datasets.find import find_either
from edgernn.training.formats import CsvTable, read_csv
from edgernn.training.tasks.detection import Detection
from edgernn.training.tasks.parts import Array, finite

# the first has columns recording and chunk, the others have an id column
FILES = ["epileptic_seizure_recognition.csv", "Epileptic Seizure Recognition.csv", "data.csv"]
SAMPLES = 178
# samples averaged for a step; samples left at the end are dropped
_MEAN = 10
_SEIZURE = 1
_RECORDING = "recording"
# the id column has no name, or the name that pandas gives to such a column
_ID = ("column 1", "Unnamed", "Unnamed: 0")
SPLITS = ("rows", "recordings")


@dataclass
class Seizures(Detection):
    """Detection of epileptic seizures in one second of EEG.

    x (17, B, 1): a series of 178 samples, centred by the mean of all 178, then averaged over every 10; the last 8 are
    dropped. target (B,): 1 for a seizure (y = 1 in the file); 0 for the four other classes (y = 2 to 5). 2,300 series
    show a seizure, and 2,300 of the other 9,200 are drawn.

    Settings:

    - `split`: rows: series are split one by one, as Hartvigsen et al. do. This leaks: each recording is cut into 23
      series, so that most test recordings are also in the training part. recordings: all series of a recording are in
      one part.

    File: data.csv or Epileptic Seizure Recognition.csv as UCI and others provide it, with an id, X1 … X178 and y; or
    epileptic_seizure_recognition.csv with recording and chunk in place of the id. The id X21.V1.791 is chunk 21 of the
    recording V1.791.

    Source of the data: Andrzejak et al., "Indications of nonlinear deterministic and finite-dimensional structures in
    time series of brain electrical activity", Physical Review E 64, 2001; made into rows by Wu and Fokoue for the UCI
    repository, 2017.
    """

    split: str = "rows"

    name = "seizures"
    help = "Detect a seizure in one second of EEG (needs the UCI file)."
    limits = (
        "No medical device, and not for diagnosis or treatment: trained and tested on the UCI file of EEG pieces of "
        "one second alone."
    )
    defaults = {**Detection.defaults, "lambda": 2e-4}  # noqa: RUF012
    input_size = 1
    classes = ("no seizure", "seizure")

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise UsageError(f"split: expected {' or '.join(SPLITS)}, got {self.split!r}")

    def open(self, source: Path | None, seed: int) -> None:
        (path,) = find_either(self.name, "seizures", [[name] for name in FILES], source)
        table = read_csv(path, text=(_RECORDING, *_ID))
        finite(str(path), table.values)
        samples = np.stack([table.column(f"X{i}") for i in range(1, SAMPLES + 1)], 1)
        seizure = table.column("y") == _SEIZURE
        centred = samples - samples.mean(1, keepdims=True)
        steps = SAMPLES // _MEAN
        x = centred[:, : steps * _MEAN].reshape(-1, steps, _MEAN).mean(2)
        groups = _recordings(table, seizure) if self.split == "recordings" else None
        self._split(path, x[..., None], seizure, seed, groups)


def _recordings(table: CsvTable, seizure: Array) -> Array:
    """Number the recording of each row (N,) of a table, which must have rows of one class alone."""
    if _RECORDING in table.text:
        names = table.text[_RECORDING]
    else:
        ids = next((table.text[column] for column in _ID if column in table.text), None)
        if ids is None:
            raise EdgernnError(
                f"{table.path}: expected a column {_RECORDING} or a column of ids like X21.V1.791, got neither; get "
                "the file again"
            )
        matches = [re.fullmatch(r"X\d+\.(V[\d.]+)", word) for word in ids]
        if None in matches:
            raise EdgernnError(
                f"{table.path}: expected ids like X21.V1.791, got {ids[matches.index(None)]!r}; correct the id"
            )
        names = [match[1] for match in matches if match]
    recordings, groups = np.unique(names, return_inverse=True)
    mixed = np.intersect1d(groups[seizure], groups[~seizure])
    if len(mixed):
        raise EdgernnError(
            f"{table.path}: expected one class per recording, got two in {recordings[mixed[0]]}; get the file again"
        )
    return groups
