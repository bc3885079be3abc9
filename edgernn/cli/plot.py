# SPDX-License-Identifier: Apache-2.0
"""`edgernn plot`."""

from pathlib import Path
from typing import Any

import click

from edgernn.cli.frame import verb


def _text(result: dict[str, Any]) -> str:
    return "\n".join(result["files"])


@verb(example="edgernn plot runs/adding-sarnn", text=_text)
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option(
    "--kind", "kinds", multiple=True, metavar="NAME", help="learning, pattern, tradeoff, cobweb or kept.  [all]"
)
@click.option("--out", type=click.Path(path_type=Path), help="The folder.  [RUN; plots for several]")
def command(runs: tuple[Path, ...], kinds: tuple[str, ...], out: Path | None) -> dict[str, Any]:
    """Draw run directories, as PNG and SVG: learning curves, update patterns, cobwebs, forget gates and more."""
    from edgernn.training.plot import plot

    return {"files": [str(path) for path in plot(list(runs), out, list(kinds))]}
