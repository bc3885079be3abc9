# SPDX-License-Identifier: Apache-2.0
"""The command `edgernn reproduce`: train the models of a paper's table."""

from pathlib import Path
from typing import Any

import click

from edgernn.cli.frame import json_command
from edgernn.cli.options import COUNT, PATH, data_folder, training_device, training_jobs, training_threads
from edgernn.errors import UsageError


def _text(result: Any) -> str:
    if isinstance(result, list):
        from edgernn.training.papers.overview import overview_table

        return "\n".join(overview_table(result))
    from edgernn.training.papers.paper_table import markdown

    return f"{markdown(result)}\nsaved: {', '.join(result['files'])}"


@json_command(example="edgernn reproduce sarnn-4 --quick --rows gru,sarnn-0", text=_text)
@click.argument("table", required=False)
@click.option(
    "--list",
    "lists",
    is_flag=True,
    help="List all tables, whether each is measured, and how well it agrees with the paper; train nothing.",
)
@click.option(
    "--results",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder in which --list looks for results, the files TABLE.json or TABLE/table.json.  [default: the folders "
    "runs/ and docs/results/]",
)
@click.option(
    "--quick",
    is_flag=True,
    help="Shorten all trainings, so that the whole table is finished in minutes; the result is marked as quick.",
)
@click.option(
    "--seeds",
    type=COUNT,
    help="Number of trainings of each row of the table, each with another random seed.  [default: the number that the "
    "table's TOML file sets]",
)
@click.option(
    "--rows",
    metavar="NAME,NAME",
    help="Names of the rows to train, as in the table, separated by commas.  [default: all]",
)
@click.option("--table-only", is_flag=True, help="Print the table of the runs that are finished; train nothing.")
@click.option(
    "--measure-latency",
    "measure",
    is_flag=True,
    help="Time the exported models of all finished runs. For reliable times, use an idle machine and add --table-only, "
    "which trains nothing.",
)
@training_jobs
@training_threads
@click.option(
    "--out",
    type=PATH,
    help="Folder for the run directories and the table.  [default: runs/TABLE, or runs/TABLE-quick with --quick]",
)
@data_folder
@training_device()
@click.option(
    "--known",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The file table.json of an earlier reproduction: results of runs with the same settings are copied from it, "
    "and these runs are not trained again.",
)
def command(
    table: str | None,
    lists: bool,
    results: Path | None,
    table_only: bool,
    measure: bool,
    rows: str | None,
    quick: bool,
    seeds: int | None,
    known: Path | None,
    **options: Any,
) -> Any:
    """Reproduce a paper's TABLE: train the models that are not trained yet and print our results beside the paper's.

    Interrupted runs are resumed. Each table is a TOML file in edgernn/training/papers/recipes with the settings of each
    row. The result is saved as table.json and table.md in the folder of the runs.

    --list shows for each table whether all of its trainings are finished, how many hours they take on one CPU core, and
    how many of our results agree with the paper's.
    """
    from edgernn.training.papers.overview import RESULTS, overview
    from edgernn.training.papers.reproduce import reproduce
    from edgernn.training.tables.table import check_none_failed

    chosen = rows.split(",") if rows else None
    if lists:
        if table is not None:
            raise UsageError("--list: expected no TABLE, as it shows all tables; leave out one of the two")
        return overview(RESULTS if results is None else [results])
    if table is None:
        raise UsageError("TABLE: expected the name of a table; --list shows all tables")
    if results is not None:
        raise UsageError("--results: expected together with --list; add it, or leave out --results")
    report = reproduce(
        table, quick=quick, seeds=seeds, rows=chosen, run=not table_only, measure=measure, known=known, **options
    )
    check_none_failed(report)
    return report
