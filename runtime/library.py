# SPDX-License-Identifier: Apache-2.0
"""Lookup of the native libraries and of ONNX Runtime, with errors that name the remedy if one is missing."""

import ctypes
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from edgernn.errors import EdgernnError
from edgernn.libraries import OPS, TRAIN, find_library, library_folders
from edgernn.runtime.cuda import CudaLibrary

DOMAIN = "ai.edgernn"
# in place of OP in the names of functions for which the native library has no kernel
PORTABLE = "Portable"
# version of the metadata and of the op's inputs and attributes in exported files
SCHEMA = 2
OP = "Recurrent"
# number of names under which the library registers the op
MOST_OPS = 16
_CUDA = "libedgernn_cuda"
CUDA_FILE = f"{_CUDA}.so"
# CMake option
CUDA_OPTION = "EDGERNN_CUDA"


def library_path() -> str:
    """Find edgernn's native library, the C++ custom ops that ONNX Runtime calls to run recurrent layers on a CPU.

    Returns:
        The library's path, for `session_options.register_custom_ops_library(path)` of ONNX Runtime 1.17 or newer.

    Raises:
        EdgernnError: The library is not installed, because it was not built.
    """
    return _find(OPS, "the native library libedgernn_ops", "build it with: pip install .")


def cuda_library_path() -> str:
    """Return the path of edgernn's CUDA library, for `session_options.register_custom_ops_library(path)`.

    EdgernnError is raised if the library is not installed, because it was not built.
    """
    remedy = f"on a machine with nvcc, build it with: pip install . -C cmake.define.{CUDA_OPTION}=ON"
    return _find(_CUDA, "the CUDA library libedgernn_cuda", remedy)


def _find(name: str, title: str, remedy: str) -> str:
    if (path := find_library(name)) is not None:
        return str(path)
    folders = ", ".join(map(str, library_folders()))
    raise EdgernnError(f"{title} is not installed (searched {folders}); {remedy}")


def library_missing(device: str = "cpu") -> str | None:
    """Return None if the library of custom ops for a device is installed, or else the error message with the remedy.

    The device is "cpu" (native library) or "cuda" (CUDA library).
    """
    try:
        cuda_library_path() if device == "cuda" else library_path()
    except EdgernnError as error:
        return str(error)
    return None


def train_library() -> Path:
    """Return the path that the library of training kernels has beside the native library; the file may be missing."""
    ops = Path(library_path())
    return ops.with_name(TRAIN + ops.suffix)


def load_library() -> ctypes.CDLL | None:
    """Load the native library with ctypes, to call its C functions; return None if the library is not installed."""
    return None if library_missing() else ctypes.CDLL(library_path())


def instruction_set() -> str | None:
    """Return the name of the CPU instruction set that the native library selected.

    None without the library, and if the processor has no instruction set of the library, or not the one that the
    environment variable EDGERNN_ISA names.
    """
    library = load_library()
    if library is None:
        return None
    library.edgernn_isa.restype = ctypes.c_char_p
    name: bytes | None = library.edgernn_isa()
    return None if name is None else name.decode()


def op_names(count: int) -> list[str]:
    """Return the first `count` of the op types Recurrent, Recurrent2, Recurrent3 and so on of edgernn's custom ops.

    An exported file uses one op type for each kind of layer that it has (cell, update rule and options).
    """
    return [OP, *(f"{OP}{number}" for number in range(2, count + 1))][:count]


def native_kernels(device: str = "cpu") -> set[str]:
    """Return the names of the kernels in the library for a device, "cpu" or "cuda"; an empty set without the library.

    The name of a kernel consists of a cell and an update rule, such as gru+selective.
    """
    if device == "cuda":
        return set() if library_missing(device) else CudaLibrary(cuda_library_path()).kernels()
    library = load_library()
    if library is None:
        return set()
    library.edgernn_kernels.restype = ctypes.c_char_p
    return set(library.edgernn_kernels().decode().split())


def register(options: Any, path: str, threads: int = 1) -> None:
    """Register a library of custom ops in the options of an ONNX Runtime session.

    Args:
        options: The onnxruntime.SessionOptions, which is changed.
        path: Path of the native library or the CUDA library.
        threads: Number of threads of the session; the CPU kernels split a batch among them.
    """
    ctypes.CDLL(path).edgernn_threads(threads)
    options.register_custom_ops_library(path)


def no_native(kinds: Iterable[str], device: str = "cpu") -> str | None:
    """Return why a model cannot run in the library for a device: no such library, or no such kernel. None if it can.

    Args:
        kinds: Names of the kernels that the model needs, such as gru+selective.
        device: "cpu" or "cuda".

    Returns:
        The reason as text, or None.
    """
    missing, name = sorted(set(kinds) - native_kernels(device)), "CUDA" if device == "cuda" else "native"
    lacks = f"the {name} library has no kernel for {', '.join(missing)}" if missing else None
    if any("*" in kind for kind in missing):
        lacks = f"{lacks} (* stands for a user's own cell)"
    return library_missing(device) or _unsupported(device) or lacks


def _unsupported(device: str) -> str | None:
    """Return why the installed native library has no kernels for this processor, or None if it has some."""
    if device == "cuda" or instruction_set() is not None:
        return None
    if name := os.environ.get("EDGERNN_ISA"):
        return f"EDGERNN_ISA: expected an instruction set that this processor has, got {name!r}; unset it"
    return "the native library has no kernels for this processor; run the model with backend='portable'"


def onnxruntime() -> Any:
    """Import onnxruntime, without its telemetry unless ORT_DISABLE_TELEMETRY is set; EdgernnError if that fails."""
    # at its import, onnxruntime writes a device id to the home folder and looks up its maker's host
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import onnxruntime as ort
    except ImportError as error:
        if find_spec("onnxruntime") is None:
            remedy = "ONNX Runtime is not installed: pip install 'onnxruntime>=1.19' (or onnxruntime-gpu)"
        else:
            # onnxruntime and onnxruntime-gpu overwrite files of each other
            remedy = (
                f"ONNX Runtime cannot be imported: {error}; pip uninstall onnxruntime onnxruntime-gpu, and then "
                "pip install 'onnxruntime>=1.19' or 'onnxruntime-gpu>=1.19'"
            )
        raise EdgernnError(remedy) from None
    return ort


def run_interruptibly(session: Any, names: list[str], feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Run a session of ONNX Runtime once, so that Ctrl-C stops it: a loop in another tool's file may never end.

    Args:
        session: The onnxruntime.InferenceSession.
        names: Names of its outputs.
        feeds: Arrays by the name of the input.

    Returns:
        The outputs by name.
    """
    options = onnxruntime().RunOptions()
    # signals are handled in the main thread, between two instructions of Python
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(session.run, names, feeds, options)
        try:
            return dict(zip(names, future.result(), strict=True))
        except KeyboardInterrupt:
            options.terminate = True
            raise
