# SPDX-License-Identifier: Apache-2.0
"""Finished runs that a table.json keeps, so that a table can be completed where their run directories are gone.

A report of `reproduce` has under "settings" the settings that all its rows share. Each of its rows has

settings  the settings of this row alone
runs      the results of its finished trainings, by seed
series    as `series.series_of` returns them, with the runs in the order of "runs"
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgernn.errors import EdgernnError, UsageError
from edgernn.files import read_json
from edgernn.training.recipe import Settings, label
from edgernn.training.series import Series


@dataclass(frozen=True)
class KnownRun:
    """A finished run: its result as `Job.result` returns it, and its series by name."""

    result: Mapping[str, Any]
    series: Mapping[str, Series]


@dataclass(frozen=True)
class KnownRow:
    """The finished runs of a row by seed, and the settings that they were trained with."""

    settings: Mapping[str, Any]
    runs: Mapping[int, KnownRun]


def read_known_rows(path: Path, table: str) -> dict[tuple[str, str], KnownRow]:
    """Read the finished runs that a table.json keeps.

    Args:
        path: The file, which `reproduce` wrote.
        table: The name of the table that it should be of.

    Returns:
        The rows by name and label of their variant. A row without finished runs is left out.

    Raises:
        EdgernnError: The file cannot be read, or has no runs.
        UsageError: It is of another table.
    """
    report = read_json(path)
    if not isinstance(report, dict) or "settings" not in report:
        raise EdgernnError(f"{path}: expected a table.json that keeps its runs; `edgernn reproduce` writes one")
    if report.get("table") != table:
        raise UsageError(f"known: expected a table.json of {table}, got one of {report.get('table')} in {path}")
    try:
        return {
            (row["name"], label(row["variant"])): KnownRow({**report["settings"], **row["settings"]}, _runs(row))
            for row in report["rows"]
            if row["runs"]
        }
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise EdgernnError(f"{path}: damaged: {type(error).__name__}: {error}") from None


def _runs(row: Mapping[str, Any]) -> dict[int, KnownRun]:
    series = {
        name: [Series(entry["over"], entry["at"][: len(values)], values) for values in entry["values"]]
        for name, entry in row["series"].items()
    }
    return {
        int(seed): KnownRun(result, {name: runs[place] for name, runs in series.items()})
        for place, (seed, result) in enumerate(row["runs"].items())
    }


def first_change(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """The first setting whose value has changed, in words; a setting that `before` lacks is no change."""
    for key, value in now.items():
        if key in before and before[key] != value:
            return f"{key}={before[key]}, now it is {value}"
    return None


def shared_settings(rows: Iterable[Settings]) -> Settings:
    """The settings that have one value in all rows."""
    first, *others = rows
    return {key: value for key, value in first.items() if all(row.get(key, ...) == value for row in others)}
