# SPDX-License-Identifier: Apache-2.0
"""Reader of the finished runs in an earlier table.json, so that they need not be trained again.

In a table.json of `reproduce`, "settings" holds the settings that all rows share. Each row has the keys

settings  the settings of this row alone
runs      an object from the seed to the result of each finished training
series    an object from the name of a series, such as "loss", to the values of all runs in the order of "runs", see
          `reproduce.join_series`
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgernn.errors import EdgernnError, UsageError
from edgernn.files import read_json
from edgernn.training.tables.jobs import KnownRun
from edgernn.training.tables.series import Series
from edgernn.training.tables.toml_settings import Settings, label


@dataclass(frozen=True)
class KnownRow:
    """The finished runs of one row of an earlier table.json.

    Attributes:
        settings: The settings that all these runs were trained with, as a dict from name to value.
        runs: Dict from the random seed to the run.
    """

    settings: Mapping[str, Any]
    runs: Mapping[int, KnownRun]


def read_known_rows(path: Path, table: str) -> dict[tuple[str, str], KnownRow]:
    """Read the results of finished runs from an earlier table.json.

    Args:
        path: The file, which `reproduce` wrote.
        table: The name of the table that the file must belong to.

    Returns:
        Dict from a pair of names to a row. The pair is the name of the row and the label of its variant, such as
        "T=10", which lists the settings that vary between rows of this name. Rows without finished runs are left out.

    Raises:
        EdgernnError: The file cannot be read, or is no valid table.json of `reproduce`.
        UsageError: The file belongs to another table.
    """
    report = read_json(path)
    if not isinstance(report, dict) or "settings" not in report:
        raise EdgernnError(
            f'{path}: expected a table.json of `edgernn reproduce`, got a JSON file without the key "settings"; '
            "pass such a table.json to --known, or leave out --known"
        )
    if report.get("table") != table:
        raise UsageError(
            f"known: expected a table.json of {table}, got one of {report.get('table')}: {path}; pass the "
            f"table.json of an earlier reproduction of {table}"
        )
    try:
        return {
            (row["name"], label(row["variant"])): KnownRow({**report["settings"], **row["settings"]}, _runs(row))
            for row in report["rows"]
            if row["runs"]
        }
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise EdgernnError(
            f"{path}: expected a table of `edgernn reproduce`, got a damaged one ({type(error).__name__}: "
            f"{error}); restore it or leave out --known"
        ) from None


def _runs(row: Mapping[str, Any]) -> dict[int, KnownRun]:
    series = {
        name: [Series(entry["over"], entry["at"][: len(values)], values) for values in entry["values"]]
        for name, entry in row["series"].items()
    }
    return {
        int(seed): KnownRun(result, {name: runs[place] for name, runs in series.items()})
        for place, (seed, result) in enumerate(row["runs"].items())
    }


def shared_settings(rows: Iterable[Settings]) -> Settings:
    """Return the settings that have the same value in all rows of a table; `rows` has the settings of each row."""
    first, *others = rows
    return {key: value for key, value in first.items() if all(row.get(key, ...) == value for row in others)}
