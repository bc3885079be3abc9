# SPDX-License-Identifier: Apache-2.0
"""One step after another through the library's plain C functions."""

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgernn.errors import EdgernnError
from edgernn.runtime.library import load_library

Array = NDArray[Any]
# EDGERNN_ALIGNMENT of runtime/csrc/include/edgernn.h
_ALIGNMENT = 64


class _Sizes(ctypes.Structure):
    """EdgernnSizes of runtime/csrc/include/edgernn.h."""

    _fields_ = [(name, ctypes.c_int64) for name in ("batch", "input", "vocabulary", "output", "state", "neurons")]


def memory(packed: bytes, batch: int = 1) -> int:
    """The bytes that a stream of B sequences needs besides the packed model itself.

    Raises EdgernnError for a model that cannot be read, and where there is no library.
    """
    return _memory(_library(), _aligned(packed), batch)


def _memory(library: ctypes.CDLL, file: Array, batch: int) -> int:
    need = ctypes.c_size_t()
    _check(library, library.edgernn_memory(_at(file), len(file), batch, ctypes.byref(need)))
    return need.value


class Stepper:
    """Steps of B sequences of a packed model, whose state is in memory of its own.

    x: what `step` reads, (B, I), or int64 (B,) of words; y: what it made, (B, O). Both are overwritten in place.
    updates, macs: of the last step, (B,); None for a model that always updates everything.

    Raises EdgernnError for a model that cannot be read.
    """

    def __init__(self, packed: bytes, batch: int) -> None:
        self._library = _library()
        # the model reads both for as long as it is used
        self._file = _aligned(packed)
        self._memory = _aligned(_memory(self._library, self._file, batch))
        model = ctypes.c_void_p()
        given = _at(self._file), len(packed), batch, _at(self._memory), len(self._memory)
        self._check(self._library.edgernn_open(*given, ctypes.byref(model)))
        found = _Sizes()
        self._check(self._library.edgernn_sizes(model, ctypes.byref(found)))
        words = found.vocabulary > 0
        self.x: Array = np.zeros(batch, np.int64) if words else np.zeros((batch, found.input), np.float32)
        self.y: Array = np.zeros((batch, found.output), np.float32)
        self._model = model
        self._step = self._library.edgernn_step_words if words else self._library.edgernn_step
        self._given = model, _at(self.x), _at(self.y)
        counts = ctypes.c_void_p(), ctypes.c_void_p()
        self._check(self._library.edgernn_work(model, *map(ctypes.byref, counts)))
        self._work = [None if at.value is None else (ctypes.c_int64 * batch).from_address(at.value) for at in counts]

    @property
    def updates(self) -> NDArray[np.int64] | None:
        return None if self._work[0] is None else np.array(self._work[0])

    @property
    def macs(self) -> NDArray[np.int64] | None:
        return None if self._work[1] is None else np.array(self._work[1])

    def step(self) -> bool:
        """One step from self.x; False, and no step, where x is refused: `refusal` says why."""
        return bool(self._step(*self._given) == 0)

    @property
    def native(self) -> tuple[ctypes.c_void_p, ...]:
        """The C function of a step, and what it is given: the model, x and y."""
        return ctypes.cast(self._step, ctypes.c_void_p), *self._given

    @property
    def native_reset(self) -> ctypes.c_void_p:
        """The C function that resets the model."""
        return ctypes.cast(self._library.edgernn_reset, ctypes.c_void_p)

    def refusal(self) -> str:
        return str(self._library.edgernn_message().decode())

    def restart(self) -> None:
        """The next step starts a new sequence."""
        self._check(self._library.edgernn_reset(self._model))

    def _check(self, status: int) -> None:
        _check(self._library, status)


def _library() -> ctypes.CDLL:
    library = load_library()
    if library is None:
        raise EdgernnError("a packed model needs the native library, which is not installed: pip install .")
    library.edgernn_message.restype = ctypes.c_char_p
    pointer, size, batch = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64
    library.edgernn_memory.argtypes = [pointer, size, batch, pointer]
    library.edgernn_open.argtypes = [pointer, size, batch, pointer, size, pointer]
    return library


def _check(library: ctypes.CDLL, status: int) -> None:
    if status != 0:
        raise EdgernnError(library.edgernn_message().decode())


def _aligned(content: bytes | int) -> NDArray[np.uint8]:
    """Memory that starts where the library wants it, with this content or so many bytes."""
    size = content if isinstance(content, int) else len(content)
    whole = np.zeros(size + _ALIGNMENT, np.uint8)
    start = -whole.ctypes.data % _ALIGNMENT
    made = whole[start : start + size]
    if isinstance(content, bytes):
        made[:] = np.frombuffer(content, np.uint8)
    return made


def _at(array: Array) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
