# SPDX-License-Identifier: Apache-2.0
"""A paper's table beside ours: gathered from finished runs, and laid out as text."""

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from edgernn.errors import EdgernnError

# how a column is called, and by what a run's figure is multiplied; any other column is a figure as it is
COLUMNS = {
    "accuracy": ("accuracy, %", 100.0),
    "bit_accuracy": ("bit accuracy, %", 100.0),
    "auc": ("AUC", 1.0),
    "gmean": ("√(accuracy · skip), %", 1.0),
    "skip_percent": ("skip, %", 1.0),
    "flops": ("FLOPs a sequence", 1.0),
    "cross_entropy": ("cross entropy, nats", 1.0),
    "mse": ("MSE", 1.0),
    "mae": ("MAE", 1.0),
    "mre": ("MRE", 1.0),
    "solved": ("solved, % of the seeds", 100.0),
    "seconds_per_epoch": ("s an epoch", 1.0),
}


def figure(result: dict[str, Any], column: str) -> float | None:
    """One figure of a run, in the unit of the table.

    Raises EdgernnError where the run has no such figure.
    gmean: √(accuracy · skip), both in per cent, the score of the SA-RNN paper. flops: its operations a sequence.
    """
    needed = {"gmean": ("accuracy", "skip_percent"), "flops": ("flops_paper", "steps_a_sequence")}.get(
        column, (column,)
    )
    if missing := [name for name in needed if name not in result]:
        raise EdgernnError(f"{column}: no such figure in a run of this table: it has no {missing[0]}")
    if column == "gmean":
        return math.sqrt(100 * result["accuracy"] * result["skip_percent"])
    if column == "flops":
        return float(result["flops_paper"] * result["steps_a_sequence"])
    value = result[column]
    return None if value is None else float(value) * COLUMNS.get(column, ("", 1.0))[1]


def summary(values: Sequence[float]) -> dict[str, Any]:
    """Mean and sample standard deviation; the latter is null of one value."""
    spread = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "sd": spread, "values": list(values)}


def markdown(report: dict[str, Any]) -> str:
    """A report of `reproduce` as a page."""
    columns: list[str] = report["columns"]
    names = [COLUMNS.get(column, (column.replace("_", " "), 1.0))[0] for column in columns]
    varied = list(report["vary"])
    heads = ["row", *varied]
    for name in names:
        heads += [f"{name}: paper", "ours"]
    heads += ["parameters", "seeds", "time a run"]
    lines = [line(heads), line("---" for _ in heads)]
    for row in report["rows"]:
        cells = [row["name"], *(str(row["variant"][key]) for key in varied)]
        for column in columns:
            found = row["columns"][column]
            cells += [number(found["paper"]), _spread(found)]
        cells += [count(row["parameters"]), _seeds(row), duration(row["seconds"])]
        lines.append(line(cells))
    return "\n".join([f"## {report['title']}", "", *_about(report), "", *lines, ""])


def _about(report: dict[str, Any]) -> list[str]:
    lines = [f"{report['paper']}. `{report['command']}`"]
    if report["quick"]:
        lines.append("**A cut-down version, which shows that the recipes run; its figures say nothing of the paper.**")
    if report["paper_seeds"]:
        lines.append(f"The paper has {report['paper_seeds']} runs a row.")
    lines.append(f"Ours: mean ± standard deviation over the seeds; {report['machine']}, edgernn {report['edgernn']}.")
    if "seconds_per_epoch" in report["columns"]:
        lines.append("Seconds include validation and checkpoints, and several trainings share the processor.")
    return [*lines, *([report["note"]] if report["note"] else [])]


def line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.3e}" if value and not 1e-3 <= abs(value) < 1e5 else f"{value:.4g}"


def _spread(found: dict[str, Any]) -> str:
    if found["mean"] is None:
        return "not run"
    return number(found["mean"]) + (f" ± {found['sd']:.2g}" if found["sd"] is not None else "")


def count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _seeds(row: dict[str, Any]) -> str:
    failed = f", {len(row['failed'])} failed" if row["failed"] else ""
    return f"{len(row['seeds'])}{failed}"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
