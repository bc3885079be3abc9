# SPDX-License-Identifier: Apache-2.0
"""Search for the files of data sets, in the user's data folder (`--data`) and where `edgernn data fetch` puts them."""

import os
from collections.abc import Sequence
from pathlib import Path

from edgernn.byte_source import SUFFIXES
from edgernn.errors import EdgernnError, UsageError

VARIABLE = "EDGERNN_DATA"


def data_folder(data: Path | None) -> Path | None:
    """Return the user's folder of data sets, from `--data` or the environment variable EDGERNN_DATA, or None.

    UsageError is raised if the folder does not exist.
    """
    if data is None:
        if not os.environ.get(VARIABLE):
            return None
        data = Path(os.environ[VARIABLE])
    if not data.is_dir():
        raise UsageError(f"data: no such folder: {data}; {_hint()}")
    return data


def cache_folder() -> Path:
    """Return the folder in the user's cache to which `edgernn data fetch` downloads data sets by default."""
    import pooch

    return Path(pooch.os_cache("edgernn"))


def places(folder: str, data: Path | None) -> list[Path]:
    """List the folders to search for a data set, in order.

    These are `folder` in the user's data folder, the data folder itself, and `folder` in the cache.

    Args:
        folder: Folder name of the data set.
        data: The user's data folder; None to use the environment variable EDGERNN_DATA.

    Returns:
        The folders; they may not exist.
    """
    root = data_folder(data)
    return [*([root / folder, root] if root else []), cache_folder() / folder]


def locate(names: Sequence[str], where: Sequence[Path]) -> list[Path | None]:
    """Find each of several files in the first folder that has it.

    Args:
        names: File names without a suffix .gz or .xz. A file with such a suffix matches, too. A name that ends in /
            stands for a folder.
        where: The folders to search, in order.

    Returns:
        The path of each file, in the order of `names`; None for a file that no folder has.
    """
    return [next(filter(Path.exists, _candidates(name, where)), None) for name in names]


def find_files(task: str, folder: str, names: Sequence[str], data: Path | None) -> list[Path]:
    """Find the files of a data set.

    Args:
        task: Name of the task, for errors.
        folder: Folder name of the data set, see `places`.
        names: File names without a suffix .gz or .xz. A file with such a suffix matches, too.
        data: The user's data folder; None to use the environment variable EDGERNN_DATA.

    Returns:
        The path of each file, in the order of `names`.

    Raises:
        EdgernnError: A file is missing. The message lists the folders searched.
    """
    return find_either(task, folder, [names], data)


def find_either(task: str, folder: str, forms: Sequence[Sequence[str]], data: Path | None) -> list[Path]:
    """Find the files of a data set that is published in several forms, each a complete set of files.

    Args:
        task: Name of the task, for errors.
        folder: Folder name of the data set, see `places`.
        forms: For each form, the names of its files without a suffix .gz or .xz; the preferred form comes first.
        data: The user's data folder; None to use the environment variable EDGERNN_DATA.

    Returns:
        The path of each file of the first complete form, in the order of its names.

    Raises:
        EdgernnError: No form is complete. The message lists the folders searched.
    """
    where = places(folder, data)
    for names in forms:
        paths = locate(names, where)
        if None not in paths:
            return [path for path in paths if path]
    sought = " or ".join(", ".join(names) for names in forms) + " (plain, .gz or .xz)"
    if len(where) == 1:
        raise EdgernnError(f"{task} needs {sought} and no data folder is set: {_hint()}")
    if len(forms) == 1:
        # name the first missing file alone
        missing = next(name for name, path in zip(forms[0], paths, strict=True) if path is None)
        sought = f"{missing} (plain, .gz or .xz)"
    raise EdgernnError(f"{task}: no {sought} in {' and '.join(map(str, where))}: {_hint()}")


def _hint() -> str:
    return (
        f"set the data folder with --data DIR or the environment variable {VARIABLE}; "
        "`edgernn data list` shows where the files come from"
    )


def _candidates(name: str, where: Sequence[Path]) -> list[Path]:
    suffixes = ("",) if name.endswith("/") else SUFFIXES
    return [place / (name + suffix) for place in where for suffix in suffixes]
