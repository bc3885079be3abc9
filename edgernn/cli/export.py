# SPDX-License-Identifier: Apache-2.0
"""`edgernn export`."""

from pathlib import Path
from typing import Any

import click

from edgernn.cli.frame import verb


def _text(result: dict[str, Any]) -> str:
    lines = [f"{result['model']}: {result['bytes']:,} bytes, opset 20, one file for every ONNX Runtime"]
    if loss := result["loss"]:
        warning = "warning: a large loss: " if loss["is_large"] else ""
        figures = f"{loss['before']:.5g} with float32, {loss['after']:.5g} with {result['weights']}"
        lines.append(f"{warning}{loss['metric']} on the test sequences: {figures}")
    for check in result["checks"]:
        ties = f", {check['ties']} left out at a threshold" if check["ties"] else ""
        compared = f"{check['steps']:,} steps and {check['sequences']} sequences{ties}"
        lines.append(f"torch against {check['backend']}: worst error {check['worst']:.1e} ({compared})")
    if result["native_missing"]:
        lines.append(f"not checked with the native library: {result['native_missing']}")
    lines.append(f"{_took(result['latency'])}, on one thread of {result['latency']['processor']}")
    lines.append(f"card: {result['card']}")
    return "\n".join([*lines, f"next: edgernn bench {result['model']} --device cpu"])


def _took(latency: dict[str, Any]) -> str:
    from edgernn.export.latency import microseconds

    text = f"a call takes {microseconds(latency['sequence'])} with {latency['steps']:,} steps"
    return text if latency["step"] is None else f"{text}, {microseconds(latency['step'])} with one"


@verb(example="edgernn export runs/adding-sarnn", text=_text)
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="The file.  [RUN/model.onnx]")
@click.option(
    "--weights",
    type=click.Choice(["float32", "bfloat16", "int8"]),
    default="float32",
    show_default=True,
    help="What matrices are kept as.",
)
def command(run: Path, out: Path | None, weights: str) -> dict[str, Any]:
    """Turn the run directory RUN into one .onnx file, and check it against torch.

    The file runs in any ONNX Runtime since 1.17, and faster where the native library is registered. Beside it stand
    its card, the same name with .md, with its size and what a step takes on this machine, and example.npz: some of the
    task's inputs x (N, T, I) and the right outputs y.

    With --weights bfloat16 or int8 the file is about a half or a quarter as large, and what that costs is measured on
    the task's test sequences; a loss of more than half a point, or of 2 % where less is better, is a warning.
    """
    from edgernn.export.export_run import export_run
    from edgernn.training.score import scorer

    name = "model.onnx" if weights == "float32" else f"model-{weights}.onnx"
    return export_run(run, out or run / name, weights, None if weights == "float32" else scorer(run))
