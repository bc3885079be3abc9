# SPDX-License-Identifier: Apache-2.0
"""The function `evaluate_model`: test of a trained model with other settings of its task, without training."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch

from edgernn.config import AnyConfig
from edgernn.errors import EdgernnError, UsageError, some
from edgernn.export.exported_model import read_exported
from edgernn.files import CONFIG, read_json
from edgernn.model import SequenceModel
from edgernn.names import check_built_in
from edgernn.own_network import OwnNetwork
from edgernn.runtime.zoo import ENTRY, find_model
from edgernn.settings import split_words
from edgernn.store import load_any, read_config
from edgernn.training.evaluate import evaluate, open_task, with_settings
from edgernn.training.plan import choose
from edgernn.training.run_directory import RunDirectory, kept_path
from edgernn.training.tasks import find_task
from edgernn.training.tasks.base import REGRESSION, Task


def evaluate_model(
    model: Path, settings: Mapping[str, object] | None = None, *, data: Path | None = None, part: str = "test"
) -> dict[str, Any]:
    """Compute a trained model's metrics on the test data of its task, with other settings of the task or on new data.

    Args:
        model: A run directory; an exported file in a run directory or in a folder of trained models; or the name of a
            trained model.
        settings: Settings of the task that replace those of the training, as a dict from name to value, such as
            {"room": 10}.
        data: Folder of data sets. Default: that of the training for a run, or the environment variable EDGERNN_DATA.
            For a run that was trained on a user's own data: new data of the same kind, an npz file or a folder with
            targets, all of which is the test unless it has a test part. Data of the training keep their split.
        part: "test", or "validation" to choose among models without a look at the test.

    Returns:
        JSON-compatible dict: "model" (the run directory or the file), "task", "cell", "rule", "settings" (all settings
        of the task), "data" (the new data, or None), "part", "sequences" (their number in this part), "metric" (the
        name of the main metric), "metrics" (a dict as result.json has them, from name to value) and "series" (a dict
        from name to a list of numbers, as in series.json).

    Raises:
        UsageError: A setting is unknown or invalid, a setting or the data give the task inputs or outputs of another
            size than the model's, new data are to have a validation part, the file has a user-defined cell, its folder
            has neither a run nor an entry.json, or new data are of another kind than those of the training.
        EdgernnError: The model, its entry.json or the data cannot be read, or the classes of the data are not those of
            the model.
    """
    path = find_model(model)
    settings = settings or {}
    folder = path if path.is_dir() else path.parent
    network: SequenceModel | OwnNetwork
    if path.is_dir():
        network, config = load_any(path, allow_code=True)
        classes, name = config["task"]["classes"], config["task"]["name"]
    else:
        network, info = read_exported(path)
        classes = info.get("classes")
        classes, name = classes if isinstance(classes, list) else None, info.get("task")
    if (folder / CONFIG).is_file():
        task, data = _open_run(folder, data, settings, network.config)
    elif (folder / ENTRY).is_file():
        task, data = open_entry(folder / ENTRY, settings, data), None
    else:
        raise UsageError(
            f"{model}: expected a file beside a run's {CONFIG} or beside an {ENTRY}, which name its task, got neither; "
            "name the run directory"
        )
    remedy = "give the data set of the training with --data"
    if settings:
        remedy = f"leave out {', '.join(settings)}, or train again"
    if list(classes or ()) != list(task.classes or ()):
        raise EdgernnError(
            f"{model}: expected data with its classes {_joined(classes)}, got {_joined(task.classes)}; {remedy}"
        )
    _check_sizes(model, network.config, task, remedy)
    if part == "validation":
        if data is not None:
            raise UsageError("part: expected test for new data, which the training did not split, got validation")
        task.test_on_validation()
    metrics = evaluate(network, task, task.test)
    with torch.no_grad():
        series = {name: list(map(float, values)) for name, values in task.series(network, "cpu").items()}
    return {
        "model": str(path),
        "task": name if isinstance(name, str) else task.name,
        "cell": network.config.title,
        "rule": network.recurrent_layers()[0].rule.name,
        "settings": asdict(task),  # type: ignore[call-overload]
        "data": data and str(data),
        "part": part,
        "sequences": len(task.test),
        "metric": task.objective.metric,
        "metrics": metrics,
        "series": series,
    }


def _open_run(
    run: Path, data: Path | None, settings: Mapping[str, object], model: AnyConfig
) -> tuple[Task, Path | None]:
    """Open the task of a training run on its own test data, or on new `data`, and return these, or else None."""
    config = read_config(run)
    trained, source = config["task"], config["source"]
    if data is None or source is None or data.resolve() == Path(kept_path(run, config, source)).resolve():
        return open_task(run, data, settings), None
    if not data.exists():
        raise EdgernnError(f"data: no such file or folder: {data}; check the path")
    kind, _ = find_task(str(data.resolve()))
    if not trained["settings"].keys() <= {field.name for field in fields(kind)}:  # type: ignore[arg-type]
        raise UsageError(f"data: expected data of the same kind as {source} of the training, got {data}; convert them")
    task = with_settings(kind, trained["settings"], settings, model)
    task.classes, task.channels, task.reading = trained["classes"], trained["channels"], trained["reading"]
    task.open_test(data, model.head.size or 0)
    evaluations = RunDirectory(run).metrics()
    if evaluations and task.objective.metric not in evaluations[0]:
        labels, numbers = "labels of classes", "numbers to predict"
        expected, got = (labels, numbers) if task.objective.metric == REGRESSION.metric else (numbers, labels)
        raise UsageError(f"data: {data}: expected {expected}, as in the training, got {got}; correct the targets")
    if trained["fingerprint"] in (task.fingerprint, task.older_fingerprint):
        # most of these sequences were trained on
        task = with_settings(kind, trained["settings"], settings, model)
        task.channels, task.reading = trained["channels"], trained["reading"]
        task.open(data, config["seed"])
        return task, None
    return task, data


def open_entry(path: Path, settings: Mapping[str, object], data: Path | None = None) -> Task:
    """Open the task of a trained model, with the settings and the seed of the training's command in its entry.json.

    Args:
        path: The entry.json.
        settings: Settings of the task that replace those of the command, as a dict from short or dotted name to value.
        data: Folder of data sets, ignored if the model was trained on a user's own file or folder. Default: the
            environment variable EDGERNN_DATA.

    Returns:
        The task, with its data.

    Raises:
        UsageError: A setting is unknown or invalid, or the cell or the rule of the command is none of edgernn's.
        EdgernnError: The file has no valid command of a training, or the data cannot be read.
    """
    task, source, seed = task_of_entry(path, settings)
    task.open(source or data, seed)
    return task


def task_of_entry(path: Path, settings: Mapping[str, object]) -> tuple[Task, Path | None, int]:
    """Create the task of a trained model from the command in its entry.json, without data.

    Args:
        path: The entry.json.
        settings: Settings of the task that replace those of the command, as a dict from short or dotted name to value.

    Returns:
        The task, the path of the user's own data if the command has one, and the seed.

    Raises:
        UsageError: A setting is unknown or invalid, or the cell or the rule of the command is none of edgernn's.
        EdgernnError: The file has no valid command of a training.
    """
    options, words = _command(path)
    cell, rule = options["--cell"], options.get("--rule")
    check_built_in(str(path), cell, rule)
    try:
        seed = int(options.get("--seed", "0"))
    except ValueError:
        raise _invalid(path, f"a whole number after --seed, got {options['--seed']!r:.50}") from None
    try:
        choice = choose(options["--task"], cell, rule, split_words(words), seed)
    except EdgernnError as error:
        raise EdgernnError(f"{path}: command: {error}") from None
    values = asdict(choice.task)  # type: ignore[call-overload]
    return with_settings(type(choice.task), values, settings, choice.model), choice.source, seed


def _command(path: Path) -> tuple[dict[str, str], list[str]]:
    entry = read_json(path)
    command = entry.get("command") if isinstance(entry, dict) else None
    is_training = isinstance(command, list) and command[:2] == ["edgernn", "train"]
    if command is None or not is_training or not all(isinstance(word, str) for word in command):
        raise _invalid(path, f"a list of the words of `edgernn train`, got {command!r:.50}")
    options: dict[str, str] = {}
    words = command[2:]
    while words and words[0].startswith("--"):
        if len(words) == 1:
            raise _invalid(path, f"a value after {words[0]:.50}, got none")
        options[words[0]], words = words[1], words[2:]
    for name in ("--task", "--cell"):
        if name not in options:
            raise _invalid(path, f"the option {name}, got none")
    return options, words


def _invalid(path: Path, text: str) -> EdgernnError:
    return EdgernnError(f"{path}: command: expected {text}; get the file again")


def _check_sizes(model: Path, config: AnyConfig, task: Task, remedy: str) -> None:
    """Raise UsageError if the inputs or outputs of a task are not those of the model, and say what to do: `remedy`."""
    trained = {
        "input_size": config.input.size,
        "output_size": config.head.size,
        "output": config.head.output,
        "vocabulary": config.input.vocabulary,
    }
    for name, expected in trained.items():
        if (value := getattr(task, name)) != expected:
            raise UsageError(f"{model}: {name}: expected {expected}, as in the training, got {value}; {remedy}")


def _joined(classes: object) -> str:
    return some(map(str, classes)) if isinstance(classes, list | tuple) else "none"
