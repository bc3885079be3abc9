# SPDX-License-Identifier: Apache-2.0
"""The CUDA library's plain C functions, for whoever has memory of a GPU: tests, and measurements without ONNX Runtime.

cuda = CudaLibrary(cuda_library_path())
sizes = Sizes(2, 128)
packed = torch.empty(cuda.packed_bytes("gru", sizes), dtype=torch.uint8, device="cuda")
cuda.pack("gru", sizes, [w.data_ptr() for w in weights], packed.data_ptr())
cuda.run("gru", sizes, packed.data_ptr(), T, B, x.data_ptr(), [h.data_ptr()], y.data_ptr(), [h_next.data_ptr()])
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgernn.errors import EdgernnError, UsageError, nearest


@dataclass(frozen=True)
class Sizes:
    """I, H, the rank of R, 0 where it is whole, and whether gates whose bias is optional have one."""

    input: int
    hidden: int
    rank: int = 0
    biases: bool = False

    def __post_init__(self) -> None:
        for name, value, least in (("input", self.input, 1), ("hidden", self.hidden, 1), ("rank", self.rank, 0)):
            if value < least:
                raise UsageError(f"{name}: expected at least {least}, got {value}")


class CudaLibrary:
    """Addresses are of the device's memory, float32 unless said, as whole numbers: `data_ptr()` of a torch tensor.

    Nothing waits for the device: work is put on `stream`, 0 for the default one, and what it reads and writes must
    live until it is done. Raises EdgernnError in the library's words where it refuses or a launch fails, and UsageError
    for a layer that it has no kernel for and for sizes that no sequence has.
    """

    def __init__(self, path: str | Path) -> None:
        try:
            library = ctypes.CDLL(str(path))
            for name in ("edgernn_cuda_kernels", "edgernn_cuda_missing", "edgernn_cuda_error"):
                getattr(library, name).restype = ctypes.c_char_p
            size, at = ctypes.c_int64, ctypes.c_void_p
            layer = (ctypes.c_char_p, size, size, size, ctypes.c_int)
            library.edgernn_cuda_packed_bytes.argtypes = [*layer, at]
            library.edgernn_cuda_pack.argtypes = [*layer, at, at, at]
            library.edgernn_cuda_run.argtypes = [*layer, at, size, size, *[at] * 7]
        except (OSError, AttributeError) as error:
            raise EdgernnError(f"{path}: expected the CUDA library of this version: {error}") from None
        self._library = library
        self._kernels = frozenset(library.edgernn_cuda_kernels().decode().split())

    def kernels(self) -> set[str]:
        """The layers, by their `kind`, that the library has kernels for."""
        return set(self._kernels)

    def missing(self) -> str | None:
        """Why no GPU can be used here, or None where one can."""
        reason = self._library.edgernn_cuda_missing()
        return None if reason is None else str(reason.decode())

    def packed_bytes(self, kind: str, sizes: Sizes) -> int:
        """How many bytes of the device's memory the weights of a layer take, packed."""
        need = ctypes.c_int64()
        self._check(self._library.edgernn_cuda_packed_bytes(*self._named(kind, sizes), ctypes.byref(need)))
        return need.value

    def pack(self, kind: str, sizes: Sizes, weights: Sequence[int], packed: int, stream: int = 0) -> None:
        """Pack the weights, in the order of the layer's inputs, into `packed_bytes` bytes."""
        self._check(self._library.edgernn_cuda_pack(*self._named(kind, sizes), _table(weights), packed, stream))

    def run(
        self,
        kind: str,
        sizes: Sizes,
        packed: int,
        steps: int,
        batch: int,
        x: int,
        states: Sequence[int],
        y: int,
        new_states: Sequence[int],
        updates: int = 0,
        macs: int = 0,
        stream: int = 0,
    ) -> None:
        """T steps of B sequences from x (T, B, I) and states (B, H) in the layer's order.

        A memory of the rule is (B, 1) or (B, H), the last input (B, I).

        Writes y (T, B, H), the last states, int64 updates (T, B) and macs (B,); 0 for one that is not wanted.
        """
        for name, value in (("steps", steps), ("batch", batch)):
            if value < 1:
                raise UsageError(f"{name}: expected at least 1, got {value}")
        if len(states) != len(new_states):
            raise UsageError(f"new_states: expected {len(states)}, as many as states, got {len(new_states)}")
        places = (x, _table(states), y, _table(new_states), updates, macs, stream)
        self._check(self._library.edgernn_cuda_run(*self._named(kind, sizes), packed, steps, batch, *places))

    def _named(self, kind: str, sizes: Sizes) -> tuple[bytes, int, int, int, bool]:
        if kind not in self._kernels:
            raise nearest("kind", kind, self._kernels)
        return kind.encode(), sizes.input, sizes.hidden, sizes.rank, sizes.biases

    def _check(self, status: int) -> None:
        if status != 0:
            raise EdgernnError((self._library.edgernn_cuda_error() or b"the CUDA library failed").decode())


def _table(addresses: Sequence[int]) -> ctypes.Array[ctypes.c_void_p]:
    """The addresses with a null behind them, at which a library that is given too few can stop."""
    return (ctypes.c_void_p * (len(addresses) + 1))(*addresses, None)
