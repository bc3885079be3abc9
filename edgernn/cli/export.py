# SPDX-License-Identifier: Apache-2.0
"""The command `edgernn export`: export a trained model as an ONNX file."""

from pathlib import Path
from typing import Any

import click

from edgernn.cli.frame import following, json_command
from edgernn.cli.options import PATH
from edgernn.errors import counted


def _text(result: dict[str, Any]) -> str:
    lines = [f"{result['model']}: {result['bytes']:,} bytes, opset 20, runs in ONNX Runtime 1.17 or newer"]
    if (trained := result["trained_weights"]) != "float32":
        same = f"{trained} values" + " in float32" * (result["weights"] == "float32")
        file = (
            f"has the same {same}, and so the metric of the training" if result["loss"] is None else "rounds them again"
        )
        lines.append(f"trained with weights={trained}: the file {file}")
    if loss := result["loss"]:
        warning = "warning: a large loss: " if loss["is_large"] else ""
        figures = f"{loss['before']:.5g} with {result['trained_weights']}, {loss['after']:.5g} with {result['weights']}"
        lines.append(f"{warning}{loss['metric']} on the test sequences: {figures}")
    for check in result["checks"]:
        ties = f", {check['ties']} ties at a threshold excluded" if check["ties"] else ""
        counts = [f"{check[name]:,} {name}" for name in ("steps", "sequences") if check[name]]
        compared = " and ".join(counts) + ties
        lines.append(f"torch against {check['backend']}: worst error {check['worst']:.1e} ({compared})")
    if result["native_missing"]:
        lines.append(f"not verified with the native library: {result['native_missing']}")
    lines.append(
        f"{_latency(result['latency'])}; from Python, caches warm, one thread of {result['latency']['processor']}"
    )
    lines.append(f"model card: {result['card']}")
    return "\n".join([*lines, f"{following('bench', result['model'])} --device cpu"])


def _latency(latency: dict[str, Any]) -> str:
    from edgernn.export.latency import microseconds

    text = f"a call takes {microseconds(latency['sequence'])} with {counted(latency['steps'], 'step')}"
    return text if latency["step"] is None else f"{text}, a call with one step {microseconds(latency['step'])}"


@json_command(example="edgernn export runs/adding-sarnn", text=_text)
@click.argument("run", type=PATH)
@click.option(
    "--out",
    type=PATH,
    help="ONNX file to write.  [default: RUN/model.onnx, or RUN/model-TYPE.onnx for weights of another type]",
)
@click.option(
    "--weights",
    type=click.Choice(["float32", "bfloat16", "int8"]),
    help="Storage type of the weight matrices in the file.  [default: the value of the training setting "
    "weights, or float32 if it was not set]",
)
def command(run: Path, out: Path | None, weights: str | None) -> dict[str, Any]:
    """Export the model of the run directory RUN as one ONNX file and verify its outputs against torch.

    The file runs in ONNX Runtime 1.17 or newer, and faster with the native library registered. The command writes two
    more files beside it. The model card has the same name with .md and shows size and latency on this machine.
    example.npz holds inputs x (N, T, I) of the task and the outputs y of model.onnx.

    --weights bfloat16 or int8 reduces the file to about a half or a quarter. The command then measures the metric again
    on the task's test sequences. It warns if a metric such as accuracy falls by more than half a percentage point, or
    an error metric rises by more than 2 %. A run that was trained with weights=int8 is written with int8 weights by
    default. Its metric is not measured again, because the training measured it with int8 weights. With --weights
    float32, the file of such a run has the same rounded values: it is larger, but not more accurate.
    """
    from edgernn.export.run import export_run
    from edgernn.training.evaluate import scorer
    from edgernn.training.tasks.intended_use import use_rows

    if run.is_dir():
        click.echo("exporting, comparing the file with torch, and timing it: this takes some seconds", err=True)
    return export_run(run, out, weights, scorer(run), notes=use_rows)
