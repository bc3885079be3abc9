# SPDX-License-Identifier: Apache-2.0
"""A run that is fully decided: from names and words to a task with its data, a config and a model's arguments."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import edgernn
from edgernn.errors import UsageError
from edgernn.machine import processor
from edgernn.names import resolve
from edgernn.training.config import TrainConfig, resolve_config
from edgernn.training.settings import bind, fields_of, options_of
from edgernn.training.tasks import Task, find_task

# what a config says of the machine; a resumed run may change it, and the command
MACHINE = ("edgernn", "torch", "threads", "machine")


@dataclass(frozen=True)
class Plan:
    """Everything that decides a run. task_name is what a run directory is called after."""

    task_name: str
    task: Task
    config: TrainConfig
    model: dict[str, Any]
    can_skip: bool
    seed: int
    device: str

    def record(self, command: list[str]) -> dict[str, Any]:
        """The content of config.json."""
        settings = asdict(self.task)  # type: ignore[call-overload]
        task = {"name": self.task_name, "settings": settings, "fingerprint": self.task.fingerprint}
        record = {
            "edgernn": edgernn.__version__,
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "machine": processor(),
            "command": command,
            "seed": self.seed,
            "device": self.device,
            "task": task,
            "train": self.config.record(),
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
    task_type, source = find_task(task)
    cell_type, rule_type = resolve(cell, rule)
    if seed < 0:
        raise UsageError(f"seed: expected a whole number of at least 0, got {seed}")
    owners = (fields_of(TrainConfig), fields_of(task_type), options_of(cell_type), options_of(rule_type))
    given, task_settings, cell_options, rule_options = bind(settings, *owners)
    config = resolve_config(task_type.defaults, given)
    device = choose_device(device)
    opened = task_type(**task_settings)
    opened.open(source or data, seed)
    model: dict[str, Any] = {
        "cell": cell,
        "rule": rule,
        "input_size": opened.input_size,
        "hidden_size": config.hidden_size,
        "output_size": opened.output_size,
        "layers": config.layers,
        "bidirectional": config.bidirectional,
        "output": opened.output,
        "mean": list(opened.mean) if len(opened.mean) > 1 else opened.mean[0],
        "std": list(opened.std) if len(opened.std) > 1 else opened.std[0],
        "cell_options": cell_options,
        "rule_options": rule_options,
    }
    name = source.name if source else task
    return Plan(name, opened, config, model, rule_type.can_skip, seed, device)


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
