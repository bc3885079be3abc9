# SPDX-License-Identifier: Apache-2.0
"""Reader of csv tables of numbers, the same for training and for `edgernn run`.

A header is a first row without any number. Every cell below it is a number, which may be in quotes; an empty cell or
line, `#`, or another minus sign than "-" is an error. Columns are matched by their names. A column of time is no
channel: one with the name of a time, or one that rises from row to row in all files.
"""

import csv
import re
import warnings
from array import array
from collections.abc import Collection, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgernn.errors import EdgernnError, EdgernnWarning, some
from edgernn.files import check_content

Values = npt.NDArray[np.float64]
# words of the name of a column of time, such as "Timestamp (ms)" or "seconds_elapsed"
_TIME = {"t", "time", "timestamp", "date", "datetime", "ts", "epoch", "elapsed", "clock"}
_UNITS = {"s", "sec", "secs", "second", "seconds", "ms", "millis", "milliseconds", "us", "ns", "utc", "unix", "local"}


class TimeNames:
    """Container of all names of a column of time, such as "timestamp", except those in `channels`."""

    def __init__(self, channels: Collection[str] = ()) -> None:
        self._channels = channels

    def __contains__(self, name: object) -> bool:
        # T is a temperature
        words = {word if word == "T" else word.lower() for word in re.findall(r"[^\W\d_]+", str(name))}
        return name not in self._channels and bool(words & _TIME) and words <= _TIME | _UNITS


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

    def in_order(self, names: Sequence[str], source: str) -> "CsvTable":
        """Return the table with its columns in another order; a table without a header is returned unchanged.

        Args:
            names: The names of all columns, in the new order.
            source: Where these names are from, for the error.

        Returns:
            The table.

        Raises:
            EdgernnError: The table has other names, or one of them twice.
        """
        own = self.names
        if own is None or own == tuple(names):
            return self
        if len(own) != len(names) or {*own} != {*names} or len({*names}) != len(names):
            raise EdgernnError(
                f"{self.path}: expected the columns {some(names, own)} of {source}, got {some(own, names)}; "
                "correct the header, or give a file with these columns"
            )
        order = [own.index(name) for name in names]
        return replace(self, names=tuple(names), values=self.values[:, order])

    def without(self, columns: Collection[int]) -> "CsvTable":
        """Return the table without some columns of numbers, which are counted from 0."""
        kept = [i for i in range(self.values.shape[1]) if i not in columns]
        names = None if self.names is None else tuple(self.names[i] for i in kept)
        return replace(self, names=names, values=self.values[:, kept])


def decode(path: Path, content: bytes | bytearray) -> str:
    """Decode a text in UTF-8, without a byte order mark; raise EdgernnError if `path` has other content."""
    if content:
        check_content(path, content, "a text")
    try:
        return content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        got = f"0x{error.object[error.start]:02x} at byte {error.start}"
        raise EdgernnError(f"{path}: expected text in UTF-8, got {got}; save it as UTF-8") from None


def number(cell: str) -> float | None:
    """Return the number in a cell, which may be nan or inf, or None if it has none."""
    # Python accepts 1_000 and the digits of all languages, csv files do not
    if "_" in cell or not cell.isascii():
        return None
    try:
        return float(cell)
    except ValueError:
        return None


def parse_csv(path: Path, content: str, *, text: Container[str] = (), delimiter: str = ",") -> CsvTable:
    """Parse the text of a csv file of numbers.

    A first row is the header if no cell of it is a number, or could be a damaged one: a cell with digits and without
    letters. The words nan and inf are numbers.

    Args:
        path: The file, for errors.
        content: Its text.
        text: Names of columns to read as text.
        delimiter: Separator of the cells.

    Returns:
        The table.

    Raises:
        EdgernnError: The file is invalid; the message names the line, the column and the text.
    """
    rows = _rows(path, content, delimiter)
    first, header = next(rows, (1, []))
    if not header:
        raise EdgernnError(f"{path}: expected rows of numbers, got none; add some")
    width, names = len(header), None
    if _is_header(header):
        # numpy.savetxt marks a header with #
        names = [header[0].lstrip("# "), *header[1:]]
        names = [name.strip() for name in names]
    else:
        rows = chain([(first, header)], rows)
    words = {i: list[str]() for i, name in enumerate(names or ()) if name in text}
    numeric = [i for i in range(width) if i not in words]
    values, count = array("d"), 0
    for line, row in rows:
        count += 1
        if len(row) != width:
            raise EdgernnError(
                f"{path}: line {line}: expected {width} columns as in the first line, got {len(row)}; correct the line"
            )
        for i, cells in words.items():
            cells.append(row[i])
        for i in numeric:
            value = number(row[i])
            if value is None:
                column = f"column {i + 1}" + (f" ({names[i]})" if names else "")
                hint = "" if names or line > first else ", or give it a header: a row without any number"
                remedy = "correct the line" if row[i].strip() else "fill the gap, such as with the value before it"
                raise EdgernnError(
                    f"{path}: line {line}, {column}: expected a number, got {row[i][:40]!r}; {remedy}{hint}"
                )
            values.append(value)
    if not count:
        raise EdgernnError(f"{path}: expected rows of numbers, got none after the header; add some")
    return CsvTable(
        path,
        tuple(names[i] for i in numeric) if names else None,
        np.frombuffer(values, np.float64).reshape(count, len(numeric)),
        {(names or header)[i]: cells for i, cells in words.items()},
    )


def _is_header(row: list[str]) -> bool:
    return any(cell.strip() for cell in row) and not any(number(cell) is not None or _is_damaged(cell) for cell in row)


def _is_damaged(cell: str) -> bool:
    return any(map(str.isdigit, cell)) and not any(map(str.isalpha, cell))


def _rows(path: Path, content: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Iterate over the rows of a csv file, as pairs of a line number and the row's cells.

    `content` is the text of the file. A row may extend over several lines; its line number is that of the last one,
    counted from 1. Empty lines at the end are left out.
    """
    # split lazily, because StringIO would copy a large text to four times its memory
    lines = (line[0] for line in re.finditer(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", content))
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
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


def channel_tables(
    source: Path,
    tables: Sequence[CsvTable],
    *,
    channels: Sequence[str] | None = None,
    count: int | None = None,
    find_time: bool = True,
) -> list[CsvTable]:
    """Bring the columns of all tables into one order, and leave out columns of time.

    A warning says which columns are taken as time, and whether columns without names are taken by their place.

    Args:
        source: The file or folder of the tables, for errors and warnings.
        tables: The tables, at least one, with the same number of columns. Columns with the name of a time were read as
            text (`TimeNames`).
        channels: Names of the channels that a model was trained on. Default: those of the first table with a header.
        count: Number of channels, if it is known. Rising columns are then left out only if this many are left.
        find_time: Leave out the columns that rise from row to row in all tables, except those in `channels`.

    Returns:
        The tables, without text.

    Raises:
        EdgernnError: The tables have other names than the channels or than each other, or columns of time alone.
    """
    reference = next((table for table in tables if table.names), tables[0])
    if reference.names:
        tables = [table.in_order(reference.names, str(reference.path)) for table in tables]
    columns = reference.names or [f"column {i + 1}" for i in range(reference.values.shape[1])]
    kept = channels if reference.names and channels else ()
    rising = [i for i, name in enumerate(columns) if name not in kept and all(_rises(t.values[:, i]) for t in tables)]
    count = len(channels) if channels else count
    if not find_time or count not in (None, len(columns) - len(rising)):
        rising = []
    time = list(dict.fromkeys(name for table in tables for name in table.text)) + [columns[i] for i in rising]
    if len(rising) == len(columns):
        raise EdgernnError(
            f"{source}: expected channels, got columns of time alone ({some(time)}): they have the name of a time "
            "or rise from row to row; to train on them, set time=none"
        )
    tables = [replace(table.without(rising), text={}) for table in tables]
    if reference.names and channels:
        tables = [table.in_order(channels, "the training") for table in tables]
    names = channels or next((table.names for table in tables if table.names), None)
    if time:
        taken = f"; the channels are {some(names)}" if names else ""
        text = f"{source}: taken as time, not as a channel: {some(time)}{taken}"
        warnings.warn(text, EdgernnWarning, stacklevel=2)
    if names and len(names) > 1 and (without := [table.path for table in tables if table.names is None]):
        text = (
            f"{without[0]}: no header{f' ({len(without)} of {len(tables)} files)' * (len(tables) > 1)}; its columns "
            f"are taken as {some(names)}, in this order"
        )
        warnings.warn(text, EdgernnWarning, stacklevel=2)
    return tables


def _rises(column: Values) -> bool:
    return len(column) > 1 and bool((np.diff(column) > 0).all())
