# SPDX-License-Identifier: Apache-2.0
"""Locks against two processes writing to the same file or folder."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from edgernn.errors import EdgernnError, UsageError
from edgernn.files import output_file, read_bytes

LOCK = ".lock"


@contextmanager
def hold_folder(folder: Path, seconds: float = 0.0) -> Iterator[None]:
    """Lock a folder against other processes inside the block.

    The folder is created first if it does not exist, and removed at the end if it is empty.

    Args:
        folder: The folder that a command writes to.
        seconds: Seconds to wait while another process holds the lock. With 0 an error is raised at once.

    Yields:
        None, while the lock is held.

    Raises:
        UsageError: The path is not a folder, or another process still holds the lock.
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
def hold_file(file: Path, *inputs: Path, option: str = "--out") -> Iterator[None]:
    """Lock a file inside the block that writes it.

    Args:
        file: The file.
        *inputs: Files that the block reads, which `file` must not replace.
        option: Command line option that chooses another file; the message of an error suggests it.

    Yields:
        None, while the lock is held.

    Raises:
        UsageError: `output_file` refuses the path, or another process holds the lock.
    """
    target = output_file(file, *inputs, option=option)
    target.parent.mkdir(parents=True, exist_ok=True)
    with hold(target.with_name(f".{target.name}{LOCK}"), file, option=option):
        yield


@contextmanager
def hold(lock: Path, place: Path, seconds: float = 0.0, option: str = "--out") -> Iterator[None]:
    """Create and lock a lock file, and remove it after the block.

    The lock file contains the id of this process and the name of its machine. If a process is killed, the operating
    system releases its lock.

    Args:
        lock: The lock file, in an existing folder.
        place: File or folder that the lock protects; the message of the error names it.
        seconds: Seconds to wait while another process holds the lock. With 0 an error is raised at once.
        option: Command line option that chooses another file or folder; the message of the error suggests it.

    Yields:
        None, while the lock is held.

    Raises:
        UsageError: Another process still holds the lock.
        EdgernnError: The folder takes no files.
    """
    from filelock import FileLock, Timeout

    guard = FileLock(lock, timeout=seconds)
    try:
        guard.acquire()
    except Timeout:
        if not lock.exists():
            # filelock waits for a folder that takes no files, such as one in /proc
            raise EdgernnError(f"{place}: no file can be written there; name another place with {option}") from None
        holder = read_bytes(lock, "a lock file").decode() if lock.exists() else ""
        remedy = f"wait until it ends, or name another place with {option}"
        by = f"process {holder}" if holder else "another command"
        raise UsageError(f"{place}: in use by {by}; {remedy}") from None
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(place)) from error
    try:
        lock.write_text(f"{os.getpid()} on {socket.gethostname()}", encoding="utf-8")
        yield
    finally:
        # remove before release: a process that waits for the old file sees that it is unlinked and opens a new one
        lock.unlink(missing_ok=True)
        guard.release()
