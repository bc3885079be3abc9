# SPDX-License-Identifier: Apache-2.0
"""Training tasks (data, loss and metrics), one per file. To add a task, write its file and list its class in TASKS."""

from collections.abc import Collection
from pathlib import Path

from edgernn.errors import EdgernnError, UsageError, nearest
from edgernn.training.tasks.activity import Activity
from edgernn.training.tasks.adding import Adding
from edgernn.training.tasks.arrays import Arrays
from edgernn.training.tasks.base import CLASSIFICATION, REGRESSION, Means, Objective, Score, Task
from edgernn.training.tasks.binary_addition import BinaryAddition
from edgernn.training.tasks.brits import Mortality
from edgernn.training.tasks.char import Char
from edgernn.training.tasks.draw import DrawImages
from edgernn.training.tasks.ecg import Ecg
from edgernn.training.tasks.folders import Folder
from edgernn.training.tasks.images import FashionRows, MnistPermuted, MnistRows
from edgernn.training.tasks.keywords import Keywords, OwnWords
from edgernn.training.tasks.l2l import LearningToLearn
from edgernn.training.tasks.memorization import Memorization
from edgernn.training.tasks.parts import visible
from edgernn.training.tasks.ptb import NextWord
from edgernn.training.tasks.recordings import OTHER_SOUNDS, WAV
from edgernn.training.tasks.remaining_life import RemainingLife
from edgernn.training.tasks.seizures import Seizures
from edgernn.training.tasks.sentence_vae import SentenceCodes
from edgernn.training.tasks.sources import Batch, Generated, Sequences, Source, Split
from edgernn.training.tasks.twitter import Twitter
from edgernn.training.tasks.yahoo import Yahoo

TASKS: dict[str, type[Task]] = {
    task.name: task
    for task in (
        Adding,
        Memorization,
        BinaryAddition,
        Char,
        MnistRows,
        FashionRows,
        MnistPermuted,
        Seizures,
        Twitter,
        Yahoo,
        Mortality,
        DrawImages,
        LearningToLearn,
        SentenceCodes,
        NextWord,
        Keywords,
        Activity,
        Ecg,
        RemainingLife,
    )
}


def find_task(name: str) -> tuple[type[Task], Path | None]:
    """Look up the class of a training task by its name, or by the path of the user's own data.

    Args:
        name: A key of TASKS, or the path of an .npz file, of a folder of csv files, or of a folder whose subfolders
            hold wav files.

    Returns:
        The task class, and the path of the user's data, or None if `name` is a key of TASKS.

    Raises:
        UsageError: The name is unknown, or the path is a file or folder that no task reads.
        EdgernnError: The file or folder does not exist.
    """
    if name in TASKS:
        return TASKS[name], None
    path = Path(name)
    if path.is_dir():
        has_sounds = _has(path, (WAV,)) or (_has(path, OTHER_SOUNDS) and not _has(path, (".csv",)))
        return OwnWords if has_sounds else Folder, path
    if path.suffix.lower() == ".npz" and path.is_file():
        return Arrays, path
    if path.exists() or path.suffix.lower() == ".csv":
        raise UsageError(
            "task: expected the name of a task, an .npz file, a folder of csv files, or a folder whose subfolders hold "
            f"wav files, got {name!r}; give the folder of your csv or wav files instead of a file"
        )
    if (file := path.with_suffix(".npz")).is_file():
        raise UsageError(f"task: no task has the name {name}; to train on your file, give --task {file}")
    if path.suffix or len(path.parts) > 1:
        raise EdgernnError(f"task: no such file or folder: {name}; check the path")
    raise nearest("task", name, TASKS)


def _has(folder: Path, suffixes: Collection[str]) -> bool:
    """True if a file in a folder, or one or two levels below it, has one of the suffixes, in upper or lower case."""
    levels = ("*", "*/*", "*/*/*")
    return any(file.suffix.lower() in suffixes for level in levels for file in visible(folder, level))


__all__ = [
    "CLASSIFICATION",
    "REGRESSION",
    "TASKS",
    "Activity",
    "Adding",
    "Arrays",
    "Batch",
    "BinaryAddition",
    "Char",
    "DrawImages",
    "Ecg",
    "FashionRows",
    "Folder",
    "Generated",
    "Keywords",
    "LearningToLearn",
    "Means",
    "Memorization",
    "MnistPermuted",
    "MnistRows",
    "Mortality",
    "NextWord",
    "Objective",
    "OwnWords",
    "RemainingLife",
    "Score",
    "Seizures",
    "SentenceCodes",
    "Sequences",
    "Source",
    "Split",
    "Task",
    "Twitter",
    "Yahoo",
    "find_task",
]
