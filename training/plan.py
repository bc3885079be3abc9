# SPDX-License-Identifier: Apache-2.0
"""A run that is fully decided: from names and words to a task with its data, a config and a model's arguments."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import edgernn
from edgernn.errors import UsageError
from edgernn.machine import processor
from edgernn.model import RecurrentModel
from edgernn.names import resolve, resolve_imputer
from edgernn.training.config import TrainConfig, resolve_config
from edgernn.training.optim import check_names
from edgernn.training.settings import bind, fields_of, options_of
from edgernn.training.tasks import Task, find_task

# what a config says of the machine; a resumed run may change it, and the command
MACHINE = ("edgernn", "torch", "threads", "processes", "machine")


@dataclass(frozen=True)
class Plan:
    """Everything that decides a run. task_name is what a run directory is called after."""

    task_name: str
    cell: str
    task: Task
    config: TrainConfig
    model: dict[str, Any]
    can_skip: bool
    seed: int
    device: str

    @property
    def steps_per_epoch(self) -> int:
        return self.task.train.steps_per_epoch(self.config.batch_size)

    def network(self) -> RecurrentModel:
        """A new one, on the device."""
        return self.task.network(**self.model).to(self.device)

    def record(self, command: list[str], processes: int = 1) -> dict[str, Any]:
        """The content of config.json; processes: that train together."""
        task = {
            "name": self.task_name,
            "settings": asdict(self.task),  # type: ignore[call-overload]
            "fingerprint": self.task.fingerprint or self.task.train.fingerprint,
            "classes": self.task.classes,
        }
        record = {
            "edgernn": edgernn.__version__,
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "processes": processes,
            "machine": processor(),
            "command": command,
            "seed": self.seed,
            "device": self.device,
            "task": task,
            "train": self.config.record(),
            "network": self.task.network.__name__,
            "model": self.model,
        }
        loaded: dict[str, Any] = json.loads(json.dumps(record, allow_nan=False))
        return loaded


def choose_device(name: str) -> str:
    """cpu or cuda. Raises UsageError for cuda where there is none."""
    if name not in ("auto", "cpu", "cuda"):
        raise UsageError(f"device: expected auto, cpu or cuda, got {name!r}")
    there = torch.cuda.is_available()
    if name == "cuda" and not there:
        raise UsageError("device: cuda was asked for, but torch finds no CUDA device; use --device cpu")
    return "cuda" if there and name != "cpu" else "cpu"


@dataclass(frozen=True)
class Choice:
    """Names and settings, read and checked, before any data is."""

    task: Task
    source: Path | None
    can_skip: bool
    config: TrainConfig
    cell_options: dict[str, Any]
    rule_options: dict[str, Any]


def choose(task: str, cell: str, rule: str | None, settings: Mapping[str, object]) -> Choice:
    """Raises UsageError for an unknown name or a bad setting."""
    task_type, source = find_task(task)
    cell_type, rule_type = resolve(cell, rule)
    owners = (fields_of(TrainConfig), fields_of(task_type), options_of(cell_type), options_of(rule_type))
    given, task_settings, cell_options, rule_options = bind(settings, *owners)
    config = resolve_config(task_type.defaults, given)
    check_names(config)
    if unknown := sorted(task_type.without & given.keys()):
        raise UsageError(f"{unknown[0]}: the network of the task {task_type.name} has no such setting")
    return Choice(task_type(**task_settings), source, rule_type.can_skip, config, cell_options, rule_options)


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
    choice = choose(task, cell, rule, settings)
    if seed < 0:
        raise UsageError(f"seed: expected a whole number of at least 0, got {seed}")
    device = choose_device(device)
    opened, config = choice.task, choice.config
    opened.open(choice.source or data, seed)
    mean, std = _standardisation(opened, resolve_imputer(cell, config.imputer) is not None)
    model: dict[str, Any] = {
        "cell": cell,
        "rule": rule,
        "input_size": opened.input_size,
        "hidden_size": config.hidden_size,
        "output_size": opened.output_size,
        "layers": config.layers,
        "bidirectional": config.bidirectional,
        "last_size": config.last_size,
        "tied": config.tied,
        "dropout_embedding": config.dropout_embedding,
        "dropout_input": config.dropout_input,
        "dropout_hidden": config.dropout_hidden,
        "dropout_output": config.dropout_output,
        "weight_drop": config.weight_drop,
        "weight_drop_input": config.weight_drop_input,
        "imputer": config.imputer,
        "rank": config.rank,
        "density": config.density,
        "norm": config.norm,
        "norm_steps": config.norm_steps,
        "output": opened.output,
        "mean": mean,
        "std": std,
        "cell_options": choice.cell_options,
        "rule_options": choice.rule_options,
    }
    name = choice.source.name if choice.source else task
    return Plan(name, cell, opened, config, opened.arguments(model), choice.can_skip, seed, device)


def _standardisation(task: Task, imputes: bool) -> tuple[list[float] | float, list[float] | float]:
    """Mean and standard deviation of the input, for the model; an imputer's masks and times stay as they are."""

    def of(numbers: Sequence[float], neutral: float) -> list[float] | float:
        if imputes:
            values = list(numbers) * (task.input_size if len(numbers) == 1 else 1)
            return values[: task.input_size // 3] + [neutral] * (task.input_size - task.input_size // 3)
        return list(numbers) if len(numbers) > 1 else numbers[0]

    return of(task.mean, 0.0), of(task.std, 1.0)


def first_difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """The first setting in which two configs differ, if it matters for the result: its name and both values."""
    for key in sorted(old.keys() | new.keys(), key=["task", "train", *sorted({*old, *new})].index):
        if key in (*MACHINE, "command"):
            continue
        a, b = old.get(key), new.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            if found := first_difference(a, b):
                return found
        elif a != b:
            return key, a, b
    return None
