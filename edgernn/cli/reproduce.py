# SPDX-License-Identifier: Apache-2.0
"""`edgernn reproduce`."""

from pathlib import Path
from typing import Any

import click

from edgernn.cli.frame import verb
from edgernn.errors import UsageError


def _text(result: Any) -> str:
    if isinstance(result, list):
        if "row" in result[0]:
            return "\n".join(_tried(line) for line in result)
        from edgernn.training.overview import overview_table

        return "\n".join(overview_table(result))
    from edgernn.training.paper_table import markdown

    return f"{markdown(result)}\nsaved: {', '.join(result['files'])}"


def _tried(line: dict[str, Any]) -> str:
    settings = " ".join(f"{key}={value}" for key, value in line["settings"].items())
    if "failed" in line:
        return f"{line['row']} {settings}: {line['failed']}"
    figures = f"{line['metric']} {line['value']:.5g} (best {line['best']:.5g}), skip {line['skip_percent']:.1f} %"
    return f"{line['row']} {settings}: {figures}, {line['seconds']:.0f} s"


@verb(example="edgernn reproduce sarnn-4 --quick --rows gru,sarnn-0", text=_text)
@click.argument("table", required=False)
@click.option("--list", "lists", is_flag=True, help="Show the state of all tables instead.")
@click.option(
    "--results",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder of TABLE.json or TABLE/table.json for --list.  [runs, docs/results]",
)
@click.option("--quick", is_flag=True, help="A cut-down version that takes minutes and says that it is one.")
@click.option("--seeds", type=click.IntRange(min=1), help="Trainings a row.  [what the table says]")
@click.option("--rows", metavar="NAME,NAME", help="Train only these rows.")
@click.option("--search", "searches", is_flag=True, help="Try the settings in [search] instead.")
@click.option("--table-only", is_flag=True, help="Train nothing, lay out what is there.")
@click.option(
    "--measure-latency",
    "measure",
    is_flag=True,
    help="Time the exported models of all finished runs on this machine; best with --table-only while it is idle.",
)
@click.option(
    "--known",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A table.json of an earlier measurement. Its finished runs are not trained again if their settings are the "
    "same.",
)
@click.option("--jobs", type=click.IntRange(min=1), help="Trainings at once.  [one a processor]")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Of each training.")
@click.option("--out", type=click.Path(path_type=Path), help="The folder of the runs.  [runs/TABLE]")
@click.option("--data", type=click.Path(path_type=Path), help="The folder of data sets.  [$EDGERNN_DATA]")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
def command(
    table: str | None,
    lists: bool,
    results: Path | None,
    searches: bool,
    table_only: bool,
    measure: bool,
    rows: str | None,
    quick: bool,
    seeds: int | None,
    known: Path | None,
    **options: Any,
) -> Any:
    """Train what a paper's TABLE needs, going on with what was stopped, and lay our figures beside the paper's.

    Each table is a TOML file in edgernn/training/recipes, with a recipe for each row. The result is saved as table.json
    and table.md in the folder of the runs. --list shows which tables there are, how far each is measured, the hours of
    its trainings on one core, and how our figures agree with the paper's.
    """
    from edgernn.training.overview import RESULTS, overview
    from edgernn.training.reproduce import reproduce, search
    from edgernn.training.table import check_none_failed

    chosen = rows.split(",") if rows else None
    if lists:
        if table is not None:
            raise UsageError("list: it shows all tables; give no TABLE")
        return overview(RESULTS if results is None else [results])
    if table is None or results is not None:
        raise UsageError("table: expected a TABLE, or --list, which alone takes --results")
    if searches:
        if quick or seeds or table_only or measure or known:
            raise UsageError("search: expected none of --quick, --seeds, --table-only, --measure-latency and --known")
        return search(table, rows=chosen, **options)
    report = reproduce(
        table, quick=quick, seeds=seeds, rows=chosen, run=not table_only, measure=measure, known=known, **options
    )
    check_none_failed(report)
    return report
