# SPDX-License-Identifier: Apache-2.0
"""Intended use and licences of a trained model, for its card."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgernn.training.datasets.registry import sets_of
from edgernn.training.tasks import TASKS


def limits_of(task: str) -> str:
    """Return the sentence on what the models of a task are not made for (`Task.limits`); "" for a user's own data."""
    return TASKS[task].limits if task in TASKS else ""


def use_rows(task: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the rows, name and text, of a model's card about its use, from the key "task" of config.json.

    They are the intended use, its limits if the task names some, and the licences of the data and of the weights.
    """
    name, sets = task["name"], sets_of(task["name"], task["settings"])
    if name in TASKS:
        # without the data that a training needs
        purpose = TASKS[name].help.partition(" (needs")[0].rstrip(".")
        terms = "; ".join(f"{data.title}: {data.terms}" for data in sets) or "none, as the task generates its data"
    else:
        purpose, terms = f"Predict the targets of data such as {Path(name).name}", f"that of {Path(name).name}"
    limits = limits_of(name)
    return [
        ("intended use", f"{purpose}, from inputs that are recorded and scaled as in the training"),
        *([("limits of use", limits)] if limits else []),
        ("licence of the data", terms),
        ("licence of the weights", "chosen by those who trained them, within the licence of the data"),
    ]
