# SPDX-License-Identifier: Apache-2.0
"""`edgernn sweep`."""

from pathlib import Path
from typing import Any

import click

from edgernn.cli.frame import verb


def _text(result: dict[str, Any]) -> str:
    from edgernn.training.sweep.sweep_table import markdown

    return f"{markdown(result)}\n\nsaved: {', '.join(result['files'])}"


@verb(example="edgernn sweep sweep.toml", text=_text)
@click.argument("path", metavar="SWEEP.toml", type=click.Path(path_type=Path))
@click.option("--address", metavar="HOST:PORT", help="A Ray cluster to run on.  [this machine]")
@click.option("--jobs", type=click.IntRange(min=1), help="Trainings at once.  [what fits]")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Of each training.")
@click.option("--gpus", type=click.FloatRange(min=0), default=0.0, show_default=True, help="Of each, or shares of one.")
@click.option("--out", type=click.Path(path_type=Path), help="The folder of the runs.  [runs/SWEEP]")
@click.option("--data", type=click.Path(path_type=Path), help="The folder of data sets.  [$EDGERNN_DATA]")
@click.option("--export", is_flag=True, help="Copy the models of the Pareto front to OUT/front.")
@click.option("--latency/--no-latency", default=True, show_default=True, help="Export and time a model a row.")
@click.option("--table-only", is_flag=True, help="Train and time nothing, lay out what is there.")
def command(path: Path, table_only: bool, **options: Any) -> dict[str, Any]:
    """Train every combination of cells, rules and settings in SWEEP.toml over several seeds, and lay all out.

    The same command goes on with what was stopped. The result is saved as table.json and table.md, with the Pareto
    front of the metric against work and latency as front.png and front.svg. docs/how-to/sweep.md describes the file.
    """
    from edgernn.training.sweep import sweep
    from edgernn.training.table import check_none_failed

    report = sweep(path, run=not table_only, **options)
    check_none_failed(report)
    return report
