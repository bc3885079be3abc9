# SPDX-License-Identifier: Apache-2.0
"""`edgernn train`."""

import os
from pathlib import Path
from typing import Any

import click

from edgernn.cli.frame import verb


def _text(result: dict[str, Any]) -> str:
    metric = result["metric"]
    line = f"{result['task']}, {result['cell']}: {metric} {result[metric]:.4g} on the test sequences"
    if result["threshold"] is not None:
        line += f" ({'' if result['solved'] else 'not '}solved: the threshold is {result['threshold']:.3g})"
    minutes, seconds = divmod(round(result["seconds"]), 60)
    work = f"{result['macs']:,} multiply-adds a step"
    if result["skip_percent"] > 0:
        work = f"updates skipped: {result['skip_percent']:.1f} %: {result['macs_executed']:,.0f} of {work}"
    lines = [
        line,
        work,
        f"{result['parameters']:,} parameters, {result['steps']:,} steps in {minutes} min {seconds} s",
        f"run: {result['run']}, to look at: {', '.join(_to_look_at(Path(result['run'])))}",
    ]
    if result["network"] == "SequenceModel":
        lines.append(f"next: edgernn export {result['run']}")
    return "\n".join(lines)


def _to_look_at(run: Path) -> list[str]:
    return sorted(path.name for path in run.iterdir() if path.suffix in (".png", ".txt"))


def _sections(task: str | None = None, cell: str | None = None, rule: str | None = None) -> Any:
    from edgernn.training.help import sections

    return sections(task, cell, rule)


@verb(example="edgernn train --task adding --cell sarnn T=50 hidden_size=128", text=_text, sections=_sections)
@click.option(
    "--recipe",
    metavar="ROW",
    help="Take task, cell, rule and settings from a row of a table, such as sarnn-1/sarnn, or of your own "
    "FILE.toml:ROW.",
)
@click.option(
    "--task",
    metavar="NAME|FILE|FOLDER",
    is_eager=True,
    help="adding, binary-addition, brits, char, draw, fashion-rows, l2l, memorization, mnist-permuted, mnist-rows, "
    "ptb, seizures, sentence-vae, twitter, yahoo; or your own .npz file or folder of csv files.",
)
@click.option(
    "--cell",
    metavar="NAME|FILE.py:CLASS",
    is_eager=True,
    help="A cell; `edgernn cells` lists them. Or your own, a subclass of edgernn.Cell in a file, which is executed.",
)
@click.option("--rule", metavar="NAME", is_eager=True, help="An update rule; overrides what the cell's name implies.")
@click.option("--out", type=click.Path(path_type=Path), help="The run directory.  [runs/TASK-CELL[-RULE]]")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of weights and data.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option("--devices", type=click.IntRange(min=1), help="So many processes share each batch, on a GPU each if any.")
@click.option("--data", type=click.Path(path_type=Path), help="The folder of data sets.  [$EDGERNN_DATA]")
@click.option("--resume", is_flag=True, help="Go on with the run in --out, exactly where it was.")
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
def command(recipe: str | None, resume: bool, settings: tuple[str, ...], **options: Any) -> dict[str, Any] | None:
    """Train a cell on a task and leave a run directory.

    Settings are KEY=VALUE words, listed below with their defaults: lr=0.01, or with the part that has it,
    optimizer.lr=0.01. --task, --cell and --rule before --help add the settings of that task, cell and rule, and show
    the task's own defaults: edgernn train --task adding --cell decaynet --help.

    --devices N is `torchrun --standalone --nproc-per-node N -m edgernn train ...`; see docs/how-to/several-devices.md.
    """
    # threads that spin while they wait stall for whole time slices when another program wants the cores; read when
    # torch is loaded
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # nor shall DistributedDataParallel warn that all parameters were reached where it looks for those that are not
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from edgernn.progress import Progress, Silent
    from edgernn.settings import split_words
    from edgernn.training import train
    from edgernn.training.parallel import leads
    from edgernn.training.recipe import follow

    words = follow(recipe, options, split_words(settings))
    result = train(**options, resume=resume, settings=words, progress=Progress() if leads() else Silent())
    return result if leads() else None
