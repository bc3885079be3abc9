# SPDX-License-Identifier: Apache-2.0
"""Files that are never half there: everything is written beside its place and renamed."""

import errno
import io
import json
import os
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgernn.errors import EdgernnError

if TYPE_CHECKING:
    import numpy as np

# beside a model: some of its task's inputs x (N, T, I), and what it should answer, y
EXAMPLE = "example.npz"
# what a write fails with for want of space
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path` to write to; renamed to `path` at the end, removed on an error.

    Raises:
        OSError: Nothing can be written there; it names `path`.
    """
    with naming(path), _temporary(path) as temporary:
        yield temporary


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Inside, an OSError without a file name gets that of `path`: a failed write does not know its file."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextmanager
def _temporary(path: Path) -> Iterator[Path]:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        # mkstemp makes files that only their owner may read
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_bytes(path: Path, content: bytes) -> None:
    """Everything but pictures goes through here: Python's own writing never misses that a disk is full."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Raises EdgernnError where the file is missing or not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise EdgernnError(f"{path}: no such file") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise EdgernnError(f"{path}: not a JSON file ({error})") from None


def write_arrays(path: Path, arrays: Mapping[str, "np.ndarray[Any, Any]"]) -> None:
    """An npz file."""
    import numpy as np

    content = io.BytesIO()
    np.savez(content, **arrays)  # type: ignore[arg-type]
    write_bytes(path, content.getvalue())


def read_arrays(path: Path, names: Iterable[str]) -> dict[str, "np.ndarray[Any, Any]"]:
    """Named arrays of an npz file. Raises EdgernnError where the file or one of them is missing or cannot be read."""
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as file:
            if missing := [name for name in names if name not in file]:
                raise EdgernnError(f"{path}: expected the arrays {', '.join(names)}, missing {', '.join(missing)}")
            return {name: file[name] for name in names}
    except FileNotFoundError:
        raise EdgernnError(f"{path}: no such file") from None
    except EdgernnError:
        raise
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, KeyError, AttributeError) as error:
        raise EdgernnError(f"{path}: not an npz file that can be read ({error})") from None
