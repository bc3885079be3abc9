# SPDX-License-Identifier: Apache-2.0
"""Reader of text files and of csv tables of numbers, plain or compressed."""

from collections.abc import Container
from pathlib import Path

from edgernn.byte_source import LIMIT, read_all
from edgernn.runtime.csv_table import COMMAS, CsvTable, Dialect, decode, parse_csv


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


def read_csv(path: Path, *, text: Container[str] = (), dialect: Dialect = COMMAS, limit: int = LIMIT) -> CsvTable:
    """Read a csv file of numbers by the rules of `edgernn.runtime.csv_table`.

    Args:
        path: The file, plain, .gz or .xz.
        text: Names of columns to read as text; missing ones are ignored.
        dialect: Format of the file.
        limit: Maximal unpacked size in bytes.

    Returns:
        The table.

    Raises:
        EdgernnError: The file is invalid; the message names the line, the column and the text.
    """
    return parse_csv(path, read_text(path, limit), text=text, dialect=dialect)
