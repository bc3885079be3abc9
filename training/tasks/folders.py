# SPDX-License-Identifier: Apache-2.0
"""Task on a user's own data: csv files in a folder."""

import csv
import hashlib
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from edgernn.errors import EdgernnError, some
from edgernn.runtime.csv_table import CsvTable, TimeNames, channel_tables, number
from edgernn.runtime.input_check import warn_of_rounding
from edgernn.training.formats import read_csv, read_text
from edgernn.training.tasks.own import NEXT, OwnData
from edgernn.training.tasks.parts import finite, visible, warn_of_left_out

LABELS, TARGETS = "labels.csv", "targets.csv"
# subfolder of each part
_PARTS = {"train": "train", "validation": "val", "test": "test"}
CSV = ".csv"
# values of the setting `time` that are no name of a column
AUTO, NONE = "auto", "none"
_WAYS = f"{LABELS}, {TARGETS}, or a subfolder for each class"


class _Files(NamedTuple):
    """The csv files of a part (training, validation or test), with the class or the target numbers of each file.

    `tables` are labels.csv or targets.csv, if the part has one. `labels` has the name of the class of each file;
    `targets` (N, O) has O numbers for each of the N files. One of the two is None. With the setting predict=next, both
    are None.
    """

    folder: Path
    paths: list[Path]
    tables: list[Path]
    labels: list[str] | None = None
    targets: Tensor | None = None


@dataclass
class Folder(OwnData):
    """Task on a user's own csv files in a folder, one sequence per file.

    A row is a time step, a column is a channel. A first row without any number is a header. All files have the same
    columns, in any order if they have headers, and, unless `T` is set, the same number of rows. Columns of time are
    left out. The targets come from one of these, except with predict=next:

    - labels.csv, with the name of a file and the name of its class in each row;
    - targets.csv, with the name of a file and its O target numbers in each row;
    - one subfolder per class, named after it, with the files of that class.

    The data may be split into parts by subfolders train, val and test, each of the form above. No other subfolder is
    then allowed. For a missing validation or test part, the seed chooses a tenth of the training part. Classes are
    numbered in the order of their names, which config.json lists.

    Settings:

    - `T`: Read the first T rows of each file; every file must have at least T rows. Default: all rows.
    - `time`: Column of the time, which is not a channel: its name; or none if all columns are channels; or auto for
      columns with a name such as time, timestamp, t or date, and for those that rise from row to row in all files.
    """

    T: Annotated[int | None, Field(ge=1)] = None
    time: str = AUTO

    name = "csv"
    help = "Train on the csv files of your own folder, one per sequence."

    def _read(self, source: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        files = {part: self._list_files(folder) for part, folder in _parts(source).items()}
        used = [path for part in files.values() for path in (*part.paths, *part.tables)]
        self.fingerprint = _fingerprint(source, used)
        warn_of_left_out(source, set(visible(source)) - set(used), CSV)
        tables = self._tables(source, files)
        self.channels = next((table.names for part in tables.values() for table in part if table.names), self.channels)
        values = np.concatenate([table.values for table in tables["train"]])
        warn_of_rounding(str(source), values, self.channels)
        x = {part: self._sequences(files[part], part_tables) for part, part_tables in tables.items()}
        return x, {} if self.predict == NEXT else self._targets(source, files)

    def _tables(self, source: Path, files: dict[str, _Files]) -> dict[str, list[CsvTable]]:
        """Read the csv files of all parts, with the same channels in the same order and without columns of time."""
        time = TimeNames(self.channels or ()) if self.time == AUTO else () if self.time == NONE else (self.time,)
        tables = {part: [read_csv(path, text=time) for path in files[part].paths] for part in files}
        for part, members in tables.items():
            _check_same(files[part], [table.values.shape[1] for table in members], "columns", "; correct the files")
            if isinstance(time, tuple) and time and (without := [table for table in members if not table.text]):
                got = ", ".join(without[0].names or ()) or "no header"
                raise EdgernnError(
                    f"{without[0].path}: expected a column {self.time!r}, got {got}; correct the setting time or the "
                    "header"
                )
            if (width := members[0].values.shape[1]) != (wanted := tables["train"][0].values.shape[1]):
                raise EdgernnError(
                    f"{files[part].folder}: expected {wanted} columns as in {_PARTS['train']}, got {width} columns; "
                    "correct the files"
                )
        every = [table for members in tables.values() for table in members]
        arranged = iter(channel_tables(source, every, channels=self.channels, find_time=self.time == AUTO))
        return {part: [next(arranged) for _ in members] for part, members in tables.items()}

    def _list_files(self, folder: Path) -> _Files:
        tables = [name for name in (LABELS, TARGETS) if (folder / name).is_file()]
        paths = _csv_files(folder)
        classes = {sub.name: _csv_files(sub) for sub in _subfolders(folder)}
        inside = [path for class_files in classes.values() for path in class_files]
        if not paths and not inside:
            raise EdgernnError(
                f"{folder}: expected csv files, one per sequence, or subfolders with csv or wav files, got none"
                f"{_others(folder)}; add files"
            )
        if self.predict == NEXT:
            return _Files(folder, paths + inside, [folder / name for name in tables])
        ways = tables + ([f"subfolders with csv files ({some(classes)})"] if inside else [])
        if len(ways) != 1 or (inside and paths):
            got = " and ".join(ways) + (f" and csv files beside them ({paths[0].name})" if inside and paths else "")
            hint = "keep one of them" if ways else "to predict the next step without targets, set predict=next"
            raise EdgernnError(f"{folder}: expected targets in one of {_WAYS}, got {got or 'none'}; {hint}")
        if tables == [LABELS]:
            return _Files(folder, paths, [folder / LABELS], labels=_labels(folder / LABELS, paths))
        if tables == [TARGETS]:
            return _Files(folder, paths, [folder / TARGETS], targets=_numbers(folder / TARGETS, paths))
        if empty := [name for name, class_files in classes.items() if not class_files]:
            raise EdgernnError(
                f"{folder / empty[0]}: expected csv files of the class {empty[0]!r}, got none; add files"
            )
        return _Files(folder, inside, [], labels=[path.parent.name for path in inside])

    def _sequences(self, files: _Files, tables: Sequence[CsvTable]) -> Tensor:
        """Convert the tables of one part to sequences (N, T, I), or raise EdgernnError if their lengths differ."""
        rows = [len(table.values) for table in tables]
        least = min(rows)
        if self.T is None:
            hint = "; cut the recordings into files of equal length, each with the target of its own stretch"
            _check_same(files, rows, "rows", hint)
        elif least < self.T:
            short = files.paths[rows.index(least)]
            count = f"{sum(n < self.T for n in rows)} of {len(rows)} files have fewer than {self.T}"
            raise EdgernnError(f"{short}: expected at least T={self.T} rows, got {least} ({count}); lower T")
        return torch.stack([finite(str(table.path), table.values)[: self.T] for table in tables])

    def _targets(self, source: Path, files: dict[str, _Files]) -> dict[str, Tensor]:
        """Convert the targets of all parts to tensors; if they are class names, set `classes`, the sorted names.

        Args:
            source: The user's folder, for errors.
            files: Dict from part ("train", "validation" or "test") to its files and their targets.

        Returns:
            Dict from part to tensor: target numbers float32 (N, O), or indices of classes int64 (N,).

        Raises:
            EdgernnError: The parts have different kinds or numbers of targets, or only one class, or a class that is
                not one of the training's `classes`.
        """
        numbers = {part: part_files.targets for part, part_files in files.items() if part_files.targets is not None}
        if len(numbers) == len(files):
            for part, values in numbers.items():
                if values.shape[1] != numbers["train"].shape[1]:
                    wanted = f"{numbers['train'].shape[1]} numbers per file as in {_PARTS['train']}"
                    raise EdgernnError(
                        f"{files[part].folder / TARGETS}: expected {wanted}, got {values.shape[1]} numbers; "
                        "correct the file"
                    )
            return numbers
        labels = {part: part_files.labels for part, part_files in files.items() if part_files.labels is not None}
        if numbers:
            with_numbers, with_labels = next(iter(numbers)), next(iter(labels))
            kinds = f"classes in {files[with_labels].folder} and numbers in {files[with_numbers].folder}"
            raise EdgernnError(
                f"{files['train'].folder.parent}: expected the same kind of targets in all parts, got {kinds}; use "
                "classes or numbers in all"
            )
        classes = {name for names in labels.values() for name in names}
        if self.classes is None:
            self.classes = _sorted_names(classes)
        elif unknown := _sorted_names(classes.difference(self.classes)):
            raise EdgernnError(
                f"{source}: expected the classes {some(self.classes)} of the training, got {some(unknown)}; "
                "correct the labels"
            )
        if len(self.classes) == 1:
            raise EdgernnError(
                f"{files['train'].folder}: expected at least 2 classes, got only {self.classes[0]!r}; add another class"
            )
        number = {name: i for i, name in enumerate(self.classes)}
        return {part: torch.tensor([number[name] for name in names]) for part, names in labels.items()}


def _parts(source: Path) -> dict[str, Path]:
    """Find the folder of each part of the user's data, as a dict from "train", "validation" and "test" to folder.

    If `source` has a subfolder train and no csv files of its own, the parts are its subfolders train, val and test, and
    the dict has those that exist. EdgernnError is raised if it has other subfolders, too. In all other cases, the dict
    has only the training part, and its folder is `source`.
    """
    names = [sub.name for sub in _subfolders(source)]
    if _PARTS["train"] in names and not any(path.suffix.lower() == CSV for path in visible(source, "*")):
        if others := [name for name in names if name not in _PARTS.values()]:
            wanted = f"no subfolders other than {', '.join(_PARTS.values())}"
            raise EdgernnError(f"{source}: expected {wanted}, got {', '.join(others)}; rename them or move them away")
        return {part: source / name for part, name in _PARTS.items() if name in names}
    return {"train": source}


def _others(folder: Path) -> str:
    """Return a phrase for an error that names a file of another kind in a folder without csv files, or ""."""
    return next((f" but files such as {path.name}" for path in sorted(visible(folder))), "")


def _subfolders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _csv_files(folder: Path) -> list[Path]:
    """List the csv files of a folder except labels.csv and targets.csv, sorted by name."""
    paths = (path for path in visible(folder, "*") if path.suffix.lower() == CSV)
    return sorted(path for path in paths if path.name not in (LABELS, TARGETS))


def _fingerprint(source: Path, paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in sorted(paths):
        name = path.relative_to(source).as_posix()
        digest.update(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def _check_same(files: _Files, counts: list[int], unit: str, hint: str = "") -> None:
    """Raise EdgernnError if the csv files of a part differ in their number of rows or columns.

    Args:
        files: The files.
        counts: Number of rows or columns of each file.
        unit: "rows" or "columns", for the error message.
        hint: End of the error message: "; " and what the user can do.
    """
    others = [i for i, count in enumerate(counts) if count != counts[0]]
    if others:
        first, other = files.paths[0].name, files.paths[others[0]].name
        got = f"{counts[0]} in {first} and {counts[others[0]]} in {other}"
        share = f"{len(others)} of {len(counts)} files differ from {first}"
        raise EdgernnError(f"{files.folder}: expected files with equally many {unit}, got {got} ({share}){hint}")


def _labels(table: Path, paths: Sequence[Path]) -> list[str]:
    """Read labels.csv, and return the name of the class of each csv file.

    Args:
        table: Path of labels.csv.
        paths: The csv files.

    Returns:
        The name of the class of each file, in the order of `paths`.
    """
    rows = _rows_by_file(table, paths)
    for name, (line, cells) in rows.items():
        if len(cells) != 1 or not cells[0]:
            raise EdgernnError(
                f"{table}: line {line}: expected {name} and the name of a class, got {name} and {cells}; correct the "
                "line"
            )
    return [rows[path.name][1][0] for path in paths]


def _numbers(table: Path, paths: Sequence[Path]) -> Tensor:
    """Read targets.csv, and return the target numbers of each csv file.

    Args:
        table: Path of targets.csv.
        paths: The N csv files.

    Returns:
        The O target numbers of each file (N, O), in the order of `paths`.
    """
    rows = _rows_by_file(table, paths)
    width = len(rows[paths[0].name][1]) if paths else 0
    for name, (line, cells) in rows.items():
        if len(cells) != width or not width:
            wanted = f"{1 + max(1, width)} cells, the name and the numbers of {name}"
            raise EdgernnError(f"{table}: line {line}: expected {wanted}, got {1 + len(cells)} cells; correct the line")
    lines = [rows[path.name] for path in paths]
    values = np.array([[_number(table, line, i, cell) for i, cell in enumerate(cells, 2)] for line, cells in lines])
    return finite(str(table), values)


def _number(table: Path, line: int, column: int, cell: str) -> float:
    if (value := number(cell)) is None:
        where = f"{table}: line {line}, column {column}"
        raise EdgernnError(f"{where}: expected a number, got {cell[:40]!r}; correct the cell")
    return value


def _rows_by_file(table: Path, paths: Sequence[Path]) -> dict[str, tuple[int, list[str]]]:
    """Read labels.csv or targets.csv, tables in which each row has the name of a csv file and its targets.

    Args:
        table: Path of the table.
        paths: The csv files.

    Returns:
        Dict from the name of each csv file to the line number of its row and the cells after the name.

    Raises:
        EdgernnError: The table does not have exactly one row for each file.
    """
    rows: dict[str, tuple[int, list[str]]] = {}
    known = {path.name for path in paths}
    reader, begins = csv.reader(io.StringIO(read_text(table), newline=""), strict=True), True
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            is_first, begins = begins, begins and not any(cells)
            # a header begins with a word that is not the name of a file
            if not any(cells) or (is_first and not Path(cells[0]).suffix):
                continue
            if cells[0] not in known:
                raise EdgernnError(
                    f"{table}: line {reader.line_num}: expected the name of a csv file in {table.parent}, got "
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
            f"{table}: expected a row for each csv file, got none for {missing[0]} ({len(missing)} missing); add rows"
        )
    return rows


def _sorted_names(names: Iterable[str]) -> list[str]:
    """Sort names: integers by value first, then other names alphabetically."""
    return sorted(names, key=lambda name: (0, int(name), name) if name.isdecimal() else (1, 0, name))
