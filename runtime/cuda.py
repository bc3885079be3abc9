# SPDX-License-Identifier: Apache-2.0
"""The CUDA library, loaded from Python: which kernels it has, and whether it can use a GPU."""

import ctypes
from pathlib import Path

from edgernn.errors import EdgernnError


class CudaLibrary:
    """CUDA library with the GPU kernels of recurrent layers, loaded for what it says of itself.

    Args:
        path: The shared library.

    Raises:
        EdgernnError: The library cannot be loaded.
    """

    def __init__(self, path: str | Path) -> None:
        try:
            library = ctypes.CDLL(str(path))
            for name in ("edgernn_cuda_kernels", "edgernn_cuda_missing", "edgernn_cuda_error"):
                getattr(library, name).restype = ctypes.c_char_p
        except (OSError, AttributeError) as error:
            raise EdgernnError(
                f"{path}: expected the CUDA library of this version of edgernn, got an error: {error}; build the "
                "library again"
            ) from None
        self._library = library
        self._kernels = frozenset(library.edgernn_cuda_kernels().decode().split())

    def kernels(self) -> set[str]:
        """Return the names of the library's kernels: a cell and its update rule, such as gru+selective."""
        return set(self._kernels)

    def missing(self) -> str | None:
        """Return why the library cannot use a GPU, or None if it can."""
        reason = self._library.edgernn_cuda_missing()
        return None if reason is None else str(reason.decode())
