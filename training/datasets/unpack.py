# SPDX-License-Identifier: Apache-2.0
"""Unpack downloads. An archive with a link, or with a path that leaves the target folder, is refused."""

import gzip
import stat
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from edgernn.byte_source import LIMIT, ByteSource, check_method, take, unpacking
from edgernn.errors import EdgernnError
from edgernn.training.datasets.registry import File

_CHUNK = 1 << 20
_MOST_MEMBERS = 100_000
# limit of a single read, far above what the headers of an honest tar archive need
_LONGEST_READ = 1 << 24


def unpack(path: Path, gives: Sequence[File], folder: Path, limit: int = LIMIT) -> None:
    """Unpack the wanted files of a download.

    Args:
        path: The download. Its suffix is the packing: .gz, .tar.gz, .tgz or .zip. A file with any other suffix is
            copied.
        gives: The wanted files, see `Download.gives`.
        folder: Folder to write to.
        limit: Maximal unpacked size of all wanted files together, in bytes.

    Raises:
        EdgernnError: The download is corrupt, lacks a file, exceeds the limit, or has unsafe members.
    """
    writer = _Writer(path, limit)
    with unpacking(path):
        if path.name.endswith((".tar.gz", ".tgz")):
            _copy_wanted(_tar_members(path), gives, folder, writer)
        elif path.suffix == ".zip":
            _copy_wanted(_zip_members(path), gives, folder, writer)
        else:
            (only,) = gives
            with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
                writer.copy(file, folder / only.name)


class _Writer:
    """Writer of unpacked files that raises EdgernnError if their total size in bytes exceeds a limit."""

    def __init__(self, path: Path, limit: int) -> None:
        self.path, self.limit, self._left = path, limit, limit

    def copy(self, source: ByteSource, target: Path) -> None:
        target.parent.mkdir(exist_ok=True)
        with target.open("wb") as file:
            while chunk := source.read(_CHUNK):
                self._left -= len(chunk)
                if self._left < 0:
                    raise EdgernnError(
                        f"{self.path}: expected at most {self.limit:,} bytes unpacked, got more; do not use the archive"
                    )
                file.write(chunk)


def _copy_wanted(members: Iterator[tuple[str, Any]], gives: Sequence[File], folder: Path, writer: _Writer) -> None:
    """Copy the wanted files `gives` of an archive to a folder; raise EdgernnError if one is missing."""
    missing = {file.name for file in gives}
    for count, (member, stream) in enumerate(members):
        name = PurePosixPath(member)
        if name.is_absolute() or ".." in name.parts:
            raise EdgernnError(
                f"{writer.path}: expected paths that stay inside the target folder, got {member!r}; do not use the "
                "archive"
            )
        if count >= _MOST_MEMBERS:
            raise EdgernnError(
                f"{writer.path}: expected at most {_MOST_MEMBERS:,} files in the archive, got more; do not use the "
                "archive"
            )
        for file in gives if stream else ():
            if _matches(name, file):
                writer.copy(stream, folder / file.name / name.name if file.name.endswith("/") else folder / file.name)
                missing.discard(file.name)
    if missing:
        raise EdgernnError(
            f"{writer.path}: expected {', '.join(sorted(missing))} in the archive, got none of that name; download it "
            "again"
        )


def _matches(name: PurePosixPath, file: File) -> bool:
    if file.name.endswith("/"):
        return name.parent.name == file.name[:-1] and name.suffix == ".txt"
    return name.name == file.name


def _tar_members(path: Path) -> Iterator[tuple[str, Any]]:
    """Iterate over the members of a tar archive, as pairs of path in the archive and stream (None for a folder)."""
    with gzip.open(path) as file, _tar(_BoundedReader(path, file)) as archive:
        for member in archive:
            if not (member.isreg() or member.isdir()):
                raise EdgernnError(
                    f"{path}: expected files and folders, got a link or device: {member.name!r}; do not use the archive"
                )
            yield member.name, archive.extractfile(member)
        # read past the padding at the end of the archive, so that gzip verifies its checksum
        if len(take(file, _CHUNK)) == _CHUNK:
            raise EdgernnError(
                f"{path}: expected the file to end after the tar archive in it, got more bytes; download it again"
            )


def _tar(file: Any) -> tarfile.TarFile:
    return tarfile.open(fileobj=file, mode="r:")


def _zip_members(path: Path) -> Iterator[tuple[str, Any]]:
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if stat.S_ISLNK(info.external_attr >> 16):
                raise EdgernnError(
                    f"{path}: expected files and folders, got a link: {info.filename!r}; do not use the archive"
                )
            check_method(path, info, "unpack the archive by hand")
            yield info.filename, None if info.is_dir() else archive.open(info)


class _BoundedReader:
    """Wrapper of an open file that limits the number of bytes of one read; a longer read raises EdgernnError.

    Without the limit, a damaged header of a tar archive, which may claim any length, would allocate that much memory.
    """

    def __init__(self, path: Path, file: Any) -> None:
        self._path, self._file = path, file
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int) -> bytes:
        if size > _LONGEST_READ:
            raise EdgernnError(
                f"{self._path}: expected a whole archive, got a header that claims {size:,} bytes; download it again"
            )
        piece: bytes = self._file.read(size)
        return piece
