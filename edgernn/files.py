# SPDX-License-Identifier: Apache-2.0
"""Reading files, and writing them atomically: to a temporary file in the same folder, which is then renamed."""

import errno
import glob
import io
import json
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgernn.errors import EdgernnError, UsageError

try:
    import fcntl
# Windows removes no open file, so it needs no lock
except ImportError:
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    import numpy as np

# file beside a model with inputs x (N, T, I) of its task and the model's outputs y
EXAMPLE = "example.npz"
# the model that `edgernn export` writes to a run directory
MODEL = "model.onnx"
# settings of the training, in every run directory
CONFIG = "config.json"
# file in a run directory with the groups or recordings of a user's own data in each part
SPLIT = "split.json"
# errno values of a write to a full disk
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}
_KINDS |= {stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


def check_path(path: Path) -> None:
    """Raise EdgernnError for a path that no file can have: too long, with a null byte, or with a cycle of links."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise EdgernnError(f"{str(path)!r:.60}: expected the path of a file, got {reason}; check the path") from None


def _special_kind(path: Path) -> str | None:
    """Return what a path is that is no regular file, such as "a FIFO"; None for a regular file, also behind a link."""
    check_path(path)
    try:
        mode = path.stat().st_mode
    except NotADirectoryError as error:
        raise FileNotFoundError(*error.args) from None
    return None if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "a special file")


def output_file(path: Path, *inputs: Path, option: str = "--out") -> Path:
    """Follow the links of a path that a command writes to, and refuse to replace what is not a regular file.

    Args:
        path: The file to create or replace.
        *inputs: Files that the command reads, which it must not replace.
        option: Command line option that names `path`, for the error message.

    Returns:
        The path without links.

    Raises:
        UsageError: The path is that of an input, or of a folder, a FIFO, a socket or a device, or it is a link that
            leads out of a run directory, which may come from somebody else.
    """
    for name in (path, *inputs):
        check_path(name)
    target = Path(os.path.realpath(path))
    if path.is_symlink() and (path.parent / CONFIG).exists() and not target.is_relative_to(path.parent.resolve()):
        raise UsageError(f"{path}: expected a file in the run directory, got a link to {target}; remove the link")
    try:
        kind = _special_kind(target)
    except FileNotFoundError:
        return target
    if kind is not None:
        raise UsageError(f"{option}: expected a regular file or a new one, got {kind}, {path}; give another name")
    for source in inputs:
        if source.exists() and target.samefile(source):
            raise UsageError(f"{option}: expected a file other than the input {source}, got {path}; give another name")
    return target


def default_output(path: Path) -> Path:
    """Return the path that a command writes to if the user names none; UsageError is raised if a link stands there.

    A link beside a model of somebody else may lead anywhere.
    """
    check_path(path)
    if path.is_symlink():
        raise UsageError(
            f"{path}: expected a new or regular file or folder, got a link; choose another place with --out"
        )
    return path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Context manager that writes a file atomically: a temporary file, whose path it yields, replaces it at the end.

    A missing folder is created. On an error in the block the temporary file is removed, and an existing file `path`
    stays unchanged. The new file keeps the permissions of the existing one. If `path` is a link, its target is
    replaced. An OSError names `path`. UsageError is raised if `output_file` refuses the path.
    """
    with naming(path), _temporary(output_file(path)) as temporary:
        yield temporary


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Context manager that adds the name `path` to an OSError without a file name, such as that of a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextmanager
def _temporary(path: Path) -> Iterator[Path]:
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path)
    handle, temporary = _create(path)
    if fcntl is None:
        # Windows cannot rename a file that is open, and has no locks that would need it
        os.close(handle)
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        _copy_permissions(path, temporary)
        temporary.replace(path)
    except BaseException:
        # keep the first error, also in a folder that has become read-only
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    finally:
        if fcntl is not None:
            os.close(handle)


def _copy_permissions(path: Path, temporary: Path) -> None:
    """Give a temporary file, which only its owner may read, the owner and mode of `path`, or those of a new file."""
    try:
        status = path.stat()
    except FileNotFoundError:
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        return
    if hasattr(os, "chown"):
        # only root may give a file away
        with suppress(OSError):
            os.chown(temporary, status.st_uid, status.st_gid)
    temporary.chmod(stat.S_IMODE(status.st_mode))


def _create(path: Path) -> tuple[int, Path]:
    """Create and lock a temporary file in the folder of `path`; return its file descriptor and its path."""
    while True:
        try:
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
        except OSError as error:
            # the user knows the file, not the temporary one
            raise OSError(error.errno, error.strerror, str(path)) from error
        if fcntl is not None:
            # some file systems have no locks; there, leftovers are kept
            with suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_EX)
        # another writer may have taken it for a leftover before it was locked
        if os.fstat(handle).st_nlink:
            return handle, Path(name)
        os.close(handle)


def remove_leftovers(path: Path) -> None:
    """Remove the temporary files of processes that were killed while writing `path`; keep those of running ones."""
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.{'?' * 8}{glob.escape(path.suffix)}"):
        with suppress(OSError), leftover.open("rb") as file:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            leftover.unlink()


def check_content(path: Path, content: bytes | bytearray, expected: str) -> None:
    """Raise EdgernnError if the content of a file is empty, or is a pointer of Git LFS to the content.

    Args:
        path: The file, for the error.
        content: The content, or its first 100 bytes.
        expected: What the file should be, such as "a wav file", for the error.
    """
    if not content:
        raise EdgernnError(f"{path}: expected {expected}, got an empty file; copy or make it again")
    if content.startswith(b"version https://git-lfs.github.com/"):
        raise EdgernnError(f"{path}: expected {expected}, got a pointer of Git LFS; get the content with: git lfs pull")


def check_regular(path: Path, expected: str) -> None:
    """Refuse a path that is no regular file, such as a FIFO or /dev/zero, which a reader would read without end.

    Args:
        path: The file.
        expected: What the file should be, such as "a wav file", for the error.

    Raises:
        EdgernnError: The path is a folder, a FIFO, a socket or a device, or a link to one, or `check_path` refuses it.
        FileNotFoundError: There is no such file.
    """
    if (kind := _special_kind(path)) is not None:
        raise EdgernnError(f"{path}: expected {expected}, got {kind}; give a regular file")


def read_bytes(path: Path, expected: str) -> bytes:
    """Return the content of a file; raise EdgernnError, which names the `expected` kind, if it is no regular file."""
    check_regular(path, expected)
    return path.read_bytes()


def write_bytes(path: Path, content: bytes) -> None:
    """Write bytes to a file, atomically.

    Use this function instead of a library function that writes the file itself. Some library functions do not report a
    full disk; Python does.
    """
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Write text to a UTF-8 file, atomically."""
    # a path in the text may have bytes that are not UTF-8
    write_bytes(path, text.encode("utf-8", "replace"))


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON to a file, atomically; raise ValueError if it contains NaN or infinity."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Return the content of a JSON file; raise EdgernnError if it is missing or not JSON."""
    try:
        return json.loads(read_bytes(path, "a JSON file").decode())
    except FileNotFoundError:
        raise EdgernnError(f"{path}: no such file; check the path") from None
    except EdgernnError:
        raise
    # also text that is not UTF-8, numbers of thousands of digits, and thousands of brackets
    except (ValueError, RecursionError) as error:
        raise EdgernnError(
            f"{path}: expected a JSON file, got other or damaged text ({error}); restore or replace it"
        ) from None


def write_arrays(path: Path, arrays: Mapping[str, "np.ndarray[Any, Any]"]) -> None:
    """Write arrays, in a dict from name to array, to an npz file, atomically."""
    import numpy as np

    content = io.BytesIO()
    np.savez(content, **arrays)  # type: ignore[arg-type]
    write_bytes(path, content.getvalue())
