# SPDX-License-Identifier: Apache-2.0
"""Where data sets lie, and the idx format of MNIST."""

import gzip
import lzma
import math
import os
import struct
import zlib
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from edgernn.errors import EdgernnError, UsageError

VARIABLE = "EDGERNN_DATA"
SUFFIXES = ("", ".gz", ".xz")
_UBYTE = 8
_CHUNK = 1 << 20


def find_files(task: str, folder: str, names: list[str], data: Path | None) -> list[Path]:
    """The files of a data set, each plain, .gz or .xz: in `folder` of the user's data folder, or in that itself.

    data: the user's data folder; None is what EDGERNN_DATA says. Raises EdgernnError that says what was sought where.
    """
    how = f"give the folder that holds them with --data DIR or the variable {VARIABLE}"
    if data is None:
        if not os.environ.get(VARIABLE):
            raise EdgernnError(f"{task} needs {', '.join(names)} (plain, .gz or .xz) and no data folder is set: {how}")
        data = Path(os.environ[VARIABLE])
    if not data.is_dir():
        raise UsageError(f"data: no such folder: {data}; {how}")
    places = [data / folder, data]
    found = []
    for name in names:
        paths = [place / (name + suffix) for place in places for suffix in SUFFIXES]
        path = next((path for path in paths if path.is_file()), None)
        if path is None:
            where = " and ".join(str(place) for place in places)
            raise EdgernnError(f"{task}: no {name} (plain, .gz or .xz) in {where}: {how}")
        found.append(path)
    return found


def _open(path: Path) -> AbstractContextManager[IO[bytes] | Any]:
    if path.suffix == ".gz":
        return gzip.open(path)
    return lzma.open(path) if path.suffix == ".xz" else path.open("rb")


def _read(file: Any, size: int) -> bytes:
    # a corrupt header may claim terabytes: never ask for more than a chunk at once
    parts = []
    while size > 0 and (part := file.read(min(size, _CHUNK))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def read_idx(path: Path, shape: tuple[int | None, ...]) -> npt.NDArray[np.uint8]:
    """The unsigned bytes of an idx file, plain, .gz or .xz; None in `shape` is any size.

    Raises EdgernnError that names the file, what was expected and what came.
    """
    head = 4 + 4 * len(shape)
    try:
        with _open(path) as file:
            header = _read(file, head)
            if len(header) < head:
                raise EdgernnError(f"{path}: expected an idx header of {head} bytes, got {len(header)} bytes")
            zeros, kind, rank, *sizes = struct.unpack(f">HBB{len(shape)}I", header)
            if (zeros, kind, rank) != (0, _UBYTE, len(shape)):
                expected = f"0x0000{_UBYTE:02x}{len(shape):02x} (unsigned bytes of rank {len(shape)})"
                raise EdgernnError(f"{path}: expected the magic number {expected}, got 0x{header[:4].hex()}")
            if any(want is not None and want != got for want, got in zip(shape, sizes, strict=True)):
                wanted = ", ".join("N" if size is None else str(size) for size in shape)
                raise EdgernnError(f"{path}: expected shape ({wanted}), got {tuple(sizes)}")
            count = math.prod(sizes)
            # one byte more shows whether anything follows, and makes a compressed file check its sum
            body = _read(file, count + 1)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise EdgernnError(f"{path}: expected a whole {path.suffix} file, got a corrupt or cut one ({error})") from None
    if len(body) != count:
        got = f"{len(body)} bytes" if len(body) < count else "more"
        raise EdgernnError(f"{path}: expected {count} bytes after the header for {tuple(sizes)}, got {got}")
    return np.frombuffer(body, np.uint8).reshape(sizes)
