# SPDX-License-Identifier: Apache-2.0
"""Anomaly detection task: find anomalies in series of Yahoo's traffic."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgernn.errors import EdgernnError
from edgernn.training.datasets.find import find_files, locate
from edgernn.training.formats import read_csv
from edgernn.training.tasks.detection import Detection, zero_or_one
from edgernn.training.tasks.parts import finite

FILES = [f"real_{i}.csv" for i in range(1, 68)]
_T = 25


@dataclass
class Yahoo(Detection):
    """Detection of anomalies in windows of a time series.

    x (25, B, 1): the values of 25 successive steps. target (B,): 1 if any of them is an anomaly. Each of the 67 series
    is cut into windows that do not overlap; steps left at its end are dropped. The paper of Hartvigsen et al. has 418
    windows of each class.

    The series differ in scale by orders of magnitude. The paper mentions no rescaling of each series. Here, too, no
    series is rescaled by itself: the model standardises all series by one mean and standard deviation, those of the
    training part.

    Files: real_1.csv to real_67.csv in a folder A1Benchmark, with columns timestamp, value, is_anomaly.

    Source of the data: Yahoo Webscope S5, "A Labeled Anomaly Detection Dataset", version 1.0, which Yahoo provides
    under an agreement.
    """

    name = "yahoo"
    help = "Detect an anomaly in 25 steps of Yahoo's traffic (needs the files of A1Benchmark)."
    defaults = {**Detection.defaults, "lambda": 1e-3}  # noqa: RUF012
    input_size = 1
    classes = ("no anomaly", "anomaly")

    def open(self, source: Path | None, seed: int) -> None:
        (folder,) = find_files(self.name, "yahoo", ["A1Benchmark/"], source)
        x, anomaly = [], []
        for name, path in zip(FILES, locate(FILES, [folder]), strict=True):
            if path is None:
                raise EdgernnError(f"{folder}: expected {FILES[0]} to {FILES[-1]}, got no {name}; add it")
            table = read_csv(path)
            finite(str(path), table.values)
            count = len(table.values) // _T
            x.append(table.column("value")[: count * _T].reshape(count, _T, 1))
            is_anomaly = zero_or_one(path, table.column("is_anomaly"))
            anomaly.append(is_anomaly[: count * _T].reshape(count, _T).any(1))
        self._split(folder, np.concatenate(x), np.concatenate(anomaly), seed)
