# SPDX-License-Identifier: Apache-2.0
"""`edgernn reproduce`."""

from pathlib import Path
from typing import Any

import click

from edgernn.cli.frame import verb
from edgernn.errors import EdgernnError, UsageError


def _text(result: Any) -> str:
    if isinstance(result, list):
        return "\n".join(_tried(line) for line in result)
    from edgernn.training.report import markdown

    return f"{markdown(result)}\nsaved: {', '.join(result['files'])}"


def _tried(line: dict[str, Any]) -> str:
    settings = " ".join(f"{key}={value}" for key, value in line["settings"].items())
    if "failed" in line:
        return f"{line['row']} {settings}: {line['failed']}"
    figures = f"{line['metric']} {line['value']:.5g} (best {line['best']:.5g}), skip {line['skip_percent']:.1f} %"
    return f"{line['row']} {settings}: {figures}, {line['seconds']:.0f} s"


@verb(example="edgernn reproduce sarnn-4 --quick --rows gru,sarnn-0", text=_text)
@click.argument("table")
@click.option("--quick", is_flag=True, help="A cut-down version that takes minutes and says that it is one.")
@click.option("--seeds", type=click.IntRange(min=1), help="Trainings a row.  [what the table says]")
@click.option("--rows", metavar="NAME,NAME", help="Train only these rows.")
@click.option("--search", "searches", is_flag=True, help="Try the settings in [search] instead.")
@click.option("--table-only", is_flag=True, help="Train nothing, lay out what is there.")
@click.option("--jobs", type=click.IntRange(min=1), help="Trainings at once.  [one a processor]")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Of each training.")
@click.option("--out", type=click.Path(path_type=Path), help="The folder of the runs.  [runs/TABLE]")
@click.option("--data", type=click.Path(path_type=Path), help="The folder of data sets.  [$EDGERNN_DATA]")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
def command(searches: bool, table_only: bool, rows: str | None, quick: bool, seeds: int | None, **options: Any) -> Any:
    """Train what a paper's TABLE needs, going on with what was stopped, and lay our figures beside the paper's.

    The tables and their recipes are TOML files in edgernn/training/recipes. The result is saved as table.json and
    table.md in the folder of the runs.
    """
    from edgernn.training.reproduce import reproduce, search

    chosen = rows.split(",") if rows else None
    name = options.pop("table")
    if searches:
        if quick or seeds or table_only:
            raise UsageError("search: it goes with none of --quick, --seeds and --table-only")
        return search(name, rows=chosen, **options)
    report = reproduce(name, quick=quick, seeds=seeds, rows=chosen, run=not table_only, **options)
    reasons = [reason for row in report["rows"] for reason in row["failed"].values()]
    if reasons:
        raise EdgernnError(f"{len(reasons)} runs failed, {report['files'][-1]} has the others; the first: {reasons[0]}")
    return report
