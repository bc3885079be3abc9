# SPDX-License-Identifier: Apache-2.0
"""Where the native op library is, and ONNX Runtime itself, with clear words where either is missing."""

import ctypes
import importlib.metadata
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from edgernn.errors import EdgernnError
from edgernn.runtime.cuda import CudaLibrary

DOMAIN = "ai.edgernn"
SCHEMA = 2
OP = "Recurrent"
# of names under which the library has the op
MOST_OPS = 16
TRAIN = "libedgernn_train"
_NAMES = ("libedgernn_ops.so", "libedgernn_ops.dylib")
CUDA = "libedgernn_cuda.so"
# of CMake
CUDA_OPTION = "EDGERNN_CUDA"


def library_path() -> str:
    """The native library, for `session_options.register_custom_ops_library(...)` of any ONNX Runtime since 1.17.

    Raises EdgernnError where it was not built.
    """
    return _found(_NAMES, "the native library libedgernn_ops", "build it with: pip install .")


def cuda_library_path() -> str:
    """The library for sessions on a GPU, to be registered in place of the other one.

    Raises EdgernnError where it was not built.
    """
    how = f"where nvcc is, build it with: pip install . -C cmake.define.{CUDA_OPTION}=ON"
    return _found((CUDA,), "the CUDA library libedgernn_cuda", how)


def _found(names: Iterable[str], what: str, how: str) -> str:
    import edgernn.runtime

    # in an editable install the Python files and the library lie in different folders of the package's path
    folders = [Path(folder) for folder in edgernn.runtime.__path__]
    for folder in folders:
        for name in names:
            if (folder / name).is_file():
                return str(folder / name)
    raise EdgernnError(f"{what} is not installed (looked in {', '.join(map(str, folders))}); {how}")


def library_missing(device: str = "cpu") -> str | None:
    """Why there is no native library for this device, cpu or cuda, or None where there is one."""
    try:
        cuda_library_path() if device == "cuda" else library_path()
    except EdgernnError as error:
        return str(error)
    return None


def train_library() -> Path:
    """Where the native training library belongs: beside the one that runs models. Raises EdgernnError without that."""
    ops = Path(library_path())
    return ops.with_name(TRAIN + ops.suffix)


def load_library() -> ctypes.CDLL | None:
    """The native library's plain C functions, or None where it was not built."""
    return None if library_missing() else ctypes.CDLL(library_path())


def instruction_set() -> str | None:
    """The instruction set that the native library chose, or None without the library."""
    library = load_library()
    if library is None:
        return None
    library.edgernn_isa.restype = ctypes.c_char_p
    return str(library.edgernn_isa().decode())


def op_names(count: int) -> list[str]:
    """Names of the op for so many different layers of a file."""
    return [OP, *(f"{OP}{number}" for number in range(2, count + 1))][:count]


def native_kernels(device: str = "cpu") -> set[str]:
    """The layers, by their `kind`, that the native library for this device has kernels for."""
    if device == "cuda":
        return set() if library_missing(device) else CudaLibrary(cuda_library_path()).kernels()
    library = load_library()
    if library is None:
        return set()
    library.edgernn_kernels.restype = ctypes.c_char_p
    return set(library.edgernn_kernels().decode().split())


def register(options: Any, path: str, threads: int = 1) -> None:
    """Register the library at `path` with an onnxruntime.SessionOptions.

    threads: as many as the session has; batches are cut for them.
    """
    ctypes.CDLL(path).edgernn_threads(threads)
    options.register_custom_ops_library(path)


def no_native(kinds: Iterable[str], device: str = "cpu") -> str | None:
    """Why a model with layers of these kinds cannot run natively on this device, or None where it can."""
    missing, name = sorted(set(kinds) - native_kernels(device)), "CUDA" if device == "cuda" else "native"
    lacks = f"the {name} library has no kernel for {', '.join(missing)}" if missing else None
    if any("*" in kind for kind in missing):
        lacks = f"{lacks} (* is any cell, run by its program)"
    return library_missing(device) or lacks


def onnxruntime() -> Any:
    """The module onnxruntime. Raises EdgernnError where it is missing or installed twice."""
    found = []
    for name in ("onnxruntime", "onnxruntime-gpu"):
        try:
            importlib.metadata.distribution(name)
            found.append(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    if len(found) == 2:
        raise EdgernnError("onnxruntime and onnxruntime-gpu are both installed and overwrite each other: remove one")
    try:
        import onnxruntime as ort
    except ImportError:
        raise EdgernnError("ONNX Runtime is not installed: pip install 'edgernn[cpu]' (or 'edgernn[gpu]')") from None
    return ort
