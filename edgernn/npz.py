# SPDX-License-Identifier: Apache-2.0
"""Reader of NumPy files: archives (npz), and single arrays (npy).

It replaces numpy.load, which allocates the memory that the header of a file claims, even if the file is corrupt.
"""

import ast
import io
import math
import re
import struct
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgernn.byte_source import CORRUPT, LIMIT, ByteSource, check_method, opened, read_all, size_limit, take
from edgernn.errors import EdgernnError

Array = npt.NDArray[Any]
_MAGIC = b"\x93NUMPY"
# numbers, booleans and fixed-width text, but no Python objects
_DTYPE = re.compile(r"[<>|=]?[biufcSU][1-9]\d{0,5}")
# struct format of the header's length, by file version
_LENGTH = {1: "<H", 2: "<I", 3: "<I"}
_LONGEST_HEADER = 10_000


def read_npz(
    path: Path, names: Collection[str] | None = None, limit: int = LIMIT, *, optional: Collection[str] = ()
) -> dict[str, Array]:
    """Read the arrays of an npz archive; arrays of Python objects are refused.

    Args:
        path: The file: .npz, .npz.gz or .npz.xz.
        names: Names of the arrays to read, all required. Default: all arrays of the file.
        limit: Maximal unpacked size in bytes, of the archive and of all arrays together. If the file on disk is already
            larger, the size of the file is the limit instead. The limit is never above the memory of the machine.
        optional: Names of further arrays, which are read if the file has them.

    Returns:
        The arrays, as a dict from name to array.

    Raises:
        EdgernnError: The file is invalid, or an array is missing.
    """
    with opened(path) as file:
        limit = size_limit(path, limit)
        # a zip archive is read from its end, so that an outer compression must be unpacked first
        content = file if path.suffix not in (".gz", ".xz") else io.BytesIO(read_all(path, limit))
        try:
            archive = zipfile.ZipFile(content)
        except (zipfile.BadZipFile, ValueError, OSError):
            content.seek(0)
            is_npy = content.read(len(_MAGIC)) == _MAGIC
            got = "one array without a name" if is_npy else "a truncated one or another format"
            raise EdgernnError(
                f"{path}: expected an npz archive, got {got}; write it with numpy.savez(PATH, NAME=array)"
            ) from None
        with archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            if missing := [name for name in names or () if name not in members]:
                got = ", ".join(members) or "none"
                raise EdgernnError(
                    f"{path}: expected the arrays {', '.join(names or ())}, got {got}; {missing[0]} is missing, add it"
                )
            arrays = {}
            for name in [*names, *(name for name in optional if name in members)] if names is not None else members:
                arrays[name] = _member(f"{path}: {name}", archive, members[name], limit)
                limit -= arrays[name].nbytes
            return arrays


def _member(where: str, archive: zipfile.ZipFile, info: zipfile.ZipInfo, limit: int) -> Array:
    check_method(where, info, "write the file with numpy.savez")
    try:
        with archive.open(info) as stream:
            return _read_npy(where, stream, info.file_size, limit)
    except EdgernnError:
        raise
    except (ValueError, OverflowError, OSError, *CORRUPT) as error:
        raise EdgernnError(
            f"{where}: expected an npz archive, got a corrupt or truncated one ({error}); replace it"
        ) from None


def read_npy(path: Path) -> Array:
    """Read the array of an npy file, or raise EdgernnError if the file is invalid or has Python objects."""
    with opened(path) as file:
        return _read_npy(str(path), file, path.stat().st_size, size_limit(path))


def _read_npy(where: str, stream: ByteSource, member_size: int, limit: int) -> Array:
    """Read an array of at most `limit` bytes from a stream of `member_size` bytes."""
    head = take(stream, 8)
    if len(head) < 8 or head[:6] != _MAGIC or head[6] not in _LENGTH:
        raise EdgernnError(
            f"{where}: expected an array in the npy format, got another format; write the file with NumPy"
        )
    form = _LENGTH[head[6]]
    (length,) = struct.unpack(form, take(stream, struct.calcsize(form)))
    if length > _LONGEST_HEADER:
        raise EdgernnError(
            f"{where}: expected an npy header of at most {_LONGEST_HEADER} bytes, got {length}; save the array anew"
        )
    header = take(stream, length)
    dtype, shape, order = _header(where, bytes(header))
    size, stored = dtype.itemsize * math.prod(shape), member_size - len(head) - struct.calcsize(form) - length
    if size > limit:
        raise EdgernnError(
            f"{where}: expected at most {limit} bytes, got {size} bytes ({dtype}, shape {shape}); split the file"
        )
    if size == stored:
        # one more byte makes the archive verify its checksum
        body = take(stream, size + 1)
        stored = len(body)
    if size != stored:
        raise EdgernnError(
            f"{where}: expected {size} bytes for {dtype} {shape}, got {stored} bytes; write the file with NumPy"
        )
    try:
        return np.ndarray(shape, dtype, body, order=order)
    except ValueError as error:  # NumPy limits the axes of all arrays, also of those without elements
        raise EdgernnError(
            f"{where}: expected an array that NumPy can hold, got shape {shape!s:.100} ({error}); "
            "write the file with NumPy"
        ) from None


def _header(where: str, header: bytes) -> tuple[np.dtype[Any], tuple[int, ...], Any]:
    try:
        fields = ast.literal_eval(header.decode("utf-8").strip())
        descr, shape, fortran = fields["descr"], fields["shape"], fields["fortran_order"]
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError):
        raise EdgernnError(
            f"{where}: expected an array in the npy format, got a corrupt header; write the file with NumPy"
        ) from None
    if not isinstance(descr, str) or not _DTYPE.fullmatch(descr):
        got = "arrays of Python objects, which are never read" if "O" in str(descr) else f"{descr!r}"
        raise EdgernnError(f"{where}: expected an array of numbers, got {got}; convert it with array.astype(float)")
    sizes = isinstance(shape, tuple) and all(type(size) is int and size >= 0 for size in shape)
    if not sizes or not isinstance(fortran, bool):
        raise EdgernnError(
            f"{where}: expected a tuple of sizes as shape and a bool as fortran_order in the npy header, got "
            f"{shape!r} and {fortran!r}; write the file with NumPy"
        )
    try:
        return np.dtype(descr), shape, "F" if fortran else "C"
    except TypeError:
        raise EdgernnError(
            f"{where}: expected an array of numbers, got {descr!r} as its dtype; convert it "
            "to a numeric dtype, and write the file again"
        ) from None
