# SPDX-License-Identifier: Apache-2.0
"""The command `edgernn cells`: list cells and update rules with their costs."""

from typing import Any

import click

from edgernn.cli.frame import json_command
from edgernn.cli.options import COUNT


def _text(result: list[dict[str, Any]]) -> str:
    from edgernn.cli.cell_costs import table

    return table(result)


@json_command(example="edgernn cells --input 2 --hidden 128", text=_text)
@click.argument("custom", nargs=-1, metavar="[FILE.py:CLASS]...")
@click.option(
    "--input",
    "input_size",
    type=COUNT,
    default=2,
    show_default=True,
    help="Input size I of the cells whose costs are computed.",
)
@click.option(
    "--hidden",
    "hidden_size",
    type=COUNT,
    default=128,
    show_default=True,
    help="Number of neurons H of the cells whose costs are computed.",
)
def command(custom: tuple[str, ...], input_size: int, hidden_size: int) -> list[dict[str, Any]]:
    """List all cells with their parameters and multiply-adds.

    Some pairs of a cell and an update rule, or of a cell and an imputer, are in the list with a name of their own. An
    update rule selects the neurons to update at each step: sarnn is the cell gru with the rule selective. An imputer
    fills in missing input values: rits is the cell lstm with the imputer rits.

    FILE.py:CLASS adds a custom cell: a subclass of edgernn.Cell in a Python file. The file is executed.

    The column macs counts the multiply-adds of a step that updates every neuron. The column flops_paper counts
    multiplications and additions one by one, as the SA-RNN paper does. A cell is native if the native library for CPUs
    can run it. All cells can run as standard ONNX operators (portable).
    """
    from edgernn.cli.cell_costs import cell_costs

    return cell_costs(input_size, hidden_size, custom)
