# SPDX-License-Identifier: Apache-2.0
"""Python interface of the native training library: loading it, calling it, and adding user-defined cells to it."""

import ctypes
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from edgernn.errors import EdgernnError, UsageError
from edgernn.kernels.column import SENT_COUNT
from edgernn.kernels.program_cell import CellSource, to_c
from edgernn.libraries import TRAIN, find_library

_MAX_PARAMS = _MAX_STATES = _MAX_MEMORIES = 4
_MAX_RULE_PARAMS = 5
_POINTER = ctypes.c_void_p
# size of the buffer for the library's error message
_WHY_BYTES = 512
# integer fields of EdgernnTrainCall after `program`
_INTEGERS = ("cell", "rule", "steps", "batch", "input", "hidden", "group_size", "detaches_state", "threads", "keep")


class TrainCall(ctypes.Structure):
    """C struct EdgernnTrainCall: the arguments of a call of forward or backward in the training library.

    runtime/csrc/train/edgernn_train.h describes the fields.
    """

    _fields_ = [
        ("program", _POINTER),
        *((name, ctypes.c_int64) for name in _INTEGERS),
        *((name, _POINTER) for name in ("x", "w", "r", "c", "v", "b")),
        ("params", _POINTER * _MAX_PARAMS),
        ("start", _POINTER * _MAX_STATES),
        ("rule_params", _POINTER * _MAX_RULE_PARAMS),
        ("memory", _POINTER * _MAX_MEMORIES),
        ("slope", ctypes.c_float),
        *((name, _POINTER) for name in ("p", "m")),
        ("state", _POINTER * _MAX_STATES),
        ("memories", _POINTER * _MAX_MEMORIES),
        *((name, _POINTER) for name in ("u", "decision_weights", "y_grad")),
        ("last_grad", _POINTER * _MAX_STATES),
        ("last_memory_grad", _POINTER * _MAX_MEMORIES),
        *((name, _POINTER) for name in ("x_grad", "w_grad", "r_grad", "c_grad", "v_grad", "b_grad")),
        ("params_grad", _POINTER * _MAX_PARAMS),
        ("start_grad", _POINTER * _MAX_STATES),
        ("rule_params_grad", _POINTER * _MAX_RULE_PARAMS),
        ("memory_grad", _POINTER * _MAX_MEMORIES),
        ("sent_grad", _POINTER * SENT_COUNT),
        *((name, _POINTER) for name in ("u_grad", "scratch", "norms")),
    ]

    def set_tensors(self, tensors: Mapping[str, Tensor | Sequence[Tensor | None] | None]) -> None:
        """Set pointer fields of the C struct to the addresses of contiguous tensors, which must outlive the call.

        `tensors` is a dict from the name of a field to a tensor, or to a list of tensors if the field is an array of
        pointers. A field with the value None is left unchanged, and None in a list becomes a null pointer.
        """
        for name, value in tensors.items():
            if isinstance(value, Tensor):
                setattr(self, name, value.data_ptr())
            elif value is not None:
                field = getattr(self, name)
                for i, tensor in enumerate(value):
                    field[i] = None if tensor is None else tensor.data_ptr()

    def run(self, back: bool) -> None:
        loaded = library()
        assert loaded is not None
        scratch = torch.empty(loaded.edgernn_train_scratch(ctypes.byref(self)), dtype=torch.uint8)
        self.scratch = scratch.data_ptr()
        (loaded.edgernn_train_backward if back else loaded.edgernn_train_forward)(ctypes.byref(self))


def train_library_path() -> Path | None:
    """Return the path of the native training library; None if it is not installed."""
    return find_library(TRAIN)


@cache
def library() -> ctypes.CDLL | None:
    """Load the library of training kernels; None if it is missing or does not support this processor.

    EdgernnError is raised if it was built for another version.
    """
    path = train_library_path()
    if path is None:
        return None
    loaded = ctypes.CDLL(str(path))
    # libraries without this function are older
    size = getattr(loaded, "edgernn_train_call_bytes", int)
    if size() != ctypes.sizeof(TrainCall):
        raise EdgernnError(
            f"{path}: expected the library of this version of edgernn, got another; install edgernn again"
        )
    loaded.edgernn_train_isa.restype = ctypes.c_char_p
    loaded.edgernn_train_cell.argtypes = [ctypes.c_char_p, ctypes.c_int64]
    loaded.edgernn_train_rule.argtypes = [ctypes.c_char_p]
    for number in (loaded.edgernn_train_cell, loaded.edgernn_train_rule):
        number.restype = ctypes.c_int64
    loaded.edgernn_train_new_cell.argtypes = [_POINTER, ctypes.c_char_p, ctypes.c_int64]
    loaded.edgernn_train_new_cell.restype = _POINTER
    loaded.edgernn_train_free_cell.argtypes, loaded.edgernn_train_free_cell.restype = [_POINTER], None
    for count in (loaded.edgernn_train_scratch, loaded.edgernn_train_gates):
        count.argtypes, count.restype = [_POINTER], ctypes.c_int64
    for run in (loaded.edgernn_train_forward, loaded.edgernn_train_backward):
        run.argtypes, run.restype = [_POINTER], None
    return None if loaded.edgernn_train_isa() is None else loaded


class ProgramCell:
    """A user-defined cell in the memory of the native training library, which is freed with this object.

    `address` is the cell's address in that memory, for calls of the library.

    Args:
        source: The serialised cell.

    Raises:
        UsageError: The library cannot run the cell.
    """

    def __init__(self, source: CellSource) -> None:
        loaded = library()
        assert loaded is not None
        self.source, self._free = source, loaded.edgernn_train_free_cell
        why = ctypes.create_string_buffer(_WHY_BYTES)
        self.address: int | None = loaded.edgernn_train_new_cell(ctypes.byref(to_c(source)), why, len(why))
        if self.address is None:
            raise UsageError(f"no CPU kernel for the layer: {why.value.decode()}; change the cell's equations")

    def __del__(self) -> None:
        if getattr(self, "address", None) is not None:
            self._free(self.address)

    def __reduce__(self) -> tuple[Any, ...]:
        return ProgramCell, (self.source,)
