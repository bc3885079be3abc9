# SPDX-License-Identifier: Apache-2.0
"""Reader of csv tables of numbers without dependencies, and the dialect of csv files, the same in training and runs.

A header is a first row without any number. Every cell below it is a number, which may be in quotes; an empty cell or
line, `#`, or another minus sign than "-" is an error. Columns are matched by their names. A column of time is no
channel: one with the name of a time, or one that rises from row to row (`rises`).
"""

import csv
import math
import re
import warnings
from array import array
from collections.abc import Collection, Container, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain, islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgernn.errors import EdgernnError, EdgernnWarning, some
from edgernn.files import check_content

Values = npt.NDArray[np.float64]
# number of lines from which the separator of cells is found
_SAMPLE_LINES = 50
# days of this century and of most of the last one after 1899, as in spreadsheets, and after the year 0, as in MATLAB
_DAYS = ((20_000, 75_000), (710_000, 767_000))
# smaller numbers HHMMSS, before one o'clock, may be counts of other things
_LEAST_CLOCK = 10_000
_HALF_A_DAY = 43_200


class OtherNames:
    """Container of all names of columns except `names`."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names

    def __contains__(self, name: object) -> bool:
        return name not in self._names


@dataclass(frozen=True)
class Dialect:
    """Format of a csv file: the separator of its cells, and the decimal mark of its numbers."""

    delimiter: str = ","
    decimal: str = "."

    @classmethod
    def of(cls, content: str) -> "Dialect":
        """Find the dialect of the text of a csv file.

        The separator is a tab or semicolon if that cuts the first line into several cells, and most of the next lines
        into as many; else a comma. With a tab or semicolon, the decimal mark is a comma if at least half of the numbers
        with a mark have a comma.
        """
        lines = list(islice((line for line in _lines(content) if line.strip()), _SAMPLE_LINES))
        for delimiter in "\t;":
            try:
                counts = [len(row) for row in csv.reader(lines, delimiter=delimiter)]
            except csv.Error:
                # reading the rows says what is wrong
                break
            if counts and counts[0] > 1 and 2 * counts.count(counts[0]) > len(counts):
                edge = rf"[{delimiter}\r\n\"]"
                number = rf"(?:^|{edge})\s*[+-]?\d*%s\d+(?:[eE][+-]?\d+)?\s*(?={edge}|$)"
                decimal, marks = ".", [number % ",", number % r"\."]
                if "," in content and re.search(marks[0], content):
                    decimal = ","
                    if "." in content and re.search(marks[1], content):
                        commas, points = (sum(1 for _ in re.finditer(mark, content)) for mark in marks)
                        decimal = "," if commas >= points else "."
                return cls(delimiter, decimal)
        return cls()

    def number(self, cell: str) -> float | None:
        """Return the number in a cell, which may be nan or inf, or None if it has none."""
        cell = cell.strip()
        # Python accepts 1_000 and the digits of all languages, csv files do not
        if "_" in cell or not cell.isascii() or (self.decimal == "," and "." in cell):
            return None
        try:
            return float(cell.replace(self.decimal, "."))
        except ValueError:
            return None

    def exact(self, cell: str) -> Decimal:
        """Return the number in a cell that has one, with all of its digits."""
        return Decimal(cell.strip().replace(self.decimal, "."))


COMMAS = Dialect()


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
    values: Values
    text: dict[str, list[str]]

    def column(self, name: str) -> Values:
        """Return a column of numbers (N,), or raise EdgernnError if the table has none of this name."""
        if name not in (self.names or ()):
            got = some(self.names) if self.names else "no header"
            raise EdgernnError(
                f"{self.path}: expected a column {name!r}, got {got}; add it, with its name in the header"
            )
        return self.values[:, (self.names or ()).index(name)]


def decode(path: Path, content: bytes | bytearray) -> str:
    """Decode a text in UTF-8, without a byte order mark; raise EdgernnError if `path` has other content."""
    if content:
        check_content(path, content, "a text")
    try:
        return content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        got = f"0x{error.object[error.start]:02x} at byte {error.start}"
        raise EdgernnError(f"{path}: expected text in UTF-8, got {got}; save it as UTF-8") from None


def parse_csv(
    path: Path,
    content: str,
    *,
    text: Container[str] = (),
    dialect: Dialect = COMMAS,
    gaps: bool = False,
    columns: Sequence[str] = (),
) -> CsvTable:
    """Parse the text of a csv file of numbers.

    A first row is the header if no cell of it is a number, or could be a damaged one: a cell with digits and without
    letters. The words nan and inf are numbers.

    Args:
        path: The file, for errors.
        content: Its text.
        text: Names of columns to read as text.
        dialect: Format of the file.
        gaps: Read empty cells as NaN.
        columns: Names of the columns of a file without a header, if it has as many.

    Returns:
        The table.

    Raises:
        EdgernnError: The file is invalid; the message names the line, the column and the text.
    """
    rows = csv_rows(path, content, dialect)
    first, header = next(rows, (1, []))
    if not header:
        raise EdgernnError(f"{path}: expected rows of numbers, got none; add some")
    width, names = len(header), None
    if is_header(header, dialect):
        names = header_names(header)
    else:
        rows = chain([(first, header)], rows)
        if len(columns) == width:
            names = list(columns)
            if width > 1:
                _warn(f"{path}: no header; its columns are taken as {some(names)}, in this order")
    words = {i: list[str]() for i, name in enumerate(names or ()) if name in text}
    numeric = [i for i in range(width) if i not in words]
    values, count = array("d"), 0
    for line, row in rows:
        count += 1
        check_width(path, line, row, width)
        for i, cells in words.items():
            cells.append(row[i])
        for i in numeric:
            value = math.nan if gaps and not row[i].strip() else dialect.number(row[i])
            if value is None:
                column = f"column {i + 1}" + (f" ({names[i]})" if names else "")
                may_be_header = not names and line == first
                raise no_number(f"{path}: line {line}, {column}", row[i], dialect, may_be_header=may_be_header)
            values.append(value)
    if not count:
        raise EdgernnError(f"{path}: expected rows of numbers, got none after the header; add some")
    return CsvTable(
        path,
        tuple(names[i] for i in numeric) if names else None,
        np.frombuffer(values, np.float64).reshape(count, len(numeric)),
        {(names or header)[i]: cells for i, cells in words.items()},
    )


def check_width(path: Path, line: int, row: Sequence[str], width: int) -> None:
    """Raise EdgernnError if a row of a csv file has another number of cells than the first one."""
    if len(row) != width:
        hint = ", or write decimal points if its commas are decimal marks" if width == 1 else ""
        raise EdgernnError(
            f"{path}: line {line}: expected {width} columns as in the first line, got {len(row)}; correct the line, "
            f"or remove lines before the header{hint}"
        )


def no_number(where: str, cell: str, dialect: Dialect = COMMAS, *, may_be_header: bool = False) -> EdgernnError:
    """Return the error for a cell of a column of numbers that has none; `where` is its place in the file."""
    remedy = "correct the line" if cell.strip() else "fill the gap, such as with the value before it"
    if any(map(str.isdigit, cell)):
        remedy += f", with numbers as in -1234{dialect.decimal}5"
    hint = ", or give it a header: a row without any number" if may_be_header else ""
    return EdgernnError(f"{where}: expected a number, got {cell[:40]!r}; {remedy}{hint}")


def is_header(row: Sequence[str], dialect: Dialect) -> bool:
    """True if a first row of cells has names of columns: no cell is a number, or could be a damaged one."""
    return any(cell.strip() for cell in row) and not any(
        dialect.number(cell) is not None or _is_damaged(cell) for cell in row
    )


def header_names(row: Sequence[str]) -> list[str]:
    """Return the names of columns in a header; numpy.savetxt marks one with #, and pandas names no index."""
    return [name.strip() or f"column {i}" for i, name in enumerate((row[0].lstrip("# "), *row[1:]), 1)]


def _is_damaged(cell: str) -> bool:
    return any(map(str.isdigit, cell)) and not any(map(str.isalpha, cell))


def csv_rows(path: Path, content: str, dialect: Dialect) -> Iterator[tuple[int, list[str]]]:
    """Iterate over the rows of a csv file, as pairs of a line number and the row's cells.

    `content` is the text of the file. A row may extend over several lines; its line number is that of the last one,
    counted from 1. Empty lines at the end are left out.
    """
    reader = csv.reader(_lines(content), delimiter=dialect.delimiter, strict=True)
    empty = None
    try:
        for row in reader:
            if not row:
                empty = empty or reader.line_num
            elif empty:
                raise EdgernnError(
                    f"{path}: line {empty}: expected a row of a csv file, got an empty line; remove it, and give each "
                    "sequence a file of its own"
                )
            else:
                yield reader.line_num, row
    except csv.Error as error:
        raise EdgernnError(
            f"{path}: line {reader.line_num}: expected a row of a csv file, got {error}; correct the line"
        ) from None


def _lines(content: str) -> Iterator[str]:
    # split lazily, because StringIO would copy a large text to four times its memory
    return (line[0] for line in re.finditer(r"[^\n]*\n|[^\n]+", unix_lines(content)))


def unix_lines(content: str) -> str:
    r"""Return the text of a csv file with \n in place of the line ends \r\n, \r and \r\r\n, a twice converted \n."""
    while "\r\r\n" in content:
        content = content.replace("\r\r\n", "\r\n")
    return content.replace("\r\n", "\n").replace("\r", "\n")


def channel_values(table: CsvTable, *, channels: Sequence[str] | None = None, count: int | None = None) -> Values:
    """Return the columns of the channels in their order; a warning names the other columns.

    Args:
        table: The table. Columns that are no channels may have been read as text.
        channels: Names of the channels that a model was trained on. They are taken by name if the table has a header,
            else by place.
        count: Number of channels, if it is known. Without names, rising columns are a time if this many are left.

    Returns:
        The values (N, I).

    Raises:
        EdgernnError: The table lacks a channel, has one twice, or has columns of time alone.
    """
    if table.names is not None and channels:
        others = [name for name in (*table.names, *table.text) if name not in channels]
        if wrong := [name for name in channels if table.names.count(name) != 1]:
            header = (*table.names, *table.text)
            wanted, got = some(channels, [name for name in header if name not in wrong]), some(header, channels)
            raise EdgernnError(
                f"{table.path}: expected each of the columns {wanted} of the training once, got {got}; "
                "correct the header, or give a file with these columns"
            )
        if others:
            _warn(f"{table.path}: not read: {some(others)}; the channels are {some(channels)}")
        return table.values[:, [table.names.index(name) for name in channels]]
    columns = table.names or [f"column {i + 1}" for i in range(table.values.shape[1])]
    rising = [i for i in range(len(columns)) if rises(table.values[:, i])]
    count = len(channels) if channels else count
    if count not in (None, len(columns) - len(rising)):
        rising = []
    time = [*table.text, *(columns[i] for i in rising)]
    if len(rising) == len(columns):
        raise EdgernnError(
            f"{table.path}: expected channels, got columns of time alone ({some(time)}): they have the name of a time "
            "or rise from row to row; add channels"
        )
    kept = [i for i in range(len(columns)) if i not in rising]
    names = channels or (table.names and [columns[i] for i in kept])
    if time:
        taken = f"; the channels are {some(names)}" if names else ""
        _warn(f"{table.path}: taken as time, not as a channel: {some(time)}{taken}")
    if table.names is None and channels and len(channels) > 1:
        _warn(f"{table.path}: no header; its columns are taken as {some(channels)}, in this order")
    return table.values[:, kept]


def _warn(text: str) -> None:
    warnings.warn(text, EdgernnWarning, stacklevel=3)


def rises(column: Values) -> bool:
    """True if a column (N,) of several rows rises from row to row, as a time does.

    A time may repeat: one as HHMMSS, which falls at midnight alone, and one in days with a fraction, as in spreadsheets
    and in MATLAB.
    """
    steps = np.diff(column)
    if not len(steps) or (steps > 0).all():
        return len(steps) > 0
    if not steps.any():
        return False
    if (seconds := of_the_day(column)) is not None and column.max() >= _LEAST_CLOCK:
        steps = np.diff(seconds)
        return bool(((steps >= 0) | (steps < -_HALF_A_DAY)).all())
    is_days = any(least < column.min() and column.max() < most for least, most in _DAYS) and (column % 1 != 0).any()
    return bool(is_days and (steps >= 0).all())


def of_the_day(column: Values) -> Values | None:
    """Return the seconds of the day of times HHMMSS (N,), with or without a fraction, or None if a number is none."""
    if not np.isfinite(column).all():
        return None
    hours, minutes, seconds = column // 10000, column // 100 % 100, column % 100
    if not ((hours >= 0) & (hours < 24) & (minutes < 60) & (seconds < 60)).all():
        return None
    return np.asarray(hours * 3600 + minutes * 60 + seconds)
