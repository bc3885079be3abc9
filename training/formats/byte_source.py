# SPDX-License-Identifier: Apache-2.0
"""Bytes of a file that may be packed, never more of them than there are."""

import gzip
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from edgernn.errors import EdgernnError

# the packings that every reader takes, by the end of the file's name
SUFFIXES = ("", ".gz", ".xz")
# no data set here is larger; what unpacks to more is not one
LIMIT = 1 << 31
_CHUNK = 1 << 20
# what the unpackers of the standard library raise for bytes that are not theirs
CORRUPT = (
    EOFError,
    RuntimeError,
    lzma.LZMAError,
    struct.error,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
)


class ByteSource(Protocol):
    """What bytes can be taken from."""

    def read(self, size: int, /) -> bytes: ...


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """The unpacked bytes of a file as a stream; a corrupt packing becomes an EdgernnError wherever it is noticed."""
    with unpacking(path), _open(path) as file:
        yield file


@contextmanager
def unpacking(path: Path) -> Iterator[None]:
    """What unpackers raise for bytes that are not theirs becomes an EdgernnError that names the file."""
    try:
        yield
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            raise EdgernnError(f"{path}: no such file") from None
        # a bad gzip file is an OSError without a number; what else the system says is passed on
        if error.errno is not None:
            raise
        raise _corrupt(path, error) from None
    except CORRUPT as error:
        raise _corrupt(path, error) from None


def _open(path: Path) -> Any:
    if path.suffix == ".gz":
        return gzip.open(path)
    return lzma.open(path) if path.suffix == ".xz" else path.open("rb")


def _corrupt(path: Path, error: Exception) -> EdgernnError:
    return EdgernnError(f"{path}: expected a whole {path.suffix} file, got a corrupt or cut one ({error})")


def take(stream: ByteSource, size: int) -> bytearray:
    """The next `size` bytes, fewer where there are no more: a header that claims terabytes costs nothing."""
    taken = bytearray()
    while len(taken) < size and (part := stream.read(min(size - len(taken), _CHUNK))):
        taken += part
    return taken


def read_all(path: Path, limit: int = LIMIT) -> bytearray:
    """The unpacked content of a file of at most `limit` bytes."""
    with opened(path) as file:
        content = take(file, limit + 1)
    if len(content) > limit:
        raise EdgernnError(f"{path}: expected at most {limit} bytes, got more")
    return content
