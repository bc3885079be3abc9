# SPDX-License-Identifier: Apache-2.0
"""Where data sets lie: in the folder that the user gives, or in the cache that `edgernn data fetch` fills."""

import os
from collections.abc import Sequence
from pathlib import Path

from edgernn.errors import EdgernnError, UsageError
from edgernn.training.formats.byte_source import SUFFIXES

VARIABLE = "EDGERNN_DATA"


def data_folder(data: Path | None) -> Path | None:
    """The user's data folder: `data`, else what EDGERNN_DATA says, else None. Raises UsageError if it is not there."""
    if data is None:
        if not os.environ.get(VARIABLE):
            return None
        data = Path(os.environ[VARIABLE])
    if not data.is_dir():
        raise UsageError(f"data: no such folder: {data}; {_how()}")
    return data


def cache_folder() -> Path:
    """Where data sets are fetched to if the user names no folder."""
    import pooch

    return Path(pooch.os_cache("edgernn"))


def places(folder: str, data: Path | None) -> list[Path]:
    """Where the files of a set may be, in the order in which they are looked for there.

    `folder` of the user's data folder, that itself, and `folder` of the cache.
    """
    given = data_folder(data)
    return [*([given / folder, given] if given else []), cache_folder() / folder]


def locate(names: Sequence[str], where: Sequence[Path]) -> list[Path | None]:
    """Each of the files, plain, .gz or .xz, in the first place that has it; a name that ends in / is a folder."""
    return [next(filter(Path.exists, _candidates(name, where)), None) for name in names]


def find_files(task: str, folder: str, names: Sequence[str], data: Path | None) -> list[Path]:
    """The files of a data set, each plain, .gz or .xz: in `folder` of the user's data folder or in that, or fetched.

    data: the user's data folder; None is what EDGERNN_DATA says. Raises EdgernnError that says what was sought where.
    """
    return find_either(task, folder, [names], data)


def find_either(task: str, folder: str, forms: Sequence[Sequence[str]], data: Path | None) -> list[Path]:
    """As find_files, of a set that comes in several forms: the files of the first form that is there as a whole."""
    where = places(folder, data)
    for names in forms:
        found = locate(names, where)
        if None not in found:
            return [path for path in found if path]
    sought = " or ".join(", ".join(names) for names in forms) + " (plain, .gz or .xz)"
    if len(where) == 1:
        raise EdgernnError(f"{task} needs {sought} and no data folder is set: {_how()}")
    if len(forms) == 1:
        # most is there: name what is not
        missing = next(name for name, path in zip(forms[0], found, strict=True) if path is None)
        sought = f"{missing} (plain, .gz or .xz)"
    raise EdgernnError(f"{task}: no {sought} in {' and '.join(map(str, where))}: {_how()}")


def _how() -> str:
    return (
        f"give the folder that holds them with --data DIR or the variable {VARIABLE}, "
        "or see `edgernn data list` for where they come from"
    )


def _candidates(name: str, where: Sequence[Path]) -> list[Path]:
    suffixes = ("",) if name.endswith("/") else SUFFIXES
    return [place / (name + suffix) for place in where for suffix in suffixes]
