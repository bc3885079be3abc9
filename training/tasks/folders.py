# SPDX-License-Identifier: Apache-2.0
"""Folders of a user's own tables: parts, classes, and the tables labels.csv and targets.csv."""

import csv
import hashlib
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgernn.errors import EdgernnError, some
from edgernn.runtime.csv_table import Dialect
from edgernn.training.formats import read_text
from edgernn.training.formats.tables import CSV, PARQUET
from edgernn.training.tasks.parts import visible

LABELS, TARGETS = "labels.csv", "targets.csv"
# subfolder of each part
_PARTS = {"train": "train", "validation": "val", "test": "test"}
TABLES = (CSV, PARQUET)
_WAYS = f"{LABELS}, {TARGETS}, or a subfolder for each class"


class Files(NamedTuple):
    """The tables of a part (training, validation or test), with the class or the target numbers of each file.

    `by_file` are labels.csv or targets.csv, if the part has one. `labels` has the name of the class of each file;
    `targets` (F, O) has O numbers for each of the F files. Both are None if the targets are in columns of the files.
    """

    folder: Path
    paths: list[Path]
    by_file: list[Path]
    labels: list[str] | None = None
    targets: NDArray[np.float64] | None = None

    @property
    def kind(self) -> str:
        return "classes" if self.labels is not None else "numbers" if self.targets is not None else "columns"


def list_files(folder: Path, *, in_columns: bool) -> Files:
    """List the tables of a part with their classes or target numbers.

    Args:
        folder: The folder of the part.
        in_columns: True if the targets are in columns of the files, or not needed.

    Returns:
        The files.

    Raises:
        EdgernnError: There is none, or they have targets in two ways.
    """
    by_file = [name for name in (LABELS, TARGETS) if (folder / name).is_file()]
    paths = _table_files(folder)
    classes = {sub.name: _table_files(sub) for sub in _subfolders(folder)}
    inside = [path for class_files in classes.values() for path in class_files]
    if not paths and not inside:
        raise EdgernnError(
            f"{folder}: expected csv or parquet files, or subfolders with csv, parquet or wav files, got none"
            f"{_others(folder)}; add files"
        )
    if in_columns:
        return Files(folder, paths + inside, [folder / name for name in by_file])
    ways = by_file + ([f"subfolders with tables ({some(classes)})"] if inside else [])
    if len(ways) > 1 or (inside and paths):
        got = " and ".join(ways) + (f" and files beside them ({paths[0].name})" if inside and paths else "")
        raise EdgernnError(
            f"{folder}: expected targets in one of {_WAYS}, got {got}; keep one of them, or name a column of the files "
            "with label=COLUMN"
        )
    if by_file == [LABELS]:
        return Files(folder, paths, [folder / LABELS], labels=_labels(folder / LABELS, paths))
    if by_file == [TARGETS]:
        return Files(folder, paths, [folder / TARGETS], targets=_numbers(folder / TARGETS, paths))
    if not inside:
        return Files(folder, paths, [])
    if empty := [name for name, class_files in classes.items() if not class_files]:
        raise EdgernnError(f"{folder / empty[0]}: expected tables of the class {empty[0]!r}, got none; add files")
    return Files(folder, inside, [], labels=[path.parent.name for path in inside])


def part_folders(source: Path) -> dict[str, Path]:
    """Find the folder of each part of the user's data, as a dict from "train", "validation" and "test" to folder.

    If `source` has a subfolder train and no tables of its own, the parts are its subfolders train, val and test, and
    the dict has those that exist. EdgernnError is raised if it has other subfolders, too. In all other cases, the dict
    has only the training part, and its folder is `source`.
    """
    names = [sub.name for sub in _subfolders(source)]
    if _PARTS["train"] in names and not any(path.suffix.lower() in TABLES for path in visible(source, "*")):
        if others := [name for name in names if name not in _PARTS.values()]:
            wanted = f"no subfolders other than {', '.join(_PARTS.values())}"
            raise EdgernnError(f"{source}: expected {wanted}, got {', '.join(others)}; rename them or move them away")
        return {part: source / name for part, name in _PARTS.items() if name in names}
    return {"train": source}


def _others(folder: Path) -> str:
    """Return a phrase for an error that names a file of another kind in a folder without tables, or ""."""
    return next((f" but files such as {path.name}" for path in sorted(visible(folder))), "")


def _subfolders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _table_files(folder: Path) -> list[Path]:
    """List the csv and parquet files of a folder except labels.csv and targets.csv, sorted by name."""
    paths = (path for path in visible(folder, "*") if path.suffix.lower() in TABLES)
    return sorted(path for path in paths if path.name not in (LABELS, TARGETS))


def files_fingerprint(source: Path, paths: Iterable[Path]) -> str:
    """Return a hash of the names and contents of files in a folder."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        name = path.relative_to(source).as_posix()
        with path.open("rb") as file:
            digest.update(f"{name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()


def _labels(table: Path, paths: Sequence[Path]) -> list[str]:
    """Read labels.csv, and return the name of the class of each file."""
    rows, _ = _rows_by_file(table, paths)
    for name, (line, cells) in rows.items():
        if len(cells) != 1 or not cells[0]:
            raise EdgernnError(
                f"{table}: line {line}: expected {name} and the name of a class, got {name} and {cells}; correct the "
                "line"
            )
    return [rows[path.name][1][0] for path in paths]


def _numbers(table: Path, paths: Sequence[Path]) -> NDArray[np.float64]:
    """Read targets.csv, and return the O target numbers of each of F files (F, O), in the order of `paths`."""
    rows, dialect = _rows_by_file(table, paths)
    width = len(rows[paths[0].name][1]) if paths else 0
    for name, (line, cells) in rows.items():
        if len(cells) != width or not width:
            wanted = f"{1 + max(1, width)} cells, the name and the numbers of {name}"
            raise EdgernnError(f"{table}: line {line}: expected {wanted}, got {1 + len(cells)} cells; correct the line")
    lines = [rows[path.name] for path in paths]
    return np.array(
        [[_number(table, line, i, cell, dialect) for i, cell in enumerate(cells, 2)] for line, cells in lines]
    )


def _number(table: Path, line: int, column: int, cell: str, dialect: Dialect) -> float:
    where = f"{table}: line {line}, column {column}"
    if (value := dialect.number(cell)) is None:
        raise EdgernnError(f"{where}: expected a number, got {cell[:40]!r}; correct the cell")
    if not abs(value) <= np.finfo(np.float32).max:
        raise EdgernnError(f"{where}: expected a finite number in the range of float32, got {cell}; replace it")
    return value


def _rows_by_file(table: Path, paths: Sequence[Path]) -> tuple[dict[str, tuple[int, list[str]]], Dialect]:
    """Read labels.csv or targets.csv, tables in which each row has the name of a file and its targets."""
    rows: dict[str, tuple[int, list[str]]] = {}
    known = {path.name for path in paths}
    content, begins = read_text(table), True
    dialect = Dialect.of(content)
    reader = csv.reader(io.StringIO(content, newline=""), delimiter=dialect.delimiter, strict=True)
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            is_first, begins = begins, begins and not any(cells)
            # a header begins with a word that is not the name of a file
            if not any(cells) or (is_first and not Path(cells[0]).suffix):
                continue
            if cells[0] not in known:
                raise EdgernnError(
                    f"{table}: line {reader.line_num}: expected the name of a file in {table.parent}, got "
                    f"{cells[0]!r}; correct the name or add the file"
                )
            if cells[0] in rows:
                raise EdgernnError(
                    f"{table}: line {reader.line_num}: expected each file once, got {cells[0]} of line "
                    f"{rows[cells[0]][0]} again; remove one of the lines"
                )
            rows[cells[0]] = reader.line_num, cells[1:]
    except csv.Error as error:
        raise EdgernnError(
            f"{table}: line {reader.line_num}: expected a row in csv format, got the error '{error}' when reading it; "
            "correct the line"
        ) from None
    if missing := sorted(known - rows.keys()):
        raise EdgernnError(
            f"{table}: expected a row for each file, got none for {missing[0]} ({len(missing)} missing); add rows"
        )
    return rows, dialect


def sorted_names(names: Iterable[str]) -> list[str]:
    """Sort names: integers by value first, then other names alphabetically."""
    return sorted(names, key=lambda name: (0, int(name), name) if name.isdecimal() else (1, 0, name))
