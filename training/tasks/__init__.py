# SPDX-License-Identifier: Apache-2.0
"""Training tasks (data, loss and metrics), one per file. To add a task, write its file and list its class in PLACES."""

from collections.abc import Collection, Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from edgernn.errors import EdgernnError, UsageError, nearest
from edgernn.files import check_path
from edgernn.training.tasks.base import Task

# module and class of each task, by its name
PLACES = {
    "adding": "edgernn.training.tasks.adding:Adding",
    "char": "edgernn.training.tasks.char:Char",
    "mnist-rows": "edgernn.training.tasks.images:MnistRows",
    "fashion-rows": "edgernn.training.tasks.images:FashionRows",
    "mnist-permuted": "edgernn.training.tasks.images:MnistPermuted",
    "seizures": "edgernn.training.tasks.seizures:Seizures",
    "keywords": "edgernn.training.tasks.keywords:Keywords",
    "wakeword": "edgernn.training.tasks.wakewords:WakeWord",
    "wake-front": "edgernn.training.tasks.wake_front:WakeFront",
    "activity": "edgernn.training.tasks.activity:Activity",
    "ecg": "edgernn.training.tasks.ecg:Ecg",
    "remaining-life": "edgernn.training.tasks.remaining_life:RemainingLife",
}
# suffixes of tables
_TABLES = (".csv", ".parquet")
# package whose PLACES has the tasks of single papers, where it is installed
_PAPERS = "edgernn.training.papers"


class _Tasks(Mapping[str, type[Task]]):
    """All tasks by name. The module of a task is imported when the task is looked up."""

    def __getitem__(self, name: str) -> type[Task]:
        module, _, task = (PLACES.get(name) or self._of_papers()[name]).partition(":")
        cls: type[Task] = getattr(import_module(module), task)
        return cls

    def __iter__(self) -> Iterator[str]:
        yield from PLACES
        yield from self._of_papers()

    def __len__(self) -> int:
        return len(PLACES) + len(self._of_papers())

    @staticmethod
    def _of_papers() -> dict[str, str]:
        places: dict[str, str] = import_module(f"{_PAPERS}.tasks").PLACES if find_spec(_PAPERS) else {}
        return places


TASKS: Mapping[str, type[Task]] = _Tasks()


def find_task(name: str) -> tuple[type[Task], Path | None]:
    """Look up the class of a task by its name, a key of TASKS, or by the path of the user's data, which is returned.

    A path is that of an .npz file, of a csv or parquet file, of a folder of such files, or of a folder whose subfolders
    hold wav files. UsageError is raised for an unknown name, or a path that no task reads, and EdgernnError if it does
    not exist.
    """
    if name in TASKS:
        return TASKS[name], None
    path = Path(name)
    check_path(path)
    if path.is_dir():
        from edgernn.training.tasks.keywords import OwnWords
        from edgernn.training.tasks.recordings import OTHER_SOUNDS, WAV

        if _has(path, (WAV,)) or (_has(path, OTHER_SOUNDS) and not _has(path, _TABLES)):
            return OwnWords, path
    if path.is_dir() or (path.suffix.lower() in _TABLES and path.is_file()):
        from edgernn.training.tasks.tables import Tables

        return Tables, path
    if path.suffix.lower() == ".npz" and path.is_file():
        from edgernn.training.tasks.arrays import Arrays

        return Arrays, path
    if path.exists():
        raise UsageError(
            "task: expected the name of a task, an .npz, .csv or .parquet file, a folder of such tables, or a folder "
            f"whose subfolders hold wav files, got {name!r}; convert the file, or give the folder of your wav files"
        )
    if (file := path.with_suffix(".npz")).is_file():
        raise UsageError(f"task: no task has the name {name}; to train on your file, give --task {file}")
    if path.suffix or "/" in str(name):
        raise EdgernnError(f"task: no such file or folder: {name}; check the path")
    raise nearest("task", name, TASKS)


def _has(folder: Path, suffixes: Collection[str]) -> bool:
    """True if a file in a folder, or one or two levels below it, has one of the suffixes, in upper or lower case."""
    from edgernn.training.tasks.parts import visible

    levels = ("*", "*/*", "*/*/*")
    return any(file.suffix.lower() in suffixes for level in levels for file in visible(folder, level))
