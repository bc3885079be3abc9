# SPDX-License-Identifier: Apache-2.0
"""Paths of the native libraries, which lie in the folder of edgernn.runtime; `runtime.library` loads them."""

from importlib.util import find_spec
from pathlib import Path

OPS, TRAIN = "libedgernn_ops", "libedgernn_train"
_SUFFIXES = (".so", ".dylib", ".dll")


def library_folders() -> list[Path]:
    """Return the folders of edgernn.runtime; in an editable install, Python files and libraries are in two folders."""
    spec = find_spec("edgernn.runtime")
    return [Path(folder) for folder in (spec and spec.submodule_search_locations) or ()]


def find_library(name: str) -> Path | None:
    """Return the path of a native library, such as `TRAIN`; None if it is not installed."""
    paths = (folder / f"{name}{suffix}" for folder in library_folders() for suffix in _SUFFIXES)
    return next((path for path in paths if path.is_file()), None)
