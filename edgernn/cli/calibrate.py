# SPDX-License-Identifier: Apache-2.0
"""The command `edgernn calibrate`: make a trained dense model cheaper without training."""

from pathlib import Path
from typing import Any

import click

from edgernn.cli.frame import json_command
from edgernn.cli.options import data_folder


def _text(result: dict[str, Any]) -> str:
    metric = result["metric"]
    lines = [
        f"{'theta_x':>9} {'theta_h':>9} {'executed':>9}  {metric}",
        f"{0:>9} {0:>9} {1:>9.3f}  {result['dense']:.5g}",
    ]
    for point in result["curve"]:
        chosen = all(point[name] == theta for name, theta in result["thresholds"].items())
        figures = f"{point['theta_x']:>9.3g} {point['theta_h']:>9.3g} {point['executed']:>9.3f}  {point['value']:.5g}"
        lines.append(figures + "  <- chosen" * chosen)
    test = result["test"]
    lines += [
        "",
        f"test sequences: {metric} {test[metric]:.5g} (dense {test['dense']:.5g}) with {test['executed']:.1%} of the "
        "multiply-adds",
        f"{result['model']}: {result['bytes']:,} bytes; model card: {result['card']}",
        f"next: edgernn bench {result['model']} --device cpu",
    ]
    return "\n".join(lines)


@json_command(example="edgernn calibrate runs/adding-gru --loss 2", text=_text)
@click.argument("run", type=click.Path(path_type=Path))
@data_folder
@click.option(
    "--loss",
    type=click.FloatRange(min=0, min_open=True),
    default=0.5,
    show_default=True,
    help="Largest amount by which the metric on validation sequences may get worse: in percentage points for a metric "
    "such as accuracy, where higher is better, else in percent of the dense model's value.",
)
@click.option("--out", type=click.Path(path_type=Path), help="ONNX file to write.  [default: RUN/model-delta.onnx]")
def command(run: Path, data: Path | None, loss: float, out: Path | None) -> dict[str, Any]:
    """Make the dense model of the run directory RUN cheaper with the update rule delta, and export it; do not train.

    A dense model updates every neuron at every step. Under the rule delta, matrix products read a value of x or h only
    if it changed by more than a threshold since it was last read; one threshold is for x, the other for h. The command
    tries pairs of thresholds on the task's validation sequences, and prints the multiply-adds and the metric of each
    pair. It exports the model with the pair that needs the fewest multiply-adds among those whose metric is worse by at
    most --loss.
    """
    from edgernn.progress import Progress
    from edgernn.training.calibrate import calibrate

    return calibrate(run, out, loss=loss, data=data, progress=Progress())
