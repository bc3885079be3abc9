# SPDX-License-Identifier: Apache-2.0
"""Files that are never half there: everything is written beside its place and renamed."""

import fcntl
import io
import json
import os
import tempfile
import time
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgernn.errors import EdgernnError, UsageError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


# beside a model: some of its task's inputs x (N, T, I), and what it should answer, y
EXAMPLE = "example.npz"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` to write to; renamed to `path` at the end, removed on an error."""
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


@contextmanager
def locked(path: Path, seconds: float = 0.0) -> Iterator[None]:
    """Inside, no other process is inside for the same file, which is made for it and holds a number: the process's.

    A process that is killed is inside no more. seconds: how long to wait for another one. Raises UsageError if it is
    still inside then.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + seconds
    while True:
        with path.open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    waited = f" after {seconds:.0f} s" if seconds else ""
                    holder = path.read_text() or "another one"
                    raise UsageError(f"{path}: process {holder} still holds this lock{waited}") from None
                time.sleep(0.1)
                continue
            # what was removed in between is no lock any more
            if not path.exists() or not os.path.samestat(os.fstat(file.fileno()), path.stat()):
                continue
            try:
                file.truncate(0)
                file.write(str(os.getpid()))
                file.flush()
                yield
            finally:
                path.unlink(missing_ok=True)
            return


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


def write_tensors(path: Path, tensors: Mapping[str, "Tensor"], metadata: Mapping[str, str] | None = None) -> None:
    """A safetensors file."""
    from safetensors.torch import save

    write_bytes(path, save({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, dict(metadata or {})))


def read_tensors(path: Path) -> dict[str, "Tensor"]:
    """Raises EdgernnError where the file is missing, truncated or not safetensors."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors: dict[str, Tensor] = load_file(path)
        return tensors
    except FileNotFoundError:
        raise EdgernnError(f"{path}: no such file") from None
    except SafetensorError as error:
        raise EdgernnError(f"{path}: corrupt or truncated ({error})") from None


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
