# SPDX-License-Identifier: Apache-2.0
"""The command `edgernn sweep`: train all combinations of cells, rules and settings."""

from pathlib import Path
from typing import Any

import click

from edgernn.cli.frame import json_command
from edgernn.cli.options import COUNT, PATH, data_folder, training_threads


def _text(result: dict[str, Any]) -> str:
    from edgernn.training.sweep.table import markdown

    return f"{markdown(result)}\nsaved: {', '.join(result['files'])}"


@json_command(example="edgernn sweep sweep.toml", text=_text)
@click.argument("path", metavar="SWEEP.toml", type=PATH)
@click.option("--address", metavar="HOST:PORT", help="Address of a Ray cluster to run on.  [default: this machine]")
@click.option(
    "--jobs",
    type=COUNT,
    help="Number of trainings to run at the same time.  [default: as many as the processors and GPUs allow]",
)
@training_threads
@click.option(
    "--gpus",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="Number of GPUs for each training; with 0.5, two trainings share a GPU.",
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
