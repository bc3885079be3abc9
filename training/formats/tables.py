# SPDX-License-Identifier: Apache-2.0
"""Reader of a user's own tables, csv files in any usual dialect and parquet files, by polars."""

import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from edgernn.byte_source import memory
from edgernn.errors import EdgernnError, some
from edgernn.files import check_regular
from edgernn.runtime.csv_table import Dialect, check_width, csv_rows, header_names, is_header, no_number, unix_lines
from edgernn.runtime.timeline import seconds_of, with_dates
from edgernn.training.formats.csv_text import read_text

CSV, PARQUET = ".csv", ".parquet"
Values = npt.NDArray[np.float64]
# tables may have one in so many bytes of the memory: reading took 7.3 times 245 MB of csv, as cells are text at first
_MEMORY_SHARE = 10
# a number with a decimal mark
_MARKED = r"^(\s*[+-]?\d*)%s(\d+(?:[eE][+-]?\d+)?\s*)$"
_COMMA, _POINT = _MARKED % ",", _MARKED % r"\."
# a number with another minus sign, marks between thousands, a unit, or as 0x1f: no date, version or id such as 12ab
_WRITTEN_NUMBER = (
    r"^[+\-\u2212\u2013]?\s*(?:0[xX][0-9a-fA-F]+|"
    r"\d{1,3}(?:[.,'’\s]\d{3})+(?:[.,]\d+)?|\d*[.,]\d+|\d+[.,]?)(?:[eEdD][+-]?\d+)?"
    r"(|\s*[^\d\s.,:;_/\-][^\d:_]*\d?)$"
)
# so many numbers with three digits after the mark are hardly decimals
_MARKS = 20
# polars aborts the process that reads some damaged parquet files
_CONVERT = """
import json, sys, polars
paths, folder = json.load(sys.stdin)
for i, path in enumerate(paths):
    polars.read_parquet(path).write_ipc(f"{folder}/{i}")
    print(i, flush=True)
"""


@dataclass(frozen=True)
class Table:
    """The N rows of one or more files with the same columns.

    Attributes:
        paths: The files.
        begins: Index of the first row of each file, and then N.
        frame: The rows. Cells of csv files are text, and None if they are empty.
        has_names: False if no file has a header; the columns are then called "column 1" and so on.
        without_names: Files without a header.
        decimal_commas: True if numbers have decimal commas, in all files.
    """

    paths: tuple[Path, ...]
    begins: tuple[int, ...]
    frame: pl.DataFrame
    has_names: bool = True
    without_names: tuple[Path, ...] = ()
    decimal_commas: bool = False

    @property
    def names(self) -> list[str]:
        return self.frame.columns

    @property
    def dialect(self) -> Dialect:
        """Format of the numbers in cells of text."""
        return Dialect(decimal="," if self.decimal_commas else ".")

    def cells(self, name: str) -> list[str]:
        """Return the cells of a column as they are in the file, None if they are empty."""
        return self.frame[name].cast(pl.String).to_list()

    def _cast(self, column: pl.Series) -> pl.Series:
        if column.dtype == pl.String and self.decimal_commas:
            column = pl.select(
                pl.when(~column.str.contains(".", literal=True)).then(column.str.replace(",", ".", literal=True))
            ).to_series()
        return column.cast(pl.Float64, strict=False)

    def is_text(self, name: str) -> bool:
        """True if less than half of the filled cells of a column are numbers; an empty column is no text."""
        column = self.frame[name]
        if column.dtype.is_numeric() or column.dtype == pl.Boolean:
            return False
        filled = column.drop_nulls()
        return len(filled) > 0 and (column.dtype != pl.String or 2 * self._cast(filled).count() < len(filled))

    def written_number(self, name: str) -> int | None:
        """Return the row of the first cell of a column of text that has a number in a form that is not read.

        None if less than half of the filled cells have numbers with the same unit, or all have none. Such forms are
        other minus signs, marks between thousands, another decimal mark, and units.
        """
        column = self.frame[name]
        if column.dtype != pl.String:
            return None
        units = column.str.extract(_WRITTEN_NUMBER, 1).str.strip_chars()
        counts = units.drop_nulls().value_counts(sort=True)
        if not len(counts) or 2 * counts["count"][0] < len(column.drop_nulls()):
            return None
        wrong = (units == counts[units.name][0]) & self._cast(column).is_null()
        return int(wrong.arg_max() or 0) if wrong.any() else None

    def is_true_or_false(self, name: str) -> bool:
        """True if all filled cells of a column of text are true or false."""
        column = self.frame[name].drop_nulls()
        words = column.str.to_lowercase().is_in(["true", "false"]) if column.dtype == pl.String else column.is_null()
        return len(column) > 0 and bool(words.all())

    def is_empty(self, name: str) -> bool:
        """True if a column has no filled cell, such as the one after a comma at the end of each line."""
        return self.frame[name].null_count() == len(self.frame)

    def text(self, name: str) -> pl.Series:
        """Return a column as text (N,), with None in place of empty cells, and "1" for 1.0."""
        column = self.frame[name].cast(pl.String)
        if self.decimal_commas:
            column = column.str.replace(_COMMA, "$1.$2")
        # pandas writes whole numbers with gaps as 1.0
        return column.str.replace(r"^(-?\d+)\.0+$", "$1")

    def numbers(self, name: str, *, gaps: bool = False) -> Values:
        """Return a column of numbers (N,), or raise EdgernnError for a cell that is none in the range of float32.

        With `gaps`, an empty cell is a missing value, NaN, as is a NaN.
        """
        column = self.frame[name]
        values = self._cast(column)
        wrong = values.is_null() & (column.is_not_null() | (not gaps))
        if wrong.any():
            row = int(wrong.arg_max() or 0)
            cell = column[row]
            may_be_header = row in self.begins and self.paths[self.begins.index(row)] in self.without_names
            text = "" if cell is None else str(cell)
            error = no_number(self.place(row, name), text, self.dialect, may_be_header=may_be_header)
            raise error if cell is not None else EdgernnError(f"{error}, or set imputer=gru-d, which fills gaps")
        numbers = values.fill_null(math.nan).to_numpy()
        finite = np.abs(numbers) <= np.finfo(np.float32).max
        if not (finite := finite | (gaps & np.isnan(numbers))).all():
            row = int(finite.argmin())
            wanted = "a finite number in the range of float32"
            raise EdgernnError(f"{self.place(row, name)}: expected {wanted}, got {numbers[row]}; replace it")
        return numbers

    def seconds(self, name: str, *, warn: bool = False) -> Values | None:
        """Return a column of times (N,) in seconds after its first row, by `seconds_of`, or None if it has others."""
        column = self.frame[name]
        if column.null_count():
            return None
        if column.dtype.is_temporal():
            if column.dtype == pl.Date:
                column = column.cast(pl.Datetime("us"))
            ticks = column.to_physical().to_numpy()
            per_second = {"ms": 1e3, "us": 1e6, "ns": 1e9}[getattr(column.dtype, "time_unit", "ns")]
            return np.asarray((ticks - ticks[0]) / per_second, np.float64)
        return seconds_of(name, self.cells(name), self.dialect, warn=warn)

    def with_dates(self, dates: str, times: str) -> "Table":
        """Return the table with the cells of the column `dates` before those of the column `times`."""
        joined = with_dates(self.cells(dates), self.cells(times))
        return replace(self, frame=self.frame.with_columns(pl.Series(times, joined, pl.String)))

    def may_mark_thousands(self, name: str) -> bool:
        """True if a column has whole numbers up to 999, and at least 20 others as 1.234, all with three digits."""
        column = self.frame[name].drop_nulls()
        if column.dtype != pl.String:
            return False
        marked = column.str.contains(rf"^[+-]?[1-9]\d{{0,2}}\{self.dialect.decimal}\d{{3}}$")
        whole = column.str.contains(r"^[+-]?\d{1,3}$")
        return marked.sum() >= _MARKS and bool(whole.any() and (marked | whole).all())

    def place(self, row: int, name: str | None = None) -> str:
        """Return the place of a row for an error: its file and line, and the column `name`."""
        file = int(np.searchsorted(self.begins, row, "right")) - 1
        path, index, names = self.paths[file], row - self.begins[file], self.names
        where = f"row {index + 1}"
        if path.suffix.lower() != PARQUET:
            content = read_text(path, memory())
            rows = csv_rows(path, content, Dialect.of(content))
            if path not in self.without_names:
                # other files may have the columns in another order
                names = header_names(next(rows)[1])
            where = f"line {next(islice(rows, index, None))[0]}"
        if name is None:
            return f"{path}: {where}"
        column = f"column {names.index(name) + 1}"
        return f"{path}: {where}, " + (column if name == column else f"{column} ({name})")


def read_tables(source: Path, paths: Sequence[Path]) -> Table:
    """Read csv or parquet files with the same columns, in any order, and join their rows.

    Args:
        source: The user's file or folder, for errors.
        paths: The files, at least one, all csv or all parquet.

    Returns:
        The table.

    Raises:
        EdgernnError: A file is missing, damaged or empty, the files are too large for the memory, or have other columns
            than each other.
    """
    for path in paths:
        check_regular(path, "a table")
    size, most = sum(path.stat().st_size for path in paths), memory() // _MEMORY_SHARE
    if size > most:
        raise EdgernnError(
            f"{source}: expected at most {most:,} bytes of tables, 1/{_MEMORY_SHARE} of this machine's memory, got "
            f"{size:,}; leave out columns, or split the data"
        )
    if len(suffixes := {path.suffix.lower() for path in paths}) > 1:
        raise EdgernnError(
            f"{source}: expected tables of one format, got {' and '.join(sorted(suffixes))}; convert some"
        )
    tables = _read_parquet(paths) if suffixes == {PARQUET} else [_read_csv(path) for path in paths]
    first = next((table for table in tables if table.has_names), tables[0])
    _check_widths(source, paths, [table.frame.width for table in tables])
    commas = any(table.decimal_commas for table in tables)
    cell = pl.col(pl.String)
    # 1,234 is no number in a file with points, and stays none
    in_points = (
        pl.when(cell.str.contains(_COMMA))
        .then(cell.str.replace(_COMMA, "$1.$2"))
        .otherwise(cell.str.replace(_POINT, "$1,$2"))
    )
    frames = [
        _in_order(table, first).with_columns(() if table.decimal_commas or not commas else in_points)
        for table in tables
    ]
    try:
        frame = pl.concat(frames)
    except pl.exceptions.PolarsError as error:
        raise EdgernnError(
            f"{source}: expected tables with equal types of columns, got: {error}; convert some"
        ) from None
    without = tuple(table.paths[0] for table in tables if not table.has_names)
    begins = np.cumsum([0, *(len(part) for part in frames)]).tolist()
    return Table(tuple(paths), tuple(begins), frame, first.has_names, without, commas)


def _check_widths(source: Path, paths: Sequence[Path], widths: Sequence[int]) -> None:
    if others := [i for i, width in enumerate(widths) if width != widths[0]]:
        first, other = (path.relative_to(source).as_posix() for path in (paths[0], paths[others[0]]))
        got = f"{widths[0]} in {first} and {widths[others[0]]} in {other}"
        count = f"{len(others)} of {len(paths)} files differ from {first}"
        raise EdgernnError(
            f"{source}: expected files with equally many columns, got {got} ({count}); correct the files"
        )


def _in_order(table: Table, first: Table) -> pl.DataFrame:
    if not table.has_names:
        return table.frame.rename(dict(zip(table.names, first.names, strict=True)))
    if {*table.names} != {*first.names}:
        wanted = f"the columns {some(first.names, table.names)} of {first.paths[0]}"
        got = some(table.names, first.names)
        raise EdgernnError(f"{table.paths[0]}: expected {wanted}, got {got}; correct the header")
    return table.frame.select(first.names)


def _read_parquet(paths: Sequence[Path]) -> list[Table]:
    tables = []
    with tempfile.TemporaryDirectory() as folder:
        words = json.dumps([[str(path.resolve()) for path in paths], folder])
        process = subprocess.run([sys.executable, "-c", _CONVERT], input=words, capture_output=True, text=True)
        for i, path in enumerate(paths):
            if i >= len(process.stdout.split()):
                raise EdgernnError(f"{path}: expected a parquet file, got a damaged or another one; write it again")
            frame = pl.read_ipc((Path(folder) / str(i)).read_bytes())
            if not len(frame):
                raise EdgernnError(f"{path}: expected rows, got none; add some")
            tables.append(Table((path,), (0, len(frame)), _in_plain_types(path, frame)))
    return tables


def _in_plain_types(path: Path, frame: pl.DataFrame) -> pl.DataFrame:
    """Convert columns to types that polars casts to text and to numbers; durations become times after 1970."""
    for name, kind in frame.schema.items():
        if kind.is_nested() or kind == pl.Binary:
            raise EdgernnError(
                f"{path}: column {name}: expected numbers, text or times, got {kind}; store each value in a column of "
                "its own"
            )
    durations = [
        pl.col(name).cast(pl.Int64).cast(pl.Datetime(kind.time_unit))
        for name, kind in frame.schema.items()
        if isinstance(kind, pl.Duration)
    ]
    return frame.with_columns(pl.col(pl.Categorical, pl.Enum).cast(pl.String), *durations)


def _read_csv(path: Path) -> Table:
    # polars takes an empty line at the end for a row
    content = unix_lines(read_text(path, memory())).rstrip("\n")
    dialect = Dialect.of(content)
    _, header = next(csv_rows(path, content, dialect), (1, []))
    if not header:
        raise EdgernnError(f"{path}: expected rows of numbers, got none; add some")
    has_names = is_header(header, dialect)
    names = header_names(header) if has_names else [f"column {i + 1}" for i in range(len(header))]
    if twice := [name for name in names if names.count(name) > 1]:
        raise EdgernnError(f"{path}: expected different names of columns, got {twice[0]!r} twice; rename one")
    read = partial(pl.read_csv, has_header=False, separator=dialect.delimiter, infer_schema=False)
    try:
        frame = read(content.encode())
    except pl.exceptions.PolarsError as error:
        _check_rows(path, content, dialect, len(names))
        raise EdgernnError(
            f"{path}: expected a csv file, got the error '{error}' when reading it; correct it"
        ) from None
    if frame.width != len(names) or frame.to_series(-1).null_count():
        # polars takes a short row for one with empty cells
        _check_rows(path, content, dialect, len(names))
    frame.columns = names
    frame = frame.slice(int(has_names))
    if not len(frame):
        raise EdgernnError(f"{path}: expected rows of numbers, got none after the header; add some")
    blank = pl.all().str.strip_chars()
    frame = frame.with_columns(pl.when(blank != "").then(blank))
    without = () if has_names else (path,)
    return Table((path,), (0, len(frame)), frame, has_names, without, dialect.decimal == ",")


def _check_rows(path: Path, content: str, dialect: Dialect, width: int) -> None:
    """Raise EdgernnError for the first row that is damaged or has another number of cells."""
    for line, row in csv_rows(path, content, dialect):
        check_width(path, line, row, width)
