# SPDX-License-Identifier: Apache-2.0
"""Bindings of the C functions that run a packed model (from `edgernn pack`) step by step."""

import contextlib
import ctypes
import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgernn.errors import EdgernnError
from edgernn.runtime.input_check import ACTIONS, OnNonfinite
from edgernn.runtime.library import load_library

Array = NDArray[Any]
# alignment in bytes, EDGERNN_ALIGNMENT of runtime/csrc/include/edgernn.h
_ALIGNMENT = 64
# size in bytes of a huge page on x86 and Arm, and of the smallest array that gets such pages
_HUGE_PAGE, _HUGE_ARRAY = 2**21, 2**22


class Sizes(ctypes.Structure):
    """The sizes of a model (batch, input, output, state), as the C struct EdgernnSizes of csrc/include/edgernn.h."""

    _fields_ = [(name, ctypes.c_int64) for name in ("batch", "input", "vocabulary", "output", "state", "neurons")]


def memory(packed: bytes, batch: int = 1) -> int:
    """Return the bytes of memory that a `Stepper` needs for states and workspace, besides the packed model.

    Args:
        packed: Content of a packed model, the file that `edgernn pack` writes for C programs.
        batch: B, the number of sequences.

    Returns:
        The number of bytes.

    Raises:
        EdgernnError: The packed model cannot be read, or the native library is missing.
    """
    return _memory(_library(), aligned(packed), batch)


def _memory(library: ctypes.CDLL, file: Array, batch: int) -> int:
    size = ctypes.c_size_t()
    _check(library, library.edgernn_memory(_address(file), len(file), batch, ctypes.byref(size)))
    return size.value


class Stepper:
    """Runs a packed model step by step on B sequences, and keeps their state between steps.

    Write the input to the array `x`, float32 (B, I), or int64 (B,) for word indices. Then call `step`, which overwrites
    the array `y` (B, O) with the O outputs. `updates` (B,) and `macs` (B,) are the numbers of updated neurons and of
    executed multiply-adds in the last step. Both are None for a model that runs all of its work at every step.
    `sizes` are those of the model.
    """

    def __init__(self, packed: bytes, batch: int, on_nonfinite: OnNonfinite = "error") -> None:
        """Load a packed model.

        Args:
            packed: Content of a packed model, the file that `edgernn pack` writes for C programs.
            batch: B, the number of sequences.
            on_nonfinite: What `step` does if a number of x is NaN or infinite: "error", "hold" or "reset", as in
                `Session`.

        Raises:
            EdgernnError: The packed model cannot be read, or the native library is missing.
        """
        self._library = _library()
        # the C model keeps pointers to both arrays, so they must live as long as it
        self._file = aligned(packed)
        self._memory = aligned(_memory(self._library, self._file, batch))
        model = ctypes.c_void_p()
        memory = _address(self._memory), len(self._memory)
        self._check(self._library.edgernn_open(_address(self._file), len(packed), batch, *memory, ctypes.byref(model)))
        self.sizes = sizes = Sizes()
        self._check(self._library.edgernn_sizes(model, ctypes.byref(sizes)))
        words = sizes.vocabulary > 0
        self.x: Array = np.zeros(batch, np.int64) if words else np.zeros((batch, sizes.input), np.float32)
        self.y: Array = np.zeros((batch, sizes.output), np.float32)
        self._model = model
        self._step = self._library.edgernn_step_words if words else self._library.edgernn_step
        self._check(self._library.edgernn_on_nonfinite(model, ACTIONS[on_nonfinite]))
        bad = ctypes.c_void_p()
        self._check(self._library.edgernn_nonfinite(model, ctypes.byref(bad)))
        self._nonfinite = (ctypes.c_int64 * batch).from_address(bad.value or 0)
        self._arguments = model, _address(self.x), _address(self.y)
        counts = ctypes.c_void_p(), ctypes.c_void_p()
        self._check(self._library.edgernn_work(model, *map(ctypes.byref, counts)))
        self._work = [
            None if count.value is None else (ctypes.c_int64 * batch).from_address(count.value) for count in counts
        ]

    @property
    def updates(self) -> NDArray[np.int64] | None:
        return None if self._work[0] is None else np.array(self._work[0])

    @property
    def macs(self) -> NDArray[np.int64] | None:
        return None if self._work[1] is None else np.array(self._work[1])

    @property
    def nonfinite(self) -> NDArray[np.int64]:
        """Number of steps (B,) at which x had a NaN or an infinite number, since each sequence started."""
        return np.array(self._nonfinite)

    def step(self) -> bool:
        """Run one step on self.x and return True; return False without a step if x is invalid.

        The method `refusal` then returns the reason.
        """
        return bool(self._step(*self._arguments) == 0)

    def profile(self, nanoseconds: NDArray[np.int64]) -> bool:
        """Run `step`, and add the time of each operation of a step graph to `nanoseconds` (operations,)."""
        model, x, y = self._arguments
        status = self._library.edgernn_profile(model, x, y, _address(nanoseconds), ctypes.c_int64(len(nanoseconds)))
        return bool(status == 0)

    @property
    def native(self) -> tuple[ctypes.c_void_p, ...]:
        """Four pointers: the C function that runs a step, and its arguments: model, input x and output y."""
        return ctypes.cast(self._step, ctypes.c_void_p), *self._arguments

    @property
    def native_reset(self) -> ctypes.c_void_p:
        """Pointer to the C function that restores the initial state; its argument is the pointer to the model."""
        return ctypes.cast(self._library.edgernn_reset, ctypes.c_void_p)

    def refusal(self) -> str:
        return str(self._library.edgernn_message().decode())

    def restart(self) -> None:
        """Restore the initial state: the next step starts a new sequence."""
        self._check(self._library.edgernn_reset(self._model))

    def restart_row(self, row: int) -> None:
        """Restore the initial state of the sequence `row` (0 to B - 1); the other sequences keep their state."""
        self._check(self._library.edgernn_reset_row(self._model, row))

    def save_state(self) -> bytes:
        """Return the state of all sequences as bytes; raise EdgernnError if the state has a NaN."""
        size = ctypes.c_size_t()
        self._check(self._library.edgernn_state_bytes(self._model, ctypes.byref(size)))
        data = ctypes.create_string_buffer(size.value)
        self._check(self._library.edgernn_save_state(self._model, data, size))
        return data.raw

    def restore_state(self, saved: bytes) -> None:
        """Restore a state from `save_state`; raise EdgernnError if it is damaged, or of another model or batch size."""
        self._check(self._library.edgernn_restore_state(self._model, saved, ctypes.c_size_t(len(saved))))

    def _check(self, status: int) -> None:
        _check(self._library, status)


def _library() -> ctypes.CDLL:
    library = load_library()
    if library is None:
        raise EdgernnError(
            "a packed model needs the native library, which is not installed; build it with: pip install ."
        )
    library.edgernn_message.restype = ctypes.c_char_p
    pointer, size, batch = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64
    library.edgernn_memory.argtypes = [pointer, size, batch, pointer]
    library.edgernn_open.argtypes = [pointer, size, batch, pointer, size, pointer]
    library.edgernn_reset_row.argtypes = [pointer, batch]
    return library


def _check(library: ctypes.CDLL, status: int) -> None:
    if status != 0:
        raise EdgernnError(library.edgernn_message().decode())


def aligned(content: bytes | int) -> NDArray[np.uint8]:
    """Allocate a uint8 array at an address that is a multiple of 64.

    If `content` is bytes, the array is a copy of them. If it is an integer, the array has that number of zeros.
    """
    size = content if isinstance(content, int) else len(content)
    huge = size >= _HUGE_ARRAY and hasattr(mmap, "MADV_HUGEPAGE")
    alignment = _HUGE_PAGE if huge else _ALIGNMENT
    buffer = _huge_pages(size + alignment) if huge else np.zeros(size + alignment, np.uint8)
    start = -buffer.ctypes.data % alignment
    aligned = buffer[start : start + size]
    if isinstance(content, bytes):
        aligned[:] = np.frombuffer(content, np.uint8)
    return aligned


def _huge_pages(size: int) -> Array:
    """Allocate zeros in huge pages, if the kernel has them, as a step of a large model reads all of its memory."""
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.uint8)


def _address(array: Array) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
