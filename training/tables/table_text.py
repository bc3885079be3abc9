# SPDX-License-Identifier: Apache-2.0
"""Columns and cells of tables of results: values in a column's unit, and their text."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from edgernn.errors import EdgernnError
from edgernn.training.pictures import COLUMNS

# columns that are computed from other entries of result.json
_COMPUTED = {
    "gmean": ("accuracy", "skip_percent"),
    "flops": ("flops_paper", "steps_a_sequence"),
    "neurons_updated": ("neurons", "skip_percent"),
    "work": ("macs_executed",),
}


def figure(result: dict[str, Any], column: str) -> float | None:
    """Compute the value of a run in one column of a table of results, in the unit of that column.

    A column is an entry of result.json or one of four computed ones. gmean is the geometric mean of the accuracy and
    the share of skipped updates, both in per cent. flops is the number of operations per sequence, counted as in the
    SA-RNN paper. neurons_updated is the mean number of updated neurons per step. work is the number of
    multiply-adds executed per step in the layers and in the residual blocks around them.

    Args:
        result: Content of the run's result.json.
        column: Name of the column.

    Returns:
        The value; None if the entry is null in result.json.

    Raises:
        EdgernnError: result.json lacks an entry that this column needs.
    """
    if missing := [name for name in _COMPUTED.get(column, (column,)) if name not in result]:
        raise EdgernnError(
            f"{column}: expected a run that measures it, got a result.json without the key {missing[0]}; remove "
            f"{column} from the columns of the table"
        )
    if column == "gmean":
        return math.sqrt(100 * result["accuracy"] * result["skip_percent"])
    if column == "flops":
        return float(result["flops_paper"] * result["steps_a_sequence"])
    if column == "work":
        # an earlier version had no blocks
        return float(result["macs_executed"] + result.get("block_macs", 0))
    if column == "neurons_updated":
        return float(result["neurons"] * (1 - result["skip_percent"] / 100))
    value = result[column]
    return None if value is None else float(value) * COLUMNS.get(column, ("", 1.0))[1]


def shown_baselines(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the trivial baselines of a table.json that were scored; an earlier version has none."""
    return [entry for entry in report.get("baselines", []) if "error" not in entry]


def baseline_name(entry: dict[str, Any], report: dict[str, Any], shown: Iterable[str]) -> str:
    """Format the name of a trivial baseline, in italics.

    Args:
        entry: The baseline, an entry of "baselines" in table.json.
        report: Content of the table.json.
        shown: Settings that have a column of their own; other settings of the task are part of the name.

    Returns:
        The text, with the task if the table has several.
    """
    parts = [entry["name"], *([entry["task"]] if len({other["task"] for other in report["baselines"]}) > 1 else [])]
    parts += [f"{key}={value}" for key, value in entry["settings"].items() if key not in shown]
    return f"*{', '.join(parts)}*"


def baseline_lines(report: dict[str, Any]) -> list[str]:
    """Explain, in a sentence each, the rows of trivial baselines, and why some are missing."""
    about = "Rows in italics are trivial baselines, which need no network, on the same test splits as the models."
    errors = [f"No trivial baselines: {entry['error']}." for entry in report.get("baselines", []) if "error" in entry]
    return [*([about] if shown_baselines(report) else []), *errors]


def grid(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Format column heads and rows of cells as a Markdown table; return its lines."""
    return [f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *rows)]


def number(value: float | None) -> str:
    """Format a number with four significant digits; None becomes the empty string."""
    if value is None:
        return ""
    return f"{value:.3e}" if value and not 1e-3 <= abs(value) < 1e5 else f"{value:.4g}"


def count(value: int | None) -> str:
    """Format an integer with thousands separators; None becomes the empty string."""
    return "" if value is None else f"{value:,}"


def seeds_done(row: dict[str, Any]) -> str:
    """Format the numbers of finished and failed seeds of a row of table.json, such as "4, 1 failed"."""
    failed = f", {len(row['failed'])} failed" if row["failed"] else ""
    return f"{len(row['seeds'])}{failed}"


def duration(seconds: float | None) -> str:
    """Format a duration in seconds, or from 120 s on in minutes; None becomes the empty string."""
    if seconds is None:
        return ""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
