# SPDX-License-Identifier: Apache-2.0
"""The function `evaluate_model`: test of a trained model with other settings of its task, without training."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from edgernn.errors import EdgernnError, UsageError
from edgernn.export.exported_model import read_exported
from edgernn.files import read_json
from edgernn.runtime.zoo import ENTRY, find_model
from edgernn.settings import bind, fields_of, split_words
from edgernn.store import CONFIG, load_model
from edgernn.training.evaluate import evaluate
from edgernn.training.kernels import attach
from edgernn.training.plan import choose
from edgernn.training.score import open_task
from edgernn.training.tasks import Task, find_task


def evaluate_model(
    model: Path, settings: Mapping[str, object] | None = None, *, data: Path | None = None
) -> dict[str, Any]:
    """Compute a trained model's metrics on the test data of its task, with other settings of the task.

    Args:
        model: A run directory; an exported file in a run directory or in a folder of trained models; or the name of a
            trained model.
        settings: Settings of the task that replace those of the training, as a dict from name to value, such as
            {"room": 10}.
        data: Folder of data sets. Default: that of the training, or the environment variable EDGERNN_DATA.

    Returns:
        JSON-compatible dict: "model" (the run directory or the file), "task", "cell", "rule", "settings" (all settings
        of the task), "metric" (the name of the main metric), "metrics" (a dict as result.json has them, from name to
        value) and "series" (a dict from name to a list of numbers, as in series.json).

    Raises:
        UsageError: A setting is unknown or invalid, or the folder of the file has neither a run nor an entry.json.
        EdgernnError: The model or the data cannot be read, or the classes of the data are not those of the model.
    """
    path = find_model(model)
    settings = settings or {}
    folder = path if path.is_dir() else path.parent
    if path.is_dir():
        network, config = load_model(path)
        classes = config["task"]["classes"]
    else:
        network, info = read_exported(path)
        classes = info.get("classes")
    if (folder / CONFIG).is_file():
        task = open_task(folder, data, settings)
    elif (folder / ENTRY).is_file():
        task = open_entry(folder / ENTRY, settings, data)
    else:
        raise UsageError(
            f"{model}: expected a file beside a run's {CONFIG} or beside an {ENTRY}, which name its task, got neither; "
            "name the run directory"
        )
    if list(classes or ()) != list(task.classes or ()):
        raise EdgernnError(
            f"{model}: expected data with its classes {_joined(classes)}, got {_joined(task.classes)}; give the data "
            "set of the training with --data"
        )
    attach(network, "auto", "cpu")
    metrics = evaluate(network, task, task.test)
    with torch.no_grad():
        series = {name: list(map(float, values)) for name, values in task.series(network, "cpu").items()}
    return {
        "model": str(path),
        "task": task.name,
        "cell": network.config.layer.cell.name,
        "rule": network.recurrent_layers()[0].rule.name,
        "settings": asdict(task),  # type: ignore[call-overload]
        "metric": task.objective.metric,
        "metrics": metrics,
        "series": series,
    }


def open_entry(path: Path, settings: Mapping[str, object], data: Path | None = None) -> Task:
    """Open the task of a trained model with the settings and the seed of the training's command in its entry.json."""
    words = read_json(path)["command"][2:]
    options: dict[str, str] = {}
    while words and words[0].startswith("--"):
        options[words[0]], words = words[1], words[2:]
    task = options["--task"]
    # refuses settings of the training, which an evaluation does not use
    bind(settings, task=fields_of(find_task(task)[0]))
    seed = int(options.get("--seed", 0))
    choice = choose(task, options["--cell"], options.get("--rule"), {**split_words(words), **settings}, seed)
    choice.task.open(choice.source or data, seed)
    return choice.task


def _joined(classes: object) -> str:
    return ", ".join(map(str, classes)) if isinstance(classes, list | tuple) else "none"
