# SPDX-License-Identifier: Apache-2.0
"""Reader of numeric arrays in MATLAB files of level 5 (versions 5 to 7.2).

A file is a header of 128 bytes and a sequence of elements. An element is a tag (type, number of bytes) and its data,
padded to 8 bytes. A compressed element is a zlib stream with one other element. A matrix has four elements or more:
flags, dimensions, name, numbers (column-major, in any type that can hold them), and imaginary parts.
Source: The MathWorks, "MAT-File Format".
"""

import math
import struct
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgernn.byte_source import LIMIT, ByteSource, opened, take
from edgernn.errors import EdgernnError

Array = npt.NDArray[Any]
_HEADER = 128
_VERSION = 0x0100
_INT8, _INT32, _UINT32, _MATRIX, _COMPRESSED = 1, 5, 6, 14, 15
# NumPy types of stored numbers by element type, and of arrays by class
_TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
_COMPLEX = 0x0800
_MOST_DIMENSIONS, _LONGEST_NAME = 32, 63


def read_mat(path: Path, names: Collection[str], limit: int = LIMIT) -> dict[str, Array]:
    """Read arrays of real numbers from a MATLAB file.

    Args:
        path: The file, plain, .gz or .xz.
        names: Names of the arrays.
        limit: Maximal size of an array in bytes.

    Returns:
        The arrays, as a dict from name to array.

    Raises:
        EdgernnError: The file is invalid, or an array is missing or not of real numbers.
    """
    arrays: dict[str, Array] = {}
    with opened(path) as file:
        order = _byte_order(path, take(file, _HEADER))
        while len(arrays) < len(names) and (tag := take(file, 8)):
            kind, size = _tag(path, order, tag)
            following = file.tell() + size
            element: ByteSource = file
            if kind == _COMPRESSED:
                element = _Inflated(path, file, size)
                kind, _ = _tag(path, order, take(element, 8))
            if kind == _MATRIX:
                matrix = _Matrix(path, order, element)
                if matrix.name in names:
                    arrays[matrix.name] = matrix.numbers(limit)
                    if file.tell() > following:
                        raise _corrupt(path)
                    if isinstance(element, _Inflated):
                        element.finish()
            file.seek(following)
    if missing := [name for name in names if name not in arrays]:
        got = ", ".join(arrays) or "none of them"
        raise EdgernnError(
            f"{path}: expected the arrays {', '.join(names)}, got {got}; {missing[0]} is missing, add it"
        )
    return arrays


def _byte_order(path: Path, header: bytearray) -> str:
    if len(header) < _HEADER:
        raise EdgernnError(
            f"{path}: expected a MATLAB file with a header of {_HEADER} bytes, got {len(header)} bytes; download it "
            "again"
        )
    order = {b"IM": "<", b"MI": ">"}.get(bytes(header[126:]))
    if order is None or struct.unpack(order + "H", header[124:126])[0] != _VERSION:
        got, remedy = (
            ("a newer one", "save it with the option -v7")
            if header.startswith(b"MATLAB 7.3")
            else ("another kind of file", "download it again")
        )
        raise EdgernnError(f"{path}: expected a MATLAB file of version 5 to 7.2, got {got}; {remedy}")
    return order


def _tag(path: Path, order: str, tag: bytearray) -> tuple[int, int]:
    if len(tag) < 8:
        raise _corrupt(path)
    kind, size = struct.unpack(order + "II", tag)
    return kind, size


def _corrupt(path: Path) -> EdgernnError:
    return EdgernnError(f"{path}: expected whole arrays, got a corrupt or truncated file; download it again")


class _Inflated:
    """Stream of the decompressed bytes of one element, which has `size` compressed bytes in `file`."""

    def __init__(self, path: Path, file: ByteSource, size: int) -> None:
        self._path, self._file, self._left = path, file, size
        self._unpacker = zlib.decompressobj()

    def read(self, size: int, /) -> bytes:
        while not self._unpacker.eof:
            packed = self._unpacker.unconsumed_tail
            if not packed:
                packed = self._file.read(min(self._left, 1 << 16))
                self._left -= len(packed)
            out = self._unpacker.decompress(packed, size)
            # zlib may still hold output back at the end of the input
            if out or not packed:
                return out
        return b""

    def finish(self) -> None:
        """Verify that the stream is at its end and that its checksum is right, or raise EdgernnError."""
        if take(self, 8) or not self._unpacker.eof:
            raise _corrupt(self._path)


class _Matrix:
    """An array in a MATLAB file. The constructor reads its flags, shape and name; `numbers` reads its numbers."""

    def __init__(self, path: Path, order: str, stream: ByteSource) -> None:
        self._path, self._order, self._stream = path, order, stream
        flags, _ = self._read_words(_UINT32, 2, "I")
        self._class, self._complex = flags & 0xFF, bool(flags & _COMPLEX)
        self._shape = self._read_words(_INT32, None, "i")
        self.name = self._read_element(_INT8, _LONGEST_NAME).decode("latin-1")

    def numbers(self, limit: int) -> Array:
        """Read the numbers of the array, in its shape."""
        where = f"{self._path}: {self.name}"
        if self._class not in _CLASSES or self._complex:
            raise EdgernnError(
                f"{where}: expected an array of real numbers, got one of MATLAB class number {self._class}"
                f"{' with complex numbers' if self._complex else ''}; convert it to real double"
            )
        if min(self._shape, default=0) < 1:
            raise EdgernnError(f"{where}: expected an array that is not empty, got shape {self._shape}; add data")
        kind, size, small = self._read_head()
        if kind not in _TYPES:
            raise EdgernnError(f"{where}: expected numbers, got MATLAB data of type {kind}; convert it to double")
        stored, dtype = np.dtype(self._order + _TYPES[kind]), np.dtype(_CLASSES[self._class])
        count = math.prod(self._shape)
        if size != count * stored.itemsize:
            raise EdgernnError(
                f"{where}: expected {count * stored.itemsize} bytes for the shape {self._shape} of type {stored}, got "
                f"{size} bytes; download it again"
            )
        if count * max(stored.itemsize, dtype.itemsize) > limit:
            raise EdgernnError(
                f"{where}: expected an array of at most {limit} bytes, got a larger one, {dtype} of shape "
                f"{self._shape}; split the file"
            )
        numbers = np.frombuffer(self._read_data(size, small), stored).astype(dtype, copy=False)
        return numbers.reshape(self._shape, order="F")

    def _read_words(self, kind: int, count: int | None, form: str) -> tuple[int, ...]:
        data = self._read_element(kind, 4 * (count or _MOST_DIMENSIONS))
        if len(data) % 4 or (count and len(data) != 4 * count):
            raise _corrupt(self._path)
        return struct.unpack(f"{self._order}{len(data) // 4}{form}", data)

    def _read_element(self, wanted: int, most: int) -> bytearray:
        kind, size, small = self._read_head()
        if kind != wanted or size > most:
            raise _corrupt(self._path)
        return self._read_data(size, small)

    def _read_data(self, size: int, small: bytearray) -> bytearray:
        if small:
            return small[:size]
        data = take(self._stream, size)
        if len(data) < size:
            raise _corrupt(self._path)
        take(self._stream, -size % 8)
        return data

    def _read_head(self) -> tuple[int, int, bytearray]:
        """Read the tag (header of 8 bytes) of the next data element of the MATLAB file."""
        tag = take(self._stream, 8)
        kind, size = _tag(self._path, self._order, tag)
        if kind >> 16:
            kind, size = kind & 0xFFFF, kind >> 16
            if size > 4:
                raise _corrupt(self._path)
            return kind, size, tag[4:]
        return kind, size, bytearray()
