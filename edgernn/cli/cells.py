# SPDX-License-Identifier: Apache-2.0
"""`edgernn cells`."""

from typing import Any

import click

from edgernn.cli.frame import verb


def _text(result: list[dict[str, Any]]) -> str:
    from edgernn.cli.cell_costs import table

    return table(result)


@verb(example="edgernn cells --input 2 --hidden 128", text=_text)
@click.argument("own", nargs=-1, metavar="[FILE.py:CLASS]...")
@click.option(
    "--input", "input_size", type=click.IntRange(min=1), default=2, show_default=True, help="I, the input size."
)
@click.option("--hidden", "hidden_size", type=click.IntRange(min=1), default=128, show_default=True, help="H.")
def command(own: tuple[str, ...], input_size: int, hidden_size: int) -> list[dict[str, Any]]:
    """List the cells and the papers' combinations of cell and rule, with what they cost at a size.

    FILE.py:CLASS adds a cell of your own: a subclass of edgernn.Cell in a Python file, which is executed.

    macs: multiply-adds of a step with nothing skipped. flops_paper: operations of a step as the SA-RNN paper counts
    them. native: the native library has a kernel for it, or runs its program, that of your own cell; else it runs as a
    portable function.
    """
    from edgernn.cli.cell_costs import cell_costs

    return cell_costs(input_size, hidden_size, own)
