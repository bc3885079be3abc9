# SPDX-License-Identifier: Apache-2.0
"""The command `edgernn run`: run a model on a file of inputs."""

from pathlib import Path
from typing import Any

import click

from edgernn.cli.frame import json_command
from edgernn.cli.options import inference_device


def _text(result: dict[str, Any]) -> str:
    lines = [f"{result['output']}: y {tuple(result['shape'])} ({result['backend']} backend)"]
    if result["skip_percent"] is not None:
        lines.append(f"updates skipped: {result['skip_percent']:.1f} %")
    return "\n".join(lines)


@json_command(example="edgernn run runs/adding-sarnn/model.onnx --input x.npz --output y.npz", text=_text)
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--input",
    "source",
    required=True,
    type=click.Path(path_type=Path),
    help="Input file: npz with an array x, npy or csv.",
)
@click.option(
    "--output", "target", required=True, type=click.Path(path_type=Path), help="Output file to write: npz, npy or csv."
)
@click.option(
    "--backend",
    type=click.Choice(["auto", "native", "portable"]),
    default="auto",
    show_default=True,
    help="Implementation: native library, portable (standard ONNX operators), or auto: native if possible.",
)
@inference_device
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of threads that ONNX Runtime may use.",
)
def command(model: Path, source: Path, target: Path, **options: Any) -> dict[str, Any]:
    """Run the exported ONNX file MODEL on a file of inputs and write its outputs to a file.

    The input x has shape (T, I) for one sequence or (N, T, I) for N sequences. A row of a csv file is a time step. A
    language model reads integer word indices of shape (T,) or (N, T).

    The output y has shape (O,) or (N, O), or (T, O) or (N, T, O) if the model has an output at every step.
    """
    from edgernn.runtime.run_file import run_file

    return run_file(model, source, target, **options)
