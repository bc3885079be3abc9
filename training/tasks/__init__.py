# SPDX-License-Identifier: Apache-2.0
"""The tasks, one file each. To add one: its file, a line in TASKS."""

from pathlib import Path

from edgernn.errors import EdgernnError, UsageError, nearest
from edgernn.training.tasks.adding import Adding
from edgernn.training.tasks.arrays import Arrays
from edgernn.training.tasks.base import CLASSIFICATION, REGRESSION, Means, Objective, Score, Task
from edgernn.training.tasks.mnist import MnistRows
from edgernn.training.tasks.sources import Batch, Generated, Sequences, Source, Split

TASKS: dict[str, type[Task]] = {
    task.name: task
    for task in (
        Adding,
        MnistRows,
    )
}


def find_task(name: str) -> tuple[type[Task], Path | None]:
    """The task of a name; or of the path of a user's own file, and that path.

    Raises UsageError for an unknown name, EdgernnError for a file that is not there.
    """
    if name in TASKS:
        return TASKS[name], None
    path = Path(name)
    if path.suffix == ".npz":
        if not path.is_file():
            raise EdgernnError(f"task: no such file: {name}")
        return Arrays, path
    if path.suffix or path.exists():
        raise UsageError(f"task: expected one of {', '.join(sorted(TASKS))} or the path of an .npz file, got {name!r}")
    raise nearest("task", name, TASKS)


__all__ = [
    "CLASSIFICATION",
    "REGRESSION",
    "TASKS",
    "Adding",
    "Arrays",
    "Batch",
    "Generated",
    "Means",
    "MnistRows",
    "Objective",
    "Score",
    "Sequences",
    "Source",
    "Split",
    "Task",
    "find_task",
]
