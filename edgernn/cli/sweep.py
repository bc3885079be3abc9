# SPDX-License-Identifier: Apache-2.0
"""The command `edgernn sweep`: train all combinations of cells, rules and settings."""

from pathlib import Path
from typing import Any

import click

from edgernn.cli.frame import json_command
from edgernn.cli.options import PATH, data_folder, training_device, training_jobs, training_threads


def _text(result: dict[str, Any]) -> str:
    from edgernn.training.sweep.table import markdown

    saved = ", ".join(result["files"]) or "no table of a part; run the command without --part when all parts have ended"
    return f"{markdown(result)}\nsaved: {saved}"


@json_command(example="edgernn sweep sweep.toml", text=_text)
@click.argument("path", metavar="SWEEP.toml", type=PATH)
@training_jobs
@training_threads
@training_device("cpu")
@click.option(
    "--part",
    metavar="K/N",
    help="Train only the K-th of N parts of the trainings; write no table and time nothing. Parts may run at the same "
    "time, on machines that share the folder OUT, such as those of a cluster.",
)
@click.option(
    "--out",
    type=PATH,
    help="Folder for the run directories and the table.  [default: runs/SWEEP, for the file SWEEP.toml]",
)
@data_folder
@click.option(
    "--export",
    is_flag=True,
    help="Export the Pareto-optimal models (metric against multiply-adds, latency or bytes) to OUT/front, where "
    "OUT is the folder of --out.",
)
@click.option(
    "--latency/--no-latency",
    default=True,
    show_default=True,
    help="Export and time the best model of each combination of cell, rule and settings.",
)
@click.option(
    "--table-only", is_flag=True, help="Print the table of the runs that are finished; train and time nothing."
)
@click.option(
    "--allow-code",
    is_flag=True,
    help="Execute the Python files that SWEEP.toml names as cells, FILE.py:CLASS. Without this option, such a sweep is "
    "refused.",
)
def command(path: Path, table_only: bool, **options: Any) -> dict[str, Any]:
    """Train all combinations of cells, rules and settings in SWEEP.toml with several seeds, and tabulate the results.

    Run the same command again to resume interrupted runs. The result is saved as table.json and table.md, with
    plots of the Pareto fronts of the metric against multiply-adds, latency and bytes in front.png and front.svg.
    docs/how-to/sweep.md describes the format of SWEEP.toml.
    """
    from edgernn.training.sweep import sweep
    from edgernn.training.tables.table import check_none_failed

    report = sweep(path, run=not table_only, **options)
    check_none_failed(report)
    return report
