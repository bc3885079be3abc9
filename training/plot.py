# SPDX-License-Identifier: Apache-2.0
"""All pictures that finished or running trainings give, by their directories."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from edgernn.errors import EdgernnError, UsageError
from edgernn.files import EXAMPLE, read_arrays, read_json
from edgernn.model import SequenceModel
from edgernn.store import CONFIG, load_model
from edgernn.training.pictures import Outcome, cobweb, learning_curve, tradeoff, update_pattern, update_patterns
from edgernn.training.run import METRICS, RESULT, RunDirectory

KINDS = ("learning", "pattern", "tradeoff", "cobweb")
SUFFIXES = ("png", "svg")


def plot(runs: list[Path], out: Path | None = None, kinds: list[str] | None = None) -> list[Path]:
    """Draw the runs, each picture as PNG and as SVG; the files' paths.

    learning: loss, metric and skip percentage over steps, the runs over each other. pattern: which neuron changes when.
    tradeoff: the metric over λ and over what is skipped, for several finished runs. cobweb: how a state moves, of one
    run. kinds: only these; else all that the runs allow. out: the folder, that of the run where there is one run.
    Raises UsageError for an unknown kind, EdgernnError for a directory that is no run, runs of several metrics, or a
    kind that is asked for but cannot be drawn.
    """
    for kind in kinds or []:
        if kind not in KINDS:
            raise UsageError(f"kind: expected one of {', '.join(KINDS)}, got {kind!r}")
    folder = out or (runs[0] if len(runs) == 1 else Path("plots"))
    drawers: dict[str, Callable[[list[Path]], Callable[[Path], None]]] = {
        "learning": _learning,
        "pattern": _patterns,
        "tradeoff": _tradeoff,
        "cobweb": _cobweb,
    }
    made = []
    for kind in kinds or KINDS:
        try:
            draw = drawers[kind](runs)
        except _NothingToDrawError as error:
            if kinds:
                raise EdgernnError(f"{kind}: {error}") from None
            continue
        for suffix in SUFFIXES:
            made.append(folder / f"{kind}.{suffix}")
            draw(made[-1])
    return made


class _NothingToDrawError(Exception):
    """The runs do not have what a kind of picture shows."""


def _config(run: Path) -> dict[str, Any]:
    if not run.is_dir():
        raise EdgernnError(f"{run}: no such run directory")
    config: dict[str, Any] = read_json(run / CONFIG)
    return config


def _results(runs: list[Path]) -> list[dict[str, Any]]:
    for run in runs:
        if not (run / RESULT).is_file():
            raise _NothingToDrawError(f"{run} is not finished: it has no {RESULT}")
    return [read_json(run / RESULT) for run in runs]


def _names(runs: list[Path]) -> list[str]:
    """The runs' directories, but for what all begin with."""
    short = [run.resolve().name for run in runs]
    return short if len(set(short)) == len(runs) else [str(run) for run in runs]


def _learning(runs: list[Path]) -> Callable[[Path], None]:
    lines = {}
    for name, run in zip(_names(runs), runs, strict=True):
        _config(run)
        lines[name] = RunDirectory(run).metrics()
        if not lines[name]:
            raise _NothingToDrawError(f"{run / METRICS} has no evaluation yet")
    metrics = {_metric(run, lines[name][0]) for name, run in zip(lines, runs, strict=True)}
    if len(metrics) > 1:
        raise EdgernnError(
            f"expected runs of one metric, got {', '.join(sorted(metrics))}: give each kind of run alone"
        )
    skips = any(line["skip_percent"] > 0 for of_run in lines.values() for line in of_run)
    return lambda path: learning_curve(path, lines, next(iter(metrics)), None, skips)


def _metric(run: Path, line: dict[str, Any]) -> str:
    if (run / RESULT).is_file():
        metric: str = read_json(run / RESULT)["metric"]
        return metric
    # a running one does not say: the main metric comes first
    return next(key for key in line if key not in ("step", "epoch", "loss"))


def _load(run: Path) -> tuple[SequenceModel, Tensor]:
    config = _config(run)
    if config.get("network", SequenceModel.__name__) != SequenceModel.__name__:
        raise _NothingToDrawError(f"{run}: its network is a {config['network']}")
    if not (run / EXAMPLE).is_file():
        raise _NothingToDrawError(f"{run} is not finished: it has no {EXAMPLE}")
    model, _ = load_model(run)
    (x,) = read_arrays(run / EXAMPLE, ["x"]).values()
    return model, torch.from_numpy(x[:1]).transpose(0, 1)


def _patterns(runs: list[Path]) -> Callable[[Path], None]:
    loaded = {name: _load(run) for name, run in zip(_names(runs), runs, strict=True)}
    models = {name: model for name, (model, _) in loaded.items()}
    x = next(iter(loaded.values()))[1]
    if not any(model.rule_type.can_skip for model in models.values()):
        raise _NothingToDrawError("no run has a rule that skips")
    if any(other.shape != x.shape for _, other in loaded.values()):
        raise _NothingToDrawError("the runs have sequences of several shapes")
    if len(models) == 1:
        return lambda path: update_pattern(path, next(iter(models.values())), x)
    return lambda path: update_patterns(path, models, x)


def _tradeoff(runs: list[Path]) -> Callable[[Path], None]:
    if len(runs) < 2:
        raise _NothingToDrawError("it takes several runs")
    outcomes = []
    for run, result in zip(runs, _results(runs), strict=True):
        group = result["cell"] if result["rule"] == "always" else f"{result['cell']}, {result['rule']}"
        weight = _config(run)["train"]["lambda"]
        outcomes.append(Outcome(group, result["skip_percent"], result[result["metric"]], weight))
    metrics = {result["metric"] for result in _results(runs)}
    if len(metrics) > 1:
        raise EdgernnError(f"expected runs of one metric, got {', '.join(sorted(metrics))}")
    return lambda path: tradeoff(path, outcomes, next(iter(metrics)))


def _cobweb(runs: list[Path]) -> Callable[[Path], None]:
    if len(runs) > 1:
        raise _NothingToDrawError("it takes one run")
    model, x = _load(runs[0])
    if model.imputer_type is not None or not model.recurrent_layers()[0].cell.streaming:
        raise _NothingToDrawError("the model cannot be run step by step without its imputer or its length")
    return lambda path: cobweb(path, model, x)
