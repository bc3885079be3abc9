# SPDX-License-Identifier: Apache-2.0
"""A run that is fully decided: from names and words to a task with its data, a config and a model's arguments."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

import edgernn
from edgernn.cell_files import is_cell_file, source_of
from edgernn.config import InputConfig, ModelConfig
from edgernn.errors import UsageError
from edgernn.machine import processor
from edgernn.model import RecurrentModel
from edgernn.names import resolve
from edgernn.rules.fixed import SEEDS
from edgernn.settings import Values, bind, build, fields_of, options_of, record
from edgernn.training.config import TrainConfig, resolve_config
from edgernn.training.optim import check_names
from edgernn.training.tasks import Task, find_task

# what a config says of the machine; a resumed run may change it
MACHINE = ("edgernn", "torch", "threads", "processes", "machine")
# what it may change too: the command, and where the data lie
_FREE = (*MACHINE, "command", "source", "data")


@dataclass(frozen=True)
class Plan:
    """Everything that decides a run.

    task_name is what a run directory is called after. source: the user's own data. data: the folder of data sets.
    """

    task_name: str
    cell: str
    task: Task
    config: TrainConfig
    model: ModelConfig
    can_skip: bool
    seed: int
    device: str
    source: Path | None = None
    data: Path | None = None

    @property
    def steps_per_epoch(self) -> int:
        return self.task.train.steps_per_epoch(self.config.batch_size)

    def network(self) -> RecurrentModel:
        """A new one, on the device."""
        return self.task.build_network(self.model).to(self.device)

    def record(self, command: list[str], processes: int = 1) -> dict[str, Any]:
        """The content of config.json; processes: that train together."""
        task = {
            "name": self.task_name,
            "settings": asdict(self.task),  # type: ignore[call-overload]
            "fingerprint": self.task.fingerprint or self.task.train.fingerprint,
            "classes": self.task.classes,
        }
        content = {
            "edgernn": edgernn.__version__,
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "processes": processes,
            "machine": processor(),
            "command": command,
            "seed": self.seed,
            "device": self.device,
            "source": self.source and str(self.source),
            "data": self.data and str(self.data),
            "task": task,
            "train": record(self.config),
            "network": self.task.network.__name__,
            "model": record(self.model),
        }
        if (source := source_of(self.model.layer.types[0])) is not None:
            content["cell_file"] = source.record()
        loaded: dict[str, Any] = json.loads(json.dumps(content, allow_nan=False))
        return loaded


def choose_device(name: str) -> str:
    """Cpu or cuda. Raises UsageError for cuda where there is none."""
    if name not in ("auto", "cpu", "cuda"):
        raise UsageError(f"device: expected auto, cpu or cuda, got {name!r}")
    there = torch.cuda.is_available()
    if name == "cuda" and not there:
        raise UsageError("device: cuda was asked for, but torch finds no CUDA device; use --device cpu")
    return "cuda" if there and name != "cpu" else "cpu"


@dataclass(frozen=True)
class Choice:
    """Names and settings, read and checked, before any data is; the model is without what follows from the data."""

    task: Task
    source: Path | None
    can_skip: bool
    config: TrainConfig
    model: ModelConfig


# a model that is trained is smaller than that of SequenceModel(), unless the task or the user says otherwise
_DEFAULTS: Values = {("hidden_size",): 64}


def configure(defaults: Mapping[str, object], train: Values, model: Values) -> tuple[TrainConfig, ModelConfig]:
    """The user's settings of training and model by path, over a task's `defaults`; the model is a GRU."""
    values = bind(defaults, train=fields_of(TrainConfig), model=fields_of(ModelConfig))
    config = resolve_config(values["train"], train)
    return config, build(ModelConfig, {**_DEFAULTS, **values["model"], **model})


def choose(task: str, cell: str, rule: str | None, settings: Mapping[str, object], seed: int = 0) -> Choice:
    """Read and check names and settings.

    Args:
        task: The task's name, or a path to the user's data.
        cell: The cell's name, or FILE.py:CLASS.
        rule: The rule's name; None where the cell's name implies it.
        settings: Settings of the training, the model, the task, the cell and the rule, by short or dotted name.
        seed: The seed of the run. A rule that draws has it as its own seed, unless the settings give another.

    Raises:
        UsageError: an unknown name, a bad setting or seed.
    """
    if seed < 0:
        raise UsageError(f"seed: expected a whole number of at least 0, got {seed}")
    task_type, source = find_task(task)
    cell_type, rule_type = resolve(cell, rule)
    owners = {"train": fields_of(TrainConfig), "model": fields_of(ModelConfig)}
    parts = {"task": fields_of(task_type), "cell": options_of(cell_type), "rule": options_of(rule_type)}
    values = bind(settings, **owners, **parts)
    for name in sorted(task_type.without):
        if any(name in owner and owner[name].path in values[key] for key, owner in owners.items()):
            raise UsageError(f"{name}: the network of the task {task_type.name} has no such setting")
    options = {part: {path[0]: value for path, value in values[part].items()} for part in parts}
    if "seed" in parts["rule"]:
        options["rule"].setdefault("seed", seed % SEEDS)
    config, model = configure(task_type.defaults, values["train"], values["model"])
    check_names(config)
    layer = model.layer.named(cell, rule, options["cell"], options["rule"])
    chosen = task_type(**options["task"])
    return Choice(chosen, source, rule_type.can_skip, config, chosen.adapted(replace(model, layer=layer)))


def make_plan(
    task: str,
    cell: str,
    rule: str | None,
    settings: Mapping[str, object],
    *,
    seed: int = 0,
    device: str = "auto",
    data: Path | None = None,
) -> Plan:
    """Raises UsageError for an unknown name or a bad setting, EdgernnError for data that is missing or bad."""
    choice = choose(task, cell, rule, settings, seed)
    device = choose_device(device)
    opened, model = choice.task, choice.model
    opened.open(choice.source or data, seed)
    mean, std = _standardisation(opened, model.layer.imputer is not None)
    model = replace(
        model,
        input=InputConfig(size=opened.input_size, mean=mean, std=std, vocabulary=opened.vocabulary),
        head=replace(model.head, size=opened.output_size, output=opened.output),
    )
    name = choice.source.name if choice.source else task
    cell = model.layer.types[0].name if is_cell_file(cell) else cell
    return Plan(name, cell, opened, choice.config, model, choice.can_skip, seed, device, choice.source, data)


def _standardisation(task: Task, imputes: bool) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of the input, for the model; an imputer's masks and times stay as they are."""

    def of(numbers: Sequence[float], neutral: float) -> tuple[float, ...]:
        values = tuple(map(float, numbers))
        if not imputes:
            return values
        count = task.input_size // 3
        return (values * (task.input_size if len(values) == 1 else 1))[:count] + (neutral,) * (task.input_size - count)

    return of(task.mean, 0.0), of(task.std, 1.0)


def first_difference(
    old: Mapping[str, Any], new: Mapping[str, Any], path: tuple[str, ...] = ()
) -> tuple[str, Any, Any] | None:
    """The first setting in which two configs differ, if it matters for the result: its name and both values."""
    for key in sorted(old.keys() | new.keys(), key=["task", "train", "model", *sorted({*old, *new})].index):
        if key in _FREE:
            continue
        a, b = old.get(key), new.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            if difference := first_difference(a, b, (*path, key)):
                return difference
        elif a != b:
            return _short_name((*path, key)), a, b
    return None


def _short_name(path: tuple[str, ...]) -> str:
    """Of the setting at a place in config.json."""
    for key, owner in (("train", TrainConfig), ("model", ModelConfig)):
        for setting in fields_of(owner).values():
            if f"{key}.{setting.dotted}" == ".".join(path):
                return setting.name
    return path[-2] if path[-1] == "name" and len(path) > 1 else path[-1]
