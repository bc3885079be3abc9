# SPDX-License-Identifier: Apache-2.0
"""Reader of plain and compressed files that allocates no more memory than their content needs."""

import gzip
import lzma
import os
import struct
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from edgernn.errors import EdgernnError
from edgernn.files import check_content, check_regular

# suffixes of the compressions that every reader accepts
SUFFIXES = ("", ".gz", ".xz")
# default limit of unpacked bytes, above the size of all data sets here
LIMIT = 1 << 31
_CHUNK = 1 << 20
# errors of the standard library's unpackers for corrupt data
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
    """Interface of a readable stream of bytes, such as an open file."""

    def read(self, size: int, /) -> bytes: ...


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Open a plain, .gz or .xz file as a stream of its unpacked bytes.

    The result is a context manager. Its with statement raises EdgernnError if the file does not exist, and also if the
    body of the statement reads corrupt data.
    """
    with unpacking(path):
        check_regular(path, "a data file")
        with path.open("rb") as packed:
            check_content(path, packed.read(100) or b" ", "a data file")
        with _open(path) as file:
            yield file


@contextmanager
def unpacking(path: Path) -> Iterator[None]:
    """Convert errors of gzip, lzma, tarfile and zipfile to an EdgernnError with the file's name, as a context manager.

    A missing file becomes an EdgernnError, too. Other errors of the operating system are raised unchanged.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            raise EdgernnError(f"{path}: no such file; check the path") from None
        # a corrupt gzip file raises an OSError without errno; errors of the system have one
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
    return EdgernnError(
        f"{path}: expected a whole {path.suffix} file, got a corrupt or cut one ({error}); replace the file"
    )


def check_method(where: str | Path, info: zipfile.ZipInfo, remedy: str) -> None:
    """Raise EdgernnError if a member of a zip archive is compressed by another method than stored or deflate.

    Python unpacks a whole piece of bzip2 or LZMA data at once, so that a small file could take all memory.

    Args:
        where: Name of the archive or of its member, for the error.
        info: The member.
        remedy: Phrase that tells the user what to do, the end of the error.
    """
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise EdgernnError(
            f"{where}: expected members that are stored or deflated, got zip compression method {info.compress_type}; "
            f"{remedy}"
        )


def memory() -> int:
    """Return the bytes of memory of this machine, or a large number if the system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    # not every system tells its memory
    except (AttributeError, OSError, ValueError):
        return sys.maxsize


def size_limit(path: Path, limit: int = LIMIT) -> int:
    """Return the largest size in bytes to unpack a file to: `limit`, or the file's own size, but at most the memory."""
    return min(max(limit, path.stat().st_size), memory())


def take(stream: ByteSource, size: int) -> bytearray:
    """Read bytes from a stream in chunks.

    Memory grows with the bytes that are read, not with `size`, which may come from the header of a malicious file.

    Args:
        stream: The stream.
        size: Number of bytes to read.

    Returns:
        The next `size` bytes, or fewer if the stream ends before.
    """
    content = bytearray()
    while len(content) < size and (part := stream.read(min(size - len(content), _CHUNK))):
        content += part
    return content


def read_all(path: Path, limit: int = LIMIT) -> bytearray:
    """Read the unpacked content of a file, or raise EdgernnError if it exceeds `limit` bytes."""
    with opened(path) as file:
        content = take(file, limit + 1)
    if len(content) > limit:
        raise EdgernnError(f"{path}: expected at most {limit:,} bytes when unpacked, got more; use a smaller file")
    return content
