# SPDX-License-Identifier: Apache-2.0
"""`edgernn run`."""

from pathlib import Path
from typing import Any

import click

from edgernn.cli.frame import verb


def _text(result: dict[str, Any]) -> str:
    lines = [f"{result['output']}: y {tuple(result['shape'])} ({result['backend']} backend)"]
    if result["skip_percent"] is not None:
        lines.append(f"updates skipped: {result['skip_percent']:.1f} %")
    return "\n".join(lines)


@verb(example="edgernn run runs/adding-sarnn/model.onnx --input x.npz --output y.npz", text=_text)
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--input", "source", required=True, type=click.Path(path_type=Path), help="npz (array x), npy or csv.")
@click.option("--output", "target", required=True, type=click.Path(path_type=Path), help="npz, npy or csv.")
@click.option("--backend", type=click.Choice(["auto", "native", "portable"]), default="auto", show_default=True)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True)
def command(model: Path, source: Path, target: Path, **options: Any) -> dict[str, Any]:
    """Run a model on a file: x (T, I), one sequence, or (N, T, I); in a csv file a row is a time step.

    A model of words reads whole numbers: x (T,) or (N, T).
    The output file gets y: (O,) or (N, O), or (T, O) or (N, T, O) for a model with an output at every step.
    """
    from edgernn.runtime.run_file import run_file

    return run_file(model, source, target, **options)
