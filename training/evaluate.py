# SPDX-License-Identifier: Apache-2.0
"""Evaluation of a model on a split of a task, and of a run's model on the run's own data."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from edgernn.config import AnyConfig
from edgernn.errors import EdgernnError
from edgernn.files import CONFIG
from edgernn.model import RecurrentModel
from edgernn.settings import bind, fields_of
from edgernn.store import model_config, read_config
from edgernn.training.run_directory import kept_path
from edgernn.training.tasks import find_task
from edgernn.training.tasks.base import Task
from edgernn.training.tasks.sources import Split


def evaluate(model: RecurrentModel, task: Task, split: Split, device: str = "cpu") -> dict[str, float]:
    """Compute a task's metrics over a whole split, with the skipped neuron updates and the executed multiply-adds.

    The random seed is fixed, so that two calls return the same values.

    Args:
        model: The network.
        task: The task, whose data `Task.open` has read.
        split: The split of the task's data, such as `task.validation`.
        device: The device of the model.

    Returns:
        Dict from the name of each metric to its value. "skip_percent" is the percentage of skipped neuron updates, and
        "macs_executed" the mean number of multiply-adds per step that remain.

    Raises:
        EdgernnError: A metric is not finite.
    """
    was_training = model.training
    model.eval()
    with torch.no_grad(), torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(0)
        means = task.evaluate(model, split, device)
    model.train(was_training)
    for name, value in means.items():
        if not math.isfinite(value):
            raise EdgernnError(
                f"{name} is {value} on the held-out sequences: the training diverged; lower the setting lr"
            )
    return means


def open_task(run: Path, data: Path | None = None, settings: Mapping[str, object] | None = None) -> Task:
    """Open the task of a training run, with the settings, seed and data of the training.

    Args:
        run: The run directory.
        data: Folder of data sets, ignored if the run was trained on a user's own file or folder. Default: that of the
            training.
        settings: Settings of the task that replace those of the training, as a dict from name to value.

    Returns:
        The task.

    Raises:
        UsageError: A setting is unknown or invalid.
        EdgernnError: The data are missing, or a user's own data have changed since the training.
    """
    config = read_config(run)
    kept, folder = (config[key] and kept_path(run, config, config[key]) for key in ("source", "data"))
    if kept and not Path(kept).exists():
        place = config["folder"] or "the folder of the training"
        hint = (
            "" if Path(kept).is_absolute() else f"; the path is relative to {place}: restore the data, or run it there"
        )
        raise EdgernnError(f"{run}: no such file or folder: {kept}, the data of its training{hint}")
    kind, source = find_task(kept or config["task"]["name"])
    model = model_config(config, run / CONFIG)
    task = with_settings(kind, config["task"]["settings"], settings or {}, model)
    # csv files are read in the order of the training
    task.channels, task.reading = config["task"]["channels"], config["task"]["reading"]
    task.open(source or data or (Path(folder) if folder else None), config["seed"])
    # settings may change which sounds are read
    has_same_parts = task.fingerprint is not None or not settings
    if kept and has_same_parts and config["task"]["fingerprint"] not in task.fingerprints:
        hint = f", leave out {', '.join(settings)}" if settings else ""
        raise EdgernnError(
            f"{run}: expected the data of its training in {kept}, got others, and it may have been trained on some of "
            f"their test part; restore the data{hint}, or test it on new data of another name with edgernn evaluate "
            "--data"
        )
    return task


def with_settings(
    kind: type[Task], values: Mapping[str, Any], settings: Mapping[str, object], model: AnyConfig
) -> Task:
    """Create the task of a trained model, without its data.

    Args:
        kind: Class of the task.
        values: All settings of the training's task, as a dict from the name of a field to its value.
        settings: Settings that replace some of them, as a dict from short or dotted name to value.
        model: Configuration of the model.

    Returns:
        The task, not opened yet.

    Raises:
        UsageError: A setting is unknown or invalid.
    """
    changed = bind(settings, task=fields_of(kind))["task"]
    task = kind(**{**values, **{path[0]: value for path, value in changed.items()}})
    # a task with audio takes the length of a step and the sample rate from the model
    task.adapted(model)  # type: ignore[arg-type]
    return task


def scorer(run: Path) -> Callable[[RecurrentModel], tuple[float, bool]]:
    """Build a function that takes a model and returns the main metric of a training run on the test data.

    It also returns True if a higher value is better. Each call reads the data again, and raises EdgernnError if they
    are missing.
    """

    def score(model: RecurrentModel) -> tuple[float, bool]:
        task = open_task(run)
        return evaluate(model, task, task.test)[task.objective.metric], task.objective.higher_is_better

    return score
