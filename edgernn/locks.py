# SPDX-License-Identifier: Apache-2.0
"""Locks that keep two processes from writing to one place."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from edgernn.errors import UsageError

LOCK = ".lock"


@contextmanager
def hold_folder(folder: Path, seconds: float = 0.0) -> Iterator[None]:
    """Keep other processes out of a folder; it is created, and removed at the end if it is empty.

    Args:
        folder: The folder that a command writes to.
        seconds: How long to wait for another process.

    Raises:
        UsageError: The path is not a folder, or another process still holds it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UsageError(f"out: {folder} is not a directory; name another one with --out") from None
    try:
        with hold(folder / LOCK, folder, seconds):
            yield
    finally:
        with suppress(OSError):
            folder.rmdir()


@contextmanager
def hold_file(file: Path) -> Iterator[None]:
    """Keep other processes from writing a file.

    Raises:
        UsageError: Another process is writing it.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with hold(file.with_name(f".{file.name}{LOCK}"), file):
        yield


@contextmanager
def hold(lock: Path, place: Path, seconds: float = 0.0, option: str = "--out") -> Iterator[None]:
    """Hold a lock file, which names this process. A process that is killed holds no lock.

    Args:
        lock: The lock file, in a folder that exists.
        place: What it protects, for the error.
        seconds: How long to wait for another process.
        option: The option that names another place, for the error.

    Raises:
        UsageError: Another process still holds it.
    """
    from filelock import FileLock, Timeout

    guard = FileLock(lock, timeout=seconds)
    try:
        guard.acquire()
    except Timeout:
        holder = lock.read_text(encoding="utf-8") if lock.exists() else ""
        todo = f"wait until it ends, or name another place with {option}"
        raise UsageError(f"{place}: in use by process {holder or 'of another command'}; {todo}") from None
    try:
        lock.write_text(f"{os.getpid()} on {socket.gethostname()}", encoding="utf-8")
        yield
    finally:
        # removed while it is held, so that whoever has opened it meanwhile sees that it is no lock any more
        lock.unlink(missing_ok=True)
        guard.release()
