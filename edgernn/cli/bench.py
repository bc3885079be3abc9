# SPDX-License-Identifier: Apache-2.0
"""`edgernn bench`."""

from pathlib import Path
from typing import Any

import click

from edgernn.cli.frame import verb
from edgernn.errors import UsageError


def _text(result: dict[str, Any]) -> str:
    from edgernn.runtime.bench import markdown

    return markdown(result) + f"\nsaved: {', '.join(result['files'])}"


@verb(example="edgernn bench --cell sarnn --hidden 128 --input 2 --steps 500 --skip 0.9", text=_text)
@click.argument("model", required=False, type=click.Path(path_type=Path))
@click.option("--device", type=click.Choice(["cpu"]), default="cpu", show_default=True)
@click.option("--batch", type=click.IntRange(min=1), default=1, show_default=True, help="Sequences in a call.")
@click.option("--steps", type=click.IntRange(min=1), help="T of a call.  [as the example input, or 500]")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=15, show_default=True, help="Visits to each contender.")
@click.option(
    "--warmup", type=click.IntRange(min=0), default=3, show_default=True, help="Calls before the first round."
)
@click.option("--example", type=click.Path(path_type=Path), help="npz with x (N, T, I).  [example.npz beside MODEL]")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for bench.json and bench.md.  [that of MODEL]")
@click.option("--cell", help="Without MODEL: a cell with random weights ...")
@click.option("--rule", help="... under this rule ...")
@click.option("--input", "input_size", type=click.IntRange(min=1), default=2, show_default=True, help="... of this I,")
@click.option("--hidden", "hidden_size", type=click.IntRange(min=1), default=128, show_default=True, help="this H,")
@click.option("--layers", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--rank", type=click.IntRange(min=1), help="... with recurrent weights of this rank ...")
@click.option(
    "--density", type=click.FloatRange(0, 1, min_open=True), help="... or with this share of their blocks ..."
)
@click.option("--skip", type=click.FloatRange(0, 1), default=0.0, show_default=True, help="and this share skipped.")
def command(
    model: Path | None,
    device: str,
    example: Path | None,
    out: Path | None,
    cell: str | None,
    rule: str | None,
    input_size: int,
    hidden_size: int,
    layers: int,
    rank: int | None,
    density: float | None,
    skip: float,
    **settings: Any,
) -> dict[str, Any]:
    """Verify MODEL, then time it beside ONNX Runtime's GRU and LSTM of the same size and its own portable function.

    All are timed in one run, interleaved; figures are medians, ratios are taken within a round. Instead of MODEL,
    --cell and a size measure a cell with random weights.
    """
    import tempfile

    from edgernn.runtime.bench import Settings, bench, read_example, save

    if (model is None) == (cell is None):
        raise UsageError("give either a MODEL file or --cell NAME")
    x = None if example is None else read_example(example)
    with tempfile.TemporaryDirectory() as folder:
        if cell is not None:
            from edgernn.export import to_onnx
            from edgernn.synthetic import random_model

            model = Path(folder) / f"{cell}.onnx"
            made = random_model(
                cell, input_size, hidden_size, rule=rule, skip=skip, layers=layers, rank=rank, density=density
            )
            to_onnx(made, model)
        assert model is not None
        report = bench(model, Settings(**settings), x=x, progress=_progress())
    target = out or (model.parent if cell is None else Path("bench"))
    return {**report, "files": [str(path) for path in save(report, target)]}


def _progress() -> Any:
    """A line on a terminal's standard error that counts the rounds."""
    import sys

    def show(done: int, total: int) -> None:
        if sys.stderr.isatty():
            print(f"\rround {done} of {total}", end="\n" if done == total else "", file=sys.stderr, flush=True)

    return show
