# SPDX-License-Identifier: Apache-2.0
"""Plots of finished or running trainings, from their run directories: `edgernn plot`."""

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from edgernn.errors import CodeError, EdgernnError, EdgernnWarning, UsageError
from edgernn.files import CONFIG, EXAMPLE, check_path, read_json
from edgernn.model import SequenceModel
from edgernn.names import parts
from edgernn.npz import read_npz
from edgernn.store import load_model, resume_command
from edgernn.training.pictures import (
    NothingToDrawError,
    OperatingPoint,
    caption,
    learning_curve,
    tradeoff,
    update_pattern,
    update_patterns,
)
from edgernn.training.run_directory import METRICS, RESULT, RunDirectory

KINDS = ("learning", "pattern", "tradeoff")
SUFFIXES = ("png", "svg")


def plot(
    runs: list[Path], out: Path | None = None, kinds: list[str] | None = None, *, allow_code: bool = False
) -> list[Path]:
    """Plot training runs, each plot as a PNG and an SVG file.

    pattern runs the model. For a model with a user-defined cell, it executes the run's cell.py.

    Args:
        runs: The run directories.
        out: The folder of the image files. Default: the directory of a single run; for several runs, the folder plots.
        kinds: Names of plots. Default: all that the runs allow. learning: loss, metric and percentage of skipped
            updates over training steps, all runs in one plot. pattern: which neuron is updated at which step of a
            sequence. tradeoff: the metric over λ (the weight of the penalty on updates in the loss) and over the
            percentage of skipped updates, for several finished runs.
        allow_code: True if the cell.py of a run may be executed. Otherwise, plots that need it are left out with an
            EdgernnWarning, or refused if `kinds` names them.

    Returns:
        The image files.

    Raises:
        CodeError: One of `kinds` needs to execute the cell.py of a run, and `allow_code` is False.
        UsageError: A kind is unknown.
        EdgernnError: A directory has no run, the runs have different metrics, or one of `kinds` cannot be drawn.
    """
    for kind in kinds or []:
        if kind not in KINDS:
            raise UsageError(f"kind: expected one of {', '.join(KINDS)}, got {kind!r}")
    folder = out or (runs[0] if len(runs) == 1 else Path("plots"))
    drawers: dict[str, Callable[[list[Path]], Callable[[Path], None]]] = {
        "learning": _learning,
        "pattern": partial(_patterns, allow_code=allow_code),
        "tradeoff": _tradeoff,
    }
    files, refused = [], {}
    for kind in kinds or KINDS:
        try:
            draw = drawers[kind](runs)
        except NothingToDrawError as error:
            if kinds:
                raise EdgernnError(f"kind={kind}: cannot be plotted: {error}") from None
            continue
        except CodeError as error:
            if kinds:
                raise
            refused[kind] = str(error)
            continue
        for suffix in SUFFIXES:
            files.append(folder / f"{kind}.{suffix}")
            draw(files[-1])
    if refused:
        warnings.warn(f"not plotted: {', '.join(refused)}: {refused.popitem()[1]}", EdgernnWarning, stacklevel=2)
    return files


def _config(run: Path) -> dict[str, Any]:
    check_path(run)
    if not run.is_dir():
        raise EdgernnError(f"{run}: no such run directory; `edgernn train` writes one")
    config: dict[str, Any] = read_json(run / CONFIG)
    return config


def _results(runs: list[Path]) -> list[dict[str, Any]]:
    for run in runs:
        if not (run / RESULT).is_file():
            raise NothingToDrawError(
                f"{run}: expected a finished run, got one without {RESULT}; resume it: {resume_command(run)}"
            )
    return [read_json(run / RESULT) for run in runs]


def _names(runs: list[Path]) -> list[str]:
    """Return a name for each run in a plot: the last part of its path if these parts differ, else the whole path."""
    names = [run.resolve().name for run in runs]
    if len(set(names)) < len(runs):
        names = list(map(str, runs))
    return [caption(name) for name in names]


def _learning(runs: list[Path]) -> Callable[[Path], None]:
    lines = {}
    for name, run in zip(_names(runs), runs, strict=True):
        _config(run)
        lines[name] = RunDirectory(run).metrics()
        if not lines[name]:
            raise NothingToDrawError(f"{run / METRICS}: expected an evaluation, got none yet; train longer")
    metrics = {_metric(run, lines[name][0]) for name, run in zip(lines, runs, strict=True)}
    if len(metrics) > 1:
        raise EdgernnError(
            f"runs: expected runs of one metric, got {', '.join(sorted(metrics))}; plot the runs of each metric "
            "separately"
        )
    skips = any(line["skip_percent"] > 0 for entries in lines.values() for line in entries)
    return lambda path: learning_curve(path, lines, next(iter(metrics)), None, skips)


def _metric(run: Path, line: dict[str, Any]) -> str:
    if (run / RESULT).is_file():
        metric: str = read_json(run / RESULT)["metric"]
        return metric
    # without a result.json: the main metric is the first one of a line
    return next(key for key in line if key not in ("step", "epoch", "loss"))


def load_run(run: Path, *, allow_code: bool = False) -> tuple[SequenceModel, Tensor]:
    """Load the model of a finished run and the test sequences in its example.npz.

    Args:
        run: The run directory.
        allow_code: True if the run's cell.py, the code of a user-defined cell, may be executed.

    Returns:
        The model, and the sequences (T, B, I).

    Raises:
        NothingToDrawError: The run is not finished, or its network is not a SequenceModel.
        EdgernnError: There is no such directory, or a file in it cannot be read.
        CodeError: The run has a user-defined cell, and `allow_code` is False.
    """
    config = _config(run)
    if config.get("network", SequenceModel.__name__) != SequenceModel.__name__:
        raise NothingToDrawError(
            f"{run}: expected a run whose network is a SequenceModel, got one with a {config['network']}, for which "
            "this plot does not exist; leave out this run"
        )
    if not (run / EXAMPLE).is_file():
        raise NothingToDrawError(
            f"{run}: expected a finished run, got one without {EXAMPLE}; resume it: {resume_command(run)}"
        )
    model, _ = load_model(run, allow_code=allow_code)
    (x,) = read_npz(run / EXAMPLE, ["x"]).values()
    return model, torch.from_numpy(x).transpose(0, 1)


def _patterns(runs: list[Path], *, allow_code: bool) -> Callable[[Path], None]:
    loaded = {name: load_run(run, allow_code=allow_code) for name, run in zip(_names(runs), runs, strict=True)}
    models = {name: model for name, (model, _) in loaded.items()}
    x = next(iter(loaded.values()))[1][:, :1]
    if not any(model.rule_type.can_skip for model in models.values()):
        raise NothingToDrawError(
            "expected a run whose update rule skips updates, such as selective, got none; name the directory of such "
            "a run"
        )
    if any(other[:, :1].shape != x.shape for _, other in loaded.values()):
        raise NothingToDrawError(
            "expected runs whose test sequences have one shape, got several shapes; plot the runs of each shape "
            "separately"
        )
    if len(models) == 1:
        return lambda path: update_pattern(path, next(iter(models.values())), x)
    return lambda path: update_patterns(path, models, x)


def _tradeoff(runs: list[Path]) -> Callable[[Path], None]:
    if len(runs) < 2:
        raise NothingToDrawError("expected several runs to compare, got one; name more run directories")
    outcomes = []
    for run, result in zip(runs, _results(runs), strict=True):
        group = ", ".join(parts(result["cell"], result["rule"]))
        weight = result.get("lambda", _config(run)["train"]["lambda"])
        outcomes.append(OperatingPoint(group, result["skip_percent"], result[result["metric"]], weight))
    metrics = {result["metric"] for result in _results(runs)}
    if len(metrics) > 1:
        raise EdgernnError(
            f"runs: expected runs of one metric, got {', '.join(sorted(metrics))}; plot the runs of each metric "
            "separately"
        )
    return lambda path: tradeoff(path, outcomes, next(iter(metrics)))
