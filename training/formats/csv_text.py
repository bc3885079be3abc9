# SPDX-License-Identifier: Apache-2.0
"""Reader of text files, and of tables of numbers in csv or between spaces, plain or compressed."""

import contextlib
import io
from collections.abc import Container, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgernn.byte_source import LIMIT, read_all
from edgernn.errors import EdgernnError
from edgernn.runtime.csv_table import CsvTable, decode, parse_csv

# limit in bytes of a text of numbers between spaces
_LARGEST = 1 << 26


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
    return decode(path, read_all(path, limit))


def read_csv(path: Path, *, text: Container[str] = ()) -> CsvTable:
    """Read a csv file of numbers by the rules of `edgernn.runtime.csv_table`.

    Args:
        path: The file, plain, .gz or .xz.
        text: Names of columns to read as text; missing ones are ignored.

    Returns:
        The table.

    Raises:
        EdgernnError: The file is invalid; the message names the line, the column and the text.
    """
    return parse_csv(path, read_text(path), text=text)


def read_numbers(path: Path, columns: int, *, whole: bool = False) -> npt.NDArray[np.float64]:
    """Read a text of numbers, separated by spaces.

    Args:
        path: The file, plain, .gz or .xz.
        columns: Number of numbers C in each line.
        whole: True for whole numbers alone.

    Returns:
        The numbers (lines, C).

    Raises:
        EdgernnError: A line has other text, another count of numbers, or one of 2³¹ or more; or there are no lines.
    """
    text = read_text(path, _LARGEST)
    lines = text.splitlines()
    if not lines:
        raise EdgernnError(f"{path}: expected lines of numbers, got none; get the file again")
    with contextlib.suppress(ValueError):
        values = np.loadtxt(io.StringIO(text), np.float64, comments=None, ndmin=2)
        in_range = (np.abs(values) < 2**31).all() and not (whole and (values % 1).any())
        if values.shape == (len(lines), columns) and in_range:
            return values
    line = next((i for i, words in enumerate(lines) if not _is_row(words.split(), columns, whole)), len(lines) - 1)
    kind = "whole numbers" if whole else "numbers"
    raise EdgernnError(
        f"{path}: line {line + 1}: expected {kind} in {columns} columns, got {lines[line][:40]!r}; get the file again"
    )


def _is_row(row: Sequence[str], columns: int, whole: bool) -> bool:
    try:
        values = [float(word) for word in row if "_" not in word]
    except ValueError:
        return False
    # NaN compares as false
    in_range = all(abs(value) < 2**31 and not (whole and value % 1) for value in values)
    return len(values) == len(row) == columns and in_range
