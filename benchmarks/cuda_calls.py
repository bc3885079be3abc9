# SPDX-License-Identifier: Apache-2.0
"""Bindings of the CUDA library's C functions, for tests and measurements without ONNX Runtime.

cuda = CudaCalls(cuda_library_path())
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
from edgernn.runtime.cuda import CudaLibrary


@dataclass(frozen=True)
class Sizes:
    """Sizes of a recurrent layer that a CUDA kernel runs.

    Attributes:
        input: I, the number of input values at each step.
        hidden: H, the number of neurons.
        rank: Rank of the recurrent weights R, or 0 if R is a full matrix.
        biases: True if the layer has the biases that its cell declares as optional.
        group_size: Number of adjacent neurons that the update rule updates or skips together.

    Raises:
        UsageError: input, hidden or group_size is below 1, or rank is below 0.
    """

    input: int
    hidden: int
    rank: int = 0
    biases: bool = False
    group_size: int = 1

    def __post_init__(self) -> None:
        smallest = {"input": 1, "hidden": 1, "rank": 0, "group_size": 1}
        for name, least in smallest.items():
            if (value := getattr(self, name)) < least:
                raise UsageError(f"{name}: expected at least {least}, got {value}")


class CudaCalls(CudaLibrary):
    """CUDA library whose kernels are called from Python.

    Addresses are integers that point to float32 arrays in device memory, such as `data_ptr()` of a torch tensor.
    Calls are asynchronous: they enqueue work on `stream` (0: the default stream), and the arrays must live until it is
    done. Methods raise EdgernnError with the library's message if a call or a launch fails, and UsageError for a layer
    without a kernel or invalid sizes.

    Args:
        path: The shared library.

    Raises:
        EdgernnError: The library cannot be loaded.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        size, pointer = ctypes.c_int64, ctypes.c_void_p
        layer = (ctypes.c_char_p, size, size, size, ctypes.c_int, size)
        self._library.edgernn_cuda_packed_bytes.argtypes = [*layer, pointer]
        self._library.edgernn_cuda_pack.argtypes = [*layer, pointer, pointer, pointer]
        self._library.edgernn_cuda_run.argtypes = [*layer, pointer, size, size, *[pointer] * 7]

    def packed_bytes(self, kind: str, sizes: Sizes) -> int:
        """Return the size in bytes of a layer's packed weights in GPU memory; `kind` is one of `kernels`."""
        size = ctypes.c_int64()
        self._check(self._library.edgernn_cuda_packed_bytes(*self._layer(kind, sizes), ctypes.byref(size)))
        return size.value

    def pack(self, kind: str, sizes: Sizes, weights: Sequence[int], packed: int, stream: int = 0) -> None:
        """Pack a layer's weights: copy them in GPU memory into the layout that the kernels read.

        Args:
            kind: Name of the layer's kernel, one of `kernels`.
            sizes: Sizes of the layer.
            weights: Addresses of the weights, in the order of the ONNX op's inputs
                (`edgernn.export.layer_functions.layer_weights`).
            packed: Address of a buffer of `packed_bytes` bytes, which receives the packed weights.
            stream: CUDA stream, or 0 for the default stream.
        """
        self._check(self._library.edgernn_cuda_pack(*self._layer(kind, sizes), _table(weights), packed, stream))

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
        """Run a layer over T steps of B sequences.

        Args:
            kind: Name of the layer's kernel, one of `kernels`.
            sizes: Sizes of the layer.
            packed: Address of the weights that `pack` wrote.
            steps: T, the number of steps.
            batch: B, the number of sequences.
            x: Address of the inputs (T, B, I).
            states: Addresses of the initial states in the order of `RecurrentLayer.states`. States of the cell are
                (B, H), and those of the update rule (B, 1) or (B, H), under the rule delta also (B, columns of W) and
                (B, P), where P counts the rows of gates that read x or h. The previous input, if the cell reads it, is
                (B, I).
            y: Address of the array (T, B, H) that receives the outputs.
            new_states: Addresses of the arrays that receive the states after the last step, in the order of `states`.
            updates: Address of an int64 array (T, B) that receives the number of updated neurons, or under the rule
                delta of values of h that were sent; 0 for no counts.
            macs: Address of an int64 array (B,) that receives the number of executed multiply-adds, or 0 for no counts.
            stream: CUDA stream, or 0 for the default stream.
        """
        for name, value in (("steps", steps), ("batch", batch)):
            if value < 1:
                raise UsageError(f"{name}: expected at least 1, got {value}")
        if len(states) != len(new_states):
            raise UsageError(
                f"new_states: expected {len(states)} addresses, as many as in states, got {len(new_states)}; "
                "pass one for each state"
            )
        addresses = (x, _table(states), y, _table(new_states), updates, macs, stream)
        self._check(self._library.edgernn_cuda_run(*self._layer(kind, sizes), packed, steps, batch, *addresses))

    def _layer(self, kind: str, sizes: Sizes) -> tuple[bytes, int, int, int, bool, int]:
        if kind not in self._kernels:
            raise nearest("kind", kind, self._kernels)
        return kind.encode(), sizes.input, sizes.hidden, sizes.rank, sizes.biases, sizes.group_size

    def _check(self, status: int) -> None:
        if status != 0:
            raise EdgernnError((self._library.edgernn_cuda_error() or b"the CUDA library failed").decode())


def _table(addresses: Sequence[int]) -> ctypes.Array[ctypes.c_void_p]:
    """Build a C array of addresses that ends with a null pointer; the caller keeps it during the call."""
    return (ctypes.c_void_p * (len(addresses) + 1))(*addresses, None)
