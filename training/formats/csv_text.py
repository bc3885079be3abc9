# SPDX-License-Identifier: Apache-2.0
"""Reader of text files and of csv tables of numbers."""

import csv
import re
from array import array
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgernn.errors import EdgernnError
from edgernn.training.formats.byte_source import LIMIT, read_all


def read_text(path: Path, limit: int = LIMIT) -> str:
    """Read a text in UTF-8, unchanged except for a removed byte order mark.

    Args:
        path: The file, plain, .gz or .xz.
        limit: Maximal unpacked size in bytes.

    Returns:
        The text.

    Raises:
        EdgernnError: The file is missing, corrupt, too large or not UTF-8.
    """
    try:
        return read_all(path, limit).decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        got = f"0x{error.object[error.start]:02x} at byte {error.start}"
        raise EdgernnError(f"{path}: expected text in UTF-8, got {got}; save it as UTF-8") from None


@dataclass(frozen=True)
class CsvTable:
    """The N rows of a csv file, as C columns of numbers and some columns of text.

    Attributes:
        path: The file.
        names: Names of the columns of numbers; None if the file has no header.
        values: Columns of numbers (N, C) float64.
        text: Columns that were read as text, as a dict from name of the column to N strings.
    """

    path: Path
    names: tuple[str, ...] | None
    values: npt.NDArray[np.float64]
    text: dict[str, list[str]]

    def column(self, name: str) -> npt.NDArray[np.float64]:
        """Return a column of numbers (N,), or raise EdgernnError if the table has none of this name."""
        if name not in (self.names or ()):
            got = ", ".join(self.names) if self.names else "no header"
            raise EdgernnError(
                f"{self.path}: expected a column {name!r}, got {got}; add it, with its name in the header"
            )
        return self.values[:, (self.names or ()).index(name)]


def read_csv(path: Path, *, text: Collection[str] = (), delimiter: str = ",", limit: int = LIMIT) -> CsvTable:
    """Read a csv file of numbers.

    If any cell of the first row is not a number, this row is the header. The words nan and inf count as numbers. An
    empty cell does not.

    Args:
        path: The file, plain, .gz or .xz.
        text: Names of columns to read as text; missing ones are ignored.
        delimiter: Separator of the cells.
        limit: Maximal unpacked size in bytes.

    Returns:
        The table.

    Raises:
        EdgernnError: The file is invalid; the message names the line and the column.
    """
    rows = _rows(path, read_text(path, limit), delimiter)
    first, header = next(rows, (1, []))
    if not header:
        raise EdgernnError(f"{path}: expected rows of numbers, got none; add some")
    width = len(header)
    names: tuple[str, ...] | None = tuple(header)
    if all(_number(cell) is not None for cell in header):
        names, rows = None, _chain(first, header, rows)
    words = {i: list[str]() for i, name in enumerate(names or ()) if name in text}
    numeric = [i for i in range(width) if i not in words]
    values = array("d")
    for line, row in rows:
        if len(row) != width:
            raise EdgernnError(
                f"{path}: line {line}: expected {width} columns as in the first line, got {len(row)}; correct the line"
            )
        for i, cells in words.items():
            cells.append(row[i])
        for i in numeric:
            value = _number(row[i])
            if value is None:
                column = f"column {i + 1}" + (f" ({names[i]})" if names else "")
                raise EdgernnError(
                    f"{path}: line {line}, {column}: expected a number, got {row[i][:40]!r}; correct the line"
                )
            values.append(value)
    if not values:
        raise EdgernnError(f"{path}: expected rows of numbers, got none after the header; add some")
    return CsvTable(
        path,
        None if names is None else tuple(names[i] for i in numeric),
        np.frombuffer(values, np.float64).reshape(-1, len(numeric)),
        {header[i]: cells for i, cells in words.items()},
    )


def _rows(path: Path, content: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Iterate over the rows of a csv file that are not empty, as pairs of a line number and the row's cells.

    `content` is the text of the file. A row may extend over several lines; its line number is that of the last one,
    counted from 1.
    """
    # split lazily, because StringIO would copy a large text to four times its memory
    lines = (line[0] for line in re.finditer(r"[^\n]*\n|[^\n]+", content))
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    try:
        for row in reader:
            if row:
                yield reader.line_num, row
    except csv.Error as error:
        raise EdgernnError(
            f"{path}: line {reader.line_num}: expected a row of a csv file, got {error}; correct the line"
        ) from None


def _chain(line: int, row: list[str], rows: Iterator[tuple[int, list[str]]]) -> Iterator[tuple[int, list[str]]]:
    yield line, row
    yield from rows


def _number(cell: str) -> float | None:
    # Python accepts 1_000, csv files do not
    if "_" in cell:
        return None
    try:
        return float(cell)
    except ValueError:
        return None
