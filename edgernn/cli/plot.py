# SPDX-License-Identifier: Apache-2.0
"""The command `edgernn plot`: plot training runs."""

from pathlib import Path
from typing import Any

import click

from edgernn.cli.frame import json_command
from edgernn.cli.options import PATH


def _text(result: dict[str, Any]) -> str:
    return "\n".join(result["files"])


@json_command(example="edgernn plot runs/adding-sarnn", text=_text)
@click.argument("runs", nargs=-1, required=True, type=PATH, metavar="RUN...")
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    metavar="NAME",
    help="Kind of plot: learning (learning curves), pattern (updated neurons), or tradeoff (metric over skipped "
    "updates); may be repeated.  [default: all]",
)
@click.option(
    "--out", type=PATH, help="Folder for the plots.  [default: the directory RUN; for several runs, the folder ./plots]"
)
@click.option(
    "--allow-code",
    is_flag=True,
    help="Execute the file cell.py of a RUN with a custom cell, for the kind pattern. Without this option, that plot "
    "is left out.",
)
def command(runs: tuple[Path, ...], kinds: tuple[str, ...], out: Path | None, allow_code: bool) -> dict[str, Any]:
    """Plot training runs, given by their directories, as PNG and SVG files.

    The kinds of plots are: learning, the learning curves; pattern, the neurons that are updated at each step; and
    tradeoff, the metric against the share of skipped updates, and against the weight λ of the penalty on updates.
    """
    from edgernn.training.plot import plot

    return {"files": [str(path) for path in plot(list(runs), out, list(kinds), allow_code=allow_code)]}
