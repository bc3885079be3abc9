# SPDX-License-Identifier: Apache-2.0
"""`edgernn plot`."""

from pathlib import Path
from typing import Any

import click

from edgernn.cli.frame import json_command


def _text(result: dict[str, Any]) -> str:
    return "\n".join(result["files"])


@json_command(example="edgernn plot runs/adding-sarnn", text=_text)
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    metavar="NAME",
    help="Kind of plot: learning, pattern, tradeoff, cobweb or kept; may be repeated.  [default: all]",
)
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder for the plots.  [default: RUN, or plots for several runs]"
)
def command(runs: tuple[Path, ...], kinds: tuple[str, ...], out: Path | None) -> dict[str, Any]:
    """Plot run directories as PNG and SVG files.

    The kinds of plots are: learning curves (learning), updates of neurons over time (pattern), metric against budget
    weight and skipped updates (tradeoff), cobweb diagrams of the state (cobweb) and forget gates over time (kept).
    """
    from edgernn.training.plot import plot

    return {"files": [str(path) for path in plot(list(runs), out, list(kinds))]}
