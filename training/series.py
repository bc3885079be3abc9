# SPDX-License-Identifier: Apache-2.0
"""Rows of numbers that a table keeps of its runs, for pictures.

A series is a figure of metrics.jsonl, such as the loss, with a number for each evaluation; or one that the run's task
has measured on the trained network (`Task.series`), which is in series.json.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgernn.files import read_json, write_json
from edgernn.training.run_directory import SERIES, RunDirectory

# more digits than a picture shows
_DIGITS = 5


def save_series(folder: Path, series: Mapping[str, Sequence[float]]) -> None:
    """Write what a task has measured, if anything, into a run directory."""
    if series:
        write_json(folder / SERIES, {name: list(values) for name, values in series.items()})


def series_of(names: Iterable[str], runs: Sequence[Path]) -> dict[str, Any]:
    """The series of finished runs that differ in their seed alone.

    Returns:
        By name: over ("epoch" or "step": what the numbers follow), at (the epochs or steps) and values (a list for
        each run). A series that a run lacks is left out.
    """
    series = {}
    for name in names:
        rows = [row for run in runs if (row := _series(name, run)) is not None]
        if rows and len(rows) == len(runs):
            over, at, _ = max(rows, key=lambda row: len(row[1]))
            series[name] = {"over": over, "at": at, "values": [_rounded(values) for _, _, values in rows]}
    return series


def _series(name: str, run: Path) -> tuple[str, list[int], list[float]] | None:
    lines = RunDirectory(run).metrics()
    if lines and name in lines[0]:
        # several evaluations may be in one epoch
        over = "epoch" if len({line["epoch"] for line in lines}) == len(lines) else "step"
        return over, [line[over] for line in lines], [line[name] for line in lines]
    values = read_json(run / SERIES).get(name) if (run / SERIES).is_file() else None
    return None if values is None else ("step", list(range(1, len(values) + 1)), values)


def _rounded(values: Iterable[float]) -> list[float]:
    return [float(f"{value:.{_DIGITS}g}") for value in values]
