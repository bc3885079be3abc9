# SPDX-License-Identifier: Apache-2.0
"""Series of numbers, such as the loss at each evaluation, that a table of results keeps of each run for plots.

A series is a key of metrics.jsonl, such as the loss, with one value per evaluation; or a key of series.json, with
values that the run's task has measured on the trained network (`Task.series`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgernn.files import read_json
from edgernn.training.run_directory import SERIES, RunDirectory


@dataclass(frozen=True)
class Series:
    """A series of numbers of one training run, such as the loss at each evaluation.

    Attributes:
        over: Unit of `at`, "epoch" or "step".
        at: Epoch or step of each value.
        values: The values.
    """

    over: str
    at: Sequence[int]
    values: Sequence[float]


def run_series(name: str, run: Path) -> Series | None:
    """Read a series of the run in directory `run`; None if the run did not record a series of this name.

    `name` is a key of metrics.jsonl, such as "loss", or of series.json.
    """
    lines = RunDirectory(run).metrics()
    if lines and name in lines[0]:
        # an epoch may have several evaluations
        over = "epoch" if len({line["epoch"] for line in lines}) == len(lines) else "step"
        return Series(over, [line[over] for line in lines], [line[name] for line in lines])
    values = read_json(run / SERIES).get(name) if (run / SERIES).is_file() else None
    return None if values is None else Series("step", range(1, len(values) + 1), values)
