# SPDX-License-Identifier: Apache-2.0
"""The command `edgernn evaluate`: test a trained model with other settings of its task, or on new data."""

from pathlib import Path
from typing import Any

import click

from edgernn.cli.frame import json_command
from edgernn.cli.options import PATH
from edgernn.errors import counted


def _text(result: dict[str, Any]) -> str:
    source = "" if result["data"] is None else f" of {result['data']}"
    lines = [
        f"{result['model']}: {result['task']}, {result['cell']}, rule {result['rule']}; "
        f"{counted(result['sequences'], result['part'] + ' sequence')}{source}"
    ]
    width = max(map(len, result["metrics"]))
    return "\n".join(lines + [f"{name:<{width}}  {value:,.6g}" for name, value in result["metrics"].items()])


@json_command(example="edgernn evaluate runs/adding-sarnn test_size=2000", text=_text)
@click.argument("model", type=PATH)
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--data",
    type=PATH,
    help="New data with targets, a file or a folder like those of the training; for a model of another task, the "
    "folder of its data set.  [default: the data of the training]",
)
@click.option(
    "--part",
    type=click.Choice(["test", "validation"]),
    default="test",
    show_default=True,
    help="Part of the data; choose among models by validation, and look at the test once.",
)
def command(model: Path, settings: tuple[str, ...], data: Path | None, part: str) -> dict[str, Any]:
    """Compute the metrics of a trained model on the test data of its task or on new data, without training.

    MODEL is a run directory, an exported file in it, or a name that `edgernn models` lists. KEY=VALUE are settings of
    the task that replace those of the training, such as room=10 for a test of ten hours. Settings that change the
    training data, too, may move test data of the training into the test or out of it: change those of the test alone.

    With --data, a model of your own data is tested on all sequences of a new file or folder, or on its test part if it
    has one. The targets stand where those of the training do; their classes and channels must be those of the training.

    The printed metrics are those of a run's result.json. With --json, the points of curves are printed as well, as in
    series.json.
    """
    from edgernn.settings import split_words
    from edgernn.training.evaluate_model import evaluate_model

    return evaluate_model(model, split_words(settings), data=data, part=part)
