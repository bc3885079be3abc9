# SPDX-License-Identifier: Apache-2.0
"""The command `edgernn train`: train a cell on a task."""

import math
import os
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from edgernn.cli.frame import following, json_command
from edgernn.cli.options import COUNT, PATH, data_folder, training_device
from edgernn.errors import counted

# a training of fewer epochs is likely to end early
_FEW_EPOCHS = 5


def _text(result: dict[str, Any]) -> str:
    metric = result["metric"]
    if "folds" in result:
        means = [
            f"{part} {spread['mean']:.4g}, 95 % interval {spread['interval'][0]:.4g} to {spread['interval'][1]:.4g}"
            for part, spread in ((part, result[part]) for part in ("test", "validation"))
        ]
        return "\n".join([f"{metric} over {result['folds']} folds: {'; '.join(means)}", *result["runs"]])
    line = f"{result['task']}, {result['cell']}: {metric} {result[metric]:.4g} on the test sequences"
    if result["threshold"] is not None:
        line += f" ({'' if result['solved'] else 'not '}solved: the threshold is {result['threshold']:.3g})"
    minutes, seconds = divmod(round(result["seconds"]), 60)
    work = f"{result['macs']:,} multiply-adds per step"
    if result["block_macs"]:
        work += f", and {result['block_macs']:,} of the blocks"
    if result["skip_percent"] > 0:
        work = f"updates skipped: {result['skip_percent']:.1f} %: {result['macs_executed']:,.0f} of {work}"
    # runs of earlier versions lack the number
    epochs = result.get("epochs_done", math.nan)
    lines = [
        line,
        work,
        f"{counted(result['parameters'], 'parameter')}, {counted(result['steps'], 'step')} "
        f"({epochs:.3g} epoch{'' if epochs == 1 else 's'}) in {minutes} min {seconds} s",
        f"run: {result['run']}, with {', '.join(_previews(Path(result['run'])))}",
    ]
    if result["threshold"] is None and result["stopped"] == "steps" and epochs < _FEW_EPOCHS:
        lines.append("few epochs: a longer training, with a higher steps= or epochs=, is likely to be better")
    if result["network"] in ("SequenceModel", "OwnNetwork"):
        lines.append(following("export", result["run"]))
    return "\n".join(lines)


def _previews(run: Path) -> list[str]:
    return sorted(path.name for path in run.iterdir() if path.suffix in (".png", ".txt"))


def _restore(options: dict[str, Any]) -> tuple[str, ...]:
    """Read the command line that started the run in the directory options["out"], and take over its options.

    The values of task, cell, network, rule, seed, data and devices are replaced in the dict `options`, and that of
    device unless the user gave it. The device is the one that the run started on, as `auto` may mean another one on
    this machine.
    """
    from edgernn.cell_files import copy_of, is_cell_file
    from edgernn.errors import EdgernnError, UsageError
    from edgernn.store import read_config
    from edgernn.training.run_directory import kept_path

    if options["out"] is None:
        raise UsageError(
            "--resume: expected --out with the directory of a run, or --task and --cell or --network, got neither; add "
            "--out"
        )
    config = read_config(options["out"])
    words = config.get("command")
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise EdgernnError(
            f"{options['out']}: config.json: command: expected a list of words, got none; name --task and --cell"
        )
    started = command.make_context("train", words[2:]).params
    file = next((started[name] for name in ("cell", "network") if is_cell_file(started[name])), None)
    if file is not None and copy_of(config) is None:
        raise EdgernnError(
            f"{options['out']}: config.json: command: expected a cell of edgernn, got the Python file {file!r:.50}, of "
            "which the run has no copy; name --task and --cell"
        )
    for name in ("task", "cell", "network", "rule", "seed", "data", "devices"):
        options[name] = started[name]
    if config["source"]:
        options["task"] = kept_path(options["out"], config, config["source"])
    if config["data"]:
        options["data"] = Path(kept_path(options["out"], config, config["data"]))
    if click.get_current_context().get_parameter_source("device") is not ParameterSource.COMMANDLINE:
        options["device"] = config.get("device", started["device"])
        if options["device"] == "cuda" and not _has_gpu():
            raise UsageError(
                f"device: the run in {options['out']} began on cuda, and torch finds no GPU here; resume it on a "
                "machine with a GPU, or train another one with another --out"
            )
    settings: tuple[str, ...] = started["settings"]
    return settings


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _sections(
    task: str | None = None, cell: str | None = None, network: str | None = None, rule: str | None = None
) -> Any:
    from edgernn.cli.settings_help import sections

    return sections(task, cell, rule, network)


@json_command(example="edgernn train --task adding --cell sarnn T=50 hidden_size=128", text=_text, sections=_sections)
@click.option(
    "--recipe",
    metavar="ROW",
    help="Take the task, cell, rule and settings from a recipe, which describes one row of a paper's table of results: "
    "TABLE/ROW, such as sarnn-1/sarnn, or FILE.toml:ROW for a recipe file of your own.",
)
@click.option(
    "--allow-code",
    is_flag=True,
    help="Execute the Python file that the recipe of --recipe names as its cell, FILE.py:CLASS. Without this option, "
    "such a recipe is refused.",
)
@click.option(
    "--task",
    metavar="NAME|FILE|FOLDER",
    is_eager=True,
    help="Task, one of activity, adding, binary-addition, brits, char, draw, ecg, fashion-rows, keywords, l2l, "
    "memorization, mnist-permuted, mnist-rows, ptb, remaining-life, seizures, sentence-vae, twitter, "
    "wake-front, wakeword or yahoo; or a custom .npz, .csv or .parquet file, or folder of tables or wav files.",
)
@click.option(
    "--cell",
    metavar="NAME|FILE.py:CLASS",
    is_eager=True,
    help="Cell to train: a name that `edgernn cells` lists, or FILE.py:CLASS, a subclass of edgernn.Cell in "
    "a Python file, which is executed.",
)
@click.option(
    "--network",
    metavar="FILE.py:CLASS",
    is_eager=True,
    help="Network of your own to train in place of a cell: a torch.nn.Module with layers of edgernn.nn, in a Python "
    "file, which is executed. Its settings are the arguments of its constructor.",
)
@click.option(
    "--rule",
    metavar="NAME",
    is_eager=True,
    help="Update rule, which selects the neurons to update at each step, such as selective or skip.  [default: the "
    "rule that the cell's name implies, as sarnn implies selective; if none, 'always', which updates all]",
)
@click.option(
    "--out", type=PATH, help="Directory to write weights, checkpoints and metrics to.  [default: runs/TASK-CELL[-RULE]]"
)
@click.option(
    "--seed",
    type=click.IntRange(min=0, max=2**63 - 1),
    default=0,
    show_default=True,
    help="Random seed for weights and data.",
)
@training_device()
@click.option(
    "--devices",
    type=COUNT,
    help="Number of data-parallel processes: each trains on a part of every batch, on a GPU of its own if available.  "
    "[default: 1, or under torchrun the number that it started]",
)
@data_folder
@click.option(
    "--resume",
    is_flag=True,
    help="Resume the interrupted run in --out from its last checkpoint. Without --task and --cell, the options and "
    "settings are those that it was started with.",
)
@click.option(
    "--folds",
    type=click.IntRange(min=2),
    help="Train a model for each of this many folds, in OUT/fold-0 and so on, and print the mean of the metric and its "
    "95 % interval. Each fold of the recordings, persons, sequences or sounds is the test part of one model; or its "
    "validation part, if the data have a test part of their own.",
)
@click.option(
    "--numbered",
    is_flag=True,
    help="If --out has files already, write to OUT-2, OUT-3 or the like, the first one without.",
)
@click.option(
    "--tensorboard",
    is_flag=True,
    help="Also write the metrics of each evaluation to the folder tensorboard in the run, for TensorBoard, whose "
    "package tensorboard must be installed.",
)
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
def command(
    recipe: str | None, allow_code: bool, resume: bool, folds: int | None, settings: tuple[str, ...], **options: Any
) -> dict[str, Any] | None:
    """Train a recurrent cell or a network of your own on a task, and write a run directory.

    The directory has weights, checkpoints, metrics and plots.

    Settings are KEY=VALUE words, such as lr=0.01, or optimizer.lr=0.01 with the section's name. The list below shows
    all settings and their defaults. With --task, --cell, --network or --rule before --help, it includes their settings
    and the task's defaults. Example: edgernn train --task adding --cell decaynet --help.

    --devices N trains the same model as `torchrun --standalone --nproc-per-node N -m edgernn train ...`. Its processes
    reach each other through the loopback interface; torchrun listens on all interfaces. See
    docs/how-to/several-devices.md.
    """
    # spinning threads stall for whole time slices on busy cores; torch reads this when it is imported
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # hides DistributedDataParallel's warning that find_unused_parameters found none
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from edgernn.errors import UsageError
    from edgernn.progress import Progress, Silent
    from edgernn.settings import split_words
    from edgernn.training.api import cross_validate, train
    from edgernn.training.parallel import leads

    names = ("task", "cell", "network")
    if resume and recipe is None and not settings and all(options[name] is None for name in names):
        settings = _restore(options)
    words = split_words(settings)
    if recipe is not None:
        from edgernn.training.papers.recipe import follow

        words = follow(recipe, options, words, allow_code=allow_code)
    elif allow_code:
        raise UsageError("--allow-code: expected together with --recipe; leave it out")
    if options["cell"] is not None and options["network"] is not None:
        raise UsageError("--network: expected no --cell beside it, as the network has its own cells; leave one out")
    of_model = "cell" if options["network"] is None else "network"
    if missing := [f"'--{name}'" for name in ("task", of_model) if options[name] is None]:
        hint = ", or --resume and --out alone, without settings" if resume else ""
        what, them = ("options", "both") if len(missing) > 1 else ("option", "it")
        raise UsageError(f"Missing {what} {' and '.join(missing)}; give {them}, or a --recipe{hint}")
    train_all = train if folds is None else partial(cross_validate, folds)
    result = train_all(**options, resume=resume, settings=words, progress=Progress() if leads() else Silent())
    return result if leads() else None
