# SPDX-License-Identifier: Apache-2.0
"""Series of numbers, such as the loss at each evaluation, that a table of results keeps of each run for plots.

A series is a figure of metrics.jsonl, such as the loss, with a number for each evaluation; or one that the run's task
has measured on the trained network (`Task.series`), which is in series.json.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgernn.files import read_json, write_json
from edgernn.training.run_directory import SERIES, RunDirectory

# significant digits; more than a picture shows
_DIGITS = 5


def save_series(folder: Path, series: Mapping[str, Sequence[float]]) -> None:
    """Write the series that a task has measured (dict from name to values) into a run directory, unless it is empty."""
    if series:
        write_json(folder / SERIES, {name: list(values) for name, values in series.items()})


@dataclass(frozen=True)
class Series:
    """A series of numbers of one training run, such as the loss at each evaluation.

    Attributes:
        over: Unit of the horizontal axis, "epoch" or "step".
        at: The epochs or steps of the values.
        values: The values.
    """

    over: str
    at: Sequence[int]
    values: Sequence[float]


def run_series(name: str, run: Path) -> Series | None:
    """Return the values of a metric or other quantity over a finished run; None if the run did not record it."""
    lines = RunDirectory(run).metrics()
    if lines and name in lines[0]:
        # an epoch may have several evaluations
        over = "epoch" if len({line["epoch"] for line in lines}) == len(lines) else "step"
        return Series(over, [line[over] for line in lines], [line[name] for line in lines])
    values = read_json(run / SERIES).get(name) if (run / SERIES).is_file() else None
    return None if values is None else Series("step", range(1, len(values) + 1), values)


def join_series(runs: Sequence[Series | None]) -> dict[str, Any] | None:
    """Merge one series of finished runs that differ only in their seed.

    Args:
        runs: The series of each run.

    Returns:
        A dict with "over" (unit of the horizontal axis), "at" (epochs or steps of the longest run) and "values" (a list
        for each run). None if a run lacks the series.
    """
    series = [run for run in runs if run is not None]
    if not series or len(series) < len(runs):
        return None
    longest = max(series, key=lambda run: len(run.at))
    return {"over": longest.over, "at": list(longest.at), "values": [_rounded(run.values) for run in series]}


def _rounded(values: Iterable[float]) -> list[float]:
    return [float(f"{value:.{_DIGITS}g}") for value in values]
